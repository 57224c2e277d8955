//! One rank's place in a group.

use super::{
    end::{abort::Fault, aborter::Aborter, witness::Witness},
    mail::Mail,
    measured,
    member::Member,
    participant::Participant,
    plan::{Path, Topology},
    posted_call::PostedCall,
    state::{GroupState, Key},
    step::Step,
    waiter::{KeepWaiting, Waiter},
};
use crate::{
    memory::HostMemory,
    shm::{
        Area, Segment,
        records::{FIRST_BYTES, Generation, PAYLOAD_BYTES},
    },
    tuning::Tuning,
};
use consonance_spec::{DType, Signature, World};
use std::{io, ops::Range, sync::Arc, time::Duration};

/// One rank's place in a group: the permission to take part as that rank. There is one for each
/// rank, and it is not cloned.
pub struct Endpoint {
    pub(crate) participant: Participant,
    mail: Option<Mail>,
}

impl Endpoint {
    /// Limit on the bytes of an inline payload of [`Step::exchange`].
    pub const PAYLOAD_BYTES: usize = PAYLOAD_BYTES;

    /// Returns the endpoints of a new group of `size` threads, in rank order.
    ///
    /// A rank that waits for peers longer than `timeout` in a [call](Endpoint::begin_call) ends the
    /// group.
    pub fn group(size: usize, timeout: Duration) -> Vec<Endpoint> {
        let state = GroupState::new(size);
        (0..size)
            .filter_map(|rank| World::new(rank, size))
            .map(|world| Endpoint::new(Waiter::new(Member::new(state.clone(), world), timeout)))
            .collect()
    }

    /// Returns this process's endpoints in the group of all ranks of a segment: those of the ranks
    /// in `local`, which no other process takes. `cores` is the number of cores of all processes
    /// together; 0: unknown, and a waiting rank sleeps at once. `processes` has the id of each
    /// rank's process, 0 where it is unknown: the ranks read each other's memory where the system
    /// allows it. If `processes` is empty, they do not.
    ///
    /// # Panics
    /// If the segment has no such ranks, or one of them has its endpoint in this process already.
    pub fn in_segment(
        segment: &Arc<Segment>,
        local: Range<usize>,
        cores: usize,
        processes: &[u32],
        timeout: Duration,
    ) -> Vec<Endpoint> {
        let state = GroupState::of_segment(segment.clone(), local.clone(), cores, processes);
        let size = segment.shape().ranks();
        let world = |rank| World::new(rank, size).expect("a rank of the segment");
        local.clone().for_each(|rank| segment.call_log(rank).claim());
        let endpoint = |rank| Endpoint::only(Waiter::new(Member::new(state.clone(), world(rank)), timeout));
        local.map(|rank| endpoint(rank).expect("a rank has one endpoint")).collect()
    }

    /// Returns the endpoint of this rank in a group of processes; `None` while this process has
    /// another endpoint of the rank there.
    fn only(waiter: Waiter) -> Option<Endpoint> {
        let Member { state, world, .. } = &waiter.member;
        let is_free = state.locals().expect("a group of processes").take_seat(world.rank());
        is_free.then(|| Endpoint::new(waiter))
    }

    fn new(waiter: Waiter) -> Endpoint {
        Endpoint { participant: Participant::new(waiter), mail: None }
    }

    /// Returns who this rank is.
    #[inline]
    pub(crate) fn member(&self) -> &Member {
        self.participant.member()
    }

    /// Returns this rank and the number of ranks.
    pub fn world(&self) -> World {
        self.member().world
    }

    /// Returns the number of steps that this rank has begun.
    pub fn sequence(&self) -> u64 {
        Generation::number_of(self.participant.meeting.sequence)
    }

    /// Returns how long a call waits for peers.
    pub fn timeout(&self) -> Duration {
        self.participant.meeting.waiter.timeout()
    }

    /// Sets how long a call waits for peers, from the next step on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.participant.meeting.waiter.set_timeout(timeout);
    }

    /// Asks `ask` about every 100 ms while this rank sleeps in a wait for peers, from the next step
    /// on. If it returns false, the wait ends, and so does the group.
    pub fn keep_waiting(&mut self, ask: KeepWaiting) {
        self.participant.meeting.waiter.keep_waiting = Some(ask);
    }

    /// Says for reports of other processes that this rank is on this GPU: its number in this
    /// process and the bytes of its UUID. In a group that was split off it says so of its rank
    /// among all ranks. There is no such report of a group of threads.
    pub fn say_gpu(&self, ordinal: usize, uuid: [u8; 16]) {
        let member = self.member();
        // A fork does not have the memory of the log.
        if !member.state.forked()
            && let Some(call_log) = member.call_log()
        {
            call_log.say_gpu(ordinal, uuid);
        }
    }

    /// Begins a call of one or several steps, which together wait for peers no longer than the
    /// timeout.
    pub fn begin_call(&mut self) {
        self.participant.meeting.waiter.begin_call();
    }

    /// Returns how long the current call, or else the last one, has slept while it waited for
    /// peers.
    pub fn waited(&self) -> Duration {
        self.participant.meeting.waiter.waited()
    }

    /// Adds a wait in another group to this call's.
    #[inline]
    pub fn add_wait(&mut self, waited: Duration) {
        self.participant.meeting.waiter.add_wait(waited);
    }

    /// Returns how the data of the last step went, if this was not asked since.
    pub fn take_path(&self) -> Path {
        // A step whose data are inline takes no time to say so.
        self.participant.path.take().unwrap_or(Path::Inline)
    }

    /// Returns a handle that can end the group from any thread.
    pub fn aborter(&self) -> Aborter {
        Aborter::new(self.member().clone())
    }

    /// Returns what this rank sees of the others, for reports from any thread.
    pub fn witness(&self) -> Witness {
        Witness::new(self.member().clone())
    }

    /// Returns the inputs of protocol selection for this group's steps.
    pub fn topology(&self) -> Topology {
        self.participant.topology()
    }

    /// Returns [`Topology::rides_to_all`]. The fewest bytes need no topology.
    #[inline]
    pub fn rides_to_all(&self, bytes: usize) -> bool {
        bytes <= FIRST_BYTES || self.topology().rides_to_all(bytes)
    }

    /// Returns the knobs of the group. Its knobs of processes are those of the time when the group
    /// was made.
    pub fn tuning(&self) -> &'static Tuning {
        self.participant.tuning
    }

    /// Allocates `count` elements, all zero, that every rank of this group can read and write in
    /// place when they are data of a step. Such data need not be copied in.
    ///
    /// Memory that peers can write only has types for which every bit pattern is valid: between
    /// processes, bools get private memory.
    ///
    /// # Errors
    /// The system's, when it has no memory. An error in a process made by `fork` after it joined
    /// the group.
    pub fn alloc(&self, dtype: DType, count: usize) -> io::Result<HostMemory> {
        self.member().alloc(dtype, count)
    }

    /// Begins a step in which all ranks agree on `signature`.
    #[inline]
    pub fn step<'e>(&'e mut self, signature: &'e Signature) -> Step<'e> {
        Step::new(&mut self.participant, signature)
    }

    /// Chooses a pipeline, if this rank's steps since it was asked last had data for which that
    /// matters: takes up to 30 ms, once. Ranks that make the same steps ask at the same places.
    ///
    /// # Errors
    /// See [`Fault`].
    #[inline]
    pub fn choose_pipeline(&mut self) -> Result<(), Fault> {
        if self.participant.is_to_choose() { measured::choose(&mut self.participant) } else { Ok(()) }
    }

    /// Settles this rank's last step, if it has left it before all ranks arrived: waits for them,
    /// and compares their calls. If these differ, [`Endpoint::take_differing_late`] has them; the
    /// group goes on. Every step does this.
    ///
    /// # Errors
    /// See [`Fault`].
    #[inline]
    pub fn settle(&mut self) -> Result<(), Fault> {
        self.participant.meeting.settle()
    }

    /// Whether this rank has left its last step before all ranks had arrived.
    pub fn is_unsettled(&self) -> bool {
        self.participant.meeting.is_unsettled()
    }

    /// Returns the calls of all ranks, in rank order, if the last step failed with
    /// [`Fault::Mismatch`] and a rank may have gone on: the ranks make no further step to compare
    /// them in words.
    pub fn take_differing(&mut self) -> Option<Vec<PostedCall>> {
        self.participant.meeting.take_differing()
    }

    /// Returns the calls of all ranks in an earlier step that this rank had left before all ranks
    /// arrived, if they differ.
    pub fn take_differing_late(&mut self) -> Option<Vec<PostedCall>> {
        self.participant.meeting.take_differing_late()
    }

    /// Begins the next generation of a group that was ended, unless a process died: waits until
    /// every rank has done the same. Groups that were split off remain ended. Does nothing if the
    /// group has not been ended.
    ///
    /// # Errors
    /// See [`Fault`]. On an error the new generation has ended, too, and may be followed by
    /// another.
    pub fn renew(&mut self) -> Result<(), Fault> {
        let Some((abort, next)) = self.participant.meeting.ended()? else { return Ok(()) };
        self.close_mail(&Fault::Aborted(abort));
        if let Some(staging) = &mut self.participant.staging {
            staging.renew(next);
        }
        self.participant.forget_choice();
        self.participant.meeting.renew(next)
    }

    /// Announces that this rank, a thread, makes no more calls in this generation: a rank that
    /// waits for it fails with [`Fault::Left`].
    ///
    /// # Panics
    /// If the group is one of processes.
    pub fn leave_round(&mut self) {
        assert!(self.participant.staging.is_none(), "a group of threads");
        self.close_mail(&Fault::Left(self.world().rank()));
        self.participant.meeting.leave_round();
    }

    /// Begins the next generation of a group of threads that was split from none, once all ranks
    /// have left this one. Returns false if a rank has not left, if there are no more generations,
    /// or if the group was ended.
    ///
    /// # Panics
    /// If the group is one of processes, or was split from another.
    pub fn begin_round(&mut self) -> bool {
        let has_parent = self.member().state.has_parent();
        assert!(self.participant.staging.is_none() && !has_parent, "a whole group of threads");
        self.participant.meeting.begin_round()
    }

    /// Marks this rank idle, or not: an idle rank makes no call before the ranks of `company`, of
    /// the same process, have ended theirs. A rank of `company` that waits for it fails with
    /// [`Fault::Left`] instead of timing out.
    pub fn set_idle(&mut self, company: Range<usize>, idle: bool) {
        self.participant.meeting.waiter.set_idle(company, idle);
    }

    /// Returns this rank's endpoint in the group of it and `peer`. Both must call this, once in a
    /// generation. No rank waits. The new group ends when this one does.
    ///
    /// # Panics
    /// If `peer` is this rank, or this rank has its endpoint in that group already.
    pub fn pair(&self, peer: usize) -> Result<Endpoint, Fault> {
        let member = self.member();
        let rank = member.world.rank();
        assert_ne!(peer, rank, "a pair of two");
        if member.state.forked() {
            return Err(Fault::Forked);
        }
        let members = [rank.min(peer), rank.max(peer)];
        let key = Key::Pair(member.generation.0, members[0], members[1]);
        match member.state.segment() {
            None => Ok(self.subgroup(key, &members)),
            Some((segment, area)) => {
                let area = segment.pair(area, members[0], members[1]);
                segment.reserve_area(area).map_err(|error| member.no_memory(segment.area_bytes(area), &error))?;
                Ok(self.seat_in(area, member.generation, &members).expect("a rank has one endpoint"))
            }
        }
    }

    /// Returns this rank's endpoint in the group of `members`, which are ranks of this group;
    /// `None` if this rank is not among them. Every rank of this group calls this at the same time,
    /// each with the members of its own new group. The new group ends when this one does.
    ///
    /// # Errors
    /// See [`Fault`].
    ///
    /// # Panics
    /// If the members are not different ranks of this group.
    pub fn split(&mut self, signature: &Signature, members: &[usize]) -> Result<Option<Endpoint>, Fault> {
        let world = self.world();
        let is_new = |(at, member): (usize, &usize)| !members[..at].contains(member);
        let are_ranks = members.iter().all(|&member| member < world.size()) && members.iter().enumerate().all(is_new);
        assert!(are_ranks, "{members:?} are different ranks of {}", world.size());
        let is_member = members.contains(&world.rank());
        if self.participant.staging.is_none() {
            return Ok(
                is_member.then(|| self.subgroup(Key::Split(self.participant.meeting.sequence, members[0]), members))
            );
        }
        self.participant.meeting.check()?;
        // The first member claims an area for the group, and sends its number to the others.
        let state = self.member().state.clone();
        let is_first = is_member && members[0] == world.rank();
        let claim = if is_first { state.claim(members.len()) } else { None };
        let told = claim.map_or([u64::MAX; 2], |claim| [claim.place as u64, claim.generation.0]);
        let signature = Signature { dtype: Some(DType::U64), ..*signature };
        let mut words = [0u64; 2];
        let heard = self.step(&signature).exchange(Some(told.as_slice().into()));
        let heard = heard.and_then(|payloads| match is_member {
            true => payloads.copy(members[0], 0, &mut words.as_mut_slice().into()),
            false => Ok(()),
        });
        if let Err(fault) = heard {
            // After any other fault a member may have received the area's number, and use it.
            if let (Some(claim), Fault::Mismatch | Fault::Left(_)) = (claim, &fault) {
                state.unclaim(claim);
            }
            return Err(fault);
        }
        if !is_member {
            return Ok(None);
        }
        let place = usize::try_from(words[0]).ok().filter(|&place| place < Segment::SPLITS);
        let (area, member) = (Area::Split(place.ok_or(Fault::TooManyGroups)?), self.member());
        let segment = member.segment();
        segment.reserve_area(area).map_err(|error| member.no_memory(segment.area_bytes(area), &error))?;
        let generation = Generation(words[1]).below_end().ok_or_else(|| member.corrupt(members[0]))?;
        // The area has no endpoint of this rank in this process, unless the first member sent a
        // wrong number.
        let endpoint = self.seat_in(area, generation, members).ok_or_else(|| member.corrupt(members[0]))?;
        Ok(Some(endpoint))
    }

    /// Returns the endpoint in the group of threads with this `key`.
    fn subgroup(&self, key: Key, members: &[usize]) -> Endpoint {
        let (member, world) = (self.member(), self.world_in(members));
        let state = member.state.child(member.generation, key, members, world.rank());
        Endpoint::new(self.participant.meeting.waiter.with(Member::new(state, world)))
    }

    /// Returns the endpoint in the group of processes in `area`; `None` while this process has
    /// another endpoint of the rank there.
    fn seat_in(&self, area: Area, generation: Generation, members: &[usize]) -> Option<Endpoint> {
        let (member, world) = (self.member(), self.world_in(members));
        let state = member.state.child_in(member.generation, area, members);
        let waiter = self.participant.meeting.waiter.with(Member { state, world, generation });
        let endpoint = Endpoint::only(waiter)?;
        endpoint.member().state.take(generation, world.rank());
        Some(endpoint)
    }

    fn world_in(&self, members: &[usize]) -> World {
        let own = self.world().rank();
        let rank = members.iter().position(|&member| member == own).expect("a member of the new group");
        World::new(rank, members.len()).expect("a position is below the length")
    }

    /// Returns the mailbox of this rank, the same each time until the group begins another
    /// generation.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn mail(&mut self) -> Result<Mail, Fault> {
        self.participant.meeting.check()?;
        let member = self.participant.member();
        Ok(self.mail.get_or_insert_with(|| Mail::new(member.clone())).clone())
    }

    /// Closes the mailbox of this generation.
    fn close_mail(&mut self, fault: &Fault) {
        if let Some(mail) = self.mail.take() {
            mail.close(fault);
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.member().state.forked() {
            return;
        }
        self.close_mail(&Fault::Left(self.world().rank()));
        let Member { state, world, generation } = self.member();
        // Before the others see that the rank has left: this process may then take the endpoint
        // again.
        if let Some(locals) = state.locals() {
            locals.give_seat(world.rank());
        }
        state.leave(*generation, world.rank());
    }
}
