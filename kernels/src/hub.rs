//! What the ranks of one group share: a line for each, and the word that ends the group.

use crate::{
    atomics::{AtomicU64, Mutex, MutexGuard, Ordering, available_parallelism},
    line::{Line, Rest, Round},
    remote::Process,
    ring::Ring,
    segment::{Area, Segment},
    wait::Patience,
};
use std::{collections::HashMap, ops::Range, ptr::NonNull, sync::Arc};

/// Why a group was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// A rank waited until its deadline.
    Deadline = 1,
    /// A rank's code panicked.
    Panic = 2,
    /// A rank's code returned an error, or asked for the end.
    Failure = 3,
    /// A rank's process has ended.
    Death = 4,
    /// A rank got no memory for the data that it shares.
    Memory = 5,
    /// A rank's process has left the group, to form another one.
    Departure = 6,
    /// A rank rests, and another one of its process waits for it.
    Return = 7,
}

/// Who ended a group, and why. The first to say so wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The rank, in the numbering of the group that was ended.
    pub rank: usize,
    /// Why.
    pub reason: Reason,
}

impl Abort {
    /// The abort word of an end in `round`. Later rounds have larger words, and 0 is none.
    fn word(self, round: Round) -> u64 {
        round.mark() << 40 | (self.rank as u64) << 8 | self.reason as u64
    }

    /// What a word says, if it ends `round`: an end ends the rounds before it, too.
    fn read(word: u64, round: Round) -> Option<Abort> {
        if word >> 40 < round.mark() {
            return None;
        }
        let reason = match word as u8 {
            1 => Reason::Deadline,
            2 => Reason::Panic,
            4 => Reason::Death,
            5 => Reason::Memory,
            6 => Reason::Departure,
            7 => Reason::Return,
            _ => Reason::Failure,
        };
        Some(Abort { rank: (word as u32 >> 8) as usize, reason })
    }
}

/// What a group shares beside its lines. All zero is a fresh one.
#[repr(C, align(128))]
#[derive(Default)]
pub(crate) struct Head {
    pub(crate) abort: AtomicU64,
    /// Of a place for groups that are split off, who has it: see [`Hub::claim`].
    pub(crate) owner: AtomicU64,
}

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
}

/// Where the lines lie.
enum Ground {
    /// In this process's own memory.
    Own { head: Head, lines: Box<[Line]> },
    /// In memory that other processes map.
    Segment { segment: Arc<Segment>, area: Area, head: NonNull<Head>, lines: NonNull<[Line]> },
}

// SAFETY: the pointers are to atomics and to lines, which are `Sync`, in a segment that is kept.
unsafe impl Send for Ground {}
// SAFETY: as above.
unsafe impl Sync for Ground {}

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
        Hub { patience, ground, local: 0..0, processes: [].into(), parent, nursery: Mutex::default() }
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

    /// The same of processes, each of which has a hub of its own for the group in `area`. The group begins in `child_round`.
    pub(crate) fn child_in(
        self: &Arc<Hub>,
        round: Round,
        area: Area,
        child_round: Round,
        members: &[usize],
        rank: usize,
    ) -> Arc<Hub> {
        let segment = self.shared_segment().expect("a group of processes");
        let ground = Ground::segment(segment.clone(), area, members.len());
        let hub = Hub::split_off(ground, self.as_parent(round, members));
        // Relaxed: as in `child`.
        hub.lines()[rank].progress.taken.store(child_round.mark(), Ordering::Relaxed);
        Arc::new(hub)
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
        let word = &self.ground.head().abort;
        let mut now = word.load(Ordering::Relaxed);
        while Abort::read(now, round).is_none() {
            // SYNC POINT end: what its author did before is seen by who hears of it; pairs with `aborted`.
            match word.compare_exchange(now, abort.word(round), Ordering::Release, Ordering::Relaxed) {
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

    /// The same, with the group that was ended, whose rank it is.
    pub(crate) fn end(&self, round: Round) -> Option<(Abort, &Hub)> {
        let inherited = self.parent.as_ref().and_then(|parent| parent.hub.end(parent.round));
        inherited.or_else(|| self.own_end(round).map(|abort| (abort, self)))
    }

    fn own_end(&self, round: Round) -> Option<Abort> {
        // SYNC POINT end: pairs with `abort`.
        Abort::read(self.ground.head().abort.load(Ordering::Acquire), round)
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
        // Groups that were split off may be in a place where others have been; a rank of one that was not has left for ever.
        let first = if self.parent.is_some() { round } else { Round::default() };
        // SYNC POINT leave: pairs with `leave`.
        progress.left.load(Ordering::Acquire) >= first.mark() || cannot_come()
    }

    /// Whether `rank` has given up its seat in the group that was split from none, which it does not take again.
    pub(crate) fn has_left_for_good(&self, rank: usize) -> bool {
        let top = self.parent.as_ref().map_or(self, |parent| &parent.top);
        top.has_left(Round::default(), self.top_rank(rank))
    }

    /// Says that `rank` will arrive at no further call.
    pub(crate) fn leave(&self, round: Round, rank: usize) {
        // SYNC POINT leave: what the rank did before is seen by who sees that it left; pairs with `has_left`.
        self.lines()[rank].progress.left.store(round.mark(), Ordering::Release);
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

    /// Says that the process of `ranks` takes part no more, and why. If they had not all left before, this ends the group for
    /// good.
    pub(crate) fn lose(&self, ranks: Range<usize>, reason: Reason) {
        let gone = |rank: &usize| {
            let progress = &self.lines()[*rank].progress;
            // Relaxed: who says so heard it from the system, after all that the process wrote.
            let left = progress.left.load(Ordering::Relaxed);
            left <= progress.round.load(Ordering::Relaxed)
        };
        if let Some(rank) = ranks.clone().find(gone) {
            self.abort(Round::END, Abort { rank, reason });
        }
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

impl Ground {
    fn own(size: usize) -> Ground {
        Ground::Own { head: Head::default(), lines: (0..size).map(|_| Line::default()).collect() }
    }

    fn segment(segment: Arc<Segment>, area: Area, size: usize) -> Ground {
        let (head, first) = segment.area(area);
        Ground::Segment { head, lines: NonNull::slice_from_raw_parts(first, size), segment, area }
    }

    fn head(&self) -> &Head {
        match self {
            Ground::Own { head, .. } => head,
            // SAFETY: the segment, which is kept, has a head there, of atomics alone.
            Ground::Segment { head, .. } => unsafe { head.as_ref() },
        }
    }

    fn head_of(segment: &Segment, area: Area) -> &Head {
        // SAFETY: as in `head`; the segment outlives the result.
        unsafe { segment.area(area).0.as_ref() }
    }

    fn lines(&self) -> &[Line] {
        match self {
            Ground::Own { lines, .. } => lines,
            // SAFETY: the segment, which is kept, has room there for a line of each rank of the area. Lines are atomics, and
            // bytes in cells.
            Ground::Segment { lines, .. } => unsafe { lines.as_ref() },
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no rank panics while it holds a lock of the hub")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Round = Round(0);

    #[test]
    fn a_group_that_not_every_member_took_ends_with_its_parent() {
        let parent = Hub::new(2);
        let taken = parent.child(ROUND, Key::Split(1, 0), &[0, 1], 0);
        let (parent_ends, child_ends) = (Arc::downgrade(&parent), Arc::downgrade(&taken));
        drop(taken);
        assert!(child_ends.upgrade().is_some(), "the other member may still come");
        parent.leave(ROUND, 0);
        assert!(child_ends.upgrade().is_some(), "the leaving rank has its seat already");
        parent.leave(ROUND, 1);
        drop(parent);
        assert!(child_ends.upgrade().is_none() && parent_ends.upgrade().is_none());
    }

    #[test]
    fn a_rank_that_leaves_the_parent_keeps_the_seat_that_it_took() {
        let parent = Hub::new(2);
        let child = parent.child(ROUND, Key::Split(1, 0), &[0, 1], 0);
        parent.leave(ROUND, 0);
        assert!(!child.has_left(ROUND, 0));
        parent.leave(ROUND, 1);
        assert!(child.has_left(ROUND, 1), "it left without a seat here");
    }

    #[test]
    fn an_end_is_the_end_of_its_round_and_those_before() {
        let hub = Hub::new(2);
        let abort = Abort { rank: 1, reason: Reason::Panic };
        hub.abort(Round(3), abort);
        hub.abort(Round(2), Abort { rank: 0, reason: Reason::Failure });
        assert_eq!([Round(2), Round(3)].map(|round| hub.aborted(round)), [Some(abort); 2]);
        assert_eq!(hub.aborted(Round(4)), None);
        assert_eq!(hub.next_round(Round(1)), Some(Round(4)));
        hub.lose(0..1, Reason::Death);
        let lost = hub.aborted(Round(4)).map(|abort| (abort.rank, abort.reason));
        assert_eq!((lost, hub.next_round(Round(4))), (Some((0, Reason::Death)), None));
    }
}
