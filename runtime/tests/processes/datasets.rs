//! Data sets and values of workers: processes that are killed while they take elements, and a chief
//! that counts what was taken.

use crate::driver::{self, Job, LONG, Signal, Way};
use consonance::{
    ClusterCoordinator, DType, Error, IndexedSlices, ParameterServerStrategy, RemoteValue, Result, Tensor,
    TfConfigClusterResolver, dataset,
    parameter_server::{Argument, OnError, Order},
};
use std::{collections::BTreeMap, num::NonZeroUsize, thread, time::Duration};

const WORKERS: usize = 3;
/// More than the closures of a test take at one worker.
const ELEMENTS: usize = 8192;

/// Plays the role of the process. Words: the window, or 0 for the order of arrival; the time in
/// milliseconds in which a closure must end; and `other` for a program with another data set.
///
/// A closure takes some elements of its worker's data set, and counts each in a variable with a
/// place for each element of each worker. Every seventh closure fails then. The chief obeys:
/// `schedule COUNT`, `join`, `count`, `values`, and `end`. It says what comes of it.
pub(crate) fn takes(words: &[&str]) -> Result<()> {
    let [window, limit, kind @ ..] = words else { panic!("{words:?}") };
    let order = NonZeroUsize::new(driver::number(window) as usize);
    let order = order.map_or(Order::Arrival, |window| Order::Scheduled { window });
    let strategy = ParameterServerStrategy::builder(TfConfigClusterResolver::new()?)?
        .order(order)
        .on_error(OnError::Continue)
        .timeout(LONG / 2)
        .closure_timeout(Duration::from_millis(driver::number(limit)))
        .build()?;
    let counts = strategy.variable(|| Tensor::zeros(DType::I64, [WORKERS * ELEMENTS]))?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let numbers = coordinator.create_per_worker_dataset("numbers", |context| {
        let first = (context.input_pipeline_id * ELEMENTS) as i64;
        dataset::range(first, first + ELEMENTS as i64, 1)
    })?;
    if !kind.is_empty() {
        coordinator.create_per_worker_dataset("more", |_| Ok(dataset::from_fn(|| 0..4u64)))?;
    }
    let process = coordinator.create_per_worker_values("process", |_| Ok(std::process::id()))?;
    let take = coordinator.function("take", {
        let (numbers, counts) = (numbers.clone(), counts.clone());
        move |worker, ((), closure): ((), u64)| {
            let mut taken = Vec::new();
            for _ in 0..closure % 4 {
                taken.push(worker.next(&numbers)?.expect("there are more").item::<i64>()?);
                // A kill comes before the end or after it.
                thread::sleep(Duration::from_micros(50));
            }
            let ones = Tensor::new([taken.len()], &vec![1i64; taken.len()])?;
            let rows = Tensor::new([taken.len()], &taken)?;
            worker.scatter_add(&counts, &IndexedSlices::new(ones, rows, None)?)?;
            if closure % 7 == 0 { Err(Error::other("as it was asked")) } else { Ok(taken) }
        }
    })?;
    let tell = coordinator.function("tell", {
        let process = process.clone();
        move |worker, ()| Ok(vec![worker.worker_index() as i64, i64::from(*worker.value(&process)?)])
    })?;
    if !strategy.is_chief() {
        driver::say("serves");
        return strategy.serve().inspect(|()| driver::say("served"));
    }
    let mut closures: Vec<RemoteValue<Vec<i64>>> = Vec::new();
    loop {
        let heard = driver::hear();
        let words: Vec<&str> = heard.split(' ').collect();
        match words[..] {
            ["schedule", count] => {
                for _ in 0..driver::number(count) {
                    let number = closures.len() as u64;
                    closures.push(coordinator.schedule(&take, Argument::from(&numbers).and(number))?);
                }
                driver::say("scheduled");
            }
            ["join"] => {
                let failed = match coordinator.join(LONG / 2) {
                    Err(Error::Closures { failures, .. }) => failures.len(),
                    joined => joined.map(|_| 0)?,
                };
                driver::say(&format!("joined {failed}"));
            }
            ["count"] => driver::say(&format!("counted {}", count(&closures, &counts.read()?.into_vec()?)?)),
            ["values"] => {
                let mut values = BTreeMap::new();
                while values.len() < WORKERS {
                    let told =
                        (0..WORKERS).map(|_| coordinator.schedule(&tell, &process)).collect::<Result<Vec<_>>>()?;
                    for told in told {
                        let told = told.fetch(LONG / 2)?;
                        assert_eq!(*values.entry(told[0]).or_insert(told[1]), told[1]);
                    }
                }
                let values: Vec<String> = values.values().map(i64::to_string).collect();
                driver::say(&format!("values {}", values.join(" ")));
            }
            _ => return Ok(()),
        }
    }
}

/// Returns the number of elements that closures took. Checks that the elements of each worker were
/// taken by one closure each, from the first one on, and counted once.
fn count(closures: &[RemoteValue<Vec<i64>>], counts: &[i64]) -> Result<usize> {
    let mut by_closures = vec![0; WORKERS * ELEMENTS];
    for (number, closure) in closures.iter().enumerate() {
        match closure.fetch(LONG / 2) {
            Err(Error::Closures { .. }) => {}
            taken => {
                let taken = taken?;
                assert_eq!(taken.len(), number % 4);
                assert!(taken.is_sorted_by(|before, after| before + 1 == *after), "{taken:?}");
                taken.into_iter().for_each(|element| by_closures[element as usize] += 1);
            }
        }
    }
    assert_eq!(by_closures, counts);
    let all = counts.iter().sum::<i64>() as usize;
    let prefixes = counts.chunks(ELEMENTS).map(|counts| {
        let taken = counts.iter().take_while(|&&count| count == 1).count();
        assert!(counts[taken..].iter().all(|&count| count == 0), "an element was taken twice or passed over");
        taken
    });
    assert_eq!(prefixes.sum::<usize>(), all);
    Ok(all)
}

fn start(way: Way, words: &str) -> Job {
    let mut job = Job::with_servers(WORKERS, 1).meeting(way);
    for task in 0..WORKERS + 2 {
        job.launch(task, &format!("takes {words}"));
    }
    job.others(0).for_each(|process| drop(process.expect("serves")));
    // The first closure meets all others.
    job.of(0).tell("schedule 1");
    job.of(0).expect("scheduled");
    job
}

/// Returns the value of each worker, when all have told it.
fn values(job: &mut Job) -> Vec<String> {
    job.of(0).tell("values");
    job.of(0).expect("values").split(' ').map(str::to_owned).collect()
}

/// Waits until each worker has run a closure, and ends all.
fn end(mut job: Job) {
    values(&mut job);
    job.of(0).tell("end");
    job.end();
}

/// Workers are killed and replaced again and again while they take elements, and closures fail. The
/// elements that closures have taken which ended are all those from the first one on, each once.
#[test]
fn kills_of_workers_neither_lose_nor_repeat_an_element() {
    for window in ["0", "7"] {
        let mut job = start(Way::Memory, &format!("{window} 20000"));
        let mut scheduled = 1;
        for round in 0..12 {
            job.of(0).tell("schedule 300");
            scheduled += 300;
            thread::sleep(Duration::from_millis(5 * round % 23));
            let worker = 1 + round as usize % WORKERS;
            job.of(worker).signal(Signal::SIGKILL);
            job.of(worker).wait();
            job.launch(worker, &format!("takes {window} 20000"));
            job.of(0).expect("scheduled");
        }
        job.of(0).tell("join");
        let failed = (0..scheduled).filter(|number| number % 7 == 0).count();
        assert_eq!(job.of(0).expect("joined"), failed.to_string());
        job.of(0).tell("count");
        let taken: usize = (0..scheduled).filter(|number| number % 7 != 0).map(|number| number % 4).sum();
        assert_eq!(job.of(0).expect("counted"), taken.to_string());
        end(job);
    }
}

/// A worker is stopped past the deadline of its closure and taken for lost. It comes back, and goes
/// on where its replacement would have.
#[test]
fn a_worker_continued_late_goes_on_at_the_position_of_the_chief() {
    let mut job = start(Way::Memory, "0 300");
    for worker in [1, 2] {
        job.of(0).tell("schedule 400");
        job.of(0).expect("scheduled");
        job.of(worker).signal(Signal::SIGSTOP);
        job.of(0).tell("join");
        job.of(0).expect("joined");
        job.of(worker).signal(Signal::SIGCONT);
    }
    values(&mut job);
    job.of(0).tell("schedule 400");
    job.of(0).expect("scheduled");
    job.of(0).tell("join");
    job.of(0).expect("joined");
    job.of(0).tell("count");
    job.of(0).expect("counted");
    end(job);
}

/// A process in the place of a worker makes its value anew, and others keep theirs.
#[test]
fn a_replacement_makes_its_value_anew() {
    for way in Way::all() {
        let mut job = start(way, "1 20000");
        let before = values(&mut job);
        assert_eq!(values(&mut job), before);
        job.of(2).signal(Signal::SIGKILL);
        job.of(2).wait();
        job.launch(2, "takes 1 20000");
        let after = values(&mut job);
        assert_eq!((&after[0], &after[2]), (&before[0], &before[2]));
        assert_ne!(after[1], before[1]);
        end(job);
    }
}

/// Processes with other data sets do not meet.
#[test]
fn different_data_sets_do_not_meet() {
    let mut job = Job::with_servers(WORKERS, 1);
    for task in 0..WORKERS + 2 {
        job.launch(task, if task == 1 { "takes 0 20000 other" } else { "takes 0 20000" });
    }
    job.others(0).for_each(|process| drop(process.expect("serves")));
    job.of(0).tell("schedule 1");
    let failed = job.of(1).expect("failed");
    assert!(failed.starts_with("Meeting") && failed.contains("data set \"more\": u64"), "{failed}");
}
