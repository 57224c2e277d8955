//! Staging: data of ranks that cannot read each other's buffers. They copy their data
//! into memory that all can read, a window at a time.
//!
//! Each rank has its own *staging*, in memory that all processes of the group map: two slots for
//! data and two for results, used in turn. Its contents are read as data only: each process
//! computes the position and size of the staging by itself. Two ranks that both have data swap
//! their slots; if only one of two ranks has data, it uses parts of its slots in turn
//! (`slot_swap.rs`).
//!
//! # The protocol
//!
//! A step begins as any other: the ranks arrive and agree (`meeting.rs`). The rest is counted in
//! windows, from the beginning of the generation. The ranks agree on the call, and know each
//! other's sizes, so all of them count the same.
//!
//! 1. **Copy in.** The rank copies window `w` into staging slot `w % 2` and publishes the counter
//!    *staged*. The first window of a call is copied in before the call descriptor is posted, so
//!    the descriptor announces it. (If the ranks then find that not all have staged data, none
//!    reads it, and it is staged again: see `step/mod.rs`.) The slot is free once every peer has
//!    *read* window `w - 2`. A peer that posted a later call has done so; then its counter is not
//!    loaded. The next window is copied in before the work on this one, so that a rank waits only
//!    for a peer that is more than a window behind.
//! 2. **Work.** The rank starts when every peer with data in this window has *staged* `w`. Where
//!    each rank folds its block of the result for all, it stages the block in the slot for results
//!    and publishes *folded* `w`. When every peer has done so, it copies out their blocks. Of two
//!    ranks each writes its block over the peer's data from which it was folded, in the peer's
//!    slot: this core owns the lines by then, and the peer's core owns them again after it has
//!    copied them out.
//! 3. **Read.** The rank publishes *read* `w`.
//!
//! If data go one way, each side does its half: a rank without data claims and stages nothing,
//! and a rank that reads nothing publishes *read* of all windows of the call at its beginning and
//! waits for no data.
//!
//! Data that the others read in place, in a heap or in the rank's process (`shown.rs`), are not
//! staged, or are staged late if not all agree to that.
//!
//! At the end of a step only a rank whose data were read in place waits. A rank that gives up ends
//! the group and returns: its staged data stay in place.
//!
//! # The races, by name
//!
//! * **Overwritten window.** A slot is written again two windows later, when all have *read* it,
//!   whichever rank wrote there. The slot for results, and results in the slot for data, need no
//!   counter of their own: a rank that stages `w` has copied out the results of `w - 2`.
//! * **Old counts, new counts.** After an abort ranks may differ in how far they had come. A new
//!   generation begins at a base above all earlier counts, and no rank counts in it before all have
//!   entered it (`Endpoint::renew`). A rank that still waits in the old generation ignores the
//!   counts of the new one.

mod heaps;
mod load;
mod shown;

pub(super) use heaps::{Heaps, INPUT, OUTPUT};
pub(super) use load::{Blocks, Load, Use};
pub(super) use shown::{BufferRef, Shown, all_read};

use super::{end::abort::Fault, meeting::Meeting, member::Member, plan::SLOTS, slot_swap, waiter::Waiter};
use crate::{
    cpu::{cache_hints::CopySize, copy::copy_in},
    shm::{
        Area, Segment,
        records::{CallDescriptor, Generation},
    },
    sync::atomics::Ordering,
};
use shown::PeerRead;
use std::{cell::Cell, sync::Arc};

/// Bytes of staging that are reserved at a time.
pub(super) const RESERVE_BYTES: usize = 64 << 10;

/// One rank's staging, as that rank sees it.
pub(crate) struct Staging {
    segment: Arc<Segment>,
    area: Area,
    /// Bytes of a slot, and those that windows use in turn.
    slot_bytes: usize,
    moving_bytes: usize,
    /// The sequence number of the next window.
    window: u64,
    /// All peers have read the windows before this one, because each has arrived at a call since.
    settled: u64,
    /// The last call with windows at which all ranks arrived.
    call: u64,
    /// Bytes of each slot whose pages are reserved: in this rank's own staging, and in the staging
    /// that it swaps for.
    reserved: [[usize; SLOTS]; 2],
    pub(super) heaps: Heaps,
    reach: Cell<PeerRead>,
}

impl Staging {
    /// Returns the staging of this rank; `None` in a group of threads.
    pub(super) fn new(member: &Member) -> Option<Staging> {
        let (_, area) = member.state.segment()?;
        let segment = member.state.shared_segment()?.clone();
        let (base, slot_bytes) = (member.generation.base(), segment.staging_bytes(area) / SLOTS);
        Some(Staging {
            segment,
            area,
            slot_bytes,
            moving_bytes: slot_bytes.min(member.state.tuning.moving_bytes),
            window: base,
            settled: base,
            call: base,
            reserved: [[0; SLOTS]; 2],
            heaps: Heaps::default(),
            reach: Cell::new(PeerRead::Untried),
        })
    }

    /// Begins the counts of another generation.
    pub(super) fn renew(&mut self, generation: Generation) {
        (self.window, self.settled, self.call) = (generation.base(), generation.base(), generation.base());
    }

    /// Returns the bytes of a slot.
    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Returns the offset of these data in the heaps. With `whole` they must be on pages of their
    /// own, because peers are to write there.
    pub(super) fn find(&self, address: *const u8, bytes: usize, whole: bool) -> Option<usize> {
        self.segment.find(address, bytes, whole)
    }

    /// Whether this rank reads the memory of all others. Tests it once, when each has arrived once.
    #[inline]
    pub(super) fn reads(&self, meeting: &Meeting) -> bool {
        if self.reach.get() == PeerRead::Untried {
            self.try_peers(meeting);
        }
        self.reach.get() == PeerRead::Yes
    }

    #[cold]
    fn try_peers(&self, meeting: &Meeting) {
        // A fork has no records, and in a group that has ended some peer may never have come.
        if !meeting.have_all_come() || meeting.check().is_err() {
            return;
        }
        let Member { state, world, .. } = meeting.member();
        let can = |peer| state.process(peer).is_some_and(|process| process.is_readable());
        let all = world.size() > 1 && world.peers().all(can);
        self.reach.set(if all { PeerRead::Yes } else { PeerRead::No });
    }

    /// Whether a rank passes an address that not all can read, so that it has to stage the data
    /// after the arrival. A rank that could read does not use the protocol again then.
    pub(super) fn is_late(&self, meeting: &Meeting) -> bool {
        let own =
            |descriptor: &CallDescriptor| matches!(BufferRef::read(descriptor.input()).place, Some(Shown::Own(_)));
        let is_late = !all_read(meeting.descriptors()) && meeting.descriptors().any(own);
        if is_late {
            self.reach.set(PeerRead::No);
        }
        is_late
    }

    /// Begins a step with windows. All peers have arrived at `last`, this rank's last call.
    pub(super) fn begin(&mut self, last: u64) {
        if last > self.call {
            self.settled = self.window;
        }
    }

    /// Notes that all peers have arrived at the step that began, `call`, so that they read nothing
    /// more of the windows of earlier calls.
    pub(super) fn have_arrived(&mut self, call: u64) {
        (self.call, self.settled) = (call, self.window);
    }

    /// Waits until this rank may write its slots for the window `ahead` windows after this one.
    pub(super) fn claim(&self, waiter: &Waiter, ahead: u64) -> Result<(), Fault> {
        let window = self.window + ahead;
        // The peers' counters need no load: each peer has arrived at a call since.
        if window < self.settled + 2 {
            return Ok(());
        }
        self.wait_read_before(waiter, window - 1)
    }

    /// Waits until every peer has read the windows before this one.
    pub(super) fn wait_read(&self, waiter: &Waiter) -> Result<(), Fault> {
        self.wait_read_before(waiter, self.window)
    }

    fn wait_read_before(&self, waiter: &Waiter, window: u64) -> Result<(), Fault> {
        // SYNC POINT read: pairs with `say_read`.
        waiter.wait_for_all(|record| Generation::reached(record.counters.read.load(Ordering::Acquire), window))
    }

    /// Copies a slice of each block to this rank's slot for the window `ahead` windows after this
    /// one, which has been claimed.
    ///
    /// # Safety
    /// The input of the load is valid for reads of its bytes. The window has been claimed.
    pub(super) unsafe fn stage(
        &mut self,
        member: &Member,
        load: Load<'_>,
        ahead: u64,
        index: usize,
    ) -> Result<(), Fault> {
        let Load { input, bytes, stride, slot, .. } = load;
        let slices = load.slices(index).filter(|(_, slice)| !slice.is_empty());
        let Some(end) = slices.clone().map(|(place, slice)| place * stride + slice.len()).last() else {
            return Ok(());
        };
        let (has_lines, volume) = (slot == Use::SwappedData, CopySize::new(bytes, || false));
        let slot = self.slot(member, ahead, slot, end)?;
        for (place, slice) in slices {
            // SAFETY: the slice lies within the input, which the caller promises to be readable,
            // and has room for `stride` bytes in the slot.
            unsafe {
                copy_in(input.add(slice.start), slot.add(place * stride), slice.len(), volume, has_lines);
            }
        }
        Ok(())
    }

    /// Publishes that this rank's part of the window `ahead` windows after this one is staged.
    pub(super) fn say_staged(&self, waiter: &Waiter, ahead: u64) {
        // SYNC POINT staged: pairs with `wait_staged`.
        waiter.member.record().counters.staged.store(self.window + ahead + 1, Ordering::Release);
        waiter.wake();
    }

    /// Waits until the peers that stage something in this window have staged it.
    pub(super) fn wait_staged(&self, waiter: &Waiter, stages: impl Fn(usize) -> bool) -> Result<(), Fault> {
        let end = self.window + 1;
        // SYNC POINT staged: pairs with `say_staged`.
        waiter.wait_for(stages, |record| Generation::reached(record.counters.staged.load(Ordering::Acquire), end))
    }

    /// Publishes that this rank's block of this window's result is staged.
    pub(super) fn say_folded(&self, waiter: &Waiter) {
        // SYNC POINT folded: pairs with `wait_folded`.
        waiter.member.record().counters.folded.store(self.window + 1, Ordering::Release);
        waiter.wake();
    }

    pub(super) fn wait_folded(&self, waiter: &Waiter) -> Result<(), Fault> {
        let end = self.window + 1;
        // SYNC POINT folded: pairs with `say_folded`.
        waiter.wait_for_all(|record| Generation::reached(record.counters.folded.load(Ordering::Acquire), end))
    }

    /// Publishes that this rank reads nothing more of the `windows` windows from this one on.
    pub(super) fn say_read(&self, waiter: &Waiter, windows: u64) {
        // SYNC POINT read: pairs with `wait_read_before`.
        waiter.member.record().counters.read.store(self.window + windows, Ordering::Release);
        waiter.wake();
    }

    /// Goes on to the next window.
    pub(super) fn advance(&mut self) {
        self.window += 1;
    }

    /// Returns every rank's slot for this use, in this window.
    pub(super) fn slots(&self, of: Use) -> Slots {
        let Staging { ref segment, area, window, slot_bytes, moving_bytes, .. } = *self;
        let start = of.slot(window) * slot_bytes + of.start(window, moving_bytes);
        let first = segment.staging(area, 0).as_ptr().wrapping_add(start);
        Slots { first, apart: segment.staging_apart(area), swapped: (of == Use::SwappedData).then_some(window) }
    }

    /// Returns this rank's slot for this use, in the window `ahead` windows after this one, with
    /// room for `bytes` bytes. `member` is this rank.
    pub(super) fn slot(&mut self, member: &Member, ahead: u64, of: Use, bytes: usize) -> Result<*mut u8, Fault> {
        let Staging { ref segment, area, window, slot_bytes, moving_bytes, ref mut reserved, .. } = *self;
        let (rank, slot) = (member.world.rank(), of.slot(window + ahead));
        let start = of.start(window + ahead, moving_bytes);
        let bytes = start + bytes;
        assert!(bytes <= slot_bytes, "{bytes} bytes in a slot of {slot_bytes}");
        let place = of.place(rank, window + ahead);
        let reserved = &mut reserved[usize::from(place != rank)][slot];
        if bytes > *reserved {
            // Doubles the reserved size each time, so that there are few system calls.
            let wanted = bytes.next_multiple_of(RESERVE_BYTES).max(2 * *reserved).min(slot_bytes);
            let range = slot * slot_bytes + *reserved..slot * slot_bytes + wanted;
            let more = range.len();
            segment.reserve_staging(area, place, range).map_err(|error| member.no_memory(more, &error))?;
            *reserved = wanted;
        }
        Ok(segment.staging(area, place).as_ptr().wrapping_add(slot * slot_bytes + start))
    }
}

/// The same slot of every rank.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    /// The slot in the staging of rank 0.
    pub(super) first: *mut u8,
    /// Bytes from the slot of one rank to that of the next.
    pub(super) apart: usize,
    /// The window's sequence number, if ranks swap slots.
    pub(super) swapped: Option<u64>,
}

impl Slots {
    pub(super) fn of(self, rank: usize) -> *mut u8 {
        let place = self.swapped.map_or(rank, |window| slot_swap::place(rank, window));
        self.first.wrapping_add(place * self.apart)
    }
}
