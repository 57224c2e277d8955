//! `tf.distribute.ReplicaContext`.

use consonance::{
    MirroredStrategy,
    ReduceOp::{self, Sum},
    Result, Tensor, VariableAggregation,
};

#[test]
fn replica_id_in_sync_group() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let ids = strategy.run(|replica_context| Ok(replica_context.replica_id_in_sync_group()))?;
    assert_eq!(ids.values(), [0, 1]);
    Ok(())
}

#[test]
fn all_reduce_of_one_value() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let sums = strategy.run(|context| context.all_reduce(ReduceOp::Sum, Tensor::from(1.0f32)))?;
    assert_eq!(strategy.local_results(&sums), [Tensor::from(2.0f32), Tensor::from(2.0f32)]);
    Ok(())
}

#[test]
fn all_reduce_of_a_list() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let sums = strategy.run(|context| {
        let (value1, value2) = (Tensor::from(1.0f32), Tensor::from(2.0f32));
        context.all_reduce(ReduceOp::Sum, [value1, value2])
    })?;
    let expected = [Tensor::from(2.0f32), Tensor::from(4.0f32)];
    assert_eq!(strategy.local_results(&sums), [expected.clone(), expected]);
    Ok(())
}

/// The page describes the call in words: the arguments of all replicas, and one result for all.
#[test]
fn merge_call_in_a_step() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let steps = strategy.scope(|| {
        let builder = consonance::Variable::builder(|| Tensor::from(0.0f32));
        builder.aggregation(VariableAggregation::Sum).build()
    })?;
    strategy.run(|context| {
        context.merge_call(Tensor::from(1.0f32), |strategy, ones| {
            let sum = strategy.reduce(Sum, &ones, None)?;
            strategy.update(&steps, |copy| {
                copy.as_mut_slice::<f32>()?[0] += sum.item::<f32>()?;
                Ok(())
            })?;
            Ok(())
        })
    })?;
    assert_eq!(steps.read()?, Tensor::from(2.0f32));
    Ok(())
}

/// The page says "Attempting to compute gradient w.r.t `value` would result in an error" for sparse
/// rows. Here it works.
#[test]
fn gradients_of_indexed_slices() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let gradients = strategy.run(|context| {
        let row = Tensor::from([context.replica_id_in_sync_group() as i64]);
        let upstream = consonance::IndexedSlices::new(Tensor::from([[1.0f32]]), row, Some(vec![2, 1]))?;
        consonance::gradient::all_reduce(context, Sum, upstream)
    })?;
    assert_eq!(gradients[0].to_dense()?, Tensor::from([[1.0f32], [1.0]]));
    Ok(())
}
