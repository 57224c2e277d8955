//! The model of sleeping until a word changes. A lost wake ends in a deadlock, which the model
//! reports.

use super::atomics::AtomicU32;
use crate::fault;
use loom::thread::Thread;
use std::{
    sync::{Mutex, atomic::Ordering},
    time::Duration,
};

#[derive(Default)]
pub(crate) struct Sleepers {
    /// The model does not see this lock: an operation here is one step, as it is in the kernel.
    threads: Mutex<Vec<Thread>>,
}

impl Sleepers {
    /// Sleeps until a wake if there is no limit. With a limit it returns at once, because the model
    /// has no time.
    pub(crate) fn wait(&self, word: &AtomicU32, seen: u32, limit: Duration, _shared: bool) {
        if fault::over() || limit != Duration::MAX {
            return;
        }
        let thread = loom::thread::current();
        let id = thread.id();
        self.threads.lock().expect("no poison").push(thread);
        // A read-modify-write operation reads the latest value of the word.
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
