//! Processes that fork after they have joined a group.

use crate::driver::{self, Job, Signal, hear, say};
use consonance::{
    CommunicationOptions, Error, MirroredStrategy, MultiWorkerMirroredStrategy, ReduceOp, Result,
    TfConfigClusterResolver,
};
use fork::Fork;
use std::time::Duration;

/// The exit status of a fork whose checks all passed.
const RIGHT: i32 = 17;

/// Process 1 forks in the middle of its calls. The fork may make no call, and its drops do not
/// count as a loss.
pub(crate) fn forks(words: &[&str]) -> Result<()> {
    let mut group = driver::join(2, driver::LONG)?;
    let mut ranks = group.communicators();
    let results = std::thread::scope(|scope| {
        let ranks = ranks.iter_mut().map(|rank| scope.spawn(|| rank.all_reduce(ReduceOp::Sum, &mut [1i64; 50_000])));
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    results.into_iter().collect::<Result<()>>()?;
    if ranks[0].rank() == 2 {
        match fork::fork().unwrap() {
            Fork::Child => {
                let is_refused = |result: Result<()>| matches!(result, Err(Error::WrongContext { .. }));
                let (first, second) = ranks.split_at_mut(1);
                let right = [
                    first[0].set_timeout(driver::LONG / 2).is_ok(),
                    is_refused(first[0].all_reduce(ReduceOp::Sum, &mut [1.0f32; 1000])),
                    is_refused(second[0].broadcast(&mut [1u8; 100_000], 0)),
                    is_refused(second[0].barrier()),
                    is_refused(first[0].send(&[1u8], 3)),
                    is_refused(first[0].split(Some(0), 0).map(drop)),
                    matches!(first[0].alloc::<f32>(10), Err(Error::System { .. })),
                    matches!(group.reform(Duration::ZERO), Err(Error::Meeting { .. })),
                ];
                drop(ranks);
                drop(group);
                if words[0] == "lives" {
                    // Keep the process alive until the test has ended.
                    while !hear().is_empty() {}
                }
                std::process::exit(if right == [true; 8] { RIGHT } else { 1 });
            }
            Fork::Parent(child) if words[0] == "ends" => {
                let status = fork::waitpid(child).unwrap();
                assert_eq!(status >> 8, RIGHT, "{status}");
            }
            Fork::Parent(_) => {}
        }
    }
    say("ready");
    let errors: Vec<Error> = std::thread::scope(|scope| {
        let ranks = ranks.into_iter().map(|mut rank| {
            scope.spawn(move || {
                for round in 0.. {
                    let mut sum = [1u32; 3000];
                    match rank.all_reduce(ReduceOp::Sum, &mut sum) {
                        Ok(()) => assert_eq!(sum, [6; 3000]),
                        Err(error) => return error,
                    }
                    if round == 100 {
                        say("works");
                    }
                }
                unreachable!()
            })
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    errors.iter().for_each(|error| say(&driver::fields(error)));
    Ok(())
}

/// Process 1 forks between two runs of a strategy. The fork lacks the threads of this strategy and
/// those of the strategy `own`, which has one process.
pub(crate) fn forks_between_runs(_: &[&str]) -> Result<()> {
    let options = CommunicationOptions::new().background_threads(true);
    let own = MirroredStrategy::builder(["cpu:0", "cpu:1"]).options(options).build()?;
    let own_sum = || own.run(|replica| replica.overlap(|buckets| buckets.all_reduce(ReduceOp::Sum, 1i32)?.wait()));
    assert_eq!(own_sum()?.values(), [2, 2]);
    let resolver = TfConfigClusterResolver::new()?;
    let options = CommunicationOptions::new().timeout(driver::LONG)?;
    let strategy = MultiWorkerMirroredStrategy::builder(resolver).replicas(2).options(options).build()?;
    let sum = || strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, 1i32));
    assert_eq!(sum()?.values(), [4, 4]);
    if strategy.local_replicas().start == 2 {
        match fork::fork().unwrap() {
            Fork::Child => {
                let is_refused = sum().is_err_and(|error| matches!(error.root(), Error::WrongContext { .. }));
                drop(strategy);
                let is_right = is_refused && own_sum()?.values() == [2, 2];
                drop(own);
                std::process::exit(if is_right { RIGHT } else { 1 });
            }
            Fork::Parent(child) => assert_eq!(fork::waitpid(child).unwrap() >> 8, RIGHT),
        }
    }
    assert_eq!(sum()?.values(), [4, 4]);
    say("done");
    Ok(())
}

#[test]
fn a_fork_has_no_run_of_a_strategy() {
    let mut job = Job::start(2, "forks_between_runs");
    for process in job.all() {
        process.expect("done");
        process.end();
    }
}

#[test]
fn a_fork_disturbs_nobody_and_hides_no_death() {
    for fork in ["ends", "lives"] {
        let mut job = Job::start(3, &format!("forks {fork}"));
        for process in job.all() {
            process.expect("ready");
            (0..2).for_each(|_| drop(process.expect("works")));
        }
        job.of(1).signal(Signal::SIGKILL);
        for process in job.others(1) {
            for _ in 0..2 {
                let error = process.line();
                assert!(
                    error.starts_with("Aborted call=all_reduce reason=Death replica=2 ")
                        && error.contains(" process=(worker[1] "),
                    "{error}"
                );
            }
            process.end();
        }
    }
}
