//! The records by which the ranks of a group tell each other what they do.
//!
//! The record of each rank is written by that rank alone, and read by all. There is one exception:
//! in a group of two, a payload that is no message, and too large for the first cache line of its
//! descriptor, may lie in the peer's record (`group/slot_swap.rs`).
//!
//! One cache miss on a peer's [`CallDescriptor`] brings the arrival, the check that both ranks make
//! the same call, and the data of a tiny call. Further cache lines hold the data of a small call.
//!
//! Each rank has four descriptors, four places for the payloads of messages, and two for those of
//! other calls, used in turn. Before a message (`group/meeting.rs`), call `e`, a rank has settled
//! call `e - 2`: every peer has arrived there. Before another call it has settled call `e - 1`.
//!
//! * A peer that has arrived at call `e` has read the payloads of `e - 1`. So a rank may write the
//!   place of the payload of `e - 2` in call `e`, if `e` is no message.
//! * A peer that has arrived at call `e` has settled `e - 2`, for which it reads descriptors, and
//!   messages if the calls differ. So a rank may write those of `e - 4` in call `e`.

pub(crate) use super::PAYLOAD_BYTES;
use crate::sync::{
    atomics::{AtomicPtr, AtomicU32, AtomicU64, Ordering},
    wait::WakeEvent,
};
use std::cell::UnsafeCell;

/// Bytes of the payload that fit in the pair of cache lines by which a peer sees the arrival.
pub(crate) const FIRST_BYTES: usize = 80;

/// Bytes of the payload that fit in the first of the two.
pub(crate) const TINY_BYTES: usize = 16;

/// Bytes behind [`FIRST_BYTES`] that a reader of whole tiles may read.
pub(crate) const TILE_BYTES: usize = 16;

/// Limit on the bytes of the payload of a message: its data, and 64 counts.
pub(crate) const MESSAGE_BYTES: usize = PAYLOAD_BYTES / 2 + 256;

/// Limit on the bytes of data of a message: 4 KiB, as the guide promises.
pub(crate) const MESSAGE_DATA_BYTES: usize = MESSAGE_BYTES - 64 * size_of::<u64>();

/// The descriptors of a rank. A power of two, which divides the first number of each generation.
pub(crate) const DESCRIPTORS: usize = 4;

/// The places of a rank for the payloads of calls that are no messages.
pub(crate) const PLACES: usize = 2;

record! {
    /// The words that a group shares beside its rank records. All zero is a new head.
    #[repr(align(128))]
    #[derive(Default)]
    pub(crate) struct Head {
        pub(crate) abort: AtomicU64,
        /// The last abort that a loss has replaced in `abort`.
        pub(crate) replaced: AtomicU64,
        /// The claim on the area of a group that is split off: see [`GroupState::claim`].
        pub(crate) owner: AtomicU64,
    }
}

record! {
    /// Everything that one rank publishes to the others. All zero is a new record: between
    /// processes, records lie in pages fresh from the system.
    #[derive(Default)]
    pub(crate) struct RankRecord {
        pub(crate) descriptors: [CallDescriptor; DESCRIPTORS],
        pub(crate) counters: Counters,
        pub(crate) sleeper: Sleeper,
        messages: [Message; DESCRIPTORS],
        payloads: [Payload; PLACES],
    }
}

impl RankRecord {
    /// Returns the descriptor of call `sequence`.
    pub(crate) fn descriptor(&self, sequence: u64) -> &CallDescriptor {
        &self.descriptors[sequence as usize % DESCRIPTORS]
    }

    /// Returns the place for the payload of call `sequence` that does not fit beside the
    /// descriptor: [`MESSAGE_BYTES`] bytes for a message.
    #[inline]
    pub(crate) fn message(&self, sequence: u64) -> *mut u8 {
        self.messages[sequence as usize % DESCRIPTORS].bytes.get().cast()
    }

    /// Returns the same place for another call: [`PAYLOAD_BYTES`] bytes.
    #[inline]
    pub(crate) fn payload(&self, sequence: u64) -> *mut u8 {
        self.payloads[sequence as usize % PLACES].bytes.get().cast()
    }
}

record! {
    /// One arrival. All fields but `sequence` are valid while `sequence` is the number of the
    /// reader's current call, or of the one before.
    #[repr(align(128))]
    pub(crate) struct CallDescriptor {
        /// The sequence number of the call; stored last.
        pub(crate) sequence: AtomicU64,
        pub(crate) fingerprint: AtomicU64,
        /// The part of the check that is exact: values on which memory accesses depend, so that a
        /// hash must not decide.
        pub(crate) head: AtomicU32,
        /// The root of the call plus 1; 0 if it has none.
        pub(crate) root: AtomicU32,
        pub(crate) bytes: AtomicU64,
        pub(crate) input: AtomicPtr<u8>,
        pub(crate) output: AtomicPtr<u8>,
        pub(crate) payload: UnsafeCell<[u8; FIRST_BYTES + TILE_BYTES]>,
    }
}

record! {
    /// The payload of a message.
    #[repr(align(128))]
    struct Message {
        bytes: UnsafeCell<[u8; MESSAGE_BYTES]>,
    }
}

record! {
    /// The payload of a call that is no message.
    #[repr(align(128))]
    struct Payload {
        bytes: UnsafeCell<[u8; PAYLOAD_BYTES]>,
    }
}

// SAFETY: only `payload` is not atomic. One rank writes it before it releases the `sequence` of its
// descriptor. Other ranks read it after they have acquired that `sequence`. The next write comes
// when they have read it (module documentation).
unsafe impl Sync for CallDescriptor {}
// SAFETY: as above.
unsafe impl Sync for Message {}
// SAFETY: as above.
unsafe impl Sync for Payload {}

impl Default for Message {
    fn default() -> Self {
        Message { bytes: UnsafeCell::new([0; MESSAGE_BYTES]) }
    }
}

impl Default for Payload {
    fn default() -> Self {
        Payload { bytes: UnsafeCell::new([0; PAYLOAD_BYTES]) }
    }
}

impl Default for CallDescriptor {
    fn default() -> Self {
        CallDescriptor {
            sequence: AtomicU64::new(0),
            fingerprint: AtomicU64::new(0),
            head: AtomicU32::new(0),
            root: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            input: AtomicPtr::default(),
            output: AtomicPtr::default(),
            payload: UnsafeCell::new([0; FIRST_BYTES + TILE_BYTES]),
        }
    }
}

impl CallDescriptor {
    /// Whether the rank has arrived at call `sequence`. If so, the other fields may be read until
    /// this rank arrives at the second call after it.
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

    pub(crate) fn root(&self) -> u32 {
        self.root.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) as usize
    }

    /// Returns the place of a payload of up to [`FIRST_BYTES`] bytes, which comes with the arrival.
    pub(crate) fn payload(&self) -> *mut u8 {
        self.payload.get().cast()
    }

    pub(crate) fn input(&self) -> *const u8 {
        self.input.load(Ordering::Relaxed)
    }

    pub(crate) fn output(&self) -> *mut u8 {
        self.output.load(Ordering::Relaxed)
    }
}

record! {
    /// The rank's progress with its work in the memory of others. It has cache lines of its own,
    /// because it is written in every large call.
    ///
    /// Counts of calls and windows begin at [`Generation::base`] and only grow. So a count that is
    /// left from an earlier generation, or from a group that had this area before, is never
    /// mistaken for a new one.
    #[repr(align(128))]
    #[derive(Default)]
    pub(crate) struct Counters {
        /// The last call in which this rank has stopped touching the memory of others.
        pub(crate) done: AtomicU64,
        /// Windows of its data that this rank has staged for the others.
        pub(crate) staged: AtomicU64,
        /// Windows of which this rank has staged its block of the result.
        pub(crate) folded: AtomicU64,
        /// Windows in which this rank has read all that it needs from the others.
        pub(crate) read: AtomicU64,
        /// The generation of this rank.
        pub(crate) generation: AtomicU64,
        /// The [mark](Generation::mark) of the generation in which this rank left: it will arrive
        /// at no further call.
        pub(crate) left: AtomicU64,
        /// The [mark](Generation::mark) of the generation in which this rank took its endpoint, in
        /// a group that was split from another.
        pub(crate) taken: AtomicU64,
        /// 1 while this rank is inside a chunk of the memory of others.
        pub(crate) inside: AtomicU32,
        /// 1 while this rank is idle: it makes no call before the ranks of its company have ended
        /// theirs.
        pub(crate) idle: AtomicU32,
        // Lies behind the first 64 bytes, which are all that a call without a fault reads.
        /// The last rank of which this rank was told that it has left or failed, plus 1. Both ranks
        /// are in the numbering of the top group, which was split from none.
        pub(crate) told: AtomicU64,
        /// Twice the [mark](Generation::mark) of the last generation of whose end this rank was
        /// told; 1 more once it has begun a call after that.
        pub(crate) heard: AtomicU64,
    }
}

/// A period in a group's life, which ends with an abort. The ranks may then agree to begin the next
/// generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Generation(pub(crate) u64);

impl Generation {
    /// Bits of a sequence number that count the calls of one generation: room for more calls than a
    /// group can make.
    const BITS: u32 = 44;

    /// The limit of generations, which no group reaches.
    pub(crate) const END: Generation = Generation((1 << (64 - Self::BITS)) - 2);

    /// Returns this generation, if it is below the limit.
    pub(crate) fn below_end(self) -> Option<Generation> {
        Some(self).filter(|&generation| generation < Self::END)
    }

    /// Returns the value at which the counts of calls and windows begin in the generation. Its
    /// first call has the next number.
    pub(crate) fn base(self) -> u64 {
        self.0 << Self::BITS
    }

    /// Returns the number of a call in its generation, from 1.
    pub(crate) fn number_of(sequence: u64) -> u64 {
        sequence & ((1 << Self::BITS) - 1)
    }

    /// Whether a count has reached `wanted` in the same generation. A count of a later generation
    /// says nothing about this one.
    pub(crate) fn reached(count: u64, wanted: u64) -> bool {
        count >= wanted && count >> Self::BITS == wanted >> Self::BITS
    }

    /// Returns the mark by which a record says that something happened in this generation. 0 says
    /// that it never did.
    pub(crate) fn mark(self) -> u64 {
        self.0 + 1
    }
}

record! {
    /// The event on which the rank sleeps. It has cache lines of its own: others read them in every
    /// call, and they change only in slow calls.
    #[repr(align(128))]
    #[derive(Default)]
    pub(crate) struct Sleeper {
        /// The peer that the rank waits for, plus 1; 0 when awake.
        pub(crate) waits_for: AtomicU32,
        /// 1 while the rank sleeps until messages come or its own are taken.
        pub(crate) awaits_mail: AtomicU32,
        /// The core on which the rank last waited or woke a peer, plus 1; 0 if it is not known.
        pub(crate) core: AtomicU32,
        // The rest is used in the top group only, which was split from none.
        /// The statement of the rank that waits in any group, or for a message, or has last waited
        /// in vain: see `group::chains`.
        pub(crate) blocker: AtomicU64,
        /// Signals that the rank got because a rank for which it waits made progress. Those ranks
        /// write it.
        pub(crate) progress: AtomicU32,
        /// Until when, by the clock of the host, the rank counts as one that waits after it gave up
        /// that wait.
        pub(crate) gave_up: AtomicU64,
        /// The address at which the rank's process has the group's name, for peers that read its
        /// memory.
        pub(crate) mark: AtomicU64,
        pub(crate) wake: WakeEvent,
    }
}
