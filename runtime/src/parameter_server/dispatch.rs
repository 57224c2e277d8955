//! The threads of the chief that receive what workers answer, one for each worker.

use super::{
    chief::Chief,
    failure::Failed,
    link::{IDLE, Link},
    message::{Attempt, Ended},
    schedule::Next,
    worker_process::Duty,
};
use crate::{Error, Result};
use std::time::Instant;

impl Chief {
    /// Attends to a worker, which waits for orders, until the strategy is dropped, or the worker or
    /// a server is lost.
    ///
    /// # Errors
    /// That of the link to the worker.
    pub(super) fn dispatch(&self, worker: usize, link: &Link) -> Result<()> {
        let attended = self.attend(worker, link);
        attended.inspect_err(|error| self.loses(worker, error))
    }

    fn attend(&self, worker: usize, link: &Link) -> Result<()> {
        // If a server is lost, the loop ends at once.
        let _ = self.change_and_free(Some(worker), |_| ((), Next::Nothing));
        loop {
            let duty = {
                let mut state = self.lock();
                if state.has_ended() {
                    // A later answer of the worker comes to the next generation, which does not
                    // want it.
                    return Ok(());
                }
                state.processes[worker].duty()
            };
            let until = match duty {
                Duty::Send(order) => {
                    link.ask(&order)?;
                    continue;
                }
                // A closure that begins meanwhile ends after that.
                Duty::Wait(until) => until.unwrap_or_else(|| Instant::now() + self.limits().closure_timeout),
            };
            match link.answer(until) {
                Ok(None) => {}
                Ok(Some(answer)) => {
                    let (servers, datasets) = (self.program.parts.len(), self.program.known.datasets.len());
                    self.take(worker, Ended::read(&answer, servers, datasets)?);
                }
                Err(error @ Error::Timeout { .. }) => {
                    let now = Instant::now();
                    // The worker is not free before it has ended with the closure.
                    let late = self.lock().processes[worker].take_late(now, now + IDLE);
                    if let Some(attempt) = late {
                        if link.is_stopped() {
                            return Err(error);
                        }
                        self.give_up(worker, attempt, error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the answer of a worker.
    fn take(&self, worker: usize, ended: Ended) {
        let Ended { attempt, outcome } = ended;
        if !self.lock().processes[worker].answers(attempt) {
            return;
        }
        let outcome = match outcome {
            Ok(done) => Ok(done),
            Err(Failed::Error(error)) => Err(error),
            Err(Failed::Panic(message)) => Err(Error::Panic { replica: worker, message }),
            Err(Failed::Lost(reason)) => {
                self.break_off(Error::Aborted {
                    call: "a closure".to_owned(),
                    replica: worker,
                    reason: format!("is a worker that has lost a server: {reason}"),
                    lost: true,
                    calls: Vec::new(),
                });
                return;
            }
        };
        // The error is that of a lost server, which all calls return.
        let _ = self.change_and_free(Some(worker), |state| match outcome {
            Ok(done) => ((), state.schedule.ended(worker, attempt, done)),
            Err(error) => ((), state.schedule.failed(worker, attempt, error)),
        });
    }

    /// Gives up a closure that does not end.
    fn give_up(&self, worker: usize, attempt: Attempt, error: Error) {
        let _ = self.change(|state| {
            let waited = self.limits().closure_timeout;
            let missing = match error {
                Error::Timeout { missing, .. } => missing,
                _ => Vec::new(),
            };
            let error = Error::Timeout { call: "a closure".to_owned(), waited, missing };
            ((), state.schedule.failed(worker, attempt, error))
        });
    }
}
