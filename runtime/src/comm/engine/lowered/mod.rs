//! Every call on an engine that carries only messages.
//!
//! The ranks exchange call [descriptors] (the fingerprint of the call's signature, and the bytes of
//! the rank's input) before data moves, or [with](direct) the first data if these are few. Then
//! [data](calls) moves between pairs of ranks. In round `k` ranks `r` and `(k - r) mod n` exchange
//! data. This pairing has no cycle of waiting ranks, even if a send blocks until its message is
//! received.

mod calls;
mod descriptors;
mod direct;

use self::{
    descriptors::{Descriptor, Exchange, OF_TWO},
    direct::FirstData,
};
use super::{AbortHandle, Engine, Explanation, Failure, Service};
use crate::{
    Error, Implementation, Mailbox, Result,
    comm::{call::Call, options::Configuration},
    kind,
    profile::Transport,
};
use consonance_kernels::{
    group::{KeepWaiting, Reason},
    memory::{HostBuf, HostBufMut, Memory, Space},
    shm::codes::fingerprint,
};
use consonance_spec::{DType, Kind, Signature, World};
use std::{
    io,
    ops::Range,
    time::{Duration, Instant},
};

/// Executes all calls over an engine of messages.
pub(crate) struct Lowered {
    messages: Box<dyn Engine>,
    /// Whether no send waits for its receiver: see [`Service::Letters`].
    has_letters: bool,
    /// The data that went with the descriptors of the current call.
    first: FirstData,
    /// The number of calls of all ranks since these met, where descriptors are sent directly.
    calls: u64,
    /// The algorithm of all-reduces. Here it changes nothing, but on any engine all ranks must
    /// choose the same one.
    implementation: Implementation,
    timeout: Duration,
    /// The deadline of the current call.
    deadline: Instant,
}

impl Lowered {
    /// Makes the engine. The caller [configures](Engine::configure) it.
    pub(crate) fn new(messages: Box<dyn Engine>) -> Lowered {
        Lowered {
            has_letters: messages.service() == Service::Letters,
            messages,
            first: FirstData::default(),
            calls: 0,
            implementation: Implementation::Auto,
            timeout: Duration::ZERO,
            deadline: Instant::now(),
        }
    }

    /// Begins a call, whose waits share one deadline.
    fn begin(&mut self) {
        self.messages.begin_call();
        self.deadline = Instant::now() + self.timeout;
    }

    /// Waits until all ranks are in the generation that this rank has begun.
    fn meet(&mut self, why: Kind) -> Result<()> {
        self.calls = 0;
        self.begin();
        let met = self.agree(&Call::Barrier, &kind::signature(why), why);
        met.map(drop).map_err(|failure| match failure {
            Failure::Error(error) => {
                if let Error::System { .. } = error {
                    // The peers wait for messages that this rank will not send.
                    self.abort_handle().abort(Reason::Memory);
                }
                error
            }
            Failure::Disagreement { .. } => {
                self.abort_handle().abort(Reason::Failure);
                Error::system(format!("{why}: meet the other replicas"), io::ErrorKind::InvalidData)
            }
        })
    }

    fn rank(&self) -> usize {
        self.world().rank()
    }

    fn size(&self) -> usize {
        self.world().size()
    }

    fn send(&mut self, data: HostBuf<'_>, to: usize, name: Kind) -> Result<(), Failure> {
        self.messages.execute(Call::Send { data: data.into(), to }, &Signature::new(Kind::SendRecv), name)
    }

    fn recv(&mut self, data: HostBufMut<'_>, from: usize, name: Kind) -> Result<(), Failure> {
        self.messages.execute(Call::Recv { data: data.into(), from }, &Signature::new(Kind::SendRecv), name)
    }

    /// Iterates over the peers in the order in which this rank meets them.
    fn meetings(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, size) = (self.rank(), self.size());
        (0..size).map(move |round| (round + size - rank) % size).filter(move |&peer| peer != rank)
    }

    /// Compares the call on all ranks. Returns the bytes of every rank's input, if peers do not
    /// know them: see [`Call::concat_bytes`].
    fn agree(&mut self, call: &Call<'_>, signature: &Signature, name: Kind) -> Result<Vec<u64>, Failure> {
        self.first = FirstData::default();
        let chosen = if signature.kind == Kind::AllReduce { self.implementation as u64 } else { 0 };
        let (fingerprint, bytes) = (fingerprint(signature) ^ chosen, call.concat_bytes());
        let of_all = bytes.unwrap_or(0) as u64;
        let agreed = match self.has_letters && (2..=direct::MOST_RANKS).contains(&self.size()) {
            true => self.compare_directly(fingerprint, of_all, call, name)?,
            false => Exchange::new(self, name).compare(fingerprint, of_all, bytes.is_some())?,
        };
        agreed.ok_or(Failure::Disagreement { peer: None })
    }

    /// Aborts the group because one rank made a call of all ranks and the other a send or receive:
    /// their next messages could not be told apart.
    fn out_of_step(&self, peer: usize, name: Kind, expected: &str, found: &str) -> Failure {
        self.abort_handle().abort(Reason::Failure);
        Failure::Error(Error::Mismatch {
            call: name.to_string(),
            replica: peer,
            argument: "the call".to_owned(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        })
    }

    /// Ends the group because a peer sent invalid data, and returns the error of this rank.
    fn garbled(&self, what: &str, peer: usize, name: Kind) -> Failure {
        self.abort_handle().abort(Reason::Failure);
        let what = format!("{name}: read the {what} that replica {peer} sent");
        Error::system(what, io::ErrorKind::InvalidData).into()
    }

    /// Ends the group because ranks are late, and returns the error of this rank.
    fn give_up(&self, late: Vec<usize>, name: Kind) -> Failure {
        let waited = self.timeout;
        late.first().into_iter().for_each(|&rank| _ = self.abort_handle().give_up(rank, waited));
        let silent = "it sent no message of this call";
        let processes = self.messages.describe_silent(&late);
        let said = |process: Option<String>| match process {
            Some(process) => format!("{silent}; {process}"),
            None => silent.to_owned(),
        };
        let missing = late.into_iter().zip(processes.into_iter().map(said)).collect();
        Failure::Error(Error::Timeout { call: name.to_string(), waited, missing })
    }

    /// Executes a send or receive: compares it with `peer`'s, then moves the data.
    fn pair(&mut self, call: Call<'_>, peer: usize, signature: &Signature, name: Kind) -> Result<(), Failure> {
        let own: Descriptor = [fingerprint(signature), OF_TWO, 0, 0];
        let mut other = own;
        if self.has_letters {
            let found = self.swap([own[0], OF_TWO, 0], &[peer], &call, name)?;
            found.into_iter().for_each(|(_, descriptor)| other[0] = descriptor[0]);
        } else {
            self.send(own.as_slice().into(), peer, name)?;
            self.recv(other.as_mut_slice().into(), peer, name)?;
        }
        if other[1] != OF_TWO {
            return Err(self.out_of_step(peer, name, "a send or a receive", "a call of all ranks"));
        }
        if own != other {
            return Err(Failure::Disagreement { peer: Some(peer) });
        }
        self.carry_out(call, &[], name)
    }
}

impl Engine for Lowered {
    fn world(&self) -> World {
        self.messages.world()
    }

    fn service(&self) -> Service {
        Service::Calls
    }

    fn execute(&mut self, call: Call<'_>, signature: &Signature, name: Kind) -> Result<(), Failure> {
        // Calls that explain a mismatch share the deadline of the call.
        if signature.kind != kind::EXPLAIN {
            self.begin();
        }
        if self.size() == 1 && self.abort_handle().is_aborted() {
            // A rank that is alone sends no message, and would not notice.
            return Err(Error::aborted(name.name(), self.rank(), Reason::Failure).into());
        }
        let done = match call {
            Call::Send { to: peer, .. } | Call::Recv { from: peer, .. } => self.pair(call, peer, signature, name),
            call => self.agree(&call, signature, name).and_then(|bytes| self.carry_out(call, &bytes, name)),
        };
        if let Err(Failure::Error(Error::System { .. })) = &done {
            // The peers wait for messages that this rank will not send.
            self.abort_handle().abort(Reason::Memory);
        }
        done
    }

    fn configure(&mut self, configuration: &Configuration) {
        (self.implementation, self.timeout) = (configuration.implementation, configuration.timeout);
        self.messages.configure(configuration);
    }

    fn keep_waiting(&mut self, ask: KeepWaiting) {
        self.messages.keep_waiting(ask);
    }

    fn abort_handle(&self) -> AbortHandle {
        self.messages.abort_handle()
    }

    fn subgroup(&mut self, members: &[usize]) -> Result<Option<Box<dyn Engine>>, Failure> {
        let messages = self.messages.subgroup(members)?;
        Ok(messages.map(|messages| Box::new(Lowered::new(messages)) as Box<dyn Engine>))
    }

    fn alloc(&self, space: Space, dtype: DType, count: usize) -> Result<Memory> {
        self.messages.alloc(space, dtype, count)
    }

    fn renew(&mut self) -> Result<()> {
        if !self.abort_handle().is_aborted() {
            return Ok(());
        }
        self.messages.next_generation()?;
        self.meet(kind::RENEW)
    }

    fn waive_majority(&mut self) {
        self.messages.waive_majority();
    }

    fn reform(&mut self) -> Result<()> {
        self.messages.remaining()?;
        self.meet(kind::REFORM)?;
        self.messages.formed();
        Ok(())
    }

    fn end_run(&mut self) -> bool {
        self.messages.end_run()
    }

    fn begin_run(&mut self) -> bool {
        self.messages.begin_run()
    }

    fn mailbox(&mut self) -> Result<Mailbox> {
        self.messages.mailbox()
    }

    fn late_error(&mut self) -> Option<Error> {
        self.messages.late_error()
    }

    fn synchronize(&mut self) -> Result<()> {
        self.messages.synchronize()
    }

    fn explain(&self, peer: Option<usize>) -> Explanation {
        Explanation { transport: Some(Transport::Messages), ..self.messages.explain(peer) }
    }

    fn blame(&self, rank: usize) {
        self.messages.blame(rank);
    }

    fn set_idle(&mut self, company: Range<usize>, idle: bool) {
        self.messages.set_idle(company, idle);
    }
}
