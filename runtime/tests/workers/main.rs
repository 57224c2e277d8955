//! Several workers, played by threads, compared bit for bit with the same number of replicas in one
//! process.

#[path = "../fields/mod.rs"]
mod fields;
#[cfg(feature = "checkpoint")]
mod checkpoints;
#[cfg(target_os = "linux")]
mod meetings;
#[cfg(target_os = "linux")]
mod over_wire;
mod one_sided_errors;

use consonance::{
    CommunicationOptions, Communicator, Dataset, Destinations, Device, DistributedDataset, Error, IndexedSlices,
    MirroredStrategy, MultiWorkerMirroredStrategy, PerReplica, ReduceOp, ReplicaContext, Result, SimpleClusterResolver,
    Strategy, Tensor, Variable, VariableAggregation, VariableSynchronization,
    dataset::{self, AutoShardPolicy, Cardinality, Deal, InputOptions},
    nest::Opaque,
    raw::Reason,
};
use fields::{abort, found, mismatch, other, own, refusal, told};
use std::{
    sync::{
        Barrier,
        atomic::{AtomicU16, Ordering},
    },
    thread,
    time::Duration,
};

/// The numbers of replicas of the workers.
const WORKERS: [&[usize]; 6] = [&[2], &[1, 1], &[2, 2], &[1, 1, 1], &[1, 3], &[3, 1, 2]];

/// Runs `work` as each of the workers with its strategy, and returns the results.
fn workers<R: Send>(sizes: &[usize], work: impl Fn(usize, &Strategy) -> R + Sync) -> Vec<R> {
    workers_with(sizes, Engine::Threads, Duration::from_secs(60), work)
}

/// The engine of the workers, which are threads here.
#[derive(Clone, Copy, Debug)]
enum Engine {
    /// On communicators of threads.
    Threads,
    /// Over a shared segment, as processes use it.
    #[cfg(target_os = "linux")]
    Processes,
}

const ENGINES: &[Engine] = &[
    Engine::Threads,
    #[cfg(target_os = "linux")]
    Engine::Processes,
];

fn workers_with<R: Send>(
    sizes: &[usize],
    engine: Engine,
    timeout: Duration,
    work: impl Fn(usize, &Strategy) -> R + Sync,
) -> Vec<R> {
    let group = next_group();
    let mut communicators = Communicator::threads(sizes.iter().sum()).into_iter();
    thread::scope(|scope| {
        let threads: Vec<_> = (sizes.iter().enumerate())
            .map(|(worker, &replicas)| {
                let communicators = communicators.by_ref().take(replicas).collect();
                let work = &work;
                scope.spawn(move || {
                    let options = CommunicationOptions::new().timeout(timeout).unwrap();
                    let strategy = match engine {
                        Engine::Threads => MultiWorkerMirroredStrategy::builder(resolver(sizes.len(), worker))
                            .options(options)
                            .build_on(communicators),
                        #[cfg(target_os = "linux")]
                        Engine::Processes => {
                            MultiWorkerMirroredStrategy::builder(resolver_of(group, sizes.len(), worker))
                                .options(options)
                                .replicas(replicas)
                                .meeting(|group| Ok(group.staging_bytes(256 << 10)))
                                .build()
                        }
                    };
                    work(worker, &strategy.unwrap())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Counts the groups of this process.
fn next_group() -> u16 {
    static GROUPS: AtomicU16 = AtomicU16::new(1);
    GROUPS.fetch_add(1, Ordering::Relaxed)
}

fn resolver(workers: usize, worker: usize) -> SimpleClusterResolver {
    resolver_of(0, workers, worker)
}

/// The cluster of this test's group, at addresses that are unique to this process.
fn resolver_of(group: u16, workers: usize, worker: usize) -> SimpleClusterResolver {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let addresses = (0..workers).map(|worker| format!("127.{high}.{middle}.{low}:{}", 10 * group as usize + worker));
    let cluster = consonance::ClusterSpec::new().job("worker", addresses).unwrap();
    SimpleClusterResolver::new(cluster).with_task("worker", worker).unwrap()
}

fn one_process(sizes: &[usize]) -> MirroredStrategy {
    MirroredStrategy::new((0..sizes.iter().sum()).map(Device::Cpu)).unwrap()
}

/// Numbers whose sum depends on the order of additions.
fn numbers(id: usize, count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * 7919 + id * 104_729) % 10_007) as f32 * 1.37e-3 - 0.1f32.powi((i + id) as i32 % 9))
        .collect()
}

/// The bits of a tensor with its shape; they include the sign of zero.
fn bits(tensor: &Tensor) -> (Vec<usize>, Vec<u64>) {
    let values = match tensor.as_slice::<f32>() {
        Ok(values) => values.iter().map(|value| value.to_bits().into()).collect(),
        Err(_) => match tensor.as_slice::<f64>() {
            Ok(values) => values.iter().map(|value| value.to_bits()).collect(),
            Err(_) => tensor.as_slice::<i64>().unwrap().iter().map(|&value| value as u64).collect(),
        },
    };
    (tensor.shape().to_vec(), values)
}

/// Checks that `program` returns the same on the workers as in one process: a list of tensors for
/// each replica, and one for all.
fn same_as_in_one_process(program: impl Fn(&Strategy) -> Result<(PerReplica<Vec<Tensor>>, Vec<Tensor>)> + Sync) {
    let all = |tensors: &[Tensor]| tensors.iter().map(bits).collect::<Vec<_>>();
    let subjects = ENGINES.iter().flat_map(|&engine| WORKERS.map(|sizes| (engine, sizes)));
    for (engine, sizes) in subjects {
        let (expected, expected_of_all) = program(&one_process(sizes)).unwrap();
        let found = workers_with(sizes, engine, Duration::from_secs(60), |worker, strategy| {
            let (found, of_all) = program(strategy).unwrap_or_else(|error| panic!("{sizes:?}: {error}"));
            assert_eq!(all(&of_all), all(&expected_of_all), "worker {worker} of {sizes:?}, {engine:?}");
            found.into_values()
        });
        let found: Vec<_> = found.into_iter().flatten().map(|tensors| all(&tensors)).collect();
        let expected: Vec<_> = expected.iter().map(|tensors| all(tensors)).collect();
        assert_eq!(found, expected, "{sizes:?}, {engine:?}");
    }
}

fn tensors(strategy: &Strategy, count: usize) -> PerReplica<Tensor> {
    let tensor = |id: usize| Tensor::new([count], &numbers(id, count)).unwrap();
    strategy.distribute_values_from_function(|context| tensor(context.replica_id_in_sync_group)).unwrap()
}

#[test]
fn replicas_are_numbered_worker_by_worker() {
    for sizes in WORKERS {
        let replicas: usize = sizes.iter().sum();
        workers(sizes, |worker, strategy| {
            let first = sizes[..worker].iter().sum();
            let local: Vec<usize> = (first..first + sizes[worker]).collect();
            assert_eq!(strategy.local_replicas().collect::<Vec<_>>(), local);
            assert_eq!((strategy.num_replicas_in_sync(), strategy.worker_devices().len()), (replicas, local.len()));
            let ids = |replica: &ReplicaContext<'_>| {
                assert_eq!(replica.num_replicas_in_sync(), replicas);
                assert_eq!(replica.devices(), [Device::Cpu(replica.replica_id_in_sync_group() - first)]);
                Ok(replica.replica_id_in_sync_group())
            };
            assert_eq!(strategy.run(ids).unwrap().values(), local);
            let values = strategy.distribute_values_from_function(|context| context.replica_id_in_sync_group).unwrap();
            assert_eq!(strategy.local_results(&values), local);
            assert_eq!(strategy.cluster_resolver().unwrap().task_id(), Some(worker));
            assert_eq!(strategy.scope(|| Ok(consonance::current_strategy())).unwrap(), *strategy);
        });
    }
    let shown = workers(&[1, 2], |_, strategy| strategy.to_string());
    let names = ["worker 0 of 2: cpu:0", "worker 1 of 2: cpu:0, cpu:1"];
    assert_eq!(shown, names.map(|name| format!("MultiWorkerMirroredStrategy({name})")));
}

#[test]
fn values_are_combined_over_the_replicas_of_all_workers() {
    same_as_in_one_process(|strategy| {
        let mut all = Vec::new();
        for count in [0, 1, 999, 100_000] {
            let values = tensors(strategy, count);
            for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max] {
                all.push(strategy.reduce(op, &values, None)?);
                all.push(strategy.reduce(op, &values, 0)?);
            }
            all.push(strategy.gather(&values, -1)?);
            all.push(strategy.reduce_to("sum", &values, "cpu:0")?.into_value());
            let pairs = [(values.clone(), Destinations::Replicas), (values, Device::Cpu(0).into())];
            all.extend(strategy.batch_reduce_to("mean", &pairs)?.into_iter().map(|value| value.into_value()));
        }
        // Each replica has a different number of rows, the first one none.
        let ragged = strategy.distribute_values_from_function(|context| {
            let rows = context.replica_id_in_sync_group;
            Tensor::new([rows, 3, 2], &numbers(rows, 6 * rows)).unwrap()
        })?;
        for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Product] {
            all.push(strategy.reduce(op, &ragged, 0)?);
            all.push(strategy.reduce(op, &ragged, [0, -1])?);
            all.push(strategy.reduce(op, &ragged, [0, 1, 2])?);
        }
        all.push(strategy.gather(&ragged, 0)?);
        let integers = strategy.distribute_values_from_function(|context| {
            Tensor::from([i64::MAX, -(context.replica_id_in_sync_group as i64)])
        })?;
        all.push(strategy.reduce(ReduceOp::Mean, &integers, None)?);
        all.push(strategy.reduce(ReduceOp::Mean, &integers, 0)?);
        let nest = strategy.distribute_values_from_function(|context| {
            let id = context.replica_id_in_sync_group;
            (id as f64 + 0.1, vec![Tensor::from(id as i64), Tensor::from([1.5f32, id as f32])])
        })?;
        let (number, list) = strategy.reduce(ReduceOp::Sum, &nest, None)?;
        all.extend([vec![Tensor::from(number)], list].concat());
        let nothing: PerReplica<Vec<Tensor>> = nest.map(|_| Vec::new());
        assert!(strategy.reduce(ReduceOp::Sum, &nothing, None)?.is_empty());
        assert!(strategy.gather(&nothing, 0)?.is_empty());
        Ok((PerReplica::new(vec![Vec::new(); strategy.local_replicas().len()]), all))
    });
}

#[test]
fn indices_of_too_many_rows_are_an_error_of_the_call() {
    let errors = workers(&[1, 1], |_, strategy| {
        let slices = |rows: i32| {
            IndexedSlices::new(Tensor::from([[1.0f32]]), Tensor::from([rows - 1]), Some(vec![rows as usize, 1]))
        };
        let rows = strategy.distribute_values_from_function(|_| slices(i32::MAX).unwrap()).unwrap();
        strategy.gather(&rows, 0).unwrap_err()
    });
    for error in errors {
        assert_eq!((refusal(&error), found(&error)), (("Strategy::gather", "indices", None), "i32"));
    }
}

#[test]
fn merge_functions_combine_over_all_workers() {
    same_as_in_one_process(|strategy| {
        let values = strategy.run_with(tensors(strategy, 100), |replica, own| {
            let place = replica.replica_id_in_sync_group() - replica.strategy().local_replicas().start;
            let mut results = Vec::new();
            for _ in 0..3 {
                results.push(replica.merge_call(own.clone(), move |strategy, all| {
                    assert_eq!(all.values().len(), strategy.local_replicas().len());
                    let sum = strategy.reduce(ReduceOp::Sum, &all, None)?;
                    let mean = strategy.reduce(ReduceOp::Mean, &all, None)?;
                    let ids = strategy.run(|replica| {
                        replica.all_gather(Tensor::from([replica.replica_id_in_sync_group() as i64]), 0)
                    })?;
                    assert_eq!(ids[0].count(), strategy.num_replicas_in_sync());
                    Ok(all.map(|_| vec![sum.clone(), mean.clone()]))
                })?);
                results.push(
                    replica.merge_call(place as i64, |_, places| Ok(places.map(|place| vec![Tensor::from(place)])))?,
                );
            }
            let own_place = results.pop().unwrap();
            assert_eq!(own_place, [Tensor::from(place as i64)]);
            results.retain(|result| result.len() == 2);
            Ok(results.concat())
        })?;
        Ok((values, vec![]))
    });
}

/// Found by a review: only names were compared, and the merge function panicked.
#[test]
fn merge_calls_of_two_types_with_one_name() {
    fn results(id: usize, replica: &ReplicaContext<'_>) -> Result<()> {
        if id == 0 {
            #[derive(Clone)]
            struct Same(u8);
            replica.merge_call((), |strategy, _| Ok(strategy.mirror(Same(1)))).map(|same| _ = same.0)
        } else {
            #[derive(Clone)]
            struct Same(String);
            replica.merge_call((), |strategy, _| Ok(strategy.mirror(Same(String::new())))).map(|same| _ = same.0)
        }
    }
    fn arguments(id: usize, replica: &ReplicaContext<'_>) -> Result<()> {
        if id == 0 {
            struct Same(u8);
            replica.merge_call(Opaque(Same(1)), |strategy, all| Ok(strategy.mirror(all[0].0.0))).map(drop)
        } else {
            struct Same(String);
            let same = Opaque(Same(String::new()));
            replica.merge_call(same, |strategy, all| Ok(strategy.mirror(all[0].0.0.len() as u8))).map(drop)
        }
    }
    let call: [fn(usize, &ReplicaContext<'_>) -> Result<()>; 2] = [results, arguments];
    for (engine, call) in ENGINES.iter().flat_map(|&engine| call.map(|call| (engine, call))) {
        let errors = workers_with(&[2, 1], engine, Duration::from_secs(60), |_, strategy| {
            let error = strategy.run(|replica| call(replica.replica_id_in_sync_group(), replica)).unwrap_err();
            assert_eq!(ones(strategy).unwrap(), 3, "the next run works");
            error
        });
        assert_eq!(refusal(&errors[0]), ("ReplicaContext::merge_call", "types", Some(1)));
        let (_, replica, reason) = abort(&errors[1]);
        assert_eq!((replica, reason), (0, Reason::Failure));
    }
}

#[test]
fn variables_are_the_same_on_all_workers() {
    const AGGREGATIONS: [VariableAggregation; 3] =
        [VariableAggregation::Sum, VariableAggregation::Mean, VariableAggregation::OnlyFirstReplica];
    same_as_in_one_process(|strategy| {
        let mut all = Vec::new();
        for (on_read, aggregation) in
            AGGREGATIONS.iter().flat_map(|&aggregation| [(false, aggregation), (true, aggregation)])
        {
            let synchronization =
                if on_read { VariableSynchronization::OnRead } else { VariableSynchronization::OnWrite };
            let variable = strategy.scope(|| {
                let builder = Variable::builder(|| Tensor::new([10], &numbers(77, 10)).unwrap());
                builder.synchronization(synchronization).aggregation(aggregation).build()
            })?;
            strategy.run_with(tensors(strategy, 10), |replica, own| {
                replica.assign_add(&variable, own.clone())?;
                replica.assign_sub(&variable, own.clone())?;
                replica.assign(&variable, own.clone())?;
                let rows = IndexedSlices::new(own.rows(0..3)?, Tensor::from([1i64, 7, 1]), None)?;
                replica.scatter_sub(&variable, &rows)?;
                let read = variable.read()?;
                replica.assign_add(&variable, read)
            })?;
            all.push(variable.read()?);
            all.push(variable.read_rows(2..5)?);
            variable.assign(Tensor::new([10], &numbers(5, 10))?)?;
            all.push(variable.read()?);
            variable.assign_add(Tensor::new([10], &numbers(6, 10))?)?;
            strategy.update(&variable, |copy| copy.assign_sub(Tensor::new([10], &numbers(3, 10))?))?;
            all.push(variable.read()?);
            assert_eq!(strategy.local_results(&variable).len(), strategy.local_replicas().len());
        }
        Ok((PerReplica::new(vec![Vec::new(); strategy.local_replicas().len()]), all))
    });
}

#[test]
fn a_variable_has_the_value_of_the_chief() {
    for sizes in WORKERS {
        let values = workers(sizes, |worker, strategy| {
            // Variables of the default strategy do not affect the numbering.
            (0..worker).for_each(|_| drop(Variable::new(Tensor::from(0)).unwrap()));
            let first = strategy.variable(|| Tensor::from([worker as i32 + 7])).unwrap();
            let steps = strategy.scope(|| {
                Variable::builder(|| Tensor::from(worker as i64))
                    .aggregation(VariableAggregation::OnlyFirstReplica)
                    .build()
            });
            let steps = steps.unwrap();
            strategy.run(|replica| replica.assign_add(&steps, 5 + replica.replica_id_in_sync_group() as i64)).unwrap();
            (first.read().unwrap(), steps.read().unwrap())
        });
        assert!(values.iter().all(|value| *value == (Tensor::from([7]), Tensor::from(5i64))), "{sizes:?}: {values:?}");
    }
}

#[test]
fn different_calls_of_workers_are_a_mismatch_on_all() {
    type Call<'c> = &'c (dyn Fn(usize, &Strategy) -> Result<()> + Sync);
    let expect_told = |call: Call<'_>, expected: (&str, &str, usize, &str, &str)| {
        let errors = workers(&[1, 2], |worker, strategy| {
            let error = call(worker, strategy).unwrap_err();
            // The group still works.
            assert_eq!(strategy.reduce("sum", &tensors(strategy, 1).map(|_| 1i32), None).unwrap(), 3);
            error
        });
        errors.iter().for_each(|error| assert_eq!(mismatch(error), expected));
    };
    let lengths = |strategy: &Strategy, odd: usize| {
        let length = move |id: usize| if id == odd { 1 } else { 2 };
        strategy.distribute_values_from_function(|context| {
            Tensor::from(vec![0.5f32; length(context.replica_id_in_sync_group)])
        })
    };
    expect_told(
        &|_, strategy| strategy.reduce("sum", &lengths(strategy, 2)?, None).map(drop),
        ("Strategy::reduce", "value", 2, "f32[2]", "f32[1]"),
    );
    expect_told(
        &|worker, strategy| {
            let values = lengths(strategy, 9)?;
            strategy.reduce(if worker == 0 { "max" } else { "sum" }, &values, 0).map(drop)
        },
        ("Strategy::reduce", "op", 0, "sum", "max"),
    );
    expect_told(
        &|worker, strategy| {
            let values = lengths(strategy, 9)?;
            if worker == 0 { strategy.gather(&values, 0) } else { strategy.reduce("sum", &values, None) }.map(drop)
        },
        ("Strategy::reduce", "call", 0, "Strategy::reduce", "Strategy::gather"),
    );
    expect_told(
        &|worker, strategy| strategy.variable(|| Tensor::from(vec![0; 1 + worker])).map(drop),
        ("Variable::builder", "variable", 0, "i32[2], OnWrite, None", "i32[1], OnWrite, None"),
    );
}

/// Found by a review: the replicas' packs differ, and the error did not name the difference.
#[test]
fn different_packs_of_workers_are_a_mismatch_on_all() {
    let errors = thread::scope(|scope| {
        let threads = Communicator::threads(2).into_iter().map(|communicator| {
            scope.spawn(|| {
                let worker = communicator.rank();
                let options = CommunicationOptions::new().bytes_per_pack([4096, 1][worker]);
                let builder = MultiWorkerMirroredStrategy::builder(resolver(2, worker)).options(options);
                let strategy = builder.build_on(vec![communicator]).unwrap();
                let values = strategy.distribute_values_from_function(|_| (1.0f32, 2.0f32)).unwrap();
                strategy.reduce("sum", &values, None).unwrap_err()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for error in errors {
        assert_eq!(mismatch(&error), ("Strategy::reduce", "bytes_per_pack", 1, "4096", "1"));
    }
}

#[test]
fn an_invalid_call_is_reported_to_the_other_workers() {
    let errors = workers(&[2, 1], |worker, strategy| {
        let values = tensors(strategy, 4);
        let axis = if worker == 0 { 0 } else { 3 };
        let error = strategy.reduce("sum", &values, axis).unwrap_err();
        let own = matches!(&error, Error::InvalidCall { call: "Strategy::reduce", .. });
        assert_eq!(own, worker == 1, "{error}");
        // Too few values fail at once, too.
        let few = if worker == 0 { PerReplica::new(vec![values[0].clone()]) } else { values };
        let error = strategy.gather(&few, 0).unwrap_err();
        assert_eq!(matches!(&error, Error::InvalidCall { call: "Strategy::gather", .. }), worker == 0, "{error}");
        error
    });
    assert_eq!((refusal(&errors[0]), found(&errors[0])), (("Strategy::gather", "value", None), "1"));
    assert_eq!(told(&errors[1]), ("Strategy::gather", 0, &*format!("{}", errors[0])));
}

#[test]
fn threads_of_a_worker_take_turns() {
    let barrier = Barrier::new(2);
    workers(&[2, 1], |_, strategy| {
        thread::scope(|scope| {
            // Both threads make the same call, so their order does not matter.
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let ones = strategy.run(|replica| replica.all_reduce("sum", 1i32)).unwrap();
                        assert_eq!(ones[0], 3);
                    }
                });
            }
        });
        barrier.wait();
    });
}

/// All steps of the replicas of a worker, or of the one process.
type Steps = Vec<Vec<Vec<i64>>>;

fn steps<D: Dataset<Element = Tensor>>(strategy: &Strategy, dataset: D, options: InputOptions) -> Steps {
    let dataset = strategy.distribute_dataset_with(dataset, options).unwrap();
    all_steps(&dataset)
}

fn all_steps(dataset: &DistributedDataset<Tensor>) -> Steps {
    let rows = |tensor: &Tensor| tensor.as_slice::<i64>().unwrap().to_vec();
    dataset.iter().map(|step| step.unwrap().iter().map(rows).collect()).collect()
}

fn range(count: i64) -> dataset::Table<Tensor> {
    dataset::from_tensor_slices(Tensor::from((0..count).collect::<Vec<_>>())).unwrap()
}

#[test]
fn a_batch_is_dealt_as_in_one_process() {
    for sizes in WORKERS {
        for (count, size) in [(7, 4), (1, 4), (24, 6), (10, 10), (0, 3)] {
            for options in [
                InputOptions::new(),
                InputOptions::new().deal(Deal::Packed),
                InputOptions::new().deal(Deal::Balanced).prefetch(0),
            ] {
                let dataset = range(count).shuffle(3).batch(size);
                let expected = steps(&one_process(sizes), dataset.clone(), options);
                let found = workers(sizes, |_, strategy| steps(strategy, dataset.clone(), options));
                let together: Steps = (0..expected.len())
                    .map(|step| found.iter().flat_map(|worker| worker[step].clone()).collect())
                    .collect();
                assert_eq!(together, expected, "{count} by {size} for {sizes:?}");
                assert!(found.iter().all(|worker| worker.len() == expected.len()));
            }
        }
    }
    // As in TensorFlow.
    let found = workers(&[1, 1], |_, strategy| steps(strategy, range(7).batch(4), InputOptions::new()));
    assert_eq!(found, [[[vec![0, 1]], [vec![4, 5]]], [[vec![2, 3]], [vec![6]]]]);
}

#[test]
fn workers_with_data_sets_of_their_own_end_together() {
    let off = InputOptions::new().auto_shard_policy(AutoShardPolicy::Off);
    // Worker 1 has fewer elements than worker 0.
    let found = workers(&[1, 1], |worker, strategy| steps(strategy, range(6 - 3 * worker as i64).batch(4), off));
    assert_eq!(found, [[[vec![0, 1]], [vec![2, 3]], [vec![4, 5]]], [[vec![0, 1]], [vec![2]], [vec![]]]]);
    let found = workers(&[2, 1], |worker, strategy| {
        let dataset = strategy.distribute_datasets_from_function(|context| {
            assert_eq!((context.num_input_pipelines, context.input_pipeline_id), (2, worker));
            assert_eq!(context.num_replicas_in_sync, 3);
            Ok(range(9).shard(2, worker).batch(2))
        });
        let dataset = dataset.unwrap();
        assert_eq!(dataset.cardinality(), Cardinality::Unknown);
        assert_eq!(dataset.element_spec().unwrap()[0].to_string(), "i64[?]");
        all_steps(&dataset)
    });
    let first = [[vec![0, 2], vec![4, 6]], [vec![8], vec![]]];
    assert_eq!(
        (found[0].as_slice(), found[1].as_slice()),
        (&first.map(Vec::from)[..], &[[vec![1, 3]], [vec![5, 7]]].map(Vec::from)[..])
    );
    // Data sets without elements end at once.
    assert_eq!(workers(&[1, 2], |_, strategy| steps(strategy, range(0).batch(4), off).len()), [0, 0]);
}

#[test]
fn a_data_set_failing_on_one_worker_ends_on_all() {
    let off = InputOptions::new().auto_shard_policy(AutoShardPolicy::Off);
    let errors = workers(&[1, 2], |worker, strategy| {
        let map = move |row: Tensor| match row.item::<i64>()? {
            3 if worker == 0 => Err(Error::other("no such row")),
            _ => Ok(row),
        };
        let dataset = strategy.distribute_dataset_with(range(12).map(map).batch(3), off).unwrap();
        let mut steps = dataset.iter();
        let found: Vec<Error> = steps.by_ref().filter_map(|step| step.err()).collect();
        assert!(steps.next().is_none());
        assert_eq!(strategy.run(|replica| replica.all_reduce("sum", 1i32)).unwrap()[0], 3);
        found
    });
    assert_eq!((errors[0].len(), errors[1].len()), (1, 1));
    assert_eq!(other(&errors[0][0]), "no such row");
    assert_eq!(told(&errors[1][0]), ("DistributedIterator::next", 0, "no such row"));
    let errors = workers(&[1, 1], |worker, strategy| {
        let dataset = strategy.distribute_dataset_with(range(6 * worker as i64).batch(2), off).unwrap();
        dataset.iter().next().unwrap().unwrap_err()
    });
    for error in errors {
        let Error::Replica { replica: 0, source } = &error else { panic!("{error}") };
        assert_eq!((refusal(source), found(source)), (("DistributedIterator::next", "dataset", None), "none"));
    }
}

fn ones(strategy: &Strategy) -> Result<i32> {
    Ok(strategy.run(|replica| replica.all_reduce("sum", 1i32))?[0])
}

#[test]
fn a_failed_replica_frees_the_other_workers_and_the_next_run_works() {
    let sizes: [&[usize]; 3] = [&[1, 1], &[2, 2], &[1, 3]];
    for (&engine, sizes) in ENGINES.iter().flat_map(|engine| sizes.map(|sizes| (engine, sizes))) {
        let replicas: usize = sizes.iter().sum();
        let odd = sizes[0];
        let errors = workers_with(sizes, engine, Duration::from_secs(60), |_, strategy| {
            let mut errors = Vec::new();
            for round in 0..6 {
                let error = strategy.run(|replica| {
                    if replica.replica_id_in_sync_group() == odd {
                        match round % 3 {
                            0 => return Err(Error::other("no more data")),
                            1 => panic!("out of luck"),
                            _ => replica.merge_call((), |_, _| -> Result<PerReplica<()>> { panic!("out of order") })?,
                        }
                    } else if round % 3 == 2 {
                        replica.merge_call((), |strategy, all| {
                            strategy.reduce("sum", &all.clone().map(|()| 1i32), None)?;
                            Ok(all)
                        })?;
                    }
                    replica.all_reduce("sum", 1i32)
                });
                errors.push(error.unwrap_err());
                assert_eq!(ones(strategy).unwrap(), replicas as i32);
            }
            errors
        });
        let reasons = [Reason::Failure, Reason::Panic, Reason::Panic];
        for (round, (told, thrown)) in errors[0].iter().zip(&errors[1]).enumerate() {
            let said = ["no more data", "out of luck", "out of order"][round % 3];
            match thrown {
                Error::Panic { replica, message } if round % 3 > 0 => assert_eq!((*replica, &message[..]), (odd, said)),
                _ => assert_eq!(own(thrown), (odd, said.to_owned())),
            }
            let (_, replica, reason) = abort(told);
            assert_eq!((replica, reason), (odd, reasons[round % 3]));
        }
    }
}

#[test]
fn a_failed_run_ends_no_earlier_run_on_a_slow_worker() {
    for &engine in ENGINES {
        let has_failed = Barrier::new(2);
        workers_with(&[1, 2], engine, Duration::from_secs(60), |worker, strategy| {
            for round in 0..3 {
                if worker == 0 {
                    has_failed.wait();
                }
                strategy.run(|_| Ok(())).unwrap();
                // With too many arguments no replica starts.
                let arguments = strategy.local_replicas().len() + usize::from(worker == 1 && round == 1);
                let failed: Result<PerReplica<()>> =
                    strategy.run_with(PerReplica::new(vec![(); arguments]), |_, ()| Err(Error::other("no more data")));
                failed.unwrap_err();
                if worker == 1 {
                    has_failed.wait();
                }
                assert_eq!(ones(strategy).unwrap(), 3);
            }
        });
    }
}

#[test]
fn replicas_of_a_worker_do_not_wait_for_one_returning_early() {
    for &engine in ENGINES {
        let errors = workers_with(&[2, 2], engine, Duration::from_secs(60), |worker, strategy| {
            let error = strategy.run(|replica| match replica.replica_id_in_sync_group() {
                1 => Ok(0),
                _ => replica.all_reduce("sum", 1i32),
            });
            let error = error.unwrap_err();
            assert_eq!(matches!(error, Error::Left { replica: 1, .. }), worker == 0, "{error}");
            assert_eq!(ones(strategy).unwrap(), 4);
            error
        });
        let (_, replica, reason) = abort(&errors[1]);
        assert_eq!((replica, reason), (1, Reason::Return));
    }
}

#[test]
fn a_worker_ending_after_a_failed_run_is_not_waited_for() {
    for &engine in ENGINES {
        workers_with(&[1, 1], engine, Duration::from_secs(60), |worker, strategy| {
            let failed: Result<PerReplica<()>> = strategy.run(|replica| {
                replica.barrier()?;
                Err(Error::other("no more data"))
            });
            failed.unwrap_err();
            if worker == 0 {
                for _ in 0..2 {
                    let error = ones(strategy).unwrap_err();
                    let Error::Left { replica: 1, last, lost, .. } = &error else { panic!("{error}") };
                    // In a group of processes this is a loss, because they may form another group.
                    assert!(error.is_loss() == *lost && *lost != matches!(engine, Engine::Threads), "{error}");
                    assert_eq!(last.contains("; worker[1] ("), *lost, "{error}");
                }
            }
        });
    }
}

#[test]
fn a_replica_returning_early_joins_no_call_made_without_it() {
    for &engine in ENGINES {
        workers_with(&[2, 2], engine, Duration::from_secs(60), |worker, strategy| {
            let result = strategy.run(|replica| match replica.replica_id_in_sync_group() {
                0 => {
                    replica.all_reduce("sum", 10i32).unwrap_err();
                    Ok(())
                }
                1 => Ok(()),
                _ => replica.all_reduce("sum", 10i32).map(drop),
            });
            if worker == 0 {
                result.unwrap();
                assert!(matches!(ones(strategy), Err(Error::Aborted { .. })));
            } else {
                assert!(matches!(result, Err(Error::Aborted { replica: 1, .. })), "{result:?}");
            }
            assert_eq!(ones(strategy).unwrap(), 4);
        });
    }
}

/// A variable that is synchronised on reading.
fn count(strategy: &Strategy, aggregation: VariableAggregation) -> Variable {
    let builder = || Variable::builder(|| Tensor::from(0.0f32));
    let on_read = || builder().synchronization(VariableSynchronization::OnRead).aggregation(aggregation).build();
    strategy.scope(on_read).unwrap()
}

#[test]
fn an_absent_worker_is_named_at_the_deadline() {
    let late = Barrier::new(2);
    let errors = workers_with(&[1, 2], Engine::Threads, Duration::from_millis(200), |worker, strategy| {
        if worker == 0 {
            late.wait();
            return None;
        }
        let error = strategy.reduce("sum", &tensors(strategy, 1), None).unwrap_err();
        late.wait();
        Some(error)
    });
    match &errors[1] {
        Some(Error::Timeout { missing, .. }) => assert_eq!(missing[0].0, 0),
        // The other of the two replicas timed out first.
        Some(Error::Aborted { replica: 0, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_wait_for_a_merge_function_has_a_deadline() {
    let errors = workers_with(&[2, 1], Engine::Threads, Duration::from_millis(200), |worker, strategy| {
        let error = strategy.run(|replica| {
            replica.merge_call((), |_, all| {
                if worker == 0 {
                    thread::sleep(Duration::from_millis(600));
                }
                Ok(all)
            })
        });
        let error = error.unwrap_err();
        // The worker that calls first waits longer than its deadline for the others.
        while ones(strategy).is_err() {}
        error
    });
    let is_late = |error: &Error| matches!(error, Error::Timeout { .. }) || abort(error).2 == Reason::Deadline;
    assert!(is_late(&errors[0]), "{errors:?}");
}

#[test]
fn communicators_of_no_workers_are_refused() {
    let problem = |communicators: Vec<Communicator>| {
        MultiWorkerMirroredStrategy::builder(resolver(1, 0)).build_on(communicators).unwrap_err()
    };
    let error = problem(Vec::new());
    assert_eq!((refusal(&error), found(&error)), (("MultiWorkerMirroredStrategy", "communicators", None), "none"));
    let mut ranks = Communicator::threads(3);
    ranks.swap(1, 2);
    let error = problem(ranks);
    assert_eq!(refusal(&error), ("MultiWorkerMirroredStrategy", "communicators[1]", None));
    assert_eq!(found(&error), "rank 2 of 3");
    let errors = thread::scope(|scope| {
        let threads = Communicator::threads(2).into_iter().map(|communicator| {
            // Both claim to be worker 0.
            scope.spawn(|| {
                MultiWorkerMirroredStrategy::builder(resolver(2, 0)).build_on(vec![communicator]).unwrap_err()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for error in errors {
        assert_eq!(refusal(&error), ("MultiWorkerMirroredStrategy", "communicators", None));
        assert_eq!(found(&error), "replicas of workers [0, 0]");
    }
}

/// Found by a review: processes with equal indices, or all without an index, trained separately or
/// panicked.
#[test]
fn a_worker_in_two_processes_is_refused_by_all() {
    let none = SimpleClusterResolver::new(consonance::ClusterSpec::new());
    // The number of ranks, the task that the ranks claim, and that of the last rank.
    let cases = [(3, resolver(2, 0), resolver(2, 1)), (2, resolver(1, 0), resolver(1, 0)), (2, none.clone(), none)];
    for (ranks, first, last) in cases {
        let errors = thread::scope(|scope| {
            let threads = Communicator::threads(ranks).into_iter().map(|communicator| {
                let resolver = if communicator.rank() + 1 == ranks { &last } else { &first };
                scope.spawn(|| {
                    let builder = MultiWorkerMirroredStrategy::builder(resolver.clone());
                    builder.build_on(vec![communicator]).map(drop).unwrap_err()
                })
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        for error in errors {
            assert_eq!(refusal(&error), ("MultiWorkerMirroredStrategy", "communicators", None));
            assert_eq!(found(&error), "only 0..1 from one");
        }
    }
}

#[test]
fn a_cluster_of_one_is_this_process_alone() {
    let strategy = MultiWorkerMirroredStrategy::builder(resolver(1, 0)).replicas(3).build().unwrap();
    assert_eq!((strategy.num_replicas_in_sync(), strategy.local_replicas()), (3, 0..3));
    assert_eq!(ones(&strategy).unwrap(), 3);
    assert_eq!(strategy.to_string(), "MultiWorkerMirroredStrategy(cpu:0, cpu:1, cpu:2)");
    assert!(strategy.cluster_resolver().is_some());
    assert!(MultiWorkerMirroredStrategy::builder(resolver(1, 0)).replicas(0).build().is_err());
}

#[cfg(feature = "checkpoint")]
#[test]
fn the_chief_saves_and_all_restore() {
    use consonance::checkpoint;
    let folder = std::env::temp_dir().join(format!("workers-checkpoint-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for sizes in WORKERS {
        let path = folder.join("all");
        let missing = folder.join("none").join("all");
        let errors = workers(sizes, |worker, strategy| {
            let weights = strategy.variable(|| Tensor::from(numbers(1, 50))).unwrap();
            let seen = count(strategy, VariableAggregation::Sum);
            strategy.run(|replica| replica.assign(&seen, 0.1 + replica.replica_id_in_sync_group() as f32)).unwrap();
            let saved = (weights.read().unwrap(), seen.read().unwrap());
            let variables = [("weights", &weights), ("seen", &seen)];
            checkpoint::save(&path, variables).unwrap();
            assert!(path.exists(), "it is written when any worker has saved");
            assert_eq!(
                checkpoint::save_on_chief(&resolver(sizes.len(), worker), &path, variables).unwrap(),
                worker == 0
            );
            weights.assign(Tensor::from(numbers(2, 50))).unwrap();
            seen.assign(0.0f32).unwrap();
            checkpoint::restore(&path, variables).unwrap();
            assert_eq!((weights.read().unwrap(), seen.read().unwrap()), saved);
            // If one worker fails, no worker restores or saves.
            weights.assign(Tensor::from(numbers(3, 50))).unwrap();
            let path = if worker == 0 { &missing } else { &path };
            let restored = checkpoint::restore(path, [("weights", &weights)]).unwrap_err();
            assert_eq!(weights.read().unwrap(), Tensor::from(numbers(3, 50)));
            let saved = checkpoint::save(path, [("weights", &weights)]).unwrap_err();
            let names = checkpoint::save(path, [(if worker == 0 { "weights" } else { "seen" }, &weights)]);
            [restored, saved, names.unwrap_err()]
        });
        for (worker, [restored, saved, names]) in errors.iter().enumerate() {
            for (error, first) in [(restored, &errors[0][0]), (saved, &errors[0][1])] {
                match worker {
                    0 => {
                        let Error::System { what, .. } = error else { panic!("{error}") };
                        assert!(what.contains(&format!("{}", missing.display())), "{sizes:?}: {error}");
                    }
                    _ => {
                        let (_, replica, words) = told(error);
                        assert_eq!((replica, words), (0, &*format!("{first}")), "{sizes:?}");
                    }
                }
            }
            if sizes.len() > 1 {
                assert_eq!(mismatch(names).1, "variables");
            }
        }
        // One process writes the same file, bit for bit.
        let found = std::fs::read(&path).unwrap();
        let strategy = one_process(sizes);
        let weights = strategy.variable(|| Tensor::from(numbers(1, 50))).unwrap();
        let seen = count(&strategy, VariableAggregation::Sum);
        strategy.run(|replica| replica.assign(&seen, 0.1 + replica.replica_id_in_sync_group() as f32)).unwrap();
        checkpoint::save(&path, [("weights", &weights), ("seen", &seen)]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), found);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Found by a review: a restore held its variables while it waited for the run, and the run waited
/// for the variables.
#[cfg(feature = "checkpoint")]
#[test]
fn a_restore_beside_a_run_waits_for_its_end() {
    use consonance::checkpoint;
    let path = std::env::temp_dir().join(format!("workers-restore-{}", std::process::id()));
    workers_with(&[1, 1], Engine::Threads, Duration::from_secs(10), |_, strategy| {
        let weights = strategy.variable(|| Tensor::from(1.0f32)).unwrap();
        checkpoint::save(&path, [("weights", &weights)]).unwrap();
        let running = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                running.wait();
                checkpoint::restore(&path, [("weights", &weights)]).unwrap();
            });
            let read = strategy.run(|_| {
                running.wait();
                // Long enough for the restore to take the variables.
                thread::sleep(Duration::from_millis(300));
                weights.read()
            });
            assert_eq!(read.unwrap()[0], Tensor::from(1.0f32));
        });
        assert_eq!(weights.read().unwrap(), Tensor::from(1.0f32));
    });
    std::fs::remove_file(&path).unwrap();
}
