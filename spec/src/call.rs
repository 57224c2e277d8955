//! What ranks must agree on before any data moves.

use crate::{dtype::DType, op::ReduceOp};
use std::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
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

            /// The kind whose discriminant is `code`; `None` for a code that no kind has.
            pub fn from_code(code: u8) -> Option<Kind> {
                Kind::ALL.iter().copied().find(|&kind| kind as u8 == code)
            }
        }
    };
}

kinds! {
    /// Every rank waits for every other.
    Barrier = "barrier",
    /// One rank's data to all.
    Broadcast = "broadcast",
    /// All ranks' data combined on one.
    Reduce = "reduce",
    /// All ranks' data combined on all.
    AllReduce = "all_reduce",
    /// All ranks' data in rank order on one.
    Gather = "gather",
    /// All ranks' data in rank order on all.
    AllGather = "all_gather",
    /// One rank's data, a part to each.
    Scatter = "scatter",
    /// All ranks' data combined, a block to each.
    ReduceScatter = "reduce_scatter",
    /// A part from each rank to each rank.
    AllToAll = "all_to_all",
    /// One rank's data to one other, which receives it.
    SendRecv = "send/recv",
    /// The group divided into groups.
    Split = "split",
    /// All replicas pause while one function sees all their arguments.
    MergeCall = "merge_call",
    /// The replicas go on with the function's results.
    MergeReturn = "merge_call's return",
    /// A variable is set to the aggregate of the replicas' values.
    Assign = "assign",
    /// The aggregate of the replicas' values is added to a variable.
    AssignAdd = "assign_add",
    /// The aggregate of the replicas' values is subtracted from a variable.
    AssignSub = "assign_sub",
    /// The replicas go on with the variable's new value.
    AssignReturn = "assign's return",
    /// Every rank tells what it called, after calls that did not agree.
    Explain = "explain",
    /// The replicas of all workers come together for the first time.
    Workers = "MultiWorkerMirroredStrategy",
    /// A value of each replica, combined for all workers.
    StrategyReduce = "Strategy::reduce",
    /// The same, with destinations.
    StrategyReduceTo = "Strategy::reduce_to",
    /// A value of each replica, one after the other, for all workers.
    StrategyGather = "Strategy::gather",
    /// A variable is made on all workers, with the chief's initial value.
    NewVariable = "Variable::builder",
    /// The components of all workers' replicas are read as one value.
    ReadVariable = "Variable::read",
    /// Some rows of it.
    ReadRows = "Variable::read_rows",
    /// The workers tell each other whether their data sets have a step.
    NextStep = "DistributedIterator::next",
    /// The chief writes a checkpoint, and the others wait for it.
    Save = "checkpoint::save",
    /// All workers restore the same checkpoint.
    Restore = "checkpoint::restore",
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

    /// 64 bits that differ (up to one chance in 2^64) where signatures do.
    #[inline]
    pub fn fingerprint(&self) -> u64 {
        let count = self.count.map_or(u64::MAX, |count| count as u64);
        let root = self.root.map_or(u64::MAX, |root| root as u64);
        let small = u64::from(self.code()) ^ root.rotate_left(24);
        // One multiplication, because every call waits for it; the detail is a digest already.
        let product = u128::from(small ^ 0x9e37_79b9_7f4a_7c15) * u128::from(count ^ 0xd6e8_feb8_6659_fd93);
        (product as u64) ^ (product >> 64) as u64 ^ self.detail
    }

    /// Kind, op and dtype in three bytes, for a record of last calls; [`Signature::read_code`] is
    /// its inverse.
    #[inline]
    pub fn code(&self) -> u32 {
        let op = self.op.map_or(0, |op| op as u32 + 1);
        let dtype = self.dtype.map_or(0, |dtype| dtype as u32 + 1);
        self.kind as u32 | op << 8 | dtype << 16
    }

    /// The kind, op and dtype of a [`code`](Signature::code); `None` if the bytes are no such code.
    pub fn read_code(code: u32) -> Option<Signature> {
        let [kind, op, dtype, _] = code.to_le_bytes();
        let read = |index: u8| (index as usize).checked_sub(1);
        let mut signature = Signature::new(Kind::from_code(kind)?);
        if let Some(index) = read(op) {
            signature.op = Some(*ReduceOp::ALL.get(index)?);
        }
        if let Some(index) = read(dtype) {
            signature.dtype = Some(*DType::ALL.get(index)?);
        }
        Some(signature)
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
