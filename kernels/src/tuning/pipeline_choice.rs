//! The choice of a group that has measured its pipelines.

use super::{knobs::Tuning, pipelines::Pipeline};

/// Windows where they cost nothing.
const LARGE_WINDOW_BYTES: usize = 128 << 10;

/// The data of all ranks that one rank folds where waits are cheap.
const LITTLE_BYTES: usize = 32 << 10;

/// All that a group chooses by measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The way of staged data that a core's caches hold.
    pub(crate) near: Pipeline,
    /// The way of more data.
    pub(crate) far: Pipeline,
    /// Whether ranks that each need another block read it by the system, from
    /// [`read_bytes`](Tuning::read_bytes) on.
    pub(crate) reads: bool,
}

/// Never, for [`read_bytes`](Tuning::read_bytes).
const NEVER: usize = 1 << 40;

impl Choice {
    /// The bytes of a choice.
    pub(crate) const BYTES: usize = 3;

    /// Returns the choice that these values have.
    pub(crate) fn of(tuning: &Tuning) -> Choice {
        Choice { near: tuning.near, far: tuning.far, reads: tuning.read_bytes < NEVER }
    }

    /// Returns these values of a process with the choice.
    pub(crate) fn of_process(self, tuning: Tuning) -> Tuning {
        let read_bytes = match self.reads {
            false => NEVER,
            true if tuning.read_bytes < NEVER => tuning.read_bytes,
            true => Tuning::DEFAULT.read_bytes,
        };
        Tuning { near: self.near, far: self.far, read_bytes, ..tuning }
    }

    /// Returns these values of a group with the choice.
    pub(crate) fn of_group(self, tuning: Tuning) -> Tuning {
        match self.near {
            // One wait more takes less time than the reads that two-shot saves, and places that
            // stay in the caches less than staging (measured: PERF.md).
            Pipeline::Movsb => Tuning {
                window_bytes: tuning.window_bytes.max(LARGE_WINDOW_BYTES),
                whole_window_bytes: tuning.whole_window_bytes.max(LARGE_WINDOW_BYTES),
                one_shot_bytes: tuning.one_shot_bytes.min(LITTLE_BYTES),
                some_payload_bytes: tuning.some_payload_bytes.max(tuning.crowded_payload_bytes),
                ..tuning
            },
            Pipeline::Vector
            | Pipeline::Plain
            | Pipeline::Mixed
            | Pipeline::Ahead
            | Pipeline::Stream
            | Pipeline::StreamMovsb
            | Pipeline::Read => tuning,
        }
    }

    /// Returns the choice as bytes, for the other ranks.
    pub(crate) fn to_bytes(self) -> [u8; Choice::BYTES] {
        [self.near as u8, self.far as u8, self.reads.into()]
    }

    /// Returns the choice of such bytes. A peer may write any: what does not exist is the default.
    pub(crate) fn from_bytes([near, far, reads]: [u8; Choice::BYTES]) -> Choice {
        let pipeline = |byte: u8, default| Pipeline::ALL.get(usize::from(byte)).copied().unwrap_or(default);
        Choice {
            near: pipeline(near, Tuning::DEFAULT.near),
            far: pipeline(far, Tuning::DEFAULT.far),
            reads: reads != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_back_and_absent_pipelines_are_the_default() {
        for (index, near) in Pipeline::ALL.into_iter().enumerate() {
            let choice = Choice { near, far: Pipeline::ALL[7 - index], reads: index % 2 == 0 };
            assert_eq!(Choice::from_bytes(choice.to_bytes()), choice);
            assert_eq!(Choice::of(&choice.of_process(Tuning::DEFAULT)), choice);
        }
        assert_eq!(Choice::from_bytes([8, 255, 1]), Choice::of(&Tuning::DEFAULT));
    }

    #[test]
    fn a_choice_again_makes_the_same_values() {
        let own = Tuning { read_bytes: 12_345, ..Tuning::DEFAULT };
        let choice = Choice { reads: false, ..Choice::of(&own) };
        let never = choice.of_process(own);
        assert!(never.read_bytes > own.read_bytes);
        assert_eq!(choice.of_process(never), never);
        assert_eq!(Choice::of(&own).of_process(own), own);
        for pipeline in Pipeline::ALL {
            let choice = Choice { near: pipeline, ..choice };
            let once = choice.of_group(own);
            assert_eq!(choice.of_group(once), once);
        }
    }
}
