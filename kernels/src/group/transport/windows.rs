//! Steps of ranks that cannot read each other's buffers: they copy their data into memory that all
//! can read, a window at a time.
//!
//! Each rank has its own *staging*, in memory that all processes of the group map: two slots for
//! data and two for results, used in turn. Its contents are read as data only: each process
//! computes the position and size of the staging by itself. Two ranks that both have data swap
//! their slots; if only one of two ranks has data, it uses parts of its slots in turn
//! (`slot_swap.rs`).
//!
//! # The protocol
//!
//! A step begins as any other: the ranks arrive and agree (`arrival.rs`). The rest is counted in
//! windows, from the beginning of the generation. The ranks agree on the call, and know each
//! other's sizes, so all of them count the same.
//!
//! 1. **Copy in.** The rank copies window `w` into staging slot `w % 2` and publishes the counter
//!    *staged*. The first window of a call is copied in before the call descriptor is posted, so
//!    the descriptor announces it. (If the ranks then find that not all have staged data, none
//!    reads it, and it is staged again: see `words.rs`.) The slot is free once every peer has
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
//! Where data go one way, each side does its half: a rank without data claims and stages nothing,
//! and a rank that reads nothing publishes *read* of all windows of the call at its beginning and
//! waits for no data.
//!
//! Data that the others read in place, in a heap or by `process_read.rs`, are not staged, or are
//! staged late if not all agree to that.
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

use crate::{
    cpu::{cache_hints::CopySize, copy::copy_in},
    group::{
        end::abort::Fault,
        endpoint::Endpoint,
        staging::{Load, RESERVE_BYTES, Slots, Staging, Use},
    },
    shm::records::Generation,
    sync::atomics::Ordering,
};

impl Endpoint {
    /// Waits until this rank may write its slots for the window `ahead` windows after this one.
    pub(super) fn claim_window(&self, ahead: u64) -> Result<(), Fault> {
        let Staging { window, settled, .. } = *self.staging();
        let window = window + ahead;
        // The peers' counters need no load: each peer has arrived at a call since.
        if window < settled + 2 {
            return Ok(());
        }
        self.wait_read(window - 1)
    }

    /// Waits until every peer has read the windows before `window`.
    pub(super) fn wait_read(&self, window: u64) -> Result<(), Fault> {
        // SYNC POINT read: pairs with `say_read`.
        self.wait_for_all(|record| Generation::reached(record.counters.read.load(Ordering::Acquire), window))
    }

    /// Copies a slice of each block to this rank's slot for the window `ahead` windows after this
    /// one, which has been claimed.
    pub(super) fn stage_slices(&mut self, load: Load<'_>, ahead: u64, index: usize) -> Result<(), Fault> {
        let Load { input, bytes, stride, slot, .. } = load;
        let slices = load.slices(index).filter(|(_, slice)| !slice.is_empty());
        let Some(end) = slices.clone().map(|(place, slice)| place * stride + slice.len()).last() else {
            return Ok(());
        };
        let (has_lines, volume) = (slot == Use::SwappedData, CopySize::new(bytes, || false));
        let slot = self.slot(ahead, slot, end)?;
        for (place, slice) in slices {
            // SAFETY: the slice lies within the input, which the caller of `in_windows` promises to
            // be readable, and has room for `stride` bytes in the slot.
            unsafe {
                copy_in(input.add(slice.start), slot.add(place * stride), slice.len(), volume, has_lines);
            }
        }
        Ok(())
    }

    /// Publishes that this rank's part of the window `ahead` windows after this one is staged.
    pub(super) fn say_staged(&self, ahead: u64) {
        let window = self.staging().window + ahead;
        // SYNC POINT staged: pairs with `wait_staged`.
        self.state.records()[self.world.rank()].counters.staged.store(window + 1, Ordering::Release);
        self.wake();
    }

    /// Waits until the peers that stage something in this window have staged it.
    pub(super) fn wait_staged(&self, stages: impl Fn(usize) -> bool) -> Result<(), Fault> {
        let window = self.staging().window;
        // SYNC POINT staged: pairs with `say_staged`.
        self.wait_for(stages, |record| Generation::reached(record.counters.staged.load(Ordering::Acquire), window + 1))
    }

    /// Publishes that this rank's block of this window's result is staged.
    pub(super) fn say_folded(&self) {
        // SYNC POINT folded: pairs with `wait_folded`.
        let window = self.staging().window;
        self.state.records()[self.world.rank()].counters.folded.store(window + 1, Ordering::Release);
        self.wake();
    }

    pub(super) fn wait_folded(&self) -> Result<(), Fault> {
        let window = self.staging().window;
        // SYNC POINT folded: pairs with `say_folded`.
        self.wait_for_all(|record| Generation::reached(record.counters.folded.load(Ordering::Acquire), window + 1))
    }

    /// Goes on to the next window.
    pub(super) fn advance(&mut self) {
        self.staging.as_mut().expect("an endpoint with a staging").window += 1;
    }

    /// Publishes that this rank reads nothing more of the `windows` windows from this one on.
    pub(super) fn say_read(&self, windows: u64) {
        let window = self.staging().window + windows;
        // SYNC POINT read: pairs with `wait_read`.
        self.state.records()[self.world.rank()].counters.read.store(window, Ordering::Release);
        self.wake();
    }

    /// Returns every rank's slot for this use, in this window.
    pub(super) fn slots(&self, of: Use) -> Slots {
        let Staging { area, window, .. } = *self.staging();
        let segment = self.segment();
        let slot_bytes = self.slot_bytes();
        let start = of.slot(window) * slot_bytes + of.start(window, slot_bytes.min(self.tuning.moving_bytes));
        let first = segment.staging(area, 0).as_ptr().wrapping_add(start);
        Slots { first, apart: segment.staging_apart(area), swapped: (of == Use::SwappedData).then_some(window) }
    }

    /// Returns this rank's slot for this use, in the window `ahead` windows after this one, with
    /// room for `bytes` bytes.
    pub(super) fn slot(&mut self, ahead: u64, of: Use, bytes: usize) -> Result<*mut u8, Fault> {
        let Staging { area, window, reserved, .. } = *self.staging();
        let (rank, slot_bytes, slot) = (self.world.rank(), self.slot_bytes(), of.slot(window + ahead));
        let start = of.start(window + ahead, slot_bytes.min(self.tuning.moving_bytes));
        let bytes = start + bytes;
        assert!(bytes <= slot_bytes, "{bytes} bytes in a slot of {slot_bytes}");
        let place = of.place(rank, window + ahead);
        let swapped = usize::from(place != rank);
        let before = reserved[swapped][slot];
        if bytes > before {
            // Doubles the reserved size each time, so that there are few system calls.
            let wanted = bytes.next_multiple_of(RESERVE_BYTES).max(2 * before).min(slot_bytes);
            let range = slot * slot_bytes + before..slot * slot_bytes + wanted;
            let more = range.len();
            let reserved = self.segment().reserve_staging(area, place, range);
            reserved.map_err(|error| self.no_memory(more, &error))?;
            self.staging.as_mut().expect("an endpoint with a staging").reserved[swapped][slot] = wanted;
        }
        Ok(self.segment().staging(area, place).as_ptr().wrapping_add(slot * slot_bytes + start))
    }
}
