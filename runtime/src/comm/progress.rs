//! Calls that go on while their rank computes: tasks on a communicator, executed in order by
//! another thread. Asynchronous scopes and overlaps are built on this.

use crate::{Communicator, comm::engine::AbortHandle, panics};
use consonance_kernels::group::Reason;
use std::{
    mem, process,
    sync::mpsc,
    thread::{self, JoinHandle},
};

/// Work on a communicator.
type Task<'env> = Box<dyn FnOnce(&mut Communicator) + Send + 'env>;

/// The sending end of a queue of tasks. If it is dropped before it is [closed](Tasks::close), which
/// happens only in a panic, the group is aborted, so that no peer waits for this rank.
pub(crate) struct Tasks<'env> {
    /// `None` when the queue is closed.
    queue: Option<mpsc::Sender<Task<'env>>>,
    aborter: AbortHandle,
}

/// The receiving end of a queue of tasks.
pub(crate) struct Progress<'env>(mpsc::Receiver<Task<'env>>);

/// Makes a queue of tasks for `communicator`.
pub(crate) fn queue<'env>(communicator: &Communicator) -> (Tasks<'env>, Progress<'env>) {
    let (queue, tasks) = mpsc::channel();
    (Tasks { queue: Some(queue), aborter: communicator.abort_handle() }, Progress(tasks))
}

impl<'env> Tasks<'env> {
    /// Queues a task. Tasks run in order.
    pub(crate) fn add(&self, task: impl FnOnce(&mut Communicator) + Send + 'env) {
        let queue = self.queue.as_ref().expect("there until the queue is closed");
        queue.send(Box::new(task)).expect("the thread takes tasks until the queue is closed");
    }

    /// Ends the queue: the thread is done after the last task.
    pub(crate) fn close(mut self) {
        self.queue = None;
    }
}

impl Drop for Tasks<'_> {
    fn drop(&mut self) {
        if self.queue.is_some() {
            self.aborter.abort(Reason::Panic);
        }
    }
}

impl Progress<'_> {
    /// Executes the tasks until the queue is closed. A task that panics aborts the group, and tells
    /// its waiter itself.
    pub(crate) fn run(self, communicator: &mut Communicator) {
        for task in self.0 {
            if panics::catch(|| task(communicator)).is_err() {
                communicator.abort_handle().abort(Reason::Panic);
            }
        }
    }
}

/// A thread that executes the tasks of one communicator at a time. It is lent the communicator,
/// sleeps while it has none, and ends when this is dropped.
pub(crate) struct CommThread {
    /// `None` when the thread is to end.
    loans: Option<mpsc::Sender<Loan>>,
    thread: Option<JoinHandle<()>>,
    /// The id of the process that has the thread. A child made by `fork` does not have it.
    owner: u32,
}

struct Loan {
    communicator: Communicator,
    progress: Progress<'static>,
    back: mpsc::Sender<Communicator>,
}

/// The lender's end of a loan.
pub(crate) struct Lent {
    pub(crate) tasks: Tasks<'static>,
    back: mpsc::Receiver<Communicator>,
}

impl CommThread {
    /// Starts the thread. `None` if the system cannot start one.
    pub(crate) fn start() -> Option<CommThread> {
        let (loans, queue) = mpsc::channel::<Loan>();
        let serve = move || {
            for Loan { mut communicator, progress, back } in queue {
                progress.run(&mut communicator);
                // The lender waits for it.
                let _ = back.send(communicator);
            }
        };
        let thread = thread::Builder::new().name("buckets".to_owned()).spawn(serve).ok()?;
        Some(CommThread { loans: Some(loans), thread: Some(thread), owner: process::id() })
    }

    /// Returns whether the thread is in another process: this one is a fork of it.
    pub(crate) fn forked(&self) -> bool {
        self.owner != process::id()
    }

    /// Lends a communicator to the thread.
    pub(crate) fn lend(&self, communicator: Communicator) -> Lent {
        let (tasks, progress) = queue(&communicator);
        let (home, back) = mpsc::channel();
        let loans = self.loans.as_ref().expect("there until this is dropped");
        loans.send(Loan { communicator, progress, back: home }).expect("the thread ends when this is dropped");
        Lent { tasks, back }
    }
}

impl Lent {
    /// Waits until all tasks are done, within their deadlines, and returns the communicator.
    pub(crate) fn take_back(self) -> Communicator {
        self.tasks.close();
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
        // The thread does not panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
