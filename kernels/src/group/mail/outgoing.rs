//! The messages that a rank sends to one other rank.

use super::{
    refusals::{Refusal, Refused},
    request::{Finished, MailFault, Sending, is_past, limit},
    ring::{self, Envelope, Part, Writer},
};
use crate::{
    group::{end::abort::Fault, state::GroupState},
    shm::{
        records::Generation,
        ring::{Cell, RingEnds},
    },
    sync::atomics::Ordering,
    tuning::{LEAST_CELL_BYTES, LEAST_CELLS},
};
use std::{
    collections::VecDeque,
    io,
    time::{Duration, Instant},
};

/// Largest message whose sender does not wait until it is taken, in bytes.
pub(super) const EAGER_BYTES: usize = 4 << 10;

const _: () = assert!(EAGER_BYTES <= LEAST_CELLS * LEAST_CELL_BYTES, "it fits in the smallest ring");

/// The messages to one rank, in the order of their sends.
pub(super) struct Outgoing {
    own: usize,
    to: usize,
    generation: Generation,
    writer: Writer,
    is_open: bool,
    /// The messages that wait for cells. The first may be written in part.
    queue: VecDeque<Sending>,
    /// Bytes of the first message that are written; `None` if none of its cells is.
    begun: Option<usize>,
    /// A message was given up in the middle: a cell that says so comes before the next one.
    withdraws: Option<Envelope>,
    /// The messages that are written and not known to be taken: with the number of the message, and
    /// the cells up to its end.
    untaken: VecDeque<(u64, u64, Sending)>,
    /// Messages that were begun.
    messages: u64,
    refused: Refused,
}

impl Outgoing {
    pub(super) fn new(own: usize, to: usize, generation: Generation) -> Outgoing {
        Outgoing {
            own,
            to,
            generation,
            writer: Writer::new(generation),
            is_open: false,
            queue: VecDeque::new(),
            begun: None,
            withdraws: None,
            untaken: VecDeque::new(),
            messages: generation.base(),
            refused: Refused::new(generation),
        }
    }

    /// Whether any request is open, or a message is to be withdrawn.
    pub(super) fn is_busy(&self) -> bool {
        !self.queue.is_empty() || !self.untaken.is_empty() || self.withdraws.is_some()
    }

    /// Reserves the ring, and tells its reader.
    ///
    /// # Errors
    /// The system's, when it has no memory for the ring.
    pub(super) fn open(&mut self, state: &GroupState) -> io::Result<()> {
        if !self.is_open {
            state.backing.reserve_ring_ends(self.to)?;
            state.backing.reserve_ring(self.own, self.to)?;
            let (ends, _) = state.backing.ring(self.own, self.to);
            // Relaxed: the reader reserves the cells, too.
            ends.writer.opened.store(self.generation.mark(), Ordering::Relaxed);
            self.is_open = true;
        }
        Ok(())
    }

    /// Queues a message for the ring, which is open.
    pub(super) fn add(&mut self, sending: Sending) {
        self.queue.push_back(sending);
    }

    /// Returns the fault of a message that was refused after its send had ended, once. A send that
    /// has not ended gets the fault itself.
    pub(super) fn take_refusal(&mut self, state: &GroupState) -> Option<MailFault> {
        if self.is_open {
            self.refused.hear(state.backing.ring(self.own, self.to).0, self.messages);
        }
        let Outgoing { begun, messages, untaken, refused, .. } = self;
        let is_under_way = |message| {
            (begun.is_some() && *messages == message) || untaken.iter().any(|&(untaken, ..)| untaken == message)
        };
        refused.take(|message| !is_under_way(message)).map(|refusal| self.unlike(refusal))
    }

    /// Returns the fault of a message that was refused.
    fn unlike(&self, Refusal { sent, expected, .. }: Refusal) -> MailFault {
        MailFault::Unlike { from: self.own, to: self.to, sent, expected }
    }

    /// Writes as many cells as there are credits for, and ends the sends that are done. Returns
    /// whether anything was written or ended.
    pub(super) fn advance(&mut self, state: &GroupState, finished: &mut Vec<Finished>) -> bool {
        if !self.is_open {
            return false;
        }
        let (ends, cells) = ring::ring(state, self.own, self.to);
        let refused = self.end_refused(ends, finished);
        let wrote = self.write(ends, (cells, state.tuning.mail_cell_bytes), finished);
        self.end_taken(ends, finished) || wrote || refused
    }

    /// Ends the sends of messages that their reader refused before it took all of them: the reader
    /// may make no further call that takes the rest.
    fn end_refused(&mut self, ends: &RingEnds, finished: &mut Vec<Finished>) -> bool {
        if self.begun.is_none() && self.untaken.is_empty() {
            return false;
        }
        self.refused.hear(ends, self.messages);
        let before = finished.len();
        for (message, _, sending) in extract(&mut self.untaken, |(message, ..)| self.refused.has(*message)) {
            finished.push((sending.finish, self.result(message)));
        }
        if self.begun.is_some() && self.refused.has(self.messages) {
            self.begun = None;
            let sending = self.queue.pop_front().expect("the message that is written in part");
            self.withdraws = Some(sending.envelope());
            finished.push((sending.finish, self.result(self.messages)));
        }
        finished.len() > before
    }

    /// Returns the result of a send: its fault, if its refusal was heard.
    fn result(&mut self, message: u64) -> Result<usize, MailFault> {
        let refusal = self.refused.take(|refused| refused == message);
        refusal.map_or(Ok(self.to), |refusal| Err(self.unlike(refusal)))
    }

    /// Writes cells, each with at most `most` bytes of data.
    fn write(&mut self, ends: &RingEnds, (cells, most): (&[Cell], usize), finished: &mut Vec<Finished>) -> bool {
        let mut wrote = false;
        while (self.withdraws.is_some() || !self.queue.is_empty()) && self.writer.has_credit(ends, cells) {
            wrote = true;
            if let Some(envelope) = self.withdraws.take() {
                self.writer.put(cells, Part::Withdrawn, self.refused.heard(), envelope, &[]);
                continue;
            }
            if self.begun.is_none() {
                // There is a place for the refusal of the message then.
                self.refused.hear(ends, self.messages);
                self.messages += 1;
            }
            let sending = &self.queue[0];
            let (envelope, data) = (sending.envelope(), sending.data.as_bytes());
            let at = self.begun.unwrap_or(0);
            let part = &data[at..data.len().min(at + most)];
            let which = if self.begun.is_some() { Part::Next } else { Part::First };
            self.writer.put(cells, which, self.refused.heard(), envelope, part);
            if at + part.len() < data.len() {
                self.begun = Some(at + part.len());
                continue;
            }
            self.begun = None;
            let sending = self.queue.pop_front().expect("the message that was written");
            match envelope.bytes <= EAGER_BYTES {
                true => finished.push((sending.finish, Ok(self.to))),
                false => self.untaken.push_back((self.messages, self.writer.written(), sending)),
            }
        }
        wrote
    }

    /// Ends the sends whose messages are taken.
    fn end_taken(&mut self, ends: &RingEnds, finished: &mut Vec<Finished>) -> bool {
        let before = finished.len();
        while let Some(&(message, end, _)) = self.untaken.front() {
            if !self.writer.is_read(ends, end) {
                break;
            }
            let (_, _, sending) = self.untaken.pop_front().expect("the first one");
            self.refused.hear(ends, self.messages);
            finished.push((sending.finish, self.result(message)));
        }
        finished.len() > before
    }

    /// Ends the sends whose deadline has passed.
    pub(super) fn end_late(
        &mut self,
        now: Instant,
        late: impl Fn(&[usize], Duration) -> MailFault,
        finished: &mut Vec<Finished>,
    ) {
        if let Some(first) = self.queue.front().filter(|first| is_past(first.deadline, now)) {
            // The reader waits for the rest of a message that is written in part.
            self.withdraws = self.begun.take().map(|_| first.envelope()).or(self.withdraws);
        }
        let is_late = |sending: &mut Sending| is_past(sending.deadline, now);
        let queued = extract(&mut self.queue, is_late);
        let untaken = extract(&mut self.untaken, |(_, _, sending)| is_late(sending));
        let all = queued.into_iter().chain(untaken.into_iter().map(|(_, _, sending)| sending));
        finished.extend(all.map(|sending| (sending.finish, Err(late(&[self.to], limit(sending.deadline))))));
    }

    /// Ends all sends with this fault.
    pub(super) fn end_all(&mut self, fault: &Fault, finished: &mut Vec<Finished>) {
        let untaken = self.untaken.drain(..).map(|(_, _, sending)| sending);
        let all = self.queue.drain(..).chain(untaken);
        finished.extend(all.map(|sending| (sending.finish, Err(MailFault::Fault(fault.clone())))));
        (self.begun, self.withdraws) = (None, None);
    }

    /// Returns the first deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let all = self.queue.iter().chain(self.untaken.iter().map(|(_, _, sending)| sending));
        all.filter_map(|sending| Some(sending.deadline?.at)).min()
    }
}

/// Takes the elements out for which `is_out` holds.
pub(super) fn extract<T>(queue: &mut VecDeque<T>, mut is_out: impl FnMut(&mut T) -> bool) -> Vec<T> {
    let mut out = Vec::new();
    let mut index = 0;
    while index < queue.len() {
        match is_out(&mut queue[index]) {
            true => out.extend(queue.remove(index)),
            false => index += 1,
        }
    }
    out
}
