//! Messages with tags between processes, beside collectives, and with processes that are killed,
//! stopped or forked.

use crate::{
    calls::Random,
    driver::{self, Job, Signal, hear, number, say},
};
use consonance::{
    Communicator, Error, Mailbox, ReduceOp, Request, Result,
    raw::{Buf, BufMut},
};
use fork::Fork;
use std::{thread, time::Duration};

/// A message from `from` to `to` in this round, of a size that both know.
fn message(from: usize, to: usize, round: u64) -> Vec<u32> {
    let mut random = Random(round << 16 | (from << 8 | to) as u64);
    let limit = [1, 10, 1000, 5000, 200_000][random.below(5)];
    (0..random.below(limit)).map(|index| (from * 31 + to * 7 + index) as u32 ^ round as u32).collect()
}

/// Exchanges a message with every other rank in each round, and checks the data, while another
/// thread makes collectives. Words: rounds, or 0 for ever, and the number of replicas.
pub(crate) fn exchanges(words: &[&str]) -> Result<()> {
    let (rounds, replicas) = (number(words[0]), number(words[1]) as usize);
    let mut group = driver::join(replicas, driver::LONG)?;
    say("in");
    let results = driver::on_each(&mut group, |rank| {
        let mailbox = rank.mailbox()?;
        let (own, size) = (rank.rank(), rank.size());
        thread::scope(|scope| {
            let messages = scope.spawn(|| {
                let rounds = if rounds == 0 { u64::MAX } else { rounds };
                (0..rounds).try_for_each(|round| exchange(&mailbox, own, size, round))
            });
            let collectives = collectives(rank, rounds);
            messages.join().unwrap().and(collectives)
        })
    });
    results.iter().for_each(|result| match result {
        Ok(()) => say("done"),
        Err(error) => say(&driver::fields(error)),
    });
    hear();
    Ok(())
}

fn collectives(rank: &mut Communicator, rounds: u64) -> Result<()> {
    let rounds = if rounds == 0 { u64::MAX } else { rounds };
    for round in 0..rounds {
        let mut sum = [1u32; 300];
        rank.all_reduce(ReduceOp::Sum, &mut sum)?;
        assert_eq!(sum, [rank.size() as u32; 300], "round {round}");
    }
    Ok(())
}

fn exchange(mailbox: &Mailbox, own: usize, size: usize, round: u64) -> Result<()> {
    let peers = || (0..size).map(|rank| (rank + own) % size).filter(|&rank| rank != own);
    let starts = |peer: usize| (round + peer as u64).is_multiple_of(2);
    let mut started: Vec<Request> = Vec::new();
    for peer in peers() {
        let sent = message(own, peer, round);
        match starts(peer) {
            true => started.push(mailbox.start_send(Buf::from(&*sent.leak()), peer, round, None)),
            false => mailbox.send(sent.as_slice(), peer, round, None)?,
        }
    }
    for peer in peers() {
        let expected = message(peer, own, round);
        let mut received = vec![0; expected.len()];
        if starts(peer) {
            mailbox.recv(received.as_mut_slice(), Some(peer), round, None)?;
            assert!(received == expected, "round {round}, from {peer}");
        } else {
            let request = mailbox.start_recv(BufMut::from(received.leak()), Some(peer), round, None);
            request.wait(None)?;
            assert_eq!(request.source(), Some(peer));
        }
    }
    started.iter().try_for_each(|request| request.wait(None).map(drop))
}

/// Waits for a message that does not come, and then for one that does. The group goes on.
pub(crate) fn waits_for_messages(_: &[&str]) -> Result<()> {
    let mut group = driver::join(1, driver::LONG)?;
    let mut rank = group.communicators().remove(0);
    let mailbox = rank.mailbox()?;
    let mut data = [0u64; 2];
    say("in");
    hear();
    if rank.rank() == 0 {
        let limit = Some(Duration::from_millis(300));
        say(&driver::fields(&mailbox.recv(data.as_mut_slice(), Some(1), 1, limit).unwrap_err()));
        say(&driver::fields(&mailbox.send([7u8; 1 << 20].as_slice(), 1, 2, limit).unwrap_err()));
        hear();
        let error = mailbox.send([1.5f32; 3].as_slice(), 5, 0, None).unwrap_err();
        assert!(matches!(error, Error::InvalidCall { .. }), "{error}");
        mailbox.recv(data.as_mut_slice(), None, 1, None)?;
        assert_eq!(data, [3, 4]);
    } else {
        mailbox.send([3u64, 4].as_slice(), 0, 1, None)?;
        let error = mailbox.recv([0u8; 1 << 20].as_mut_slice(), Some(0), 2, None).unwrap_err();
        let Error::Timeout { missing, .. } = &error else { panic!("{error}") };
        assert_eq!(missing[0].1.split(';').next(), Some("it gave up in the middle of the message"));
        let open = mailbox.start_recv(BufMut::from(vec![0u8].leak()), Some(0), 99, None);
        match fork::fork().unwrap() {
            Fork::Child => {
                let error = mailbox.send([3u64, 4].as_slice(), 0, 1, None).unwrap_err();
                let started = mailbox.start_recv(BufMut::from(&mut vec![0u8].leak()[..]), None, 0, None);
                let is_refused = |error: Error| matches!(error, Error::WrongContext { .. });
                let waits = [&started, &open].map(|request| request.wait(None).is_err_and(is_refused));
                let is_right = is_refused(error) && waits == [true; 2];
                drop((mailbox, rank, group));
                std::process::exit(if is_right { 17 } else { 1 });
            }
            Fork::Parent(child) => assert_eq!(fork::waitpid(child).unwrap() >> 8, 17),
        }
    }
    rank.barrier()?;
    say("done");
    Ok(())
}

#[test]
fn messages_and_collectives_do_not_disturb_each_other() {
    for (processes, replicas, rounds) in [(2, 1, 300), (3, 2, 40)] {
        let mut job = Job::start(processes, &format!("exchanges {rounds} {replicas}"));
        for process in job.all() {
            process.expect("in");
            (0..replicas).for_each(|_| drop(process.expect("done")));
            process.tell("end");
            process.end();
        }
    }
}

#[test]
fn a_killed_process_ends_all_requests() {
    for round in 0..8 {
        let mut job = Job::start(3, "exchanges 0 1");
        job.all().for_each(|process| drop(process.expect("in")));
        thread::sleep(Duration::from_millis(10 + 23 * round));
        job.of(1).signal(Signal::SIGKILL);
        for process in job.others(1) {
            let error = process.line();
            assert!(error.contains(" reason=Death replica=1 ") && error.contains(" process=(worker[1] "), "{error}");
            process.tell("end");
            process.end();
        }
    }
}

#[test]
fn a_deadline_and_a_fork_end_no_group() {
    let mut job = Job::start(2, "waits_for_messages");
    job.all().for_each(|process| drop(process.expect("in")));
    job.of(1).signal(Signal::SIGSTOP);
    job.of(0).tell("wait");
    let pid = job.of(1).pid();
    let stopped = format!("worker[1] (localhost:2), process {pid}, is stopped");
    let error = job.of(0).line();
    assert_eq!(error, format!("Timeout call=Mailbox::recv waited=300ms missing=[1: none {stopped}]"));
    let error = job.of(0).line();
    assert_eq!(error, format!("Timeout call=Mailbox::send waited=300ms missing=[1: none {stopped}]"));
    job.of(1).signal(Signal::SIGCONT);
    for process in job.all() {
        process.tell("go on");
    }
    for process in job.all() {
        process.expect("done");
        process.end();
    }
}
