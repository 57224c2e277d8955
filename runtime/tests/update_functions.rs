//! Functions that servers run to update variables with their slots, and updates at once.

use consonance::{
    ClusterCoordinator, DType, Error, IndexedSlices, ParameterServerStrategy, Result, ShardedVariable, Tensor,
    parameter_server::{FixedShardsPartitioner, OnError, Order, UpdateFunction, Updates},
};
use std::{num::NonZeroUsize, time::Duration};

const LIMIT: Duration = Duration::from_secs(60);

/// Declares the step of momentum: the slot keeps half of what it has, and gets the gradient.
fn momentum(strategy: &ParameterServerStrategy) -> Result<UpdateFunction<1>> {
    strategy.update_function("momentum", |weights, [velocity], gradients| {
        let (weights, velocity) = (weights.as_mut_slice::<f32>()?, velocity.as_mut_slice::<f32>()?);
        for ((weight, velocity), gradient) in weights.iter_mut().zip(velocity).zip(gradients.as_slice::<f32>()?) {
            *velocity = 0.5 * *velocity - gradient;
            *weight += *velocity;
        }
        Ok(())
    })
}

fn rows(indices: &[i64], values: &[[f32; 2]]) -> Result<IndexedSlices> {
    IndexedSlices::new(
        Tensor::new([values.len(), 2], values.as_flattened())?,
        Tensor::new([indices.len()], indices)?,
        None,
    )
}

#[test]
fn rows_with_gradients_are_updated_once_each() -> Result<()> {
    for shards in 1..=3 {
        let builder = ParameterServerStrategy::builder_of_threads(2, 2);
        let strategy = builder.partitioner(FixedShardsPartitioner::new(shards)?).build()?;
        let table = strategy.variable(|| Tensor::from([[0.0f32, 1.0], [2.0, 3.0], [4.0, 5.0]]))?;
        let velocity = strategy.slot(&table, || Tensor::zeros(DType::F32, [3, 2]))?;
        assert_eq!(velocity.shards(), table.shards());
        let momentum = momentum(&strategy)?;
        let coordinator = ClusterCoordinator::new(&strategy);
        let step = coordinator.function("step", {
            let (table, velocity) = (table.clone(), velocity.clone());
            move |worker, gradients: IndexedSlices| {
                worker.update_rows(&momentum, &table, [&velocity], &gradients)?;
                // The function runs again, after itself, and on rows that were assigned.
                worker.scatter_update(&table, &rows(&[1], &[[100.0, 100.0]])?)?;
                worker.update(&momentum, &table, [&velocity], &Tensor::zeros(DType::F32, [3, 2]))?;
                Ok((worker.read(&table)?, worker.lookup(&velocity, &Tensor::from([2i64, 0, 2]))?))
            }
        })?;
        let gradients = rows(&[2, 0, 2], &[[1.0, 2.0], [10.0, 20.0], [3.0, 4.0]])?;
        let seen = coordinator.schedule(&step, gradients)?.fetch(LIMIT)?;
        let after = Tensor::from([[-15.0f32, -29.0], [100.0, 100.0], [-2.0, -4.0]]);
        assert_eq!(seen, (after.clone(), Tensor::from([[-2.0f32, -3.0], [-5.0, -10.0], [-2.0, -3.0]])));
        coordinator.join(LIMIT)?;
        assert_eq!(table.read()?, after);
        assert_eq!(velocity.read()?, Tensor::from([[-5.0f32, -10.0], [0.0, 0.0], [-2.0, -3.0]]));
    }
    Ok(())
}

#[test]
fn scalars_and_slots_of_other_types_are_updated() -> Result<()> {
    let strategy = ParameterServerStrategy::threads(1, 2)?;
    let (table, scalar) =
        (strategy.variable(|| Tensor::from([1.0f64, 2.0]))?, strategy.variable(|| Tensor::from(8i32))?);
    let counts = strategy.slot(&table, || Tensor::zeros(DType::U64, [2, 0]))?;
    let of_scalar = strategy.slot(&scalar, || Tensor::from(0.5f32))?;
    let count = strategy.update_function("count", |table, [_counts], gradient| {
        table.as_mut_slice::<f64>()?[0] += gradient.as_slice::<f64>()?[0];
        Ok(())
    })?;
    let halve = strategy.update_function("halve", |value, [factor], gradient| {
        let factor = factor.as_mut_slice::<f32>()?;
        value.as_mut_slice::<i32>()?[0] = (gradient.item::<i32>()? as f32 * factor[0]) as i32;
        factor[0] *= 0.5;
        Ok(())
    })?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let step = coordinator.function("step", {
        let (table, scalar, of_scalar) = (table.clone(), scalar.clone(), of_scalar.clone());
        move |worker, ()| {
            let row = IndexedSlices::new(Tensor::from([0.5f64]), Tensor::from([1i32]), None)?;
            worker.update_rows(&count, &table, [&counts], &row)?;
            worker.update(&halve, &scalar, [&of_scalar], &Tensor::from(12i32))
        }
    })?;
    coordinator.schedule(&step, ())?;
    coordinator.join(LIMIT)?;
    assert_eq!(table.read()?, Tensor::from([1.0f64, 2.5]));
    assert_eq!((scalar.read()?, of_scalar.read()?), (Tensor::from(6i32), Tensor::from(0.25f32)));
    Ok(())
}

#[test]
fn bad_updates_are_refused_where_they_are_called() -> Result<()> {
    let builder = ParameterServerStrategy::builder_of_threads(1, 2).partitioner(FixedShardsPartitioner::new(2)?);
    let strategy = builder.on_error(OnError::Continue).build()?;
    let table = strategy.variable(|| Tensor::zeros(DType::F32, [3, 2]))?;
    let slot = strategy.slot(&table, || Tensor::zeros(DType::F32, [3, 2]))?;
    let apart = strategy.variable(|| Tensor::zeros(DType::F32, [4, 2]))?;
    let truths = strategy.variable(|| Tensor::from([true, false, true]))?;
    let momentum = momentum(&strategy)?;
    let other = ParameterServerStrategy::threads(1, 1)?;
    let (of_other, elsewhere) = (other.variable(|| Tensor::from(1.0f32))?, self::momentum(&other)?);
    let refused = |result: Result<ShardedVariable>| match result {
        Err(Error::InvalidCall { argument, .. }) => argument,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(strategy.slot(&table, || Tensor::zeros(DType::F32, [4, 2]))), "value");
    assert_eq!(refused(strategy.slot(&table, || Tensor::from(1.0f32))), "value");
    assert_eq!(refused(strategy.slot(&of_other, || Tensor::from(1.0f32))), "of");
    let taken = strategy.update_function("momentum", |_, [], _| Ok(())).unwrap_err();
    assert!(matches!(&taken, Error::InvalidCall { argument, .. } if argument == "name"), "{taken}");
    let coordinator = ClusterCoordinator::new(&strategy);
    let bad = coordinator.function("bad", {
        let table = table.clone();
        move |worker, kind: u8| {
            let gradient = Tensor::zeros(DType::F32, [3, 2]);
            worker.update(&momentum, &table, [&slot], &gradient)?;
            match kind {
                0 => worker.update(&elsewhere, &table, [&slot], &gradient),
                1 => worker.update(&momentum, &of_other, [&slot], &gradient),
                2 => worker.update(&momentum, &table, [&of_other], &gradient),
                3 => worker.update(&momentum, &table, [&apart], &gradient),
                4 => worker.update(&momentum, &table, [&table], &gradient),
                5 => worker.update(&momentum, &table, [&slot], &Tensor::zeros(DType::F32, [2, 2])),
                6 => worker.update(&momentum, &truths, [&slot], &Tensor::from([true; 3])),
                _ => worker.update_rows(&momentum, &table, [&slot], &rows(&[3], &[[1.0, 1.0]])?),
            }
        }
    })?;
    let arguments = ["function", "variable", "slots[0]", "slots[0]", "slots[0]", "value", "variable", "indices[0]"];
    for (kind, argument) in (0..).zip(arguments) {
        coordinator.schedule(&bad, kind)?;
        let Err(Error::Closures { failures, .. }) = coordinator.join(LIMIT) else { panic!("no failure of {kind}") };
        let Error::InvalidCall { call, argument: found, .. } = &failures[0].error else { panic!("{}", failures[0]) };
        assert!(call.starts_with("WorkerContext::update") && found == argument, "{}", failures[0]);
    }
    assert_eq!(table.read()?, Tensor::zeros(DType::F32, [3, 2]));
    Ok(())
}

/// Schedules an update by a function, and returns the error of the calls that follow.
fn error_of(update: impl Fn(&mut Tensor, &mut [Tensor; 0], &Tensor) -> Result<()> + Send + Sync + 'static) -> Error {
    let strategy = ParameterServerStrategy::threads(1, 2).unwrap();
    let table = strategy.variable(|| Tensor::from([1.0f32, 2.0])).unwrap();
    let function = strategy.update_function("odd", update).unwrap();
    let coordinator = ClusterCoordinator::new(&strategy);
    let step = coordinator.function("step", {
        let table = table.clone();
        move |worker, ()| worker.update(&function, &table, [], &Tensor::from([1.0f32, 1.0]))
    });
    coordinator.schedule(&step.unwrap(), ()).unwrap();
    let error = coordinator.join(LIMIT).unwrap_err();
    let (Error::Other(first), Err(Error::Other(next))) = (&error, table.read()) else { panic!("{error}") };
    assert_eq!(first.to_string(), next.to_string());
    error
}

#[test]
fn a_failure_of_a_function_ends_the_strategy() {
    let fails = |error: Error, text: &str| {
        let Error::Other(found) = error else { panic!("{error}") };
        let found = found.to_string();
        assert!(
            found.contains("ps[0]") && found.contains("update function \"odd\"") && found.contains(text),
            "{found}"
        );
    };
    fails(error_of(|_, _, _| Err(Error::other("a bad day"))), "a bad day");
    fails(error_of(|_, _, _| panic!("oh")), "panicked: oh");
    let other = |table: &mut Tensor, _: &mut [Tensor; 0], _: &Tensor| {
        *table = Tensor::from(1i32);
        Ok(())
    };
    fails(error_of(other), "f32[2]");
}

#[test]
fn updates_at_once_stay_also_if_the_closure_fails() -> Result<()> {
    for (updates, expected) in [(Updates::AtEnd, 100i64), (Updates::AtOnce, 200)] {
        let builder = ParameterServerStrategy::builder_of_threads(4, 2).updates(updates);
        let strategy = builder.on_error(OnError::Continue).build()?;
        let total = strategy.variable(|| Tensor::from([0i64, 0]))?;
        let count = strategy.slot(&total, || Tensor::from([0i64, 0]))?;
        let add = strategy.update_function("add", |total, [count], gradient| {
            total.as_mut_slice::<i64>()?[0] += gradient.as_slice::<i64>()?[0];
            count.as_mut_slice::<i64>()?[0] += 1;
            Ok(())
        })?;
        let coordinator = ClusterCoordinator::new(&strategy);
        let step = coordinator.function("step", {
            let (total, count) = (total.clone(), count.clone());
            move |worker, fails: bool| {
                worker.update(&add, &total, [&count], &Tensor::from([3i64, 0]))?;
                worker.assign_add(&total, &Tensor::from([0i64, 1]))?;
                if fails { Err(Error::other("as asked")) } else { Ok(()) }
            }
        })?;
        for number in 0..200 {
            coordinator.schedule(&step, number % 2 == 0)?;
        }
        assert!(coordinator.join(LIMIT).is_err());
        assert_eq!(total.read()?, Tensor::from([3 * expected, expected]));
        assert_eq!(count.read()?, Tensor::from([expected, 0]));
    }
    let order = Order::Scheduled { window: NonZeroUsize::MIN };
    let both = ParameterServerStrategy::builder_of_threads(1, 1).updates(Updates::AtOnce).order(order).build();
    assert!(matches!(both, Err(Error::InvalidCall { argument, .. }) if argument == "updates"));
    Ok(())
}
