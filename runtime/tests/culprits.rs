//! The culprit in errors: all ranks name the rank that left, panicked or is missing, not a rank
//! that left because of it.

mod fields;

use consonance::{
    CommunicationOptions, Communicator, Device, Error, MirroredStrategy,
    ReduceOp::Sum,
    Tensor, VariableAggregation, VariableSynchronization, dataset,
    raw::{Agreement, Call, Reason},
};
use fields::{abort, mismatch};
use std::{
    mem,
    panic::{self, AssertUnwindSafe, catch_unwind},
    sync::{Barrier, Mutex},
    thread,
    time::Duration,
};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

fn strategy(replicas: usize, timeout: Duration) -> MirroredStrategy {
    let options = CommunicationOptions::new().timeout(timeout).unwrap();
    MirroredStrategy::builder((0..replicas).map(Device::Cpu)).options(options).build().unwrap()
}

/// Panics on drop; the payload is another bomb.
struct Bomb(usize);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 > 0 {
            panic::panic_any(Bomb(self.0 - 1));
        }
    }
}

fn throw<R>() -> R {
    panic::panic_any(Bomb(2))
}

/// Returns the result of `call`, which must not unwind: dropping its panic payload would panic
/// again.
#[track_caller]
fn returned<R>(call: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(call)).map_err(mem::forget).expect("a result")
}

#[track_caller]
fn names(error: &Error, named: usize) {
    assert!(matches!(error, Error::Left { replica, .. } if *replica == named), "{error:?}");
}

/// Returns the communicators of `size` ranks. Rank 2 has left, and rank 0 has the error for it.
fn told(size: usize) -> Vec<Communicator> {
    let mut ranks = Communicator::threads(size);
    drop(ranks.remove(2));
    names(&ranks[0].recv(&mut [0u8], 2).unwrap_err(), 2);
    ranks
}

#[test]
fn a_rank_leaving_after_a_failed_receive_from_a_leaver_is_not_named() {
    for calls in [Communicator::barrier, |rank: &mut Communicator| rank.recv(&mut [0u8], 0)] {
        let mut ranks = told(3);
        drop(ranks.remove(0));
        names(&calls(&mut ranks[0]).unwrap_err(), 2);
    }
    // Rank 3 gets its error from rank 1; no other rank has told it before.
    let mut ranks = told(4);
    drop(ranks.remove(0));
    names(&ranks[0].send(&[0u8], 0).unwrap_err(), 2);
    drop(ranks.remove(0));
    names(&ranks[0].recv(&mut [0u8], 1).unwrap_err(), 2);
}

#[test]
fn a_rank_aborting_after_notice_of_a_leaver_is_not_named() {
    let mut ranks = told(3);
    ranks[0].abort();
    ranks.iter_mut().for_each(|rank| names(&rank.barrier().unwrap_err(), 2));
}

#[test]
fn a_rank_leaving_after_notice_in_a_subgroup_is_not_named() {
    let mut ranks = Communicator::threads(3);
    // Ranks 0 and 2 are in a subgroup.
    let mut groups: Vec<Option<Communicator>> = thread::scope(|scope| {
        let splits = ranks.iter_mut().map(|rank| {
            scope.spawn(|| {
                let color = (rank.rank() != 1).then_some(0);
                rank.split(color, 0).unwrap()
            })
        });
        splits.collect::<Vec<_>>().into_iter().map(|split| split.join().unwrap()).collect()
    });
    drop((ranks.remove(0), groups.remove(0)));
    names(&groups[1].as_mut().unwrap().barrier().unwrap_err(), 0);
    drop((ranks.pop(), groups.pop()));
    names(&ranks[0].barrier().unwrap_err(), 0);
}

#[test]
fn replicas_notified_of_a_returned_one_are_not_named() {
    for _ in 0..50 {
        let errors = Mutex::new(Vec::new());
        let result = strategy(4, LONG).run(|replica| match replica.replica_id_in_sync_group() {
            2 => Ok(()),
            _ => replica.barrier().map_err(|error| {
                errors.lock().unwrap().push(error);
                Error::other("as it must")
            }),
        });
        assert!(result.is_err());
        let errors = errors.into_inner().unwrap();
        assert_eq!(errors.len(), 3);
        errors.iter().for_each(|error| names(error, 2));
    }
}

#[test]
fn a_missing_rank_is_named_to_all_before_their_deadlines() {
    let mut ranks = Communicator::threads(3);
    ranks[1].set_timeout(Duration::from_millis(50)).unwrap();
    let errors: Vec<Error> = thread::scope(|scope| {
        let calls: Vec<_> = ranks[..2].iter_mut().map(|rank| scope.spawn(|| rank.barrier().unwrap_err())).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert!(matches!(errors[0], Error::Aborted { replica: 2, lost: false, .. }), "{:?}", errors[0]);
    assert_eq!(abort(&errors[0]), ("barrier", 2, Reason::Deadline));
    assert!(matches!(&errors[1], Error::Timeout { missing, .. } if missing[0].0 == 2), "{:?}", errors[1]);
    assert!(matches!(ranks[2].barrier(), Err(Error::Aborted { replica: 2, .. })));
}

#[test]
fn an_endless_update_is_named() {
    let strategy = strategy(2, Duration::from_millis(100));
    let variable = strategy.variable(|| Tensor::from(1f32)).unwrap();
    let seen = strategy.scope(|| {
        let builder = consonance::Variable::builder(|| Tensor::from(1f32)).aggregation(VariableAggregation::Sum);
        builder.synchronization(VariableSynchronization::OnRead).build()
    });
    let seen = seen.unwrap();
    for variable in [&variable, &seen] {
        let (begun, done) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut first = true;
                let update = strategy.update(variable, |_| {
                    if mem::take(&mut first) {
                        begun.wait();
                        done.wait();
                    }
                    Ok(())
                });
                update.unwrap();
            });
            begun.wait();
            let errors = [variable.read().map(drop), strategy.update(variable, |_| Ok(())).map(drop)];
            done.wait();
            for error in errors {
                let error = error.unwrap_err();
                let Error::Timeout { missing, .. } = &error else { panic!("{error}") };
                assert!(
                    missing.len() == 1 && missing[0].0 == 0 && missing[0].1.contains("Strategy::update"),
                    "{error}"
                );
            }
        });
    }
}

#[test]
fn the_payload_of_a_replica_s_panic_may_panic_in_its_drop() {
    for replicas in [1, 3] {
        let strategy = strategy(replicas, LONG);
        let run = || {
            strategy.run(|replica| match replica.replica_id_in_sync_group() {
                0 => throw(),
                _ => replica.barrier(),
            })
        };
        let error = returned(run);
        assert!(matches!(error, Err(Error::Panic { replica: 0, .. })), "{error:?}");
        assert_eq!(strategy.run(|replica| replica.all_reduce("sum", 1)).unwrap()[0], replicas as i32);
    }
}

#[test]
fn the_payload_of_a_data_set_s_panic_may_panic_in_its_drop() {
    for prefetch in [0, 2] {
        let options = dataset::InputOptions::new().prefetch(prefetch);
        let elements =
            dataset::from_fn(|| [1, 2, 3].into_iter().map(|x| if x < 3 { Tensor::from([x]) } else { throw() }));
        let strategy = strategy(1, LONG);
        let mut steps = strategy.distribute_dataset_with(elements, options).unwrap().iter();
        for x in [1, 2] {
            assert_eq!(steps.next().unwrap().unwrap().values(), [Tensor::from([x])]);
        }
        let error = returned(|| steps.next()).expect("an error").unwrap_err();
        assert!(matches!(error, Error::Other(_)), "{error}");
        assert!(steps.next().is_none() && steps.next().is_none());
    }
}

/// Complex numbers of f32 lie in twice as many elements of f32. Data of a few bytes ride in one
/// message, which a giver does not wait for: it gets the mismatch in its next call.
#[test]
fn another_described_type_on_one_rank_is_a_mismatch_at_any_size() {
    let calls = ["all_reduce", "broadcast", "reduce", "gather", "scatter", "send/recv"];
    for (name, count) in calls.into_iter().flat_map(|name| [2, 600, 200_000].map(|count| (name, count))) {
        let ranks = if name == "send/recv" { 2 } else { 3 };
        for odd in 0..ranks {
            let make = |rank: &mut Communicator| {
                let describe = || vec![("type".to_owned(), "c64".to_owned())];
                let agreement = if rank.rank() == odd { Agreement::new(13, &describe) } else { Agreement::NONE };
                let (send, mut part, mut all) = (vec![1.0f32; count], vec![0.0f32; count], vec![0.0f32; 3 * count]);
                let (own, is_root) = (rank.rank(), rank.rank() == 0);
                let call = match name {
                    "all_reduce" => Call::AllReduce { op: Sum, send: None, recv: part.as_mut_slice().into() },
                    "broadcast" => Call::Broadcast { data: part.as_mut_slice().into(), root: 0 },
                    "reduce" => {
                        let recv = is_root.then(|| part.as_mut_slice().into());
                        Call::Reduce { op: Sum, send: Some(send.as_slice().into()), recv, root: 0 }
                    }
                    "gather" => {
                        let recv = is_root.then(|| all.as_mut_slice().into());
                        Call::Gather { send: Some(send.as_slice().into()), recv, counts: None, root: 0 }
                    }
                    "scatter" => {
                        let (send, recv) = (is_root.then(|| all.as_slice().into()), Some(part.as_mut_slice().into()));
                        Call::Scatter { send, recv, counts: None, root: 0 }
                    }
                    _ if own == 0 => Call::Send { data: send.as_slice().into(), to: 1 },
                    _ => Call::Recv { data: part.as_mut_slice().into(), from: 0 },
                };
                let made = rank.execute(call, &agreement);
                made.and_then(|()| rank.barrier()).unwrap_err()
            };
            let errors: Vec<Error> = thread::scope(|threads| {
                let ranks = Communicator::threads(ranks).into_iter();
                let ranks: Vec<_> = ranks.map(|mut rank| threads.spawn(move || make(&mut rank))).collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            for error in &errors {
                let (call, argument, ..) = mismatch(error);
                assert_eq!((call, argument), (name, "type"), "{count} elements, rank {odd}: {error}");
            }
            if ranks > 2 {
                assert!(errors.iter().all(|error| mismatch(error).2 == odd), "{errors:?}");
            }
        }
    }
}
