use consonance_spec::{
    VariableAggregation::{self, Mean, OnlyFirstReplica, Sum},
    VariableSynchronization::{self, Auto, OnRead, OnWrite},
    variable::*,
};
use quickcheck::quickcheck;

const AGGREGATIONS: [VariableAggregation; 4] = [VariableAggregation::None, Sum, Mean, OnlyFirstReplica];

fn set<T>(_: T, operand: T) -> T {
    operand
}

#[test]
fn which_variables_can_be() {
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

/// A strategy with a single copy has every variable, and its copies never differ.
#[test]
fn where_variables_are() {
    for requested in [Auto, OnWrite, OnRead, VariableSynchronization::None] {
        let single = Placement::One.synchronization(requested);
        assert_eq!(create::<f32>(single, Mean), Ok(()));
        let components = assign_in_replicas(single, Mean, &[10.0f32; 2], &[1.0, 2.0], set).unwrap();
        assert_eq!(components, [1.5; 2], "{requested:?}");
        let several = Placement::EachReplica.synchronization(requested);
        assert_eq!(create::<f32>(several, Mean).is_ok(), requested != VariableSynchronization::None);
        assert_eq!(several == OnRead, requested == OnRead);
    }
    assert_eq!([Placement::One, Placement::EachReplica].map(|placement| placement.local_copies(3)), [1, 3]);
}

/// The replicas assign the operands 1 and 2 to the components 10 and 20, with each aggregation.
#[test]
fn the_table_of_assignments_in_replicas() {
    let table = |synchronization, update: fn(f32, f32) -> f32| {
        AGGREGATIONS.map(|aggregation| {
            assign_in_replicas(synchronization, aggregation, &[10.0, 20.0], &[1.0, 2.0], update).ok()
        })
    };
    let rows = |rows: [[f32; 2]; 3]| rows.map(|row| Some(row.to_vec()));
    for synchronization in [Auto, OnWrite] {
        let [none, aggregated @ ..] = table(synchronization, set);
        assert_eq!((none, aggregated), (None, rows([[3.0, 3.0], [1.5, 1.5], [1.0, 1.0]])));
        let [none, aggregated @ ..] = table(synchronization, |a, b| a + b);
        assert_eq!((none, aggregated), (None, rows([[13.0, 23.0], [11.5, 21.5], [11.0, 21.0]])));
    }
    assert_eq!(table(OnRead, set), [[1.0, 2.0]; 4].map(|row| Some(row.to_vec())));
    assert_eq!(table(OnRead, |a, b| a - b), [[9.0, 18.0]; 4].map(|row| Some(row.to_vec())));
}

#[test]
fn the_table_of_assignments_across() {
    let table = |synchronization, update: fn(f32, f32) -> f32| {
        AGGREGATIONS.map(|aggregation| assign_across(synchronization, aggregation, &[10.0, 20.0], 3.0, update).unwrap())
    };
    assert_eq!(table(OnWrite, set), [[3.0, 3.0]; 4]);
    assert_eq!(table(OnRead, set), [[3.0, 3.0], [1.5, 1.5], [3.0, 3.0], [3.0, 3.0]]);
    assert_eq!(table(OnRead, |a, b| a + b), [[13.0, 23.0], [11.5, 21.5], [13.0, 23.0], [13.0, 23.0]]);
}

#[test]
fn the_table_of_reads() {
    let table =
        |synchronization| AGGREGATIONS.map(|aggregation| read_across(synchronization, aggregation, &[1.0, 2.0]));
    assert_eq!(table(OnWrite), [Ok(1.0); 4]);
    assert_eq!(table(OnRead), [Err(Refused), Ok(3.0), Ok(1.5), Ok(1.0)]);
}

#[test]
fn one_replica_needs_no_aggregation() {
    assert_eq!(assign_in_replicas(OnWrite, VariableAggregation::None, &[1], &[2], set), Ok(vec![2]));
}

quickcheck! {
    fn what_is_assigned_across_is_read(value: i32, before: Vec<i32>) -> bool {
        let components: Vec<i32> = before.into_iter().chain([0]).collect();
        [Auto, OnWrite, OnRead].into_iter().all(|synchronization| {
            [Sum, OnlyFirstReplica].into_iter().all(|aggregation| {
                let assigned = assign_across(synchronization, aggregation, &components, value, set).unwrap();
                read_across(synchronization, aggregation, &assigned) == Ok(value)
            })
        })
    }

    fn what_is_added_across_is_added_to_what_is_read(value: i32, before: Vec<i32>) -> bool {
        let components: Vec<i32> = before.into_iter().chain([0]).collect();
        let read = |components: &[i32]| read_across(OnRead, Sum, components).unwrap();
        let added = assign_across(OnRead, Sum, &components, value, i32::wrapping_add).unwrap();
        read(&added) == read(&components).wrapping_add(value)
    }

    fn components_synchronised_on_writing_stay_equal(start: f64, operands: Vec<f64>) -> bool {
        let operands: Vec<f64> = operands.into_iter().chain([1.0]).collect();
        let components = vec![start; operands.len()];
        [Sum, Mean, OnlyFirstReplica].into_iter().all(|aggregation| {
            let bits = |value: &f64| value.to_bits();
            let after = assign_in_replicas(OnWrite, aggregation, &components, &operands, |a, b| a + b).unwrap();
            after.len() == operands.len() && after.iter().map(bits).all(|value| value == after[0].to_bits())
        })
    }
}
