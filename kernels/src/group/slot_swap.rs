//! Slot swapping between two ranks: each writes its next data into the slot that it has just read,
//! so a cache line moves between the cores once per transfer instead of twice.
//!
//! A cache line that a rank stages moves to the peer's core when the peer reads it. Without
//! swapping it moves back when the rank next writes there. Where both ranks stage data, each writes
//! where it has read instead: it prefetches the peer's lines for writing (`prefetchw`), and they
//! hold its own data the next time (measured: PERF.md).
//!
//! Each rank has two places, used in turn by the sequence number of the call, or of the window.
//! Each time that a number comes to the same two places, the ranks exchange them. A rank that
//! writes there waits for the same event as without swapping: that all are done with the data of
//! two numbers before.

use consonance_spec::{Extent, Kind};

/// Whether the ranks of a call swap the slots in which they stage their data: there are two ranks,
/// and both have data.
pub(crate) fn slots(ranks: usize, kind: Kind) -> bool {
    ranks == 2 && !kind.has_root()
}

/// Whether only one of two ranks has data, or reads them. The data are staged in another part of
/// the slot each time, until 256 KiB have been used. By then the lines have left the caches of the
/// peer's core, from which a write would have to fetch them. Where ranks outnumber the cores it
/// takes longer (measured: PERF.md). (A reduction to one rank has windows of its own.)
pub(crate) fn moves(ranks: usize, kind: Kind) -> bool {
    ranks == 2 && kind.has_root()
}

/// Whether a rank of a call prefetches the peer's payload as lines that it writes next. The places
/// of payloads are swapped in every call of two ranks that is no message. Where each payload has
/// blocks for all ranks, the peer does not read all of it.
pub(crate) fn takes_payloads(ranks: usize, kind: Kind) -> bool {
    slots(ranks, kind) && kind.extent() == Extent::Whole
}

/// Returns the rank in whose place `rank` stages the data of this number.
#[inline]
pub(crate) fn place(rank: usize, number: u64) -> usize {
    rank ^ (number >> 1 & 1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_of_a_slot_was_its_last_reader() {
        for (rank, number) in (0..2).flat_map(|rank| (0..20).map(move |number| (rank, number))) {
            assert_eq!(place(rank, number + 2), place(1 - rank, number));
        }
        assert!(slots(2, Kind::AllReduce) && takes_payloads(2, Kind::AllGather));
        assert!(slots(2, Kind::AllToAll) && !takes_payloads(2, Kind::AllToAll));
        assert!(!slots(3, Kind::AllReduce) && !slots(2, Kind::Broadcast));
    }
}
