//! Why a group was ended, and which rank is at fault.

use crate::shm::records::Generation;

/// Why a group was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// A rank did not arrive before the deadline of another.
    Deadline = 1,
    /// A rank's code panicked.
    Panic = 2,
    /// A rank's code returned an error, or asked for the end.
    Failure = 3,
    /// A rank's process has ended.
    Death = 4,
    /// A rank got no memory for the data that it shares.
    Memory = 5,
    /// A rank's process has left the group, to form another one.
    Departure = 6,
    /// A rank is idle, and another rank of its process waits for it.
    Return = 7,
    /// A rank has left, and a rank that was told of it has ended the group.
    Leave = 8,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Reason; 8] = [
        Reason::Deadline,
        Reason::Panic,
        Reason::Failure,
        Reason::Death,
        Reason::Memory,
        Reason::Departure,
        Reason::Return,
        Reason::Leave,
    ];
}

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
    /// larger words, and 0 is no abort.
    pub(super) fn word(self, generation: Generation, turn: Option<u64>) -> u64 {
        let turn = turn.map_or(0, |turn| 1 << 39 | (turn % Abort::TURNS) << 32);
        generation.mark() << 40 | turn | (self.rank as u64) << 8 | self.reason as u64
    }

    /// Turns that a word can tell apart: it holds them modulo this number.
    const TURNS: u64 = 1 << 7;

    /// Whether a word has a turn after `turn`, by less than half of [`TURNS`](Abort::TURNS).
    pub(super) fn is_after(word: u64, turn: u64) -> bool {
        let turns = (word >> 32).wrapping_sub(turn) % Abort::TURNS;
        word >> 39 & 1 == 1 && (1..Abort::TURNS / 2).contains(&turns)
    }

    /// Returns the abort in `word`, if it ends `generation`: an abort ends the generations before
    /// its own, too.
    pub(super) fn read(word: u64, generation: Generation) -> Option<Abort> {
        if word >> 40 < generation.mark() {
            return None;
        }
        let reason = Reason::ALL.into_iter().find(|&reason| reason as u8 == word as u8);
        Some(Abort { rank: (word as u32 >> 8) as usize, reason: reason.unwrap_or(Reason::Failure) })
    }
}
