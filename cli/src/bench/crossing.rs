//! The bytes that a call must move between hosts at least, whatever its algorithm.

use super::{case::Case, size};
use consonance_spec::{Extent, Flow, Work};
use std::fmt;

/// Bytes that cross the link of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Crossing {
    /// To other hosts.
    pub(crate) sent: usize,
    /// From other hosts.
    pub(crate) received: usize,
}

impl Crossing {
    /// Returns the bytes that have crossed since `before`.
    pub(super) fn since(self, before: Crossing) -> Crossing {
        Crossing { sent: self.sent - before.sent, received: self.received - before.received }
    }
}

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sent and {} received", size(self.sent), size(self.received))
    }
}

/// Returns the fewest bytes that each of `hosts` hosts sends and receives in a call whose ranks are
/// divided evenly among them, in rank order. What several ranks of a host need crosses once. What
/// several ranks of a host contribute to one element of a result crosses once, combined.
pub(crate) fn least(case: &Case, hosts: usize) -> Vec<Crossing> {
    let Case { collective, ranks, dtype, .. } = *case;
    let (kind, whole) = (collective.kind(), case.elements());
    let ranks_of = |host: usize| host * ranks / hosts..(host + 1) * ranks / hosts;
    let parts = |host: usize| ranks_of(host).map(|rank| case.part(rank).len()).sum::<usize>();
    let all: usize = (0..ranks).map(|rank| case.part(rank).len()).sum();
    // The elements that all ranks of one host send to all ranks of another.
    let pairs = |from: usize, to: usize| -> usize {
        ranks_of(from).map(|rank| ranks_of(to).map(|peer| case.counts(rank)[peer]).sum::<usize>()).sum()
    };
    let of = |host: usize| -> (usize, usize) {
        let has_root = host == 0;
        match (kind.flow(), kind.work(), kind.extent()) {
            _ if hosts == 1 => (0, 0),
            (Flow::Control, _, _) => (0, 0),
            (Flow::Pair, _, _) => {
                let receiver = (0..hosts).find(|&host| ranks_of(host).contains(&1)).expect("rank 1 has a host");
                match receiver {
                    0 => (0, 0),
                    _ => (if has_root { whole } else { 0 }, if host == receiver { whole } else { 0 }),
                }
            }
            (Flow::Everyone, Work::Combines, Extent::Whole) => (whole, whole),
            (Flow::Everyone, Work::Combines, Extent::Parts) => (all - parts(host), parts(host)),
            (Flow::ToRoot, Work::Combines, _) if has_root => (0, whole),
            (Flow::ToRoot, Work::Combines, _) => (whole, 0),
            (Flow::ToRoot, Work::Moves, _) if has_root => (0, all - parts(host)),
            (Flow::ToRoot, Work::Moves, _) => (parts(host), 0),
            (Flow::FromRoot, _, Extent::Whole) if has_root => (whole, 0),
            (Flow::FromRoot, _, Extent::Whole) => (0, whole),
            (Flow::FromRoot, _, Extent::Parts) if has_root => (all - parts(host), 0),
            (Flow::FromRoot, _, Extent::Parts) => (0, parts(host)),
            (Flow::Everyone, Work::Moves, Extent::Whole) => (parts(host), all - parts(host)),
            (Flow::Everyone, Work::Moves, Extent::Parts) => {
                let others = || (0..hosts).filter(move |&other| other != host);
                (others().map(|other| pairs(host, other)).sum(), others().map(|other| pairs(other, host)).sum())
            }
        }
    };
    (0..hosts)
        .map(of)
        .map(|(sent, received)| Crossing { sent: sent * dtype.size(), received: received * dtype.size() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::case::Collective;
    use consonance_spec::{DType, ReduceOp};

    #[test]
    fn each_byte_crosses_once() {
        let of = |collective: Collective, ranks: usize, hosts: usize| {
            let case =
                Case { collective, ranks, count: 0, dtype: DType::F32, op: ReduceOp::Sum, in_place: false, spread: 0 };
            least(&case.with_bytes(4800), hosts).iter().map(|one| (one.sent, one.received)).collect::<Vec<_>>()
        };
        assert_eq!(of(Collective::AllReduce, 2, 2), [(4800, 4800); 2]);
        assert_eq!(of(Collective::AllReduce, 6, 3), [(4800, 4800); 3]);
        assert_eq!(of(Collective::ReduceScatter, 4, 2), [(2400, 2400); 2]);
        assert_eq!(of(Collective::AllGather, 6, 3), [(1600, 3200); 3]);
        assert_eq!(of(Collective::AllToAll, 4, 2), [(4800, 4800); 2]);
        assert_eq!(of(Collective::Broadcast, 4, 2), [(4800, 0), (0, 4800)]);
        assert_eq!(of(Collective::Reduce, 4, 2), [(0, 4800), (4800, 0)]);
        assert_eq!(of(Collective::Gather, 6, 3), [(0, 3200), (1600, 0), (1600, 0)]);
        assert_eq!(of(Collective::Scatter, 4, 2), [(2400, 0), (0, 2400)]);
        // Rank 1 is on the first host, or on the second.
        assert_eq!(of(Collective::SendRecv, 4, 2), [(0, 0); 2]);
        assert_eq!(of(Collective::SendRecv, 2, 2), [(4800, 0), (0, 4800)]);
        assert_eq!(of(Collective::Barrier, 2, 2), [(0, 0); 2]);
        assert_eq!(of(Collective::AllReduce, 2, 1), [(0, 0)]);
    }
}
