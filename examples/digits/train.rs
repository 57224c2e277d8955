//! Synchronous data-parallel training: every replica computes the gradients of its grains, which
//! are parts of each batch, and all take the same step along the sum. Without `--grains` each
//! replica is one grain.

use crate::{
    data::{Digits, Random, Samples},
    network::{Layer, Network, Tally},
    plan::Plan,
    state::Model,
};
use consonance::{
    PerReplica, ReduceOp, ReplicaContext, Result, Strategy,
    training::{Communication, Gradients, Pass, compare_parameters},
};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// The results of an epoch, over all replicas.
pub(crate) struct Epoch {
    pub(crate) number: usize,
    pub(crate) train: Tally,
    pub(crate) test: Tally,
    /// The time of the training, without the test.
    pub(crate) elapsed: Duration,
    /// The mean over the replicas.
    pub(crate) communication: Communication,
}

/// Trains a network on every replica of `strategy`, reports each epoch, and returns the digest of
/// the weights. If there are several workers, each makes this call.
///
/// With a `checkpoint`, saves each epoch. If the file exists, resumes after the saved epoch; the
/// digest is the same as without a break.
///
/// # Errors
/// Those of the strategy and of the checkpoint. Also an error if the weights of two replicas differ
/// at the start or at the end, which must not happen.
pub(crate) fn train(
    strategy: &Strategy,
    digits: &Digits,
    plan: &Plan,
    checkpoint: Option<&Path>,
    mut report: impl FnMut(&Epoch),
) -> Result<u64> {
    let (replicas, grains) = (strategy.num_replicas_in_sync(), strategy.grains());
    let mut random = Random::new(plan.seed);
    let network = Network::random(&plan.sizes, &mut random)?;
    let mut model = Model { velocity: network.zeros_like(), network };
    let done = match checkpoint.filter(|path| path.exists()) {
        Some(path) => model.restore(path, plan, grains)?,
        None => 0,
    };
    let local = strategy.local_replicas();
    let mut models = vec![model; local.len()];
    compare(strategy, &models)?;
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
            let (id, replicas) = (replica.replica_id_in_sync_group(), replica.num_replicas_in_sync());
            model.network.evaluate(&digits.test.select(part(id, replicas, &all_tests)))
        })?;
        let test = strategy.reduce(ReduceOp::Sum, &tallies, None)?;
        // All replicas have the same model: the worker with the first replica saves it.
        if let Some(path) = checkpoint.filter(|_| local.start == 0) {
            models[0].save(path, plan, grains, number)?;
        }
        let average = |seconds: f64| Duration::from_secs_f64(seconds / replicas as f64);
        let communication = Communication { total: average(train.collectives), waited: average(train.waited) };
        report(&Epoch { number, train, test, elapsed, communication });
    }
    compare(strategy, &models)?;
    models[0].network.digest()
}

/// Checks that all replicas have the same weights.
fn compare(strategy: &Strategy, models: &[Model]) -> Result<()> {
    let models = PerReplica::new(models.iter().collect());
    strategy.run_with(models, |replica, model| compare_parameters(replica, &model.network)).map(drop)
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
        let (mut total, mut gradients, mut communication) =
            (Tally::default(), Gradients::sum(), Communication::default());
        for batch in order.chunks(plan.batch) {
            let [device] = replica.devices();
            let backward = |grain: usize, pass: &mut Pass<'_, Layer>| {
                let samples = samples.select(part(grain, replica.strategy().grains(), batch));
                self.network.gradients(&samples, |layer| pass.push(layer.to(device)?))
            };
            let mut grains = replica.grains();
            let last = grains.next_back().expect("each replica has a grain");
            for grain in grains {
                total += gradients.accumulate(replica, |pass| backward(grain, pass))?;
            }
            // With one grain on each replica the gradients of a layer are reduced while those of
            // the layer before it are computed.
            let reduced = gradients.all_reduce(replica, |pass| backward(last, pass))?;
            // Parts differ in size by up to one, and the last batch may be smaller, so the mean is
            // over the real number of samples.
            let summed = Network::from_last(reduced.gradients)?;
            self.network.descend(&mut self.velocity, &summed, batch.len(), plan.learning_rate)?;
            total += reduced.value;
            communication += reduced.communication;
        }
        total.collectives = communication.total.as_secs_f64();
        total.waited = communication.waited.as_secs_f64();
        Ok(total)
    }
}

/// Returns a part of `items`. The parts cover all items, and their sizes differ by one at most.
fn part<T>(index: usize, parts: usize, items: &[T]) -> &[T] {
    &items[items.len() * index / parts..items.len() * (index + 1) / parts]
}
