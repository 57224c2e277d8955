//! Waits for letters, and how they end.

use super::letter::{End, Generation, Tagged};
use std::time::Instant;

/// The result of a wait for another rank.
pub(super) enum News {
    /// The next message of that rank.
    Message(Vec<u8>),
    /// The group was aborted.
    Ended(End),
    /// The rank has left and sent no more messages.
    Left,
    /// The deadline has passed.
    Late,
}

/// A receive that has not ended.
pub(super) struct Receive {
    /// The generations of its group and of those that this was split from, its own last.
    pub(super) line: Vec<Generation>,
    /// The ranks of the whole group whose messages it takes.
    pub(super) from: Vec<usize>,
    pub(super) tag: u64,
    pub(super) deadline: Instant,
    /// Takes the end. The caller holds no lock.
    pub(super) finish: Box<dyn FnOnce(Outcome) + Send>,
}

/// The end of a receive.
pub(super) enum Outcome {
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
