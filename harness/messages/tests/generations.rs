//! Groups on an engine of messages that go on after an abort, and that do not after a loss.

mod groups;

use consonance::{
    ClusterSpec, CommunicationOptions, Communicator, Error, MultiWorkerMirroredStrategy, Result, SimpleClusterResolver,
    raw::{Abort, AbortHandle, Reason},
};
use consonance_messages::{Deviation, Wrapped};
use groups::{TIMEOUT, on_engines, processes};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

#[test]
fn a_strategy_of_several_workers_goes_on_after_a_failed_run() {
    const ROUNDS: usize = 5;
    let work = |communicator: Communicator| -> Result<Vec<f32>> {
        let worker = communicator.rank();
        let cluster = ClusterSpec::new().job("worker", ["one.example:1", "two.example:1", "three.example:1"])?;
        let resolver = SimpleClusterResolver::new(cluster).with_task("worker", worker)?;
        let strategy = MultiWorkerMirroredStrategy::builder(resolver).build_on(vec![communicator])?;
        let mut sums = Vec::new();
        for round in 0..ROUNDS {
            let failed = strategy.run(|replica| {
                // The call before has ended on all workers.
                replica.barrier()?;
                match replica.replica_id_in_sync_group() {
                    id if id == round % 3 => Err(Error::other("a fault of its own")),
                    // The data of a call that never ends: none of it reaches the next run.
                    _ => replica.all_reduce("sum", 100.0f32),
                }
            });
            assert!(failed.is_err(), "worker {worker}, round {round}: {failed:?}");
            let id = strategy.run(|replica| replica.all_reduce("sum", round as f32 + 1.0))?;
            sums.extend(id.values());
        }
        Ok(sums)
    };
    for engines in [consonance_messages::threads(3), processes(3)] {
        for sums in on_engines(engines, work) {
            assert_eq!(sums.expect("each run after a failed one"), [3.0, 6.0, 9.0, 12.0, 15.0]);
        }
    }
}

#[test]
fn a_group_is_not_renewed_after_a_loss() {
    for engines in [consonance_messages::threads(4), processes(4)] {
        let errors = on_engines(engines, |mut rank| {
            if rank.rank() == 1 {
                return None;
            }
            let errors = vec![rank.barrier(), rank.renew(), rank.renew(), rank.barrier()];
            // The rank leaves after the others.
            Some((rank, errors))
        });
        for (rank, errors) in errors.iter().flatten() {
            let named = |error: &Result<()>| matches!(error, Err(Error::Left { replica: 1, .. }));
            assert!(errors.iter().all(named), "rank {}: {errors:?}", rank.rank());
        }
    }
}

/// The abort handle of this engine does not know of an abort before it is used for one itself: on a
/// network an abort reaches the ranks at different times.
struct Unaware(Arc<AtomicBool>);

struct Handle {
    own: AbortHandle,
    is_aware: Arc<AtomicBool>,
}

impl Abort for Handle {
    fn abort(&self, _culprit: Option<usize>, _turn: Option<u64>, reason: Reason) {
        self.is_aware.store(true, Ordering::Relaxed);
        self.own.abort(reason);
    }

    fn is_aborted(&self) -> bool {
        self.is_aware.load(Ordering::Relaxed)
    }
}

impl Deviation for Unaware {
    fn abort_handle(&self, own: AbortHandle) -> AbortHandle {
        let handle: Arc<dyn Abort> = Arc::new(Handle { own, is_aware: self.0.clone() });
        handle.into()
    }

    fn begin_generation(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Found by reading: a replica that did not know of the abort did not renew its group, and the
/// others waited for it until the deadline.
#[test]
fn all_replicas_of_a_worker_are_renewed_together() {
    let mut engines = consonance_messages::threads(2).into_iter();
    let mut next = || engines.next().expect("two engines");
    let (first, second) = (next(), Wrapped { engine: next(), deviation: Unaware(Arc::default()) });
    let ranks = vec![Communicator::from_engine(first), Communicator::from_engine(Box::new(second))];
    let resolver = SimpleClusterResolver::new(ClusterSpec::new());
    let options = CommunicationOptions::new().timeout(TIMEOUT).expect("a timeout that ends");
    let strategy = MultiWorkerMirroredStrategy::builder(resolver).options(options).build_on(ranks);
    let strategy = strategy.expect("one worker");
    let begin = Instant::now();
    let failed = strategy.run(|replica| match replica.replica_id_in_sync_group() {
        0 => Err(Error::other("a fault of its own")),
        _ => Ok(()),
    });
    assert!(failed.is_err());
    let sums = strategy.run(|replica| replica.all_reduce("sum", 1.0f32)).expect("both replicas are here");
    assert_eq!(sums.values(), [2.0, 2.0]);
    assert!(begin.elapsed() < TIMEOUT, "waited until the deadline: {:?}", begin.elapsed());
}
