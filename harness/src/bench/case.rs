//! What is measured: a collective with its arguments.

use consonance_spec::{DType, ReduceOp};
use std::{fmt, ops::Range, str::FromStr};

/// A collective that the bench knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Combines everyone's buffer into everyone's.
    AllReduce,
    /// Everyone's block to everyone.
    AllGather,
    /// Everyone's part to everyone, where parts differ in size: rank `r`'s is `r + 1` times as large as rank 0's.
    AllGatherV,
    /// Combines everyone's buffer, a block of it to each.
    ReduceScatter,
    /// Rank 0's buffer to everyone.
    Broadcast,
    /// A block from everyone to everyone.
    AllToAll,
    /// Waits for everyone.
    Barrier,
    /// Everyone's block to rank 0.
    Gather,
    /// A block of rank 0's buffer to each.
    Scatter,
    /// Combines everyone's buffer into rank 0's.
    Reduce,
}

/// What the names of collectives say.
const NAMES: [(&str, Collective); 10] = [
    ("all_reduce", Collective::AllReduce),
    ("all_gather", Collective::AllGather),
    ("all_gather_v", Collective::AllGatherV),
    ("reduce_scatter", Collective::ReduceScatter),
    ("broadcast", Collective::Broadcast),
    ("all_to_all", Collective::AllToAll),
    ("barrier", Collective::Barrier),
    ("gather", Collective::Gather),
    ("scatter", Collective::Scatter),
    ("reduce", Collective::Reduce),
];

impl Collective {
    /// Every collective.
    pub fn all() -> impl Iterator<Item = Collective> {
        NAMES.into_iter().map(|(_, collective)| collective)
    }

    /// The name that users read and write: `"all_reduce"`, …
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, collective)| *collective == self).expect("a name for each").0
    }

    /// Whether it combines elements, so that it has an operation.
    pub fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce)
    }

    /// Whether it is called in place, where that is `wanted`: a broadcast always is, a barrier never.
    pub fn in_place(self, wanted: bool) -> bool {
        match self {
            Collective::Broadcast => true,
            Collective::Barrier => false,
            _ => wanted,
        }
    }

    /// busbw / algbw, as nccl-tests define them: what share of the bytes every one of `ranks` must send or receive over its link.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let others = (ranks - 1) as f64 / ranks as f64;
        match self {
            Collective::AllReduce => 2.0 * others,
            Collective::Broadcast | Collective::Reduce => 1.0,
            Collective::Barrier => 0.0,
            _ => others,
        }
    }

    /// Whether the larger buffer holds a block for each rank.
    fn in_blocks(self) -> bool {
        use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        matches!(self, AllGather | ReduceScatter | AllToAll | Gather | Scatter)
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Collective {
    type Err = String;

    fn from_str(text: &str) -> Result<Collective, String> {
        let found = NAMES.iter().find(|(name, _)| *name == text).map(|(_, collective)| *collective);
        let names = || NAMES.map(|(name, _)| name).join(", ");
        found.ok_or_else(|| format!("expected one of {}", names()))
    }
}

/// One call that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The collective.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: usize,
    /// The elements of a block, where a buffer holds a block for each rank; otherwise those of the buffer.
    pub count: usize,
    /// The element type.
    pub dtype: DType,
    /// The operation, of collectives that have one.
    pub op: ReduceOp,
    /// Whether the result takes the place of what is sent.
    pub in_place: bool,
}

impl Case {
    /// The call whose larger buffer has `bytes` bytes, or as many less as make whole elements and even blocks; at least one
    /// element for each rank.
    pub fn with_bytes(self, bytes: usize) -> Case {
        let parts = if self.collective.in_blocks() { self.ranks } else { 1 };
        let least = if self.collective == Collective::AllGatherV { self.ranks * (self.ranks + 1) / 2 } else { 1 };
        let count = match self.collective {
            Collective::Barrier => 0,
            _ => (bytes / self.dtype.size() / parts).max(least),
        };
        Case { count, ..self }
    }

    /// The elements of the larger buffer.
    pub fn elements(&self) -> usize {
        if self.collective.in_blocks() { self.count * self.ranks } else { self.count }
    }

    /// The bytes of the larger buffer.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// The part of rank `rank` in a buffer that has one for each.
    pub fn part(&self, rank: usize) -> Range<usize> {
        if self.collective == Collective::AllGatherV {
            // 1 + 2 + … + ranks shares, of which rank r has r + 1.
            let shares = self.ranks * (self.ranks + 1) / 2;
            let begin = |rank: usize| self.count * (rank * (rank + 1) / 2) / shares;
            begin(rank)..begin(rank + 1)
        } else {
            rank * self.count..(rank + 1) * self.count
        }
    }

    /// The sizes of [`part`](Case::part)s.
    pub fn counts(&self) -> Vec<usize> {
        (0..self.ranks).map(|rank| self.part(rank).len()).collect()
    }

    /// The elements that a rank that shares the work evenly must at least read and write, where all can read and write all buffers.
    pub fn least_traffic(&self, rank: usize) -> usize {
        let (all, block) = (self.elements(), self.elements() / self.ranks);
        match self.collective {
            // Its block of every input is read and of every output written.
            Collective::AllReduce => 2 * all,
            Collective::ReduceScatter | Collective::Reduce => all + block,
            Collective::AllGather | Collective::AllGatherV | Collective::AllToAll => 2 * all,
            Collective::Broadcast => {
                if rank == 0 {
                    0
                } else {
                    2 * all
                }
            }
            Collective::Gather | Collective::Scatter => 2 * block,
            Collective::Barrier => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(collective: Collective) -> Case {
        Case { collective, ranks: 3, count: 0, dtype: DType::F32, op: ReduceOp::Sum, in_place: false }
    }

    #[test]
    fn parts_cover_the_buffer() {
        for collective in Collective::all().filter(|&collective| collective != Collective::Barrier) {
            for bytes in [1, 100, 4096, 4099] {
                let case = case(collective).with_bytes(bytes);
                assert!(case.bytes() <= bytes.max(6 * 4), "{case:?}");
                let ragged = collective == Collective::AllGatherV;
                if ragged || collective.in_blocks() {
                    assert_eq!(case.counts().iter().sum::<usize>(), case.elements(), "{case:?}");
                    assert!(case.counts().iter().all(|&count| count > 0), "{case:?}");
                    assert_eq!(case.counts()[0] < case.counts()[2], ragged, "{case:?}");
                }
            }
        }
    }

    #[test]
    fn names_are_read_back() {
        for collective in Collective::all() {
            assert_eq!(collective.name().parse(), Ok(collective));
        }
        assert!("allreduce".parse::<Collective>().unwrap_err().starts_with("expected one of all_reduce, all_gather"));
    }
}
