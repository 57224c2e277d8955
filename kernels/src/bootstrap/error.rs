//! The errors of a meeting.

use crate::os::process_state::{ProcessState, process_state};
use std::{error, fmt, io, time::Duration};

/// The reason why a running process may be missing: it looks for the others under another name.
const OTHER_JOB: &str = "one that runs but is not found is on another host, or has another cluster (addresses are compared \
                         as text), CONSONANCE_JOB or Slurm step";

/// The reason why a process has no meeting, or no group.
#[derive(Debug)]
pub enum MeetingError {
    /// The deadline passed, and some tasks have no process.
    Missing {
        /// The time that this process waited.
        waited: Duration,
        /// The tasks that did not come. At least one of them has no process.
        missing: Vec<Absent>,
        /// The ids of processes of this host that may be meant to have these tasks, but wait for
        /// another job.
        elsewhere: Vec<u32>,
    },
    /// The deadline passed. Every task that this process waits for has a process, but these tasks
    /// did not come. A group without them could be a second group of the job.
    Alive {
        /// The time that this process waited.
        waited: Duration,
        /// The tasks that did not come.
        absent: Vec<Absent>,
    },
    /// The deadline passed. This process was in no group yet, and all other processes that it waits
    /// for run. Their group is taken to go on without it.
    Without {
        /// The time that this process waited.
        waited: Duration,
        /// The other tasks that did not come.
        others: Vec<Absent>,
    },
    /// Another process has the socket name of this process's task.
    Taken {
        /// The name of the task.
        name: String,
        /// The process id, if known.
        pid: Option<u32>,
    },
    /// A process of another user has the socket name of a task of this job.
    OtherUser {
        /// The name of the task.
        name: String,
        /// The process id, if known.
        pid: Option<u32>,
        /// The id of the other user.
        uid: u32,
    },
    /// A process of the job runs another build of this program.
    OtherBuild {
        /// The name of the task.
        name: String,
        /// The process id, if known.
        pid: Option<u32>,
    },
    /// A process of the job counts another number of tasks.
    OtherSize {
        /// The name of the task.
        name: String,
        /// The process id, if known.
        pid: Option<u32>,
        /// The number of tasks that this process counts.
        expected: usize,
        /// The number that the other process counts.
        found: usize,
    },
    /// A process could not make the group.
    Failed {
        /// The name of its task.
        name: String,
        /// The reason that it sent.
        why: String,
    },
    /// The group would have too many ranks.
    TooManyRanks {
        /// The number of ranks of all processes.
        found: usize,
        /// The limit.
        most: usize,
    },
    /// This process is a fork of the process that opened the meeting.
    Forked {
        /// The id of the process that opened the meeting.
        opened_by: u32,
    },
    /// The options are wrong.
    Options {
        /// A description of the problem.
        what: String,
    },
    /// A system call failed.
    System {
        /// The operation that failed.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
}

/// A task that did not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The task.
    pub task: usize,
    /// The name of the task.
    pub name: String,
    /// The id of the process that has the task's socket name. `None` if there is no such process,
    /// or its id is unknown.
    pub pid: Option<u32>,
    /// The state of the process; [`ProcessState::Gone`] if there is none.
    pub state: ProcessState,
}

impl MeetingError {
    /// Makes the error at the deadline, of the tasks that did not come. `is_new` says that this
    /// process was in no group yet. `elsewhere` finds processes that may be meant.
    pub(super) fn at_deadline(
        waited: Duration,
        absent: Vec<Absent>,
        is_new: bool,
        elsewhere: impl FnOnce() -> Vec<u32>,
    ) -> MeetingError {
        let is_there = |absent: &Absent| absent.pid.is_some() || absent.state != ProcessState::Gone;
        if !absent.iter().all(is_there) {
            MeetingError::Missing { waited, missing: absent, elsewhere: elsewhere() }
        } else if is_new && absent.iter().all(|absent| absent.state == ProcessState::Running) {
            MeetingError::Without { waited, others: absent }
        } else {
            MeetingError::Alive { waited, absent }
        }
    }

    /// Returns the tasks that did not come before the deadline.
    pub fn absent(&self) -> &[Absent] {
        match self {
            MeetingError::Missing { missing: absent, .. } | MeetingError::Alive { absent, .. } => absent,
            _ => &[],
        }
    }
}

impl Absent {
    pub(super) fn new(task: usize, name: String, pid: Option<u32>, is_there: bool) -> Absent {
        let state = match pid {
            Some(pid) => process_state(pid),
            None if is_there => ProcessState::Running,
            None => ProcessState::Gone,
        };
        Absent { task, name, pid, state }
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match (self.pid, self.state) {
            (Some(pid), ProcessState::Running) => write!(f, " (process {pid} runs)"),
            (Some(pid), ProcessState::Stopped) => write!(f, " (process {pid} is stopped)"),
            (Some(pid), ProcessState::Gone) => write!(f, " (process {pid} has ended, a child of it has not)"),
            (None, ProcessState::Gone) => Ok(()),
            (None, _) => f.write_str(" (its process runs)"),
        }
    }
}

impl fmt::Display for MeetingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |absent: &[Absent]| absent.iter().map(Absent::to_string).collect::<Vec<_>>().join(", ");
        let process = |pid: &Option<u32>| pid.map_or("process unknown".to_owned(), |pid| format!("process {pid}"));
        match self {
            MeetingError::Missing { waited, missing, elsewhere } => {
                write!(f, "waited {}; missing: {}; {OTHER_JOB}", seconds(*waited), list(missing))?;
                match elsewhere.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ").as_str() {
                    "" => Ok(()),
                    processes => write!(f, ": perhaps process {processes}"),
                }
            }
            MeetingError::Alive { waited, absent } => {
                write!(f, "waited {}; alive, but did not come: {}", seconds(*waited), list(absent))
            }
            MeetingError::Without { waited, others } => {
                write!(f, "waited {}; the others go on without this process: {}", seconds(*waited), list(others))
            }
            MeetingError::Taken { name, pid } => write!(f, "{name} is running already ({})", process(pid)),
            MeetingError::OtherUser { name, pid, uid } => {
                write!(f, "{name} is a process of another user ({}, user {uid})", process(pid))
            }
            MeetingError::OtherBuild { name, pid } => {
                write!(f, "{name} runs another build of the program ({})", process(pid))
            }
            MeetingError::OtherSize { name, pid, expected, found } => {
                write!(f, "{name} ({}) counts {found} processes: expected {expected}", process(pid))
            }
            MeetingError::Failed { name, why } => write!(f, "{name} could not make the group: {why}"),
            MeetingError::TooManyRanks { found, most } => {
                write!(f, "the processes have {found} replicas together, and a group at most {most}")
            }
            MeetingError::Forked { opened_by } => {
                write!(f, "this process is a fork of process {opened_by}, whose place in the group it cannot take")
            }
            MeetingError::Options { what } => f.write_str(what),
            MeetingError::System { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

/// Writes a time that was measured: `300 s`, or `0.25 s`.
fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{:.2} s", time.as_secs_f64()),
        seconds => format!("{seconds} s"),
    }
}

impl error::Error for MeetingError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            MeetingError::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

pub(super) fn system(what: &str, source: io::Error) -> MeetingError {
    MeetingError::System { what: what.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_processes() {
        let absent = |task: usize, pid, state| Absent { task, name: format!("worker {task} (h:{task})"), pid, state };
        let waited = Duration::from_nanos(30_006_556_775);
        let (name, pid) = ("worker 1 (h:1)".to_owned(), Some(4242));
        let all = vec![
            absent(0, None, ProcessState::Gone),
            absent(1, Some(77), ProcessState::Running),
            absent(2, Some(78), ProcessState::Stopped),
            absent(3, Some(79), ProcessState::Gone),
            absent(4, None, ProcessState::Running),
        ];
        let list = "worker 0 (h:0), worker 1 (h:1) (process 77 runs), worker 2 (h:2) (process 78 is stopped), \
                    worker 3 (h:3) (process 79 has ended, a child of it has not), worker 4 (h:4) (its process runs)";
        for (error, text) in [
            (
                MeetingError::Missing { waited, missing: all.clone(), elsewhere: Vec::new() },
                format!("waited 30 s; missing: {list}; {OTHER_JOB}"),
            ),
            (
                MeetingError::Missing { waited, missing: all[..1].to_vec(), elsewhere: vec![77, 78] },
                "waited 30 s; missing: worker 0 (h:0); one that runs but is not found is on another host, or has another \
                 cluster (addresses are compared as text), CONSONANCE_JOB or Slurm step: perhaps process 77 or 78"
                    .to_owned(),
            ),
            (
                MeetingError::Alive { waited, absent: all.clone() },
                format!("waited 30 s; alive, but did not come: {list}"),
            ),
            (
                MeetingError::Without { waited, others: all },
                format!("waited 30 s; the others go on without this process: {list}"),
            ),
            (
                MeetingError::Taken { name: name.clone(), pid },
                "worker 1 (h:1) is running already (process 4242)".to_owned(),
            ),
            (
                MeetingError::OtherUser { name: name.clone(), pid: None, uid: 3 },
                "worker 1 (h:1) is a process of another user (process unknown, user 3)".to_owned(),
            ),
            (
                MeetingError::OtherBuild { name: name.clone(), pid },
                "worker 1 (h:1) runs another build of the program (process 4242)".to_owned(),
            ),
            (
                MeetingError::OtherSize { name: name.clone(), pid, expected: 2, found: 3 },
                "worker 1 (h:1) (process 4242) counts 3 processes: expected 2".to_owned(),
            ),
            (
                MeetingError::Failed { name, why: "no memory".to_owned() },
                "worker 1 (h:1) could not make the group: no memory".to_owned(),
            ),
            (
                MeetingError::TooManyRanks { found: 1025, most: 1024 },
                "the processes have 1025 replicas together, and a group at most 1024".to_owned(),
            ),
            (
                MeetingError::Forked { opened_by: 5 },
                "this process is a fork of process 5, whose place in the group it cannot take".to_owned(),
            ),
            (
                MeetingError::System { what: "listen".to_owned(), source: io::ErrorKind::OutOfMemory.into() },
                "cannot listen: out of memory".to_owned(),
            ),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }
}
