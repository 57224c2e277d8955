//! Calls, and what ranks must agree on before any data moves.

use crate::{dtype::DType, op::ReduceOp};
use std::fmt;

/// The ranks that send the data of a call, and the ranks that receive them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// No collective: ranks wait for each other, or exchange data of the runtime.
    Control,
    /// The root sends, all ranks receive.
    FromRoot,
    /// All ranks send, the root receives.
    ToRoot,
    /// All ranks send, all ranks receive.
    Everyone,
    /// One rank sends, another receives.
    Pair,
}

/// The work that a call does on the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Elements are moved unchanged.
    Moves,
    /// Elements are reduced: the call has an op.
    Combines,
}

/// The part of a sender's data that each receiver gets or reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All data.
    Whole,
    /// A part for each rank.
    Parts,
}

/// Whether a collective has a form in which the ranks' parts differ in size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// It has none.
    Equal,
    /// One with a count for each rank.
    EachRank,
    /// One with a count from each rank to each rank.
    EachPair,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal: $flow:ident $work:ident $extent:ident $counts:ident,)*) => {
        /// The kind of a call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
            /// A call of a layer above the collectives: its ranks wait for each other, or exchange
            /// data of that layer.
            Extension(&'static Extension),
        }

        impl Kind {
            /// Every kind but the extensions.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind),*];

            /// Returns the call's name as users write it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
                    Kind::Extension(extension) => extension.name,
                }
            }

            /// Returns the ranks that send data, and the ranks that receive them.
            #[inline]
            pub const fn flow(self) -> Flow {
                match self {
                    $(Kind::$kind => Flow::$flow,)*
                    Kind::Extension(_) => Flow::Control,
                }
            }

            /// Returns the work that the call does on the data.
            #[inline]
            pub const fn work(self) -> Work {
                match self {
                    $(Kind::$kind => Work::$work,)*
                    Kind::Extension(_) => Work::Moves,
                }
            }

            /// Returns the part of a sender's data that a receiver gets.
            #[inline]
            pub const fn extent(self) -> Extent {
                match self {
                    $(Kind::$kind => Extent::$extent,)*
                    Kind::Extension(_) => Extent::Whole,
                }
            }

            /// Returns whether the call has a form in which parts differ in size.
            pub const fn counts(self) -> Counts {
                match self {
                    $(Kind::$kind => Counts::$counts,)*
                    Kind::Extension(_) => Counts::Equal,
                }
            }
        }
    };
}

kinds! {
    /// Combines all ranks' data on all ranks.
    AllReduce = "all_reduce": Everyone Combines Whole Equal,
    /// Combines all ranks' data on one rank.
    Reduce = "reduce": ToRoot Combines Whole Equal,
    /// Combines all ranks' data, and gives each rank a block of the result.
    ReduceScatter = "reduce_scatter": Everyone Combines Parts Equal,
    /// Sends one rank's data to all.
    Broadcast = "broadcast": FromRoot Moves Whole Equal,
    /// Concatenates all ranks' data in rank order on all ranks.
    AllGather = "all_gather": Everyone Moves Whole EachRank,
    /// Concatenates all ranks' data in rank order on one rank.
    Gather = "gather": ToRoot Moves Whole EachRank,
    /// Sends a part of one rank's data to each rank.
    Scatter = "scatter": FromRoot Moves Parts EachRank,
    /// Sends a part from each rank to each rank.
    AllToAll = "all_to_all": Everyone Moves Parts EachPair,
    /// Sends one rank's data to another, which receives them.
    SendRecv = "send/recv": Pair Moves Whole Equal,
    /// Every rank waits for every other.
    Barrier = "barrier": Control Moves Whole Equal,
    /// Divides the group into groups.
    Split = "split": Control Moves Whole Equal,
}

/// The kind of a call that a layer above the collectives registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extension {
    /// Its place in the table of its layer.
    pub place: u8,
    /// The call's name as users write it.
    pub name: &'static str,
}

impl Kind {
    /// Returns whether only one rank sends, or only one receives.
    pub const fn has_root(self) -> bool {
        match self.flow() {
            Flow::FromRoot | Flow::ToRoot | Flow::Pair => true,
            Flow::Control | Flow::Everyone => false,
        }
    }

    /// Returns whether every rank gets all data of each sender unchanged.
    pub const fn copies_to_all(self) -> bool {
        match (self.flow(), self.work(), self.extent()) {
            (Flow::FromRoot | Flow::Everyone, Work::Moves, Extent::Whole) => true,
            (Flow::Control | Flow::ToRoot | Flow::Pair, _, _) | (_, Work::Combines, _) | (_, _, Extent::Parts) => false,
        }
    }

    /// Returns whether the larger of a rank's buffers has a part for each rank.
    pub const fn has_parts(self) -> bool {
        match (self.flow(), self.work(), self.extent()) {
            (_, _, Extent::Parts) | (Flow::ToRoot | Flow::Everyone, Work::Moves, Extent::Whole) => true,
            (Flow::Control | Flow::FromRoot | Flow::Pair, _, Extent::Whole) | (_, Work::Combines, Extent::Whole) => {
                false
            }
        }
    }

    /// Returns the ratio busbw / algbw as nccl-tests defines it: the share of a buffer's bytes that
    /// each of `ranks` ranks must send or receive.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let others = (ranks - 1) as f64 / ranks as f64;
        match (self.flow(), self.work(), self.extent()) {
            (Flow::Control, _, _) => 0.0,
            (Flow::Everyone, Work::Combines, Extent::Whole) => 2.0 * others,
            (Flow::Pair, _, _) | (Flow::FromRoot, _, Extent::Whole) | (Flow::ToRoot, Work::Combines, _) => 1.0,
            (Flow::FromRoot | Flow::Everyone, _, Extent::Parts) | (Flow::ToRoot | Flow::Everyone, Work::Moves, _) => {
                others
            }
        }
    }

    /// Returns the call that carries gradients backward, from the outputs of this one to its
    /// inputs. `None` if no data move. A call that combines has one for sum and mean only.
    pub const fn adjoint(self) -> Option<Kind> {
        match (self.flow(), self.work(), self.extent()) {
            (Flow::Control, _, _) => None,
            (Flow::Pair, _, _) => Some(Kind::SendRecv),
            (Flow::Everyone, Work::Combines, Extent::Whole) => Some(Kind::AllReduce),
            (Flow::Everyone, Work::Combines, Extent::Parts) => Some(Kind::AllGather),
            (Flow::Everyone, Work::Moves, Extent::Whole) => Some(Kind::ReduceScatter),
            (Flow::Everyone, Work::Moves, Extent::Parts) => Some(Kind::AllToAll),
            (Flow::FromRoot, _, Extent::Whole) => Some(Kind::Reduce),
            (Flow::FromRoot, _, Extent::Parts) => Some(Kind::Gather),
            (Flow::ToRoot, Work::Combines, _) => Some(Kind::Broadcast),
            (Flow::ToRoot, Work::Moves, _) => Some(Kind::Scatter),
        }
    }

    /// Returns whether contributions are combined, so that the call has an op.
    pub const fn combines(self) -> bool {
        match self.work() {
            Work::Combines => true,
            Work::Moves => false,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The properties of a call that ranks must agree on. If they are not equal on all ranks, no data
/// moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The kind of the call.
    pub kind: Kind,
    /// The operation, if contributions are combined.
    pub op: Option<ReduceOp>,
    /// The element type, if data move.
    pub dtype: Option<DType>,
    /// The number of elements per rank; `None` if it may differ between ranks.
    pub count: Option<usize>,
    /// The only rank that sends or receives, if there is one.
    pub root: Option<usize>,
    /// A digest of everything else that must agree (shapes, axis, the structure of a nest); 0 if
    /// there is nothing else.
    pub detail: u64,
}

impl Signature {
    /// Makes the signature of a call of this kind in which nothing else must agree.
    pub const fn new(kind: Kind) -> Signature {
        Signature { kind, op: None, dtype: None, count: None, root: None, detail: 0 }
    }
}

/// Writes the call as users know it: `all_reduce(sum, f32, count 1024)`.
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.op.map(|op| op.to_string()));
        parts.extend(self.dtype.map(|dtype| dtype.to_string()));
        parts.extend(self.count.map(|count| format!("count {count}")));
        parts.extend(self.root.map(|root| format!("root {root}")));
        write!(f, "{}({})", self.kind, parts.join(", "))
    }
}
