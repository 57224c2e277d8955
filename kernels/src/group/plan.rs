//! Which way the data of a step go from rank to rank, by its kind and size: chosen here and nowhere
//! else, so that what is told of a call ([`Topology::protocol`]) is what is done.
//!
//! The choice is a matter of speed alone: every way keeps the canonical order, and ranks that agree
//! on a step choose the same.

use super::tuning::{
    AWAITED_BYTES, CHUNK_BYTES, IN_PLACE_BYTES, LEAST_WINDOW_BYTES, ONE_SHOT_BYTES, PAYLOADS_BYTES, RAGGED_BYTES,
    READ_BYTES, READ_LEAST_BYTES, READ_SCRATCH_BYTES, ROOT_ONE_SHOT_BYTES, SOME_PAYLOAD_BYTES, THREADS_PAYLOAD_BYTES,
    WHOLE_WINDOW_BYTES, WINDOW_BYTES,
};
use crate::{
    cpu::reduce::Reducer,
    shm::records::{FIRST_BYTES, PAYLOAD_BYTES, TINY_BYTES},
};
use std::ops::Range;

/// Slots of a rank's staging: for data of even and odd windows, and for results of the same.
pub(crate) const SLOTS: usize = 4;

/// Borders between ranks' blocks, and between slices that are put up, are multiples of this, so
/// that no two ranks write the same pair of cache lines.
pub(crate) const BORDER_BYTES: usize = 128;

/// A kind of step, as far as the way of its data depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// [`Endpoint::exchange`](crate::group::Endpoint::exchange).
    Exchange,
    /// [`Endpoint::published`](crate::group::Endpoint::published).
    Published(Chunking),
    /// [`Endpoint::divided`](crate::group::Endpoint::divided).
    Divided {
        /// Who receives.
        targets: Targets,
        /// Bytes of an element of the data.
        input_size: usize,
        /// Bytes of an element of the result.
        output_size: usize,
    },
}

/// How a rank shares memory in a step: with the call's code, what descriptors must have in common
/// exactly.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Access {
    Payload = 0,
    Published = 1,
    DividedToAll = 2,
    DividedToOwn = 3,
    DividedToRoot = 4,
}

/// Who receives the result of [`Endpoint::divided`](crate::group::Endpoint::divided).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Every rank.
    All,
    /// Each rank its own block.
    Own,
    /// One rank.
    Root(usize),
}

impl Targets {
    /// Whether this rank receives in the whole of its output.
    pub(crate) fn reach(self, rank: usize) -> bool {
        match self {
            Targets::All => true,
            Targets::Own => false,
            Targets::Root(root) => rank == root,
        }
    }
}

/// How what a rank publishes is cut, so that ranks work at the same time. A matter of speed, which
/// follows from the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunking {
    /// Blocks of equal size, of each of which a part can be read at a time. If they are as many as
    /// the ranks, each is for the rank of its number.
    pub blocks: usize,
    /// Bytes that are put up at a time, at most.
    pub window_bytes: usize,
    /// No rank has more bytes of data, as all ranks know; `usize::MAX` where they do not know.
    pub most_bytes: usize,
}

impl Chunking {
    /// Every rank reads all of it.
    pub const WHOLE: Chunking = Chunking { blocks: 1, window_bytes: WHOLE_WINDOW_BYTES, most_bytes: usize::MAX };

    /// The same, where all know that none has more than so many bytes: parts of a size, so that the
    /// last one is no small rest.
    pub fn whole(bytes: usize) -> Chunking {
        // Up to a quarter more at a time takes less than a part more.
        let parts = bytes.saturating_sub(WHOLE_WINDOW_BYTES / 4).div_ceil(WHOLE_WINDOW_BYTES).max(1);
        let window_bytes = bytes.div_ceil(parts).next_multiple_of(BORDER_BYTES).max(BORDER_BYTES);
        Chunking { blocks: 1, window_bytes, most_bytes: bytes }
    }

    /// Each rank reads its block of so many, which have so many bytes together.
    pub const fn blocks(blocks: usize, bytes: usize) -> Chunking {
        Chunking { blocks, window_bytes: WINDOW_BYTES, most_bytes: bytes }
    }

    /// Only one rank has data, up to so many bytes as so many blocks; or only one reads such data.
    pub fn one_way(bytes: usize, blocks: usize) -> Chunking {
        // Of several blocks, a rank reads one.
        let few = (bytes / 2).clamp(LEAST_WINDOW_BYTES * blocks.min(2), 4 * LEAST_WINDOW_BYTES);
        Chunking { blocks, window_bytes: (bytes / 4).clamp(few, WINDOW_BYTES), most_bytes: bytes }
    }

    /// The same, of at most so many bytes of each rank.
    pub const fn at_most(self, bytes: usize) -> Chunking {
        Chunking { most_bytes: bytes, ..self }
    }
}

/// What the ranks of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// How many they are.
    pub ranks: usize,
    /// Bytes of a slot of staging; none where the ranks are threads of one process.
    pub slot_bytes: Option<usize>,
    /// Whether ranks of other processes can read each other's memory: tried when all have arrived
    /// once.
    pub reads: bool,
}

/// The way of the data of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// They ride in the descriptors by which the ranks arrive.
    Inline,
    /// They stay where they lie: who needs them reads them there, or folds its block of them
    /// straight into all results.
    InPlace,
    /// Every rank has the system read what it needs out of the others' memory. Data of fewer than
    /// [`READ_BYTES`] bytes are put up beside them.
    ProcessRead,
    /// Every rank puts them up, and reads what it needs of what all have put up.
    Staged(Windows),
    /// Every rank puts up what the others fold, folds its own block, and puts that up for those who
    /// receive.
    TwoShot(Windows),
}

/// How data are put up: a part at a time, while the part before is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// How many parts there are.
    pub count: usize,
    /// Blocks of equal size, of each of which there is a slice in every window.
    pub blocks: usize,
    /// Bytes of such a slice.
    pub stride: usize,
}

/// Whether `bytes` of each of `ranks` ride in the descriptors by which they arrive, if every rank
/// reads all of them.
///
/// Between 2 ranks on two cores, from 128 bytes to 8 KiB, 0.6 to 0.9 of the time of any other way.
#[inline]
pub fn rides(ranks: usize, bytes: usize) -> bool {
    bytes <= FIRST_BYTES || (bytes <= PAYLOAD_BYTES && ranks * bytes <= PAYLOADS_BYTES)
}

/// Of each of so many buffers that the system reads, how many bytes are read before they are
/// folded; of none, a chunk.
pub(crate) fn piece_bytes(buffers: usize) -> usize {
    match buffers {
        0 => CHUNK_BYTES,
        _ => (READ_SCRATCH_BYTES / buffers / BORDER_BYTES * BORDER_BYTES).max(READ_LEAST_BYTES),
    }
}

/// Cuts a range of elements of `size` bytes into chunks.
pub(crate) fn chunks(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    pieces(range, size, CHUNK_BYTES)
}

/// Cuts a range of elements of `size` bytes into pieces of so many bytes.
pub(crate) fn pieces(range: Range<usize>, size: usize, bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let step = bytes / size;
    range.clone().step_by(step).map(move |start| start..range.end.min(start + step))
}

impl Step {
    pub(crate) fn access(self) -> Access {
        match self {
            Step::Exchange => Access::Payload,
            Step::Published(_) => Access::Published,
            Step::Divided { targets: Targets::All, .. } => Access::DividedToAll,
            Step::Divided { targets: Targets::Own, .. } => Access::DividedToOwn,
            Step::Divided { targets: Targets::Root(_), .. } => Access::DividedToRoot,
        }
    }

    /// [`Endpoint::divided`](crate::group::Endpoint::divided) with this reducer.
    pub fn divided(reducer: &Reducer, targets: Targets) -> Step {
        Step::Divided { targets, input_size: reducer.input().size(), output_size: reducer.output().size() }
    }
}

impl Topology {
    /// Every number of bytes of a rank up to which the data of some call go another way than from
    /// there on, in order.
    pub fn borders(&self) -> Vec<usize> {
        let payloads =
            [TINY_BYTES, FIRST_BYTES, RAGGED_BYTES, AWAITED_BYTES, PAYLOAD_BYTES, PAYLOADS_BYTES / self.ranks];
        let of_threads = [THREADS_PAYLOAD_BYTES, CHUNK_BYTES];
        let of_processes = |slot_bytes: usize| {
            let windows = [WINDOW_BYTES, WHOLE_WINDOW_BYTES, WHOLE_WINDOW_BYTES / 4 * 5, slot_bytes];
            let one_shot = [ONE_SHOT_BYTES, ROOT_ONE_SHOT_BYTES].map(|bytes| (bytes / self.ranks).min(slot_bytes / 4));
            let others = [
                SOME_PAYLOAD_BYTES,
                IN_PLACE_BYTES,
                LEAST_WINDOW_BYTES,
                4 * LEAST_WINDOW_BYTES,
                READ_BYTES.min(slot_bytes),
            ];
            [&windows[..], &one_shot, &others].concat()
        };
        let others = self.slot_bytes.map_or(of_threads.to_vec(), of_processes);
        let mut borders = [&payloads[..], &others].concat();
        borders.sort_unstable();
        borders.dedup();
        borders
    }

    /// The step of a call in which data only move: the rank that has most to show has `bytes`. All
    /// ranks know how many that are.
    #[inline]
    pub fn moving(&self, bytes: usize, chunking: Chunking) -> Step {
        if self.rides_to_some(bytes) { Step::Exchange } else { Step::Published(chunking) }
    }

    /// The step of a call in which every rank gets what all have, of which the most is `bytes`. All
    /// ranks know how many that are.
    #[inline]
    pub fn gathering(&self, bytes: usize) -> Step {
        match rides(self.ranks, bytes) || self.rides_to_some(bytes) {
            true => Step::Exchange,
            false => Step::Published(Chunking::whole(bytes)),
        }
    }

    /// The step of a call in which `bytes` of each rank are combined by this reducer.
    #[inline]
    pub fn combining(&self, reducer: &Reducer, bytes: usize, targets: Targets) -> Step {
        let rides = match targets {
            Targets::All => rides(self.ranks, bytes),
            Targets::Own | Targets::Root(_) => self.rides_to_some(bytes),
        };
        if rides { Step::Exchange } else { Step::divided(reducer, targets) }
    }

    /// Whether `bytes` of each rank ride in the descriptors by which they arrive, if not every rank
    /// reads all of them.
    #[inline]
    fn rides_to_some(&self, bytes: usize) -> bool {
        bytes <= if self.slot_bytes.is_some() { SOME_PAYLOAD_BYTES } else { THREADS_PAYLOAD_BYTES }
    }

    /// Whether a rank writes its block of the result over the data of which it is made, where its
    /// peer put them up: the lines are its core's by then, and the peer takes them back with the
    /// result.
    pub(crate) fn returns(&self, step: Step) -> bool {
        let fits = matches!(step, Step::Divided { input_size, output_size, .. } if input_size == output_size);
        self.ranks == 2 && fits
    }

    /// The way of a step in which the rank that has most has `bytes` of data: if `in_heap`, all of
    /// them lie in memory from [`Endpoint::alloc`](crate::group::Endpoint::alloc), and so do the
    /// results of a divided step, on pages of their own. If that is so on some ranks only, all go
    /// the way of `in_heap: false`; and that of `reads: false` if not all can read.
    pub fn protocol(&self, step: Step, bytes: usize, in_heap: bool) -> Protocol {
        let Some(slot_bytes) = self.slot_bytes else {
            return if step == Step::Exchange { Protocol::Inline } else { Protocol::InPlace };
        };
        // Where there is little staging, short data go the ways of long ones, too: so tests need no
        // long ones.
        let is_to_root = matches!(step, Step::Divided { targets: Targets::Root(_), .. });
        let one_shot_bytes = if is_to_root && self.returns(step) { ROOT_ONE_SHOT_BYTES } else { ONE_SHOT_BYTES };
        let one_shot_bytes = (one_shot_bytes / self.ranks).min(slot_bytes / 4);
        let read_bytes = READ_BYTES.min(slot_bytes);
        let in_heap = in_heap && bytes > IN_PLACE_BYTES;
        match step {
            Step::Exchange => Protocol::Inline,
            Step::Published(_) if in_heap => Protocol::InPlace,
            Step::Published(chunking) if self.reads && chunking.blocks > 1 && bytes >= read_bytes => {
                Protocol::ProcessRead
            }
            Step::Published(Chunking { blocks, window_bytes, .. }) => {
                Protocol::Staged(Windows::of_blocks(slot_bytes.min(window_bytes), blocks, bytes))
            }
            Step::Divided { targets: Targets::Own, input_size, .. } => {
                let is_even = (bytes / input_size).is_multiple_of(self.ranks);
                // In place a rank writes its block, which no other may read.
                let blocks = if is_even { self.ranks } else { 1 };
                let topology = Topology { reads: self.reads && is_even, ..*self };
                topology.protocol(Step::Published(Chunking::blocks(blocks, bytes)), bytes, in_heap && is_even)
            }
            Step::Divided { .. } if in_heap => Protocol::InPlace,
            Step::Divided { .. } if bytes <= one_shot_bytes => {
                Protocol::Staged(Windows::of_blocks(slot_bytes, 1, bytes))
            }
            Step::Divided { input_size, output_size, .. } => {
                let stride = slot_bytes.min(WINDOW_BYTES) / input_size.max(output_size) * input_size;
                Protocol::TwoShot(Windows { count: bytes.div_ceil(stride), blocks: 1, stride })
            }
        }
    }
}

impl Windows {
    /// Data of at most `bytes`, seen as `blocks`, put up in slots of so many bytes.
    fn of_blocks(slot_bytes: usize, blocks: usize, bytes: usize) -> Windows {
        // Where there are many ranks, a slot may have no room for a slice of the block of each.
        let blocks = if slot_bytes / blocks < BORDER_BYTES { 1 } else { blocks };
        let stride = slot_bytes / blocks / BORDER_BYTES * BORDER_BYTES;
        Windows { count: (bytes / blocks).div_ceil(stride).max(1), blocks, stride }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_changes_with_the_size() {
        let topology = Topology { ranks: 2, slot_bytes: Some(256 << 10), reads: false };
        let sum = |targets| Step::Divided { targets, input_size: 4, output_size: 4 };
        let windows = |count, blocks| Windows { count, blocks, stride: (256 << 10) / blocks };
        let parts = |count, blocks| Windows { count, blocks, stride: WINDOW_BYTES / blocks };
        let all = sum(Targets::All);
        assert_eq!(topology.protocol(all, ONE_SHOT_BYTES / 2, false), Protocol::Staged(windows(1, 1)));
        assert_eq!(topology.protocol(all, ONE_SHOT_BYTES / 2 + 4, false), Protocol::TwoShot(parts(1, 1)));
        let root = sum(Targets::Root(0));
        assert_eq!(topology.protocol(root, ROOT_ONE_SHOT_BYTES / 2, false), Protocol::Staged(windows(1, 1)));
        assert_eq!(topology.protocol(root, ROOT_ONE_SHOT_BYTES / 2 + 4, false), Protocol::TwoShot(parts(1, 1)));
        let three = Topology { ranks: 3, ..topology };
        assert_eq!(three.protocol(all, ONE_SHOT_BYTES / 3, false), Protocol::Staged(windows(1, 1)));
        assert_eq!(three.protocol(all, ONE_SHOT_BYTES / 3 + 4, false), Protocol::TwoShot(parts(1, 1)));
        assert_eq!(topology.protocol(all, 1 << 20, false), Protocol::TwoShot(parts(8, 1)));
        assert_eq!(topology.protocol(all, IN_PLACE_BYTES + 4, true), Protocol::InPlace);
        assert_eq!(topology.protocol(sum(Targets::Own), 1 << 20, false), Protocol::Staged(parts(8, 2)));
        // Blocks of different sizes are not the parts that ranks put up side by side.
        assert_eq!(topology.protocol(sum(Targets::Own), (1 << 20) + 4, true), Protocol::Staged(parts(9, 1)));
        let wholes = |count| Windows { count, blocks: 1, stride: WHOLE_WINDOW_BYTES };
        assert_eq!(topology.protocol(Step::Published(Chunking::WHOLE), 1 << 20, false), Protocol::Staged(wholes(16)));
        let to_one = |bytes| topology.protocol(Step::Published(Chunking::one_way(bytes, 1)), bytes, false);
        assert_eq!(to_one(64 << 10), Protocol::Staged(Windows { count: 2, blocks: 1, stride: 32 << 10 }));
        assert_eq!(to_one(1 << 20), Protocol::Staged(parts(8, 1)));
        assert!(rides(2, PAYLOAD_BYTES) && !rides(2, PAYLOAD_BYTES + 1));
        assert!(rides(1000, FIRST_BYTES) && !rides(1000, PAYLOAD_BYTES));
        let reading = Topology { reads: true, ..topology };
        let [even, odd] = [READ_BYTES, READ_BYTES + 4];
        assert_eq!(reading.protocol(Step::Published(Chunking::blocks(2, even)), even, false), Protocol::ProcessRead);
        assert_eq!(reading.protocol(Step::Published(Chunking::WHOLE), even, false), Protocol::Staged(wholes(4)));
        assert_eq!(reading.protocol(sum(Targets::Own), even, false), Protocol::ProcessRead);
        assert_eq!(reading.protocol(sum(Targets::Own), odd, false), topology.protocol(sum(Targets::Own), odd, false));
        assert_eq!(reading.protocol(all, 1 << 20, false), Protocol::TwoShot(parts(8, 1)));
        assert_eq!(reading.protocol(sum(Targets::Own), even, true), Protocol::InPlace);
        let threads = Topology { slot_bytes: None, ..topology };
        assert_eq!(threads.protocol(all, 4096, false), Protocol::InPlace);
        for (topology, most) in [(topology, SOME_PAYLOAD_BYTES), (threads, THREADS_PAYLOAD_BYTES)] {
            assert_eq!(topology.moving(most, Chunking::WHOLE), Step::Exchange);
            assert_eq!(topology.moving(most + 1, Chunking::WHOLE), Step::Published(Chunking::WHOLE));
            assert_eq!(topology.gathering(PAYLOAD_BYTES), Step::Exchange);
            assert_eq!(topology.gathering(PAYLOAD_BYTES + 1), Step::Published(Chunking::whole(PAYLOAD_BYTES + 1)));
        }
    }

    #[test]
    fn windows_of_parts_that_all_read_have_no_small_rest() {
        let w = WHOLE_WINDOW_BYTES;
        for bytes in [0, 1, 5000, w, w + 4, w * 5 / 4, w * 5 / 4 + 1, 1 << 20, (1 << 20) + 4, 12_345_678] {
            let Chunking { blocks, window_bytes, .. } = Chunking::whole(bytes);
            assert!(blocks == 1 && window_bytes <= w * 5 / 4 && window_bytes.is_multiple_of(BORDER_BYTES));
            let rest = bytes % window_bytes;
            assert!(bytes < window_bytes || rest == 0 || rest > window_bytes / 2, "{bytes} bytes in {window_bytes}");
        }
    }
}
