//! Why a group was ended, and which rank is at fault.

use crate::shm::records::Generation;

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
