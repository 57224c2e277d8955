//! The messages that have arrived for a rank.

use consonance::raw::{Envelope, Reason};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Condvar, Mutex, MutexGuard},
    time::Instant,
};

/// A generation of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Generation {
    /// The number of the group.
    pub(crate) group: u64,
    /// The number of earlier generations of the group.
    pub(crate) number: u64,
}

/// A message from one rank to another.
pub(crate) enum Letter {
    /// Data of this generation.
    Message { of: Generation, bytes: Vec<u8> },
    /// A message with a tag.
    Tagged { of: Generation, message: Tagged },
    /// The answer to a message with a tag that does not fit its receive.
    Unlike { of: Generation, sent: Envelope, expected: Envelope },
    /// The generation was aborted, and so were all before it.
    End { of: Generation, end: End },
    /// The sender makes no more calls in the group of this number.
    Leave { group: u64 },
    /// The sender makes no more calls in any group.
    Gone,
}

/// The reason of an abort, the rank of the group that it blames, and the turn in which it was made.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) rank: usize,
    pub(crate) reason: Reason,
    pub(crate) turn: Option<u64>,
}

/// The result of a wait for another rank.
pub(crate) enum News {
    /// The next message of that rank.
    Message(Vec<u8>),
    /// The group was aborted.
    Ended(End),
    /// The rank has left and sent no more messages.
    Left,
    /// The deadline has passed.
    Late,
}

/// A message that no receive has taken.
pub(crate) struct Tagged {
    pub(crate) envelope: Envelope,
    pub(crate) bytes: Vec<u8>,
}

/// A receive that has not ended.
pub(crate) struct Receive {
    /// The rank that receives, in the whole group.
    pub(crate) own: usize,
    /// The generations of its group and of those that this was split from, its own last.
    pub(crate) line: Vec<Generation>,
    /// The ranks of the whole group whose messages it takes.
    pub(crate) from: Vec<usize>,
    pub(crate) tag: u64,
    pub(crate) deadline: Instant,
    /// Takes the end. The caller holds no lock.
    pub(crate) finish: Box<dyn FnOnce(Outcome) + Send>,
}

/// The end of a receive.
pub(crate) enum Outcome {
    /// The first message that it takes, of this rank of the whole group.
    Message(usize, Tagged),
    /// The group was aborted.
    Ended(End),
    /// This rank makes no more calls in the generation.
    Closed,
    /// All ranks that could send have left; the first of them, in the whole group.
    Left(usize),
    /// The deadline has passed.
    Late,
}

const UNBROKEN: &str = "nobody panics holding an inbox";

pub(crate) struct Inbox {
    contents: Mutex<Contents>,
    change: Condvar,
}

#[derive(Default)]
struct Contents {
    /// The messages of each rank, by generation.
    messages: Vec<HashMap<Generation, VecDeque<Vec<u8>>>>,
    /// The messages with tags that no receive has taken, in the order of their arrival.
    tagged: Vec<(usize, Generation, Tagged)>,
    /// The receives of messages with tags, in the order in which they began.
    open: Vec<Receive>,
    /// Answers to messages that did not fit, of which no request was told.
    unlike: Vec<(usize, Generation, Envelope, Envelope)>,
    /// The number of changes that a thread may wait for.
    changes: u64,
    /// The generation of this rank in each group that has had several.
    current: HashMap<u64, u64>,
    /// The last generation of each group that was aborted, and how.
    ended: HashMap<u64, (u64, End)>,
    left: HashSet<(usize, u64)>,
    gone: HashSet<usize>,
}

impl Inbox {
    /// Makes the inbox of a rank of a group of this size.
    pub(crate) fn new(size: usize) -> Inbox {
        let messages = (0..size).map(|_| HashMap::new()).collect();
        let contents = Contents { messages, ..Contents::default() };
        Inbox { contents: Mutex::new(contents), change: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().expect(UNBROKEN)
    }

    /// Stores a letter of rank `from`.
    pub(crate) fn put(&self, from: usize, letter: Letter) {
        let mut contents = self.lock();
        match letter {
            Letter::Message { of, .. } | Letter::Tagged { of, .. } | Letter::Unlike { of, .. }
                if of.number < contents.current_of(of.group) => {}
            Letter::Message { of, bytes } => contents.messages[from].entry(of).or_default().push_back(bytes),
            Letter::Tagged { of, message } => contents.tagged.push((from, of, message)),
            Letter::Unlike { of, sent, expected } => contents.unlike.push((from, of, sent, expected)),
            Letter::End { of, end } => {
                let has_ended = contents.ended.get(&of.group).is_some_and(|&(last, _)| last >= of.number);
                if !has_ended {
                    contents.ended.insert(of.group, (of.number, end));
                }
            }
            Letter::Leave { group } => _ = contents.left.insert((from, group)),
            Letter::Gone => _ = contents.gone.insert(from),
        }
        self.settle(self.changed(contents));
    }

    /// Wakes the threads that wait for a change.
    fn changed<'i>(&self, mut contents: MutexGuard<'i, Contents>) -> MutexGuard<'i, Contents> {
        contents.changes += 1;
        self.change.notify_all();
        contents
    }

    /// Begins a receive.
    pub(crate) fn open(&self, receive: Receive) {
        let mut contents = self.lock();
        contents.open.push(receive);
        self.settle(contents);
    }

    /// Ends the receives that need not wait.
    fn settle(&self, mut contents: MutexGuard<'_, Contents>) {
        let (open, mut ends) = (std::mem::take(&mut contents.open), Vec::new());
        for receive in open {
            match contents.outcome(&receive) {
                Some(outcome) => ends.push((receive, outcome)),
                None => contents.open.push(receive),
            }
        }
        drop(contents);
        if !ends.is_empty() {
            ends.into_iter().for_each(|(receive, outcome)| (receive.finish)(outcome));
            drop(self.changed(self.lock()));
        }
    }

    /// Wakes the threads that wait for a change.
    pub(crate) fn wake(&self) {
        drop(self.changed(self.lock()));
    }

    /// Returns whether a receive of this generation is open.
    pub(crate) fn has_open(&self, of: Generation) -> bool {
        self.lock().open.iter().any(|receive| receive.line.last() == Some(&of))
    }

    /// Returns the first answer of rank `from` of which no request was told: the message, and the
    /// one that the receive expected.
    pub(crate) fn take_unlike(&self, from: usize, of: Generation) -> Option<(Envelope, Envelope)> {
        let mut contents = self.lock();
        let place = contents.unlike.iter().position(|&(by, at, ..)| (by, at) == (from, of))?;
        let (_, _, sent, expected) = contents.unlike.remove(place);
        Some((sent, expected))
    }

    /// Returns whether the rank of this inbox makes no more calls in this generation.
    pub(crate) fn has_closed(&self, own: usize, of: Generation) -> bool {
        self.lock().has_closed(own, of)
    }

    /// Returns whether a rank makes no more calls in this generation.
    pub(crate) fn has_left(&self, rank: usize, of: Generation) -> bool {
        self.lock().has_left(rank, of)
    }

    /// Waits until `done`, at most until `until`, and ends late receives meanwhile. Returns whether
    /// it is done.
    pub(crate) fn wait_until(&self, until: Option<Instant>, done: &dyn Fn() -> bool) -> bool {
        loop {
            let seen = self.lock().changes;
            if done() {
                return true;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return false;
            }
            self.rest(seen, until);
        }
    }

    /// Returns the number of changes so far.
    pub(crate) fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Waits for a change after the first `seen`, at most until `until` or until a receive is late,
    /// which it ends.
    pub(crate) fn rest(&self, seen: u64, until: Option<Instant>) {
        let contents = self.lock();
        let first = contents.open.iter().map(|receive| receive.deadline).chain(until).min();
        let is_same = |contents: &mut Contents| contents.changes == seen;
        let contents = match first.map(|first| first.saturating_duration_since(Instant::now())) {
            Some(rest) => self.change.wait_timeout_while(contents, rest, is_same).expect(UNBROKEN).0,
            None => self.change.wait_while(contents, is_same).expect(UNBROKEN),
        };
        self.settle(contents);
    }

    /// Returns the abort of a group, or of one that it was split from. `line` has their
    /// generations.
    pub(crate) fn end_of(&self, line: &[Generation]) -> Option<End> {
        self.lock().end_of(line)
    }

    /// Returns the last generation of the group of this number that was aborted, and how.
    pub(crate) fn last_end_of(&self, group: u64) -> Option<(u64, End)> {
        self.lock().ended.get(&group).copied()
    }

    /// Begins the first generation of a group that was not aborted, and returns it; the current one
    /// if a rank has left, which ends all. Forgets what has arrived of those before.
    pub(crate) fn begin_next(&self, group: u64) -> Generation {
        let mut contents = self.lock();
        let next = contents.ended.get(&group).and_then(|(last, _)| last.checked_add(1));
        let number = next.unwrap_or(contents.current_of(group));
        contents.current.insert(group, number);
        let remains = |of: &Generation| of.group != group || of.number >= number;
        for messages in &mut contents.messages {
            messages.retain(|of, _| remains(of));
        }
        contents.tagged.retain(|(_, of, _)| remains(of));
        contents.unlike.retain(|(_, of, ..)| remains(of));
        // Receives of earlier generations end.
        self.settle(contents);
        Generation { group, number }
    }

    /// Waits until [`take`](Inbox::take) would not wait for one of the ranks `from`, at most until
    /// `until`. Returns the position of that rank.
    pub(crate) fn probe(&self, from: &[usize], line: &[Generation], until: Instant) -> Option<usize> {
        let own = *line.last().expect("a group has a generation");
        let mut contents = self.lock();
        loop {
            let has_ended = contents.end_of(line).is_some();
            let is_ready = |&rank: &usize| has_ended || contents.has_message(rank, own) || contents.has_left(rank, own);
            if let Some(place) = from.iter().position(is_ready) {
                return Some(place);
            }
            contents = self.wait(contents, until)?;
        }
    }

    /// Waits for a letter. Returns `None` if the deadline has passed.
    fn wait<'i>(&'i self, contents: MutexGuard<'i, Contents>, deadline: Instant) -> Option<MutexGuard<'i, Contents>> {
        let rest = deadline.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero())?;
        Some(self.change.wait_timeout(contents, rest).expect(UNBROKEN).0)
    }

    /// Waits for something of rank `from` in the last group of `line`, at most until the deadline,
    /// and returns it.
    pub(crate) fn take(&self, from: usize, line: &[Generation], deadline: Instant) -> News {
        let own = *line.last().expect("a group has a generation");
        let mut contents = self.lock();
        loop {
            // A message that arrived before the abort is still delivered.
            if let Some(bytes) = contents.messages[from].get_mut(&own).and_then(VecDeque::pop_front) {
                return News::Message(bytes);
            }
            if let Some(end) = contents.end_of(line) {
                return News::Ended(end);
            }
            if contents.has_left(from, own) {
                return News::Left;
            }
            contents = match self.wait(contents, deadline) {
                Some(contents) => contents,
                None => return News::Late,
            };
        }
    }
}

impl Contents {
    fn current_of(&self, group: u64) -> u64 {
        self.current.get(&group).copied().unwrap_or(0)
    }

    /// Returns how a receive ends, if it need not wait.
    fn outcome(&mut self, receive: &Receive) -> Option<Outcome> {
        let own = *receive.line.last().expect("a group has a generation");
        let takes = |(from, of, message): &(usize, Generation, Tagged)| {
            *of == own && message.envelope.tag == receive.tag && receive.from.contains(from)
        };
        if self.has_closed(receive.own, own) {
            return Some(Outcome::Closed);
        }
        if let Some(place) = self.tagged.iter().position(takes) {
            let (from, _, message) = self.tagged.remove(place);
            return Some(Outcome::Message(from, message));
        }
        if let Some(end) = self.end_of(&receive.line) {
            return Some(Outcome::Ended(end));
        }
        let others = || receive.from.iter().filter(|&&rank| rank != receive.own);
        match others().next() {
            Some(&first) if others().all(|&rank| self.has_left(rank, own)) => Some(Outcome::Left(first)),
            _ => (Instant::now() >= receive.deadline).then_some(Outcome::Late),
        }
    }

    /// Whether a rank, whose inbox this is, makes no more calls in this generation.
    fn has_closed(&self, rank: usize, of: Generation) -> bool {
        self.has_left(rank, of) || of.number < self.current_of(of.group)
    }

    fn has_message(&self, from: usize, of: Generation) -> bool {
        self.messages[from].get(&of).is_some_and(|messages| !messages.is_empty())
    }

    fn has_left(&self, rank: usize, of: Generation) -> bool {
        self.gone.contains(&rank) || self.left.contains(&(rank, of.group))
    }

    fn end_of(&self, line: &[Generation]) -> Option<End> {
        let end =
            |of: &Generation| self.ended.get(&of.group).filter(|(last, _)| *last >= of.number).map(|(_, end)| *end);
        let (own, whole) = line.split_last()?;
        // A rank that leaves the whole group stays in the groups that were split off.
        whole.iter().filter_map(end).find(|end| end.reason != Reason::Leave).or_else(|| end(own))
    }
}
