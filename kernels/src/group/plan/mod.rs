//! Protocol selection: how the data of a step go from rank to rank, by its kind and size. It is
//! done only here, so that the reported protocol ([`Topology::protocol`]) is the one that is used.
//!
//! The choice affects only speed: every protocol keeps the canonical order, and ranks that agree on
//! a step choose the same protocol.

mod chunking;
mod windows;

pub use chunking::{Chunking, Readers};
pub(crate) use windows::BORDER_BYTES;
pub use windows::Windows;

use crate::{
    cpu::reduce::Reducer,
    digest::digest_counts,
    shm::{
        Shape,
        codes::Access,
        records::{FIRST_BYTES, MESSAGE_BYTES, MESSAGE_DATA_BYTES, PAYLOAD_BYTES, TINY_BYTES},
    },
    tuning::{self, Pipeline, Tuning},
};
use consonance_spec::Signature;
use std::ops::Range;

/// Slots of a rank's staging: two for the data of even and odd windows, and two for their results.
pub(crate) const SLOTS: usize = 4;

/// Bytes of one buffer that a rank processes between two checks of the abort word: with many
/// inputs, at memory speed, still well under a millisecond.
const CHUNK_BYTES: usize = 1 << 20;

/// A kind of step, with the parameters that protocol selection depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// [`Step::exchange`](crate::group::Step::exchange).
    Exchange,
    /// [`Step::send_message`](crate::group::Step::send_message), or a receive of messages.
    Message,
    /// [`Step::published`](crate::group::Step::published).
    Published(Chunking),
    /// [`Step::divided`](crate::group::Step::divided).
    Divided {
        /// The ranks that receive.
        targets: Targets,
        /// Bytes of an element of the data.
        input_size: usize,
        /// Bytes of an element of the result.
        output_size: usize,
    },
}

/// The ranks that receive the result of [`Step::divided`](crate::group::Step::divided).
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
    /// Whether this rank receives the whole output.
    pub(crate) fn reach(self, rank: usize) -> bool {
        match self {
            Targets::All => true,
            Targets::Own => false,
            Targets::Root(root) => rank == root,
        }
    }
}

/// The properties on which the choice of a protocol depends: number of ranks, slot size, whether
/// cross-process reads work, and the knobs of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Number of ranks.
    pub ranks: usize,
    /// Bytes of a staging slot; `None` where the ranks are threads of one process.
    pub slot_bytes: Option<usize>,
    /// Whether ranks in different processes can read each other's memory: tested when all have
    /// arrived once.
    pub reads: bool,
    /// The knobs of the group.
    pub tuning: &'static Tuning,
}

/// The way of a step's data from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The payloads are in the call descriptors.
    Inline,
    /// The same, and a rank waits only for the data that it reads.
    Message,
    /// The data stay in the callers' buffers: each rank reads them there, or folds its block of
    /// them straight into all results.
    InPlace,
    /// Every rank reads the data it needs out of the other processes, by the system. Ranks with
    /// fewer bytes than [`read_bytes`](Tuning::read_bytes), or if data go one way than
    /// [`far_bytes`](Tuning::far_bytes), stage their data: both may differ between ranks.
    ProcessRead,
    /// Every rank stages its data, and reads what it needs of the staged data of all ranks.
    Staged(Windows),
    /// Every rank stages the data that the others fold, folds its own block, and stages the result
    /// for the ranks that receive.
    TwoShot(Windows),
}

/// The way that a call's data went from rank to rank: a [`Protocol`] for profiles. A message is
/// inline, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Path {
    /// See [`Protocol::Inline`] and [`Protocol::Message`].
    Inline = 1,
    /// See [`Protocol::InPlace`].
    InPlace = 2,
    /// See [`Protocol::ProcessRead`].
    ProcessRead = 3,
    /// See [`Protocol::Staged`].
    Staged = 4,
    /// See [`Protocol::TwoShot`].
    TwoShot = 5,
}

impl Protocol {
    /// Returns the path of its data.
    pub fn path(self) -> Path {
        match self {
            Protocol::Inline | Protocol::Message => Path::Inline,
            Protocol::InPlace => Path::InPlace,
            Protocol::ProcessRead => Path::ProcessRead,
            Protocol::Staged(_) => Path::Staged,
            Protocol::TwoShot(_) => Path::TwoShot,
        }
    }
}

impl Path {
    /// Every path.
    pub const ALL: [Path; 5] = [Path::Inline, Path::InPlace, Path::ProcessRead, Path::Staged, Path::TwoShot];

    /// Returns its name in profiles and explanations.
    pub fn name(self) -> &'static str {
        match self {
            Path::Inline => "inline",
            Path::InPlace => "in place",
            Path::ProcessRead => "process read",
            Path::Staged => "staged",
            Path::TwoShot => "two-shot",
        }
    }
}

/// Returns how many bytes of each of `buffers` buffers are read out of other processes before they
/// are folded. Without such buffers a chunk is folded at a time.
pub(crate) fn piece_bytes(buffers: usize) -> usize {
    let Tuning { read_scratch_bytes, read_least_bytes, .. } = tuning::current();
    match buffers {
        0 => CHUNK_BYTES,
        _ => (read_scratch_bytes / buffers / BORDER_BYTES * BORDER_BYTES).max(*read_least_bytes),
    }
}

/// Returns how many bytes are read out of other processes at least, in a group with slots of
/// `slot_bytes` bytes: smaller slots than usual, which tests have, lower the limit.
fn least_read(read_bytes: usize, slot_bytes: usize) -> usize {
    if slot_bytes < Shape::STAGING_BYTES / SLOTS { read_bytes.min(slot_bytes) } else { read_bytes }
}

/// Cuts a range of elements of `size` bytes into chunks.
pub(crate) fn chunks(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    pieces(range, size, CHUNK_BYTES)
}

/// Cuts a range of elements of `size` bytes into pieces of `bytes` bytes.
pub(crate) fn pieces(range: Range<usize>, size: usize, bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let step = bytes / size;
    range.clone().step_by(step).map(move |start| start..range.end.min(start + step))
}

impl StepKind {
    pub(crate) fn access(self) -> Access {
        match self {
            StepKind::Exchange => Access::Payload,
            StepKind::Message => Access::Message,
            StepKind::Published(_) => Access::Published,
            StepKind::Divided { targets: Targets::All, .. } => Access::DividedToAll,
            StepKind::Divided { targets: Targets::Own, .. } => Access::DividedToOwn,
            StepKind::Divided { targets: Targets::Root(_), .. } => Access::DividedToRoot,
        }
    }

    /// Returns the step of [`Step::divided`](crate::group::Step::divided) with this
    /// reducer.
    pub fn divided(reducer: &Reducer, targets: Targets) -> StepKind {
        StepKind::Divided { targets, input_size: reducer.input().size(), output_size: reducer.output().size() }
    }
}

impl Topology {
    /// Returns, in order, the byte counts of a rank at which some call changes its protocol: up to
    /// the count it uses one, above it another.
    pub fn borders(&self) -> Vec<usize> {
        let tuning = self.tuning;
        let payloads = [
            TINY_BYTES,
            FIRST_BYTES,
            tuning.ragged_bytes,
            tuning::current().awaited_bytes,
            MESSAGE_DATA_BYTES,
            MESSAGE_BYTES.saturating_sub(size_of::<u64>() * self.ranks),
            self.payload_bytes(),
            PAYLOAD_BYTES.saturating_sub(2 * size_of::<u64>() * self.ranks),
            self.some_payload_bytes(),
            2 * self.some_payload_bytes(),
            tuning.payloads_bytes / self.ranks,
        ];
        let of_threads = [CHUNK_BYTES];
        let of_processes = |slot_bytes: usize| {
            let whole = tuning.whole_window_bytes;
            let window = tuning.window_bytes;
            let windows = [window, window / 4 * 5, whole, whole / 4 * 5, slot_bytes];
            let one_shot = [tuning.one_shot_bytes, tuning.root_one_shot_bytes];
            let one_shot = one_shot.map(|bytes| (bytes / self.ranks).min(slot_bytes / 4));
            let others = [
                tuning.in_place_bytes,
                tuning.least_window_bytes,
                4 * tuning.least_window_bytes,
                least_read(tuning::current().read_bytes, slot_bytes),
                least_read(tuning::current().far_bytes, slot_bytes),
            ];
            [&windows[..], &one_shot, &others].concat()
        };
        let others = self.slot_bytes.map_or(of_threads.to_vec(), of_processes);
        let mut borders = [&payloads[..], &others].concat();
        borders.sort_unstable();
        borders.dedup();
        borders
    }

    /// Returns the step of a call in which data only move. The rank with the most data has `bytes`
    /// bytes, as all ranks know.
    #[inline]
    pub fn moving(&self, bytes: usize, chunking: Chunking) -> StepKind {
        if self.rides_to_some(bytes) { StepKind::Exchange } else { StepKind::Published(chunking) }
    }

    /// Returns the step of a call in which one rank has data, or one rank reads them. The rank with
    /// the most data has `bytes` bytes, as all ranks know. It is a message if descriptors and
    /// payloads say all that ranks compare: the signature has no detail but the digest of `counts`.
    #[inline]
    pub fn one_way(
        &self,
        signature: &Signature,
        counts: Option<&[usize]>,
        bytes: usize,
        chunking: Chunking,
    ) -> StepKind {
        let says_all = || signature.detail == counts.map_or(0, digest_counts) && signature.kind.has_root();
        let words_bytes = || size_of::<u64>() * counts.map_or(0, <[usize]>::len);
        let fits = || bytes <= MESSAGE_DATA_BYTES && words_bytes() + bytes <= MESSAGE_BYTES;
        match self.moving(bytes, chunking) {
            StepKind::Exchange if self.slot_bytes.is_some() && fits() && says_all() => StepKind::Message,
            step => step,
        }
    }

    /// Whether a rank has `bytes` bytes of data in its payload before `words` words, by which every
    /// rank tells the others how much it has. The limit is twice that of data alone.
    #[inline]
    pub fn rides_before(&self, words: usize, bytes: usize) -> bool {
        self.most_before(words).is_some_and(|most| bytes <= most)
    }

    /// Returns the most bytes that [ride before](Topology::rides_before) so many words; `None` if
    /// the words alone are too many.
    #[inline]
    pub(crate) fn most_before(&self, words: usize) -> Option<usize> {
        Some((2 * self.some_payload_bytes()).min(PAYLOAD_BYTES.checked_sub(size_of::<u64>() * words)?))
    }

    /// Returns the step of a call in which every rank gets the data of all. The rank with the most
    /// data has `bytes` bytes, as all ranks know.
    #[inline]
    pub fn gathering(&self, bytes: usize) -> StepKind {
        match self.rides_to_all(bytes) || self.rides_to_some(bytes) {
            true => StepKind::Exchange,
            false => StepKind::Published(Chunking::whole(bytes)),
        }
    }

    /// Returns the step of a call in which this reducer combines `bytes` bytes of each rank.
    #[inline]
    pub fn combining(&self, reducer: &Reducer, bytes: usize, targets: Targets) -> StepKind {
        let rides = match targets {
            Targets::All => self.rides_to_all(bytes),
            Targets::Own | Targets::Root(_) => self.rides_to_some(bytes),
        };
        if rides { StepKind::Exchange } else { StepKind::divided(reducer, targets) }
    }

    /// Whether payloads of `bytes` bytes of each rank are inline in the descriptors, if every rank
    /// reads all of them.
    ///
    /// Inline payloads take less time than any other protocol up to these sizes (measured:
    /// PERF.md).
    #[inline]
    pub fn rides_to_all(&self, bytes: usize) -> bool {
        bytes <= FIRST_BYTES || (bytes <= self.payload_bytes() && self.ranks * bytes <= self.tuning.payloads_bytes)
    }

    /// The same, if not every rank reads all of them.
    #[inline]
    fn rides_to_some(&self, bytes: usize) -> bool {
        bytes <= self.some_payload_bytes()
    }

    #[inline]
    fn some_payload_bytes(&self) -> usize {
        let Tuning { some_payload_bytes, threads_payload_bytes, .. } = *self.tuning;
        if self.slot_bytes.is_some() { some_payload_bytes.min(self.payload_bytes()) } else { threads_payload_bytes }
    }

    /// Returns the limit on an inline payload. Small slots lower it, so that tests reach every
    /// protocol with short data.
    #[inline]
    fn payload_bytes(&self) -> usize {
        self.slot_bytes.map_or(PAYLOAD_BYTES, |slot_bytes| (slot_bytes / 4).clamp(FIRST_BYTES, PAYLOAD_BYTES))
    }

    /// Whether a rank writes its block of the result over the peer's staged data from which it was
    /// folded. This core owns their cache lines by then, and the peer takes them back with the
    /// result.
    pub(crate) fn returns(&self, step: StepKind) -> bool {
        let fits = matches!(step, StepKind::Divided { input_size, output_size, .. } if input_size == output_size);
        self.ranks == 2 && fits
    }

    /// Returns the protocol of a step in which the rank with the most data has `bytes` bytes. With
    /// `in_heap` all data lie in memory from [`Endpoint::alloc`](crate::group::Endpoint::alloc),
    /// and so do the results of a divided step, on pages of their own. If only some ranks have such
    /// data, all use the protocol of `in_heap: false`; if not all ranks can read the others'
    /// memory, they use that of `reads: false`.
    #[inline]
    pub fn protocol(&self, step: StepKind, bytes: usize, in_heap: bool) -> Protocol {
        self.protocol_in(tuning::current(), step, bytes, in_heap)
    }

    /// Returns the protocol in a process with these knobs. It is a pure function.
    fn protocol_in(&self, process: &Tuning, step: StepKind, bytes: usize, in_heap: bool) -> Protocol {
        let Some(slot_bytes) = self.slot_bytes else {
            return if matches!(step, StepKind::Exchange | StepKind::Message) {
                Protocol::Inline
            } else {
                Protocol::InPlace
            };
        };
        // Small slots lower the limits, so that tests reach every protocol with short data.
        let is_to_root = matches!(step, StepKind::Divided { targets: Targets::Root(_), .. });
        let Tuning { one_shot_bytes, root_one_shot_bytes, in_place_bytes, .. } = *self.tuning;
        let one_shot_bytes = if is_to_root && self.returns(step) { root_one_shot_bytes } else { one_shot_bytes };
        let one_shot_bytes = (one_shot_bytes / self.ranks).min(slot_bytes / 4);
        let read_bytes = least_read(process.read_bytes, slot_bytes);
        let far_bytes = least_read(process.far_bytes, slot_bytes);
        let reads_one_way = |of: Chunking| of.readers == Readers::OneWay && process.far == Pipeline::Read;
        let in_heap = in_heap && bytes > in_place_bytes;
        match step {
            StepKind::Exchange => Protocol::Inline,
            StepKind::Message => Protocol::Message,
            StepKind::Published(_) if in_heap => Protocol::InPlace,
            StepKind::Published(chunking) if self.reads && chunking.blocks > 1 && bytes >= read_bytes => {
                Protocol::ProcessRead
            }
            StepKind::Published(chunking) if self.reads && reads_one_way(chunking) && bytes >= far_bytes => {
                Protocol::ProcessRead
            }
            StepKind::Published(chunking) => {
                let window_bytes = slot_bytes.min(chunking.window_bytes(self.tuning));
                let blocks = Windows::blocks(window_bytes, chunking.blocks);
                // Blocks of different sizes have slices in as many windows as the largest.
                let bytes = if blocks > 1 && bytes > 0 { chunking.most_bytes } else { bytes };
                Protocol::Staged(Windows::new(window_bytes, blocks, bytes))
            }
            StepKind::Divided { targets: Targets::Own, input_size, .. } => {
                let is_even = (bytes / input_size).is_multiple_of(self.ranks);
                // In place a rank writes its block, which no other rank may read.
                let blocks = if is_even { self.ranks } else { 1 };
                let topology = Topology { reads: self.reads && is_even, ..*self };
                let step = StepKind::Published(Chunking::blocks(blocks, bytes));
                topology.protocol_in(process, step, bytes, in_heap && is_even)
            }
            StepKind::Divided { .. } if in_heap => Protocol::InPlace,
            StepKind::Divided { .. } if bytes <= one_shot_bytes => Protocol::Staged(Windows::new(slot_bytes, 1, bytes)),
            StepKind::Divided { input_size, output_size, .. } => {
                let stride = slot_bytes.min(self.tuning.window_bytes) / input_size.max(output_size) * input_size;
                Protocol::TwoShot(Windows { count: bytes.div_ceil(stride), blocks: 1, stride })
            }
        }
    }

    /// Returns the windows of a step in which the rank that stages the most data stages `bytes`
    /// bytes.
    pub(crate) fn windows(&self, step: StepKind, bytes: usize) -> Windows {
        match (Topology { reads: false, ..*self }).protocol(step, bytes, false) {
            Protocol::Staged(windows) => windows,
            protocol => unreachable!("{step:?} goes {protocol:?}"),
        }
    }

    /// Returns the windows of a step whose first window was staged before the ranks knew the sizes.
    /// `step` has what they know now; the rank that stages the most data stages `bytes` bytes.
    pub fn windows_ahead(&self, step: StepKind, bytes: usize) -> Windows {
        let StepKind::Published(chunking) = step else { unreachable!("{step:?} knows all sizes") };
        let unknown = StepKind::Published(Chunking { most_bytes: usize::MAX, ..chunking });
        let Windows { blocks, stride: first, .. } = self.windows(unknown, bytes);
        let (count, later) = self.later_windows(step, first, bytes);
        Windows { count, blocks, stride: first.max(later) }
    }

    /// Returns how many windows there are if the first has `first` bytes of a block, and the bytes
    /// of a block in the later ones: see [`Topology::windows_ahead`].
    pub(crate) fn later_windows(&self, step: StepKind, first: usize, bytes: usize) -> (usize, usize) {
        let StepKind::Published(chunking) = step else { unreachable!("{step:?} knows all sizes") };
        let Windows { blocks, .. } = self.windows(step, bytes);
        let block = if blocks > 1 { chunking.most_bytes / blocks } else { bytes };
        if bytes == 0 || block <= first {
            return (1, first);
        }
        let rest = Chunking::blocks(chunking.blocks, (block - first).saturating_mul(chunking.blocks));
        let Windows { count, stride, .. } = self.windows(StepKind::Published(rest), block - first);
        (1 + count, stride)
    }

    /// Returns the room for a slice of one of `blocks` blocks in any window of such a step.
    pub(crate) fn room(&self, blocks: usize) -> usize {
        let most = (self.tuning.window_bytes / 4 * 5).next_multiple_of(BORDER_BYTES * self.ranks);
        self.slot_bytes.map_or(most, |bytes| most.min(bytes)) / blocks / BORDER_BYTES * BORDER_BYTES
    }
}

#[cfg(test)]
mod tests;
