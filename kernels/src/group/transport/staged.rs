//! Steps in which each rank reads what the others put up.

use super::heaps::INPUT;
use crate::{
    group::{
        abort::{Abort, Reason},
        endpoint::Seat,
        fault::Fault,
        peers::{Peers, Window},
        place::Place,
        plan::{Ground, Path, Step, Windows},
        scratch::{Addresses, Data, Source},
        slot_swap,
        staging::{Load, Shown, Told, Use},
    },
    sync::atomics::{Ordering, fence},
};
use consonance_spec::Signature;
use std::{ptr, time::Instant};

impl Seat {
    /// A step in which all ranks' data are put up, and `work` is called for each window of them. Data that lie in a heap need not
    /// be put up, if the step may go in place: others read them where they lie, in one window if all do.
    ///
    /// # Safety
    /// `input` is valid for reads of `bytes` bytes, which nobody writes but `work`, and it only where it has read; nothing at
    /// all, if the step may go in place, but what only this rank reads.
    pub(crate) unsafe fn in_windows(
        &mut self,
        signature: &Signature,
        step: Step,
        input: *const u8,
        bytes: usize,
        mut work: impl FnMut(&mut Peers<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let ground = self.ground();
        let put_up = |bytes| match (Ground { reads: false, ..ground }).path(step, bytes, false) {
            Path::PutUp(windows) => windows,
            path => unreachable!("{step:?} goes {path:?}"),
        };
        let Windows { blocks, stride, .. } = put_up(bytes);
        assert!(stride > 0 && (blocks == 1 || bytes.is_multiple_of(blocks)), "{bytes} bytes in {blocks} blocks");
        let in_place = ground.path(step, bytes, true) == Path::InPlace;
        let found = if in_place { self.find(input, bytes, false) } else { None };
        let found = found.map(Shown::Heap).or_else(|| {
            let is_read = ground.path(step, bytes, false) == Path::Read && self.is_read(input);
            is_read.then_some(Shown::Own(input.addr()))
        });
        // Where there is a block for each rank, this rank's is its own.
        let kept = (blocks == self.world.size()).then_some(self.world.rank());
        let moves = slot_swap::moves(self.world.size(), signature.kind);
        let room = if moves { blocks * stride } else { self.slot_bytes() };
        let slot = Use::data(slot_swap::slots(self.world.size(), signature.kind), room);
        let mut load = Load { input, bytes: if found.is_some() { 0 } else { bytes }, blocks, kept, stride, slot };
        self.claim_window(0)?;
        self.stage_slices(load, 0, 0)?;
        let told = Told { place: found, reads: ground.reads }.to_word();
        let shared = self.share(signature, step.access(), bytes, told, ptr::null_mut(), Default::default())?;
        let seat = &mut *shared.seat;
        let is_late = seat.is_late();
        if is_late && matches!(found, Some(Shown::Own(_))) {
            load.bytes = bytes;
            seat.claim_window(0)?;
            seat.stage_slices(load, 0, 0)?;
        }
        if is_late {
            seat.say_staged(0);
        }
        let most = if let Step::Published(cut) = step { cut.most_bytes } else { bytes };
        let mut data = seat.data(most)?;
        let in_slots = data.iter().filter(|data| matches!(data.place, Source::Slot));
        let windows = put_up(in_slots.map(|data| data.bytes).max().unwrap_or(0)).count;
        if windows == 1 {
            load.stride = usize::MAX;
        }
        // How many windows there are is what a peer says, if nobody knows it: it may say anything, and that it staged them all.
        let begun = (most == usize::MAX && windows > 1).then(Instant::now);
        for index in 0..windows {
            if let Some(begun) = begun {
                seat.in_time(begun, &data)?;
            }
            if index + 1 < windows {
                seat.claim_window(1)?;
                seat.stage_slices(load, 1, index + 1)?;
                seat.say_staged(1);
            }
            if index > 0 || is_late {
                seat.wait_staged()?;
            }
            let slots = seat.slots(slot);
            let (slice, data) = (load.slice(index), &*data);
            let is_last = index + 1 == windows;
            let window = Window { blocks, slice, slots, stride, data, own: input, own_bytes: bytes, is_last };
            let (place, addresses) = seat.place(signature);
            // A rank that gives up waits for who reads its own memory, in its process; in another one see `still_there`.
            let enters = data.iter().any(|data| !matches!(data.place, Source::Slot));
            let place = Place { enters, ..place };
            let Addresses { sources, scratch, .. } = addresses;
            let done = work(&mut Peers { place, sources, scratch, window: Some(window) });
            seat.or_end(done)?;
            if enters {
                seat.still_there()?;
            }
            seat.say_read();
        }
        data.clear();
        seat.addresses.data = data;
        if found.is_some() {
            seat.wait_read(seat.staging().window)?;
        }
        shared.finish();
        Ok(())
    }

    /// Whether a step that began then may go on: the group has not ended, and the timeout has not passed. Otherwise the rank with the
    /// most data has not come.
    fn in_time(&self, begun: Instant, data: &[Data]) -> Result<(), Fault> {
        if let Some(abort) = self.hub.aborted(self.round) {
            return Err(Fault::Aborted(abort));
        }
        if begun.elapsed() <= self.timeout() {
            return Ok(());
        }
        let rank = self.world.peers().max_by_key(|&peer| data[peer].bytes).expect("a peer that has more windows");
        self.hub.abort(self.round, Abort { rank, reason: Reason::Deadline });
        Err(Fault::Missing(vec![rank]))
    }

    /// Whether what was read in others' own memory was theirs to show until now: a rank that gives up says so before it returns.
    fn still_there(&self) -> Result<(), Fault> {
        // SYNC POINT abort: what was read comes before this look; who wrote it has ended the group before, if it was not the data.
        fence(Ordering::Acquire);
        self.hub.aborted(self.round).map_or(Ok(()), |abort| Err(Fault::Aborted(abort)))
    }

    /// What each rank has in this step, and where it lies. What one says that it has is at most `most` bytes.
    fn data(&mut self, most: usize) -> Result<Vec<Data>, Fault> {
        let mut data = std::mem::take(&mut self.addresses.data);
        data.clear();
        let all_read = self.all_read();
        for rank in 0..self.world.size() {
            let card = self.hub.lines()[rank].card(self.epoch);
            let (told, bytes) = (Told::read(card.input()), card.bytes().min(most));
            let place = match told.place {
                None => Source::Slot,
                Some(Shown::Heap(byte)) => {
                    let start = self.in_heap(rank, INPUT, byte, bytes)?;
                    start.map_or(Source::Slot, |start| Source::Here(start))
                }
                Some(Shown::Own(address)) => {
                    let process = self.hub.process(rank).filter(|_| all_read);
                    process.map_or(Source::Slot, |process| Source::There(process, address))
                }
            };
            data.push(Data { bytes, place });
        }
        Ok(data)
    }
}
