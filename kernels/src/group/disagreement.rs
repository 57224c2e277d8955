//! The calls of ranks that disagree, as their descriptors have them.
//!
//! After a call that all ranks wait for they can exchange their calls in words. If a rank has gone
//! on after it gave a [message](super::message), it may make no call for a long time: the ranks
//! read each other's descriptors instead, so that no rank waits. All of them read the same.

use super::{
    end::abort::Fault,
    endpoint::Endpoint,
    post::Places,
    posted::{self, PostedCall, has_access},
};
use crate::{
    cpu::{cache_hints::CopySize, copy::copy},
    shm::{
        call_log::Outcome,
        codes::Access,
        records::{MESSAGE_BYTES, RankRecord},
    },
};
use consonance_spec::Signature;
use std::ptr;

impl Endpoint {
    /// Takes part in a call that the peers make, and tells them why this rank's own call is
    /// invalid. They disagree, unless all do the same.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn refuse(&mut self, signature: &Signature, why: &str) -> Result<(), Fault> {
        let why = &why.as_bytes()[..why.len().min(MESSAGE_BYTES)];
        self.arrive(signature, Access::Refused, why.len(), (why.into(), 0), (ptr::null(), ptr::null_mut()), || ())
    }

    /// Returns the calls of all ranks, in rank order, if the last step failed with
    /// [`Fault::Mismatch`] and a rank may have gone on: the ranks make no further step to compare
    /// them in words.
    pub fn take_differing(&mut self) -> Option<Vec<PostedCall>> {
        self.differing.take()
    }

    /// Returns the calls of all ranks in an earlier step that this rank had left before all ranks
    /// arrived, if they differ.
    pub fn take_differing_late(&mut self) -> Option<Vec<PostedCall>> {
        self.differing_late.take()
    }

    /// Notes that the ranks, which have all arrived, disagree.
    #[cold]
    pub(super) fn disagree(&mut self) -> Fault {
        self.note(Outcome::Mismatch);
        let is_message = |access: &Access| access.is_message();
        let messages = || Access::ALL.into_iter().filter(is_message);
        let may_go_on = self.descriptors().any(|descriptor| messages().any(|access| has_access(descriptor, access)));
        self.differing = may_go_on.then(|| self.posted_calls(self.sequence));
        Fault::Mismatch
    }

    /// Returns the calls of all ranks, which have arrived at call `sequence`.
    pub(super) fn posted_calls(&self, sequence: u64) -> Vec<PostedCall> {
        let of = |(rank, record): (usize, &RankRecord)| {
            let descriptor = record.descriptor(sequence);
            let counts = has_access(descriptor, Access::CountedMessage).then(|| self.counts(rank, sequence));
            let refusal = has_access(descriptor, Access::Refused).then(|| self.refusal(rank, sequence));
            posted::read(descriptor, counts, refusal)
        };
        self.state.records().iter().enumerate().map(of).collect()
    }

    /// Returns the counts with which the payload of `rank` ends.
    fn counts(&self, rank: usize, sequence: u64) -> Vec<u64> {
        let words_bytes = self.world.size() * size_of::<u64>();
        let payload = self.posted_payload(rank, sequence, words_bytes);
        let start = payload.len().saturating_sub(words_bytes);
        payload[start..].as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word)).collect()
    }

    /// Returns the text in the payload of `rank`.
    fn refusal(&self, rank: usize, sequence: u64) -> String {
        String::from_utf8_lossy(&self.posted_payload(rank, sequence, 0)).into_owned()
    }

    /// Returns a copy of the payload of `rank`: a message, with its words, or why its own call is
    /// invalid.
    fn posted_payload(&self, rank: usize, sequence: u64, words_bytes: usize) -> Vec<u8> {
        let records = self.state.records();
        // The size is what another process says.
        let bytes = records[rank].descriptor(sequence).bytes().saturating_add(words_bytes).min(MESSAGE_BYTES);
        let mut copied = vec![0; bytes];
        let payload = Places::Own.payload(records, rank, sequence, bytes);
        // SAFETY: the place has as many bytes. The rank has written them before it arrived, and
        // writes them again when this rank has arrived two calls later. A corrupt process may do
        // so before: then the copy is wrong.
        unsafe { copy(payload, copied.as_mut_ptr(), bytes, CopySize::Near) };
        copied
    }
}
