//! One copy or component of a variable, and exclusive access for its writer.
//!
//! A writer takes the value out of its place and puts it back, so that no lock is held while a
//! user's function writes it. Another thread that wants the value waits, at most until its
//! deadline. The writing thread itself gets an error at once.

use crate::{Error, Result, Strategy, Tensor, execution::context};
use consonance_kernels::memory::Space;
use std::{
    ops::{Deref, DerefMut},
    sync::{Condvar, Mutex, MutexGuard},
    thread::{self, ThreadId},
};

pub(super) struct Place {
    /// The memory that the value lies in.
    space: Space,
    state: Mutex<State>,
    put_back: Condvar,
}

struct State {
    value: Tensor,
    /// The writer that took the value out.
    writer: Option<Writer>,
    /// The number of threads that wait for the value. A notification costs a system call, so it is
    /// sent only if there are some.
    waiting: usize,
}

struct Writer {
    thread: ThreadId,
    call: &'static str,
    /// `None` outside of replicas.
    replica: Option<usize>,
}

impl Place {
    /// Makes the place of a value, in the memory that it lies in.
    pub(super) fn new(value: Tensor) -> Place {
        let (space, state) = (value.space(), State { value, writer: None, waiting: 0 });
        Place { space, state: Mutex::new(state), put_back: Condvar::new() }
    }

    /// Returns the memory that the value lies in.
    pub(super) fn space(&self) -> Space {
        self.space
    }

    pub(super) fn read(&self, call: &'static str, strategy: &Strategy) -> Result<Tensor> {
        Ok(self.wait(call, strategy)?.value.clone())
    }

    /// Returns the value if no writer has it. Does not wait.
    pub(super) fn look(&self) -> Option<Tensor> {
        let state = self.state.try_lock().ok()?;
        state.writer.is_none().then(|| state.value.clone())
    }

    /// Takes the value out for writing. Writes are in place unless the elements are shared.
    pub(super) fn write(&self, call: &'static str, strategy: &Strategy) -> Result<Writing<'_>> {
        let mut state = self.wait(call, strategy)?;
        state.writer = Some(Writer { thread: thread::current().id(), call, replica: context::replica() });
        Ok(Writing { place: self, value: std::mem::take(&mut state.value) })
    }

    /// Waits until the value is in its place, at most for the strategy's timeout.
    fn wait(&self, call: &'static str, strategy: &Strategy) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        let Some(writer) = &state.writer else { return Ok(state) };
        if writer.thread == thread::current().id() {
            let problem = "called in an update of the same variable; the update's own argument is its value".to_owned();
            return Err(Error::WrongContext { call, problem });
        }
        let timeout = strategy.options().configuration().timeout;
        state.waiting += 1;
        let waited = self.put_back.wait_timeout_while(state, timeout, |state| state.writer.is_some());
        let (mut state, _) = waited.expect("nobody panics holding a place");
        state.waiting -= 1;
        let Some(Writer { call: other, replica, .. }) = &state.writer else { return Ok(state) };
        // A writer outside of replicas is reported as the first replica of this process.
        let replica = replica.unwrap_or_else(|| strategy.local_replicas().start);
        let missing = vec![(replica, format!("its {other} of the variable, on another thread, has not ended"))];
        Err(Error::Timeout { call: call.to_owned(), waited: timeout, missing })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics holding a place")
    }
}

/// A value taken out for writing. Dropping this puts it back, also after a panic.
pub(super) struct Writing<'p> {
    place: &'p Place,
    value: Tensor,
}

impl Writing<'_> {
    /// Returns the memory that the value lies in.
    pub(super) fn space(&self) -> Space {
        self.place.space
    }
}

impl Deref for Writing<'_> {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.value
    }
}

impl DerefMut for Writing<'_> {
    fn deref_mut(&mut self) -> &mut Tensor {
        &mut self.value
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut state = self.place.lock();
        (state.value, state.writer) = (std::mem::take(&mut self.value), None);
        let waiting = state.waiting;
        drop(state);
        if waiting > 0 {
            self.place.put_back.notify_all();
        }
    }
}
