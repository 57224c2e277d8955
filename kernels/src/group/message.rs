//! Messages: small data that go one way. The rank that gives them waits for nobody.
//!
//! # The protocol
//!
//! A message is a step of a group of processes whose payloads are inline in the call descriptors.
//! It differs from a step in which the ranks meet in what a rank waits for:
//!
//! 1. **Give.** A rank whose data others read writes its descriptor with the payload, wakes its
//!    peers, and returns.
//! 2. **Take.** A rank that reads the data of one peer writes its descriptor, waits for that peer's
//!    and compares the two. If they are equal, the data are the result: the rank copies them and
//!    returns. A rank that reads the data of all peers waits for all and compares all.
//! 3. **Settle.** Before its next call a rank waits until every peer has arrived at this one, and
//!    compares the descriptors that it has not compared. So a rank is at most one call ahead of the
//!    slowest, and its descriptors are free as after any call.
//!
//! If any two ranks differ, each rank differs from some peer: every rank comes to the same verdict,
//! some in the call and the others when they settle it. No rank knows when those will make their
//! next call. So the ranks do not meet to exchange their calls in words, as after another mismatch;
//! they read them in the descriptors, which stay until all have settled
//! ([`Endpoint::take_differing`], [`Endpoint::take_differing_late`]). A rank that settles a
//! mismatch makes its next call all the same: otherwise the ranks would not be in step.
//!
//! Calls are messages by their signature and size, which the descriptors tell. A rank that makes
//! another call differs from the rank that gives, and waits for all.
//!
//! # The races, by name
//!
//! * **Late reader.** A rank overwrites a payload two calls later. It has settled the call between
//!   them: every peer had arrived at it, and so had read the payload.
//! * **Late judge.** The same holds for descriptors that a peer compares only when it settles: it
//!   arrives at its next call after that.
//! * **Giver that leaves.** Data in the segment outlive the rank: a peer that waits checks the
//!   descriptor once more after it has seen that the rank left, failed or died. The area of a
//!   subgroup is used again when all members have left.

use super::{endpoint::Endpoint, fault::Fault, payloads::Payloads, post, posted::Posted, scratch::Addresses};
use crate::{
    memory::HostBuf,
    shm::{
        call_log::Outcome,
        codes::Access,
        records::{CallDescriptor, Generation, PAYLOAD_BYTES},
    },
    sync::atomics::Ordering,
};
use consonance_spec::Signature;
use std::ptr;

impl Endpoint {
    /// Gives this rank's data to the peers that read them, and waits for none.
    ///
    /// # Errors
    /// See [`Fault`], of this step or of the one before it. If the ranks make different calls, this
    /// rank hears of it when it [settles](Endpoint::settle) the step.
    ///
    /// # Panics
    /// If the payload has more than [`Endpoint::PAYLOAD_BYTES`] bytes, or is not of the signature's
    /// dtype, or if the ranks are threads of one process.
    pub fn send_message(&mut self, signature: &Signature, payload: HostBuf<'_>) -> Result<(), Fault> {
        assert!(payload.bytes() <= PAYLOAD_BYTES, "payload of {} bytes", payload.bytes());
        assert_eq!(Some(payload.dtype()), signature.dtype, "the payload is of the agreed dtype");
        self.begin_message()?;
        let own = self.post(signature, Access::Message, payload.bytes(), payload.as_bytes(), NOWHERE);
        self.wake();
        self.unsettled = Some(own);
        self.note(Outcome::Done);
        Ok(())
    }

    /// Waits for the data of `from` alone. They have at most `expected` bytes, as far as this rank
    /// knows: only the speed depends on it. Only the payload of `from` may be read.
    ///
    /// # Errors
    /// See [`Fault`], of this step or of the one before it. If the calls of this rank and of `from`
    /// are equal and another rank's is not, this rank hears of it when it
    /// [settles](Endpoint::settle) the step.
    ///
    /// # Panics
    /// If `from` is no peer, or if the ranks are threads of one process.
    pub fn receive_message(
        &mut self,
        signature: &Signature,
        from: usize,
        expected: usize,
    ) -> Result<Payloads<'_>, Fault> {
        let rank = self.world.rank();
        assert!(from != rank && from < self.world.size(), "rank {from} is a peer of rank {rank}");
        self.begin_message()?;
        let own = self.post(signature, Access::Message, 0, &[], NOWHERE);
        let (ranks, has_log) = (self.world.size(), self.state.call_log(rank).is_some());
        self.state.wait_policy.pause(post::pauses(ranks, signature.kind, expected, has_log));
        self.wake();
        self.await_posts(|peer| peer == from, expected)?;
        if !own.agrees(self.state.records()[from].descriptor(self.sequence)) {
            // All ranks read the descriptors of all.
            self.await_posts(|_| true, 0)?;
            self.have_all_arrived();
            return Err(self.disagree());
        }
        self.unsettled = Some(own);
        self.note(Outcome::Done);
        Ok(self.payloads(signature, 0))
    }

    /// Gives this rank's data and waits for those of all peers: for the only rank that reads them.
    /// As [`exchange_expecting`](Endpoint::exchange_expecting) otherwise.
    ///
    /// # Errors
    /// See [`Fault`], of this step or of the one before it.
    ///
    /// # Panics
    /// As [`send_message`](Endpoint::send_message).
    pub fn receive_messages(
        &mut self,
        signature: &Signature,
        payload: HostBuf<'_>,
        expected: usize,
    ) -> Result<Payloads<'_>, Fault> {
        assert!(payload.bytes() <= PAYLOAD_BYTES, "payload of {} bytes", payload.bytes());
        assert_eq!(Some(payload.dtype()), signature.dtype, "the payload is of the agreed dtype");
        self.begin_message()?;
        let (bytes, sent) = (payload.bytes(), (payload.as_bytes(), expected));
        self.arrive(signature, Access::Message, bytes, sent, NOWHERE, || ())?;
        Ok(self.payloads(signature, bytes))
    }

    /// Settles this rank's last step, if it has left it before all ranks arrived: waits for them,
    /// and compares their calls. If these differ, [`Endpoint::take_differing_late`] has them; the
    /// group goes on. Every step does this first.
    ///
    /// # Errors
    /// See [`Fault`].
    #[inline]
    pub fn settle(&mut self) -> Result<(), Fault> {
        match self.unsettled {
            None => Ok(()),
            Some(own) => self.settle_call(own),
        }
    }

    fn settle_call(&mut self, own: Posted) -> Result<(), Fault> {
        self.check()?;
        let sequence = self.sequence;
        if let Err(fault) = self.wait_for_all(|record| has_come(record.descriptor(sequence), sequence)) {
            self.heed(&fault);
            return Err(fault);
        }
        self.unsettled = None;
        self.have_all_arrived();
        if !self.all_agree(&own) {
            self.note(Outcome::Mismatch);
            self.differing_late = Some(self.posted_calls());
        }
        self.try_peers();
        Ok(())
    }

    /// Whether this rank has left its last step before all ranks had arrived.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled.is_some()
    }

    fn begin_message(&mut self) -> Result<(), Fault> {
        // Threads read each other's data in place.
        assert!(self.staging.is_some(), "a group of processes");
        self.check()?;
        self.settle()
    }

    fn payloads(&mut self, signature: &Signature, own_bytes: usize) -> Payloads<'_> {
        let (context, addresses) = self.context(signature);
        let Addresses { sources, own, .. } = addresses;
        Payloads { context, sources, own, own_bytes }
    }
}

/// Where others read no data in place, and write no result.
const NOWHERE: (*const u8, *mut u8) = (ptr::null(), ptr::null_mut());

/// Whether the rank of this descriptor has come to call `sequence`.
fn has_come(descriptor: &CallDescriptor, sequence: u64) -> bool {
    // SYNC POINT settle: what the rank read before it arrived may be overwritten now; pairs with
    // `publish`.
    Generation::reached(descriptor.sequence.load(Ordering::Acquire), sequence)
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
