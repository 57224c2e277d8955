//! `tf.distribute.experimental.CentralStorageStrategy`.

use consonance::{
    CentralStorageStrategy, ClusterResolver, Dataset, Error, MirroredStrategy, ReduceOp, Result, Tensor,
    TfConfigClusterResolver, Variable,
    dataset::{self, Table},
};

/// `tf.data.Dataset.range`.
fn range(count: i64) -> Result<Table<Tensor>> {
    dataset::from_tensor_slices(Tensor::from((0..count).collect::<Vec<_>>()))
}

fn two_replicas() -> Result<CentralStorageStrategy> {
    CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:0")
}

#[test]
fn a_step_adds_one() -> Result<()> {
    let strategy = CentralStorageStrategy::new(["cpu:0"], "cpu:0")?;
    let dist_dataset = strategy.distribute_dataset(range(5)?.batch(2))?;
    let mut results = Vec::new();
    for x in &dist_dataset {
        let stepped = strategy.run_with(x?, |_, mut val| {
            val.as_mut_slice::<i64>()?.iter_mut().for_each(|val| *val += 1);
            Ok(val)
        })?;
        results.extend(strategy.local_results(&stepped));
    }
    assert_eq!(results, [Tensor::from([1i64, 2]), Tensor::from([3i64, 4]), Tensor::from([5i64])]);
    Ok(())
}

/// A strategy of one process has no resolver. The page uses that of `MultiWorkerMirroredStrategy`,
/// which reads the environment of the process. This is that resolver with the text of the page.
#[test]
fn cluster_resolver() -> Result<()> {
    assert!(two_replicas()?.cluster_resolver().is_none());
    let tf_config = r#"{
        "cluster": {"worker": ["localhost:12345", "localhost:23456"], "ps": ["localhost:34567"]},
        "task": {"type": "worker", "index": 0}
    }"#;
    let resolver = TfConfigClusterResolver::from_text(tf_config)?;
    assert_eq!((resolver.task_type(), resolver.task_id()), (Some("worker"), Some(0)));
    assert_eq!(resolver.cluster_spec().num_tasks("worker")?, 2);
    assert_eq!(resolver.cluster_spec().task_address("ps", 0)?, "localhost:34567");
    Ok(())
}

/// The page prints `PerReplica values [0, 1], [2, 3], …`: these are the batches. Each of two
/// replicas gets one element of a batch.
#[test]
fn a_distributed_dataset() -> Result<()> {
    let strategy = two_replicas()?;
    let steps = strategy.distribute_dataset(range(10)?.batch(2))?.iter().collect::<Result<Vec<_>>>()?;
    assert_eq!(steps.len(), 5);
    for (step, values) in steps.iter().enumerate() {
        let first = 2 * step as i64;
        assert_eq!(values.values(), [Tensor::from([first]), Tensor::from([first + 1])]);
    }
    Ok(())
}

#[test]
fn a_constant_for_each_replica() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let values = strategy.distribute_values_from_function(|_| Tensor::from(1.0f32))?;
    assert_eq!(strategy.local_results(&values), [Tensor::from(1.0f32), Tensor::from(1.0f32)]);
    Ok(())
}

#[test]
fn values_of_an_array_by_replica_id() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let array_value = [3.0f64, 2.0, 1.0];
    let values = strategy
        .distribute_values_from_function(|context| Tensor::from(array_value[context.replica_id_in_sync_group]))?;
    assert_eq!(strategy.local_results(&values), [Tensor::from(3.0f64), Tensor::from(2.0f64)]);
    Ok(())
}

#[test]
fn values_from_the_number_of_replicas() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let values = strategy.distribute_values_from_function(|context| context.num_replicas_in_sync)?;
    assert_eq!(values.values(), [2, 2]);
    Ok(())
}

/// The page first places a value on each device of a TPU. Here a tensor is in the memory of its
/// replica.
#[test]
fn values_made_for_each_device() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let multiple_values: Vec<Tensor> = strategy.worker_devices().iter().map(|_| Tensor::from(1.0f32)).collect();
    let values = strategy
        .distribute_values_from_function(|context| multiple_values[context.replica_id_in_sync_group].clone())?;
    assert_eq!(values.values(), [Tensor::from(1.0f32), Tensor::from(1.0f32)]);
    Ok(())
}

#[test]
fn gather_of_a_column() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let values = strategy.distribute_values_from_function(|_| Tensor::from([[1], [2]]))?;
    assert_eq!(strategy.gather(&values, 0)?, Tensor::from([[1], [2], [1], [2]]));
    Ok(())
}

#[test]
fn gather_along_each_axis() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1", "cpu:2", "cpu:3"])?;
    let single_tensor = Tensor::from([0, 1, 2, 3, 4, 5]).reshape([1, 2, 3])?;
    let values = strategy.distribute_values_from_function(|_| single_tensor.clone())?;
    assert_eq!(strategy.gather(&values, 0)?, Tensor::from([[[0, 1, 2], [3, 4, 5]]; 4]));
    let rows = [[0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5]];
    assert_eq!(strategy.gather(&values, 1)?, Tensor::from([rows]));
    let columns = [[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2], [3, 4, 5, 3, 4, 5, 3, 4, 5, 3, 4, 5]];
    assert_eq!(strategy.gather(&values, 2)?, Tensor::from([columns]));
    Ok(())
}

/// The page distributes `range(10)`, which is not batched: an error, in TensorFlow too. Its
/// results, `[4, 6, 8, 10]` and 28, are those of one batch of eight. Its second `reduce` takes the
/// result of the first; it must take the replicas' values.
#[test]
fn reduce_of_a_distributed_dataset() -> Result<()> {
    let strategy = two_replicas()?;
    let unbatched = strategy.distribute_dataset(range(10)?);
    assert!(matches!(unbatched, Err(Error::InvalidCall { .. })));

    let dist_dataset = strategy.distribute_dataset(range(8)?.batch(8))?;
    let mut last = None;
    for x in &dist_dataset {
        last = Some(strategy.run_with(x?, |_, val| Ok(val))?);
    }
    let result = last.expect("a step");
    assert_eq!(strategy.reduce(ReduceOp::Sum, &result, None)?, Tensor::from([4i64, 6, 8, 10]));
    assert_eq!(strategy.reduce(ReduceOp::Sum, &result, 0)?, Tensor::from(28i64));
    Ok(())
}

#[test]
fn variables_in_and_out_of_scope() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let mirrored_variable = strategy.scope(|| Variable::new(Tensor::from(1.0f32)))?;
    assert_eq!(strategy.local_results(&mirrored_variable), [Tensor::from(1.0f32), Tensor::from(1.0f32)]);
    let regular_variable = Variable::new(Tensor::from(1.0f32))?;
    assert_eq!(strategy.local_results(&regular_variable), [Tensor::from(1.0f32)]);
    Ok(())
}
