//! The calls that show the effect of a knob.

use consonance_kernels::tuning::{Knob, Value};

/// A call of two ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) call: Call,
    size: Size,
}

/// What the ranks call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    AllReduce,
    /// In place, on memory from `Communicator::alloc`.
    AllReduceAlloc,
    AllGather,
    /// The second part has twice the elements of the first.
    AllGatherV,
    AllToAll,
    Broadcast,
    /// Between threads.
    BroadcastThreads,
    Reduce,
    ReduceScatter,
}

/// The bytes of a rank's data.
#[derive(Clone, Copy, Debug)]
enum Size {
    At(usize),
    /// For a limit: between the two values, divided by this number. Other sizes do not notice.
    Between(usize),
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

const fn at(call: Call, bytes: usize) -> Work {
    Work { call, size: Size::At(bytes) }
}

const fn between(call: Call, divisor: usize) -> Work {
    Work { call, size: Size::Between(divisor) }
}

impl Work {
    /// Returns the calls for a knob. There is none for a knob that needs more ranks than two, or
    /// data of a shape that no call of a bench has.
    pub(super) fn of(knob: &Knob) -> &'static [Work] {
        use Call::{
            AllGather, AllGatherV, AllReduce, AllReduceAlloc, AllToAll, Broadcast, BroadcastThreads, Reduce,
            ReduceScatter,
        };
        match knob.name {
            "payloads_bytes" => const { &[between(AllReduce, 2), between(AllGather, 2)] },
            "some_payload_bytes" => const { &[between(Broadcast, 1)] },
            "threads_payload_bytes" => const { &[between(BroadcastThreads, 1)] },
            "ragged_bytes" => const { &[between(AllGatherV, 2)] },
            "one_shot_bytes" => const { &[between(AllReduce, 2)] },
            "root_one_shot_bytes" => const { &[between(Reduce, 2)] },
            "in_place_bytes" => const { &[between(AllReduceAlloc, 1)] },
            "window_bytes" => const { &[at(AllReduce, MIB), at(Broadcast, MIB), at(AllToAll, 256 * KIB)] },
            "whole_window_bytes" => const { &[at(AllGather, 128 * KIB), at(AllGather, MIB)] },
            "least_window_bytes" => const { &[at(Broadcast, 16 * KIB), at(Broadcast, 64 * KIB)] },
            "moving_bytes" => const { &[at(Broadcast, 64 * KIB), at(Broadcast, 256 * KIB)] },
            "read_bytes" => const { &[between(AllToAll, 1)] },
            "read_scratch_bytes" => const { &[at(ReduceScatter, 4 * MIB)] },
            "awaited_bytes" => const { &[between(AllReduce, 1)] },
            "fetched_bytes" => const { &[at(AllGatherV, 16 * KIB)] },
            "far_bytes" => const { &[between(Broadcast, 1), between(AllReduce, 1)] },
            "stream_bytes" => const { &[between(Broadcast, 3)] },
            "far_ahead_bytes" => const { &[between(AllReduce, 3)] },
            "medium_bytes" => const { &[between(Broadcast, 1)] },
            "in_small" | "out_small" => const { &[at(Broadcast, 6 * KIB), at(Broadcast, 24 * KIB)] },
            "in_medium" | "out_medium" => const { &[at(Broadcast, 64 * KIB), at(Broadcast, 256 * KIB)] },
            "in_large" | "out_large" => const { &[at(Broadcast, MIB), at(Broadcast, 4 * MIB)] },
            "out_past" => const { &[at(Broadcast, 32 * MIB)] },
            "own_small" => const { &[at(AllGather, 12 * KIB)] },
            "own_medium" => const { &[at(AllGather, 128 * KIB)] },
            "own_large" => const { &[at(AllGather, 2 * MIB)] },
            "own_past" => const { &[at(AllGather, 32 * MIB)] },
            "fetch_in" => const { &[at(Broadcast, 6 * KIB), at(Broadcast, 64 * KIB)] },
            "fetch_out" => const { &[at(AllGather, 16 * KIB), at(AllGather, 64 * KIB)] },
            _ => &[],
        }
    }

    /// Returns the elements of f32 of a rank's data, for a trial of these two values.
    pub(super) fn count(&self, values: (Value, Value)) -> usize {
        let bytes = match (self.size, values) {
            (Size::At(bytes), _) => bytes,
            (Size::Between(divisor), (Value::Bytes(one), Value::Bytes(other))) => one.midpoint(other) / divisor,
            (Size::Between(_), _) => 0,
        };
        // Each rank has a block of as many elements.
        (bytes / size_of::<f32>()).next_multiple_of(2).clamp(2, MOST_COUNT)
    }
}

/// A limit on the elements of a rank's data, for limits of the size of memory.
const MOST_COUNT: usize = (128 << 20) / size_of::<f32>();

#[cfg(test)]
mod tests {
    use super::*;
    use consonance_kernels::tuning::Tuning;

    #[test]
    fn knobs_without_a_call_are_few_and_known() {
        let without = Tuning::KNOBS.iter().filter(|knob| Work::of(knob).is_empty()).map(|knob| knob.name);
        let expected = ["crowded_window_bytes", "read_least_bytes", "least_stream_bytes", "near_ahead_bytes"];
        assert_eq!(without.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_limit_is_tried_between_its_values() {
        let values = (Value::Bytes(4000), Value::Bytes(8000));
        assert_eq!(between(Call::Broadcast, 1).count(values), 1500);
        assert_eq!(between(Call::AllReduce, 2).count(values), 750);
        assert_eq!(at(Call::AllReduce, 64).count(values), 16);
    }
}
