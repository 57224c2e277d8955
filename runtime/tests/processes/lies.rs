//! A process that writes over the memory that it shares with the others.

use crate::{
    calls::{Calls, Random},
    driver::{self, Job, number, say},
};
use consonance::Result;
use std::{
    fs,
    io::{Read, Seek, SeekFrom, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

/// How long a call waits here.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Makes random calls until one fails, or so many. Process 0 has a thread that writes random bytes all over the segment, with
/// this seed, in this part of it.
pub(crate) fn scribbles(words: &[&str]) -> Result<()> {
    let (seed, part) = (number(words[0]), words[1]);
    let mut group = driver::join(1, TIMEOUT)?;
    let mut rank = group.communicators().remove(0);
    let (writes, stop) = (rank.rank() == 0, AtomicBool::new(false));
    thread::scope(|scope| {
        if writes {
            scope.spawn(|| scribble(seed, part, &stop));
        }
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut calls = Calls { random: Random(seed), most: 1 << 20, checks: false };
            (0..200).try_for_each(|_| calls.step(&mut rank))
        }));
        match result {
            Ok(Ok(())) => say("ok"),
            Ok(Err(error)) => say(&driver::words(&error)),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                say(&format!(
                    "panic {}",
                    text.or_else(|| Some((*panic.downcast_ref::<&str>()?).to_owned())).unwrap_or_default()
                ));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    Ok(())
}

/// Writes random bytes to where the segment is mapped, a few at a time.
fn scribble(seed: u64, part: &str, stop: &AtomicBool) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let map = maps.lines().find(|line| line.contains("memfd:consonance")).expect("the segment is mapped");
    let (start, end) = map.split(' ').next().unwrap().split_once('-').unwrap();
    let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
    // The lines of the ranks are at the start.
    let length = if part == "lines" { 8192 } else { (end - start).min(8 << 20) } as usize;
    let mut memory = fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
    let mut random = Random(seed ^ 0xabcd);
    while !stop.load(Ordering::Relaxed) {
        memory.seek(SeekFrom::Start(start + random.below(length) as u64 / 4 * 4)).unwrap();
        let mut bytes = [0; 8];
        memory.read_exact(&mut bytes).unwrap();
        match random.below(3) {
            // All of a word, a bit of it, or the word plus 1.
            0 => bytes = random.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes(),
            1 => bytes[random.below(8)] ^= 1 << random.below(8),
            _ => bytes = u64::from_ne_bytes(bytes).wrapping_add(1).to_ne_bytes(),
        }
        memory.seek_relative(-8).unwrap();
        memory.write_all(&bytes).unwrap();
        thread::sleep(Duration::from_micros(random.below(200) as u64));
    }
}

#[test]
fn a_process_that_writes_anything_anywhere_crashes_nobody() {
    for seed in 0..std::env::var("LIES").map_or(6, |lies| number(&lies)) {
        let part = if seed % 3 == 2 { "all" } else { "lines" };
        let mut job = Job::start(3, &format!("scribbles {seed} {part}"));
        for process in job.all() {
            let line = process.line();
            println!("{seed}: {line}");
            assert!(!line.starts_with("panic"), "{seed}: {line}");
        }
        job.end();
    }
}
