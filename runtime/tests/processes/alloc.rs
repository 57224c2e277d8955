//! Memory from `Communicator::alloc` when a peer is stopped or killed while it writes there.

use crate::{
    calls::Random,
    driver::{self, Job, Signal, hear, number, say},
};
use consonance::{Communicator, ReduceOp, Result, SharedMemory};
use std::{fs, thread, time::Duration};

/// Number of elements of a rank: large, so that a rank spends most of its time in calls.
const COUNT: usize = 512 << 10;

/// Limit on doublings of an element before it overflows.
const DOUBLINGS: usize = 1000;

/// Longer than a call takes after its deadline on a busy machine.
const ENDS: Duration = Duration::from_secs(5);

/// Doubles its memory from `alloc` by sums of equal numbers until a call fails. Reports the time
/// and whether the memory is private now. On `look` compares the memory again, then continues in a
/// new group, first with the same memory.
pub(crate) fn doubles(words: &[&str]) -> Result<()> {
    let timeout = Duration::from_millis(number(words[0]));
    let mut group = driver::join(1, driver::LONG)?;
    let mut kept: Option<SharedMemory<f64>> = None;
    loop {
        let mut rank = group.communicators().remove(0);
        // A single process would double without end.
        assert_eq!(rank.size() as u64, number(words[1]), "all form each group");
        // Memory of an earlier group is ordinary memory; a new process allocates in this group.
        let mut data = match kept.take() {
            Some(kept) => kept,
            None => rank.alloc(COUNT)?,
        };
        data.fill(3.0);
        rank.all_reduce(ReduceOp::Max, &mut data)?;
        assert!(data.iter().all(|&element| element == 3.0));
        data = rank.alloc(COUNT)?;
        assert!(is_shared(&data) && data.iter().all(|&element| element == 0.0));
        rank.barrier()?;
        rank.set_timeout(timeout)?;
        say("in");
        let before = double_until_lost(&mut rank, &mut data);
        let time = driver::now();
        let content = data.to_vec();
        // A failed call has combined none, some or all elements.
        let after = before * rank.size() as f64;
        if let Some(place) = content.iter().position(|&element| element != before && element != after) {
            panic!("{} at {place}, neither {before} nor {after}", content[place]);
        }
        say(&format!("lost {} {}", time.as_nanos(), if is_shared(&data) { "shared" } else { "own" }));
        assert_eq!(hear(), "look");
        say(if *data == content[..] { "kept" } else { "written" });
        kept = Some(data);
        match hear().as_str() {
            "reform" => group.reform(driver::LONG / 2)?,
            _ => return Ok(()),
        }
    }
}

/// Returns the value of each element before the failed call.
fn double_until_lost(rank: &mut Communicator, data: &mut SharedMemory<f64>) -> f64 {
    let factor = rank.size() as f64;
    let most = (DOUBLINGS as f64 / factor.log2()) as usize;
    loop {
        let mut element = 1.0;
        data.fill(element);
        for _ in 0..most {
            if rank.all_reduce(ReduceOp::Sum, data).is_err() {
                return element;
            }
            element *= factor;
        }
    }
}

/// Returns whether the pages of these elements are shared with the group.
fn is_shared(data: &SharedMemory<f64>) -> bool {
    let address = data.as_ptr().addr();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let bound = |text| usize::from_str_radix(text, 16).unwrap();
        (bound(start)..bound(end)).contains(&address)
    });
    line.expect("a mapping").split(' ').nth(1).unwrap().ends_with('s')
}

/// Stops or kills one process after the other, each in the middle of a call, until a process took
/// its memory back.
fn interrupt(processes: usize, signal: Signal) {
    const TIMEOUT: Duration = Duration::from_millis(300);
    /// In each round the process is in another's memory with a probability of about one half.
    const ROUNDS: usize = 60;
    let is_stop = signal == Signal::SIGSTOP;
    let part = format!("doubles {} {processes}", if is_stop { TIMEOUT } else { driver::LONG }.as_millis());
    let mut job = Job::start(processes, &part);
    let (mut random, mut is_taken_back) = (Random(processes as u64), false);
    for round in 0..ROUNDS {
        job.all().for_each(|process| drop(process.expect("in")));
        thread::sleep(Duration::from_micros(20_000 + random.below(20_000) as u64));
        let lost = round % processes;
        let sent = driver::now();
        job.of(lost).signal(signal);
        for process in job.others(lost) {
            let line = process.expect("lost");
            let (time, pages) = line.split_once(' ').unwrap();
            let took = Duration::from_nanos(number(time)).saturating_sub(sent);
            assert!(took < ENDS + if is_stop { TIMEOUT } else { Duration::ZERO }, "{took:?}");
            is_taken_back |= pages == "own";
        }
        if is_stop {
            job.of(lost).signal(Signal::SIGCONT);
            job.of(lost).expect("lost");
        } else {
            job.of(lost).wait();
        }
        let survivors: Vec<usize> = (0..processes).filter(|&task| is_stop || task != lost).collect();
        for &task in &survivors {
            job.of(task).tell("look");
            assert_eq!(job.of(task).line(), "kept");
        }
        if is_taken_back {
            return;
        }
        if !is_stop {
            job.launch(lost, &part);
        }
        survivors.iter().for_each(|&task| job.of(task).tell("reform"));
    }
    // If processes wait for a core, few of them are in another's memory at any time.
    // kernels/src/group/corrupt_peer.rs has a deterministic test of this case.
    println!("in {ROUNDS} rounds no process was interrupted in another's memory: no pages were taken back");
}

#[test]
fn a_stopped_process_writes_no_more_in_another_s_memory() {
    interrupt(2, Signal::SIGSTOP);
    interrupt(3, Signal::SIGSTOP);
}

#[test]
fn memory_keeps_its_content_after_a_kill_of_its_writer() {
    interrupt(2, Signal::SIGKILL);
    interrupt(3, Signal::SIGKILL);
}
