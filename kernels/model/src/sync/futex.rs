//! Sleep until a word changes, in the model: a wake that is lost ends in a deadlock, which the
//! model reports.

use super::atomics::AtomicU32;
use crate::fault;
use loom::thread::Thread;
use std::{
    sync::{Mutex, atomic::Ordering},
    time::Duration,
};

#[derive(Default)]
pub(crate) struct Sleepers {
    /// Not seen by the model: what is done here is one step, as it is in the kernel.
    threads: Mutex<Vec<Thread>>,
}

impl Sleepers {
    /// There is no time in the model: who has a limit wakes at once, who has none sleeps until it
    /// is woken.
    pub(crate) fn wait(&self, word: &AtomicU32, seen: u32, limit: Duration, _shared: bool) {
        if fault::over() || limit != Duration::MAX {
            return;
        }
        let thread = loom::thread::current();
        let id = thread.id();
        self.threads.lock().expect("no poison").push(thread);
        // What changes a word reads its latest value.
        if word.fetch_add(0, Ordering::Relaxed) == seen {
            loom::thread::park();
        }
        self.threads.lock().expect("no poison").retain(|thread| thread.id() != id);
    }

    pub(crate) fn wake(&self, _word: &AtomicU32, _shared: bool) {
        if !fault::over() {
            self.threads.lock().expect("no poison").iter().for_each(Thread::unpark);
        }
    }
}
