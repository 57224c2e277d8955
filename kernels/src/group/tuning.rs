//! The sizes at which protocols change, and the sizes of chunks and windows.

use crate::shm::records::FIRST_BYTES;

/// Limit on the bytes that one rank reads in an inline exchange, over all ranks. Payloads that fit
/// beside the descriptors are exempt. Above it the two-shot algorithm reads less.
pub(super) const PAYLOADS_BYTES: usize = 16 << 10;

/// Limit on an inline payload, if not every rank reads all of them (measured: PERF.md).
pub(super) const SOME_PAYLOAD_BYTES: usize = 4 << 10;

/// The same limit between threads, which read larger data in place (measured: PERF.md).
pub(super) const THREADS_PAYLOAD_BYTES: usize = FIRST_BYTES + (2 << 10);

/// Ragged parts, for all ranks or for the root, are awaited if the largest has at most this many
/// bytes.
pub const RAGGED_BYTES: usize = 192;

/// Limit on the bytes of all ranks together up to which every rank of a reduction folds all staged
/// data, instead of one block for all ranks: one wait instead of two, for more reads. The best
/// limit differs between machines, by how far cache lines are from core to core (measured:
/// PERF.md).
pub(super) const ONE_SHOT_BYTES: usize = 128 << 10;

/// The same limit for two ranks, if the result is for one rank, which is then the only one that
/// folds, and has elements of the same size (measured: PERF.md).
pub(super) const ROOT_ONE_SHOT_BYTES: usize = 32 << 10;

/// Data in heaps of more bytes than this are read and written in place. Smaller data are staged, so
/// that no rank waits at the end of the step (measured: PERF.md).
pub const IN_PLACE_BYTES: usize = 2 << 10;

/// From this many bytes on, ranks that each need another block of the others' data read it out of
/// the other processes, if they can: one copy instead of two. Where each rank needs all the data,
/// two copies through the caches take less time (measured: PERF.md).
pub const READ_BYTES: usize = 256 << 10;

/// Bytes of the scratch buffer for data read out of all other processes before they are folded: it
/// stays in a core's own cache.
pub(super) const READ_SCRATCH_BYTES: usize = 128 << 10;

/// The least bytes that are read at a time, for any number of peers: a system call costs as much as
/// a copy of some KiB.
pub(super) const READ_LEAST_BYTES: usize = 16 << 10;

/// Bytes of one rank that are staged at a time for others to copy: two larger windows would leave a
/// core's own cache (measured: PERF.md).
pub(super) const WINDOW_BYTES: usize = 128 << 10;

/// The same, where every rank copies all the data (measured: PERF.md).
pub(super) const WHOLE_WINDOW_BYTES: usize = 64 << 10;

/// The smallest window, where ranks work in turn: no read overlaps the copy of the first window,
/// and no copy overlaps the read of the last one.
pub(super) const LEAST_WINDOW_BYTES: usize = 8 << 10;

/// Bytes of one buffer that a rank processes between two checks of the abort word: with many
/// inputs, at memory speed, still well under a millisecond.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// Limit on the swapped payloads that are [awaited](super::post::await_payload) (measured:
/// PERF.md).
pub(super) const AWAITED_BYTES: usize = 512;

/// Bytes of each slot that successive windows use in turn, at most: a larger part has no further
/// effect (measured: PERF.md).
pub(super) const MOVING_BYTES: usize = 256 << 10;

/// Bytes of staging that are reserved at a time.
pub(super) const RESERVE_BYTES: usize = 64 << 10;

/// Limit on the bytes that are prefetched beyond the end of a peer's data.
pub(super) const MOST_FETCHED_BYTES: usize = 16 << 10;

/// Bytes of a result of a size that peers announce which are allocated without asking the system
/// for free memory: any process has as much.
pub(super) const SURE_BYTES: usize = 16 << 20;
