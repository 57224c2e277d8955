//! The beginning of a step: ranks arrive, and compare their calls.

use super::{
    end::abort::{Abort, Fault, Reason},
    endpoint::Endpoint,
    post::CODE_BITS,
    post::{self, Inline, Places, Post},
    posted::{Posted, count_word},
    slot_swap,
    staging::PeerRead,
};
use crate::shm::{
    call_log::Outcome,
    codes::{self, Access},
    records::{FIRST_BYTES, Generation},
};
use consonance_spec::Signature;
use std::ptr;

impl Endpoint {
    /// Writes this rank's descriptor, runs `meanwhile`, waits for every peer's descriptor and
    /// compares. If there is one peer, `awaited` bytes of its payload are prefetched during the
    /// wait. Settles the last call, after the descriptor is written if this is a message.
    pub(crate) fn arrive<R>(
        &mut self,
        signature: &Signature,
        access: Access,
        bytes: usize,
        (payload, awaited): (Inline<'_>, usize),
        (input, output): (*const u8, *mut u8),
        meanwhile: impl FnOnce() -> R,
    ) -> Result<R, Fault> {
        self.check()?;
        let is_message = access.is_message();
        let before = self.unsettled.take_if(|_| is_message);
        self.settle()?;
        let own = self.post(signature, access, bytes, payload, (input, output));
        let (records, rank) = (self.state.records(), self.world.rank());
        let has_log = self.state.call_log(rank).is_some();
        let pauses = post::pauses(records.len(), signature.kind, payload.bytes().max(awaited), has_log);
        self.state.wait_policy.pause(pauses);
        self.wake();
        let made = meanwhile();
        let all = self.await_posts(|_| true, Places::of(access), awaited);
        if let Some(before) = before {
            // Also if a rank does not come: it may have been told that the calls before differ.
            self.compare_if_all_came(before);
        }
        all?;
        self.have_all_arrived();
        // Compares the peers' descriptors only: if any two ranks differ, each rank differs from
        // some peer. The cache lines of this rank's own descriptor may be with a peer by now;
        // reading it back would move them again.
        if !self.all_agree(&own, self.sequence) {
            self.try_peers();
            return Err(self.disagree());
        }
        // No peer reads the next descriptor any more.
        let records = self.state.records();
        records[rank].descriptor(self.sequence + 1).fetch(records.len());
        if is_message || matches!(access, Access::Payload | Access::Refused) {
            self.note(Outcome::Done);
        }
        self.try_peers();
        Ok(made)
    }

    /// Begins this rank's next call: writes its descriptor, then logs the call. The call before the
    /// last is [settled](Endpoint::settle), and so is the last before a step that is no message.
    // Inlined: the call and its arguments would cost a tenth of a barrier.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        signature: &Signature,
        access: Access,
        bytes: usize,
        payload: Inline<'_>,
        (input, output): (*const u8, *mut u8),
    ) -> Posted {
        let places = Places::of(access);
        assert!(payload.bytes() <= places.bytes(), "payload of {} bytes", payload.bytes());
        self.sequence += 1;
        let (records, sequence, rank) = (self.state.records(), self.sequence, self.world.rank());
        // A waiting peer has read the descriptor since it was last prefetched.
        records[rank].descriptor(sequence).fetch(records.len());
        let head = codes::code(signature) | (access as u32) << CODE_BITS;
        let fingerprint = codes::fingerprint(signature);
        let root = signature.root.map_or(0, |root| root as u32 + 1);
        let is_divided = matches!(access, Access::DividedToAll | Access::DividedToOwn | Access::DividedToRoot);
        // Where others write no result, the word has the count, for reports.
        let output = if is_divided { output } else { ptr::without_provenance_mut(count_word(signature)) };
        let own = Post { fingerprint, head, root, bytes, payload, input, output };
        let place = places.payload(records, rank, sequence, payload.bytes());
        let is_beside = payload.bytes() <= post::first_bytes(records.len());
        let has_lines = is_beside || slot_swap::takes_payloads(records.len(), signature.kind);
        // SAFETY: an endpoint is the only one of its rank, and every peer has arrived at the call
        // before the last one: before a step that is no message the last call is settled, too. The
        // payload fits the place.
        unsafe { records[rank].descriptor(sequence).publish(sequence, &own, place, has_lines) };
        if payload.bytes() <= FIRST_BYTES {
            payload.copy_to(&mut self.addresses.own);
        }
        // Log the call after posting it: the post leaves earlier, and the delay lets the peers'
        // posts arrive.
        if let Some(call_log) = self.state.call_log(rank) {
            self.entry_id = call_log.begin(Generation::number_of(sequence), head, bytes as u64);
        }
        Posted { fingerprint, head, root, bytes: is_divided.then_some(bytes) }
    }

    /// Waits until the peers that are `awaited` have arrived at this call. If there is one peer,
    /// `bytes` bytes of its payload are prefetched during the wait.
    #[inline]
    pub(super) fn await_posts(
        &mut self,
        awaited: impl Fn(usize) -> bool,
        places: Places,
        bytes: usize,
    ) -> Result<(), Fault> {
        let (records, sequence, rank) = (self.state.records(), self.sequence, self.world.rank());
        let all = self.wait_for(awaited, |record| {
            places.await_payload(records, rank, sequence, bytes);
            record.descriptor(sequence).arrived(sequence)
        });
        if let Err(fault) = &all {
            self.note(fault.outcome());
            self.heed(fault);
        }
        all
    }

    /// Notes the rank that will not come to this call, if that is the fault.
    pub(super) fn heed(&mut self, fault: &Fault) {
        let Fault::Left(rank) = *fault else { return };
        self.left = Some(rank);
        if !self.state.has_left(self.generation, rank) {
            // The rank is idle, and could come to this call later, when the buffers in this rank's
            // descriptor are no data of the call. The ranks of other processes do not see that it
            // is idle; the abort tells them which rank is at fault.
            self.state.abort(self.generation, Abort { rank, reason: Reason::Return });
        }
    }

    /// Notes that all ranks have arrived at this call.
    pub(super) fn have_all_arrived(&mut self) {
        if let Some(staging) = &mut self.staging {
            staging.settle();
        }
    }

    /// Whether all peers, which have arrived at call `sequence`, make the same one as this rank.
    #[inline]
    pub(super) fn all_agree(&self, own: &Posted, sequence: u64) -> bool {
        self.world.peers().all(|peer| own.agrees(self.state.records()[peer].descriptor(sequence)))
    }

    /// Tests, once, whether this rank can read the memory of all others, each of which has arrived
    /// once.
    #[inline]
    pub(crate) fn try_peers(&mut self) {
        if self.staging.as_ref().is_some_and(|staging| staging.reach == PeerRead::Untried) {
            self.try_each_peer();
        }
    }

    #[cold]
    fn try_each_peer(&mut self) {
        let can = |peer| self.state.process(peer).is_some_and(|process| process.is_readable());
        let all = self.world.size() > 1 && self.world.peers().all(can);
        self.staging.as_mut().expect("an endpoint with a staging").reach =
            if all { PeerRead::Yes } else { PeerRead::No };
    }
}
