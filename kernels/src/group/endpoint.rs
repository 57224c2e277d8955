//! One rank's place in a group.

use super::{
    call_context::{CallContext, corrupt},
    end::abort::{Abort, Fault, Reason},
    end::aborter::Aborter,
    end::witness::Witness,
    mail::Mail,
    plan::{Path, SLOTS, Topology},
    posted::{PostedCall, Unsettled},
    scratch::Addresses,
    staging::Staging,
    state::GroupState,
    waiting::KeepWaiting,
};
use crate::{
    shm::{
        Segment,
        call_log::Outcome,
        records::{CallDescriptor, FIRST_BYTES, Generation, PAYLOAD_BYTES},
    },
    tuning::Tuning,
};
use consonance_spec::{Signature, World};
use std::{cell::Cell, io, ops::Range, sync::Arc, time::Duration};

/// One rank's place in a group: the permission to take part as that rank. There is one for each
/// rank, and it is not cloned.
pub struct Endpoint {
    pub(crate) state: Arc<GroupState>,
    pub(crate) world: World,
    pub(crate) generation: Generation,
    pub(crate) sequence: u64,
    /// The knobs of the group.
    pub(super) tuning: &'static Tuning,
    /// A rank that left: no further step is possible, and this rank's descriptors are not written
    /// again.
    pub(super) left: Option<usize>,
    /// The ranks of this process for which this rank does not wait while they are idle.
    pub(super) company: Range<usize>,
    pub(super) timeout: Duration,
    /// How long this call has slept while it waited for peers.
    pub(super) slept: Cell<Duration>,
    /// How the data of the last step went that shared memory, until somebody asks.
    pub(crate) path: Cell<Option<Path>>,
    pub(crate) addresses: Addresses,
    /// Where this rank copies in its data, if its peers cannot read them in place.
    pub(crate) staging: Option<Staging>,
    /// The entry of the current call in this rank's call log, if there is one.
    pub(super) entry_id: u64,
    /// The last call of this rank, if it has not compared all descriptors of it.
    pub(super) unsettled: Option<Unsettled>,
    /// The calls of all ranks, if they differ and a rank has left the call before all arrived: of
    /// this call, and of an earlier call of which this rank was not told yet.
    pub(super) differing: Option<Vec<PostedCall>>,
    pub(super) differing_late: Option<Vec<PostedCall>>,
    mail: Option<Mail>,
    /// What a wait of this rank asks now and then.
    pub(super) keep_waiting: Option<KeepWaiting>,
}

impl Endpoint {
    /// Limit on the bytes of an inline payload of [`Endpoint::exchange`].
    pub const PAYLOAD_BYTES: usize = PAYLOAD_BYTES;

    /// Returns the endpoints of a new group of `size` threads, in rank order.
    ///
    /// A rank that waits for peers longer than `timeout` in a [call](Endpoint::begin_call) ends the
    /// group.
    pub fn group(size: usize, timeout: Duration) -> Vec<Endpoint> {
        let state = GroupState::new(size);
        (0..size)
            .filter_map(|rank| World::new(rank, size))
            .map(|world| Endpoint::new(state.clone(), world, Generation::default(), timeout))
            .collect()
    }

    /// Returns this process's endpoints in the group of all ranks of a segment: those of the ranks
    /// in `local`, which no other process takes. `cores` is the number of cores of all processes
    /// together: if there are fewer cores than ranks, a waiting rank yields its core before it
    /// sleeps. `processes` has the id of each rank's process, 0 where it is unknown: the ranks read
    /// each other's memory where the system allows it. If `processes` is empty, they do not.
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
        let endpoint = |rank| Endpoint::only(state.clone(), world(rank), Generation::default(), timeout);
        local.map(|rank| endpoint(rank).expect("a rank has one endpoint")).collect()
    }

    /// Returns the endpoint of this rank in a group of processes; `None` while this process has
    /// another endpoint of the rank there.
    pub(crate) fn only(
        state: Arc<GroupState>,
        world: World,
        generation: Generation,
        timeout: Duration,
    ) -> Option<Endpoint> {
        let is_free = state.locals().expect("a group of processes").take_seat(world.rank());
        is_free.then(|| Endpoint::new(state, world, generation, timeout))
    }

    pub(crate) fn new(state: Arc<GroupState>, world: World, generation: Generation, timeout: Duration) -> Endpoint {
        let addresses = Addresses::new(world.size());
        let staging = state.segment().map(|(_, area)| Staging::new(area, generation));
        let (sequence, slept, tuning) = (generation.base(), Cell::default(), state.tuning);
        state.say_timeout(world.rank(), timeout);
        Endpoint {
            state,
            world,
            generation,
            sequence,
            tuning,
            left: None,
            company: 0..0,
            timeout,
            slept,
            path: Cell::default(),
            addresses,
            staging,
            entry_id: 0,
            unsettled: None,
            differing: None,
            differing_late: None,
            mail: None,
            keep_waiting: None,
        }
    }

    /// Returns this rank and the number of ranks.
    pub fn world(&self) -> World {
        self.world
    }

    /// Returns the number of steps that this rank has begun.
    pub fn sequence(&self) -> u64 {
        Generation::number_of(self.sequence)
    }

    /// Returns how long a call waits for peers.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sets how long a call waits for peers, from the next step on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        if self.timeout != timeout {
            self.timeout = timeout;
            self.state.say_timeout(self.world.rank(), timeout);
        }
    }

    /// Asks `ask` about every 100 ms while this rank sleeps in a wait for peers, from the next step
    /// on. If it returns false, the wait ends, and so does the group.
    pub fn keep_waiting(&mut self, ask: KeepWaiting) {
        self.keep_waiting = Some(ask);
    }

    /// Begins a call of one or several steps, which together wait for peers no longer than the
    /// timeout.
    pub fn begin_call(&mut self) {
        self.slept.set(Duration::ZERO);
    }

    /// Returns how long the current call, or else the last one, has slept while it waited for
    /// peers.
    pub fn waited(&self) -> Duration {
        self.slept.get()
    }

    /// Returns how the data of the last step went, if this was not asked since.
    pub fn take_path(&self) -> Path {
        // A step whose data are inline takes no time to say so.
        self.path.take().unwrap_or(Path::Inline)
    }

    /// Adds a wait in another group to this call's.
    #[inline]
    pub fn add_wait(&mut self, waited: Duration) {
        self.slept.set(self.slept.get() + waited);
    }

    /// Returns a handle that can end the group from any thread.
    pub fn aborter(&self) -> Aborter {
        Aborter::new(self.state.clone(), self.generation, self.world.rank())
    }

    /// Returns the inputs of protocol selection for this group's steps.
    pub fn topology(&self) -> Topology {
        let slot_bytes = self.staging.as_ref().map(|_| self.slot_bytes());
        let reads = self.staging.as_ref().is_some_and(Staging::reads);
        Topology { ranks: self.world.size(), slot_bytes, reads, tuning: self.tuning }
    }

    /// Returns [`Topology::rides_to_all`]. The fewest bytes need no topology.
    #[inline]
    pub fn rides_to_all(&self, bytes: usize) -> bool {
        bytes <= FIRST_BYTES || self.topology().rides_to_all(bytes)
    }

    /// Returns the knobs of the group. Its knobs of processes are those of the time when the group
    /// was made.
    pub fn tuning(&self) -> &'static Tuning {
        self.tuning
    }

    /// Returns the bytes of a staging slot.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.segment().staging_bytes(self.staging().area) / SLOTS
    }

    pub(super) fn staging(&self) -> &Staging {
        self.staging.as_ref().expect("an endpoint with a staging")
    }

    pub(super) fn segment(&self) -> &Segment {
        self.state.segment().expect("an endpoint with a staging is in a segment").0
    }

    /// Returns the context of this rank's current step, and the buffers for addresses.
    pub(crate) fn context(&mut self, signature: &Signature) -> (CallContext<'_>, &mut Addresses) {
        // A panic in the middle of an earlier step may have left some addresses.
        self.addresses.sources.clear();
        self.addresses.targets.clear();
        let Endpoint { state, world, generation, sequence, staging, addresses, .. } = self;
        let Signature { kind, dtype, .. } = *signature;
        let context = CallContext {
            state,
            world: *world,
            generation: *generation,
            sequence: *sequence,
            kind,
            dtype,
            enters: staging.is_none(),
        };
        (context, addresses)
    }

    /// Returns every rank's descriptor of this step, in rank order.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = &CallDescriptor> {
        self.state.records().iter().map(|record| record.descriptor(self.sequence))
    }

    /// Checks that a step can begin. Code that touches the group's memory before it arrives calls
    /// this first.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.state.forked() {
            return Err(Fault::Forked);
        }
        if let Some(abort) = self.state.aborted(self.generation) {
            return Err(Fault::Aborted(abort));
        }
        self.left.map_or(Ok(()), |rank| Err(Fault::Left(rank)))
    }

    /// Logs how this rank's call ended.
    #[inline]
    pub(crate) fn note(&self, outcome: Outcome) {
        self.note_of(self.entry_id, outcome);
    }

    /// Logs how the call of this entry ended.
    #[inline]
    pub(super) fn note_of(&self, entry_id: u64, outcome: Outcome) {
        if let Some(call_log) = self.state.call_log(self.world.rank()) {
            call_log.end(entry_id, outcome);
        }
    }

    /// Ends the group because `rank` wrote values that no correct rank writes.
    pub(crate) fn nonsense(&self, rank: usize) -> Fault {
        corrupt(&self.state, self.generation, rank)
    }

    /// Ends the group because the system gave no memory for `bytes` of data.
    pub(crate) fn no_memory(&self, bytes: usize, error: &io::Error) -> Fault {
        self.state.abort(self.generation, Abort { rank: self.world.rank(), reason: Reason::Memory });
        Fault::NoMemory { bytes, code: error.raw_os_error() }
    }

    /// Returns what this rank sees of the others, for reports from any thread.
    pub fn witness(&self) -> Witness {
        Witness::new(self.state.clone(), self.generation, self.world)
    }

    /// Returns the mailbox of this rank, the same each time until the group begins another
    /// generation.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn mail(&mut self) -> Result<Mail, Fault> {
        self.check()?;
        let mail = || Mail::new(self.state.clone(), self.world, self.generation);
        Ok(self.mail.get_or_insert_with(mail).clone())
    }

    /// Closes the mailbox of this generation.
    pub(super) fn close_mail(&mut self, fault: &Fault) {
        if let Some(mail) = self.mail.take() {
            mail.close(fault);
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if !self.state.forked() {
            let rank = self.world.rank();
            self.close_mail(&Fault::Left(rank));
            // Before the others see that the rank has left: this process may then take the endpoint
            // again.
            if let Some(locals) = self.state.locals() {
                locals.give_seat(rank);
            }
            self.state.leave(self.generation, rank);
        }
    }
}
