//! The scenarios that the model checker runs: a few ranks make a few calls, and the results must be
//! right in every interleaving.

use crate::{
    cpu::reduce::Reducer,
    data::Data,
    fault::{self, Fault as Planted},
    group::{
        Abort, Endpoint, Fault, Reason,
        plan::{Chunking, Targets},
    },
    memory::{HostBuf, HostBufMut},
    shm::{
        Segment, Shape,
        call_log_text::{CALLS, CallLog, Outcome},
        records::TINY_BYTES,
        watch_payloads,
    },
    sync::atomics::Ordering,
    watched,
};
use consonance_spec::{DType, Kind, ReduceOp, Signature, partition};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    panic,
    sync::Arc,
    time::Duration,
};

/// The actions of some ranks, and the checks of their results.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The name of the scenario.
    pub name: &'static str,
    /// The limit on preemptions in one run, that is, switches away from a thread that does not
    /// wait.
    pub preemptions: usize,
    /// The number of operations of the rank that dies: one check for each, in which the rank dies
    /// before that operation. 0 if no rank dies.
    deaths: u32,
    run: fn(),
}

const fn scenario(name: &'static str, preemptions: usize, run: fn()) -> Scenario {
    Scenario { name, preemptions, deaths: 0, run }
}

/// Every scenario.
pub const ALL: [Scenario; 26] = [
    scenario("exchange", 3, exchange),
    scenario("exchange in swapped places", 2, exchange_in_traded_places),
    scenario("exchange of different kinds", 2, exchange_of_different_kinds),
    scenario("exchange of three", 1, exchange_of_three),
    scenario("exchange, deadline", 3, exchange_with_a_deadline),
    scenario("exchange, one leaves", 2, exchange_with_one_that_leaves),
    scenario("exchange, one rests", 2, exchange_with_one_that_rests),
    scenario("exchange, end from outside", 2, end_from_outside),
    scenario("divided", 2, divided),
    scenario("divided, deadline", 2, divided_with_a_deadline),
    scenario("divided in heaps", 1, divided_in_heaps),
    scenario("divided in heaps, deadline", 2, divided_in_heaps_with_a_deadline),
    scenario("published, failure", 2, published_with_a_failure),
    scenario("generations of threads", 2, rounds_of_threads),
    scenario("split of threads", 2, split_of_threads),
    scenario("split of processes", 2, split_of_processes),
    scenario("splits of processes", 2, splits_of_processes),
    scenario("split of both, then of one", 2, split_of_both_then_of_one),
    scenario("windows", 2, windows),
    scenario("windows in swapped places", 2, windows_in_traded_places),
    scenario("windows of different kinds", 2, windows_of_different_kinds),
    scenario("windows, divided", 1, windows_divided),
    scenario("read directly", 1, read_directly),
    scenario("windows, failure, next generation", 2, windows_and_next_round),
    Scenario { deaths: DEATHS, ..scenario("windows, death", 1, windows_and_death) },
    scenario("wake", 1, call_log),
];

/// Returns the scenario of this name.
///
/// # Panics
/// If there is none.
pub fn named(name: &str) -> Scenario {
    *ALL.iter().find(|scenario| scenario.name == name).unwrap_or_else(|| panic!("no scenario {name:?}"))
}

thread_local! {
    static RUNS: Cell<usize> = const { Cell::new(0) };
    /// The operation before which a rank dies.
    static DEATH: Cell<u32> = const { Cell::new(0) };
    /// The places and generations in which groups of processes began, in this run.
    static BEGUN: RefCell<BTreeSet<(usize, u64)>> = const { RefCell::new(BTreeSet::new()) };
}

impl Scenario {
    /// Runs every interleaving within the bounds, with a fault planted, until one fails. Returns
    /// the number of runs.
    ///
    /// # Errors
    /// The text of the failure.
    pub fn check(&self, planted: Option<Planted>) -> Result<usize, String> {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(self.preemptions));
        model.max_branches = 20_000;
        let Scenario { run, deaths, .. } = *self;
        RUNS.set(0);
        let checked = fault::plant(planted, || {
            panic::catch_unwind(panic::AssertUnwindSafe(|| {
                for death in deaths.min(1)..=deaths {
                    model.check(move || {
                        RUNS.set(RUNS.get() + 1);
                        DEATH.set(death);
                        fault::begin();
                        watched::begin();
                        run();
                    });
                }
            }))
        });
        match checked {
            Ok(()) => Ok(RUNS.get()),
            Err(cause) => {
                let text = cause.downcast_ref::<String>().map(String::as_str);
                Err(text.or(cause.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned())
            }
        }
    }
}

const SUM: Signature =
    Signature { op: Some(ReduceOp::Sum), dtype: Some(DType::U64), ..Signature::new(Kind::AllReduce) };

/// The same for one rank. Such calls swap no slots.
const TO_ONE: Signature = Signature { kind: Kind::Reduce, ..SUM };

/// A timeout with which no rank gives up. No time passes in the model; with a timeout of zero a
/// rank gives up instead of waiting.
const FOREVER: Duration = Duration::MAX;

/// Makes a group of threads.
fn threads(ranks: usize, timeout: Duration) -> Vec<Endpoint> {
    let endpoints = Endpoint::group(ranks, timeout);
    watch_payloads(endpoints[0].state.records());
    endpoints
}

/// Makes a group of processes with one rank each.
fn processes(shape: Shape) -> Vec<Endpoint> {
    processes_of(shape, &[])
}

/// Makes a group of processes with one rank each, which have these process ids.
fn processes_of(shape: Shape, processes: &[u32]) -> Vec<Endpoint> {
    let segment = Arc::new(Segment::new(shape));
    (0..shape.ranks).flat_map(|rank| Endpoint::in_segment(&segment, rank..rank + 1, 0, processes, FOREVER)).collect()
}

/// Runs `body` on each rank. Endpoints that `body` returns are dropped when all ranks are done.
fn each(endpoints: Vec<Endpoint>, body: fn(Endpoint) -> Option<Endpoint>) {
    let mut endpoints = endpoints.into_iter();
    let first = endpoints.next().expect("a rank");
    let others: Vec<_> = endpoints.map(|endpoint| loom::thread::spawn(move || body(endpoint))).collect();
    let kept: Vec<_> = [body(first)].into_iter().chain(others.into_iter().map(|rank| rank.join().unwrap())).collect();
    drop(kept);
}

/// Returns element `index` of the input of `rank` in call number `call`.
fn value(rank: usize, call: usize, index: usize) -> u64 {
    ((rank + 1) << (4 * call)) as u64 + 1000 * index as u64
}

fn total(endpoint: &Endpoint, call: usize, index: usize) -> u64 {
    (0..endpoint.world().size()).map(|rank| value(rank, call, index)).sum()
}

/// Sums one element of each rank in an inline exchange.
fn sum(endpoint: &mut Endpoint, call: usize) -> Result<(), Fault> {
    sum_of(endpoint, call, 1)
}

/// Sums `count` elements of each rank in an inline exchange.
fn sum_of(endpoint: &mut Endpoint, call: usize, count: usize) -> Result<(), Fault> {
    let rank = endpoint.world().rank();
    let own: Vec<u64> = (0..count).map(|index| value(rank, call, index)).collect();
    let mut sums = vec![0; count];
    let own = own.as_slice().into();
    endpoint.exchange(&SUM, Some(own))?.reduce(&Reducer, 0, Some(own), &mut sums.as_mut_slice().into())?;
    for (index, &sum) in sums.iter().enumerate() {
        assert_eq!(sum, total(endpoint, call, index), "element {index} in call {call}");
    }
    Ok(())
}

/// A number of elements for which two ranks swap slots. Payloads of up to [`TINY_BYTES`] bytes are
/// not swapped.
const TRADED: usize = TINY_BYTES / size_of::<u64>() + 1;

/// Returns the input of this rank.
fn data(endpoint: &Endpoint, call: usize, count: usize) -> Data {
    let rank = endpoint.world().rank();
    Data::new((0..count).map(|index| value(rank, call, index)))
}

/// Sums in place.
fn sum_in_place(endpoint: &mut Endpoint, data: &mut Data, call: usize) -> Result<(), Fault> {
    let rank = endpoint.world().rank();
    for (index, element) in data.write().iter_mut().enumerate() {
        *element = value(rank, call, index);
    }
    endpoint.divided(&SUM, &Reducer, None, Some(HostBufMut::from(data.share())), Targets::All)?;
    for (index, &element) in data.read().iter().enumerate() {
        assert_eq!(element, total(endpoint, call, index), "element {index} in call {call}");
    }
    Ok(())
}

/// Sums the published data of all ranks into private memory of this rank.
fn sum_published(endpoint: &mut Endpoint, data: &mut Data, call: usize) -> Result<(), Fault> {
    sum_published_as(&SUM, endpoint, data, call)
}

/// Like [`sum_published`], in a call with this signature.
fn sum_published_as(signature: &Signature, endpoint: &mut Endpoint, data: &mut Data, call: usize) -> Result<(), Fault> {
    let rank = endpoint.world().rank();
    for (index, element) in data.write().iter_mut().enumerate() {
        *element = value(rank, call, index);
    }
    let mut sums = vec![0; data.share().len()];
    let count = sums.len();
    endpoint.published(signature, Some(HostBuf::from(&*data.share())), Chunking::WHOLE, |peers| {
        peers.reduce(&Reducer, 0, &mut sums[..count].as_mut().into())
    })?;
    for (index, &element) in sums.iter().enumerate() {
        assert_eq!(element, total(endpoint, call, index), "element {index} in call {call}");
    }
    Ok(())
}

/// Sums this rank's block of the data of all ranks, in place.
fn sum_own_block(endpoint: &mut Endpoint, data: &mut Data, call: usize) -> Result<(), Fault> {
    let rank = endpoint.world().rank();
    for (index, element) in data.write().iter_mut().enumerate() {
        *element = value(rank, call, index);
    }
    endpoint.divided(&SUM, &Reducer, None, Some(HostBufMut::from(data.share())), Targets::Own)?;
    let count = data.share().len();
    for (index, &element) in data.read().iter().enumerate() {
        let is_own = partition::block(count, endpoint.world().size(), rank).contains(&index);
        let expected = if is_own { total(endpoint, call, index) } else { value(rank, call, index) };
        assert_eq!(element, expected, "element {index} in call {call}");
    }
    Ok(())
}

/// Three calls: the third overwrites the descriptors of the first.
fn exchange() {
    each(threads(2, FOREVER), |mut endpoint| {
        (1..=3).for_each(|call| sum(&mut endpoint, call).unwrap());
        Some(endpoint)
    });
}

/// Four calls. The third writes where the other rank's data of the first call were read, and folds
/// in small tiles, which the first call does not fill. The fourth has blocks.
fn exchange_in_traded_places() {
    each(threads(2, FOREVER), |mut endpoint| {
        sum_of(&mut endpoint, 1, TRADED).unwrap();
        sum(&mut endpoint, 2).unwrap();
        sum_of(&mut endpoint, 3, TRADED + 1).unwrap();
        let blocks = Signature { kind: Kind::AllToAll, ..SUM };
        let own = [value(endpoint.world().rank(), 4, 0); TRADED];
        let mut other = [0; TRADED];
        let peer = 1 - endpoint.world().rank();
        let payloads = endpoint.exchange(&blocks, Some(own.as_slice().into())).unwrap();
        payloads.copy(peer, 0, &mut other.as_mut_slice().into()).unwrap();
        assert_eq!(other, [value(peer, 4, 0); TRADED]);
        Some(endpoint)
    });
}

/// One rank makes a call for which slots are swapped, and the other rank a call for which they are
/// not. Neither writes where the other does.
fn exchange_of_different_kinds() {
    each(threads(2, FOREVER), |mut endpoint| {
        let rank = endpoint.world().rank();
        sum(&mut endpoint, 1).unwrap();
        let own = [value(rank, 2, 0); TRADED];
        let signature = if rank == 0 { SUM } else { TO_ONE };
        let found = endpoint.exchange(&signature, Some(own.as_slice().into())).map(drop);
        assert_eq!(found, Err(Fault::Mismatch));
        sum_of(&mut endpoint, 3, TRADED).unwrap();
        Some(endpoint)
    });
}

fn exchange_of_three() {
    each(threads(3, FOREVER), |mut endpoint| {
        (1..=2).for_each(|call| sum(&mut endpoint, call).unwrap());
        Some(endpoint)
    });
}

/// Returns whether this fault is an abort at a rank's deadline, as this rank or another one sees
/// it.
fn is_deadline(fault: &Fault) -> bool {
    matches!(fault, Fault::Missing(_) | Fault::Aborted(Abort { reason: Reason::Deadline, .. }))
}

fn exchange_with_a_deadline() {
    let mut endpoints = threads(2, FOREVER);
    endpoints[1].set_timeout(Duration::ZERO);
    each(endpoints, |mut endpoint| {
        let result = (1..=2).try_for_each(|call| sum(&mut endpoint, call));
        assert!(result.as_ref().is_err_and(is_deadline) || result.is_ok(), "{result:?}");
        Some(endpoint)
    });
}

/// One rank makes one call and leaves. The other rank's first call succeeds, and its second fails.
fn exchange_with_one_that_leaves() {
    each(threads(2, FOREVER), |mut endpoint| {
        sum(&mut endpoint, 1).unwrap();
        if endpoint.world().rank() == 1 {
            return None;
        }
        assert_eq!(sum(&mut endpoint, 2), Err(Fault::Left(1)));
        Some(endpoint)
    });
}

/// One rank makes one call and becomes idle. The second call of the other rank, of the same
/// process, fails.
fn exchange_with_one_that_rests() {
    each(threads(2, FOREVER), |mut endpoint| {
        endpoint.set_idle(0..2, false);
        sum(&mut endpoint, 1).unwrap();
        if endpoint.world().rank() == 1 {
            endpoint.set_idle(0..2, true);
        } else {
            assert_eq!(sum(&mut endpoint, 2), Err(Fault::Left(1)));
        }
        Some(endpoint)
    });
}

/// Another thread aborts the group. A rank that sees the abort sees the earlier writes of that
/// thread.
fn end_from_outside() {
    let mut words = Data::new([0].into_iter());
    let endpoints = threads(2, FOREVER);
    let aborter = endpoints[0].aborter();
    let address = words.share().as_mut_ptr() as usize;
    let ranks = endpoints.into_iter().map(|mut endpoint| {
        loom::thread::spawn(move || {
            let result = (1..=2).try_for_each(|call| sum(&mut endpoint, call));
            if let Err(fault) = result {
                assert_eq!(fault, Fault::Aborted(Abort { rank: 0, reason: Reason::Failure }));
                watched::read(std::ptr::with_exposed_provenance(address), 8);
            }
            endpoint
        })
    });
    let ranks: Vec<_> = ranks.collect();
    words.write()[0] = 1;
    aborter.abort(Reason::Failure);
    let endpoints: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    drop(endpoints);
}

/// Two calls on memory that both ranks write.
fn divided() {
    each(threads(2, FOREVER), |mut endpoint| {
        let mut data = data(&endpoint, 0, 32);
        (1..=2).for_each(|call| sum_in_place(&mut endpoint, &mut data, call).unwrap());
        Some(endpoint)
    });
}

/// A rank that has given up takes its memory back while the other rank may be in it.
fn divided_with_a_deadline() {
    let mut endpoints = threads(2, FOREVER);
    endpoints[1].set_timeout(Duration::ZERO);
    each(endpoints, |mut endpoint| {
        let mut data = data(&endpoint, 0, 32);
        let result = (1..=2).try_for_each(|call| sum_in_place(&mut endpoint, &mut data, call));
        assert!(result.as_ref().is_err_and(is_deadline) || result.is_ok(), "{result:?}");
        data.write();
        Some(endpoint)
    });
}

/// Returns the heap of this rank, which is a process of its own.
fn heap(endpoint: &Endpoint) -> Data {
    Data::in_heap(endpoint.state.shared_segment().expect("a group of processes"), endpoint.world().rank())
}

/// Two calls on heaps that both processes write.
fn divided_in_heaps() {
    each(processes(LARGE), |mut endpoint| {
        let mut data = heap(&endpoint);
        (1..=2).for_each(|call| sum_in_place(&mut endpoint, &mut data, call).unwrap());
        Some(endpoint)
    });
}

/// A rank that has given up goes on in its heap while a rank of another process may be there.
fn divided_in_heaps_with_a_deadline() {
    let mut endpoints = processes(LARGE);
    endpoints[1].set_timeout(Duration::ZERO);
    each(endpoints, |mut endpoint| {
        let mut data = heap(&endpoint);
        let result = (1..=2).try_for_each(|call| sum_in_place(&mut endpoint, &mut data, call));
        assert!(result.as_ref().is_err_and(is_deadline) || result.is_ok(), "{result:?}");
        // On a busy machine a rank may have waited too long. Its heap is then private.
        if !endpoint.state.shared_segment().expect("a group of processes").has_detached() {
            data.write();
        }
        Some(endpoint)
    });
}

/// A rank's own work fails in the middle of a step.
fn published_with_a_failure() {
    each(threads(2, FOREVER), |mut endpoint| {
        let mut data = data(&endpoint, 1, 4);
        let result = if endpoint.world().rank() == 0 {
            sum_published(&mut endpoint, &mut data, 1)
        } else {
            endpoint
                .published(&SUM, Some(HostBuf::from(&*data.share())), Chunking::WHOLE, |_| Err(Fault::TooManyGroups))
        };
        let expected = match endpoint.world().rank() {
            0 => Fault::Aborted(Abort { rank: 1, reason: Reason::Failure }),
            _ => Fault::TooManyGroups,
        };
        assert!(result == Err(expected) || (result.is_ok() && endpoint.world().rank() == 0), "{result:?}");
        data.write();
        Some(endpoint)
    });
}

/// One rank leaves after a call while the other makes one more. Then both make calls in the next
/// generation.
fn rounds_of_threads() {
    let mut endpoints = threads(2, FOREVER);
    for _ in 0..2 {
        let ranks: Vec<_> = (endpoints.into_iter())
            .map(|mut endpoint| {
                loom::thread::spawn(move || {
                    sum(&mut endpoint, 1).unwrap();
                    if endpoint.world().rank() == 1 {
                        assert_eq!(sum(&mut endpoint, 2), Err(Fault::Left(0)));
                    }
                    endpoint.leave_round();
                    endpoint
                })
            })
            .collect();
        endpoints = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(endpoints.iter_mut().all(Endpoint::begin_round));
    }
}

/// Both ranks split off a new group, and one of them leaves the old group at once. This does not
/// end the new group.
fn split_of_threads() {
    each(threads(2, FOREVER), |mut endpoint| {
        let mut child = endpoint.split(&SUM, &[0, 1]).unwrap().expect("a member");
        let kept = Some(endpoint).filter(|endpoint| endpoint.world().rank() == 0);
        sum(&mut child, 1).unwrap();
        kept
    });
}

/// Each rank is in a group of its own, and splits other groups off it. The two ranks want the same
/// place for a subgroup, and do not know of each other. The rank that gets the place finds no data
/// of an earlier group there that counts as new.
fn split_of_processes() {
    BEGUN.take();
    each(processes(Shape { splits: 3, ..SMALL }), |mut endpoint| {
        let mut own = endpoint.split(&SUM, &[endpoint.world().rank()]).unwrap().expect("a member");
        for call in 1..=2 {
            match own.split(&SUM, &[0]) {
                Ok(inner) => {
                    let mut inner = inner.expect("a member");
                    // Relaxed: this rank stored it.
                    let generation = inner.state.records()[0].counters.taken.load(Ordering::Relaxed);
                    let place = inner.state.records().as_ptr().addr();
                    let news = BEGUN.with_borrow_mut(|begun| begun.insert((place, generation)));
                    assert!(news, "two groups of one place in one generation");
                    sum(&mut inner, call).unwrap();
                }
                Err(fault) => assert_eq!(fault, Fault::TooManyGroups),
            }
        }
        drop(own);
        Some(endpoint)
    });
}

/// Two groups of both ranks, one after the other. The second may have the place of the first.
fn splits_of_processes() {
    each(processes(Shape { splits: 3, ..SMALL }), |mut endpoint| {
        for call in 1..=2 {
            let mut child = endpoint.split(&SUM, &[0, 1]).unwrap().expect("a member");
            sum(&mut child, call).unwrap();
        }
        Some(endpoint)
    });
}

/// A group of both ranks, and then one of rank 0 alone, which may have the place of the first. Rank
/// 1 read there last.
fn split_of_both_then_of_one() {
    each(processes(Shape { splits: 3, ..SMALL }), |mut endpoint| {
        let rank = endpoint.world().rank();
        let mut own = endpoint.split(&SUM, &[rank]).unwrap().expect("a member");
        let mut both = endpoint.split(&SUM, &[0, 1]).unwrap().expect("a member");
        sum(&mut both, 1).unwrap();
        drop(both);
        if rank == 0 {
            match own.split(&SUM, &[0]) {
                Ok(inner) => sum(&mut inner.expect("a member"), 1).unwrap(),
                Err(fault) => assert_eq!(fault, Fault::TooManyGroups),
            }
        }
        Some(endpoint)
    });
}

/// Windows of 128 bytes.
const SMALL: Shape = Shape { ranks: 2, staging_bytes: 512, splits: 0 };

/// Three windows in the first call, and one in the second. No slots are swapped.
fn windows() {
    each(processes(SMALL), |mut endpoint| {
        let mut long = data(&endpoint, 0, 33);
        sum_published_as(&TO_ONE, &mut endpoint, &mut long, 1).unwrap();
        let mut short = data(&endpoint, 0, 3);
        sum_published_as(&TO_ONE, &mut endpoint, &mut short, 2).unwrap();
        Some(endpoint)
    });
}

/// Three windows in swapped slots in the first call, one in the second, and one in a slot that is
/// not swapped.
fn windows_in_traded_places() {
    each(processes(SMALL), |mut endpoint| {
        let mut long = data(&endpoint, 0, 33);
        sum_published(&mut endpoint, &mut long, 1).unwrap();
        let mut short = data(&endpoint, 0, 3);
        sum_in_place(&mut endpoint, &mut short, 2).unwrap();
        sum_published_as(&TO_ONE, &mut endpoint, &mut short, 3).unwrap();
        Some(endpoint)
    });
}

/// As [`exchange_of_different_kinds`], with staged data, in the third window.
fn windows_of_different_kinds() {
    each(processes(SMALL), |mut endpoint| {
        let mut data = data(&endpoint, 0, 3);
        (1..=2).for_each(|call| sum_published(&mut endpoint, &mut data, call).unwrap());
        let signature = if endpoint.world().rank() == 0 { SUM } else { TO_ONE };
        let found = sum_published_as(&signature, &mut endpoint, &mut data, 3);
        assert_eq!(found, Err(Fault::Mismatch));
        sum_published(&mut endpoint, &mut data, 4).unwrap();
        Some(endpoint)
    });
}

/// Windows large enough that each rank reduces its block for all ranks.
const LARGE: Shape = Shape { ranks: 2, staging_bytes: 4 * 4096, splits: 0 };

fn windows_divided() {
    each(processes(LARGE), |mut endpoint| {
        let mut data = data(&endpoint, 0, 1100);
        sum_in_place(&mut endpoint, &mut data, 1).unwrap();
        Some(endpoint)
    });
}

/// Slots of 256 bytes: larger data are read from the other process.
const READ: Shape = Shape { ranks: 2, staging_bytes: 1024, splits: 0 };

/// The ranks try to read each other's memory in their first call. Later calls with large data do
/// so, and the ranks write the data again when a call returns. The last call uses slots.
fn read_directly() {
    each(processes_of(READ, &[1, 1]), |mut endpoint| {
        sum(&mut endpoint, 1).unwrap();
        assert!(endpoint.topology().reads);
        let mut long = data(&endpoint, 0, 64);
        sum_own_block(&mut endpoint, &mut long, 2).unwrap();
        sum_own_block(&mut endpoint, &mut long, 3).unwrap();
        let mut short = data(&endpoint, 0, 8);
        sum_in_place(&mut endpoint, &mut short, 4).unwrap();
        Some(endpoint)
    });
}

/// A rank's own work fails in its second window. The other rank may or may not have read all by
/// then.
fn windows_and_next_round() {
    each(processes(SMALL), |mut endpoint| {
        let mut long = data(&endpoint, 1, 33);
        if endpoint.world().rank() == 1 {
            let mut windows = 0;
            let result = endpoint.published(&SUM, Some(HostBuf::from(&*long.share())), Chunking::WHOLE, |_| {
                windows += 1;
                if windows == 2 { Err(Fault::TooManyGroups) } else { Ok(()) }
            });
            assert_eq!(result, Err(Fault::TooManyGroups));
            endpoint.renew().unwrap();
        } else if let Err(fault) = sum_published(&mut endpoint, &mut long, 1) {
            assert_eq!(fault, Fault::Aborted(Abort { rank: 1, reason: Reason::Failure }));
            endpoint.renew().unwrap();
        }
        let mut short = data(&endpoint, 2, 3);
        let mut result = sum_published(&mut endpoint, &mut short, 2);
        // A rank that had read everything did not know of the abort yet.
        if endpoint.world().rank() == 0 && matches!(result, Err(Fault::Aborted(_))) {
            endpoint.renew().unwrap();
            result = sum_published(&mut endpoint, &mut short, 2);
        }
        result.unwrap();
        Some(endpoint)
    });
}

/// The number of operations of a rank in [`windows_and_death`], plus one.
const DEATHS: u32 = 100;

/// The process of one rank dies at any operation. Another thread notices and reports the death. The
/// other rank has its result or learns of the death.
fn windows_and_death() {
    let mut endpoints = processes(SMALL);
    let (mut mortal, mut other) = (endpoints.remove(1), endpoints.remove(0));
    let watcher = other.aborter();
    let dies = loom::thread::spawn(move || {
        fault::die_after(DEATH.get(), || {
            let mut long = data(&mortal, 0, 17);
            sum(&mut mortal, 1).unwrap();
            sum_published(&mut mortal, &mut long, 2).unwrap();
            drop(mortal);
        })
    });
    let survives = loom::thread::spawn(move || {
        let mut long = data(&other, 0, 17);
        let result = sum(&mut other, 1).and_then(|()| sum_published(&mut other, &mut long, 2));
        if let Err(fault) = result {
            let death = Fault::Aborted(Abort { rank: 1, reason: Reason::Death });
            assert_eq!(fault, death);
            assert_eq!(other.renew(), Err(death), "a group does not survive a process");
        }
        other
    });
    let died = dies.join().unwrap();
    assert!(!died || DEATH.get() < DEATHS, "there are more operations before which it may die");
    watcher.lose(1..2, Reason::Death);
    drop(survives.join().unwrap());
}

/// A rank begins a call while another thread reads the call log.
fn call_log() {
    let call_log = Arc::new(CallLog::default());
    let begin = |call_log: &CallLog, number: u64| {
        let entry_id = call_log.begin(number, number as u32, number);
        call_log.end(entry_id, Outcome::Done);
    };
    (1..=CALLS as u64).for_each(|number| begin(&call_log, number));
    let reader = loom::thread::spawn({
        let call_log = call_log.clone();
        move || {
            let entries = call_log.read();
            assert!(entries.len() >= CALLS - 2, "{} entries", entries.len());
            assert!(entries.windows(2).all(|pair| pair[0].number < pair[1].number), "{entries:?}");
            for entry in entries {
                assert_eq!((entry.head, entry.bytes), (entry.number as u32, entry.number), "{entry:?}");
            }
        }
    });
    begin(&call_log, CALLS as u64 + 1);
    reader.join().unwrap();
}
