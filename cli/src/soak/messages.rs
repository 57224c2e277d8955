//! Messages that pass beside the calls of a round.

use super::{
    plan::Plan,
    stop::{Stop, timed},
};
use consonance::{Communicator, Mailbox};
use std::thread;

/// One message in this many is sent in parts.
const LARGE_PERIOD: u64 = 4;

/// A message of each rank to another one. Every rank sends one and receives one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Messages {
    /// The distance of the receiver from its sender, in ranks.
    distance: usize,
    count: usize,
    tag: u64,
    /// Whether receivers take the message from any rank.
    from_any: bool,
}

impl Plan {
    /// Returns the messages of a round.
    pub(super) fn messages(&self, round: u64) -> Messages {
        const SALT: u64 = 3000;
        let word = |number: u64| self.word(round, SALT + number);
        let count = match word(0).is_multiple_of(LARGE_PERIOD) {
            true => word(1) % 100_000,
            false => word(1) % 1_000,
        };
        Messages {
            distance: (word(2) % self.ranks() as u64) as usize,
            count: count as usize,
            tag: word(3) % 3,
            from_any: word(4).is_multiple_of(2),
        }
    }
}

impl Messages {
    /// Sends this rank's message and receives another one, while the rank makes its calls.
    pub(super) fn exchange(self, mailbox: &Mailbox) -> Result<(), Stop> {
        let (rank, size) = (mailbox.world().rank(), mailbox.world().size());
        let (to, from) = ((rank + self.distance) % size, (rank + size - self.distance) % size);
        let sent = self.data(rank);
        let mut received = vec![0u32; self.count];
        let mut source = None;
        let (send, recv) = thread::scope(|scope| {
            let send = scope.spawn(|| timed(|| mailbox.send(sent.as_slice(), to, self.tag, None)));
            let from = (!self.from_any).then_some(from);
            let recv = timed(|| {
                source = Some(mailbox.recv(received.as_mut_slice(), from, self.tag, None)?);
                Ok(())
            });
            (send.join().expect("no panic in a send"), recv)
        });
        send.and(recv)?;
        if source != Some(from) || received != self.data(from) {
            let first = received.iter().zip(self.data(from)).position(|(found, expected)| *found != expected);
            return Err(Stop::Wrong(format!(
                "rank {rank}: {self:?}: expected the message of rank {from}, found one of {source:?} that differs at \
                 {first:?}"
            )));
        }
        Ok(())
    }

    /// Returns what a rank sends.
    fn data(self, rank: usize) -> Vec<u32> {
        (0..self.count as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ (rank as u32) << 24).collect()
    }
}

/// Runs `calls` while the messages pass. A wrong result is worse than a loss.
pub(super) fn beside(
    messages: Messages,
    rank: &mut Communicator,
    calls: impl FnOnce(&mut Communicator) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let mut mailbox = None;
    timed(|| {
        mailbox = Some(rank.mailbox()?);
        Ok(())
    })?;
    let mailbox = mailbox.expect("made above");
    thread::scope(|scope| {
        let passed = scope.spawn(|| messages.exchange(&mailbox));
        let made = calls(rank);
        let passed = passed.join().expect("no panic in messages");
        match (made, passed) {
            (Err(wrong @ Stop::Wrong(_)), _) | (_, Err(wrong @ Stop::Wrong(_))) => Err(wrong),
            (made, passed) => made.and(passed),
        }
    })
}
