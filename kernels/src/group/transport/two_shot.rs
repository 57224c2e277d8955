//! Reductions of staged data: by every rank, or by a block each.

use super::{
    divided::Divided,
    in_place::fold_block,
    staged::{Input, in_windows},
};
use crate::{
    cpu::{
        cache_hints::{self, CacheHints, CopySize, Locality},
        copy::{copy, copy_in, take},
    },
    group::{
        end::abort::Fault,
        participant::Participant,
        peers::PeerBuffers,
        plan::{BORDER_BYTES, Path, Protocol, Targets, Windows},
        post::Arrival,
        scratch::Addresses,
        sharing::Sharing,
        slot_swap,
        staging::{BufferRef, INPUT, OUTPUT, Shown, Staging, Use},
        waiter::Waiter,
    },
    memory::make_valid,
};
use consonance_spec::partition;
use std::{ops::Range, ptr};

/// Makes a divided step among processes.
///
/// # Safety
/// As [`divided_in_place`](super::divided_in_place). The output is null where this rank does not
/// receive.
pub(in crate::group) unsafe fn divided_on_stage(
    participant: &mut Participant,
    step: &Divided<'_>,
) -> Result<(), Fault> {
    let Divided { signature, reducer, targets, input, count, output, .. } = *step;
    if targets != Targets::Own {
        // SAFETY: the caller's promises are the same.
        return unsafe { combine(participant, step) };
    }
    let world = participant.world();
    let own = partition::block(count, world.size(), world.rank());
    let target = output.wrapping_add(own.start * reducer.output().size());
    let fold = |peers: &mut PeerBuffers<'_>| {
        // SAFETY: the target has room for these elements: they lie in `output` where the folded
        // elements lie in `input`.
        unsafe { peers.fold(reducer, own.start, own.len(), target) }
    };
    let input = Input { start: input, bytes: step.bytes(), counts: None };
    // SAFETY: the input is valid. A part of it that is written in place was read just before, by
    // this rank, its only reader: see `Topology::protocol`.
    unsafe { in_windows(participant, signature, step.kind(), input, fold) }
}

/// Makes a divided step of processes whose targets are all ranks or one.
///
/// If the data are small, every rank folds all of them (one-shot). Otherwise each window is divided
/// among the ranks (two-shot): a rank folds its block of all data, and stages the result for the
/// others.
///
/// In two-shot with `n` ranks, each reads and writes about `2 - 1/n` times the bytes in copies, and
/// once in the fold: no more than what has to move between ranks, and independent of `n`. Where all
/// data lie in heaps there are no copies.
///
/// # Safety
/// As [`divided_on_stage`], for targets other than [`Targets::Own`].
unsafe fn combine(participant: &mut Participant, of: &Divided<'_>) -> Result<(), Fault> {
    let combined = Combined::new(participant, of);
    let (meeting, staging) = participant.on_stage();
    let [input, output] = combined.place(staging);
    let in_heap = input.is_some();
    if !in_heap {
        // SAFETY: the input is valid, as the caller promises.
        unsafe { combined.stage(&meeting.waiter, staging, 0, 0)? };
    }
    let told = |place: Option<usize>| BufferRef { place: place.map(Shown::Heap), reads: false }.to_word::<u8>();
    let open = |place: Option<usize>, bytes| place.map_or(0..0, |place| place..place + bytes);
    let (access, bytes) = (of.kind().access(), of.bytes());
    let arrival = Arrival::shared(of.signature, access, bytes, told(input).cast_const(), told(output));
    let open = [open(input, bytes), open(output, of.output_bytes())];
    let sharing = Sharing::arrive(participant, &arrival, open)?;
    let participant = &mut *sharing.participant;
    if combined.locate(participant)? {
        participant.path.set(Some(Path::InPlace));
        // SAFETY: every rank's descriptor refers to data there, as many as this rank's. Such a rank
        // keeps them there, or others in their place, while another is inside.
        unsafe { fold_block(participant, of)? };
        return sharing.depart();
    }
    let Participant { meeting, staging, addresses, path, .. } = participant;
    let (waiter, staging) = (&meeting.waiter, staging.as_mut().expect("a participant with a staging"));
    path.set(Some(if combined.is_divided { Path::TwoShot } else { Path::Staged }));
    // A rank that refers to data in a heap has not staged them when it arrives.
    let is_late = meeting.descriptors().any(|descriptor| BufferRef::read(descriptor.input()).place.is_some());
    if in_heap {
        // SAFETY: as above.
        unsafe { combined.stage(waiter, staging, 0, 0)? };
    }
    if is_late {
        staging.say_staged(waiter, 0);
    }
    for index in 0..combined.windows {
        if index + 1 < combined.windows {
            // SAFETY: as above.
            unsafe { combined.stage(waiter, staging, 1, index + 1)? };
            staging.say_staged(waiter, 1);
        }
        if index > 0 || is_late {
            staging.wait_staged(waiter, |_| true)?;
        }
        // SAFETY: all have staged this window, and both buffers are valid, as the caller promises.
        unsafe { combined.fold(waiter, staging, addresses, index)? };
        if combined.is_divided {
            staging.say_folded(waiter);
            if !of.output.is_null() {
                staging.wait_folded(waiter)?;
                // SAFETY: all have folded this window, and the output is valid, as the caller
                // promises.
                unsafe { combined.collect(staging, index) };
            }
        }
        if !of.output.is_null() {
            // SAFETY: the window lies within the output, and all of it has been written.
            unsafe { combined.make_valid(index) };
        }
        staging.say_read(waiter, 1);
        staging.advance();
    }
    sharing.finish();
    Ok(())
}

/// A reduction in windows.
struct Combined<'a> {
    of: &'a Divided<'a>,
    rank: usize,
    ranks: usize,
    /// Bytes of an element of the data, and of the result.
    input_size: usize,
    output_size: usize,
    windows: usize,
    /// Elements of a window.
    elements: usize,
    /// Borders between blocks are multiples of so many elements.
    unit: usize,
    /// Whether each rank folds a block for all.
    is_divided: bool,
    /// Whether a rank writes its block over the peer's data, from which it was folded.
    returns: bool,
    /// Whether this core owns the cache lines of the slot for data.
    has_lines: bool,
    /// Whether another rank needs this rank's block.
    is_needed: bool,
    /// Whether the step goes in place if all buffers lie in heaps.
    in_place: bool,
    data: Use,
    volume: CopySize,
}

impl<'a> Combined<'a> {
    fn new(participant: &mut Participant, of: &'a Divided<'a>) -> Combined<'a> {
        let (topology, world, step, targets) = (participant.topology(), participant.world(), of.kind(), of.targets);
        let (rank, ranks, bytes) = (world.rank(), world.size(), of.bytes());
        let (input_size, output_size) = (of.reducer.input().size(), of.reducer.output().size());
        let (Windows { count: windows, stride, .. }, is_divided) = match topology.protocol(step, bytes, false) {
            Protocol::TwoShot(windows) => (windows, true),
            Protocol::Staged(windows) => (windows, false),
            protocol => unreachable!("{step:?} goes {protocol:?}"),
        };
        let returns = is_divided && topology.returns(step);
        let swaps = !is_divided && targets == Targets::All && slot_swap::slots(ranks, of.signature.kind);
        let (_, staging) = participant.on_stage();
        let data = Use::data(swaps, staging.slot_bytes());
        // In place, the written lines have just been read.
        let is_apart = of.output.cast_const() != of.input;
        let most = bytes.max(of.output_bytes());
        Combined {
            of,
            rank,
            ranks,
            input_size,
            output_size,
            windows,
            elements: stride / input_size,
            unit: BORDER_BYTES / input_size.min(output_size),
            is_divided,
            returns,
            // If all ranks receive, this rank has read a result in the place of its data before.
            has_lines: (returns && targets == Targets::All) || data == Use::SwappedData,
            is_needed: is_divided && world.peers().any(|peer| targets.reach(peer)),
            in_place: topology.protocol(step, bytes, true) == Protocol::InPlace,
            data,
            volume: CopySize::new(most, || is_apart && cache_hints::goes_past_caches(most, ranks * bytes, 1)),
        }
    }

    /// Returns the elements of a window.
    fn window(&self, index: usize) -> Range<usize> {
        index * self.elements..((index + 1) * self.elements).min(self.of.count)
    }

    /// Returns the elements of a window that `rank` folds for all.
    fn block(&self, index: usize, rank: usize) -> Range<usize> {
        let whole = self.window(index);
        if !self.is_divided {
            return whole.start..whole.start;
        }
        let block = partition::aligned_block(whole.len(), self.unit, self.ranks, rank);
        whole.start + block.start..whole.start + block.end
    }

    /// Returns where the others read this rank's data and write its result, if they may do so in
    /// place: the offsets in the heaps.
    fn place(&self, staging: &Staging) -> [Option<usize>; 2] {
        let Divided { input, output, .. } = *self.of;
        let find =
            |address: *const u8, bytes| if address.is_null() { None } else { staging.find(address, bytes, true) };
        if !self.in_place {
            return [None, None];
        }
        match (find(input, self.of.bytes()), find(output.cast_const(), self.of.output_bytes())) {
            (None, _) => [None, None],
            (Some(_), None) if !output.is_null() => [None, None],
            (input, output) => [input, output],
        }
    }

    /// Sets the addresses of this step and returns true, if every rank's data lie in a heap, and so
    /// do all results.
    fn locate(&self, participant: &mut Participant) -> Result<bool, Fault> {
        let Participant { meeting, staging, addresses, .. } = participant;
        let heaps = &mut staging.as_mut().expect("a participant with a staging").heaps;
        addresses.inputs.clear();
        addresses.outputs.clear();
        for (rank, descriptor) in meeting.descriptors().enumerate() {
            let (input, output) =
                (BufferRef::read(descriptor.input()).place, BufferRef::read(descriptor.output()).place);
            let mut address = |which, place, bytes| match place {
                Some(Shown::Heap(byte)) => heaps.address(meeting.member(), rank, which, byte, bytes),
                Some(Shown::Own(_)) | None => Ok(None),
            };
            let aligned = |address: &*mut u8| address.addr().is_multiple_of(align_of::<u64>());
            let Some(input) = address(INPUT, input, self.of.bytes())?.filter(aligned) else { return Ok(false) };
            let output = address(OUTPUT, output, self.of.output_bytes())?.filter(aligned);
            if output.is_none() && self.of.targets.reach(rank) {
                return Ok(false);
            }
            addresses.inputs.push(input.cast_const());
            addresses.outputs.push(output.unwrap_or(ptr::null_mut()));
        }
        Ok(true)
    }

    /// Stages the elements of window `index` that the others fold, in the window `ahead` windows
    /// after this one: all but this rank's own block, each in its place in the window. Waits until
    /// this rank may write there.
    ///
    /// # Safety
    /// The input is valid for reads.
    unsafe fn stage(&self, waiter: &Waiter, staging: &mut Staging, ahead: u64, index: usize) -> Result<(), Fault> {
        staging.claim(waiter, ahead)?;
        let (whole, own) = (self.window(index), self.block(index, self.rank));
        let slot = staging.slot(&waiter.member, ahead, self.data, whole.len() * self.input_size)?;
        for part in [whole.start..own.start, own.end..whole.end] {
            let offset = (part.start - whole.start) * self.input_size;
            // SAFETY: the part lies within the input and, in its place, within the slot, which only
            // this rank may write: it has claimed it.
            unsafe {
                let start = self.of.input.add(part.start * self.input_size);
                copy_in(start, slot.add(offset), part.len() * self.input_size, self.volume, self.has_lines);
            }
        }
        Ok(())
    }

    /// Folds this rank's part of window `index`, which is the current one, into its result: for the
    /// others where they read it, and into its output.
    ///
    /// # Safety
    /// All ranks have staged the window. Both buffers are as [`divided_on_stage`] says.
    unsafe fn fold(
        &self,
        waiter: &Waiter,
        staging: &mut Staging,
        addresses: &mut Addresses,
        index: usize,
    ) -> Result<(), Fault> {
        let Divided { reducer, input, output, .. } = *self.of;
        let whole = self.window(index);
        let part = if self.is_divided { self.block(index, self.rank) } else { whole.clone() };
        let start = (part.start - whole.start) * self.input_size;
        let data = staging.slots(self.data);
        let result = match self.is_needed {
            false => None,
            true if self.returns => Some(data.of(1 ^ self.rank).wrapping_add(start)),
            true => Some(staging.slot(&waiter.member, 0, Use::Results, part.len() * self.output_size)?),
        };
        let Addresses { sources, targets, .. } = addresses;
        // A panic in the middle of an earlier step may have left some addresses.
        sources.clear();
        targets.clear();
        sources.extend((0..self.ranks).map(|peer| match peer {
            peer if peer == self.rank => input.wrapping_add(part.start * self.input_size),
            peer => data.of(peer).wrapping_add(start).cast_const(),
        }));
        targets.extend(result);
        // Staged results are read at once.
        let past = self.volume.past(targets.len());
        if !output.is_null() {
            targets.push(output.wrapping_add(part.start * self.output_size));
        }
        if targets.is_empty() {
            return Ok(());
        }
        let is_taken = self.returns || data.swapped.is_some();
        let from = if is_taken { Locality::Taken(1 ^ self.rank) } else { Locality::Far };
        // SAFETY: the part lies within the input and the output, and in its place within every
        // rank's slot, where all have staged it; no rank writes it there before this rank has
        // published that it has read this window. The slot for results has room for a block, and no
        // rank reads it before it is published as folded; the same holds for this block in the
        // peer's slot, which only this rank reads. The output is this rank's alone.
        unsafe { reducer.fold(sources, targets, part.len(), CacheHints { from, past }) };
        Ok(())
    }

    /// Copies the blocks of window `index`, which is the current one, that the peers have folded
    /// into this rank's output.
    ///
    /// # Safety
    /// All ranks have folded their blocks of the window. The output is valid for writes, and is not
    /// null.
    unsafe fn collect(&self, staging: &Staging, index: usize) {
        let whole = self.window(index);
        let (data, results) = (staging.slots(self.data), staging.slots(Use::Results));
        // Not all ranks read the results of one first.
        for peer in (1..self.ranks).map(|distance| (self.rank + distance) % self.ranks) {
            let block = self.block(index, peer);
            let target = self.of.output.wrapping_add(block.start * self.output_size);
            let bytes = block.len() * self.output_size;
            // SAFETY: the peer has staged its block, in its slot for results or in this rank's for
            // data. It is written again only after this rank has published that it has read this
            // window. The block lies within the output.
            unsafe {
                match self.returns {
                    true => {
                        let result = data.of(self.rank).add((block.start - whole.start) * self.input_size);
                        take(result, target, bytes, self.volume);
                    }
                    false => copy(results.of(peer), target, bytes, self.volume),
                }
            }
        }
    }

    /// Makes the elements of window `index` of the output valid.
    ///
    /// # Safety
    /// The output is valid for writes, and all of the window has been written.
    unsafe fn make_valid(&self, index: usize) {
        let whole = self.window(index);
        let target = self.of.output.wrapping_add(whole.start * self.output_size);
        // SAFETY: the window lies within the output, and all of it has been written.
        unsafe { make_valid(self.of.reducer.output(), target, whole.len() * self.output_size) };
    }
}
