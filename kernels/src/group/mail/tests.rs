use super::{Deadline, Envelope, Mail, MailFault, ring};
use crate::{
    group::{Abort, Endpoint, Fault, Reason},
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::DType;
use std::{
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_secs(60);

/// A barrier of two ranks. The rank that waits for one that has failed fails, too.
#[derive(Default)]
struct Meeting(Mutex<usize>, Condvar);

impl Meeting {
    fn wait(&self) {
        let mut waits = self.0.lock().unwrap();
        *waits += 1;
        let both = waits.next_multiple_of(2);
        self.1.notify_all();
        let (_waits, waited) = self.1.wait_timeout_while(waits, 2 * LIMIT, |waits| *waits < both).unwrap();
        assert!(!waited.timed_out(), "the other rank does not come");
    }
}

/// A request that a test waits for.
struct Pending<'m>(&'m Mail, Arc<Mutex<Option<Result<usize, MailFault>>>>);

impl Pending<'_> {
    fn is_done(&self) -> bool {
        self.1.lock().unwrap().is_some()
    }

    fn wait(self) -> Result<usize, MailFault> {
        assert!(
            self.0.wait(None, Some(Instant::now() + 2 * LIMIT), || self.is_done()),
            "a request ends at its deadline"
        );
        self.1.lock().unwrap().take().unwrap()
    }
}

fn send<'m>(mail: &'m Mail, data: &'static [u32], to: usize, tag: u64, limit: Duration) -> Pending<'m> {
    send_labelled(mail, data, 0, (to, tag), limit)
}

fn send_labelled<'m>(
    mail: &'m Mail,
    data: &'static [u32],
    label: u8,
    (to, tag): (usize, u64),
    limit: Duration,
) -> Pending<'m> {
    let result = Arc::new(Mutex::new(None));
    let told = result.clone();
    let finish = Box::new(move |result| assert!(told.lock().unwrap().replace(result).is_none(), "ended twice"));
    mail.send(HostBuf::from(data), label, to, tag, Deadline::after(limit), finish);
    Pending(mail, result)
}

fn recv<'m>(mail: &'m Mail, data: &'static mut [u32], from: Option<usize>, tag: u64, limit: Duration) -> Pending<'m> {
    recv_labelled(mail, data, 0, (from, tag), limit)
}

fn recv_labelled<'m>(
    mail: &'m Mail,
    data: &'static mut [u32],
    label: u8,
    (from, tag): (Option<usize>, u64),
    limit: Duration,
) -> Pending<'m> {
    let result = Arc::new(Mutex::new(None));
    let told = result.clone();
    let finish = Box::new(move |result| assert!(told.lock().unwrap().replace(result).is_none(), "ended twice"));
    mail.recv(HostBufMut::from(data), label, from, tag, Deadline::after(limit), finish);
    Pending(mail, result)
}

fn numbers(count: usize, first: u32) -> &'static mut [u32] {
    (0..count as u32).map(|number| number.wrapping_add(first)).collect::<Vec<u32>>().leak()
}

fn space(count: usize) -> (&'static mut [u32], *const u32) {
    let space = vec![0u32; count].leak();
    let start = space.as_ptr();
    (space, start)
}

/// Reads a buffer whose receive has ended.
fn read(start: *const u32, count: usize) -> Vec<u32> {
    // SAFETY: the buffer is leaked, and its receive has ended.
    unsafe { std::slice::from_raw_parts(start, count) }.to_vec()
}

/// Runs `body` on each rank of a group of threads and, on Linux, of a group in a segment.
fn on_each_group(ranks: usize, body: impl Fn(Mail, usize) + Sync) {
    let mut groups = vec![Endpoint::group(ranks, LIMIT)];
    #[cfg(target_os = "linux")]
    {
        use crate::shm::{GroupId, Segment, Shape};
        let shape = Shape::new(ranks, Shape::STAGING_BYTES).unwrap();
        let segment = Arc::new(Segment::create(shape, GroupId::from_bytes([7; 16])).unwrap());
        groups.push(Endpoint::in_segment(&segment, 0..ranks, 2, &[], LIMIT));
    }
    for mut endpoints in groups {
        let mails: Vec<Mail> = endpoints.iter_mut().map(|endpoint| endpoint.mail().unwrap()).collect();
        thread::scope(|scope| {
            let body = &body;
            mails.into_iter().enumerate().for_each(|(rank, mail)| _ = scope.spawn(move || body(mail, rank)));
        });
    }
}

#[test]
fn messages_of_every_size_come_in_order_and_whole() {
    on_each_group(2, |mail, rank| {
        for count in [0, 1, 8, 9, 1024, 1025, 2032, 2033, 100_000, 300_000] {
            for round in 0..5 {
                match rank {
                    0 => assert_eq!(send(&mail, numbers(count, round), 1, 3, LIMIT).wait(), Ok(1)),
                    _ => {
                        let (space, start) = space(count);
                        assert_eq!(recv(&mail, space, Some(0), 3, LIMIT).wait(), Ok(0));
                        assert_eq!(read(start, count), numbers(count, round), "{count} numbers");
                    }
                }
            }
        }
    });
}

#[test]
fn two_ranks_may_both_send_first_and_any_tag_is_found() {
    on_each_group(3, |mail, rank| {
        let peers: Vec<usize> = (0..3).filter(|&peer| peer != rank).collect();
        for round in 0..20u32 {
            let (count, tag) = ([1, 5000, 200_000][round as usize % 3], 2 * u64::from(round));
            for &peer in &peers {
                assert_eq!(send(&mail, numbers(count, rank as u32 + round), peer, tag, LIMIT).wait(), Ok(peer));
                assert_eq!(send(&mail, numbers(3, 7), peer, tag + 1, LIMIT).wait(), Ok(peer));
            }
            // In the other order than they were sent.
            for &peer in peers.iter().rev() {
                let (later, start_later) = space(3);
                assert_eq!(recv(&mail, later, Some(peer), tag + 1, LIMIT).wait(), Ok(peer));
                assert_eq!(read(start_later, 3), [7, 8, 9]);
            }
            let mut from = Vec::new();
            for _ in &peers {
                let (any, start) = space(count);
                let source = recv(&mail, any, None, tag, LIMIT).wait().unwrap();
                assert_eq!(read(start, count), numbers(count, source as u32 + round));
                from.push(source);
            }
            from.sort();
            assert_eq!(from, peers);
        }
    });
}

#[test]
fn a_rank_sends_to_itself() {
    on_each_group(2, |mail, rank| {
        assert_eq!(send(&mail, numbers(3, 1), rank, 1, LIMIT).wait(), Ok(rank));
        let (space, start) = space(3);
        assert_eq!(recv(&mail, space, None, 1, LIMIT).wait(), Ok(rank));
        assert_eq!(read(start, 3), [1, 2, 3]);
    });
}

#[test]
fn both_ranks_hear_of_a_mismatched_message() {
    let refused = Meeting::default();
    on_each_group(2, |mail, rank| {
        let unlike = |sent: usize, expected: usize, tag| {
            let envelope = |count: usize| Envelope { dtype: DType::U32, label: 0, bytes: 4 * count, tag };
            Err(MailFault::Unlike { from: 0, to: 1, sent: envelope(sent), expected: envelope(expected) })
        };
        if rank == 0 {
            assert_eq!(send(&mail, numbers(5000, 0), 1, 1, LIMIT).wait(), unlike(5000, 5001, 1));
            assert_eq!(send(&mail, numbers(2, 0), 1, 2, LIMIT).wait(), Ok(1));
            refused.wait();
            assert_eq!(recv(&mail, space(1).0, Some(1), 3, LIMIT).wait(), unlike(2, 3, 2));
            assert_eq!(recv(&mail, space(1).0, Some(1), 3, LIMIT).wait(), Ok(1));
            assert_eq!(send(&mail, numbers(4, 0), 1, 4, LIMIT).wait(), Ok(1));
        } else {
            assert_eq!(recv(&mail, space(5001).0, Some(0), 1, LIMIT).wait(), unlike(5000, 5001, 1));
            assert_eq!(recv(&mail, space(3).0, Some(0), 2, LIMIT).wait(), unlike(2, 3, 2));
            refused.wait();
            assert_eq!(send(&mail, numbers(1, 0), 0, 3, LIMIT).wait(), Ok(0));
            assert_eq!(recv(&mail, space(4).0, Some(0), 4, LIMIT).wait(), Ok(0));
        }
    });
}

#[test]
fn a_message_matches_no_receive_of_another_label() {
    const PLAIN: u8 = 0;
    const LABELLED: u8 = 255;
    let refused = Meeting::default();
    on_each_group(2, |mail, rank| {
        let envelope = |count: usize, label, tag| Envelope { dtype: DType::U32, label, bytes: 4 * count, tag };
        let unlike = |count: usize, sent, expected, tag| {
            let (sent, expected) = (envelope(count, sent, tag), envelope(count, expected, tag));
            Err(MailFault::Unlike { from: 0, to: 1, sent, expected })
        };
        if rank == 0 {
            assert_eq!(
                send_labelled(&mail, numbers(5000, 0), LABELLED, (1, 1), LIMIT).wait(),
                unlike(5000, LABELLED, PLAIN, 1)
            );
            refused.wait();
            assert_eq!(
                send_labelled(&mail, numbers(5000, 0), PLAIN, (1, 2), LIMIT).wait(),
                unlike(5000, PLAIN, LABELLED, 2)
            );
            assert_eq!(send_labelled(&mail, numbers(2, 0), LABELLED, (1, 3), LIMIT).wait(), Ok(1));
            refused.wait();
            assert_eq!(
                send_labelled(&mail, numbers(2, 7), LABELLED, (1, 4), LIMIT).wait(),
                unlike(2, LABELLED, PLAIN, 3)
            );
            assert_eq!(send_labelled(&mail, numbers(2, 7), LABELLED, (1, 4), LIMIT).wait(), Ok(1));
            // To itself.
            let (sent, expected) = (envelope(2, LABELLED, 5), envelope(2, PLAIN, 5));
            let unlike = Err(MailFault::Unlike { from: 0, to: 0, sent, expected });
            let received = recv(&mail, space(2).0, None, 5, LIMIT);
            assert_eq!(send_labelled(&mail, numbers(2, 0), LABELLED, (0, 5), LIMIT).wait(), unlike);
            assert_eq!(received.wait(), unlike);
        } else {
            assert_eq!(recv(&mail, space(5000).0, Some(0), 1, LIMIT).wait(), unlike(5000, LABELLED, PLAIN, 1));
            refused.wait();
            let received = recv_labelled(&mail, space(5000).0, LABELLED, (Some(0), 2), LIMIT);
            assert_eq!(received.wait(), unlike(5000, PLAIN, LABELLED, 2));
            assert_eq!(recv(&mail, space(2).0, Some(0), 3, LIMIT).wait(), unlike(2, LABELLED, PLAIN, 3));
            refused.wait();
            let (space, start) = space(2);
            assert_eq!(recv_labelled(&mail, space, LABELLED, (Some(0), 4), LIMIT).wait(), Ok(0));
            assert_eq!(read(start, 2), [7, 8]);
        }
    });
}

#[test]
fn an_invalid_envelope_is_refused() {
    for label in [0, 3, 255] {
        let envelope = Envelope { dtype: DType::F32, label, bytes: 8, tag: 3 };
        let form = ring::form(envelope);
        assert_eq!(ring::envelope(form, 8, 3), Some(envelope));
        let others = [form | 1 << 16, form | 0xff, form | 1 << 63];
        others.iter().for_each(|&form| assert_eq!(ring::envelope(form, 8, 3), None, "{form:#x}"));
        assert_eq!(ring::envelope(form, 6, 3), None);
    }
}

/// Found by `messages_between_any_ranks`: the sender of a message that fits neither its receive nor
/// the ring waited until its deadline, if the receiver made no further call.
#[test]
fn the_sender_of_a_long_mismatched_message_does_not_wait() {
    let (refused, ended) = (Meeting::default(), Meeting::default());
    on_each_group(2, |mail, rank| {
        let envelope = |count: usize| Envelope { dtype: DType::U32, label: 0, bytes: 4 * count, tag: 1 };
        let unlike = Err(MailFault::Unlike { from: 0, to: 1, sent: envelope(200_000), expected: envelope(1) });
        for message in 0..4 {
            if rank == 0 {
                // Before its receive, or after it.
                let sent = (message % 2 == 0).then(|| send(&mail, numbers(200_000, 0), 1, 1, LIMIT));
                refused.wait();
                let sent = sent.unwrap_or_else(|| send(&mail, numbers(200_000, 0), 1, 1, LIMIT));
                assert_eq!(sent.wait(), unlike);
            } else {
                let received = (message % 2 == 1).then(|| recv(&mail, space(1).0, Some(0), 1, LIMIT));
                refused.wait();
                let received = received.unwrap_or_else(|| recv(&mail, space(1).0, Some(0), 1, LIMIT));
                assert_eq!(received.wait(), unlike);
            }
            ended.wait();
        }
        // The ring works on.
        if rank == 0 {
            assert_eq!(send(&mail, numbers(50_000, 7), 1, 1, LIMIT).wait(), Ok(1));
        } else {
            let (space, start) = space(50_000);
            assert_eq!(recv(&mail, space, Some(0), 1, LIMIT).wait(), Ok(0));
            assert_eq!(read(start, 2), [7, 8]);
        }
    });
}

/// Found by an input of the fuzz target `messages`: a receive took the refusal of a send that had
/// not ended. That send then ended its thread by a panic, and no wait for it ended.
#[test]
fn a_refusal_is_for_the_send_under_way() {
    let barrier = Meeting::default();
    on_each_group(2, |mail, rank| {
        let envelope = |count: usize| Envelope { dtype: DType::U32, label: 0, bytes: 4 * count, tag: 1 };
        // Longer than an eager message, and as long as a cell.
        let unlike = Err(MailFault::Unlike { from: 0, to: 1, sent: envelope(1026), expected: envelope(1027) });
        for _ in 0..50 {
            if rank == 0 {
                let sent = send(&mail, numbers(1026, 0), 1, 1, LIMIT);
                barrier.wait();
                // Both ends of the refusal pass while this receive is posted.
                assert_eq!(recv(&mail, space(1).0, Some(1), 2, LIMIT).wait(), Ok(1));
                assert_eq!(sent.wait(), unlike);
            } else {
                barrier.wait();
                assert_eq!(recv(&mail, space(1027).0, Some(0), 1, LIMIT).wait(), unlike);
                assert_eq!(send(&mail, numbers(1, 0), 0, 2, LIMIT).wait(), Ok(0));
            }
            // The next message is not taken by rank 1's send: it would be kept, and its send ended.
            barrier.wait();
        }
    });
}

/// Two sends that wait, both refused before their sender looks: the first ended without an error.
#[test]
fn each_mismatched_message_is_reported() {
    let barrier = Meeting::default();
    on_each_group(2, |mail, rank| {
        let envelope = |count: usize, tag| Envelope { dtype: DType::U32, label: 0, bytes: 4 * count, tag };
        let unlike = |tag| {
            let (sent, expected) = (envelope(1026, tag), envelope(1027 + tag as usize, tag));
            Err(MailFault::Unlike { from: 0, to: 1, sent, expected })
        };
        // More than a ring has cells. So places of refusals are used again, too.
        for round in 0..20 {
            let tags: Vec<u64> = (0..1 + round % 16).collect();
            if rank == 0 {
                barrier.wait();
                let sent: Vec<_> = tags.iter().map(|&tag| send(&mail, numbers(1026, 0), 1, tag, LIMIT)).collect();
                barrier.wait();
                barrier.wait();
                sent.into_iter().zip(tags).for_each(|(sent, tag)| assert_eq!(sent.wait(), unlike(tag)));
            } else {
                let receive = |&tag: &u64| recv(&mail, space(1027 + tag as usize).0, Some(0), tag, LIMIT);
                let received: Vec<_> = tags.iter().map(receive).collect();
                barrier.wait();
                barrier.wait();
                received.into_iter().zip(tags).for_each(|(received, tag)| assert_eq!(received.wait(), unlike(tag)));
                barrier.wait();
            }
        }
    });
}

#[test]
fn a_send_under_way_hears_of_its_refusal_beside_more_than_are_kept() {
    let barrier = Meeting::default();
    on_each_group(2, |mail, rank| {
        let envelope = |count: usize, tag| Envelope { dtype: DType::U32, label: 0, bytes: 4 * count, tag };
        let unlike = |sent: usize, expected: usize, tag| {
            let (sent, expected) = (envelope(sent, tag), envelope(expected, tag));
            Err(MailFault::Unlike { from: 0, to: 1, sent, expected })
        };
        for _ in 0..5 {
            if rank == 0 {
                (100..140).for_each(|tag| assert_eq!(send(&mail, numbers(1, 0), 1, tag, LIMIT).wait(), Ok(1)));
                assert_eq!(send(&mail, numbers(1, 0), 1, 99, LIMIT).wait(), Ok(1));
                // Rank 1 has read them all: a part of the long one is written at once.
                barrier.wait();
                let long = send(&mail, numbers(300_000, 0), 1, 50, LIMIT);
                barrier.wait();
                barrier.wait();
                assert_eq!(long.wait(), unlike(300_000, 1, 50));
                let next = || send(&mail, numbers(1, 0), 1, 7, LIMIT).wait();
                (100..115).for_each(|tag| assert_eq!(next(), unlike(1, 2, tag)));
                assert_eq!(next(), Ok(1));
            } else {
                // The others are kept meanwhile.
                assert_eq!(recv(&mail, space(1).0, Some(0), 99, LIMIT).wait(), Ok(0));
                barrier.wait();
                barrier.wait();
                let receive = |tag, count| recv(&mail, space(count).0, Some(0), tag, LIMIT).wait();
                (100..140).for_each(|tag| assert_eq!(receive(tag, 2), unlike(1, 2, tag)));
                assert_eq!(receive(50, 1), unlike(300_000, 1, 50));
                barrier.wait();
                assert_eq!(receive(7, 1), Ok(0));
            }
        }
    });
}

#[test]
fn false_numbers_of_refusals_are_no_more_than_an_error() {
    use crate::{
        group::mail::refusals::{Refusal, Refused, Refuser},
        shm::{
            records::Generation,
            ring::{REFUSALS, RingEnds},
        },
        sync::atomics::Ordering,
    };
    let (ends, generation) = (RingEnds::default(), Generation::default());
    let envelope = Envelope { dtype: DType::U32, label: 0, bytes: 4, tag: 1 };
    let refusal = |message| Refusal { message, sent: envelope, expected: Envelope { bytes: 8, ..envelope } };
    let (mut refuser, mut refused) = (Refuser::new(generation), Refused::new(generation));
    // The writer says that it has heard of refusals that were not told.
    assert!(refuser.note(0) && !refuser.note(1) && !refuser.note(u32::MAX));
    // It says that it has heard of none, and the reader refuses on.
    (1..100).for_each(|message| refuser.tell(&ends, refusal(message), false));
    assert!(refuser.note(0) && refuser.note(REFUSALS as u32) && !refuser.note(REFUSALS as u32 + 1));
    // The reader tells of more messages than there were, of one that was not, of no envelope.
    refused.hear(&ends, 3);
    assert_eq!(refused.heard(), 3);
    ends.reader.refusals[3].message.store(7, Ordering::Relaxed);
    ends.reader.refusals[4].forms.store(!0, Ordering::Relaxed);
    refused.hear(&ends, 6);
    assert_eq!(refused.heard(), 6);
    let taken: Vec<u64> = std::iter::from_fn(|| refused.take(|_| true)).map(|refusal| refusal.message).collect();
    assert_eq!(taken, [1, 2, 3, 6]);
    ends.reader.refusals.iter().for_each(|place| place.number.store(!0, Ordering::Relaxed));
    refused.hear(&ends, 1000);
    assert_eq!(refused.heard(), 6);
}

#[test]
fn a_deadline_ends_the_request_and_not_the_group() {
    let (short, meeting) = (Duration::from_millis(30), Meeting::default());
    let late = |rank| Err(MailFault::Late { awaited: vec![rank], missing: vec![rank] });
    on_each_group(2, |mail, rank| {
        if rank == 0 {
            assert_eq!(recv(&mail, space(1).0, Some(1), 9, short).wait(), late(1));
            assert_eq!(recv(&mail, space(1).0, None, 9, short).wait(), late(1));
            // Rank 1 makes no call: there are not enough cells for the message.
            assert_eq!(send(&mail, numbers(200_000, 0), 1, 1, short).wait(), late(1));
            meeting.wait();
            assert_eq!(send(&mail, numbers(1, 5), 1, 2, LIMIT).wait(), Ok(1));
        } else {
            meeting.wait();
            assert_eq!(recv(&mail, space(200_000).0, Some(0), 1, LIMIT).wait(), Err(MailFault::Withdrawn(0)));
            let (space, start) = space(1);
            assert_eq!(recv(&mail, space, Some(0), 2, LIMIT).wait(), Ok(0));
            assert_eq!(read(start, 1), [5]);
        }
    });
}

#[test]
fn requests_end_when_their_peer_leaves_or_the_group_ends() {
    let mut endpoints = Endpoint::group(3, LIMIT);
    let mails: Vec<Mail> = endpoints.iter_mut().map(|endpoint| endpoint.mail().unwrap()).collect();
    let (one, any) = (recv(&mails[0], space(1).0, Some(2), 0, LIMIT), recv(&mails[0], space(1).0, None, 0, LIMIT));
    let sent = send(&mails[2], numbers(1, 4), 0, 1, LIMIT);
    assert_eq!(sent.wait(), Ok(0));
    drop(endpoints.pop());
    assert_eq!(one.wait(), Err(MailFault::Fault(Fault::Left(2))));
    let (space_of, start) = space(1);
    assert_eq!(recv(&mails[0], space_of, Some(2), 1, LIMIT).wait(), Ok(2), "what was sent before");
    assert_eq!(read(start, 1), [4]);
    assert!(!any.is_done());
    endpoints[1].aborter().abort(Reason::Failure);
    let aborted = Err(MailFault::Fault(Fault::Aborted(Abort { rank: 1, reason: Reason::Failure })));
    assert_eq!(any.wait(), aborted);
    assert_eq!(send(&mails[0], numbers(1, 4), 1, 1, LIMIT).wait(), aborted);
    drop(endpoints);
    let after = recv(&mails[1], space(1).0, Some(0), 1, LIMIT).wait();
    assert_eq!(after, Err(MailFault::Fault(Fault::Left(1))), "the endpoint is gone");
}

/// Found by a test of chains: rank 0 had not slept, so rank 1 named rank 0.
#[test]
fn a_request_failing_at_once_keeps_its_rank_in_the_chain() {
    let mut endpoints = Endpoint::group(3, LIMIT);
    let mails: Vec<Mail> = endpoints.iter_mut().map(|endpoint| endpoint.mail().unwrap()).collect();
    drop(endpoints.pop());
    assert_eq!(recv(&mails[0], space(1).0, Some(2), 0, LIMIT).wait(), Err(MailFault::Fault(Fault::Left(2))));
    let late = recv(&mails[1], space(1).0, Some(0), 0, Duration::from_millis(20)).wait();
    assert_eq!(late, Err(MailFault::Late { awaited: vec![0], missing: vec![2] }));
}

/// Found by `a_killed_process_ends_all_requests`: the part of a kept message that came
/// after the end of the group was a panic.
#[test]
fn a_kept_message_continued_after_the_end_of_the_group_is_not_taken() {
    let mut endpoints = Endpoint::group(2, LIMIT);
    let mails: Vec<Mail> = endpoints.iter_mut().map(|endpoint| endpoint.mail().unwrap()).collect();
    let sent = send(&mails[0], numbers(200_000, 0), 1, 1, LIMIT);
    let other = recv(&mails[1], space(1).0, Some(0), 2, LIMIT);
    endpoints[1].aborter().abort(Reason::Failure);
    let aborted = Err(MailFault::Fault(Fault::Aborted(Abort { rank: 1, reason: Reason::Failure })));
    assert_eq!(other.wait(), aborted);
    // Rank 0 writes further cells before it hears of the end.
    assert_eq!(sent.wait(), aborted);
    mails[1].rest(Instant::now());
    assert_eq!(recv(&mails[1], space(200_000).0, Some(0), 1, LIMIT).wait(), aborted);
}

#[test]
fn messages_cross_from_many_threads_at_once() {
    on_each_group(2, |mail, rank| {
        thread::scope(|scope| {
            for tag in 0..4u64 {
                let mail = &mail;
                scope.spawn(move || {
                    for round in 0..200u32 {
                        let count = [1, 100, 3000][round as usize % 3];
                        let sent = send(mail, numbers(count, round + tag as u32), 1 - rank, tag, LIMIT);
                        let (space, start) = space(count);
                        assert_eq!(recv(mail, space, Some(1 - rank), tag, LIMIT).wait(), Ok(1 - rank));
                        assert_eq!(sent.wait(), Ok(1 - rank));
                        assert_eq!(read(start, count), numbers(count, round + tag as u32));
                    }
                });
            }
        });
    });
}
