//! The board on which the replicas of a process exchange values with a merge function.

use std::{
    any::Any,
    marker::PhantomData,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::Duration,
};

/// The board of a run: replicas of this process leave arguments on it, and the merge function
/// leaves its results. A clone is the same board.
#[derive(Clone)]
pub(crate) struct MergeBoard(Arc<[ReplicaSlot]>);

/// The place of a replica. All are one allocation.
#[derive(Default)]
struct ReplicaSlot {
    left: Mutex<Option<Box<dyn Any + Send>>>,
    /// The number of merge functions that have ended, at the place of the first replica.
    merges: Mutex<usize>,
    ended: Condvar,
}

/// A replica's entry for a merge function: its arguments, and the type of the result that it
/// expects.
pub(super) struct Left<A, V>(pub(super) A, pub(super) PhantomData<fn() -> V>);

/// A running merge function. Its drop marks the end of the function.
pub(super) struct Merging<'b>(pub(super) &'b MergeBoard);

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        *self.0.merges() += 1;
        self.0.0[0].ended.notify_all();
    }
}

impl MergeBoard {
    pub(crate) fn new(replicas: usize) -> MergeBoard {
        MergeBoard((0..replicas).map(|_| ReplicaSlot::default()).collect())
    }

    pub(super) fn merges(&self) -> MutexGuard<'_, usize> {
        self.0[0].merges.lock().expect("nobody panics at the board")
    }

    /// Waits until more than `before` merge functions have ended. Returns false if the timeout
    /// passed first.
    pub(super) fn wait_for_merge(&self, before: usize, timeout: Duration) -> bool {
        let waited = self.0[0].ended.wait_timeout_while(self.merges(), timeout, |merges| *merges <= before);
        !waited.expect("nobody panics at the board").1.timed_out()
    }

    pub(super) fn put(&self, place: usize, value: Box<dyn Any + Send>) {
        *self.0[place].left.lock().expect("nobody panics at the board") = Some(value);
    }

    pub(super) fn take(&self, place: usize) -> Option<Box<dyn Any + Send>> {
        self.0[place].left.lock().expect("nobody panics at the board").take()
    }
}
