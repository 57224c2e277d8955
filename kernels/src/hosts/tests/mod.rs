//! Tests of the meeting, and what those of the network and of neighbours share.

mod gate;
mod neighbours;
mod network;

use super::{
    Greeting, HEAD, Host, Met, Near, Neighbours, Network, News, NotMet, Preparing, meet,
    senders::{sender, senders},
};
use crate::{
    bootstrap::{
        packet::MAX_BYTES,
        socket::{self, Received},
    },
    os::{
        clock,
        clock_comparison::{Comparison, Nanoseconds},
        process_state::ProcessState,
    },
    wire::Wire,
};
use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{OFlags, fcntl_setfl},
};
use std::{
    cell::Cell,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

const LONG: Duration = Duration::from_secs(30);

/// Returns addresses of this host at which nobody listens now.
fn addresses(count: usize) -> Vec<String> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
    listeners.iter().map(|listener| listener.local_addr().expect("it is bound").to_string()).collect()
}

/// Returns the place of each task of a job at these addresses.
fn hosts(addresses: &[String]) -> Vec<Host> {
    let host = |task: usize| Host {
        greeting: Greeting {
            digest: 7,
            task,
            tasks: addresses.len(),
            replicas: task + 1,
            pid: 100 + task as u32,
            place: 1 + task as u64 / 2,
            near: 0,
            generation: 0,
            host: format!("host{task}"),
            wire: "UCX 1.13".to_owned(),
            address: vec![task as u8; 100],
        },
        names: (0..addresses.len()).map(|task| format!("worker[{task}]")).collect(),
        addresses: addresses.to_vec(),
    };
    (0..addresses.len()).map(host).collect()
}

/// Lets these processes meet, each after its delay.
fn all(hosts: Vec<Host>, timeout: Duration, delay: impl Fn(usize) -> Duration + Sync) -> Vec<Result<Met, NotMet>> {
    let meet = |host: &Host| {
        thread::sleep(delay(host.greeting.task));
        meet(host, Instant::now() + timeout, |_| {})
    };
    thread::scope(|scope| {
        let threads: Vec<_> = hosts.iter().map(|host| scope.spawn(|| meet(host))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no process panics")).collect()
    })
}

#[test]
fn processes_meet_in_any_order_and_know_each_other() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
        let hosts = hosts(&addresses(4));
        let expected: Vec<Greeting> = hosts.iter().map(|host| host.greeting.clone()).collect();
        let met = all(hosts, LONG, |task| Duration::from_millis(60) * order[task]);
        for (task, met) in met.into_iter().enumerate() {
            let met = met.expect("all come");
            assert_eq!((met.own, &met.greetings), (task, &expected));
            assert_eq!(met.links.iter().map(Option::is_some).collect::<Vec<_>>(), [0, 1, 2, 3].map(|at| at != task));
        }
    }
}

#[test]
fn missing_tasks_are_named_at_the_deadline_with_the_last_sight_of_them() {
    let mut hosts = hosts(&addresses(4));
    let (first, nobody) = (hosts[0].addresses[0].clone(), hosts[3].addresses[1].clone());
    let here: Vec<Host> = [hosts.remove(3), hosts.remove(0)].into();
    let begin = Instant::now();
    let errors = all(here, Duration::from_secs(1), |_| Duration::ZERO);
    assert!(begin.elapsed() < LONG);
    let [last, chief] = &errors[..] else { unreachable!("two processes") };
    let (last, chief) = (last.as_ref().expect_err("two are missing"), chief.as_ref().expect_err("two are missing"));
    assert_eq!((&last.missing[..], &chief.missing[..]), (&[1, 2][..], &[1, 2][..]));
    assert!(last.problem.contains(&format!("worker[1]: nobody listens at {nobody}")), "{last}");
    assert!(chief.problem.contains(&format!("worker[1]: it has not connected to this process at {first}")), "{chief}");
}

#[test]
fn a_process_waiting_for_another_one_is_no_absent_one() {
    let hosts = hosts(&addresses(3));
    let errors = all(hosts[..2].to_vec(), Duration::from_secs(1), |_| Duration::ZERO);
    assert!(errors.iter().all(|error| error.as_ref().expect_err("one is missing").missing == [2]));
}

#[test]
fn strangers_cost_only_their_own_connections() {
    let hosts = hosts(&addresses(2));
    let address = hosts[0].addresses[0].clone();
    let stranger = |words: &[u8]| {
        // Those that come after the meeting find nobody.
        let until = Instant::now() + Duration::from_secs(1);
        let mut stream = loop {
            match TcpStream::connect(&address) {
                Ok(stream) => break stream,
                Err(_) if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
                Err(_) => return None,
            }
        };
        let _ = stream.write_all(words);
        Some(stream)
    };
    let mut other_job = Vec::new();
    Greeting { digest: 8, ..hosts[1].greeting.clone() }.write(&mut other_job).expect("memory takes all");
    let mut half = Vec::new();
    hosts[1].greeting.write(&mut half).expect("memory takes all");
    half.truncate(half.len() / 2);
    let met = thread::scope(|scope| {
        let kept: Vec<_> = [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &other_job, &half, b""]
            .into_iter()
            .flat_map(|words| (0..30).map(move |_| words))
            .map(|words| scope.spawn(move || stranger(words)))
            .collect();
        let met = all(hosts.clone(), LONG, |task| Duration::from_millis(100) * task as u32);
        kept.into_iter().for_each(|stranger| drop(stranger.join()));
        met
    });
    assert!(met.iter().all(Result::is_ok));
}

#[test]
fn a_process_of_another_size_or_wire_or_build_is_an_error_on_both_sides() {
    let ours = "UCX 1.13";
    for (tasks, wire, expected) in
        [(3, ours, "counts 3 processes: expected 2"), (2, "UCX 1.20", "install the same version on both")]
    {
        let mut hosts = hosts(&addresses(2));
        let greeting = &mut hosts[1].greeting;
        (greeting.tasks, greeting.wire) = (tasks, wire.to_owned());
        let errors = all(hosts, LONG, |_| Duration::ZERO);
        let errors: Vec<&NotMet> = errors.iter().map(|error| error.as_ref().expect_err("they differ")).collect();
        assert!(errors[0].problem.contains(expected), "{}", errors[0]);
        assert!(errors[1].problem.starts_with("worker[0] (process 100 on host0) "), "{}", errors[1]);
    }
    let hosts = hosts(&addresses(2));
    let mut other = Vec::new();
    hosts[1].greeting.write(&mut other).expect("memory takes all");
    // The digest of the build.
    other[40] ^= 1;
    let error = thread::scope(|scope| {
        let first = scope.spawn(|| meet(&hosts[0], Instant::now() + LONG, |_| {}));
        let mut stream = loop {
            if let Ok(stream) = TcpStream::connect(&hosts[0].addresses[0]) {
                break stream;
            }
        };
        stream.write_all(&other).expect("it reads");
        first.join().expect("no panic").expect_err("another build")
    });
    assert!(error.problem.starts_with("worker[1] runs another build of the program"), "{error}");
}

#[test]
fn an_address_of_no_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).expect("it is bound");
    for (address, other, expected) in [
        (taken.1.as_str(), "127.0.0.1:9", "another process has this address"),
        ("192.0.2.1:4000", "127.0.0.1:9", "this host does not have this address"),
        ("no-such-host.invalid:1", "127.0.0.1:9", "the address is unknown"),
        ("127.0.0.1:0", "127.0.0.1:9", "port 0 is none that the others could know"),
        ("127.0.0.1:4000", "192.0.2.1:4000", "this address is one of this host alone, and others are on other hosts"),
    ] {
        let host = &hosts(&[address.to_owned(), other.to_owned()])[0];
        let error = meet(host, Instant::now() + Duration::from_secs(1), |_| {}).expect_err("it cannot listen");
        let begin = format!("worker[0] listens at {address}: {expected}");
        assert!(error.problem.starts_with(&begin), "{error}");
        assert_eq!(error.missing, []);
    }
}

#[test]
fn a_process_coming_again_takes_its_place() {
    let hosts = hosts(&addresses(3));
    let met = thread::scope(|scope| {
        let others: Vec<_> = [0, 2]
            .map(|task: usize| {
                scope.spawn({
                    let host = &hosts[task];
                    move || meet(host, Instant::now() + LONG, |_| {})
                })
            })
            .into();
        // The first process of task 1 greets task 0 and ends.
        let mut words = Vec::new();
        hosts[1].greeting.write(&mut words).expect("memory takes all");
        let mut first = loop {
            if let Ok(stream) = TcpStream::connect(&hosts[0].addresses[0]) {
                break stream;
            }
        };
        first.write_all(&words).expect("it reads");
        first.read_exact(&mut [0; 16]).expect("it greets");
        drop(first);
        let second = meet(&hosts[1], Instant::now() + LONG, |_| {});
        others.into_iter().map(|other| other.join().expect("no panic")).chain([second]).collect::<Vec<_>>()
    });
    assert!(met.iter().all(Result::is_ok), "{met:?}");
}

/// Makes the networks of processes that have met. `None` without a wire.
fn networks(count: usize) -> Option<Vec<(Network, Receiver<News>)>> {
    networks_near(count, |_| 0)
}

/// Does the same for processes on hosts of these numbers.
fn networks_near(count: usize, near: fn(usize) -> u64) -> Option<Vec<(Network, Receiver<News>)>> {
    networks_that_compare(None, count, near)
}

/// Does the same for processes that compare their clocks, so often.
fn networks_that_compare(
    compares: Option<Duration>,
    count: usize,
    near: fn(usize) -> u64,
) -> Option<Vec<(Network, Receiver<News>)>> {
    let wires: Result<Vec<Wire>, _> = (0..count).map(|_| Wire::open(None)).collect();
    let wires = match wires {
        Ok(wires) => wires,
        Err(absent) => {
            println!("skipped: {absent}");
            return None;
        }
    };
    let mut hosts = hosts(&addresses(count));
    // Other tests of this process are other jobs.
    static JOBS: AtomicU64 = AtomicU64::new(100);
    let job = JOBS.fetch_add(1, Ordering::Relaxed);
    for (host, wire) in hosts.iter_mut().zip(&wires) {
        host.greeting.address = wire.address().to_vec();
        host.greeting.pid = process::id();
        host.greeting.near = near(host.greeting.task);
        host.greeting.digest = job.into();
    }
    let nears: Vec<Option<Near>> = hosts.iter().map(|host| Near::open(&host.greeting)).collect();
    let join = |near: Option<Near>, met: &Met| near.and_then(|near| near.join(met, Instant::now() + LONG));
    let met: Vec<Met> = all(hosts, LONG, |_| Duration::ZERO).into_iter().map(|met| met.expect("all come")).collect();
    let near: Vec<Option<Neighbours>> = thread::scope(|scope| {
        let threads: Vec<_> =
            nears.into_iter().zip(&met).map(|(near, met)| scope.spawn(move || join(near, met))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let start = |((met, near), wire): ((Met, Option<Neighbours>), Wire)| {
        let (sender, receiver) = mpsc::channel();
        let network = Network::start(wire, met, near, compares, move |news| _ = sender.send(news));
        (network.expect("the wires connect"), receiver)
    };
    Some(met.into_iter().zip(near).zip(wires).map(start).collect())
}

/// The numbers of the hosts: each process on its own, two on one, and all on one.
const HOSTS: [fn(usize) -> u64; 3] = [|_| 0, |task| 1 + task as u64 / 2, |_| 1];

/// Returns the body of message `number`: short ones and long ones take different ways.
fn body(number: usize) -> Vec<u8> {
    vec![number as u8; [0, 7, 900, 70_000, 1_300_000][number % 5]]
}

/// Lets the first two of three processes, which are left of a generation, and a new one see each
/// other. Gives those that are left to `go_on`, and returns its results, and what the new one met.
fn prepared<R: Send>(go_on: impl Fn(usize, Preparing) -> R + Sync) -> (Vec<R>, Result<Met, NotMet>) {
    let mut hosts = hosts(&addresses(3));
    hosts[..2].iter_mut().for_each(|host| host.greeting.generation = 2);
    let (seen, agreed, go_on) = ([const { AtomicU64::new(0) }; 2], AtomicU64::new(0), &go_on);
    thread::scope(|scope| {
        let new = scope.spawn(|| meet(&hosts[2], Instant::now() + Duration::from_secs(3), |_| {}));
        let left = |own: usize| {
            let mut preparing = Preparing::new(hosts[own].clone());
            let until = Instant::now() + LONG;
            while seen[0].load(Ordering::SeqCst) != seen[1].load(Ordering::SeqCst)
                || seen[own].load(Ordering::SeqCst) == 0
            {
                assert!(Instant::now() < until, "all three are here");
                seen[own].store(preparing.look(Duration::from_millis(20)).unwrap_or(0), Ordering::SeqCst);
            }
            // The other one may look once more: this one is here until it has agreed, too.
            agreed.fetch_add(1, Ordering::SeqCst);
            while agreed.load(Ordering::SeqCst) < 2 {
                assert!(Instant::now() < until, "the other one agrees");
                thread::yield_now();
            }
            go_on(own, preparing)
        };
        let left = [0, 1].map(|own| scope.spawn(move || left(own)));
        let results = left.map(|left| left.join().expect("no process panics")).into();
        (results, new.join().expect("no process panics"))
    })
}

#[test]
fn processes_left_enter_with_the_new_one_seen_by_all() {
    let (met, new) = prepared(|own, mut preparing| {
        match own {
            0 => preparing.enter(),
            _ => assert!(preparing.others_enter(), "the other one has said so"),
        }
        preparing.enter();
        preparing.meet(Instant::now() + LONG).expect("all enter")
    });
    let new = new.expect("all enter").greetings;
    assert!(met.iter().all(|met| met.greetings == new));
    assert_eq!(new.iter().map(|greeting| greeting.generation).collect::<Vec<_>>(), [2, 2, 0]);
}

#[test]
fn a_process_left_does_not_enter_after_another_has_given_up() {
    let (enters, new) = prepared(|own, mut preparing| own == 1 && preparing.others_enter());
    assert_eq!(enters, [false, false]);
    assert!(new.is_err(), "nobody enters with it");
}
