//! The bytes that a call moves, by its protocol.

use crate::bench::case::{Case, Collective};
use consonance_kernels::{
    cpu::cache_hints,
    group::plan::{Protocol, StepKind},
};
use consonance_spec::traffic::Role;

/// The bytes that one rank moves in a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The rank.
    pub rank: usize,
    /// Bytes that it reads.
    pub read: usize,
    /// Bytes that it writes.
    pub written: usize,
    /// Those of both that come from or go to another rank: bytes that it reads after another rank
    /// has written them, or writes into another rank's memory.
    pub across: usize,
}

impl Traffic {
    /// Returns the traffic of the rank that moves most. Among equals, of the rank that exchanges
    /// most with others.
    pub(super) fn most(case: &Case, step: StepKind, protocol: Protocol) -> Traffic {
        let of = |rank| Traffic::of(case, step, protocol, rank);
        // `max_by_key` returns the last of equal maxima, which is the lowest rank in this order.
        (0..case.ranks)
            .rev()
            .map(of)
            .max_by_key(|traffic| (traffic.read + traffic.written, traffic.across))
            .unwrap_or_default()
    }

    /// Whether results are written with non-temporal stores.
    pub(super) fn goes_past_caches(case: &Case, protocol: Protocol) -> bool {
        let is_whole = case.collective.kind().copies_to_all();
        let (replaces, is_read) =
            (case.in_place && case.collective.kind().combines(), protocol == Protocol::ProcessRead);
        let brought = (0..case.ranks).map(|rank| case.data(rank).role().contributed * case.dtype.size());
        let (most, copies) = (brought.clone().max().unwrap_or(0), if is_whole { case.ranks } else { 1 });
        // process_vm_readv writes the results itself, except for a reduction.
        let is_inline = matches!(protocol, Protocol::Inline | Protocol::Message);
        let is_written = !is_inline && (!is_read || case.collective.kind().combines()) && !replaces;
        is_written && cache_hints::goes_past_caches(most, brought.sum(), copies)
    }

    fn of(case: &Case, step: StepKind, protocol: Protocol, rank: usize) -> Traffic {
        let Role { contributed, needed, kept, result } = case.data(rank).role();
        let [contributed, needed, kept, result] =
            [contributed, needed, kept, result].map(|elements| elements * case.dtype.size());
        let (ranks, block) = (case.ranks, contributed / case.ranks);
        let result_block = result / ranks;
        let (read, written, across) = match (protocol, step) {
            // Each rank reads a pair of cache lines of each peer's call descriptor, whatever the
            // size of the data.
            (Protocol::Inline | Protocol::Message, _) => {
                (contributed + needed, contributed + result, 128 * (ranks - 1))
            }
            // Each rank reduces one block of all inputs into all outputs that need it.
            (Protocol::InPlace, StepKind::Divided { .. }) => {
                let written = if case.collective == Collective::AllReduce { contributed } else { block };
                let other = if case.collective == Collective::AllReduce { written - block } else { 0 };
                (contributed, written, contributed - block + other)
            }
            // Data to reduce are first read into scratch memory.
            (Protocol::ProcessRead, _) if case.collective.kind().combines() => {
                let others = needed - kept;
                (others + needed, others + result, others)
            }
            (Protocol::InPlace | Protocol::ProcessRead, _) => (needed, result, needed - kept),
            (Protocol::Staged(_), _) => (contributed + needed, contributed + result, needed - kept),
            // Each rank stages the blocks of the others, reduces its own block, stages the result,
            // and copies the other result blocks.
            (Protocol::TwoShot(_), _) => {
                let (staged, copied) = (contributed - block, result - result_block);
                (staged + contributed + copied, staged + block + result_block + copied, staged + copied)
            }
        };
        Traffic { rank, read, written, across }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consonance_kernels::{
        cpu::reduce::Reducer,
        group::plan::{Chunking, Targets, Windows},
    };
    use consonance_spec::{DType, ReduceOp};

    #[test]
    fn bytes_are_those_of_the_algorithms() {
        let case = |collective| {
            let case = Case {
                collective,
                ranks: 4,
                count: 0,
                dtype: DType::F32,
                op: ReduceOp::Sum,
                in_place: true,
                spread: 0,
            };
            case.with_bytes(4000)
        };
        let reducer = Reducer::new(ReduceOp::Sum, DType::F32).expect("a sum");
        let windows = Windows { count: 1, blocks: 1, stride: 1 << 20 };
        let most = |collective, step, protocol| {
            let Traffic { read, written, across, .. } = Traffic::most(&case(collective), step, protocol);
            (read, written, across)
        };
        let all = StepKind::divided(&reducer, Targets::All);
        // One pass over all buffers.
        assert_eq!(most(Collective::AllReduce, all, Protocol::InPlace), (4000, 4000, 6000));
        // Three quarters are staged, one quarter of each input is reduced, three quarters are
        // copied.
        assert_eq!(most(Collective::AllReduce, all, Protocol::TwoShot(windows)), (10_000, 8000, 6000));
        assert_eq!(most(Collective::AllReduce, all, Protocol::Staged(windows)), (20_000, 8000, 12_000));
        let published = StepKind::Published(Chunking::WHOLE);
        assert_eq!(most(Collective::AllGather, published, Protocol::InPlace), (3000, 3000, 3000));
        assert_eq!(most(Collective::AllGather, published, Protocol::Staged(windows)), (4000, 4000, 3000));
        assert_eq!(most(Collective::Broadcast, published, Protocol::Staged(windows)), (4000, 4000, 4000));
        assert_eq!(most(Collective::AllToAll, published, Protocol::ProcessRead), (4000, 4000, 3000));
        // Results of 48 MiB and more in all are written past the caches, unless they replace data
        // that are read.
        let large = |collective, in_place| {
            let case = Case { in_place, ..case(collective) }.with_bytes(12 << 20);
            [Protocol::Staged(windows), Protocol::ProcessRead]
                .map(|protocol| Traffic::goes_past_caches(&case, protocol))
        };
        assert_eq!(large(Collective::AllGather, true), [true, false]);
        assert_eq!(large(Collective::ReduceScatter, false), [true, true]);
        assert_eq!(large(Collective::AllReduce, true), [false, false]);
        // Three blocks are read into scratch memory, and reduced with the rank's own block.
        assert_eq!(most(Collective::ReduceScatter, published, Protocol::ProcessRead), (7000, 4000, 3000));
    }
}
