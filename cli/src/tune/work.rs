//! The calls that show the effect of a knob.

use consonance_kernels::tuning::{Knob, Tuning, Value, Way};
use consonance_spec::Kind;

/// A call of some ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) call: Call,
    pub(super) company: Company,
    size: Size,
}

/// The call of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// This collective, with rank 0 as root.
    Collective(Kind),
    /// An all-reduce in place, on memory from `Communicator::alloc`.
    AllReduceAlloc,
    /// An all-gather whose second part has twice the elements of the first.
    AllGatherV,
    /// Concatenates rows, as a gather of tensors along an axis does.
    Concat,
    /// A message from the mailbox of rank 0 to that of rank 1.
    Mail,
    /// No call: each rank folds two buffers of its own into a third.
    Fold,
}

/// The ranks that make the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    /// Two threads.
    Threads,
    /// Two processes.
    Processes,
    /// Twice as many ranks as cores, in two processes.
    Crowd,
    /// Two processes of several ranks, which read each other's memory.
    Readers,
}

/// The bytes of a rank's data.
#[derive(Clone, Copy, Debug)]
enum Size {
    At(usize),
    /// For a limit: between the two values, divided by this number. Other sizes do not notice.
    Between(usize),
    /// In rows, whose bytes are between the two values.
    RowsBetween(usize),
}

const ALL_REDUCE: Call = Call::Collective(Kind::AllReduce);
const ALL_GATHER: Call = Call::Collective(Kind::AllGather);
const ALL_TO_ALL: Call = Call::Collective(Kind::AllToAll);
const BROADCAST: Call = Call::Collective(Kind::Broadcast);
const REDUCE: Call = Call::Collective(Kind::Reduce);
const REDUCE_SCATTER: Call = Call::Collective(Kind::ReduceScatter);

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

const fn at(call: Call, bytes: usize) -> Work {
    Work { call, company: Company::Processes, size: Size::At(bytes) }
}

const fn between(call: Call, divisor: usize) -> Work {
    Work { call, company: Company::Processes, size: Size::Between(divisor) }
}

const fn of(company: Company, work: Work) -> Work {
    Work { company, ..work }
}

impl Work {
    /// Returns the calls for a knob, at least one.
    ///
    /// # Panics
    /// If the knob is in no line below.
    pub(super) fn of(knob: &Knob) -> &'static [Work] {
        use Call::{AllGatherV, AllReduceAlloc, Concat, Fold, Mail};
        use Company::{Crowd, Readers, Threads};
        match knob.name {
            "payloads_bytes" => const { &[between(ALL_REDUCE, 2), between(ALL_GATHER, 2)] },
            "some_payload_bytes" => const { &[between(BROADCAST, 1)] },
            "crowded_payload_bytes" => const { &[of(Crowd, between(BROADCAST, 1)), of(Crowd, between(ALL_TO_ALL, 1))] },
            "threads_payload_bytes" => const { &[of(Threads, between(BROADCAST, 1))] },
            "ragged_bytes" => const { &[between(AllGatherV, 2)] },
            "one_shot_bytes" => const { &[between(ALL_REDUCE, 2)] },
            "crowded_one_shot_bytes" => const { &[of(Crowd, between(ALL_REDUCE, 4))] },
            "root_one_shot_bytes" => const { &[between(REDUCE, 2)] },
            "in_place_bytes" => const { &[between(AllReduceAlloc, 1)] },
            "window_bytes" => const { &[at(ALL_REDUCE, MIB), at(BROADCAST, MIB), at(ALL_TO_ALL, 256 * KIB)] },
            "whole_window_bytes" => const { &[at(ALL_GATHER, 128 * KIB), at(ALL_GATHER, MIB)] },
            "crowded_window_bytes" => const { &[of(Crowd, at(ALL_REDUCE, MIB)), of(Crowd, at(BROADCAST, MIB))] },
            "least_window_bytes" => const { &[at(BROADCAST, 16 * KIB), at(BROADCAST, 64 * KIB)] },
            "moving_bytes" => const { &[at(BROADCAST, 64 * KIB), at(BROADCAST, 256 * KIB)] },
            "mail_cell_bytes" => const { &[at(Mail, 16 * KIB), at(Mail, 256 * KIB)] },
            "mail_cells" => const { &[at(Mail, 256 * KIB), at(Mail, 4 * MIB)] },
            "read_bytes" => const { &[between(ALL_TO_ALL, 1)] },
            "read_scratch_bytes" => const { &[at(REDUCE_SCATTER, 4 * MIB)] },
            "read_least_bytes" => const { &[of(Readers, at(REDUCE_SCATTER, 2 * MIB))] },
            "awaited_bytes" => const { &[between(ALL_REDUCE, 1)] },
            "fetched_bytes" => const { &[at(AllGatherV, 16 * KIB)] },
            "far_bytes" => const { &[between(BROADCAST, 1), between(ALL_REDUCE, 1)] },
            "stream_bytes" => const { &[between(BROADCAST, 3)] },
            "least_stream_bytes" => const { &[Work { size: Size::RowsBetween(32 * MIB), ..at(Concat, 0) }] },
            "near_ahead_bytes" => const { &[of(Threads, between(Fold, 3))] },
            "far_ahead_bytes" => const { &[between(ALL_REDUCE, 3)] },
            "medium_bytes" => const { &[between(BROADCAST, 1)] },
            "in_small" | "out_small" => const { &[at(BROADCAST, 6 * KIB), at(BROADCAST, 24 * KIB)] },
            "in_medium" | "out_medium" => const { &[at(BROADCAST, 64 * KIB), at(BROADCAST, 256 * KIB)] },
            "in_large" | "out_large" => const { &[at(BROADCAST, MIB), at(BROADCAST, 4 * MIB)] },
            "out_past" => const { &[at(BROADCAST, 32 * MIB)] },
            "own_small" => const { &[at(ALL_GATHER, 12 * KIB)] },
            "own_medium" => const { &[at(ALL_GATHER, 128 * KIB)] },
            "own_large" => const { &[at(ALL_GATHER, 2 * MIB)] },
            "own_past" => const { &[at(ALL_GATHER, 32 * MIB)] },
            "fetch_in" => const { &[at(BROADCAST, 6 * KIB), at(BROADCAST, 64 * KIB)] },
            "fetch_out" => const { &[at(ALL_GATHER, 16 * KIB), at(ALL_GATHER, 64 * KIB)] },
            name => panic!("no call shows the effect of {name}"),
        }
    }

    /// Whether the call may have more data than one of these two values and fewer than the other.
    pub(super) fn shows(&self, values: (Value, Value)) -> bool {
        match (self.size, values) {
            (Size::Between(divisor), (Value::Bytes(one), Value::Bytes(other))) => one.min(other) / divisor < MOST_BYTES,
            (Size::At(_) | Size::Between(_) | Size::RowsBetween(_), _) => true,
        }
    }

    /// Returns the elements of f32 of a rank's data, and the rows that they are, for a trial of
    /// these two values.
    pub(super) fn count(&self, values: (Value, Value)) -> (usize, usize) {
        let middle = match values {
            (Value::Bytes(one), Value::Bytes(other)) => one.midpoint(other),
            _ => 0,
        };
        let (bytes, rows) = match self.size {
            Size::At(bytes) => (bytes, 1),
            Size::Between(divisor) => (middle / divisor, 1),
            Size::RowsBetween(bytes) => (bytes, bytes / middle.max(size_of::<f32>()).min(bytes)),
        };
        // Each rank has a block, and each row, as many elements.
        let unit = rows.max(2);
        ((bytes / size_of::<f32>()).next_multiple_of(unit).clamp(unit, MOST_COUNT / unit * unit), rows)
    }

    /// Returns these values, with others of the knobs that could hide the effect of the one that
    /// this call is for.
    pub(super) fn tuning(&self, tuning: &Tuning) -> Tuning {
        match (self.company, self.call) {
            // A machine may have more cores than this process may use.
            (Company::Crowd, _) => tuning.crowded(),
            // So many peers that the scratch buffer has room for no more than the least.
            (Company::Readers, _) => Tuning { read_scratch_bytes: 4 * KIB, ..*tuning },
            // The other ways ask no limit.
            (Company::Threads | Company::Processes, Call::Concat) => Tuning { out_past: Way::Ahead, ..*tuning },
            (_, Call::Collective(_) | Call::AllReduceAlloc | Call::AllGatherV | Call::Mail | Call::Fold) => *tuning,
        }
    }
}

impl Company {
    /// Returns the ranks of each process, or the threads, where the ranks have so many cores.
    pub(super) fn ranks(self, cores: usize) -> usize {
        match self {
            Company::Threads => 2,
            Company::Processes => 1,
            Company::Crowd => cores,
            Company::Readers => READERS,
        }
    }
}

/// The ranks of each of two processes that read each other's memory.
const READERS: usize = 8;

/// A limit on the bytes of a rank's data, for limits of the size of memory.
const MOST_BYTES: usize = 128 << 20;

const MOST_COUNT: usize = MOST_BYTES / size_of::<f32>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_has_a_call() {
        assert!(Tuning::KNOBS.iter().all(|knob| !Work::of(knob).is_empty()));
    }

    #[test]
    fn a_limit_is_tried_between_its_values() {
        let values = (Value::Bytes(4000), Value::Bytes(8000));
        assert_eq!(between(BROADCAST, 1).count(values), (1500, 1));
        assert_eq!(between(ALL_REDUCE, 2).count(values), (750, 1));
        assert_eq!(at(ALL_REDUCE, 64).count(values), (16, 1));
        let large = (Value::Bytes(2 * MOST_BYTES), Value::Bytes(4 * MOST_BYTES));
        assert!(!between(BROADCAST, 1).shows(large) && !between(BROADCAST, 2).shows(large));
        assert!(between(BROADCAST, 3).shows(large) && at(BROADCAST, 64).shows(large));
        let rows = Work { size: Size::RowsBetween(60_000), ..at(Call::Concat, 0) };
        assert_eq!(rows.count(values), (15_000, 10));
        assert_eq!(rows.count((Value::Bytes(0), Value::Bytes(0))), (15_000, 15_000));
        assert_eq!(rows.count((Value::Bytes(1 << 30), Value::Bytes(1 << 30))), (15_000, 1));
    }
}
