//! Calls, as the descriptors of ranks have them: for the reports of ranks that disagree.

use super::post::{CODE_BITS, CODE_MASK, Places};
use crate::{
    cpu::{cache_hints::CopySize, copy::copy},
    shm::{
        codes::{self, Access},
        records::{CallDescriptor, MESSAGE_BYTES, RankRecord},
    },
};
use consonance_spec::{Extension, Signature};

/// A rank's call, as its descriptor has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedCall {
    /// The [code](codes::code) of the call.
    pub code: u32,
    /// The number of elements; `None` if it may differ between ranks.
    pub count: Option<usize>,
    /// The root, if there is one.
    pub root: Option<usize>,
    /// The count of each rank, if the call has counts and the payload tells them.
    pub counts: Option<Vec<u64>>,
    /// The digest of all that ranks compare.
    fingerprint: u64,
    /// The reason why the rank's own call is invalid, if it is.
    pub refusal: Option<String>,
}

impl PostedCall {
    /// Returns the call, where `extensions` are the kinds of the layer above; `None` if the
    /// descriptor has no valid one.
    pub fn signature(&self, extensions: &[&'static Extension]) -> Option<Signature> {
        let call = codes::read(self.code, extensions)?;
        let call = Signature { count: self.count, root: self.root, detail: 0, ..call };
        Some(Signature { detail: self.fingerprint ^ codes::fingerprint(&call), ..call })
    }

    /// Returns the calls of all ranks, which have arrived at call `sequence`.
    pub(super) fn of_all(records: &[RankRecord], sequence: u64) -> Vec<PostedCall> {
        (0..records.len()).map(|rank| PostedCall::of(records, rank, sequence)).collect()
    }

    /// Returns the call of one rank, without its detail, and with what is in its payload.
    fn of(records: &[RankRecord], rank: usize, sequence: u64) -> PostedCall {
        let descriptor = records[rank].descriptor(sequence);
        let code = descriptor.head() & CODE_MASK;
        let divided = [Access::DividedToAll, Access::DividedToOwn, Access::DividedToRoot];
        let count = match codes::dtype(code).flatten() {
            Some(dtype) if divided.into_iter().any(|access| has_access(descriptor, access)) => {
                Some(descriptor.bytes() / dtype.size())
            }
            _ => descriptor.output().addr().checked_sub(1),
        };
        PostedCall {
            code,
            count,
            root: (descriptor.root() as usize).checked_sub(1),
            counts: has_access(descriptor, Access::CountedMessage).then(|| counts(records, rank, sequence)),
            fingerprint: descriptor.fingerprint(),
            refusal: has_access(descriptor, Access::Refused).then(|| refusal(records, rank, sequence)),
        }
    }
}

/// Whether the rank of this descriptor shares memory so.
pub(super) fn has_access(descriptor: &CallDescriptor, access: Access) -> bool {
    descriptor.head() >> CODE_BITS == access as u32
}

/// Returns the counts with which the payload of `rank` ends.
fn counts(records: &[RankRecord], rank: usize, sequence: u64) -> Vec<u64> {
    let words_bytes = records.len() * size_of::<u64>();
    let payload = payload(records, rank, sequence, words_bytes);
    let start = payload.len().saturating_sub(words_bytes);
    payload[start..].as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word)).collect()
}

/// Returns the text in the payload of `rank`.
fn refusal(records: &[RankRecord], rank: usize, sequence: u64) -> String {
    String::from_utf8_lossy(&payload(records, rank, sequence, 0)).into_owned()
}

/// Returns a copy of the payload of `rank`: a message, with its words, or why its own call is
/// invalid.
fn payload(records: &[RankRecord], rank: usize, sequence: u64, words_bytes: usize) -> Vec<u8> {
    // The size is what another process says.
    let bytes = records[rank].descriptor(sequence).bytes().saturating_add(words_bytes).min(MESSAGE_BYTES);
    let mut copied = vec![0; bytes];
    let payload = Places::Own.payload(records, rank, sequence, bytes);
    // SAFETY: the place has as many bytes. The rank has written them before it arrived, and writes
    // them again when this rank has arrived two calls later. A corrupt process may do so before:
    // then the copy is wrong.
    unsafe { copy(payload, copied.as_mut_ptr(), bytes, CopySize::Near) };
    copied
}
