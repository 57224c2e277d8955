//! Letters, and the generations of groups that they are of.

use consonance::raw::{Envelope, Reason};

/// A generation of a group. A group keeps its number when ranks are lost. The ranks that are left
/// have generations of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Generation {
    /// The number of the group.
    pub(crate) group: u64,
    /// The number of ranks that the group has lost.
    pub(crate) lost: u64,
    /// A digest of the members that are left, by their ranks in the whole group; 0 without losses.
    pub(crate) members: u64,
    /// The number of earlier generations of the same members.
    pub(crate) number: u64,
}

impl Generation {
    /// Returns the first generation of the group of this number.
    pub(crate) fn of_all(group: u64) -> Generation {
        Generation { group, lost: 0, members: 0, number: 0 }
    }

    /// Returns the first generation of `members`, which are left of this one's after this number of
    /// losses more. It depends on no order of losses.
    pub(crate) fn without(self, lost: usize, members: &[usize]) -> Generation {
        let members = members.iter().fold(REMAINING, |digest, &rank| mix(digest, rank as u64));
        Generation { lost: self.lost + lost as u64, members, number: 0, ..self }
    }

    /// Returns the generation of a group that is split from this one: the number differs from that
    /// of any other group if the numbers of splits, or the first members, do.
    pub(crate) fn split(self, splits: u64, first: usize) -> Generation {
        let Generation { group, lost, members, number } = self;
        Generation::of_all([SPLIT, group, lost, members, number, splits, first as u64].into_iter().fold(0, mix))
    }

    /// Returns the first generation of the same members.
    pub(crate) fn first(self) -> Generation {
        Generation { number: 0, ..self }
    }

    /// Returns whether a rank in generation `now` of this group never comes to this generation.
    /// What a rank knows of losses only grows: of two sets of as many lost ranks it has seen one.
    pub(crate) fn is_past(&self, now: &Generation) -> bool {
        let is_other = self.members != now.members || self.number < now.number;
        self.group == now.group && (self.lost < now.lost || self.lost == now.lost && is_other)
    }
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
    /// The sender goes on without these ranks of the whole group, as far as this group is
    /// concerned.
    Lost { group: u64, ranks: Vec<usize> },
    /// The sender makes no more calls in any group.
    Gone,
}

/// The reason of an abort, the rank that it blames, and the turn in which it was made.
#[derive(Clone, Copy)]
pub(crate) struct End {
    /// The rank in the group that was aborted.
    pub(crate) rank: usize,
    /// The same rank in the whole group.
    pub(crate) member: usize,
    pub(crate) reason: Reason,
    pub(crate) turn: Option<u64>,
}

/// A message that no receive has taken.
pub(crate) struct Tagged {
    pub(crate) envelope: Envelope,
    pub(crate) bytes: Vec<u8>,
}

/// Begins the digest of the members of a group of ranks that are left.
const REMAINING: u64 = u64::from_be_bytes(*b"left    ");

/// Begins the number of a group that is split from another one.
const SPLIT: u64 = u64::from_be_bytes(*b"split   ");

/// Returns the next step of a digest. Every bit of both numbers changes about half of its bits.
fn mix(digest: u64, next: u64) -> u64 {
    // The finish of SplitMix64.
    let mut mixed = digest.wrapping_mul(3).wrapping_add(next).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
