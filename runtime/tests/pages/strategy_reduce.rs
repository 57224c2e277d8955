//! `tf.distribute.Strategy.reduce`.

use consonance::{Device, Error, MirroredStrategy, PerReplica, Result, Tensor};

#[test]
fn replica_ids() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let per_replica_result = strategy.run(|context| Ok(Tensor::from(context.replica_id_in_sync_group() as i32)))?;
    assert_eq!(strategy.reduce("SUM", &per_replica_result, None)?, Tensor::from(1));
    Ok(())
}

/// The page checks devices: results are on the devices of their replicas, a total on the requested
/// device.
#[test]
fn devices_of_results() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let devices = strategy.run(|context| Ok(context.devices()))?;
    assert_eq!(devices.values(), [[Device::Cpu(0)], [Device::Cpu(1)]]);
    let ids = strategy.run(|context| Ok(Tensor::from(context.replica_id_in_sync_group() as i32)))?;
    assert_eq!(strategy.reduce_to("SUM", &ids, "cpu:0")?.devices(), [Device::Cpu(0)]);
    Ok(())
}

#[test]
fn a_global_batch_of_eight() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let batch = PerReplica::new(vec![Tensor::from([0i64, 1, 2, 3]), Tensor::from([4i64, 5, 6, 7])]);
    assert_eq!(strategy.reduce("sum", &batch, None)?, Tensor::from([4i64, 6, 8, 10]));
    assert_eq!(strategy.reduce("sum", &batch, 0)?, Tensor::from(28i64));
    Ok(())
}

#[test]
fn a_last_partial_batch_of_six() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let batch = PerReplica::new(vec![Tensor::from([0.0f32, 1.0, 2.0, 3.0]), Tensor::from([4.0f32, 5.0])]);
    assert!(matches!(strategy.reduce("sum", &batch, None), Err(Error::Mismatch { replica: 1, .. })));
    assert_eq!(strategy.reduce("sum", &batch, 0)?, Tensor::from(15.0f32));
    // The mean of six elements, not of two means (3).
    assert_eq!(strategy.reduce("MEAN", &batch, 0)?, Tensor::from(2.5f32));
    Ok(())
}
