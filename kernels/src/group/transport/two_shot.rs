//! Reductions of staged data: by every rank, or by a block each.

use super::heaps::{INPUT, OUTPUT};
use crate::{
    cpu::{
        cache_hints::{self, CacheHints, CopySize, Locality},
        copy::{copy, copy_in, take},
        reduce::Reducer,
    },
    group::{
        end::abort::Fault,
        endpoint::Endpoint,
        plan::{BORDER_BYTES, Path, Protocol, Step, Targets, Windows},
        post::Inline,
        slot_swap,
        staging::{BufferRef, Shown, Use},
    },
    memory::make_valid,
};
use consonance_spec::{Signature, partition};
use std::ptr;

impl Endpoint {
    /// If the data are small, every rank folds all of them (one-shot). Otherwise each window is
    /// divided among the ranks (two-shot): a rank folds its block of all data, and stages the
    /// result for the others.
    ///
    /// In two-shot with `n` ranks, each reads and writes about `2 - 1/n` times the bytes in copies,
    /// and once in the fold: no more than what has to move between ranks, and independent of `n`.
    /// Where all data lie in heaps there are no copies.
    ///
    /// # Safety
    /// As for [`divided_on_stage`](Endpoint::divided_on_stage), for targets other than
    /// [`Targets::Own`].
    pub(crate) unsafe fn combined(
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
        let (bytes, output_bytes) = (count * input_size, count * output_size);
        let (topology, step) = (self.topology(), Step::divided(reducer, targets));
        let (Windows { count: windows, stride, .. }, is_divided) = match topology.protocol(step, bytes, false) {
            Protocol::TwoShot(windows) => (windows, true),
            Protocol::Staged(windows) => (windows, false),
            protocol => unreachable!("{step:?} goes {protocol:?}"),
        };
        let returns = is_divided && topology.returns(step);
        let swaps = !is_divided && targets == Targets::All && slot_swap::slots(size, signature.kind);
        let data = Use::data(swaps, self.slot_bytes());
        // Where all ranks receive, this rank has read a result in the place of its data before.
        let has_lines = (returns && targets == Targets::All) || data == Use::SwappedData;
        let is_needed = is_divided && self.world.peers().any(|peer| targets.reach(peer));
        // In place, the written lines have just been read.
        let is_apart = output.cast_const() != input;
        let most = bytes.max(output_bytes);
        let volume = CopySize::new(most, || is_apart && cache_hints::goes_past_caches(most, size * bytes, 1));
        let elements = stride / input_size;
        let unit = BORDER_BYTES / input_size.min(output_size);
        let window = |index: usize| index * elements..((index + 1) * elements).min(count);
        // The elements that one rank folds for all.
        let block = |index: usize, of: usize| {
            let whole = window(index);
            if !is_divided {
                return whole.start..whole.start;
            }
            let block = partition::aligned_block(whole.len(), unit, size, of);
            whole.start + block.start..whole.start + block.end
        };
        // Stages the elements that the others fold: all but this rank's own block, each in its
        // place in the window.
        let staging = |endpoint: &mut Endpoint, ahead: u64, index: usize| {
            let (whole, own) = (window(index), block(index, rank));
            let slot = endpoint.slot(ahead, data, whole.len() * input_size)?;
            for part in [whole.start..own.start, own.end..whole.end] {
                let offset = (part.start - whole.start) * input_size;
                // SAFETY: the part lies within the input and, in its place, within the slot, which
                // only this rank may write: see `claim_window`.
                unsafe {
                    let (part, size) = (input.add(part.start * input_size), part.len() * input_size);
                    copy_in(part, slot.add(offset), size, volume, has_lines);
                }
            }
            Ok(())
        };
        let find = |address: *const u8, bytes| if address.is_null() { None } else { self.find(address, bytes, true) };
        let found = (find(input, bytes), find(output.cast_const(), output_bytes));
        let in_place = topology.protocol(step, bytes, true) == Protocol::InPlace;
        let in_heap = in_place && found.0.is_some() && (found.1.is_some() || output.is_null());
        if !in_heap {
            self.claim_window(0)?;
            staging(self, 0, 0)?;
        }
        let (input_place, output_place) = if in_heap { found } else { (None, None) };
        let open = |place: Option<usize>, bytes| place.map_or(0..0, |place| place..place + bytes);
        let open = [open(input_place, bytes), open(output_place, output_bytes)];
        let told = |place: Option<usize>| BufferRef { place: place.map(Shown::Heap), reads: false }.to_word::<u8>();
        let told = (told(input_place).cast_const(), told(output_place));
        let shared = self.share(signature, step.access(), bytes, told, open, Inline::EMPTY)?;
        shared.endpoint.path.set(Some(if is_divided { Path::TwoShot } else { Path::Staged }));
        if shared.endpoint.locate(bytes, output_bytes, targets)? {
            shared.endpoint.path.set(Some(Path::InPlace));
            // SAFETY: every rank's descriptor refers to data there, as many as this rank's. Such a
            // rank keeps them there, or others in their place, while another is inside.
            unsafe { shared.endpoint.fold_block(signature, reducer, count, targets)? };
            return shared.depart();
        }
        let endpoint = &mut *shared.endpoint;
        // A rank that refers to data in a heap has not staged them when it arrives.
        let is_late = endpoint.descriptors().any(|descriptor| BufferRef::read(descriptor.input()).place.is_some());
        if in_heap {
            endpoint.claim_window(0)?;
            staging(endpoint, 0, 0)?;
        }
        if is_late {
            endpoint.say_staged(0);
        }
        for index in 0..windows {
            if index + 1 < windows {
                endpoint.claim_window(1)?;
                staging(endpoint, 1, index + 1)?;
                endpoint.say_staged(1);
            }
            if index > 0 || is_late {
                endpoint.wait_staged(|_| true)?;
            }
            let (whole, own) = (window(index), block(index, rank));
            let part = if is_divided { own } else { whole.clone() };
            let start = (part.start - whole.start) * input_size;
            let (data, results) = (endpoint.slots(data), endpoint.slots(Use::Results));
            let result = match is_needed {
                false => None,
                true if returns => Some(data.of(1 ^ rank).wrapping_add(start)),
                true => Some(endpoint.slot(0, Use::Results, part.len() * output_size)?),
            };
            let (_, addresses) = endpoint.context(signature);
            addresses.sources.extend((0..size).map(|peer| match peer {
                peer if peer == rank => input.wrapping_add(part.start * input_size),
                peer => data.of(peer).wrapping_add(start).cast_const(),
            }));
            addresses.targets.extend(result);
            // Staged results are read at once.
            let past = volume.past(addresses.targets.len());
            if !output.is_null() {
                addresses.targets.push(output.wrapping_add(part.start * output_size));
            }
            if !addresses.targets.is_empty() {
                let is_taken = returns || data.swapped.is_some();
                let flow = CacheHints { from: if is_taken { Locality::Taken(1 ^ rank) } else { Locality::Far }, past };
                // SAFETY: the part lies within the input and the output, and in its place within
                // every rank's slot, where all have staged it; no rank writes it there before this
                // rank has published that it has read this window. The slot for results has room
                // for a block, and no rank reads it before it is published as folded; the same
                // holds for this block in the peer's slot, which only this rank reads. The output
                // is this rank's alone.
                unsafe { reducer.fold(&addresses.sources, &addresses.targets, part.len(), flow) };
            }
            if is_divided {
                endpoint.say_folded();
            }
            if is_divided && !output.is_null() {
                endpoint.wait_folded()?;
                for peer in endpoint.world.peers() {
                    let block = block(index, peer);
                    let (target, bytes) = (output.wrapping_add(block.start * output_size), block.len() * output_size);
                    // SAFETY: the peer has staged its block, in its slot for results or in this
                    // rank's for data. It is written again only after this rank has published that
                    // it has read this window. The block lies within the output.
                    unsafe {
                        match returns {
                            true => {
                                let result = data.of(rank).add((block.start - whole.start) * input_size);
                                take(result, target, bytes, volume);
                            }
                            false => copy(results.of(peer), target, bytes, volume),
                        }
                    }
                }
            }
            if !output.is_null() {
                // SAFETY: the window lies within the output, and all of it has been written.
                unsafe {
                    let target = output.wrapping_add(whole.start * output_size);
                    make_valid(reducer.output(), target, whole.len() * output_size);
                }
            }
            endpoint.say_read(1);
            endpoint.advance();
        }
        shared.finish();
        Ok(())
    }

    /// Sets the addresses of this step and returns true, if every rank's data lie in a heap, and so
    /// do all results.
    fn locate(&mut self, bytes: usize, output_bytes: usize, targets: Targets) -> Result<bool, Fault> {
        self.addresses.inputs.clear();
        self.addresses.outputs.clear();
        for rank in 0..self.world.size() {
            let descriptor = self.state.records()[rank].descriptor(self.sequence);
            let (input, output) =
                (BufferRef::read(descriptor.input()).place, BufferRef::read(descriptor.output()).place);
            let mut address = |which, place, bytes| match place {
                Some(Shown::Heap(byte)) => self.in_heap(rank, which, byte, bytes),
                Some(Shown::Own(_)) | None => Ok(None),
            };
            let aligned = |address: &*mut u8| address.addr().is_multiple_of(align_of::<u64>());
            let Some(input) = address(INPUT, input, bytes)?.filter(aligned) else { return Ok(false) };
            let output = address(OUTPUT, output, output_bytes)?.filter(aligned);
            if output.is_none() && targets.reach(rank) {
                return Ok(false);
            }
            self.addresses.inputs.push(input.cast_const());
            self.addresses.outputs.push(output.unwrap_or(ptr::null_mut()));
        }
        Ok(true)
    }
}
