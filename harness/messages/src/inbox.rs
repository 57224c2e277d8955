//! What has come for a rank.

use consonance::raw::Reason;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Condvar, Mutex, MutexGuard},
    time::Instant,
};

/// What ranks send each other.
pub(crate) enum Letter {
    /// Data, in the group of this number.
    Message { group: u64, bytes: Vec<u8> },
    /// The group was ended.
    End { group: u64, end: End },
    /// The sender makes no more calls in the group.
    Leave { group: u64 },
    /// The sender makes no more calls in any.
    Gone,
}

/// Why a group was ended, and by which rank of it.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) rank: usize,
    pub(crate) reason: Reason,
}

/// What a rank that waits for another finds.
pub(crate) enum News {
    /// Its next message.
    Message(Vec<u8>),
    /// The group was ended.
    Ended(End),
    /// It has left, and has sent no more messages.
    Left,
    /// The deadline has passed.
    Late,
}

pub(crate) struct Inbox {
    contents: Mutex<Contents>,
    changed: Condvar,
}

struct Contents {
    /// Of each rank, by group.
    messages: Vec<HashMap<u64, VecDeque<Vec<u8>>>>,
    ended: HashMap<u64, End>,
    left: HashSet<(usize, u64)>,
    gone: HashSet<usize>,
}

impl Inbox {
    /// Of a rank of a group of this size.
    pub(crate) fn new(size: usize) -> Inbox {
        let messages = (0..size).map(|_| HashMap::new()).collect();
        let contents = Contents { messages, ended: HashMap::new(), left: HashSet::new(), gone: HashSet::new() };
        Inbox { contents: Mutex::new(contents), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().expect("nobody panics holding an inbox")
    }

    /// Puts in a letter of `from`.
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

    /// The end of a group, or of one that it was split from: `line` has their numbers.
    pub(crate) fn end_of(&self, line: &[u64]) -> Option<End> {
        self.lock().end_of(line)
    }

    /// What there is of `from` in the last group of `line`, once there is something; before the
    /// deadline.
    pub(crate) fn take(&self, from: usize, line: &[u64], deadline: Instant) -> News {
        let group = line.last().copied().unwrap_or_default();
        let mut contents = self.lock();
        loop {
            // What came before the end is not lost by it.
            if let Some(bytes) = contents.messages[from].get_mut(&group).and_then(VecDeque::pop_front) {
                return News::Message(bytes);
            }
            if let Some(end) = contents.end_of(line) {
                return News::Ended(end);
            }
            if contents.gone.contains(&from) || contents.left.contains(&(from, group)) {
                return News::Left;
            }
            let Some(rest) = deadline.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) else {
                return News::Late;
            };
            contents = self.changed.wait_timeout(contents, rest).expect("nobody panics holding an inbox").0;
        }
    }
}

impl Contents {
    fn end_of(&self, line: &[u64]) -> Option<End> {
        let (own, whole) = line.split_last()?;
        // A rank that leaves the whole stays in its parts.
        let inherited = whole.iter().filter_map(|group| self.ended.get(group)).find(|end| end.reason != Reason::Leave);
        inherited.or_else(|| self.ended.get(own)).copied()
    }
}
