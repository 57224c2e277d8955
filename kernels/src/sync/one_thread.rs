//! State that only one thread uses.

use std::ops::Deref;

/// State of a `ReplicaContext` that only the replica's thread uses. No other thread can borrow it,
/// and the compiler's error says what a program does instead.
///
/// ```
/// use consonance_kernels::sync::one_thread::OneThread;
/// use std::cell::Cell;
/// let calls = OneThread::new(Cell::new(1));
/// calls.set(calls.get() + 1);
/// assert_eq!(calls.into_inner().get(), 2);
/// ```
///
/// ```compile_fail,E0277
/// use consonance_kernels::sync::one_thread::OneThread;
/// let calls = OneThread::new(1);
/// std::thread::scope(|scope| scope.spawn(|| *calls).join());
/// ```
pub struct OneThread<T>(T);

/// The permission to use a value on several threads, which no type has.
///
/// # Safety
/// No type may implement it: several threads would share a value that is made for one.
#[diagnostic::on_unimplemented(
    message = "a `ReplicaContext` stays on its thread",
    label = "it would be used on another thread, or outlive its function",
    note = "`ReplicaContext::overlap` reduces gradients on another thread while the replica computes",
    note = "`current_replica` returns a handle of the replica that this thread runs"
)]
pub unsafe trait UsedByOtherThreads {}

// SAFETY: no type implements `UsedByOtherThreads`, so no type gets `Sync` by this. It is there for
// the message of the trait: without it the compiler would name the fields.
unsafe impl<T: UsedByOtherThreads> Sync for OneThread<T> {}

impl<T> OneThread<T> {
    /// Wraps the state.
    pub fn new(state: T) -> OneThread<T> {
        OneThread(state)
    }

    /// Returns the state.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for OneThread<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
