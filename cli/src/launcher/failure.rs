//! The worker at fault when a launch failed, and the sentence that names it.

use super::{
    task::Task,
    worker::{End, Ended},
};
use consonance_kernels::os::launcher::Blame;
use std::fmt;

/// The worker that a launch failed of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The worker at fault.
    pub worker: Task,
    /// Its process id.
    pub pid: i32,
    /// The state of the worker when the launch failed.
    pub state: WorkerState,
    /// The blame in the errors of workers. `None` if none names it.
    pub blame: Option<Blame>,
    /// The worker that failed first, if the one at fault has not failed.
    pub first: Option<Ended>,
    /// The worker of another launch that the errors of this one name, and why. Its state is not
    /// known here.
    pub elsewhere: Option<(usize, Blame)>,
}

/// The state of a worker when the launch failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// It had ended by itself.
    Ended(End),
    /// It was stopped by a signal.
    Stopped,
    /// It ran.
    Running,
}

/// A worker that ended while another one waited for it, to form a group with all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// The worker that ended.
    pub ended: Ended,
    /// Whether it had been in such a group with others before.
    pub had_joined: bool,
    /// The worker that waits.
    pub waiting: Task,
}

impl WorkerState {
    fn has_failed(self) -> bool {
        matches!(self, WorkerState::Ended(end) if end != End::Status(0))
    }
}

impl Failure {
    /// Returns how the worker ended that the status of the launch is of.
    pub fn end(&self) -> Option<End> {
        match (self.state, self.first) {
            (WorkerState::Ended(end), None) => Some(end),
            (_, first) => first.map(|first| first.end),
        }
    }

    pub(super) fn new(worker: Task, pid: i32, state: WorkerState, blame: Option<Blame>, first: Ended) -> Failure {
        Failure { worker, pid, state, blame, first: Some(first).filter(|_| !state.has_failed()), elsewhere: None }
    }
}

impl fmt::Display for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerState::Ended(end) => write!(f, "{end}"),
            WorkerState::Stopped => f.write_str("stopped"),
            WorkerState::Running => f.write_str("still ran"),
        }
    }
}

/// Writes one sentence: `worker 1 (pid 4428): left with status 0 before a call of the others;
/// worker 0 (pid 4427): exit status 1`.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { worker, pid, state, blame, first, elsewhere } = self;
        write!(f, "{worker} (pid {pid}): ")?;
        match (state, blame) {
            (WorkerState::Ended(End::Status(0)), Some(Blame::Left)) => {
                write!(f, "left with status 0 before a call of the others")?;
            }
            (state, None) => write!(f, "{state}")?,
            // Its own end says it.
            (state, Some(Blame::Failed | Blame::Left)) if state.has_failed() => write!(f, "{state}")?,
            (state, Some(blame)) => write!(f, "{state}; named by the others: {}", words(*blame))?,
        }
        first.iter().try_for_each(|first| write!(f, "; {first}"))?;
        elsewhere.iter().try_for_each(|(worker, blame)| {
            write!(f, "; it names worker {worker}, of another launch: {}", words(*blame))
        })
    }
}

fn words(blame: Blame) -> &'static str {
    match blame {
        Blame::Failed => "it failed",
        Blame::Left => "it left before a call of theirs",
        Blame::Missing => "it did not come before a deadline",
        Blame::Differs => "its call differs from theirs",
    }
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unmet { ended: Ended { worker, pid, end }, had_joined, waiting } = self;
        let joined = if *had_joined { "" } else { " and never joined" };
        let end = match end {
            End::Status(status) => format!("ended with status {status}"),
            End::Signal(_) => format!("was {end}"),
        };
        write!(f, "{worker} (pid {pid}) {end}{joined}; {waiting} waits for it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_worker_at_fault_and_the_first_failed_worker() {
        let first = Ended { worker: Task::worker(0), pid: 4427, end: End::Status(1) };
        let of = |state, blame| Failure::new(Task::worker(1), 4428, state, blame, first);
        let [done, failed, killed] = [End::Status(0), End::Status(3), End::Signal(9)].map(WorkerState::Ended);
        let also = "; worker 0 (pid 4427): exit status 1";
        for (failure, text, end) in [
            (of(failed, None), "exit status 3".to_owned(), End::Status(3)),
            (of(killed, Some(Blame::Left)), "killed by SIGKILL".to_owned(), End::Signal(9)),
            (of(failed, Some(Blame::Failed)), "exit status 3".to_owned(), End::Status(3)),
            (of(done, Some(Blame::Left)), format!("left with status 0 before a call of the others{also}"), first.end),
            (of(done, Some(Blame::Failed)), format!("exit status 0; named by the others: it failed{also}"), first.end),
            (
                of(WorkerState::Stopped, Some(Blame::Missing)),
                format!("stopped; named by the others: it did not come before a deadline{also}"),
                first.end,
            ),
            (
                of(WorkerState::Running, Some(Blame::Left)),
                format!("still ran; named by the others: it left before a call of theirs{also}"),
                first.end,
            ),
            (
                of(failed, Some(Blame::Differs)),
                "exit status 3; named by the others: its call differs from theirs".to_owned(),
                End::Status(3),
            ),
        ] {
            assert_eq!((failure.to_string(), failure.end()), (format!("worker 1 (pid 4428): {text}"), Some(end)));
        }
    }

    #[test]
    fn an_absent_worker_is_named_with_one_waiting_for_it() {
        let of = |end, had_joined| {
            Unmet { ended: Ended { worker: Task::worker(1), pid: 7, end }, had_joined, waiting: Task::worker(0) }
                .to_string()
        };
        let end = "worker 0 waits for it";
        assert_eq!(of(End::Status(0), false), format!("worker 1 (pid 7) ended with status 0 and never joined; {end}"));
        assert_eq!(of(End::Status(0), true), format!("worker 1 (pid 7) ended with status 0; {end}"));
        assert_eq!(
            of(End::Signal(9), false),
            format!("worker 1 (pid 7) was killed by SIGKILL and never joined; {end}")
        );
    }
}
