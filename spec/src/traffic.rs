//! The data that each rank gives and gets in a call, and the least that it must move, from the
//! columns of the table of [collectives](crate::call).

use crate::call::{Extent, Flow, Kind, Work};

/// The place of a rank in a call that has a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The root; the sender, if one rank sends to another.
    Root,
    /// The rank that receives what the root sends to it alone.
    Receiver,
    /// Any other rank. In a call without root all ranks are.
    Other,
}

/// The data of a call as one rank sees them. Counts are elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// The kind of the call.
    pub kind: Kind,
    /// The number of ranks.
    pub ranks: usize,
    /// The place of the rank.
    pub place: Position,
    /// Elements of the larger of the buffers, on a rank that has it.
    pub whole: usize,
    /// Elements of the part of that buffer that comes from this rank to itself, if the buffer
    /// [has parts](Kind::has_parts).
    pub own: usize,
    /// Whether the result replaces the contribution.
    pub in_place: bool,
}

/// The data of a rank in a call, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// Elements that it shows to others.
    pub contributed: usize,
    /// Elements that it reads for its result.
    pub needed: usize,
    /// Those of the elements in `needed` that are its own.
    pub kept: usize,
    /// Elements that it writes as its result.
    pub result: usize,
}

impl Data {
    /// Returns the data that the rank gives and gets.
    ///
    /// ```
    /// use consonance_spec::{Kind, traffic::{Data, Position, Role}};
    /// let data = Data { kind: Kind::AllGather, ranks: 3, place: Position::Other, whole: 30, own: 10, in_place: false };
    /// assert_eq!(data.role(), Role { contributed: 10, needed: 30, kept: 10, result: 30 });
    /// ```
    pub fn role(&self) -> Role {
        let Data { kind, ranks, place, whole, own, in_place } = *self;
        let is_root = place == Position::Root;
        let (sends, receives) = match kind.flow() {
            Flow::Control => (false, false),
            Flow::FromRoot => (is_root, kind.extent() == Extent::Parts || !is_root),
            Flow::ToRoot => (true, is_root),
            Flow::Everyone => (true, true),
            Flow::Pair => (is_root, place == Position::Receiver),
        };
        let (contributed, needed, kept, result) = match (kind.flow(), kind.work(), kind.extent()) {
            (_, Work::Combines, Extent::Whole) => (whole, ranks * whole, whole, whole),
            (_, Work::Combines, Extent::Parts) => (whole, whole, own, own),
            // The root of a call in place keeps its own part where it lies.
            (Flow::ToRoot, _, _) if is_root && in_place => (0, whole - own, 0, whole - own),
            (Flow::ToRoot, _, _) if is_root => (0, whole, own, whole),
            (Flow::FromRoot, _, Extent::Parts) if is_root && in_place => (whole, 0, 0, 0),
            (Flow::Everyone, _, Extent::Whole) if in_place => (own, whole - own, 0, whole - own),
            (Flow::ToRoot | Flow::Everyone, _, Extent::Whole) => (own, whole, own, whole),
            (Flow::ToRoot | Flow::Everyone, _, Extent::Parts) => (whole, whole, own, whole),
            (Flow::FromRoot, _, Extent::Parts) => (whole, own, if is_root { own } else { 0 }, own),
            (Flow::FromRoot | Flow::Pair | Flow::Control, _, _) => (whole, whole, 0, whole),
        };
        let received = |elements| if receives { elements } else { 0 };
        Role {
            contributed: if sends { contributed } else { 0 },
            needed: received(needed),
            kept: received(kept),
            result: received(result),
        }
    }

    /// Returns the elements that the rank must read and write at least, if the ranks can read and
    /// write all buffers. Ranks share reductions evenly; data that only move are copied by the
    /// ranks that get them, or by those that give their parts to a root.
    ///
    /// ```
    /// use consonance_spec::{Kind, traffic::{Data, Position}};
    /// let data = Data { kind: Kind::AllReduce, ranks: 4, place: Position::Other, whole: 100, own: 100, in_place: true };
    /// // A quarter of each of the four buffers is read, and written.
    /// assert_eq!(data.least(), 200);
    /// ```
    pub fn least(&self) -> usize {
        let Data { kind, ranks, whole, own, in_place, .. } = *self;
        match (kind.flow(), kind.work(), kind.extent()) {
            (Flow::Control, _, _) => 0,
            // A rank's own part stays where it lies.
            (Flow::Everyone, Work::Moves, _) if in_place => 2 * (whole - own),
            // The rank reads its block of every input, and writes it in every output.
            (Flow::Everyone, Work::Combines, Extent::Whole) | (Flow::Everyone, Work::Moves, _) => 2 * whole,
            (_, Work::Combines, _) => whole + whole / ranks,
            (Flow::FromRoot | Flow::Pair, Work::Moves, Extent::Whole) => 2 * self.role().result,
            (Flow::FromRoot | Flow::ToRoot | Flow::Pair, Work::Moves, _) => 2 * own,
        }
    }
}
