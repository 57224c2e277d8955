//! The log of the last calls of a rank, with its process and its GPU. Only the rank's process
//! writes it; any process can read it at any time, even after the rank's process has died.
//!
//! # The protocol
//!
//! Each call takes the next entry id. The call's entry lies in slot `entry_id % CALLS`. The writer
//! clears the slot's entry id, writes the entry, and stores the new entry id. A reader reads the
//! entry id, the entry, and the entry id again. An entry between two equal entry ids is consistent;
//! any other is skipped. Nobody waits. This does not detect one race: a rank begins [`CALLS`] calls
//! on other threads while one of its threads writes an entry. That race mixes two lines of a
//! report.

use super::{
    codes::{self, coded},
    rank_gpu::RankGpu,
};
use crate::sync::atomics::{AtomicU32, AtomicU64, Ordering, fence};
use consonance_spec::{Extension, Signature};
use std::{array, fmt, process};

/// The number of calls that a log holds.
pub const CALLS: usize = 64;

record! {
    /// The last [`CALLS`] calls of one rank. All bits zero is a log without calls.
    #[repr(align(128))]
    pub(crate) struct CallLog {
        /// The number of calls begun so far, which is the entry id of the latest one.
        begun: AtomicU64,
        /// The id of the process that the rank is in; 0 while it is in none.
        process: AtomicU32,
        slots: [Slot; CALLS],
        /// Behind the slots, whose places in cache lines matter to calls.
        gpu: RankGpu,
    }
}

record! {
    #[derive(Default)]
    struct Slot {
        /// 0 while there is no entry.
        entry_id: AtomicU64,
        number: AtomicU64,
        bytes: AtomicU64,
        head: AtomicU32,
        outcome: AtomicU32,
    }
}

/// One call of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The call's number in its group, from 1.
    pub number: u64,
    /// The signature's code. The bits above it say how memory was shared.
    pub head: u32,
    /// Bytes of the rank's own data.
    pub bytes: u64,
    /// The end of the call, if it has ended.
    pub outcome: Outcome,
}

coded! {
    /// The end of a call.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    pub enum Outcome {
        /// It has not ended: the rank is in it, or died in it.
        Begun = 0,
        /// It succeeded.
        Done = 1,
        /// The ranks did not make the same call.
        Mismatch = 2,
        /// A rank had left.
        Left = 3,
        /// A rank did not arrive before the deadline.
        Missing = 4,
        /// A rank had ended the group.
        Aborted = 5,
        /// A code that this build does not know.
        Unknown = 255,
    }
}

impl Default for CallLog {
    fn default() -> Self {
        CallLog {
            begun: AtomicU64::new(0),
            process: AtomicU32::new(0),
            slots: array::from_fn(|_| Slot::default()),
            gpu: RankGpu::default(),
        }
    }
}

impl CallLog {
    /// Records that the rank is in this process.
    pub(crate) fn claim(&self) {
        self.process.store(process::id(), Ordering::Relaxed);
    }

    /// Returns the process that the rank is in, by that process's own view of its id.
    pub(crate) fn process(&self) -> Option<u32> {
        Some(self.process.load(Ordering::Relaxed)).filter(|&process| process != 0)
    }

    /// Records that the rank is on this GPU, unless it is on another one: see [`RankGpu::say`].
    pub(crate) fn say_gpu(&self, ordinal: usize, identity: [u8; 16]) {
        self.gpu.say(ordinal, identity);
    }

    /// Returns the GPU that the rank is on, by its number in the rank's process and its identity.
    pub(crate) fn gpu(&self) -> Option<(usize, [u8; 16])> {
        self.gpu.read()
    }

    /// Logs a call that begins, and returns its entry id for [`end`](CallLog::end).
    pub(crate) fn begin(&self, number: u64, head: u32, bytes: u64) -> u64 {
        // Relaxed: the entry id only has to be different for each call of the rank.
        let entry_id = self.begun.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let slot = self.slot(entry_id);
        slot.entry_id.store(0, Ordering::Relaxed);
        // SYNC POINT entry: a reader that sees a field of the new entry sees that the old entry id
        // is gone; pairs with the fence in `look`.
        fence(Ordering::Release);
        slot.number.store(number, Ordering::Relaxed);
        slot.bytes.store(bytes, Ordering::Relaxed);
        slot.head.store(head, Ordering::Relaxed);
        slot.outcome.store(Outcome::Begun as u32, Ordering::Relaxed);
        // SYNC POINT entry_id: pairs with the acquire in `look`.
        slot.entry_id.store(entry_id, Ordering::Release);
        entry_id
    }

    /// Records the outcome of the call with this entry id.
    pub(crate) fn end(&self, entry_id: u64, outcome: Outcome) {
        let slot = self.slot(entry_id);
        if slot.entry_id.load(Ordering::Relaxed) == entry_id {
            slot.outcome.store(outcome as u32, Ordering::Relaxed);
        }
    }

    /// Returns the last calls, in the order in which they began. The read races with the writer: a
    /// call that begins meanwhile may be missing.
    pub(crate) fn read(&self) -> Vec<Entry> {
        // Relaxed: the read races with the writer, and each entry is checked.
        let last = self.begun.load(Ordering::Relaxed);
        let first = last.saturating_sub(CALLS as u64) + 1;
        (first..=last).filter_map(|entry_id| self.slot(entry_id).look(entry_id)).collect()
    }

    fn slot(&self, entry_id: u64) -> &Slot {
        &self.slots[(entry_id % CALLS as u64) as usize]
    }
}

impl Slot {
    /// Returns the entry with this entry id, if it is here and consistent.
    fn look(&self, entry_id: u64) -> Option<Entry> {
        // SYNC POINT entry_id: pairs with the release in `begin`.
        let before = self.entry_id.load(Ordering::Acquire);
        let entry = Entry {
            number: self.number.load(Ordering::Relaxed),
            head: self.head.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            outcome: Outcome::from_code(self.outcome.load(Ordering::Relaxed)),
        };
        // SYNC POINT entry: pairs with the fence in `begin`.
        fence(Ordering::Acquire);
        let after = self.entry_id.load(Ordering::Relaxed);
        (before == entry_id && after == entry_id).then_some(entry)
    }
}

impl Entry {
    /// Returns the signature of the call, without its count, where `extensions` are the kinds of
    /// the layer above; `None` if the code is not a signature's.
    pub fn signature(&self, extensions: &[&'static Extension]) -> Option<Signature> {
        codes::read(self.head, extensions)
    }

    /// Returns the call as it appears in a report: `call 7: all_reduce(sum, f32), 4096 bytes,
    /// done`.
    pub fn in_words(&self, extensions: &[&'static Extension]) -> String {
        let call = match self.signature(extensions) {
            Some(signature) => signature.to_string(),
            None => format!("unknown (code {:#x})", self.head),
        };
        format!("call {}: {call}, {} bytes, {}", self.number, self.bytes, self.outcome)
    }
}

impl Outcome {
    fn from_code(code: u32) -> Outcome {
        Outcome::ALL.into_iter().find(|&outcome| outcome as u32 == code).unwrap_or(Outcome::Unknown)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Outcome::Begun => "not ended",
            Outcome::Done => "done",
            Outcome::Mismatch => "mismatch",
            Outcome::Left => "a rank had left",
            Outcome::Missing => "a rank did not come",
            Outcome::Aborted => "aborted",
            Outcome::Unknown => "ended in an unknown way",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consonance_spec::{DType, Kind, ReduceOp};
    use std::thread;

    fn numbers(call_log: &CallLog) -> Vec<u64> {
        call_log.read().iter().map(|entry| entry.number).collect()
    }

    #[test]
    fn the_last_calls_are_read_in_order() {
        let call_log = CallLog::default();
        assert_eq!(call_log.read(), []);
        for number in 1..=200 {
            let entry_id = call_log.begin(number, 5, number * 8);
            let expected = Entry { number, head: 5, bytes: number * 8, outcome: Outcome::Begun };
            assert_eq!(call_log.read().last(), Some(&expected));
            call_log.end(entry_id, Outcome::Done);
            assert_eq!(call_log.read().last(), Some(&Entry { outcome: Outcome::Done, ..expected }));
            let first = number.saturating_sub(CALLS as u64) + 1;
            assert_eq!(numbers(&call_log), (first..=number).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_end_of_a_forgotten_call_changes_no_other() {
        let call_log = CallLog::default();
        let old = call_log.begin(1, 0, 0);
        for number in 2..=CALLS as u64 + 1 {
            call_log.begin(number, 0, 0);
        }
        call_log.end(old, Outcome::Aborted);
        assert!(call_log.read().iter().all(|entry| entry.outcome == Outcome::Begun));
        assert_eq!(numbers(&call_log), (2..=CALLS as u64 + 1).collect::<Vec<_>>());
    }

    #[test]
    fn a_count_overwritten_by_a_peer_stops_no_call() {
        let call_log = CallLog::default();
        for last in [u64::MAX - 1, u64::MAX, 1 << 63] {
            call_log.begun.store(last, Ordering::Relaxed);
            for number in 1..=3 {
                let entry_id = call_log.begin(number, 0, 0);
                assert!(call_log.read().len() <= CALLS);
                call_log.end(entry_id, Outcome::Done);
            }
        }
    }

    #[test]
    fn calls_of_two_threads_end_apart() {
        let call_log = CallLog::default();
        let (one, other) = (call_log.begin(1, 0, 0), call_log.begin(1, 0, 0));
        call_log.end(one, Outcome::Done);
        call_log.end(other, Outcome::Mismatch);
        let outcomes: Vec<Outcome> = call_log.read().iter().map(|entry| entry.outcome).collect();
        assert_eq!(outcomes, [Outcome::Done, Outcome::Mismatch]);
    }

    #[test]
    fn no_reader_sees_half_an_entry() {
        const WRITTEN: u64 = 2_000_000;
        let call_log = CallLog::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=WRITTEN {
                    let entry_id = call_log.begin(number, number as u32, number);
                    call_log.end(entry_id, Outcome::Done);
                }
            });
            let check = |entry: &Entry| assert_eq!((entry.head, entry.bytes), (entry.number as u32, entry.number));
            let begun = || call_log.begun.load(Ordering::Relaxed);
            while begun() < WRITTEN {
                let entries = call_log.read();
                for pair in entries.windows(2) {
                    assert!(pair[0].number < pair[1].number, "{pair:?}");
                }
                entries.iter().for_each(check);
                // The entry that is overwritten next.
                for _ in 0..1000 {
                    let next = begun() + 1;
                    let oldest = next.saturating_sub(CALLS as u64);
                    call_log.slot(next).look(oldest).iter().filter(|_| oldest > 0).for_each(check);
                }
            }
        });
        assert_eq!(call_log.read().len(), CALLS);
    }

    #[test]
    fn an_entry_reads_as_the_call() {
        let signature =
            Signature { op: Some(ReduceOp::Sum), dtype: Some(DType::F32), ..Signature::new(Kind::AllReduce) };
        // The bits above the code say how memory was shared.
        let head = codes::code(&signature) | 3 << 24;
        let entry = Entry { number: 7, head, bytes: 4096, outcome: Outcome::Done };
        assert_eq!(entry.signature(&[]), Some(signature));
        assert_eq!(entry.in_words(&[]), "call 7: all_reduce(sum, f32), 4096 bytes, done");
        let unknown = Entry { head: 0xff, outcome: Outcome::from_code(77), ..entry };
        assert_eq!(unknown.in_words(&[]), "call 7: unknown (code 0xff), 4096 bytes, ended in an unknown way");
    }

    #[test]
    fn outcomes_are_read_from_their_codes() {
        for code in 0..6 {
            assert_eq!(Outcome::from_code(code) as u32, code);
        }
        assert_eq!(Outcome::from_code(6), Outcome::Unknown);
    }
}
