//! Threads that carry out the buckets of an overlap while the replica computes.

use crate::{Communicator, buckets::Task};
use consonance_kernels::step::Reason;
use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    process,
    sync::mpsc,
    thread::{self, JoinHandle},
};

/// A thread that works for one replica at a time, with its communicator. Idle, it sleeps; it ends when this is dropped.
pub(crate) struct Carrier {
    /// None when it ends.
    loans: Option<mpsc::Sender<Loan>>,
    thread: Option<JoinHandle<()>>,
    /// The process that has the thread: a fork of it has not.
    owner: u32,
}

/// A communicator, and what to do with it until the other end says that there is no more.
struct Loan {
    communicator: Communicator,
    tasks: mpsc::Receiver<Task>,
    back: mpsc::Sender<Communicator>,
}

/// The other end of a loan.
pub(crate) struct Lent {
    tasks: mpsc::Sender<Task>,
    back: mpsc::Receiver<Communicator>,
}

impl Carrier {
    /// Starts the thread; none if the system gives none.
    pub(crate) fn start() -> Option<Carrier> {
        let (loans, queue) = mpsc::channel();
        let thread = thread::Builder::new().name("buckets".to_owned()).spawn(move || serve(queue)).ok()?;
        Some(Carrier { loans: Some(loans), thread: Some(thread), owner: process::id() })
    }

    /// Whether the thread is in another process, of which this one is a fork.
    pub(crate) fn forked(&self) -> bool {
        self.owner != process::id()
    }

    /// Lends it a communicator.
    pub(crate) fn lend(&self, communicator: Communicator) -> Lent {
        let (tasks, queue) = mpsc::channel();
        let (home, back) = mpsc::channel();
        let loans = self.loans.as_ref().expect("there until this is dropped");
        loans.send(Loan { communicator, tasks: queue, back: home }).expect("the thread ends when this is dropped");
        Lent { tasks, back }
    }
}

impl Lent {
    /// Has the task carried out after those before it.
    pub(crate) fn carry_out(&self, task: Task) {
        self.tasks.send(task).expect("a carrier takes tasks for as long as it has a communicator");
    }

    /// The communicator, when all is done: within the deadlines of the tasks.
    pub(crate) fn take_back(self) -> Communicator {
        drop(self.tasks);
        self.back.recv().expect("a carrier gives back what was lent")
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if self.forked() {
            // There is nobody to tell or to join.
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
        for task in tasks {
            let carry_out = AssertUnwindSafe(|| task.carry_out(&mut communicator));
            // The task tells who waits for it; this tells the other replicas.
            if catch_unwind(carry_out).is_err() {
                communicator.aborter().abort(Reason::Panic);
            }
        }
        // Who lent it waits for it.
        let _ = back.send(communicator);
    }
}
