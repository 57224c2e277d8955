//! How ranks meet and share memory: the protocol under every collective of one host.
//!
//! # The protocol
//!
//! A *step* is one call of all ranks of a group. Each rank has a line that it alone writes (`line.rs`).
//!
//! 1. **Arrive.** The rank writes its card (fingerprint of the call, sizes, a payload or the address of its memory), then the
//!    call's number, and wakes those who sleep for it. It waits until every card has that number.
//! 2. **Agree.** Every rank compares every peer's card with what it wrote in its own. If any two differ, each rank differs from one
//!    of them, so all come to the same verdict: no rank touches any memory, and all of them report [`Fault::Mismatch`].
//! 3. **Work.** The kind of step says what each element of the shared memory is in this phase: *published* (nobody writes it,
//!    all may read it: [`Seat::published`]) or *private* to one rank ([`Seat::divided`]: block `r` of all buffers belongs to
//!    rank `r`). The kind is part of what ranks compare, so they cannot disagree on it.
//! 4. **Depart.** A rank that shared memory waits until every rank has said that it is done. One that shared nothing goes on.
//!
//! A rank moves its own state only: *away* → *arrived* (1) → *inside* a chunk of others' memory (3) → *done* (4) → away.
//!
//! Ranks of different processes do the same, but cannot read each other's buffers: they put their data up in memory that all of
//! them map, a window at a time. `stage.rs` tells how.
//!
//! An abort ends a *round* of the group. The ranks may then begin the next ([`Seat::renew`]): each says which round it is in,
//! and writes nothing else before all have come.
//!
//! # The races, by name
//!
//! * **Early next call.** A fast rank arrives at the next call while a slow one still reads this call's card: cards alternate.
//! * **Sleep against ring.** See `wait.rs`: a sleeper announces itself, fences and looks once more; who
//!   publishes fences and then looks for sleepers. One of the two sees the other.
//! * **Leave against enter.** A rank that gives up (deadline, abort, panic) must not return while others are in its memory. It
//!   sets the abort word and then waits until no rank is inside; a rank says *inside*, fences and then looks at the abort word,
//!   once a chunk. One of the two sees the other, so the wait is bounded by the time of a chunk.
//!   A rank of another process may be stopped in the middle of a chunk, or dead: after a while the rank that gives up puts other
//!   pages in the place of those that the other could still write.
//! * **Return against wait.** A rank that leaves for good says so; who waits for it looks once more at its card and then
//!   reports [`Fault::Left`]. Nobody begins to work in that step, because the missing card will never come.
//! * **Place claimed twice.** Groups that processes split off begin in places that others have left. A place's word counts its
//!   groups, so that who claims it by a word that is out of date fails.

pub use crate::hub::{Abort, Reason};
use crate::{
    atomics::{Ordering, fence},
    buffer::{Buf, BufMut},
    flow::{Distance, Flow, Volume},
    hub::{Hub, Key},
    line::{self, Arrival, Card, FIRST_BYTES, Line, PAYLOAD_BYTES, Round},
    phase::{Data, Payloads, Peers, Place, chunks},
    plan::{self, Access, BORDER_BYTES, Cut, Ground, Step},
    reduce::Reducer,
    ring::{Outcome, Ring},
    segment::{Area, Segment},
    stage::Stage,
    trade,
};
use consonance_spec::{DType, Signature, World, partition};
use std::{
    io,
    ops::Range,
    ptr,
    sync::Arc,
    time::{Duration, Instant},
};

/// Why a step did not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not all ranks called the same. All of them see this, none has touched any memory, and the group still works.
    Mismatch,
    /// This rank has left for good, so that every later step ends the same.
    Left(usize),
    /// These ranks had not come this far when the deadline passed. The group has ended.
    Missing(Vec<usize>),
    /// The group had been ended by a rank.
    Aborted(Abort),
    /// The system gave no memory to put data up for other processes. The group has ended.
    NoMemory {
        /// How much it was asked for.
        bytes: usize,
        /// The system's own number of the error.
        code: Option<i32>,
    },
    /// What this rank says of its call cannot be: its process wrote where it must not. The group has ended.
    Nonsense(usize),
    /// This process is a copy, made by `fork`, of the one that has the seat.
    Forked,
    /// As many groups are split off as there is room for. All members of the new one see this, and the group still works.
    NoRoom,
}

impl Fault {
    fn outcome(&self) -> Outcome {
        match self {
            Fault::Mismatch => Outcome::Mismatch,
            Fault::Left(_) => Outcome::Left,
            Fault::Missing(_) => Outcome::Missing,
            Fault::Aborted(_) | Fault::NoMemory { .. } | Fault::Nonsense(_) | Fault::Forked | Fault::NoRoom => {
                Outcome::Aborted
            }
        }
    }
}

/// What a rank last said of its calls.
#[derive(Clone, Copy, Debug)]
pub struct LastCall {
    /// How many calls it has begun in this group.
    pub number: u64,
    /// The last one, without its count; `None` if it made no call yet.
    pub signature: Option<Signature>,
    /// Bytes of its own data in that call.
    pub bytes: usize,
}

impl LastCall {
    fn in_line(line: &Line) -> LastCall {
        let card = [line.card(0), line.card(1)].into_iter().max_by_key(|card| card.epoch()).expect("two cards");
        let signature = Signature::read_code(card.head() & CODE_MASK).filter(|_| card.epoch() > 0);
        LastCall { number: Round::number_of(card.epoch()), signature, bytes: card.bytes() }
    }
}

/// How a group was ended: alone, or with one that it was split from.
#[derive(Clone, Debug)]
pub struct End {
    /// Who ended it, and why.
    pub abort: Abort,
    /// Whether it is one that the group was split from: that one's ranks are told of, by their numbers there.
    pub inherited: bool,
    /// Of each rank its number in the group that was split from none, and what it last called: of threads in the group that was
    /// ended, of processes in any.
    pub calls: Vec<(usize, LastCall)>,
}

/// Who receives the result of [`Seat::divided`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Every rank.
    All,
    /// Each rank its own block.
    Own,
    /// One rank.
    Root(usize),
}

impl Targets {
    /// Whether this rank receives in the whole of its output.
    pub(crate) fn reach(self, rank: usize) -> bool {
        match self {
            Targets::All => true,
            Targets::Own => false,
            Targets::Root(root) => rank == root,
        }
    }
}

/// One rank's place in a group: the permission to take part as that rank. There is one for each rank, and it is not cloned.
pub struct Seat {
    pub(crate) hub: Arc<Hub>,
    pub(crate) world: World,
    pub(crate) round: Round,
    pub(crate) epoch: u64,
    /// A rank that left: no step can be made any more, and this rank's cards are not written again.
    left: Option<usize>,
    /// The ranks for which nobody waits while they rest.
    company: Range<usize>,
    timeout: Duration,
    pub(crate) addresses: Addresses,
    /// Where this rank puts its data up, if its peers cannot read them where they lie.
    pub(crate) stage: Option<Stage>,
    /// Its place in the ring of this rank's last calls, if there is one.
    ticket: u64,
}

/// Room for the addresses of all ranks' buffers, so that a step allocates nothing.
pub(crate) struct Addresses {
    /// Where each rank's input lies in this step; null where it cannot be read.
    pub(crate) inputs: Vec<*const u8>,
    /// Where each rank's output lies in this step; null where there is none.
    pub(crate) outputs: Vec<*mut u8>,
    pub(crate) sources: Vec<*const u8>,
    pub(crate) targets: Vec<*mut u8>,
    /// What data each rank has in this step, and where they lie.
    pub(crate) data: Vec<Data>,
    /// Room for what is read of other processes.
    pub(crate) scratch: Vec<u64>,
    /// This rank's payload, if it has up to [`FIRST_BYTES`].
    pub(crate) own: Few,
}

/// A payload of up to [`FIRST_BYTES`], with room for whole small tiles.
pub(crate) type Few = [u8; FIRST_BYTES + Reducer::SMALL_BYTES];

impl Addresses {
    fn new(size: usize) -> Addresses {
        let (inputs, outputs) = (Vec::with_capacity(size), Vec::with_capacity(size));
        let (sources, targets) = (Vec::with_capacity(size), Vec::with_capacity(size + 1));
        let (data, scratch, own) = (Vec::with_capacity(size), Vec::new(), [0; _]);
        Addresses { inputs, outputs, sources, targets, data, scratch, own }
    }
}

// SAFETY: the addresses mean something only within a step, which one thread makes; between steps the vectors are empty.
unsafe impl Send for Addresses {}

/// Ends a group from any thread, without waiting.
#[derive(Clone)]
pub struct Aborter {
    hub: Arc<Hub>,
    round: Round,
    rank: usize,
}

impl Aborter {
    /// Ends the group, and those split from it, in the name of this rank: every rank that waits in it, or calls anything in
    /// it later, gets [`Fault::Aborted`]. The first to say so wins.
    pub fn abort(&self, reason: Reason) {
        if !self.hub.forked() {
            self.hub.abort(self.round, Abort { rank: self.rank, reason });
        }
    }

    /// Who ended the group, if somebody has; nobody, as far as a fork can tell.
    pub fn aborted(&self) -> Option<Abort> {
        if self.hub.forked() { None } else { self.hub.aborted(self.round) }
    }

    /// Says that the process of `ranks` takes part no more, and why. If they had not all left before, this ends the group for
    /// good.
    pub fn lose(&self, ranks: Range<usize>, reason: Reason) {
        self.hub.lose(ranks, reason);
    }
}

impl Seat {
    /// Bytes that may ride along with an arrival in [`Seat::exchange`].
    pub const PAYLOAD_BYTES: usize = PAYLOAD_BYTES;

    /// The seats of a new group of `size` threads, in rank order.
    ///
    /// A rank that waits for a peer longer than `timeout` ends the group.
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
    /// If the segment has no such ranks.
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
        local.map(|rank| Seat::new(hub.clone(), world(rank), Round::default(), timeout)).collect()
    }

    fn new(hub: Arc<Hub>, world: World, round: Round, timeout: Duration) -> Seat {
        let addresses = Addresses::new(world.size());
        let stage = hub.segment().map(|(_, area)| Stage::new(area, round));
        Seat { hub, world, round, epoch: round.base(), left: None, company: 0..0, timeout, addresses, stage, ticket: 0 }
    }

    /// This rank's seat in the group that it and `peer` have for themselves: both must ask for it, and once in a round. No rank
    /// waits. The new group ends when this one does.
    ///
    /// # Panics
    /// If `peer` is this rank, or this rank has its seat in that group already.
    pub fn pair(&self, peer: usize) -> Result<Seat, Fault> {
        let rank = self.world.rank();
        assert_ne!(peer, rank, "a pair of two");
        if self.hub.forked() {
            return Err(Fault::Forked);
        }
        let members = [rank.min(peer), rank.max(peer)];
        let key = Key::Pair(self.round.0, members[0], members[1]);
        match self.hub.segment() {
            None => Ok(self.subgroup(key, &members)),
            Some((segment, area)) => {
                let area = segment.pair(area, members[0], members[1]);
                segment.reserve_area(area).map_err(|error| self.no_memory(segment.area_bytes(area), &error))?;
                Ok(self.seat_in(area, self.round, &members))
            }
        }
    }

    /// This rank's seat in the group of `members`, which are ranks of this group; none if it is not among them. Every rank of
    /// this group calls this at the same time, each with the members of its own new group. The new group ends when this one
    /// does.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn split(&mut self, signature: &Signature, members: &[usize]) -> Result<Option<Seat>, Fault> {
        let member = members.contains(&self.world.rank());
        if self.hub.segment().is_none() {
            return Ok(member.then(|| self.subgroup(Key::Split(self.epoch, members[0]), members)));
        }
        self.check()?;
        // The first member finds a place for the group; the others hear of it.
        let first = member && members[0] == self.world.rank();
        let claim = if first { self.hub.claim(members.len()) } else { None };
        let told = claim.map_or([u64::MAX; 2], |claim| [claim.place as u64, claim.round.0]);
        let signature = Signature { dtype: Some(DType::U64), ..*signature };
        let mut words = [0u64; 2];
        let heard = self.exchange(&signature, Some(told.as_slice().into()));
        let heard = heard.and_then(|payloads| match member {
            true => payloads.copy(members[0], 0, &mut words.as_mut_slice().into()),
            false => Ok(()),
        });
        if let Err(fault) = heard {
            // After another fault a member may have heard of the place, and be there.
            if let (Some(claim), Fault::Mismatch | Fault::Left(_)) = (claim, &fault) {
                self.hub.unclaim(claim);
            }
            return Err(fault);
        }
        if !member {
            return Ok(None);
        }
        let place = usize::try_from(words[0]).ok().filter(|&place| place < Segment::SPLITS).ok_or(Fault::NoRoom)?;
        let (segment, _) = self.hub.segment().expect("checked above");
        let area = Area::Split(place);
        segment.reserve_area(area).map_err(|error| self.no_memory(segment.area_bytes(area), &error))?;
        Ok(Some(self.seat_in(area, Round(words[1]), members)))
    }

    /// The seat in the group of threads that is known by `key`.
    fn subgroup(&self, key: Key, members: &[usize]) -> Seat {
        let world = self.world_in(members);
        let hub = self.hub.child(self.round, key, members, world.rank());
        Seat::new(hub, world, Round::default(), self.timeout)
    }

    /// The seat in the group of processes in `area`.
    fn seat_in(&self, area: Area, round: Round, members: &[usize]) -> Seat {
        let world = self.world_in(members);
        let hub = self.hub.child_in(self.round, area, round, members, world.rank());
        Seat::new(hub, world, round, self.timeout)
    }

    fn world_in(&self, members: &[usize]) -> World {
        let rank = members.iter().position(|&member| member == self.world.rank()).expect("a member of the new group");
        World::new(rank, members.len()).expect("a position is below the length")
    }

    /// Begins the next round of a group that was ended, unless a process died: waits until every rank has done the same.
    /// Groups that were split off remain ended. Does nothing where the group has not been ended.
    ///
    /// # Errors
    /// See [`Fault`]. The new round has ended too, then, and may be followed by another.
    pub fn renew(&mut self) -> Result<(), Fault> {
        if self.hub.forked() {
            return Err(Fault::Forked);
        }
        let Some(abort) = self.hub.aborted(self.round) else { return Ok(()) };
        let round = self.hub.next_round(self.round).ok_or(Fault::Aborted(abort))?;
        (self.round, self.epoch, self.left) = (round, round.base(), None);
        if let Some(stage) = &mut self.stage {
            stage.renew(round);
        }
        // SYNC POINT round: who sees a rank in this round sees that it reads nothing of the last one any more; pairs below.
        self.hub.lines()[self.world.rank()].progress.round.store(round.0, Ordering::Release);
        self.wake();
        // SYNC POINT round: pairs above.
        let all = self.wait_for_all(|line| line.progress.round.load(Ordering::Acquire) >= round.0);
        if let Err(Fault::Left(rank)) = all {
            self.left = Some(rank);
        }
        all?;
        // Only now: until it is in this round, a rank may still look for the counts by which it finishes a call of the last one.
        let progress = &self.hub.lines()[self.world.rank()].progress;
        for count in [&progress.done, &progress.staged, &progress.folded, &progress.read] {
            count.store(round.base(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Says whether this rank rests: it makes no call before `company`, ranks of the same process, have ended theirs. One of
    /// them that waits for it is told that it has left.
    pub fn rest(&mut self, company: Range<usize>, resting: bool) {
        self.company = company;
        if self.hub.forked() {
            return;
        }
        // SYNC POINT rest: who sees that this rank rests sees how far it had come; pairs with `has_left`.
        self.hub.lines()[self.world.rank()].progress.resting.store(resting.into(), Ordering::Release);
        if resting {
            self.company.clone().for_each(|rank| self.hub.wake(rank));
        }
    }

    /// Whether `rank` will not come to this call.
    fn has_left(&self, rank: usize) -> bool {
        // SYNC POINT rest: pairs with `rest`.
        let rests = || self.hub.lines()[rank].progress.resting.load(Ordering::Acquire) != 0;
        self.hub.has_left(self.round, rank) || (self.company.contains(&rank) && rests())
    }

    /// Ends the group because the system gave no memory for `bytes` of data.
    pub(crate) fn no_memory(&self, bytes: usize, error: &io::Error) -> Fault {
        self.hub.abort(self.round, Abort { rank: self.world.rank(), reason: Reason::Memory });
        Fault::NoMemory { bytes, code: error.raw_os_error() }
    }

    /// This rank and the number of ranks.
    pub fn world(&self) -> World {
        self.world
    }

    /// Whether `rank` is of another process and will come to no call of the group that was split from none.
    pub fn is_lost(&self, rank: usize) -> bool {
        !self.hub.is_local(rank) && self.hub.has_left_for_good(rank)
    }

    /// The number of `rank` in the group that was split from none.
    pub fn top_rank(&self, rank: usize) -> usize {
        self.hub.top_rank(rank)
    }

    /// What the ways of this group's steps depend on.
    pub fn ground(&self) -> Ground {
        let slot_bytes = self.stage.as_ref().map(|_| self.slot_bytes());
        Ground { ranks: self.world.size(), slot_bytes, reads: self.stage.as_ref().is_some_and(Stage::reads) }
    }

    /// Every rank's card of this step, in rank order.
    pub(crate) fn cards(&self) -> impl Iterator<Item = &Card> {
        self.hub.lines().iter().map(|line| line.card(self.epoch))
    }

    /// How many steps this rank has begun.
    pub fn epoch(&self) -> u64 {
        Round::number_of(self.epoch)
    }

    /// How long a step waits for a peer.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sets how long a step waits for a peer, from the next step on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// A handle that can end the group from any thread.
    pub fn aborter(&self) -> Aborter {
        Aborter { hub: self.hub.clone(), round: self.round, rank: self.world.rank() }
    }

    /// What `rank` last called in this group. A racing look: for reports.
    pub fn last_call(&self, rank: usize) -> LastCall {
        LastCall::in_line(&self.hub.lines()[rank])
    }

    /// How this group was ended, if it was. A racing look at the calls: for reports. A rank that was stopped as it arrived may show the
    /// call before.
    pub fn end(&self) -> Option<End> {
        let (abort, hub) = self.hub.end(self.round)?;
        let noted = |ring: &Ring| match ring.read().last() {
            Some(entry) => LastCall { number: entry.number, signature: entry.signature(), bytes: entry.bytes as usize },
            None => LastCall { number: 0, signature: None, bytes: 0 },
        };
        let last = |rank: usize| hub.ring(rank).map_or_else(|| LastCall::in_line(&hub.lines()[rank]), noted);
        let calls = (0..hub.lines().len()).map(|rank| (hub.top_rank(rank), last(rank))).collect();
        Some(End { abort, inherited: !ptr::eq(hub, &*self.hub), calls })
    }

    /// A step whose data rides along with the arrivals: no memory is shared, and nobody waits for the others' reading.
    ///
    /// The result shows every rank's payload, until this rank's next step.
    ///
    /// # Errors
    /// See [`Fault`].
    ///
    /// # Panics
    /// If the payload has more than [`Seat::PAYLOAD_BYTES`] bytes, or is not of the signature's dtype.
    pub fn exchange(&mut self, signature: &Signature, payload: Option<Buf<'_>>) -> Result<Payloads<'_>, Fault> {
        self.exchange_expecting(signature, payload, payload.map_or(0, |buf| buf.bytes()))
    }

    /// [`exchange`](Seat::exchange) of a rank that expects another payload than one like its own: where there is one peer, of so many
    /// bytes, or up to so many. A matter of speed alone.
    ///
    /// # Errors
    /// As [`exchange`](Seat::exchange).
    ///
    /// # Panics
    /// As [`exchange`](Seat::exchange).
    pub fn exchange_expecting(
        &mut self,
        signature: &Signature,
        payload: Option<Buf<'_>>,
        expected: usize,
    ) -> Result<Payloads<'_>, Fault> {
        self.exchange_while(signature, payload, expected, || ()).map(|((), payloads)| payloads)
    }

    /// [`exchange_expecting`](Seat::exchange_expecting), with something to do until the others' cards are here.
    ///
    /// # Errors
    /// As [`exchange`](Seat::exchange).
    ///
    /// # Panics
    /// As [`exchange`](Seat::exchange).
    // In its caller, which else would move what it returns: that was just written in parts, and takes longer to read than to write.
    #[inline(always)]
    pub fn exchange_while<R>(
        &mut self,
        signature: &Signature,
        payload: Option<Buf<'_>>,
        expected: usize,
        meanwhile: impl FnOnce() -> R,
    ) -> Result<(R, Payloads<'_>), Fault> {
        let bytes = payload.map_or(0, |buf| buf.bytes());
        assert!(bytes <= PAYLOAD_BYTES, "payload of {bytes} bytes");
        assert!(payload.is_none_or(|payload| Some(payload.dtype()) == signature.dtype), "payload of {signature}");
        let payload = match &payload {
            // SAFETY: a `Buf` is valid for reads of its bytes while it is borrowed, and no element type has padding.
            Some(buf) => unsafe { std::slice::from_raw_parts(buf.as_ptr(), bytes) },
            None => &[],
        };
        let (access, none) = (Step::Exchange.access(), (ptr::null(), ptr::null_mut()));
        let made = self.arrive(signature, access, bytes, (payload, expected), none, meanwhile)?;
        let (place, addresses) = self.place(signature);
        let Addresses { sources, own, .. } = addresses;
        Ok((made, Payloads { place, sources, own, own_bytes: bytes }))
    }

    /// A step in which each rank's `input` is published: nobody writes it, all may read it.
    ///
    /// `work` may be called several times, each time with another part of the data: see [`Peers`]. All ranks give the same `cut`;
    /// of blocks for each rank a rank reads its own only.
    ///
    /// # Errors
    /// See [`Fault`], or what `work` returns.
    ///
    /// # Panics
    /// If the input is not of the signature's dtype.
    pub fn published(
        &mut self,
        signature: &Signature,
        input: Option<Buf<'_>>,
        cut: Cut,
        mut work: impl FnMut(&mut Peers<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        assert!(input.is_none_or(|input| Some(input.dtype()) == signature.dtype), "input of {signature}");
        let (bytes, address) = input.map_or((0, ptr::null()), |buf| (buf.bytes(), buf.as_ptr()));
        let step = Step::Published(cut);
        if self.stage.is_some() {
            self.check()?;
            // SAFETY: the input is valid for reads of its bytes while it is borrowed.
            return unsafe { self.in_windows(signature, step, address, bytes, work) };
        }
        let shared = self.share(signature, step.access(), bytes, address, ptr::null_mut(), Default::default())?;
        let (place, addresses) = shared.seat.place(signature);
        let Addresses { sources, scratch, .. } = addresses;
        work(&mut Peers { place, sources, scratch, window: None })?;
        shared.depart()
    }

    /// A step in which block `r` of every buffer is private to rank `r`, which folds that block of all inputs and writes the
    /// result to the targets: one pass, in canonical order, each byte read once and written once.
    ///
    /// Without `send` the input is `recv`, in place. Every rank's buffers have the same number of elements; `recv` is needed
    /// by the ranks that receive.
    ///
    /// # Errors
    /// See [`Fault`].
    ///
    /// # Panics
    /// If the buffers do not fit the reducer or each other, or there is none, or a rank that receives gives no `recv`, or the
    /// signature is of another operation or dtype than the reducer.
    pub fn divided(
        &mut self,
        signature: &Signature,
        reducer: &Reducer,
        send: Option<Buf<'_>>,
        mut recv: Option<BufMut<'_>>,
        targets: Targets,
    ) -> Result<(), Fault> {
        let input = send.or_else(|| recv.as_ref().map(|recv| recv.as_buf())).expect("a buffer to read");
        assert_eq!(input.dtype(), reducer.input(), "the input's dtype is the reducer's");
        let agreed = (signature.op, signature.dtype);
        assert_eq!(agreed, (Some(reducer.op()), Some(reducer.input())), "the reducer is what the ranks agree on");
        if let Some(recv) = &recv {
            assert_eq!(
                (recv.dtype(), recv.count()),
                (reducer.output(), input.count()),
                "recv fits the reducer and send"
            );
        }
        let (count, bytes, input) = (input.count(), input.bytes(), input.as_ptr());
        let output = recv.as_mut().map_or(ptr::null_mut(), |recv| recv.as_mut_ptr());
        let receives = targets == Targets::Own || targets.reach(self.world.rank());
        assert!(!receives || !output.is_null(), "a rank that receives gives recv");
        if self.stage.is_some() {
            self.check()?;
            let output = if receives { output } else { ptr::null_mut() };
            // SAFETY: both buffers have `count` elements, are borrowed, and are the same or disjoint.
            return unsafe { self.divided_on_stage(signature, reducer, targets, input, count, output) };
        }

        let step = Step::divided(reducer, targets);
        let shared = self.share(signature, step.access(), bytes, input, output, Default::default())?;
        let Addresses { inputs, outputs, .. } = &mut shared.seat.addresses;
        inputs.clear();
        outputs.clear();
        let cards = shared.seat.hub.lines().iter().map(|line| line.card(shared.seat.epoch));
        cards.for_each(|card| {
            inputs.push(card.input());
            outputs.push(card.output());
        });
        // SAFETY: all ranks' inputs have `count` elements of the reducer's input (`arrive` compared them), and an output as many
        // of its output, asserted before it was published. They stay while a rank is inside.
        unsafe { shared.seat.fold_block(signature, reducer, count, targets)? };
        shared.depart()
    }

    /// Folds this rank's block of all inputs into the targets, a chunk at a time.
    ///
    /// # Safety
    /// The addresses of this step are set: while a rank is inside, every input is valid for reads of `count` elements of the
    /// reducer's input, every output that is not null for writes of as many of its output, and equal to its own rank's input or
    /// disjoint from every input. All ranks agreed on the step.
    pub(crate) unsafe fn fold_block(
        &mut self,
        signature: &Signature,
        reducer: &Reducer,
        count: usize,
        targets: Targets,
    ) -> Result<(), Fault> {
        let block = match targets {
            // The blocks that users see are even.
            Targets::Own => partition::block(count, self.world.size(), self.world.rank()),
            _ => {
                let unit = BORDER_BYTES / reducer.input().size().min(reducer.output().size());
                partition::aligned_block(count, unit, self.world.size(), self.world.rank())
            }
        };
        let (place, Addresses { inputs, outputs, sources, targets: all, .. }) = self.place(signature);
        let place = Place { enters: true, ..place };
        let (input_size, output_size) = (reducer.input().size(), reducer.output().size());
        let bytes = count * input_size;
        let volume = Volume::new(bytes, || plan::goes_past_caches(bytes, place.world.size() * bytes, 1));
        let flow = Flow { from: Distance::Far, past: volume.past(0) };
        for chunk in chunks(block, input_size) {
            let inside = place.enter()?;
            for (rank, (&input, &output)) in inputs.iter().zip(&*outputs).enumerate() {
                // SAFETY: `chunk` lies within the elements of every input.
                sources.push(unsafe { input.add(chunk.start * input_size) });
                let own_block = targets == Targets::Own && rank == place.world.rank();
                if (own_block || targets.reach(rank)) && !output.is_null() {
                    // SAFETY: `chunk` lies within the elements of every output.
                    all.push(unsafe { output.add(chunk.start * output_size) });
                }
            }
            // SAFETY: `enter` keeps every buffer alive until `inside` is dropped. This block of all buffers is private to this
            // rank in this step: the blocks of ranks are disjoint, and all ranks agreed on the kind of step and on the bytes.
            // An output is exclusive to its rank, so it is its own rank's input exactly or disjoint from every input.
            unsafe { reducer.fold(sources, all, chunk.len(), flow) };
            sources.clear();
            all.clear();
            drop(inside);
        }
        Ok(())
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

    /// Whether a step can begin. What touches the group's memory before it arrives asks first.
    fn check(&self) -> Result<(), Fault> {
        if self.hub.forked() {
            return Err(Fault::Forked);
        }
        if let Some(abort) = self.hub.aborted(self.round) {
            return Err(Fault::Aborted(abort));
        }
        self.left.map_or(Ok(()), |rank| Err(Fault::Left(rank)))
    }

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
        let place = line::payload(lines, rank, epoch, payload.len());
        let is_beside = payload.len() <= line::first_bytes(lines.len());
        let has_lines = is_beside || trade::takes_payloads(lines.len(), signature.kind);
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
        let pauses = line::pauses(lines.len(), signature.kind, payload.len().max(awaited), ring.is_some());
        self.hub.patience.pause(pauses);
        self.wake();
        let made = meanwhile();
        let all = self.wait_for_all(|line| {
            line::await_payload(lines, rank, epoch, awaited);
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

    /// Notes how this rank's call ended.
    pub(crate) fn note(&self, outcome: Outcome) {
        if let Some(ring) = self.hub.ring(self.world.rank()) {
            ring.end(self.ticket, outcome);
        }
    }

    /// Waits until `ready` of every peer's line, for the timeout at the most.
    pub(crate) fn wait_for_all(&self, ready: impl Fn(&Line) -> bool) -> Result<(), Fault> {
        let mut deadline = None;
        for peer in self.world.peers() {
            let line = &self.hub.lines()[peer];
            if ready(line) || self.hub.patience.look(&|| ready(line)) {
                continue;
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now().checked_add(self.timeout));
            self.sleep_until(peer, &ready, deadline)?;
        }
        Ok(())
    }

    /// Waits for the end of the group, whose rank `peer` is not there any more, for the timeout at the most.
    pub(crate) fn wait_for_end(&self, peer: usize) -> Fault {
        let deadline = Instant::now().checked_add(self.timeout);
        let never = self.sleep_until(peer, &|_| false, deadline);
        never.expect_err("nothing is waited for but the end")
    }

    /// Sleeps until `peer`'s line is `ready`.
    fn sleep_until(&self, peer: usize, ready: &impl Fn(&Line) -> bool, deadline: Option<Instant>) -> Result<(), Fault> {
        let line = &self.hub.lines()[peer];
        let bell = &self.hub.rest(self.world.rank()).bell;
        let waits_for = &self.hub.lines()[self.world.rank()].rest.waits_for;
        let result = loop {
            let rings = bell.rings();
            waits_for.store(peer as u32 + 1, Ordering::Relaxed);
            // SYNC POINT sleep: pairs with the fence in `wake`, and with `Bell::ring`.
            fence(Ordering::SeqCst);
            if ready(line) {
                break Ok(());
            }
            if let Some(abort) = self.hub.aborted(self.round) {
                // A call that was finished before the end is finished.
                break if ready(line) { Ok(()) } else { Err(Fault::Aborted(abort)) };
            }
            if self.has_left(peer) {
                // It may have come this far before it left.
                break if ready(line) { Ok(()) } else { Err(Fault::Left(peer)) };
            }
            // A timeout past the end of the clock is as good as the longest sleep.
            let limit = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if limit.is_zero() {
                self.hub.abort(self.round, Abort { rank: self.world.rank(), reason: Reason::Deadline });
                break Err(Fault::Missing(
                    (0..self.world.size()).filter(|&rank| !ready(&self.hub.lines()[rank])).collect(),
                ));
            }
            bell.sleep(rings, limit, self.hub.segment().is_some());
        };
        waits_for.store(0, Ordering::Relaxed);
        result
    }

    /// Wakes every peer that sleeps for this rank.
    pub(crate) fn wake(&self) {
        // SYNC POINT sleep: pairs with the fence in `sleep_until`.
        fence(Ordering::SeqCst);
        let own = self.world.rank() as u32 + 1;
        for peer in self.world.peers() {
            if self.hub.lines()[peer].rest.waits_for.load(Ordering::Relaxed) == own {
                self.hub.wake(peer);
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.hub.forked() {
            self.hub.leave(self.round, self.world.rank());
        }
    }
}

/// Whether ranks compare what they call: without it no call is sound. `harness/perf/checks` alone makes a build that does not, to
/// measure what it costs.
const COMPARES: bool = !cfg!(consonance_unchecked);

/// The bits of a signature's code in a card's head; the access lies above them.
const CODE_BITS: u32 = 24;
const CODE_MASK: u32 = (1 << CODE_BITS) - 1;
