//! Tests of the fake network: it keeps the rules of a wire, and does what its seed says.
#![cfg(target_os = "linux")]

use consonance_harness::fake_wire::{FakeNetwork, FakeWire};
use consonance_kernels::wire::{Arrived, HEAD, Head, Medium, WireError};
use fork::Fork;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;

const MESSAGES: u64 = 300;

/// Connects each wire to all, itself included, by the positions.
fn connect(wires: &[FakeWire]) {
    for wire in wires {
        for (peer, other) in wires.iter().enumerate() {
            wire.connect(peer, other.address()).unwrap();
        }
    }
}

fn two(network: &FakeNetwork) -> [FakeWire; 2] {
    let wires = [network.open(), network.open()];
    connect(&wires);
    wires
}

fn head(sender: usize, number: u64) -> Head {
    let mut head = [sender as u8; HEAD];
    head[..8].copy_from_slice(&number.to_le_bytes());
    head
}

fn body(number: u64) -> Vec<u8> {
    vec![number as u8; number as usize % 50]
}

fn number(arrived: &Arrived) -> u64 {
    u64::from_le_bytes(arrived.head[..8].try_into().unwrap())
}

/// Lets the wires work until each may sleep. Returns the messages in their order, with the wires
/// at which they arrived.
fn settle(wires: &[FakeWire]) -> Vec<(usize, Arrived)> {
    let mut all = Vec::new();
    loop {
        for (own, wire) in wires.iter().enumerate() {
            all.extend(wire.progress().into_iter().map(|arrived| (own, arrived)));
        }
        if wires.iter().all(|wire| wire.arm().unwrap()) {
            return all;
        }
    }
}

/// Returns the numbers of the messages of one wire in the order in which another one gets them.
fn order(seed: u64) -> Vec<u64> {
    let wires = two(&FakeNetwork::new(seed));
    (0..MESSAGES).for_each(|number| wires[0].send(1, head(0, number), body(number)).unwrap());
    settle(&wires).iter().map(|(_, arrived)| number(arrived)).collect()
}

fn is_readable(wire: &FakeWire) -> bool {
    let descriptor = wire.descriptor().unwrap();
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn every_message_arrives_whole_and_once() {
    let network = FakeNetwork::new(1);
    let wires = [(); 3].map(|()| network.open());
    connect(&wires);
    let mut expected = BTreeSet::new();
    for number in 0..MESSAGES {
        for (own, peer) in (0..3).flat_map(|own| (0..3).map(move |peer| (own, peer))) {
            wires[own].send(peer, head(own, number), body(number)).unwrap();
            expected.insert((peer, own, number));
        }
    }
    for (wire, arrived) in settle(&wires) {
        let number = number(&arrived);
        let sender = usize::from(arrived.head[HEAD - 1]);
        assert_eq!((arrived.head, arrived.body), (head(sender, number), body(number)));
        assert!(expected.remove(&(wire, sender, number)), "{number} of {sender} has come to {wire} before");
    }
    assert!(expected.is_empty(), "{} are missing", expected.len());
    assert!(wires.iter().all(|wire| wire.pending() == 0 && wire.fault().is_none()));
}

#[test]
fn messages_of_one_sender_overtake_each_other_as_the_seed_says() {
    for seed in 0..20 {
        let found = order(seed);
        assert!(!found.is_sorted());
        // One that is late is passed by many.
        let most = found.iter().enumerate().map(|(place, &number)| (place as u64).abs_diff(number)).max();
        assert!(most > Some(20), "{most:?}");
        assert_eq!(found, order(seed));
        assert_ne!(found, order(seed + 1));
    }
}

#[test]
fn an_armed_wire_sleeps_until_a_message_is_sent_to_it() {
    let wires = two(&FakeNetwork::new(2));
    for number in 0..MESSAGES {
        assert!(wires.iter().all(|wire| wire.arm().unwrap() && !is_readable(wire)));
        wires[0].send(1, head(0, number), body(number)).unwrap();
        // It is on its way, or its sender has to work.
        let stays = wires[0].pending() > 0;
        assert_eq!((is_readable(&wires[0]), is_readable(&wires[1])), (stays, !stays));
        assert_eq!((wires[0].arm().unwrap(), wires[1].arm().unwrap()), (!stays, stays));
        assert_eq!(settle(&wires), [(1, Arrived { head: head(0, number), body: body(number) })]);
    }
}

#[test]
fn some_messages_are_pending_until_their_sender_works_or_parts() {
    let wires = two(&FakeNetwork::new(3));
    let send = || (0..MESSAGES).for_each(|number| wires[0].send(1, head(0, number), body(number)).unwrap());
    send();
    let pending = wires[0].pending();
    assert!((1..MESSAGES as usize).contains(&pending), "{pending}");
    wires[0].part(0, false);
    assert_eq!(wires[0].pending(), pending, "the peer is another one");
    assert!(wires[0].progress().is_empty());
    assert_eq!((wires[0].pending(), settle(&wires).len()), (0, MESSAGES as usize));
    send();
    let pending = wires[0].pending();
    wires[0].part(1, true);
    assert_eq!((wires[0].pending(), settle(&wires).len()), (0, MESSAGES as usize - pending));
}

#[test]
fn wrong_peers_and_addresses_are_refused() {
    let wires = two(&FakeNetwork::new(4));
    assert_eq!(wires[0].connect(1, wires[1].address()), Err(WireError::Connected { peer: 1 }));
    for address in [&[] as &[u8], &[0; 7], &2u64.to_le_bytes(), &u64::MAX.to_le_bytes()] {
        assert_eq!(wires[0].connect(5, address), Err(WireError::Address));
    }
    assert_eq!(wires[0].send(5, head(0, 0), Vec::new()), Err(WireError::NotConnected { peer: 5 }));
    assert!(wires[0].arm().unwrap());
}

#[test]
fn a_cut_endpoint_has_one_fault_and_refuses() {
    let network = FakeNetwork::new(5);
    let wires = [network.open().cut_at(1, 10), network.open()];
    connect(&wires);
    let send = |from: usize, to: usize, number: u64| wires[from].send(to, head(from, number), body(number));
    (0..10).for_each(|number| send(0, 1, number).unwrap());
    assert!(settle(&wires).len() == 10 && wires[0].fault().is_none());
    // The library does not know yet.
    (10..12).for_each(|number| send(0, 1, number).unwrap());
    assert!(!wires[0].arm().unwrap() && wires[0].progress().is_empty());
    assert!(matches!(send(0, 1, 12), Err(WireError::Lost { peer: 1, .. })));
    assert!(!wires[0].arm().unwrap());
    assert!(matches!(wires[0].fault(), Some((1, _))) && wires[0].fault().is_none());
    assert!(settle(&wires).is_empty());
    assert!(matches!(send(0, 1, 13), Err(WireError::Lost { peer: 1, .. })));
    // All other endpoints work.
    for (from, to) in [(1, 0), (0, 0), (1, 1)] {
        send(from, to, 1).unwrap();
        assert_eq!(settle(&wires).len(), 1);
    }
    assert_eq!(wires[1].fault(), None);
}

/// Lets the first of three wires die while messages are on all ways. Returns the number of those
/// that arrive between the other two.
fn left_after_death(seed: u64, end: impl Fn(FakeWire) -> Option<FakeWire>) -> usize {
    let network = FakeNetwork::new(seed);
    let wires = [network.open(), network.open(), network.open()];
    connect(&wires);
    for number in 0..MESSAGES {
        for (own, peer) in (0..3).flat_map(|own| (0..3).map(move |peer| (own, peer))) {
            wires[own].send(peer, head(own, number), body(number)).unwrap();
        }
    }
    let [first, rest @ ..] = wires;
    let first = end(first);
    let mut faults = [0; 2];
    let mut arrived = 0;
    // A fault is there once a wire may sleep but for it.
    while rest.iter().any(|wire| !wire.arm().unwrap()) {
        for (wire, faults) in rest.iter().zip(&mut faults) {
            for message in wire.progress() {
                assert_ne!(message.head[HEAD - 1], 0, "a message of the dead wire arrives");
                arrived += 1;
            }
            while let Some((peer, _)) = wire.fault() {
                assert_eq!(peer, 0);
                *faults += 1;
            }
        }
    }
    assert_eq!(faults, [1, 1]);
    for wire in &rest {
        assert!(matches!(wire.send(0, head(1, 0), Vec::new()), Err(WireError::Lost { peer: 0, .. })));
    }
    assert!(rest.iter().all(|wire| wire.arm().unwrap() && wire.fault().is_none()));
    // A wire that is opened later cannot reach it, and reaches the others.
    let later = network.open();
    later.connect(0, &0u64.to_le_bytes()).unwrap();
    later.connect(1, rest[0].address()).unwrap();
    later.send(1, head(3, 0), body(0)).unwrap();
    while later.pending() > 0 || !later.arm().unwrap() {
        assert!(later.progress().is_empty());
        if let Some((peer, _)) = later.fault() {
            assert_eq!(peer, 0);
        }
    }
    assert!(matches!(later.send(0, head(3, 0), Vec::new()), Err(WireError::Lost { peer: 0, .. })));
    if let Some(dead) = first {
        let mut faults = BTreeSet::new();
        while !dead.arm().unwrap() {
            assert!(dead.progress().is_empty(), "the dead wire gets a message");
            faults.extend(std::iter::from_fn(|| dead.fault().map(|(peer, _)| peer)));
        }
        assert_eq!(faults, BTreeSet::from([0, 1, 2]));
    }
    arrived
}

#[test]
fn a_dead_wire_loses_all_on_its_way_and_is_a_fault_once() {
    for seed in 0..20 {
        assert_eq!(left_after_death(seed, |wire| (wire.kill(), Some(wire)).1), 4 * MESSAGES as usize);
        assert_eq!(left_after_death(seed, |wire| (drop(wire), None).1), 4 * MESSAGES as usize);
    }
}

#[test]
fn a_wire_dies_at_its_message() {
    let network = FakeNetwork::new(6);
    let wires = [network.open().dies_at(10), network.open()];
    connect(&wires);
    // Of all peers together.
    (0..10).for_each(|number| wires[0].send(number as usize % 2, head(0, number), body(number)).unwrap());
    assert_eq!(settle(&wires).len(), 10);
    wires[0].send(1, head(0, 10), body(10)).unwrap();
    wires[1].send(0, head(0, 10), body(10)).unwrap();
    let mut faults = Vec::new();
    while wires.iter().any(|wire| !wire.arm().unwrap()) {
        for (own, wire) in wires.iter().enumerate() {
            assert!(wire.progress().is_empty());
            faults.extend(wire.fault().map(|(peer, _)| (own, peer)));
        }
    }
    faults.sort_unstable();
    assert_eq!(faults, [(0, 0), (0, 1), (1, 0)]);
}

#[test]
fn a_child_has_no_wire_of_its_parent() {
    let wires = two(&FakeNetwork::new(7));
    match fork::fork().unwrap() {
        Fork::Parent(child) => {
            assert_eq!(fork::waitpid(child).unwrap(), 0);
            wires[0].send(1, head(0, 0), body(0)).unwrap();
            assert_eq!(settle(&wires).len(), 1);
        }
        Fork::Child => {
            let is_none = wires[0].send(1, head(0, 0), body(0)) == Err(WireError::Forked)
                && wires[0].arm() == Err(WireError::Forked)
                && wires[0].fault().is_none()
                && wires[0].progress().is_empty();
            drop(wires);
            std::process::exit(i32::from(!is_none));
        }
    }
}
