//! Tests of processes that share memory.

use super::*;

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
