//! One call of each sort on a strategy.

use consonance::{Device, Error, PerReplica, ReduceOp, Result, Strategy, Tensor};

/// Returns a tensor of the replica on a device, in the memory that a test is about.
pub(crate) type Placed = fn(&Tensor, Device) -> Tensor;

pub(crate) fn here(tensor: &Tensor, _: Device) -> Tensor {
    tensor.clone()
}

/// Elements whose sum depends on the order.
pub(crate) fn of(replica: usize, rows: usize) -> Tensor {
    let elements: Vec<f32> = (0..rows * 2).map(|index| 0.1 + 1e7 / (1 + index + 7 * replica) as f32).collect();
    Tensor::new([rows, 2], &elements).expect("the shape of the elements")
}

/// Returns the results of one call of each sort on the strategy.
pub(crate) fn results(strategy: &Strategy, place: Placed) -> Result<Vec<Tensor>> {
    let place = |replica: usize, rows: usize| place(&of(replica, rows), strategy.worker_devices()[replica]);
    let replicas = strategy.num_replicas_in_sync();
    let values: PerReplica<Tensor> = (0..replicas).map(|replica| place(replica, replicas)).collect();
    let ragged: PerReplica<Tensor> = (0..replicas).map(|replica| place(replica, replica)).collect();
    let weights = strategy.variable(|| of(0, 1))?;
    let in_run = strategy.run(|replica| {
        let id = replica.replica_id_in_sync_group();
        let own = || place(id, replicas);
        // A tensor that is shared, one that is not, and small ones of the host that are packed.
        let mut results = replica.all_reduce(ReduceOp::Sum, vec![values[id].clone(), own(), of(id, 1), of(id, 2)])?;
        results.push(replica.all_gather(ragged[id].clone(), 0)?);
        results.push(replica.broadcast(own(), replicas - 1)?);
        results.push(replica.reduce_scatter(ReduceOp::Mean, own())?);
        results.push(replica.merge_call(results[0].clone(), |strategy, all| {
            Ok(strategy.mirror(strategy.reduce(ReduceOp::Max, &all, None)?))
        })?);
        results.extend(replica.overlap(|buckets| {
            let pending = [buckets.all_reduce(ReduceOp::Sum, own())?, buckets.all_reduce(ReduceOp::Min, own())?];
            pending.into_iter().map(|pending| pending.wait()).collect::<Result<Vec<_>>>()
        })?);
        // A variable lies in host memory.
        replica.assign_add(&weights, of(id, 1)).or_else(|error| match error {
            Error::InvalidCall { argument, .. } if argument == "aggregation" => Ok(()),
            error => Err(error),
        })?;
        Ok(results)
    })?;
    let mut results = in_run.into_values().concat();
    for op in [ReduceOp::Sum, ReduceOp::Mean] {
        results.push(strategy.reduce(op, &values, None)?);
    }
    results.extend([strategy.gather(&values, 1)?, strategy.gather(&ragged, 0)?, weights.read()?]);
    Ok(results)
}
