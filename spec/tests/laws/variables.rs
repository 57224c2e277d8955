use crate::sample::{Ranks, Sample, all_keys, for_ranks, keys};
use consonance_spec::{
    VariableAggregation::{self, Mean, OnlyFirstReplica, Sum},
    VariableSynchronization::{self, Auto, OnRead, OnWrite},
    bf16, f16, for_each_dtype,
    variable::{
        Placement, Refused,
        Update::{self, Assign, AssignAdd, AssignSub},
        Variable, create,
    },
};
use quickcheck::quickcheck;

const AGGREGATIONS: [VariableAggregation; 4] = [VariableAggregation::None, Sum, Mean, OnlyFirstReplica];
const SYNCHRONIZATIONS: [VariableSynchronization; 4] = [Auto, VariableSynchronization::None, OnWrite, OnRead];
const PLACEMENTS: [Placement; 2] = [Placement::EachReplica, Placement::One];

/// Returns a variable of every kind that can be, with one replica for each operand.
fn variables<T: Sample>(operands: &[Vec<T>]) -> Vec<Variable<T>> {
    let initial = &operands[operands.len() - 1];
    let placed = |placement| SYNCHRONIZATIONS.map(|synchronization| (placement, synchronization));
    let kinds = PLACEMENTS.into_iter().flat_map(placed);
    let of = |(placement, synchronization)| {
        let new = |aggregation| Variable::new(placement, synchronization, aggregation, operands.len(), initial);
        AGGREGATIONS.map(new).into_iter().flatten().collect::<Vec<_>>()
    };
    kinds.flat_map(of).collect()
}

/// Returns a variable of two replicas, one copy each, whose components are 10 and 20 if they may
/// differ, and otherwise both 10.
fn ten(synchronization: VariableSynchronization, aggregation: VariableAggregation) -> Variable<f32> {
    let variable = Variable::new(Placement::EachReplica, synchronization, aggregation, 2, &[10.0]).unwrap();
    match synchronization {
        OnRead => variable.assign_in_replicas(Assign, &[vec![10.0], vec![20.0]]).unwrap(),
        Auto | OnWrite | VariableSynchronization::None => variable,
    }
}

/// Returns the elements of the two components of a variable of one element.
fn both(variable: Result<Variable<f32>, Refused>) -> Option<[f32; 2]> {
    variable.ok().map(|variable| [variable.components()[0][0], variable.components()[1][0]])
}

#[test]
fn only_valid_variables_can_be_created() {
    let allowed = |aggregation, synchronization| {
        let of = [create::<f32>, create::<i32>, create::<bool>];
        of.map(|create| create(synchronization, aggregation).is_ok())
    };
    for synchronization in [Auto, OnWrite, OnRead] {
        assert_eq!(allowed(VariableAggregation::None, synchronization), [true, true, true]);
        assert_eq!(allowed(Sum, synchronization), [true, true, false]);
        assert_eq!(allowed(Mean, synchronization), [true, false, false]);
        assert_eq!(allowed(OnlyFirstReplica, synchronization), [true, true, true]);
    }
    for aggregation in AGGREGATIONS {
        assert_eq!(allowed(aggregation, VariableSynchronization::None), [false, false, false]);
    }
}

/// A strategy with a single copy has every variable, and all replicas read that copy.
#[test]
fn where_variables_are() {
    for requested in SYNCHRONIZATIONS {
        let single = Variable::new(Placement::One, requested, Mean, 2, &[10.0f32]).unwrap();
        let assigned = single.assign_in_replicas(Assign, &[vec![1.0], vec![2.0]]).unwrap();
        assert_eq!(assigned.components(), [[1.5], [1.5]], "{requested:?}");
        assert_eq!(assigned.local_results(0..2), [[1.5]]);
        let several = Variable::new(Placement::EachReplica, requested, Mean, 2, &[10.0f32]);
        assert_eq!(several.is_ok(), requested != VariableSynchronization::None);
        let synchronization = Placement::EachReplica.synchronization(requested);
        assert_eq!(synchronization == OnRead, requested == OnRead);
    }
    assert_eq!(PLACEMENTS.map(|placement| placement.local_copies(3)), [3, 1]);
    let variable = ten(OnRead, Sum);
    assert_eq!((variable.local_results(0..2).len(), variable.local_results(1..2)), (2, &[vec![20.0]][..]));
}

/// The replicas assign the operands 1 and 2, with each aggregation.
#[test]
fn the_table_of_assignments_in_replicas() {
    let table = |synchronization, update| {
        let assigned =
            |aggregation| both(ten(synchronization, aggregation).assign_in_replicas(update, &[vec![1.0], vec![2.0]]));
        AGGREGATIONS.map(assigned)
    };
    for synchronization in [Auto, OnWrite] {
        let rows = |sum, mean, first| [None, Some([sum; 2]), Some([mean; 2]), Some([first; 2])];
        assert_eq!(table(synchronization, Assign), rows(3.0, 1.5, 1.0));
        assert_eq!(table(synchronization, AssignAdd), rows(13.0, 11.5, 11.0));
        assert_eq!(table(synchronization, AssignSub), rows(7.0, 8.5, 9.0));
    }
    assert_eq!(table(OnRead, Assign), [Some([1.0, 2.0]); 4]);
    assert_eq!(table(OnRead, AssignAdd), [Some([11.0, 22.0]); 4]);
    assert_eq!(table(OnRead, AssignSub), [Some([9.0, 18.0]); 4]);
}

#[test]
fn the_table_of_assignments_across() {
    let table = |synchronization, update| {
        let assigned = |aggregation| both(ten(synchronization, aggregation).assign_across(update, &[3.0])).unwrap();
        AGGREGATIONS.map(assigned)
    };
    assert_eq!(table(OnWrite, Assign), [[3.0, 3.0]; 4]);
    assert_eq!(table(OnWrite, AssignAdd), [[13.0, 13.0]; 4]);
    assert_eq!(table(OnWrite, AssignSub), [[7.0, 7.0]; 4]);
    assert_eq!(table(OnRead, Assign), [[3.0, 3.0], [1.5, 1.5], [3.0, 3.0], [3.0, 3.0]]);
    assert_eq!(table(OnRead, AssignAdd), [[13.0, 23.0], [11.5, 21.5], [13.0, 23.0], [13.0, 23.0]]);
    assert_eq!(table(OnRead, AssignSub), [[7.0, 17.0], [8.5, 18.5], [7.0, 17.0], [7.0, 17.0]]);
}

#[test]
fn the_table_of_reads() {
    let table = |synchronization| AGGREGATIONS.map(|aggregation| ten(synchronization, aggregation).read_across());
    assert_eq!(table(OnWrite), [10.0; 4].map(|value| Ok(vec![value])));
    assert_eq!(table(OnRead), [Err(Refused), Ok(vec![30.0]), Ok(vec![15.0]), Ok(vec![10.0])]);
}

#[test]
fn one_replica_needs_no_aggregation() {
    let variable = Variable::new(Placement::EachReplica, OnWrite, VariableAggregation::None, 1, &[1]).unwrap();
    assert_eq!(variable.assign_in_replicas(Assign, &[vec![2]]).unwrap().components(), [[2]]);
}

/// With or without elements, so that a refusal depends on no data.
#[test]
fn truth_values_are_only_assigned() {
    for count in [0, 1] {
        let variable = Variable::new(Placement::One, Auto, OnlyFirstReplica, 2, &vec![true; count]).unwrap();
        let done = |update| {
            let operand = vec![false; count];
            let in_replicas = variable.assign_in_replicas(update, &[operand.clone(), operand.clone()]);
            [in_replicas.is_ok(), variable.assign_across(update, &operand).is_ok()]
        };
        assert_eq!(Update::ALL.map(done), [[true; 2], [false; 2], [false; 2]]);
    }
}

/// Each is the exact sum or difference, rounded once to the type.
#[test]
fn updates_round_once() {
    let updated = |update: Update, a: f16, b: f16| update.updated(&[a], &[b]).unwrap()[0];
    let [big, small] = [2048.0, 1.0].map(f16::from_f32);
    assert_eq!(updated(AssignAdd, big, small), big);
    assert_eq!(updated(AssignSub, big, small), f16::from_f32(2047.0));
    assert_eq!(AssignSub.updated(&[bf16::from_f32(0.0)], &[bf16::from_f32(-0.0)]).unwrap()[0].to_bits(), 0);
    assert_eq!(AssignSub.updated(&[0u8, i8::MIN as u8], &[1, 1]), Ok(vec![255, 127]));
    assert_eq!(AssignAdd.updated(&[i32::MAX], &[1]), Ok(vec![i32::MIN]));
}

#[test]
fn each_element_is_updated_alone() {
    fn law<T: Sample>(operands: Ranks<T>) -> bool {
        let alone = |at: usize| operands.0.iter().map(|operand| vec![operand[at]]).collect::<Vec<_>>();
        let elements: Vec<Vec<Variable<T>>> = (0..operands.0[0].len().min(3)).map(|at| variables(&alone(at))).collect();
        let at = |variable: &Variable<T>, at: usize| -> Vec<Vec<T>> {
            variable.components().iter().map(|component| vec![component[at]]).collect()
        };
        variables(&operands.0).iter().enumerate().all(|(kind, variable)| {
            Update::ALL.into_iter().all(|update| {
                let whole = variable.assign_in_replicas(update, &operands.0);
                let across = variable.assign_across(update, &operands.0[0]);
                elements.iter().enumerate().all(|(place, elements)| {
                    let same =
                        |whole: &Result<Variable<T>, Refused>, one: Result<Variable<T>, Refused>| match (whole, one) {
                            (Ok(whole), Ok(one)) => all_keys(&at(whole, place)) == all_keys(one.components()),
                            (whole, one) => whole.is_err() && one.is_err(),
                        };
                    same(&whole, elements[kind].assign_in_replicas(update, &alone(place)))
                        && same(&across, elements[kind].assign_across(update, &alone(place)[0]))
                })
            })
        })
    }
    for_each_dtype!(for_ranks law);
}

#[test]
fn components_synchronised_on_writing_stay_equal() {
    fn law<T: Sample>(operands: Ranks<T>) -> bool {
        variables(&operands.0).iter().filter(|variable| variable.synchronization() == OnWrite).all(|variable| {
            Update::ALL.into_iter().all(|update| {
                let in_replicas = variable.assign_in_replicas(update, &operands.0);
                let after = [in_replicas, variable.assign_across(update, &operands.0[0])];
                after.into_iter().flatten().all(|after| {
                    let components = all_keys(after.components());
                    components.iter().all(|component| *component == components[0])
                        && keys(&after.read_across().unwrap()) == components[0]
                })
            })
        })
    }
    for_each_dtype!(for_ranks law);
}

#[test]
fn an_operand_of_another_shape_is_refused() {
    fn law<T: Sample>(operands: Ranks<T>) -> bool {
        let mut longer = operands.0.clone();
        longer.iter_mut().for_each(|operand| operand.push(T::default()));
        variables(&operands.0).iter().all(|variable| {
            Update::ALL.into_iter().all(|update| {
                variable.assign_in_replicas(update, &longer).is_err()
                    && variable.assign_across(update, &longer[0]).is_err()
            })
        })
    }
    for_each_dtype!(for_ranks law);
}

/// Integers have no rounding, so that what is added is taken away again, in every kind of variable.
#[test]
fn subtraction_undoes_addition_of_integers() {
    fn law<T: Sample>(operands: Ranks<T>) -> bool {
        let is_exact = T::DTYPE.name().starts_with(['i', 'u']);
        !is_exact
            || variables(&operands.0).iter().all(|variable| {
                let added = variable.assign_in_replicas(AssignAdd, &operands.0);
                let in_replicas = added.map(|added| added.assign_in_replicas(AssignSub, &operands.0));
                let added = variable.assign_across(AssignAdd, &operands.0[0]).unwrap();
                let across = added.assign_across(AssignSub, &operands.0[0]);
                in_replicas.map_or(true, |result| result == Ok(variable.clone())) && across == Ok(variable.clone())
            })
    }
    for_each_dtype!(for_ranks law);
}

quickcheck! {
    fn a_value_assigned_across_is_read(value: i32, before: Vec<i32>) -> bool {
        let operands: Vec<Vec<i32>> = before.into_iter().chain([0]).map(|operand| vec![operand]).collect();
        variables(&operands).iter().all(|variable| {
            let assigned = variable.assign_across(Assign, &[value]).unwrap();
            assigned.read_across().map_or(true, |read| read == [value])
        })
    }

    fn a_value_added_across_is_read(value: i32, before: Vec<i32>) -> bool {
        let operands: Vec<Vec<i32>> = before.into_iter().chain([0]).map(|operand| vec![operand]).collect();
        let variable = Variable::new(Placement::EachReplica, OnRead, Sum, operands.len(), &[0]).unwrap();
        let variable = variable.assign_in_replicas(Assign, &operands).unwrap();
        let added = variable.assign_across(AssignAdd, &[value]).unwrap();
        added.read_across().unwrap() == [variable.read_across().unwrap()[0].wrapping_add(value)]
    }
}
