//! Steps in which each rank reads the staged data of the others.

use crate::group::{
    end::abort::Fault,
    meeting::Meeting,
    participant::Participant,
    peers::{PeerBuffers, Window},
    plan::{Chunking, Path, Protocol, StepKind, Topology, Windows},
    post::Arrival,
    scratch::{Addresses, Data, Source},
    sharing::Sharing,
    slot_swap,
    staging::{self, Blocks, BufferRef, Heaps, INPUT, Load, Shown, Staging, Use},
    waiter::Waiter,
};
use consonance_spec::{Flow, Signature};
use std::{mem, ptr, time::Instant};

/// The data that a rank publishes in a step.
#[derive(Clone, Copy)]
pub(in crate::group) struct Input<'a> {
    pub(in crate::group) start: *const u8,
    pub(in crate::group) bytes: usize,
    /// The elements of each block, where blocks differ in size.
    pub(in crate::group) counts: Option<&'a [usize]>,
}

/// Makes a step in which all ranks stage their data, and `work` is called for each window of them.
/// Data in a heap need not be staged, if the step may go in place: the others read them there, in
/// one window if all ranks have such data.
///
/// # Safety
/// The input is valid for reads of its bytes. Only `work` writes them, and only those that this
/// rank has read already. If the step may go in place, it writes none but those that only this rank
/// reads.
pub(in crate::group) unsafe fn in_windows(
    participant: &mut Participant,
    signature: &Signature,
    step: StepKind,
    input: Input<'_>,
    work: impl FnMut(&mut PeerBuffers<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    // SAFETY: the caller's promises are the same.
    let showing = unsafe { Showing::new(participant, signature, step, input)? };
    let arrival = Arrival::shared(signature, step.access(), input.bytes, showing.told(), ptr::null_mut());
    let sharing = Sharing::arrive(participant, &arrival, Default::default())?;
    // SAFETY: as above.
    unsafe { showing.read(sharing, step, work) }
}

/// The exposure of a rank's data to the others in a step.
pub(in crate::group) struct Showing<'a> {
    /// The part that it stages.
    load: Load<'a>,
    /// The bytes of the data, staged or not.
    bytes: usize,
    /// The place where the others may read the data.
    found: Option<Shown>,
    topology: Topology,
    /// Whether no rank knew the sizes of all blocks when it staged the first window.
    is_ahead: bool,
}

impl<'a> Showing<'a> {
    /// Shows this rank's data before the ranks arrive: stages their first window, unless the others
    /// may read them in place.
    ///
    /// # Safety
    /// As [`in_windows`], until the step is done.
    pub(in crate::group) unsafe fn new(
        participant: &mut Participant,
        signature: &Signature,
        step: StepKind,
        Input { start, bytes, counts }: Input<'a>,
    ) -> Result<Showing<'a>, Fault> {
        let topology = participant.topology();
        let (meeting, staging) = participant.on_stage();
        let world = meeting.member().world;
        let Windows { blocks, stride: first, .. } = topology.windows(step, bytes);
        assert!(first > 0, "{bytes} bytes in {blocks} blocks");
        // Once all ranks know the sizes, later windows may be larger.
        let is_ahead = matches!(step, StepKind::Published(Chunking { blocks: 2.., most_bytes: usize::MAX, .. }));
        let stride = if is_ahead { topology.room(blocks) } else { first };
        let in_place = topology.protocol(step, bytes, true) == Protocol::InPlace;
        let found = if in_place { staging.find(start, bytes, false) } else { None };
        let found = found.map(Shown::Heap).or_else(|| {
            let goes_by_reads = topology.protocol(step, bytes, false) == Protocol::ProcessRead;
            (goes_by_reads && meeting.member().is_readable(start)).then_some(Shown::Own(start.addr()))
        });
        // If there is a block for each rank, this rank's block is not staged.
        let kept = (blocks == world.size()).then_some(world.rank());
        let moves = slot_swap::moves(world.size(), signature.kind);
        let room = if moves { blocks * stride } else { staging.slot_bytes() };
        let slot = Use::data(slot_swap::slots(world.size(), signature.kind), room);
        let parts = match (counts, signature.dtype) {
            (Some(counts), Some(dtype)) if blocks > 1 => Blocks::Ragged { counts, size: dtype.size() },
            _ => Blocks::Equal(blocks),
        };
        let staged = if found.is_some() { 0 } else { bytes };
        let load = Load { input: start, bytes: staged, blocks: parts, kept, first, later: first, stride, slot };
        let showing = Showing { load, bytes, found, topology, is_ahead };
        // SAFETY: the caller's promises are the same.
        unsafe { showing.stage_first(&meeting.waiter, staging)? };
        Ok(showing)
    }

    /// Returns the word by which the others find the data.
    pub(in crate::group) fn told(&self) -> *const u8 {
        BufferRef { place: self.found, reads: self.topology.reads }.to_word()
    }

    /// Stages the first window of these data, if they are staged.
    ///
    /// # Safety
    /// As [`in_windows`].
    unsafe fn stage_first(&self, waiter: &Waiter, staging: &mut Staging) -> Result<(), Fault> {
        if self.load.bytes == 0 {
            return Ok(());
        }
        staging.claim(waiter, 0)?;
        // SAFETY: the caller's promise is the same.
        unsafe { staging.stage(&waiter.member, self.load, 0, 0) }
    }

    /// Calls `work` for each window of the data of all ranks, which have arrived at this step.
    /// Stages the windows of this rank's data after the first. `step` has what all know now.
    ///
    /// # Safety
    /// As [`in_windows`].
    pub(in crate::group) unsafe fn read(
        mut self,
        sharing: Sharing<'_>,
        step: StepKind,
        mut work: impl FnMut(&mut PeerBuffers<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let signature = sharing.signature;
        let Participant { meeting, staging, addresses, path, .. } = &mut *sharing.participant;
        let (waiter, world) = (&meeting.waiter, meeting.member().world);
        let staging = staging.as_mut().expect("a participant with a staging");
        let (most, is_in_blocks) = match step {
            StepKind::Published(chunking) => (chunking.most_bytes, chunking.blocks > 1),
            _ => (self.bytes, false),
        };
        let (blocks, stride) = (self.load.blocks.count(), self.load.stride);
        assert!(blocks == 1 || most.is_multiple_of(blocks), "{most} bytes in {blocks} blocks");
        let is_ragged = matches!(self.load.blocks, Blocks::Ragged { .. });
        let is_late = staging.is_late(meeting);
        if is_late {
            if matches!(self.found, Some(Shown::Own(_))) {
                self.load.bytes = self.bytes;
                // SAFETY: the caller's promise is the same.
                unsafe { self.stage_first(waiter, staging)? };
            }
            staging.say_staged(waiter, 0);
        }
        // Each block for another rank has a limit, and a rank's own block has none.
        let limit = if is_in_blocks { usize::MAX } else { most };
        let mut data = mem::take(&mut addresses.data);
        locate(meeting, &mut staging.heaps, limit, &mut data)?;
        path.set(Some(path_of(&data)));
        let windows = self.windows(step, &data);
        let load = self.load;
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
        let reads = match signature.kind.flow() {
            Flow::ToRoot => signature.root.is_none_or(|root| root == world.rank()),
            Flow::Control | Flow::FromRoot | Flow::Everyone | Flow::Pair => {
                world.peers().any(|peer| data[peer].bytes > 0)
            }
        };
        // A rank that gives up waits for the ranks of its process that read its own memory; for
        // other processes see `Member::check_after_reads`.
        let enters = data.iter().any(|data| !matches!(data.place, Source::Slot));
        if !reads {
            staging.say_read(waiter, windows as u64);
        }
        for index in 0..windows {
            if let Some(begun) = begun {
                let longest = || world.peers().max_by_key(|&peer| data[peer].bytes);
                waiter.in_time(begun, || longest().expect("a peer that has more windows"))?;
            }
            if load.bytes > 0 && index + 1 < windows {
                staging.claim(waiter, 1)?;
                // SAFETY: the caller's promise is the same.
                unsafe { staging.stage(&waiter.member, load, 1, index + 1)? };
                staging.say_staged(waiter, 1);
            }
            if reads && (index > 0 || is_late) {
                staging.wait_staged(waiter, |rank| stages_in(&data, rank, index))?;
            }
            let window = Window {
                blocks,
                slice: load.slice(index),
                slots: staging.slots(load.slot),
                stride,
                data: &data,
                own: load.input,
                own_bytes: self.bytes,
                is_last: index + 1 == windows,
            };
            let Addresses { sources, scratch, .. } = &mut *addresses;
            let context = meeting.context(signature, enters);
            let done = work(&mut PeerBuffers { context, sources, scratch, window: Some(window) });
            if let Err(Fault::Missing(gone)) = &done {
                // The process is gone, and its watcher ends the group.
                return Err(waiter.wait_for_end(gone[0]));
            }
            done?;
            if enters {
                waiter.member.check_after_reads()?;
            }
            if reads {
                staging.say_read(waiter, 1);
            }
            staging.advance();
        }
        data.clear();
        addresses.data = data;
        if self.found.is_some() {
            staging.wait_read(waiter)?;
        }
        sharing.finish();
        Ok(())
    }

    /// Returns the number of windows of these data of all ranks, and sets what this rank stages in
    /// them.
    fn windows(&mut self, step: StepKind, data: &[Data]) -> usize {
        let in_slots = data.iter().filter(|data| matches!(data.place, Source::Slot));
        let in_slots = in_slots.map(|data| data.bytes).max().unwrap_or(0);
        let windows = if self.is_ahead {
            let (count, later) = self.topology.later_windows(step, self.load.first, in_slots);
            self.load.later = later;
            count
        } else {
            self.topology.windows(step, in_slots).count
        };
        if windows == 1 {
            self.load.first = usize::MAX;
        }
        windows
    }
}

/// Sets `data` to the size and location of each rank's data in this step. A size in a descriptor
/// counts as at most `most` bytes.
fn locate(meeting: &Meeting, heaps: &mut Heaps, most: usize, data: &mut Vec<Data>) -> Result<(), Fault> {
    data.clear();
    let member = meeting.member();
    let all_read = staging::all_read(meeting.descriptors());
    for (rank, descriptor) in meeting.descriptors().enumerate() {
        let (told, bytes) = (BufferRef::read(descriptor.input()), descriptor.bytes().min(most));
        let place = match told.place {
            None => Source::Slot,
            Some(Shown::Heap(byte)) => {
                let start = heaps.address(member, rank, INPUT, byte, bytes)?;
                start.map_or(Source::Slot, |start| Source::Here(start))
            }
            Some(Shown::Own(address)) => {
                let process = member.state.process(rank).filter(|_| all_read);
                process.map_or(Source::Slot, |process| Source::There(process, address))
            }
        };
        data.push(Data { bytes, place });
    }
    Ok(())
}

/// Returns how the ranks' data go to those who read them.
fn path_of(data: &[Data]) -> Path {
    let any = |is_there: fn(&Source) -> bool| data.iter().any(|data| data.bytes > 0 && is_there(&data.place));
    if any(|place| matches!(place, Source::Slot)) {
        Path::Staged
    } else if any(|place| matches!(place, Source::There(..))) {
        Path::ProcessRead
    } else {
        Path::InPlace
    }
}
