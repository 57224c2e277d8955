//! Queues, requests and mailboxes between threads.

mod fields;

use consonance::{
    Communicator, Error, Mailbox, MessageType, Queue, ReduceOp, Request, Result,
    raw::{Buf, BufMut, Call, Reason},
};
use fields::mismatch;
use std::{
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// Runs `body` on each rank of a group of threads.
fn on_each<R: Send>(ranks: usize, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let ranks = Communicator::threads(ranks);
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn sum(data: &mut [u64]) -> Call<'_> {
    Call::AllReduce { op: ReduceOp::Sum, send: None, recv: data.into() }
}

fn leaked(value: u64) -> (&'static mut [u64], *const u64) {
    let data = vec![value; 3].leak();
    let start = data.as_ptr();
    (data, start)
}

#[test]
fn threads_take_turns_on_a_queue() {
    on_each(2, |communicator| {
        let queue = Queue::new(communicator);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        // All calls are alike: their order does not matter.
                        let mut data = [1, 2];
                        queue.run(sum(&mut data), None).unwrap();
                        assert_eq!(data, [2, 4]);
                    }
                });
            }
        });
    });
}

#[test]
fn started_calls_and_blocking_calls_keep_their_order() {
    on_each(2, |communicator| {
        let queue = Queue::new(communicator);
        let order = Arc::new(Mutex::new(Vec::new()));
        let requests: Vec<Request> = (0..20)
            .map(|number| {
                let calls = vec![sum(leaked(1).0), sum(leaked(2).0), Call::Barrier];
                let request = queue.start(calls, Some(Duration::from_secs(60)));
                let order = order.clone();
                request.on_finish(move |result| order.lock().unwrap().push((number, result.is_ok())));
                request
            })
            .collect();
        let mut last = [5];
        queue.run(sum(&mut last), None).unwrap();
        assert_eq!(last, [10]);
        requests.iter().for_each(|request| assert!(request.wait(None).unwrap()));
        assert_eq!(*order.lock().unwrap(), (0..20).map(|number| (number, true)).collect::<Vec<_>>());
    });
}

/// A C program frees after `wait` what its callback uses.
#[test]
fn a_wait_ends_after_the_callbacks() {
    on_each(2, |communicator| {
        let queue = Queue::new(communicator);
        for _ in 0..50 {
            let calls = Arc::new(AtomicUsize::new(0));
            let request = queue.start(vec![Call::Barrier], None);
            let (called, own) = (calls.clone(), request.clone());
            request.on_finish(move |_| {
                assert!(own.is_finished() && own.wait(None).unwrap());
                thread::sleep(Duration::from_micros(300));
                let later = called.clone();
                own.on_finish(move |_| _ = later.fetch_add(1, Ordering::SeqCst));
                called.fetch_add(1, Ordering::SeqCst);
            });
            while !request.is_finished() && !request.wait(Some(Duration::from_micros(50))).unwrap() {}
            let told = calls.load(Ordering::SeqCst);
            assert!(told == 2, "told {told}");
        }
    });
}

#[test]
fn a_dropped_queue_executes_started_calls() {
    on_each(2, |communicator| {
        let queue = Queue::new(communicator);
        let requests: Vec<Request> = (0..10).map(|_| queue.start(vec![sum(leaked(1).0)], None)).collect();
        drop(queue);
        requests.iter().for_each(|request| assert!(request.wait(None).unwrap()));
    });
}

#[test]
fn the_errors_of_calls_reach_their_requests() {
    let mut ranks = Communicator::threads(2).into_iter();
    let (first, _second) = (Queue::new(ranks.next().unwrap()), ranks.next().unwrap());
    let short = Some(Duration::from_millis(30));
    let request = first.start(vec![Call::Barrier], short);
    assert!(!request.wait(Some(Duration::ZERO)).unwrap());
    for _ in 0..2 {
        let error = request.wait(None).unwrap_err();
        assert!(matches!(&error, Error::Timeout { missing, .. } if missing[0].0 == 1), "{error}");
    }
    let error = first.run(Call::Barrier, None).unwrap_err();
    assert!(matches!(error, Error::Aborted { replica: 1, .. }), "{error}");
    let error = first.start(Vec::new(), Some(Duration::ZERO)).wait(None).unwrap_err();
    assert!(matches!(error, Error::InvalidCall { .. }), "{error}");

    let errors = on_each(2, |communicator| {
        let (rank, queue) = (communicator.rank(), Queue::new(communicator));
        let error = queue.run(sum(&mut vec![0; 1 + rank]), None).unwrap_err();
        queue.run(Call::Barrier, None).unwrap();
        error
    });
    assert!(errors.iter().all(|error| matches!(error, Error::Mismatch { replica: 1, .. })), "{errors:?}");
}

#[test]
fn a_message_of_a_caller_s_type_matches_no_other_type() {
    const TYPES: &[MessageType] =
        &[MessageType { name: "c64", elements: 2 }, MessageType { name: "float24", elements: 3 }];
    let ended = Barrier::new(2);
    let errors = on_each(2, |mut communicator| {
        let mailbox = communicator.mailbox().unwrap();
        let [mailbox, pairs, threes] = [None, Some(0), Some(1)].map(|own| mailbox.of_type(TYPES, own));
        let invalid = pairs.send([1f32].as_slice(), 0, 1, None).unwrap_err();
        assert!(matches!(invalid, Error::InvalidCall { found, .. } if found == "1"));
        let mut data = vec![0f32; 4000];
        let mut errors = Vec::new();
        let unlike =
            [(&pairs, &mailbox, 4000), (&mailbox, &pairs, 4000), (&threes, &pairs, 3000), (&pairs, &pairs, 3998)];
        for (sender, receiver, expected) in unlike {
            let error = match communicator.rank() {
                0 => sender.send(&data[..usize::next_multiple_of(expected, 1000)], 1, 1, None).unwrap_err(),
                _ => receiver.recv(&mut data[..expected], None, 1, None).unwrap_err(),
            };
            let Error::Mismatch { replica, argument, expected, found, .. } = error else { panic!("{error}") };
            errors.push((replica, argument, expected, found));
            ended.wait();
        }
        drop(mailbox);
        // The other is the same mailbox and goes on.
        if communicator.rank() == 0 {
            let sent: &'static [f32] = &[1.5, 2.5];
            assert!(pairs.start_send(sent.into(), 1, 2, None).wait(None).unwrap());
        } else {
            assert_eq!(pairs.recv(&mut data[..2], None, 2, None).unwrap(), 0);
            assert_eq!(data[..2], [1.5, 2.5]);
        }
        errors
    });
    let told = |argument: &str, expected: &str, found: &str| {
        (0, format!("the {argument} of a message to replica 1"), expected.to_owned(), found.to_owned())
    };
    let expected = [
        told("dtype", "f32", "c64"),
        told("dtype", "c64", "f32"),
        told("dtype", "c64", "float24"),
        told("count", "1999", "2000"),
    ];
    assert_eq!(errors, [&expected, &expected]);
}

#[test]
fn a_group_is_aborted_during_a_call_of_its_queue() {
    let mut ranks = Communicator::threads(2).into_iter();
    let (queue, _other) = (Queue::new(ranks.next().unwrap()), ranks.next().unwrap());
    let aborter = queue.abort_handle();
    let request = queue.start(vec![Call::Barrier], None);
    thread::scope(|scope| {
        let running = scope.spawn(|| queue.run(Call::Barrier, None));
        aborter.abort(Reason::Failure);
        assert!(matches!(running.join().unwrap(), Err(Error::Aborted { replica: 0, .. })));
    });
    assert!(matches!(request.wait(None), Err(Error::Aborted { replica: 0, .. })));
}

#[test]
fn a_panic_of_a_started_call_is_its_error_and_aborts_the_group() {
    let queues: Vec<Queue> = Communicator::threads(2).into_iter().map(Queue::new).collect();
    let request = queues[1].start_with(None, |_| panic!("expected: a test of panics"));
    let error = request.wait(None).unwrap_err();
    let Error::Panic { replica, message } = error.root() else { panic!("{error}") };
    assert_eq!((*replica, message.as_str()), (1, "expected: a test of panics"));
    assert!(queues[0].abort_handle().is_aborted());
}

#[test]
fn a_panic_at_the_end_of_a_request_has_no_other_effect() {
    let queue = Queue::new(Communicator::threads(1).remove(0));
    let request = queue.start(vec![Call::Barrier], None);
    request.on_finish(|_| panic!("expected: a test of panics"));
    assert!(request.wait(None).unwrap());
    request.on_finish(|_| panic!("expected: a test of panics"));
    queue.start(vec![Call::Barrier], None).wait(None).unwrap();
    let panicked = thread::scope(|scope| {
        let with = || queue.with(None, |_| -> Result<()> { panic!("expected: a test of panics") });
        scope.spawn(with).join().is_err()
    });
    assert!(panicked && queue.abort_handle().is_aborted());
    assert!(matches!(queue.run(Call::Barrier, None), Err(Error::Aborted { .. })));
}

#[test]
fn started_messages_go_on_beside_collectives() {
    on_each(2, |mut communicator| {
        let mailbox = communicator.mailbox().unwrap();
        let peer = 1 - communicator.rank();
        for round in 0..50u64 {
            // More than the cells of a ring, so that it takes both sides.
            let sent: &'static [u64] = vec![round; 100_000].leak();
            let received: &'static mut [u64] = vec![0; 100_000].leak();
            let start = received.as_ptr();
            let sends = mailbox.start_send(Buf::from(sent), peer, round, None);
            let receives = mailbox.start_recv(BufMut::from(received), None, round, None);
            let mut data = [1u64; 10];
            communicator.all_reduce(ReduceOp::Sum, &mut data).unwrap();
            receives.wait(None).unwrap();
            sends.wait(None).unwrap();
            assert_eq!((receives.source(), sends.source(), start.is_null()), (Some(peer), None, false));
        }
    });
}

/// A thread that waited for the turn of another one was never asked.
#[test]
fn a_thread_waiting_for_its_turn_is_asked_whether_to_go_on() {
    let mut ranks = Communicator::threads(2);
    // Rank 1 makes no call.
    let _other = ranks.pop();
    let mut communicator = ranks.pop().unwrap();
    let waits = thread::current().id();
    communicator.keep_waiting(Arc::new(move || thread::current().id() != waits));
    let queue = Queue::new(communicator);
    let (begun, has_begun) = mpsc::channel();
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            queue.with(None, |communicator| {
                begun.send(()).unwrap();
                communicator.barrier()
            })
        });
        has_begun.recv().unwrap();
        let second = queue.run(Call::Barrier, None).unwrap_err();
        for error in [first.join().unwrap().unwrap_err(), second] {
            assert!(matches!(error, Error::Aborted { replica: 0, .. }), "{error}");
        }
    });
}

/// The timeout of the split became that of the new group.
#[test]
fn a_subgroup_has_the_timeout_of_its_parent_and_not_of_the_call() {
    let [own, of_call] = [200, 30].map(Duration::from_secs);
    let timeouts = on_each(2, |mut communicator| {
        communicator.set_timeout(own).unwrap();
        let queue = Queue::new(communicator);
        let part = queue.with(Some(of_call), |communicator| communicator.split(Some(0), 0)).unwrap().unwrap();
        part.timeout()
    });
    assert_eq!(timeouts, [own; 2]);
}

/// The first message of a binding waited for the calls that were started before it.
#[test]
fn the_mailbox_of_a_queue_waits_for_no_call_of_the_queue() {
    on_each(2, |communicator| {
        let (rank, queue) = (communicator.rank(), Queue::new(communicator));
        let started = (rank == 0).then(|| queue.start(vec![Call::Barrier], None));
        if rank == 0 {
            queue.mailbox().unwrap().send([3u8].as_slice(), 1, 0, None).unwrap();
        } else {
            let mut data = [0u8];
            queue.mailbox().unwrap().recv(data.as_mut_slice(), Some(0), 0, None).unwrap();
            assert_eq!(data, [3]);
            queue.run(Call::Barrier, None).unwrap();
        }
        assert!(started.is_none_or(|started| started.wait(None).unwrap()));
    });
    let queue = Queue::new(Communicator::threads(1).remove(0));
    queue.abort_handle().abort(Reason::Failure);
    let error = queue.mailbox().unwrap().send([3u8].as_slice(), 0, 0, None).unwrap_err();
    assert!(matches!(error, Error::Aborted { replica: 0, .. }), "{error}");
}

#[test]
fn nobody_waits_and_the_message_still_comes() {
    on_each(2, |mut communicator| {
        let mailbox = communicator.mailbox().unwrap();
        if communicator.rank() == 0 {
            let request = mailbox.start_send(Buf::from(&*vec![7u8; 1 << 20].leak()), 1, 1, None);
            communicator.barrier().unwrap();
            assert!(request.wait(None).unwrap());
        } else {
            let (tell, told) = mpsc::channel();
            let request = mailbox.start_recv(BufMut::from(vec![0u8; 1 << 20].leak()), Some(0), 1, None);
            request.on_finish(move |result| tell.send(result.is_ok()).unwrap());
            assert!(told.recv_timeout(Duration::from_secs(60)).unwrap());
            communicator.barrier().unwrap();
        }
    });
}

#[test]
fn bad_messages_are_refused() {
    let errors = on_each(2, |mut communicator| {
        let mailbox = communicator.mailbox().unwrap();
        let is_invalid = |result: Result<()>| matches!(result, Err(Error::InvalidCall { .. }));
        assert!(is_invalid(mailbox.send([1u8].as_slice(), 2, 0, None)));
        assert!(is_invalid(mailbox.recv([1u8].as_mut_slice(), Some(2), 0, None).map(drop)));
        assert!(is_invalid(mailbox.send([1u8].as_slice(), 1, 0, Some(Duration::ZERO))));
        assert!(is_invalid(mailbox.start_send(Buf::from(&[1u8][..]), 7, 0, None).wait(None).map(drop)));
        let error = match communicator.rank() {
            0 => mailbox.send([1u64; 3000].as_slice(), 1, 4, None).unwrap_err(),
            _ => mailbox.recv([1i64; 3000].as_mut_slice(), None, 4, None).unwrap_err(),
        };
        communicator.barrier().unwrap();
        drop(communicator);
        let closed = mailbox.send([1u8].as_slice(), 0, 0, None).unwrap_err();
        assert!(matches!(closed, Error::WrongContext { .. }), "{closed}");
        error
    });
    for (error, call) in errors.iter().zip(["Mailbox::send", "Mailbox::recv"]) {
        assert_eq!(mismatch(error), (call, "the dtype of a message to replica 1", 0, "i64", "u64"));
    }
}

#[test]
fn split_groups_have_mailboxes_of_their_own() {
    on_each(3, |mut communicator| {
        let rank = communicator.rank();
        let mut both = communicator.split((rank > 0).then_some(0), 0).unwrap();
        let whole = communicator.mailbox().unwrap();
        if let Some(part) = &mut both {
            let mailbox = part.mailbox().unwrap();
            exchange(&mailbox, 1 - part.rank());
        }
        exchange(&whole, (rank + 1) % 3);
        communicator.barrier().unwrap();
    });
}

/// Sends to a rank, and receives from any.
fn exchange(mailbox: &Mailbox, to: usize) {
    let mut data = [0u32];
    mailbox.send([mailbox.world().rank() as u32].as_slice(), to, 1, None).unwrap();
    let from = mailbox.recv(data.as_mut_slice(), None, 1, None).unwrap();
    assert_eq!(data[0] as usize, from);
}

#[test]
fn requests_end_with_their_communicator() {
    let finished = Arc::new(AtomicUsize::new(0));
    for _ in 0..100 {
        let mut communicator = Communicator::threads(2).remove(0);
        let mailbox = communicator.mailbox().unwrap();
        let request = mailbox.start_recv(BufMut::from(vec![0u8].leak()), Some(0), 1, None);
        let count = finished.clone();
        request.on_finish(move |result| {
            assert!(result.is_err(), "its communicator is dropped");
            count.fetch_add(1, Ordering::Relaxed);
        });
        drop(communicator);
        assert!(request.is_finished());
    }
    assert_eq!(finished.load(Ordering::Relaxed), 100);
}
