//! The messages that a rank receives: the receives that wait, the messages that came before their
//! receive, and the message that comes from each rank now.

use super::{
    outgoing::extract,
    refusals::{Refusal, Refuser},
    request::{Finished, MailFault, Receive, is_past, limit},
    ring::{self, Envelope, Part, Reader},
};
use crate::{
    cpu::{copy::copy_private, duplicate::to_vec},
    group::{end::abort::Fault, state::GroupState},
    memory::make_valid,
    shm::{
        records::Generation,
        ring::{Cell, RingEnds},
    },
    sync::atomics::Ordering,
};
use std::{
    collections::VecDeque,
    io,
    time::{Duration, Instant},
};

/// The receives of a rank, and the messages that have no receive yet.
pub(super) struct Incoming {
    own: usize,
    generation: Generation,
    /// Receives whose message has not begun to come, in the order of the calls.
    posted: VecDeque<Receive>,
    /// Messages that began to come before their receive, in the order in which they came.
    kept: VecDeque<Kept>,
    sources: Box<[Source]>,
}

/// The messages that come from one rank.
struct Source {
    reader: Option<Reader>,
    /// Messages that have begun to come.
    messages: u64,
    refuser: Refuser,
    /// The message whose next part comes.
    stream: Option<Stream>,
}

/// A message that comes.
struct Stream {
    envelope: Envelope,
    bytes: usize,
    target: Target,
}

/// The destination of a message.
enum Target {
    Receive(Receive),
    /// To the last kept message from its rank.
    Kept,
    Nowhere,
}

/// A message that came before its receive.
struct Kept {
    from: usize,
    number: u64,
    envelope: Envelope,
    /// The data that have come, in parts: none moves again when more come.
    parts: Vec<Vec<u8>>,
}

impl Kept {
    fn bytes(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }
}

/// The reason why messages from a rank cannot be read.
pub(super) enum Unreadable {
    /// The rank wrote values that no correct rank writes.
    Corrupt,
    /// The system gave no memory.
    Memory(io::Error),
}

impl Incoming {
    pub(super) fn new(own: usize, ranks: usize, generation: Generation) -> Incoming {
        let (messages, refuser) = (generation.base(), || Refuser::new(generation));
        let source = |_| Source { reader: None, messages, refuser: refuser(), stream: None };
        let sources = (0..ranks).map(source).collect();
        Incoming { own, generation, posted: VecDeque::new(), kept: VecDeque::new(), sources }
    }

    /// Whether any receive is open.
    pub(super) fn is_busy(&self) -> bool {
        !self.posted.is_empty() || self.receives().next().is_some()
    }

    /// Returns the receives whose messages come now, with the ranks that send them.
    fn receives(&self) -> impl Iterator<Item = (usize, &Receive)> {
        self.sources.iter().enumerate().filter_map(|(from, source)| match &source.stream {
            Some(Stream { target: Target::Receive(receive), .. }) => Some((from, receive)),
            _ => None,
        })
    }

    /// Adds a receive. If its message came before, or has begun to, the receive takes it. Returns
    /// the sender of a message that does not fit and that has not come as a whole: it must be told,
    /// since no cell may be taken that tells it.
    pub(super) fn add(
        &mut self,
        state: &GroupState,
        mut receive: Receive,
        finished: &mut Vec<Finished>,
    ) -> Option<usize> {
        let Some(index) = self.kept.iter().position(|kept| receive.takes(kept.from, kept.envelope.tag)) else {
            self.posted.push_back(receive);
            return None;
        };
        let kept = self.kept.remove(index).expect("the message that was found");
        let source = &mut self.sources[kept.from];
        // Only the last message of a rank may not have come as a whole.
        let is_whole = kept.bytes() == kept.envelope.bytes;
        let stream = source.stream.as_mut().filter(|_| !is_whole);
        let (sent, expected) = (kept.envelope, receive.envelope());
        if expected != sent {
            let waits = stream.map(|stream| stream.target = Target::Nowhere).is_some();
            // This rank's own sends have ended, and have no ring.
            if kept.from != self.own {
                let refusal = Refusal { message: kept.number, sent, expected };
                source.refuser.tell(state.backing.ring(kept.from, self.own).0, refusal, !waits);
            }
            finished.push((receive.finish, Err(MailFault::Unlike { from: kept.from, to: self.own, sent, expected })));
            return waits.then_some(kept.from);
        }
        let mut at = 0;
        for part in &kept.parts {
            // SAFETY: the receive's buffer has as many bytes as the message, of which these have
            // come; it is exclusive.
            unsafe { copy_private(part.as_ptr(), receive.data.as_mut_ptr().add(at), part.len()) };
            at += part.len();
        }
        match stream {
            Some(stream) => stream.target = Target::Receive(receive),
            None => finish(receive, kept.from, finished),
        }
        None
    }

    /// Delivers a message that this rank sends to itself.
    pub(super) fn deliver_own(
        &mut self,
        envelope: Envelope,
        data: &[u8],
        finished: &mut Vec<Finished>,
    ) -> Result<(), MailFault> {
        let own = self.own;
        let Some(index) = self.posted.iter().position(|receive| receive.takes(own, envelope.tag)) else {
            self.kept.push_back(Kept { from: own, number: 0, envelope, parts: vec![to_vec(data)] });
            return Ok(());
        };
        let mut receive = self.posted.remove(index).expect("the receive that was found");
        let expected = receive.envelope();
        if expected != envelope {
            let fault = MailFault::Unlike { from: own, to: own, sent: envelope, expected };
            finished.push((receive.finish, Err(fault.clone())));
            return Err(fault);
        }
        receive.data.copy_from_bytes(data);
        finish(receive, own, finished);
        Ok(())
    }

    /// Takes what has come from `from`, at most the cells of the ring. Returns whether anything has
    /// come.
    pub(super) fn advance(
        &mut self,
        state: &GroupState,
        from: usize,
        finished: &mut Vec<Finished>,
    ) -> Result<bool, Unreadable> {
        if !self.open(state, from)? {
            return Ok(false);
        }
        let (ends, cells) = ring::ring(state, from, self.own);
        let mut has_come = false;
        for _ in 0..cells.len() {
            let reader = self.sources[from].reader.as_ref().expect("opened above");
            let Some(cell) = reader.look(cells) else { break };
            has_come = true;
            let (part, heard, envelope) = ring::header(cell).ok_or(Unreadable::Corrupt)?;
            let source = &mut self.sources[from];
            // A message begins where the last one has ended.
            if !source.refuser.note(heard) || (part == Part::First) != source.stream.is_none() {
                return Err(Unreadable::Corrupt);
            }
            match part {
                Part::First => self.begin(ends, from, envelope, finished),
                Part::Next => {}
                Part::Withdrawn => self.withdraw(from, finished),
            }
            if part != Part::Withdrawn {
                self.take_part(from, (cell, state.tuning.mail_cell_bytes), finished)?;
            }
            self.sources[from].reader.as_mut().expect("opened above").take(ends);
        }
        Ok(has_come)
    }

    /// Opens the ring from `from`. Returns false if that rank has not begun to send.
    fn open(&mut self, state: &GroupState, from: usize) -> Result<bool, Unreadable> {
        let source = &mut self.sources[from];
        if source.reader.is_none() {
            // Relaxed: this rank reserves the cells itself.
            if state.backing.ring(from, self.own).0.writer.opened.load(Ordering::Relaxed) != self.generation.mark() {
                return Ok(false);
            }
            state.backing.reserve_ring(from, self.own).map_err(Unreadable::Memory)?;
            source.reader = Some(Reader::new(self.generation));
        }
        Ok(true)
    }

    /// Begins a message: finds its receive, or keeps it.
    fn begin(&mut self, ends: &RingEnds, from: usize, envelope: Envelope, finished: &mut Vec<Finished>) {
        let source = &mut self.sources[from];
        source.messages += 1;
        let message = source.messages;
        let target = match self.posted.iter().position(|receive| receive.takes(from, envelope.tag)) {
            Some(index) => {
                let receive = self.posted.remove(index).expect("the receive that was found");
                let expected = receive.envelope();
                match expected == envelope {
                    true => Target::Receive(receive),
                    false => {
                        source.refuser.tell(ends, Refusal { message, sent: envelope, expected }, false);
                        let fault = MailFault::Unlike { from, to: self.own, sent: envelope, expected };
                        finished.push((receive.finish, Err(fault)));
                        Target::Nowhere
                    }
                }
            }
            None => {
                self.kept.push_back(Kept { from, number: message, envelope, parts: Vec::new() });
                Target::Kept
            }
        };
        source.stream = Some(Stream { envelope, bytes: 0, target });
    }

    /// Ends a message in the middle.
    fn withdraw(&mut self, from: usize, finished: &mut Vec<Finished>) {
        match self.sources[from].stream.take().map(|stream| stream.target) {
            Some(Target::Receive(receive)) => finished.push((receive.finish, Err(MailFault::Withdrawn(from)))),
            Some(Target::Kept) => {
                let last = self.kept.iter().rposition(|kept| kept.from == from);
                last.map(|index| self.kept.remove(index));
            }
            _ => {}
        }
    }

    /// Takes the data in a cell, which has at most `most` bytes.
    fn take_part(
        &mut self,
        from: usize,
        (cell, most): (&Cell, usize),
        finished: &mut Vec<Finished>,
    ) -> Result<(), Unreadable> {
        let source = &mut self.sources[from];
        let stream = source.stream.as_mut().expect("a message that has begun");
        let at = stream.bytes;
        let bytes = (stream.envelope.bytes - at).min(most);
        match &mut stream.target {
            // SAFETY: the receive's buffer has as many bytes as the message.
            Target::Receive(receive) => unsafe {
                ring::copy_out(cell, receive.data.as_mut_ptr().add(at), bytes);
            },
            Target::Kept => {
                let kept = self.kept.iter_mut().rev().find(|kept| kept.from == from).expect("the message that comes");
                // The size is what another process says: memory is asked for as the data come.
                let mut part = Vec::new();
                let reserved = part.try_reserve_exact(bytes).and_then(|()| kept.parts.try_reserve(1));
                reserved.map_err(|_| Unreadable::Memory(io::ErrorKind::OutOfMemory.into()))?;
                // SAFETY: the bytes are reserved, and initialized by the copy.
                unsafe {
                    ring::copy_out(cell, part.as_mut_ptr(), bytes);
                    part.set_len(bytes);
                }
                kept.parts.push(part);
            }
            Target::Nowhere => {}
        }
        stream.bytes += bytes;
        if stream.bytes == stream.envelope.bytes
            && let Some(Stream { target: Target::Receive(receive), .. }) = source.stream.take()
        {
            finish(receive, from, finished);
        }
        Ok(())
    }

    /// Ends the receives whose deadline has passed. `peers` are all other ranks. `late` makes the
    /// fault for the ranks that did not send.
    pub(super) fn end_late(
        &mut self,
        now: Instant,
        peers: &[usize],
        late: impl Fn(&[usize], Duration) -> MailFault,
        finished: &mut Vec<Finished>,
    ) {
        let ended = extract(&mut self.posted, |receive| is_past(receive.deadline, now));
        finished.extend(ended.into_iter().map(|receive| {
            let waited = limit(receive.deadline);
            let fault = receive.from.map_or_else(|| late(peers, waited), |from| late(&[from], waited));
            (receive.finish, Err(fault))
        }));
        let late = |from, receive: &Receive| late(&[from], limit(receive.deadline));
        self.end_streams(|_, receive| is_past(receive.deadline, now), late, finished);
    }

    /// Ends the receives of messages that come and for which `is_out` holds: the rest of such a
    /// message goes nowhere.
    fn end_streams(
        &mut self,
        is_out: impl Fn(usize, &Receive) -> bool,
        fault: impl Fn(usize, &Receive) -> MailFault,
        finished: &mut Vec<Finished>,
    ) {
        for (from, source) in self.sources.iter_mut().enumerate() {
            let Some(stream) = &mut source.stream else { continue };
            if matches!(&stream.target, Target::Receive(receive) if is_out(from, receive))
                && let Target::Receive(receive) = std::mem::replace(&mut stream.target, Target::Nowhere)
            {
                let fault = fault(from, &receive);
                finished.push((receive.finish, Err(fault)));
            }
        }
    }

    /// Ends the receives that only `from`, which has left, or another rank that `has_left` could
    /// serve.
    pub(super) fn end_left(&mut self, peers: &[usize], has_left: impl Fn(usize) -> bool, finished: &mut Vec<Finished>) {
        let first = peers.first().copied().filter(|_| peers.iter().all(|&peer| has_left(peer)));
        let gone = |receive: &Receive| receive.from.map_or(first, |from| Some(from).filter(|&from| has_left(from)));
        let own = self.own;
        for receive in extract(&mut self.posted, |receive| receive.from != Some(own) && gone(receive).is_some()) {
            let left = gone(&receive).expect("a rank that has left");
            finished.push((receive.finish, Err(MailFault::Fault(Fault::Left(left)))));
        }
        self.end_streams(|from, _| has_left(from), |from, _| MailFault::Fault(Fault::Left(from)), finished);
    }

    /// Ends all receives with this fault.
    pub(super) fn end_all(&mut self, fault: &Fault, finished: &mut Vec<Finished>) {
        let all = self.posted.drain(..);
        finished.extend(all.map(|receive| (receive.finish, Err(MailFault::Fault(fault.clone())))));
        self.end_streams(|_, _| true, |_, _| MailFault::Fault(fault.clone()), finished);
        self.kept.clear();
    }

    /// Returns the first deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let all = self.posted.iter().chain(self.receives().map(|(_, receive)| receive));
        all.filter_map(|receive| Some(receive.deadline?.at)).min()
    }
}

/// Ends a receive whose data have come.
fn finish(mut receive: Receive, from: usize, finished: &mut Vec<Finished>) {
    let bytes = receive.data.bytes();
    // SAFETY: the buffer is exclusive.
    unsafe { make_valid(receive.data.dtype(), receive.data.as_mut_ptr(), bytes) };
    finished.push((receive.finish, Ok(from)));
}
