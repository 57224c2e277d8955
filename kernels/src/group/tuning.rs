//! The sizes at which the way of data changes, and how much is done at a time.

use crate::shm::records::FIRST_BYTES;

/// Payloads that one rank reads in an exchange are so many bytes together, at most, if they are not
/// all in the lines by which it sees the arrivals: where ranks are many, blocks for all are less to
/// read.
pub(super) const PAYLOADS_BYTES: usize = 16 << 10;

/// The most that ride, if not every rank reads all of them: an all-to-all of 8 KiB would take 1.13
/// of the time.
pub(super) const SOME_PAYLOAD_BYTES: usize = 4 << 10;

/// The same of threads, who read more where it lies: 4 KiB of a broadcast in 0.7 of the time.
pub(super) const THREADS_PAYLOAD_BYTES: usize = FIRST_BYTES + (2 << 10);

/// Ragged parts, for all or for the root, are awaited if the largest has up to so many bytes.
pub const RAGGED_BYTES: usize = 192;

/// Up to so many bytes of all ranks together, every rank of a reduction combines everything, once
/// it is put up, rather than a block for all: one wait instead of two, for more reading. Between 2
/// ranks, to combine everything takes 0.8 of the time of blocks at 16 KiB of each; at 64 KiB it
/// takes 1.15 of it on one machine and 0.81 on another, where lines are far from core to core.
pub(super) const ONE_SHOT_BYTES: usize = 128 << 10;

/// The same of two ranks, if the result is for one, which is then the only one that combines, and
/// has elements of the same size: blocks of 64 KiB take 0.85 of the time.
pub(super) const ROOT_ONE_SHOT_BYTES: usize = 32 << 10;

/// More bytes than these that lie in heaps are read and written there; fewer are put up, for which
/// nobody waits at the end. Between 2 ranks 16 KiB take less time in place than 4 KiB that are put
/// up.
pub const IN_PLACE_BYTES: usize = 2 << 10;

/// From so many bytes on, ranks that each need another block of the others' data read it out of the
/// others' memory, if they can: an all-to-all takes 0.75 to 0.9 of the time. Where each needs
/// everything, two copies through caches take less.
pub const READ_BYTES: usize = 256 << 10;

/// Room for what is read of all others to be folded: it stays in a core's own cache.
pub(super) const READ_SCRATCH_BYTES: usize = 128 << 10;

/// The least that is read at a time, however many others there are: a call of the system costs as
/// much as some KiB.
pub(super) const READ_LEAST_BYTES: usize = 16 << 10;

/// Bytes of one rank that are put up at a time for others to copy: with more, what is put up twice
/// leaves a core's own cache. Between 2 ranks, 0.8 of the time of twice as many at 1 MiB of each.
pub(super) const WINDOW_BYTES: usize = 128 << 10;

/// The same, where every rank copies all of them. Between 2 ranks, an all-gather takes 0.91 of the
/// time from 1 MiB on.
pub(super) const WHOLE_WINDOW_BYTES: usize = 64 << 10;

/// The fewest, where ranks are busy in turn: the first window is copied alone, and the last one is
/// read alone.
pub(super) const LEAST_WINDOW_BYTES: usize = 8 << 10;

/// How many bytes of one buffer a rank works on before it looks whether the group has ended: at
/// memory speed with many inputs, still well under a millisecond.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// Traded payloads of up to so many bytes are [awaited](super::post::await_payload). Between 2
/// processes an all-reduce takes 0.7 of the time at 64 bytes, and 0.85 from 128 to 512; at 1 KiB it
/// would take 1.25.
pub(super) const AWAITED_BYTES: usize = 512;

/// So much of each slot is used in turn, and no more where slots are larger: in C, data of one way
/// take no less time with more.
pub(super) const MOVING_BYTES: usize = 256 << 10;

/// What is got from the system at a time.
pub(super) const RESERVE_BYTES: usize = 64 << 10;

/// The most that is asked for at a time beyond what a peer brings.
pub(super) const MOST_FETCHED_BYTES: usize = 16 << 10;

/// Bytes of a result whose size peers say that are allocated without a question: any process has so
/// much.
pub(super) const SURE_BYTES: usize = 16 << 20;
