//! Steps that share memory: no rank leaves while others access its memory.

use crate::{
    cpu::{
        cache_hints::{self, CacheHints, CopySize, Locality},
        reduce::Reducer,
    },
    group::{
        call_context::CallContext,
        end::abort::{Abort, Fault, Reason},
        endpoint::Endpoint,
        peers::PeerBuffers,
        plan::{BORDER_BYTES, Path, Targets, chunks},
        post::Inline,
        scratch::Addresses,
    },
    shm::{call_log::Outcome, codes::Access, records::Generation},
    sync::atomics::{Ordering, fence, yield_now},
};
use consonance_spec::{Signature, partition};
use std::{
    ops::Range,
    time::{Duration, Instant},
};

/// How long a rank that gives up waits for ranks of other processes that are in its memory: longer
/// than a chunk takes. Such a process may be stopped or dead, and may have written any value.
const GRACE: Duration = Duration::from_millis(20);

impl Endpoint {
    /// Posts a call whose buffers peers may access. The guard keeps them valid until `depart`
    /// (success) or drop (abort); for `open` see [`Shared`].
    pub(crate) fn share(
        &mut self,
        signature: &Signature,
        access: Access,
        bytes: usize,
        (input, output): (*const u8, *mut u8),
        open: [Range<usize>; 2],
        payload: Inline<'_>,
    ) -> Result<Shared<'_>, Fault> {
        let active = self.staging.is_some() || !(input.is_null() && output.is_null());
        let mut shared = Shared { endpoint: self, active, open };
        let payload = (payload, payload.bytes());
        let arrived = shared.endpoint.arrive(signature, access, bytes, payload, (input, output), || ());
        if let Err(Fault::Mismatch | Fault::Left(_)) = arrived {
            // No rank works in a step on which not all agree, or in which a descriptor will never
            // come.
            shared.active = false;
        }
        arrived.map(|()| shared)
    }

    /// Removes these parts of the heaps from the memory that other processes can write.
    fn close(&self, open: &[Range<usize>]) {
        let Some((segment, _)) = self.state.segment() else { return };
        for bytes in open.iter().filter(|bytes| !bytes.is_empty()) {
            // The replacement pages were reserved with them. The system can refuse to map them if
            // the process has as many mappings as it may have; then peers can still write there, as
            // they can in all memory of the segment.
            let _ = segment.detach(bytes.clone());
        }
    }

    /// Folds this rank's block of all inputs into the targets, a chunk at a time.
    ///
    /// # Safety
    /// The addresses of this step are set. While a rank is inside, every input is valid for reads
    /// of `count` elements of the reducer's input, and every output that is not null for writes of
    /// as many of its output. Each output is equal to its own rank's input or disjoint from every
    /// input. All ranks agreed on the step.
    pub(crate) unsafe fn fold_block(
        &mut self,
        signature: &Signature,
        reducer: &Reducer,
        count: usize,
        targets: Targets,
    ) -> Result<(), Fault> {
        let block = match targets {
            // The blocks of the public collectives are even.
            Targets::Own => partition::block(count, self.world.size(), self.world.rank()),
            _ => {
                let unit = BORDER_BYTES / reducer.input().size().min(reducer.output().size());
                partition::aligned_block(count, unit, self.world.size(), self.world.rank())
            }
        };
        let (context, Addresses { inputs, outputs, sources, targets: all, .. }) = self.context(signature);
        let context = CallContext { enters: true, ..context };
        let (input_size, output_size) = (reducer.input().size(), reducer.output().size());
        let bytes = count * input_size;
        let volume = CopySize::new(bytes, || cache_hints::goes_past_caches(bytes, context.world.size() * bytes, 1));
        let flow = CacheHints { from: Locality::Far, past: volume.past(0) };
        for chunk in chunks(block, input_size) {
            let inside = context.enter()?;
            for (rank, (&input, &output)) in inputs.iter().zip(&*outputs).enumerate() {
                // SAFETY: `chunk` lies within the elements of every input.
                sources.push(unsafe { input.add(chunk.start * input_size) });
                let own_block = targets == Targets::Own && rank == context.world.rank();
                if (own_block || targets.reach(rank)) && !output.is_null() {
                    // SAFETY: `chunk` lies within the elements of every output.
                    all.push(unsafe { output.add(chunk.start * output_size) });
                }
            }
            // SAFETY: `enter` keeps every buffer alive until `inside` is dropped. This block of all
            // buffers is private to this rank in this step: the blocks of ranks are disjoint, and
            // all ranks agreed on the kind of step and on the bytes. An output is exclusive to its
            // rank, so it is its own rank's input exactly or disjoint from every input.
            unsafe { reducer.fold(sources, all, chunk.len(), flow) };
            sources.clear();
            all.clear();
            drop(inside);
        }
        Ok(())
    }
}

/// A rank that may share memory, from arrival to departure. If it is dropped before the departure,
/// it ends the group and waits until no rank is in this rank's memory.
pub(crate) struct Shared<'s> {
    pub(crate) endpoint: &'s mut Endpoint,
    pub(crate) active: bool,
    /// The parts of the heaps that belong to this rank, and that ranks of other processes write in
    /// this step.
    pub(crate) open: [Range<usize>; 2],
}

impl Shared<'_> {
    /// Ends the step without waiting for any rank.
    pub(crate) fn finish(mut self) {
        self.endpoint.note(Outcome::Done);
        self.active = false;
    }

    /// Calls `work` for the data of all ranks, which are threads of one process and have arrived at
    /// this step. Departs.
    pub(in crate::group) fn read_in_place(
        self,
        signature: &Signature,
        mut work: impl FnMut(&mut PeerBuffers<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.endpoint.path.set(Some(Path::InPlace));
        let (context, addresses) = self.endpoint.context(signature);
        let Addresses { sources, scratch, .. } = addresses;
        work(&mut PeerBuffers { context, sources, scratch, window: None })?;
        self.depart()
    }

    /// Publishes that this rank is done, and waits for the others if they may be in its memory.
    pub(crate) fn depart(mut self) -> Result<(), Fault> {
        let sequence = self.endpoint.sequence;
        // SYNC POINT departure: pairs below.
        self.endpoint.state.records()[self.endpoint.world.rank()].counters.done.store(sequence, Ordering::Release);
        self.endpoint.wake();
        if self.active {
            // SYNC POINT departure: pairs above.
            self.endpoint
                .wait_for_all(|record| Generation::reached(record.counters.done.load(Ordering::Acquire), sequence))?;
            self.active = false;
        }
        self.endpoint.note(Outcome::Done);
        Ok(())
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        if !self.active {
            return;
        }
        self.endpoint.note(Outcome::Aborted);
        let Endpoint { state, world, generation, .. } = &*self.endpoint;
        state.abort(*generation, Abort { rank: world.rank(), reason: Reason::Failure });
        // SYNC POINT abort: pairs with the fence in `enter`.
        fence(Ordering::SeqCst);
        // Waits for threads of this process first, without a limit: they go on, and would also see
        // the replaced pages. No other process writes the words by which they are seen.
        for peer in world.peers().filter(|&peer| state.is_local(peer)) {
            // SYNC POINT inside: pairs with `Inside::drop`.
            while state.inside(peer).load(Ordering::Acquire) != 0 {
                yield_now();
            }
        }
        // Ranks of other processes matter only where they write.
        if self.open.iter().all(Range::is_empty) {
            return;
        }
        let begin = Instant::now();
        for peer in world.peers().filter(|&peer| !state.is_local(peer)) {
            // SYNC POINT inside: pairs with `Inside::drop`.
            while state.records()[peer].counters.inside.load(Ordering::Acquire) != 0 {
                if begin.elapsed() > GRACE {
                    return self.endpoint.close(&self.open);
                }
                yield_now();
            }
        }
    }
}
