//! The beginning of a step: ranks arrive, and compare their calls.

use super::{
    abort::{Abort, Reason},
    end::CODE_BITS,
    endpoint::Endpoint,
    fault::Fault,
    plan::Access,
    post::{self, Post},
    slot_swap,
    staging::PeerRead,
};
use crate::shm::{
    call_log::Outcome,
    codes,
    records::{CallDescriptor, FIRST_BYTES, Generation},
};
use consonance_spec::Signature;

impl Endpoint {
    /// Writes this rank's descriptor, runs `meanwhile`, waits for every peer's descriptor and
    /// compares. If there is one peer, `awaited` bytes of its payload are prefetched during the
    /// wait.
    pub(crate) fn arrive<R>(
        &mut self,
        signature: &Signature,
        access: Access,
        bytes: usize,
        (payload, awaited): (&[u8], usize),
        (input, output): (*const u8, *mut u8),
        meanwhile: impl FnOnce() -> R,
    ) -> Result<R, Fault> {
        self.check()?;
        self.sequence += 1;
        let (records, sequence, rank) = (self.state.records(), self.sequence, self.world.rank());
        // A waiting peer has read the descriptor since it was last prefetched.
        records[rank].descriptor(sequence).fetch(records.len());
        let head = codes::code(signature) | (access as u32) << CODE_BITS;
        let fingerprint = if COMPARES { codes::fingerprint(signature) } else { 0 };
        let own = Post { fingerprint, head, bytes, payload, input, output };
        let place = post::payload(records, rank, sequence, payload.len());
        let is_beside = payload.len() <= post::first_bytes(records.len());
        let has_lines = is_beside || slot_swap::takes_payloads(records.len(), signature.kind);
        // SAFETY: an endpoint is the only one of its rank, and the call before this one waited for
        // every peer to arrive at it.
        unsafe { records[rank].descriptor(sequence).publish(sequence, &own, place, has_lines) };
        if payload.len() <= FIRST_BYTES {
            self.addresses.own[..payload.len()].copy_from_slice(payload);
        }
        // Log the call after posting it: the post leaves earlier, and the delay lets the peers'
        // posts arrive.
        let call_log = self.state.call_log(rank);
        if let Some(call_log) = call_log {
            self.entry_id = call_log.begin(Generation::number_of(sequence), head, bytes as u64);
        }
        let pauses = post::pauses(records.len(), signature.kind, payload.len().max(awaited), call_log.is_some());
        self.state.wait_policy.pause(pauses);
        self.wake();
        let made = meanwhile();
        let all = self.wait_for_all(|record| {
            post::await_payload(records, rank, sequence, awaited);
            record.descriptor(sequence).arrived(sequence)
        });
        if let Err(fault) = &all {
            self.note(fault.outcome());
        }
        if let Err(Fault::Left(rank)) = all {
            self.left = Some(rank);
            if !self.state.has_left(self.generation, rank) {
                // The rank is idle, and could come to this call later, when the buffers in this
                // rank's descriptor are no data of the call. The ranks of other processes do not
                // see that it is idle; the abort tells them which rank is at fault.
                self.state.abort(self.generation, Abort { rank, reason: Reason::Return });
            }
        }
        all?;
        if let Some(staging) = &mut self.staging {
            staging.settle();
        }
        let same_bytes = matches!(access, Access::DividedToAll | Access::DividedToOwn | Access::DividedToRoot);
        let is_same = |descriptor: &CallDescriptor| {
            descriptor.fingerprint() == own.fingerprint
                && descriptor.head() == head
                && (!same_bytes || descriptor.bytes() == bytes)
        };
        // Compares the peers' descriptors only: if any two ranks differ, each rank differs from
        // some peer. The cache lines of this rank's own descriptor may be with a peer by now;
        // reading it back would move them again.
        if COMPARES && !self.world.peers().all(|peer| is_same(records[peer].descriptor(sequence))) {
            self.note(Outcome::Mismatch);
            return Err(Fault::Mismatch);
        }
        // No peer reads the next descriptor any more.
        records[rank].descriptor(sequence + 1).fetch(records.len());
        if access as u32 == Access::Payload as u32 {
            self.note(Outcome::Done);
        }
        self.try_peers();
        Ok(made)
    }

    /// Tests, once, whether this rank can read the memory of all others, each of which has arrived
    /// once.
    pub(crate) fn try_peers(&mut self) {
        let Some(staging) = &self.staging else { return };
        if staging.reach != PeerRead::Untried {
            return;
        }
        let can = |peer| self.state.process(peer).is_some_and(|process| process.is_readable());
        let all = self.world.size() > 1 && self.world.peers().all(can);
        self.staging.as_mut().expect("an endpoint with a staging").reach =
            if all { PeerRead::Yes } else { PeerRead::No };
    }
}

/// Whether ranks compare their calls: without the comparison no call is sound. Only
/// `harness/perf/checks` makes a build without it, to measure its cost.
const COMPARES: bool = !cfg!(consonance_unchecked);
