//! Handles a disagreement of ranks: they exchange their calls in words, and all get the same error.

use super::{
    agreement::{self, Agreement, Words},
    call::Call,
    engine::Failure,
};
use crate::{Communicator, Error, Result, kind};
use consonance_kernels::{
    group::Reason,
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::{DType, Kind, Signature};
use std::io;

/// The signature of the calls by which ranks exchange their calls in words.
const EXPLAIN: Signature = Signature { dtype: Some(DType::U8), ..kind::signature(kind::EXPLAIN) };

impl Communicator {
    /// Returns the error of a failed call. If the ranks disagree, exchanges their calls in words
    /// first.
    #[cold]
    pub(super) fn settle(&mut self, failure: Failure, signature: &Signature, agreement: &Agreement<'_>) -> Error {
        let error = match failure {
            Failure::Error(error) => error,
            Failure::Disagreement { peer } => {
                let words = agreement.words(signature, &self.configuration);
                self.explain(&words, peer, agreement.name(signature)).unwrap_or_else(|error| error)
            }
        };
        if let Error::Mismatch { replica, .. } = error {
            self.engine.blame(replica);
        }
        error
    }

    /// Exchanges calls of this name in words, with all ranks or with `peer` only, and returns the
    /// error that all of them get.
    fn explain(&mut self, words: &Words, peer: Option<usize>, name: Kind) -> Result<Error> {
        let own = words.to_bytes();
        let texts = match peer {
            None => self.tell_all(&own, name),
            Some(peer) => self.tell(&own, peer, name),
        };
        let texts = texts.map_err(|failure| match failure {
            Failure::Error(error) => error,
            Failure::Disagreement { .. } => {
                // The ranks are no longer in step.
                self.engine.abort_handle().abort(Reason::Failure);
                Error::system(format!("{name}: read what the replicas say of their calls"), io::ErrorKind::InvalidData)
            }
        })?;
        let mut error = agreement::compare(&texts);
        if let (Error::Mismatch { replica, .. }, Some(peer)) = (&mut error, peer) {
            *replica = if *replica == 0 { peer.min(self.rank()) } else { peer.max(self.rank()) };
        }
        Ok(error)
    }

    /// Gathers every rank's words, in rank order.
    fn tell_all(&mut self, own: &[u8], name: Kind) -> Result<Vec<String>, Failure> {
        // Exchange the lengths first, and bound each: a peer must not decide how much this rank
        // allocates.
        let mut lengths = vec![[0u8; size_of::<u64>()]; self.size()];
        let length = length(own);
        let (send, recv) = (Some(length.as_slice().into()), lengths.as_flattened_mut().into());
        self.engine.execute(Call::AllGather { send, recv, counts: None }, &EXPLAIN, name)?;
        let counts: Vec<usize> = lengths.into_iter().map(bounded).collect();
        let mut all = vec![0u8; counts.iter().sum()];
        let (send, recv) = (Some(own.into()), all.as_mut_slice().into());
        self.engine.execute(Call::AllGather { send, recv, counts: Some(&counts) }, &EXPLAIN, name)?;
        let mut rest = &all[..];
        let texts = counts.into_iter().map(|count| {
            let (text, others) = rest.split_at(count);
            rest = others;
            String::from_utf8_lossy(text).into_owned()
        });
        Ok(texts.collect())
    }

    /// Exchanges words with `peer`. Returns both, in rank order.
    fn tell(&mut self, own: &[u8], peer: usize, name: Kind) -> Result<Vec<String>, Failure> {
        let mut bytes = [0u8; size_of::<u64>()];
        self.exchange(peer, length(own).as_slice().into(), bytes.as_mut_slice().into(), name)?;
        let mut other = vec![0u8; bounded(bytes)];
        self.exchange(peer, own.into(), other.as_mut_slice().into(), name)?;
        let texts = [own, &other].map(|text| String::from_utf8_lossy(text).into_owned());
        let [own, other] = texts;
        Ok(if self.rank() < peer { vec![own, other] } else { vec![other, own] })
    }

    /// Sends to `peer` and receives from it; the lower rank sends first.
    fn exchange(&mut self, peer: usize, send: HostBuf<'_>, recv: HostBufMut<'_>, name: Kind) -> Result<(), Failure> {
        let (send, recv) = (Call::Send { data: send.into(), to: peer }, Call::Recv { data: recv.into(), from: peer });
        let (first, second) = if self.rank() < peer { (send, recv) } else { (recv, send) };
        self.engine.execute(first, &EXPLAIN, name)?;
        self.engine.execute(second, &EXPLAIN, name)
    }

    /// Takes part in a call that the other ranks make, and tells them that this rank's arguments
    /// are invalid. They fail with a mismatch that names this rank. For bindings that check
    /// arguments before they have a [`Call`](crate::raw::Call); the caller has the error for this
    /// rank already.
    ///
    /// # Errors
    /// Those of a collective, if the other ranks could not be told.
    ///
    /// ```
    /// # use consonance::{Communicator, Error, raw::Kind};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let error = Error::WrongContext { call: "broadcast", problem: "a null pointer".to_owned() };
    /// alone.refuse(Kind::Broadcast, &error)?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn refuse(&mut self, kind: Kind, error: &Error) -> Result<()> {
        let why = error.to_string();
        match self.engine.refuse(&agreement::refused(kind, &why), &why) {
            // The other ranks have read it in this rank's descriptor.
            Ok(()) | Err(Failure::Error(Error::Mismatch { .. })) => Ok(()),
            Err(Failure::Error(error)) => Err(error),
            Err(Failure::Disagreement { .. }) => self.explain(&Words::refused(kind, &why), None, kind).map(drop),
        }
    }

    /// Returns the error of an earlier call in place of the result of one that was made now.
    #[cold]
    pub(super) fn report_late(&mut self, late: Error, done: Result<()>) -> Result<()> {
        if let Err(error @ Error::Mismatch { .. }) = done {
            // Any other error comes again.
            self.late = Some(error);
        }
        Err(late)
    }
}

/// Encodes the length of a rank's words.
fn length(words: &[u8]) -> [u8; size_of::<u64>()] {
    (words.len() as u64).to_le_bytes()
}

/// Decodes a peer's length, limited to the longest valid one.
fn bounded(length: [u8; size_of::<u64>()]) -> usize {
    usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX).min(Words::BYTES)
}
