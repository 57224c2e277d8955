//! Errors of ranks that share memory, in words.

use crate::{
    Error,
    kind::{self, EXTENSIONS},
};
use consonance_kernels::{
    group::{End, Fault, LastCall, Reason, Witness},
    os::launcher::Blame,
    shm::Segment,
};
use consonance_spec::World;
use std::{io, sync::Arc, time::Duration};

/// The processes of the ranks of a group.
pub(crate) trait Processes: Send + Sync {
    /// Describes the process of a rank in words: its identity and its state.
    fn describe(&self, rank: usize) -> String;

    /// Tells the launcher of this process that an error names the process of a rank, and why.
    fn blame(&self, rank: usize, why: Blame);
}

/// Makes the errors of calls that do not borrow the engine.
pub(crate) struct Reports {
    pub(super) witness: Witness,
    pub(super) processes: Option<Arc<dyn Processes>>,
}

impl Reports {
    /// Returns this rank and the number of ranks.
    pub(crate) fn world(&self) -> World {
        self.witness.world()
    }

    /// Makes the error for `fault` in the call of this name, which waited for at most `timeout`.
    pub(crate) fn error(&self, fault: Fault, name: &str, timeout: Duration) -> Error {
        report(&self.witness, self.processes.as_deref(), fault, name, timeout)
    }

    /// Tells the launcher of this process that an error names the process of a rank, and why.
    pub(crate) fn blame(&self, rank: usize, why: Blame) {
        if let Some(processes) = &self.processes {
            processes.blame(self.witness.top_rank(rank), why);
        }
    }

    /// Describes the process of a rank, if there are several.
    pub(crate) fn process(&self, rank: usize) -> Option<String> {
        self.processes.as_ref().map(|processes| processes.describe(self.witness.top_rank(rank)))
    }
}

/// Makes the error for `fault` in the call of this name, which waited for at most `timeout`.
pub(super) fn report(
    witness: &Witness,
    processes: Option<&dyn Processes>,
    fault: Fault,
    name: &str,
    timeout: Duration,
) -> Error {
    let call = name.to_owned();
    let process = |rank| processes.map(|processes| processes.describe(witness.top_rank(rank)));
    let said = |rank| {
        let last = last_words(witness.last_call(rank, kind::is_shown));
        process(rank).map_or(last.clone(), |process| format!("{last}; {process}"))
    };
    let blame = |top_rank, why| {
        if let Some(processes) = processes {
            processes.blame(top_rank, why);
        }
    };
    let left = |replica: usize| {
        if let Some(late) = witness.gave_up_for(replica) {
            // It left because its own deadline had passed.
            blame(witness.top_rank(late), Blame::Missing);
            let (reason, lost) = (words(Reason::Deadline).to_owned(), witness.is_lost(late));
            return Error::Aborted { call: call.clone(), replica: late, reason, lost, calls: vec![(late, said(late))] };
        }
        let lost = witness.is_lost(replica);
        blame(witness.top_rank(replica), Blame::Left);
        let last = if lost { said(replica) } else { last_words(witness.last_call(replica, kind::is_shown)) };
        Error::Left { call: call.clone(), replica, last, lost }
    };
    match fault {
        Fault::Mismatch => unreachable!("a disagreement is no error yet"),
        Fault::Left(rank) => left(witness.blame(rank)),
        Fault::Missing(ranks) => {
            ranks.first().into_iter().for_each(|&rank| blame(witness.top_rank(rank), Blame::Missing));
            let missing = ranks.into_iter().map(|rank| (rank, said(rank))).collect();
            Error::Timeout { call, waited: timeout, missing }
        }
        Fault::Aborted(abort) => {
            // The end is recorded, unless a faulty process has overwritten it.
            let end = witness.end(kind::is_shown).unwrap_or(End {
                abort,
                inherited: false,
                is_lost: false,
                calls: Vec::new(),
            });
            if end.abort.reason == Reason::Leave && !end.inherited && end.abort.rank < witness.world().size() {
                return left(end.abort.rank);
            }
            let reason = words(end.abort.reason);
            let group = if end.inherited { "of a group that this one was split from " } else { "" };
            let describe = |top_rank| processes.map(|processes| processes.describe(top_rank));
            let calls = end.calls.into_iter().map(|(top_rank, last)| (top_rank, last_words(last)));
            let (lost_process, calls): (_, Vec<String>) = match end.abort.reason {
                // A lost process is named by its rank in the top group.
                Reason::Death => (describe(end.abort.rank), calls.map(|(_, last)| last).collect()),
                // The rank whose deadline passed recorded the missing ranks for the others.
                Reason::Deadline => {
                    let told = |(top_rank, last): (usize, String)| match describe(top_rank) {
                        Some(process) => format!("{last}; {process}"),
                        None => last,
                    };
                    (None, calls.map(told).collect())
                }
                _ => Default::default(),
            };
            let why = blame_of(end.abort.reason);
            let lost_process = lost_process.map_or_else(String::new, |process| format!(" ({process})"));
            let calls = calls.into_iter().enumerate();
            let lost = end.is_lost || matches!(end.abort.reason, Reason::Death | Reason::Departure);
            let (mut replica, reason) = (end.abort.rank, format!("{group}{reason}{lost_process}"));
            let own = witness.world().rank();
            if end.abort.reason == Reason::Deadline && !end.inherited && replica == own {
                // This rank was late because another one was, whose name the group does not have.
                replica = witness.gave_up_for(own).unwrap_or(own);
            }
            // Another group numbers differently.
            match end.abort.reason {
                Reason::Death => blame(replica, why),
                _ if !end.inherited && replica < witness.world().size() => blame(witness.top_rank(replica), why),
                _ => {}
            }
            Error::Aborted { call, replica, reason, lost, calls: calls.collect() }
        }
        Fault::NoMemory { bytes, code } => Error::system(
            format!("{call}: reserve {bytes} bytes of the memory that processes share"),
            code.map_or(io::ErrorKind::OutOfMemory.into(), io::Error::from_raw_os_error),
        ),
        Fault::CorruptPeer(rank) => Error::system(
            format!("{call}: read what replica {rank} says of its call"),
            io::Error::new(
                io::ErrorKind::InvalidData,
                "it cannot be: its process wrote where it must not in the memory that processes share",
            ),
        ),
        Fault::Oversize { rank, bytes } => Error::system(
            format!("{call}: allocate {bytes} bytes for what all replicas bring, most of it replica {rank}"),
            io::ErrorKind::OutOfMemory,
        ),
        Fault::Forked => Error::WrongContext {
            call: "a collective",
            problem: format!(
                "{call} in a process made by fork after it joined the group: join anew in the new process"
            ),
        },
        Fault::TooManyGroups => {
            let groups = format!("at most {} groups split off at a time", Segment::SPLITS);
            Error::invalid("Communicator::split", "color", groups, "one more")
        }
    }
}

/// Returns what the launcher is told of the rank that an abort names.
pub(super) fn blame_of(reason: Reason) -> Blame {
    match reason {
        Reason::Death | Reason::Departure | Reason::Return | Reason::Leave => Blame::Left,
        Reason::Deadline => Blame::Missing,
        Reason::Panic | Reason::Failure | Reason::Memory => Blame::Failed,
    }
}

fn last_words(last: LastCall) -> String {
    match last.signature(EXTENSIONS) {
        Some(signature) => {
            let refused = if last.is_refused { " (refused)" } else { "" };
            format!("its last call was number {}, {signature}, {} bytes{refused}", last.number, last.bytes)
        }
        None => "it has made no call of this group".to_owned(),
    }
}

/// Returns the reason of an abort in words. They follow the culprit's number in an error.
pub(crate) fn words(reason: Reason) -> &'static str {
    match reason {
        Reason::Deadline => "did not come before the deadline of another",
        Reason::Panic => "panicked",
        Reason::Failure => "failed",
        Reason::Memory => "got no memory for its data",
        Reason::Departure => "left with its process",
        Reason::Death => "was lost with its process",
        Reason::Return => "returned while another waited for it",
        Reason::Leave => "left",
    }
}

impl Error {
    /// Makes the error of `call` in an aborted group, for engines. `replica` is the rank to blame.
    ///
    /// ```
    /// use consonance::{Error, raw::Reason};
    /// assert_eq!(Error::aborted("barrier", 2, Reason::Panic).to_string(), "barrier: replica 2 panicked");
    /// ```
    pub fn aborted(call: &str, replica: usize, reason: Reason) -> Error {
        let lost = matches!(reason, Reason::Death | Reason::Departure);
        let (call, reason) = (call.to_owned(), words(reason).to_owned());
        Error::Aborted { call, replica, reason, lost, calls: Vec::new() }
    }
}
