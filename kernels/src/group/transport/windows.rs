//! Steps of ranks that cannot read each other's buffers: they put their data up where all can read
//! them, a window at a time.
//!
//! Each rank has its own *staging*, in memory that all processes of the group map: two slots for
//! data and two for results, used in turn. It is never read as anything but data: where it lies,
//! and how large it is, each process knows by itself. Two ranks that both have data use each
//! other's in turn, and one that alone has data parts of its slots in turn (`slot_swap.rs`).
//!
//! # The protocol
//!
//! A step begins as any other: the ranks arrive and agree (`arrival.rs`). What follows is counted
//! in windows, from the beginning of the generation; as the ranks agree on what they call, and know
//! each other's sizes, all of them count the same.
//!
//! 1. **Staging.** The rank copies its part of window `w` into slot `w mod 2`, and says *staged*
//!    `w`; the first of a step is staged before the arrival, which says it. It may do so when every
//!    peer has said *read* `w - 2`, or has arrived at a call that came after it, which is seen
//!    without a look at another line. The next window is staged before the work on this one, so
//!    that a rank waits only for one that is more than a window behind.
//! 2. **Work**, when every peer has said *staged* `w`. Where each rank makes its block of the
//!    result for all, it puts the block up in the slot for results and says *folded* `w`; when
//!    every peer has, it copies their blocks. Of two ranks each writes its block over the peer's
//!    data of which it is made, in the peer's slot: the lines are its core's by then, and those of
//!    the peer's again when that has copied them.
//! 3. The rank says *read* `w`.
//!
//! Data that the others read where they lie, in a heap or by `process_read.rs`, are not put up, or
//! late if not all agree to that.
//!
//! No rank waits at the end of a step, but one whose data were read where they lie. A rank that
//! gives up says so and goes: what it has staged stays where it is.
//!
//! # The races, by name
//!
//! * **Overwritten window.** A slot is written again two windows later, when all have *read* it,
//!   whoever wrote there. The slot for results, and results in the slot for data, need no word of
//!   their own: who stages `w` has copied the results of `w - 2`.
//! * **Old counts, new counts.** After an abort ranks may differ in how far they had come. A new
//!   generation begins at a base above all of the counts before, and no rank counts in it before
//!   all are there (`Endpoint::renew`). Who still waits in the old generation does not take a count
//!   of the new one for what it waits for.

use crate::{
    cpu::{cache_hints::CopySize, copy::copy_in},
    group::{
        endpoint::Endpoint,
        fault::Fault,
        staging::{Load, Slots, Staging, Use},
        tuning::RESERVE_BYTES,
    },
    shm::records::Generation,
    sync::atomics::Ordering,
};

impl Endpoint {
    /// Waits until the slots of the window that comes `ahead` of this one are this rank's to write.
    pub(super) fn claim_window(&self, ahead: u64) -> Result<(), Fault> {
        let Staging { window, settled, .. } = *self.staging();
        let window = window + ahead;
        // Not even a look at their lines, which they have written since.
        if window < settled + 2 {
            return Ok(());
        }
        self.wait_read(window - 1)
    }

    /// Waits until every peer reads nothing of the windows before this one any more.
    pub(super) fn wait_read(&self, window: u64) -> Result<(), Fault> {
        // SYNC POINT read: pairs with `say_read`.
        self.wait_for_all(|record| Generation::reached(record.counters.read.load(Ordering::Acquire), window))
    }

    /// Copies a slice of each block to this rank's slot for the window that comes `ahead`, which
    /// has been claimed.
    pub(super) fn stage_slices(&mut self, load: Load, ahead: u64, index: usize) -> Result<(), Fault> {
        let Load { input, bytes, blocks, kept, stride, slot } = load;
        let block = bytes / blocks;
        let slice = load.slice(index);
        let slice = slice.start.min(block)..slice.end.min(block);
        if slice.is_empty() {
            return Ok(());
        }
        let (has_lines, volume) = (slot == Use::SwappedData, CopySize::new(bytes, || false));
        let slot = self.slot(ahead, slot, (blocks - 1) * stride + slice.len())?;
        for (place, index) in (0..blocks).filter(|&index| Some(index) != kept).enumerate() {
            // SAFETY: the slice lies within its block of the input, which the caller of
            // `in_windows` promises to be readable, and has a place of `stride` bytes in the slot.
            unsafe {
                let slice_of = input.add(index * block + slice.start);
                copy_in(slice_of, slot.add(place * stride), slice.len(), volume, has_lines);
            }
        }
        Ok(())
    }

    /// Says that this rank's part of the window that comes `ahead` is staged.
    pub(super) fn say_staged(&self, ahead: u64) {
        let window = self.staging().window + ahead;
        // SYNC POINT staged: pairs with `wait_staged`.
        self.state.records()[self.world.rank()].counters.staged.store(window + 1, Ordering::Release);
        self.wake();
    }

    pub(super) fn wait_staged(&self) -> Result<(), Fault> {
        let window = self.staging().window;
        // SYNC POINT staged: pairs with `say_staged`.
        self.wait_for_all(|record| Generation::reached(record.counters.staged.load(Ordering::Acquire), window + 1))
    }

    /// Says that this rank's block of this window's result is put up.
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

    /// Says that this rank reads nothing of this window any more, and goes on to the next.
    pub(super) fn say_read(&mut self) {
        let staging = self.staging.as_mut().expect("a endpoint with a staging");
        staging.window += 1;
        let window = staging.window;
        // SYNC POINT read: pairs with `wait_read`.
        self.state.records()[self.world.rank()].counters.read.store(window, Ordering::Release);
        self.wake();
    }

    /// Every rank's slot for this, of this window.
    pub(super) fn slots(&self, of: Use) -> Slots {
        let Staging { area, window, .. } = *self.staging();
        let segment = self.segment();
        let slot_bytes = self.slot_bytes();
        let start = of.slot(window) * slot_bytes + of.start(window, slot_bytes);
        let first = segment.staging(area, 0).as_ptr().wrapping_add(start);
        Slots { first, apart: segment.staging_bytes(area), swapped: (of == Use::SwappedData).then_some(window) }
    }

    /// This rank's slot for this, of the window that comes `ahead`, with room for `bytes`.
    pub(super) fn slot(&mut self, ahead: u64, of: Use, bytes: usize) -> Result<*mut u8, Fault> {
        let Staging { area, window, reserved, .. } = *self.staging();
        let (rank, slot_bytes, slot) = (self.world.rank(), self.slot_bytes(), of.slot(window + ahead));
        let start = of.start(window + ahead, slot_bytes);
        let bytes = start + bytes;
        assert!(bytes <= slot_bytes, "{bytes} bytes in a slot of {slot_bytes}");
        let place = of.place(rank, window + ahead);
        let swapped = usize::from(place != rank);
        let before = reserved[swapped][slot];
        if bytes > before {
            // Twice as much each time, so that the system is asked seldom.
            let wanted = bytes.next_multiple_of(RESERVE_BYTES).max(2 * before).min(slot_bytes);
            let range = slot * slot_bytes + before..slot * slot_bytes + wanted;
            let more = range.len();
            let reserved = self.segment().reserve_staging(area, place, range);
            reserved.map_err(|error| self.no_memory(more, &error))?;
            self.staging.as_mut().expect("a endpoint with a staging").reserved[swapped][slot] = wanted;
        }
        Ok(self.segment().staging(area, place).as_ptr().wrapping_add(slot * slot_bytes + start))
    }
}
