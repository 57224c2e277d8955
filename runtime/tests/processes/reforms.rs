//! New groups of the remaining and of joining processes.

use crate::{
    driver::{self, Job, Signal, hear, number, say},
    limits,
};
use consonance::{ProcessGroup, ReduceOp, Result};
use consonance_kernels::digest::mix;
use consonance_spec::generations::{Process, formed};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::Duration,
};

/// Joins with a timeout of this number of seconds, then executes the lines of the test. `sum` and
/// `until lost` are calls of this process's rank. `reform` has a number of ms to wait. After
/// `limit` there is no memory for another group, until `free`.
pub(crate) fn obeys(words: &[&str]) -> Result<()> {
    let builder = driver::builder(1, driver::LONG)?.timeout(Duration::from_secs(number(words[0])))?;
    let is_panicky = words.contains(&"panics");
    let mut group = builder.on_wait(move |_| assert!(!is_panicky, "nobody waits here")).join()?;
    let mut rank = group.communicators().remove(0);
    say(&format!("joined {} as {} of {}", group.generation(), rank.rank(), rank.size()));
    loop {
        let line = hear();
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "sum" => {
                let mut sum = vec![1u32; 30_000];
                match rank.all_reduce(ReduceOp::Sum, &mut sum) {
                    Ok(()) => say(&format!("sum {} {}", sum[0], sum[29_999])),
                    Err(error) => say(&driver::fields(&error)),
                }
            }
            "until" => {
                let error = (0..).find_map(|_| rank.all_reduce(ReduceOp::Sum, &mut [1.0f32; 3000]).err());
                say(&format!("lost {}", driver::fields(&error.expect("a loss"))));
            }
            "reform" => match reform_or_panic(&mut group, number(words[1])) {
                Ok(()) => {
                    rank = group.communicators().remove(0);
                    say(&format!("joined {} as {} of {}", group.generation(), rank.rank(), rank.size()));
                }
                Err(error) => say(&format!("failed {error}")),
            },
            "limit" => limits::limit_addresses(),
            "free" => setrlimit(Resource::RLIMIT_AS, RLIM_INFINITY, RLIM_INFINITY).unwrap(),
            _ => return Ok(()),
        }
    }
}

fn reform_or_panic(group: &mut ProcessGroup, wait_ms: u64) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| group.reform(Duration::from_millis(wait_ms)))) {
        Ok(result) => result.map_err(|error| driver::fields(&error)),
        Err(panic) => Err(format!("with a panic: {}", panic.downcast_ref().unwrap_or(&"of no words"))),
    }
}

/// The part of most processes here, with a timeout longer than any process takes to join.
const PART: &str = "obeys 30";

fn start(tasks: usize, part: &str) -> Job {
    let mut job = Job::start(tasks, part);
    joined(&mut job, 1, &(0..tasks).collect::<Vec<_>>());
    job
}

/// Checks that exactly these tasks have joined a group, and that it works.
#[track_caller]
fn joined(job: &mut Job, generation: u64, tasks: &[usize]) {
    for (rank, &task) in tasks.iter().enumerate() {
        assert_eq!(job.of(task).expect("joined"), format!("{generation} as {rank} of {}", tasks.len()));
    }
    tasks.iter().for_each(|&task| job.of(task).tell("sum"));
    for &task in tasks {
        assert_eq!(job.of(task).line(), format!("sum {0} {0}", tasks.len()));
    }
}

/// Kills a process while it and `others` are in calls. Checks that each of the others names it.
#[track_caller]
fn lose(job: &mut Job, lost: usize, others: &[usize]) {
    job.of(lost).tell("until lost");
    others.iter().for_each(|&task| job.of(task).tell("until lost"));
    thread::sleep(Duration::from_millis(20));
    job.of(lost).signal(Signal::SIGKILL);
    for &task in others {
        let error = job.of(task).expect("lost");
        assert!(error.contains(" reason=Death ") && error.contains(&format!(" process=(worker[{lost}] ")), "{error}");
    }
    job.of(lost).wait();
}

fn reform(job: &mut Job, tasks: &[usize], wait_ms: u64) {
    tasks.iter().for_each(|&task| job.of(task).tell(&format!("reform {wait_ms}")));
}

#[test]
fn a_process_unable_to_join_the_new_group_notifies_its_members() {
    let mut job = start(3, PART);
    lose(&mut job, 2, &[0, 1]);
    job.of(1).tell("limit");
    reform(&mut job, &[0, 1], 0);
    let error = job.of(1).expect("failed");
    assert!(error.starts_with("System ") && error.contains(" what=map a segment of "), "{error}");
    assert_eq!(job.of(0).expect("joined"), "2 as 0 of 2");
    job.of(0).tell("sum");
    let error = job.of(0).line();
    assert!(error.contains(" reason=Departure replica=1 "), "{error}");
    job.of(1).tell("free");
    reform(&mut job, &[0, 1], 0);
    joined(&mut job, 3, &[0, 1]);
}

#[test]
fn a_process_can_rejoin_after_a_panic_while_waiting() {
    let mut job = start(2, "obeys 30 panics");
    job.of(0).tell("reform 0");
    assert_eq!(job.of(0).expect("failed"), "with a panic: nobody waits here");
    reform(&mut job, &[0, 1], 0);
    joined(&mut job, 2, &[0, 1]);
}

#[test]
fn survivors_go_on_and_newcomers_join() {
    let mut job = start(3, PART);
    lose(&mut job, 1, &[0, 2]);
    reform(&mut job, &[0, 2], 0);
    joined(&mut job, 2, &[0, 2]);
    // The first of the processes, and the leader.
    lose(&mut job, 0, &[2]);
    reform(&mut job, &[2], 0);
    joined(&mut job, 3, &[2]);
    // Both are replaced.
    job.launch(0, PART);
    job.launch(1, PART);
    reform(&mut job, &[2], 20_000);
    joined(&mut job, 4, &[0, 1, 2]);
    lose(&mut job, 0, &[1, 2]);
    job.launch(0, PART);
    reform(&mut job, &[1, 2], 20_000);
    joined(&mut job, 5, &[0, 1, 2]);
    job.all().for_each(|process| process.tell("end"));
    job.end();
}

/// Loses and replaces any processes, or none, again and again. Each new group has the members and
/// the ranks of the spec.
#[test]
fn groups_are_those_of_the_spec() {
    for seed in 1..=3 {
        let mut job = start(3, PART);
        let mut tasks = [Process::Runs; 3];
        for last in 1..=4 {
            let choice = mix(seed, last) as usize;
            let mut running: Vec<usize> = (0..3).filter(|&task| tasks[task] == Process::Runs).collect();
            if running.len() > 1 && !choice.is_multiple_of(4) {
                let lost = running.swap_remove(choice / 4 % running.len());
                lose(&mut job, lost, &running);
                tasks[lost] = Process::Absent;
            }
            let waits_for_all = (choice / 16).is_multiple_of(2);
            for task in (0..3).filter(|_| waits_for_all) {
                if tasks[task] == Process::Absent {
                    job.launch(task, PART);
                    tasks[task] = Process::Asks;
                }
            }
            for &task in &running {
                assert_eq!(formed(last, &tasks, waits_for_all), None, "process {task} runs");
                reform(&mut job, &[task], if waits_for_all { 20_000 } else { 0 });
                tasks[task] = Process::Asks;
            }
            let members = formed(last, &tasks, waits_for_all).expect("all that live ask");
            joined(&mut job, last + 1, &members);
            members.iter().for_each(|&task| tasks[task] = Process::Runs);
        }
    }
}

#[test]
fn a_loss_while_the_others_reform() {
    let mut job = start(4, PART);
    lose(&mut job, 3, &[0, 1, 2]);
    // They wait for task 0, which does not join.
    reform(&mut job, &[1, 2], 0);
    thread::sleep(Duration::from_millis(30));
    job.of(0).signal(Signal::SIGKILL);
    joined(&mut job, 2, &[1, 2]);
}

#[test]
fn losses_at_any_time_while_the_others_reform() {
    for delay_us in [0, 200, 500, 1000, 2000] {
        let mut job = start(3, PART);
        lose(&mut job, 2, &[0, 1]);
        reform(&mut job, &[0, 1], 0);
        thread::sleep(Duration::from_micros(delay_us));
        job.of(0).signal(Signal::SIGKILL);
        // Task 1 has joined a group with task 0, which has ended, or a group without it.
        let first = job.of(1).expect("joined");
        match first.as_str() {
            "2 as 0 of 1" | "3 as 0 of 1" => {}
            "2 as 1 of 2" => {
                job.of(1).tell("until lost");
                job.of(1).expect("lost");
                reform(&mut job, &[1], 0);
                job.of(1).expect("joined");
            }
            _ => panic!("{first}"),
        }
        job.of(1).tell("sum");
        assert_eq!(job.of(1).line(), "sum 1 1");
    }
}

#[test]
fn a_stopped_process_is_not_left_behind() {
    let mut job = start(3, "obeys 5");
    lose(&mut job, 2, &[0, 1]);
    job.of(0).signal(Signal::SIGSTOP);
    let pid = job.of(0).pid();
    reform(&mut job, &[1], 0);
    let error = job.of(1).expect("failed");
    assert!(error.starts_with("Meeting call=ProcessGroup::reform task=worker[1] (localhost:2) problem="), "{error}");
    assert!(
        error.ends_with(&format!("alive, but did not come: worker[0] (localhost:1) (process {pid} is stopped)")),
        "{error}"
    );
    job.of(0).signal(Signal::SIGCONT);
    reform(&mut job, &[0, 1], 0);
    joined(&mut job, 2, &[0, 1]);
}

#[test]
fn four_processes_reform_again_and_again() {
    let mut job = start(4, PART);
    for generation in 2..=30 {
        reform(&mut job, &[0, 1, 2, 3], 0);
        joined(&mut job, generation, &[0, 1, 2, 3]);
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", job.of(0).pid())).unwrap().count();
    assert!(open < 40, "{open} descriptors after 30 groups");
    let threads = std::fs::read_dir(format!("/proc/{}/task", job.of(0).pid())).unwrap().count();
    assert!(threads < 6, "{threads} threads after 30 groups");
}
