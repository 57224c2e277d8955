//! Groups of processes over a wire, played by threads, that form again. Take UCX.

use super::{next_group, resolver_of};
use consonance::{Error, ProcessGroup, ReduceOp};
use std::{sync::mpsc, thread, time::Duration};

/// Returns a process of a group with 1, 2 and 2 ranks.
fn join(group: u16, process: usize) -> ProcessGroup {
    // Ports of no other service.
    let builder = ProcessGroup::builder(resolver_of(2000 + group, 3, process)).over_wire(true);
    builder.replicas([1, 2, 2][process]).timeout(Duration::from_secs(5)).unwrap().join().unwrap()
}

/// Joins, and hears of the loss of the first process.
fn join_and_lose(group: u16, process: usize) -> ProcessGroup {
    let mut processes = join(group, process);
    let lost = processes.communicators()[0].all_reduce(ReduceOp::Sum, &mut [1.0f32]).unwrap_err();
    assert!(lost.is_loss(), "{lost}");
    processes
}

/// Reforms. An attempt that has failed on the other process may fail here, too.
fn reform(processes: &mut ProcessGroup) {
    match processes.reform(Duration::ZERO) {
        Err(Error::Aborted { lost: false, .. }) => processes.reform(Duration::ZERO).unwrap(),
        reformed => reformed.unwrap(),
    }
    assert_eq!((processes.generation(), processes.size()), (2, 4));
}

#[test]
fn a_process_late_for_a_reform_is_named_by_all_its_replicas() {
    if let Err(absent) = consonance::raw::Wire::open(None) {
        return println!("skipped: {absent}");
    }
    let group = next_group();
    let (told, is_told) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || drop(join(group, 0)));
        scope.spawn(move || {
            let mut processes = join_and_lose(group, 1);
            let error = processes.reform(Duration::ZERO).unwrap_err();
            let Error::Timeout { call, missing, .. } = &error else { panic!("{error}") };
            let late: Vec<usize> = missing.iter().map(|late| late.0).collect();
            assert_eq!((&**call, &*late), ("ProcessGroup::reform", &[3, 4][..]), "{error}");
            assert!(missing.iter().all(|late| late.1.contains("worker[2]")), "{error}");
            told.send(()).unwrap();
            reform(&mut processes);
            assert_eq!(processes.ranks(), 0..2);
        });
        scope.spawn(move || {
            let mut processes = join_and_lose(group, 2);
            is_told.recv().unwrap();
            reform(&mut processes);
            assert_eq!(processes.ranks(), 2..4);
        });
    });
}
