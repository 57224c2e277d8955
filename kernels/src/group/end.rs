//! How a group was ended, and what its ranks last called: for reports.

use super::abort::Abort;
use crate::shm::{
    codes,
    records::{Generation, RankRecord},
};
use consonance_spec::Signature;

/// What a rank last said of its calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastCall {
    /// How many calls it has begun in this group.
    pub number: u64,
    /// The last one, without its count; `None` if it made no call yet.
    pub signature: Option<Signature>,
    /// Bytes of its own data in that call.
    pub bytes: usize,
}

impl LastCall {
    /// What it said since a generation began.
    pub(super) fn in_line(record: &RankRecord, since: Generation) -> LastCall {
        let descriptor = [record.descriptor(0), record.descriptor(1)]
            .into_iter()
            .max_by_key(|descriptor| descriptor.sequence())
            .expect("two descriptors");
        if descriptor.sequence() <= since.base() {
            return LastCall::default();
        }
        let signature = codes::read(descriptor.head() & CODE_MASK);
        LastCall { number: Generation::number_of(descriptor.sequence()), signature, bytes: descriptor.bytes() }
    }
}

/// How a group was ended: alone, or with one that it was split from.
#[derive(Clone, Debug)]
pub struct End {
    /// Who ended it, and why.
    pub abort: Abort,
    /// Whether it is one that the group was split from: that one's ranks are told of, by their
    /// numbers there.
    pub inherited: bool,
    /// Whether the rank at fault is of another process and will come to no call any more.
    pub is_lost: bool,
    /// Of each rank its number in the group that was split from none, and what it last called: of
    /// threads in the group that was ended, of processes in any.
    pub calls: Vec<(usize, LastCall)>,
}

/// The bits of a signature's code in a descriptor's head; the access lies above them.
pub(super) const CODE_BITS: u32 = 24;

pub(super) const CODE_MASK: u32 = (1 << CODE_BITS) - 1;
