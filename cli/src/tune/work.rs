//! The calls that show the effect of a knob.

use consonance_kernels::tuning::{Knob, Value};
use consonance_spec::Kind;

/// A call of two ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// The collective, with rank 0 as root.
    pub(super) kind: Kind,
    pub(super) company: Company,
    size: Size,
}

/// The ranks that make the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    Threads,
    Processes,
}

/// The bytes of a rank's data.
#[derive(Clone, Copy, Debug)]
enum Size {
    At(usize),
    /// For a limit: between the two values, divided by this number. Other sizes do not notice.
    Between(usize),
}

const ALL_REDUCE: Kind = Kind::AllReduce;
const ALL_GATHER: Kind = Kind::AllGather;
const ALL_TO_ALL: Kind = Kind::AllToAll;
const BROADCAST: Kind = Kind::Broadcast;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

const fn at(kind: Kind, bytes: usize) -> Work {
    Work::at(kind, bytes)
}

const fn between(kind: Kind, divisor: usize) -> Work {
    Work { kind, company: Company::Processes, size: Size::Between(divisor) }
}

impl Work {
    /// Returns a call between processes with so many bytes of each rank.
    pub(super) const fn at(kind: Kind, bytes: usize) -> Work {
        Work { kind, company: Company::Processes, size: Size::At(bytes) }
    }

    /// Returns the calls for a knob, at least one.
    ///
    /// # Panics
    /// If the knob is in no line below.
    pub(super) fn of(knob: &Knob) -> &'static [Work] {
        match knob.name {
            "near" => const { &[at(BROADCAST, 24 * KIB), at(BROADCAST, 128 * KIB), at(ALL_GATHER, 128 * KIB)] },
            "far" => const { &[at(BROADCAST, MIB), at(BROADCAST, 4 * MIB), at(ALL_GATHER, MIB)] },
            "own" => const { &[at(ALL_GATHER, 128 * KIB), at(ALL_GATHER, 2 * MIB)] },
            "window_bytes" => {
                const { &[at(ALL_REDUCE, MIB), at(BROADCAST, MIB), at(ALL_TO_ALL, 256 * KIB), at(ALL_GATHER, MIB)] }
            }
            "payloads_bytes" => const { &[between(ALL_REDUCE, 2), between(ALL_GATHER, 2)] },
            "some_payload_bytes" => const { &[between(BROADCAST, 1)] },
            "threads_payload_bytes" => const { &[Work { company: Company::Threads, ..between(BROADCAST, 1) }] },
            "one_shot_bytes" => const { &[between(ALL_REDUCE, 2)] },
            "read_bytes" => const { &[between(ALL_TO_ALL, 1)] },
            "far_bytes" => const { &[between(BROADCAST, 1), between(ALL_REDUCE, 1)] },
            "stream_bytes" => const { &[between(BROADCAST, 3)] },
            name => panic!("no call shows the effect of {name}"),
        }
    }

    /// Whether the call may have more data than one of these two values and fewer than the other.
    pub(super) fn shows(&self, values: (Value, Value)) -> bool {
        match (self.size, values) {
            (Size::Between(divisor), (Value::Bytes(one), Value::Bytes(other))) => one.min(other) / divisor < MOST_BYTES,
            (Size::At(_) | Size::Between(_), _) => true,
        }
    }

    /// Returns the elements of f32 of a rank's data, for a trial of these two values.
    pub(super) fn count(&self, values: (Value, Value)) -> usize {
        let bytes = match (self.size, values) {
            (Size::At(bytes), _) => bytes,
            (Size::Between(divisor), (Value::Bytes(one), Value::Bytes(other))) => one.midpoint(other) / divisor,
            (Size::Between(_), _) => 0,
        };
        // Each rank has a block.
        (bytes / size_of::<f32>()).next_multiple_of(2).clamp(2, MOST_COUNT)
    }
}

/// A limit on the bytes of a rank's data, for limits of the size of memory.
const MOST_BYTES: usize = 128 << 20;

const MOST_COUNT: usize = MOST_BYTES / size_of::<f32>();

#[cfg(test)]
mod tests {
    use super::*;
    use consonance_kernels::tuning::Tuning;

    #[test]
    fn every_knob_has_a_call() {
        assert!(Tuning::offered().all(|knob| !Work::of(knob).is_empty()));
    }

    #[test]
    fn a_limit_is_tried_between_its_values() {
        let values = (Value::Bytes(4000), Value::Bytes(8000));
        assert_eq!(between(BROADCAST, 1).count(values), 1500);
        assert_eq!(between(ALL_REDUCE, 2).count(values), 750);
        assert_eq!(at(ALL_REDUCE, 64).count(values), 16);
        let large = (Value::Bytes(2 * MOST_BYTES), Value::Bytes(4 * MOST_BYTES));
        assert!(!between(BROADCAST, 1).shows(large) && !between(BROADCAST, 2).shows(large));
        assert!(between(BROADCAST, 3).shows(large) && at(BROADCAST, 64).shows(large));
    }
}
