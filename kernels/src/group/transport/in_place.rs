//! Reductions in place: each rank folds its block of all inputs straight into all results.

use super::divided::Divided;
use crate::{
    cpu::cache_hints::{self, CacheHints, CopySize, Locality},
    group::{
        end::abort::Fault,
        participant::Participant,
        plan::{BORDER_BYTES, Path, Targets, chunks},
        post::Arrival,
        scratch::Addresses,
        sharing::Sharing,
    },
};
use consonance_spec::partition;

/// Makes a divided step among threads of one process.
///
/// # Safety
/// The input is valid for reads of `count` elements of the reducer's input; the output, unless it
/// is null, for writes of as many of its output. No other code touches them. They are the same,
/// where both types are, or disjoint.
pub(in crate::group) unsafe fn divided_in_place(
    participant: &mut Participant,
    step: &Divided<'_>,
) -> Result<(), Fault> {
    let access = step.kind().access();
    let arrival = Arrival::shared(step.signature, access, step.bytes(), step.input, step.output);
    let sharing = Sharing::arrive(participant, &arrival, Default::default())?;
    let Participant { meeting, addresses, path, .. } = &mut *sharing.participant;
    path.set(Some(Path::InPlace));
    addresses.inputs.clear();
    addresses.outputs.clear();
    for descriptor in meeting.descriptors() {
        addresses.inputs.push(descriptor.input());
        addresses.outputs.push(descriptor.output());
    }
    // SAFETY: all ranks' inputs have `count` elements of the reducer's input (`arrive` compared
    // them), and an output has as many of the reducer's output, as each rank's caller promised
    // before it was published. They stay valid while a rank is inside.
    unsafe { fold_block(sharing.participant, step)? };
    sharing.depart()
}

/// Folds this rank's block of all inputs into the targets, a chunk at a time.
///
/// # Safety
/// The addresses of this step are set. While a rank is inside, every input is valid for reads of
/// `count` elements of the reducer's input, or of the nodes of its rank's holdings; every output
/// that is not null for writes of `count` elements of the reducer's output, or for reads of a
/// contribution where its rank does not receive. Each output is equal to its own rank's input or
/// disjoint from every input. All ranks agreed on the step.
pub(super) unsafe fn fold_block(participant: &mut Participant, step: &Divided<'_>) -> Result<(), Fault> {
    let Divided { signature, reducer, targets, count, .. } = *step;
    let Participant { meeting, addresses, .. } = participant;
    let context = meeting.context(signature, true);
    let (rank, ranks) = (context.rank(), context.ranks());
    let block = match targets {
        // The blocks of the public collectives are even.
        Targets::Own => partition::block(count, ranks, rank),
        Targets::All | Targets::Root(_) => {
            let unit = BORDER_BYTES / reducer.input().size().min(reducer.output().size());
            partition::aligned_block(count, unit, ranks, rank)
        }
    };
    let Addresses { inputs, outputs, sources, targets: all, .. } = addresses;
    // A panic in the middle of an earlier step may have left some addresses.
    sources.clear();
    all.clear();
    let output_size = reducer.output().size();
    let (bytes, read) = (step.bytes(), step.read_bytes(ranks));
    let volume = CopySize::new(bytes, || cache_hints::goes_past_caches(bytes, read, 1));
    let flow = CacheHints { from: Locality::Far, past: volume.past(0) };
    for chunk in chunks(block, reducer.input().size()) {
        let inside = context.enter()?;
        for (peer, (&input, &output)) in inputs.iter().zip(&*outputs).enumerate() {
            step.add_sources(sources, peer, (input, output), chunk.start);
            let own_block = targets == Targets::Own && peer == rank;
            if (own_block || targets.reach(peer)) && !output.is_null() {
                // SAFETY: `chunk` lies within the elements of every output.
                all.push(unsafe { output.add(chunk.start * output_size) });
            }
        }
        // SAFETY: `enter` keeps every buffer alive until `inside` is dropped. This block of all
        // buffers is private to this rank in this step: the blocks of ranks are disjoint, and all
        // ranks agreed on the kind of step and on the bytes. An output is exclusive to its rank, so
        // it is its own rank's input exactly or disjoint from every input.
        unsafe { step.fold(sources, all, chunk.len(), flow) };
        sources.clear();
        all.clear();
        drop(inside);
    }
    Ok(())
}
