//! How a group was ended, and the last calls of its ranks: for reports.

use super::abort::Abort;
use crate::shm::{
    codes,
    records::{Generation, RankRecord},
};
use consonance_spec::{Extension, Signature};

/// The last call of a rank, as its descriptor has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastCall {
    /// Number of calls that it has begun in this group.
    pub number: u64,
    /// The [code](codes::code) of the last call; `None` if it made no call yet.
    pub code: Option<u32>,
    /// Bytes of its own data in that call.
    pub bytes: usize,
}

impl LastCall {
    /// Returns the last call since the generation `since` began.
    pub(super) fn in_line(record: &RankRecord, since: Generation) -> LastCall {
        let descriptors = record.descriptors.iter();
        let descriptor = descriptors.max_by_key(|descriptor| descriptor.sequence()).expect("there are some");
        if descriptor.sequence() <= since.base() {
            return LastCall::default();
        }
        let code = Some(descriptor.head() & CODE_MASK);
        LastCall { number: Generation::number_of(descriptor.sequence()), code, bytes: descriptor.bytes() }
    }

    /// Returns the last call, without its count, where `extensions` are the kinds of the layer
    /// above; `None` if it made no call yet, or its code is not known.
    pub fn signature(&self, extensions: &[&'static Extension]) -> Option<Signature> {
        codes::read(self.code?, extensions)
    }
}

/// How a group was ended: alone, or with one that it was split from.
#[derive(Clone, Debug)]
pub struct End {
    /// The rank that is at fault, and the reason.
    pub abort: Abort,
    /// Whether an ancestor of the group was ended: its ranks are reported then, in its numbering.
    pub inherited: bool,
    /// Whether the rank at fault is of another process and will make no further call.
    pub is_lost: bool,
    /// For each rank, its number in the group that was split from none, and its last call: for
    /// threads in the group that was ended, for processes in any group.
    pub calls: Vec<(usize, LastCall)>,
}

/// The bits of a signature's code in a descriptor's head; the access lies above them.
pub(super) const CODE_BITS: u32 = 24;

pub(super) const CODE_MASK: u32 = (1 << CODE_BITS) - 1;
