//! The comparison of measured times.

/// The turns of each way that is measured. The first does not count, and the median of the others
/// does.
pub(crate) const TURNS: usize = 6;

/// With fewer turns nothing is chosen.
const LEAST_TURNS: usize = 4;

/// A way is chosen if it takes less than this part of the time of the one before: a machine that is
/// busy must not choose at random.
const GAIN: f64 = 0.85;

/// Returns the median of the times but the first; `None` if there are too few.
pub(crate) fn median(times: &[f64]) -> Option<f64> {
    let mut counted = times.get(1..)?.to_vec();
    counted.sort_by(f64::total_cmp);
    (times.len() >= LEAST_TURNS).then(|| counted[counted.len() / 2])
}

/// Returns the index of the fastest of several series of times, if it is faster than the `known`
/// one by enough. It is a pure function.
pub(crate) fn fastest(times: &[Vec<f64>], known: usize) -> Option<usize> {
    let limit = GAIN * median(&times[known])?;
    let medians = times.iter().enumerate().filter_map(|(index, times)| Some((index, median(times)?)));
    medians.filter(|&(_, time)| time < limit).min_by(|one, other| one.1.total_cmp(&other.1)).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_is_chosen_by_its_median_and_noise_changes_nothing() {
        let series = |times: [f64; 4]| times.to_vec();
        let known = series([9.0, 1.0, 1.0, 1.0]);
        assert_eq!(fastest(&[known.clone(), series([0.1, 0.9, 0.5, 0.9])], 0), None);
        assert_eq!(fastest(&[known.clone(), series([9.0, 0.8, 8.0, 0.8])], 0), Some(1));
        assert_eq!(fastest(&[series([1.0; 4]), known.clone(), series([1.0, 0.5, 0.5, 0.5])], 1), Some(2));
        // The time was up.
        assert_eq!(fastest(&[known.clone(), vec![0.1; 3]], 0), None);
        assert_eq!(fastest(&[vec![1.0; 3], series([0.1; 4])], 0), None);
        assert_eq!(fastest(&[vec![], vec![]], 0), None);
    }
}
