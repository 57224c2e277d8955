//! Errors on one worker alone: the others get an error with the reason, and the calls after it are
//! in step.

use super::{
    ENGINES, Engine, count,
    fields::{abort, found, mismatch, other, own, refusal, told, unknown_op},
    ones, range, workers, workers_with,
};
use consonance::{
    Dataset, Destinations, Error, MirroredStrategy, PerReplica, Result, Strategy, Tensor, Variable,
    VariableAggregation,
    dataset::{AutoShardPolicy, InputOptions},
    raw::Reason,
};
use std::{
    cmp::Ordering::{Equal, Greater, Less},
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Makes `call` as two workers, invalid on one of them, and then calls of one shape, which work if
/// the workers are in step. Checks the error of that worker, and that the other is told of it.
#[track_caller]
fn expect_told(call: impl Fn(&Strategy, bool) -> Result<()> + Sync, check: impl Fn(&Error)) {
    for sizes in [[1, 1], [2, 2]] {
        let found = workers(&sizes, |worker, strategy| {
            let error = call(strategy, worker == 1).unwrap_err();
            let sums = [1i64, 10, 100].map(|x| {
                let values = strategy.distribute_values_from_function(|_| Tensor::from(x)).unwrap();
                strategy.reduce("sum", &values, None).unwrap().item::<i64>().unwrap()
            });
            (error, sums)
        });
        check(&found[1].0);
        let (_, replica, words) = told(&found[0].0);
        assert_eq!((replica, words), (sizes[0], &*format!("{}", found[1].0)));
        for (worker, (_, sums)) in found.into_iter().enumerate() {
            assert_eq!(
                sums,
                [1, 10, 100].map(|x| x * sizes.iter().sum::<usize>() as i64),
                "worker {worker} of {sizes:?}"
            );
        }
    }
}

#[test]
fn an_invalid_call_on_one_worker_is_reported_to_the_others() {
    let values = |strategy: &Strategy| strategy.distribute_values_from_function(|_| Tensor::from(1i64)).unwrap();
    let op = |odd: bool| if odd { "avg" } else { "sum" };
    expect_told(
        |strategy, odd| strategy.reduce(op(odd), &values(strategy), None).map(drop),
        |own| assert_eq!(unknown_op(own), (Some("Strategy::reduce"), None, "avg")),
    );
    expect_told(
        |strategy, odd| strategy.reduce_to(op(odd), &values(strategy), "cpu:0").map(drop),
        |own| assert_eq!(unknown_op(own), (Some("Strategy::reduce_to"), None, "avg")),
    );
    expect_told(
        |strategy, odd| {
            let device = if odd { "gpu:0" } else { "cpu:0" };
            strategy.reduce_to("sum", &values(strategy), device).map(drop)
        },
        |own| assert_eq!((refusal(own), found(own)), (("Device::from_str", "device", None), "\"gpu:0\"")),
    );
    expect_told(
        |strategy, odd| {
            let pairs = [(values(strategy), Destinations::Replicas), (values(strategy), Destinations::Replicas)];
            strategy.batch_reduce_to(op(odd), &pairs).map(drop)
        },
        |own| assert_eq!(unknown_op(own), (Some("Strategy::batch_reduce_to"), None, "avg")),
    );
    // Without pairs there is no call to refuse.
    workers(&[1, 1], |worker, strategy| {
        let none: [(PerReplica<f32>, Destinations); 0] = [];
        assert_eq!(strategy.batch_reduce_to(op(worker == 1), &none).is_err(), worker == 1);
        assert_eq!(ones(strategy).unwrap(), 2);
    });
}

/// Checks that the call of this name was made in a wrong context.
#[track_caller]
fn assert_context(error: &Error, of: &str) {
    assert!(matches!(error, Error::WrongContext { call, .. } if *call == of), "{error}");
}

#[test]
fn a_call_in_another_strategys_scope_is_reported_to_the_other_workers() {
    let other = MirroredStrategy::new(["cpu:0"]).unwrap();
    let within = |odd: bool, call: &dyn Fn() -> Result<()>| if odd { other.scope(call) } else { call() };
    let values = |strategy: &Strategy| strategy.distribute_values_from_function(|_| Tensor::from([1i64])).unwrap();
    expect_told(
        |strategy, odd| {
            let values = values(strategy);
            within(odd, &|| strategy.reduce("sum", &values, None).map(drop))
        },
        |own| assert_context(own, "Strategy::reduce"),
    );
    expect_told(
        |strategy, odd| {
            let values = values(strategy);
            within(odd, &|| strategy.reduce_to("sum", &values, "cpu:0").map(drop))
        },
        |own| assert_context(own, "Strategy::reduce_to"),
    );
    expect_told(
        |strategy, odd| {
            let values = values(strategy);
            within(odd, &|| strategy.gather(&values, 0).map(drop))
        },
        |own| assert_context(own, "Strategy::gather"),
    );
    expect_told(
        |strategy, odd| within(odd, &|| strategy.variable(|| Tensor::from(1f32)).map(drop)),
        |own| assert_context(own, "Strategy::variable"),
    );
    expect_told(
        |strategy, odd| {
            let seen = count(strategy, VariableAggregation::Sum);
            within(odd, &|| seen.read().map(drop))
        },
        |own| assert_context(own, "Variable::read"),
    );
    expect_told(
        |strategy, odd| {
            let off = InputOptions::new().auto_shard_policy(AutoShardPolicy::Off);
            let dataset = strategy.distribute_dataset_with(range(8).batch(4), off).unwrap();
            let steps = std::cell::RefCell::new(dataset.iter());
            let told = within(odd, &|| steps.borrow_mut().next_or_none().map(drop));
            assert!(steps.into_inner().next().is_none());
            told
        },
        |own| assert_context(own, "DistributedIterator::next"),
    );
}

#[test]
fn a_failed_start_of_a_run_on_one_worker_fails_on_all() {
    for &engine in ENGINES {
        for sizes in [[1, 1], [2, 2]] {
            let other = MirroredStrategy::new(["cpu:0"]).unwrap();
            let errors = workers_with(&sizes, engine, Duration::from_secs(60), |worker, strategy| {
                let run = |x: i32, count| {
                    strategy.run_with(PerReplica::new(vec![x; count]), |replica, x| replica.all_reduce("sum", x))
                };
                let (count, odd) = (sizes[worker], worker == 1);
                let arguments = run(1, count + worker).unwrap_err();
                let expected = 10 * sizes.iter().sum::<usize>() as i32;
                assert_eq!(run(10, count).unwrap()[0], expected);
                let scope = if odd { other.scope(|| run(1, count)) } else { run(1, count) };
                assert_eq!(run(10, count).unwrap()[0], expected);
                [arguments, scope.unwrap_err()]
            });
            for error in &errors[0] {
                let (_, replica, reason) = abort(error);
                assert!((sizes[0]..2 * sizes[0]).contains(&replica) && reason == Reason::Failure, "{error}");
            }
            assert_eq!(refusal(&errors[1][0]), ("Strategy::run_with", "arguments", None));
            assert_context(&errors[1][1], "Strategy::run_with");
        }
    }
}

/// Runs replicas of two workers that make `merge`, catch its error, and then make calls of one
/// shape. Returns for each replica the error and the sums, or their errors.
fn caught(
    sizes: [usize; 2],
    engine: Engine,
    merge: impl Fn(&Strategy, PerReplica<i32>, bool) -> Result<i32> + Sync,
) -> Vec<(Error, [Result<i32>; 3])> {
    let found = workers_with(&sizes, engine, Duration::from_secs(60), |worker, strategy| {
        let found = strategy.run(|replica| {
            let merged =
                replica.merge_call(5i32, |strategy, all| Ok(strategy.mirror(merge(strategy, all, worker == 1)?)));
            Ok((merged.unwrap_err(), [1, 10, 100].map(|x| replica.all_reduce("sum", x))))
        });
        let found = found.unwrap().into_values();
        if found[0].1[0].is_err() {
            // The run did not report that the group was aborted.
            ones(strategy).unwrap_err();
        }
        assert_eq!(ones(strategy).unwrap(), sizes.iter().sum::<usize>() as i32);
        found
    });
    found.into_iter().flatten().collect()
}

#[test]
fn a_merge_function_failing_on_one_worker_ends_the_group() {
    for &engine in ENGINES {
        for sizes in [[1, 1], [2, 2]] {
            let odd = sizes[0];
            for calls in [false, true] {
                let found = caught(sizes, engine, |strategy, all, odd| match odd {
                    true => Err(Error::other("no more data")),
                    false if calls => strategy.reduce("sum", &all, None),
                    false => Ok(0),
                });
                for (id, (error, sums)) in found.into_iter().enumerate() {
                    match id.cmp(&odd) {
                        Less => assert_eq!((abort(&error).1, abort(&error).2), (odd, Reason::Failure), "{calls}"),
                        Equal => assert_eq!(other(&error), "no more data"),
                        Greater => {
                            assert!(own(&error).0 == odd && own(&error).1.ends_with(": no more data"), "{error}")
                        }
                    }
                    for sum in sums {
                        assert_eq!(abort(&sum.unwrap_err()), ("all_reduce", odd, Reason::Failure));
                    }
                }
            }
            // A function that returns while the other makes a call.
            let found = caught(sizes, engine, |strategy, all, odd| match odd {
                true => Ok(0),
                false => strategy.reduce("sum", &all, None),
            });
            for (error, sums) in found {
                assert_eq!(
                    mismatch(&error),
                    ("Strategy::reduce", "call", odd, "Strategy::reduce", "merge_call's return")
                );
                sums.into_iter().for_each(|sum| assert!(sum.is_err(), "{sum:?}"));
            }
            let found = caught(sizes, engine, |strategy, all, odd| {
                strategy.reduce(if odd { "avg" } else { "sum" }, &all, None)
            });
            let first = format!("{}", found[odd].0);
            for (id, (error, sums)) in found.into_iter().enumerate() {
                match id.cmp(&odd) {
                    Less => assert_eq!((told(&error).1, told(&error).2), (odd, &first[..])),
                    Equal => assert_eq!(unknown_op(&error), (Some("Strategy::reduce"), None, "avg")),
                    Greater => assert!(own(&error).0 == odd && own(&error).1.ends_with(&first), "{error}"),
                }
                sums.into_iter().for_each(|sum| assert!(sum.is_err(), "{sum:?}"));
            }
        }
    }
}

#[test]
fn different_merge_functions_leave_the_workers_in_step() {
    for &engine in ENGINES {
        for sizes in [[1, 1], [2, 2]] {
            let found = caught(sizes, engine, |strategy, all, odd| {
                let value = all.map(|x| Tensor::from(vec![x; 1 + usize::from(odd)]));
                strategy.reduce("sum", &value, None)?;
                Ok(0)
            });
            for (error, sums) in found {
                assert_eq!(mismatch(&error), ("Strategy::reduce", "value", sizes[0], "i32[1]", "i32[2]"));
                assert_eq!(sums.map(Result::unwrap), [1, 10, 100].map(|x| x * sizes.iter().sum::<usize>() as i32));
            }
        }
    }
}

/// One worker makes an invalid call, `odd`, and refuses it. The other makes a valid call after the
/// deadline. Checks that this is one failed call for both.
#[track_caller]
fn expect_one_failed_call(odd: impl Fn(&Strategy, &Variable) -> Result<()> + Sync) {
    let late = Barrier::new(2);
    let sums = workers_with(&[1, 1], Engine::Threads, Duration::from_secs(1), |worker, strategy| {
        let variable = strategy.variable(|| Tensor::from(1f32)).unwrap();
        let sum = |x: i64| {
            let values = strategy.distribute_values_from_function(|_| Tensor::from(x)).unwrap();
            strategy.reduce("sum", &values, None)?.item::<i64>()
        };
        if worker == 1 {
            odd(strategy, &variable).unwrap_err();
            late.wait();
        } else {
            late.wait();
            sum(0).unwrap_err();
        }
        [1, 10, 100].map(|x| sum(x).unwrap())
    });
    assert_eq!(sums, [[2, 20, 200]; 2]);
}

#[test]
fn an_invalid_call_reported_too_late_is_one_failed_call() {
    expect_one_failed_call(|strategy, _| {
        let values = strategy.distribute_values_from_function(|_| Tensor::from(1i64))?;
        strategy.reduce("avg", &values, None).map(drop)
    });
    #[cfg(feature = "checkpoint")]
    expect_one_failed_call(|_, variable| {
        consonance::checkpoint::restore("no such file", [("twice", variable), ("twice", variable)])
    });
}

#[cfg(feature = "checkpoint")]
#[test]
fn a_failed_save_or_restore_on_one_worker_is_reported_to_the_others() {
    use consonance::checkpoint;
    let folder = std::env::temp_dir().join(format!("workers-told-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("all");
    type Call<'c> = &'c (dyn Fn(&Strategy, &[(&str, &Variable)]) -> Result<()> + Sync);
    let check = |call: Call<'_>, name: &str| {
        expect_told(
            |strategy, odd| {
                let (one, other) =
                    (strategy.variable(|| Tensor::from(1f32))?, strategy.variable(|| Tensor::from(2f32))?);
                call(strategy, &[("one", &one), (if odd { "one" } else { "other" }, &other)])
            },
            |own| assert_eq!((refusal(own), found(own)), ((name, "variables", None), "\"one\"")),
        );
    };
    check(&|_, variables| checkpoint::save(&path, variables.iter().copied()), "checkpoint::save");
    let on_chief: Call<'_> = &|strategy, variables| {
        checkpoint::save_on_chief(strategy.cluster_resolver().unwrap(), &path, variables.iter().copied()).map(drop)
    };
    check(on_chief, "checkpoint::save_on_chief");
    let alone = MirroredStrategy::new(["cpu:0"]).unwrap();
    let saved = ["one", "other"].map(|name| (name, alone.variable(|| Tensor::from(3f32)).unwrap()));
    checkpoint::save(&path, saved.iter().map(|(name, variable)| (*name, variable))).unwrap();
    check(&|_, variables| checkpoint::restore(&path, variables.iter().copied()), "checkpoint::restore");
    expect_told(
        |strategy, odd| {
            let weights = strategy.variable(|| Tensor::from(1f32))?;
            let save = || checkpoint::save(&path, [("weights", &weights)]);
            // A variable cannot be read within its own update.
            if odd { strategy.update(&weights, |_| save()).map(drop) } else { save() }
        },
        |own| assert_context(own, "Variable::read"),
    );
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Panics on drop.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("of a bomb");
    }
}

#[test]
fn results_dropped_by_a_failed_run_leave_the_workers_in_step() {
    for sizes in [[1, 1], [2, 2]] {
        let found = workers(&sizes, |worker, strategy| {
            let thrown = strategy.run(|replica| match worker {
                0 => replica.barrier(),
                _ => panic_any(Bomb),
            });
            let thrown = thrown.unwrap_err();
            // If worker 1 has two replicas, the first one has a result.
            let dropped = catch_unwind(AssertUnwindSafe(|| {
                let failed = strategy.run(|replica| match replica.replica_id_in_sync_group() {
                    id if id < sizes[0] => replica.barrier().map(|()| None),
                    id if id + 1 < sizes[0] + sizes[1] => Ok(Some(Bomb)),
                    _ => Err(Error::other("as it must")),
                });
                failed.map(drop).unwrap_err();
            }));
            assert_eq!(dropped.is_err(), worker == 1 && sizes[1] > 1);
            (thrown, [1, 10, 100].map(|x| strategy.run(|replica| replica.all_reduce("sum", x)).unwrap()[0]))
        });
        let replicas = sizes.iter().sum::<usize>() as i32;
        for (worker, (thrown, sums)) in found.into_iter().enumerate() {
            let replica = match (worker, &thrown) {
                (1, Error::Panic { replica, .. }) => *replica,
                _ => {
                    let (_, replica, reason) = abort(&thrown);
                    assert_eq!((worker, reason), (0, Reason::Panic), "{thrown}");
                    replica
                }
            };
            assert!((sizes[0]..2 * sizes[0]).contains(&replica), "worker {worker} of {sizes:?}: {thrown}");
            assert_eq!(sums, [replicas, 10 * replicas, 100 * replicas], "worker {worker} of {sizes:?}");
        }
    }
}

#[test]
fn a_run_on_a_new_thread_within_a_run_names_its_awaited_rank_at_the_deadline() {
    let found = workers_with(&[1, 1], Engine::Threads, Duration::from_millis(300), |_, strategy| {
        let nested = |strategy: &Strategy| {
            thread::scope(|scope| scope.spawn(|| strategy.run(|_| Ok(())).unwrap_err()).join().unwrap())
        };
        strategy.run(|_| Ok(nested(strategy))).unwrap().into_values().remove(0)
    });
    for (worker, error) in found.into_iter().enumerate() {
        let Error::Timeout { missing, .. } = &error else { panic!("{error}") };
        assert!(missing[0].0 == worker && missing[0].1.contains("Strategy::run"), "{error}");
    }
}

/// Replica 1 waits for the merge function of replica 0, which waits for replica 2.
#[test]
fn a_replica_waiting_for_a_merge_function_names_the_replica_holding_it_up() {
    let timeout = Duration::from_millis(500);
    for &engine in ENGINES {
        let named = workers_with(&[2, 1], engine, timeout, |worker, strategy| {
            let ran = strategy.run(|replica| {
                let merged = replica.merge_call(1i32, |strategy, all| {
                    // The deadline of replica 1 passes first.
                    thread::sleep(if worker == 1 { 4 * timeout } else { timeout / 4 });
                    Ok(strategy.mirror(strategy.reduce("sum", &all, None)?))
                });
                Ok(match merged.unwrap_err() {
                    Error::Timeout { missing, .. } => missing.into_iter().map(|(replica, _)| replica).collect(),
                    Error::Aborted { replica, .. } => vec![replica],
                    error => panic!("{error}"),
                })
            });
            ran.map(|named| named.into_values())
        });
        assert_eq!(named[0].as_ref().unwrap(), &[vec![2], vec![2]], "{engine:?}");
    }
}

/// Found by a trial: the thread that reads ahead kept the strategy, so that its worker left when
/// the source returned.
#[test]
fn a_worker_leaves_at_once_while_its_data_set_reads_ahead() {
    const LONG: Duration = Duration::from_secs(20);
    for &engine in ENGINES {
        let (begin, has_error) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        workers_with(&[1, 1], engine, Duration::from_secs(60), |worker, strategy| {
            let is_awaited = has_error.clone();
            // The second element comes when the other worker has its error, or late.
            let wait = move |row: Tensor| {
                while row.item::<i64>()? == 1 && !is_awaited.load(Ordering::Relaxed) && begin.elapsed() < LONG {
                    thread::sleep(Duration::from_millis(1));
                }
                Ok(row)
            };
            let off = InputOptions::new().auto_shard_policy(AutoShardPolicy::Off);
            let dataset = strategy.distribute_dataset_with(range(2).map(wait).batch(1), off).unwrap();
            let mut steps = dataset.iter();
            steps.next().unwrap().unwrap();
            if worker == 1 {
                let error = ones(strategy).unwrap_err();
                has_error.store(true, Ordering::Relaxed);
                assert!(matches!(error, Error::Left { replica: 0, .. }), "{error}");
                assert!(begin.elapsed() < LONG, "it left when the source returned");
            }
        });
    }
}
