//! How a group was ended, and the last calls of its ranks: for reports.

use super::abort::Abort;
use crate::shm::{
    call_log::{CallLog, Entry},
    codes,
    records::{CallDescriptor, Generation, RankRecord},
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
    /// Whether calls came after it that are not shown: in these the ranks compare calls that
    /// differ.
    pub is_refused: bool,
}

impl LastCall {
    /// Returns the last call since the generation `since` began whose code is `shown`.
    pub(super) fn in_line(record: &RankRecord, since: Generation, shown: impl Fn(u32) -> bool) -> LastCall {
        let mut all: Vec<_> = record.descriptors.iter().map(|descriptor| (descriptor.sequence(), descriptor)).collect();
        all.retain(|(sequence, _)| *sequence > since.base());
        all.sort_unstable_by_key(|(sequence, _)| *sequence);
        let last = |&(sequence, descriptor): &(u64, &CallDescriptor)| {
            let (number, code) = (Generation::number_of(sequence), descriptor.head() & CODE_MASK);
            LastCall { number, code: Some(code), bytes: descriptor.bytes(), is_refused: false }
        };
        LastCall::shown(all.iter().map(last), shown)
    }

    /// Returns the last call in the log whose code is `shown`.
    pub(super) fn noted(call_log: &CallLog, shown: impl Fn(u32) -> bool) -> LastCall {
        let call = |entry: Entry| {
            let (number, code, bytes) = (entry.number, Some(entry.head), entry.bytes as usize);
            LastCall { number, code, bytes, is_refused: false }
        };
        LastCall::shown(call_log.read().into_iter().map(call), shown)
    }

    /// Returns the last of these calls whose code is `shown`, or else the last.
    fn shown(calls: impl DoubleEndedIterator<Item = LastCall>, shown: impl Fn(u32) -> bool) -> LastCall {
        let mut calls = calls.rev().peekable();
        let Some(&newest) = calls.peek() else { return LastCall::default() };
        let is_shown = |call: &LastCall| call.code.is_some_and(|code| shown(code & CODE_MASK));
        if is_shown(&newest) {
            return newest;
        }
        calls.find(is_shown).map_or(newest, |call| LastCall { is_refused: true, ..call })
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
