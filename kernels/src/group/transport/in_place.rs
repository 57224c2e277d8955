//! The end of a step in which memory is shared: nobody leaves while others are in its memory.

use crate::{
    cpu::{
        cache_hints::{self, Distance, Flow, Volume},
        reduce::Reducer,
    },
    group::{
        abort::{Abort, Reason},
        endpoint::Seat,
        fault::Fault,
        place::Place,
        plan::{Access, BORDER_BYTES, Targets, chunks},
        scratch::Addresses,
    },
    shm::{call_log::Outcome, records::Round},
    sync::atomics::{Ordering, fence, yield_now},
};
use consonance_spec::{Signature, partition};
use std::{
    ops::Range,
    time::{Duration, Instant},
};

/// How long a rank that gives up waits for ranks of other processes that are in its memory: longer than a chunk takes, but such a
/// process may be stopped or dead, and what it says of itself may be anything.
const GRACE: Duration = Duration::from_millis(20);

impl Seat {
    /// Arrives with memory that others may touch until the result departs, or is dropped; with `open` see [`Shared`].
    pub(crate) fn share(
        &mut self,
        signature: &Signature,
        access: Access,
        bytes: usize,
        input: *const u8,
        output: *mut u8,
        open: [Range<usize>; 2],
    ) -> Result<Shared<'_>, Fault> {
        let active = self.stage.is_some() || !(input.is_null() && output.is_null());
        let mut shared = Shared { seat: self, active, open };
        let arrived = shared.seat.arrive(signature, access, bytes, (&[], 0), (input, output), || ());
        if let Err(Fault::Mismatch | Fault::Left(_)) = arrived {
            // Nobody works in a step on which not all agree, or in which a card will never come.
            shared.active = false;
        }
        arrived.map(|()| shared)
    }

    /// Takes these parts of the heaps away from the ranks of other processes.
    fn close(&self, open: &[Range<usize>]) {
        let Some((segment, _)) = self.hub.segment() else { return };
        for bytes in open.iter().filter(|bytes| !bytes.is_empty()) {
            // What takes their place was reserved with them. The system can refuse to put it there if the process has as many
            // mappings as it may have; then peers can still write there, as they can in all memory of the segment.
            let _ = segment.detach(bytes.clone());
        }
    }

    /// Folds this rank's block of all inputs into the targets, a chunk at a time.
    ///
    /// # Safety
    /// The addresses of this step are set: while a rank is inside, every input is valid for reads of `count` elements of the
    /// reducer's input, every output that is not null for writes of as many of its output, and equal to its own rank's input or
    /// disjoint from every input. All ranks agreed on the step.
    pub(crate) unsafe fn fold_block(
        &mut self,
        signature: &Signature,
        reducer: &Reducer,
        count: usize,
        targets: Targets,
    ) -> Result<(), Fault> {
        let block = match targets {
            // The blocks that users see are even.
            Targets::Own => partition::block(count, self.world.size(), self.world.rank()),
            _ => {
                let unit = BORDER_BYTES / reducer.input().size().min(reducer.output().size());
                partition::aligned_block(count, unit, self.world.size(), self.world.rank())
            }
        };
        let (place, Addresses { inputs, outputs, sources, targets: all, .. }) = self.place(signature);
        let place = Place { enters: true, ..place };
        let (input_size, output_size) = (reducer.input().size(), reducer.output().size());
        let bytes = count * input_size;
        let volume = Volume::new(bytes, || cache_hints::goes_past_caches(bytes, place.world.size() * bytes, 1));
        let flow = Flow { from: Distance::Far, past: volume.past(0) };
        for chunk in chunks(block, input_size) {
            let inside = place.enter()?;
            for (rank, (&input, &output)) in inputs.iter().zip(&*outputs).enumerate() {
                // SAFETY: `chunk` lies within the elements of every input.
                sources.push(unsafe { input.add(chunk.start * input_size) });
                let own_block = targets == Targets::Own && rank == place.world.rank();
                if (own_block || targets.reach(rank)) && !output.is_null() {
                    // SAFETY: `chunk` lies within the elements of every output.
                    all.push(unsafe { output.add(chunk.start * output_size) });
                }
            }
            // SAFETY: `enter` keeps every buffer alive until `inside` is dropped. This block of all buffers is private to this
            // rank in this step: the blocks of ranks are disjoint, and all ranks agreed on the kind of step and on the bytes.
            // An output is exclusive to its rank, so it is its own rank's input exactly or disjoint from every input.
            unsafe { reducer.fold(sources, all, chunk.len(), flow) };
            sources.clear();
            all.clear();
            drop(inside);
        }
        Ok(())
    }
}

/// From arrival to departure of a rank that may have shared memory. Dropped before the departure, it ends the group and waits
/// until nobody is in this rank's memory.
pub(crate) struct Shared<'s> {
    pub(crate) seat: &'s mut Seat,
    pub(crate) active: bool,
    /// The parts of the heaps in which ranks of other processes write in this step, and which are this rank's.
    pub(crate) open: [Range<usize>; 2],
}

impl Shared<'_> {
    /// Goes on without waiting for anybody.
    pub(crate) fn finish(mut self) {
        self.seat.note(Outcome::Done);
        self.active = false;
    }

    /// Says that this rank is done, and waits for the others if they may be in its memory.
    pub(crate) fn depart(mut self) -> Result<(), Fault> {
        let epoch = self.seat.epoch;
        // SYNC POINT departure: pairs below.
        self.seat.hub.lines()[self.seat.world.rank()].progress.done.store(epoch, Ordering::Release);
        self.seat.wake();
        if self.active {
            // SYNC POINT departure: pairs above.
            self.seat.wait_for_all(|line| Round::reached(line.progress.done.load(Ordering::Acquire), epoch))?;
            self.active = false;
        }
        self.seat.note(Outcome::Done);
        Ok(())
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        if !self.active {
            return;
        }
        self.seat.note(Outcome::Aborted);
        let Seat { hub, world, round, .. } = &*self.seat;
        hub.abort(*round, Abort { rank: world.rank(), reason: Reason::Failure });
        // SYNC POINT abort: pairs with the fence in `enter`.
        fence(Ordering::SeqCst);
        // Threads of this process first, for as long as it takes: they go on, and would see the other pages, too. No other process
        // writes the words by which they are seen.
        for peer in world.peers().filter(|&peer| hub.is_local(peer)) {
            // SYNC POINT inside: pairs with `Inside::drop`.
            while hub.inside(peer).load(Ordering::Acquire) != 0 {
                yield_now();
            }
        }
        // Those of other processes matter only where they write.
        if self.open.iter().all(Range::is_empty) {
            return;
        }
        let begin = Instant::now();
        for peer in world.peers().filter(|&peer| !hub.is_local(peer)) {
            // SYNC POINT inside: pairs with `Inside::drop`.
            while hub.lines()[peer].progress.inside.load(Ordering::Acquire) != 0 {
                if begin.elapsed() > GRACE {
                    return self.seat.close(&self.open);
                }
                yield_now();
            }
        }
    }
}
