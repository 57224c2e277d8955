//! Corrections of a host's times by comparisons of its clock with that of host 0.
//!
//! The clocks are monotonic ones. They drift apart by up to some ten microseconds a second, so they
//! are compared at the beginning of the calls and at the end. All values that come from another
//! host fit in 64 bits, so sums of them do not overflow here.

use consonance_kernels::os::clock_comparison::{Comparison, Nanoseconds};

/// The most that two clocks drift apart: a nanosecond in so many. NTP slews a clock by half of
/// that. A larger change is none of a drift: a host has slept.
const DRIFT: Nanoseconds = 1000;

/// The clock of a host, and how it runs beside that of host 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Clock {
    /// The offset at the own time `at`.
    offset: Nanoseconds,
    at: Nanoseconds,
    /// The growth of the offset in a nanosecond.
    rate: f64,
    /// The limit on the error of the offset. `None` if the clocks were not compared.
    error: Option<Nanoseconds>,
    /// The growth of the offset from the first to the last comparison.
    drift: Nanoseconds,
}

impl Clock {
    /// The clock of host 0, or one that was not compared with it.
    const OWN: Clock = Clock { offset: 0, at: 0, rate: 0.0, error: None, drift: 0 };

    /// Returns the clock of host 0, and of the hosts that its machine plays.
    pub(crate) fn of_host_0() -> Clock {
        Clock { error: Some(0), ..Clock::OWN }
    }

    /// Returns the clock that was compared before and after the calls.
    ///
    /// A change of the offset that the errors do not explain is taken for an even drift. A smaller
    /// one is not: it would change the lengths of short calls by noise. Then, and after a change
    /// that is too large for a drift, the offset is the middle of all that is possible.
    pub(crate) fn of(before: Option<Comparison>, after: Option<Comparison>) -> Clock {
        let (Some(first), Some(last)) = (before.or(after), after.or(before)) else { return Clock::OWN };
        let (drift, time) = (last.offset - first.offset, last.at - first.at);
        let is_drift = drift.abs() > first.error + last.error && drift.abs() <= time / DRIFT;
        let (offset, rate, error) = match is_drift {
            true => (first.offset, drift as f64 / time as f64, first.error.max(last.error)),
            false => {
                let least = (first.offset - first.error).min(last.offset - last.error);
                let most = (first.offset + first.error).max(last.offset + last.error);
                let middle = least + (most - least) / 2;
                (middle, 0.0, most - middle)
            }
        };
        Clock { offset, at: first.at, rate, error: Some(error), drift }
    }

    /// Returns the clock that was compared time and again: by the best comparison of the first half
    /// of the time, and that of the second half.
    pub(crate) fn of_all(compared: &[Comparison]) -> Clock {
        let times = || compared.iter().map(|compared| compared.at);
        let middle = times().min().zip(times().max()).map_or(0, |(first, last)| first + (last - first) / 2);
        let (before, after): (Vec<Comparison>, Vec<Comparison>) =
            compared.iter().partition(|compared| compared.at <= middle);
        let best = |half: Vec<Comparison>| half.into_iter().min_by_key(|compared| compared.error);
        Clock::of(best(before), best(after))
    }

    /// Returns the time of host 0 at a time of this clock. It keeps the order of times.
    pub(crate) fn at_host_0(&self, own: Nanoseconds) -> Nanoseconds {
        own + self.offset + (self.rate * (own - self.at) as f64).round() as Nanoseconds
    }

    /// Returns the offset, the limit on its error, and the drift, if the clocks were compared.
    pub(crate) fn offset_error_and_drift(&self) -> Option<[Nanoseconds; 3]> {
        self.error.map(|error| [self.offset, error, self.drift])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consonance_kernels::os::clock_comparison::Trip;
    use consonance_spec::sample::mix;

    /// Numbers of the same seed are the same.
    struct Numbers(u64);

    impl Numbers {
        /// Returns a number below `limit`.
        fn below(&mut self, limit: u64) -> Nanoseconds {
            self.0 = mix(self.0, 1);
            (self.0 % limit).into()
        }
    }

    const MICROSECOND: u64 = 1000;
    const MILLISECOND: u64 = 1_000_000;
    const SECOND: Nanoseconds = 1_000_000_000;

    /// Two clocks that drift apart, and a network between them.
    struct Hosts {
        numbers: Numbers,
        /// The offset at the own time 0.
        offset: Nanoseconds,
        /// The nanoseconds in which it grows by one; 0: it does not grow.
        growth: Nanoseconds,
        /// The limits on the ways there and back.
        there: u64,
        back: u64,
    }

    impl Hosts {
        fn offset_at(&self, own: Nanoseconds) -> Nanoseconds {
            self.offset + own.checked_div(self.growth).unwrap_or(0)
        }

        /// Makes 16 trips from this time on. One of them is slow.
        fn compare(&mut self, mut now: Nanoseconds) -> (Comparison, Nanoseconds) {
            let mut trips = Vec::new();
            for number in 0..16 {
                let slow = if number == 5 { 50 * Nanoseconds::from(MILLISECOND) } else { 0 };
                let (there, back) = (self.numbers.below(self.there) + slow, self.numbers.below(self.back));
                let sent = now;
                let told = sent + there + self.offset_at(sent + there);
                now += there + back;
                trips.push(Trip { sent, told, received: now });
                now += self.numbers.below(MILLISECOND);
            }
            let least = trips.iter().map(|trip| trip.received - trip.sent).min().expect("trips");
            (Comparison::of(&trips).expect("trips"), least)
        }
    }

    const WAYS: [(u64, u64); 4] =
        [(80 * MICROSECOND, 80 * MICROSECOND), (2 * MILLISECOND, 20 * MICROSECOND), (1, 5 * MILLISECOND), (1, 1)];

    const OFFSETS: [Nanoseconds; 4] = [0, 5000 * SECOND, -80 * SECOND, 12_345];

    #[test]
    fn the_offset_lies_within_the_error_of_unequal_ways() {
        for seed in 1..200 {
            for (there, back) in WAYS {
                for offset in OFFSETS {
                    let mut hosts = Hosts { numbers: Numbers(seed), offset, growth: 0, there, back };
                    let (compared, least) = hosts.compare(100 * SECOND);
                    assert!((compared.offset - offset).abs() <= compared.error, "{seed}: {compared:?}, not {offset}");
                    assert!((0..=1).contains(&(2 * compared.error - least)), "half the least delay: {compared:?}");
                    let clock = Clock::of(Some(compared), None);
                    assert!((clock.at_host_0(7) - (7 + offset)).abs() <= compared.error, "{seed}: {clock:?}");
                    assert_eq!(clock.offset_error_and_drift(), Some([compared.offset, compared.error, 0]));
                }
            }
        }
    }

    #[test]
    fn times_between_two_comparisons_lie_within_the_error_of_drifting_clocks() {
        for seed in 1..100 {
            for (there, back) in WAYS {
                for growth in [0, 20_000, -20_000, 1_000_000] {
                    for length in [0, SECOND / 100, 3 * SECOND, 10_000 * SECOND] {
                        let numbers = Numbers(seed);
                        let mut hosts = Hosts { numbers, offset: 300 * SECOND, growth, there, back };
                        let (first, _) = hosts.compare(100 * SECOND);
                        let (last, _) = hosts.compare(101 * SECOND + length);
                        let clock = Clock::of(Some(first), Some(last));
                        let [_, error, drift] = clock.offset_error_and_drift().expect("compared");
                        assert!(error <= first.error + last.error, "{clock:?}");
                        assert_eq!(drift, last.offset - first.offset);
                        for part in 0..=10 {
                            let own = first.at + (last.at - first.at) * part / 10;
                            let found = clock.at_host_0(own) - own;
                            let wrong = (found - hosts.offset_at(own)).abs();
                            // The offset of these clocks is rounded, too, and grows during a trip.
                            let most = error + error / DRIFT + 2;
                            assert!(wrong <= most, "{seed}, {growth}, {length}: {wrong} above {error}: {clock:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_best_comparison_of_each_half_counts() {
        let compared = |at, offset, error| Comparison { at: at * SECOND, offset, error };
        let (good, bad) = (compared(10, 1000, 10), compared(0, 90_000, 99_000));
        assert_eq!(Clock::of_all(&[]), Clock::of(None, None));
        assert_eq!(Clock::of_all(&[good]), Clock::of(Some(good), None));
        let (last, worse) = (compared(90, 9000, 10), compared(100, -5_000_000, 6_000_000));
        for order in [[bad, good, last, worse], [worse, bad, last, good]] {
            assert_eq!(Clock::of_all(&order), Clock::of(Some(good), Some(last)));
        }
    }

    #[test]
    fn the_sleep_of_a_host_is_in_the_error() {
        let first = Comparison { at: 0, offset: 0, error: 10 };
        let last = Comparison { at: SECOND, offset: -60 * SECOND, error: 10 };
        let clock = Clock::of(Some(first), Some(last));
        assert_eq!(clock.offset_error_and_drift(), Some([-30 * SECOND, 30 * SECOND + 10, -60 * SECOND]));
        assert_eq!(clock.at_host_0(SECOND) - clock.at_host_0(0), SECOND);
    }

    #[test]
    fn the_order_of_times_stays_and_nothing_overflows() {
        let (most, least) = (Nanoseconds::from(u64::MAX), Nanoseconds::from(i64::MIN));
        let values = [least, -1, 0, 1, 1000, Nanoseconds::from(i64::MAX)];
        let mut comparisons = vec![None];
        for (at, offset) in values.iter().flat_map(|&at| values.map(|offset| (at, offset))) {
            comparisons.extend([0, most].map(|error| Some(Comparison { at, offset, error })));
        }
        for &before in &comparisons {
            for &after in &comparisons {
                let clock = Clock::of(before, after);
                let times = [0, 1, 1000, most].map(|own| clock.at_host_0(own));
                assert!(times.is_sorted(), "{before:?}, {after:?}: {times:?}");
            }
        }
        assert_eq!(Clock::of(None, None).offset_error_and_drift(), None);
        assert_eq!(Comparison::of(&[]), None);
        let trip = Trip { sent: 0, told: most, received: most };
        assert_eq!(Comparison::of(&[trip]).map(|compared| compared.error), Some(most / 2 + 1));
    }
}
