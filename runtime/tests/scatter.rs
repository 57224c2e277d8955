//! Updates of rows of a variable, compared with what `spec` says of them.

mod fields;

use consonance::{
    Error, IndexedSlices, MirroredStrategy, PerReplica, Strategy, Tensor, Variable, VariableAggregation,
    VariableSynchronization,
};
use consonance_spec::{array::Array, sparse};
use fields::{found, mismatch, refusal, told};

const SHAPE: [usize; 2] = [4, 2];

/// Rows of one replica. Their values are inexact in f32, and some indices occur more than once.
fn rows(replica: usize) -> sparse::IndexedSlices<f32> {
    let indices: Vec<i64> = [vec![1, 3, 1], vec![], vec![3, 1]][replica % 3].clone();
    let data = (0..2 * indices.len()).map(|place| 0.1 + (replica * 7 + place) as f32 / 3.0).collect();
    sparse::IndexedSlices { values: Array::new(&[indices.len(), 2], data), indices, dense_shape: SHAPE.to_vec() }
}

fn tensor_rows(rows: &sparse::IndexedSlices<f32>) -> IndexedSlices {
    let values = Tensor::new([rows.indices.len(), 2], &rows.values.data).unwrap();
    IndexedSlices::new(values, Tensor::from(rows.indices.clone()), None).unwrap()
}

fn initial() -> Vec<f32> {
    vec![0.1, 0.2, 0.3, 0.4, -0.0, 0.6, 0.7, 0.8]
}

fn variable(strategy: &Strategy, aggregation: VariableAggregation) -> Variable {
    let builder = Variable::builder(|| Tensor::new(SHAPE, &initial()).unwrap()).aggregation(aggregation);
    strategy.scope(|| builder.build()).unwrap()
}

fn expected(rows: &sparse::IndexedSlices<f32>, sign: f32) -> Vec<u32> {
    let target = Array::new(&SHAPE, initial());
    let found = sparse::scatter(&target, rows, |element, row| element + sign * row).unwrap();
    found.data.iter().map(|element| element.to_bits()).collect()
}

fn bits(variable: &Variable) -> Vec<u32> {
    variable.read().unwrap().as_slice::<f32>().unwrap().iter().map(|element| element.to_bits()).collect()
}

#[test]
fn rows_of_all_replicas_are_aggregated_and_added() {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1", "cpu:2"]).unwrap();
    let all: Vec<_> = (0..3).map(rows).collect();
    let aggregated = [
        (VariableAggregation::Sum, sparse::sum(&all).unwrap()),
        (VariableAggregation::Mean, sparse::mean(&all).unwrap()),
        (VariableAggregation::OnlyFirstReplica, all[0].clone()),
    ];
    for (aggregation, rows) in aggregated {
        for sign in [1.0, -1.0] {
            let variable = variable(&strategy, aggregation);
            let own = PerReplica::new(all.iter().map(tensor_rows).collect::<Vec<_>>());
            let read = strategy.run_with(own, |replica, own| {
                match sign > 0.0 {
                    true => replica.scatter_add(&variable, &own)?,
                    false => replica.scatter_sub(&variable, &own)?,
                }
                variable.read()
            });
            assert_eq!(bits(&variable), expected(&rows, sign), "{aggregation:?}, {sign}");
            // Every replica reads the new value after the call.
            assert!(read.unwrap().iter().all(|read| *read == variable.read().unwrap()));
        }
    }
}

#[test]
fn rows_from_outside_are_added_once() {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let rows = rows(0);
    for sign in [1.0, -1.0] {
        let variable = variable(&strategy, VariableAggregation::None);
        let before = variable.read().unwrap();
        match sign > 0.0 {
            true => variable.scatter_add(&tensor_rows(&rows)).unwrap(),
            false => variable.scatter_sub(&tensor_rows(&rows)).unwrap(),
        }
        assert_eq!(bits(&variable), expected(&rows, sign));
        assert_eq!(before.as_slice::<f32>().unwrap(), initial(), "what was read does not change");
    }
}

#[test]
fn a_component_has_the_rows_of_its_replica() {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1", "cpu:2"]).unwrap();
    let builder = Variable::builder(|| Tensor::new(SHAPE, &initial()).unwrap())
        .synchronization(VariableSynchronization::OnRead)
        .aggregation(VariableAggregation::Sum);
    let variable = strategy.scope(|| builder.build()).unwrap();
    let own = PerReplica::new((0..3).map(|replica| tensor_rows(&rows(replica))).collect::<Vec<_>>());
    strategy.run_with(own, |replica, own| replica.scatter_add(&variable, &own)).unwrap();
    for (replica, component) in strategy.local_results(&variable).iter().enumerate() {
        let found: Vec<u32> = component.as_slice::<f32>().unwrap().iter().map(|element| element.to_bits()).collect();
        assert_eq!(found, expected(&rows(replica), 1.0));
    }
    let error = variable.scatter_add(&tensor_rows(&rows(0))).unwrap_err();
    assert_eq!(refusal(&error), ("Variable::scatter_add", "variable", None));
}

#[test]
fn mismatched_rows_are_refused_on_all_replicas() {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let variable = variable(&strategy, VariableAggregation::Sum);
    let slices =
        |values: Tensor, indices: Vec<i64>, shape| IndexedSlices::new(values, Tensor::from(indices), shape).unwrap();
    let refused = [
        (slices(Tensor::from([[1.0f64, 2.0]]), vec![0], None), "rows", "rows of f64[2]"),
        (slices(Tensor::from([[1.0f32]]), vec![0], None), "rows", "rows of f32[1]"),
        (slices(Tensor::from([[1.0f32, 2.0]]), vec![4], None), "indices[0]", "4"),
        (slices(Tensor::from([[1.0f32, 2.0]]), vec![0], Some(vec![5, 2])), "rows", "shape [5, 2]"),
    ];
    for (rows, argument, value) in refused {
        let error = variable.scatter_add(&rows).unwrap_err();
        assert_eq!((refusal(&error), found(&error)), (("Variable::scatter_add", argument, None), value));
        let results = strategy.run(|replica| {
            let fits = tensor_rows(&self::rows(0));
            let own = if replica.replica_id_in_sync_group() == 1 { &rows } else { &fits };
            Ok(replica.scatter_add(&variable, own).unwrap_err())
        });
        let [other, own] = &results.unwrap().into_values()[..] else { unreachable!("two replicas") };
        assert_eq!((refusal(own), found(own)), (("ReplicaContext::scatter_add", argument, Some(1)), value));
        assert_eq!(told(other), ("scatter_add", 1, &*format!("{own}")));
    }
    assert_eq!(variable.read().unwrap().as_slice::<f32>().unwrap(), initial());
    let scalar = strategy.variable(|| Tensor::from(1.0f32)).unwrap();
    assert!(matches!(scalar.scatter_sub(&tensor_rows(&rows(0))), Err(Error::InvalidCall { .. })));
}

#[test]
fn updates_of_different_variables_are_a_mismatch() {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let variables = [(); 2].map(|()| variable(&strategy, VariableAggregation::Sum));
    let error = strategy
        .run(|replica| replica.scatter_add(&variables[replica.replica_id_in_sync_group()], &tensor_rows(&rows(0))));
    assert!(matches!(error, Err(Error::Mismatch { replica: 1, .. })), "{error:?}");
    let error = strategy.run(|replica| match replica.replica_id_in_sync_group() {
        0 => replica.scatter_add(&variables[0], &tensor_rows(&rows(0))),
        _ => replica.scatter_sub(&variables[0], &tensor_rows(&rows(0))),
    });
    let error = error.unwrap_err();
    assert_eq!(mismatch(&error), ("scatter_add", "call", 1, "scatter_add", "scatter_sub"));
}
