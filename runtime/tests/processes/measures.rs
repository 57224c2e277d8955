//! The choice of pipelines: when ranks measure, and who has the values.

use crate::driver::{self, Job, say};
use consonance::{ReduceOp, Result};
use consonance_kernels::{
    group::LARGE_BYTES,
    tuning::{Origin, Pipeline, Tuning, adopt, current, settled},
};
use std::{thread, time::Duration};

fn is_due() -> bool {
    settled().expect("no file").measures
}

/// Returns what this process has chosen.
fn choice() -> String {
    let Tuning { near, far, own, read_bytes, .. } = current();
    format!("{near} {far} {own} {read_bytes}")
}

/// Makes small and large calls, and reports after each whether a choice is due. Then reports the
/// choice.
pub(crate) fn measures(words: &[&str]) -> Result<()> {
    let mut group = driver::join(1, driver::LONG)?;
    let mut rank = group.communicators().remove(0);
    let mut data = vec![1f32; LARGE_BYTES / size_of::<f32>()];
    let tell = |when: &str| say(&format!("{when} {}", is_due()));
    rank.all_reduce(ReduceOp::Max, &mut data[1..])?;
    tell("small");
    if rank.rank() == 1 {
        // Less than a measurement is made in.
        rank.set_timeout(Duration::from_millis(4999))?;
    }
    rank.barrier()?;
    rank.broadcast(&mut data, 1)?;
    tell("impatient");
    rank.set_timeout(driver::LONG)?;
    rank.barrier()?;
    // The second after one with so short a timeout.
    rank.broadcast(&mut data, 1)?;
    match words[0] {
        "all_reduce" => rank.all_reduce(ReduceOp::Max, &mut data)?,
        _ => rank.broadcast(&mut data, 0)?,
    }
    tell("large");
    for _ in 0..3 {
        rank.all_reduce(ReduceOp::Max, &mut data)?;
    }
    assert!(data.iter().all(|&number| number == 1.0));
    say(&format!("choice {}", choice()));
    Ok(())
}

#[test]
fn ranks_measure_after_their_first_large_call_and_choose_the_same() {
    if thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        eprintln!("skipped: ranks that outnumber the cores do not measure (run it on two cores)");
        return;
    }
    for call in ["all_reduce", "broadcast"] {
        let mut job = Job::start(2, &format!("measures {call}"));
        let mut all = Vec::new();
        for process in job.all() {
            for (when, expected) in [("small", "true"), ("impatient", "true"), ("large", "false")] {
                assert_eq!(process.expect(when), expected, "{when}");
            }
            all.push(process.expect("choice").to_owned());
        }
        assert_eq!(all[0], all[1]);
        job.end();
    }
}

/// Makes large calls in a group, some of whose processes have chosen elsewhere.
pub(crate) fn has_chosen(words: &[&str]) -> Result<()> {
    if let Some(near) = Pipeline::ALL.into_iter().find(|pipeline| pipeline.name() == words[0]) {
        adopt(&Tuning { near, ..*current() }, Origin::Measured);
    }
    let mut group = driver::join(1, driver::LONG)?;
    let mut rank = group.communicators().remove(0);
    let mut data = vec![1f32; 3 * LARGE_BYTES / size_of::<f32>()];
    for _ in 0..3 {
        rank.all_reduce(ReduceOp::Sum, &mut data)?;
    }
    assert!(data.iter().all(|&number| number == 27.0));
    say(&format!("choice {} {}", is_due(), choice()));
    Ok(())
}

#[test]
fn a_choice_of_before_is_taken_by_those_without_one() {
    let default = "ahead vector 262144";
    for (before, expected) in [
        (["movsb", "none", "none"], ["movsb"; 3]),
        (["none", "none", "stream"], ["stream"; 3]),
        (["none", "plain", "mixed"], ["plain", "plain", "mixed"]),
    ] {
        let mut job = Job::new(3);
        for (rank, before) in before.into_iter().enumerate() {
            job.launch(rank, &format!("has_chosen {before}"));
        }
        for (process, near) in job.all().zip(expected) {
            assert_eq!(process.expect("choice"), format!("false {near} {default}"));
        }
        job.end();
    }
}
