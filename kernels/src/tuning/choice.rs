//! Sets knobs by what is known of the machine.

use super::{knobs::Tuning, machine::Machine};

/// The second-level cache of the machine on which the defaults were measured.
const OWN_CACHE_BYTES: usize = 2 << 20;

/// The most bytes from which on results are written past the caches. A larger last-level cache is
/// shared with other programs, or with other virtual machines.
const STREAM_BYTES_MAX: usize = 48 << 20;
const STREAM_BYTES_MIN: usize = 8 << 20;

impl Tuning {
    /// Returns the values for a machine. What is unknown leaves its knobs at their defaults. It is
    /// a pure function.
    pub fn of(machine: &Machine) -> Tuning {
        let mut tuning = Tuning::DEFAULT;
        if let Some(own) = machine.own_cache_bytes() {
            // As much smaller or larger than the default as the cache, in powers of two.
            let scaled = |bytes: usize, least: usize, most: usize| {
                let scaled = (bytes as u128 * own as u128 / OWN_CACHE_BYTES as u128).max(1);
                (1usize << scaled.ilog2()).clamp(least, most)
            };
            tuning.far_bytes = scaled(tuning.far_bytes, 64 << 10, 2 << 20);
            tuning = tuning.with_windows(scaled(tuning.window_bytes, 32 << 10, 256 << 10));
            tuning.read_scratch_bytes = scaled(tuning.read_scratch_bytes, 32 << 10, 512 << 10);
            tuning.near_ahead_bytes = scaled(tuning.near_ahead_bytes, 128 << 10, 4 << 20);
        }
        if let Some(last) = machine.last_cache_bytes() {
            tuning.stream_bytes = (last / 3 * 4).clamp(STREAM_BYTES_MIN, STREAM_BYTES_MAX);
        }
        tuning
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::{Choice, Knob, Pipeline, machine::Cache};

    fn machine(own_kib: usize, last_mib: &[usize]) -> Machine {
        let own = [Cache { level: 2, bytes: own_kib << 10, cores: vec![0] }];
        let last =
            last_mib.iter().enumerate().map(|(core, mib)| Cache { level: 3, bytes: mib << 20, cores: vec![core] });
        Machine { caches: own.into_iter().chain(last).collect() }
    }

    /// The names of the knobs in which two values differ.
    fn moved(one: &Tuning, other: &Tuning) -> Vec<&'static str> {
        let differs = |knob: &&Knob| one.get(knob) != other.get(knob);
        Tuning::KNOBS.iter().filter(differs).map(|knob| knob.name).collect()
    }

    #[test]
    fn the_defaults_are_those_of_the_measured_machine() {
        let measured = machine(2048, &[504]);
        let expected = Tuning { stream_bytes: 48 << 20, ..Tuning::DEFAULT };
        assert_eq!(Tuning::of(&measured), expected);
        assert_eq!(Tuning::of(&Machine::default()), Tuning::DEFAULT);
    }

    #[test]
    fn a_machine_with_a_constant_shifted_moves_its_knobs_and_no_others() {
        let medium = Tuning::of(&machine(2048, &[36]));
        let small = Tuning::of(&machine(1024, &[36]));
        assert_eq!(
            moved(&medium, &small),
            [
                "window_bytes",
                "whole_window_bytes",
                "moving_bytes",
                "read_scratch_bytes",
                "far_bytes",
                "near_ahead_bytes"
            ]
        );
        assert_eq!((small.window_bytes, small.whole_window_bytes, small.far_bytes), (64 << 10, 32 << 10, 256 << 10));
        // A cache that is no power of two has the knobs of the next smaller one.
        assert_eq!(Tuning::of(&machine(1280, &[36])), small);
        let large = Tuning::of(&machine(1 << 20, &[36]));
        assert_eq!((large.window_bytes, large.far_bytes), (256 << 10, 2 << 20), "within limits");

        let little_last = Tuning::of(&machine(2048, &[18]));
        assert_eq!(moved(&medium, &little_last), ["stream_bytes"]);
        assert_eq!((medium.stream_bytes, little_last.stream_bytes), (48 << 20, 24 << 20));
        // Cores that do not share a last-level cache have two of them together.
        assert_eq!(Tuning::of(&machine(2048, &[9, 9])), little_last);
    }

    #[test]
    fn every_machine_has_allowed_values() {
        let sizes = [1, 3, 31, 512, 1000, 1 << 14, 1 << 22];
        for (own, last) in sizes.into_iter().flat_map(|own| sizes.map(|last| (own, last))) {
            for (tuning, pipeline) in Pipeline::ALL.map(|pipeline| (Tuning::of(&machine(own, &[last])), pipeline)) {
                let tuning = Choice { near: pipeline, ..Choice::of(&tuning) }.of_group(tuning);
                for knob in Tuning::KNOBS {
                    assert!(knob.allows(tuning.get(knob)), "{} of {own} KiB, {last} MiB", knob.name);
                }
            }
        }
    }
}
