//! Tests of members that end, and of what the others see of it.

use super::{
    MeetingError, job, name,
    worker::{LIMIT, Worker, form_all, open_all},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use std::{
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Kills workers at varying times while a group is formed. The others form a group, which is the
/// same for all of them.
#[test]
fn kills_during_a_meeting_split_no_group() {
    const TASKS: usize = 4;
    let mut joined = 0;
    let digest = job();
    let mut workers = open_all(TASKS, digest);
    let mut highest = form_all(&mut workers, 0).0;
    for round in 0..60u64 {
        // Kill the leader and, in every third round, one more worker.
        let killed = if round % 3 == 0 { vec![0, 1 + round as usize % 3] } else { vec![0] };
        workers.iter_mut().for_each(|worker| worker.form(LIMIT.as_millis() as u64));
        for &task in &killed {
            thread::sleep(Duration::from_micros(round * 37 % 700));
            workers[task].child.kill().expect("it runs");
        }
        for &task in &killed {
            // A process has its socket name until it has ended, however long the system takes to
            // end it.
            workers[task].child.wait().expect("a child");
            workers[task] = Worker::open(task, TASKS, digest);
        }
        killed.iter().for_each(|&task| workers[task].form(0));
        // A worker that has joined a group with a killed worker forms a new group, as it would in a
        // job.
        let pids: Vec<String> = workers.iter().map(|worker| format!(":Some({})", worker.pid())).collect();
        let mut results: [Option<String>; TASKS] = Default::default();
        let begin = Instant::now();
        while results.iter().any(Option::is_none) {
            assert!(begin.elapsed() < LIMIT, "round {round}: not all have joined: {results:?}");
            for (task, worker) in workers.iter_mut().enumerate() {
                let Ok(line) = worker.lines.recv_timeout(Duration::from_millis(1)) else { continue };
                assert!(!line.starts_with("error"), "round {round}, worker {task}: {line}");
                let Some(group) = line.strip_prefix("formed ") else { continue };
                if pids.iter().all(|pid| group.contains(pid)) {
                    results[task] = Some(group.to_owned());
                } else {
                    joined += 1;
                    worker.form(LIMIT.as_millis() as u64);
                }
            }
        }
        assert!(results.iter().all(|result| *result == results[0]), "round {round}: {results:?}");
        let generation = results[0].as_ref().and_then(|group| group.split(' ').next()?.parse().ok());
        assert!(generation > Some(highest), "round {round}: {generation:?} after {highest}");
        highest = generation.unwrap_or(highest);
    }
    println!("{joined} times a survivor had joined a group with one that was killed");
}

/// Kills members that have filled so many MiB of memory, and prints when the others saw it.
fn kill_members(mib: usize, kills: usize) {
    const MEMBERS: usize = 3;
    let digest = job();
    let mut workers = open_all(MEMBERS, digest);
    let mut nanos: Vec<u128> = Vec::new();
    for round in 0..kills {
        let (generation, tasks) = form_all(&mut workers, LIMIT.as_millis() as u64);
        assert_eq!((generation, &*tasks), (round as u64 + 1, &[0, 1, 2][..]));
        let lost = round % MEMBERS;
        workers[lost].command(&format!("fill {mib}"));
        assert_eq!(workers[lost].wait_for("filled"), "");
        let killed = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_nanos();
        workers[lost].child.kill().expect("it runs");
        let seen = (0..MEMBERS).filter(|&member| member != lost).map(|member| {
            let gone = workers[member].wait_for("gone");
            let seen = gone.strip_prefix(&format!("{lost} Ended ")).expect("its end");
            seen.parse::<u128>().expect("a number").saturating_sub(killed)
        });
        nanos.push(seen.max().expect("there are others"));
        workers[lost].child.wait().expect("a child");
        workers[lost] = Worker::open(lost, MEMBERS, digest);
    }
    nanos.sort_unstable();
    let micros = |index: usize| nanos[index] / 1000;
    println!(
        "kill of {mib} MiB to the last report, of {kills}: {} µs in the middle, {} µs p99",
        micros(kills / 2),
        micros(kills * 99 / 100)
    );
}

#[test]
fn a_death_is_seen_at_once() {
    kill_members(0, 100);
}

/// `CONSONANCE_DEATH_MIB` and `CONSONANCE_DEATH_KILLS` set the size and the number.
#[test]
fn the_death_of_a_large_process_is_seen() {
    let setting = |name, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    kill_members(setting("CONSONANCE_DEATH_MIB", 256), setting("CONSONANCE_DEATH_KILLS", 4));
}

#[test]
fn a_member_reported_dead_is_gone_once_its_process_has_ended() {
    let mut workers = open_all(3, job());
    form_all(&mut workers, 0);
    // The first rank of worker 1.
    workers[2].command("lie 1");
    assert_eq!(workers[2].wait_for("lied"), "");
    thread::sleep(Duration::from_millis(200));
    assert!(workers.iter().all(|worker| worker.lines.try_recv().is_err()), "it lives");
    workers.remove(1).kill();
    for worker in &workers {
        assert!(worker.wait_for("gone").starts_with("1 Ended"));
    }
}

#[test]
fn a_fork_neither_hides_an_end_nor_takes_a_place() {
    let digest = job();
    let mut workers = open_all(2, digest);
    form_all(&mut workers, 0);
    workers[1].command("form-in-fork");
    assert_eq!(workers[1].wait_for("fork ended"), "7");
    workers[1].command("fork");
    let child = workers[1].wait_for("child").parse().ok().and_then(Pid::from_raw).expect("a pid");
    // The fork has dropped its watch, and this has not ended the parent's watch.
    form_all(&mut workers, 0);
    workers[1].child.kill().expect("it runs");
    assert!(workers[0].wait_for("gone").starts_with("1 Ended"));
    // The fork has the listener, so no process can take the name.
    let second = Worker::start(1, 2, digest, 1);
    second.expect_error(&MeetingError::Taken { name: name(1), pid: Some(workers[1].pid()) });
    let end = pidfd_open(child, PidfdFlags::empty()).expect("it runs");
    kill_process(child, Signal::KILL).expect("it runs");
    let ended = poll(&mut [PollFd::new(&end, PollFlags::IN)], Timespec::try_from(LIMIT).ok().as_ref());
    assert_eq!(ended, Ok(1), "the fork ends");
    workers[1] = Worker::open(1, 2, digest);
    assert_eq!(form_all(&mut workers, LIMIT.as_millis() as u64).1, [0, 1]);
}

#[test]
fn a_started_program_inherits_nothing() {
    let digest = job();
    let mut workers = open_all(2, digest);
    form_all(&mut workers, 0);
    workers[1].command("spawn");
    let child = workers[1].wait_for("child").parse().ok().and_then(Pid::from_raw).expect("a pid");
    workers.pop().expect("a worker").kill();
    assert!(workers[0].wait_for("gone").starts_with("1 Ended"));
    drop(Worker::open(1, 2, digest));
    kill_process(child, Signal::KILL).expect("it runs");
}
