//! Parameter servers, played by threads.

use consonance::{
    ClusterCoordinator, DType, Error, IndexedSlices, Nest, ParameterServerStrategy, Result, ShardedVariable, Tensor,
    dataset::{self, InputContext},
    parameter_server::{Argument, FixedShardsPartitioner, OnError, Order, PerWorker},
};
use std::{
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

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

/// Returns the numbers that each worker's closures have taken, if they are all that it has taken,
/// each once.
fn all_taken(taken: impl IntoIterator<Item = (usize, Vec<i64>)>, workers: usize) -> Vec<usize> {
    let mut all = vec![Vec::new(); workers];
    taken.into_iter().for_each(|(worker, numbers)| all[worker].extend(numbers));
    let count = |(worker, mut numbers): (usize, Vec<i64>)| {
        numbers.sort_unstable();
        let first = 1000 * worker as i64;
        assert!(numbers.iter().copied().eq(first..first + numbers.len() as i64), "worker {worker}: {numbers:?}");
        numbers.len()
    };
    all.into_iter().enumerate().map(count).collect()
}

#[test]
fn ended_closures_take_each_element_once_and_others_take_none() -> Result<()> {
    for order in [Order::Arrival, scheduled(4)] {
        let builder = ParameterServerStrategy::builder_of_threads(3, 1).order(order).on_error(OnError::Continue);
        let strategy = builder.build()?;
        let coordinator = ClusterCoordinator::new(&strategy);
        let made = Arc::new(AtomicUsize::new(0));
        let numbers = coordinator.create_per_worker_dataset("numbers", {
            let made = made.clone();
            move |context: InputContext| {
                assert_eq!((context.num_input_pipelines, context.num_replicas_in_sync), (3, 1));
                made.fetch_add(1, Ordering::Relaxed);
                let first = 1000 * context.input_pipeline_id as i64;
                dataset::range(first, first + 1000, 1)
            }
        })?;
        let take = coordinator.function("take", {
            let numbers = numbers.clone();
            move |worker, ((), count): ((), u64)| {
                let next = |_| worker.next(&numbers)?.expect("there are more").item::<i64>();
                let taken = (0..count).map(next).collect::<Result<Vec<_>>>()?;
                match count % 4 {
                    3 => Err(Error::other("as it was asked")),
                    2 => panic!("as it was asked"),
                    _ => Ok((worker.worker_index() as u64, taken)),
                }
            }
        })?;
        let closures = (0..90).map(|count| coordinator.schedule(&take, Argument::from(&numbers).and(count % 8)));
        let closures = closures.collect::<Result<Vec<_>>>()?;
        let Err(Error::Closures { failures, .. }) = coordinator.join(LIMIT) else { panic!("some fail") };
        assert_eq!(failures.len(), (0..90).filter(|count| count % 4 >= 2).count());
        let taken: Vec<(u64, Vec<i64>)> = closures.iter().filter_map(|closure| closure.fetch(LIMIT).ok()).collect();
        let counts = all_taken(taken.iter().map(|(worker, taken)| (*worker as usize, taken.clone())), 3);
        assert_eq!(
            counts.iter().sum::<usize>(),
            (0..90).map(|count| count % 8).filter(|count| count % 4 < 2).sum::<usize>()
        );
        assert!(made.load(Ordering::Relaxed) <= 3);
        if order != Order::Arrival {
            // Closure `n` runs at worker `n % 3`, and those of a worker in their order.
            for (number, closure) in (0..90).zip(&closures).filter(|(number, _)| number % 4 < 2) {
                let (worker, taken) = closure.fetch(LIMIT)?;
                let before: u64 =
                    (0..number).filter(|other| other % 3 == number % 3 && other % 4 < 2).map(|n| n % 8).sum();
                let first = (1000 * (number % 3) + before) as i64;
                assert_eq!((worker, taken), (number % 3, (first..first + (number % 8) as i64).collect()));
            }
        }
    }
    Ok(())
}

/// The closure takes elements and hangs, and another one gets them.
#[test]
fn a_closure_past_its_deadline_has_taken_nothing() -> Result<()> {
    let builder = ParameterServerStrategy::builder_of_threads(1, 1).on_error(OnError::Continue);
    let strategy = builder.closure_timeout(Duration::from_secs(2)).build()?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let numbers = coordinator.create_per_worker_dataset("numbers", |_| dataset::range(0, 4, 1))?;
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Mutex::new(released);
    let take = coordinator.function("take", move |worker, hangs: bool| {
        let taken = [worker.next(&numbers)?, worker.next(&numbers)?, worker.next(&numbers)?];
        if hangs {
            let _ = released.lock().unwrap().recv();
        }
        taken.into_iter().flatten().map(|number| number.item::<i64>()).collect::<Result<Vec<_>>>()
    })?;
    let hangs = coordinator.schedule(&take, true)?;
    assert!(matches!(hangs.fetch(LIMIT), Err(Error::Closures { .. })));
    release.send(()).unwrap();
    let _ = coordinator.join(LIMIT);
    let more = [coordinator.schedule(&take, false)?, coordinator.schedule(&take, false)?];
    assert_eq!((more[0].fetch(LIMIT)?, more[1].fetch(LIMIT)?), (vec![0, 1, 2], vec![3]));
    Ok(())
}

#[test]
fn an_error_of_a_data_set_fails_the_closure_and_takes_nothing() -> Result<()> {
    let strategy = ParameterServerStrategy::builder_of_threads(1, 1).on_error(OnError::Continue).build()?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let is_missing = Arc::new(AtomicBool::new(true));
    let numbers = coordinator.create_per_worker_dataset("numbers", {
        let is_missing = is_missing.clone();
        move |_| match is_missing.load(Ordering::Relaxed) {
            true => Err(Error::other("the file is missing")),
            false => Ok(dataset::try_from_fn(|| Ok([Ok(1u32), Ok(2), Err(Error::other("the rest is torn"))]))),
        }
    })?;
    let take = coordinator.function("take", move |worker, ()| worker.next(&numbers))?;
    let failed = || {
        let failed = coordinator.schedule(&take, ())?.fetch(LIMIT);
        let Err(Error::Closures { failures, .. }) = failed else { panic!("{failed:?}") };
        assert!(matches!(failures[0].error, Error::Other(_)), "{}", failures[0]);
        Ok::<_, Error>(())
    };
    failed()?;
    failed()?;
    is_missing.store(false, Ordering::Relaxed);
    for number in 1..=2 {
        assert_eq!(coordinator.schedule(&take, ())?.fetch(LIMIT)?, Some(number));
    }
    failed()?;
    failed()?;
    Ok(())
}

#[test]
fn values_of_workers_are_made_once_each() -> Result<()> {
    let strategy = ParameterServerStrategy::builder_of_threads(2, 1).on_error(OnError::Continue).order(scheduled(4));
    let coordinator = ClusterCoordinator::new(&strategy.build()?);
    let made = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counters = coordinator.create_per_worker_values("counters", {
        let made = made.clone();
        move |worker| match made[worker].fetch_add(1, Ordering::Relaxed) {
            0 if worker == 1 => Err(Error::other("not yet")),
            _ => Ok(AtomicUsize::new(100 * worker)),
        }
    })?;
    let count = coordinator.function("count", {
        let counters = counters.clone();
        move |worker, ()| Ok(worker.value(&counters)?.fetch_add(1, Ordering::Relaxed) as u64)
    })?;
    let closures = (0..8).map(|_| coordinator.schedule(&count, &counters)).collect::<Result<Vec<_>>>()?;
    let Err(Error::Closures { failures, .. }) = coordinator.join(LIMIT) else { panic!("one fails") };
    assert_eq!((failures.len(), failures[0].number), (1, 1));
    let counts: Vec<u64> = closures.iter().filter_map(|closure| closure.fetch(LIMIT).ok()).collect();
    assert_eq!(counts, [0, 1, 100, 2, 101, 3, 102]);
    assert_eq!([made[0].load(Ordering::Relaxed), made[1].load(Ordering::Relaxed)], [1, 2]);
    Ok(())
}

#[test]
fn data_sets_and_values_of_others_are_refused() -> Result<()> {
    let builder = ParameterServerStrategy::builder_of_threads(2, 1).on_error(OnError::Continue).order(scheduled(1));
    let coordinator = ClusterCoordinator::new(&builder.build()?);
    let elsewhere = ClusterCoordinator::new(&ParameterServerStrategy::threads(1, 1)?);
    let numbers = |coordinator: &ClusterCoordinator| {
        coordinator.create_per_worker_dataset("numbers", |_| dataset::range(0, 4, 1))
    };
    let zeros = |coordinator: &ClusterCoordinator| coordinator.create_per_worker_values("zeros", |_| Ok(0));
    let own = numbers(&coordinator)?;
    zeros(&coordinator)?;
    let (other, other_zeros) = (numbers(&elsewhere)?, zeros(&elsewhere)?);
    for refused in [numbers(&coordinator).map(drop), zeros(&coordinator).map(drop)] {
        assert!(matches!(refused, Err(Error::InvalidCall { argument, .. }) if argument == "name"));
    }
    let take = coordinator.function("take", {
        let own = own.clone();
        move |worker, kind: u8| match kind {
            0 => worker.next(&own).map(drop),
            1 => worker.next(&other).map(drop),
            _ => worker.value(&other_zeros).map(drop),
        }
    })?;
    let bound = coordinator.function("bound", {
        let own = own.clone();
        move |worker, ()| worker.next(&own)
    })?;
    // In windows a closure that any worker may run takes no element.
    for (kind, argument) in [(0, "dataset"), (1, "dataset"), (2, "values")] {
        let failed = coordinator.schedule(&take, kind)?.fetch(LIMIT);
        let Err(Error::Closures { failures, .. }) = failed else { panic!("{failed:?}") };
        let Error::InvalidCall { argument: found, .. } = &failures[0].error else { panic!("{}", failures[0]) };
        assert_eq!(found, argument);
    }
    let _ = coordinator.join(LIMIT);
    assert_eq!(coordinator.schedule(&bound, &own)?.fetch(LIMIT)?, Some(Tensor::from(0i64)));
    for late in [numbers(&coordinator).map(drop), zeros(&coordinator).map(drop)] {
        assert!(matches!(late, Err(Error::WrongContext { .. })));
    }
    Ok(())
}

/// A place in a variable, or in each of several.
#[derive(Nest)]
struct Places {
    rows: Tensor,
    of: Option<ShardedVariable>,
    more: Vec<(ShardedVariable, i64)>,
}

#[test]
fn variables_are_arguments_and_results_of_closures() -> Result<()> {
    let builder = ParameterServerStrategy::builder_of_threads(2, 2).partitioner(FixedShardsPartitioner::new(2)?);
    let strategy = builder.build()?;
    let [first, second] = [[1i64, 2, 3], [10, 20, 30]].map(|values| strategy.variable(|| Tensor::from(values)));
    let (first, second) = (first?, second?);
    let coordinator = ClusterCoordinator::new(&strategy);
    let read = coordinator.function("read", |worker, variable: ShardedVariable| worker.read(&variable))?;
    let add = coordinator.function("add", |worker, places: Places| {
        for (variable, number) in &places.more {
            worker.assign_add(variable, &Tensor::from([*number; 3]))?;
        }
        places.of.map(|variable| worker.lookup(&variable, &places.rows)).transpose()
    })?;
    // Of two variables, that whose first element is greater.
    let greater = coordinator.function("greater", |worker, (left, right): (ShardedVariable, ShardedVariable)| {
        let element = |of: &ShardedVariable| worker.read_rows(of, 0..1)?.into_vec::<i64>();
        Ok(if element(&left)? > element(&right)? { left } else { right })
    })?;
    assert_eq!(coordinator.schedule(&read, &second)?.fetch(LIMIT)?, Tensor::from([10i64, 20, 30]));
    assert_eq!(coordinator.schedule(&read, first.clone())?.fetch(LIMIT)?, Tensor::from([1i64, 2, 3]));
    let rows = Tensor::from([2i64, 0]);
    let more = vec![(first.clone(), 100), (second.clone(), 1), (first.clone(), 1000)];
    let added = coordinator.schedule(&add, Places { rows, of: Some(second.clone()), more })?;
    assert_eq!(added.fetch(LIMIT)?, Some(Tensor::from([31i64, 11])));
    // A result refers to a variable of the chief, and is an argument as it is.
    let found = coordinator.schedule(&greater, Argument::from(&first).and(&second))?;
    let value = coordinator.schedule(&read, &found)?;
    assert_eq!(value.fetch(LIMIT)?, Tensor::from([1101i64, 1102, 1103]));
    let found = found.fetch(LIMIT)?;
    assert_eq!(found.shards(), first.shards());
    found.assign(&Tensor::from([7i64, 7, 7]))?;
    assert_eq!(first.read()?, Tensor::from([7i64, 7, 7]));
    // Each worker gets the variable that is meant for it.
    let own = PerWorker(vec![first.clone(), second.clone()]);
    let own = (0..20).map(|_| coordinator.schedule(&read, own.clone())).collect::<Result<Vec<_>>>()?;
    for value in own {
        let value = value.fetch(LIMIT)?;
        assert!(value == Tensor::from([7i64, 7, 7]) || value == Tensor::from([11i64, 21, 31]), "{value:?}");
    }
    Ok(())
}

#[test]
fn variables_of_another_strategy_are_no_arguments() -> Result<()> {
    let strategy = ParameterServerStrategy::builder_of_threads(2, 1).on_error(OnError::Continue).build()?;
    let own = strategy.variable(|| Tensor::from(1i64))?;
    let elsewhere = ParameterServerStrategy::threads(2, 1)?;
    let other = elsewhere.variable(|| Tensor::from(1i64))?;
    // No other variable has its number.
    let beyond = elsewhere.variable(|| Tensor::from(1i64))?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let read = coordinator.function("read", |worker, all: Vec<ShardedVariable>| worker.read(&all[0]))?;
    let give = coordinator.function("give", {
        let other = other.clone();
        move |_, number: u8| Ok((number, other.clone()))
    })?;
    let refused = |error: Error, path: &str| {
        let Error::InvalidCall { call, argument, .. } = &error else { panic!("{error}") };
        assert_eq!((*call, &argument[..]), ("ClusterCoordinator::schedule", path));
    };
    for wrong in [&other, &beyond] {
        let mixed = vec![own.clone(), wrong.clone()];
        refused(coordinator.schedule(&read, mixed.clone()).unwrap_err(), "value/1");
        let each = PerWorker(vec![vec![own.clone()], mixed]);
        refused(coordinator.schedule(&read, each).unwrap_err(), "value/1");
    }
    let failed = coordinator.schedule(&give, 1)?.fetch(LIMIT);
    let Err(Error::Closures { failures, .. }) = failed else { panic!("{failed:?}") };
    let Error::InvalidCall { argument, .. } = &failures[0].error else { panic!("{}", failures[0]) };
    assert_eq!(argument, "value/1");
    // Nothing else has become of it.
    assert_eq!(coordinator.schedule(&read, vec![own.clone()])?.fetch(LIMIT)?, Tensor::from(1i64));
    Ok(())
}

#[test]
fn the_chief_scatters_rows_one_after_the_other() -> Result<()> {
    for order in [Order::Arrival, scheduled(7)] {
        let builder = ParameterServerStrategy::builder_of_threads(2, 2).partitioner(FixedShardsPartitioner::new(2)?);
        let strategy = builder.order(order).build()?;
        let table = strategy.variable(|| Tensor::from([[1i32, 2], [3, 4], [5, 6]]))?;
        let coordinator = ClusterCoordinator::new(&strategy);
        let add = coordinator.function("add", {
            let table = table.clone();
            move |worker, rows: IndexedSlices| worker.scatter_add(&table, &rows)
        })?;
        let rows = |indices: Tensor, rows: Tensor| IndexedSlices::new(rows, indices, None);
        coordinator.schedule(&add, rows(Tensor::from([1i64]), Tensor::from([[100, 100]]))?)?;
        if order == Order::Arrival {
            coordinator.join(LIMIT)?;
        }
        // Otherwise its place is behind the closure.
        table.scatter_update(&rows(Tensor::from([1i32, 0, 1]), Tensor::from([[7, 7], [8, 8], [9, 9]]))?)?;
        assert_eq!(table.read()?, Tensor::from([[8, 8], [9, 9], [5, 6]]));
        table.scatter_add(&rows(Tensor::from([2i64, 0, 2]), Tensor::from([[10, 10], [20, 20], [30, 30]]))?)?;
        table.scatter_sub(&rows(Tensor::from([0i64]), Tensor::from([[1, 2]]))?)?;
        table.scatter_sub(&rows(Tensor::from(Vec::<i64>::new()), Tensor::zeros(DType::I32, [0, 2]))?)?;
        assert_eq!(table.read()?, Tensor::from([[27, 26], [9, 9], [45, 46]]));
    }
    Ok(())
}

#[test]
fn ill_fitting_scatters_of_the_chief_change_nothing() -> Result<()> {
    let strategy = ParameterServerStrategy::builder_of_threads(1, 2).partitioner(FixedShardsPartitioner::new(2)?);
    let strategy = strategy.build()?;
    let table = strategy.variable(|| Tensor::from([[1i32, 2], [3, 4], [5, 6]]))?;
    let scalar = strategy.variable(|| Tensor::from(1i32))?;
    let flags = strategy.variable(|| Tensor::from([true, false]))?;
    let rows = |indices: Tensor, rows: Tensor| IndexedSlices::new(rows, indices, None).unwrap();
    let refused = |result: Result<()>| match result {
        Err(Error::InvalidCall { call, argument, .. }) => (call, argument),
        other => panic!("{other:?}"),
    };
    let one = || Tensor::from([[10, 10], [20, 20]]);
    for (found, expected) in [
        (table.scatter_add(&rows(Tensor::from([0i64, 3]), one())), ("ShardedVariable::scatter_add", "indices[1]")),
        (table.scatter_sub(&rows(Tensor::from([4i64, 0]), one())), ("ShardedVariable::scatter_sub", "indices[0]")),
        (
            table.scatter_update(&rows(Tensor::from([0i64]), Tensor::from([[1.0f32, 2.0]]))),
            ("ShardedVariable::scatter_update", "rows"),
        ),
        (
            scalar.scatter_add(&rows(Tensor::from([0i64]), Tensor::from([1i32]))),
            ("ShardedVariable::scatter_add", "variable"),
        ),
    ] {
        let (call, argument) = refused(found);
        assert_eq!((call, &*argument), expected);
    }
    let (call, _) = refused(flags.scatter_add(&rows(Tensor::from([0i64]), Tensor::from([true]))));
    assert_eq!(call, "ShardedVariable::scatter_add");
    assert_eq!(table.read()?, Tensor::from([[1, 2], [3, 4], [5, 6]]));
    Ok(())
}

/// Short orders go from the thread that schedules, long ones from that of the worker.
#[test]
fn orders_of_any_length_reach_waiting_and_busy_workers() -> Result<()> {
    let strategy = ParameterServerStrategy::threads(2, 1)?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let total = coordinator.function("total", |_, numbers: Vec<i64>| Ok(numbers.iter().sum::<i64>()))?;
    let counts = [0, 1, 100, 121, 122, 123, 124, 125, 126, 127, 128, 1000, 100_000];
    for &count in &counts {
        assert_eq!(coordinator.schedule(&total, vec![3; count])?.fetch(LIMIT)?, 3 * count as i64);
    }
    let all = counts.map(|count| coordinator.schedule(&total, vec![2; count]));
    for (count, sum) in counts.into_iter().zip(all) {
        assert_eq!(sum?.fetch(LIMIT)?, 2 * count as i64);
    }
    Ok(())
}

/// The deadline of a closure begins with it, though its worker has waited for it.
#[test]
fn a_closure_hangs_at_a_worker_after_others_have_ended() -> Result<()> {
    let builder = ParameterServerStrategy::builder_of_threads(1, 1).on_error(OnError::Continue);
    let strategy = builder.closure_timeout(Duration::from_millis(300)).build()?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Mutex::new(released);
    let wait = coordinator.function("wait", move |_, hangs: bool| {
        if hangs {
            let _ = released.lock().unwrap().recv();
        }
        Ok(hangs)
    })?;
    for _ in 0..2 {
        assert!(!coordinator.schedule(&wait, false)?.fetch(LIMIT)?);
        let hangs = coordinator.schedule(&wait, true)?.fetch(LIMIT);
        let Err(Error::Closures { failures, .. }) = hangs else { panic!("{hangs:?}") };
        assert!(matches!(failures[0].error, Error::Timeout { .. }), "{}", failures[0]);
        release.send(()).unwrap();
    }
    assert!(!coordinator.schedule(&wait, false)?.fetch(LIMIT)?);
    Ok(())
}

/// A caller of the chief sends no closure to a worker whose effects have not committed.
#[test]
fn closures_of_one_worker_see_the_effects_of_those_before() -> Result<()> {
    let strategy = ParameterServerStrategy::threads(1, 1)?;
    let large = strategy.variable(|| Tensor::zeros(DType::I64, [1 << 17]))?;
    let total = strategy.variable(|| Tensor::from(0i64))?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let count = coordinator.function("count", move |worker, ()| {
        let before = worker.read(&total)?.item::<i64>()?;
        // The server commits it before the total.
        worker.assign(&large, &Tensor::zeros(DType::I64, [1 << 17]))?;
        worker.assign_add(&total, &Tensor::from(1i64))?;
        Ok(before)
    })?;
    let closures = (0..50).map(|_| coordinator.schedule(&count, ())).collect::<Result<Vec<_>>>()?;
    while !coordinator.done()? {}
    let before = closures.iter().map(|closure| closure.fetch(LIMIT)).collect::<Result<Vec<_>>>()?;
    assert_eq!(before, (0..50).collect::<Vec<i64>>());
    Ok(())
}
