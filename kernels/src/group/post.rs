//! The post of a rank that arrives at a call: what it writes in its descriptor, and compares of it.

use super::slot_swap;
use crate::{
    cpu::{
        cache_hints::CopySize,
        copy::{copy, copy_in},
        prefetch::{fetch, fetch_to_write},
    },
    memory::HostBuf,
    shm::{
        codes::{self, Access},
        records::{CallDescriptor, FIRST_BYTES, MESSAGE_BYTES, PAYLOAD_BYTES, RankRecord, TINY_BYTES},
    },
    sync::atomics::Ordering,
    tuning,
};
use consonance_spec::{Kind, Signature};
use std::{mem, ptr};

/// The bits of a signature's code in a descriptor's head; the access lies above them.
pub(super) const CODE_BITS: u32 = 24;

pub(super) const CODE_MASK: u32 = (1 << CODE_BITS) - 1;

/// The places of the payloads of a call that do not fit beside the descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// Each rank has places for what its peers may read when they settle the call: a message, or
    /// why the rank's own call is invalid.
    Own,
    /// Ranks read the payloads in the call. Two ranks [swap](slot_swap) their places.
    Swapped,
}

impl Places {
    /// Returns the places of a call that shares memory so.
    #[inline]
    pub(crate) fn of(access: Access) -> Places {
        match access {
            Access::Message | Access::CountedMessage | Access::Refused => Places::Own,
            _ => Places::Swapped,
        }
    }

    /// Returns the limit on the bytes of a payload.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Places::Own => MESSAGE_BYTES,
            Places::Swapped => PAYLOAD_BYTES,
        }
    }

    /// Returns where `rank` writes its payload of `bytes` in call `sequence`. Ranks that do not
    /// make the same call write before they know it: no two write in one place.
    #[inline]
    pub(crate) fn payload(self, records: &[RankRecord], rank: usize, sequence: u64, bytes: usize) -> *mut u8 {
        let ranks = records.len();
        match self {
            _ if bytes <= first_bytes(ranks) => records[rank].descriptor(sequence).payload(),
            Places::Own => records[rank].message(sequence),
            Places::Swapped if ranks == 2 => records[slot_swap::place(rank, sequence)].payload(sequence),
            Places::Swapped => records[rank].payload(sequence),
        }
    }

    /// Prefetches the payload of `bytes` of the only peer, if it is small and not beside the peer's
    /// descriptor: it arrives with the descriptor, not after it.
    #[inline]
    pub(crate) fn await_payload(self, records: &[RankRecord], rank: usize, sequence: u64, bytes: usize) {
        if is_apart(records.len(), bytes) && bytes <= tuning::current().awaited_bytes {
            fetch(self.payload(records, 1 - rank, sequence, bytes), bytes);
        }
    }
}

/// Returns how many bytes of a payload fit beside the descriptor.
#[inline]
pub(crate) fn first_bytes(ranks: usize) -> usize {
    if ranks == 2 { TINY_BYTES } else { FIRST_BYTES }
}

/// Whether there are two ranks, and payloads of `bytes` bytes do not lie beside the descriptors.
#[inline]
pub(crate) fn is_apart(ranks: usize, bytes: usize) -> bool {
    ranks == 2 && bytes > TINY_BYTES
}

/// Returns the number of pauses that a rank makes before it first polls the others' descriptors,
/// when payloads have up to `bytes` bytes. A poll before a descriptor is written takes its cache
/// lines from the rank that writes it, and both ranks pay one more cache-line transfer (measured:
/// PERF.md). A rank of an all-reduce does other work meanwhile. A rank in a process group logs the
/// call, which takes about as long as a pause.
#[inline]
pub(crate) fn pauses(ranks: usize, kind: Kind, bytes: usize, has_log: bool) -> u32 {
    let for_payload = is_apart(ranks, bytes) && slot_swap::slots(ranks, kind) && kind != Kind::AllReduce;
    u32::from(for_payload) + u32::from(!has_log && ranks > 1)
}

/// A payload: data, and words behind them.
#[derive(Clone, Copy)]
pub(crate) struct Inline<'a> {
    data: &'a [u8],
    words: &'a [u8],
}

impl<'a> Inline<'a> {
    pub(crate) const EMPTY: Inline<'static> = Inline { data: &[], words: &[] };

    #[inline]
    pub(crate) fn new(data: &'a [u8], words: &'a [u64]) -> Inline<'a> {
        Inline { data, words: HostBuf::from(words).as_bytes() }
    }

    #[inline]
    pub(crate) fn bytes(self) -> usize {
        self.data.len() + self.words.len()
    }

    /// Copies a payload of up to [`FIRST_BYTES`] bytes.
    #[inline]
    pub(crate) fn copy_to(self, place: &mut [u8]) {
        let (data, words) = place.split_at_mut(self.data.len());
        data.copy_from_slice(self.data);
        words[..self.words.len()].copy_from_slice(self.words);
    }
}

impl<'a> From<&'a [u8]> for Inline<'a> {
    #[inline]
    fn from(data: &'a [u8]) -> Inline<'a> {
        Inline { data, words: &[] }
    }
}

/// The arguments of a rank's arrival in a call.
#[derive(Clone, Copy)]
pub(crate) struct Arrival<'a> {
    pub(crate) signature: &'a Signature,
    /// The rank's access to shared memory.
    pub(crate) access: Access,
    /// Bytes of this rank's data.
    pub(crate) bytes: usize,
    pub(crate) payload: Inline<'a>,
    /// Bytes of the payload of the only peer, as far as this rank knows: only the speed depends on
    /// it.
    pub(crate) awaited: usize,
    /// The address at which the others may read this rank's data; null if they may not.
    pub(crate) input: *const u8,
    /// The address at which the others may write this rank's result; null if they may not.
    pub(crate) output: *mut u8,
}

impl<'a> Arrival<'a> {
    /// Returns the arrival of a rank whose `bytes` bytes of data the others read, if any, in its
    /// payload.
    #[inline]
    pub(crate) fn inline(
        signature: &'a Signature,
        access: Access,
        bytes: usize,
        payload: Inline<'a>,
        awaited: usize,
    ) -> Arrival<'a> {
        Arrival { signature, access, bytes, payload, awaited, input: ptr::null(), output: ptr::null_mut() }
    }

    /// Returns the arrival of a rank whose `bytes` bytes of data the others read at `input`, or
    /// find by that word.
    #[inline]
    pub(crate) fn shared(
        signature: &'a Signature,
        access: Access,
        bytes: usize,
        input: *const u8,
        output: *mut u8,
    ) -> Arrival<'a> {
        Arrival { signature, access, bytes, payload: Inline::EMPTY, awaited: 0, input, output }
    }

    /// Whether the block of each rank is private to it in all buffers.
    fn is_divided(&self) -> bool {
        matches!(self.access, Access::DividedToAll | Access::DividedToOwn | Access::DividedToRoot)
    }
}

/// The contents of a descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Post<'a> {
    fingerprint: u64,
    pub(super) head: u32,
    /// The root plus 1; 0 if the call has none.
    root: u32,
    /// Bytes of this rank's data.
    bytes: usize,
    payload: Inline<'a>,
    input: *const u8,
    /// The address at which the others may write this rank's result. If they do not, the
    /// [count](count_word) of the call, for reports.
    output: *mut u8,
    /// Whether all ranks have as many bytes.
    is_divided: bool,
}

impl<'a> Post<'a> {
    // Inlined, as `Meeting::post` is.
    #[inline(always)]
    pub(super) fn new(arrival: &Arrival<'a>) -> Post<'a> {
        let Arrival { signature, access, bytes, payload, input, output, .. } = *arrival;
        let is_divided = arrival.is_divided();
        Post {
            fingerprint: codes::fingerprint(signature),
            head: codes::code(signature) | (access as u32) << CODE_BITS,
            root: signature.root.map_or(0, |root| root as u32 + 1),
            bytes,
            payload,
            input,
            output: if is_divided { output } else { ptr::without_provenance_mut(count_word(signature)) },
            is_divided,
        }
    }

    /// Returns what the rank compares of it.
    #[inline]
    pub(super) fn posted(&self) -> Posted {
        let Post { fingerprint, head, root, bytes, is_divided, .. } = *self;
        Posted { fingerprint, head, root, bytes: is_divided.then_some(bytes) }
    }

    /// Publishes an arrival in this descriptor, with its payload at `place`. With `has_lines` this
    /// core owns the cache lines of that place.
    ///
    /// # Safety
    /// Called by the descriptor's rank alone, which has settled call `sequence - 2`, and call
    /// `sequence - 1` if this one is no message; `place` is that of its [payload](Places::payload),
    /// which has no more bytes than [`Places::bytes`].
    #[inline]
    pub(super) unsafe fn publish(&self, descriptor: &CallDescriptor, sequence: u64, place: *mut u8, has_lines: bool) {
        let Inline { data, words } = self.payload;
        descriptor.fingerprint.store(self.fingerprint, Ordering::Relaxed);
        descriptor.head.store(self.head, Ordering::Relaxed);
        descriptor.root.store(self.root, Ordering::Relaxed);
        descriptor.bytes.store(self.bytes as u64, Ordering::Relaxed);
        descriptor.input.store(self.input.cast_mut(), Ordering::Relaxed);
        descriptor.output.store(self.output, Ordering::Relaxed);
        // SAFETY: the payload fits, and no rank reads there now, as the caller promises.
        unsafe {
            match has_lines {
                true => copy(data.as_ptr(), place, data.len(), CopySize::Near),
                false => copy_in(data.as_ptr(), place, data.len(), CopySize::Near, false),
            }
            if !words.is_empty() {
                copy(words.as_ptr(), place.add(data.len()), words.len(), CopySize::Near);
            }
        }
        // SYNC POINT arrival: pairs with `arrived`.
        descriptor.sequence.store(sequence, Ordering::Release);
    }
}

/// Prefetches for writing the first part of a descriptor, which the others read when it was last
/// published: this core owns these lines again when it [publishes](Post::publish) the descriptor
/// next. More lines would not arrive in time.
#[inline]
pub(super) fn fetch_descriptor(descriptor: &CallDescriptor, ranks: usize) {
    let bytes = mem::offset_of!(CallDescriptor, payload) + first_bytes(ranks);
    fetch_to_write(ptr::from_ref(descriptor).cast(), bytes);
}

/// The parts of a rank's own call that it compares with the calls of its peers.
#[derive(Clone, Copy)]
pub(super) struct Posted {
    pub(super) fingerprint: u64,
    pub(super) head: u32,
    /// The root plus 1; 0 if the call has none.
    pub(super) root: u32,
    /// The bytes of this rank's data, if all ranks have as many.
    pub(super) bytes: Option<usize>,
}

impl Posted {
    /// Whether a peer that has arrived with this descriptor makes the same call.
    #[inline]
    pub(super) fn agrees(&self, descriptor: &CallDescriptor) -> bool {
        descriptor.fingerprint() == self.fingerprint
            && descriptor.head() == self.head
            && descriptor.root() == self.root
            && self.bytes.is_none_or(|bytes| descriptor.bytes() == bytes)
    }
}

/// Encodes the count of a call in a word of its descriptor: 0 for a call without a count.
pub(super) fn count_word(signature: &Signature) -> usize {
    signature.count.map_or(0, |count| count.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever calls two ranks make.
    #[test]
    fn no_two_ranks_have_payloads_in_one_place() {
        let records: Box<[RankRecord]> = (0..2).map(|_| RankRecord::default()).collect();
        let sizes = [1, 15, 16, 17, 31, 79, 80, 81, 82, 128, 130, 4000, MESSAGE_BYTES, PAYLOAD_BYTES];
        let of =
            |places: Places| sizes.into_iter().filter(move |&size| size <= places.bytes()).map(move |b| (places, b));
        let payloads = || of(Places::Own).chain(of(Places::Swapped));
        let inside = |record: &RankRecord| {
            let start = ptr::from_ref(record).addr();
            start..start + size_of::<RankRecord>()
        };
        let cases = (0..8).flat_map(|sequence| payloads().map(move |own| (sequence, own)));
        for (sequence, own, other) in
            cases.flat_map(|(sequence, own)| payloads().map(move |other| (sequence, own, other)))
        {
            let place = |rank, (places, bytes): (Places, usize)| {
                let start = places.payload(&records, rank, sequence, bytes).addr();
                start..start + bytes
            };
            let (first, second) = (place(0, own), place(1, other));
            assert!(first.end <= second.start || second.end <= first.start, "{own:?} and {other:?} in call {sequence}");
            for place in [first, second] {
                let is_within =
                    |record| inside(record).contains(&place.start) && inside(record).contains(&(place.end - 1));
                assert!(records.iter().any(is_within), "{own:?} and {other:?} in call {sequence}");
            }
        }
    }

    /// A message stays for four calls, another payload for two.
    #[test]
    fn payloads_stay_until_they_are_read() {
        for ranks in [2, 3] {
            let records: Box<[RankRecord]> = (0..ranks).map(|_| RankRecord::default()).collect();
            let place = |places: Places, rank, call| places.payload(&records, rank, call, 100).addr();
            for (call, later) in (0..8).flat_map(|call| (1..4).map(move |later| (call, call + later))) {
                for (rank, other) in (0..ranks).flat_map(|rank| (0..ranks).map(move |other| (rank, other))) {
                    assert_ne!(place(Places::Own, rank, call), place(Places::Own, other, later));
                    assert_ne!(place(Places::Own, rank, call), place(Places::Swapped, other, later));
                    if later == call + 1 {
                        assert_ne!(place(Places::Swapped, rank, call), place(Places::Swapped, other, later));
                    }
                }
            }
        }
    }
}
