//! What is measured: a collective with its arguments.

use consonance_spec::{DType, Kind, ReduceOp};
use std::{fmt, ops::Range, str::FromStr};

macro_rules! collectives {
    ($($(#[$doc:meta])* $collective:ident = $name:literal: $kind:ident,)*) => {
        /// A collective that the bench knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Collective { $($(#[$doc])* $collective,)* }

        impl Collective {
            /// Every collective.
            pub const ALL: &'static [Collective] = &[$(Collective::$collective),*];

            /// The name that users read and write: `"all_reduce"`, …
            pub fn name(self) -> &'static str {
                match self { $(Collective::$collective => $name),* }
            }

            /// What it is without its form.
            pub fn kind(self) -> Kind {
                match self { $(Collective::$collective => Kind::$kind),* }
            }
        }
    };
}

collectives! {
    /// Combines everyone's buffer into everyone's.
    AllReduce = "all_reduce": AllReduce,
    /// Everyone's block to everyone.
    AllGather = "all_gather": AllGather,
    /// Everyone's part to everyone, where parts differ in size.
    AllGatherV = "all_gather_v": AllGather,
    /// Combines everyone's buffer, a block of it to each.
    ReduceScatter = "reduce_scatter": ReduceScatter,
    /// Rank 0's buffer to everyone.
    Broadcast = "broadcast": Broadcast,
    /// A block from everyone to everyone.
    AllToAll = "all_to_all": AllToAll,
    /// Waits for everyone.
    Barrier = "barrier": Barrier,
    /// Everyone's block to rank 0.
    Gather = "gather": Gather,
    /// A block of rank 0's buffer to each.
    Scatter = "scatter": Scatter,
    /// Combines everyone's buffer into rank 0's.
    Reduce = "reduce": Reduce,
    /// Everyone's part to rank 0, with parts as of [`AllGatherV`](Collective::AllGatherV).
    GatherV = "gather_v": Gather,
    /// A part of rank 0's buffer to each, with such parts.
    ScatterV = "scatter_v": Scatter,
    /// A part from everyone to everyone: rank `r` sends rank `p` the part that is number `r + p`,
    /// so that all send and receive the same in all.
    AllToAllV = "all_to_all_v": AllToAll,
    /// Rank 0's buffer to rank 1, which receives it.
    SendRecv = "send_recv": SendRecv,
}

impl Collective {
    /// The least number of ranks that it has.
    pub fn least_ranks(self) -> usize {
        if self == Collective::SendRecv { 2 } else { 1 }
    }

    /// Whether it is called in place, where that is `wanted`: a broadcast always is; a barrier, a
    /// send and parts that differ never.
    pub fn in_place(self, wanted: bool) -> bool {
        match self {
            Collective::Broadcast => true,
            Collective::Barrier | Collective::SendRecv | Collective::AllToAllV => false,
            _ => wanted,
        }
    }

    /// Whether the larger buffer holds a block for each rank.
    fn in_blocks(self) -> bool {
        self.kind().has_parts() && !self.is_ragged()
    }

    /// Whether ranks' parts differ in size.
    fn is_ragged(self) -> bool {
        matches!(self, Collective::AllGatherV | Collective::GatherV | Collective::ScatterV | Collective::AllToAllV)
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
        let found = Collective::ALL.iter().find(|collective| collective.name() == text);
        let names = || Collective::ALL.iter().map(|collective| collective.name()).collect::<Vec<_>>().join(", ");
        found.copied().ok_or_else(|| format!("expected one of {}", names()))
    }
}

/// One call that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The collective.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: usize,
    /// The elements of a block, where a buffer holds a block for each rank; otherwise those of the
    /// buffer.
    pub count: usize,
    /// The element type.
    pub dtype: DType,
    /// The operation, of collectives that have one.
    pub op: ReduceOp,
    /// Whether the result takes the place of what is sent.
    pub in_place: bool,
    /// By how many percent of the average the least and the largest part differ from it, where
    /// parts differ; below 100. Those in between grow evenly with the rank.
    pub spread: usize,
}

/// The most that parts may differ.
pub const MOST_SPREAD: usize = 50;

/// The most bytes of the larger buffers of all ranks together: more than processors have addresses
/// for, and so few that what is moved of them, several times as much, can still be counted.
pub const MOST_IN_ALL: usize = usize::MAX / 16;

impl Case {
    /// The call whose larger buffer has `bytes` bytes, or as many less as make whole elements and
    /// even blocks; at least one element for each rank.
    pub fn with_bytes(self, bytes: usize) -> Case {
        let parts = if self.collective.in_blocks() { self.ranks } else { 1 };
        // As long as the spread is not above 50 %, no part is empty.
        let least = if self.collective.is_ragged() { 2 * self.ranks } else { 1 };
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
        if self.collective.is_ragged() {
            let (ranks, between) = (self.ranks as u128, self.ranks.max(2) as u128 - 1);
            // What the ranks before `rank` have of `100 * ranks * between` shares: an even part,
            // less what they are behind.
            let shares = |rank: u128| rank * (100 * between - self.spread as u128 * (ranks - rank));
            let begin = |rank: usize| (self.count as u128 * shares(rank as u128) / shares(ranks)) as usize;
            begin(rank)..begin(rank + 1)
        } else {
            rank * self.count..(rank + 1) * self.count
        }
    }

    /// The sizes of the parts in rank `rank`'s larger buffer: the same on all ranks, but where each
    /// sends other parts.
    pub fn counts(&self, rank: usize) -> Vec<usize> {
        let first = if self.collective == Collective::AllToAllV { rank } else { 0 };
        (first..first + self.ranks).map(|part| self.part(part % self.ranks).len()).collect()
    }

    /// The elements that a rank that shares the work evenly must at least read and write, where all
    /// can read and write all buffers.
    pub fn least_traffic(&self, rank: usize) -> usize {
        let (all, block) = (self.elements(), self.elements() / self.ranks);
        match self.collective {
            // Its block of every input is read and of every output written.
            Collective::AllReduce => 2 * all,
            Collective::ReduceScatter | Collective::Reduce => all + block,
            Collective::AllGather | Collective::AllGatherV | Collective::AllToAll | Collective::AllToAllV => 2 * all,
            Collective::Broadcast if rank > 0 => 2 * all,
            Collective::SendRecv if rank == 1 => 2 * all,
            Collective::Broadcast | Collective::SendRecv => 0,
            Collective::Gather | Collective::Scatter => 2 * block,
            Collective::GatherV | Collective::ScatterV => 2 * self.part(rank).len(),
            Collective::Barrier => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(collective: Collective) -> Case {
        Case { collective, ranks: 3, count: 0, dtype: DType::F32, op: ReduceOp::Sum, in_place: false, spread: 50 }
    }

    #[test]
    fn parts_cover_the_buffer() {
        for collective in Collective::ALL.iter().copied().filter(|&collective| collective != Collective::Barrier) {
            for bytes in [1, 100, 4096, 4099] {
                let case = case(collective).with_bytes(bytes);
                assert!(case.bytes() <= bytes.max(6 * 4), "{case:?}");
                let ragged = collective.is_ragged();
                if ragged || collective.in_blocks() {
                    let counts = case.counts(0);
                    assert_eq!(counts.iter().sum::<usize>(), case.elements(), "{case:?}");
                    assert!(counts.iter().all(|&count| count > 0), "{case:?}");
                    assert_eq!(counts[0] < counts[2], ragged, "{case:?}");
                    // What rank 1 sends to rank 2, rank 2 receives from rank 1.
                    assert!(collective != Collective::AllToAllV || case.counts(1)[2] == case.counts(2)[1], "{case:?}");
                }
            }
        }
    }

    #[test]
    fn parts_grow_evenly_by_what_is_asked() {
        let counts = |ranks, spread| {
            let case = Case { ranks, spread, ..case(Collective::AllGatherV) };
            case.with_bytes(4 * 3600).counts(0)
        };
        assert_eq!(counts(2, 50), [900, 2700]);
        assert_eq!(counts(2, 10), [1620, 1980]);
        assert_eq!(counts(3, 50), [600, 1200, 1800]);
        assert_eq!(counts(4, 30), [630, 810, 990, 1170]);
        assert_eq!(counts(3, 0), [1200; 3]);
        assert_eq!(counts(1, 50), [3600]);
    }

    #[test]
    fn names_are_read_back() {
        for &collective in Collective::ALL {
            assert_eq!(collective.name().parse(), Ok(collective));
        }
        assert!("allreduce".parse::<Collective>().unwrap_err().starts_with("expected one of all_reduce, all_gather"));
    }
}
