//! The records by which the ranks of a group tell each other what they do.
//!
//! The line of each rank is written by it alone, and read by all. Only what comes with an arrival,
//! and is too much for its first cache line, lies in the other's at times where they are two
//! (`group/slot_swap.rs`).
//!
//! One cache miss on a peer's [`CallDescriptor`] brings its arrival, the check that both mean the
//! same call, and the data of a tiny call; other cache lines have the data of a small one. There
//! are two descriptors, used in turn: a rank writes the descriptor of call `e + 2` over that of
//! call `e` only after every peer has arrived at `e + 1`, and so has read all it wanted of `e`.

use crate::sync::{
    atomics::{AtomicPtr, AtomicU32, AtomicU64, Ordering},
    wait::WakeEvent,
};
use std::cell::UnsafeCell;

/// Bytes that ride along with an arrival.
pub(crate) const PAYLOAD_BYTES: usize = 8 << 10;

/// As many of them as fit in the pair of cache lines by which a peer sees the arrival.
pub(crate) const FIRST_BYTES: usize = 80;

/// As many as fit in the first of the two.
pub(crate) const TINY_BYTES: usize = 16;

record! {
    /// What a group shares beside its lines. All zero is a fresh one.
    #[repr(align(128))]
    #[derive(Default)]
    pub(crate) struct Head {
        pub(crate) abort: AtomicU64,
        /// Of a place for groups that are split off, who has it: see [`GroupState::claim`].
        pub(crate) owner: AtomicU64,
    }
}

record! {
    /// All that one rank tells the others. All zero is a fresh line: of processes it lies in memory
    /// that the system gave.
    #[derive(Default)]
    pub(crate) struct RankRecord {
        pub(crate) descriptors: [CallDescriptor; 2],
        pub(crate) counters: Counters,
        pub(crate) sleeper: Sleeper,
    }
}

impl RankRecord {
    /// The descriptor of call number `sequence`.
    pub(crate) fn descriptor(&self, sequence: u64) -> &CallDescriptor {
        &self.descriptors[(sequence & 1) as usize]
    }
}

record! {
    /// One arrival. Everything but `sequence` is valid while `sequence` is the number of the call
    /// that the reader is in.
    #[repr(align(128))]
    pub(crate) struct CallDescriptor {
        /// The number of the call, from 1; stored last.
        pub(crate) sequence: AtomicU64,
        pub(crate) fingerprint: AtomicU64,
        /// The exact part of the check: what a hash must not decide, since memory is touched by it.
        pub(crate) head: AtomicU32,
        pub(crate) bytes: AtomicU64,
        pub(crate) input: AtomicPtr<u8>,
        pub(crate) output: AtomicPtr<u8>,
        pub(crate) payload: UnsafeCell<[u8; FIRST_BYTES + PAYLOAD_BYTES]>,
    }
}

// SAFETY: only `payload` is not atomic. It is written by one rank before it releases the `sequence`
// of its descriptor, and read by others after they acquired it; the next write comes two calls
// later (module doc).
unsafe impl Sync for CallDescriptor {}

impl Default for CallDescriptor {
    fn default() -> Self {
        CallDescriptor {
            sequence: AtomicU64::new(0),
            fingerprint: AtomicU64::new(0),
            head: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            input: AtomicPtr::default(),
            output: AtomicPtr::default(),
            payload: UnsafeCell::new([0; FIRST_BYTES + PAYLOAD_BYTES]),
        }
    }
}

impl CallDescriptor {
    /// Whether the rank has arrived at call `sequence`; if so, the rest of the descriptor may be
    /// read until this rank's next call.
    pub(crate) fn arrived(&self, sequence: u64) -> bool {
        // SYNC POINT arrival: pairs with `publish`.
        self.sequence.load(Ordering::Acquire) == sequence
    }

    pub(crate) fn sequence(&self) -> u64 {
        // Relaxed: for reports.
        self.sequence.load(Ordering::Relaxed)
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint.load(Ordering::Relaxed)
    }

    pub(crate) fn head(&self) -> u32 {
        self.head.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) as usize
    }

    /// The start of more than [`PAYLOAD_BYTES`] bytes, of which the first come with the arrival.
    pub(crate) fn payload(&self) -> *mut u8 {
        self.payload.get().cast()
    }

    /// The start of [`PAYLOAD_BYTES`] bytes behind those.
    pub(crate) fn rest(&self) -> *mut u8 {
        self.payload().wrapping_add(FIRST_BYTES)
    }

    pub(crate) fn input(&self) -> *const u8 {
        self.input.load(Ordering::Relaxed)
    }

    pub(crate) fn output(&self) -> *mut u8 {
        self.output.load(Ordering::Relaxed)
    }
}

record! {
    /// How far the rank is with what it does in the others' memory. A line of its own: it is
    /// written in every large call.
    ///
    /// Counts of calls and windows begin at [`Generation::base`] and only grow, so that what is
    /// left from an earlier generation, or from a group that had this place before, is never taken
    /// for news.
    #[repr(align(128))]
    #[derive(Default)]
    pub(crate) struct Counters {
        /// The last call in which this rank touches no memory of others any more.
        pub(crate) done: AtomicU64,
        /// Windows of its data that this rank has put up for the others.
        pub(crate) staged: AtomicU64,
        /// Windows of which this rank has put up its block of the result.
        pub(crate) folded: AtomicU64,
        /// Windows in which this rank reads nothing of others any more.
        pub(crate) read: AtomicU64,
        /// The generation that this rank is in.
        pub(crate) generation: AtomicU64,
        /// The generation, plus 1, in which this rank has left: it will arrive at no further call.
        pub(crate) left: AtomicU64,
        /// The generation, plus 1, in which this rank took its endpoint, in a group that was split
        /// from another.
        pub(crate) taken: AtomicU64,
        /// 1 while this rank is in a chunk of others' memory.
        pub(crate) inside: AtomicU32,
        /// 1 while this rank rests: it makes no call before its company has ended theirs.
        pub(crate) idle: AtomicU32,
        // Behind the first 64 bytes, which are all that a call without a fault looks at.
        /// The rank, plus 1, of which this rank was told last that it has left or failed; both in
        /// the group that was split from none.
        pub(crate) told: AtomicU64,
    }
}

/// A stretch in a group's life that ends with an abort; the ranks may then agree to begin the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Generation(pub(crate) u64);

impl Generation {
    /// Calls that a generation has room for: more than can be made in its time.
    const BITS: u32 = 44;

    /// What the last generation would be; no group comes so far.
    pub(crate) const END: Generation = Generation((1 << (64 - Self::BITS)) - 2);

    /// This generation, unless it is past what can be counted.
    pub(crate) fn below_end(self) -> Option<Generation> {
        Some(self).filter(|&generation| generation < Self::END)
    }

    /// The number before that of the first call, or window, of the generation.
    pub(crate) fn base(self) -> u64 {
        self.0 << Self::BITS
    }

    /// How many calls of its generation come before and with this one.
    pub(crate) fn number_of(sequence: u64) -> u64 {
        sequence & ((1 << Self::BITS) - 1)
    }

    /// Whether a count has come to `wanted`, in the same generation: what is counted in a later one
    /// says nothing of this.
    pub(crate) fn reached(count: u64, wanted: u64) -> bool {
        count >= wanted && count >> Self::BITS == wanted >> Self::BITS
    }

    /// How a line says that something happened in this generation: 0 says that it never did.
    pub(crate) fn mark(self) -> u64 {
        self.0 + 1
    }
}

record! {
    /// Where the rank sleeps. A line of its own: others look at it in every call, and it changes
    /// only in slow ones.
    #[repr(align(128))]
    #[derive(Default)]
    pub(crate) struct Sleeper {
        /// The peer waited for, plus 1; 0 when awake.
        pub(crate) waits_for: AtomicU32,
        /// Where the rank's process has the group's name, for those who would read its memory; in
        /// the group split from none.
        pub(crate) mark: AtomicU64,
        pub(crate) wake: WakeEvent,
    }
}
