//! The inline payloads of a step.

use super::{
    call_context::CallContext,
    end::abort::Fault,
    member::Member,
    post::{self, Places},
    scratch::InlinePayload,
    slot_swap,
};
use crate::{
    cpu::{
        cache_hints::{CacheHints, CopySize, Locality},
        copy::{copy, take},
        prefetch::fetch_to_write,
        reduce::Reducer,
    },
    memory::{HostBuf, HostBufMut, make_valid},
    shm::records::FIRST_BYTES,
    tuning,
};
use std::mem::MaybeUninit;

/// Every rank's payload of an [`exchange`](crate::group::Step::exchange).
pub struct Payloads<'s> {
    pub(crate) context: CallContext<'s>,
    pub(crate) sources: &'s mut Vec<*const u8>,
    /// This rank's payload, if it has at most [`FIRST_BYTES`]: a peer may own the lines of the
    /// posted copy, or take them meanwhile.
    pub(crate) own: &'s InlinePayload,
    pub(crate) places: Places,
    /// The bytes of this rank's data.
    pub(crate) own_bytes: usize,
    /// The bytes of the words with which each payload ends.
    pub(crate) words_bytes: usize,
    /// Limit on the bytes of a rank's data up to which they are in its payload.
    pub(crate) most_bytes: usize,
}

impl Payloads<'_> {
    /// Copies the words with which the payload of a peer ends.
    ///
    /// # Errors
    /// [`Fault::CorruptPeer`] if the payload of `rank` is shorter.
    ///
    /// # Panics
    /// If the target has another number of words, or if `rank` is this rank.
    pub fn words(&self, rank: usize, target: &mut [u64]) -> Result<(), Fault> {
        let bytes = size_of_val(target);
        assert!(bytes == self.words_bytes && rank != self.context.rank(), "{} words of a peer", target.len());
        let start = self.data_bytes(rank);
        let (payload, _) = self.payload(rank, start, bytes)?;
        // SAFETY: the payload has these bytes, as checked above; a word may have any. No rank
        // writes it before this rank's next call. The target is exclusive.
        unsafe { copy(payload, target.as_mut_ptr().cast(), bytes, CopySize::Near) };
        Ok(())
    }

    /// Copies `rank`'s payload from element `start` on.
    ///
    /// # Errors
    /// [`Fault::CorruptPeer`] if the payload of `rank` ends before `target` is full.
    ///
    /// # Panics
    /// If `target` is of another dtype, or if `rank` is this rank and its payload, of at most 80
    /// bytes, ends before `target` is full.
    pub fn copy(&self, rank: usize, start: usize, target: &mut HostBufMut<'_>) -> Result<(), Fault> {
        assert_eq!(Some(target.dtype()), self.context.dtype, "the target is of the agreed dtype");
        let start = start.saturating_mul(target.dtype().size());
        let (payload, is_taken) = self.payload(rank, start, target.bytes())?;
        // SAFETY: the payload has these bytes, as checked above, of the element type on which all
        // ranks agree. No rank writes it before this rank's next call. The target is exclusive.
        unsafe {
            match is_taken {
                true => {
                    take(payload, target.as_mut_ptr(), target.bytes(), CopySize::Near);
                    // Prefetches the lines behind the peer's data: this rank's longer payload is
                    // written there next.
                    let more = self.own_bytes.saturating_sub(start + target.bytes());
                    fetch_to_write(payload.wrapping_add(target.bytes()), more.min(tuning::current().fetched_bytes));
                }
                false => copy(payload, target.as_mut_ptr(), target.bytes(), CopySize::Near),
            }
            make_valid(target.dtype(), target.as_mut_ptr(), target.bytes());
        }
        Ok(())
    }

    /// Returns the address of `bytes` bytes of the payload of `rank`, from byte `start` on, and
    /// whether they are in lines that this rank writes next.
    #[inline]
    fn payload(&self, rank: usize, start: usize, bytes: usize) -> Result<(*const u8, bool), Fault> {
        let CallContext { member: Member { state, world, .. }, sequence, kind, .. } = self.context;
        let is_own = rank == world.rank();
        let all = self.data_bytes(rank).saturating_add(self.words_bytes);
        if is_own && all <= FIRST_BYTES {
            assert!(start + bytes <= all, "{bytes} bytes from {start} on of this rank's payload");
            return Ok((self.own.as_ptr().wrapping_add(start), false));
        }
        // The start of a part may come from peers, too.
        if start.checked_add(bytes).is_none_or(|end| end > all.min(self.places.bytes())) {
            return Err(self.context.member.corrupt(rank));
        }
        let is_taken = !is_own && post::is_apart(world.size(), all) && slot_swap::takes_payloads(world.size(), kind);
        Ok((self.places.payload(state.records(), rank, sequence, all).wrapping_add(start), is_taken))
    }

    /// Returns the bytes of data in the payload of a rank, as it tells them.
    #[inline]
    fn data_bytes(&self, rank: usize) -> usize {
        let is_own = rank == self.context.rank();
        let bytes = if is_own { self.own_bytes } else { self.context.descriptor(rank).bytes() };
        if bytes <= self.most_bytes { bytes } else { 0 }
    }

    /// Folds all payloads from element `start` on into `target`, in canonical order. This rank's
    /// elements are `own`, or in the target without `own`; they are read there if its payload has
    /// more than 80 bytes.
    ///
    /// # Errors
    /// [`Fault::CorruptPeer`] if a payload has fewer elements than `target`.
    ///
    /// # Panics
    /// If `target` or `own` does not fit the reducer or the other, or its range is not within this
    /// rank's payload.
    pub fn reduce(
        &mut self,
        reducer: &Reducer,
        start: usize,
        own: Option<HostBuf<'_>>,
        target: &mut HostBufMut<'_>,
    ) -> Result<(), Fault> {
        let (start, bytes) = (start * reducer.input().size(), target.count() * reducer.input().size());
        assert_eq!(reducer.output(), target.dtype(), "the target fits the reducer");
        assert_eq!(Some(reducer.input()), self.context.dtype, "the reducer is of the agreed dtype");
        let (world, are_few) = (self.context.member.world, self.own_bytes <= FIRST_BYTES);
        let mut taken = None;
        self.sources.clear();
        for rank in 0..world.size() {
            if rank == world.rank() && !are_few {
                let own = own.unwrap_or_else(|| target.as_buf());
                assert_eq!(
                    (own.dtype(), own.count()),
                    (reducer.input(), target.count()),
                    "own elements fit the target"
                );
                self.sources.push(own.as_ptr());
                continue;
            }
            let (payload, is_taken) = self.payload(rank, start, bytes)?;
            taken = taken.or(is_taken.then_some(rank));
            self.sources.push(payload);
        }
        // SAFETY: the payloads have as many elements as the target, of the type on which all ranks
        // agree, and so has `own`. No rank writes them before this rank's next call. The target is
        // exclusive: its elements are this rank's own, or no source's. A fold of a small payload
        // reads whole tiles: every place has room for them behind `FIRST_BYTES`, and only the rank
        // that has the place writes there.
        unsafe {
            if are_few {
                let mut result = MaybeUninit::<[u8; RESULT_BYTES]>::uninit();
                if let Some(taken) = taken {
                    fetch_to_write(self.sources[taken], bytes);
                }
                reducer.fold_small(self.sources, result.as_mut_ptr().cast(), target.count());
                copy(result.as_ptr().cast(), target.as_mut_ptr(), target.bytes(), CopySize::Near);
            } else {
                let from = taken.map_or(Locality::Far, Locality::Taken);
                reducer.fold(self.sources, &[target.as_mut_ptr()], target.count(), CacheHints::from(from));
            }
            make_valid(target.dtype(), target.as_mut_ptr(), target.bytes());
        }
        Ok(())
    }
}

/// Limit on the bytes of a result of small payloads: the mean of bytes is an f32.
const RESULT_BYTES: usize = FIRST_BYTES * size_of::<f32>();
