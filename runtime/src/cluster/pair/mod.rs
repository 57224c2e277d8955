//! Groups of two processes, for jobs whose processes come and go.
//!
//! A group ends for all its processes when it loses one. So processes that should not end with each
//! other form a group for each two that speak. A *pair* ends with either of its processes and
//! disturbs no other pair. Whoever is left drops it and meets the replacement anew, by the same
//! names. Each pair has a meeting of its own, whose digest is that of the job and of both names; so
//! the pairs of a process form in any order, and at the same time on several threads. Processes of
//! one host share memory; those of two hosts have a network of their own: see `far.rs`.

mod far;

use far::Network;
pub(crate) use far::{Far, gate_at};

use super::{
    process_group::{described, no_segment, not_met},
    roster::job_digest,
};
use crate::{
    CommunicationOptions, Communicator, Error, Mailbox, Result,
    comm::{options, report::Processes},
};
use consonance_kernels::{
    bootstrap::{Formed, Gone, Group, Meeting, MeetingError, MeetingOptions, Watch},
    group::{Endpoint, Reason},
    os::{
        launcher::Blame,
        process_state::{ProcessState, process_state},
        thread_pool::cores_of,
    },
    shm::{GroupId, LinkTitle, Segment, Shape, SharedFile},
};
use std::{
    fmt, io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

const CALL: &str = "ClusterCoordinator";

/// The staging of a rank: no call of a pair stages data, which go through its mailbox.
const STAGING_BYTES: usize = 16 << 10;

/// A group of two processes, which ends with either of them.
///
/// A message that was sent before the peer left can still be received. The next one is an error.
pub(crate) struct Pair {
    mailbox: Mailbox,
    /// Dropped before the means, so that the peer still receives what was sent. Nobody takes the
    /// lock: with it, threads share a pair.
    _communicator: Mutex<Communicator>,
    means: Means,
    given: Option<SharedFile>,
    own: usize,
    names: Arc<Names>,
}

/// The means by which the two processes are connected.
enum Means {
    /// Memory of their host.
    Memory { _watch: Watch, _meeting: Box<Meeting> },
    /// A network of their own.
    Network(Network),
}

/// The two processes that meet.
pub(crate) struct PairOptions<'a> {
    /// The text that tells this job from others.
    pub(crate) job: &'a str,
    /// The task of this process, such as `worker[1] (localhost:4712)`.
    pub(crate) own: &'a str,
    /// The task of its peer.
    pub(crate) peer: &'a str,
    /// The roles of this process and of its peer, as reports have them.
    pub(crate) roles: [&'a str; 2],
    /// A word for what goes over the pair.
    pub(crate) carries: &'a str,
    /// The file that this process gives to its peer.
    pub(crate) gives: Option<SharedFile>,
    /// The means to meet a peer on another host, if it is on one. That one gets no file.
    pub(crate) far: Option<Far<'a>>,
}

/// The tasks and the processes of a pair, by rank. Those of other hosts have no process id here.
struct Names {
    tasks: [String; 2],
    processes: Vec<Option<u32>>,
}

impl Pair {
    /// Meets the peer. Both processes make this call, in any order, with the same job and each
    /// other's names.
    ///
    /// # Errors
    /// [`Error::Meeting`] if the peer does not come before the deadline (the error names it), or if
    /// another process has the name of this one, or is of another user or another build;
    /// [`Error::System`] if the system has no memory.
    ///
    /// # Panics
    /// If both have the same name.
    pub(crate) fn meet(options: PairOptions<'_>, deadline: Instant) -> Result<Pair> {
        options::settle(CALL)?;
        let PairOptions { job, own, peer, roles, carries, gives, far } = options;
        assert_ne!(own, peer, "a process forms no pair with itself");
        let rank = usize::from(Pair::calls(own, peer));
        let tasks = [own.min(peer), own.max(peer)].map(str::to_owned);
        let text = ["a pair of", job, &tasks[0], &tasks[1]].map(str::to_owned);
        if let Some(far) = far {
            return Pair::meet_far(&far, job_digest(&text), rank, tasks, deadline);
        }
        let roles = [roles[rank], roles[1 - rank]].map(str::to_owned);
        let title = LinkTitle { roles, carries: carries.to_owned() };
        let listening = MeetingOptions {
            digest: job_digest(&text),
            layout: Segment::LAYOUT,
            task: rank,
            names: tasks.to_vec(),
            replicas: 1,
        };
        let mut meeting = open(listening, deadline).map_err(|error| not_met(CALL, own, error))?;
        if let Some(file) = gives {
            meeting.give(file);
        }
        let create = |group: &Group, processes: &[u32]| {
            let (id, cores) = (GroupId::from_bytes(group.id), cores_of(processes));
            let segment = Shape::new(2, STAGING_BYTES).and_then(|shape| Segment::create_link(&title, shape, id, cores));
            segment.map_err(io::Error::other)?.file().try_clone_to_owned()
        };
        let formed = meeting.form(deadline, Duration::ZERO, create, |_| ());
        let formed = formed.map_err(|error| not_met(CALL, own, error))?;
        Pair::enter(formed, meeting, tasks)
    }

    /// Enters a pair that was formed: opens the shared memory, and makes the mailbox.
    fn enter(mut formed: Formed, meeting: Meeting, tasks: [String; 2]) -> Result<Pair> {
        let own = formed.me;
        let shape = Shape::new(2, STAGING_BYTES).map_err(|error| no_segment(CALL, error))?;
        let file = formed.segment.try_clone().map_err(|error| Error::system("keep the shared memory", error))?;
        let segment = Segment::open(file, GroupId::from_bytes(formed.id), shape);
        let segment = Arc::new(segment.map_err(|error| no_segment(CALL, error))?);
        let processes: Vec<Option<u32>> = formed.members.iter().map(|member| member.pid).collect();
        let ids: Vec<u32> = processes.iter().map(|process| process.unwrap_or(0)).collect();
        let configuration = CommunicationOptions::new().configuration();
        let mut endpoints = Endpoint::in_segment(&segment, own..own + 1, cores_of(&ids), &[], configuration.timeout);
        let endpoint = endpoints.remove(0);
        let aborter = endpoint.aborter();
        let on_gone = move |rank: usize, gone| {
            let reason = match gone {
                Gone::Ended => Reason::Death,
                Gone::Left => Reason::Departure,
            };
            aborter.lose(rank..rank + 1, reason);
        };
        let watch = Watch::start(&formed, Some(&segment), on_gone);
        let watch = watch.map_err(|error| Error::system("watch the other process", error))?;
        let names = Arc::new(Names { tasks, processes });
        let mut communicator = Communicator::in_processes(endpoint, configuration, names.clone());
        let mailbox = communicator.mailbox()?;
        let given = formed.given[1 - own].take();
        let means = Means::Memory { _watch: watch, _meeting: Box::new(meeting) };
        Ok(Pair { mailbox, _communicator: Mutex::new(communicator), means, given, own, names })
    }

    /// Returns the mailbox of the pair, in which the peer has [`peer_rank`](Pair::peer_rank). It
    /// works until the pair is dropped.
    pub(crate) fn mailbox(&self) -> Mailbox {
        self.mailbox.duplicate()
    }

    /// Returns the rank of the peer: the process whose name is less has rank 0.
    pub(crate) fn peer_rank(&self) -> usize {
        1 - self.own
    }

    /// Returns the task of the peer.
    pub(crate) fn peer(&self) -> &str {
        &self.names.tasks[1 - self.own]
    }

    /// Returns the process id of the peer; `None` if it is in another PID namespace, or on another
    /// host.
    pub(crate) fn peer_process(&self) -> Option<u32> {
        self.names.processes[1 - self.own]
    }

    /// Returns whether the process of the peer has ended, as far as this one can see it.
    pub(crate) fn peer_has_ended(&self) -> bool {
        match &self.means {
            Means::Memory { .. } => self.peer_is(ProcessState::Gone),
            Means::Network(network) => network.has_lost(self.peer_rank()),
        }
    }

    /// Returns whether the process of the peer is stopped. One of another host is taken for stopped
    /// if it does not answer for 300 ms.
    pub(crate) fn peer_is_stopped(&self) -> bool {
        match &self.means {
            Means::Memory { .. } => self.peer_is(ProcessState::Stopped),
            Means::Network(network) => !network.answers(self.peer_rank()),
        }
    }

    fn peer_is(&self, state: ProcessState) -> bool {
        self.peer_process().is_some_and(|process| process_state(process) == state)
    }

    /// Takes the file that the peer gave.
    pub(crate) fn take_given(&mut self) -> Option<SharedFile> {
        self.given.take()
    }
}

/// Opens the meeting of a pair. A process that is being ended keeps its name until its memory is
/// free.
fn open(options: MeetingOptions, deadline: Instant) -> std::result::Result<Meeting, MeetingError> {
    loop {
        match Meeting::open(options.clone()) {
            Err(MeetingError::Taken { pid: Some(pid), .. })
                if process_state(pid) == ProcessState::Gone && Instant::now() < deadline => {}
            result => return result,
        }
    }
}

impl Processes for Names {
    fn describe(&self, rank: usize) -> String {
        described(&self.tasks[rank], self.processes[rank])
    }

    // The loss of a peer ends no process: there is nothing to blame it for.
    fn blame(&self, _: usize, _: Blame) {}
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("peer", &self.peer())
            .field("process", &self.peer_process())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
