//! Collectives on slices.

use super::{Case, Source};
use consonance::Implementation;
use consonance_kernels::digest::mix;
use consonance_spec::{Class, DType, Kind, ReduceOp, call};
use std::ops::Range;

/// Worlds at the edges of the canonical tree.
pub(super) const SIZES: &[usize] = &[2, 3, 1, 5, 8, 4, 7, 6];

/// Counts at the edges: of nothing, of an inline payload (80 bytes of elements of any width), of a
/// tile and of two cache lines.
const COUNTS: &[usize] =
    &[1, 0, 2, 3, 5, 9, 10, 11, 19, 20, 21, 31, 32, 33, 39, 40, 41, 63, 64, 65, 79, 80, 81, 127, 128, 129, 257, 1000];

/// Counts of buffers that may lie in the group's memory: also around the size from which such
/// buffers are used in place, and around a page.
const SHARED_COUNTS: &[usize] = &[600, 1, 0, 33, 257, 511, 512, 513, 1000, 1024, 2049];

/// Calls that the ranks of a group make, one after the other.
#[derive(Clone, Debug)]
pub struct Script {
    /// The number of ranks.
    pub size: usize,
    /// Whether all calls are started in one [`scope`](consonance::Communicator::scope), each before
    /// the previous call has finished.
    pub asynchronous: bool,
    /// The algorithm of all-reduces.
    pub implementation: Implementation,
    /// The calls.
    pub calls: Vec<Collective>,
}

/// One collective, as all ranks call it.
#[derive(Clone, Debug)]
pub struct Collective {
    /// The kind of collective.
    pub kind: Kind,
    /// The element type.
    pub dtype: DType,
    /// The reduction op, for calls that combine contributions.
    pub op: ReduceOp,
    /// The numbers of elements.
    pub counts: Counts,
    /// The leaves of the ranks, in a reduction to which each rank brings any number of
    /// contributions.
    pub runs: Option<Runs>,
    /// The root, if the call has one. For a send and receive, the sender.
    pub root: usize,
    /// Whether the call is in place, if it has such a form.
    pub in_place: bool,
    /// The memory of the buffers.
    pub memory: Memory,
    /// Elements between the start of an allocation and a buffer.
    pub offset: usize,
    /// The seed of the elements.
    pub seed: u64,
}

/// The memory of the buffers of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Each rank's own.
    Own,
    /// Memory from [`Communicator::alloc`](consonance::Communicator::alloc), on every rank.
    Shared,
    /// One of these for each buffer of each rank, chosen by the seed.
    Mixed(u64),
}

/// One of the buffers of a rank in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// The buffer that is only read.
    Send,
    /// The buffer that is written. An in-place call also reads it.
    Recv,
}

impl Memory {
    /// Returns whether `buffer` of rank `rank` lies in memory from
    /// [`Communicator::alloc`](consonance::Communicator::alloc).
    pub fn is_shared(self, rank: usize, buffer: Buffer) -> bool {
        match self {
            Memory::Own => false,
            Memory::Shared => true,
            Memory::Mixed(seed) => mix(seed, 2 * rank as u64 + buffer as u64) & 1 == 1,
        }
    }
}

/// The numbers of elements of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counts {
    /// The same number for each rank. If the data are divided, the number of elements of a block.
    Even(usize),
    /// A number for each rank, in calls that take counts.
    Ragged(Vec<usize>),
    /// A number from each rank (outer) to each rank (inner).
    Pairs(Vec<Vec<usize>>),
}

impl Counts {
    /// Returns the number of elements of rank `rank`, or from `rank` to `other`.
    pub fn of(&self, rank: usize, other: usize) -> usize {
        match self {
            Counts::Even(count) => *count,
            Counts::Ragged(counts) => counts[rank],
            Counts::Pairs(counts) => counts[rank][other],
        }
    }
}

/// The leaves of the ranks: contributions to a reduction, each with its place in the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    /// The number of leaves of all ranks.
    pub of: usize,
    /// The leaves of each rank.
    pub by_rank: Vec<Range<usize>>,
}

impl Runs {
    /// Returns runs of so many leaves that follow each other.
    pub fn of_lengths(lengths: &[usize]) -> Runs {
        let end = |rank: usize| lengths[..=rank].iter().sum::<usize>();
        let by_rank = (0..lengths.len()).map(|rank| end(rank) - lengths[rank]..end(rank)).collect();
        Runs { of: lengths.iter().sum(), by_rank }
    }

    /// Returns the first rank whose run does not begin where the one before ends, or the last rank
    /// if the runs end too early. `None` if each leaf has one rank.
    pub fn first_gap(&self) -> Option<usize> {
        let mut at = 0;
        for (rank, run) in self.by_rank.iter().enumerate().filter(|(_, run)| !run.is_empty()) {
            if run.start != at {
                return Some(rank);
            }
            at = run.end;
        }
        (at != self.of).then_some(self.by_rank.len() - 1)
    }

    pub(super) fn read(source: &mut Source<'_>, size: usize) -> Runs {
        let one_each = source.once_in(8);
        let length = |_| if one_each { 1 } else { source.pick(&[2, 0, 1, 3, 5, 4, 8]) };
        let mut lengths: Vec<usize> = (0..size).map(length).collect();
        // There is at least one leaf.
        lengths[0] = lengths[0].max(usize::from(lengths.iter().all(|&length| length == 0)));
        Runs::of_lengths(&lengths)
    }
}

impl Collective {
    /// Returns whether the call combines contributions.
    pub fn reduces(&self) -> bool {
        self.kind.combines() || self.kind == Kind::Split
    }

    /// Returns whether the results are means of integers, which are of another type.
    pub fn is_mean_of_integers(&self) -> bool {
        let is_integer = matches!(self.dtype.class(), Class::Signed | Class::Unsigned);
        self.kind.combines() && self.op == ReduceOp::Mean && is_integer
    }

    /// Returns the receiver of a send by the root: the next rank.
    pub fn receiver(&self, size: usize) -> usize {
        (self.root + 1) % size
    }

    pub(super) fn read(source: &mut Source<'_>, size: usize, asynchronous: bool) -> Collective {
        let picked = source.pick(Kind::ALL);
        // A split is no asynchronous call. A group that is split off makes an all-reduce.
        let kind = if asynchronous && picked == Kind::Split { Kind::AllReduce } else { picked };
        let op = source.pick(&ReduceOp::ALL);
        let defined: Vec<DType> = DType::ALL.iter().copied().filter(|dtype| op.result(*dtype).is_some()).collect();
        let dtype = if source.once_in(16) { source.pick(DType::ALL) } else { source.pick(&defined) };
        let memory = match source.below(4) {
            2 => Memory::Shared,
            3 => Memory::Mixed(source.seed()),
            _ => Memory::Own,
        };
        let choices = if memory == Memory::Own { COUNTS } else { SHARED_COUNTS };
        let count = source.pick(choices);
        let counts = match kind.counts() {
            call::Counts::EachRank if source.once_in(2) => {
                Counts::Ragged((0..size).map(|_| source.pick(choices)).collect())
            }
            call::Counts::EachPair if source.once_in(2) => {
                let row = |source: &mut Source<'_>| (0..size).map(|_| source.pick(choices)).collect();
                Counts::Pairs((0..size).map(|_| row(source)).collect())
            }
            call::Counts::Equal | call::Counts::EachRank | call::Counts::EachPair => Counts::Even(count),
        };
        let (root, in_place) = (source.below(size), source.once_in(2));
        // A buffer for results is used in place only if it lies on its own pages.
        let is_whole = memory != Memory::Own && !source.once_in(4);
        let offset = if is_whole { 0 } else { source.below(19) };
        let seed = source.seed();
        let runs = (kind.combines() && source.once_in(3)).then(|| Runs::read(source, size));
        let call = Collective { kind, dtype, op, counts, runs, root, in_place, memory, offset, seed };
        // A scope has no plain reduce and reduce-scatter to another type.
        let has_form = !asynchronous || kind == Kind::AllReduce || call.runs.is_some();
        Collective { in_place: in_place || (call.is_mean_of_integers() && !has_form), ..call }
    }
}

impl Case for Script {
    fn read(source: &mut Source<'_>) -> Script {
        let size = source.pick(SIZES);
        Script::read_for(source, size)
    }
}

impl Script {
    /// Returns a case of `size` ranks.
    pub fn read_for(source: &mut Source<'_>, size: usize) -> Script {
        let asynchronous = source.once_in(4);
        let implementation = source.pick(&[Implementation::Auto, Implementation::OneShot, Implementation::TwoShot]);
        let calls = 1 + source.below(6);
        let calls = (0..calls).map(|_| Collective::read(source, size, asynchronous)).collect();
        Script { size, asynchronous, implementation, calls }
    }
}
