//! The rules of static shapes on strategies of one worker and of several, whose replicas are
//! threads, processes and on engines of messages: cases that each rule accepts and refuses.

use consonance::{
    CentralStorageStrategy, ClusterSpec, CommunicationOptions, DType, Dataset, Destinations, Device,
    DistributedDataset, Error, IndexedSlices, MirroredStrategy, MultiWorkerMirroredStrategy, Nest, OneDeviceStrategy,
    PerReplica, ReplicaContext, Result, SimpleClusterResolver, StaticShapes, Strategy, Tensor, ValueContext, dataset,
};
use consonance_harness::subjects::{GROUPS, Rank};
use consonance_spec::static_shapes::{
    ARGUMENTS, DATA_LEAF, FIXED_ARGUMENTS, FULL_BATCHES, GATHERED_LEAF, GATHERED_SHAPE, OPERANDS, REDUCED_OP,
    REDUCED_SHAPE, RULES, Rule,
};
use std::{
    collections::HashSet,
    iter, panic,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

/// The replicas of each of two workers. The last replica is the one that breaks a rule, beside
/// another one of its worker.
const WORKERS: [usize; 2] = [1, 2];
const REPLICAS: usize = 3;
const CULPRIT: usize = 2;

/// A call of each rule.
struct Case {
    rule: Rule,
    dynamic_batch: bool,
    /// The workers that get the error, and what then is of their group.
    told: Told,
    /// Makes the call, which breaks the rule if the flag is set.
    call: fn(&Strategy, bool) -> Result<()>,
}

/// The workers that get the error of a case.
#[derive(Clone, Copy, PartialEq)]
enum Told {
    /// All of them: they compare their values.
    All,
    /// The one of the culprit.
    Culprit,
    /// The one of the culprit, and the group has ended.
    CulpritAtTheEnd,
}

const fn case(rule: Rule, call: fn(&Strategy, bool) -> Result<()>) -> Case {
    Case { rule, dynamic_batch: true, told: Told::All, call }
}

const fn ending(rule: Rule, dynamic_batch: bool, call: fn(&Strategy, bool) -> Result<()>) -> Case {
    Case { rule, dynamic_batch, told: Told::CulpritAtTheEnd, call }
}

const fn of_data(rule: Rule, dynamic_batch: bool, call: fn(&Strategy, bool) -> Result<()>) -> Case {
    Case { rule, dynamic_batch, told: Told::Culprit, call }
}

const CASES: &[Case] = &[
    case(GATHERED_SHAPE, |strategy, breaks| in_replicas(strategy, breaks, |replica, x| replica.all_gather(x, 0))),
    case(GATHERED_SHAPE, |strategy, breaks| strategy.gather(&values(strategy, breaks)?, 0).map(drop)),
    case(GATHERED_LEAF, |strategy, breaks| {
        on_replicas(strategy, |replica| match breaks {
            true => replica.all_gather(rows(1)?, 0).map(drop),
            false => replica.all_gather(rows(1)?.to_dense()?, 0).map(drop),
        })
    }),
    case(GATHERED_LEAF, |strategy, breaks| {
        let shape = if breaks { vec![] } else { vec![1] };
        on_replicas(strategy, |replica| replica.all_gather(Tensor::zeros(DType::F32, &shape[..]), 0))
    }),
    case(GATHERED_LEAF, |strategy, breaks| match breaks {
        true => strategy.gather(&strategy.distribute_values_from_function(|_| rows(1).unwrap())?, 0).map(drop),
        false => strategy.gather(&values(strategy, false)?, 0).map(drop),
    }),
    case(REDUCED_SHAPE, |strategy, breaks| in_replicas(strategy, breaks, |replica, x| replica.all_reduce("sum", x))),
    case(REDUCED_SHAPE, |strategy, breaks| {
        in_replicas(strategy, breaks, |replica, x| replica.overlap(|buckets| buckets.all_reduce("mean", x.1)?.wait()))
    }),
    case(REDUCED_SHAPE, |strategy, breaks| {
        let rows = |id| rows(1 + usize::from(breaks && id == CULPRIT));
        on_replicas(strategy, |replica| replica.all_reduce("sum", rows(replica.replica_id_in_sync_group())?))
    }),
    case(REDUCED_SHAPE, |strategy, breaks| strategy.reduce("mean", &values(strategy, breaks)?, 0).map(drop)),
    case(REDUCED_OP, |strategy, breaks| {
        on_replicas(strategy, |replica| replica.all_reduce(if breaks { "max" } else { "sum" }, 1.5f32))
    }),
    case(REDUCED_OP, |strategy, breaks| {
        let op = if breaks { "product" } else { "mean" };
        on_replicas(strategy, |replica| replica.all_reduce_slice(op, &mut [1.5f32]))
    }),
    // An argument that is invalid in an overlap ends the group.
    ending(REDUCED_OP, true, |strategy, breaks| {
        let op = if breaks { "min" } else { "mean" };
        on_replicas(strategy, |replica| replica.overlap(|buckets| buckets.all_reduce(op, 1.5f32)?.wait()))
    }),
    case(REDUCED_OP, |strategy, breaks| {
        strategy.reduce(if breaks { "min" } else { "mean" }, &values(strategy, false)?, None).map(drop)
    }),
    case(REDUCED_OP, |strategy, breaks| {
        let pair = (values(strategy, false)?, Destinations::Replicas);
        strategy.batch_reduce_to(if breaks { "max" } else { "sum" }, &[pair]).map(drop)
    }),
    // The number of rows may differ; not that of columns, the rank or the dtype.
    ending(ARGUMENTS, true, |strategy, breaks| {
        with_arguments(strategy, |last| match (last, breaks) {
            (false, _) => Tensor::from([[1, 2]]),
            (true, false) => Tensor::from([[1, 2], [3, 4]]),
            (true, true) => Tensor::from([[1, 2, 3]]),
        })
    }),
    ending(ARGUMENTS, true, |strategy, breaks| {
        with_arguments(strategy, |last| if last && breaks { Tensor::from([1]) } else { Tensor::from([[1]]) })
    }),
    ending(ARGUMENTS, true, |strategy, breaks| {
        with_arguments(strategy, |last| if last && breaks { Tensor::from([1u8]) } else { Tensor::from([1]) })
    }),
    ending(FIXED_ARGUMENTS, false, |strategy, breaks| {
        with_arguments(strategy, |last| Tensor::from(vec![1; 1 + usize::from(last && breaks)]))
    }),
    of_data(DATA_LEAF, true, |strategy, breaks| {
        let elements = move || (0..REPLICAS).map(move |_| rows(1).unwrap());
        match breaks {
            true => steps(&strategy.distribute_datasets_from_function(|_| Ok(dataset::from_fn(elements)))?),
            false => {
                let dense = move || elements().map(|rows| rows.to_dense().unwrap());
                steps(&strategy.distribute_datasets_from_function(|_| Ok(dataset::from_fn(dense)))?)
            }
        }
    }),
    // Known when the data set is distributed.
    of_data(FULL_BATCHES, false, |strategy, breaks| {
        let numbers = dataset::from_tensor_slices(Tensor::from(vec![0.5f32; 20]))?.batch(2 * REPLICAS);
        match breaks {
            true => strategy.distribute_dataset(numbers).map(drop),
            false => steps(&strategy.distribute_dataset(numbers.drop_remainder())?),
        }
    }),
    of_data(FULL_BATCHES, false, |strategy, breaks| {
        let numbers = dataset::from_tensor_slices(Tensor::from(vec![0.5f32; 20]))?;
        let batches = numbers.batch(2 * REPLICAS + usize::from(breaks)).drop_remainder();
        steps(&strategy.distribute_dataset(batches)?)
    }),
    // Known at the step in which replicas, or workers, have no batch left.
    of_data(FULL_BATCHES, false, |strategy, breaks| {
        let own = strategy.local_replicas().len();
        let count = if breaks && strategy.local_replicas().contains(&CULPRIT) { 2 * own - 1 } else { 2 * own };
        let batches = dataset::from_tensor_slices(Tensor::from(vec![0.5f32; count]))?.batch(1).drop_remainder();
        steps(&strategy.distribute_datasets_from_function(|_| Ok(batches))?)
    }),
    // Known at the step that is not full.
    of_data(FULL_BATCHES, false, |strategy, breaks| {
        let rows = move |step: usize| if breaks && step == 1 { 2 * REPLICAS - 1 } else { 2 * REPLICAS };
        let batches = dataset::from_fn(move || (0..3).map(move |step| Tensor::from(vec![0.5f32; rows(step)])));
        steps(&strategy.distribute_dataset(batches)?)
    }),
];

/// Makes a call on each replica. Returns the first error, which the run itself does not return: it
/// would end the group.
fn on_replicas<R>(strategy: &Strategy, call: impl Fn(&ReplicaContext<'_>) -> Result<R> + Sync) -> Result<()> {
    strategy.run(|replica| Ok(call(replica).map(drop)))?.into_values().into_iter().collect()
}

/// Makes `call` on each replica, on a value of which the second part of the culprit is longer.
fn in_replicas<R>(
    strategy: &Strategy,
    breaks: bool,
    call: impl Fn(&ReplicaContext<'_>, (Tensor, Tensor)) -> Result<R> + Sync,
) -> Result<()> {
    on_replicas(strategy, |replica| call(replica, value(replica.replica_id_in_sync_group(), breaks)))
}

/// Returns the value of a replica. The second part of the culprit is longer if a rule is broken.
fn value(id: usize, breaks: bool) -> (Tensor, Tensor) {
    (Tensor::from([1.0f32]), Tensor::from(vec![0.5f32; 1 + usize::from(breaks && id == CULPRIT)]))
}

fn values(strategy: &Strategy, breaks: bool) -> Result<PerReplica<(Tensor, Tensor)>> {
    strategy.distribute_values_from_function(|context| value(context.replica_id_in_sync_group, breaks))
}

fn rows(count: usize) -> Result<IndexedSlices> {
    let values = Tensor::new([count, 1], &vec![0.5f32; count])?;
    IndexedSlices::new(values, Tensor::from(vec![0i64; count]), Some(vec![4, 1]))
}

/// Passes an argument to each replica, which depends on whether it is the culprit, beside one whose
/// shapes are not noted.
fn with_arguments(strategy: &Strategy, argument: impl Fn(bool) -> Tensor) -> Result<()> {
    let argument = |context: ValueContext| argument(context.replica_id_in_sync_group == CULPRIT);
    let arguments = strategy.distribute_values_from_function(argument)?.with_shapes()?;
    let names = strategy.distribute_values_from_function(|_| "a")?;
    strategy.run_with(names.zip(arguments)?, |_, _| Ok(())).map(drop)
}

fn steps<E: Nest + Clone + Send + 'static>(data: &DistributedDataset<E>) -> Result<()> {
    data.iter().try_for_each(|step| step.map(drop))
}

/// The kinds of groups that workers of several processes have.
#[derive(Clone, Copy, PartialEq)]
enum Kinds {
    All,
    /// Threads and processes that share memory.
    Few,
}

/// Returns options whose deadline ends a test that would hang.
fn options() -> CommunicationOptions {
    CommunicationOptions::new().timeout(Duration::from_secs(20)).expect("a timeout that ends")
}

/// Runs `work` on a strategy of each kind, with the option that `shapes` makes for a worker.
/// Returns the results of its workers.
fn on_each_kind<R: Send>(
    kinds: Kinds,
    shapes: impl Fn(usize) -> Option<StaticShapes> + Sync,
    work: impl Fn(&str, &Strategy) -> R + Sync,
) -> Vec<Vec<R>> {
    let mut results = Vec::new();
    for on_messages in [false, true] {
        let builder = MirroredStrategy::builder((0..REPLICAS).map(Device::Cpu));
        let mut builder = builder.options(options()).static_shapes(shapes(0));
        if on_messages {
            builder = builder.engines(|devices, _| Ok(consonance_messages::threads(devices.len())));
        }
        let name = format!("MirroredStrategy, on messages: {on_messages}");
        results.push(vec![work(&name, &builder.build().expect("devices that exist"))]);
    }
    // The first group of one that is split must live as long.
    let is_judged = |name: &str| match kinds {
        Kinds::All => !name.contains("split"),
        Kinds::Few => ["threads", "processes"].contains(&name),
    };
    for group in GROUPS.iter().filter(|group| is_judged(group.name)) {
        let mut ranks = (group.make)(REPLICAS).into_iter();
        let parts = WORKERS.map(|count| ranks.by_ref().take(count).collect::<Vec<_>>());
        let (shapes, work) = (&shapes, &work);
        let worker = |index: usize, ranks: Vec<Rank>| {
            let cluster = ClusterSpec::new().job("worker", ["127.9.8.7:1", "127.9.8.7:2"]).unwrap();
            let resolver = SimpleClusterResolver::new(cluster).with_task("worker", index).unwrap();
            let builder = MultiWorkerMirroredStrategy::builder(resolver).options(options());
            let communicators = ranks.into_iter().map(|rank| rank.communicator).collect();
            builder.static_shapes(shapes(index)).build_on(communicators).expect("the workers meet")
        };
        // No worker drops its strategy before the last one has finished.
        let strategies: Vec<MultiWorkerMirroredStrategy> = thread::scope(|scope| {
            let threads = parts.into_iter().enumerate().map(|(index, ranks)| scope.spawn(move || worker(index, ranks)));
            threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        results.push(thread::scope(|scope| {
            let threads = strategies.iter().map(|strategy| scope.spawn(move || work(group.name, strategy)));
            let join =
                |thread: thread::ScopedJoinHandle<'_, R>| thread.join().unwrap_or_else(|p| panic::resume_unwind(p));
            threads.collect::<Vec<_>>().into_iter().map(join).collect()
        }));
    }
    results
}

/// Returns the name of the rule that an error names.
fn named(error: &Error) -> Option<&'static str> {
    let (Error::InvalidCall { expected: text, .. } | Error::Mismatch { found: text, .. }) = error.root() else {
        return None;
    };
    RULES.iter().map(|rule| rule.name).find(|name| text.contains(&format!("rule \"{name}\" of static shapes")))
}

#[test]
fn each_rule_accepts_and_refuses_on_every_kind_of_strategy() {
    let has = |told: Told, dynamic: bool| move |case: &&Case| (case.told, case.dynamic_batch) == (told, dynamic);
    let cases = |told, dynamic| CASES.iter().filter(has(told, dynamic)).collect::<Vec<_>>();
    judge(Kinds::All, &cases(Told::All, true));
    judge(Kinds::All, &cases(Told::Culprit, true));
    judge(Kinds::All, &cases(Told::Culprit, false));
    for case in CASES.iter().filter(|case| case.told == Told::CulpritAtTheEnd) {
        judge(Kinds::Few, &[case]);
    }
}

/// Judges cases of the same option on one strategy of each kind.
fn judge(kinds: Kinds, cases: &[&Case]) {
    let shapes = |_| Some(StaticShapes::new().dynamic_batch(cases[0].dynamic_batch));
    on_each_kind(kinds, shapes, |name, strategy| {
        for (index, case) in cases.iter().enumerate() {
            let of = format!("case {index} of {:?} on {name}", case.rule.name);
            (case.call)(strategy, false).unwrap_or_else(|error| panic!("{of}: {error}"));
            let result = (case.call)(strategy, true);
            if case.told != Told::All && !strategy.local_replicas().contains(&CULPRIT) {
                continue;
            }
            let error = result.expect_err(&of);
            assert_eq!(named(&error), Some(case.rule.name), "{of}: {error}");
            if [GATHERED_SHAPE, REDUCED_SHAPE, ARGUMENTS, FIXED_ARGUMENTS].contains(&case.rule) {
                let Error::Mismatch { replica: CULPRIT, argument, .. } = &error else { panic!("{of}: {error}") };
                assert!(argument.starts_with("value"), "{of}: {error}");
            }
        }
    });
}

#[test]
fn each_rule_except_the_one_of_operands_has_a_case() {
    let names = |rules: &mut dyn Iterator<Item = Rule>| rules.map(|rule| rule.name).collect::<HashSet<_>>();
    let checked = names(&mut CASES.iter().map(|case| case.rule));
    assert_eq!(checked, names(&mut RULES.iter().copied().filter(|&rule| rule != OPERANDS)));
}

#[test]
fn without_the_option_no_rule_is_named() {
    on_each_kind(
        Kinds::Few,
        |_| None,
        |name, strategy| {
            for (index, case) in CASES.iter().enumerate() {
                if let Err(error) = (case.call)(strategy, true) {
                    assert_eq!(named(&error), None, "case {index} on {name}");
                }
            }
            // Shapes that only the option refuses.
            strategy.gather(&values(strategy, true).unwrap(), 0).unwrap();
            strategy.reduce("max", &values(strategy, true).unwrap(), 0).unwrap();
        },
    );
}

#[test]
fn operands_have_the_shape_of_their_variable_with_the_option_and_without() {
    for shapes in [true, false] {
        on_each_kind(
            Kinds::Few,
            |_| shapes.then(StaticShapes::new),
            |name, strategy| {
                let variable = strategy.variable(|| Tensor::from([1.0f32, 2.0])).unwrap();
                variable.assign(Tensor::from([3.0f32, 4.0])).unwrap();
                let error = variable.assign(Tensor::from([3.0f32])).unwrap_err();
                assert!(matches!(error, Error::InvalidCall { .. }), "{name}: {error}");
            },
        );
    }
}

#[test]
fn workers_with_another_option_differ() {
    let others: [fn(usize) -> Option<StaticShapes>; 2] =
        [|worker| (worker == 0).then(StaticShapes::new), |worker| Some(StaticShapes::new().dynamic_batch(worker == 0))];
    for shapes in others {
        on_each_kind(Kinds::All, shapes, |name, strategy| {
            if strategy.local_replicas().len() == REPLICAS {
                return;
            }
            let numbers = || Ok(dataset::from_tensor_slices(Tensor::from([0.5f32; 4]))?.batch(1).drop_remainder());
            let data = strategy.distribute_datasets_from_function(|_| numbers()).unwrap();
            let calls = [
                on_replicas(strategy, |replica| replica.all_reduce("sum", 1.5f32)),
                steps(&data),
                strategy.gather(&values(strategy, false).unwrap(), 0).map(drop),
            ];
            for (index, call) in calls.into_iter().enumerate() {
                let error = call.unwrap_err();
                let Error::Mismatch { argument, .. } = &error else { panic!("{name}: {error}") };
                // Only without the option a gather leaves the size along its axis open.
                let of_sizes = index == 2 && argument == "value/0";
                assert!(argument == "static_shapes" || of_sizes, "{name}: {error}");
            }
        });
    }
}

#[test]
fn workers_compare_their_arguments_in_collectives() {
    // The shapes on the first worker and on the other one, with dynamic batches and without.
    let accepted: [[&[usize]; 2]; 2] = [[&[1, 3], &[2, 3]], [&[2, 3], &[2, 3]]];
    let refused: [[&[usize]; 2]; 2] = [[&[1, 3], &[1, 4]], [&[1, 3], &[2, 3]]];
    for (dynamic, rule) in [(true, ARGUMENTS), (false, FIXED_ARGUMENTS)] {
        let shapes = |_| Some(StaticShapes::new().dynamic_batch(dynamic));
        on_each_kind(Kinds::All, shapes, |name, strategy| {
            if strategy.local_replicas().len() == REPLICAS {
                return;
            }
            let worker = usize::from(strategy.local_replicas().contains(&CULPRIT));
            let arguments = |shapes: [&[usize]; 2]| {
                strategy.distribute_values_from_function(|_| Tensor::zeros(DType::I8, shapes[worker])).unwrap()
            };
            let calls: [fn(&ReplicaContext<'_>) -> Result<()>; 2] = [
                |replica| replica.all_gather(Tensor::from([0.5f32]), 0).map(drop),
                |replica| replica.overlap(|buckets| buckets.all_reduce("sum", 1.5f32)?.wait()).map(drop),
            ];
            // The replicas of the other worker are more.
            for call in calls {
                let run = |arguments| {
                    let all = strategy.run_with(arguments, |replica, _: Tensor| Ok(call(replica)))?;
                    all.into_values().into_iter().collect::<Result<()>>()
                };
                let noted = |shapes| arguments(shapes).with_shapes().unwrap();
                run(noted(accepted[usize::from(!dynamic)])).unwrap();
                let error = run(noted(refused[usize::from(!dynamic)])).unwrap_err();
                assert_eq!(named(&error), Some(rule.name), "{name}: {error}");
                let Error::Mismatch { replica: 0, argument, .. } = error.root() else { panic!("{name}: {error}") };
                assert_eq!(argument, "value of the arguments", "{name}");
                let of_one = arguments(accepted[1]);
                let error = run(if worker == 0 { of_one.with_shapes().unwrap() } else { of_one }).unwrap_err();
                let Error::Mismatch { replica: 0, argument, .. } = error.root() else { panic!("{name}: {error}") };
                assert_eq!(argument, "value of the arguments", "{name}");
            }
        });
    }
}

#[test]
fn each_new_set_of_shapes_is_a_compilation() -> Result<()> {
    let strategy = OneDeviceStrategy::builder("cpu:0").static_shapes(StaticShapes::new()).build()?;
    let run = |rows: usize| {
        let argument = PerReplica::new(vec![Tensor::from(vec![0.5f32; rows])]).with_shapes()?;
        strategy.run_with(argument, |_, rows| Ok(rows.count()))
    };
    for rows in [4, 4, 2, 4, 1] {
        assert_eq!(run(rows)?[0], rows);
    }
    strategy.run(|_| Ok(()))?;
    let compilations = strategy.static_shapes().unwrap().compilations();
    let counts: Vec<_> = compilations.iter().map(|of| (of.call.file().contains("static_shapes"), of.count)).collect();
    assert_eq!(counts, [(true, 3), (true, 1)]);
    Ok(())
}

#[test]
fn batches_of_one_run_are_padded_to_the_largest() -> Result<()> {
    let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).static_shapes(StaticShapes::new()).build()?;
    for rows in [[2, 2], [2, 1], [1, 2], [1, 1], [1, 0]] {
        let arguments = PerReplica::new(rows.map(|rows| Tensor::from(vec![0.5f32; rows])).to_vec()).with_shapes()?;
        strategy.run_with(arguments, |_, rows| Ok(rows.count()))?;
    }
    assert_eq!(strategy.static_shapes().unwrap().compilations()[0].count, 2);
    Ok(())
}

#[test]
fn a_nest_against_a_slice_is_a_difference_of_values() {
    for shapes in [None, Some(StaticShapes::new())] {
        let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).static_shapes(shapes).build().unwrap();
        let error = strategy.run(|replica| match replica.replica_id_in_sync_group() {
            0 => replica.all_reduce("sum", 1.5f32).map(drop),
            _ => replica.all_reduce_slice("sum", &mut [1.5f32]),
        });
        let error = error.unwrap_err();
        let Error::Mismatch { replica: 1, argument, expected, found, .. } = error.root() else { panic!("{error}") };
        assert_eq!((&**argument, &**expected), ("value", "f32[]"));
        assert_eq!(found.split(';').next(), Some("nothing"), "{error}");
    }
}

#[test]
fn a_slow_source_does_not_end_the_iteration() -> Result<()> {
    let (go, gate) = mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let source = dataset::from_fn(move || {
        let gate = gate.clone();
        (0..2).map(move |_| {
            // An error says that the test has opened the gate.
            let _ = gate.lock().unwrap().recv();
            Tensor::from([1])
        })
    });
    let options = CommunicationOptions::new().timeout(Duration::from_millis(50))?;
    let builder = MirroredStrategy::builder(["cpu:0"]).options(options);
    let strategy = builder.static_shapes(StaticShapes::new().dynamic_batch(false)).build()?;
    let mut steps = strategy.distribute_dataset(source)?.iter();
    let error = steps.next_or_none().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    drop(go);
    let given = iter::repeat_with(|| steps.next_or_none()).find(|step| !matches!(step, Err(Error::Timeout { .. })));
    assert_eq!(given.unwrap()?.expect("a step")[0], Tensor::from([1]));
    Ok(())
}

#[test]
fn a_parameter_device_excludes_static_shapes() {
    let builder = CentralStorageStrategy::builder(["cpu:0", "cpu:1"], "cpu:0").static_shapes(StaticShapes::new());
    let Err(Error::InvalidCall { argument, .. }) = builder.build() else { panic!("it was built") };
    assert_eq!(argument, "static_shapes");
}
