//! Threads that carry out the buckets of an overlap while the replica computes.

use crate::{Communicator, panics};
use consonance_kernels::group::Reason;
use std::{
    mem, process,
    sync::mpsc,
    thread::{self, JoinHandle},
};

/// A thread that works for one replica at a time, with its communicator. Idle, it sleeps; it ends
/// when this is dropped.
pub(crate) struct CommThread {
    /// None when it ends.
    loans: Option<mpsc::Sender<Loan>>,
    thread: Option<JoinHandle<()>>,
    /// The process that has the thread: a fork of it has not.
    owner: u32,
}

/// What is done with a communicator.
pub(crate) type Task = Box<dyn FnOnce(&mut Communicator) + Send>;

/// A communicator, and what to do with it until the other end says, with none, that there is no
/// more.
struct Loan {
    communicator: Communicator,
    tasks: mpsc::Receiver<Option<Task>>,
    back: mpsc::Sender<Communicator>,
}

/// The other end of a loan.
pub(crate) struct Lent {
    tasks: mpsc::Sender<Option<Task>>,
    back: mpsc::Receiver<Communicator>,
}

impl CommThread {
    /// Starts the thread; none if the system gives none.
    pub(crate) fn start() -> Option<CommThread> {
        let (loans, queue) = mpsc::channel();
        let thread = thread::Builder::new().name("buckets".to_owned()).spawn(move || serve(queue)).ok()?;
        Some(CommThread { loans: Some(loans), thread: Some(thread), owner: process::id() })
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
        self.tasks.send(Some(task)).expect("a carrier takes tasks for as long as it has a communicator");
    }

    /// The communicator, when all is done: within the deadlines of the tasks.
    pub(crate) fn take_back(self) -> Communicator {
        self.tasks.send(None).expect("a carrier takes tasks for as long as it has a communicator");
        self.back.recv().expect("a carrier gives back what was lent")
    }
}

impl Drop for CommThread {
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
        loop {
            match tasks.recv() {
                Ok(Some(task)) => {
                    // The task tells who waits for it; this tells the other replicas.
                    if panics::catch(|| task(&mut communicator)).is_err() {
                        communicator.abort_handle().abort(Reason::Panic);
                    }
                }
                Ok(None) => break,
                // The replica's thread ended without a word.
                Err(_) => {
                    communicator.abort_handle().abort(Reason::Panic);
                    break;
                }
            }
        }
        // Who lent it waits for it.
        let _ = back.send(communicator);
    }
}
