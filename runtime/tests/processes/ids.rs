//! Groups whose processes share an id, without a cluster.

use crate::{
    driver::{self, Job, hear, number, say},
    fields::{found, refusal},
};
use consonance::{CommunicationOptions, Error, ProcessGroup, ReduceOp, Result, UniqueId};
use std::{thread, time::Duration};

/// Joins groups of which it hears: the rank, the size, the timeout in milliseconds and the id of
/// each. Adds the ranks of a group and reports the sum.
pub(crate) fn by_ids(_: &[&str]) -> Result<()> {
    say("ready");
    loop {
        let line = hear();
        let words: Vec<&str> = line.split(' ').collect();
        let [rank, size, timeout, id] = words[..] else { return Ok(()) };
        let (rank, size) = (number(rank) as usize, number(size) as usize);
        let joined = id.parse().and_then(|id| join(&id, rank, size, Duration::from_millis(number(timeout))));
        match joined {
            Ok(sum) => say(&format!("sum {sum}")),
            Err(error) => say(&driver::fields(&error)),
        }
    }
}

fn join(id: &UniqueId, rank: usize, size: usize, timeout: Duration) -> Result<u64> {
    let options = CommunicationOptions::new().timeout(driver::LONG)?;
    let mut group = ProcessGroup::with_id(id, rank, size).options(options).timeout(timeout)?.join()?;
    let mut sum = [rank as u64];
    group.communicators()[0].all_reduce(ReduceOp::Sum, &mut sum)?;
    Ok(sum[0])
}

fn joins(rank: usize, size: usize, timeout: u64, id: &UniqueId) -> String {
    format!("{rank} {size} {timeout} {id}")
}

#[test]
fn any_processes_and_threads_form_groups() {
    let mut job = Job::start(3, "by_ids");
    job.all().for_each(|process| drop(process.expect("ready")));
    // Two processes of three, in both orders; all of them with two threads of this process.
    for members in [vec![0, 1], vec![2, 0], vec![0, 1, 2]] {
        let id = UniqueId::new().unwrap();
        let size = members.len() + 2;
        for (rank, &member) in members.iter().enumerate() {
            job.of(member).tell(&joins(rank, size, 40_000, &id));
        }
        let here = |rank| thread::spawn(move || join(&id, rank, size, driver::LONG));
        let here: Vec<_> = (members.len()..size).map(here).collect();
        let expected = (size * (size - 1) / 2) as u64;
        here.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap().unwrap(), expected));
        members.iter().for_each(|&member| assert_eq!(job.of(member).line(), format!("sum {expected}")));
    }
    job.all().for_each(|process| process.tell("end"));
    job.end();
}

#[test]
fn many_groups_exist_at_once() {
    let ids: Vec<UniqueId> = (0..50).map(|_| UniqueId::new().unwrap()).collect();
    let form = |rank: usize| {
        let groups = ids.iter().map(|id| ProcessGroup::with_id(id, rank, 2).join());
        let mut groups: Vec<ProcessGroup> = groups.collect::<Result<_>>().unwrap();
        for (index, group) in groups.iter_mut().enumerate() {
            let mut data = [index as u32];
            group.communicators()[0].all_reduce(ReduceOp::Sum, &mut data).unwrap();
            assert_eq!(data, [2 * index as u32]);
        }
    };
    thread::scope(|scope| {
        let form = &form;
        [0, 1].map(|rank| scope.spawn(move || form(rank))).map(|one| one.join().unwrap())
    });
}

#[test]
fn a_missing_rank_or_one_elsewhere_is_named() {
    let mut job = Job::start(2, "by_ids");
    job.all().for_each(|process| drop(process.expect("ready")));
    let id = UniqueId::new().unwrap();
    job.of(0).tell(&joins(0, 2, 300, &id));
    let error = job.of(0).line();
    assert!(
        error.starts_with("Meeting call=ProcessGroup task=rank 0 problem=") && error.contains("; missing: rank 1"),
        "{error}"
    );

    // The two count different numbers of ranks.
    job.of(0).tell(&joins(0, 2, 30_000, &id));
    job.of(1).tell(&joins(1, 3, 30_000, &id));
    let error = job.of(0).line();
    assert!(error.starts_with("Meeting call=ProcessGroup task=rank 0 problem=rank 1 (process "), "{error}");
    assert!(error.ends_with(" counts 3 processes: expected 2"), "{error}");
    let error = job.of(1).line();
    assert!(error.ends_with(" counts 2 processes: expected 3"), "{error}");

    // Ids from elsewhere: the machine's boot, its network namespace, the user and the build.
    for (at, what) in [(24, "host"), (40, "network namespace"), (48, "user"), (56, "build")] {
        let mut bytes = *id.as_bytes();
        bytes[at] ^= 1;
        let elsewhere = UniqueId::from_bytes(bytes).unwrap();
        let error = ProcessGroup::with_id(&elsewhere, 3, 4).join().unwrap_err();
        let Error::InvalidCall { argument, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*argument, format!("id of rank 3, {what}"), "{error}");
    }
    let error = ProcessGroup::with_id(&id, 2, 2).join().unwrap_err();
    assert_eq!((refusal(&error), found(&error)), (("ProcessGroup", "rank", None), "2"));
    assert!(matches!(UniqueId::from_bytes([7; 128]), Err(Error::InvalidCall { .. })));
    assert!(matches!("12".parse::<UniqueId>(), Err(Error::InvalidCall { .. })));
    job.all().for_each(|process| process.tell("end"));
    job.end();
}

/// Found by a trial: a name was made for each rank, and the process ended for want of memory.
#[test]
fn a_size_above_the_limit_is_refused_before_anything_is_made() {
    let id = UniqueId::new().unwrap();
    for size in [1025, 1 << 30, usize::MAX] {
        let error = ProcessGroup::with_id(&id, 0, size).join().expect_err("no group");
        assert_eq!((refusal(&error), found(&error)), (("ProcessGroup", "size", None), &*size.to_string()));
    }
}
