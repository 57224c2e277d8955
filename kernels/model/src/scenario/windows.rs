//! Scenarios of data that are staged in windows, or read out of other processes.

use super::{DEATH, calls::*};
use crate::{
    fault::{self},
    group::{Abort, Fault, Reason, plan::Chunking},
    memory::HostBuf,
    shm::Shape,
};

/// Three windows in the first call, and one in the second. No slots are swapped.
pub(super) fn windows() {
    each(processes(SMALL), |mut endpoint| {
        let mut long = data(&endpoint, 0, 33);
        sum_published_as(&TO_ONE, &mut endpoint, &mut long, 1).unwrap();
        let mut short = data(&endpoint, 0, 3);
        sum_published_as(&TO_ONE, &mut endpoint, &mut short, 2).unwrap();
        Some(endpoint)
    });
}

/// Three windows of one rank, then of another, and then of the first again. A rank that stages
/// nothing waits for no reader, and a rank that reads nothing waits for no data.
pub(super) fn windows_one_way() {
    each(processes(SMALL), |mut endpoint| {
        let mut long = data(&endpoint, 0, 33);
        for (call, root) in [0, 1, 0].into_iter().enumerate() {
            send_from(root, &mut endpoint, &mut long, call + 1).unwrap();
        }
        Some(endpoint)
    });
}

/// Three windows in swapped slots in the first call, one in the second, and one in a slot that is
/// not swapped.
pub(super) fn windows_in_traded_places() {
    each(processes(SMALL), |mut endpoint| {
        let mut long = data(&endpoint, 0, 33);
        sum_published(&mut endpoint, &mut long, 1).unwrap();
        let mut short = data(&endpoint, 0, 3);
        sum_in_place(&mut endpoint, &mut short, 2).unwrap();
        sum_published_as(&TO_ONE, &mut endpoint, &mut short, 3).unwrap();
        Some(endpoint)
    });
}

/// No rank knows how much the other has. In the first call both stage two windows, the first before
/// they know. In the second one rank has few data and the other more, which are staged again. In
/// the third both have few, and in the last one window each.
pub(super) fn windows_of_unknown_blocks() {
    each(processes(LARGE), |mut endpoint| {
        swap_blocks(&mut endpoint, 1, [[1, 300], [270, 2]]).unwrap();
        swap_blocks(&mut endpoint, 2, [[0, 2], [130, 1]]).unwrap();
        swap_blocks(&mut endpoint, 3, [[2, 1], [0, 3]]).unwrap();
        swap_blocks(&mut endpoint, 4, [[1, 130], [125, 3]]).unwrap();
        Some(endpoint)
    });
}

/// As [`exchange_of_different_kinds`], with staged data, in the third window.
pub(super) fn windows_of_different_kinds() {
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

pub(super) fn windows_divided() {
    each(processes(LARGE), |mut endpoint| {
        let mut data = data(&endpoint, 0, 1100);
        sum_in_place(&mut endpoint, &mut data, 1).unwrap();
        Some(endpoint)
    });
}

/// Slots of 256 bytes: larger data are read from the other process.
pub(super) const READ: Shape = Shape { ranks: 2, staging_bytes: 1024, splits: 0, rings: false };

/// The ranks try to read each other's memory in their first call. Later calls with large data do
/// so, and the ranks write the data again when a call returns. The last call uses slots.
pub(super) fn read_directly() {
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
pub(super) fn windows_and_next_round() {
    each(processes(SMALL), |mut endpoint| {
        let mut long = data(&endpoint, 1, 33);
        if endpoint.world().rank() == 1 {
            let mut windows = 0;
            let result = endpoint.step(&SUM).published(Some(HostBuf::from(&*long.share())), Chunking::WHOLE, |_| {
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
pub(super) const DEATHS: u32 = 160;

/// The process of one rank dies at any operation. Another thread notices and reports the death. The
/// other rank has its result or learns of the death.
pub(super) fn windows_and_death() {
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
