//! What the ranks of one group share: a line for each, and the word that ends the group.

use crate::{
    atomics::{AtomicU64, Ordering, fence},
    line::Line,
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, Weak},
    thread,
};

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
    /// The abort word: 0 is none, so that the reasons count from 1.
    fn word(self) -> u64 {
        (self.rank as u64) << 8 | self.reason as u64
    }

    fn from_word(word: u64) -> Option<Abort> {
        let reason = match word as u8 {
            1 => Reason::Deadline,
            2 => Reason::Panic,
            3 => Reason::Failure,
            _ => return None,
        };
        Some(Abort { rank: (word >> 8) as usize, reason })
    }
}

pub(crate) struct Hub {
    pub(crate) lines: Box<[Line]>,
    abort: AtomicU64,
    /// Whether a waiting rank spins first: not where ranks outnumber the cores they would wait for.
    pub(crate) spins: bool,
    /// The group this one was split from, and this group's ranks in its numbering.
    parent: Option<(Arc<Hub>, Box<[usize]>)>,
    children: Mutex<Vec<Weak<Hub>>>,
    /// Groups split from this one that not every member has taken yet, by a key that the members agree on.
    nursery: Mutex<HashMap<(u64, usize), Newborn>>,
}

struct Newborn {
    hub: Arc<Hub>,
    takers: usize,
}

impl Hub {
    pub(crate) fn new(size: usize, parent: Option<(Arc<Hub>, Box<[usize]>)>) -> Arc<Hub> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let spins = size <= cores && parent.as_ref().is_none_or(|(hub, _)| hub.spins);
        let lines = (0..size).map(|_| Line::default()).collect();
        let (children, nursery) = (Mutex::default(), Mutex::default());
        Arc::new(Hub { lines, abort: AtomicU64::new(0), spins, parent, children, nursery })
    }

    /// The group of `members` (ranks of this one), the same for each member that asks with the same key; the one that asks is
    /// its rank `rank`.
    ///
    /// # Panics
    /// If members ask with other members, or one asks twice.
    pub(crate) fn child(self: &Arc<Hub>, key: (u64, usize), members: &[usize], rank: usize) -> Arc<Hub> {
        let mut nursery = lock(&self.nursery);
        let newborn = nursery.entry(key).or_insert_with(|| {
            let hub = Hub::new(members.len(), Some((self.clone(), members.into())));
            let mut children = lock(&self.children);
            children.retain(|child| child.strong_count() > 0);
            children.push(Arc::downgrade(&hub));
            Newborn { hub, takers: 0 }
        });
        assert_eq!(newborn.hub.members(), members, "members of one group");
        // SYNC POINT taken: before this rank can leave the parent; pairs with `has_left`.
        let taken = newborn.hub.lines[rank].progress.taken.swap(1, Ordering::Release);
        assert_eq!(taken, 0, "a seat is given once");
        newborn.takers += 1;
        let (hub, complete) = (newborn.hub.clone(), newborn.takers == members.len());
        if complete {
            nursery.remove(&key);
        }
        hub
    }

    /// Ends this group and those split from it. Never waits for a rank.
    pub(crate) fn abort(&self, abort: Abort) {
        // SYNC POINT abort: before any rank enters others' memory (`Seat::enter`) it looks here, after a fence.
        if self.abort.compare_exchange(0, abort.word(), Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.ring_all();
        }
    }

    /// Whether this group has been ended, by whom and why; the rank is one of this group or of an ancestor.
    pub(crate) fn aborted(&self) -> Option<Abort> {
        // An ancestor's end is the reason for what its groups say of themselves later.
        let inherited = self.parent.as_ref().and_then(|(parent, _)| parent.aborted());
        inherited.or_else(|| Abort::from_word(self.abort.load(Ordering::SeqCst)))
    }

    /// Whether `rank` will arrive at no further call of this group: it gave up its seat, or it left the parent without having
    /// taken one here.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        let progress = &self.lines[rank].progress;
        // SYNC POINT taken: who sees that the rank left the parent sees whether it had taken its seat before.
        let cannot_come = || {
            let left_parent = self.parent.as_ref().is_some_and(|(parent, members)| parent.has_left(members[rank]));
            left_parent && progress.taken.load(Ordering::Acquire) == 0
        };
        progress.left.load(Ordering::Acquire) != 0 || cannot_come()
    }

    /// Says that `rank` will arrive at no further call.
    pub(crate) fn leave(&self, rank: usize) {
        // SYNC POINT leave: pairs with `has_left`; what the rank published before is seen by who sees that it left.
        self.lines[rank].progress.left.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.ring_all();
        // A newborn group in which this rank has not taken its seat will not be complete any more; kept, it would keep this
        // group in turn.
        lock(&self.nursery).retain(|_, newborn| {
            let place = newborn.hub.members().iter().position(|&member| member == rank);
            place.is_none_or(|place| newborn.hub.lines[place].progress.taken.load(Ordering::Acquire) != 0)
        });
    }

    /// This group's ranks in its parent's numbering; none if it has no parent.
    fn members(&self) -> &[usize] {
        self.parent.as_ref().map_or(&[], |(_, members)| members)
    }

    /// Wakes every rank that sleeps in this group or in one split from it.
    fn ring_all(&self) {
        for line in &self.lines {
            line.rest.bell.ring();
        }
        for child in lock(&self.children).iter().filter_map(Weak::upgrade) {
            child.ring_all();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no rank panics while it holds a lock of the hub")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_not_every_member_took_ends_with_its_parent() {
        let parent = Hub::new(2, None);
        let taken = parent.child((1, 0), &[0, 1], 0);
        let (parent_ends, child_ends) = (Arc::downgrade(&parent), Arc::downgrade(&taken));
        drop(taken);
        assert!(child_ends.upgrade().is_some(), "the other member may still come");
        parent.leave(0);
        assert!(child_ends.upgrade().is_some(), "the leaving rank has its seat already");
        parent.leave(1);
        drop(parent);
        assert!(child_ends.upgrade().is_none() && parent_ends.upgrade().is_none());
    }

    #[test]
    fn a_rank_that_leaves_the_parent_keeps_the_seat_that_it_took() {
        let parent = Hub::new(2, None);
        let child = parent.child((1, 0), &[0, 1], 0);
        parent.leave(0);
        assert!(!child.has_left(0));
        parent.leave(1);
        assert!(child.has_left(1), "it left without a seat here");
    }
}
