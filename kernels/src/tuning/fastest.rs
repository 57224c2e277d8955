//! The comparison of measured times.

/// The turns of each way that is measured. The first does not count, and the median of the others
/// does.
pub(crate) const TURNS: usize = 6;

/// With fewer turns nothing is chosen.
const LEAST_TURNS: usize = 4;

/// A way is chosen if it takes less than this part of the time of the one before: a machine that is
/// busy must not choose at random.
const GAIN: f64 = 0.85;

/// Returns the median of the times but the first; `None` if there are too few.
pub(crate) fn median(times: &[f64]) -> Option<f64> {
    let mut counted = times.get(1..)?.to_vec();
    counted.sort_by(f64::total_cmp);
    (times.len() >= LEAST_TURNS).then(|| counted[counted.len() / 2])
}

/// Returns the index of the fastest of several series of times, if it is faster than the `known`
/// one by enough. It is a pure function.
pub(crate) fn fastest(times: &[Vec<f64>], known: usize) -> Option<usize> {
    let limit = GAIN * median(&times[known])?;
    let medians = times.iter().enumerate().filter_map(|(index, times)| Some((index, median(times)?)));
    medians.filter(|&(_, time)| time < limit).min_by(|one, other| one.1.total_cmp(&other.1)).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use consonance_spec::sample::mix;

    #[test]
    fn the_fastest_is_chosen_by_its_median_and_noise_changes_nothing() {
        let series = |times: [f64; 4]| times.to_vec();
        let known = series([9.0, 1.0, 1.0, 1.0]);
        assert_eq!(fastest(&[known.clone(), series([0.1, 0.9, 0.5, 0.9])], 0), None);
        assert_eq!(fastest(&[known.clone(), series([9.0, 0.8, 8.0, 0.8])], 0), Some(1));
        assert_eq!(fastest(&[series([1.0; 4]), known.clone(), series([1.0, 0.5, 0.5, 0.5])], 1), Some(2));
        // The time was up.
        assert_eq!(fastest(&[known.clone(), vec![0.1; 3]], 0), None);
        assert_eq!(fastest(&[vec![1.0; 3], series([0.1; 4])], 0), None);
        assert_eq!(fastest(&[vec![], vec![]], 0), None);
    }

    /// Returns the times of turns of ways with these true times. Each is up to a tenth longer, and
    /// two of the counted turns of a way take ten times as long, as a seed says.
    fn noisy(truth: &[f64], seed: u64) -> Vec<Vec<f64>> {
        let turns = |(way, &time): (usize, &f64)| {
            let random = |index: usize| mix(mix(seed, way as u64), index as u64) as usize;
            let mut times: Vec<f64> = (0..TURNS).map(|turn| time * (1.0 + (random(turn) % 100) as f64 / 1e3)).collect();
            (TURNS..TURNS + 2).for_each(|index| times[1 + random(index) % (TURNS - 1)] *= 10.0);
            times
        };
        truth.iter().enumerate().map(turns).collect()
    }

    /// Microseconds of each pipeline in the order of `Pipeline::ALL`, by `consonance tune --all`: a
    /// broadcast and an all_gather of 128 KiB and of 2 MiB, on two cores of a Xeon with AVX-512 and
    /// 2 MiB of second-level cache.
    const RECORDED: [[f64; 8]; 2] =
        [[26.7, 27.9, 27.5, 27.8, 28.7, 46.2, 54.1, 30.1], [602.2, 604.2, 580.9, 602.0, 636.6, 820.0, 832.1, 716.5]];

    #[test]
    fn recorded_times_with_noise_choose_no_slow_pipeline() {
        const NOISE: f64 = 1.1;
        for (times, seed) in RECORDED.iter().flat_map(|times| (0..1_000).map(move |seed| (times, seed))) {
            let known = (seed % 8) as usize;
            let chosen = fastest(&noisy(times, seed), known).unwrap_or(known);
            let best = times.iter().copied().fold(f64::MAX, f64::min);
            assert!(times[chosen] * GAIN <= best * NOISE, "{seed}: {chosen} of {times:?}");
            // All but the streaming ones and `read` differ by less than a choice is worth.
            assert!(chosen == known || known > 4, "{seed}: {chosen} of {times:?}, before {known}");
        }
    }

    #[test]
    fn the_choice_of_noisy_times_is_near_the_best() {
        const NOISE: f64 = 1.1;
        for seed in 0..10_000u64 {
            let truth: Vec<f64> = (0..8).map(|way| 100.0 + (mix(seed, way) % 200) as f64).collect();
            let known = (seed % 8) as usize;
            let chosen = fastest(&noisy(&truth, seed), known).unwrap_or(known);
            let best = truth.iter().copied().fold(f64::MAX, f64::min);
            assert!(truth[chosen] <= truth[known] * GAIN * NOISE || chosen == known, "{seed}: {truth:?}, {chosen}");
            assert!(truth[chosen] * GAIN <= best * NOISE, "{seed}: {truth:?}, {chosen}");
        }
    }
}
