//! The post of a rank that arrives at a call.

use super::slot_swap;
use crate::{
    cpu::{
        cache_hints::CopySize,
        copy::{copy, copy_in},
        prefetch::{fetch, fetch_to_write},
    },
    shm::records::{CallDescriptor, DESCRIPTORS, FIRST_BYTES, PAYLOAD_BYTES, RankRecord, TINY_BYTES},
    sync::atomics::Ordering,
    tuning,
};
use consonance_spec::Kind;
use std::{mem, ptr};

/// Returns where `rank` writes its payload of `bytes` in call `sequence`, whatever the call: ranks
/// that do not make the same call write before they know it.
#[inline]
pub(crate) fn payload(records: &[RankRecord], rank: usize, sequence: u64, bytes: usize) -> *mut u8 {
    if is_traded(records.len(), bytes) {
        records[slot_swap::place(rank, sequence, DESCRIPTORS)].descriptor(sequence).rest()
    } else {
        records[rank].descriptor(sequence).payload()
    }
}

/// Returns how many bytes of a payload fit beside the descriptor. Larger payloads of two ranks lie
/// in swapped places.
#[inline]
pub(crate) fn first_bytes(ranks: usize) -> usize {
    if ranks == 2 { TINY_BYTES } else { FIRST_BYTES }
}

/// Whether payloads of `bytes` bytes lie in [swapped](slot_swap) places.
#[inline]
pub(crate) fn is_traded(ranks: usize, bytes: usize) -> bool {
    ranks == 2 && bytes > TINY_BYTES
}

/// Prefetches the peer's payload of `bytes`, if it is small and not beside the peer's descriptor:
/// it arrives with the descriptor, not after it.
#[inline]
pub(crate) fn await_payload(records: &[RankRecord], rank: usize, sequence: u64, bytes: usize) {
    if is_traded(records.len(), bytes) && bytes <= tuning::current().awaited_bytes {
        let place = payload(records, 1 - rank, sequence, bytes);
        fetch(place, bytes);
    }
}

/// Returns the number of pauses that a rank makes before it first polls the others' descriptors,
/// when payloads have up to `bytes` bytes. A poll before a descriptor is written takes its cache
/// lines from the rank that writes it, and both ranks pay one more cache-line transfer (measured:
/// PERF.md). A rank of an all-reduce does other work meanwhile. A rank in a process group logs the
/// call, which takes about as long as a pause.
#[inline]
pub(crate) fn pauses(ranks: usize, kind: Kind, bytes: usize, has_ring: bool) -> u32 {
    let for_payload = is_traded(ranks, bytes) && slot_swap::slots(ranks, kind) && kind != Kind::AllReduce;
    u32::from(for_payload) + u32::from(!has_ring && ranks > 1)
}

/// The contents of a descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Post<'a> {
    pub(crate) fingerprint: u64,
    pub(crate) head: u32,
    /// The root plus 1; 0 if the call has none.
    pub(crate) root: u32,
    /// Bytes of this rank's data.
    pub(crate) bytes: usize,
    pub(crate) payload: &'a [u8],
    /// Where the others may read this rank's data; null if they may not.
    pub(crate) input: *const u8,
    /// Where the others may write this rank's result. Where they do not, the count of the call:
    /// see [`count_word`](super::posted::count_word).
    pub(crate) output: *mut u8,
}

impl CallDescriptor {
    /// Publishes an arrival, with its payload at `place`. With `has_lines` this core owns the cache
    /// lines of that place.
    ///
    /// # Safety
    /// Called by the descriptor's rank alone, which has seen every peer arrive at call
    /// `sequence - 2` and has compared their descriptors; `place` is its [`payload`].
    #[inline]
    pub(crate) unsafe fn publish(&self, sequence: u64, arrival: &Post<'_>, place: *mut u8, has_lines: bool) {
        assert!(arrival.payload.len() <= PAYLOAD_BYTES, "payload of {} bytes", arrival.payload.len());
        self.fingerprint.store(arrival.fingerprint, Ordering::Relaxed);
        self.head.store(arrival.head, Ordering::Relaxed);
        self.root.store(arrival.root, Ordering::Relaxed);
        self.bytes.store(arrival.bytes as u64, Ordering::Relaxed);
        self.input.store(arrival.input.cast_mut(), Ordering::Relaxed);
        self.output.store(arrival.output, Ordering::Relaxed);
        let (payload, bytes) = (arrival.payload.as_ptr(), arrival.payload.len());
        // SAFETY: the length was checked; no rank reads there now, as the caller promises.
        unsafe {
            match has_lines {
                true => copy(payload, place, bytes, CopySize::Near),
                false => copy_in(payload, place, bytes, CopySize::Near, false),
            }
        }
        // SYNC POINT arrival: pairs with `arrived`.
        self.sequence.store(sequence, Ordering::Release);
    }

    /// Prefetches for writing the first part of the descriptor, which the others read when it was
    /// last published: this core owns these lines again when it
    /// [publishes](CallDescriptor::publish) the descriptor next. More lines would not arrive in
    /// time.
    #[inline]
    pub(crate) fn fetch(&self, ranks: usize) {
        fetch_to_write(ptr::from_ref(self).cast(), mem::offset_of!(CallDescriptor, payload) + first_bytes(ranks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_ranks_have_payloads_in_one_place() {
        let records: Box<[RankRecord]> = (0..2).map(|_| RankRecord::default()).collect();
        let sizes = [0, 1, 15, 16, 17, 31, 79, 80, 81, 82, 128, 130, 4000, PAYLOAD_BYTES];
        for (sequence, own, other) in (0..2 * DESCRIPTORS as u64)
            .flat_map(|sequence| sizes.into_iter().flat_map(move |own| sizes.map(move |other| (sequence, own, other))))
            .filter(|(_, own, other)| own.min(other) > &0)
        {
            let place = |rank, bytes| {
                let start = payload(&records, rank, sequence, bytes);
                start.addr()..start.addr() + bytes
            };
            let (first, second) = (place(0, own), place(1, other));
            assert!(
                first.end <= second.start || second.end <= first.start,
                "{own} and {other} bytes in call {sequence}"
            );
            for place in [first, second] {
                let is_within = records.iter().flat_map(|record| &record.descriptors).any(|descriptor| {
                    let descriptor = ptr::from_ref(descriptor).addr()
                        ..ptr::from_ref(descriptor).addr() + size_of::<CallDescriptor>();
                    descriptor.contains(&place.start) && descriptor.contains(&(place.end - 1))
                });
                assert!(is_within, "{own} and {other} bytes in call {sequence}");
            }
        }
    }
}
