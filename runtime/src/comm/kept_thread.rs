//! A thread that is kept between jobs.

use crate::panics;
use consonance_kernels::sync::fork::Origin;
use std::{io, mem, sync::mpsc, thread};

/// A thread that executes jobs in order, and sleeps while it has none. When this is dropped, the
/// thread ends after the last of them, and nobody waits for it. A panic of a job is printed, and
/// has no other effect.
pub(crate) struct KeptThread {
    /// `None` when the thread is to end.
    jobs: Option<mpsc::Sender<Job>>,
    origin: Origin,
}

type Job = Box<dyn FnOnce() + Send>;

impl KeptThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, when it gives no thread.
    pub(crate) fn start(name: &str) -> io::Result<KeptThread> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let serve = move || queue.into_iter().for_each(|job| _ = panics::catch(job));
        thread::Builder::new().name(name.to_owned()).spawn(serve)?;
        Ok(KeptThread { jobs: Some(jobs), origin: Origin::here() })
    }

    /// Returns whether the thread is in another process: this one is a fork of it.
    pub(crate) fn forked(&self) -> bool {
        self.origin.forked()
    }

    /// Executes `job` on the thread, after the jobs before it.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let jobs = self.jobs.as_ref().expect("there until this is dropped");
        jobs.send(Box::new(job)).expect("the thread ends when this is dropped");
    }
}

impl Drop for KeptThread {
    fn drop(&mut self) {
        if self.forked() {
            // A fork has no thread to notify, and a lock in the channel may be held for ever.
            mem::forget(self.jobs.take());
        }
    }
}
