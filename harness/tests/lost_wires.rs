//! Processes of three hosts whose wires fail while they compute: each process gets an error of a
//! loss, and the sums before it are right.
//!
//! No link between the processes fails, so a loss is known by faults of wires alone. A process that
//! has one waits for a second whether the link ends, too. So many groups run at the same time.
#![cfg(target_os = "linux")]

use consonance::{Communicator, Error, ReduceOp};
use consonance_harness::{
    fake_wire::{FakeNetwork, FakeWire},
    subjects::processes_on_wires,
};
use consonance_kernels::digest::mix;
use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

const SEEDS: u64 = 240;

/// The number of groups at one time.
const AT_ONCE: usize = 24;

const PROCESSES: usize = 3;

/// More than there are before any wire has failed: each takes a message of each process.
const ROUNDS: u64 = 10_000;

/// The elements of the rounds: in one letter, and in several.
const COUNTS: [usize; 3] = [1, 300, 20_000];

/// Draws the process at fault, and the message at which its wire fails.
fn drawn(seed: u64) -> (usize, u64) {
    ((mix(seed, 1) % PROCESSES as u64) as usize, mix(seed, 2) % 80)
}

/// Sums in a loop until there is an error. Returns the error.
fn sum(communicator: &mut Communicator, seed: u64) -> Error {
    let rank = communicator.rank() as u64;
    for round in 0..ROUNDS {
        let count = COUNTS[(mix(seed, round) % COUNTS.len() as u64) as usize];
        let element = |place: usize, factor: u64| (factor * (round + place as u64 % 7)) as f32;
        let mut data: Vec<f32> = (0..count).map(|place| element(place, rank + 1)).collect();
        if let Err(error) = communicator.all_reduce(ReduceOp::Sum, &mut data) {
            return error;
        }
        // Integers: every order gives these bits.
        let is_right = |(place, found): (usize, &f32)| found.to_bits() == element(place, 6).to_bits();
        assert!(data.iter().enumerate().all(is_right), "round {round} of rank {rank}, seed {seed}");
    }
    panic!("no wire fails in {ROUNDS} rounds, seed {seed}")
}

/// Returns the errors of the processes, in order, if the wire of one of them is made by `fails`.
fn errors(seed: u64, fails: impl Fn(FakeWire) -> FakeWire + Send + Sync + 'static) -> Vec<Error> {
    let (at_fault, _) = drawn(seed);
    let network = FakeNetwork::new(seed);
    let open = move |process| match process == at_fault {
        true => fails(network.open()).into(),
        false => network.open().into(),
    };
    let mut ranks = processes_on_wires(PROCESSES, open);
    // None leaves before all have their errors.
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter_mut().map(|rank| scope.spawn(move || sum(rank, seed))).collect();
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

/// Calls `check` for each seed, for many at the same time.
fn of_all_seeds(check: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    let seeds = || std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|&seed| seed < SEEDS);
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| _ = scope.spawn(|| seeds().for_each(&check))));
}

#[test]
fn the_loss_of_a_process_with_a_dead_wire_is_an_error_of_all() {
    of_all_seeds(|seed| {
        let (dead, message) = drawn(seed);
        let errors = errors(seed, move |wire| wire.dies_at(message));
        for (process, error) in errors.iter().enumerate() {
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
    of_all_seeds(|seed| {
        let (cut, message) = drawn(seed);
        let peer = (cut + 1) % PROCESSES;
        let errors = errors(seed, move |wire| wire.cut_at(peer, message / 2));
        for (process, error) in errors.iter().enumerate() {
            let found = lost(error).unwrap_or_else(|| panic!("process {process}, seed {seed}: {error:?}"));
            assert!([cut, peer].contains(&found), "process {process}, seed {seed}: {error:?}");
        }
    });
}
