//! A measured call: a collective with its arguments.

use consonance_spec::{
    DType, Flow, Kind, ReduceOp, Work,
    traffic::{Data, Position},
};
use std::{fmt, ops::Range, str::FromStr};

macro_rules! collectives {
    ($($(#[$doc:meta])* $collective:ident = $name:literal: $kind:ident,)*) => {
        /// A collective that the bench can measure.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Collective { $($(#[$doc])* $collective,)* }

        impl Collective {
            /// All collectives.
            pub const ALL: &'static [Collective] = &[$(Collective::$collective),*];

            /// Returns the name that users read and write: `"all_reduce"`, …
            pub fn name(self) -> &'static str {
                match self { $(Collective::$collective => $name),* }
            }

            /// Returns the kind of the collective, the same for even and for ragged parts.
            pub fn kind(self) -> Kind {
                match self { $(Collective::$collective => Kind::$kind),* }
            }
        }
    };
}

collectives! {
    /// Reduces the buffers of all ranks; every rank gets the result.
    AllReduce = "all_reduce": AllReduce,
    /// Sends every rank's block to all ranks.
    AllGather = "all_gather": AllGather,
    /// Sends every rank's part to all ranks; parts differ in size.
    AllGatherV = "all_gather_v": AllGather,
    /// Reduces the buffers of all ranks; each rank gets one block of the result.
    ReduceScatter = "reduce_scatter": ReduceScatter,
    /// Sends rank 0's buffer to all ranks.
    Broadcast = "broadcast": Broadcast,
    /// Sends a block from every rank to every rank.
    AllToAll = "all_to_all": AllToAll,
    /// Waits for all ranks.
    Barrier = "barrier": Barrier,
    /// Sends every rank's block to rank 0.
    Gather = "gather": Gather,
    /// Sends a block of rank 0's buffer to each rank.
    Scatter = "scatter": Scatter,
    /// Reduces the buffers of all ranks into rank 0's.
    Reduce = "reduce": Reduce,
    /// Sends every rank's part to rank 0; parts are as in [`AllGatherV`](Collective::AllGatherV).
    GatherV = "gather_v": Gather,
    /// Sends a part of rank 0's buffer to each rank; parts differ in the same way.
    ScatterV = "scatter_v": Scatter,
    /// Sends a part from every rank to every rank: rank `r` sends rank `p` the part number `r + p`,
    /// so that all ranks send and receive the same number of elements in all.
    AllToAllV = "all_to_all_v": AllToAll,
    /// Sends rank 0's buffer to rank 1, which receives it.
    SendRecv = "send_recv": SendRecv,
}

impl Collective {
    /// Returns the least number of ranks that the collective needs.
    pub fn least_ranks(self) -> usize {
        if self == Collective::SendRecv { 2 } else { 1 }
    }

    /// Whether the collective is called in place if that is `wanted`. A broadcast always is; a
    /// barrier, a send and an all_to_all_v never are.
    pub fn in_place(self, wanted: bool) -> bool {
        match self {
            Collective::Broadcast => true,
            Collective::Barrier | Collective::SendRecv | Collective::AllToAllV => false,
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => wanted,
            Collective::AllGather | Collective::AllGatherV | Collective::Gather | Collective::GatherV => wanted,
            Collective::Scatter | Collective::ScatterV | Collective::AllToAll => wanted,
        }
    }

    /// Whether the larger buffer holds a block for each rank.
    fn in_blocks(self) -> bool {
        self.kind().has_parts() && !self.is_ragged()
    }

    /// Whether the parts of ranks differ in size.
    pub fn is_ragged(self) -> bool {
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
    /// The elements of a block, if a buffer holds a block for each rank; otherwise the elements of
    /// the buffer.
    pub count: usize,
    /// The element type.
    pub dtype: DType,
    /// The operation, for collectives that reduce.
    pub op: ReduceOp,
    /// Whether the result replaces the contribution.
    pub in_place: bool,
    /// By how many percent the smallest and the largest part differ from the average, if parts
    /// differ; below 100. The parts between grow evenly with the rank.
    pub spread: usize,
}

/// The largest `spread`.
pub const MOST_SPREAD: usize = 50;

/// Limit on the bytes of the larger buffers of all ranks together. It is more than a processor can
/// address, and the bytes that a call moves, several times as many, still fit a `usize`.
pub const MOST_IN_ALL: usize = usize::MAX / 16;

impl Case {
    /// Returns the call whose larger buffer has `bytes` bytes, rounded down to whole elements and
    /// even blocks. The least is one element a block, or two elements a rank if parts differ in
    /// size.
    pub fn with_bytes(self, bytes: usize) -> Case {
        let parts = if self.collective.in_blocks() { self.ranks } else { 1 };
        // With two elements a rank and a spread of at most 50 %, no part is empty.
        let least = if self.collective.is_ragged() { 2 * self.ranks } else { 1 };
        let moves_data = self.collective.kind().flow() != Flow::Control;
        let count = if moves_data { (bytes / self.dtype.size() / parts).max(least) } else { 0 };
        Case { count, ..self }
    }

    /// Whether the call combines data in place: a rank writes the lines that it has read.
    pub fn reduces_in_place(&self) -> bool {
        self.in_place && self.collective.kind().work() == Work::Combines
    }

    /// Returns the elements of the larger buffer.
    pub fn elements(&self) -> usize {
        if self.collective.in_blocks() { self.count * self.ranks } else { self.count }
    }

    /// Returns the bytes of the larger buffer.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// Returns the part of rank `rank` in a buffer that has one for each rank.
    pub fn part(&self, rank: usize) -> Range<usize> {
        if self.collective.is_ragged() {
            let (ranks, between) = (self.ranks as u128, self.ranks.max(2) as u128 - 1);
            // The shares that the ranks before `rank` have together, of `100 * ranks * between`:
            // even parts, less the difference by the spread.
            let shares = |rank: u128| rank * (100 * between - self.spread as u128 * (ranks - rank));
            let begin = |rank: usize| (self.count as u128 * shares(rank as u128) / shares(ranks)) as usize;
            begin(rank)..begin(rank + 1)
        } else {
            rank * self.count..(rank + 1) * self.count
        }
    }

    /// Returns the sizes of the parts in rank `rank`'s larger buffer. They are the same on all
    /// ranks, except in all_to_all_v.
    pub fn counts(&self, rank: usize) -> Vec<usize> {
        let first = if self.collective == Collective::AllToAllV { rank } else { 0 };
        (first..first + self.ranks).map(|part| self.part(part % self.ranks).len()).collect()
    }

    /// Returns the data of the call as rank `rank` sees them. Rank 0 is the root.
    pub fn data(&self, rank: usize) -> Data {
        Data {
            kind: self.collective.kind(),
            ranks: self.ranks,
            place: match rank {
                0 => Position::Root,
                1 => Position::Receiver,
                _ => Position::Other,
            },
            whole: self.elements(),
            own: self.counts(rank)[rank],
            in_place: self.in_place,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consonance_spec::call::Counts;
    use std::collections::HashSet;

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
                    // Rank 2 receives from rank 1 as many elements as rank 1 sends to it.
                    assert!(collective != Collective::AllToAllV || case.counts(1)[2] == case.counts(2)[1], "{case:?}");
                }
            }
        }
    }

    #[test]
    fn parts_grow_evenly_by_the_spread() {
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
    fn every_collective_is_measured_in_each_of_its_forms() {
        let collectives = Kind::ALL.iter().filter(|&&kind| kind != Kind::Split);
        let forms = collectives.flat_map(|&kind| {
            let name = kind.name().replace('/', "_");
            let ragged = (kind.counts() != Counts::Equal).then(|| (format!("{name}_v"), kind, true));
            [(name, kind, false)].into_iter().chain(ragged)
        });
        let expected: HashSet<_> = forms.collect();
        let measured = Collective::ALL.iter().map(|each| (each.name().to_owned(), each.kind(), each.is_ragged()));
        assert_eq!(measured.collect::<HashSet<_>>(), expected);
    }

    #[test]
    fn names_are_read_back() {
        for &collective in Collective::ALL {
            assert_eq!(collective.name().parse(), Ok(collective));
        }
        assert!("allreduce".parse::<Collective>().unwrap_err().starts_with("expected one of all_reduce, all_gather"));
    }
}
