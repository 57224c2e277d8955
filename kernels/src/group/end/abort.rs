//! The reasons why a group was ended and why a step failed.

use crate::shm::{call_log::Outcome, records::Generation};

pub use crate::shm::codes::Reason;

/// The rank at fault for the end of a group, and the reason. The first abort wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The rank, in the numbering of the group that was ended.
    pub rank: usize,
    /// Why.
    pub reason: Reason,
}

impl Abort {
    /// Returns the abort word for `generation` and, if it is given, `turn`. Later generations have
    /// larger words, and 0 is no abort. `comes_first`: the group was split from another, and none
    /// of its ancestors had ended.
    pub(in crate::group) fn word(self, generation: Generation, turn: Option<u64>, comes_first: bool) -> u64 {
        let turn = turn.map_or(0, |turn| 1 << 39 | (turn % Abort::TURNS) << 32);
        let order = if comes_first { Abort::COMES_FIRST } else { 0 };
        generation.mark() << 40 | turn | (self.rank as u64) << 8 | order | self.reason as u64
    }

    /// The bit of a word that no reason has.
    const COMES_FIRST: u64 = 1 << 7;

    /// Whether a word says that no ancestor of the group had ended before.
    pub(in crate::group) fn comes_before_ancestors(word: u64) -> bool {
        word & Abort::COMES_FIRST != 0
    }

    /// Turns that a word can tell apart: it holds them modulo this number.
    const TURNS: u64 = 1 << 7;

    /// Whether a word has a turn after `turn`, by less than half of [`TURNS`](Abort::TURNS).
    pub(in crate::group) fn is_after(word: u64, turn: u64) -> bool {
        let turns = (word >> 32).wrapping_sub(turn) % Abort::TURNS;
        word >> 39 & 1 == 1 && (1..Abort::TURNS / 2).contains(&turns)
    }

    /// Whether `word` ends `generation`: an abort ends the generations before its own, too.
    #[inline]
    pub(in crate::group) fn ends(word: u64, generation: Generation) -> bool {
        word >> 40 >= generation.mark()
    }

    /// Returns the abort in `word`, if it [ends](Abort::ends) `generation`.
    pub(in crate::group) fn read(word: u64, generation: Generation) -> Option<Abort> {
        if !Abort::ends(word, generation) {
            return None;
        }
        let code = (word & (Abort::COMES_FIRST - 1)) as u8;
        let reason = Reason::ALL.into_iter().find(|&reason| reason as u8 == code);
        Some(Abort { rank: (word as u32 >> 8) as usize, reason: reason.unwrap_or(Reason::Failure) })
    }
}

/// The reason why a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not all ranks made the same call. All of them get this fault, none has touched any memory,
    /// and the group still works. A rank that has gone on from a message is told by
    /// [`Endpoint::take_differing_late`](crate::group::Endpoint::take_differing_late) instead.
    Mismatch,
    /// This rank has left for good; every later step fails the same.
    Left(usize),
    /// These ranks had not come as far as this rank when the deadline passed. The group has ended.
    Missing(Vec<usize>),
    /// A rank has ended the group.
    Aborted(Abort),
    /// The system gave no memory to stage data for other processes. The group has ended.
    NoMemory {
        /// Bytes that were requested.
        bytes: usize,
        /// The system's error number.
        code: Option<i32>,
    },
    /// This rank wrote values that no correct rank writes: its process wrote where it must not. The
    /// group has ended.
    CorruptPeer(usize),
    /// This process has no memory for the data that all ranks announce. The group has ended.
    Oversize {
        /// The rank with the most data.
        rank: usize,
        /// Bytes of all ranks together.
        bytes: usize,
    },
    /// This process is a copy, made by `fork`, of the one that has the endpoint.
    Forked,
    /// No area is free for another group that is split off. All members of the new group get this
    /// fault, and the group still works.
    TooManyGroups,
}

impl Fault {
    pub(in crate::group) fn outcome(&self) -> Outcome {
        match self {
            Fault::Mismatch => Outcome::Mismatch,
            Fault::Left(_) => Outcome::Left,
            Fault::Missing(_) => Outcome::Missing,
            Fault::Aborted(_)
            | Fault::NoMemory { .. }
            | Fault::CorruptPeer(_)
            | Fault::Oversize { .. }
            | Fault::Forked
            | Fault::TooManyGroups => Outcome::Aborted,
        }
    }
}
