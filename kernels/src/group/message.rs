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
//! 3. **Settle.** In its next call a rank waits until every peer has arrived at this one, and
//!    compares the descriptors that it has not compared. If that call is a message, too, it writes
//!    its descriptor first: to read how far the peers have come takes as long as the data travel.
//!    So a rank that has returned is at most one call ahead of the slowest, and one that has not at
//!    most two.
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
//! Parts of different sizes have a count for each rank. Every rank writes its counts in its
//! payload, behind the data if it gives any, so that the peers can tell which counts differ.
//!
//! # The races, by name
//!
//! * **Late reader.** A rank overwrites a message four calls later. It has settled the second call
//!   between them: every peer had arrived at it, and so had read the message.
//! * **Late judge.** The same holds for descriptors that a peer compares only when it settles: it
//!   has settled a call before it arrives at the second one after that.
//! * **Giver that leaves.** Data in the segment outlive the rank: a peer that waits checks the
//!   descriptor once more after it has seen that the rank left, failed or died. The area of a
//!   subgroup is used again when all members have left.

use super::{
    end::abort::Fault,
    endpoint::Endpoint,
    payloads::Payloads,
    post::{self, Inline, Places},
    posted::{Posted, Unsettled},
};
use crate::{
    memory::HostBuf,
    shm::{
        call_log::Outcome,
        codes::Access,
        records::{CallDescriptor, Generation, TINY_BYTES},
    },
    sync::atomics::Ordering,
};
use consonance_spec::Signature;
use std::{mem, ptr};

impl Endpoint {
    /// Gives this rank's data to the peers that read them, and waits for none. `counts` has one for
    /// each rank, if parts differ in size.
    ///
    /// # Errors
    /// See [`Fault`], of this step or of the one before it: then the peers may have the data. If
    /// the ranks make different calls, this rank hears of it when it [settles](Endpoint::settle)
    /// the step.
    ///
    /// # Panics
    /// If counts and payload have more bytes together than a
    /// [message](crate::group::plan::Topology::one_way), or the payload is not of the signature's
    /// dtype, or if the ranks are threads of one process.
    pub fn send_message(
        &mut self,
        signature: &Signature,
        counts: Option<&[usize]>,
        payload: HostBuf<'_>,
    ) -> Result<(), Fault> {
        assert_eq!(Some(payload.dtype()), signature.dtype, "the payload is of the agreed dtype");
        self.check_message()?;
        let own = self.post_message(signature, counts, payload.as_bytes());
        self.wake();
        self.settle_before()?;
        self.leave_unsettled(own);
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
        counts: Option<&[usize]>,
        from: usize,
        expected: usize,
    ) -> Result<Payloads<'_>, Fault> {
        let rank = self.world.rank();
        assert!(from != rank && from < self.world.size(), "rank {from} is a peer of rank {rank}");
        self.check_message()?;
        let own = self.post_message(signature, counts, &[]);
        // With counts the payload does not lie beside the descriptor of the only peer.
        let expected = if counts.is_some() { expected.max(TINY_BYTES + 1) } else { expected };
        let (ranks, has_log) = (self.world.size(), self.state.call_log(rank).is_some());
        self.state.wait_policy.pause(post::pauses(ranks, signature.kind, expected, has_log));
        self.wake();
        self.settle_before()?;
        self.await_posts(|peer| peer == from, Places::Own, expected)?;
        if !own.agrees(self.state.records()[from].descriptor(self.sequence)) {
            // All ranks read the descriptors of all.
            self.await_posts(|_| true, Places::Own, 0)?;
            self.have_all_arrived();
            self.try_peers();
            return Err(self.disagree());
        }
        if self.world.size() == 2 {
            // There is no other rank to compare.
            self.have_all_arrived();
            self.try_peers();
        } else {
            self.leave_unsettled(own);
        }
        self.note(Outcome::Done);
        let words = words_bytes(counts);
        Ok(self.payloads(signature, Places::Own, words, 0))
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
        counts: Option<&[usize]>,
        payload: HostBuf<'_>,
        expected: usize,
    ) -> Result<Payloads<'_>, Fault> {
        assert_eq!(Some(payload.dtype()), signature.dtype, "the payload is of the agreed dtype");
        self.check_message()?;
        let words = words_bytes(counts);
        let bytes = payload.bytes();
        self.with_counts(counts, payload.as_bytes(), |endpoint, access, payload| {
            endpoint.arrive(signature, access, bytes, (payload, expected), NOWHERE, || ())
        })?;
        Ok(self.payloads(signature, Places::Own, words, bytes))
    }

    /// Writes this rank's descriptor of a message.
    fn post_message(&mut self, signature: &Signature, counts: Option<&[usize]>, data: &[u8]) -> Posted {
        self.with_counts(counts, data, |endpoint, access, payload| {
            endpoint.post(signature, access, data.len(), payload, NOWHERE)
        })
    }

    /// Calls `then` with the payload of counts and data.
    #[inline]
    fn with_counts<R>(
        &mut self,
        counts: Option<&[usize]>,
        data: &[u8],
        then: impl FnOnce(&mut Self, Access, Inline<'_>) -> R,
    ) -> R {
        let Some(counts) = counts else { return then(self, Access::Message, data.into()) };
        assert_eq!(counts.len(), self.world.size(), "a count for each rank");
        let mut words = mem::take(&mut self.addresses.words);
        words.clear();
        words.extend(counts.iter().map(|&count| count as u64));
        let result = then(self, Access::CountedMessage, Inline::new(data, &words));
        self.addresses.words = words;
        result
    }

    /// Settles this rank's last step, if it has left it before all ranks arrived: waits for them,
    /// and compares their calls. If these differ, [`Endpoint::take_differing_late`] has them; the
    /// group goes on. Every step does this.
    ///
    /// # Errors
    /// See [`Fault`].
    #[inline]
    pub fn settle(&mut self) -> Result<(), Fault> {
        match self.unsettled {
            None => Ok(()),
            Some(call) => self.settle_call(call),
        }
    }

    fn settle_call(&mut self, call: Unsettled) -> Result<(), Fault> {
        self.check()?;
        let sequence = call.sequence;
        if let Err(fault) = self.wait_for_all(|record| has_come(record.descriptor(sequence), sequence)) {
            self.heed(&fault);
            return Err(fault);
        }
        self.unsettled = None;
        self.have_all_arrived();
        self.compare(call);
        self.try_peers();
        Ok(())
    }

    /// Settles the step before this one, whose descriptor is written.
    fn settle_before(&mut self) -> Result<(), Fault> {
        self.settle().inspect_err(|fault| self.note(fault.outcome()))
    }

    /// Compares the calls of all ranks in the step before this one, if all have arrived there.
    pub(super) fn compare_if_all_came(&mut self, call: Unsettled) {
        let has_come = |peer: usize| has_come(self.state.records()[peer].descriptor(call.sequence), call.sequence);
        if self.world.peers().all(has_come) {
            self.compare(call);
        }
    }

    /// Compares the calls of all ranks in a step at which all have arrived.
    fn compare(&mut self, call: Unsettled) {
        if !self.all_agree(&call.own, call.sequence) {
            self.note_of(call.entry_id, Outcome::Mismatch);
            self.differing_late = Some(self.posted_calls(call.sequence));
        }
    }

    /// Leaves this step before all have arrived.
    fn leave_unsettled(&mut self, own: Posted) {
        self.unsettled = Some(Unsettled { sequence: self.sequence, entry_id: self.entry_id, own });
    }

    /// Whether this rank has left its last step before all ranks had arrived.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled.is_some()
    }

    fn check_message(&self) -> Result<(), Fault> {
        // Threads read each other's data in place.
        assert!(self.staging.is_some(), "a group of processes");
        self.check()
    }
}

/// Returns the bytes of the words of counts.
fn words_bytes(counts: Option<&[usize]>) -> usize {
    counts.map_or(0, |counts| counts.len() * size_of::<u64>())
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
