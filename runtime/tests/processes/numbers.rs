//! Replica ids in errors are those of the group that was aborted.

use crate::fields::{last_call, reason};
use consonance::{ClusterSpec, Communicator, Error, ProcessGroup, SimpleClusterResolver, raw::Reason};
use std::{
    sync::{
        Barrier,
        atomic::{AtomicU16, Ordering},
    },
    thread,
    time::Duration,
};

/// Calls `body` on all ranks of a group of four threads, then of a group over a shared segment, as
/// processes use it. Keeps all ranks and results until all have returned.
fn on_four<R: Send>(body: impl Fn(&mut Communicator) -> R + Sync, check: impl Fn(Vec<R>)) {
    static GROUPS: AtomicU16 = AtomicU16::new(1);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let address = format!("127.{high}.{middle}.{low}:{}", GROUPS.fetch_add(1, Ordering::Relaxed));
    let cluster = ClusterSpec::new().job("worker", [address]).unwrap();
    let alone = SimpleClusterResolver::new(cluster).with_task("worker", 0).unwrap();
    let shared = ProcessGroup::builder(alone).replicas(4).join().unwrap().communicators();
    for mut ranks in [Communicator::threads(4), shared] {
        let results = thread::scope(|scope| {
            let threads: Vec<_> = ranks.iter_mut().map(|rank| scope.spawn(|| body(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        check(results);
    }
}

/// Waits in a barrier. `first` times out soon, the others when it aborts the group.
fn wait(rank: &mut Communicator, first: bool) -> Option<Error> {
    let timeout = if first { Duration::from_millis(100) } else { Duration::from_secs(60) };
    rank.set_timeout(timeout).unwrap();
    rank.barrier().err()
}

/// Returns the rank that timed out, and the last calls of the others.
fn told(error: &Option<Error>) -> (usize, Vec<(usize, &str)>) {
    let Some(Error::Aborted { replica, calls, .. }) = error else { panic!("{error:?}") };
    (*replica, calls.iter().map(|(replica, last)| (*replica, last.as_str())).collect())
}

#[test]
fn all_ranks_get_the_missing_rank_at_the_deadline() {
    let body = |rank: &mut Communicator| match rank.rank() {
        3 => None,
        id => wait(rank, id == 0),
    };
    on_four(body, |errors| {
        assert!(matches!(errors[0], Some(Error::Timeout { .. })), "{:?}", errors[0]);
        for error in &errors[1..3] {
            let (replica, calls) = told(error);
            assert_eq!((replica, calls.len()), (3, 4));
            assert_eq!(last_call(calls[0].1), Some((1, "barrier()", 0)));
            assert_eq!((calls[3].0, last_call(calls[3].1)), (3, None));
        }
    });
}

#[test]
fn a_deadline_of_a_subgroup_reports_its_own_ranks() {
    let body = |rank: &mut Communicator| {
        let mut group = rank.split(Some((rank.rank() > 0) as u32), 0).unwrap().unwrap();
        let error = if (1..3).contains(&rank.rank()) { wait(&mut group, rank.rank() == 1) } else { None };
        (error, group)
    };
    on_four(body, |results| {
        let (replica, calls) = told(&results[2].0);
        assert_eq!((replica, calls.iter().map(|call| call.0).collect::<Vec<_>>()), (2, vec![0, 1, 2]));
        let made_barrier = |call: &(usize, &str)| last_call(call.1).is_some_and(|(_, call, _)| call == "barrier()");
        assert!(made_barrier(&calls[0]) && !made_barrier(&calls[2]), "{calls:?}");
    });
}

#[test]
fn a_deadline_of_a_pair_has_the_numbers_of_the_whole_group() {
    let mut ranks = Communicator::threads(4);
    ranks[1].set_timeout(Duration::from_millis(20)).unwrap();
    assert!(matches!(ranks[1].recv(&mut [0u8], 3), Err(Error::Timeout { missing, .. }) if missing[0].0 == 3));
    let error = ranks[3].send(&[0u8], 1).err();
    let (replica, calls) = told(&error);
    assert_eq!((replica, calls.iter().map(|call| call.0).collect::<Vec<_>>()), (3, vec![1, 3]));
}

#[test]
fn the_end_of_a_parent_has_the_parent_s_numbers() {
    let all_have_split = Barrier::new(4);
    let body = |rank: &mut Communicator| {
        let mut pair = rank.split(Some(rank.rank() as u32 / 2), 0).unwrap().unwrap();
        let mut same = pair.split(Some(0), 0).unwrap().unwrap();
        all_have_split.wait();
        let error = match rank.rank() {
            1 => {
                rank.abort();
                None
            }
            2 => same.barrier().err(),
            _ => None,
        };
        (error, pair, same)
    };
    on_four(body, |results| {
        let error = results[2].0.as_ref().unwrap();
        let Error::Aborted { call, replica: 1, reason: text, .. } = error else { panic!("{error:?}") };
        assert_eq!((&call[..], reason(text)), ("barrier", (true, Reason::Failure, "")));
    });
    let body = |rank: &mut Communicator| {
        let mut pair = rank.split(Some(rank.rank() as u32 / 2), 0).unwrap().unwrap();
        let error = match rank.rank() {
            2 => pair.barrier().err(),
            3 => {
                pair.abort();
                None
            }
            _ => None,
        };
        (error, pair)
    };
    on_four(body, |results| {
        let error = results[2].0.as_ref().unwrap();
        let Error::Aborted { call, replica: 1, reason: text, .. } = error else { panic!("{error:?}") };
        assert_eq!((&call[..], reason(text)), ("barrier", (false, Reason::Failure, "")));
    });
}
