//! Sizes that are no knobs: they bound a wait, an allocation, or the number of system calls. The
//! knobs are in `tuning/knobs.rs`.

/// Bytes of one buffer that a rank processes between two checks of the abort word: with many
/// inputs, at memory speed, still well under a millisecond.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// Bytes of staging that are reserved at a time.
pub(super) const RESERVE_BYTES: usize = 64 << 10;

/// Bytes of a result of a size that peers announce which are allocated without asking the system
/// for free memory: any process has as much.
pub(super) const SURE_BYTES: usize = 16 << 20;
