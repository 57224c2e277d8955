//! Compares variables with the spec, bit for bit. Also tests replicas whose assignments differ, and
//! many rounds of assignments.

use consonance::{
    CommunicationOptions, Error, MirroredStrategy, OneDeviceStrategy, PerReplica, ReduceOp, ReplicaContext, Result,
    Strategy, Tensor, Variable, VariableAggregation, VariableSynchronization,
};
use consonance_harness::{
    sample::{Sample, keys, sample},
    subjects::STRATEGIES,
};
use consonance_spec::{
    DType, for_each_dtype,
    variable::{self, Placement, Update},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
    thread,
    time::Duration,
};

use VariableAggregation::{Mean, OnlyFirstReplica, Sum};
use VariableSynchronization::{Auto, OnRead, OnWrite};

const SYNCHRONIZATIONS: [VariableSynchronization; 4] = [Auto, VariableSynchronization::None, OnWrite, OnRead];
const AGGREGATIONS: [VariableAggregation; 4] = [VariableAggregation::None, Sum, Mean, OnlyFirstReplica];

fn build(
    strategy: &Strategy,
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    initial: impl Into<Tensor>,
) -> Result<Variable> {
    strategy.scope(|| {
        Variable::builder(|| initial.into()).synchronization(synchronization).aggregation(aggregation).build()
    })
}

fn assign(variable: &Variable, update: Update, operand: Tensor) -> Result<()> {
    match update {
        Update::Assign => variable.assign(operand),
        Update::AssignAdd => variable.assign_add(operand),
        Update::AssignSub => variable.assign_sub(operand),
    }
}

fn assign_in(replica: &ReplicaContext<'_>, variable: &Variable, update: Update, operand: Tensor) -> Result<()> {
    match update {
        Update::Assign => replica.assign(variable, operand),
        Update::AssignAdd => replica.assign_add(variable, operand),
        Update::AssignSub => replica.assign_sub(variable, operand),
    }
}

/// Returns the bits of a tensor's elements. All NaNs have the same key.
fn bits<T: Sample>(tensor: &Tensor) -> Vec<u64> {
    keys(tensor.as_slice::<T>().expect("the variable's dtype"))
}

/// Checks a variable of `count` elements against the spec: assigned in replicas and in the
/// cross-replica context, and read in both.
fn check<T: Sample>(
    placement: Placement,
    strategy: &Strategy,
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    update: Update,
    count: usize,
) {
    let (replicas, local) = (strategy.num_replicas_in_sync(), strategy.local_replicas());
    let seed = replicas as u64 * 7 + count as u64;
    let initial: Vec<T> = sample(seed, count);
    let operands: Vec<Vec<T>> = (0..replicas as u64).map(|replica| sample(seed + 100 + replica, count)).collect();
    let variable = build(strategy, synchronization, aggregation, initial.as_slice());
    let model = variable::Variable::new(placement, synchronization, aggregation, replicas, &initial);
    let (variable, mut model) = match (variable, model) {
        (Ok(variable), Ok(model)) => (variable, model),
        (variable, model) => {
            assert!(matches!(variable, Err(Error::InvalidCall { .. })) && model.is_err(), "{variable:?}");
            return;
        }
    };
    let same = |model: &variable::Variable<T>, step: &str| {
        let case = format!("{step}: {update:?} of {count}, {variable:?}");
        match (variable.read(), model.read_across()) {
            (Ok(found), Ok(expected)) => assert_eq!(bits::<T>(&found), keys(&expected), "{case}: outside"),
            (Err(Error::InvalidCall { .. }), Err(_)) => {}
            (found, expected) => panic!("{case}: outside {found:?}, not {expected:?}"),
        }
        let found = strategy.run(|_| variable.read()).unwrap();
        let expected: Vec<_> = model.components()[local.clone()].iter().map(|elements| keys(elements)).collect();
        assert_eq!(found.iter().map(bits::<T>).collect::<Vec<_>>(), expected, "{case}: in replicas");
        let found = strategy.local_results(&variable);
        let expected: Vec<_> = model.local_results(local.clone()).iter().map(|elements| keys(elements)).collect();
        assert_eq!(found.iter().map(bits::<T>).collect::<Vec<_>>(), expected, "{case}: local results");
    };
    same(&model, "at first");
    let expected = model.assign_in_replicas(update, &operands);
    let found = strategy.run_with(PerReplica::new(operands[local.clone()].to_vec()), |replica, operand| {
        assign_in(replica, &variable, update, operand.into())
    });
    assert_eq!(found.is_ok(), expected.is_ok(), "{found:?}, {variable:?}");
    // A worker that is late gets the others' failure when its run begins.
    let is_told = matches!(found, Err(Error::Aborted { .. })) && local.len() < replicas;
    assert!(matches!(found, Ok(_) | Err(Error::InvalidCall { .. })) || is_told, "{found:?}");
    // A refused update changes nothing.
    model = expected.unwrap_or(model);
    same(&model, "after replicas");
    let found = assign(&variable, update, operands[replicas - 1].clone().into());
    let expected = model.assign_across(update, &operands[replicas - 1]);
    assert_eq!(found.is_ok(), expected.is_ok(), "{found:?}, {variable:?}");
    same(&expected.unwrap_or(model), "after all");
}

fn check_all<T: Sample>() {
    for subject in STRATEGIES {
        for replicas in [1, 2, 3, 5] {
            subject.on_workers(replicas, Default::default(), |strategy| {
                for (synchronization, aggregation) in
                    SYNCHRONIZATIONS.iter().flat_map(|&one| AGGREGATIONS.map(|other| (one, other)))
                {
                    for update in Update::ALL {
                        // A subtraction works chunk by chunk.
                        let counts = if update == Update::AssignSub { [0, 1030] } else { [1, 11] };
                        for count in counts {
                            check::<T>(subject.placement, strategy, synchronization, aggregation, update, count);
                        }
                    }
                }
            });
        }
    }
}

macro_rules! tests {
    ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
        /// Checks the given types. Each test has its own, so that the tests run in parallel.
        fn check_types(types: &[DType]) {
            for dtype in types {
                match dtype {
                    $(DType::$variant => check_all::<$type>(),)*
                }
            }
        }
    };
}

for_each_dtype!(tests);

#[test]
fn integers_as_specified() {
    let integers = DType::ALL.iter().filter(|dtype| dtype.name().starts_with(['i', 'u'])).copied();
    check_types(&integers.collect::<Vec<_>>());
}

#[test]
fn floats_and_truth_values_as_specified() {
    let others = DType::ALL.iter().filter(|dtype| !dtype.name().starts_with(['i', 'u'])).copied();
    check_types(&others.collect::<Vec<_>>());
}

/// Returns a strategy of three replicas.
fn mirrored() -> Strategy {
    Strategy::clone(&MirroredStrategy::new(["cpu:0", "cpu:1", "cpu:2"]).unwrap())
}

/// Returns each replica's error in one run, which must not change the value of any of `variables`.
fn errors(
    strategy: &Strategy,
    variables: &[&Variable],
    body: impl Fn(&ReplicaContext<'_>) -> Result<()> + Sync,
) -> Vec<Error> {
    let values = || strategy.run(|_| variables.iter().map(|variable| variable.read()).collect::<Result<Vec<_>>>());
    let before = values().unwrap();
    let results = strategy.run(|replica| Ok(body(replica))).unwrap();
    assert_eq!(values().unwrap(), before);
    results.into_iter().map(Result::unwrap_err).collect()
}

/// Checks that every replica's error says that `odd` differs in `argument`.
fn check_mismatch(errors: &[Error], odd: usize, argument: &str, expected: &str, found: &str) {
    for error in errors {
        let Error::Mismatch { replica, argument: named, expected: others, found: own, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((*replica, named.as_str()), (odd, argument), "{error}");
        assert!(others.contains(expected) && own.contains(found), "{error}");
    }
}

#[test]
fn replicas_assign_different_variables() {
    let strategy = mirrored();
    for aggregation in [Sum, Mean, OnlyFirstReplica] {
        let [one, other] = [0, 0].map(|_| build(&strategy, Auto, aggregation, [1.0f32, 2.0]).unwrap());
        let errors = errors(&strategy, &[&one, &other], |replica| {
            let variable = if replica.replica_id_in_sync_group() == 2 { &other } else { &one };
            replica.assign(variable, [5.0f32, 6.0])
        });
        check_mismatch(&errors, 2, "variable", "f32[2]", "f32[2]");
    }
}

#[test]
fn replicas_call_different_methods() {
    let strategy = mirrored();
    for aggregation in [Sum, Mean, OnlyFirstReplica] {
        let variable = build(&strategy, Auto, aggregation, [1.0f32, 2.0]).unwrap();
        type Call = fn(&ReplicaContext<'_>, &Variable) -> Result<()>;
        let calls: [(&str, Call); 4] = [
            ("assign_add", |replica, variable| replica.assign_add(variable, [5.0f32, 6.0])),
            ("assign_sub", |replica, variable| replica.assign_sub(variable, [5.0f32, 6.0])),
            ("all_reduce", |replica, _| replica.all_reduce(ReduceOp::Sum, Tensor::from([5.0f32, 6.0])).map(drop)),
            ("barrier", |replica, _| replica.barrier()),
        ];
        for (name, call) in calls {
            let errors = errors(&strategy, &[&variable], |replica| match replica.replica_id_in_sync_group() {
                1 => call(replica, &variable),
                _ => replica.assign(&variable, [5.0f32, 6.0]),
            });
            check_mismatch(&errors, 1, "call", "assign", name);
        }
    }
}

#[test]
fn one_replica_s_operand_does_not_fit() {
    let strategy = mirrored();
    for aggregation in [Sum, Mean, OnlyFirstReplica] {
        let variable = build(&strategy, Auto, aggregation, [1.0f32, 2.0]).unwrap();
        for operand in [Tensor::from([1.0f32]), Tensor::from([1.0f64, 2.0])] {
            let mut errors = errors(&strategy, &[&variable], |replica| match replica.replica_id_in_sync_group() {
                1 => replica.assign_sub(&variable, operand.clone()),
                _ => replica.assign_sub(&variable, [5.0f32, 6.0]),
            });
            let own = errors.remove(1);
            assert!(
                matches!(&own, Error::InvalidCall { replica: Some(1), argument, .. } if argument == "value"),
                "{own}"
            );
            check_mismatch(&errors, 1, "the call", "a valid call", "expected f32[2]");
        }
    }
}

#[test]
fn nothing_says_how_to_aggregate() {
    let strategy = mirrored();
    let variable = build(&strategy, OnWrite, VariableAggregation::None, 1.0f32).unwrap();
    for (id, error) in errors(&strategy, &[&variable], |replica| replica.assign(&variable, 2.0f32)).iter().enumerate() {
        let Error::InvalidCall { replica, argument, .. } = error else { panic!("{error}") };
        assert_eq!((*replica, argument.as_str()), (Some(id), "aggregation"), "{error}");
    }
    let counts = build(&strategy, OnRead, VariableAggregation::None, 1.0f32).unwrap();
    let error = counts.read().unwrap_err();
    let Error::InvalidCall { call: "Variable::read", argument, .. } = &error else { panic!("{error}") };
    assert_eq!(argument, "aggregation");
    counts.assign(3.0f32).unwrap();
    assert_eq!(strategy.local_results(&counts), [3.0f32; 3].map(Tensor::from));
}

#[test]
fn a_replica_returns_early_or_fails_or_panics() {
    let strategy = mirrored();
    let variable = build(&strategy, Auto, Sum, [1.0f32; 100]).unwrap();
    let assign = |replica: &ReplicaContext<'_>| replica.assign_add(&variable, [1.0f32; 100]);
    let results = strategy.run(|replica| match replica.replica_id_in_sync_group() {
        2 => Ok(None),
        _ => Ok(Some(assign(replica).unwrap_err())),
    });
    for error in results.unwrap().into_iter().flatten() {
        assert!(matches!(&error, Error::Left { replica: 2, call, .. } if call == "assign_add"), "{error}");
    }
    let error = strategy.run(|replica| match replica.replica_id_in_sync_group() {
        2 => Err(Error::other("enough")),
        _ => assign(replica),
    });
    let Err(Error::Replica { replica: 2, source }) = error else { panic!("{error:?}") };
    assert!(matches!(&*source, Error::Other(own) if format!("{own}") == "enough"), "{source}");
    let error = strategy.run(|replica| match replica.replica_id_in_sync_group() {
        0 => panic!("oh"),
        _ => assign(replica),
    });
    assert!(matches!(&error, Err(Error::Panic { replica: 0, message }) if message == "oh"), "{error:?}");
    assert_eq!(variable.read().unwrap(), Tensor::from([1.0f32; 100]));
    strategy.run(assign).unwrap();
    assert_eq!(variable.read().unwrap(), Tensor::from([4.0f32; 100]));
}

fn is_wrong_context<T>(result: Result<T>, of: &str) -> bool {
    matches!(result, Err(Error::WrongContext { call, .. }) if call == of)
}

#[test]
fn each_call_has_its_context() {
    let strategy = mirrored();
    let variable = build(&strategy, Auto, Sum, 1.0f32).unwrap();
    let counts = build(&strategy, OnRead, Sum, 1.0f32).unwrap();
    strategy
        .run(|replica| {
            assert!(is_wrong_context(variable.assign(2.0f32), "Variable::assign"));
            assert!(is_wrong_context(Variable::new(Tensor::from(1.0f32)), "Variable::new"));
            assert!(is_wrong_context(replica.strategy().variable(|| Tensor::from(1.0f32)), "Strategy::variable"));
            assert!(is_wrong_context(replica.strategy().update(&variable, |_| Ok(())), "Strategy::update"));
            Ok(())
        })
        .unwrap();
    let other = OneDeviceStrategy::new("cpu:0").unwrap();
    other
        .run(|replica| {
            let assigned = replica.assign(&variable, 2.0f32);
            assert!(matches!(&assigned, Err(Error::InvalidCall { argument, .. }) if argument == "variable"));
            assert!(is_wrong_context(counts.read(), "Variable::read"));
            assert_eq!(variable.read()?, Tensor::from(1.0f32));
            Ok(())
        })
        .unwrap();
    other
        .scope(|| {
            assert!(is_wrong_context(counts.read(), "Variable::read"));
            assert!(is_wrong_context(variable.assign(2.0f32), "Variable::assign"));
            Ok(())
        })
        .unwrap();
    // Another strategy of the same kind is still another strategy.
    let twin = mirrored().update(&variable, |_| Ok(())).unwrap_err();
    let Error::InvalidCall { call: "Strategy::update", argument, .. } = &twin else { panic!("{twin}") };
    assert_eq!(argument, "variable");
    // A variable of no strategy may be assigned in any scope.
    let step = Variable::new(Tensor::from(1i64)).unwrap();
    other.scope(|| step.assign_add(1i64)).unwrap();
    assert_eq!(step.read().unwrap(), Tensor::from(2i64));
}

#[test]
fn an_update_has_its_variable_alone() {
    let options = CommunicationOptions::new().timeout(Duration::from_millis(20)).unwrap();
    let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).options(options).build().unwrap();
    let variable = strategy.variable(|| Tensor::from([1.0f32, 2.0])).unwrap();
    // On the same thread no call waits.
    let nested = |copy: &mut consonance::VariableMut<'_>| {
        assert!(is_wrong_context(variable.read(), "Variable::read"));
        assert!(is_wrong_context(variable.assign([0.0f32, 0.0]), "Variable::assign"));
        assert!(is_wrong_context(strategy.update(&variable, |_| Ok(())), "Strategy::update"));
        copy.assign_add([1.0f32, 1.0])
    };
    strategy.update(&variable, nested).unwrap();
    assert_eq!(variable.read().unwrap(), Tensor::from([2.0f32, 3.0]));
    // Another thread waits until its deadline, here before the update ends.
    let (begun, timed_out) = (mpsc::channel(), mpsc::channel());
    thread::scope(|threads| {
        let variable = &variable;
        threads.spawn(move || {
            begun.1.recv().unwrap();
            timed_out.0.send(variable.read()).unwrap();
        });
        let long = |copy: &mut consonance::VariableMut<'_>| {
            begun.0.send(()).unwrap();
            let read = timed_out.1.recv().unwrap();
            assert!(matches!(read, Err(Error::Timeout { .. })), "{read:?}");
            copy.assign([7.0f32, 8.0])
        };
        strategy.update(variable, long).unwrap();
    });
    assert_eq!(variable.read().unwrap(), Tensor::from([7.0f32, 8.0]));
}

#[test]
fn a_failed_update_leaves_its_writes() {
    let strategy = mirrored();
    let variable = build(&strategy, OnRead, Sum, [1.0f32, 2.0]).unwrap();
    let mut component = 0;
    let failed = strategy.update(&variable, |copy| {
        component += 1;
        copy.as_mut_slice::<f32>()?[0] = 10.0 * component as f32;
        if component == 2 { Err(Error::other("enough")) } else { Ok(component) }
    });
    assert!(matches!(&failed, Err(Error::Other(own)) if format!("{own}") == "enough"), "{failed:?}");
    let values = [[10.0f32, 2.0], [20.0, 2.0], [1.0, 2.0]].map(Tensor::from);
    assert_eq!(strategy.local_results(&variable), values);
    let panicking = || strategy.update(&variable, |_| -> Result<()> { panic!("oh") });
    assert!(catch_unwind(AssertUnwindSafe(panicking)).is_err());
    assert_eq!(strategy.local_results(&variable), values);
    let wrong = strategy.update(&variable, |copy| copy.assign(1.0f32)).unwrap_err();
    let Error::InvalidCall { call, argument, expected, found, .. } = &wrong else { panic!("{wrong}") };
    assert_eq!([*call, argument, expected, found], ["VariableMut::assign", "value", "f32[2]", "f32[]"]);
}

#[test]
fn rows_of_a_component_and_of_an_aggregate() {
    let strategy = mirrored();
    let table = build(&strategy, OnRead, Mean, [[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]]).unwrap();
    let own = |id: usize| Tensor::from([[3.0 + 3.0 * id as f32, 4.0], [5.0, 6.0]]);
    strategy
        .run(|replica| {
            let id = replica.replica_id_in_sync_group();
            replica.assign_add(&table, [[0.0f32, 0.0], [3.0 * id as f32, 0.0], [0.0, 0.0]])?;
            assert_eq!(table.read_rows(1..3)?, own(id));
            Ok(())
        })
        .unwrap();
    assert_eq!(table.read_rows(1..3).unwrap(), own(1));
    assert_eq!(table.read_rows(3..3).unwrap().shape(), [0, 2]);
    let outside = table.read_rows(2..4).unwrap_err();
    let Error::InvalidCall { call, argument, found, .. } = &outside else { panic!("{outside}") };
    assert_eq!([*call, argument, found], ["Variable::read_rows", "rows", "2..4"]);
}

#[test]
fn writing_copies_only_shared_values() {
    let strategy = mirrored();
    let variable = build(&strategy, Auto, Sum, vec![1.0f32; 1000]).unwrap();
    let address = || variable.read().unwrap().as_slice::<f32>().unwrap().as_ptr();
    let first = address();
    variable.assign_add(vec![1.0f32; 1000]).unwrap();
    variable.assign_sub(vec![0.5f32; 1000]).unwrap();
    strategy.update(&variable, |copy| copy.as_mut_slice::<f32>().map(|elements| elements[0] = 9.0)).unwrap();
    strategy.run(|replica| replica.assign_add(&variable, vec![1.0f32; 1000])).unwrap();
    assert_eq!(address(), first);
    let held = variable.read().unwrap();
    variable.assign_add(vec![1.0f32; 1000]).unwrap();
    assert_ne!(address(), first);
    assert_eq!(held.as_slice::<f32>().unwrap()[..2], [12.0, 4.5]);
    let assigned = Tensor::from(vec![3.0f32; 1000]);
    let address_of_assigned = assigned.as_slice::<f32>().unwrap().as_ptr();
    variable.assign(assigned).unwrap();
    assert_eq!(address(), address_of_assigned);
}

#[test]
fn thousands_of_rounds_of_assignments() {
    const ROUNDS: i64 = 2000;
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1", "cpu:2", "cpu:3"]).unwrap();
    // More than an inline payload, so that replicas read the operands in each other's memory.
    let variable = build(&strategy, Auto, Sum, [0i64; 64]).unwrap();
    let counts = build(&strategy, OnRead, Sum, 0i64).unwrap();
    let value = |variable: &Variable| -> Result<i64> {
        let value = variable.read()?;
        let elements = value.as_slice::<i64>()?;
        assert_eq!(elements, [elements[0]; 64], "torn");
        Ok(elements[0])
    };
    thread::scope(|threads| {
        let (done, finished) = mpsc::channel::<()>();
        let (variable, value, counts) = (&variable, &value, &counts);
        // A thread outside the replicas reads all the time, and keeps some of the tensors that it
        // has read.
        threads.spawn(move || {
            let (mut last, mut held) = (0, Vec::new());
            while let Err(mpsc::TryRecvError::Empty) = finished.try_recv() {
                let now = value(variable).unwrap();
                assert!(now >= last, "{now} after {last}");
                last = now;
                held.push(variable.read().unwrap());
                if held.len() > 3 {
                    held.remove(0);
                }
            }
        });
        let rounds = strategy.run(|replica| {
            for round in 1..=ROUNDS {
                let own = round + replica.replica_id_in_sync_group() as i64;
                replica.assign_add(variable, [own; 64])?;
                // The sum over rounds of 4 * round + 0 + 1 + 2 + 3.
                assert_eq!(value(variable)?, 2 * round * (round + 1) + 6 * round);
                replica.assign_add(counts, own)?;
            }
            Ok(())
        });
        drop(done);
        rounds.unwrap();
    });
    assert_eq!(counts.read().unwrap(), Tensor::from(2 * ROUNDS * (ROUNDS + 1) + 6 * ROUNDS));
}
