//! What ranks must agree on before any data moves.

use crate::{dtype::DType, op::ReduceOp};
use std::fmt;

/// Which ranks give the data of a call, and which receive them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// No collective: ranks wait for each other, or exchange what the runtime needs.
    Control,
    /// The root gives, all receive.
    FromRoot,
    /// All give, the root receives.
    ToRoot,
    /// All give, all receive.
    Everyone,
    /// One rank gives, another receives.
    Pair,
}

/// What a call does with the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Elements arrive as they are.
    Moves,
    /// Elements are reduced: the call has an op.
    Combines,
}

/// What of a giver's data a receiver gets, or takes part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All.
    Whole,
    /// A part for each rank.
    Parts,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal: $flow:ident $work:ident $extent:ident,)*) => {
        /// Which call it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $kind,)* }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind),*];

            /// The call's name, as users write it.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name),* }
            }

            /// Which ranks give data, and which receive them.
            #[inline]
            pub const fn flow(self) -> Flow {
                match self { $(Kind::$kind => Flow::$flow),* }
            }

            /// What is done with the data.
            #[inline]
            pub const fn work(self) -> Work {
                match self { $(Kind::$kind => Work::$work),* }
            }

            /// What of a giver's data a receiver gets.
            #[inline]
            pub const fn extent(self) -> Extent {
                match self { $(Kind::$kind => Extent::$extent),* }
            }
        }
    };
}

kinds! {
    /// Every rank waits for every other.
    Barrier = "barrier": Control Moves Whole,
    /// One rank's data to all.
    Broadcast = "broadcast": FromRoot Moves Whole,
    /// All ranks' data combined on one.
    Reduce = "reduce": ToRoot Combines Whole,
    /// All ranks' data combined on all.
    AllReduce = "all_reduce": Everyone Combines Whole,
    /// All ranks' data in rank order on one.
    Gather = "gather": ToRoot Moves Whole,
    /// All ranks' data in rank order on all.
    AllGather = "all_gather": Everyone Moves Whole,
    /// One rank's data, a part to each.
    Scatter = "scatter": FromRoot Moves Parts,
    /// All ranks' data combined, a block to each.
    ReduceScatter = "reduce_scatter": Everyone Combines Parts,
    /// A part from each rank to each rank.
    AllToAll = "all_to_all": Everyone Moves Parts,
    /// One rank's data to one other, which receives it.
    SendRecv = "send/recv": Pair Moves Whole,
    /// The group divided into groups.
    Split = "split": Control Moves Whole,
    /// All replicas pause while one function sees all their arguments.
    MergeCall = "merge_call": Control Moves Whole,
    /// The replicas go on with the function's results.
    MergeReturn = "merge_call's return": Control Moves Whole,
    /// A variable is set to the aggregate of the replicas' values.
    Assign = "assign": Control Moves Whole,
    /// The aggregate of the replicas' values is added to a variable.
    AssignAdd = "assign_add": Control Moves Whole,
    /// The aggregate of the replicas' values is subtracted from a variable.
    AssignSub = "assign_sub": Control Moves Whole,
    /// The replicas go on with the variable's new value.
    AssignReturn = "assign's return": Control Moves Whole,
    /// Every rank tells what it called, after calls that did not agree.
    Explain = "explain": Control Moves Whole,
    /// The replicas of all workers come together for the first time.
    Workers = "MultiWorkerMirroredStrategy": Control Moves Whole,
    /// A value of each replica, combined for all workers.
    StrategyReduce = "Strategy::reduce": Control Moves Whole,
    /// The same, with destinations.
    StrategyReduceTo = "Strategy::reduce_to": Control Moves Whole,
    /// A value of each replica, one after the other, for all workers.
    StrategyGather = "Strategy::gather": Control Moves Whole,
    /// A variable is made on all workers, with the chief's initial value.
    NewVariable = "Variable::builder": Control Moves Whole,
    /// The components of all workers' replicas are read as one value.
    ReadVariable = "Variable::read": Control Moves Whole,
    /// Some rows of it.
    ReadRows = "Variable::read_rows": Control Moves Whole,
    /// The workers tell each other whether their data sets have a step.
    NextStep = "DistributedIterator::next": Control Moves Whole,
    /// The chief writes a checkpoint, and the others wait for it.
    Save = "checkpoint::save": Control Moves Whole,
    /// All workers restore the same checkpoint.
    Restore = "checkpoint::restore": Control Moves Whole,
}

impl Kind {
    /// Whether one rank alone gives or receives.
    pub const fn has_root(self) -> bool {
        match self.flow() {
            Flow::FromRoot | Flow::ToRoot | Flow::Pair => true,
            Flow::Control | Flow::Everyone => false,
        }
    }

    /// Whether every rank gets all that each giver gives, as it is.
    pub const fn copies_to_all(self) -> bool {
        match (self.flow(), self.work(), self.extent()) {
            (Flow::FromRoot | Flow::Everyone, Work::Moves, Extent::Whole) => true,
            (Flow::Control | Flow::ToRoot | Flow::Pair, _, _) | (_, Work::Combines, _) | (_, _, Extent::Parts) => false,
        }
    }

    /// Whether the larger of a rank's buffers has a part for each rank.
    pub const fn has_parts(self) -> bool {
        match (self.flow(), self.work(), self.extent()) {
            (_, _, Extent::Parts) | (Flow::ToRoot | Flow::Everyone, Work::Moves, Extent::Whole) => true,
            (Flow::Control | Flow::FromRoot | Flow::Pair, _, Extent::Whole) | (_, Work::Combines, Extent::Whole) => {
                false
            }
        }
    }

    /// The ratio busbw / algbw as nccl-tests defines it: the share of a buffer's bytes that each of
    /// `ranks` ranks must send or receive.
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

    /// Whether contributions are combined, so that the call has an op.
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

/// One collective call as the ranks must agree on it: equal on all of them, or no data moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Which call.
    pub kind: Kind,
    /// How contributions are combined, where they are.
    pub op: Option<ReduceOp>,
    /// The element type, where data moves.
    pub dtype: Option<DType>,
    /// Elements per rank; `None` where ranks may differ.
    pub count: Option<usize>,
    /// The rank that alone gives or receives, where there is one.
    pub root: Option<usize>,
    /// A digest of what else must agree (shapes, axis, the structure of a nest); 0 where nothing
    /// else does.
    pub detail: u64,
}

impl Signature {
    /// A call of this kind in which nothing else has to agree.
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

/// Folds `word` into `digest`: every bit of either changes about half the bits of the result.
#[inline]
pub const fn mix(digest: u64, word: u64) -> u64 {
    let x = (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (x ^ (x >> 29)).wrapping_add(0x2545_f491_4f6c_dd1d)
}

/// A digest of text, for the `detail` of a signature.
pub fn digest(text: &str) -> u64 {
    text.bytes().fold(text.len() as u64, |digest, byte| mix(digest, byte as u64))
}
