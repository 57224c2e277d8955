//! The steps of a group, as callers see them.

use super::{
    end::abort::Fault,
    endpoint::Endpoint,
    payloads::Payloads,
    peers::PeerBuffers,
    plan::{Chunking, Path, Step, Targets},
    post::{Inline, Places},
    scratch::Addresses,
};
use crate::{
    cpu::reduce::Reducer,
    memory::{HostBuf, HostBufMut},
    shm::records::PAYLOAD_BYTES,
};
use consonance_spec::{Signature, partition};
use std::ptr;

impl Endpoint {
    /// A step whose payloads are inline in the descriptors: no memory is shared, and no rank waits
    /// until the others have read.
    ///
    /// The result gives access to every rank's payload, until this rank's next step.
    ///
    /// # Errors
    /// See [`Fault`].
    ///
    /// # Panics
    /// If the payload has more than [`Endpoint::PAYLOAD_BYTES`] bytes, or is not of the signature's
    /// dtype.
    pub fn exchange(&mut self, signature: &Signature, payload: Option<HostBuf<'_>>) -> Result<Payloads<'_>, Fault> {
        self.exchange_expecting(signature, payload, payload.map_or(0, |buf| buf.bytes()))
    }

    /// Like [`exchange`](Endpoint::exchange), for a rank whose only peer has a payload of another
    /// size than its own: `expected` bytes, or at most as many. Only the speed depends on
    /// `expected`.
    ///
    /// # Errors
    /// As [`exchange`](Endpoint::exchange).
    ///
    /// # Panics
    /// As [`exchange`](Endpoint::exchange).
    pub fn exchange_expecting(
        &mut self,
        signature: &Signature,
        payload: Option<HostBuf<'_>>,
        expected: usize,
    ) -> Result<Payloads<'_>, Fault> {
        self.exchange_while(signature, payload, expected, || ()).map(|((), payloads)| payloads)
    }

    /// Returns the payloads of this rank's current step, each of which ends with words of
    /// `words_bytes` bytes. This rank's has `own_bytes` bytes of data.
    #[inline]
    pub(super) fn payloads(
        &mut self,
        signature: &Signature,
        places: Places,
        words_bytes: usize,
        own_bytes: usize,
    ) -> Payloads<'_> {
        let (context, addresses) = self.context(signature);
        let Addresses { sources, own, .. } = addresses;
        Payloads { context, sources, own, places, own_bytes, words_bytes, most_bytes: usize::MAX }
    }

    /// Like [`exchange_expecting`](Endpoint::exchange_expecting), and runs `meanwhile` until the
    /// others' descriptors arrive.
    ///
    /// # Errors
    /// As [`exchange`](Endpoint::exchange).
    ///
    /// # Panics
    /// As [`exchange`](Endpoint::exchange).
    // Inlined: otherwise the caller would move the result, which was just written in parts, and to
    // read it as a whole takes longer than to write it.
    #[inline(always)]
    pub fn exchange_while<R>(
        &mut self,
        signature: &Signature,
        payload: Option<HostBuf<'_>>,
        expected: usize,
        meanwhile: impl FnOnce() -> R,
    ) -> Result<(R, Payloads<'_>), Fault> {
        let bytes = payload.map_or(0, |buf| buf.bytes());
        assert!(bytes <= PAYLOAD_BYTES, "payload of {bytes} bytes");
        assert!(payload.is_none_or(|payload| Some(payload.dtype()) == signature.dtype), "payload of {signature}");
        let payload = Inline::new(payload.as_ref().map_or(&[], |payload| payload.as_bytes()), &[]);
        let (access, none) = (Step::Exchange.access(), (ptr::null(), ptr::null_mut()));
        let made = self.arrive(signature, access, bytes, (payload, expected), none, meanwhile)?;
        Ok((made, self.payloads(signature, Places::Swapped, 0, bytes)))
    }

    /// A step in which each rank's `input` is published: nobody writes it, all may read it.
    ///
    /// `work` may be called several times, each time with another part of the data: see
    /// [`PeerBuffers`]. All ranks pass the same `chunking`. If there is a block for each rank, a
    /// rank reads only its own.
    ///
    /// # Errors
    /// See [`Fault`], and the errors of `work`.
    ///
    /// # Panics
    /// If the input is not of the signature's dtype.
    pub fn published(
        &mut self,
        signature: &Signature,
        input: Option<HostBuf<'_>>,
        chunking: Chunking,
        work: impl FnMut(&mut PeerBuffers<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.publish(signature, input, chunking, None, work)
    }

    /// Like [`published`](Endpoint::published), with a block for each rank: `counts[r]` elements
    /// for rank `r`.
    ///
    /// # Errors
    /// As [`published`](Endpoint::published).
    ///
    /// # Panics
    /// As [`published`](Endpoint::published), and if the chunking has another number of blocks than
    /// `counts`, if these are not all elements of the input, or if a block for another rank has
    /// more bytes than all ranks know.
    pub fn published_in_blocks(
        &mut self,
        signature: &Signature,
        input: HostBuf<'_>,
        counts: &[usize],
        chunking: Chunking,
        work: impl FnMut(&mut PeerBuffers<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let most = chunking.most_bytes / chunking.blocks / input.dtype().size();
        let fits = self.world.peers().all(|peer| counts[peer] <= most);
        assert!(counts.len() == chunking.blocks && fits, "blocks of at most {most} elements: {counts:?}");
        assert_eq!(counts.iter().sum::<usize>(), input.count(), "the blocks are the input");
        self.publish(signature, Some(input), chunking, Some(counts), work)
    }

    fn publish(
        &mut self,
        signature: &Signature,
        input: Option<HostBuf<'_>>,
        chunking: Chunking,
        counts: Option<&[usize]>,
        work: impl FnMut(&mut PeerBuffers<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        assert!(input.is_none_or(|input| Some(input.dtype()) == signature.dtype), "input of {signature}");
        let (bytes, address) = input.map_or((0, ptr::null()), |buf| (buf.bytes(), buf.as_ptr()));
        let step = Step::Published(chunking);
        let known = if chunking.most_bytes == usize::MAX { bytes } else { chunking.most_bytes };
        if self.staging.is_some() {
            self.check()?;
            // The protocol depends on what this rank knows once all have arrived at the last call.
            self.settle()?;
            self.before_copies(known);
            // SAFETY: the input is valid for reads of its bytes while it is borrowed.
            return unsafe { self.in_windows(signature, step, (address, bytes), counts, work) };
        }
        self.before_copies(known);
        let shared =
            self.share(signature, step.access(), bytes, (address, ptr::null_mut()), Default::default(), Inline::EMPTY)?;
        shared.read_in_place(signature, work)
    }

    /// A step in which block `r` of every buffer is private to rank `r`. Rank `r` folds that block
    /// of all inputs and writes the result to the targets: one pass, in canonical order, each byte
    /// read once and written once.
    ///
    /// Without `send` the input is `recv`, in place. Every rank's buffers have the same number of
    /// elements. The ranks that receive need `recv`.
    ///
    /// # Errors
    /// See [`Fault`].
    ///
    /// # Panics
    /// If the buffers do not fit the reducer or each other, if there is no buffer, if a rank that
    /// receives passes no `recv`, or if the signature has another operation or dtype than the
    /// reducer.
    pub fn divided(
        &mut self,
        signature: &Signature,
        reducer: &Reducer,
        send: Option<HostBuf<'_>>,
        mut recv: Option<HostBufMut<'_>>,
        targets: Targets,
    ) -> Result<(), Fault> {
        let input = send.or_else(|| recv.as_ref().map(|recv| recv.as_buf())).expect("a buffer to read");
        assert_eq!(input.dtype(), reducer.input(), "the input's dtype is the reducer's");
        let agreed = (signature.op, signature.dtype);
        assert_eq!(agreed, (Some(reducer.op()), Some(reducer.input())), "the reducer is what the ranks agree on");
        if let Some(recv) = &recv {
            assert_eq!(
                (recv.dtype(), recv.count()),
                (reducer.output(), input.count()),
                "recv fits the reducer and send"
            );
        }
        let (count, bytes, input) = (input.count(), input.bytes(), input.as_ptr());
        let output = recv.as_mut().map_or(ptr::null_mut(), |recv| recv.as_mut_ptr());
        let receives = targets == Targets::Own || targets.reach(self.world.rank());
        assert!(!receives || !output.is_null(), "a rank that receives gives recv");
        if self.staging.is_some() {
            self.check()?;
            // The protocol depends on what this rank knows once all have arrived at the last call.
            self.settle()?;
            self.before_copies(bytes);
            let output = if receives { output } else { ptr::null_mut() };
            // SAFETY: both buffers have `count` elements, are borrowed, and are the same or
            // disjoint.
            return unsafe { self.divided_on_stage(signature, reducer, targets, input, count, output) };
        }

        self.before_copies(bytes);
        let step = Step::divided(reducer, targets);
        let shared = self.share(signature, step.access(), bytes, (input, output), Default::default(), Inline::EMPTY)?;
        shared.endpoint.path.set(Some(Path::InPlace));
        let Addresses { inputs, outputs, .. } = &mut shared.endpoint.addresses;
        inputs.clear();
        outputs.clear();
        let descriptors =
            shared.endpoint.state.records().iter().map(|record| record.descriptor(shared.endpoint.sequence));
        descriptors.for_each(|descriptor| {
            inputs.push(descriptor.input());
            outputs.push(descriptor.output());
        });
        // SAFETY: all ranks' inputs have `count` elements of the reducer's input (`arrive` compared
        // them), and an output has as many of the reducer's output, asserted before it was
        // published. They stay valid while a rank is inside.
        unsafe { shared.endpoint.fold_block(signature, reducer, count, targets)? };
        shared.depart()
    }

    /// Like [`Endpoint::divided`], on staged data.
    ///
    /// # Safety
    /// `input` is valid for reads of `count` elements of the reducer's input; `output`, unless it
    /// is null, for writes of as many of its output. No other code touches them. They are the same,
    /// where both types are, or disjoint.
    pub(crate) unsafe fn divided_on_stage(
        &mut self,
        signature: &Signature,
        reducer: &Reducer,
        targets: Targets,
        input: *const u8,
        count: usize,
        output: *mut u8,
    ) -> Result<(), Fault> {
        let (rank, size) = (self.world.rank(), self.world.size());
        let (input_size, output_size) = (reducer.input().size(), reducer.output().size());
        let bytes = count * input_size;
        let step = Step::divided(reducer, targets);
        if targets != Targets::Own {
            // SAFETY: the caller's promises are the same.
            return unsafe { self.combined(signature, reducer, targets, input, count, output) };
        }
        let own = partition::block(count, size, rank);
        let target = output.wrapping_add(own.start * output_size);
        let fold = |peers: &mut PeerBuffers<'_>| {
            // SAFETY: the target has room for these elements: they lie in `output` where the folded
            // elements lie in `input`.
            unsafe { peers.fold(reducer, own.start, own.len(), target) }
        };
        // SAFETY: the input is valid. A part of it that is written in place was read just before,
        // by this rank, its only reader: see `Topology::protocol`.
        unsafe { self.in_windows(signature, step, (input, bytes), None, fold) }
    }
}
