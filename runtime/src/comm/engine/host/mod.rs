//! The engine of ranks that share memory: threads of one process or of several processes on one
//! host.

mod algorithm;

use self::algorithm::{Scratch, Stop};
use super::{AbortHandle, Engine, Failure, Service, require_host, words};
use crate::{
    Error, Mailbox, Result,
    comm::{
        agreement,
        call::{Call, OnHost},
        options::Configuration,
    },
    kind::{self, EXTENSIONS},
};
use consonance_kernels::{
    group::{
        End, Endpoint, Fault, KeepWaiting, LastCall, PostedCall, Reason, Witness,
        plan::{Path, Topology},
    },
    memory::{Memory, Space},
    shm::Segment,
};
use consonance_spec::{DType, Kind, Signature, World};
use std::{io, ops::Range, sync::Arc, time::Duration};

/// The engine of one rank.
pub(crate) struct Host {
    endpoint: Endpoint,
    /// The endpoint in the group of this rank and each peer that it has sent to or received from.
    /// Empty before the first such call: most ranks of a large group never make one.
    pairs: Vec<Option<Endpoint>>,
    /// The peer of the last call, if that was in a pair and is not settled.
    unsettled_pair: Option<usize>,
    /// The error of an earlier call, of which the user was not told yet.
    late: Option<Error>,
    scratch: Scratch,
    configuration: Configuration,
    /// The processes of the ranks, if there are several. Dropped after the endpoints: a process
    /// whose ranks have left is not lost.
    processes: Option<Arc<dyn Processes>>,
}

/// The processes of the ranks of a group.
pub(crate) trait Processes: Send + Sync {
    /// Describes the process of a rank in words: its identity and its state.
    fn describe(&self, rank: usize) -> String;

    /// Tells the launcher of this process that an error names the process of a rank.
    fn blame(&self, rank: usize);
}

impl Host {
    /// Returns the inputs of protocol selection: for the pair of this rank and `peer` once they
    /// have communicated, else for the group.
    pub(crate) fn topology(&self, peer: Option<usize>) -> Topology {
        peer.and_then(|peer| self.pairs.get(peer)?.as_ref()).unwrap_or(&self.endpoint).topology()
    }

    /// Returns how long the last call slept while it waited for other ranks: with `peer`, the last
    /// send to or receive from it.
    pub(crate) fn waited(&self, peer: Option<usize>) -> Duration {
        peer.and_then(|peer| self.pairs.get(peer)?.as_ref()).unwrap_or(&self.endpoint).waited()
    }

    /// Returns how the data of the last call went, if this was not asked since: with `peer`, of the
    /// last send to or receive from it.
    pub(crate) fn take_path(&self, peer: Option<usize>) -> Path {
        peer.and_then(|peer| self.pairs.get(peer)?.as_ref()).unwrap_or(&self.endpoint).take_path()
    }

    pub(crate) fn new(
        mut endpoint: Endpoint,
        configuration: Configuration,
        processes: Option<Arc<dyn Processes>>,
    ) -> Host {
        endpoint.set_timeout(configuration.timeout);
        let (pairs, scratch) = (Vec::new(), Scratch::default());
        Host { endpoint, pairs, unsettled_pair: None, late: None, scratch, configuration, processes }
    }

    /// Runs a step in the group of this rank and `peer`, in a call that has waited already. Its
    /// errors name both by their ranks in the whole group.
    fn with_peer(
        &mut self,
        peer: usize,
        name: Kind,
        waited: Duration,
        step: impl FnOnce(&mut Endpoint) -> Result<(), Fault>,
    ) -> Result<(), Failure> {
        self.pairs.resize_with(self.endpoint.world().size(), || None);
        if self.pairs[peer].is_none() {
            match self.endpoint.pair(peer) {
                Ok(pair) => self.pairs[peer] = Some(pair),
                Err(fault) => return Err(failure(&self.endpoint, self.processes.as_deref(), fault, name.name())),
            }
        }
        let pair = self.pairs[peer].as_mut().expect("made above");
        if name != kind::EXPLAIN {
            pair.begin_call();
            pair.add_wait(waited);
        }
        let done = step(pair);
        self.unsettled_pair = pair.is_unsettled().then_some(peer);
        if done == Err(Fault::Mismatch)
            && let Some(calls) = pair.take_differing()
        {
            return Err(Failure::Error(self.mismatch(Some(peer), &calls)));
        }
        done.map_err(|fault| self.pair_failure(peer, fault, name))
    }

    /// Makes the failure of a step in the group of this rank and `peer`.
    #[cold]
    fn pair_failure(&self, peer: usize, fault: Fault, name: Kind) -> Failure {
        let (members, name) = (self.pair_members(peer), name.name());
        let pair = self.pairs[peer].as_ref().expect("the step was in this group");
        // If the peer left because of another rank, only the whole group can name that rank.
        if matches!(fault, Fault::Left(_)) && self.endpoint.witness().blame(peer) != peer {
            return failure(&self.endpoint, self.processes.as_deref(), Fault::Left(peer), name);
        }
        let mut error = match failure(pair, self.processes.as_deref(), fault, name) {
            Failure::Disagreement { .. } => return Failure::Disagreement { peer: Some(peer) },
            Failure::Error(error) => error,
        };
        // An abort of the whole group names a rank of the whole group.
        if let (Error::Aborted { .. }, Some(abort)) = (&error, self.endpoint.aborter().aborted()) {
            return failure(&self.endpoint, self.processes.as_deref(), Fault::Aborted(abort), name);
        }
        // An error of the pair has ranks of the pair.
        let rename = |replica: &mut usize| *replica = members.get(*replica).copied().unwrap_or(*replica);
        match &mut error {
            Error::Left { replica, .. } => rename(replica),
            Error::Timeout { missing, .. } => missing.iter_mut().for_each(|(replica, _)| rename(replica)),
            Error::Aborted { replica, calls, .. } => {
                rename(replica);
                calls.iter_mut().for_each(|(replica, _)| rename(replica));
            }
            _ => {}
        }
        Failure::Error(error)
    }

    /// Makes the failure of a step in the whole group.
    #[cold]
    fn group_failure(&mut self, fault: Fault, name: Kind) -> Failure {
        match self.endpoint.take_differing().filter(|_| fault == Fault::Mismatch) {
            Some(calls) => Failure::Error(self.mismatch(None, &calls)),
            None => failure(&self.endpoint, self.processes.as_deref(), fault, name.name()),
        }
    }

    /// Returns the ranks of the group of this rank and `peer`.
    fn pair_members(&self, peer: usize) -> [usize; 2] {
        let rank = self.endpoint.world().rank();
        [rank.min(peer), rank.max(peer)]
    }

    /// Makes the error for calls that differ, in the whole group or in that of this rank and
    /// `peer`.
    #[cold]
    fn mismatch(&self, peer: Option<usize>, calls: &[PostedCall]) -> Error {
        let mut error = agreement::compare_posted(calls, &self.configuration);
        if let (Error::Mismatch { replica, .. }, Some(peer)) = (&mut error, peer) {
            *replica = self.pair_members(peer)[usize::from(*replica != 0)];
        }
        error
    }

    /// Settles the last call of this rank before the call of this name, in whichever group it was,
    /// and returns how long this rank has waited for that. The peers of the last call may wait for
    /// this rank in the next one, of another group.
    #[inline]
    fn settle(&mut self, name: Kind) -> Result<Duration, Failure> {
        match self.unsettled_pair {
            None if !self.endpoint.is_unsettled() => Ok(Duration::ZERO),
            peer => self.settle_with(peer, name),
        }
    }

    fn settle_with(&mut self, peer: Option<usize>, name: Kind) -> Result<Duration, Failure> {
        let endpoint = match peer {
            Some(peer) => self.pairs[peer].as_mut().expect("the last call was in this group"),
            None => &mut self.endpoint,
        };
        endpoint.begin_call();
        let settled = endpoint.settle();
        let (waited, calls) = (endpoint.waited(), endpoint.take_differing_late());
        if let Err(fault) = settled {
            return Err(match peer {
                Some(peer) => self.pair_failure(peer, fault, name),
                None => failure(&self.endpoint, self.processes.as_deref(), fault, name.name()),
            });
        }
        self.unsettled_pair = None;
        if let Some(calls) = calls {
            let error = self.mismatch(peer, &calls);
            self.late.get_or_insert(error);
        }
        Ok(waited)
    }
}

impl Engine for Host {
    fn world(&self) -> World {
        self.endpoint.world()
    }

    fn service(&self) -> Service {
        Service::Calls
    }

    fn execute(&mut self, call: Call<'_>, signature: &Signature, name: Kind) -> Result<(), Failure> {
        let waited = self.settle(name)?;
        // Calls that explain a mismatch share the deadline of the call.
        if name != kind::EXPLAIN {
            self.endpoint.begin_call();
            self.endpoint.add_wait(waited);
        }
        match call {
            Call::Send { data, to } => {
                self.with_peer(to, name, waited, |endpoint| algorithm::send(endpoint, signature, data.on_host()))
            }
            Call::Recv { data, from } => {
                self.with_peer(from, name, waited, |endpoint| algorithm::recv(endpoint, signature, data.on_host()))
            }
            call => {
                let Host { endpoint, scratch, configuration, .. } = self;
                let done = algorithm::run(endpoint, signature, call, scratch, configuration);
                done.map_err(|stop| match stop {
                    Stop::Fault(fault) => self.group_failure(fault, name),
                    Stop::Counts(unlike) => Failure::Error(unlike.error(signature.kind)),
                })
            }
        }
    }

    fn refuse(&mut self, signature: &Signature, why: &str) -> Result<(), Failure> {
        let waited = self.settle(signature.kind)?;
        self.endpoint.begin_call();
        self.endpoint.add_wait(waited);
        self.endpoint.refuse(signature, why).map_err(|fault| self.group_failure(fault, signature.kind))
    }

    fn late_error(&mut self) -> Option<Error> {
        // Taken only if it is there: an error is large to move.
        if self.late.is_some() { self.late.take() } else { None }
    }

    fn subgroup(&mut self, members: &[usize]) -> Result<Option<Box<dyn Engine>>, Failure> {
        self.settle(Kind::Split)?;
        let signature = Signature { dtype: Some(DType::I64), ..Signature::new(Kind::Split) };
        match self.endpoint.split(&signature, members) {
            Ok(endpoint) => {
                let host = |endpoint| Host::new(endpoint, self.configuration, self.processes.clone());
                Ok(endpoint.map(|endpoint| Box::new(host(endpoint)) as Box<dyn Engine>))
            }
            Err(fault) => Err(self.group_failure(fault, Kind::Split)),
        }
    }

    fn mailbox(&mut self) -> Result<Mailbox> {
        let witness = self.endpoint.witness();
        let timeout = self.endpoint.timeout();
        match self.endpoint.mail() {
            Ok(mail) => Ok(Mailbox::new(mail, Reports { witness, processes: self.processes.clone() }, timeout)),
            Err(fault) => Err(report(&witness, self.processes.as_deref(), fault, "Communicator::mailbox", timeout)),
        }
    }

    fn configure(&mut self, configuration: &Configuration) {
        self.configuration = *configuration;
        for endpoint in self.pairs.iter_mut().flatten().chain([&mut self.endpoint]) {
            endpoint.set_timeout(configuration.timeout);
        }
    }

    fn keep_waiting(&mut self, ask: KeepWaiting) {
        for endpoint in self.pairs.iter_mut().flatten().chain([&mut self.endpoint]) {
            endpoint.keep_waiting(ask.clone());
        }
    }

    fn alloc(&self, space: Space, dtype: DType, count: usize) -> Result<Memory> {
        require_host(space)?;
        let what = || format!("allocate {count} elements of {dtype} that all ranks share");
        let memory = self.endpoint.alloc(dtype, count).map_err(|source| Error::System { what: what(), source })?;
        Ok(memory.into())
    }

    fn abort_handle(&self) -> AbortHandle {
        self.endpoint.aborter().into()
    }

    fn renew(&mut self) -> Result<()> {
        if self.endpoint.aborter().aborted().is_none() {
            return Ok(());
        }
        // Pairs end with their generation.
        self.pairs.clear();
        (self.unsettled_pair, self.late) = (None, None);
        let renewed = self.endpoint.renew();
        renewed.map_err(|fault| {
            let (witness, timeout) = (self.endpoint.witness(), self.endpoint.timeout());
            report(&witness, self.processes.as_deref(), fault, "the next run", timeout)
        })
    }

    fn end_run(&mut self) -> bool {
        // Pairs belong to one generation.
        self.pairs.clear();
        self.unsettled_pair = None;
        self.scratch.shrink();
        self.endpoint.leave_round();
        true
    }

    fn begin_run(&mut self) -> bool {
        self.endpoint.begin_round()
    }

    fn set_idle(&mut self, company: Range<usize>, idle: bool) {
        self.endpoint.set_idle(company, idle);
    }
}

/// Makes the errors of calls that do not borrow the engine.
pub(crate) struct Reports {
    witness: Witness,
    processes: Option<Arc<dyn Processes>>,
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

    /// Describes the process of a rank, if there are several.
    pub(crate) fn process(&self, rank: usize) -> Option<String> {
        self.processes.as_ref().map(|processes| processes.describe(self.witness.top_rank(rank)))
    }
}

/// Makes the failure of the call of this name.
fn failure(endpoint: &Endpoint, processes: Option<&dyn Processes>, fault: Fault, name: &str) -> Failure {
    match fault {
        Fault::Mismatch => Failure::Disagreement { peer: None },
        fault => Failure::Error(report(&endpoint.witness(), processes, fault, name, endpoint.timeout())),
    }
}

/// Makes the error for `fault` in the call of this name, which waited for at most `timeout`.
fn report(witness: &Witness, processes: Option<&dyn Processes>, fault: Fault, name: &str, timeout: Duration) -> Error {
    let call = name.to_owned();
    let process = |rank| processes.map(|processes| processes.describe(witness.top_rank(rank)));
    let said = |rank| {
        let last = last_words(witness.last_call(rank));
        process(rank).map_or(last.clone(), |process| format!("{last}; {process}"))
    };
    let left = |replica: usize| {
        let lost = witness.is_lost(replica);
        if let Some(processes) = processes {
            processes.blame(witness.top_rank(replica));
        }
        let last = if lost { said(replica) } else { last_words(witness.last_call(replica)) };
        Error::Left { call: call.clone(), replica, last, lost }
    };
    match fault {
        Fault::Mismatch => unreachable!("a disagreement is no error yet"),
        Fault::Left(rank) => left(witness.blame(rank)),
        Fault::Missing(ranks) => Error::Timeout {
            call,
            waited: timeout,
            missing: ranks.into_iter().map(|rank| (rank, said(rank))).collect(),
        },
        Fault::Aborted(abort) => {
            // The end is recorded, unless a faulty process has overwritten it.
            let end = witness.end().unwrap_or(End { abort, inherited: false, is_lost: false, calls: Vec::new() });
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
            // The rank whose deadline passed is not at fault, and another group numbers
            // differently.
            match (processes, end.abort.reason) {
                (Some(processes), Reason::Death) => processes.blame(end.abort.rank),
                (None, _) | (_, Reason::Deadline) => {}
                (Some(processes), _) if !end.inherited && end.abort.rank < witness.world().size() => {
                    processes.blame(witness.top_rank(end.abort.rank));
                }
                _ => {}
            }
            let lost_process = lost_process.map_or_else(String::new, |process| format!(" ({process})"));
            let calls = calls.into_iter().enumerate();
            let lost = end.is_lost || matches!(end.abort.reason, Reason::Death | Reason::Departure);
            let (replica, reason) = (end.abort.rank, format!("{group}{reason}{lost_process}"));
            Error::Aborted { call, replica, reason, lost, calls: calls.collect() }
        }
        Fault::NoMemory { bytes, code } => Error::System {
            what: format!("{call}: reserve {bytes} bytes of the memory that processes share"),
            source: code.map_or(io::ErrorKind::OutOfMemory.into(), io::Error::from_raw_os_error),
        },
        Fault::CorruptPeer(rank) => Error::System {
            what: format!("{call}: read what replica {rank} says of its call"),
            source: io::Error::new(
                io::ErrorKind::InvalidData,
                "it cannot be: its process wrote where it must not in the memory that processes share",
            ),
        },
        Fault::Oversize { rank, bytes } => Error::System {
            what: format!("{call}: allocate {bytes} bytes for what all replicas bring, most of it replica {rank}"),
            source: io::ErrorKind::OutOfMemory.into(),
        },
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

fn last_words(last: LastCall) -> String {
    match last.signature(EXTENSIONS) {
        Some(signature) => format!("its last call was number {}, {signature}, {} bytes", last.number, last.bytes),
        None => "it has made no call of this group".to_owned(),
    }
}
