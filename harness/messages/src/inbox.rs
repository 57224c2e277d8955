//! The messages that have arrived for a rank.

use consonance::raw::Reason;
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

pub(crate) struct Inbox {
    contents: Mutex<Contents>,
    changed: Condvar,
}

struct Contents {
    /// The messages of each rank, by generation.
    messages: Vec<HashMap<Generation, VecDeque<Vec<u8>>>>,
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
        let contents = Contents {
            messages,
            current: HashMap::new(),
            ended: HashMap::new(),
            left: HashSet::new(),
            gone: HashSet::new(),
        };
        Inbox { contents: Mutex::new(contents), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().expect("nobody panics holding an inbox")
    }

    /// Stores a letter of rank `from`.
    pub(crate) fn put(&self, from: usize, letter: Letter) {
        let mut contents = self.lock();
        match letter {
            Letter::Message { of, .. } if of.number < contents.current_of(of.group) => {}
            Letter::Message { of, bytes } => contents.messages[from].entry(of).or_default().push_back(bytes),
            Letter::End { of, end } => {
                let has_ended = contents.ended.get(&of.group).is_some_and(|&(last, _)| last >= of.number);
                if !has_ended {
                    contents.ended.insert(of.group, (of.number, end));
                }
            }
            Letter::Leave { group } => _ = contents.left.insert((from, group)),
            Letter::Gone => _ = contents.gone.insert(from),
        }
        self.changed.notify_all();
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
        for messages in &mut contents.messages {
            messages.retain(|of, _| of.group != group || of.number >= number);
        }
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
        Some(self.changed.wait_timeout(contents, rest).expect("nobody panics holding an inbox").0)
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
