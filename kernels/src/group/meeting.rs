//! The meeting of a group's ranks in a call: they arrive, compare their calls, and go on.
//!
//! # The protocol
//!
//! In most calls a rank *arrives* ([`Meeting::arrive`]): it posts its descriptor, wakes its peers,
//! waits until every peer has posted, and compares all descriptors with its own.
//!
//! A *message* is a call of a group of processes with small data that go one way. Its payloads are
//! inline in the call descriptors. It differs in what a rank waits for:
//!
//! 1. **Give.** A rank whose data others read writes its descriptor with the payload, wakes its
//!    peers, and returns.
//! 2. **Take.** A rank that reads the data of one peer writes its descriptor, waits for that peer's
//!    and compares the two. If they are equal, the data are the result: the rank copies them and
//!    returns. A rank that reads the data of all peers arrives: it waits for all and compares all.
//! 3. **Settle.** In its next call a rank waits until every peer has arrived at this one, and
//!    compares the descriptors that it has not compared. If that call is a message, too, it writes
//!    its descriptor first: to read how far the peers have come takes as long as the data travel.
//!    So a rank that has returned is at most one call ahead of the slowest, and one that has not at
//!    most two.
//!
//! If any two ranks differ, each rank differs from some peer: every rank comes to the same verdict,
//! some in the call and the others when they settle it. After a call that all wait for, the ranks
//! can exchange their calls in words. After a message a rank may make no call for a long time. So
//! the ranks read the calls of all in the descriptors, which stay until all have settled
//! ([`Meeting::take_differing`], [`Meeting::take_differing_late`]), and no rank waits. A rank that
//! settles a mismatch makes its next call all the same: otherwise the ranks would not be in step.
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
    call_context::CallContext,
    end::abort::{Abort, Fault, Reason},
    member::Member,
    post::{self, Arrival, Places, Post, Posted},
    posted_call::{PostedCall, has_access},
    scratch::InlinePayload,
    slot_swap,
    waiter::Waiter,
};
use crate::{
    shm::{
        call_log::Outcome,
        codes::Access,
        records::{CallDescriptor, FIRST_BYTES, Generation},
    },
    sync::atomics::Ordering,
};
use consonance_spec::Signature;

/// A rank of a group, and the call in which it meets its peers.
pub(crate) struct Meeting {
    pub(crate) waiter: Waiter,
    /// The number of this rank's last call.
    pub(crate) sequence: u64,
    /// A rank that left: no further step is possible, and this rank's descriptors are not written
    /// again.
    left: Option<usize>,
    /// The entry of the current call in this rank's call log, if there is one.
    entry_id: u64,
    /// Whether this rank makes steps of its own, which have no entries.
    pub(super) is_unlogged: bool,
    /// The last call of this rank, if it has not compared all descriptors of it.
    unsettled: Option<Unsettled>,
    /// The calls of all ranks, if they differ and a rank has left the call before all arrived: of
    /// this call, and of an earlier call of which this rank was not told yet.
    differing: Option<Vec<PostedCall>>,
    differing_late: Option<Vec<PostedCall>>,
    /// This rank's payload, if it has at most [`FIRST_BYTES`].
    pub(super) own: InlinePayload,
}

/// A call that a rank has left before it had compared the descriptors of all.
#[derive(Clone, Copy)]
struct Unsettled {
    sequence: u64,
    /// Its entry in this rank's call log.
    entry_id: u64,
    own: Posted,
}

impl Meeting {
    pub(super) fn new(waiter: Waiter) -> Meeting {
        Meeting {
            sequence: waiter.member.generation.base(),
            waiter,
            left: None,
            entry_id: 0,
            is_unlogged: false,
            unsettled: None,
            differing: None,
            differing_late: None,
            own: [0; _],
        }
    }

    /// Returns who this rank is.
    #[inline]
    pub(crate) fn member(&self) -> &Member {
        &self.waiter.member
    }

    /// Returns every rank's descriptor of this call, in rank order.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = &CallDescriptor> {
        self.member().descriptors(self.sequence)
    }

    /// Returns the context of this call. With `enters` the ranks access the others'
    /// own buffers in it.
    #[inline]
    pub(super) fn context(&self, signature: &Signature, enters: bool) -> CallContext<'_> {
        let Signature { kind, dtype, .. } = *signature;
        CallContext { member: self.member(), sequence: self.sequence, kind, dtype, enters }
    }

    /// Checks that a call can begin. Code that touches the group's memory before it arrives calls
    /// this first.
    #[inline]
    pub(super) fn check(&self) -> Result<(), Fault> {
        self.member().check()?;
        self.left.map_or(Ok(()), |rank| Err(Fault::Left(rank)))
    }

    /// Whether every peer has arrived at a call of this generation.
    pub(super) fn have_all_come(&self) -> bool {
        Generation::number_of(self.sequence) > u64::from(self.unsettled.is_some())
    }

    /// Logs how this rank's call ended.
    #[inline]
    pub(super) fn note(&self, outcome: Outcome) {
        self.note_of(self.entry_id, outcome);
    }

    /// Logs how the call of this entry ended.
    #[inline]
    fn note_of(&self, entry_id: u64, outcome: Outcome) {
        if let Some(call_log) = self.member().call_log() {
            call_log.end(entry_id, outcome);
        }
    }

    /// Posts this rank's call, runs `meanwhile`, waits for every peer's descriptor and compares. If
    /// there is one peer, the awaited bytes of its payload are prefetched during the wait. Settles
    /// the last call, after the descriptor is written if this is a message.
    // Inlined, as `post` is.
    #[inline(always)]
    pub(super) fn arrive<R>(&mut self, arrival: &Arrival<'_>, meanwhile: impl FnOnce() -> R) -> Result<R, Fault> {
        self.check()?;
        let access = arrival.access;
        let is_message = access.is_message();
        let before = self.unsettled.take_if(|_| is_message);
        self.settle()?;
        let own = self.post(arrival);
        self.pause(arrival);
        self.waiter.wake();
        let made = meanwhile();
        let all = self.await_posts(|_| true, Places::of(access), arrival.awaited);
        if let Some(before) = before {
            // Also if a rank does not come: it may have been told that the calls before differ.
            self.compare_if_all_came(before);
        }
        all?;
        // Compares the peers' descriptors only: if any two ranks differ, each rank differs from
        // some peer. The cache lines of this rank's own descriptor may be with a peer by now;
        // reading it back would move them again.
        if !self.all_agree(&own, self.sequence) {
            return Err(self.disagree());
        }
        // No peer reads the next descriptor any more.
        let member = self.member();
        post::fetch_descriptor(member.record().descriptor(self.sequence + 1), member.records().len());
        if is_message || matches!(access, Access::Payload | Access::Refused) {
            self.note(Outcome::Done);
        }
        Ok(made)
    }

    /// Gives this rank's data to the peers that read them, and waits for none.
    pub(super) fn give(&mut self, arrival: &Arrival<'_>) -> Result<(), Fault> {
        self.check()?;
        let own = self.post(arrival);
        self.waiter.wake();
        self.settle_before()?;
        self.leave_unsettled(own);
        self.note(Outcome::Done);
        Ok(())
    }

    /// Waits for the data of `from` alone.
    pub(super) fn take(&mut self, arrival: &Arrival<'_>, from: usize) -> Result<(), Fault> {
        self.check()?;
        let own = self.post(arrival);
        self.pause(arrival);
        self.waiter.wake();
        self.settle_before()?;
        self.await_posts(|peer| peer == from, Places::Own, arrival.awaited)?;
        if !own.agrees(self.member().records()[from].descriptor(self.sequence)) {
            // All ranks read the descriptors of all.
            self.await_posts(|_| true, Places::Own, 0)?;
            return Err(self.disagree());
        }
        // With one peer there is no other rank to compare.
        if self.member().world.size() > 2 {
            self.leave_unsettled(own);
        }
        self.note(Outcome::Done);
        Ok(())
    }

    /// Begins this rank's next call: writes its descriptor, then logs the call. The call before the
    /// last is [settled](Meeting::settle), and so is the last before a step that is no message.
    // Inlined: the call and its arguments would cost a tenth of a barrier.
    #[inline(always)]
    pub(super) fn post(&mut self, arrival: &Arrival<'_>) -> Posted {
        let Arrival { signature, access, bytes, payload, .. } = *arrival;
        let places = Places::of(access);
        assert!(payload.bytes() <= places.bytes(), "payload of {} bytes", payload.bytes());
        self.sequence += 1;
        let (sequence, member) = (self.sequence, &self.waiter.member);
        let (records, rank) = (member.records(), member.world.rank());
        let descriptor = records[rank].descriptor(sequence);
        // A waiting peer has read the descriptor since it was last prefetched.
        post::fetch_descriptor(descriptor, records.len());
        let own = Post::new(arrival);
        let place = places.payload(records, rank, sequence, payload.bytes());
        let is_beside = payload.bytes() <= post::first_bytes(records.len());
        let has_lines = is_beside || slot_swap::takes_payloads(records.len(), signature.kind);
        // SAFETY: an endpoint is the only one of its rank, and every peer has arrived at the call
        // before the last one: before a step that is no message the last call is settled, too. The
        // payload fits the place.
        unsafe { own.publish(descriptor, sequence, place, has_lines) };
        if payload.bytes() <= FIRST_BYTES {
            payload.copy_to(&mut self.own);
        }
        // Log the call after posting it: the post leaves earlier, and the delay lets the peers'
        // posts arrive.
        if let Some(call_log) = member.call_log()
            && !self.is_unlogged
        {
            self.entry_id = call_log.begin(Generation::number_of(sequence), own.head, bytes as u64);
        }
        own.posted()
    }

    /// Pauses before the first poll: see [`post::pauses`].
    #[inline]
    fn pause(&self, arrival: &Arrival<'_>) {
        let Member { state, world, .. } = self.member();
        let has_log = state.call_log(world.rank()).is_some();
        let bytes = arrival.payload.bytes().max(arrival.awaited);
        state.wait_policy.pause(post::pauses(world.size(), arrival.signature.kind, bytes, has_log));
    }

    /// Waits until the peers that are `awaited` have arrived at this call. If there is one peer,
    /// `bytes` bytes of its payload are prefetched during the wait.
    #[inline]
    fn await_posts(&mut self, awaited: impl Fn(usize) -> bool, places: Places, bytes: usize) -> Result<(), Fault> {
        let (member, sequence) = (&self.waiter.member, self.sequence);
        let (records, rank) = (member.records(), member.world.rank());
        let all = self.waiter.wait_for(awaited, |record| {
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
    fn heed(&mut self, fault: &Fault) {
        let Fault::Left(rank) = *fault else { return };
        self.left = Some(rank);
        let member = self.member();
        if !member.state.has_left(member.generation, rank) {
            // The rank is idle, and could come to this call later, when the buffers in this rank's
            // descriptor are no data of the call. The ranks of other processes do not see that it
            // is idle; the abort tells them which rank is at fault.
            member.abort(rank, Reason::Return);
        }
    }

    /// Whether all peers, which have arrived at call `sequence`, make the same one as this rank.
    #[inline]
    fn all_agree(&self, own: &Posted, sequence: u64) -> bool {
        let member = self.member();
        member.world.peers().all(|peer| own.agrees(member.records()[peer].descriptor(sequence)))
    }

    /// Notes that the ranks, which have all arrived, disagree.
    #[cold]
    fn disagree(&mut self) -> Fault {
        self.note(Outcome::Mismatch);
        let is_message = |access: &Access| access.is_message();
        let messages = || Access::ALL.into_iter().filter(is_message);
        let may_go_on = self.descriptors().any(|descriptor| messages().any(|access| has_access(descriptor, access)));
        self.differing = may_go_on.then(|| PostedCall::of_all(self.member().records(), self.sequence));
        Fault::Mismatch
    }

    /// See [`Endpoint::take_differing`](super::Endpoint::take_differing).
    pub(super) fn take_differing(&mut self) -> Option<Vec<PostedCall>> {
        self.differing.take()
    }

    /// See [`Endpoint::take_differing_late`](super::Endpoint::take_differing_late).
    pub(super) fn take_differing_late(&mut self) -> Option<Vec<PostedCall>> {
        self.differing_late.take()
    }

    /// Whether this rank has left its last call before all ranks had arrived.
    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled.is_some()
    }

    /// Settles this rank's last call, if it has left it before all ranks arrived: waits for them,
    /// and compares their calls. If these differ, [`Meeting::take_differing_late`] has them; the
    /// group goes on.
    #[inline]
    pub(super) fn settle(&mut self) -> Result<(), Fault> {
        match self.unsettled {
            None => Ok(()),
            Some(call) => self.settle_call(call),
        }
    }

    fn settle_call(&mut self, call: Unsettled) -> Result<(), Fault> {
        self.check()?;
        let sequence = call.sequence;
        if let Err(fault) = self.waiter.wait_for_all(|record| has_come(record.descriptor(sequence), sequence)) {
            self.heed(&fault);
            return Err(fault);
        }
        self.unsettled = None;
        self.compare(call);
        Ok(())
    }

    /// Settles the call before this one, whose descriptor is written.
    fn settle_before(&mut self) -> Result<(), Fault> {
        self.settle().inspect_err(|fault| self.note(fault.outcome()))
    }

    /// Leaves this call before all have arrived.
    fn leave_unsettled(&mut self, own: Posted) {
        self.unsettled = Some(Unsettled { sequence: self.sequence, entry_id: self.entry_id, own });
    }

    /// Compares the calls of all ranks in the call before this one, if all have arrived there.
    fn compare_if_all_came(&mut self, call: Unsettled) {
        let records = self.member().records();
        let has_come = |peer: usize| has_come(records[peer].descriptor(call.sequence), call.sequence);
        if self.member().world.peers().all(has_come) {
            self.compare(call);
        }
    }

    /// Compares the calls of all ranks in a call at which all have arrived.
    fn compare(&mut self, call: Unsettled) {
        if !self.all_agree(&call.own, call.sequence) {
            self.note_of(call.entry_id, Outcome::Mismatch);
            self.differing_late = Some(PostedCall::of_all(self.member().records(), call.sequence));
        }
    }

    /// Returns how this generation ended, and the next one; `None` if it has not ended.
    pub(super) fn ended(&self) -> Result<Option<(Abort, Generation)>, Fault> {
        let Member { state, world, generation } = self.member();
        if state.forked() {
            return Err(Fault::Forked);
        }
        if state.has_parent() {
            // It has no next generation.
            return self.member().check().map(|()| None);
        }
        let Some(abort) = self.member().aborted() else { return Ok(None) };
        let Some(next) = state.next_round(*generation) else {
            // The loss is the reason why there is no next generation.
            state.pass_over_abort(*generation, world.rank());
            return Err(Fault::Aborted(self.member().aborted().unwrap_or(abort)));
        };
        Ok(Some((abort, next)))
    }

    /// Enters the generation `next`, and waits until every rank has done the same.
    pub(super) fn renew(&mut self, next: Generation) -> Result<(), Fault> {
        // The end has been told instead.
        (self.unsettled, self.differing, self.differing_late) = (None, None, None);
        (self.sequence, self.left) = (next.base(), None);
        let all = self.waiter.enter(next);
        if let Err(Fault::Left(rank)) = all {
            self.left = Some(rank);
        }
        all
    }

    /// Announces that this rank, a thread, makes no more calls in this generation.
    pub(super) fn leave_round(&mut self) {
        let Member { state, world, generation } = &self.waiter.member;
        self.left = Some(world.rank());
        state.leave_round(*generation, world.rank());
    }

    /// Begins the next generation of a group of threads, if all ranks have left this one and it was
    /// not ended.
    pub(super) fn begin_round(&mut self) -> bool {
        let Member { state, world, generation } = &mut self.waiter.member;
        let all_left = (0..world.size()).all(|rank| state.has_left(*generation, rank));
        if !all_left || state.aborted(*generation, world.rank()).is_some() {
            return false;
        }
        let Some(next) = Generation(generation.mark()).below_end() else { return false };
        *generation = next;
        (self.sequence, self.left) = (next.base(), None);
        state.forget(world.rank());
        state.say_begins_anew(world.rank());
        true
    }
}

/// Whether the rank of this descriptor has come to call `sequence`.
fn has_come(descriptor: &CallDescriptor, sequence: u64) -> bool {
    // SYNC POINT settle: what the rank read before it arrived may be overwritten now; pairs with
    // `publish`.
    Generation::reached(descriptor.sequence.load(Ordering::Acquire), sequence)
}
