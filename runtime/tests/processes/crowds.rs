//! More processes than cores, with all kinds of calls.

use crate::{
    calls::{Calls, Random},
    driver::{self, Job, number},
};
use consonance::Result;

/// Makes random calls. Words: the number of replicas, of calls, and of bytes at most.
pub(crate) fn mixed(words: &[&str]) -> Result<()> {
    let [replicas, rounds, most] = [0, 1, 2].map(|at| number(words[at]) as usize);
    let mut group = driver::join(replicas, driver::LONG)?;
    let results = driver::on_each(&mut group, |rank| {
        let mut calls = Calls { random: Random(most as u64), most, checks: true };
        (0..rounds).try_for_each(|_| calls.step(rank))
    });
    results.into_iter().collect()
}

#[test]
fn more_processes_than_cores() {
    Job::start(8, "mixed 2 400 10000").end();
}

#[test]
fn data_larger_than_the_staging() {
    for processes in [1, 2, 3, 5] {
        Job::start(processes, "mixed 1 30 4000000").end();
    }
}
