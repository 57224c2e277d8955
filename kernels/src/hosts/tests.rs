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

#[test]
fn messages_arrive_in_order_and_before_the_farewell_of_their_sender() {
    const MESSAGES: usize = 200;
    for near in HOSTS {
        let Some(networks) = networks_near(3, near) else { return };
        thread::scope(|scope| {
            for (own, (network, news)) in networks.into_iter().enumerate() {
                scope.spawn(move || {
                    for number in 0..MESSAGES {
                        for process in (0..3).filter(|&process| process != own) {
                            network.send(process, &[number as u8; HEAD], body(number));
                        }
                    }
                    // Its messages still arrive.
                    drop(network);
                    let mut arrived = [0; 3];
                    for news in news {
                        match news {
                            News::Arrived { process, head, body: data } => {
                                assert_eq!(head, [arrived[process] as u8; HEAD]);
                                assert!(data == body(arrived[process]), "message {} of {process}", arrived[process]);
                                arrived[process] += 1;
                            }
                            News::LeftBehind { process } => panic!("{process} goes on with all"),
                            News::Compared(_) => panic!("no process compares"),
                            News::Gone { process, why, has_ended } => {
                                assert_eq!((&why[..], has_ended, arrived[process]), ("it has left", true, MESSAGES));
                            }
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn processes_of_one_host_share_memory_and_no_others() {
    for (near, expected) in HOSTS.into_iter().zip([
        [&[][..], &[], &[], &[]],
        [&[1], &[0], &[3], &[2]],
        [&[1, 2, 3], &[0, 2, 3], &[0, 1, 3], &[0, 1, 2]],
    ]) {
        let Some(networks) = networks_near(4, near) else { return };
        let tasks: Vec<Vec<usize>> = networks.iter().map(|(network, _)| network.near_for_test()).collect();
        assert_eq!(tasks, expected);
    }
}

/// A process that ends among the words of its neighbours, or is on another host than it says.
#[test]
fn a_neighbour_not_found_costs_the_memory_and_not_the_group() {
    let mut hosts = hosts(&addresses(3));
    for host in &mut hosts {
        (host.greeting.near, host.greeting.digest) = (1, 8);
    }
    for absent in 0..3 {
        let nears: Vec<Option<Near>> =
            hosts.iter().map(|host| Near::open(&host.greeting).filter(|_| host.greeting.task != absent)).collect();
        let met =
            |own| Met { own, greetings: hosts.iter().map(|host| host.greeting.clone()).collect(), links: Vec::new() };
        let begin = Instant::now();
        thread::scope(|scope| {
            for (own, near) in nears.into_iter().enumerate() {
                let met = met(own);
                scope.spawn(move || {
                    let joined = near.map(|near| near.join(&met, Instant::now() + Duration::from_millis(300)));
                    assert!(joined.flatten().is_none());
                });
            }
        });
        assert!(begin.elapsed() < LONG);
    }
}

#[test]
fn strangers_at_a_hub_get_nothing_and_harm_nobody() {
    let mut hosts = hosts(&addresses(2));
    for host in &mut hosts {
        (host.greeting.near, host.greeting.digest) = (1, 9);
    }
    let nears: Vec<Near> = hosts.iter().map(|host| Near::open(&host.greeting).expect("a name")).collect();
    let name = nears[0].name_for_test();
    let strangers: Vec<_> = (0..200)
        .map(|stranger: u8| {
            let socket = socket::connect(&name).expect("a socket").expect("it listens");
            let words: [&[u8]; 3] = [b"", b"GET / HTTP/1.1", &[stranger; 25]];
            if let words @ [_, ..] = words[usize::from(stranger) % 3] {
                assert!(socket::send(&socket, words, None).expect("it is taken"));
            }
            Some(socket).filter(|_| stranger < 50)
        })
        .collect();
    let met = |own| Met { own, greetings: hosts.iter().map(|host| host.greeting.clone()).collect(), links: Vec::new() };
    thread::scope(|scope| {
        for (own, near) in nears.into_iter().enumerate() {
            let met = met(own);
            scope.spawn(move || {
                let joined = near.join(&met, Instant::now() + LONG).expect("they share memory");
                assert_eq!(joined.tasks().collect::<Vec<_>>(), [1 - own]);
            });
        }
    });
    drop(strangers);
}

#[test]
fn a_hub_does_not_wait_for_an_ended_neighbour() {
    let mut hosts = hosts(&addresses(3));
    for host in &mut hosts {
        (host.greeting.near, host.greeting.digest) = (1, 11);
    }
    let mut met = all(hosts.clone(), LONG, |_| Duration::ZERO);
    let near = Near::open(&hosts[0].greeting).expect("a name");
    // Task 2 has met the others, and ends before it comes to the hub.
    drop(met.remove(2));
    let begin = Instant::now();
    assert!(near.join(met[0].as_ref().expect("all come"), begin + LONG).is_none());
    assert!(begin.elapsed() < Duration::from_secs(2));
}

/// So the words on their way at a time are those to one process.
#[test]
fn a_hub_turns_to_the_next_neighbour_when_one_is_ready() {
    let mut hosts = hosts(&addresses(3));
    for host in &mut hosts {
        (host.greeting.near, host.greeting.digest) = (1, 10);
    }
    let near = Near::open(&hosts[0].greeting).expect("a name");
    let name = near.name_for_test();
    let wake = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
    let say = |socket: &OwnedFd, kind: u8, task: u64, bytes: u128, wake: Option<BorrowedFd<'_>>| {
        let word = [&[kind][..], &task.to_le_bytes(), &bytes.to_le_bytes()].concat();
        assert!(socket::send(socket, &word, wake).expect("it is taken"));
    };
    let others = [1, 2].map(|task| {
        let socket = socket::connect(&name).expect("a socket").expect("it listens");
        say(&socket, b'C', task, 10, Some(wake.as_fd()));
        socket
    });
    let read = |socket: &OwnedFd| {
        let mut bytes = vec![0; MAX_BYTES];
        match socket::receive(socket, &mut bytes) {
            Received::Bytes(..) => Some(bytes[0]),
            _ => None,
        }
    };
    let hear = |socket: &OwnedFd| {
        let until = Instant::now() + LONG;
        loop {
            match read(socket) {
                Some(kind) => break kind,
                None => assert!(Instant::now() < until, "it says nothing"),
            }
        }
    };
    let greetings = hosts.iter().map(|host| host.greeting.clone()).collect();
    let met = Met { own: 0, greetings, links: Vec::new() };
    thread::scope(|scope| {
        let hub = scope.spawn(move || near.join(&met, Instant::now() + LONG));
        for (place, socket) in others.iter().enumerate() {
            assert_eq!([(); 3].map(|()| hear(socket)), *b"SWW");
            thread::sleep(Duration::from_millis(20));
            assert!(others[place + 1..].iter().all(|other| read(other).is_none()), "{place} is not ready");
            say(socket, b'R', 0, 0, None);
        }
        assert_eq!(others.each_ref().map(hear), *b"GG");
        assert!(hub.join().expect("no panic").is_some());
    });
}

#[test]
fn nothing_is_sent_to_an_ended_neighbour() {
    let Some(mut networks) = networks_near(3, HOSTS[2]) else { return };
    drop(networks.remove(1));
    let (network, news) = &networks[0];
    assert!(matches!(news.recv_timeout(LONG), Ok(News::Gone { process: 1, .. })));
    // Too late for memory, and the first one for the wire.
    network.send(1, &[0; HEAD], body(4));
    assert_eq!(network.pending_for_test(), 0);
    network.send(2, &[7; HEAD], body(4));
    assert!(matches!(networks[1].1.iter().nth(1), Some(News::Arrived { process: 0, head: [7, ..], .. })));
}

/// It waited for the last words of processes whose links had ended already.
#[test]
fn the_last_one_to_leave_waits_for_none() {
    let waits = (0..3).map(|_| {
        let mut networks = networks_near(3, HOSTS[2])?;
        for process in [2, 1] {
            drop(networks.pop());
            assert!(
                matches!(networks[0].1.recv_timeout(LONG), Ok(News::Gone { process: gone, .. }) if gone == process)
            );
        }
        // Until both links have ended, too.
        thread::sleep(Duration::from_millis(50));
        let begin = Instant::now();
        drop(networks);
        Some(begin.elapsed())
    });
    let Some(waits) = waits.collect::<Option<Vec<_>>>() else { return };
    assert!(waits.iter().min() < Some(&Duration::from_secs(1)), "{waits:?}");
}

/// Neighbours have the descriptor that wakes a process, and may set it so that reading it waits.
#[test]
fn a_neighbour_cannot_let_another_one_wait() {
    let Some(networks) = networks_near(2, HOSTS[2]) else { return };
    for wake in networks[0].0.neighbours_for_test().wakes_for_test() {
        fcntl_setfl(wake, OFlags::empty()).expect("it is this process's");
    }
    for round in 0..200 {
        networks[round % 2].0.send(1 - round % 2, &[round as u8; HEAD], body(round));
        let news = networks[1 - round % 2].1.recv_timeout(LONG);
        assert!(matches!(news, Ok(News::Arrived { head, .. }) if head[0] == round as u8));
        // Wakes it without a letter.
        networks[0].0.order_for_test();
    }
}

#[test]
fn a_letter_of_a_wrong_sender_is_a_fault_of_the_neighbour() {
    let Some(networks) = networks_near(3, HOSTS[2]) else { return };
    let mut head = [0; 96];
    head[0] = 2;
    // As 1 would if it were 2.
    let near = networks[1].0.neighbours_for_test();
    near.letters_for_test().send(0, &head, Vec::new(), |_| {}).expect("there is a ring");
    networks[1].0.send(0, &[1; HEAD], Vec::new());
    networks[2].0.send(0, &[2; HEAD], Vec::new());
    let news = || networks[0].1.recv_timeout(LONG).expect("news");
    assert!(matches!(news(), News::Arrived { process: 2, head: [2, ..], .. }), "nothing of 1 is read any more");
    match news() {
        News::Gone { process: 1, why, has_ended: false } => {
            assert_eq!(why, "messages with it have failed: it writes nonsense into shared memory");
        }
        _ => panic!("other news"),
    }
}

#[test]
fn messages_are_heard_by_ranks_awake_and_asleep() {
    for near in [HOSTS[0], HOSTS[2]] {
        let Some(networks) = networks_near(2, near) else { return };
        let rounds = 3000;
        let play = |own: usize, (network, news): &(Network, Receiver<News>)| {
            for round in 0..rounds {
                if round % 2 == own {
                    network.send(1 - own, &[round as u8; HEAD], body(round));
                    continue;
                }
                // Awake for no time, for less than a message takes, for longer, or to the end.
                let awake = Duration::from_micros([0, 3, 40, 2000][(round / 2 + own) % 4]);
                let heard = Cell::new(None);
                network.receive_until(Instant::now() + awake, &|| {
                    heard.set(news.try_recv().ok());
                    let found = heard.take();
                    let is_done = found.is_some();
                    heard.set(found);
                    is_done
                });
                let heard = heard.take().or_else(|| news.recv_timeout(LONG).ok());
                let Some(News::Arrived { process, head, body: found }) = heard else {
                    panic!("nothing in round {round}")
                };
                assert_eq!((process, head[0], found), (1 - own, round as u8, body(round)));
                if round % 97 == 0 {
                    thread::sleep(Duration::from_millis(2));
                }
            }
        };
        thread::scope(|scope| {
            let others = networks.into_iter().enumerate();
            let threads: Vec<_> = others.map(|(own, network)| scope.spawn(move || play(own, &network))).collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no process panics"));
        });
    }
}

/// Other words of a process may never arrive if it ends then.
#[test]
fn a_process_left_behind_hears_of_it_before_the_end() {
    for near in HOSTS {
        let Some(mut networks) = networks_near(3, near) else { return };
        let (second, _news) = networks.remove(1);
        second.leave_behind(0);
        second.links_for_test().iter().flatten().for_each(|link| _ = link.shutdown(std::net::Shutdown::Both));
        let news: Vec<News> = networks[0].1.iter().take(2).collect();
        assert!(matches!(news[..], [News::LeftBehind { process: 1 }, News::Gone { process: 1, has_ended: true, .. }]));
        assert!(matches!(networks[1].1.recv_timeout(LONG), Ok(News::Gone { process: 1, has_ended: true, .. })));
    }
}

#[test]
fn a_process_tells_of_the_states_of_those_on_its_host() {
    let Some(networks) = networks(5) else { return };
    // By their greetings 0 and 1 are on one host, 2 and 3 on another, and 4 is alone.
    let running = Some(ProcessState::Running);
    assert_eq!(networks[0].0.states(&[1, 3, 4]), [running, running, None]);
    assert_eq!(networks[0].0.states(&[2, 3]), [None, None], "nobody else is there");
}

/// All have the same clock here.
#[test]
fn the_first_process_of_each_host_compares_its_clock() {
    let Some(networks) = networks_that_compare(Some(Duration::from_millis(1)), 5, |_| 0) else { return };
    // By their greetings 0 and 1 are on one host, 2 and 3 on another, and 4 is alone.
    for process in [2, 4] {
        let mut last: Nanoseconds = 0;
        for news in networks[process].1.iter().take(5) {
            let News::Compared(Comparison { at, offset, error }) = news else { unreachable!("nobody leaves") };
            assert!(offset.abs() <= error, "{offset} of {error}");
            assert!((last..=clock::now().as_nanos() as Nanoseconds).contains(&at));
            last = at;
        }
    }
    for process in [0, 1, 3] {
        assert!(networks[process].1.try_recv().is_err(), "process {process} compares no clock");
    }
    // Answers of processes that were not asked, all the time.
    let link = |process: usize| networks[process].0.links_for_test()[2].as_ref().expect("a link");
    let mut word = [b't'; 9];
    word[1..].copy_from_slice(&u64::MAX.to_le_bytes());
    for news in networks[2].1.iter().take(50) {
        let News::Compared(Comparison { offset, error, .. }) = news else { unreachable!("no link is closed") };
        assert!(offset.abs() <= error, "{offset} of {error}");
        for _ in 0..20 {
            [1, 3].into_iter().for_each(|process| link(process).write_all(&word).expect("it is linked"));
        }
    }
}

#[test]
fn a_process_leaving_at_once_has_compared_its_clock() {
    let mut compared = 0;
    for _ in 0..20 {
        let Some(mut networks) = networks_that_compare(Some(LONG), 3, |_| 0) else { return };
        // Each waits for the answers of the others to its farewell.
        let (last, news) = networks.remove(2);
        let others = thread::spawn(|| drop(networks));
        drop(last);
        others.join().expect("they leave");
        compared += usize::from(news.try_iter().any(|news| matches!(news, News::Compared(_))));
    }
    // On a busy machine a process may not wait for an answer.
    assert!(compared > 0);
}

#[test]
fn a_comparison_ends_with_its_process_0() {
    let Some(mut networks) = networks_that_compare(Some(Duration::from_millis(1)), 3, |_| 0) else { return };
    drop(networks.remove(0));
    let mut news = networks[1].1.iter().skip_while(|news| matches!(news, News::Compared(_)));
    assert!(matches!(news.next(), Some(News::Gone { process: 0, .. })));
    networks[1].0.send(1, &[0; HEAD], body(1));
    let arrived = networks[0].1.iter().find(|news| matches!(news, News::Arrived { .. }));
    assert!(matches!(arrived, Some(News::Arrived { process: 2, .. })));
}

#[test]
fn a_process_ending_without_a_farewell_is_gone_at_once() {
    for near in HOSTS {
        let Some(mut networks) = networks_near(3, near) else { return };
        let (second, _news) = networks.remove(1);
        networks[0].0.send(1, &[0; HEAD], body(2));
        // As the system does when a process ends.
        second.links_for_test().iter().flatten().for_each(|link| _ = link.shutdown(std::net::Shutdown::Both));
        for (_, news) in &networks {
            match news.recv_timeout(LONG).expect("news of process 1") {
                News::Gone { process: 1, why, has_ended: true } => assert_eq!(why, "its process has ended"),
                _ => panic!("other news"),
            }
        }
    }
}

/// It ends after the meeting, before the others connect their wires.
#[test]
fn a_process_ending_before_its_wire_is_reached_is_lost_to_the_others() {
    let wires: Result<Vec<Wire>, _> = (0..3).map(|_| Wire::open(None)).collect();
    let Ok(mut wires) = wires else { return println!("skipped: no wire") };
    let mut hosts = hosts(&addresses(3));
    hosts.iter_mut().zip(&wires).for_each(|(host, wire)| host.greeting.address = wire.address().to_vec());
    let mut met: Vec<Met> =
        all(hosts, LONG, |_| Duration::ZERO).into_iter().collect::<Result<_, _>>().expect("all come");
    drop((met.remove(1), wires.remove(1)));
    let both: Vec<(Network, Receiver<News>)> = met
        .into_iter()
        .zip(wires)
        .map(|(met, wire)| {
            let (sender, receiver) = mpsc::channel();
            (Network::start(wire, met, None, None, move |news| _ = sender.send(news)).expect("one is lost"), receiver)
        })
        .collect();
    for (_, news) in &both {
        assert!(matches!(news.recv_timeout(LONG), Ok(News::Gone { process: 1, has_ended: true, .. })));
    }
    both[0].0.send(2, &[0; HEAD], body(2));
    assert!(matches!(both[1].1.recv_timeout(LONG), Ok(News::Arrived { process: 0, .. })));
}

#[test]
fn words_in_pieces_or_without_a_meaning_harm_no_other_link() {
    for near in HOSTS {
        let Some(networks) = networks_near(3, near) else { return };
        let write = |kind: u8, number: u64| {
            let mut link = networks[1].0.links_for_test()[0].as_ref().expect("a link with process 0");
            for byte in [kind].into_iter().chain(number.to_le_bytes()) {
                link.write_all(&[byte]).expect("room for a byte");
                thread::sleep(Duration::from_millis(1));
            }
        };
        // Questions about processes, and answers, with numbers of no process and no state.
        for kind in [b'Q', b'A'] {
            [u64::MAX, 1 << 40, 3 << 8, 3, 1 << 8 | 7].into_iter().for_each(|number| write(kind, number));
        }
        networks[1].0.send(0, &[0; HEAD], body(2));
        let news = || networks[0].1.recv_timeout(LONG).expect("news of a process");
        assert!(matches!(news(), News::Arrived { process: 1, .. }));
        write(b'?', 0);
        match news() {
            News::Gone { process: 1, why, has_ended: false } => assert_eq!(why, "its link carries nonsense"),
            _ => panic!("other news"),
        }
        networks[2].0.send(0, &[0; HEAD], body(2));
        assert!(matches!(news(), News::Arrived { process: 2, .. }));
    }
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

#[test]
fn messages_between_two_processes_are_marked_by_both_and_by_no_other() {
    let all: Vec<Greeting> = hosts(&addresses(3)).into_iter().map(|host| host.greeting).collect();
    let marks = senders(0, &all);
    assert_eq!(senders(1, &all)[0], [marks[1][1], marks[1][0]]);
    assert_eq!(marks[2].map(sender), [0, 2]);
    let with = |task: usize| {
        let mut all = all.clone();
        all[task].pid += 1;
        senders(0, &all)
    };
    assert_eq!(with(2)[1], marks[1], "another third one changes nothing");
    assert!(with(1)[1] != marks[1] && with(0)[1] != marks[1]);
}
