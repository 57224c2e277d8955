//! Groups on an engine of messages that go on with the ranks that are left after a loss.

mod groups;

use consonance::{
    ClusterSpec, CommunicationOptions, Communicator, Error, MultiWorkerMirroredStrategy, ReduceOp, Result,
    SimpleClusterResolver, Tensor, Variable, VariableAggregation,
    raw::{Engine, Reason},
};
use groups::{TIMEOUT, on_engines, processes};
use std::{sync::Barrier, thread, time::Duration};

/// Makes the engines of a group of this size: of threads, and of processes.
fn both(size: usize) -> [Vec<Box<dyn Engine>>; 2] {
    [consonance_messages::threads(size), processes(size)]
}

/// Makes the strategy of a worker with one replica.
fn strategy_of(rank: Communicator, timeout: Duration) -> Result<MultiWorkerMirroredStrategy> {
    let addresses = (0..rank.size()).map(|worker| format!("host{worker}.example:1"));
    let resolver = SimpleClusterResolver::new(ClusterSpec::new().job("worker", addresses)?);
    let resolver = resolver.with_task("worker", rank.rank())?;
    let options = CommunicationOptions::new().timeout(timeout)?;
    MultiWorkerMirroredStrategy::builder(resolver).options(options).build_on(vec![rank])
}

/// Returns the number of replicas, added by these.
fn count(strategy: &MultiWorkerMirroredStrategy) -> Result<f32> {
    Ok(strategy.run(|replica| replica.all_reduce("sum", 1f32))?[0])
}

/// Makes calls until a worker is lost, then goes on with those that are left.
fn outlive(strategy: &MultiWorkerMirroredStrategy) -> Result<()> {
    let error = (0..).find_map(|_| count(strategy).err()).expect("a worker leaves");
    assert!(error.is_loss(), "{error}");
    strategy.reform(Duration::ZERO)
}

/// Makes calls until a rank has left, then forms the group of those that are left.
fn outlive_raw(rank: &mut Communicator) {
    let error = (0..).find_map(|_| rank.barrier().err()).expect("a rank leaves");
    assert!(matches!(error, Error::Left { .. }), "{error}");
    while let Err(error) = rank.reform() {
        assert!(matches!(error, Error::Left { .. }), "{error}");
    }
}

/// Returns the sum of a number of each rank.
fn sum(rank: &mut Communicator, own: u64) -> u64 {
    let mut data = [own];
    rank.all_reduce(ReduceOp::Sum, &mut data).expect("all ranks are here");
    data[0]
}

/// Of two ranks one leaves. The other goes on alone, also after a failed run.
fn goes_on_alone(survivor: usize) {
    for engines in both(2) {
        on_engines(engines, |rank| {
            let own = rank.rank();
            let strategy = strategy_of(rank, TIMEOUT).expect("both are here");
            if own != survivor {
                return;
            }
            outlive(&strategy).expect("the other rank has left");
            assert_eq!((strategy.num_replicas_in_sync(), strategy.local_replicas()), (1, 0..1));
            assert_eq!(count(&strategy).expect("the rank is alone"), 1.0);
            let failed = strategy.run(|_| Err::<f32, _>(Error::other("a fault of its own")));
            assert!(failed.is_err_and(|error| !error.is_loss()));
            assert_eq!(count(&strategy).expect("the group is renewed"), 1.0);
            strategy.reform(Duration::ZERO).expect("nobody else is lost");
            assert_eq!(count(&strategy).expect("the rank is alone"), 1.0);
        });
    }
}

#[test]
fn the_first_of_two_ranks_goes_on_alone() {
    goes_on_alone(0);
}

#[test]
fn the_second_of_two_ranks_goes_on_alone() {
    goes_on_alone(1);
}

/// The leavers do not wait for each other, so the others learn of them in any order.
#[test]
fn two_ranks_may_be_lost_in_any_order() {
    for leavers in [[1, 4], [0, 3], [2, 0]] {
        for engines in both(5) {
            on_engines(engines, |mut rank| {
                let own = rank.rank();
                if leavers.contains(&own) {
                    return;
                }
                outlive_raw(&mut rank);
                if rank.size() == 4 {
                    outlive_raw(&mut rank);
                }
                let left: Vec<usize> = (0..5).filter(|other| !leavers.contains(other)).collect();
                assert_eq!((rank.size(), left[rank.rank()]), (3, own));
                assert_eq!(sum(&mut rank, 1 << own), left.iter().map(|other| 1u64 << other).sum::<u64>());
            });
        }
    }
}

#[test]
fn a_group_is_reformed_down_to_one_rank() {
    // The places of the leavers among those that are left: the last, the first, one in the middle.
    const LEAVERS: [usize; 4] = [4, 0, 1, 1];
    for engines in both(5) {
        let done = [5, 4, 3, 2].map(Barrier::new);
        on_engines(engines, |rank| {
            let strategy = strategy_of(rank, TIMEOUT).expect("all are here");
            let mut size = 5;
            for (leaver, done) in LEAVERS.into_iter().zip(&done) {
                assert_eq!(count(&strategy).expect("all are here"), size as f32);
                // All have finished their last call, which a leaver would end.
                done.wait();
                if strategy.local_replicas().start == leaver {
                    return;
                }
                outlive(&strategy).expect("the others go on");
                size -= 1;
                assert_eq!(strategy.num_replicas_in_sync(), size);
            }
            assert_eq!(count(&strategy).expect("the rank is alone"), 1.0);
        });
    }
}

#[test]
fn a_reformed_group_can_be_split_and_its_parts_reformed() {
    for engines in both(6) {
        let (split, done) = (Barrier::new(6), Barrier::new(5));
        on_engines(engines, |mut rank| {
            let own = rank.rank();
            // A group with the same members as one below, of the group before the loss.
            let before = rank.split(Some(own as u32 % 2), 0).expect("all are here");
            // All have finished their last call, which a leaver would end.
            split.wait();
            if own == 3 {
                return;
            }
            outlive_raw(&mut rank);
            // Ranks 0, 1, 2, 4, 5 of the whole group.
            let part = rank.split(Some(own as u32 % 2), -(own as i32)).expect("all are here");
            let mut part = part.expect("each rank has a color");
            let members: &[usize] = if own % 2 == 0 { &[4, 2, 0] } else { &[5, 1] };
            assert_eq!((part.size(), members[part.rank()]), (members.len(), own));
            assert_eq!(sum(&mut part, 1 << own), members.iter().map(|member| 1u64 << member).sum::<u64>());
            assert_eq!(sum(&mut rank, 1 << own), 0b11_0111);
            let mut before = before.expect("each rank has a color");
            if own % 2 == 0 {
                // The lost rank was in the other part.
                assert_eq!(sum(&mut before, 1 << own), 0b1_0101);
            }
            done.wait();
            if own == 4 {
                return;
            }
            if own % 2 == 0 {
                outlive_raw(&mut part);
                assert_eq!(sum(&mut part, 1 << own), 0b101);
                let mut inner = part.split(Some(0), 0).expect("both are here").expect("all have a color");
                assert_eq!(sum(&mut inner, 1 << own), 0b101);
            } else {
                assert_eq!(sum(&mut part, 1 << own), 0b10_0010);
            }
            outlive_raw(&mut rank);
            assert_eq!(sum(&mut rank, 1 << own), 0b10_0111);
        });
    }
}

/// A rank that the others go on without has lost its connection, or one of them was wrong.
#[test]
fn a_rank_taken_for_lost_is_refused() {
    for engines in both(3) {
        let done = Barrier::new(3);
        on_engines(engines, |rank| {
            let (own, handle) = (rank.rank(), rank.abort_handle());
            let strategy = strategy_of(rank, Duration::from_secs(20)).expect("all are here");
            done.wait();
            if own != 1 {
                outlive(&strategy).expect("the others go on");
                assert_eq!(count(&strategy).expect("the others go on"), 2.0);
                done.wait();
                return;
            }
            handle.abort(Reason::Leave);
            let error = count(&strategy).expect_err("the others do not wait");
            assert!(matches!(error.root(), Error::Left { replica: 1, lost: true, .. }), "{error}");
            for _ in 0..2 {
                let error = strategy.reform(Duration::ZERO).expect_err("the others go on without it");
                assert!(
                    matches!(error, Error::WrongContext { ref problem, .. } if problem.contains("lost")),
                    "{error}"
                );
                let error = count(&strategy).expect_err("the group is lost");
                assert!(error.is_loss(), "{error}");
            }
            done.wait();
        });
    }
}

/// The replicas of each worker of the test below.
const REPLICAS: [usize; 4] = [1, 2, 1, 1];

/// Makes calls until a worker is lost, then goes on with those that are left. Returns the number of
/// replicas after each loss, added by the replicas.
fn outlives(worker: usize, communicators: Vec<Communicator>, finish: &[Barrier; 3]) -> Result<Vec<f32>> {
    let addresses = (0..REPLICAS.len()).map(|worker| format!("host{worker}.example:1"));
    let resolver = SimpleClusterResolver::new(ClusterSpec::new().job("worker", addresses)?);
    let resolver = resolver.with_task("worker", worker)?;
    let strategy = MultiWorkerMirroredStrategy::builder(resolver).build_on(communicators)?;
    let sum = Variable::builder(|| Tensor::from(0f32)).aggregation(VariableAggregation::Sum);
    let seen = strategy.scope(|| sum.build())?;
    let mut sums = Vec::new();
    for (leaver, finish) in [2, 0, 3].into_iter().zip(finish) {
        // All have finished their last call, which a leaver would end.
        finish.wait();
        if worker == leaver {
            break;
        }
        let step = || strategy.run(|replica| replica.all_reduce("sum", 1f32));
        let error = (0..).find_map(|_| step().err()).expect("a worker leaves");
        assert!(error.is_loss(), "worker {worker}: {error}");
        strategy.reform(Duration::ZERO)?;
        strategy.run(|replica| replica.assign_add(&seen, 1f32).map(drop))?;
        sums.extend(step()?.values().first());
        assert_eq!(seen.read()?.item::<f32>()?, sums.iter().sum::<f32>(), "each replica has added one");
        assert_eq!(strategy.num_replicas_in_sync() as f32, sums[sums.len() - 1]);
        let later = strategy.variable(|| Tensor::from(worker as f32))?;
        let first = if leaver == 2 { 0f32 } else { 1f32 };
        assert_eq!(later.read()?.item::<f32>()?, first, "the value of the first worker that is left");
    }
    Ok(sums)
}

#[test]
fn the_remaining_workers_go_on_after_each_loss() {
    for engines in [consonance_messages::threads(5), processes(5)] {
        let mut ranks = engines.into_iter().map(Communicator::from_engine);
        let finish = [4, 3, 2].map(Barrier::new);
        let sums: Vec<Result<Vec<f32>>> = thread::scope(|scope| {
            let workers: Vec<_> = REPLICAS
                .iter()
                .enumerate()
                .map(|(worker, &count)| {
                    let mut communicators: Vec<_> = ranks.by_ref().take(count).collect();
                    communicators.iter_mut().for_each(|rank| rank.set_timeout(TIMEOUT).expect("a timeout that ends"));
                    let finish = &finish;
                    scope.spawn(move || outlives(worker, communicators, finish))
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
        });
        let expected: [&[f32]; 4] = [&[4.0], &[4.0, 3.0, 2.0], &[], &[4.0, 3.0]];
        for (sums, expected) in sums.into_iter().zip(expected) {
            assert_eq!(sums.expect("the others go on"), expected);
        }
    }
}

#[test]
fn an_incomplete_group_is_refused_until_it_forms() {
    let mut ranks = consonance_messages::threads(3).into_iter().map(Communicator::from_engine);
    let [first, second, third] = [0, 1, 2].map(|_| ranks.next().expect("three ranks"));
    let cluster = || ClusterSpec::new().job("worker", ["one.example:1", "two.example:1", "three.example:1"]);
    let build = |worker, rank: Communicator| {
        let options = CommunicationOptions::new().timeout(Duration::from_secs(8))?;
        let resolver = SimpleClusterResolver::new(cluster()?).with_task("worker", worker)?;
        MultiWorkerMirroredStrategy::builder(resolver).options(options).build_on(vec![rank])
    };
    let strategies = thread::scope(|scope| {
        let threads =
            [(0, first), (1, second), (2, third)].map(|(worker, rank)| scope.spawn(move || build(worker, rank)));
        threads.map(|thread| thread.join().expect("no panic").expect("all meet"))
    });
    let [first, second, third] = strategies;
    drop(third);
    let run = |strategy: &MultiWorkerMirroredStrategy| strategy.run(|replica| replica.all_reduce("sum", 1f32));
    assert!(run(&first).expect_err("a worker has left").is_loss());
    let error = first.reform(Duration::ZERO).expect_err("the second worker does not come");
    assert!(matches!(error, Error::Timeout { ref missing, .. } if missing[0].0 == 1), "{error}");
    let error = run(&first).expect_err("no group is formed");
    assert!(matches!(error, Error::Aborted { .. } | Error::WrongContext { .. }), "{error}");
    let error = run(&first).expect_err("no group is formed");
    assert!(matches!(error, Error::WrongContext { .. }), "{error}");
    let error = first.reform(Duration::from_secs(1)).expect_err("there are no replacements");
    assert!(matches!(error, Error::InvalidCall { .. }), "{error}");
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            assert!(run(&second).expect_err("a worker has left").is_loss());
            second.reform(Duration::ZERO)
        });
        first.reform(Duration::ZERO).expect("both are here");
        other.join().expect("no panic").expect("both are here");
        let other = scope.spawn(|| run(&second));
        assert_eq!(run(&first).expect("both are here").values(), [2.0]);
        other.join().expect("no panic").expect("both are here");
    });
}
