//! The exchange of call descriptors on an engine of messages: its number of messages, and the rank
//! that an error names.

use consonance::{
    Communicator, Error, ReduceOp, Result,
    raw::{Engine, Failure, Service},
};
use consonance_messages::{Deviation, Wrapped};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The fate of the messages that a rank sends.
#[derive(Clone)]
enum Sends {
    All,
    /// They are counted.
    Counted(Arc<AtomicUsize>),
    /// The one of this number is lost, and those after it arrive.
    Without(usize),
    /// The rank ends in the place of the one of this number.
    Until(usize),
}

/// The messages of a rank, and how many it has sent.
struct Watched {
    service: Service,
    sends: Sends,
    sent: usize,
}

/// The services of engines of messages: descriptors go along a tree, or in a small group to each
/// rank.
const SERVICES: [Service; 2] = [Service::Messages, Service::Letters];

impl Deviation for Watched {
    fn service(&self, _: Service) -> Service {
        self.service
    }

    fn replace_send(&mut self) -> Option<Result<(), Failure>> {
        self.sent += 1;
        match &self.sends {
            Sends::Counted(count) => _ = count.fetch_add(1, Ordering::Relaxed),
            Sends::Without(number) if *number == self.sent => return Some(Ok(())),
            Sends::Until(number) if *number == self.sent => {
                return Some(Err(Error::other("the end of the rank").into()));
            }
            Sends::Without(_) | Sends::Until(_) | Sends::All => {}
        }
        None
    }
}

/// Runs `work` as each rank of a group of this size, and returns the results. `sends` says what
/// becomes of the messages of a rank.
fn on_ranks<R: Send>(
    service: Service,
    size: usize,
    timeout: Duration,
    sends: impl Fn(usize) -> Sends,
    work: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let engine = |(rank, engine): (usize, Box<dyn Engine>)| -> Box<dyn Engine> {
        Box::new(Wrapped { engine, deviation: Watched { service, sends: sends(rank), sent: 0 } })
    };
    let ranks = consonance_messages::threads(size).into_iter().enumerate().map(engine);
    thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .map(|engine| {
                let (mut rank, work) = (Communicator::from_engine(engine), &work);
                rank.set_timeout(timeout).expect("a timeout that ends");
                scope.spawn(move || work(rank))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// Longer than any call takes that nobody is late for.
const LONG: Duration = Duration::from_secs(60);

/// The timeout of calls for which a rank is late. A rank of a busy machine that comes later itself
/// is named, too: then the test is repeated with a longer one.
const SHORT: Duration = Duration::from_millis(600);

/// The timeouts of the repetitions.
const TIMEOUTS: [Duration; 3] = [SHORT, Duration::from_millis(2400), Duration::from_millis(9600)];

fn messages_of_a_barrier(service: Service, size: usize) -> usize {
    const CALLS: usize = 3;
    let count = Arc::new(AtomicUsize::new(0));
    let counted = |_| Sends::Counted(count.clone());
    let done = on_ranks(service, size, LONG, counted, |mut rank| (0..CALLS).try_for_each(|_| rank.barrier()));
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    count.load(Ordering::Relaxed) / CALLS
}

#[test]
fn a_call_of_n_ranks_has_in_the_order_of_n_log_n_messages() {
    for size in 2..=17 {
        let sent = messages_of_a_barrier(Service::Messages, size);
        let limit = size as f64 * (size as f64).log2() / 2.0 + 2.0 * (size as f64 - 1.0);
        assert!(sent as f64 <= limit, "{sent} messages of {size} ranks, at most {limit}");
        assert!(sent <= size * (size - 1), "{sent} messages of {size} ranks, no more than to every peer");
    }
}

#[test]
fn letters_of_a_small_group_go_to_each_peer_and_others_along_the_tree() {
    for size in 2..=17 {
        let direct = size * (size - 1);
        let along_the_tree = || messages_of_a_barrier(Service::Messages, size);
        let expected = if size <= 8 { direct } else { along_the_tree() };
        assert_eq!(messages_of_a_barrier(Service::Letters, size), expected, "{size} ranks");
    }
}

/// Plays a group in which a rank is late for a barrier. The ranks come one after another, in
/// another order for each late rank. So each of them has another deadline, and waits for another
/// rank at the first.
fn late(service: Service, size: usize, late: usize, timeout: Duration) -> Result<(), String> {
    let begin = Instant::now();
    let errors = on_ranks(
        service,
        size,
        timeout,
        |_| Sends::All,
        |mut rank| {
            let own = rank.rank();
            if own == late {
                let ended = rank.abort_handle();
                while !ended.is_aborted() && begin.elapsed() < LONG {
                    thread::sleep(Duration::from_millis(1));
                }
                return None;
            }
            thread::sleep(timeout / 40 * ((own + 5 * late) * 7 % size) as u32);
            Some(rank.barrier())
        },
    );
    let names = |error: &Result<()>| match error {
        Err(Error::Timeout { missing, .. }) => missing.iter().map(|(rank, _)| *rank).eq([late]),
        Err(Error::Aborted { replica, .. }) => *replica == late,
        _ => false,
    };
    let timed_out = |error: &Result<()>| matches!(error, Err(Error::Timeout { .. }));
    let is_right = errors.iter().flatten().all(names) && errors.iter().flatten().any(timed_out);
    match is_right && begin.elapsed() < LONG {
        true => Ok(()),
        false => Err(format!("{service:?}: rank {late} of {size} is late: {errors:?}")),
    }
}

#[test]
fn a_late_rank_is_named_by_every_rank_at_any_place_of_the_tree() {
    let groups = [2, 3, 6, 9].into_iter().flat_map(|size| (0..size).map(move |late| (size, late)));
    let groups = SERVICES.into_iter().flat_map(|service| groups.clone().map(move |(size, late)| (service, size, late)));
    let mut wrong: Vec<_> = groups.map(|group| (group, String::new())).collect();
    for timeout in TIMEOUTS {
        wrong = thread::scope(|scope| {
            let play = |(group, _)| {
                let (service, size, rank) = group;
                scope.spawn(move || late(service, size, rank, timeout).err().map(|why| (group, why)))
            };
            let threads: Vec<_> = wrong.into_iter().map(play).collect();
            threads.into_iter().filter_map(|thread| thread.join().expect("no group panics")).collect()
        });
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Rank 4 of 8 has the descriptors of ranks 5 to 7. It ends before it greets, before it sends its
/// own descriptor, between two of theirs, and before the verdict for each of them.
#[test]
fn a_rank_ending_with_descriptors_of_others_is_named_by_all() {
    for (service, number) in SERVICES.into_iter().flat_map(|service| (1..=8).map(move |number| (service, number))) {
        let ends = |rank| if rank == 4 { Sends::Until(number) } else { Sends::All };
        let begin = Instant::now();
        let errors = on_ranks(service, 8, LONG, ends, |mut rank| {
            let result = rank.barrier().and_then(|()| rank.barrier());
            if rank.rank() == 4 { Ok(()) } else { result }
        });
        for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != 4) {
            let named = matches!(error, Err(Error::Left { replica: 4, .. } | Error::Aborted { replica: 4, .. }));
            assert!(named, "{service:?}, message {number}, rank {rank}: {error:?}");
        }
        assert!(begin.elapsed() < LONG);
    }
}

/// The greeting, each descriptor and the verdict that rank 2 of 5 sends is lost once. Of letters it
/// is the descriptor for each peer: that one takes no later message for it.
#[test]
fn a_lost_descriptor_ends_the_call_at_the_deadline() {
    for (service, number) in SERVICES.into_iter().flat_map(|service| (1..=4).map(move |number| (service, number))) {
        let lossy = |rank| if rank == 2 { Sends::Without(number) } else { Sends::All };
        let begin = Instant::now();
        let results = on_ranks(service, 5, SHORT, lossy, |mut rank| {
            let mut sum = [1u32];
            let result = (0..3).try_for_each(|_| rank.all_reduce(ReduceOp::Sum, &mut sum));
            // A rank that leaves is not taken for a late one.
            let ended = rank.abort_handle();
            while !ended.is_aborted() && begin.elapsed() < LONG {
                thread::sleep(Duration::from_millis(1));
            }
            result.map(|()| sum[0])
        });
        // A rank that has all descriptors in time finishes the calls.
        let finished = |result: &Result<u32>| service == Service::Letters && matches!(result, Ok(125));
        let is_right = results.iter().all(|result| result.is_err() || finished(result));
        assert!(is_right && results.iter().any(Result::is_err), "{service:?}, message {number}: {results:?}");
        assert!(begin.elapsed() < LONG, "{service:?}, message {number}: {:?}", begin.elapsed());
    }
}
