//! Parameter servers: processes that are killed and stopped, and a chief that counts all effects.

use crate::driver::{self, Job, LONG, Signal, Way};
use consonance::{
    ClusterCoordinator, DType, Error, IndexedSlices, ParameterServerStrategy, Result, ShardedVariable, Tensor,
    TfConfigClusterResolver,
    parameter_server::{FixedShardsPartitioner, OnError, Order},
};
use std::{
    collections::BTreeSet,
    num::NonZeroUsize,
    thread,
    time::{Duration, Instant},
};

const ROWS: usize = 64;

/// Plays the role of the process. Words: the window, or 0 for the order of arrival; the time in
/// milliseconds in which a closure must end; and `other` for a program with another variable, or
/// `captures` for one whose function gets no variable as an argument.
///
/// The chief obeys: `schedule COUNT`, `join`, `read`, `end`, and `all`, to schedule closures until
/// each worker has run one. It says what comes of it.
pub(crate) fn serves(words: &[&str]) -> Result<()> {
    let [window, limit, kind @ ..] = words else { panic!("{words:?}") };
    let order = NonZeroUsize::new(driver::number(window) as usize);
    let order = order.map_or(Order::Arrival, |window| Order::Scheduled { window });
    let strategy = ParameterServerStrategy::builder(TfConfigClusterResolver::new()?)?
        .partitioner(FixedShardsPartitioner::new(2)?)
        .order(order)
        .on_error(OnError::Continue)
        .timeout(LONG / 2)
        .closure_timeout(Duration::from_millis(driver::number(limit)))
        .build()?;
    let total = strategy.variable(|| Tensor::from(0i64))?;
    let table = strategy.variable(|| Tensor::zeros(DType::I64, [ROWS]))?;
    if kind == ["other"] {
        strategy.variable(|| Tensor::from(0.5f32))?;
    }
    let coordinator = ClusterCoordinator::new(&strategy);
    if kind == ["captures"] {
        coordinator.function("count", |worker, _: u64| Ok(worker.worker_index() as u64))?;
        return strategy.serve();
    }
    let count = coordinator.function("count", {
        let table = table.clone();
        move |worker, (total, number): (ShardedVariable, u64)| {
            let row = (number as usize % ROWS) as i64;
            worker.assign_add(&total, &Tensor::from(1i64))?;
            let ones = Tensor::from([1i64, 1]);
            let rows = Tensor::from([row, (row + 40) % ROWS as i64]);
            worker.scatter_add(&table, &IndexedSlices::new(ones, rows, None)?)?;
            Ok(worker.worker_index() as u64)
        }
    })?;
    if !strategy.is_chief() {
        driver::say("serves");
        return strategy.serve().inspect(|()| driver::say("served"));
    }
    let schedule = |number: u64| coordinator.schedule(&count, (total.clone(), number));
    let mut number = 0;
    loop {
        let heard = driver::hear();
        let words: Vec<&str> = heard.split(' ').collect();
        match words[..] {
            ["schedule", count_of] => {
                for _ in 0..driver::number(count_of) {
                    schedule(number)?;
                    number += 1;
                }
                driver::say("scheduled");
            }
            ["all"] => {
                let mut ran = BTreeSet::new();
                while ran.len() < strategy.num_workers() {
                    ran.insert(schedule(number)?.fetch(LONG / 2)?);
                    let more = (0..20).map(|_| schedule(number)).collect::<Result<Vec<_>>>()?;
                    for closure in more {
                        ran.insert(closure.fetch(LONG / 2)?);
                    }
                    number += 21;
                }
                driver::say(&format!("all {number}"));
            }
            ["join"] => {
                let joined = coordinator.join(LONG / 2)?;
                driver::say(&format!("joined {}", joined.lost.len()));
            }
            ["read"] => {
                let table: i64 = table.read()?.as_slice::<i64>()?.iter().sum();
                driver::say(&format!("read {} {table}", total.read()?.item::<i64>()?));
            }
            _ => return Ok(()),
        }
    }
}

/// Starts all processes, and waits until workers and servers serve.
fn start(way: Way, workers: usize, servers: usize, words: &str) -> Job {
    let mut job = Job::with_servers(workers, servers).meeting(way);
    for task in 0..1 + workers + servers {
        job.launch(task, &format!("serves {words}"));
    }
    job.others(0).for_each(|process| drop(process.expect("serves")));
    // The first closure meets all others.
    job.of(0).tell("schedule 1");
    job.of(0).expect("scheduled");
    job
}

/// Asks the chief for the sums, which must be these counts of closures.
fn count(job: &mut Job, closures: u64) {
    job.of(0).tell("read");
    assert_eq!(job.of(0).expect("read"), format!("{closures} {}", 2 * closures));
}

/// Waits until each worker has run a closure, and ends all.
fn end(mut job: Job) {
    job.of(0).tell("all");
    let closures = driver::number(&job.of(0).expect("all"));
    count(&mut job, closures);
    job.of(0).tell("end");
    job.others(0).for_each(|process| drop(process.expect("served")));
    job.end();
}

/// Workers are killed and replaced again and again. Each effect happens once.
#[test]
fn kills_of_workers_neither_lose_nor_repeat_an_effect() {
    for way in Way::all() {
        for window in [0, 7] {
            let mut job = start(way, 3, 2, &format!("{window} 20000"));
            let mut scheduled = 1;
            for round in 0..12 {
                if let Way::Ucx = way {
                    // UCX 1.13 ends a process whose peer is killed while they connect.
                    job.of(0).tell("all");
                    scheduled = driver::number(&job.of(0).expect("all"));
                }
                job.of(0).tell("schedule 300");
                scheduled += 300;
                thread::sleep(Duration::from_millis(3 * round % 17));
                let worker = 1 + round as usize % 3;
                job.of(worker).signal(Signal::SIGKILL);
                job.of(worker).wait();
                job.launch(worker, &format!("serves {window} 20000"));
                job.of(0).expect("scheduled");
                if round % 4 == 3 {
                    job.of(0).tell("join");
                    job.of(0).expect("joined");
                    count(&mut job, scheduled);
                }
            }
            job.of(0).tell("join");
            job.of(0).expect("joined");
            count(&mut job, scheduled);
            for worker in 1..=3 {
                job.of(worker).expect("serves");
            }
            end(job);
        }
    }
}

/// All workers are killed, and closures wait for others.
#[test]
fn closures_wait_for_a_worker() {
    for way in Way::all() {
        let mut job = start(way, 1, 1, "0 20000");
        job.of(0).tell("schedule 1");
        job.of(0).expect("scheduled");
        job.of(0).tell("join");
        job.of(0).expect("joined");
        job.of(1).signal(Signal::SIGKILL);
        job.of(1).wait();
        job.of(0).tell("schedule 100");
        job.of(0).expect("scheduled");
        job.launch(1, "serves 0 20000");
        job.of(1).expect("serves");
        job.of(0).tell("join");
        assert_eq!(job.of(0).expect("joined"), "1");
        count(&mut job, 102);
        end(job);
    }
}

/// The closure of a stopped worker runs elsewhere when its time is over. The worker that goes on
/// comes back.
#[test]
fn a_stopped_worker_holds_nobody_up() {
    for way in Way::all() {
        let mut job = start(way, 2, 1, "0 300");
        job.of(0).tell("schedule 10");
        job.of(0).expect("scheduled");
        job.of(0).tell("join");
        job.of(0).expect("joined");
        job.of(1).signal(Signal::SIGSTOP);
        job.of(0).tell("schedule 50");
        job.of(0).expect("scheduled");
        job.of(0).tell("join");
        assert_eq!(job.of(0).expect("joined"), "1");
        count(&mut job, 61);
        job.of(1).signal(Signal::SIGCONT);
        job.of(2).signal(Signal::SIGSTOP);
        job.of(0).tell("schedule 50");
        job.of(0).expect("scheduled");
        job.of(0).tell("join");
        job.of(0).expect("joined");
        count(&mut job, 111);
        job.of(2).signal(Signal::SIGCONT);
        end(job);
    }
}

/// Every call fails after a server is lost, also one that waits.
#[test]
fn a_lost_server_ends_all_calls() {
    for way in Way::all() {
        let mut job = start(way, 2, 2, "0 20000");
        job.of(0).tell("schedule 2000");
        job.of(3).signal(Signal::SIGKILL);
        let begin = Instant::now();
        loop {
            let line = job.of(0).line();
            if let Some(failed) = line.strip_prefix("failed ") {
                assert!(failed.starts_with("Aborted") && failed.contains("lost=true"), "{failed}");
                assert!(failed.contains("ps[0]"), "{failed}");
                break;
            }
            assert!(begin.elapsed() < LONG);
            job.of(0).tell("join");
        }
    }
}

/// A worker and a server learn that the chief is lost.
#[test]
fn a_lost_chief_ends_all_others() {
    for way in Way::all() {
        let mut job = start(way, 2, 1, "0 20000");
        job.of(0).tell("schedule 100");
        job.of(0).expect("scheduled");
        job.of(0).signal(Signal::SIGKILL);
        for process in job.others(0) {
            let failed = process.expect("failed");
            assert!(failed.starts_with("Aborted") && failed.contains("lost=true"), "{failed}");
            assert!(failed.contains("chief[0]"), "{failed}");
        }
    }
}

/// Programs that differ do not meet, and both sides say in what.
#[test]
fn different_programs_do_not_meet() {
    for way in Way::all() {
        for (kind, declared) in [("other", "variable 2: f32[]"), ("captures", "function \"count\": u64 -> u64")] {
            let mut job = Job::with_servers(1, 1).meeting(way);
            job.launch(0, "serves 0 20000");
            job.launch(1, &format!("serves 0 20000 {kind}"));
            job.launch(2, "serves 0 20000");
            job.of(2).expect("serves");
            job.of(0).tell("schedule 1");
            let failed = loop {
                let line = job.of(1).line();
                if line != "serves" {
                    break line;
                }
            };
            assert!(failed.starts_with("failed Meeting") && failed.contains(declared), "{failed}");
        }
    }
}

/// A process of no role, or of a cluster without servers, is refused.
#[test]
fn a_chief_serves_nobody() -> Result<()> {
    let strategy = ParameterServerStrategy::threads(1, 1)?;
    assert!(matches!(strategy.serve(), Err(Error::WrongContext { .. })));
    let resolver = TfConfigClusterResolver::from_text(r#"{"cluster": {"worker": ["localhost:1"]}}"#)?;
    let refused = ParameterServerStrategy::builder(resolver).unwrap_err();
    assert!(matches!(refused, Error::InvalidCall { argument, .. } if argument == "cluster"));
    Ok(())
}
