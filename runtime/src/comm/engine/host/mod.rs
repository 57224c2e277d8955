//! The engine of ranks that share memory: threads of one process or of several processes on one
//! host.

mod algorithm;
mod all_ranks;
mod mail;

pub(crate) use self::all_ranks::AllRanks;

use self::{
    algorithm::{Scratch, Stop},
    mail::HostMessages,
};
use super::{AbortHandle, Engine, Explanation, Failure, Known, LeavesStep, Service, require_host};
use crate::{
    Error, Mailbox, Result,
    comm::{
        agreement,
        call::{Call, OnHost},
        options::{self, Configuration},
        report::{Processes, Reports, report},
    },
    kind,
    profile::Transport,
};
use consonance_kernels::{
    cuda::Uuid,
    group::{Endpoint, Fault, KeepWaiting, PostedCall},
    memory::{Memory, Space},
    os::launcher::Blame,
};
use consonance_spec::{DType, Kind, Signature, World};
use std::{ops::Range, sync::Arc, time::Duration};

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

impl Host {
    /// Returns the endpoint of the pair of this rank and `peer` once they have communicated, else
    /// that of the group.
    fn endpoint(&self, peer: Option<usize>) -> &Endpoint {
        peer.and_then(|peer| self.pairs.get(peer)?.as_ref()).unwrap_or(&self.endpoint)
    }

    /// Makes the engines of a new group of `size` threads of this process, in rank order.
    pub(super) fn group(call: &'static str, size: usize, configuration: Configuration) -> Result<Vec<Box<dyn Engine>>> {
        options::settle(call)?;
        let endpoints = Endpoint::group(size, configuration.timeout).into_iter();
        Ok(endpoints.map(|endpoint| Box::new(Host::new(endpoint, configuration, None)) as Box<dyn Engine>).collect())
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
        (kind, name): (Kind, Kind),
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
        if kind != kind::EXPLAIN {
            pair.begin_call();
            pair.add_wait(waited);
        }
        let done = step(pair).and_then(|()| pair.choose_pipeline());
        self.unsettled_pair = pair.is_unsettled().then_some(peer);
        if let Some(calls) = pair.take_differing_late() {
            self.tell_late(Some(peer), &calls);
        }
        let pair = self.pairs[peer].as_mut().expect("made above");
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
        // If the peer left because of another rank, or waits for it, only the whole group can name
        // that rank.
        let whole = self.endpoint.witness();
        let of_another = match fault {
            Fault::Left(_) if whole.blame(peer) != peer || whole.gave_up_for(peer).is_some() => Some(Fault::Left(peer)),
            Fault::Missing(_) => {
                Some(whole.held_up_by(peer)).filter(|&late| late != peer).map(|late| Fault::Missing(vec![late]))
            }
            _ => None,
        };
        if let Some(fault) = of_another {
            return failure(&self.endpoint, self.processes.as_deref(), fault, name);
        }
        let mut error = match failure(pair, self.processes.as_deref(), fault, name) {
            Failure::Disagreement { .. } => return Failure::Disagreement { peer: Some(peer) },
            Failure::Error(error) => error,
        };
        // An abort of the whole group names a rank of the whole group. The pair's own may be told
        // first.
        let is_own = || pair.witness().end(kind::is_shown).is_some_and(|end| !end.inherited);
        if let (Error::Aborted { .. }, Some(abort)) = (&error, self.endpoint.aborter().aborted())
            && !is_own()
        {
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

    /// Settles the last call of this rank before the call of this name, which is in the whole group
    /// or in that of this rank and `to`, and returns how long this rank has waited for that. The
    /// peers of the last call may wait for this rank in the next one, of another group. A call in
    /// the same group settles the last one itself.
    // Inlined: the call and its large result would cost as much as what it asks.
    #[inline(always)]
    fn settle(&mut self, name: Kind, to: Option<usize>) -> Result<Duration, Failure> {
        match self.unsettled_pair {
            None if to.is_none() || !self.endpoint.is_unsettled() => Ok(Duration::ZERO),
            last if last.is_some() && last == to => Ok(Duration::ZERO),
            last => self.settle_with(last, name),
        }
    }

    #[cold]
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
            self.tell_late(peer, &calls);
        }
        Ok(waited)
    }

    /// Keeps the error of an earlier call of the whole group, or of this rank and `peer`, whose
    /// calls differ.
    #[cold]
    fn tell_late(&mut self, peer: Option<usize>, calls: &[PostedCall]) {
        let error = self.mismatch(peer, calls);
        if let Error::Mismatch { replica, .. } = error {
            self.blame(replica);
        }
        self.late.get_or_insert(error);
    }

    /// Keeps the error of an earlier call that the last step of the whole group has settled.
    #[inline]
    fn hear_late(&mut self) {
        if let Some(calls) = self.endpoint.take_differing_late() {
            self.tell_late(None, &calls);
        }
    }
}

impl Engine for Host {
    fn world(&self) -> World {
        self.endpoint.world()
    }

    fn explain(&self, peer: Option<usize>) -> Explanation {
        let is_shared = self.endpoint.topology().slot_bytes.is_some();
        let endpoint = self.endpoint(peer);
        Explanation {
            transport: Some(if is_shared { Transport::Processes } else { Transport::Threads }),
            path: Some(endpoint.take_path()),
            waited: Some(endpoint.waited()),
            topology: Some(endpoint.topology()),
            gpu: None,
        }
    }

    fn say_gpu(&self, ordinal: usize, uuid: Uuid) {
        self.endpoint.say_gpu(ordinal, uuid.0);
    }

    fn blame(&self, rank: usize) {
        if let Some(processes) = &self.processes {
            processes.blame(self.endpoint.witness().top_rank(rank), Blame::Differs);
        }
    }

    fn service(&self) -> Service {
        Service::Calls
    }

    fn execute(&mut self, call: Call<'_>, signature: &Signature, name: Kind) -> Result<(), Failure> {
        let to = match &call {
            Call::Send { to: peer, .. } | Call::Recv { from: peer, .. } => Some(*peer),
            _ => None,
        };
        let waited = self.settle(name, to)?;
        // Calls that explain a mismatch share the deadline of the call.
        if signature.kind != kind::EXPLAIN {
            self.endpoint.begin_call();
            self.endpoint.add_wait(waited);
        }
        match call {
            Call::Send { data, to } => self.with_peer(to, (signature.kind, name), waited, |endpoint| {
                algorithm::send(endpoint, signature, data.on_host())
            }),
            Call::Recv { data, from } => self.with_peer(from, (signature.kind, name), waited, |endpoint| {
                algorithm::recv(endpoint, signature, data.on_host())
            }),
            call => {
                let Host { endpoint, scratch, configuration, .. } = self;
                let done = algorithm::run(endpoint, signature, call, scratch, configuration)
                    .and_then(|()| Ok(endpoint.choose_pipeline()?));
                self.hear_late();
                done.map_err(|stop| match stop {
                    Stop::Fault(fault) => self.group_failure(fault, name),
                    Stop::Counts(unlike) => Failure::Error(unlike.error(signature.kind)),
                })
            }
        }
    }

    fn has_leaves_step(&self) -> bool {
        true
    }

    fn reduce_leaves(&mut self, step: LeavesStep<'_>, signature: &Signature, name: Kind) -> Result<bool, Failure> {
        let LeavesStep { reducer, count, targets, run, of, own, runs, known } = step;
        let waited = self.settle(name, None)?;
        self.endpoint.begin_call();
        self.endpoint.add_wait(waited);
        let step = self.endpoint.step(signature);
        let of_all = (reducer, count, targets);
        let done = step.divided_holdings(of_all, run, own, runs, move |runs| Known::of(known, reducer, of, runs));
        self.hear_late();
        done.map_err(|fault| self.group_failure(fault, name))
    }

    fn refuse(&mut self, signature: &Signature, why: &str) -> Result<(), Failure> {
        let waited = self.settle(signature.kind, None)?;
        self.endpoint.begin_call();
        self.endpoint.add_wait(waited);
        let done = self.endpoint.step(signature).refuse(why);
        self.hear_late();
        done.map_err(|fault| self.group_failure(fault, signature.kind))
    }

    fn late_error(&mut self) -> Option<Error> {
        // Taken only if it is there: an error is large to move.
        if self.late.is_some() { self.late.take() } else { None }
    }

    fn subgroup(&mut self, members: &[usize]) -> Result<Option<Box<dyn Engine>>, Failure> {
        self.settle(Kind::Split, None)?;
        let signature = Signature { dtype: Some(DType::I64), ..Signature::new(Kind::Split) };
        let part = self.endpoint.split(&signature, members);
        self.hear_late();
        match part {
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
            Ok(mail) => {
                let reports = Arc::new(Reports { witness, processes: self.processes.clone() });
                Ok(Mailbox::new(Arc::new(HostMessages { mail, reports }), timeout))
            }
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
        let memory = self.endpoint.alloc(dtype, count).map_err(|source| Error::system(what(), source))?;
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

/// Makes the failure of the call of this name.
fn failure(endpoint: &Endpoint, processes: Option<&dyn Processes>, fault: Fault, name: &str) -> Failure {
    match fault {
        Fault::Mismatch => Failure::Disagreement { peer: None },
        fault => Failure::Error(report(&endpoint.witness(), processes, fault, name, endpoint.timeout())),
    }
}
