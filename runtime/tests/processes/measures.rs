//! The measurement of copies: when it is made, and who has its values.

use crate::driver::{self, Job, say};
use consonance::{ReduceOp, Result};
use consonance_kernels::{
    group::measured::LARGE_BYTES,
    tuning::{Scope, Tuning, current, settled},
};
use std::time::Duration;

/// Makes small and large calls, and reports after each whether a measurement is due. Then reports
/// its knobs of a process.
pub(crate) fn measures(words: &[&str]) -> Result<()> {
    let mut group = driver::join(1, driver::LONG)?;
    let mut rank = group.communicators().remove(0);
    let mut data = vec![1f32; LARGE_BYTES / size_of::<f32>()];
    let is_due = || settled().unwrap().measures;
    let tell = |when: &str| say(&format!("{when} {}", is_due()));
    rank.all_reduce(ReduceOp::Max, &mut data[1..])?;
    tell("small");
    if rank.rank() == 2 {
        // Less than a measurement is made in.
        rank.set_timeout(Duration::from_millis(4999))?;
    }
    rank.barrier()?;
    rank.broadcast(&mut data, 1)?;
    tell("impatient");
    rank.set_timeout(driver::LONG)?;
    rank.barrier()?;

    match words[0] {
        "all_reduce" => rank.all_reduce(ReduceOp::Max, &mut data)?,
        _ => rank.broadcast(&mut data, 0)?,
    }
    if rank.rank() == 0 {
        tell("large");
    }
    rank.all_reduce(ReduceOp::Max, &mut data)?;
    tell("next");
    let knobs = Tuning::KNOBS.iter().filter(|knob| knob.scope == Scope::Process);
    let knobs: Vec<String> = knobs.map(|knob| current().get(knob).to_string()).collect();
    say(&format!("knobs {}", knobs.join(" ")));
    Ok(())
}

#[test]
fn rank_0_measures_before_the_first_large_call_and_its_peers_take_its_knobs() {
    for call in ["all_reduce", "broadcast"] {
        let mut job = Job::start(3, &format!("measures {call}"));
        let mut all = Vec::new();
        for (rank, process) in job.all().enumerate() {
            assert_eq!(process.expect("small"), "true");
            assert_eq!(process.expect("impatient"), "true");
            if rank == 0 {
                assert_eq!(process.expect("large"), "false");
            }
            assert_eq!(process.expect("next"), "false");
            all.push(process.expect("knobs").to_owned());
        }
        assert!(all.iter().all(|knobs| *knobs == all[0]), "{all:?}");
        job.end();
    }
}

/// Makes large calls in a group whose rank 0 has measured elsewhere since it was made.
pub(crate) fn has_measured(_: &[&str]) -> Result<()> {
    let mut group = driver::join(1, driver::LONG)?;
    let mut rank = group.communicators().remove(0);
    rank.barrier()?;
    if rank.rank() == 0 {
        consonance_kernels::os::copy_times::measure_once();
    }
    let mut data = vec![1f32; LARGE_BYTES / size_of::<f32>()];
    for _ in 0..2 {
        rank.all_reduce(ReduceOp::Max, &mut data)?;
    }
    say(&format!("due {}", settled().unwrap().measures));
    Ok(())
}

#[test]
fn rank_0_publishes_its_earlier_measurements_to_its_peers() {
    let mut job = Job::start(3, "has_measured");
    job.all().for_each(|process| assert_eq!(process.expect("due"), "false"));
    job.end();
}

/// Joins a group whose other process has measured.
pub(crate) fn comes_later(words: &[&str]) -> Result<()> {
    let is_due = || settled().unwrap().measures;
    if words[0] == "measured" {
        consonance_kernels::os::copy_times::measure_once();
    }
    let _group = driver::join(1, driver::LONG)?;
    say(&format!("due {}", is_due()));
    Ok(())
}

#[test]
fn a_process_takes_measured_knobs_of_its_segment_s_creator() {
    for (first, expected) in [("measured", "false"), ("new", "true")] {
        let mut job = Job::new(2);
        // Task 0 makes what the group shares.
        job.launch(0, &format!("comes_later {first}"));
        job.launch(1, "comes_later new");
        job.all().for_each(|process| assert_eq!(process.expect("due"), expected));
        job.end();
    }
}
