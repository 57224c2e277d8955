//! Steps of ranks that have different numbers of contributions, in place.

use super::{divided::Divided, holdings::Holdings, in_place::fold_block};
use crate::group::{
    end::abort::Fault,
    participant::Participant,
    plan::{Path, Targets},
    post::{Arrival, Inline},
    scratch::Addresses,
    sharing::Sharing,
    staging::{BufferRef, INPUT, OUTPUT, Shown},
};
use std::ptr;

/// A rank that has arrived at such a step, and can read the words of all.
pub(in crate::group) struct HoldingsStep<'s> {
    pub(in crate::group) sharing: Sharing<'s>,
}

impl<'s> HoldingsStep<'s> {
    /// Arrives: tells `words`, and shows the nodes, of `node_bytes` bytes, and the place of the
    /// last contribution and of the result. Ranks of several processes see them only in a heap.
    ///
    /// # Safety
    /// The input is valid for reads of `node_bytes` bytes. The output is null, or valid for reads
    /// of `count` elements; where this rank receives, for writes, too. Both are so until the step
    /// is done, they are disjoint, and no other code writes them or accesses a target.
    pub(in crate::group) unsafe fn arrive(
        participant: &'s mut Participant,
        step: &Divided<'s>,
        words: &'s [u64],
        node_bytes: usize,
    ) -> Result<HoldingsStep<'s>, Fault> {
        let Divided { signature, input, output, .. } = *step;
        let receives = step.targets == Targets::Own || step.targets.reach(participant.world().rank());
        participant.prepare()?;
        let mut open = [0..0, 0..0];
        let (input, output) = match &participant.staging {
            None => (input, output),
            Some(staging) => {
                let word =
                    |place: Option<usize>| BufferRef { place: place.map(Shown::Heap), reads: false }.to_word::<u8>();
                let nodes = staging.find(input, node_bytes, false);
                let output = staging.find(output.cast_const(), step.bytes(), true);
                if let Some(start) = output.filter(|_| receives) {
                    open[OUTPUT] = start..start + step.output_bytes();
                }
                (word(nodes).cast_const(), word(output))
            }
        };
        let payload = Inline::new(&[], words);
        let shared = Arrival::shared(signature, step.kind().access(), step.bytes(), input, output);
        let arrival = Arrival { payload, awaited: payload.bytes(), ..shared };
        Ok(HoldingsStep { sharing: Sharing::arrive(participant, &arrival, open)? })
    }

    /// Ends the step: no rank reads any data.
    pub(in crate::group) fn end(self) {
        // If the group has ended, a rank of this process may be in this rank's memory: the drop
        // waits for it.
        if self.sharing.participant.member().aborted().is_none() {
            self.sharing.finish();
        }
    }

    /// Folds this rank's block of what all ranks hold into the targets, and departs. Returns false
    /// and ends the step if not all of it lies where every rank can reach it.
    ///
    /// # Safety
    /// Every rank of this process has shown what it holds, and its places, as
    /// [`arrive`](HoldingsStep::arrive) says.
    pub(in crate::group) unsafe fn fold(self, step: &Divided<'_>, holdings: &Holdings) -> Result<bool, Fault> {
        let HoldingsStep { sharing } = self;
        if !locate(sharing.participant, step, holdings)? {
            HoldingsStep { sharing }.end();
            return Ok(false);
        }
        let participant = &mut *sharing.participant;
        participant.path.set(Some(Path::InPlace));
        // SAFETY: `locate` set the addresses: of buffers in the heaps that have pages, or, as the
        // caller promises, of buffers that the ranks of this process keep until all have departed.
        unsafe { fold_block(participant, &Divided { holdings: Some(holdings), ..*step })? };
        sharing.depart()?;
        Ok(true)
    }
}

/// Sets the addresses of this step, and returns whether all ranks can reach all that they need.
/// Every rank comes to the same verdict.
fn locate(participant: &mut Participant, step: &Divided<'_>, holdings: &Holdings) -> Result<bool, Fault> {
    let Participant { meeting, staging, addresses: Addresses { inputs, outputs, .. }, .. } = participant;
    let member = meeting.member();
    let node_bytes = |rank: usize| holdings.nodes(rank).saturating_mul(step.reducer.accumulator_bytes(step.count));
    let needs_output =
        |rank: usize| holdings.of(rank).has_leaf || step.targets == Targets::Own || step.targets.reach(rank);
    inputs.clear();
    outputs.clear();
    let Some(staging) = staging else {
        for descriptor in meeting.descriptors() {
            inputs.push(descriptor.input());
            outputs.push(descriptor.output());
        }
        return Ok((0..outputs.len()).all(|rank| !needs_output(rank) || !outputs[rank].is_null()));
    };
    // The verdict depends on the descriptors alone: a rank may leave after it, and free its memory.
    let heap = |word: *const u8, bytes: usize| {
        let Some(Shown::Heap(byte)) = BufferRef::read(word).place else { return None };
        let start = member.segment().in_heaps(byte, bytes)?;
        start.addr().get().is_multiple_of(align_of::<u64>()).then_some(byte)
    };
    let places: Option<Vec<[Option<usize>; 2]>> = (meeting.descriptors().enumerate())
        .map(|(rank, descriptor)| {
            let input = heap(descriptor.input(), node_bytes(rank));
            let output = heap(descriptor.output().cast_const(), step.bytes());
            let is_there = (node_bytes(rank) == 0 || input.is_some()) && (!needs_output(rank) || output.is_some());
            is_there.then_some([input, output])
        })
        .collect();
    let Some(places) = places else { return Ok(false) };
    for (rank, [input, output]) in places.into_iter().enumerate() {
        let mut address = |which, place: Option<usize>, bytes| match place {
            Some(byte) => staging.heaps.address(member, rank, which, byte, bytes),
            None => Ok(None),
        };
        inputs.push(address(INPUT, input, node_bytes(rank))?.unwrap_or(ptr::null_mut()).cast_const());
        outputs.push(address(OUTPUT, output, step.bytes())?.unwrap_or(ptr::null_mut()));
    }
    Ok(true)
}
