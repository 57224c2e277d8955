//! Processes that never start, end early, or make other calls than their peers.

use crate::driver::{self, Job, Signal, hear, number, say};
use consonance::{Communicator, ReduceOp, Result};
use std::{thread, time::Duration};

/// Waits `ms` for the others, and reports the missing ones.
pub(crate) fn meets(words: &[&str]) -> Result<()> {
    let builder = driver::builder(1, driver::LONG)?.timeout(Duration::from_millis(number(words[0])))?;
    builder.on_wait(|text| say(&format!("waiting {text}"))).join().map(drop)
}

#[test]
fn an_absent_worker_is_named() {
    let mut job = Job::new(3);
    [0, 2].into_iter().for_each(|task| job.launch(task, "meets 2300"));
    for process in [0, 2] {
        let waiting = job.of(process).expect("waiting");
        assert_eq!(
            waiting,
            format!("worker[{process}] (localhost:{}) has waited 2 s for worker[1] (localhost:2)", process + 1)
        );
        let error = job.of(process).expect("failed");
        let of = format!("Meeting call=ProcessGroup task=worker[{process}] (localhost:{}) problem=", process + 1);
        let problem = error.strip_prefix(&of).unwrap_or_else(|| panic!("{error}"));
        // Includes the other process, if it has timed out just before.
        let (_, missing) = problem.split_once("missing: ").expect("missing tasks");
        assert!(missing.contains("worker[1] (localhost:2)"), "{error}");
    }
}

/// Makes calls until one fails. Process 1 ends after three calls, in the way that the word names.
pub(crate) fn leaves(words: &[&str]) -> Result<()> {
    let mut group = driver::join(1, driver::LONG)?;
    let mut rank = group.communicators().remove(0);
    for round in 0.. {
        if rank.rank() == 1 && round == 3 {
            match words[0] {
                "cleanly" => return Ok(()),
                "exit" => std::process::exit(3),
                "panic" => panic!("as it must"),
                _ => std::process::abort(),
            }
        }
        if let Err(error) = rank.all_reduce(ReduceOp::Sum, &mut [1.0f32; 500]) {
            say(&driver::fields(&error));
            break;
        }
    }
    Ok(())
}

#[test]
fn a_worker_ending_early_is_named() {
    let lost = "Aborted call=all_reduce reason=Death replica=1 inherited=false lost=true process=(worker[1] \
                (localhost:2), process ";
    for (how, expected) in [
        ("cleanly", "Left call=all_reduce replica=1 lost=true last=3 all_reduce(sum, f32) 2000"),
        ("panic", "Left call=all_reduce replica=1 lost=true last=3 all_reduce(sum, f32) 2000"),
        ("exit", lost),
        ("abort", lost),
    ] {
        let mut job = Job::start(3, &format!("leaves {how}"));
        for process in job.others(1) {
            let error = process.line();
            assert!(error.starts_with(expected), "{how}: {error}");
            if how != "cleanly" && how != "panic" {
                assert!(error.contains(" 1: 3 all_reduce(sum, f32) 2000,"), "{error}");
            }
            process.end();
        }
    }
}

/// Makes calls until one fails: in the whole group, or in a part of all ranks with other numbers.
/// Process 1 ends that group alone; process 0 ends at once, as a program does that exits on each
/// error.
pub(crate) fn exits_after_an_abort(words: &[&str]) -> Result<()> {
    let mut group = driver::join(1, driver::LONG)?;
    let mut whole = group.communicators().remove(0);
    let process = whole.rank();
    let mut part = match words[0] {
        "part" => whole.split(Some(0), (process as i32 + 1) % 3)?,
        _ => None,
    };
    let rank = part.as_mut().unwrap_or(&mut whole);
    rank.barrier()?;
    say("ready");
    if process == 1 {
        hear();
        rank.abort();
    }
    say(&driver::fields(&rank.barrier().expect_err("rank 1 makes no call")));
    if process == 0 {
        std::process::exit(0);
    }
    while hear() == "go" {
        say(&driver::fields(&rank.barrier().expect_err("the group has ended")));
    }
    Ok(())
}

/// Process 1 has the rank `aborter` in the group that it aborts. `inherited`: the loss is one of
/// another group.
fn an_abort_is_told_before_a_death(group: &str, aborter: usize, inherited: bool) {
    let aborted = format!("Aborted call=barrier reason=Failure replica={aborter} inherited=false ");
    let lost = format!("Aborted call=barrier reason=Death replica=0 inherited={inherited} ");
    let mut job = Job::start(3, &format!("exits_after_an_abort {group}"));
    job.all().for_each(|process| drop(process.expect("ready")));
    job.of(2).signal(Signal::SIGSTOP);
    job.of(1).tell("abort");
    for task in [0, 1] {
        let error = job.of(task).line();
        assert!(error.starts_with(&aborted), "{task}: {error}");
    }
    job.of(0).end();
    // Process 1 hears of the death and notes it.
    thread::sleep(Duration::from_millis(300));
    job.of(2).signal(Signal::SIGCONT);
    let error = job.of(2).line();
    assert!(error.starts_with(&aborted), "{error}");
    // Each rank needs the loss, too, and is told of it from then on.
    for task in [1, 2, 1, 2] {
        job.of(task).tell("go");
        let error = job.of(task).line();
        assert!(error.starts_with(&lost), "{task}: {error}");
    }
}

#[test]
fn a_death_after_an_abort_does_not_hide_the_abort() {
    an_abort_is_told_before_a_death("whole", 1, false);
}

#[test]
fn a_death_after_an_abort_of_a_part_does_not_hide_the_abort() {
    an_abort_is_told_before_a_death("part", 2, true);
}

/// Makes a call that differs on rank 1, reports its result, and makes a call that is equal on all.
pub(crate) fn disagrees(words: &[&str]) -> Result<()> {
    let mut group = driver::join(1, driver::LONG)?;
    let mut rank = group.communicators().remove(0);
    for _ in 0..3 {
        let odd = rank.rank() == 1;
        let first = disagree(&mut rank, words[0], odd);
        let mut sum = [1u32; 700];
        let second = rank.all_reduce(ReduceOp::Sum, &mut sum);
        // A rank that went on hears of it in its next call, which is made all the same.
        let error = if first.is_ok() { second } else { second.and(first) };
        say(&driver::fields(&error.expect_err("the ranks do not agree")));
        assert_eq!(sum, [rank.size() as u32; 700]);
    }
    Ok(())
}

fn disagree(rank: &mut Communicator, what: &str, odd: bool) -> Result<()> {
    let (size, own) = (rank.size(), rank.rank());
    match what {
        "collective" if odd => rank.barrier(),
        "size" => rank.all_reduce(ReduceOp::Sum, &mut vec![1.0f32; if odd { 999 } else { 1000 }]),
        "dtype" if odd => rank.all_reduce(ReduceOp::Sum, &mut [1i32; 1000]),
        "op" if odd => rank.all_reduce(ReduceOp::Max, &mut [1.0f32; 1000]),
        "little" => rank.broadcast(&mut vec![1u8; if odd { 4 } else { 3 }], 2),
        "root" => rank.broadcast(&mut [1.0f32; 1000], if odd { 1 } else { 0 }),
        "counts" => {
            let counts = if odd { [1, 2, 4] } else { [2, 1, 4] };
            rank.all_gather_v(Some(&vec![1u8; counts[own]]), &mut [0; 7], &counts)
        }
        "gathered" => {
            let counts = if odd { [1, 2, 4] } else { [2, 1, 4] };
            let mut all = [0; 7];
            rank.gather_v(Some(&vec![1u8; counts[own]]), (own == 0).then_some(&mut all), &counts, 0)
        }
        "larger" => {
            let counts = [2, if odd { 5000 } else { 1 }, 4];
            let mut all = vec![0; 7 + 5000];
            let recv = (own == 0).then_some(&mut all[..counts.iter().sum()]);
            rank.gather_v(Some(&vec![1u8; counts[own]]), recv, &counts, 0)
        }
        // Parts of both calls have the same counts, but only the smaller ones are sent with them.
        "wider" if odd => {
            let (counts, mut all) = ([600, 500, 0], [0u64; 1100]);
            rank.gather_v(Some(&vec![1u64; counts[own]]), (own == 0).then_some(&mut all), &counts, 0)
        }
        "wider" => {
            let (counts, mut all) = ([600, 500, 0], [0u8; 1100]);
            rank.gather_v(Some(&vec![1u8; counts[own]]), (own == 0).then_some(&mut all), &counts, 0)
        }
        "scattered" => {
            let counts = if odd { [1, 2, 4] } else { [2, 1, 4] };
            rank.scatter_v((own == 0).then_some(&[1u8; 7]), Some(&mut vec![0; counts[own]]), &counts, 0)
        }
        "pairs" => {
            // Rank 1 sends less than rank 2 expects: all three ranks get the error.
            let count = if odd { 1 } else { 2 };
            let sent: Vec<usize> = (0..size).map(|to| if to == 2 { count } else { 1 }).collect();
            let received = vec![if own == 2 { 2 } else { 1 }; size];
            rank.all_to_all_v(&vec![1u8; size - 1 + count], &sent, &mut vec![0; received.iter().sum()], &received)
        }
        "huge" => rank.all_reduce(ReduceOp::Sum, &mut vec![1.0f32; if odd { 500_000 } else { 3 }]),
        _ => rank.all_reduce(ReduceOp::Sum, &mut [1.0f32; 1000]),
    }
}

#[test]
fn different_calls_are_shown_on_all_processes() {
    for (what, expected) in [
        ("collective", "call=all_reduce argument=call replica=1 expected=all_reduce found=barrier"),
        ("size", "call=all_reduce argument=count replica=1 expected=1000 found=999"),
        ("dtype", "call=all_reduce argument=dtype replica=1 expected=f32 found=i32"),
        ("op", "call=all_reduce argument=op replica=1 expected=sum found=max"),
        ("root", "call=broadcast argument=root replica=1 expected=0 found=1"),
        ("little", "call=broadcast argument=count replica=1 expected=3 found=4"),
        ("counts", "call=all_gather argument=counts replica=1 expected=[2, 1, 4] found=[1, 2, 4]"),
        ("gathered", "call=gather argument=counts replica=1 expected=[2, 1, 4] found=[1, 2, 4]"),
        (
            "larger",
            "call=gather argument=counts replica=1 expected=[2, 1, 4] found=those of larger parts, with digest ",
        ),
        ("wider", "call=gather argument=dtype replica=1 expected=u8 found=u64"),
        ("scattered", "call=scatter argument=counts replica=1 expected=[2, 1, 4] found=[1, 2, 4]"),
        ("pairs", "call=all_to_all argument=recv_counts[1] replica=2 expected=1 found=2"),
        ("huge", "call=all_reduce argument=count replica=1 expected=3 found=500000"),
    ] {
        let mut job = Job::start(3, &format!("disagrees {what}"));
        for process in job.all() {
            for _ in 0..3 {
                let line = process.line();
                assert!(line.starts_with(&format!("Mismatch {expected}")), "{line}");
                assert!(what == "larger" || line.len() == "Mismatch ".len() + expected.len(), "{line}");
            }
        }
        job.end();
    }
}

/// Rank 0 sends less than rank 1 expects, and goes on. In every second round it makes two calls
/// that differ before it is told of the first.
pub(crate) fn goes_on(_: &[&str]) -> Result<()> {
    let mut group = driver::join(1, driver::LONG)?;
    let mut rank = group.communicators().remove(0);
    for round in 0..4 {
        let first = match rank.rank() {
            0 => rank.send(&[1u8; 3], 1),
            1 => rank.recv(&mut [0u8; 4], 0),
            _ => Ok(()),
        };
        let second = match round % 2 {
            1 => rank.broadcast(&mut vec![0u8; if rank.rank() == 2 { 2 } else { 1 }], 0),
            _ => rank.barrier(),
        };
        let mut sum = [1u32; 7];
        let third = rank.all_reduce(ReduceOp::Sum, &mut sum);
        assert_eq!(sum, [3; 7]);
        let told =
            [first, second, third].map(|result| result.map_or_else(|error| driver::fields(&error), |()| "".into()));
        say(&format!("told {}", told.join(" | ")));
    }
    Ok(())
}

#[test]
fn a_sender_gets_the_mismatch_at_its_next_call() {
    let sent = "Mismatch call=send/recv argument=count replica=1 expected=3 found=4";
    let given = "Mismatch call=broadcast argument=count replica=2 expected=1 found=2";
    let expected = [
        [format!("told  | {sent} | "), format!("told  | {sent} | {given}")],
        [format!("told {sent} |  | "), format!("told {sent} |  | {given}")],
        ["told  |  | ".to_owned(), format!("told  | {given} | ")],
    ];
    let mut job = Job::start(3, "goes_on");
    for (process, expected) in job.all().zip(expected) {
        for round in 0..4 {
            assert_eq!(process.line(), expected[round % 2]);
        }
    }
    job.end();
}
