//! Steps in which each rank reads the staged data of the others.

use super::heaps::INPUT;
use crate::{
    group::{
        call_context::CallContext,
        end::abort::{Abort, Fault, Reason},
        endpoint::Endpoint,
        peers::{PeerBuffers, Window},
        plan::{Chunking, Path, Protocol, Step, Topology, Windows},
        post::Inline,
        scratch::{Addresses, Data, Source},
        slot_swap,
        staging::{Blocks, BufferRef, Load, Shown, Use},
        transport::in_place::Shared,
    },
    sync::atomics::{Ordering, fence},
};
use consonance_spec::{Flow, Signature};
use std::{ptr, time::Instant};

impl Endpoint {
    /// A step in which all ranks stage their data, and `work` is called for each window of them.
    /// Data in a heap need not be staged, if the step may go in place: the others read them there,
    /// in one window if all ranks have such data. `counts` are the elements of each block, where
    /// blocks differ in size.
    ///
    /// # Safety
    /// `input` is valid for reads of `bytes` bytes. Only `work` writes them, and only those that
    /// this rank has read already. If the step may go in place, it writes none but those that only
    /// this rank reads.
    pub(crate) unsafe fn in_windows(
        &mut self,
        signature: &Signature,
        step: Step,
        (input, bytes): (*const u8, usize),
        counts: Option<&[usize]>,
        work: impl FnMut(&mut PeerBuffers<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        // SAFETY: the caller's promises are the same.
        let showing = unsafe { self.show(signature, step, (input, bytes), counts)? };
        let told = (showing.told(), ptr::null_mut());
        let shared = self.share(signature, step.access(), bytes, told, Default::default(), Inline::EMPTY)?;
        // SAFETY: as above.
        unsafe { shared.read(signature, step, showing, work) }
    }

    /// Shows this rank's data before the ranks arrive: stages their first window, unless the others
    /// may read them in place.
    ///
    /// # Safety
    /// As [`in_windows`](Endpoint::in_windows), until the step is done.
    pub(in crate::group) unsafe fn show<'a>(
        &mut self,
        signature: &Signature,
        step: Step,
        (input, bytes): (*const u8, usize),
        counts: Option<&'a [usize]>,
    ) -> Result<Showing<'a>, Fault> {
        let topology = self.topology();
        let Windows { blocks, stride: first, .. } = topology.windows(step, bytes);
        assert!(first > 0, "{bytes} bytes in {blocks} blocks");
        // Once all ranks know the sizes, later windows may be larger.
        let is_ahead = matches!(step, Step::Published(Chunking { blocks: 2.., most_bytes: usize::MAX, .. }));
        let stride = if is_ahead { topology.room(blocks) } else { first };
        let in_place = topology.protocol(step, bytes, true) == Protocol::InPlace;
        let found = if in_place { self.find(input, bytes, false) } else { None };
        let found = found.map(Shown::Heap).or_else(|| {
            let is_read = topology.protocol(step, bytes, false) == Protocol::ProcessRead && self.is_read(input);
            is_read.then_some(Shown::Own(input.addr()))
        });
        // If there is a block for each rank, this rank's block is not staged.
        let kept = (blocks == self.world.size()).then_some(self.world.rank());
        let moves = slot_swap::moves(self.world.size(), signature.kind);
        let room = if moves { blocks * stride } else { self.slot_bytes() };
        let slot = Use::data(slot_swap::slots(self.world.size(), signature.kind), room);
        let parts = match (counts, signature.dtype) {
            (Some(counts), Some(dtype)) if blocks > 1 => Blocks::Ragged { counts, size: dtype.size() },
            _ => Blocks::Equal(blocks),
        };
        let bytes_in_slots = if found.is_some() { 0 } else { bytes };
        let load = Load { input, bytes: bytes_in_slots, blocks: parts, kept, first, later: first, stride, slot };
        self.stage_first(load)?;
        Ok(Showing { load, bytes, found, topology, is_ahead })
    }

    /// Stages the first window of these data, if they are staged.
    fn stage_first(&mut self, load: Load<'_>) -> Result<(), Fault> {
        if load.bytes == 0 {
            return Ok(());
        }
        self.claim_window(0)?;
        self.stage_slices(load, 0, 0)
    }

    /// Checks that a step that began at `begun` may go on: the group has not ended, and the timeout
    /// has not passed. If it has, the rank with the most data is missing.
    fn in_time(&self, begun: Instant, data: &[Data]) -> Result<(), Fault> {
        if let Some(abort) = self.state.aborted(self.generation) {
            return Err(Fault::Aborted(abort));
        }
        if begun.elapsed() <= self.timeout() {
            return Ok(());
        }
        let rank = self.world.peers().max_by_key(|&peer| data[peer].bytes).expect("a peer that has more windows");
        self.state.abort(self.generation, Abort { rank, reason: Reason::Deadline });
        Err(Fault::Missing(vec![rank]))
    }

    /// Checks that the group has not ended, so that the data read in others' own memory were valid:
    /// a rank that gives up ends the group before it returns.
    fn still_there(&self) -> Result<(), Fault> {
        // SYNC POINT abort: the reads come before this check; a rank that wrote the memory
        // afterwards had ended the group before.
        fence(Ordering::Acquire);
        self.state.aborted(self.generation).map_or(Ok(()), |abort| Err(Fault::Aborted(abort)))
    }

    /// Returns the size and location of each rank's data in this step. A size in a descriptor
    /// counts as at most `most` bytes.
    fn data(&mut self, most: usize) -> Result<Vec<Data>, Fault> {
        let mut data = std::mem::take(&mut self.addresses.data);
        data.clear();
        let all_read = self.all_read();
        for rank in 0..self.world.size() {
            let descriptor = self.state.records()[rank].descriptor(self.sequence);
            let (told, bytes) = (BufferRef::read(descriptor.input()), descriptor.bytes().min(most));
            let place = match told.place {
                None => Source::Slot,
                Some(Shown::Heap(byte)) => {
                    let start = self.in_heap(rank, INPUT, byte, bytes)?;
                    start.map_or(Source::Slot, |start| Source::Here(start))
                }
                Some(Shown::Own(address)) => {
                    let process = self.state.process(rank).filter(|_| all_read);
                    process.map_or(Source::Slot, |process| Source::There(process, address))
                }
            };
            data.push(Data { bytes, place });
        }
        Ok(data)
    }
}

/// How a rank shows its data to the others in a step.
pub(in crate::group) struct Showing<'a> {
    /// What it stages of them.
    load: Load<'a>,
    /// The bytes of the data, staged or not.
    bytes: usize,
    /// Where the others may read the data in place.
    found: Option<Shown>,
    topology: Topology,
    /// Whether no rank knew the sizes of all blocks when it staged the first window.
    is_ahead: bool,
}

impl Showing<'_> {
    /// Returns the word by which the others find the data.
    pub(in crate::group) fn told(&self) -> *const u8 {
        BufferRef { place: self.found, reads: self.topology.reads }.to_word()
    }
}

impl Shared<'_> {
    /// Calls `work` for each window of the data of all ranks, which have arrived at this step.
    /// Stages the windows of this rank's data after the first.
    ///
    /// # Safety
    /// As [`in_windows`](Endpoint::in_windows).
    pub(in crate::group) unsafe fn read(
        self,
        signature: &Signature,
        step: Step,
        showing: Showing<'_>,
        mut work: impl FnMut(&mut PeerBuffers<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let Showing { mut load, bytes, found, topology, is_ahead } = showing;
        let (most, is_in_blocks) = match step {
            Step::Published(chunking) => (chunking.most_bytes, chunking.blocks > 1),
            _ => (bytes, false),
        };
        let (blocks, stride) = (load.blocks.count(), load.stride);
        assert!(blocks == 1 || most.is_multiple_of(blocks), "{most} bytes in {blocks} blocks");
        let is_ragged = matches!(load.blocks, Blocks::Ragged { .. });
        let endpoint = &mut *self.endpoint;
        let is_late = endpoint.is_late();
        if is_late && matches!(found, Some(Shown::Own(_))) {
            load.bytes = bytes;
            endpoint.stage_first(load)?;
        }
        if is_late {
            endpoint.say_staged(0);
        }
        // Each block for another rank has a limit, and a rank's own block has none.
        let mut data = endpoint.data(if is_in_blocks { usize::MAX } else { most })?;
        endpoint.path.set(Some(path(&data)));
        let in_slots = data.iter().filter(|data| matches!(data.place, Source::Slot));
        let in_slots = in_slots.map(|data| data.bytes).max().unwrap_or(0);
        let windows = if is_ahead {
            let (count, later) = topology.later_windows(step, load.first, in_slots);
            load.later = later;
            count
        } else {
            topology.windows(step, in_slots).count
        };
        if windows == 1 {
            load.first = usize::MAX;
        }
        // If no rank knows the number of windows by itself, what a peer wrote decides it. The peer
        // may write any size, and that it staged all windows.
        let is_told = if is_in_blocks { blocks == 1 || is_ragged } else { most == usize::MAX };
        let begun = (is_told && windows > 1).then(Instant::now);
        // Only a rank that stages data waits for readers and tells them, and only a rank that reads
        // data waits for the ranks that stage them. Windows are counted from the beginning of the
        // generation, so a rank may leave out counts.
        let stages_in = |data: &[Data], rank: usize, index: usize| {
            let bytes = data[rank].bytes;
            let extent = if blocks > 1 { most } else { bytes };
            matches!(data[rank].place, Source::Slot) && bytes > 0 && load.slice(index).start < extent / blocks
        };
        let own = endpoint.world.rank();
        let reads = match signature.kind.flow() {
            Flow::ToRoot => signature.root.is_none_or(|root| root == own),
            Flow::Control | Flow::FromRoot | Flow::Everyone | Flow::Pair => {
                endpoint.world.peers().any(|peer| data[peer].bytes > 0)
            }
        };
        if !reads {
            endpoint.say_read(windows as u64);
        }
        for index in 0..windows {
            if let Some(begun) = begun {
                endpoint.in_time(begun, &data)?;
            }
            if load.bytes > 0 && index + 1 < windows {
                endpoint.claim_window(1)?;
                endpoint.stage_slices(load, 1, index + 1)?;
                endpoint.say_staged(1);
            }
            if reads && (index > 0 || is_late) {
                endpoint.wait_staged(|rank| stages_in(&data, rank, index))?;
            }
            let slots = endpoint.slots(load.slot);
            let (slice, data) = (load.slice(index), &*data);
            let is_last = index + 1 == windows;
            let window = Window { blocks, slice, slots, stride, data, own: load.input, own_bytes: bytes, is_last };
            let (context, addresses) = endpoint.context(signature);
            // A rank that gives up waits for the ranks of its process that read its own memory; for
            // other processes see `still_there`.
            let enters = data.iter().any(|data| !matches!(data.place, Source::Slot));
            let context = CallContext { enters, ..context };
            let Addresses { sources, scratch, .. } = addresses;
            let done = work(&mut PeerBuffers { context, sources, scratch, window: Some(window) });
            endpoint.or_end(done)?;
            if enters {
                endpoint.still_there()?;
            }
            if reads {
                endpoint.say_read(1);
            }
            endpoint.advance();
        }
        data.clear();
        endpoint.addresses.data = data;
        if found.is_some() {
            endpoint.wait_read(endpoint.staging().window)?;
        }
        self.finish();
        Ok(())
    }
}

/// Returns how the ranks' data go to those who read them.
fn path(data: &[Data]) -> Path {
    let any = |is_there: fn(&Source) -> bool| data.iter().any(|data| data.bytes > 0 && is_there(&data.place));
    if any(|place| matches!(place, Source::Slot)) {
        Path::Staged
    } else if any(|place| matches!(place, Source::There(..))) {
        Path::ProcessRead
    } else {
        Path::InPlace
    }
}
