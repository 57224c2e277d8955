//! Processes that are stopped for a while.

use crate::driver::{self, Job, Signal, hear, number, say};
use consonance::{ReduceOp, Result};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// Makes up to a number of calls with a timeout of `ms` until one fails, then optionally continues
/// in a new group.
pub(crate) fn many_calls(words: &[&str]) -> Result<()> {
    let (calls, timeout) = (number(words[0]), Duration::from_millis(number(words[1])));
    let mut group = driver::join(1, timeout)?;
    say("ready");
    loop {
        let result = driver::on_each(&mut group, |rank| {
            (0..calls).try_for_each(|_| rank.all_reduce(ReduceOp::Sum, &mut [1.0f32; 500]))
        });
        match result.into_iter().collect::<Result<()>>() {
            Ok(()) => say("done"),
            Err(error) => say(&driver::fields(&error)),
        }
        match hear().as_str() {
            "reform" => group.reform(Duration::ZERO)?,
            _ => return Ok(()),
        }
    }
}

/// Makes calls until the test sends a line to one of the processes. All processes see that in the
/// same call.
pub(crate) fn calls_until_told(_: &[&str]) -> Result<()> {
    let mut group = driver::join(1, driver::LONG)?;
    let mut rank = group.communicators().remove(0);
    let told = Arc::new(AtomicBool::new(false));
    let tell = told.clone();
    thread::spawn(move || {
        hear();
        tell.store(true, Ordering::Relaxed);
    });
    say("ready");
    let mut data = [0.0f32; 500];
    while data[0] == 0.0 {
        data.fill(1.0);
        data[0] = told.load(Ordering::Relaxed).into();
        rank.all_reduce(ReduceOp::Sum, &mut data)?;
        assert_eq!(data[1], rank.size() as f32);
    }
    say("done");
    Ok(())
}

/// The error of who did not time out first, if replica 1 does not come.
const ABORTED: &str = "Aborted call=all_reduce reason=Deadline replica=1 inherited=false ";

#[test]
fn a_stopped_process_is_named_at_the_deadline() {
    let mut job = Job::start(3, "many_calls 10000000 1000");
    job.all().for_each(|process| drop(process.expect("ready")));
    thread::sleep(Duration::from_millis(50));
    job.of(1).signal(Signal::SIGSTOP);
    let stopped = format!("worker[1] (localhost:2), process {}, is stopped", job.of(1).pid());
    let mut waited = 0;
    for process in job.others(1) {
        let error = process.line();
        // One of them times out first, and all errors name the missing one.
        waited += usize::from(error.starts_with("Timeout call=all_reduce waited=1s missing=[1: "));
        let told = error.starts_with(ABORTED) && error.contains(" calls=[0: ");
        assert!(error.starts_with("Timeout") || told, "{error}");
        assert!(error.contains(&format!("all_reduce(sum, f32) 2000 {stopped}")), "{error}");
    }
    assert!(waited > 0);
    job.of(1).signal(Signal::SIGCONT);
    let error = job.of(1).line();
    assert!(error.starts_with(ABORTED), "{error}");
}

#[test]
fn a_process_continued_in_time_goes_on() {
    let mut job = Job::start(3, "calls_until_told");
    job.all().for_each(|process| drop(process.expect("ready")));
    for task in [0, 1, 2, 1] {
        job.of(task).signal(Signal::SIGSTOP);
        thread::sleep(Duration::from_millis(100));
        job.of(task).signal(Signal::SIGCONT);
    }
    job.of(2).tell("end");
    job.all().for_each(|process| assert_eq!(process.line(), "done"));
    job.end();
}
