//! Why a group was ended, and whose fault it is.

use crate::shm::records::Generation;

/// Why a group was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// A rank did not come before the deadline of another.
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
    /// A rank rests, and another one of its process waits for it.
    Return = 7,
    /// A rank has left, and one that was told so has ended the group.
    Leave = 8,
}

/// Whose fault it is that a group was ended, and why. The first to say so wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The rank, in the numbering of the group that was ended.
    pub rank: usize,
    /// Why.
    pub reason: Reason,
}

impl Abort {
    /// The abort word of an end in `generation` and, if it is given, `turn`. Later generations have
    /// larger words, and 0 is none.
    pub(super) fn word(self, generation: Generation, turn: Option<u64>) -> u64 {
        let turn = turn.map_or(0, |turn| 1 << 39 | (turn % Abort::TURNS) << 32);
        generation.mark() << 40 | turn | (self.rank as u64) << 8 | self.reason as u64
    }

    /// How many numbers a word has for turns. They are counted in a circle.
    const TURNS: u64 = 1 << 7;

    /// Whether a word says that the end came in a turn after `turn`: by less than half a circle.
    pub(super) fn is_after(word: u64, turn: u64) -> bool {
        let turns = (word >> 32).wrapping_sub(turn) % Abort::TURNS;
        word >> 39 & 1 == 1 && (1..Abort::TURNS / 2).contains(&turns)
    }

    /// What a word says, if it ends `generation`: an end ends the generations before it, too.
    pub(super) fn read(word: u64, generation: Generation) -> Option<Abort> {
        if word >> 40 < generation.mark() {
            return None;
        }
        let reason = match word as u8 {
            1 => Reason::Deadline,
            2 => Reason::Panic,
            4 => Reason::Death,
            5 => Reason::Memory,
            6 => Reason::Departure,
            7 => Reason::Return,
            8 => Reason::Leave,
            _ => Reason::Failure,
        };
        Some(Abort { rank: (word as u32 >> 8) as usize, reason })
    }
}
