//! Calls that are observed: recorded for a profile, or told to subscribers of `tracing`.

use super::{
    agreement::Agreement,
    call::Call,
    engine::{Buffers, LeavesStep, Way},
};
use crate::{
    Communicator, Error, Result,
    profile::{self, CallRecord, CallSpan, Event, GpuRecord, Span, Transport},
};
use consonance_kernels::memory::{Buf, BufMut};
use consonance_spec::Signature;

impl Communicator {
    /// Returns whether calls are observed.
    #[inline]
    pub(super) fn is_observed(&self) -> bool {
        self.profiled || profile::are_wanted()
    }

    /// Executes a call whose signature is complete.
    #[inline]
    pub(super) fn step(&mut self, call: Call<'_>, signature: &Signature, agreement: &Agreement<'_>) -> Result<()> {
        if self.is_observed() {
            return self.carry_out_observed(call, signature, agreement);
        }
        self.carry_out_at_once(call, signature, agreement)
    }

    #[inline]
    fn carry_out_at_once(&mut self, call: Call<'_>, signature: &Signature, agreement: &Agreement<'_>) -> Result<()> {
        let done = self.engine.execute(call, signature, agreement.name(signature));
        done.map_err(|failure| self.settle(failure, signature, agreement))
    }

    /// Executes a call, and tells of it.
    #[cold]
    fn carry_out_observed(&mut self, call: Call<'_>, signature: &Signature, agreement: &Agreement<'_>) -> Result<()> {
        let peer = match call {
            Call::Send { to, .. } => Some(to),
            Call::Recv { from, .. } => Some(from),
            Call::AllReduce { .. } | Call::Reduce { .. } | Call::ReduceScatter { .. } | Call::Broadcast { .. } => None,
            Call::AllGather { .. } | Call::Gather { .. } | Call::Scatter { .. } | Call::AllToAll { .. } => None,
            Call::Concat { .. } | Call::Barrier => None,
        };
        let (bytes, way) = (bytes(&call), self.way(&Buffers::of(&call, self.rank())));
        self.observe(peer, (bytes, way), (signature, agreement), |communicator| {
            communicator.carry_out_at_once(call, signature, agreement)
        })
    }

    /// Makes the only step of a reduction of leaves of `bytes` bytes each.
    pub(super) fn leaves_step(
        &mut self,
        step: LeavesStep<'_>,
        bytes: usize,
        signature: &Signature,
        agreement: &Agreement<'_>,
    ) -> Result<bool> {
        let carry_out = |communicator: &mut Communicator| {
            let done = communicator.engine.reduce_leaves(step, signature, agreement.name(signature));
            done.map_err(|failure| communicator.settle(failure, signature, agreement))
        };
        match self.is_observed() {
            true => self.observe(None, (bytes, Way::Host), (signature, agreement), carry_out),
            false => carry_out(self),
        }
    }

    /// Executes a call of so many bytes, on their way to a GPU, by `carry_out`, and tells of it; a
    /// send or receive is one with `peer`.
    fn observe<R>(
        &mut self,
        peer: Option<usize>,
        (bytes, way): (usize, Way),
        (signature, agreement): (&Signature, &Agreement<'_>),
        carry_out: impl FnOnce(&mut Communicator) -> Result<R>,
    ) -> Result<R> {
        // Calls before that were not observed have left their paths.
        let before = self.engine.explain(peer);
        let gpu = before.gpu.filter(|_| way != Way::Host);
        let transport = if self.size() == 1 { Some(Transport::Alone) } else { before.transport };
        let mut record = CallRecord {
            name: agreement.name(signature),
            step: signature.kind,
            op: signature.op,
            dtype: signature.dtype,
            bytes,
            transport,
            path: None,
            gpu: gpu.map(|(ordinal, _)| ordinal),
            is_fold: way == Way::Fold,
            waited: None,
            failed: false,
            culprit: None,
        };
        let gpu = gpu.map(|(ordinal, uuid)| GpuRecord { ordinal, uuid });
        let traced = profile::are_wanted().then(|| CallSpan::begin(self.rank(), self.size(), &record, gpu));
        if let Some(gpu) = gpu.filter(|_| self.profiled) {
            profile::name_gpu(self.rank(), self.size(), gpu);
        }
        let span = self.profiled.then(|| Span::begin(self.rank(), self.size(), Event::Call(record)));
        let result = carry_out(self);
        let moves = record.bytes > 0 && self.size() > 1 && way != Way::Fold;
        let explained = self.engine.explain(peer);
        // A wait that ended with an error is not counted.
        record.waited = explained.waited.filter(|_| result.is_ok());
        record.path = explained.path.filter(|_| result.is_ok() && moves);
        record.failed = result.is_err();
        record.culprit = result.as_ref().err().and_then(culprit);
        if let Some(span) = span {
            span.end(Event::Call(record));
        }
        if let Some(traced) = traced {
            traced.end(&record, result.as_ref().err());
        }
        result
    }
}

/// Returns the replica that an error of a call names first.
fn culprit(error: &Error) -> Option<usize> {
    match error.root() {
        Error::Mismatch { replica, .. } | Error::Left { replica, .. } | Error::Aborted { replica, .. } => {
            Some(*replica)
        }
        Error::Panic { replica, .. } | Error::Replica { replica, .. } => Some(*replica),
        Error::InvalidCall { replica, .. } | Error::UnknownReduceOp { replica, .. } => *replica,
        Error::Timeout { missing, .. } => missing.first().map(|(replica, _)| *replica),
        Error::WrongContext { .. }
        | Error::Meeting { .. }
        | Error::System { .. }
        | Error::Closures { .. }
        | Error::Other(_) => None,
    }
}

/// Returns the bytes of the larger of the call's buffers.
fn bytes(call: &Call<'_>) -> usize {
    let larger = |send: Option<&Buf<'_>>, recv: Option<&BufMut<'_>>| {
        send.map_or(0, Buf::bytes).max(recv.map_or(0, BufMut::bytes))
    };
    match call {
        Call::Barrier => 0,
        Call::Broadcast { data, .. } | Call::Recv { data, .. } => data.bytes(),
        Call::Send { data, .. } => data.bytes(),
        Call::Concat { send, .. } => send.bytes(),
        Call::Reduce { send, recv, .. } | Call::Gather { send, recv, .. } | Call::Scatter { send, recv, .. } => {
            larger(send.as_ref(), recv.as_ref())
        }
        Call::AllReduce { send, recv, .. }
        | Call::ReduceScatter { send, recv, .. }
        | Call::AllGather { send, recv, .. }
        | Call::AllToAll { send, recv, .. } => larger(send.as_ref(), Some(recv)),
    }
}
