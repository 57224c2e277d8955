//! Processes of several hosts whose wires fail while they compute. Each process gets an error of a
//! loss, and the sums before it are right. Of the sides of a broken network at most one goes on.
//!
//! No link between the processes fails, so a loss is known by faults of wires alone. A process that
//! has one waits for a second whether the link ends, too, and then for some more whether processes
//! that it took for lost have ended. So many groups run at the same time.
#![cfg(target_os = "linux")]

use consonance::{Communicator, Error, ProcessGroup, ReduceOp, Result};
use consonance_harness::{
    fake_wire::{FakeNetwork, FakeWire},
    subjects::groups_on_wires,
};
use consonance_kernels::digest::mix;
use std::{
    collections::BTreeSet,
    iter,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

/// The number of groups at one time.
const AT_ONCE: usize = 24;

/// The elements of the rounds: in one letter, and in several.
const COUNTS: [usize; 3] = [1, 300, 20_000];

/// A network that fails.
struct Failing {
    processes: usize,
    /// The endpoints that are cut: of a process, to another one, at a message.
    cuts: Vec<(usize, usize, u64)>,
    /// The process whose wire dies, and at which message.
    death: Option<(usize, u64)>,
}

impl Failing {
    /// Returns the groups of processes on such a network, whose delays are those of a seed.
    fn join(self, seed: u64) -> Vec<ProcessGroup> {
        let (network, processes) = (FakeNetwork::new(seed), self.processes);
        groups_on_wires(processes, processes, move |process| self.wire(&network, process).into())
    }

    fn wire(&self, network: &FakeNetwork, process: usize) -> FakeWire {
        let of_process = self.cuts.iter().filter(|&&(from, ..)| from == process);
        let wire = of_process.fold(network.open(), |wire, &(_, to, message)| wire.cut_at(to, message));
        match self.death {
            Some((dead, message)) if dead == process => wire.dies_at(message),
            _ => wire,
        }
    }

    /// Draws a network that breaks into two sides, of which some directions fail, or both. In some
    /// a wire dies, too.
    fn draw(seed: u64) -> Failing {
        let mut drawn = 0;
        let mut below = |most: u64| {
            drawn += 1;
            mix(seed, drawn) % most
        };
        let (processes, moment) = (2 + below(4) as usize, below(60));
        let (halves, ways) = [(true, 0), (false, 3), (true, 1), (false, 1)][below(4) as usize];
        let sides: Vec<bool> = (0..processes).map(|_| halves && below(2) == 0).collect();
        let mut cuts = Vec::new();
        for from in 0..processes {
            let others = (0..processes).filter(|&to| sides[from] != sides[to]);
            cuts.extend(others.map(|to| (from, to, moment + below(6))));
        }
        for _ in 0..ways {
            let from = below(processes as u64) as usize;
            let to = (from + 1 + below(processes as u64 - 1) as usize) % processes;
            cuts.push((from, to, moment + below(20)));
        }
        let death = (below(4) == 0).then(|| (below(processes as u64) as usize, below(120)));
        Failing { processes, cuts, death }
    }
}

/// Sums in rounds until there is an error. `members` are the processes of the group.
fn sum(communicator: &mut Communicator, own: usize, members: &BTreeSet<usize>, rounds: u64, seed: u64) -> Result<()> {
    for round in 0..rounds {
        let count = COUNTS[(mix(seed, round) % COUNTS.len() as u64) as usize];
        let element = |place: usize, factor: usize| (factor as u64 * (round + place as u64 % 7)) as f32;
        let mut data: Vec<f32> = (0..count).map(|place| element(place, own + 1)).collect();
        communicator.all_reduce(ReduceOp::Sum, &mut data)?;
        // Integers: every order gives these bits.
        let factor = members.iter().map(|process| process + 1).sum();
        let is_right = |(place, found): (usize, &f32)| found.to_bits() == element(place, factor).to_bits();
        assert!(data.iter().enumerate().all(is_right), "round {round} of process {own} in {members:?}, seed {seed}");
    }
    Ok(())
}

/// Calls `check` for each seed, for many at the same time.
fn of_all_seeds(seeds: u64, check: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    let all = || iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|&seed| seed < seeds);
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| _ = scope.spawn(|| all().for_each(&check))));
}

/// Returns the errors of the processes, in order.
fn errors(failing: Failing, seed: u64) -> Vec<Error> {
    /// More than there are before any wire has failed: each takes a message of each process.
    const ROUNDS: u64 = 10_000;

    let all = (0..failing.processes).collect();
    let mut ranks: Vec<_> = failing.join(seed).iter_mut().flat_map(ProcessGroup::communicators).collect();
    // None leaves before all have their errors.
    thread::scope(|scope| {
        let of_rank = |(own, rank)| {
            let all = &all;
            scope.spawn(move || sum(rank, own, all, ROUNDS, seed).expect_err("a wire fails"))
        };
        let threads: Vec<_> = ranks.iter_mut().enumerate().map(of_rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no process panics")).collect()
    })
}

/// Returns the process that an error says is lost, if it says so.
fn lost(error: &Error) -> Option<usize> {
    match error.root() {
        &Error::Aborted { replica, lost: true, .. } | &Error::Left { replica, lost: true, .. } => Some(replica),
        _ => None,
    }
}

/// The number of seeds of failures of one wire, and that of processes.
const SEEDS: u64 = 240;
const PROCESSES: usize = 3;

/// Draws the process at fault, and the message at which its wire fails.
fn drawn(seed: u64) -> (usize, u64) {
    ((mix(seed, 1) % PROCESSES as u64) as usize, mix(seed, 2) % 80)
}

#[test]
fn the_loss_of_a_process_with_a_dead_wire_is_an_error_of_all() {
    of_all_seeds(SEEDS, |seed| {
        let (dead, message) = drawn(seed);
        let failing = Failing { processes: PROCESSES, cuts: Vec::new(), death: Some((dead, message)) };
        for (process, error) in errors(failing, seed).iter().enumerate() {
            let found = lost(error).unwrap_or_else(|| panic!("process {process}, seed {seed}: {error:?}"));
            match process == dead {
                // All others are silent.
                true => assert_ne!(found, dead, "seed {seed}: {error:?}"),
                false => assert_eq!(found, dead, "process {process}, seed {seed}: {error:?}"),
            }
        }
    });
}

#[test]
fn a_cut_between_two_processes_is_an_error_of_all() {
    of_all_seeds(SEEDS, |seed| {
        let (cut, message) = drawn(seed);
        let peer = (cut + 1) % PROCESSES;
        let failing = Failing { processes: PROCESSES, cuts: vec![(cut, peer, message / 2)], death: None };
        for (process, error) in errors(failing, seed).iter().enumerate() {
            let found = lost(error).unwrap_or_else(|| panic!("process {process}, seed {seed}: {error:?}"));
            assert!([cut, peer].contains(&found), "process {process}, seed {seed}: {error:?}");
        }
    });
}

/// The end of a process: the processes with which it has made all rounds, and the group if it does
/// not leave; or the error that let it leave.
type Ended = std::result::Result<(BTreeSet<usize>, Option<ProcessGroup>), Error>;

/// Returns the processes of a group.
fn members(group: &ProcessGroup) -> BTreeSet<usize> {
    let task = |name: &str| name.split(['[', ']']).nth(1).and_then(|task| task.parse().ok()).expect("a worker");
    group.members().map(|(name, _)| task(name)).collect()
}

/// Computes, and goes on after each loss, until the process has made all rounds of a generation, or
/// may not go on.
fn live(mut group: ProcessGroup, own: usize, seed: u64) -> Ended {
    /// Many wires fail within them.
    const ROUNDS: u64 = 40;

    loop {
        let with = members(&group);
        match sum(&mut group.communicators()[0], own, &with, ROUNDS, seed) {
            // In some, the others hear that it has ended.
            Ok(()) => return Ok((with, Some(group).filter(|_| seed.is_multiple_of(2)))),
            // An abort by another process may come before the loss that is its reason.
            Err(error) if matches!(error.root(), Error::Aborted { .. } | Error::Left { .. }) => {}
            Err(error) => return Err(error),
        }
        // Another process may be lost meanwhile.
        let mut formed = group.reform(Duration::ZERO);
        for _ in 0..8 {
            if formed.as_ref().is_err_and(Error::is_loss) {
                formed = group.reform(Duration::ZERO);
            }
        }
        formed?;
    }
}

/// The rule of `consonance_spec::generations::may_go_on`, with real processes.
#[test]
fn at_most_one_side_of_a_broken_network_goes_on() {
    const SEEDS: u64 = 72;
    let (parts, refused, left_behind) = (Mutex::new(0), Mutex::new(0), Mutex::new(0));
    let count = |of: &Mutex<u32>| *of.lock().expect("no panic") += 1;
    of_all_seeds(SEEDS, |seed| {
        let failing = Failing::draw(seed);
        let processes = failing.processes;
        let ended: Vec<Ended> = thread::scope(|scope| {
            let groups = failing.join(seed).into_iter().enumerate();
            let lives: Vec<_> = groups.map(|(own, group)| scope.spawn(move || live(group, own, seed))).collect();
            lives.into_iter().map(|life| life.join().expect("no process panics")).collect()
        });
        let went_on = || ended.iter().flatten().map(|(with, _)| with);
        for (process, ended) in ended.iter().enumerate() {
            match ended {
                Ok((with, _)) => {
                    assert!(went_on().all(|other| !other.is_disjoint(with)), "{with:?} goes on alone, seed {seed}");
                    assert!(with.contains(&process), "process {process} in {with:?}, seed {seed}");
                    (with.len() < processes).then(|| count(&parts));
                }
                Err(Error::Meeting { .. }) => count(&refused),
                Err(Error::WrongContext { .. }) => count(&left_behind),
                // Others have made all rounds and do not come again, or have lost each other before
                // they entered the group of this one.
                Err(Error::Timeout { .. }) => {}
                Err(error) => panic!("process {process}, seed {seed}: {error:?}"),
            }
        }
    });
    let counts = [parts, refused, left_behind].map(|count| count.into_inner().expect("no panic"));
    assert!(counts.iter().all(|&count| count > 0), "parts that go on, refused ones, left behind: {counts:?}");
}
