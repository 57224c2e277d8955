//! A rank's view of the others: their last calls, and the end of their group: for reports.

use super::abort::Abort;
use crate::{
    group::{member::Member, post::CODE_MASK},
    shm::{
        call_log::{CallLog, Entry},
        codes,
        records::{CallDescriptor, Generation, RankRecord},
    },
};
use consonance_spec::{Extension, Signature, World};
use std::ptr;

/// A rank's view of the other ranks of its group, from any thread.
#[derive(Clone)]
pub struct Witness {
    member: Member,
}

impl Witness {
    pub(in crate::group) fn new(member: Member) -> Witness {
        Witness { member }
    }

    /// Returns this rank and the number of ranks.
    pub fn world(&self) -> World {
        self.member.world
    }

    /// Returns the rank that an error names when `rank` has left: `rank` itself or, if it left
    /// because it was told of another rank, that other rank. Also notes that this rank was told of
    /// it, so that a rank that sees this one leave or end the group names the same rank.
    pub fn blame(&self, rank: usize) -> usize {
        let culprit = self.member.state.culprit(self.member.generation, rank);
        self.member.state.tell(self.member.world.rank(), self.member.state.top_rank(culprit));
        culprit
    }

    /// Returns the rank that holds up `rank`, which missed a deadline of this rank: `rank` itself
    /// or, if it waits for another one in turn, the end of that chain.
    pub fn held_up_by(&self, rank: usize) -> usize {
        self.member.state.end_of_waits(self.member.world.rank(), rank)
    }

    /// Returns the rank that held up `rank`, which gave up its wait for it at its own deadline, a
    /// short time ago. It has left because of that, or is late.
    pub fn gave_up_for(&self, rank: usize) -> Option<usize> {
        self.member.state.gave_up_for(rank)
    }

    /// Whether `rank` is of another process and will make no further call in the group that was
    /// split from none.
    pub fn is_lost(&self, rank: usize) -> bool {
        self.member.state.is_lost(rank)
    }

    /// Returns the number of `rank` in the group that was split from none.
    pub fn top_rank(&self, rank: usize) -> usize {
        self.member.state.top_rank(rank)
    }

    /// Returns the last call of `rank` in this group whose [code](crate::shm::codes::code) is
    /// `shown`. A racing read: for reports.
    pub fn last_call(&self, rank: usize, shown: impl Fn(u32) -> bool) -> LastCall {
        // For processes, calls from before the group was renewed are reported, too.
        let since = if self.member.state.segment().is_none() { self.member.generation } else { Generation::default() };
        LastCall::in_line(&self.member.records()[rank], since, shown)
    }

    /// Returns how this group was ended, if it was, with the last calls whose codes are `shown`.
    /// Also notes, as [`Witness::blame`] does, that this rank was told of the rank at fault. A
    /// racing read of the calls: for reports. For a rank that was stopped while it arrived, the
    /// report may show its previous call.
    pub fn end(&self, shown: impl Fn(u32) -> bool) -> Option<End> {
        let Member { state, world, generation } = &self.member;
        let end = state.end(*generation, world.rank())?;
        let (abort, state, generation) = (end.abort, end.state, end.generation);
        let in_line = |rank: usize| LastCall::in_line(&state.records()[rank], generation, &shown);
        let noted = |call_log: &CallLog| LastCall::noted(call_log, &shown);
        let last = |rank: usize| state.call_log(rank).map_or_else(|| in_line(rank), noted);
        let calls = (0..state.records().len()).map(|rank| (state.top_rank(rank), last(rank))).collect();
        self.member.state.tell(self.member.world.rank(), state.top_rank(abort.rank));
        Some(End { abort, inherited: !ptr::eq(state, &*self.member.state), is_lost: state.is_lost(abort.rank), calls })
    }
}

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
    fn in_line(record: &RankRecord, since: Generation, shown: impl Fn(u32) -> bool) -> LastCall {
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
    fn noted(call_log: &CallLog, shown: impl Fn(u32) -> bool) -> LastCall {
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

/// The end of a group: alone, or with one that it was split from.
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
