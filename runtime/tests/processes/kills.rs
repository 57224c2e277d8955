//! Processes that are killed in the middle of a call.

use crate::{
    calls::{Calls, Random},
    driver::{self, Job, Signal, hear, number, say},
};
use consonance::{CommunicationOptions, Error, MultiWorkerMirroredStrategy, Result, TfConfigClusterResolver};
use nix::sys::signal;
use std::{env, thread, time::Duration};

/// One group in this number compares its data. The others only make calls, so that the time until
/// an error is that of the calls.
const CHECKED: u64 = 4;

/// Makes random calls until one fails, and reports error and time on each rank. Then reforms with
/// the processes that join. Words: the number of replicas, a seed, and the MiB of memory of the
/// process.
pub(crate) fn random_calls(words: &[&str]) -> Result<()> {
    let (replicas, seed) = (number(words[0]) as usize, number(words[1]));
    let ballast = vec![1u8; (number(words[2]) as usize) << 20];
    let mut group = driver::join(replicas, driver::LONG)?;
    loop {
        let generation = group.generation();
        say(&format!("in {generation}"));
        let errors = driver::on_each(&mut group, |rank| {
            let random = Random(seed ^ generation << 32);
            let mut calls = Calls { random, most: 2 << 20, checks: generation.is_multiple_of(CHECKED) };
            loop {
                if let Err(error) = calls.step(rank) {
                    return (driver::now(), error);
                }
            }
        });
        for (time, error) in errors {
            let Error::Aborted { replica, calls, .. } = &error else { panic!("{error:?}") };
            assert_eq!(calls.len(), group.size(), "the last call of each rank");
            say(&format!("lost {} {replica} {}", time.as_nanos(), driver::fields(&error)));
        }
        match hear().as_str() {
            "reform" => group.reform(driver::LONG / 2)?,
            _ => break,
        }
    }
    drop(ballast);
    Ok(())
}

/// Kills a process `times` times and replaces it. Returns the time until each rank of the others
/// had its error.
fn kill(processes: usize, replicas: usize, times: usize) -> Vec<Duration> {
    let (mut random, mut latencies) = (Random(processes as u64 * 100 + replicas as u64), Vec::new());
    let part = format!("random_calls {replicas} {} {}", random.below(1 << 30), setting("BALLAST", 0));
    let mut job = Job::start(processes, &part);
    for generation in 1..=times as u64 {
        for process in job.all() {
            assert_eq!(process.expect("in"), generation.to_string());
        }
        thread::sleep(Duration::from_micros(random.below(20_000) as u64));
        let lost = random.below(processes);
        let begin = driver::now();
        job.of(lost).signal(Signal::SIGKILL);
        for process in job.others(lost) {
            for _ in 0..replicas {
                let line = process.expect("lost");
                let words: Vec<&str> = line.splitn(3, ' ').collect();
                if !generation.is_multiple_of(CHECKED) {
                    latencies.push(Duration::from_nanos(number(words[0])) - begin);
                }
                assert_eq!(words[1], (lost * replicas).to_string(), "{line}");
                assert!(words[2].contains(" reason=Death ") && words[2].contains(" process=(worker["), "{line}");
            }
        }
        job.of(lost).wait();
        job.launch(lost, &part);
        job.others(lost).for_each(|process| process.tell("reform"));
    }
    latencies
}

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |setting| number(&setting))
}

/// `KILLS` is the number of kills and `BALLAST` the size of the processes in MiB. Both are for
/// measurements; whether the test passes does not depend on them.
#[test]
fn a_kill_in_any_call_is_an_error_naming_the_lost_process() {
    let kills = setting("KILLS", 20) as usize;
    let groups = [(2, 1), (3, 1), (5, 1), (2, 2), (4, 2)];
    let mut latencies: Vec<Duration> = groups
        .iter()
        .flat_map(|&(processes, replicas)| kill(processes, replicas, kills.div_ceil(groups.len())))
        .collect();
    latencies.sort();
    let at = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
    println!(
        "{kills} kills, {} ranks told: median {:?}, 90 % {:?}, 99 % {:?}, most {:?}",
        latencies.len(),
        at(50),
        at(90),
        at(99),
        at(100)
    );
}

/// Two replicas make a merge call, and process 1 dies in its merge function. The other reports the
/// error of its run.
pub(crate) fn merges(_: &[&str]) -> Result<()> {
    let options = CommunicationOptions::new().timeout(driver::LONG)?;
    let builder = MultiWorkerMirroredStrategy::builder(TfConfigClusterResolver::new()?);
    let strategy = builder.replicas(2).options(options).build()?;
    let dies = strategy.local_replicas().start == 2;
    let merged = strategy.run(|replica| {
        replica.merge_call(1i32, |strategy, all| {
            if dies {
                signal::raise(Signal::SIGKILL).expect("a signal of its own");
            }
            Ok(strategy.mirror(strategy.reduce("sum", &all, None)?))
        })
    });
    let error = merged.unwrap_err();
    say(&format!("{} {}", if error.is_loss() { "lost" } else { "not lost" }, driver::fields(&error)));
    Ok(())
}

/// Found by a review: the replicas that did not run the function got its error as text only, so
/// `is_loss` was false.
#[test]
fn a_kill_in_a_merge_function_is_a_loss_to_the_run() {
    let mut job = Job::start(2, "merges");
    let error = job.of(0).expect("lost");
    assert!(error.starts_with("Aborted ") && error.contains(" reason=Death replica=2 "), "{error}");
    job.of(0).end();
}
