//! The messages that have arrived for a rank.

use consonance::raw::Reason;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Condvar, Mutex, MutexGuard},
    time::Instant,
};

/// A message from one rank to another.
pub(crate) enum Letter {
    /// Data in the group of this number.
    Message { group: u64, bytes: Vec<u8> },
    /// The group was aborted.
    End { group: u64, end: End },
    /// The sender makes no more calls in the group.
    Leave { group: u64 },
    /// The sender makes no more calls in any group.
    Gone,
}

/// The reason of an abort, and the rank of the group that it blames.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) rank: usize,
    pub(crate) reason: Reason,
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

pub(crate) struct Inbox {
    contents: Mutex<Contents>,
    changed: Condvar,
}

struct Contents {
    /// The messages of each rank, by group.
    messages: Vec<HashMap<u64, VecDeque<Vec<u8>>>>,
    ended: HashMap<u64, End>,
    left: HashSet<(usize, u64)>,
    gone: HashSet<usize>,
}

impl Inbox {
    /// Makes the inbox of a rank of a group of this size.
    pub(crate) fn new(size: usize) -> Inbox {
        let messages = (0..size).map(|_| HashMap::new()).collect();
        let contents = Contents { messages, ended: HashMap::new(), left: HashSet::new(), gone: HashSet::new() };
        Inbox { contents: Mutex::new(contents), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().expect("nobody panics holding an inbox")
    }

    /// Stores a letter of rank `from`.
    pub(crate) fn put(&self, from: usize, letter: Letter) {
        let mut contents = self.lock();
        match letter {
            Letter::Message { group, bytes } => contents.messages[from].entry(group).or_default().push_back(bytes),
            Letter::End { group, end } => _ = contents.ended.entry(group).or_insert(end),
            Letter::Leave { group } => _ = contents.left.insert((from, group)),
            Letter::Gone => _ = contents.gone.insert(from),
        }
        self.changed.notify_all();
    }

    /// Returns the abort of a group, or of one that it was split from. `line` has their numbers.
    pub(crate) fn end_of(&self, line: &[u64]) -> Option<End> {
        self.lock().end_of(line)
    }

    /// Returns the abort of the group of this number.
    pub(crate) fn own_end_of(&self, group: u64) -> Option<End> {
        self.lock().ended.get(&group).copied()
    }

    /// Waits until [`take`](Inbox::take) would not wait for one of the ranks `from`, at most until
    /// `until`. Returns the position of that rank.
    pub(crate) fn probe(&self, from: &[usize], line: &[u64], until: Instant) -> Option<usize> {
        let group = line.last().copied().unwrap_or_default();
        let mut contents = self.lock();
        loop {
            let has_ended = contents.end_of(line).is_some();
            let is_ready =
                |&rank: &usize| has_ended || contents.has_message(rank, group) || contents.has_left(rank, group);
            if let Some(place) = from.iter().position(is_ready) {
                return Some(place);
            }
            contents = self.wait(contents, until)?;
        }
    }

    /// Waits for a letter. Returns `None` if the deadline has passed.
    fn wait<'i>(&'i self, contents: MutexGuard<'i, Contents>, deadline: Instant) -> Option<MutexGuard<'i, Contents>> {
        let rest = deadline.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero())?;
        Some(self.changed.wait_timeout(contents, rest).expect("nobody panics holding an inbox").0)
    }

    /// Waits for something of rank `from` in the last group of `line`, at most until the deadline,
    /// and returns it.
    pub(crate) fn take(&self, from: usize, line: &[u64], deadline: Instant) -> News {
        let group = line.last().copied().unwrap_or_default();
        let mut contents = self.lock();
        loop {
            // A message that arrived before the abort is still delivered.
            if let Some(bytes) = contents.messages[from].get_mut(&group).and_then(VecDeque::pop_front) {
                return News::Message(bytes);
            }
            if let Some(end) = contents.end_of(line) {
                return News::Ended(end);
            }
            if contents.has_left(from, group) {
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
    fn has_message(&self, from: usize, group: u64) -> bool {
        self.messages[from].get(&group).is_some_and(|messages| !messages.is_empty())
    }

    fn has_left(&self, rank: usize, group: u64) -> bool {
        self.gone.contains(&rank) || self.left.contains(&(rank, group))
    }

    fn end_of(&self, line: &[u64]) -> Option<End> {
        let (own, whole) = line.split_last()?;
        // A rank that leaves the whole group stays in the groups that were split off.
        let inherited = whole.iter().filter_map(|group| self.ended.get(group)).find(|end| end.reason != Reason::Leave);
        inherited.or_else(|| self.ended.get(own)).copied()
    }
}
