//! All-reduces that overlap with computation: results bit for bit those of plain ones, and errors
//! when replicas differ or fail.

mod fields;

use consonance::{
    Buckets, CommunicationOptions, Communicator, DType, Device, Error, IndexedSlices, MirroredStrategy,
    MultiWorkerMirroredStrategy, Nest, ReduceOp, ReplicaContext, Result, SimpleClusterResolver, Strategy, Tensor,
    raw::Reason,
};
use fields::{abort, found, mismatch, other, own, refusal, told, unknown_op};
use std::{
    fmt::Debug,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Longer than any test takes: a test that reaches it has found a wait without end.
const LONG: Duration = Duration::from_secs(60);

/// Whether a separate thread carries the buckets out.
const BACKGROUND_THREADS: [bool; 2] = [false, true];

fn options(background_threads: bool) -> CommunicationOptions {
    CommunicationOptions::new().timeout(LONG).unwrap().background_threads(background_threads)
}

fn strategy(replicas: usize, options: CommunicationOptions) -> MirroredStrategy {
    MirroredStrategy::builder((0..replicas).map(Device::Cpu)).options(options).build().unwrap()
}

/// Returns a tensor that depends on the replica, with values whose sum depends on the order.
fn tensor(replica: usize, seed: usize, count: usize) -> Tensor {
    let value = |index: usize| {
        let x = ((index * 7919 + seed * 104_729 + replica * 1_299_709) % 1009) as f32 - 504.0;
        if index % 5 == replica % 5 { x * 1e7 } else { x / 3.0 }
    };
    Tensor::from((0..count).map(value).collect::<Vec<f32>>())
}

#[derive(Clone, Nest, PartialEq, Debug)]
struct Layer {
    weights: Tensor,
    bias: Vec<Tensor>,
}

/// Returns the tensors that one replica hands over, with sizes at the edges of buckets of 64 bytes
/// and 64 KiB.
fn layers(replica: usize) -> Vec<Layer> {
    let sizes = [(16, 1), (0, 15), (17, 16), (3, 3), (16_384, 2), (16_383, 1), (20_000, 9), (1, 0)];
    let layer = |(seed, (weights, bias)): (usize, &(usize, usize))| {
        let bytes = tensor(replica, seed, *bias);
        let bytes: Vec<u8> = bytes.as_slice::<f32>().unwrap().iter().map(|&x| x as i32 as u8).collect();
        Layer {
            weights: tensor(replica, seed, *weights),
            bias: vec![tensor(replica, seed + 50, *bias), Tensor::from(bytes)],
        }
    };
    sizes.iter().enumerate().map(layer).collect()
}

#[test]
fn the_bits_are_those_of_plain_calls() {
    for replicas in [1, 2, 3, 5] {
        for bytes_per_pack in [0, 1, 64, 64 << 10] {
            for background_threads in BACKGROUND_THREADS {
                for op in [ReduceOp::Sum, ReduceOp::Max] {
                    let strategy = strategy(replicas, options(background_threads).bytes_per_pack(bytes_per_pack));
                    let both = strategy.run(|replica| {
                        let layers = layers(replica.replica_id_in_sync_group());
                        let plain = replica.all_reduce(op, layers.clone())?;
                        let overlapped = replica.overlap(|buckets| {
                            let pending = layers.into_iter().map(|layer| buckets.all_reduce(op, layer));
                            let pending = pending.collect::<Result<Vec<_>>>()?;
                            // Wait in another order than that of the hand-overs, the same on all
                            // replicas.
                            let back = pending.into_iter().rev().map(|layer| layer.wait());
                            let mut back = back.collect::<Result<Vec<_>>>()?;
                            back.reverse();
                            Ok(back)
                        })?;
                        Ok((plain, overlapped))
                    });
                    for (plain, overlapped) in both.unwrap() {
                        assert_eq!(
                            plain, overlapped,
                            "{replicas} replicas, {bytes_per_pack}, {background_threads}, {op}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn each_replica_may_have_its_own_way_and_threads_of_its_own() {
    let sums = strategy(3, options(false)).run(|replica| {
        let id = replica.replica_id_in_sync_group();
        replica.overlap_with(CommunicationOptions::new().background_threads(id == 1).bytes_per_pack(100), |buckets| {
            let first = buckets.all_reduce("sum", tensor(id, 1, 1000))?;
            let second = buckets.all_reduce("mean", (id as f32, tensor(id, 2, 10)))?;
            // The mean of integers is a float, which does not fit into this value. No replica waits
            // for it.
            drop(buckets.all_reduce("mean", vec![id as i32; 3])?);
            Ok((first.wait()?, second.wait()?))
        })
    });
    let plain = strategy(3, options(false)).run(|replica| {
        let id = replica.replica_id_in_sync_group();
        Ok((
            replica.all_reduce("sum", tensor(id, 1, 1000))?,
            replica.all_reduce("mean", (id as f32, tensor(id, 2, 10)))?,
        ))
    });
    assert_eq!(sums.unwrap(), plain.unwrap());
}

#[test]
fn a_full_bucket_travels_without_a_wait() {
    let sums = strategy(2, options(true)).run(|replica| {
        replica.overlap(|buckets| {
            let sum = buckets.all_reduce("sum", Tensor::zeros(DType::F32, [40_000]))?;
            let start = Instant::now();
            while buckets.in_collectives() == Duration::ZERO {
                assert!(start.elapsed() < LONG, "nobody carries the bucket out");
                thread::yield_now();
            }
            sum.wait()
        })
    });
    assert_eq!(sums.unwrap()[1].count(), 40_000);
}

#[test]
fn an_unshared_tensor_is_reduced_in_place() {
    for background_threads in BACKGROUND_THREADS {
        let same = strategy(2, options(background_threads)).run(|replica| {
            let own = Tensor::zeros(DType::F32, [100_000]);
            let place = own.as_slice::<f32>()?.as_ptr();
            replica.overlap(|buckets| Ok(buckets.all_reduce("sum", own)?.wait()?.as_slice::<f32>()?.as_ptr() == place))
        });
        assert_eq!(same.unwrap().values(), [true, true]);
    }
}

#[test]
fn sparse_rows_and_empty_nests_travel_too() {
    for background_threads in BACKGROUND_THREADS {
        let results = strategy(2, options(background_threads)).run(|replica| {
            let id = replica.replica_id_in_sync_group();
            // Replica 1 has two rows.
            let rows = Tensor::new([1 + id, 2], &vec![id as f32 + 1.0; 2 + 2 * id])?;
            let slices = IndexedSlices::new(rows, Tensor::from(vec![3i64; 1 + id]), Some(vec![5, 2]))?;
            replica.overlap(|buckets| {
                let dense = buckets.all_reduce("sum", 1.0f32)?;
                let sparse = buckets.all_reduce("sum", slices)?;
                let nothing = buckets.all_reduce("sum", Vec::<Tensor>::new())?;
                assert_eq!(nothing.wait()?, []);
                Ok((sparse.wait()?.to_dense()?.as_slice::<f32>()?[6..8].to_vec(), dense.wait()?))
            })
        });
        for result in results.unwrap() {
            assert_eq!(result, (vec![5.0, 5.0], 2.0));
        }
    }
}

#[test]
fn other_calls_come_after_earlier_hand_overs() {
    for background_threads in BACKGROUND_THREADS {
        let strategy = strategy(3, options(background_threads));
        let seen = strategy.variable(|| Tensor::from(0.0f32)).unwrap();
        let results = strategy.run(|replica| {
            let id = replica.replica_id_in_sync_group();
            replica.overlap(|buckets| {
                let mut pending = Vec::new();
                let mut others = Vec::new();
                for round in 0..3 {
                    pending.push(buckets.all_reduce("sum", tensor(id, round, 30_000))?);
                    pending.push(buckets.all_reduce("sum", tensor(id, round, 3))?);
                    others.push(replica.all_gather(Tensor::from([id as i32]), 0)?);
                    replica.barrier()?;
                    others.push(replica.broadcast(Tensor::from([id as i32]), 2)?);
                    others.push(replica.merge_call(id as i32, |strategy, all| {
                        Ok(strategy.mirror(Tensor::from([all.iter().sum::<i32>()])))
                    })?);
                    assert_eq!(replica.all_reduce("sum", seen.read()?)?, Tensor::from(0.0f32));
                }
                let sums = pending.into_iter().map(|sum| sum.wait()).collect::<Result<Vec<_>>>()?;
                Ok((sums, others))
            })
        });
        for (sums, others) in results.unwrap() {
            let own = strategy.run(|replica| {
                let id = replica.replica_id_in_sync_group();
                (0..3)
                    .flat_map(|round| [(round, 30_000), (round, 3)])
                    .map(|(round, count)| replica.all_reduce("sum", tensor(id, round, count)))
                    .collect::<Result<Vec<_>>>()
            });
            assert_eq!(sums, own.unwrap()[0]);
            let round = [Tensor::from([0, 1, 2]), Tensor::from([2]), Tensor::from([3])];
            assert_eq!(others, [round.clone(), round.clone(), round].concat());
        }
    }
}

/// Runs `body` in an overlap of 3 replicas whose hand-overs differ. All get the same error with the
/// fields `expected`, and a correct overlap in the same run works.
#[track_caller]
fn expect_mismatch(body: impl Fn(usize, &Buckets<'_>) -> Result<()> + Sync, expected: (&str, &str, usize, &str, &str)) {
    for background_threads in BACKGROUND_THREADS {
        let results = strategy(3, options(background_threads).bytes_per_pack(64)).run(|replica| {
            let id = replica.replica_id_in_sync_group();
            let error = replica.overlap(|buckets| body(id, buckets)).unwrap_err();
            let sum = replica.overlap(|buckets| buckets.all_reduce("sum", 1i32)?.wait())?;
            Ok((error, sum))
        });
        for (error, sum) in results.unwrap() {
            assert_eq!((mismatch(&error), sum), (expected, 3), "{background_threads}");
        }
    }
}

#[test]
fn replicas_with_different_hand_overs_are_named() {
    // Another shape, in a bucket that is full.
    expect_mismatch(
        |id, buckets| {
            buckets.all_reduce("sum", 1.0f32)?;
            buckets.all_reduce("sum", (Tensor::from(0i32), tensor(0, 0, if id == 1 { 101 } else { 100 })))?;
            Ok(())
        },
        ("all_reduce", "value/1/1", 1, "f32[100]", "f32[101]"),
    );
    // Another order of hand-overs that no replica waits for.
    expect_mismatch(
        |id, buckets| {
            let sizes = if id == 2 { [3, 2] } else { [2, 3] };
            sizes.iter().try_for_each(|&count| buckets.all_reduce("sum", tensor(0, 0, count)).map(drop))
        },
        ("all_reduce", "value/0", 2, "f32[2]", "f32[3]"),
    );
    // One hand-over fewer; all are waited for.
    expect_mismatch(
        |id, buckets| {
            let pending: Vec<_> =
                (0..if id == 0 { 2 } else { 3 }).map(|_| buckets.all_reduce("sum", 1.0f32)).collect::<Result<_>>()?;
            pending.into_iter().try_for_each(|sum| sum.wait().map(drop))
        },
        ("all_reduce", "value/2", 0, "f32[]", "nothing"),
    );
    // Another operation.
    expect_mismatch(
        |id, buckets| buckets.all_reduce(if id == 1 { "max" } else { "min" }, 1.0f32).map(drop),
        ("all_reduce", "op", 1, "min", "max"),
    );
    // A wait before the others'.
    expect_mismatch(
        |id, buckets| {
            let first = buckets.all_reduce("sum", 1.0f32)?;
            if id == 0 {
                first.wait()?;
            }
            buckets.all_reduce("sum", 2.0f32).map(drop)
        },
        ("all_reduce", "value/1", 0, "f32[]", "nothing"),
    );
}

#[test]
fn an_overlap_missing_on_one_replica_is_reported_to_all() {
    for background_threads in BACKGROUND_THREADS {
        let results = strategy(2, options(background_threads)).run(|replica| {
            let error = match replica.replica_id_in_sync_group() {
                0 => replica.overlap(|buckets| buckets.all_reduce("sum", tensor(0, 0, 100_000))?.wait()).map(drop),
                _ => replica.barrier(),
            };
            let sum = replica.all_reduce("sum", 1)?;
            Ok((error.unwrap_err(), sum))
        });
        for (error, sum) in results.unwrap() {
            assert_eq!((mismatch(&error), sum), (("all_reduce", "call", 1, "all_reduce", "barrier"), 2));
        }
    }
}

#[test]
fn the_end_reports_only_errors_without_a_wait() {
    for background_threads in BACKGROUND_THREADS {
        let strategy = strategy(2, options(background_threads).bytes_per_pack(1));
        let hand_over = |replica: &ReplicaContext<'_>, waits: bool| {
            let count = 1 + replica.replica_id_in_sync_group();
            replica.overlap(|buckets| {
                let wrong = buckets.all_reduce("sum", (tensor(0, 0, count), tensor(0, 0, 5)))?;
                let after_it = buckets.all_reduce("sum", 1.0f32)?;
                if waits {
                    for error in [wrong.wait().map(drop), after_it.wait().map(drop)] {
                        assert!(matches!(error, Err(Error::Mismatch { replica: 1, .. })), "{error:?}");
                    }
                }
                Ok(())
            })
        };
        let sums = strategy.run(|replica| {
            hand_over(replica, true)?;
            replica.overlap(|buckets| buckets.all_reduce("sum", 1.0f32)?.wait())
        });
        assert_eq!(sums.unwrap().values(), [2.0, 2.0]);
        let error = strategy.run(|replica| hand_over(replica, false)).unwrap_err();
        assert!(matches!(error, Error::Mismatch { replica: 1, .. }), "{error}");
    }
}

/// Runs `replica_fn` on 3 replicas, some of which fail, and returns the error of the run. Checks
/// that the next run works.
fn expect_failure<R: Send + Debug>(
    options: CommunicationOptions,
    replica_fn: impl Fn(&ReplicaContext<'_>) -> Result<R> + Sync,
) -> Error {
    let strategy = strategy(3, options);
    let error = strategy.run(replica_fn).unwrap_err();
    let sums = strategy.run(|replica| replica.overlap(|buckets| buckets.all_reduce("sum", 1i32)?.wait()));
    assert_eq!(sums.unwrap().values(), [3; 3]);
    error
}

#[test]
fn a_failure_panic_or_return_in_the_middle_frees_the_others() {
    for background_threads in BACKGROUND_THREADS {
        for handed in 0..3 {
            let in_the_middle = |trouble: &(dyn Fn() -> Result<()> + Sync)| {
                expect_failure(options(background_threads), |replica| {
                    let id = replica.replica_id_in_sync_group();
                    replica.overlap(|buckets| {
                        let mut pending = Vec::new();
                        for layer in 0..3 {
                            if id == 1 && layer == handed {
                                trouble()?;
                                return Ok(());
                            }
                            pending.push(buckets.all_reduce("sum", tensor(id, layer, [9, 40_000, 9][layer]))?);
                        }
                        pending.into_iter().try_for_each(|sum| sum.wait().map(drop))
                    })
                })
            };
            let error = in_the_middle(&|| Err(Error::other("no more data")));
            assert_eq!(own(&error), (1, "no more data".to_owned()), "{handed} {background_threads}");
            let error = in_the_middle(&|| panic!("trouble"));
            assert!(
                matches!(&error, Error::Panic { replica: 1, message } if message == "trouble"),
                "{handed} {background_threads}: {error}"
            );
            // This replica has handed over less; at the end it sends those tensors.
            let error = in_the_middle(&|| Ok(()));
            assert!(
                matches!(error, Error::Left { replica: 1, .. } | Error::Mismatch { replica: 1, .. }),
                "{handed} {background_threads}: {error}"
            );
        }
    }
}

#[test]
fn a_replica_without_hand_overs_is_named_at_the_deadline() {
    for background_threads in BACKGROUND_THREADS {
        let gone = AtomicUsize::new(0);
        let options = options(background_threads).timeout(Duration::from_millis(200)).unwrap();
        let error = expect_failure(options, |replica| {
            replica.overlap(|buckets| {
                // The large tensor is sent first. The replica waits for the small one and gets the
                // same error.
                let hand_over = |count| buckets.all_reduce("sum", tensor(0, 0, count));
                let present = replica.replica_id_in_sync_group() != 2;
                let pending =
                    present.then(|| hand_over(5).and_then(|sum| hand_over(40_000).map(|_| sum))).transpose()?;
                let result = pending.map(|sum| sum.wait()).transpose();
                gone.fetch_add(1, Ordering::SeqCst);
                while result.is_ok() && gone.load(Ordering::SeqCst) < 3 {
                    thread::yield_now();
                }
                result
            })
        });
        match error {
            Error::Timeout { missing, .. } => {
                assert_eq!(missing.into_iter().map(|(replica, _)| replica).collect::<Vec<_>>(), [2]);
            }
            error => panic!("{background_threads}: {error}"),
        }
    }
}

#[test]
fn an_invalid_call_frees_the_others() {
    for background_threads in BACKGROUND_THREADS {
        let error = expect_failure(options(background_threads), |replica| {
            let op = if replica.replica_id_in_sync_group() == 1 { ReduceOp::Xor } else { ReduceOp::Sum };
            replica.overlap(|buckets| {
                buckets.all_reduce("sum", 1.0f32)?;
                buckets.all_reduce(op, 1.0f32)?.wait()
            })
        });
        assert_eq!((refusal(&error), found(&error)), (("Buckets::all_reduce", "op", Some(1)), "xor"));
        let error = expect_failure(options(background_threads), |replica| {
            replica.overlap(|buckets| buckets.all_reduce("avg", 1.0f32)?.wait())
        });
        assert_eq!(unknown_op(&error), (Some("Buckets::all_reduce"), Some(0), "avg"));
    }
}

/// Runs `body` in an overlap of 2 replicas, which catch its error, and then four calls of one
/// shape. These calls pair with each other if the replicas are in step. Returns for each replica
/// the errors, or the sums.
fn caught(
    background_threads: bool,
    body: impl Fn(bool, &Buckets<'_>) -> Result<()> + Sync,
) -> Vec<(Error, [Result<i32>; 4])> {
    let strategy = strategy(2, options(background_threads).bytes_per_pack(64));
    let found = strategy.run(|replica| {
        let odd = replica.replica_id_in_sync_group() == 1;
        let error = replica.overlap(|buckets| body(odd, buckets)).unwrap_err();
        Ok((error, [1, 10, 100, 1000].map(|x| replica.all_reduce("sum", x))))
    });
    let found = found.unwrap().into_values();
    assert_eq!(strategy.run(|replica| replica.all_reduce("sum", 1i32)).unwrap().values(), [2; 2]);
    found
}

#[test]
fn replicas_are_in_step_after_one_has_a_bucket_more() {
    for background_threads in BACKGROUND_THREADS {
        // On replica 1 the second tensor does not fit into the bucket of the first.
        let found = caught(background_threads, |odd, buckets| {
            let first = buckets.all_reduce("sum", tensor(0, 0, 4))?;
            let second = buckets.all_reduce("sum", tensor(0, 1, if odd { 13 } else { 12 }))?;
            let (first, second) = (first.wait(), second.wait());
            assert!(matches!(first, Err(Error::Mismatch { replica: 1, .. })), "{first:?}");
            second.map(drop)
        });
        for (error, sums) in found {
            assert_eq!(mismatch(&error), ("all_reduce", "value/1", 1, "f32[12]", "nothing"), "{background_threads}");
            assert_eq!(sums.map(Result::unwrap), [2, 20, 200, 2000], "{background_threads}");
        }
    }
}

#[test]
fn an_invalid_hand_over_ends_the_group() {
    for (background_threads, same_dtype) in
        BACKGROUND_THREADS.map(|background_threads| [(background_threads, false), (background_threads, true)]).concat()
    {
        for caught_at_once in [false, true] {
            let found = caught(background_threads, |odd, buckets| {
                let first = buckets.all_reduce("sum", 1f32)?;
                let op = if odd { "avg" } else { "sum" };
                let second = match same_dtype {
                    true => buckets.all_reduce(op, 1f32).map(drop),
                    false => buckets.all_reduce(op, 1f64).map(drop),
                };
                if !caught_at_once {
                    second?;
                }
                first.wait().map(drop)
            });
            assert_eq!(unknown_op(&found[1].0), (Some("Buckets::all_reduce"), Some(1), "avg"));
            let own = format!("{}", found[1].0);
            assert_eq!(told(&found[0].0), ("all_reduce", 1, &own[..]), "{background_threads} {same_dtype}");
            for (_, sums) in found {
                for sum in sums {
                    assert_eq!(
                        abort(&sum.unwrap_err()),
                        ("all_reduce", 1, Reason::Failure),
                        "{background_threads} {same_dtype}"
                    );
                }
            }
        }
    }
}

#[test]
fn an_overlap_failing_on_one_replica_ends_the_group() {
    for background_threads in BACKGROUND_THREADS {
        for count in [1, 16] {
            let found = caught(background_threads, |odd, buckets| {
                let sum = buckets.all_reduce("sum", tensor(0, 0, count))?;
                if odd {
                    Err(Error::other("no more data"))
                } else {
                    sum.wait().and_then(|_| buckets.all_reduce("sum", 1f32)?.wait()).map(drop)
                }
            });
            assert_eq!(other(&found[1].0), "no more data");
            assert_eq!(abort(&found[0].0), ("all_reduce", 1, Reason::Failure), "{background_threads} {count}");
            for sum in found.into_iter().flat_map(|(_, sums)| sums) {
                assert_eq!(
                    abort(&sum.unwrap_err()),
                    ("all_reduce", 1, Reason::Failure),
                    "{background_threads} {count}"
                );
            }
        }
    }
}

#[test]
fn contexts_are_checked() {
    for background_threads in BACKGROUND_THREADS {
        let strategy = strategy(2, options(background_threads));
        let results = strategy.run(|replica| {
            replica.overlap(|buckets| {
                let pending = buckets.all_reduce("sum", 1.0f32)?;
                let nested = replica.overlap(|_| Ok(())).unwrap_err();
                let merged = replica.merge_call((), |strategy, _| {
                    let errors = [
                        buckets.all_reduce("sum", 1.0f32).map(drop).unwrap_err(),
                        replica.overlap(|_| Ok(())).unwrap_err(),
                    ];
                    Ok(strategy.mirror(Arc::new(errors)))
                })?;
                Ok((nested, merged, pending.wait()?))
            })
        });
        for (nested, merged, sum) in results.unwrap() {
            assert!(matches!(nested, Error::WrongContext { call: "ReplicaContext::overlap", .. }), "{nested}");
            for (error, of) in merged.iter().zip(["Buckets::all_reduce", "ReplicaContext::overlap"]) {
                assert!(matches!(error, Error::WrongContext { call, .. } if *call == of), "{error}");
            }
            assert_eq!(sum, 2.0);
        }
    }
}

#[test]
fn a_caught_panic_has_ended_the_group() {
    for background_threads in BACKGROUND_THREADS {
        let error = expect_failure(options(background_threads), |replica| {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                replica.overlap(|buckets| -> Result<()> {
                    buckets.all_reduce("sum", tensor(0, 0, 40_000))?;
                    if replica.replica_id_in_sync_group() == 0 { panic!("trouble") } else { Ok(()) }
                })
            }));
            match caught {
                Ok(result) => result.and_then(|()| replica.barrier()),
                Err(_) => replica.barrier(),
            }
        });
        assert_eq!(abort(&error), ("barrier", 0, Reason::Panic));
    }
}

#[test]
fn overlaps_follow_each_other_and_report_their_time() {
    for background_threads in BACKGROUND_THREADS {
        strategy(2, options(background_threads))
            .run(|replica| {
                for step in 0..200 {
                    let sum = replica.overlap(|buckets| {
                        let sum = buckets.all_reduce("sum", step)?.wait()?;
                        assert!(buckets.in_collectives() > Duration::ZERO);
                        Ok(sum)
                    })?;
                    assert_eq!(sum, 2 * step);
                    replica.overlap(|buckets| {
                        assert_eq!(buckets.in_collectives(), Duration::ZERO);
                        Ok(())
                    })?;
                }
                Ok(())
            })
            .unwrap();
    }
}

/// Two workers, played by threads, with two replicas each.
fn in_workers<R: Send>(options: CommunicationOptions, work: impl Fn(&Strategy) -> R + Sync) -> Vec<R> {
    let mut communicators = Communicator::threads(4).into_iter();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let (communicators, work) = (communicators.by_ref().take(2).collect(), &work);
                scope.spawn(move || {
                    let cluster = consonance::ClusterSpec::new().job("worker", ["127.0.0.1:1", "127.0.0.1:2"]).unwrap();
                    let task = SimpleClusterResolver::new(cluster).with_task("worker", worker).unwrap();
                    let builder = MultiWorkerMirroredStrategy::builder(task).options(options);
                    work(&builder.build_on(communicators).unwrap())
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

#[test]
fn replicas_of_several_workers_overlap_too_and_go_on_after_a_failure() {
    let plain = strategy(4, options(false))
        .run(|replica| replica.all_reduce("sum", layers(replica.replica_id_in_sync_group())));
    let plain = &plain.unwrap()[0];
    for background_threads in BACKGROUND_THREADS {
        in_workers(options(background_threads), |strategy| {
            let error = strategy.run(|replica| {
                let id = replica.replica_id_in_sync_group();
                replica.overlap(|buckets| {
                    let sum = buckets.all_reduce("sum", tensor(id, 0, 40_000))?;
                    if id == 3 { Err(Error::other("trouble")) } else { sum.wait().and_then(|_| replica.barrier()) }
                })
            });
            let error = error.unwrap_err();
            match strategy.local_replicas().contains(&3) {
                true => assert_eq!(own(&error), (3, "trouble".to_owned())),
                false => {
                    let (_, replica, reason) = abort(&error);
                    assert_eq!((replica, reason), (3, Reason::Failure));
                }
            }
            let sums = strategy.run(|replica| {
                let layers = layers(replica.replica_id_in_sync_group());
                replica.overlap(|buckets| {
                    let mut pending = Vec::new();
                    for layer in layers {
                        pending.push(buckets.all_reduce("sum", layer)?);
                        let four = replica
                            .merge_call((), |strategy, _| Ok(strategy.mirror(strategy.num_replicas_in_sync())))?;
                        assert_eq!(four, 4);
                    }
                    pending.into_iter().map(|layer| layer.wait()).collect::<Result<Vec<_>>>()
                })
            });
            sums.unwrap().iter().for_each(|sums| assert_eq!(sums, plain));
        });
    }
}
