//! Whose numbers the replicas in an error have: those of the group that was ended.

use consonance::{ClusterSpec, Communicator, Error, ProcessGroup, SimpleClusterResolver};
use std::{
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::Duration,
};

/// Calls `body` on all ranks of a group of four threads, and then of one that shares memory as processes do. All ranks and what they
/// return are kept until all have returned.
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

/// Gives up soon, if it is `first`; otherwise when it is told to.
fn wait(rank: &mut Communicator, first: bool) -> Option<Error> {
    let timeout = if first { Duration::from_millis(100) } else { Duration::from_secs(60) };
    rank.set_timeout(timeout).unwrap();
    rank.barrier().err()
}

/// Who gave up, and who of the others has called what.
fn told(error: &Option<Error>) -> (usize, Vec<(usize, &str)>) {
    let Some(Error::Aborted { replica, calls, .. }) = error else { panic!("{error:?}") };
    (*replica, calls.iter().map(|(replica, last)| (*replica, last.as_str())).collect())
}

#[test]
fn all_are_told_who_is_missing_at_the_deadline() {
    let body = |rank: &mut Communicator| match rank.rank() {
        3 => None,
        id => wait(rank, id == 0),
    };
    on_four(body, |errors| {
        assert!(matches!(errors[0], Some(Error::Timeout { .. })), "{:?}", errors[0]);
        for error in &errors[1..3] {
            let (replica, calls) = told(error);
            assert_eq!((replica, calls.len()), (0, 4));
            assert!(calls[0].1.starts_with("its last call was number 1, barrier(), 0 bytes"), "{error:?}");
            assert!(calls[3].0 == 3 && calls[3].1.starts_with("it has made no call of this group"), "{error:?}");
        }
    });
}
