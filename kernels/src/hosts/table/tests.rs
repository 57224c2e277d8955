use super::{service::Caller, *};
use crate::hosts::NotMet;
use rustix::net::{AddressFamily, SocketType};
use std::{
    io::{Read, Write},
    mem,
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    slice, thread,
    time::Instant,
};

const LONG: Duration = Duration::from_secs(30);

fn claim(rank: usize, size: usize) -> Claim {
    Claim { digest: 7, rank, size, pid: 100 + rank as u32, host: format!("host{rank}"), port: 5000 + rank as u16 }
}

/// Serves a table at a free port of the loopback, and returns its address.
fn served() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    mem::forget(serve(listener, 7, Instant::now() + LONG).expect("a thread starts"));
    address
}

/// Claims a rank on a connection, and waits until the service has heard it.
fn claimed(address: &str, claim: &Claim) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(&claim.bytes()).expect("it is taken");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    stream.read_exact(&mut [0]).expect("a word of the missing ranks");
    stream
}

fn ask_for(address: &str, claim: &Claim, timeout: Duration) -> Result<Vec<String>, NotMet> {
    look_up(&[address.to_owned()], claim, Instant::now() + timeout, |_| {})
}

#[test]
fn all_ranks_get_the_addresses_of_all() {
    let address = served();
    let expected: Vec<String> = (0..5).map(|rank| format!("127.0.0.1:{}", 5000 + rank)).collect();
    thread::scope(|scope| {
        for rank in [3, 1, 4, 0, 2] {
            let (address, expected) = (&address, &expected);
            scope.spawn(move || assert_eq!(ask_for(address, &claim(rank, 5), LONG).as_ref(), Ok(expected)));
        }
    });
    // It has served.
    let late = ask_for(&address, &claim(0, 5), Duration::from_millis(300)).expect_err("nobody listens");
    assert!(late.problem.contains(&format!("nobody listens at {address}")), "{late}");
}

#[test]
fn the_address_of_a_joined_service_is_free_at_once() {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let address = format!("127.{}.{low}.1:4000", 128 + high % 64);
    for _ in 0..100 {
        let listener = listen_at(&address, Instant::now() + LONG).expect("nobody listens there");
        let serving = serve(listener, 7, Instant::now() + LONG).expect("a thread starts");
        thread::scope(|scope| {
            let other = scope.spawn(|| ask_for(&address, &claim(1, 2), LONG));
            assert_eq!(ask_for(&address, &claim(0, 2), LONG).expect("a table").len(), 2);
            serving.join();
            drop(listen_at(&address, Instant::now() + LONG).expect("the service has ended"));
            assert_eq!(other.join().expect("no panic").expect("a table").len(), 2);
        });
    }
}

#[test]
fn a_table_is_found_later_and_behind_other_addresses() {
    let listeners = [0; 3].map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free"));
    let addresses = listeners.each_ref().map(|listener| listener.local_addr().expect("it is bound").to_string());
    let [closed, other, own] = listeners;
    drop(closed);
    let _other = serve(other, 8, Instant::now() + LONG).expect("a thread starts");
    thread::scope(|scope| {
        let asked = scope.spawn(|| look_up(&addresses, &claim(0, 1), Instant::now() + LONG, |_| {}));
        thread::sleep(Duration::from_millis(100));
        let _own = serve(own, 7, Instant::now() + LONG).expect("a thread starts");
        assert_eq!(asked.join().expect("no panic"), Ok(vec!["127.0.0.1:5000".to_owned()]));
    });
}

#[test]
fn missing_ranks_are_named_at_the_deadline_and_reported_before() {
    let address = served();
    let mut reports = Vec::new();
    let late = look_up(&[address], &claim(1, 4), Instant::now() + Duration::from_millis(3500), |waiting| {
        reports.push(waiting.missing.clone());
    });
    let late = late.expect_err("three ranks are missing");
    assert_eq!((late.missing, reports), (vec![0, 2, 3], vec![vec![0, 2, 3]]));
    assert!(
        late.problem.ends_with("these ranks have not asked for the table of addresses: 0, 2, 3"),
        "{}",
        late.problem
    );
}

/// The connections are given up at the same deadline, which is no news of the service.
#[test]
fn every_rank_names_the_missing_one_at_a_common_deadline() {
    let (address, ranks) = (served(), 20);
    let deadline = Instant::now() + Duration::from_secs(6);
    thread::scope(|scope| {
        for rank in 0..ranks {
            let address = &address;
            let ask = move || look_up(slice::from_ref(address), &claim(rank, ranks + 1), deadline, |_| {});
            scope.spawn(move || assert_eq!(ask().expect_err("a rank is missing").missing, [ranks]));
        }
    });
}

/// The second attempt connects, and hears nothing.
#[test]
fn a_connection_closed_between_news_keeps_them() {
    let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let address = service.local_addr().expect("it is bound").to_string();
    thread::scope(|scope| {
        let asked = scope.spawn(|| ask_for(&address, &claim(0, 3), Duration::from_millis(2500)));
        let (mut first, _) = service.accept().expect("a connection");
        first.read_exact(&mut [0; Claim::BYTES]).expect("a claim");
        first.write_all(b"M\x03\0\0\0\0\0\0\x001 2").expect("it is taken");
        drop(first);
        assert_eq!(asked.join().expect("no panic").expect_err("two ranks are missing").missing, [1, 2]);
    });
}

#[test]
fn claims_contradicting_others_are_refused() {
    let address = served();
    let mut first = claimed(&address, &claim(0, 2));
    let refused = |claim: Claim| ask_for(&address, &claim, LONG).expect_err("it is refused").problem;
    assert_eq!(refused(claim(0, 2)), "rank 0 is process 100 on host0 already");
    assert_eq!(refused(claim(1, 3)), "rank 1 counts 3 processes: rank 0, process 100 on host0, counts 2");
    assert_eq!(refused(claim(2, 2)), "rank 2 is not below the size, 2");
    assert_eq!(refused(claim(1, 257)), "a group on several hosts has at most 256 processes, not 257");
    assert!(ask_for(&address, &claim(1, 2), LONG).is_ok());
    let mut heard = Vec::new();
    first.read_to_end(&mut heard).expect("the table");
    assert!(heard.ends_with(b"127.0.0.1:5000\n127.0.0.1:5001"));
}

#[test]
fn an_ending_process_takes_its_claim_back() {
    let address = served();
    // Their claims are closed before the service looks again, in any order.
    for rank in [1, 2, 1] {
        drop(claimed(&address, &claim(rank, 3)));
    }
    thread::scope(|scope| {
        let all = [2, 0, 1].map(|rank| (rank, &address));
        let all = all.map(|(rank, address)| scope.spawn(move || ask_for(address, &claim(rank, 3), LONG)));
        all.into_iter().for_each(|asked| assert!(asked.join().expect("no panic").is_ok()));
    });
}

#[test]
fn a_dropped_service_leaves_its_port() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let serving = serve(listener, 7, Instant::now() + LONG).expect("a thread starts");
    let mut waits = claimed(&address.to_string(), &claim(0, 2));
    drop(serving);
    waits.read_to_end(&mut Vec::new()).expect("it closes");
    assert!(TcpListener::bind(address).is_ok());
}

/// Rank 0 comes to the service by another address of its host than the others.
#[test]
fn a_process_of_the_same_host_is_seen_where_others_reach_the_service() {
    let pair = |to: &str, from: &str| {
        let listener = TcpListener::bind((to, 0)).expect("a port is free");
        let to = listener.local_addr().expect("it is bound");
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        let from: SocketAddr = format!("{from}:0").parse().expect("an address");
        rustix::net::bind(&socket, &from).expect("an address of the loopback");
        rustix::net::connect(&socket, &to).expect("it listens");
        (listener.accept().expect("a connection").0, socket)
    };
    let caller = |stream: TcpStream, rank| Caller {
        stream,
        since: Instant::now(),
        bytes: Vec::new(),
        claim: Some(claim(rank, 2)),
    };
    let ((here, _here), (there, _there)) = (pair("127.0.0.2", "127.0.0.2"), pair("127.0.0.3", "127.0.0.4"));
    let [here, there] = [caller(here, 0), caller(there, 1)];
    assert_eq!((here.seen_by(&there), here.seen_by(&here)), ("127.0.0.3:5000".to_owned(), "127.0.0.2:5000".to_owned()));
    assert_eq!(
        (there.seen_by(&here), there.seen_by(&there)),
        ("127.0.0.4:5001".to_owned(), "127.0.0.4:5001".to_owned())
    );
}

#[test]
fn strangers_get_nothing_and_harm_nobody() {
    let address = served();
    let mut strangers = Vec::new();
    for words in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &MAGIC, &[0xff; 500], &claim(0, 1).bytes()[..Claim::BYTES - 1]] {
        let stranger = TcpStream::connect(&address).expect("it listens");
        _ = (&stranger).write_all(words);
        strangers.push(stranger);
    }
    let other = Claim { digest: 8, ..claim(0, 1) };
    let late = ask_for(&address, &other, Duration::from_millis(300)).expect_err("another group");
    assert!(late.problem.contains("a process without a table of this group answers at"), "{late}");
    assert!(ask_for(&address, &claim(0, 1), LONG).is_ok());
    for mut stranger in strangers {
        _ = stranger.shutdown(Shutdown::Write);
        let mut heard = Vec::new();
        _ = stranger.read_to_end(&mut heard);
        assert!(heard.is_empty(), "{heard:?}");
    }
}

#[test]
fn another_build_is_refused_in_words() {
    let address = served();
    let mut bytes = claim(0, 1).bytes();
    bytes[32] ^= 1;
    let mut stream = TcpStream::connect(&address).expect("it listens");
    stream.write_all(&bytes).expect("it is taken");
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).expect("it answers");
    assert_eq!(heard[0], Word::Refusal as u8);
    assert!(String::from_utf8_lossy(&heard[9..]).contains("another build"));
}

#[test]
fn any_words_of_a_service_cost_no_more_than_an_attempt() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    thread::scope(|scope| {
        scope.spawn(|| {
            for words in [
                &b"X\0\0\0\0\0\0\0\0"[..],
                &[b'T', 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0],
                b"T\x01\0\0\0\0\0\0\0a",
                b"M\x08\0\0\0\0\0\0\x007 999999",
            ] {
                let (mut stream, _) = listener.accept().expect("it listens");
                _ = stream.read_exact(&mut [0; Claim::BYTES]);
                _ = stream.write_all(words);
            }
            drop(listener);
        });
        let late = ask_for(&address, &claim(0, 2), Duration::from_millis(800)).expect_err("no table");
        assert!(late.missing.is_empty(), "{late}");
    });
}

#[test]
fn an_address_of_another_host_cannot_be_listened_at() {
    let deadline = Instant::now() + LONG;
    // An address of documentation: no host has it.
    let error = listen_at("192.0.2.1:4000", deadline).expect_err("not of this host");
    assert_eq!(error.problem, "this process listens at 192.0.2.1:4000: this host does not have this address");
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let address = taken.local_addr().expect("it is bound").to_string();
    let error = listen_at(&address, deadline).expect_err("it is taken");
    assert_eq!(error.problem, format!("this process listens at {address}: another process has this address"));
}
