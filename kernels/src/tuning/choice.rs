//! Sets knobs by what is known of the machine.

use super::{
    knobs::Tuning,
    machine::{Machine, Vendor},
    value::Way,
};

/// The second-level cache of the machine on which the defaults were measured.
const OWN_CACHE_BYTES: usize = 2 << 20;

/// The most bytes from which on results are written past the caches. A larger last-level cache is
/// shared with other programs, or with other virtual machines.
const STREAM_BYTES_MAX: usize = 48 << 20;
const STREAM_BYTES_MIN: usize = 8 << 20;

/// AMD's family of Zen 5, from which on `rep movsb` is the fastest copy between cores. On Zen 3 it
/// takes up to ten times as long as a vector loop, although the processor announces it as fast.
const ZEN_5: u32 = 0x1a;

/// Both windows where `rep movsb` is the fastest copy between cores.
const MOVSB_WINDOW_BYTES: usize = 128 << 10;

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
            tuning.window_bytes = scaled(tuning.window_bytes, 32 << 10, 256 << 10);
            tuning.whole_window_bytes = scaled(tuning.whole_window_bytes, 16 << 10, 128 << 10);
            tuning.moving_bytes = scaled(tuning.moving_bytes, 64 << 10, 1 << 20);
            tuning.read_scratch_bytes = scaled(tuning.read_scratch_bytes, 32 << 10, 512 << 10);
            tuning.near_ahead_bytes = scaled(tuning.near_ahead_bytes, 128 << 10, 4 << 20);
        }
        if let Some(last) = machine.last_cache_bytes() {
            tuning.stream_bytes = (last / 3 * 4).clamp(STREAM_BYTES_MIN, STREAM_BYTES_MAX);
        }
        tuning.choose_ways(machine);
        tuning
    }

    fn choose_ways(&mut self, machine: &Machine) {
        let is_slow_movsb = machine.vendor == Vendor::Amd && machine.family < ZEN_5;
        if !machine.has_fast_movsb || is_slow_movsb {
            for way in [&mut self.in_medium, &mut self.out_medium, &mut self.own_medium, &mut self.own_large] {
                *way = Way::Vector;
            }
        } else if machine.vendor == Vendor::Amd && machine.has_fast_short_movsb {
            // `rep movsb` takes whole lines without reading what the peer's cache has of them, so
            // there is nothing to prefetch, large windows cost no more than small ones, and one
            // wait more takes less time than the reads that two-shot saves (measured: PERF.md).
            self.medium_bytes = 4 << 10;
            (self.in_large, self.out_large) = (Way::Movsb, Way::Movsb);
            (self.fetch_in, self.fetch_out) = (false, false);
            (self.window_bytes, self.whole_window_bytes) = (MOVSB_WINDOW_BYTES, MOVSB_WINDOW_BYTES);
            self.one_shot_bytes = 32 << 10;
            // Places that stay in the caches take less time than staging.
            self.some_payload_bytes = self.crowded_payload_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::{Knob, machine::Cache};

    fn machine(vendor: Vendor, family: u32, own_kib: usize, last_mib: &[usize]) -> Machine {
        let own = [Cache { level: 2, bytes: own_kib << 10, cores: vec![0] }];
        let last =
            last_mib.iter().enumerate().map(|(core, mib)| Cache { level: 3, bytes: mib << 20, cores: vec![core] });
        let caches = own.into_iter().chain(last).collect();
        Machine { vendor, family, has_fast_movsb: true, has_fast_short_movsb: true, caches }
    }

    /// The names of the knobs in which two values differ.
    fn moved(one: &Tuning, other: &Tuning) -> Vec<&'static str> {
        let differs = |knob: &&Knob| one.get(knob) != other.get(knob);
        Tuning::KNOBS.iter().filter(differs).map(|knob| knob.name).collect()
    }

    #[test]
    fn the_defaults_are_those_of_the_measured_machine() {
        let granite_rapids = machine(Vendor::Intel, 6, 2048, &[504]);
        let expected = Tuning { stream_bytes: 48 << 20, ..Tuning::DEFAULT };
        assert_eq!(Tuning::of(&granite_rapids), expected);
        let nothing = Machine { has_fast_movsb: true, ..Machine::default() };
        assert_eq!(Tuning::of(&nothing), Tuning::DEFAULT);
    }

    #[test]
    fn a_machine_with_a_constant_shifted_moves_its_knobs_and_no_others() {
        let intel = Tuning::of(&machine(Vendor::Intel, 6, 2048, &[36]));
        let small = Tuning::of(&machine(Vendor::Intel, 6, 1024, &[36]));
        assert_eq!(
            moved(&intel, &small),
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
        assert_eq!(Tuning::of(&machine(Vendor::Intel, 6, 1280, &[36])), small);
        let large = Tuning::of(&machine(Vendor::Intel, 6, 1 << 20, &[36]));
        assert_eq!((large.window_bytes, large.far_bytes), (256 << 10, 2 << 20), "within limits");

        let little_last = Tuning::of(&machine(Vendor::Intel, 6, 2048, &[18]));
        assert_eq!(moved(&intel, &little_last), ["stream_bytes"]);
        assert_eq!((intel.stream_bytes, little_last.stream_bytes), (48 << 20, 24 << 20));
        // Cores that do not share a last-level cache have two of them together.
        assert_eq!(Tuning::of(&machine(Vendor::Intel, 6, 2048, &[9, 9])), little_last);
    }

    #[test]
    fn a_processor_copies_in_its_own_fastest_way() {
        let zen_3 = Tuning::of(&machine(Vendor::Amd, 0x19, 512, &[32]));
        let zen_5 = Tuning::of(&machine(Vendor::Amd, 0x1a, 1024, &[32]));
        let ways = |tuning: &Tuning| {
            Tuning::KNOBS.iter().map(|knob| tuning.get(knob).to_string()).filter(|text| text == "movsb").count()
        };
        assert_eq!(ways(&zen_3), 0, "{zen_3:?}");
        assert_eq!(ways(&zen_5), 6, "{zen_5:?}");
        assert!(!zen_5.fetch_in && !zen_5.fetch_out && zen_3.fetch_in);
        assert_eq!((zen_3.whole_window_bytes, zen_5.whole_window_bytes), (16 << 10, 128 << 10));
        assert!(zen_5.one_shot_bytes < zen_3.one_shot_bytes && zen_5.some_payload_bytes > zen_3.some_payload_bytes);
        assert_eq!(zen_5.crowded().one_shot_bytes, zen_5.crowded_one_shot_bytes);
        assert_eq!(zen_5.crowded().some_payload_bytes, zen_5.crowded_payload_bytes);
        let old = Machine { has_fast_movsb: false, ..machine(Vendor::Intel, 6, 2048, &[36]) };
        assert_eq!(ways(&Tuning::of(&old)), 0);
    }

    #[test]
    fn every_machine_has_allowed_values() {
        let sizes = [1, 3, 31, 512, 1000, 1 << 14, 1 << 22];
        for (own, last) in sizes.into_iter().flat_map(|own| sizes.map(|last| (own, last))) {
            for vendor in [Vendor::Intel, Vendor::Amd, Vendor::Other] {
                let tuning = Tuning::of(&machine(vendor, 0x1a, own, &[last]));
                for knob in Tuning::KNOBS {
                    assert!(knob.allows(tuning.get(knob)), "{} of {own} KiB, {last} MiB", knob.name);
                }
            }
        }
    }
}
