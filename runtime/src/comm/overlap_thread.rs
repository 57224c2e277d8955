//! Threads that all-reduce the buckets of an overlap while the replica computes.

use crate::{Communicator, panics};
use consonance_kernels::group::Reason;
use std::{
    mem, process,
    sync::mpsc,
    thread::{self, JoinHandle},
};

/// A thread that works for one replica at a time, with that replica's communicator. It sleeps while
/// it is idle and ends when this is dropped.
pub(crate) struct CommThread {
    /// `None` when the thread is to end.
    loans: Option<mpsc::Sender<Loan>>,
    thread: Option<JoinHandle<()>>,
    /// The id of the process that has the thread. A child made by `fork` does not have it.
    owner: u32,
}

/// Work on a communicator.
pub(crate) type Task = Box<dyn FnOnce(&mut Communicator) + Send>;

/// A communicator and a queue of tasks for it. The borrower sends `None` after the last task.
struct Loan {
    communicator: Communicator,
    tasks: mpsc::Receiver<Option<Task>>,
    back: mpsc::Sender<Communicator>,
}

/// The replica's end of a loan.
pub(crate) struct Lent {
    tasks: mpsc::Sender<Option<Task>>,
    back: mpsc::Receiver<Communicator>,
}

impl CommThread {
    /// Starts the thread. `None` if the system cannot start one.
    pub(crate) fn start() -> Option<CommThread> {
        let (loans, queue) = mpsc::channel();
        let thread = thread::Builder::new().name("buckets".to_owned()).spawn(move || serve(queue)).ok()?;
        Some(CommThread { loans: Some(loans), thread: Some(thread), owner: process::id() })
    }

    /// Returns whether the thread is in another process: this one is a fork of it.
    pub(crate) fn forked(&self) -> bool {
        self.owner != process::id()
    }

    /// Lends a communicator to the thread.
    pub(crate) fn lend(&self, communicator: Communicator) -> Lent {
        let (tasks, queue) = mpsc::channel();
        let (home, back) = mpsc::channel();
        let loans = self.loans.as_ref().expect("there until this is dropped");
        loans.send(Loan { communicator, tasks: queue, back: home }).expect("the thread ends when this is dropped");
        Lent { tasks, back }
    }
}

impl Lent {
    /// Queues a task. Tasks run in order.
    pub(crate) fn carry_out(&self, task: Task) {
        self.tasks.send(Some(task)).expect("a thread takes tasks for as long as it has a communicator");
    }

    /// Waits until all tasks are done, within their deadlines, and returns the communicator.
    pub(crate) fn take_back(self) -> Communicator {
        self.tasks.send(None).expect("a thread takes tasks for as long as it has a communicator");
        self.back.recv().expect("the thread gives back what was lent")
    }
}

impl Drop for CommThread {
    fn drop(&mut self) {
        if self.forked() {
            // A fork has no thread to notify or join.
            mem::forget((self.loans.take(), self.thread.take()));
            return;
        }
        self.loans = None;
        // `serve` does not panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(loans: mpsc::Receiver<Loan>) {
    for Loan { mut communicator, tasks, back } in loans {
        loop {
            match tasks.recv() {
                Ok(Some(task)) => {
                    // The task reports to the replica that waits for it; the abort informs the
                    // others.
                    if panics::catch(|| task(&mut communicator)).is_err() {
                        communicator.abort_handle().abort(Reason::Panic);
                    }
                }
                Ok(None) => break,
                // The replica's thread ended without sending `None`.
                Err(_) => {
                    communicator.abort_handle().abort(Reason::Panic);
                    break;
                }
            }
        }
        // The lender waits for it.
        let _ = back.send(communicator);
    }
}
