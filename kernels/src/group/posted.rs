//! Calls, as the descriptors of ranks have them.

use super::post::{CODE_BITS, CODE_MASK};
use crate::shm::{
    codes::{self, Access},
    records::CallDescriptor,
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
    /// Why the rank's own call is invalid, if it is.
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
}

/// What a rank compares of its own call with the calls of its peers.
#[derive(Clone, Copy)]
pub(super) struct Posted {
    pub(super) fingerprint: u64,
    pub(super) head: u32,
    /// The root plus 1; 0 if the call has none.
    pub(super) root: u32,
    /// The bytes of this rank's data, if all ranks have as many.
    pub(super) bytes: Option<usize>,
}

/// A call that a rank has left before it had compared the descriptors of all.
#[derive(Clone, Copy)]
pub(super) struct Unsettled {
    pub(super) sequence: u64,
    /// Its entry in this rank's call log.
    pub(super) entry_id: u64,
    pub(super) own: Posted,
}

impl Posted {
    /// Whether a peer that has arrived with this descriptor makes the same call.
    #[inline]
    pub(super) fn agrees(&self, descriptor: &CallDescriptor) -> bool {
        descriptor.fingerprint() == self.fingerprint
            && descriptor.head() == self.head
            && descriptor.root() == self.root
            && self.bytes.is_none_or(|bytes| descriptor.bytes() == bytes)
    }
}

/// Whether the rank of this descriptor shares memory so.
pub(super) fn has_access(descriptor: &CallDescriptor, access: Access) -> bool {
    descriptor.head() >> CODE_BITS == access as u32
}

/// Returns the call in a descriptor, without its detail, and with what is in its payload.
pub(super) fn read(descriptor: &CallDescriptor, counts: Option<Vec<u64>>, refusal: Option<String>) -> PostedCall {
    let code = descriptor.head() & CODE_MASK;
    let divided = [Access::DividedToAll, Access::DividedToOwn, Access::DividedToRoot];
    let count = match codes::dtype(code).flatten() {
        Some(dtype) if divided.into_iter().any(|access| has_access(descriptor, access)) => {
            Some(descriptor.bytes() / dtype.size())
        }
        _ => descriptor.output().addr().checked_sub(1),
    };
    let root = (descriptor.root() as usize).checked_sub(1);
    PostedCall { code, count, root, counts, fingerprint: descriptor.fingerprint(), refusal }
}

/// Encodes the count of a call in a word of its descriptor: 0 for a call without a count.
pub(super) fn count_word(signature: &Signature) -> usize {
    signature.count.map_or(0, |count| count.saturating_add(1))
}
