//! Tests of a gate: several meetings at one address.

use super::{LONG, addresses, hosts};
use crate::hosts::{Gate, Host, Met, NotMet, meet_at_gate};
use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

/// Returns the places of two processes in the meeting with this digest, at the address of the first
/// one.
fn two(digest: u128, address: &str) -> [Host; 2] {
    let mut hosts = hosts(&[address.to_owned(), "127.0.0.1:1".to_owned()]);
    hosts.iter_mut().for_each(|host| host.greeting.digest = digest);
    hosts.try_into().expect("two places")
}

fn meet(host: &Host, gate: Option<&Gate>, time: Duration) -> Result<Met, NotMet> {
    meet_at_gate(host, gate, Instant::now() + time, |_| {})
}

#[test]
fn several_meetings_of_a_process_are_at_one_address() {
    let address = addresses(1).remove(0);
    let gate = &Gate::open(&address, Instant::now() + LONG).expect("a free port");
    thread::scope(|scope| {
        let meetings = (0..20).map(|digest| {
            let [first, second] = two(digest, &address);
            // Some expect the visitor before it comes, and others after that.
            let waits = move |turn: u128| Duration::from_millis(100) * (digest % 3 == turn) as u32;
            let host = scope.spawn(move || {
                thread::sleep(waits(0));
                meet(&first, Some(gate), LONG)
            });
            let visitor = scope.spawn(move || {
                thread::sleep(waits(1));
                meet(&second, None, LONG)
            });
            (digest, [host, visitor])
        });
        for (digest, both) in meetings.collect::<Vec<_>>() {
            for (own, met) in both.into_iter().enumerate() {
                let met = met.join().expect("no panic").expect("both come");
                assert_eq!((met.own, met.greetings[1 - own].digest), (own, digest));
            }
        }
    });
}

#[test]
fn an_unexpected_visitor_names_the_gate_at_its_deadline() {
    let address = addresses(1).remove(0);
    let gate = Gate::open(&address, Instant::now() + LONG).expect("a free port");
    let [first, second] = two(1, &address);
    let refused = meet(&second, None, Duration::from_millis(300)).expect_err("nobody expects it");
    assert_eq!(refused.missing, [0]);
    assert!(refused.problem.contains(&format!("the process at {address} closed the connection")), "{refused}");
    // The meeting of the same two is free again after one that has failed.
    assert_eq!(meet(&first, Some(&gate), Duration::from_millis(50)).expect_err("nobody comes").missing, [1]);
    thread::scope(|scope| {
        let visitor = scope.spawn(|| meet(&second, None, LONG));
        meet(&first, Some(&gate), LONG).expect("both come");
        visitor.join().expect("no panic").expect("both come");
    });
}

#[test]
fn strangers_at_a_gate_cost_only_their_own_connections() {
    let address = addresses(1).remove(0);
    let gate = Gate::open(&address, Instant::now() + LONG).expect("a free port");
    let _silent: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(&address).expect("the gate takes connections")).collect();
    let mut loud = TcpStream::connect(&address).expect("the gate takes connections");
    loud.write_all(&[b'G'; 1000]).expect("the system takes few bytes");
    thread::scope(|scope| {
        let [first, second] = two(3, &address);
        let visitor = scope.spawn(move || meet(&second, None, LONG));
        meet(&first, Some(&gate), LONG).expect("both come");
        visitor.join().expect("no panic").expect("both come");
    });
    // Closed, or reset since it has said more than was read.
    assert!(!matches!(loud.read(&mut [0]), Ok(1..)));
    drop(gate);
    Gate::open(&address, Instant::now() + LONG).expect("the address is free");
}

#[test]
fn of_two_waits_in_one_meeting_the_second_fails_at_once() {
    let address = addresses(1).remove(0);
    let gate = Gate::open(&address, Instant::now() + LONG).expect("a free port");
    let [first, second] = two(5, &address);
    thread::scope(|scope| {
        let held = gate.expect(5).expect("nobody waits");
        assert_eq!(meet(&first, Some(&gate), LONG).expect_err("another one waits").missing, [1]);
        drop(held);
        let visitor = scope.spawn(|| meet(&second, None, LONG));
        meet(&first, Some(&gate), LONG).expect("both come");
        visitor.join().expect("no panic").expect("both come");
    });
}
