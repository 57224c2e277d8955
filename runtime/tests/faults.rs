//! Bad input and faults: each results in an error with its culprit, no replica keeps waiting, and
//! the next call works.

mod fields;

use consonance::{
    CommunicationOptions, Communicator, DType, Destinations, Device, Error, IndexedSlices, MirroredStrategy,
    OneDeviceStrategy, PerReplica, ReduceOp, ReplicaContext, Result, Tensor,
    dataset::{self, Deal, InputOptions},
    gradient,
    nest::Opaque,
    raw::Reason,
};
use fields::{abort, found, last_call, mismatch, other, own, refusal, told, unknown_op};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

/// Longer than any test takes: a test that reaches it has found a wait without end.
const LONG: Duration = Duration::from_secs(60);

fn strategy(replicas: usize) -> MirroredStrategy {
    strategy_with_timeout(replicas, LONG)
}

fn strategy_with_timeout(replicas: usize, timeout: Duration) -> MirroredStrategy {
    let options = CommunicationOptions::new().timeout(timeout).unwrap();
    MirroredStrategy::builder((0..replicas).map(Device::Cpu)).options(options).build().unwrap()
}

/// Runs `replica_fn`, whose calls differ, on 3 replicas. All get the mismatch `expected`, and a
/// correct call in the same run works.
#[track_caller]
fn expect_mismatch<R: std::fmt::Debug>(
    replica_fn: impl Fn(&ReplicaContext<'_>) -> Result<R> + Sync,
    expected: (&str, &str, usize, &str, &str),
) {
    let results = strategy(3)
        .run(|replica| {
            let error = replica_fn(replica).unwrap_err();
            let sum = replica.all_reduce(ReduceOp::Sum, 1i32)?;
            assert_eq!(mismatch(&error), expected);
            Ok(sum)
        })
        .unwrap();
    assert_eq!(results.into_values(), [3, 3, 3]);
}

/// Checks that the next run of the strategy works after a failed one.
#[track_caller]
fn expect_next_run(strategy: &MirroredStrategy) {
    let replicas = strategy.num_replicas_in_sync();
    let sums = strategy.run(|replica| replica.all_reduce("sum", 1u64)).unwrap();
    assert_eq!(sums.into_values(), vec![replicas as u64; replicas]);
}

#[test]
fn different_shapes_name_replica_and_leaf() {
    expect_mismatch(
        |replica| {
            let count = if replica.replica_id_in_sync_group() == 1 { 3 } else { 2 };
            replica.all_reduce("sum", (Tensor::from(0i32), Tensor::from(vec![1.0f32; count])))
        },
        ("all_reduce", "value/1", 1, "f32[2]", "f32[3]"),
    );
}

#[test]
fn different_dtypes() {
    expect_mismatch(
        |replica| {
            let one = if replica.replica_id_in_sync_group() == 2 { Tensor::from(1i64) } else { Tensor::from(1.0f64) };
            replica.all_reduce("sum", one)
        },
        ("all_reduce", "value", 2, "f64[]", "i64[]"),
    );
}

#[test]
fn different_ops() {
    expect_mismatch(
        |replica| {
            let op = if replica.replica_id_in_sync_group() == 0 { ReduceOp::Mean } else { ReduceOp::Sum };
            replica.all_reduce(op, 1.0f32)
        },
        ("all_reduce", "op", 0, "sum", "mean"),
    );
}

#[test]
fn different_structures() {
    expect_mismatch(
        |replica| {
            let count = if replica.replica_id_in_sync_group() == 1 { 1 } else { 2 };
            replica.all_reduce("sum", vec![Tensor::from(1.0f32); count])
        },
        ("all_reduce", "value/1", 1, "f32[]", "nothing"),
    );
}

#[test]
fn an_empty_nest_against_a_full_one() {
    expect_mismatch(
        |replica| {
            let count = if replica.replica_id_in_sync_group() == 1 { 0 } else { 1 };
            replica.all_reduce("sum", vec![Tensor::from([1u8; 0]); count])
        },
        ("all_reduce", "value/0", 1, "u8[0]", "nothing"),
    );
}

#[test]
fn different_axes_and_other_dimensions() {
    expect_mismatch(
        |replica| {
            replica.all_gather(Tensor::from([[1, 2]]), if replica.replica_id_in_sync_group() == 2 { 1 } else { 0 })
        },
        ("all_gather", "axis", 2, "0", "1"),
    );
    expect_mismatch(
        |replica| {
            let columns = 2 + replica.replica_id_in_sync_group() / 2;
            replica.all_gather(Tensor::zeros(consonance::DType::F32, [1, columns]), 0)
        },
        ("all_gather", "value", 2, "f32[?, 2]", "f32[?, 3]"),
    );
}

#[test]
fn different_calls() {
    expect_mismatch(
        |replica| match replica.replica_id_in_sync_group() {
            1 => replica.barrier(),
            _ => replica.all_reduce("sum", 1.0f32).map(drop),
        },
        ("all_reduce", "call", 1, "all_reduce", "barrier"),
    );
    expect_mismatch(
        |replica| match replica.replica_id_in_sync_group() {
            0 => replica.merge_call((), |strategy, _| Ok(strategy.mirror(()))),
            _ => replica.all_gather(Tensor::from([1]), 0).map(drop),
        },
        ("all_gather", "call", 0, "all_gather", "merge_call"),
    );
}

#[test]
fn different_roots() {
    expect_mismatch(
        |replica| replica.broadcast(1.0f32, replica.replica_id_in_sync_group() / 2),
        ("broadcast", "root", 2, "0", "1"),
    );
}

/// Some gradients divide or slice locally, after steps whose signatures have neither the operation
/// nor the axis.
#[test]
fn different_ops_axes_and_blocks_of_gradients() {
    let odd = |replica: &ReplicaContext<'_>| replica.replica_id_in_sync_group() == 1;
    let op = |odd| if odd { "mean" } else { "sum" };
    expect_mismatch(
        |replica| gradient::reduce_scatter(replica, op(odd(replica)), Tensor::from([1.0f32])),
        ("all_gather", "op", 1, "sum", "mean"),
    );
    expect_mismatch(
        |replica| gradient::reduce_scatter(replica, "sum", Tensor::from(vec![1.0f32; 1 + odd(replica) as usize])),
        ("all_gather", "value", 1, "f32[1]", "f32[2]"),
    );
    expect_mismatch(
        // The sizes fit both axes.
        |replica| gradient::all_gather(replica, Tensor::zeros(DType::F32, [3, 3]), odd(replica) as isize, &[1]),
        ("all_gather", "axis", 1, "0", "1"),
    );
    thread::scope(|scope| {
        for mut rank in Communicator::threads(3) {
            scope.spawn(move || {
                let (op, mut data, mut all) = (op(rank.rank() == 1), [1.0f32], [0.0f32; 3]);
                let errors = [
                    gradient::slices::reduce(&mut rank, op, &mut data, 0).unwrap_err(),
                    gradient::slices::reduce_scatter(&mut rank, op, &data, &mut all).unwrap_err(),
                ];
                for (error, call) in errors.iter().zip(["broadcast", "all_gather"]) {
                    assert_eq!(mismatch(error), (call, "op", 1, "sum", "mean"));
                }
                assert_eq!((data, all), ([1.0], [0.0; 3]));
                rank.barrier().unwrap();
            });
        }
    });
}

/// Found by a review: only names were compared, and then the merge function panicked.
#[test]
fn merge_arguments_of_two_types_with_one_name() {
    let error = strategy(2).run(|replica| {
        if replica.replica_id_in_sync_group() == 0 {
            struct Same(u8);
            replica.merge_call(Opaque(Same(1)), |strategy, all| Ok(strategy.mirror(all[0].0.0)))
        } else {
            struct Same([u64; 8]);
            replica.merge_call(Opaque(Same([1; 8])), |strategy, all| Ok(strategy.mirror(all[0].0.0[0] as u8)))
        }
    });
    let error = error.unwrap_err();
    let (call, argument, replica, expected, found) = mismatch(&error);
    assert_eq!((call, argument, replica), ("merge_call", "type ids", 1));
    assert_ne!(expected, found);
}

#[test]
fn sparse_against_dense() {
    let slices = || IndexedSlices::new(Tensor::from([[1.0f32]]), Tensor::from([0i64]), Some(vec![2, 1])).unwrap();
    expect_mismatch(
        |replica| match replica.replica_id_in_sync_group() {
            1 => replica.all_reduce("sum", Tensor::from([[1.0f32], [2.0]])).map(drop),
            _ => replica.all_reduce("sum", slices()).map(drop),
        },
        ("all_reduce", "value", 1, "IndexedSlices with indices of i64, of f32[2, 1]", "f32[2, 1]"),
    );
}

/// An invalid call on one replica is that replica's error, and the others get an error at once.
#[test]
fn an_invalid_call_frees_the_others() {
    let results = strategy(2).run(|replica| {
        let odd = replica.replica_id_in_sync_group() == 1;
        let errors = [
            replica.all_reduce(if odd { "avg" } else { "mean" }, 1.0f32).unwrap_err(),
            replica.all_gather(Tensor::from([[1]]), if odd { 2 } else { 0 }).unwrap_err(),
            replica.all_gather(if odd { Tensor::from(1) } else { Tensor::from([1]) }, 0).unwrap_err(),
            replica.all_reduce("sum", if odd { Tensor::from(true) } else { Tensor::from(1u8) }).unwrap_err(),
        ];
        replica.barrier()?;
        Ok(errors)
    });
    let results = results.unwrap();
    let [op, axis, scalar, logical] = &results[1];
    assert_eq!(unknown_op(op), (Some("ReplicaContext::all_reduce"), Some(1), "avg"));
    assert_eq!((refusal(axis), found(axis)), (("ReplicaContext::all_gather", "axis", Some(1)), "2"));
    assert_eq!(refusal(scalar), ("ReplicaContext::all_gather", "value", Some(1)));
    assert_eq!((refusal(logical), found(logical)), (("ReplicaContext::all_reduce", "op", Some(1)), "sum"));
    let calls = ["all_reduce", "all_gather", "all_gather", "all_reduce"];
    for (error, (own, call)) in results[0].iter().zip(results[1].iter().zip(calls)) {
        assert_eq!(told(error), (call, 1, &*format!("{own}")));
    }
}

#[test]
fn an_invalid_call_does_not_keep_the_short_timeout_of_the_last_one() {
    let short = Duration::from_secs(1);
    let results = strategy(2).run(|replica| {
        replica.barrier()?;
        replica.all_reduce_with("sum", 1i32, CommunicationOptions::new().timeout(short)?)?;
        if replica.replica_id_in_sync_group() == 0 {
            return Ok(replica.all_reduce("sum", true).unwrap_err());
        }
        thread::sleep(2 * short);
        Ok(replica.all_reduce("sum", 1i32).unwrap_err())
    });
    let results = results.unwrap();
    assert_eq!(refusal(&results[0]), ("ReplicaContext::all_reduce", "op", Some(0)));
    assert_eq!(told(&results[1]), ("all_reduce", 0, &*format!("{}", results[0])));
}

#[test]
fn a_panic_and_an_error_free_the_others_and_harm_nothing() {
    let strategy = strategy(3);
    for round in 0..20 {
        let odd = round % 3;
        let error = strategy
            .run(|replica| {
                if replica.replica_id_in_sync_group() == odd {
                    panic!("round {round}");
                }
                replica.all_reduce("sum", Tensor::from(vec![1.0f32; 1000]))
            })
            .unwrap_err();
        let said = format!("round {round}");
        assert!(matches!(&error, Error::Panic { replica, message } if (*replica, message) == (odd, &said)), "{error}");
        let error = strategy
            .run(|replica| {
                if replica.replica_id_in_sync_group() == odd {
                    return Err(Error::other("no data"));
                }
                replica.barrier()
            })
            .unwrap_err();
        assert_eq!(own(&error), (odd, "no data".to_owned()));
        expect_next_run(&strategy);
    }
}

#[test]
fn the_freed_replicas_learn_the_failed_one() {
    let (strategy, seen) = (strategy(3), AtomicUsize::new(0));
    let result: Result<PerReplica<()>> = strategy.run(|replica| {
        if replica.replica_id_in_sync_group() == 1 {
            return Err(Error::other("mine"));
        }
        let error = replica.barrier().unwrap_err();
        assert_eq!(abort(&error), ("barrier", 1, Reason::Failure));
        seen.fetch_add(1, Ordering::Relaxed);
        Err(error)
    });
    assert_eq!((own(&result.unwrap_err()), seen.into_inner()), ((1, "mine".to_owned()), 2));
    expect_next_run(&strategy);
}

#[test]
fn a_replica_returning_early_is_named_with_its_last_call() {
    let strategy = strategy(2);
    let error = strategy
        .run(|replica| {
            replica.all_reduce("max", 1.0f64)?;
            if replica.replica_id_in_sync_group() == 0 {
                return Ok(());
            }
            replica.barrier()
        })
        .unwrap_err();
    let Error::Left { call, replica: 0, last, lost: false } = &error else { panic!("{error}") };
    assert_eq!((&call[..], last_call(last)), ("barrier", Some((1, "all_reduce(max, f64)", 8))));
    expect_next_run(&strategy);
}

#[test]
fn an_absent_replica_is_named_at_the_deadline() {
    let short = Duration::from_millis(50);
    let strategy = strategy_with_timeout(3, short);
    let (error, late) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let result = strategy.run(|replica| {
        if replica.replica_id_in_sync_group() == 2 {
            while error.load(Ordering::Relaxed) < 2 {
                thread::sleep(Duration::from_millis(1));
            }
            late.store(1, Ordering::Relaxed);
        }
        let result = replica.all_reduce("sum", Tensor::from(vec![1u8; 4096]));
        error.fetch_add(1, Ordering::Relaxed);
        result
    });
    let error = result.unwrap_err();
    assert_eq!(late.into_inner(), 1);
    let Error::Timeout { call, waited, missing } = &error else { panic!("{error}") };
    assert_eq!((&call[..], *waited, missing.len()), ("all_reduce", short, 1));
    assert_eq!((missing[0].0, last_call(&missing[0].1)), (2, None));
    expect_next_run(&strategy);
}

#[test]
fn runs_nest_in_merge_functions_and_updates_only() {
    let strategy = strategy(2);
    let error = strategy.run(|_| strategy.run(|_| Ok(()))).unwrap_err();
    assert!(matches!(error.root(), Error::WrongContext { call: "Strategy::run", .. }), "{error}");
    let doubled = strategy.run(|replica| {
        let id = replica.replica_id_in_sync_group() as u64 + 1;
        replica.merge_call(id, |strategy, ids| strategy.run_with(ids, |_, id| Ok(2 * id)))
    });
    assert_eq!(doubled.unwrap().values(), [2, 4]);
    let variable = strategy.variable(|| Tensor::from(0.0f32)).unwrap();
    let updated = strategy.update(&variable, |copy| {
        let sums = strategy.run(|replica| replica.all_reduce("sum", 1.0f32))?;
        copy.assign(sums[0])
    });
    updated.unwrap();
    assert_eq!(variable.read().unwrap(), Tensor::from(2.0f32));
}

#[test]
fn a_context_is_of_no_use_in_a_merge_function() {
    let strategy = strategy(2);
    let error = strategy
        .run(|replica| replica.merge_call((), |strategy, _| Ok(strategy.mirror(replica.barrier()?))))
        .unwrap_err();
    assert!(matches!(error.root(), Error::WrongContext { .. }), "{error}");
    expect_next_run(&strategy);
}

#[test]
fn a_failing_or_panicking_merge_function_frees_all() {
    let strategy = strategy(3);
    let results = strategy.run(|replica| {
        let failed = replica.merge_call(1, |_, _| -> Result<PerReplica<i32>> { Err(Error::other("no")) });
        let few = replica.merge_call(1, |_, _| Ok(PerReplica::new(vec![1])));
        replica.barrier()?;
        assert!(few.is_err());
        Ok(failed.unwrap_err())
    });
    let results = results.unwrap();
    assert_eq!(other(&results[0]), "no");
    // The others are told of it.
    let (replica, reason) = own(&results[2]);
    assert!(replica == 0 && reason.ends_with(": no"), "{}", results[2]);

    let error =
        strategy.run(|replica| replica.merge_call(1, |_, _| -> Result<PerReplica<i32>> { panic!("oh") })).unwrap_err();
    assert!(matches!(&error, Error::Panic { replica: 0, message } if message == "oh"), "{error}");
    expect_next_run(&strategy);
}

/// Found by a review: only the replica that ran the function got `Mismatch`, so the replicas took
/// different paths.
#[test]
fn a_mismatch_in_a_merge_function_is_one_on_every_replica() {
    let strategy = strategy(3);
    let merge = |replica: &ReplicaContext<'_>| {
        let own = Tensor::from(vec![1; 1 + replica.replica_id_in_sync_group() / 2]);
        replica.merge_call(own, |strategy, all| Ok(strategy.mirror(strategy.reduce("sum", &all, None)?)))
    };
    let results = strategy.run(|replica| {
        let merged = merge(replica).unwrap_err();
        let overlapped = replica.overlap(|_| merge(replica)).unwrap_err();
        // The group was not aborted.
        replica.barrier()?;
        Ok([merged, overlapped])
    });
    for error in results.unwrap().into_values().into_iter().flatten() {
        assert!(matches!(error, Error::Mismatch { replica: 2, .. }), "{error}");
    }
    let error = strategy.run(merge).unwrap_err();
    assert!(matches!(error, Error::Mismatch { replica: 2, .. }), "{error:?}");
    expect_next_run(&strategy);
}

#[test]
fn devices_are_checked() {
    let refused = |result: Result<MirroredStrategy>, argument: &str| {
        assert_eq!(refusal(&result.unwrap_err()), ("MirroredStrategy", argument, None));
    };
    refused(MirroredStrategy::new(Vec::<Device>::new()), "devices");
    refused(MirroredStrategy::new(["cpu:0", "cpu:1", "CPU:0"]), "devices");
    refused(MirroredStrategy::new([Device::Cpu(1024)]), "device");
    for device in ["gpu:0", "cpu", "cpu:x", "cpu:1024", "cpu:+1", "cpu:01", ""] {
        refused(MirroredStrategy::new([device]), "device");
    }
    let (strategy, value, none) = (strategy(2), PerReplica::new(vec![1.0f32; 2]), Device::Cpu(1_000_000));
    let error = strategy.reduce_to("sum", &value, none).unwrap_err();
    assert_eq!(refusal(&error), ("Strategy::reduce_to", "device", None));
    let error = strategy.batch_reduce_to("sum", &[(value, none.into())]).unwrap_err();
    assert_eq!(refusal(&error), ("Strategy::batch_reduce_to", "device", None));
}

#[test]
fn strategies_do_not_mix() {
    let (one, other) = (strategy(2), strategy(2));
    let error = one.scope(|| other.run(|_| Ok(()))).unwrap_err();
    assert!(matches!(error, Error::WrongContext { .. }), "{error}");
    let alone = OneDeviceStrategy::new("cpu:0").unwrap();
    let error = alone.run(|_| alone.reduce("sum", &PerReplica::new(vec![1.0f32]), None)).unwrap_err();
    assert!(matches!(error.root(), Error::WrongContext { call: "Strategy::reduce", .. }), "{error}");
    let variable = one.variable(|| Tensor::from(1.0f32)).unwrap();
    assert!(other.update(&variable, |_| Ok(())).is_err());
    assert!(one.run(|_| variable.assign(Tensor::from(2.0f32))).is_err());
}

#[test]
fn values_unlike_the_replicas_are_refused() {
    let strategy = strategy(2);
    let error = strategy.reduce("sum", &PerReplica::new(vec![1.0f32; 3]), None).unwrap_err();
    assert_eq!(refusal(&error), ("Strategy::reduce", "value", None));
    let error = strategy.run_with(PerReplica::new(vec![0]), |_, _| Ok(())).unwrap_err();
    assert_eq!(refusal(&error), ("Strategy::run_with", "arguments", None));
    let few = [(PerReplica::new(vec![1.0f32]), Destinations::Replicas)];
    let error = strategy.batch_reduce_to("sum", &few).unwrap_err();
    assert_eq!(refusal(&error), ("Strategy::batch_reduce_to", "value", None));
    let error = strategy.batch_reduce_to("avg", &few).unwrap_err();
    assert!(matches!(error, Error::UnknownReduceOp { call: Some("Strategy::batch_reduce_to"), .. }), "{error}");
    let pairs = PerReplica::new(vec![vec![Tensor::from(1.0f32)], vec![]]);
    assert!(matches!(strategy.reduce("sum", &pairs, None), Err(Error::Mismatch { replica: 1, .. })));
}

/// Found by a user: the error named the sizes, although they may differ along the intended axis.
#[test]
fn an_absent_axis_of_ragged_values_is_reported_before_their_sizes() {
    let strategy = strategy(2);
    let ragged = PerReplica::new(vec![Tensor::from(vec![1.0f32; 0]), Tensor::from(vec![1.0f32; 1])]);
    let errors = [
        strategy.gather(&ragged, 1).unwrap_err(),
        strategy.gather(&ragged, -2).unwrap_err(),
        strategy.reduce("sum", &ragged, 5).unwrap_err(),
        strategy.reduce("sum", &ragged, [0, 0]).unwrap_err(),
    ];
    let calls = ["Strategy::gather", "Strategy::gather", "Strategy::reduce", "Strategy::reduce"];
    for (error, (call, axis)) in errors.iter().zip(calls.into_iter().zip(["1", "-2", "5", "0 twice"])) {
        assert_eq!((refusal(error), found(error)), ((call, "axis", None), axis));
    }
    // With different dtypes or ranks no axis is valid.
    for odd in [Tensor::from([[1.0f32]]), Tensor::from(1.0f32), Tensor::from([1.0f64])] {
        let unlike = PerReplica::new(vec![Tensor::from([1.0f32]), odd]);
        for error in [strategy.gather(&unlike, 5).unwrap_err(), strategy.reduce("sum", &unlike, 5).unwrap_err()] {
            assert!(matches!(error, Error::Mismatch { replica: 1, .. }), "{error}");
        }
    }
}

#[test]
fn a_dropped_communicator_has_left() {
    let mut ranks = Communicator::threads(2);
    drop(ranks.pop());
    let error = ranks[0].barrier().unwrap_err();
    let Error::Left { call, replica: 1, last, lost: false } = &error else { panic!("{error}") };
    assert_eq!((&call[..], last_call(last)), ("barrier", None));
    assert!(matches!(ranks[0].barrier(), Err(Error::Left { replica: 1, .. })));
}

#[test]
fn an_abort_frees_the_group_and_the_groups_split_from_it() {
    let ranks = Communicator::threads(3);
    let errors: Vec<Error> = thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|mut rank| {
                scope.spawn(move || {
                    let mut pair = rank.split(Some((rank.rank() / 2) as u32), 0).unwrap().unwrap();
                    match rank.rank() {
                        // Waits in the group of two for rank 1, which waits in the whole group.
                        0 => pair.barrier().unwrap_err(),
                        1 => rank.barrier().unwrap_err(),
                        _ => {
                            thread::sleep(Duration::from_millis(20));
                            rank.abort();
                            pair.barrier().unwrap_err()
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for error in errors {
        assert!(matches!(error, Error::Aborted { replica: 2, .. }), "{error}");
    }
}

#[test]
fn a_panic_in_a_scope_ends_the_group_and_dropped_handles_are_finished() {
    let mut ranks = Communicator::threads(2);
    let (mut second, mut first) = (ranks.remove(1), ranks.remove(0));
    let (mut a, mut b) = ([1u32; 100], [2u32; 100]);
    thread::scope(|threads| {
        threads.spawn(|| {
            let dropped = first.scope(|scope| {
                drop(scope.all_reduce("sum", &mut a)?);
                Ok(())
            });
            dropped.unwrap();
            // Only this rank makes the next call; its peer panics.
            let mut alone = [0u8; 9];
            let error = first.scope(|scope| scope.all_reduce("sum", &mut alone)?.wait()).unwrap_err();
            assert!(matches!(error, Error::Aborted { replica: 1, .. }), "{error}");
        });
        threads.spawn(|| {
            second.all_reduce("sum", &mut b).unwrap();
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                second.scope(|_| -> Result<()> { panic!("in the body") })
            }));
            assert!(panic.is_err());
        });
    });
    assert_eq!((a, b), ([3; 100], [3; 100]));
}

#[test]
fn the_first_error_of_a_scope_is_reported() {
    let mut alone = Communicator::threads(1).remove(0);
    let mut data = [1i32, 2];
    let error = alone.scope(|scope| scope.all_reduce("mean", &mut data).map(drop)).unwrap_err();
    assert_eq!((refusal(&error), found(&error)), (("all_reduce", "op", Some(0)), "mean, whose result is f64"));
}

/// A subgroup works after its parent group is dropped, whichever rank leaves the parent first.
#[test]
fn a_group_survives_its_parent() {
    for round in 0..200 {
        thread::scope(|scope| {
            for mut rank in Communicator::threads(3) {
                scope.spawn(move || {
                    if round % 4 == rank.rank() {
                        thread::yield_now();
                    }
                    let mut child = rank.split(Some(0), 0).unwrap().unwrap();
                    drop(rank);
                    let mut data = vec![1u32; 1000];
                    child.all_reduce("sum", &mut data).unwrap();
                    assert_eq!(data, [3; 1000]);
                    child = child.split(Some(0), -(child.rank() as i32)).unwrap().unwrap();
                    child.broadcast(&mut data, 2).unwrap();
                });
            }
        });
    }
}

#[test]
fn counts_with_an_overflowing_sum_are_refused() {
    let mut alone = Communicator::threads(1).remove(0);
    assert!(matches!(alone.all_gather_v(Some(&[1u64]), &mut [0u64], &[usize::MAX]), Err(Error::InvalidCall { .. })));
    thread::scope(|scope| {
        for mut rank in Communicator::threads(2) {
            scope.spawn(move || {
                // Both sums wrap around to the true number of elements.
                let counts = [usize::MAX, 3];
                let error = rank.all_to_all_v(&[1u64, 2], &counts, &mut [0u64; 2], &counts).unwrap_err();
                assert_eq!(refusal(&error), ("all_to_all", "send_counts", Some(rank.rank())));
                assert_eq!(found(&error), format!("{counts:?}"));
            });
        }
    });
}

/// Found by a review: ranks other than the root panicked in builds with overflow checks.
#[test]
fn counts_beyond_all_buffers_are_refused_by_every_rank() {
    // The second sum fits as a number of elements, but its number of bytes overflows.
    for counts in [[usize::MAX, 1], [usize::MAX / 4, 1]] {
        thread::scope(|scope| {
            for mut rank in Communicator::threads(2) {
                scope.spawn(move || {
                    let is_root = rank.rank() == 0;
                    let (mut one, two) = ([0u64; 1], [0u64; 2]);
                    let gathered = match is_root {
                        true => rank.gather_v(None, Some(&mut one), &counts, 0),
                        false => rank.gather_v(Some(&two[..1]), None, &counts, 0),
                    };
                    let scattered = match is_root {
                        true => rank.scatter_v(Some(&two), None, &counts, 0),
                        false => rank.scatter_v(None, Some(&mut one), &counts, 0),
                    };
                    for error in [gathered, scattered].map(Result::unwrap_err) {
                        assert!(
                            matches!(&error, Error::InvalidCall { argument, .. } if argument == "counts"),
                            "{error}"
                        );
                    }
                });
            }
        });
    }
}

#[test]
fn too_large_allocations_are_refused() {
    let alone = Communicator::threads(1).remove(0);
    let error = alone.alloc::<f64>(usize::MAX).map(|data| data.len()).unwrap_err();
    assert!(matches!(error, Error::System { .. }), "{error}");
    let error = alone.alloc::<u8>(1 << 60).map(|data| data.len()).unwrap_err();
    assert!(matches!(error, Error::System { .. }), "{error}");
}

#[test]
fn receive_buffers_beside_the_root_are_not_used() {
    thread::scope(|scope| {
        for mut rank in Communicator::threads(2) {
            scope.spawn(move || {
                let mut recv = vec![0.0f32; if rank.rank() == 0 { 2 } else { 7 }];
                rank.reduce_into("sum", &[1.0f32, 2.0], Some(&mut recv), 0).unwrap();
                assert_eq!(recv, if rank.rank() == 0 { vec![2.0, 4.0] } else { vec![0.0; 7] });
            });
        }
    });
}

/// Ranks continue after an unknown operation name. No rank may pair its next call with the call
/// that was not made.
#[test]
fn an_unknown_operation_on_slices_is_reported_to_the_others() {
    thread::scope(|scope| {
        for mut rank in Communicator::threads(2) {
            scope.spawn(move || {
                let odd = rank.rank() == 1;
                let mut data = [1.0f32];
                let error = rank.all_reduce(if odd { "avg" } else { "sum" }, &mut data).unwrap_err();
                let check = |error: Error, of: &'static str| {
                    let source = "avg".parse::<ReduceOp>().unwrap_err();
                    let unknown = Error::UnknownReduceOp { call: Some(of), replica: Some(1), source };
                    match odd {
                        true => assert_eq!(unknown_op(&error), (Some(of), Some(1), "avg")),
                        false => assert_eq!(told(&error), ("all_reduce", 1, &*format!("{unknown}"))),
                    }
                };
                check(error, "all_reduce");
                let mut other = [1.0f32; 100];
                let error = rank.scope(|scope| {
                    let pending = scope.all_reduce(if odd { "avg" } else { "sum" }, &mut other);
                    Ok(pending.and_then(|pending| pending.wait()).unwrap_err())
                });
                check(error.unwrap(), "all_reduce");
                let error = gradient::slices::all_reduce(&mut rank, if odd { "avg" } else { "sum" }, &mut data);
                check(error.unwrap_err(), "gradient::slices::all_reduce");
                rank.all_reduce("sum", &mut data).unwrap();
                assert_eq!(data, [2.0]);
            });
        }
    });
}

#[test]
fn the_mean_of_an_integer_is_no_integer() {
    let strategy = strategy(2);
    let error = strategy.run(|replica| replica.all_reduce("mean", (1.0f32, 3i32))).unwrap_err();
    assert_eq!(refusal(&error), ("ReplicaContext::all_reduce", "value/1", Some(0)));
    let error = strategy.run(|replica| replica.overlap(|buckets| buckets.all_reduce("mean", 3i32)?.wait()));
    assert_eq!(refusal(&error.unwrap_err()), ("Buckets::all_reduce", "value/0", Some(0)));
    let error = strategy.reduce("mean", &PerReplica::new(vec![1i32, 2]), None).unwrap_err();
    assert_eq!(refusal(&error), ("Strategy::reduce", "value", None));
    expect_next_run(&strategy);
}

/// A barrier used to have the timeout of the options of the call before it.
#[test]
fn options_are_those_of_one_call() {
    let short = Duration::from_millis(20);
    let options = CommunicationOptions::new().timeout(Duration::from_secs(2)).unwrap();
    let (failed, told) = std::sync::mpsc::channel();
    let told = std::sync::Mutex::new(told);
    let results = strategy_with_timeout(2, short).run(|replica| {
        replica.all_reduce_with(ReduceOp::Sum, 1.0f32, options)?;
        if replica.replica_id_in_sync_group() == 1 {
            // Call late: after the other replica has timed out.
            told.lock().unwrap().recv().unwrap();
            return Ok(None);
        }
        let error = replica.barrier().unwrap_err();
        failed.send(()).unwrap();
        Ok(Some(error))
    });
    let error = results.unwrap().into_values().remove(0).unwrap();
    assert!(matches!(error, Error::Timeout { waited, .. } if waited == short), "{error}");
}

#[test]
fn every_timeout_ends() {
    let mut alone = Communicator::threads(1).remove(0);
    for timeout in [Duration::ZERO, Duration::MAX] {
        assert!(
            matches!(alone.set_timeout(timeout), Err(Error::InvalidCall { argument, .. }) if argument == "timeout")
        );
        assert!(CommunicationOptions::new().timeout(timeout).is_err());
    }
}

#[test]
fn arguments_of_slices_are_checked() {
    let mut alone = Communicator::threads(1).remove(0);
    let errors = [
        (alone.all_reduce("mean", &mut [1i32]), "all_reduce", "op", "mean, whose result is f64"),
        (alone.all_reduce("and", &mut [1.0f32]), "all_reduce", "op", "and"),
        (alone.all_reduce_into("sum", &[1i32, 2], &mut [0i32]), "all_reduce", "recv", "1 elements"),
        (alone.all_reduce_into("mean", &[1i32], &mut [0f32]), "all_reduce", "recv", "elements of f32"),
        (alone.broadcast(&mut [1u8], 1), "broadcast", "root", "1"),
        (alone.all_gather_v(Some(&[1u8]), &mut [0u8; 2], &[2]), "all_gather", "counts", "2"),
        (alone.send(&[1u8], 0), "send/recv", "to", "this rank itself"),
        (alone.gather(&[1u8], None, 0), "gather", "recv", "none"),
    ];
    for (result, call, argument, value) in errors {
        let error = result.unwrap_err();
        assert_eq!((refusal(&error), found(&error)), ((call, argument, Some(0)), value));
    }
}

#[test]
fn a_dense_shape_too_large_for_memory_is_refused() {
    for rows in [1 << 62, (isize::MAX as usize) / 4 + 1, usize::MAX] {
        let one = IndexedSlices::new(Tensor::from([[1.0f32]]), Tensor::from([0i64]), Some(vec![rows, 1])).unwrap();
        let error = one.to_dense().unwrap_err();
        assert!(matches!(&error, Error::InvalidCall { argument, .. } if argument == "dense_shape"), "{error}");
    }
}

/// Found by a review: a loop went over all rows, although each has no elements.
#[test]
fn long_axes_without_elements_take_no_time() {
    let strategy = strategy(2);
    let both = |shape: &[usize]| PerReplica::new(vec![Tensor::zeros(DType::F32, shape); 2]);
    let gathered = strategy.gather(&both(&[1 << 40, 0]), 1).unwrap();
    assert_eq!(gathered.shape(), [1 << 40, 0]);
    let gathered = strategy.run(|replica| replica.all_gather(Tensor::zeros(DType::F32, [1 << 40, 0]), 1)).unwrap();
    assert_eq!(gathered[1].shape(), [1 << 40, 0]);
    let long = [1 << 40, 3, 0];
    assert_eq!(strategy.reduce("sum", &both(&long), [0, 2]).unwrap(), Tensor::zeros(DType::F32, [3]));
}

/// Found by a review: the sum of the sizes wrapped around, or panicked with overflow checks.
#[test]
fn sizes_with_an_overflowing_sum_are_refused() {
    let strategy = strategy(2);
    for (shape, axis) in [(vec![1 << 63, 0], 0), (vec![1 << 40, 0, 1 << 23], 2)] {
        let tensor = Tensor::zeros(DType::F32, shape);
        let gathered = strategy.gather(&PerReplica::new(vec![tensor.clone(); 2]), axis).unwrap_err();
        let all_gathered = strategy.run(|replica| replica.all_gather(tensor.clone(), axis)).unwrap_err();
        for (call, error) in [("Strategy::gather", gathered), ("all_gather", all_gathered)] {
            assert_eq!(refusal(error.root()), (call, "value", None));
        }
    }
    // The result has no element, so no mean is computed.
    let none = PerReplica::new(vec![Tensor::zeros(DType::F32, [1 << 63, 0]); 2]);
    assert_eq!(strategy.reduce("mean", &none, 0).unwrap().shape(), [0]);
    assert_eq!(strategy.reduce("mean", &none, [0, 1]).unwrap().shape(), [0usize; 0]);
}

/// Found by a review: the start of the last replica's rows wrapped around to 0, or panicked with
/// overflow checks.
#[test]
fn a_batch_of_as_many_rows_as_there_are_numbers_is_dealt() {
    for deal in [Deal::Chunked, Deal::Balanced, Deal::Packed] {
        let dataset =
            dataset::from_fn(|| [Tensor::zeros(DType::F32, [usize::MAX, 0]), Tensor::zeros(DType::F32, [2, 0])]);
        let options = InputOptions::new().deal(deal).prefetch(0);
        let dataset = strategy(2).distribute_dataset_with(dataset, options).unwrap();
        let mut rows = dataset.iter().map(|step| step.unwrap().map(|part: Tensor| part.shape()[0]).into_values());
        assert_eq!(rows.next().unwrap(), [1 << 63, (1 << 63) - 1]);
        assert_eq!(rows.next().unwrap(), [1, 1]);
    }
}

#[test]
fn a_reduction_refused_by_a_scope_has_its_own_name_in_the_errors() {
    let reduce = |rank: &mut Communicator, op: &str| {
        let mut data = [1.0f32; 4];
        rank.scope(|scope| scope.reduce(op, &mut data, 0)?.wait())
    };
    let scatter = |rank: &mut Communicator, op: &str| {
        let mut data = [1.0f32; 4];
        rank.scope(|scope| scope.reduce_scatter(op, &mut data)?.wait())
    };
    type Make<'a> = &'a (dyn Fn(&mut Communicator, &str) -> Result<()> + Sync);
    let calls: [(&str, Make<'_>); 2] = [("reduce", &reduce), ("reduce_scatter", &scatter)];
    for (call, make) in calls {
        // A name that no operation has, and an operation that f32 has not.
        for op in ["avg", "xor"] {
            let ranks = Communicator::threads(2).into_iter();
            let errors: Vec<Error> = thread::scope(|threads| {
                let both = ranks.map(|mut rank| {
                    let op = if rank.rank() == 1 { op } else { "sum" };
                    threads.spawn(move || make(&mut rank, op).unwrap_err())
                });
                both.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            assert_eq!((told(&errors[0]).0, told(&errors[0]).1), (call, 1));
            match op {
                "avg" => assert_eq!(unknown_op(&errors[1]), (Some(call), Some(1), "avg")),
                _ => assert_eq!(refusal(&errors[1]), (call, "op", Some(1))),
            }
        }
    }
}

#[test]
fn two_senders_get_a_mismatch() {
    let errors: Vec<Error> = thread::scope(|threads| {
        let ranks = Communicator::threads(2).into_iter();
        let both = ranks.map(|mut rank| threads.spawn(move || rank.send(&[1u8], 1 - rank.rank())));
        both.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap().unwrap_err()).collect()
    });
    for error in errors {
        assert_eq!(mismatch(&error), ("send/recv", "sender", 1, "0", "1"));
    }
}
