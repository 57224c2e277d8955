//! Tests of the network: messages, ends, states and clocks.

use super::*;

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
