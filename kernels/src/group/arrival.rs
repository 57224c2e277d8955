//! The beginning of a step: ranks arrive, and agree on what they call.

use super::{
    abort::{Abort, Reason},
    end::CODE_BITS,
    endpoint::Seat,
    fault::Fault,
    plan::Access,
    post::{self, Arrival},
    slot_swap,
    staging::Reach,
};
use crate::shm::{
    call_log::Outcome,
    records::{Card, FIRST_BYTES, Round},
};
use consonance_spec::Signature;

impl Seat {
    /// Writes this rank's card, does something meanwhile, waits for every other and compares. Of an only peer's payload so many bytes
    /// are awaited.
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
        self.epoch += 1;
        let (lines, epoch, rank) = (self.hub.lines(), self.epoch, self.world.rank());
        // A peer that waits has looked at the card since it was asked for.
        lines[rank].card(epoch).fetch(lines.len());
        let head = signature.code() | (access as u32) << CODE_BITS;
        let fingerprint = if COMPARES { signature.fingerprint() } else { 0 };
        let own = Arrival { fingerprint, head, bytes, payload, input, output };
        let place = post::payload(lines, rank, epoch, payload.len());
        let is_beside = payload.len() <= post::first_bytes(lines.len());
        let has_lines = is_beside || slot_swap::takes_payloads(lines.len(), signature.kind);
        // SAFETY: a seat is the only one of its rank, and the call before this one waited for every peer to arrive at it.
        unsafe { lines[rank].card(epoch).publish(epoch, &own, place, has_lines) };
        if payload.len() <= FIRST_BYTES {
            self.addresses.own[..payload.len()].copy_from_slice(payload);
        }
        // Only now: the peers hear sooner, and are looked at later.
        let ring = self.hub.ring(rank);
        if let Some(ring) = ring {
            self.ticket = ring.begin(Round::number_of(epoch), head, bytes as u64);
        }
        let pauses = post::pauses(lines.len(), signature.kind, payload.len().max(awaited), ring.is_some());
        self.hub.patience.pause(pauses);
        self.wake();
        let made = meanwhile();
        let all = self.wait_for_all(|line| {
            post::await_payload(lines, rank, epoch, awaited);
            line.card(epoch).arrived(epoch)
        });
        if let Err(fault) = &all {
            self.note(fault.outcome());
        }
        if let Err(Fault::Left(rank)) = all {
            self.left = Some(rank);
            if !self.hub.has_left(self.round, rank) {
                // It rests, and could come to this call later, when what this rank's card shows is no data of the call.
                // The ranks of other processes do not see that it rests, and are told whose fault it is.
                self.hub.abort(self.round, Abort { rank, reason: Reason::Return });
            }
        }
        all?;
        if let Some(stage) = &mut self.stage {
            stage.settle();
        }
        let same_bytes = matches!(access, Access::DividedToAll | Access::DividedToOwn | Access::DividedToRoot);
        let is_same = |card: &Card| {
            card.fingerprint() == own.fingerprint && card.head() == head && (!same_bytes || card.bytes() == bytes)
        };
        // With every peer's: if any two ranks differ, each differs from some peer. This rank's own card may be with one by now, and to
        // read it takes a trip.
        if COMPARES && !self.world.peers().all(|peer| is_same(lines[peer].card(epoch))) {
            self.note(Outcome::Mismatch);
            return Err(Fault::Mismatch);
        }
        // Nobody reads the next card any more.
        lines[rank].card(epoch + 1).fetch(lines.len());
        if access as u32 == Access::Payload as u32 {
            self.note(Outcome::Done);
        }
        self.try_peers();
        Ok(made)
    }

    /// Tries, once, whether this rank can read the memory of all others, each of which has arrived once.
    pub(crate) fn try_peers(&mut self) {
        let Some(stage) = &self.stage else { return };
        if stage.reach != Reach::Untried {
            return;
        }
        let can = |peer| self.hub.process(peer).is_some_and(|process| process.is_readable());
        let all = self.world.size() > 1 && self.world.peers().all(can);
        self.stage.as_mut().expect("a seat with a stage").reach = if all { Reach::Yes } else { Reach::No };
    }
}

/// Whether ranks compare what they call: without it no call is sound. `harness/perf/checks` alone makes a build that does not, to
/// measure what it costs.
const COMPARES: bool = !cfg!(consonance_unchecked);
