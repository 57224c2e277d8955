//! The state that the ranks of one group share: a record for each, and the abort word.

mod ends;

use super::backing::Backing;
use crate::{
    os::process_memory::Process,
    shm::{
        Area, Segment,
        call_log::CallLog,
        local::Locals,
        records::{Counters, Generation, RankRecord, Sleeper},
    },
    sync::{
        atomics::{AtomicU32, Mutex, MutexGuard, Ordering, available_parallelism, fence},
        wait::WaitPolicy,
    },
    tuning::{self, Tuning},
};
use std::{collections::HashMap, ops::Range, sync::Arc};

pub(crate) struct GroupState {
    pub(super) tuning: &'static Tuning,
    pub(super) backing: Backing,
    /// The policy of a waiting rank before it sleeps.
    pub(crate) wait_policy: WaitPolicy,
    /// The ranks that are threads of this process, in a top group of processes.
    local: Range<usize>,
    /// The ids of the top group's processes, 0 if unknown. Empty if ranks cannot read each other's.
    processes: Box<[u32]>,
    parent: Option<Parent>,
    /// Groups of threads split from this one whose endpoints not every member has taken yet, by a
    /// key on which the members agree.
    pending_subgroups: Mutex<HashMap<Key, Newborn>>,
    /// 1 once a group of threads was split from this one.
    has_children: AtomicU32,
}

/// The group that another was split from.
struct Parent {
    state: Arc<GroupState>,
    /// The parent's generation at the split.
    generation: Generation,
    /// The ranks of the group in the parent's numbering.
    members: Box<[usize]>,
    /// The top group, which was split from none, and the ranks of this group in its numbering. Each
    /// rank's only event is there.
    top: Arc<GroupState>,
    top_ranks: Box<[usize]>,
}

/// The key on which the members of a new group of threads agree.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// The sequence number of the call that splits the parent, and the first member.
    Split(u64, usize),
    /// The parent's generation and the two members.
    Pair(u64, usize, usize),
}

struct Newborn {
    state: Arc<GroupState>,
    takers: usize,
}

/// A claimed area for a group that is split off, and the generation in which the group begins.
#[derive(Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) place: usize,
    pub(crate) generation: Generation,
}

impl GroupState {
    /// Makes a group of threads.
    pub(crate) fn new(size: usize) -> Arc<GroupState> {
        let cores = available_parallelism().map_or(0, usize::from);
        Arc::new(GroupState::on(Backing::own(size), tuning::current(), WaitPolicy::new(size, cores), None))
    }

    /// Makes the group of all ranks of a segment. The ranks in `local` are threads of this process;
    /// all processes together have `cores` cores.
    pub(crate) fn of_segment(
        segment: Arc<Segment>,
        local: Range<usize>,
        cores: usize,
        processes: &[u32],
    ) -> Arc<GroupState> {
        let size = segment.shape().ranks();
        let backing = Backing::segment(segment.clone(), segment.root(), size);
        let (mark, tuning) = (segment.mark() as u64, segment.tuning());
        let state = GroupState {
            local,
            processes: processes.into(),
            ..GroupState::on(backing, tuning, WaitPolicy::new(size, cores), None)
        };
        // Relaxed: others read this after the rank's first arrival.
        state.local.clone().for_each(|rank| state.records()[rank].sleeper.mark.store(mark, Ordering::Relaxed));
        Arc::new(state)
    }

    fn on(backing: Backing, tuning: &'static Tuning, wait_policy: WaitPolicy, parent: Option<Parent>) -> GroupState {
        let (pending_subgroups, has_children, local, processes) =
            (Mutex::default(), AtomicU32::new(0), 0..0, [].into());
        GroupState { tuning, wait_policy, backing, local, processes, parent, pending_subgroups, has_children }
    }

    /// Makes a subgroup; its ranks wait as those of its parent do, and have its knobs.
    fn split_off(backing: Backing, parent: Parent) -> GroupState {
        GroupState::on(backing, parent.state.tuning, parent.state.wait_policy, Some(parent))
    }

    pub(crate) fn records(&self) -> &[RankRecord] {
        self.backing.records()
    }

    /// Returns the segment and this group's area in it, if processes share the group.
    pub(crate) fn segment(&self) -> Option<(&Segment, Area)> {
        match &self.backing {
            Backing::Own { .. } => None,
            Backing::Segment { segment, area, .. } => Some((segment, *area)),
        }
    }

    /// Returns this process's private state of the ranks, if other processes share the group.
    pub(crate) fn locals(&self) -> Option<&Locals> {
        match &self.backing {
            Backing::Own { .. } => None,
            Backing::Segment { locals, .. } => Some(locals),
        }
    }

    /// Returns the word that is 1 while `rank`, a thread of this process, is inside a chunk. No
    /// other process writes it.
    pub(crate) fn inside(&self, rank: usize) -> &AtomicU32 {
        self.locals().map_or_else(|| &self.records()[rank].counters.inside, |locals| locals.inside(rank))
    }

    /// Returns the top group, which was split from none.
    pub(super) fn top(&self) -> &GroupState {
        self.parent.as_ref().map_or(self, |parent| &parent.top)
    }

    /// Returns the rank in the numbering of the top group.
    pub(crate) fn top_rank(&self, rank: usize) -> usize {
        self.parent.as_ref().map_or(rank, |parent| parent.top_ranks[rank])
    }

    /// Whether `rank` is a thread of this process.
    pub(crate) fn is_local(&self, rank: usize) -> bool {
        self.segment().is_none() || self.top().local.contains(&self.top_rank(rank))
    }

    /// Returns the process of `rank`, which has arrived once, if this one may try to read it.
    pub(crate) fn process(&self, rank: usize) -> Option<Process> {
        let (segment, _) = self.segment()?;
        let (top, rank) = (self.top(), self.top_rank(rank));
        let id = top.processes.get(rank).copied().filter(|&id| id != 0)?;
        // Relaxed: stored before that arrival.
        let mark = top.records()[rank].sleeper.mark.load(Ordering::Relaxed) as usize;
        Some(Process { id, mark, group: segment.name() })
    }

    /// Returns the log of the last calls of `rank`.
    #[inline]
    pub(crate) fn call_log(&self, rank: usize) -> Option<&CallLog> {
        let top_rank = self.top_rank(rank);
        self.segment().map(|(segment, _)| segment.call_log(top_rank))
    }

    /// Whether this process is a copy, made by `fork`, of the one that joined the group.
    pub(crate) fn forked(&self) -> bool {
        self.segment().is_some_and(|(segment, _)| segment.forked())
    }

    /// Returns the group of `members` (ranks of this one, which is in `generation`), the same for
    /// each member that passes the same key. The caller is its rank `rank`.
    ///
    /// # Panics
    /// If a member passes other members, or one member calls twice.
    pub(crate) fn child(
        self: &Arc<GroupState>,
        generation: Generation,
        key: Key,
        members: &[usize],
        rank: usize,
    ) -> Arc<GroupState> {
        // Relaxed: a rank that leaves a generation after waiting in the new group has seen this.
        self.has_children.store(1, Ordering::Relaxed);
        let mut pending_subgroups = lock(&self.pending_subgroups);
        let newborn = pending_subgroups.entry(key).or_insert_with(|| {
            let state =
                Arc::new(GroupState::split_off(Backing::own(members.len()), self.as_parent(generation, members)));
            Newborn { state, takers: 0 }
        });
        assert_eq!(newborn.state.members(), members, "members of one group");
        // Relaxed: this rank leaves the parent later, and the others read `leave`'s store first.
        let taken = newborn.state.records()[rank].counters.taken.swap(Generation::default().mark(), Ordering::Relaxed);
        assert_eq!(taken, 0, "an endpoint is given once");
        newborn.takers += 1;
        let (state, complete) = (newborn.state.clone(), newborn.takers == members.len());
        if complete {
            pending_subgroups.remove(&key);
        }
        state
    }

    /// Like `child`, for processes: each builds its own `GroupState` over the shared `area`.
    pub(crate) fn child_in(
        self: &Arc<GroupState>,
        generation: Generation,
        area: Area,
        members: &[usize],
    ) -> Arc<GroupState> {
        let segment = self.shared_segment().expect("a group of processes");
        let backing = Backing::segment(segment.clone(), area, members.len());
        Arc::new(GroupState::split_off(backing, self.as_parent(generation, members)))
    }

    /// Publishes that `rank` took its endpoint in this group of processes, begun in `generation`.
    pub(crate) fn take(&self, generation: Generation, rank: usize) {
        // Relaxed: as in `child`.
        self.records()[rank].counters.taken.store(generation.mark(), Ordering::Relaxed);
    }

    /// Returns the segment, if processes share the group.
    pub(crate) fn shared_segment(&self) -> Option<&Arc<Segment>> {
        match &self.backing {
            Backing::Own { .. } => None,
            Backing::Segment { segment, .. } => Some(segment),
        }
    }

    fn as_parent(self: &Arc<GroupState>, generation: Generation, members: &[usize]) -> Parent {
        let (top, ranks) = match &self.parent {
            None => (self.clone(), members.into()),
            Some(parent) => (parent.top.clone(), members.iter().map(|&member| parent.top_ranks[member]).collect()),
        };
        Parent { state: self.clone(), generation, members: members.into(), top, top_ranks: ranks }
    }

    /// Claims a free area for a group of `size` ranks of processes; `None` if all are claimed.
    ///
    /// The owner word holds the mark of the area's generation, and how many members have not
    /// released it. It never returns to an earlier value, so a claim that exchanges the value it
    /// read misses no group that came between.
    pub(crate) fn claim(&self, size: usize) -> Option<Claim> {
        let segment = self.shared_segment().expect("a group of processes");
        (0..Segment::SPLITS).find_map(|place| {
            let owner = &Backing::head_of(segment, Area::Split(place)).owner;
            // Relaxed: a guess, which the exchange checks.
            let free = owner.load(Ordering::Relaxed);
            if free as u32 != 0 {
                return None;
            }
            // The mark of a generation is the number of the next.
            let generation = Generation(free >> 32).below_end()?;
            let word = generation.mark() << 32 | size as u64;
            // SYNC POINT claim: the rank that claims the area sees the last writes of its former
            // members there; pairs with `release`.
            owner.compare_exchange(free, word, Ordering::Acquire, Ordering::Relaxed).ok()?;
            Some(Claim { place, generation })
        })
    }

    /// Releases a claimed area with all its shares, before another member has heard of it.
    pub(crate) fn unclaim(&self, claim: Claim) {
        let segment = self.shared_segment().expect("a group of processes");
        // Relaxed: no rank has used the area since the claim.
        Backing::head_of(segment, Area::Split(claim.place))
            .owner
            .store(claim.generation.mark() << 32, Ordering::Relaxed);
    }

    /// Releases one member's share of this group's area.
    fn release(&self) {
        if let Backing::Segment { area: Area::Split(_), .. } = &self.backing {
            // SYNC POINT claim: this member's last writes in the area come before the next claim;
            // pairs with `claim`.
            self.backing.head().owner.fetch_sub(1, Ordering::Release);
        }
    }

    /// Returns the first generation that no abort has ended; `None` for a group that was split off.
    pub(crate) fn next_round(&self, after: Generation) -> Option<Generation> {
        if self.parent.is_some() {
            return None;
        }
        // Relaxed: the caller has seen an abort, and sees no older word here.
        let ended = self.backing.head().abort.load(Ordering::Relaxed) >> 40;
        Generation(ended.max(after.mark())).below_end()
    }

    /// Whether `rank` will arrive at no further call of this group: it dropped its endpoint, or it
    /// left the parent without having taken one here.
    pub(crate) fn has_left(&self, generation: Generation, rank: usize) -> bool {
        let counters = &self.records()[rank].counters;
        let cannot_come = || {
            let left = |parent: &Parent| parent.state.has_left(parent.generation, parent.members[rank]);
            // Relaxed: a rank that sees that `rank` left the parent sees whether it had taken its
            // endpoint before.
            self.parent.as_ref().is_some_and(left) && counters.taken.load(Ordering::Relaxed) < generation.mark()
        };
        // Subgroups may be in an area that earlier groups have used, and groups of threads go on
        // after a rank left a generation. In any other group a rank leaves for good.
        let lasts = self.parent.is_none() && self.segment().is_some();
        let first = if lasts { Generation::default() } else { generation };
        // SYNC POINT leave: pairs with `leave`.
        counters.left.load(Ordering::Acquire) >= first.mark() || cannot_come()
    }

    /// Whether `rank` is of another process and has dropped its endpoint in the top group, which it
    /// does not take again.
    pub(crate) fn is_lost(&self, rank: usize) -> bool {
        !self.is_local(rank) && self.top().has_left(Generation::default(), self.top_rank(rank))
    }

    /// Publishes that `rank` will arrive at no further call.
    pub(crate) fn leave(&self, generation: Generation, rank: usize) {
        // A top group of threads may be in a later generation by then: this rank has left all
        // generations.
        let is_for_ever = self.parent.is_none() && self.segment().is_none();
        self.say_left(if is_for_ever { u64::MAX } else { generation.mark() }, rank);
        self.wake_all();
        self.release();
        // A pending subgroup in which this rank has not taken its endpoint will not become
        // complete; if it were kept, it would keep this group alive in turn.
        lock(&self.pending_subgroups).retain(|_, newborn| {
            let place = newborn.state.members().iter().position(|&member| member == rank);
            // Relaxed: `taken` of a pending subgroup is stored under this lock.
            place.is_none_or(|place| newborn.state.records()[place].counters.taken.load(Ordering::Relaxed) != 0)
        });
    }

    /// Notes that `rank` was told of another rank that has left or failed. A rank that later sees
    /// what `rank` does because of that can read this note.
    pub(crate) fn tell(&self, rank: usize, top_rank: usize) {
        if top_rank != self.top_rank(rank) {
            // Relaxed: read after an abort or a leave, which are released after this store.
            self.progress_at_top(rank).told.store(top_rank as u64 + 1, Ordering::Relaxed);
        }
    }

    /// Returns the rank at fault when `rank` has left or ends this group: `rank` itself or, if it
    /// was told of a rank that had left before, that rank, which may have been told of another in
    /// turn.
    pub(crate) fn culprit(&self, generation: Generation, rank: usize) -> usize {
        let told_of = |rank: usize| {
            let told = self.progress_at_top(rank).told.load(Ordering::Relaxed);
            let leaver = self.member(usize::try_from(told).ok()?.checked_sub(1)?)?;
            self.has_left(generation, leaver).then_some(leaver)
        };
        // In subgroups, ranks may have been told of each other.
        let others = std::iter::successors(told_of(rank), |&leaver| told_of(leaver));
        others.take(self.records().len()).take_while(|&leaver| leaver != rank).last().unwrap_or(rank)
    }

    /// Returns the rank's counters in the top group.
    pub(super) fn progress_at_top(&self, rank: usize) -> &Counters {
        &self.top().records()[self.top_rank(rank)].counters
    }

    /// Returns the rank in this group of a rank of the top group.
    pub(super) fn member(&self, top_rank: usize) -> Option<usize> {
        match &self.parent {
            None => Some(top_rank).filter(|&rank| rank < self.records().len()),
            Some(parent) => parent.top_ranks.iter().position(|&rank| rank == top_rank),
        }
    }

    /// Publishes that `rank` has left the generation with this mark, and those before.
    fn say_left(&self, mark: u64, rank: usize) {
        // SYNC POINT leave: a rank that sees this store sees the leaving rank's earlier writes;
        // pairs with `has_left`.
        self.records()[rank].counters.left.store(mark, Ordering::Release);
    }

    /// Publishes that `rank`, of a group of threads, makes no more calls in this generation, and
    /// wakes the ranks that may wait for it.
    pub(crate) fn leave_round(&self, generation: Generation, rank: usize) {
        self.say_left(generation.mark(), rank);
        // SYNC POINT left: pairs with the fence in `sleep_until`, whose name is `sleep`.
        fence(Ordering::SeqCst);
        let sleeps = |record: &RankRecord| record.sleeper.waits_for.load(Ordering::Relaxed) != 0;
        // A rank may also wait in a group split from this one, which is unknown here.
        if self.has_children.load(Ordering::Relaxed) != 0 || self.records().iter().any(sleeps) {
            self.wake_all();
        }
    }

    /// Whether this group was split from another.
    pub(crate) fn has_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// Returns this group's ranks in its parent's numbering; empty if it has no parent.
    fn members(&self) -> &[usize] {
        self.parent.as_ref().map_or(&[], |parent| &parent.members)
    }

    /// Returns the sleeper of `rank`, which is the same in all groups.
    pub(crate) fn sleeper(&self, rank: usize) -> &Sleeper {
        &self.top().records()[self.top_rank(rank)].sleeper
    }

    /// Wakes every sleeping thread of `rank`, here or in any other group.
    pub(crate) fn wake(&self, rank: usize) {
        self.sleeper(rank).wake.signal(self.segment().is_some());
    }

    /// Wakes every rank that sleeps in this group or in one split from it.
    pub(crate) fn wake_all(&self) {
        (0..self.records().len()).for_each(|rank| self.wake(rank));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no rank panics while it holds a lock of the state")
}

#[cfg(test)]
mod tests;
