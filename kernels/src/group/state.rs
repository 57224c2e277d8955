//! What the ranks of one group share: a line for each, and the word that ends the group.

use super::{
    abort::{Abort, Reason},
    backing::Ground,
};
use crate::{
    os::process_memory::Process,
    shm::{
        Area, Segment,
        call_log::Ring,
        local::Locals,
        records::{Line, Progress, Rest, Round},
    },
    sync::{
        atomics::{AtomicU32, Mutex, MutexGuard, Ordering, available_parallelism, fence},
        wait::Patience,
    },
};
use std::{collections::HashMap, ops::Range, sync::Arc};

pub(crate) struct Hub {
    ground: Ground,
    /// What a waiting rank does before it sleeps.
    pub(crate) patience: Patience,
    /// Of a group of processes that was split from none: the ranks that are threads of this one.
    local: Range<usize>,
    /// Of such a group, the process of each rank; nothing where ranks do not read each other's memory, 0 where it is not known.
    processes: Box<[u32]>,
    parent: Option<Parent>,
    /// Groups of threads split from this one that not every member has taken yet, by a key that the members agree on.
    nursery: Mutex<HashMap<Key, Newborn>>,
    /// 1 once a group of threads was split from this one.
    has_children: AtomicU32,
}

/// The group that another was split from.
struct Parent {
    hub: Arc<Hub>,
    /// The round that the parent was in.
    round: Round,
    /// The ranks of the group in the parent's numbering.
    members: Box<[usize]>,
    /// The group that was split from none, and the ranks of the group in its numbering. Each rank has one bell, there.
    top: Arc<Hub>,
    top_ranks: Box<[usize]>,
}

/// What members of a group of threads that is split off agree on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// The number of the call that splits the parent, and the first member.
    Split(u64, usize),
    /// The parent's round and the two members.
    Pair(u64, usize, usize),
}

struct Newborn {
    hub: Arc<Hub>,
    takers: usize,
}

/// A place for a group that is split off, and the round in which it begins.
#[derive(Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) place: usize,
    pub(crate) round: Round,
}

impl Hub {
    /// A group of threads.
    pub(crate) fn new(size: usize) -> Arc<Hub> {
        let cores = available_parallelism().map_or(0, usize::from);
        Arc::new(Hub::on(Ground::own(size), Patience::new(size, cores), None))
    }

    /// The group of all ranks of a segment, of which those in `local` are threads of this process. The processes have so many
    /// cores together.
    pub(crate) fn of_segment(segment: Arc<Segment>, local: Range<usize>, cores: usize, processes: &[u32]) -> Arc<Hub> {
        let size = segment.shape().ranks();
        let ground = Ground::segment(segment.clone(), segment.root(), size);
        let mark = segment.mark() as u64;
        let hub = Hub { local, processes: processes.into(), ..Hub::on(ground, Patience::new(size, cores), None) };
        // Relaxed: others look here after this rank's first arrival.
        hub.local.clone().for_each(|rank| hub.lines()[rank].rest.mark.store(mark, Ordering::Relaxed));
        Arc::new(hub)
    }

    fn on(ground: Ground, patience: Patience, parent: Option<Parent>) -> Hub {
        let (nursery, has_children) = (Mutex::default(), AtomicU32::new(0));
        Hub { patience, ground, local: 0..0, processes: [].into(), parent, nursery, has_children }
    }

    /// The ranks of a group that is split off wait as those of its parent.
    fn split_off(ground: Ground, parent: Parent) -> Hub {
        Hub::on(ground, parent.hub.patience, Some(parent))
    }

    pub(crate) fn lines(&self) -> &[Line] {
        self.ground.lines()
    }

    /// The memory that processes share, if they do, and this group's place in it.
    pub(crate) fn segment(&self) -> Option<(&Segment, Area)> {
        match &self.ground {
            Ground::Own { .. } => None,
            Ground::Segment { segment, area, .. } => Some((segment, *area)),
        }
    }

    /// What this process keeps to itself of the ranks, where other processes share the group.
    pub(crate) fn locals(&self) -> Option<&Locals> {
        match &self.ground {
            Ground::Own { .. } => None,
            Ground::Segment { locals, .. } => Some(locals),
        }
    }

    /// The word that says whether `rank`, a thread of this process, is inside a chunk. No other process writes it.
    pub(crate) fn inside(&self, rank: usize) -> &AtomicU32 {
        self.locals().map_or_else(|| &self.lines()[rank].progress.inside, |locals| locals.inside(rank))
    }

    /// The rank in the group that was split from none.
    pub(crate) fn top_rank(&self, rank: usize) -> usize {
        self.parent.as_ref().map_or(rank, |parent| parent.top_ranks[rank])
    }

    /// Whether `rank` is a thread of this process.
    pub(crate) fn is_local(&self, rank: usize) -> bool {
        let top = self.parent.as_ref().map_or(self, |parent| &parent.top);
        self.segment().is_none() || top.local.contains(&self.top_rank(rank))
    }

    /// The process of `rank`, which has arrived once, if this one may try to read its memory.
    pub(crate) fn process(&self, rank: usize) -> Option<Process> {
        let (segment, _) = self.segment()?;
        let top = self.parent.as_ref().map_or(self, |parent| &parent.top);
        let rank = self.top_rank(rank);
        let id = top.processes.get(rank).copied().filter(|&id| id != 0)?;
        // Relaxed: stored before that arrival.
        let mark = top.lines()[rank].rest.mark.load(Ordering::Relaxed) as usize;
        Some(Process { id, mark, group: segment.name() })
    }

    /// Where the last calls of `rank` are noted.
    pub(crate) fn ring(&self, rank: usize) -> Option<&Ring> {
        let top_rank = self.top_rank(rank);
        self.segment().map(|(segment, _)| segment.ring(top_rank))
    }

    /// Whether this process is a copy, made by `fork`, of the one that joined the group.
    pub(crate) fn forked(&self) -> bool {
        self.segment().is_some_and(|(segment, _)| segment.forked())
    }

    /// The group of `members` (ranks of this one, which is in `round`), the same for each member that asks with the same key;
    /// the one that asks is its rank `rank`.
    ///
    /// # Panics
    /// If members ask with other members, or one asks twice.
    pub(crate) fn child(self: &Arc<Hub>, round: Round, key: Key, members: &[usize], rank: usize) -> Arc<Hub> {
        // Relaxed: who leaves a round after it has waited in the new group has seen this.
        self.has_children.store(1, Ordering::Relaxed);
        let mut nursery = lock(&self.nursery);
        let newborn = nursery.entry(key).or_insert_with(|| {
            let hub = Arc::new(Hub::split_off(Ground::own(members.len()), self.as_parent(round, members)));
            Newborn { hub, takers: 0 }
        });
        assert_eq!(newborn.hub.members(), members, "members of one group");
        // Relaxed: this rank leaves the parent later, and `leave` is what others see first.
        let taken = newborn.hub.lines()[rank].progress.taken.swap(Round::default().mark(), Ordering::Relaxed);
        assert_eq!(taken, 0, "a seat is given once");
        newborn.takers += 1;
        let (hub, complete) = (newborn.hub.clone(), newborn.takers == members.len());
        if complete {
            nursery.remove(&key);
        }
        hub
    }

    /// The same of processes, each of which has a hub of its own for the group in `area`.
    pub(crate) fn child_in(self: &Arc<Hub>, round: Round, area: Area, members: &[usize]) -> Arc<Hub> {
        let segment = self.shared_segment().expect("a group of processes");
        let ground = Ground::segment(segment.clone(), area, members.len());
        Arc::new(Hub::split_off(ground, self.as_parent(round, members)))
    }

    /// Says that `rank` took its seat in this group of processes, which begins in `round`.
    pub(crate) fn take(&self, round: Round, rank: usize) {
        // Relaxed: as in `child`.
        self.lines()[rank].progress.taken.store(round.mark(), Ordering::Relaxed);
    }

    /// The memory that processes share, if they do.
    pub(crate) fn shared_segment(&self) -> Option<&Arc<Segment>> {
        match &self.ground {
            Ground::Own { .. } => None,
            Ground::Segment { segment, .. } => Some(segment),
        }
    }

    fn as_parent(self: &Arc<Hub>, round: Round, members: &[usize]) -> Parent {
        let (top, ranks) = match &self.parent {
            None => (self.clone(), members.into()),
            Some(parent) => (parent.top.clone(), members.iter().map(|&member| parent.top_ranks[member]).collect()),
        };
        Parent { hub: self.clone(), round, members: members.into(), top, top_ranks: ranks }
    }

    /// Takes a free place for a group of `size` that processes split off; none if all are taken.
    ///
    /// The owner's word has the mark of the place's round, and how many members have not given it back. It never returns to
    /// what it was, so that who claims the place by what it was misses no group that came between.
    pub(crate) fn claim(&self, size: usize) -> Option<Claim> {
        let segment = self.shared_segment().expect("a group of processes");
        (0..Segment::SPLITS).find_map(|place| {
            let owner = &Ground::head_of(segment, Area::Split(place)).owner;
            // Relaxed: a guess, until it is exchanged.
            let free = owner.load(Ordering::Relaxed);
            if free as u32 != 0 {
                return None;
            }
            // The mark of a round is the number of the next.
            let round = Round(free >> 32).below_end()?;
            let word = round.mark() << 32 | size as u64;
            // SYNC POINT claim: who takes the place sees what its former members left there; pairs with `release`.
            owner.compare_exchange(free, word, Ordering::Acquire, Ordering::Relaxed).ok()?;
            Some(Claim { place, round })
        })
    }

    /// Gives a claimed place back whole, of which no other member has heard.
    pub(crate) fn unclaim(&self, claim: Claim) {
        let segment = self.shared_segment().expect("a group of processes");
        // Relaxed: nobody has been there since the claim.
        Ground::head_of(segment, Area::Split(claim.place)).owner.store(claim.round.mark() << 32, Ordering::Relaxed);
    }

    /// Gives one member's part of this group's place back.
    fn release(&self) {
        if let Ground::Segment { area: Area::Split(_), .. } = &self.ground {
            // SYNC POINT claim: this member's last words in the place come before who takes it next; pairs with `claim`.
            self.ground.head().owner.fetch_sub(1, Ordering::Release);
        }
    }

    /// Ends this group, which is in `round`, and those split from it. Never waits for a rank.
    pub(crate) fn abort(&self, round: Round, abort: Abort) {
        self.abort_in(round, None, abort);
    }

    /// The same, with the author's `turn`, for [`ended_after`](Hub::ended_after).
    pub(crate) fn abort_in(&self, round: Round, turn: Option<u64>, abort: Abort) {
        let word = &self.ground.head().abort;
        let mut now = word.load(Ordering::Relaxed);
        while Abort::read(now, round).is_none() {
            // SYNC POINT end: what its author did before is seen by who hears of it; pairs with `aborted`.
            match word.compare_exchange(now, abort.word(round, turn), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return self.wake_all(),
                Err(other) => now = other,
            }
        }
    }

    /// Whether this group has been ended in `round`, by whom and why; the rank is one of this group or of an ancestor.
    pub(crate) fn aborted(&self, round: Round) -> Option<Abort> {
        // An ancestor's end is the reason for what its groups say of themselves later.
        let inherited = self.parent.as_ref().and_then(|parent| parent.hub.aborted(parent.round));
        inherited.or_else(|| self.own_end(round))
    }

    /// The same, with the group that was ended, whose rank it is, and the round in which it was.
    pub(crate) fn end(&self, round: Round) -> Option<(Abort, &Hub, Round)> {
        let inherited = self.parent.as_ref().and_then(|parent| parent.hub.end(parent.round));
        inherited.or_else(|| self.own_end(round).map(|abort| (abort, self, round)))
    }

    /// Whether this group has been ended in `round`, in a turn of the author that comes after `turn`.
    pub(crate) fn ended_after(&self, round: Round, turn: u64) -> bool {
        // Relaxed: of the end itself nothing else is read.
        let word = self.ground.head().abort.load(Ordering::Relaxed);
        Abort::read(word, round).is_some() && Abort::is_after(word, turn)
    }

    fn own_end(&self, round: Round) -> Option<Abort> {
        // SYNC POINT end: pairs with `abort`.
        let abort = Abort::read(self.ground.head().abort.load(Ordering::Acquire), round)?;
        // A peer may have written the number of a rank that does not exist: no caller indexes by such a number.
        Some(Abort { rank: abort.rank.min(self.lines().len() - 1), ..abort })
    }

    /// The first round that no abort has ended; none for a group that was split off.
    pub(crate) fn next_round(&self, after: Round) -> Option<Round> {
        if self.parent.is_some() {
            return None;
        }
        // Relaxed: the caller has seen an end, and sees no older word here.
        let ended = self.ground.head().abort.load(Ordering::Relaxed) >> 40;
        Round(ended.max(after.mark())).below_end()
    }

    /// Whether `rank` will arrive at no further call of this group: it gave up its seat, or it left the parent without having
    /// taken one here.
    pub(crate) fn has_left(&self, round: Round, rank: usize) -> bool {
        let progress = &self.lines()[rank].progress;
        let cannot_come = || {
            let left = |parent: &Parent| parent.hub.has_left(parent.round, parent.members[rank]);
            // Relaxed: who sees that the rank left the parent sees whether it had taken its seat before.
            self.parent.as_ref().is_some_and(left) && progress.taken.load(Ordering::Relaxed) < round.mark()
        };
        // Groups that were split off may be in a place where others have been, and those of threads go on after a rank left a
        // round; a rank of any other has left for ever.
        let lasts = self.parent.is_none() && self.segment().is_some();
        let first = if lasts { Round::default() } else { round };
        // SYNC POINT leave: pairs with `leave`.
        progress.left.load(Ordering::Acquire) >= first.mark() || cannot_come()
    }

    /// Whether `rank` is of another process and has given up its seat in the group that was split from none, which it does not take
    /// again.
    pub(crate) fn is_lost(&self, rank: usize) -> bool {
        let top = self.parent.as_ref().map_or(self, |parent| &parent.top);
        !self.is_local(rank) && top.has_left(Round::default(), self.top_rank(rank))
    }

    /// Says that `rank` will arrive at no further call.
    pub(crate) fn leave(&self, round: Round, rank: usize) {
        // A group of threads that was split from none may be in a later round by then: there this rank has left all of them.
        let is_for_ever = self.parent.is_none() && self.segment().is_none();
        self.say_left(if is_for_ever { u64::MAX } else { round.mark() }, rank);
        self.wake_all();
        self.release();
        // A newborn group in which this rank has not taken its seat will not be complete any more; kept, it would keep this
        // group in turn.
        lock(&self.nursery).retain(|_, newborn| {
            let place = newborn.hub.members().iter().position(|&member| member == rank);
            // Relaxed: `taken` of a newborn group is stored under this lock.
            place.is_none_or(|place| newborn.hub.lines()[place].progress.taken.load(Ordering::Relaxed) != 0)
        });
    }

    /// Notes that `rank` was told of another one, which has left or failed. Whoever hears later what `rank` does because of that can
    /// see this.
    pub(crate) fn tell(&self, rank: usize, top_rank: usize) {
        if top_rank != self.top_rank(rank) {
            // Relaxed: read after the end of a group or after a leave, which are released after this.
            self.progress_at_top(rank).told.store(top_rank as u64 + 1, Ordering::Relaxed);
        }
    }

    /// Forgets of whom `rank` was told in the last round.
    pub(crate) fn forget(&self, rank: usize) {
        // Relaxed: no rank is in a call.
        self.progress_at_top(rank).told.store(0, Ordering::Relaxed);
    }

    /// Whose fault it is that `rank` has left this group, or ends it: its own or, if it was told of a rank that had left before, that
    /// one's, which may have been told of another in turn.
    pub(crate) fn culprit(&self, round: Round, rank: usize) -> usize {
        let told_of = |rank: usize| {
            let told = self.progress_at_top(rank).told.load(Ordering::Relaxed);
            let leaver = self.member(usize::try_from(told).ok()?.checked_sub(1)?)?;
            self.has_left(round, leaver).then_some(leaver)
        };
        // In groups that were split off, ranks may have been told of each other.
        let others = std::iter::successors(told_of(rank), |&leaver| told_of(leaver));
        others.take(self.lines().len()).take_while(|&leaver| leaver != rank).last().unwrap_or(rank)
    }

    /// What the rank shows in the group that was split from none.
    fn progress_at_top(&self, rank: usize) -> &Progress {
        let top = self.parent.as_ref().map_or(self, |parent| &parent.top);
        &top.lines()[self.top_rank(rank)].progress
    }

    /// The rank in this group of a rank of the group that was split from none.
    fn member(&self, top_rank: usize) -> Option<usize> {
        match &self.parent {
            None => Some(top_rank).filter(|&rank| rank < self.lines().len()),
            Some(parent) => parent.top_ranks.iter().position(|&rank| rank == top_rank),
        }
    }

    /// Says that `rank` has left the round with this mark, and those before.
    fn say_left(&self, mark: u64, rank: usize) {
        // SYNC POINT leave: what the rank did before is seen by who sees that it left; pairs with `has_left`.
        self.lines()[rank].progress.left.store(mark, Ordering::Release);
    }

    /// Says that `rank`, of a group of threads, makes no more calls in this round, and wakes whoever may wait for it.
    pub(crate) fn leave_round(&self, round: Round, rank: usize) {
        self.say_left(round.mark(), rank);
        // SYNC POINT left: pairs with the fence in `sleep_until`.
        fence(Ordering::SeqCst);
        let sleeps = |line: &Line| line.rest.waits_for.load(Ordering::Relaxed) != 0;
        // In a group that was split from this one, too, a rank may wait that is not known here.
        if self.has_children.load(Ordering::Relaxed) != 0 || self.lines().iter().any(sleeps) {
            self.wake_all();
        }
    }

    /// Says that the process of `ranks` takes part no more, and why. If they had not all left before, this ends the group for
    /// good: in the name of the rank that had left before, if one of them was told of it.
    pub(crate) fn lose(&self, ranks: Range<usize>, reason: Reason) {
        let gone = |rank: &usize| {
            let progress = &self.lines()[*rank].progress;
            // Relaxed: who says so heard it from the system, after all that the process wrote.
            let left = progress.left.load(Ordering::Relaxed);
            left <= progress.round.load(Ordering::Relaxed)
        };
        if let Some(rank) = ranks.clone().find(gone) {
            let culprits = ranks.clone().map(|rank| self.culprit(Round::default(), rank));
            let abort = match { culprits }.find(|culprit| !ranks.contains(culprit)) {
                Some(rank) => Abort { rank, reason: Reason::Departure },
                None => Abort { rank, reason },
            };
            self.abort(Round::END, abort);
        }
    }

    /// Whether this group was split from another.
    pub(crate) fn has_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// This group's ranks in its parent's numbering; none if it has no parent.
    fn members(&self) -> &[usize] {
        self.parent.as_ref().map_or(&[], |parent| &parent.members)
    }

    /// Where `rank` sleeps in all groups.
    pub(crate) fn rest(&self, rank: usize) -> &Rest {
        match &self.parent {
            None => &self.lines()[rank].rest,
            Some(parent) => &parent.top.lines()[parent.top_ranks[rank]].rest,
        }
    }

    /// Wakes every thread of a rank that sleeps, here or in any other group.
    pub(crate) fn wake(&self, rank: usize) {
        self.rest(rank).bell.ring(self.segment().is_some());
    }

    /// Wakes every rank that sleeps in this group or in one split from it.
    pub(crate) fn wake_all(&self) {
        (0..self.lines().len()).for_each(|rank| self.wake(rank));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no rank panics while it holds a lock of the hub")
}

#[cfg(test)]
mod tests;
