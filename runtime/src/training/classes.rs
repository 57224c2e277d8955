//! Metrics of predictions of one of two classes, over the samples of all replicas.

use crate::{DType, Error, Nest, ReduceOp, ReplicaContext, Result, Tensor, nest::Opaque};
use std::ops::AddAssign;

/// The fraction of the samples predicted to be positive that are.
///
/// ```
/// use consonance::{MirroredStrategy, training::Precision};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let precisions = strategy.run(|replica| {
///     let mut precision = Precision::new();
///     // The predicted probabilities of this replica's samples, and whether they are positive.
///     let samples = [[(0.9, false), (0.2, true)], [(0.7, true), (0.8, true)]];
///     for (probability, is_positive) in samples[replica.replica_id_in_sync_group()] {
///         precision.add(probability > 0.5, is_positive);
///     }
///     precision.result(replica)
/// })?;
/// assert_eq!(precisions.values(), [Some(2.0 / 3.0); 2]);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Nest)]
pub struct Precision {
    right: u64,
    predicted: u64,
}

/// The fraction of the positive samples that are predicted to be.
///
/// ```
/// use consonance::{MirroredStrategy, training::Recall};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let recalls = strategy.run(|replica| {
///     let mut recall = Recall::new();
///     let is_predicted = replica.replica_id_in_sync_group() == 0;
///     recall.add(is_predicted, true);
///     recall.result(replica)
/// })?;
/// assert_eq!(recalls.values(), [Some(0.5); 2]);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Nest)]
pub struct Recall {
    right: u64,
    positive: u64,
}

macro_rules! fraction {
    ($metric:ident, $whole:ident, $add:expr, $none:literal) => {
        impl $metric {
            /// Makes a metric without samples.
            pub fn new() -> $metric {
                $metric::default()
            }

            /// Adds a sample: whether it is predicted to be positive, such as `probability > 0.5`,
            /// and whether it is.
            pub fn add(&mut self, is_predicted: bool, is_positive: bool) {
                let counts: fn(bool, bool) -> bool = $add;
                self.right += u64::from(is_predicted && is_positive);
                self.$whole += u64::from(counts(is_predicted, is_positive));
            }

            #[doc = concat!("Returns the fraction of the samples in it; `None` if ", $none, ".")]
            /// Those are this replica's samples, until metrics of replicas are combined by a sum.
            pub fn value(&self) -> Option<f64> {
                (self.$whole > 0).then(|| self.right as f64 / self.$whole as f64)
            }

            #[doc = concat!("Returns the fraction of the samples of all replicas; `None` if ", $none, ".")]
            /// TensorFlow's is then 0. Every replica makes the call.
            ///
            /// # Errors
            /// As [`ReplicaContext::all_reduce`].
            pub fn result(&self, replica: &ReplicaContext<'_>) -> Result<Option<f64>> {
                Ok(replica.all_reduce(ReduceOp::Sum, *self)?.value())
            }

            /// Removes all samples.
            pub fn reset(&mut self) {
                *self = $metric::default();
            }
        }

        /// Adds the samples of another metric.
        impl AddAssign for $metric {
            fn add_assign(&mut self, other: $metric) {
                self.right += other.right;
                self.$whole += other.$whole;
            }
        }
    };
}

fraction!(Precision, predicted, |is_predicted, _| is_predicted, "none is predicted to be positive");
fraction!(Recall, positive, |_, is_positive| is_positive, "none is positive");

/// The curve whose area is an [`Auc`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Curve {
    /// The receiver operating characteristic: the fraction of the positive samples that are
    /// predicted to be, over that of the others.
    #[default]
    Roc,
    /// Precision over recall.
    Pr,
}

/// The area under a curve of many thresholds: the approximation of `tf.keras.metrics.AUC`.
///
/// The thresholds are 0, 1 and those evenly between. The first and the last are moved outwards by
/// 1e-7, so that every probability is above the one and below the other. Between two thresholds the
/// ROC curve is a line, and the PR curve has the precision of the points between, as in TensorFlow.
///
/// It is a count for each threshold and class. Metrics of replicas must have the same thresholds.
///
/// ```
/// use consonance::{MirroredStrategy, training::{Auc, Curve}};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let areas = strategy.run(|replica| {
///     let mut auc = Auc::with(3, Curve::Roc)?;
///     // The predicted probabilities of this replica's samples, and whether they are positive.
///     let samples = [[(0.0, false), (0.5, false)], [(0.3, true), (0.9, true)]];
///     for (probability, is_positive) in samples[replica.replica_id_in_sync_group()] {
///         auc.add(probability, is_positive);
///     }
///     auc.result(replica)
/// })?;
/// assert_eq!(areas.values(), [Some(0.75); 2]);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Nest)]
pub struct Auc {
    /// For each class, the others first, the samples whose number of thresholds below the
    /// prediction is the index: u64[2, thresholds + 1].
    counts: Tensor,
    curve: Opaque<Curve>,
}

impl Auc {
    /// Makes a metric of the ROC curve with 200 thresholds, without samples.
    pub fn new() -> Auc {
        Auc::of(200, Curve::Roc)
    }

    /// Makes a metric without samples.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for fewer than 2 thresholds, or more than 2²⁴.
    pub fn with(num_thresholds: usize, curve: Curve) -> Result<Auc> {
        /// Far more than anybody needs. The counts of as many are 256 MiB.
        const MOST: usize = 1 << 24;
        if !(2..=MOST).contains(&num_thresholds) {
            let found = num_thresholds.to_string();
            return Err(Error::invalid("Auc::with", "num_thresholds", format!("2 to {MOST}"), found));
        }
        Ok(Auc::of(num_thresholds, curve))
    }

    fn of(num_thresholds: usize, curve: Curve) -> Auc {
        Auc { counts: Tensor::zeros(DType::U64, [2, num_thresholds + 1]), curve: Opaque(curve) }
    }

    fn num_thresholds(&self) -> usize {
        self.counts.shape()[1] - 1
    }

    /// Adds a sample: the probability with which it is predicted to be positive, in 0 to 1, and
    /// whether it is. A NaN is below all thresholds.
    pub fn add(&mut self, probability: f64, is_positive: bool) {
        let thresholds = self.num_thresholds();
        let below = thresholds_below(probability, thresholds);
        self.counts_mut()[usize::from(is_positive) * (thresholds + 1) + below] += 1;
    }

    /// Returns the area for the samples in it; `None` if none is positive, or if none is negative
    /// and the curve is ROC. Those are this replica's samples, until metrics of replicas are
    /// combined by a sum.
    pub fn value(&self) -> Option<f64> {
        let counts = self.counts.as_slice::<u64>().expect("counts in memory of the host");
        let (negative, positive) = counts.split_at(counts.len() / 2);
        let (false_positives, true_positives) = (predicted_at_each(negative), predicted_at_each(positive));
        let all = |counts: &[u64]| counts.iter().sum::<u64>() as f64;
        let (negative, positive) = (all(negative), all(positive));
        let has_area = positive > 0.0 && (negative > 0.0 || self.curve.0 == Curve::Pr);
        let points: Vec<(f64, f64)> = true_positives.into_iter().zip(false_positives).collect();
        has_area.then(|| match self.curve.0 {
            Curve::Roc => points.windows(2).map(|pair| under_line(pair[0], pair[1])).sum::<f64>() / positive / negative,
            Curve::Pr => points.windows(2).map(|pair| under_precision(pair[0], pair[1])).sum::<f64>() / positive,
        })
    }

    /// Returns the area for the samples of all replicas; `None` as [`value`](Auc::value), where
    /// TensorFlow's is 0. Every replica makes the call and gets the same bits.
    ///
    /// # Errors
    /// As [`ReplicaContext::all_reduce`]: [`Error::Mismatch`] if replicas have other numbers of
    /// thresholds.
    pub fn result(&self, replica: &ReplicaContext<'_>) -> Result<Option<f64>> {
        Ok(replica.all_reduce(ReduceOp::Sum, self.clone())?.value())
    }

    /// Removes all samples.
    pub fn reset(&mut self) {
        self.counts_mut().fill(0);
    }

    fn counts_mut(&mut self) -> &mut [u64] {
        self.counts.as_mut_slice().expect("counts in memory of the host")
    }
}

/// [`Auc::new`]
impl Default for Auc {
    fn default() -> Auc {
        Auc::new()
    }
}

/// Returns a threshold.
fn threshold(index: usize, thresholds: usize) -> f64 {
    const EPSILON: f64 = 1e-7;
    match index {
        0 => -EPSILON,
        _ if index == thresholds - 1 => 1.0 + EPSILON,
        _ => index as f64 / (thresholds - 1) as f64,
    }
}

/// Returns the number of thresholds that are less than the prediction.
fn thresholds_below(probability: f64, thresholds: usize) -> usize {
    // The exact number or one beside it. A NaN becomes 0.
    let mut below = ((probability * (thresholds - 1) as f64).ceil() as usize).min(thresholds);
    while below < thresholds && threshold(below, thresholds) < probability {
        below += 1;
    }
    while below > 0 && threshold(below - 1, thresholds) >= probability {
        below -= 1;
    }
    below
}

/// Returns for each threshold the number of samples above it, of the numbers by the thresholds
/// below them.
fn predicted_at_each(counts: &[u64]) -> Vec<f64> {
    let above = counts[1..].iter().rev().scan(0, |above, count| {
        *above += count;
        Some(*above as f64)
    });
    let mut above: Vec<f64> = above.collect();
    above.reverse();
    above
}

/// Returns the area under the line between two points of the ROC curve, each of true and false
/// positives.
fn under_line((true_from, false_from): (f64, f64), (true_to, false_to): (f64, f64)) -> f64 {
    (false_from - false_to) * (true_from + true_to) / 2.0
}

/// Returns the area under the PR curve between two points, times the positive samples: J. Davis and
/// M. Goadrich, "The Relationship Between Precision-Recall and ROC Curves" (2006).
fn under_precision((true_from, false_from): (f64, f64), (true_to, false_to): (f64, f64)) -> f64 {
    let (from, to) = (true_from + false_from, true_to + false_to);
    let (more_true, more) = (true_from - true_to, from - to);
    if more == 0.0 {
        return 0.0;
    }
    let slope = more_true / more;
    let intercept = true_to - slope * to;
    let ratio = if to > 0.0 { from / to } else { 1.0 };
    slope * (more_true + intercept * ratio.ln())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        MirroredStrategy,
        fields::{mismatch, refusal},
    };

    const SAMPLES: [(f64, bool); 4] = [(0.0, false), (0.5, false), (0.3, true), (0.9, true)];

    fn auc(thresholds: usize, curve: Curve, samples: &[(f64, bool)]) -> Auc {
        let mut auc = Auc::with(thresholds, curve).unwrap();
        samples.iter().for_each(|&(probability, is_positive)| auc.add(probability, is_positive));
        auc
    }

    /// The examples of TensorFlow's documentation.
    #[test]
    fn values_match_tensorflow_s_documentation() {
        let (mut precision, mut recall) = (Precision::new(), Recall::new());
        assert_eq!((precision.value(), recall.value()), (None, None));
        for (is_predicted, is_positive) in [(true, false), (false, true), (true, true), (true, true)] {
            precision.add(is_predicted, is_positive);
            recall.add(is_predicted, is_positive);
        }
        assert_eq!((precision.value(), recall.value()), (Some(2.0 / 3.0), Some(2.0 / 3.0)));
        precision += precision;
        recall += recall;
        assert_eq!((precision, recall), (Precision { right: 4, predicted: 6 }, Recall { right: 4, positive: 6 }));
        assert_eq!(auc(3, Curve::Roc, &SAMPLES).value(), Some(0.75));
        assert_eq!(auc(3, Curve::Roc, &[SAMPLES[0], SAMPLES[3]]).value(), Some(1.0));
    }

    /// Every count, every threshold and every formula of `keras/src/metrics`, without the counts by
    /// thresholds below.
    fn as_keras_computes(thresholds: usize, curve: Curve, samples: &[(f64, bool)]) -> f64 {
        let count = |threshold: f64, of: bool| {
            samples.iter().filter(|&&(probability, is)| is == of && probability > threshold).count() as f64
        };
        let divide = |x: f64, y: f64| if y == 0.0 { 0.0 } else { x / y };
        let at: Vec<[f64; 2]> = (0..thresholds)
            .map(|index| threshold(index, thresholds))
            .map(|threshold| [count(threshold, true), count(threshold, false)])
            .collect();
        let [positive, negative] =
            [true, false].map(|of| samples.iter().filter(|sample| sample.1 == of).count() as f64);
        let pairs = at.windows(2).map(|pair| {
            let [[true_from, false_from], [true_to, false_to]] = [pair[0], pair[1]];
            match curve {
                Curve::Roc => {
                    let rates = [true_from, true_to].map(|count| divide(count, positive));
                    let width = divide(false_from, negative) - divide(false_to, negative);
                    width * (rates[0] + rates[1]) / 2.0
                }
                Curve::Pr => {
                    let (from, to) = (true_from + false_from, true_to + false_to);
                    let slope = divide(true_from - true_to, (from - to).max(0.0));
                    let intercept = true_to - slope * to;
                    let ratio = if from > 0.0 && to > 0.0 { divide(from, to) } else { 1.0 };
                    divide(slope * (true_from - true_to + intercept * ratio.ln()), positive)
                }
            }
        });
        pairs.sum()
    }

    #[test]
    fn areas_match_keras() {
        // Predictions of all kinds: at thresholds, beside them, at both ends, equal ones.
        let samples: Vec<(f64, bool)> =
            (0..300u32).map(|i| (f64::from(i * 7919 % 301 / 2) / 150.0, i * i % 7 < 3)).collect();
        for (thresholds, count) in [2, 3, 4, 101, 151, 200, 301].into_iter().flat_map(|n| [(n, 4), (n, 37), (n, 300)]) {
            for curve in [Curve::Roc, Curve::Pr] {
                let found = auc(thresholds, curve, &samples[..count]).value().expect("both classes");
                let expected = as_keras_computes(thresholds, curve, &samples[..count]);
                // The sums have other orders.
                assert!((found - expected).abs() < 1e-12, "{found} and {expected}: {thresholds}, {curve:?}, {count}");
            }
        }
    }

    #[test]
    fn a_prediction_is_above_each_lower_threshold() {
        let edges = [f64::NEG_INFINITY, -1e-7, -1e-8, -0.0, 0.0, 1e-300, 1.0, 1.0 + 1e-8, 2.0, f64::INFINITY, f64::NAN];
        for thresholds in [2, 3, 7, 200] {
            let near = (0..thresholds).map(|index| threshold(index, thresholds));
            let near = near.flat_map(|threshold| [threshold.next_down(), threshold, threshold.next_up()]);
            for probability in edges.into_iter().chain(near) {
                let below = (0..thresholds).filter(|&index| threshold(index, thresholds) < probability).count();
                assert_eq!(thresholds_below(probability, thresholds), below, "{probability} of {thresholds}");
            }
        }
    }

    #[test]
    fn a_metric_without_a_class_has_no_area() {
        assert_eq!(Auc::default().value(), None);
        let (positive, negative) = ([(0.4, true)], [(0.4, false)]);
        assert_eq!([auc(3, Curve::Roc, &positive), auc(3, Curve::Roc, &negative)].map(|auc| auc.value()), [None; 2]);
        assert_eq!(auc(3, Curve::Pr, &positive).value(), Some(1.0));
        let mut used = auc(3, Curve::Pr, &positive);
        used.reset();
        assert_eq!(used, Auc::with(3, Curve::Pr).unwrap());
        assert_eq!(refusal(&Auc::with(1, Curve::Roc).unwrap_err()), ("Auc::with", "num_thresholds", None));
        assert!(Auc::with(usize::MAX, Curve::Roc).is_err());
    }

    #[test]
    fn metrics_of_replicas_are_those_of_all_samples() {
        let strategy = MirroredStrategy::new(["cpu:0", "cpu:1", "cpu:2"]).unwrap();
        let results = strategy.run(|replica| {
            let id = replica.replica_id_in_sync_group();
            // The last replica has no samples.
            let own = &SAMPLES[2 * id.min(2)..(2 * id + 2).min(4).max(2 * id.min(2))];
            let (mut precision, mut recall) = (Precision::new(), Recall::new());
            own.iter().for_each(|&(probability, is)| precision.add(probability > 0.5, is));
            own.iter().for_each(|&(probability, is)| recall.add(probability > 0.5, is));
            let metrics = (precision, recall, auc(200, Curve::Roc, own));
            let (precision, recall, area) = replica.all_reduce(ReduceOp::Sum, metrics)?;
            Ok((precision.value(), recall.value(), area.value()))
        });
        let of_all = auc(200, Curve::Roc, &SAMPLES).value();
        assert_eq!(results.unwrap().values(), [(Some(1.0), Some(0.5), of_all); 3]);
        let odd = strategy.run(|replica| {
            let thresholds = if replica.replica_id_in_sync_group() == 1 { 3 } else { 4 };
            Auc::with(thresholds, Curve::Roc)?.result(replica)
        });
        let error = odd.unwrap_err();
        assert_eq!((mismatch(error.root()).1, mismatch(error.root()).2), ("value/counts", 1));
    }
}
