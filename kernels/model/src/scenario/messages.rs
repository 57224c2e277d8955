//! Scenarios of messages with tags.

use super::calls::*;
use crate::{
    fault,
    group::{Abort, Endpoint, Envelope, Fault, Mail, MailFault, Reason},
    memory::{HostBuf, HostBufMut},
    scenario::DEATH,
    shm::{Shape, ring::CELL_BYTES},
};
use consonance_spec::DType;
use std::sync::{Arc, Mutex};

/// Two ranks with rings of two cells.
pub(super) const RINGS: Shape = Shape { rings: true, ..SMALL };

/// Elements of a message that takes three cells, more than a ring has.
const LONG: usize = 2 * CELL_BYTES / size_of::<u64>() + 1;

/// Elements of a message that takes one cell, and whose send waits for its reader.
const ONE_CELL: usize = CELL_BYTES / size_of::<u64>();

pub(super) type Outcome = Result<usize, MailFault>;

/// A request, and its buffer once it has ended.
pub(super) struct Request<'m>(&'m Mail, Arc<Mutex<Option<Outcome>>>);

impl Request<'_> {
    pub(super) fn wait(self) -> Outcome {
        let is_done = || self.1.lock().expect("no poison").is_some();
        assert!(
            self.0.wait(Some(1 - self.0.world().rank()), None, is_done),
            "a wait without a limit ends with its request"
        );
        self.1.lock().expect("no poison").take().expect("it has ended")
    }
}

fn message(rank: usize, number: usize, count: usize) -> Vec<u64> {
    (0..count).map(|index| value(rank, number, index)).collect()
}

pub(super) fn send(mail: &Mail, number: usize, count: usize) -> Request<'_> {
    let (rank, outcome) = (mail.world().rank(), Arc::default());
    let told: Arc<Mutex<Option<Outcome>>> = Arc::clone(&outcome);
    let data: &[u64] = message(rank, number, count).leak();
    let finish = Box::new(move |result| *told.lock().expect("no poison") = Some(result));
    mail.send(HostBuf::from(data), 0, 1 - rank, number as u64, None, finish);
    Request(mail, outcome)
}

/// Begins to receive message `number`. Returns where its data come, too.
fn begin_recv(mail: &Mail, number: usize, count: usize) -> (Request<'_>, *const u64) {
    let (from, outcome) = (1 - mail.world().rank(), Arc::default());
    let told: Arc<Mutex<Option<Outcome>>> = Arc::clone(&outcome);
    let data: &'static mut [u64] = vec![0; count].leak();
    let start = data.as_ptr();
    let finish = Box::new(move |result| *told.lock().expect("no poison") = Some(result));
    mail.recv(HostBufMut::from(data), 0, Some(from), number as u64, None, finish);
    (Request(mail, outcome), start)
}

/// Receives message `number`, and tests its data.
pub(super) fn recv(mail: &Mail, number: usize, count: usize) -> Outcome {
    let from = 1 - mail.world().rank();
    let (request, start) = begin_recv(mail, number, count);
    let result = request.wait();
    if result.is_ok() {
        // SAFETY: the buffer is leaked, and its receive has ended.
        let data = unsafe { std::slice::from_raw_parts(start, count) };
        assert_eq!(data, message(from, number, count), "message {number}");
    }
    result
}

pub(super) fn mail(endpoint: &mut Endpoint) -> Mail {
    endpoint.mail().unwrap()
}

/// One rank sends more messages than the ring has cells, and waits for an answer.
pub(super) fn messages() {
    each(processes(RINGS), |mut endpoint| {
        let mail = mail(&mut endpoint);
        if mail.world().rank() == 0 {
            for number in 1..=3 {
                assert_eq!(send(&mail, number, 1).wait(), Ok(1));
            }
            assert_eq!(recv(&mail, 4, 5), Ok(1));
        } else {
            for number in 1..=3 {
                assert_eq!(recv(&mail, number, 1), Ok(0));
            }
            assert_eq!(send(&mail, 4, 5).wait(), Ok(0));
        }
        Some(endpoint)
    });
}

/// Both ranks send first. No message fits the ring.
pub(super) fn crossing_messages() {
    each(processes(RINGS), |mut endpoint| {
        let mail = mail(&mut endpoint);
        let peer = 1 - mail.world().rank();
        assert_eq!(send(&mail, 1, LONG).wait(), Ok(peer));
        assert_eq!(recv(&mail, 1, LONG), Ok(peer));
        Some(endpoint)
    });
}

/// A long message does not fit its receive: both ranks hear of it. The next message fits.
pub(super) fn mismatched_message() {
    each(processes(RINGS), |mut endpoint| {
        let mail = mail(&mut endpoint);
        if mail.world().rank() == 0 {
            // The receive may be posted after the message was taken. Then a later call hears of it.
            let results = [send(&mail, 1, LONG).wait(), send(&mail, 2, 1).wait()];
            let refused = results.iter().filter(|result| **result == unlike(LONG)).count();
            assert!(refused <= 1, "{results:?}");
            if results[1].is_err() {
                assert_eq!(send(&mail, 2, 1).wait(), Ok(1));
            }
        } else {
            assert_eq!(recv(&mail, 1, 2), unlike(LONG));
            assert_eq!(recv(&mail, 2, 1), Ok(0));
        }
        Some(endpoint)
    });
}

/// A long message does not fit, and its receiver makes no further call: its sender hears of it all
/// the same.
pub(super) fn message_unlike_its_last_receive() {
    each(processes(RINGS), |mut endpoint| {
        let mail = mail(&mut endpoint);
        if mail.world().rank() == 0 {
            assert_eq!(send(&mail, 1, LONG).wait(), unlike(LONG));
        } else {
            assert_eq!(recv(&mail, 1, 2), unlike(LONG));
        }
        Some(endpoint)
    });
}

/// Two messages that are not short do not fit: the first is refused before its send ends. The
/// second may be taken before its receive is posted. Its sender hears of it in any case, once.
pub(super) fn two_mismatched_messages() {
    each(processes(RINGS), |mut endpoint| {
        let mail = mail(&mut endpoint);
        let unlike = |tag| unlike_message(tag, ONE_CELL);
        if mail.world().rank() == 0 {
            let sends = [send(&mail, 1, ONE_CELL), send(&mail, 2, ONE_CELL)];
            let [first, second] = sends.map(Request::wait);
            assert_eq!(first, unlike(1));
            let mut answers = vec![second, recv(&mail, 3, 1)];
            if answers[1].is_err() {
                answers.push(recv(&mail, 3, 1));
            } else if answers[0].is_ok() {
                answers.push(send(&mail, 4, 1).wait());
            }
            let told = answers.iter().filter(|answer| **answer == unlike(2)).count();
            assert!(told == 1 && answers.iter().all(|answer| *answer == Ok(1) || *answer == unlike(2)), "{answers:?}");
        } else {
            assert_eq!(recv(&mail, 1, 2), unlike(1));
            assert_eq!(recv(&mail, 2, 2), unlike(2));
            assert_eq!(send(&mail, 3, 1).wait(), Ok(0));
        }
        Some(endpoint)
    });
}

/// A short message does not fit: its sender hears of it in the next call, or not before its end.
pub(super) fn short_mismatched_message() {
    each(processes(RINGS), |mut endpoint| {
        let mail = mail(&mut endpoint);
        if mail.world().rank() == 0 {
            assert_eq!(send(&mail, 1, 1).wait(), Ok(1));
            let next = send(&mail, 2, 1).wait();
            assert!(next == Ok(1) || next == unlike(1), "{next:?}");
        } else {
            assert_eq!(recv(&mail, 1, 2), unlike(1));
        }
        Some(endpoint)
    });
}

/// Message 1 of rank 0 has `sent` elements, and its receive expects two.
fn unlike(sent: usize) -> Outcome {
    unlike_message(1, sent)
}

fn unlike_message(tag: u64, sent: usize) -> Outcome {
    let envelope = |count: usize| Envelope { dtype: DType::U64, label: 0, bytes: count * size_of::<u64>(), tag };
    Err(MailFault::Unlike { from: 0, to: 1, sent: envelope(sent), expected: envelope(2) })
}

/// One rank ends the group while messages are under way. Both begin the next generation, in which
/// no old message comes.
pub(super) fn messages_and_next_generation() {
    each(processes(RINGS), |mut endpoint| {
        let rank = endpoint.world().rank();
        let abort = Fault::Aborted(Abort { rank: 0, reason: Reason::Failure });
        match endpoint.mail() {
            Ok(first) if rank == 0 => {
                let sent = send(&first, 1, LONG);
                endpoint.aborter().abort(Reason::Failure);
                let _ = sent.wait();
            }
            Ok(first) => {
                let ended = recv(&first, 1, LONG);
                assert!(ended == Err(MailFault::Fault(abort)) || ended == Ok(0), "{ended:?}");
            }
            Err(fault) => assert_eq!(fault, abort),
        }
        // A rank that had all its data may not know of the end yet.
        while endpoint.aborter().aborted().is_none() {
            loom::thread::yield_now();
        }
        endpoint.renew().unwrap();
        let second = mail(&mut endpoint);
        if rank == 0 {
            assert_eq!(send(&second, 1, 2).wait(), Ok(1));
        } else {
            assert_eq!(recv(&second, 1, 2), Ok(0));
        }
        Some(endpoint)
    });
}

/// Messages of a group that was split off.
pub(super) fn messages_of_a_split() {
    each(processes(Shape { splits: 1, ..RINGS }), |mut endpoint| {
        let mut both = endpoint.split(&SUM, &[0, 1]).unwrap().expect("a member");
        let mail = mail(&mut both);
        if mail.world().rank() == 0 {
            assert_eq!(send(&mail, 1, 1).wait(), Ok(1));
        } else {
            assert_eq!(recv(&mail, 1, 1), Ok(0));
        }
        drop(both);
        Some(endpoint)
    });
}

/// The number of operations of a rank in [`messages_and_death`], plus one.
pub(super) const MESSAGE_DEATHS: u32 = 160;

/// The process of one rank dies at any operation while its cells are full. The other rank has its
/// message or learns of the death.
pub(super) fn messages_and_death() {
    let mut endpoints = processes(RINGS);
    let (mut mortal, mut other) = (endpoints.remove(1), endpoints.remove(0));
    let watcher = other.aborter();
    let dies = loom::thread::spawn(move || {
        fault::die_after(DEATH.get(), || {
            let mail = mail(&mut mortal);
            let _ = send(&mail, 1, LONG).wait();
            drop(mortal);
        })
    });
    let survives = loom::thread::spawn(move || {
        let result = other.mail().map_err(MailFault::Fault).and_then(|mail| recv(&mail, 1, LONG));
        if let Err(fault) = result {
            assert_eq!(fault, MailFault::Fault(Fault::Aborted(Abort { rank: 1, reason: Reason::Death })));
        }
        other
    });
    let died = dies.join().unwrap();
    assert!(!died || DEATH.get() < MESSAGE_DEATHS, "there are more operations before which it may die");
    watcher.lose(1..2, Reason::Death);
    drop(survives.join().unwrap());
}
