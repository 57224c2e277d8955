//! The words of every error, in one file: `error_texts.txt`. Other tests look at variants and
//! fields.

use consonance::{
    CentralStorageStrategy, ClosureFailure, ClusterResolver, ClusterSpec, CommunicationOptions, Communicator, DType,
    Dataset, Device, Error, IndexedSlices, MirroredStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy,
    PerReplica, ReduceOp, ReplicaContext, Result, SimpleClusterResolver, StaticShapes, Strategy, Tensor, UnionResolver,
    Variable, VariableAggregation, VariableSynchronization, bf16,
    cluster::{expand_hostlist, expand_tasks_per_node},
    dataset::{self, AutoShardPolicy, InputOptions},
    gradient,
    raw::Reason,
    training::{self, Gradients},
};
use std::{io, thread, time::Duration};

#[test]
fn every_error_has_its_text() {
    let text = |text: &str| text.to_owned();
    let invalid = |replica| Error::InvalidCall {
        call: "all_reduce",
        argument: text("value/1"),
        replica,
        expected: text("an operation on bool"),
        found: text("sum"),
    };
    let unknown =
        |call, replica| Error::UnknownReduceOp { call, replica, source: "avg".parse::<ReduceOp>().unwrap_err() };
    let left =
        Error::Left { call: text("barrier"), replica: 2, last: text("its last call was broadcast"), lost: false };
    let missing = vec![(1, text("it called nothing")), (3, text("its last call was barrier"))];
    let calls = vec![(0, text("all_reduce(sum, f32)")), (1, text("no call"))];
    let aborted = Error::Aborted { call: text("barrier"), replica: 1, reason: text("was lost"), lost: true, calls };
    let failure =
        |number| ClosureFailure { function: "step".into(), number, worker: 1, error: Error::other("no more data") };
    let errors = [
        invalid(None),
        invalid(Some(2)),
        Error::WrongContext { call: "merge_call", problem: text("called in a cross-replica context") },
        Error::Mismatch {
            call: text("all_reduce"),
            replica: 1,
            argument: text("value/1"),
            expected: text("f32[2]"),
            found: text("f32[3]"),
        },
        left,
        Error::Timeout { call: text("all_reduce"), waited: Duration::from_millis(1500), missing },
        aborted,
        Error::Meeting {
            call: "ProcessGroup::join",
            task: text("worker[0]"),
            problem: text("worker[1] did not come"),
            missing: vec![1],
        },
        Error::Panic { replica: 1, message: text("oh") },
        Error::Replica { replica: 1, source: Box::new(invalid(None)) },
        unknown(None, None),
        unknown(Some("Strategy::reduce"), None),
        unknown(Some("all_reduce"), Some(2)),
        Error::system("allocate 8 elements of f32", io::ErrorKind::OutOfMemory),
        Error::other("no more data"),
        Error::Closures { call: "ClusterCoordinator::join", failures: vec![failure(3), failure(5)] },
    ];
    let ends = Reason::ALL.map(|reason| Error::aborted("barrier", 2, reason));
    let all = [refusals(), of_collectives(), of_groups(), of_values(), of_workers(), of_static_shapes()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
    let found: String = errors.iter().chain(&ends).chain(&all).map(|error| format!("{error}\n")).collect();
    assert_eq!(found, include_str!("error_texts.txt"), "if this is meant, it is the new file");
}

#[track_caller]
fn of<T>(result: Result<T>) -> Error {
    result.err().expect("a refusal")
}

fn mirrored() -> MirroredStrategy {
    MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap()
}

/// Refusals of arguments, whose text tells a user what to pass.
fn refusals() -> Vec<Error> {
    let strategy = mirrored();
    let (value, unknown) = (PerReplica::new(vec![1.0f32; 2]), Device::Cpu(1_000_000));
    let builder = Variable::builder(|| Tensor::from(1.0f32)).synchronization(VariableSynchronization::OnRead);
    let variable = strategy.scope(|| builder.build()).unwrap();
    vec![
        of(MirroredStrategy::new(Vec::<Device>::new())),
        of(MirroredStrategy::new(["cpu:0", "cpu:1", "CPU:0"])),
        of(MirroredStrategy::new(["cpu:01"])),
        of(strategy.reduce_to("sum", &value, unknown)),
        of(strategy.reduce("sum", &PerReplica::new(vec![1.0f32; 3]), None)),
        of(strategy.run_with(PerReplica::new(vec![0]), |_, _| Ok(()))),
        of(variable.read()),
        of(strategy.distribute_dataset(dataset::from_tensor_slices(Tensor::from([1, 2, 3])).unwrap())),
        of(dataset::from_tensor_slices((Tensor::from([1, 2]), Tensor::from([1])))),
        of(Tensor::new([0, 1 << 40, 1 << 40], &[0u8; 0])),
        of(expand_hostlist("n[1")),
        of(expand_tasks_per_node("x")),
    ]
}

/// Refusals of arguments of collectives.
fn of_collectives() -> Vec<Error> {
    let mut alone = Communicator::threads(1).remove(0);
    let mut errors = vec![
        of(alone.all_reduce("mean", &mut [1i32])),
        of(alone.all_reduce("and", &mut [1.0f32])),
        of(alone.all_reduce_into("sum", &[1i32, 2], &mut [0i32])),
        of(alone.all_reduce_into("mean", &[1i32], &mut [0f32])),
        of(alone.broadcast(&mut [1u8], 1)),
        of(alone.all_gather_v(Some(&[1u8]), &mut [0u8; 2], &[2])),
        of(alone.all_to_all_v(&[1u64], &[usize::MAX], &mut [0u64], &[usize::MAX])),
        of(alone.send(&[1u8], 0)),
        of(alone.gather(&[1u8], None, 0)),
    ];
    let strategy = mirrored();
    let of_run = |call: &(dyn Fn(&ReplicaContext<'_>) -> Result<()> + Sync)| of(strategy.run(call));
    errors.extend([
        of_run(&|replica| replica.all_gather(Tensor::from([[1]]), 2).map(drop)),
        of_run(&|replica| replica.all_gather(Tensor::from(1), 0).map(drop)),
        of_run(&|replica| replica.all_reduce("sum", true).map(drop)),
        of_run(&|replica| replica.all_reduce("mean", (1.0f32, 3i32)).map(drop)),
        of_run(&|replica| replica.all_reduce("mean", vec![3i32]).map(drop)),
        of_run(&|replica| replica.reduce_scatter("sum", [[1.0f32]; 4]).map(drop)),
        of_run(&|replica| replica.overlap(|buckets| buckets.all_reduce("mean", 3i32)?.wait()).map(drop)),
        of_run(&|replica| replica.overlap(|buckets| buckets.all_reduce("xor", (1, 1.0f32))?.wait()).map(drop)),
    ]);
    let x = || Tensor::from([1.0f32, 2.0]);
    errors.extend([
        of_run(&|replica| gradient::all_reduce(replica, ReduceOp::Max, x()).map(drop)),
        of_run(&|replica| gradient::reduce_scatter(replica, ReduceOp::Mean, Tensor::from([1, 2])).map(drop)),
        of_run(&|replica| gradient::all_gather(replica, x(), 0, &[2]).map(drop)),
        of_run(&|replica| gradient::all_gather(replica, x(), 0, &[]).map(drop)),
        of_run(&|replica| gradient::broadcast(replica, x(), 2).map(drop)),
        of(gradient::slices::reduce(&mut alone, ReduceOp::Product, &mut [1.0f32], 0)),
        of(gradient::slices::all_gather_v(&mut alone, &[1.0f32], &mut [0.0], &[2])),
    ]);
    let both = |shape: &[usize]| PerReplica::new(vec![Tensor::zeros(DType::F32, shape); 2]);
    errors.extend([
        of(strategy.reduce("mean", &PerReplica::new(vec![1i32, 2]), None)),
        of(strategy.reduce("sum", &both(&[1]), 5)),
        of(strategy.reduce("sum", &both(&[1]), [0, 0])),
        of(strategy.gather(&both(&[1]), -2)),
        of(strategy.gather(&both(&[1 << 63, 0]), 0)),
    ]);
    errors
}

/// Errors that a replica gets because of another one.
fn of_groups() -> Vec<Error> {
    let strategy = mirrored();
    // Makes the calls on replica 1, and returns the error of replica 0.
    let of_other = |own: &(dyn Fn(&ReplicaContext<'_>) -> Result<()> + Sync)| {
        let errors = strategy.run(|replica| match replica.replica_id_in_sync_group() {
            0 => Ok(replica.all_reduce("sum", 1.0f32).err()),
            _ => own(replica).map(|()| None),
        });
        errors.unwrap().into_values().remove(0).expect("an error of replica 0")
    };
    let late = strategy.run(|replica| {
        replica.all_reduce("max", 1.0f64)?;
        if replica.replica_id_in_sync_group() == 0 { replica.barrier() } else { Ok(()) }
    });
    let merged = strategy.run(|replica| {
        let failed = replica.merge_call(1, |_, _| -> Result<PerReplica<i32>> { Err(Error::other("no")) });
        Ok(failed.unwrap_err())
    });
    // Rank 1 ends the group that the group of the barrier was split from.
    let barriers: Vec<_> = thread::scope(|scope| {
        let ranks = Communicator::threads(2).into_iter().map(|mut rank| {
            scope.spawn(move || {
                let mut part = rank.split(Some(0), 0).unwrap().unwrap();
                if rank.rank() == 0 {
                    return (part.barrier().err(), part, rank);
                }
                rank.abort();
                (None, part, rank)
            })
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let mut ranks = Communicator::threads(2);
    let mailbox = ranks[0].mailbox().unwrap();
    let limit = Some(Duration::from_millis(1));
    let messages = [
        of(mailbox.recv([0u8].as_mut_slice(), Some(1), 1, limit)),
        of(mailbox.send([7u8; 1 << 20].as_slice(), 1, 2, limit)),
    ];
    drop(ranks.pop());
    let mut errors = vec![
        of_other(&|replica| replica.all_reduce("avg", 1.0f32).or(Ok(0.0)).map(drop)),
        of_other(&|replica| replica.all_gather(Tensor::from(1), 0).map(drop).or(Ok(()))),
        of_other(&|_| Ok(())),
        of(late),
        of(ranks[0].barrier()),
        merged.unwrap().into_values().remove(1),
        of(strategy.run(|replica| replica.overlap(|_| replica.overlap(|_| Ok(()))))),
        of(strategy.run(|replica| {
            replica.overlap(|buckets| {
                replica.merge_call((), |strategy, _| Ok(strategy.mirror(buckets.all_reduce("sum", 1.0f32).map(drop)?)))
            })
        })),
    ];
    errors.extend(barriers.into_iter().filter_map(|(error, ..)| error));
    errors.extend(messages);
    errors
}

fn sparse_rows(row: i64, rows: Option<usize>) -> Result<IndexedSlices> {
    IndexedSlices::new(Tensor::from([[1.0f32]]), Tensor::from([row]), rows.map(|rows| vec![rows, 1]))
}

/// Errors of variables, data sets, messages and clusters.
fn of_values() -> Vec<Error> {
    let strategy = mirrored();
    let weights = strategy.variable(|| Tensor::from([[0.0f32; 2]; 4])).unwrap();
    let builder = Variable::builder(|| Tensor::from([[0.0f32; 2]; 4])).aggregation(VariableAggregation::Sum);
    let on_read = strategy.scope(|| builder.synchronization(VariableSynchronization::OnRead).build()).unwrap();
    let rows = |values: Tensor, row: i64, shape| IndexedSlices::new(values, Tensor::from([row]), shape).unwrap();
    let assigned = |initial: Tensor, operand: Tensor| of(Variable::new(initial).unwrap().assign(operand));
    let mut errors = vec![
        of(weights.scatter_add(&rows(Tensor::from([[1.0f64, 2.0]]), 0, None))),
        of(weights.scatter_add(&rows(Tensor::from([[1.0f32, 2.0]]), 4, None))),
        of(weights.scatter_add(&rows(Tensor::from([[1.0f32, 2.0]]), 0, Some(vec![5, 2])))),
        of(on_read.scatter_add(&rows(Tensor::from([[1.0f32, 2.0]]), 0, None))),
        assigned(Tensor::from(0.0f32), Tensor::from(1.0)),
        assigned(Tensor::from(0i64), Tensor::from(1)),
        assigned(Tensor::from(bf16::ONE), Tensor::from(1)),
        assigned(Tensor::from(0), Tensor::from([1])),
    ];
    let other = OneDeviceStrategy::new("cpu:0").unwrap();
    errors.extend([
        of(weights.read_rows(2..5)),
        of(strategy.update(&weights, |copy| copy.assign(1.0f32))),
        of(strategy.update(&weights, |_| weights.read().map(drop))),
        of(strategy.run(|_| weights.assign([[0.0f32; 2]; 4]))),
        of(strategy.run(|_| Variable::new(Tensor::from(1.0f32)).map(drop))),
        of(strategy.run(|replica| replica.strategy().variable(|| Tensor::from(1.0f32)).map(drop))),
        of(strategy.run(|replica| replica.strategy().update(&weights, |_| Ok(())).map(drop))),
        of(other.run(|_| on_read.read())),
        of(other.scope(|| on_read.read())),
        of(mirrored().update(&weights, |_| Ok(()))),
    ]);
    let verified = CommunicationOptions::new().verify(true);
    errors.push(of(strategy.run(|replica| replica.all_reduce_with("sum", f32::NAN, verified))));
    // The update does not end before the deadline of the reading.
    let short = CommunicationOptions::new().timeout(Duration::from_millis(1)).unwrap();
    let impatient = MirroredStrategy::builder(["cpu:0"]).options(short).build().unwrap();
    let busy = impatient.variable(|| Tensor::from(1.0f32)).unwrap();
    let read = impatient.update(&busy, |_| Ok(thread::scope(|scope| of(scope.spawn(|| busy.read()).join().unwrap()))));
    errors.extend(read.unwrap());

    let table = dataset::from_tensor_slices((Tensor::from([[1.0f32, 2.0]; 4]), Tensor::from([[1]; 4]))).unwrap();
    errors.push(of(strategy.distribute_dataset(table)));
    let panics = dataset::from_fn(|| [1].into_iter().map(|_| -> Tensor { panic!("oh") }));
    errors.push(of(strategy.distribute_dataset(panics).unwrap().iter().next().unwrap()));

    let mut alone = Communicator::threads(1).remove(0);
    let mut left = None;
    let scoped = alone.scope(|scope| {
        left = Some(scope.all_reduce_owned(ReduceOp::Mean, vec![1i32])?);
        Ok(())
    });
    assert!(scoped.is_err());
    errors.extend(left.map(|left| of(left.wait())));

    let sparse = |address: &str| -> Box<dyn ClusterResolver> {
        Box::new(SimpleClusterResolver::new(ClusterSpec::new().sparse_job("worker", [(1, address)]).unwrap()))
    };
    let batches = |elements: Vec<Vec<Tensor>>| {
        of(dataset::from_fn(move || elements.clone()).batch(2).iterate(0).unwrap().next().unwrap())
    };
    errors.extend([
        batches(vec![vec![Tensor::from([1, 2])], vec![Tensor::from([1])]]),
        batches(vec![vec![Tensor::from([1, 2])], vec![]]),
        of(dataset::from_fn(|| 0..4i64).batch(2).iterate(0).unwrap().next().unwrap()),
        of(dataset::from_fn(|| 0..4i64).shard(0, 0).iterate(0)),
        of(dataset::range(0, 4, 0)),
        of(dataset::from_fn(|| 0..4i64).interleave(|x| dataset::range(0, x, 1), 0, 1).iterate(0)),
        of(sparse_rows(2, Some(2))),
        of(sparse_rows(-1, None)),
        of(sparse_rows(0, Some(0))),
        of(strategy.gather(&PerReplica::new(vec![sparse_rows(0, None).unwrap(), sparse_rows(1, None).unwrap()]), 0)),
    ]);

    let of_passes = OneDeviceStrategy::new("cpu:0").unwrap().run(|replica| {
        let mut gradients = Gradients::sum().with_passes(3)?;
        let mut push = |pushes: usize, gradient: Tensor| {
            gradients.accumulate(replica, |pass| (0..pushes).try_for_each(|_| pass.push(gradient.clone())))
        };
        push(2, Tensor::from([1.0f32]))?;
        Ok([
            of(push(1, Tensor::from([1.0f32]))),
            of(push(3, Tensor::from([1.0f32]))),
            of(push(2, Tensor::from([1.0f32; 2]))),
        ])
    });
    errors.extend(of_passes.unwrap().into_values().swap_remove(0));
    errors.extend([
        of(training::clip_by_global_norm(&mut Tensor::from([1]), 1.0)),
        of(training::clip_by_global_norm(&mut Tensor::from([1.0f32]), f64::NAN)),
        of(training::Auc::with(1, training::Curve::Roc)),
    ]);
    // A cluster without jobs takes any task.
    let jobless = SimpleClusterResolver::new(ClusterSpec::new()).with_task("worker", usize::MAX).unwrap();
    errors.push(of(UnionResolver::new([sparse("a:1"), Box::new(jobless)])));
    errors.extend([of(UnionResolver::new([])), of(UnionResolver::new([sparse("a:1"), sparse("b:1")]))]);
    errors
}

fn resolver(worker: usize) -> SimpleClusterResolver {
    let cluster = ClusterSpec::new().job("worker", ["127.0.0.1:1", "127.0.0.1:2"]).unwrap();
    SimpleClusterResolver::new(cluster).with_task("worker", worker).unwrap()
}

/// Makes `call` as two workers of one replica each, played by threads, and returns their errors.
fn of_both(call: impl Fn(usize, &Strategy) -> Result<()> + Sync) -> Vec<Error> {
    thread::scope(|scope| {
        let workers = Communicator::threads(2).into_iter().map(|communicator| {
            let (worker, call) = (communicator.rank(), &call);
            scope.spawn(move || {
                let builder = MultiWorkerMirroredStrategy::builder(resolver(worker));
                of(call(worker, &builder.build_on(vec![communicator]).unwrap()))
            })
        });
        workers.collect::<Vec<_>>().into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

/// Errors of strategies with several workers.
fn of_workers() -> Vec<Error> {
    let other = mirrored();
    let values = |strategy: &Strategy, count| strategy.distribute_values_from_function(|_| vec![0.5f32; count]);
    let mut ranks = Communicator::threads(3);
    ranks.swap(1, 2);
    let built_on = |ranks| of(MultiWorkerMirroredStrategy::builder(resolver(0)).build_on(ranks));
    let mut errors = vec![built_on(Vec::new()), built_on(ranks)];
    for (cluster, task) in [
        (r#"{"worker": ["a:1"], "ps": ["p:1"]}"#, Some(("ps", 0))),
        (r#"{"worker": ["a:1"], "judge": ["j:1"]}"#, Some(("judge", 0))),
        (r#"{"worker": ["a:1"]}"#, None),
        (r#"{"ps": ["p:1"]}"#, Some(("ps", 0))),
    ] {
        let resolver = SimpleClusterResolver::new(cluster.parse().unwrap());
        let resolver = match task {
            Some((job, index)) => resolver.with_task(job, index).unwrap(),
            None => resolver,
        };
        errors.push(of(MultiWorkerMirroredStrategy::builder(resolver).build()));
    }
    errors.extend(of_both(|worker, strategy| {
        strategy.reduce("sum", &values(strategy, 1 + worker)?.map(Tensor::from), None).map(drop)
    }));
    errors.extend(of_both(|worker, strategy| {
        let value = values(strategy, 1)?.map(Tensor::from);
        if worker == 0 { strategy.gather(&value, 0) } else { strategy.reduce("sum", &value, None) }.map(drop)
    }));
    errors.extend(of_both(|worker, strategy| strategy.variable(|| Tensor::from(vec![0; 1 + worker])).map(drop)));
    errors.extend(of_both(|worker, strategy| {
        let value = values(strategy, 1)?.map(Tensor::from);
        let reduce = || strategy.reduce("sum", &value, None).map(drop);
        if worker == 0 { reduce() } else { other.scope(reduce) }
    }));
    errors.extend(of_both(|worker, strategy| {
        let off = InputOptions::new().auto_shard_policy(AutoShardPolicy::Off);
        let rows = dataset::from_fn(move || (0..2 * worker as i64).map(Tensor::from)).batch(2);
        strategy.distribute_dataset_with(rows, off)?.iter().next().unwrap().map(drop)
    }));
    errors
}

/// Refusals by the rules of static shapes, each of which the text names.
fn of_static_shapes() -> Vec<Error> {
    let with = |shapes| MirroredStrategy::builder(["cpu:0", "cpu:1"]).static_shapes(shapes).build().unwrap();
    let (strategy, fixed) = (with(StaticShapes::new()), with(StaticShapes::new().dynamic_batch(false)));
    let ragged = || PerReplica::new(vec![Tensor::from([1.0f32]), Tensor::from([1.0f32, 2.0])]);
    let columns = PerReplica::new(vec![Tensor::from([[1]]), Tensor::from([[1, 2]])]).with_shapes().unwrap();
    let scalars = PerReplica::new(vec![1.0f32; 2]);
    let sparse = PerReplica::new(vec![sparse_rows(0, Some(4)).unwrap(); 2]);
    let rows = dataset::from_fn(|| [sparse_rows(0, Some(4)).unwrap()]);
    let batches = dataset::from_fn(|| [2, 2, 1].map(|rows| Tensor::from(vec![1.0f32; rows])));
    let halves = || dataset::from_tensor_slices(Tensor::from([1, 2, 3])).unwrap().batch(2);
    let steps = fixed.distribute_datasets_from_function(|_| Ok(batches)).unwrap();
    let central = CentralStorageStrategy::builder(["cpu:0", "cpu:1"], "cpu:0");
    vec![
        of(strategy.gather(&ragged(), 0)),
        of(strategy.gather(&scalars, 0)),
        of(strategy.gather(&sparse, 0)),
        of(strategy.reduce("sum", &ragged(), 0)),
        of(strategy.reduce("max", &scalars, None)),
        of(strategy.run(|replica| replica.all_reduce("max", 1.0f32))),
        of(strategy.run_with(columns, |_, _| Ok(()))),
        of(fixed.run_with(ragged().with_shapes().unwrap(), |_, _| Ok(()))),
        of(strategy.distribute_datasets_from_function(|_| Ok(rows)).unwrap().iter().next().unwrap()),
        of(fixed.distribute_dataset(halves())),
        of(steps.iter().collect::<Result<Vec<_>>>()),
        of(central.static_shapes(StaticShapes::new()).build()),
    ]
}
