//! Parameter servers, played by threads.

use consonance::{
    ClusterCoordinator, DType, Error, IndexedSlices, ParameterServerStrategy, Result, Tensor,
    parameter_server::{Argument, FixedShardsPartitioner, OnError, Order, PerWorker},
};
use std::{num::NonZeroUsize, time::Duration};

const LIMIT: Duration = Duration::from_secs(60);

fn scheduled(window: usize) -> Order {
    Order::Scheduled { window: NonZeroUsize::new(window).unwrap() }
}

#[test]
fn closures_change_variables_once_each() -> Result<()> {
    let strategy = ParameterServerStrategy::threads(3, 2)?;
    let total = strategy.variable(|| Tensor::from(0i64))?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let add = coordinator.function("add", {
        let total = total.clone();
        move |worker, number: i64| {
            worker.assign_add(&total, &Tensor::from(number))?;
            Ok(2 * number)
        }
    })?;
    let doubled = (1..=1000).map(|number| coordinator.schedule(&add, number)).collect::<Result<Vec<_>>>()?;
    coordinator.join(LIMIT)?;
    assert_eq!(total.read()?, Tensor::from(500_500i64));
    assert_eq!(doubled[999].fetch(LIMIT)?, 2000);
    Ok(())
}

#[test]
fn a_closure_sees_its_own_effects_and_leaves_none_if_it_fails() -> Result<()> {
    let builder = ParameterServerStrategy::builder_of_threads(2, 2).partitioner(FixedShardsPartitioner::new(2)?);
    let strategy = builder.on_error(OnError::Continue).build()?;
    let table = strategy.variable(|| Tensor::from([[1i32, 2], [3, 4], [5, 6]]))?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let rows = |indices: Tensor, rows: Tensor| IndexedSlices::new(rows, indices, None);
    let change = coordinator.function("change", {
        let table = table.clone();
        move |worker, fails: bool| {
            worker.scatter_add(
                &table,
                &rows(Tensor::from([2i64, 0, 2]), Tensor::from([[10, 10], [20, 20], [30, 30]]))?,
            )?;
            worker.scatter_update(&table, &rows(Tensor::from([1i64]), Tensor::from([[0, 7]]))?)?;
            worker.assign_sub(&table, &Tensor::from([[1, 1], [1, 1], [1, 1]]))?;
            let seen = (
                worker.read(&table)?,
                worker.lookup(&table, &Tensor::from([2i32, 1, 2]))?,
                worker.read_rows(&table, 0..1)?,
            );
            if fails { Err(Error::other("as asked")) } else { Ok(seen) }
        }
    })?;
    let fails = coordinator.schedule(&change, true)?;
    let error = coordinator.join(LIMIT).unwrap_err();
    let Error::Closures { failures, .. } = &error else { panic!("{error}") };
    assert_eq!((failures.len(), &*failures[0].function, failures[0].number), (1, "change", 0));
    assert!(fails.fetch(LIMIT).is_err());
    assert_eq!(table.read()?, Tensor::from([[1i32, 2], [3, 4], [5, 6]]));
    let seen = coordinator.schedule(&change, false)?;
    coordinator.join(LIMIT)?;
    let after = Tensor::from([[20, 21], [-1, 6], [44, 45]]);
    let looked_up = Tensor::from([[44, 45], [-1, 6], [44, 45]]);
    assert_eq!(seen.fetch(LIMIT)?, (after.clone(), looked_up, Tensor::from([[20, 21]])));
    assert_eq!(table.read()?, after);
    Ok(())
}

#[test]
fn in_a_window_all_read_the_window_before() -> Result<()> {
    for workers in 1..=4 {
        let strategy = ParameterServerStrategy::builder_of_threads(workers, 2).order(scheduled(4)).build()?;
        let total = strategy.variable(|| Tensor::from(1i64))?;
        let coordinator = ClusterCoordinator::new(&strategy);
        let double = coordinator.function("double", {
            let total = total.clone();
            move |worker, _: ()| {
                let value = worker.read(&total)?;
                worker.assign_add(&total, &value)?;
                value.item::<i64>()
            }
        })?;
        let seen = (0..10).map(|_| coordinator.schedule(&double, ())).collect::<Result<Vec<_>>>()?;
        coordinator.join(LIMIT)?;
        let seen = seen.iter().map(|seen| seen.fetch(LIMIT)).collect::<Result<Vec<_>>>()?;
        assert_eq!(seen, [1, 1, 1, 1, 5, 5, 5, 5, 25, 25], "{workers} workers");
        assert_eq!(total.read()?, Tensor::from(75i64));
    }
    Ok(())
}

#[test]
fn results_are_arguments_and_an_error_cancels_their_receivers() -> Result<()> {
    let strategy = ParameterServerStrategy::builder_of_threads(2, 1).on_error(OnError::Continue).build()?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let half = coordinator.function("half", |_, number: u32| match number % 2 {
        0 => Ok(number / 2),
        _ => Err(Error::other("it is odd")),
    })?;
    let add = coordinator.function("add", |_, (left, right): (u32, u32)| Ok(left + right))?;
    let (good, bad) = (coordinator.schedule(&half, 20)?, coordinator.schedule(&half, 21)?);
    let sum = coordinator.schedule(&add, Argument::from(&good).and(&good))?;
    let cancelled = coordinator.schedule(&add, Argument::from(&sum).and(&bad))?;
    assert_eq!(sum.fetch(LIMIT)?, 20);
    let Error::WrongContext { problem, .. } = cancelled.fetch(LIMIT).unwrap_err() else { panic!("not cancelled") };
    assert!(problem.starts_with("closure 3 of \"add\" was cancelled; closure 1 of \"half\""), "{problem}");
    assert!(matches!(coordinator.join(LIMIT), Err(Error::Closures { failures, .. }) if failures.len() == 1));
    coordinator.join(LIMIT)?;
    let values = coordinator.schedule(&half, PerWorker(vec![2, 4]))?.fetch(LIMIT)?;
    assert!(values == 1 || values == 2);
    Ok(())
}

#[test]
fn a_panic_and_a_hanging_closure_fail_alone() -> Result<()> {
    let builder = ParameterServerStrategy::builder_of_threads(2, 1).on_error(OnError::Continue);
    let strategy = builder.closure_timeout(Duration::from_secs(2)).build()?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let odd = coordinator.function("odd", move |_, kind: u8| match kind {
        0 => Ok(7u8),
        1 => panic!("oh"),
        _ => {
            let _ = released.lock().unwrap().recv();
            Ok(8)
        }
    })?;
    let [fine, panics, hangs] = [0, 1, 2].map(|kind| coordinator.schedule(&odd, kind));
    let (fine, panics, hangs) = (fine?, panics?, hangs?);
    let error = coordinator.join(LIMIT).unwrap_err();
    let Error::Closures { mut failures, .. } = error else { panic!("{error}") };
    failures.sort_by_key(|failure| failure.number);
    assert!(matches!(&failures[0].error, Error::Panic { message, .. } if message == "oh"));
    assert!(matches!(&failures[1].error, Error::Timeout { .. }), "{}", failures[1]);
    assert!(panics.fetch(LIMIT).is_err() && hangs.fetch(LIMIT).is_err());
    // The other worker goes on, and this one when its closure has ended.
    assert_eq!(coordinator.schedule(&odd, 0)?.fetch(LIMIT)?, 7);
    release.send(()).unwrap();
    let more = (0..100).map(|_| coordinator.schedule(&odd, 0)).collect::<Result<Vec<_>>>()?;
    coordinator.join(LIMIT)?;
    assert_eq!((fine.fetch(LIMIT)?, more[99].fetch(LIMIT)?), (7, 7));
    Ok(())
}

#[test]
fn bad_input_is_refused_and_nothing_commits() -> Result<()> {
    let strategy = ParameterServerStrategy::builder_of_threads(1, 1).on_error(OnError::Continue).build()?;
    let table = strategy.variable(|| Tensor::zeros(DType::F32, [3, 2]))?;
    let other = ParameterServerStrategy::threads(1, 1)?.variable(|| Tensor::from(1.0f32))?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let bad = coordinator.function("bad", {
        let table = table.clone();
        move |worker, kind: u8| {
            worker.assign_add(&table, &Tensor::new([3, 2], &[1.0f32; 6])?)?;
            match kind {
                0 => worker.lookup(&table, &Tensor::from([0i64, 3])).map(drop),
                1 => worker.assign(&table, &Tensor::from([1.0f64])),
                2 => worker.scatter_sub(
                    &table,
                    &IndexedSlices::new(Tensor::from([[1.0f32, 1.0]]), Tensor::from([5i64]), None)?,
                ),
                3 => worker.read(&other).map(drop),
                _ => worker.read_rows(&table, 2..4).map(drop),
            }
        }
    })?;
    let arguments = ["indices[1]", "value", "indices[0]", "variable", "rows"];
    for (kind, argument) in (0..).zip(arguments) {
        coordinator.schedule(&bad, kind)?;
        let Err(Error::Closures { failures, .. }) = coordinator.join(LIMIT) else { panic!("no failure of {argument}") };
        let Error::InvalidCall { call, argument: found, .. } = &failures[0].error else { panic!("{}", failures[0]) };
        assert!(call.starts_with("WorkerContext::") && found == argument, "{}", failures[0]);
    }
    assert_eq!(table.read()?, Tensor::zeros(DType::F32, [3, 2]));
    let late = strategy.variable(|| Tensor::from(0)).unwrap_err();
    assert!(matches!(late, Error::WrongContext { .. }), "{late}");
    let values = coordinator.schedule(&bad, PerWorker(vec![0, 1])).unwrap_err();
    assert!(matches!(values, Error::InvalidCall { .. }), "{values}");
    let elsewhere = ClusterCoordinator::new(&ParameterServerStrategy::threads(1, 1)?);
    let function = elsewhere.function("bad", |_, kind: u8| Ok(kind))?;
    let refused = coordinator.schedule(&function, 0).unwrap_err();
    assert!(matches!(refused, Error::InvalidCall { argument, .. } if argument == "function"));
    let result = elsewhere.schedule(&function, 0)?;
    let refused = coordinator.schedule(&bad, &result).unwrap_err();
    assert!(matches!(refused, Error::InvalidCall { argument, .. } if argument == "argument"));
    assert!(elsewhere.function("bad", |_, kind: u8| Ok(kind)).is_err());
    assert!(ParameterServerStrategy::threads(0, 1).is_err() && ParameterServerStrategy::threads(1, 0).is_err());
    Ok(())
}
