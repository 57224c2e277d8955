//! One rank's place in a group.

use super::{
    abort::{Abort, Reason},
    aborter::Aborter,
    end::{End, LastCall},
    fault::Fault,
    place::Place,
    plan::{Ground, SLOTS},
    scratch::Addresses,
    staging::Stage,
    state::Hub,
};
use crate::shm::{
    Segment,
    call_log::{Outcome, Ring},
    records::{Card, PAYLOAD_BYTES, Round},
};
use consonance_spec::{Signature, World};
use std::{cell::Cell, io, ops::Range, ptr, sync::Arc, time::Duration};

/// One rank's place in a group: the permission to take part as that rank. There is one for each rank, and it is not cloned.
pub struct Seat {
    pub(crate) hub: Arc<Hub>,
    pub(crate) world: World,
    pub(crate) round: Round,
    pub(crate) epoch: u64,
    /// A rank that left: no step can be made any more, and this rank's cards are not written again.
    pub(super) left: Option<usize>,
    /// The ranks for which nobody waits while they rest.
    pub(super) company: Range<usize>,
    pub(super) timeout: Duration,
    /// How long this call has slept until peers came.
    pub(super) slept: Cell<Duration>,
    pub(crate) addresses: Addresses,
    /// Where this rank puts its data up, if its peers cannot read them where they lie.
    pub(crate) stage: Option<Stage>,
    /// Its place in the ring of this rank's last calls, if there is one.
    pub(super) ticket: u64,
}

impl Seat {
    /// Bytes that may ride along with an arrival in [`Seat::exchange`].
    pub const PAYLOAD_BYTES: usize = PAYLOAD_BYTES;

    /// The seats of a new group of `size` threads, in rank order.
    ///
    /// A rank that waits for peers longer than `timeout` in a [call](Seat::begin_call) ends the group.
    pub fn group(size: usize, timeout: Duration) -> Vec<Seat> {
        let hub = Hub::new(size);
        (0..size)
            .filter_map(|rank| World::new(rank, size))
            .map(|world| Seat::new(hub.clone(), world, Round::default(), timeout))
            .collect()
    }

    /// This process's seats in the group of all ranks of a segment: those of the ranks in `local`, which no other process takes.
    /// `cores` is how many the processes have together: if they are fewer than the ranks, who waits offers its core to others before
    /// it sleeps. `processes` has the number of each rank's process, 0 where it is not known: where the system allows it, the ranks
    /// read each other's memory. Without any they do not.
    ///
    /// # Panics
    /// If the segment has no such ranks, or one of them has its seat in this process already.
    pub fn in_segment(
        segment: &Arc<Segment>,
        local: Range<usize>,
        cores: usize,
        processes: &[u32],
        timeout: Duration,
    ) -> Vec<Seat> {
        let hub = Hub::of_segment(segment.clone(), local.clone(), cores, processes);
        let size = segment.shape().ranks();
        let world = |rank| World::new(rank, size).expect("a rank of the segment");
        local.clone().for_each(|rank| segment.ring(rank).claim());
        let seat = |rank| Seat::only(hub.clone(), world(rank), Round::default(), timeout);
        local.map(|rank| seat(rank).expect("a rank has one seat")).collect()
    }

    /// The seat of this rank in a group of processes; none while this process has another one of the rank there.
    pub(crate) fn only(hub: Arc<Hub>, world: World, round: Round, timeout: Duration) -> Option<Seat> {
        let is_free = hub.locals().expect("a group of processes").take_seat(world.rank());
        is_free.then(|| Seat::new(hub, world, round, timeout))
    }

    pub(crate) fn new(hub: Arc<Hub>, world: World, round: Round, timeout: Duration) -> Seat {
        let addresses = Addresses::new(world.size());
        let stage = hub.segment().map(|(_, area)| Stage::new(area, round));
        let (epoch, slept) = (round.base(), Cell::default());
        Seat { hub, world, round, epoch, left: None, company: 0..0, timeout, slept, addresses, stage, ticket: 0 }
    }

    /// This rank and the number of ranks.
    pub fn world(&self) -> World {
        self.world
    }

    /// How many steps this rank has begun.
    pub fn epoch(&self) -> u64 {
        Round::number_of(self.epoch)
    }

    /// How long a call waits for peers.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sets how long a call waits for peers, from the next step on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Begins a call of one or several steps: all together they wait for peers no longer than the timeout.
    pub fn begin_call(&mut self) {
        self.slept.set(Duration::ZERO);
    }

    /// A handle that can end the group from any thread.
    pub fn aborter(&self) -> Aborter {
        Aborter::new(self.hub.clone(), self.round, self.world.rank())
    }

    /// What the ways of this group's steps depend on.
    pub fn ground(&self) -> Ground {
        let slot_bytes = self.stage.as_ref().map(|_| self.slot_bytes());
        Ground { ranks: self.world.size(), slot_bytes, reads: self.stage.as_ref().is_some_and(Stage::reads) }
    }

    /// Bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.segment().staging_bytes(self.staging().area) / SLOTS
    }

    pub(super) fn staging(&self) -> &Stage {
        self.stage.as_ref().expect("a seat with a stage")
    }

    pub(super) fn segment(&self) -> &Segment {
        self.hub.segment().expect("a seat with a stage is in a segment").0
    }

    /// The step this rank is in, and the room for addresses.
    pub(crate) fn place(&mut self, signature: &Signature) -> (Place<'_>, &mut Addresses) {
        // A panic in the middle of an earlier step may have left some.
        self.addresses.sources.clear();
        self.addresses.targets.clear();
        let Seat { hub, world, round, epoch, stage, addresses, .. } = self;
        let Signature { kind, dtype, .. } = *signature;
        let place = Place { hub, world: *world, round: *round, epoch: *epoch, kind, dtype, enters: stage.is_none() };
        (place, addresses)
    }

    /// Every rank's card of this step, in rank order.
    pub(crate) fn cards(&self) -> impl Iterator<Item = &Card> {
        self.hub.lines().iter().map(|line| line.card(self.epoch))
    }

    /// Whether a step can begin. What touches the group's memory before it arrives asks first.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.hub.forked() {
            return Err(Fault::Forked);
        }
        if let Some(abort) = self.hub.aborted(self.round) {
            return Err(Fault::Aborted(abort));
        }
        self.left.map_or(Ok(()), |rank| Err(Fault::Left(rank)))
    }

    /// Notes how this rank's call ended.
    pub(crate) fn note(&self, outcome: Outcome) {
        if let Some(ring) = self.hub.ring(self.world.rank()) {
            ring.end(self.ticket, outcome);
        }
    }

    /// Ends the group because of what `rank` says, which cannot be.
    pub(crate) fn nonsense(&self, rank: usize) -> Fault {
        self.hub.abort(self.round, Abort { rank, reason: Reason::Failure });
        Fault::Nonsense(rank)
    }

    /// Ends the group because the system gave no memory for `bytes` of data.
    pub(crate) fn no_memory(&self, bytes: usize, error: &io::Error) -> Fault {
        self.hub.abort(self.round, Abort { rank: self.world.rank(), reason: Reason::Memory });
        Fault::NoMemory { bytes, code: error.raw_os_error() }
    }

    /// The rank that an error names where `rank` has left: that one or, if it left because it was told of another one, that other. This
    /// rank is told of it with that: whoever sees what this rank does because of it comes to the same name.
    pub fn blame(&self, rank: usize) -> usize {
        let culprit = self.hub.culprit(self.round, rank);
        self.hub.tell(self.world.rank(), self.hub.top_rank(culprit));
        culprit
    }

    /// Whether `rank` is of another process and will come to no call of the group that was split from none.
    pub fn is_lost(&self, rank: usize) -> bool {
        self.hub.is_lost(rank)
    }

    /// The number of `rank` in the group that was split from none.
    pub fn top_rank(&self, rank: usize) -> usize {
        self.hub.top_rank(rank)
    }

    /// What `rank` last called in this group. A racing look: for reports.
    pub fn last_call(&self, rank: usize) -> LastCall {
        // Of processes, calls from before the group was renewed are told of, too.
        let since = if self.stage.is_none() { self.round } else { Round::default() };
        LastCall::in_line(&self.hub.lines()[rank], since)
    }

    /// How this group was ended, if it was: this rank is told of it with that, as by [`Seat::blame`]. A racing look at the calls: for
    /// reports. A rank that was stopped as it arrived may show the call before.
    pub fn end(&self) -> Option<End> {
        let (abort, hub, round) = self.hub.end(self.round)?;
        let noted = |ring: &Ring| match ring.read().last() {
            Some(entry) => LastCall { number: entry.number, signature: entry.signature(), bytes: entry.bytes as usize },
            None => LastCall::default(),
        };
        let in_line = |rank: usize| LastCall::in_line(&hub.lines()[rank], round);
        let last = |rank: usize| hub.ring(rank).map_or_else(|| in_line(rank), noted);
        let calls = (0..hub.lines().len()).map(|rank| (hub.top_rank(rank), last(rank))).collect();
        self.hub.tell(self.world.rank(), hub.top_rank(abort.rank));
        Some(End { abort, inherited: !ptr::eq(hub, &*self.hub), is_lost: hub.is_lost(abort.rank), calls })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.hub.forked() {
            let rank = self.world.rank();
            // Before others hear that the place is free, and may take it in this process, too.
            if let Some(locals) = self.hub.locals() {
                locals.give_seat(rank);
            }
            self.hub.leave(self.round, rank);
        }
    }
}
