//! Synchronous data-parallel training: every replica computes the gradients of its part of each
//! batch, and all take the same step along the sum.

use crate::{
    data::{Digits, Random, Samples},
    network::{Network, Tally},
    plan::Plan,
    state::Model,
};
use consonance::{Error, PerReplica, ReduceOp, ReplicaContext, Result, Strategy, Tensor};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// The mean time that the replicas spent on communication.
#[derive(Clone, Copy, Default)]
pub(crate) struct Communication {
    /// The time in collectives, including waits for other replicas, on the replica's own thread or
    /// on another.
    pub(crate) total: Duration,
    /// The time in which the replica's own thread handed gradients over or waited.
    pub(crate) waited: Duration,
}

impl Communication {
    /// Returns the fraction of the communication that was hidden behind computation. It is 0 if the
    /// replica waited longer than the communication took.
    pub(crate) fn hidden(self) -> f64 {
        if self.total.is_zero() { 0.0 } else { 1.0 - self.waited.div_duration_f64(self.total).min(1.0) }
    }
}

/// The results of an epoch, over all replicas.
pub(crate) struct Epoch {
    pub(crate) number: usize,
    pub(crate) train: Tally,
    pub(crate) test: Tally,
    /// The time of the training, without the test.
    pub(crate) elapsed: Duration,
    pub(crate) communication: Communication,
}

/// Trains a network on every replica of `strategy`, reports each epoch, and returns the digest of
/// the weights. If there are several workers, each makes this call.
///
/// With a `checkpoint`, saves each epoch. If the file exists, resumes after the saved epoch; the
/// digest is the same as without a break.
///
/// # Errors
/// Those of the strategy and of the checkpoint. Also an error if the weights of two replicas
/// differ, which must not happen.
pub(crate) fn train(
    strategy: &Strategy,
    digits: &Digits,
    plan: &Plan,
    checkpoint: Option<&Path>,
    mut report: impl FnMut(&Epoch),
) -> Result<u64> {
    let replicas = strategy.num_replicas_in_sync();
    let mut random = Random::new(plan.seed);
    let network = Network::random(&plan.sizes, &mut random)?;
    let mut model = Model { velocity: network.zeros_like(), network };
    let done = match checkpoint.filter(|path| path.exists()) {
        Some(path) => model.restore(path, plan, replicas)?,
        None => 0,
    };
    let local = strategy.local_replicas();
    let mut models = vec![model; local.len()];
    let all_tests: Vec<usize> = (0..digits.test.count()).collect();
    for number in 1..=plan.epochs {
        // The order is drawn for the epochs before a break, too: each epoch has its own order.
        let order = random.permutation(digits.train.count());
        if number <= done {
            continue;
        }
        let start = Instant::now();
        let tallies = strategy.run_with(PerReplica::new(models.iter_mut().collect()), |replica, model| {
            model.train(replica, &digits.train, &order, plan)
        })?;
        let elapsed = start.elapsed();
        let train = strategy.reduce(ReduceOp::Sum, &tallies, None)?;
        let tallies = strategy.run_with(PerReplica::new(models.iter().collect()), |replica, model| {
            model.network.evaluate(&digits.test.select(part(replica, &all_tests)))
        })?;
        let test = strategy.reduce(ReduceOp::Sum, &tallies, None)?;
        // All replicas have the same model: the worker with the first replica saves it.
        if let Some(path) = checkpoint.filter(|_| local.start == 0) {
            models[0].save(path, plan, replicas, number)?;
        }
        let average = |seconds: f64| Duration::from_secs_f64(seconds / replicas as f64);
        let communication = Communication { total: average(train.collectives), waited: average(train.waited) };
        report(&Epoch { number, train, test, elapsed, communication });
    }
    let digests = models.iter().map(|model| Ok(Tensor::from([model.network.digest()?]))).collect::<Result<Vec<_>>>()?;
    let digests = strategy.gather(&PerReplica::new(digests), 0)?;
    let digests = digests.as_slice::<u64>()?;
    match digests.iter().position(|&digest| digest != digests[0]) {
        None => Ok(digests[0]),
        Some(replica) => Err(Error::other(format!("replica {replica} has other weights than replica 0: {digests:x?}"))),
    }
}

impl Model {
    /// Trains one epoch: a step for each batch of `order`.
    fn train(
        &mut self,
        replica: &ReplicaContext<'_>,
        samples: &Samples,
        order: &[usize],
        plan: &Plan,
    ) -> Result<Tally> {
        let mut total = Tally::default();
        for batch in order.chunks(plan.batch) {
            let (gradients, tally) = self.summed_gradients(replica, &samples.select(part(replica, batch)))?;
            // Parts differ in size by up to one, and the last batch may be smaller, so the mean is
            // over the real number of samples.
            self.network.descend(&mut self.velocity, &gradients, batch.len(), plan.learning_rate)?;
            total.count += tally.count;
            total.correct += tally.correct;
            total.loss += tally.loss;
            total.collectives += tally.collectives;
            total.waited += tally.waited;
        }
        Ok(total)
    }

    /// Returns the sum of the gradients of all replicas' samples. The gradients of a layer are
    /// reduced while those of the layer before it are computed.
    fn summed_gradients(&self, replica: &ReplicaContext<'_>, samples: &Samples) -> Result<(Network, Tally)> {
        replica.overlap(|buckets| {
            let (mut pending, mut waited) = (Vec::new(), Duration::ZERO);
            let mut tally = self.network.gradients(samples, |layer| {
                let start = Instant::now();
                pending.push(buckets.all_reduce(ReduceOp::Sum, layer)?);
                waited += start.elapsed();
                Ok(())
            })?;
            let start = Instant::now();
            let layers = pending.into_iter().map(|layer| layer.wait()).collect::<Result<_>>()?;
            waited += start.elapsed();
            tally.waited = waited.as_secs_f64();
            tally.collectives = buckets.in_collectives().as_secs_f64();
            Ok((Network::from_last(layers), tally))
        })
    }
}

/// Returns this replica's part of `items`. The parts cover all items, and their sizes differ by one
/// at most.
fn part<'a, T>(replica: &ReplicaContext<'_>, items: &'a [T]) -> &'a [T] {
    let (id, replicas) = (replica.replica_id_in_sync_group(), replica.num_replicas_in_sync());
    &items[items.len() * id / replicas..items.len() * (id + 1) / replicas]
}
