//! Compares messages with the spec's matching of receives.

use super::{Verdict, pool::on_threads, script::DEADLINE, with_type};
use crate::{
    cases::{Exchange, Letter},
    sample::{Sample, keys, sample},
    subjects::{Group, Rank},
};
use consonance::{Element, Error, Mailbox, ReduceOp};
use consonance_spec::{DType, for_each_dtype, messages};
use std::thread;

/// The result of a receive: the sender, and the keys of the elements.
type Received = Result<(usize, Vec<u64>), Error>;

/// Judges an exchange: which message each receive gets, its elements, and that the two ends of a
/// message of another size than expected are told.
///
/// # Errors
/// The difference from the spec.
pub fn messages(group: Group, case: &Exchange) -> Verdict {
    // The ends of a message that fits no receive are told at a later call, too. So no other case
    // uses the group.
    let ranks = (group.make)(case.size);
    on_threads(ranks.into_iter().enumerate(), |(number, rank)| {
        exchange(case, rank).map_err(|wrong| format!("rank {number}: {wrong}"))
    })?;
    Ok(())
}

fn exchange(case: &Exchange, mut rank: Rank) -> Verdict {
    let communicator = &mut rank.communicator;
    communicator.set_timeout(DEADLINE).expect("a timeout that ends");
    let own = communicator.rank();
    let mailbox = communicator.mailbox().map_err(|error| format!("no mailbox: {error}"))?;
    let letters = case.messages.iter().enumerate().filter(|(_, letter)| letter.from == own);
    let (sent, received, summed) = thread::scope(|scope| {
        let sent = scope.spawn(|| -> Vec<(usize, Result<(), Error>)> {
            letters.map(|(number, letter)| (number, send(&mailbox, letter))).collect()
        });
        let received = scope.spawn(|| -> Vec<Received> { receives(&mailbox, case) });
        let mut sum = [own as u64 + 1];
        let summed = match case.beside_a_call {
            true => communicator.all_reduce(ReduceOp::Sum, &mut sum).map(|()| Some(sum[0])),
            false => Ok(None),
        };
        (sent.join().expect("no panic in a send"), received.join().expect("no panic in a receive"), summed)
    });
    // A rank that left would end the receives of the others.
    communicator.barrier().map_err(|error| format!("the barrier at the end: {error}"))?;
    let expected: u64 = (1..=case.size as u64).sum();
    match summed {
        Ok(None) => {}
        Ok(Some(sum)) if sum == expected => {}
        other => return Err(format!("the sum beside the messages: expected {expected}, found {other:?}")),
    }
    for (number, result) in sent {
        match result {
            Ok(()) => {}
            // It may have ended before its receiver saw it.
            Err(Error::Mismatch { replica, .. }) if case.unlike() == Some(number) && replica == own => {}
            Err(error) => return Err(format!("the send of message {number}: {error}")),
        }
    }
    judge(case, own, received)
}

/// Compares what a rank received with what it must receive, if the messages arrived in the order in
/// which its receives took them.
fn judge(case: &Exchange, own: usize, received: Vec<Received>) -> Verdict {
    let posted = case.receives(own);
    let mut left: Vec<usize> = (0..case.messages.len()).filter(|&number| case.messages[number].to == own).collect();
    let mut arrived = Vec::new();
    for (place, ((receive, like), result)) in posted.iter().zip(received).enumerate() {
        let (from, elements) = match result {
            Ok((from, elements)) => (from, Some(elements)),
            Err(Error::Mismatch { replica, .. }) if case.unlike() == Some(*like) => (replica, None),
            Err(error) => return Err(format!("receive {place}, {receive:?}: {error}")),
        };
        let first = |number: &usize| case.messages[*number].from == from && case.messages[*number].tag == receive.tag;
        let Some(found) = left.iter().position(first) else {
            return Err(format!("receive {place}, {receive:?}: no message is left that rank {from} sent"));
        };
        let number = left.remove(found);
        arrived.push(messages::Message { from, tag: receive.tag });
        if elements.is_none() != (case.unlike() == Some(number)) {
            return Err(format!("receive {place}, {receive:?}: message {number} was taken for one of another size"));
        }
        if elements.is_some_and(|elements| elements != contents(&case.messages[number])) {
            return Err(format!("receive {place}, {receive:?}: elements that message {number} has not"));
        }
    }
    let receives: Vec<messages::Receive> = posted.iter().map(|(receive, _)| *receive).collect();
    let expected: Vec<Option<usize>> = (0..posted.len()).map(Some).collect();
    let found = messages::matches(&arrived, &receives);
    if found != expected {
        return Err(format!("receives took messages in the order {arrived:?}, which gives {found:?}"));
    }
    Ok(())
}

fn send(mailbox: &Mailbox, letter: &Letter) -> Result<(), Error> {
    fn of<T: Sample + Element>(mailbox: &Mailbox, letter: &Letter) -> Result<(), Error> {
        let elements: Vec<T> = sample(letter.seed, letter.count);
        mailbox.send(elements.as_slice(), letter.to, letter.tag, Some(DEADLINE))
    }
    for_each_dtype!(with_type letter.dtype, of(mailbox, letter);)
}

fn receives(mailbox: &Mailbox, case: &Exchange) -> Vec<Received> {
    fn of<T: Sample + Element>(mailbox: &Mailbox, receive: messages::Receive, count: usize) -> Received {
        let mut elements: Vec<T> = sample(!0, count);
        let from = mailbox.recv(elements.as_mut_slice(), receive.from, receive.tag, Some(DEADLINE))?;
        Ok((from, keys(&elements)))
    }
    let own = mailbox.world().rank();
    let receive = |(receive, like): (messages::Receive, usize)| {
        let Letter { dtype, count, .. } = case.messages[like];
        let count = count + usize::from(case.unlike() == Some(like));
        let receive = || for_each_dtype!(with_type dtype, of(mailbox, receive, count););
        match receive() {
            // This rank hears of its own unlike message, which its receiver took meanwhile. The
            // message that this call waits for is still to come.
            Err(Error::Mismatch { replica, .. }) if replica == own => receive(),
            result => result,
        }
    };
    case.receives(own).into_iter().map(receive).collect()
}

/// Returns the keys of a message's elements.
fn contents(letter: &Letter) -> Vec<u64> {
    fn of<T: Sample>(letter: &Letter) -> Vec<u64> {
        keys(&sample::<T>(letter.seed, letter.count))
    }
    for_each_dtype!(with_type letter.dtype, of(letter);)
}
