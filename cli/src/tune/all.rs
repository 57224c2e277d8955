//! `consonance tune --all`: finds the fastest pipeline of each class of calls by brute force.

use super::{
    trial::{Ranks, times},
    work::Work,
};
use consonance_harness::counted_calls::choose_pipelines;
use consonance_kernels::tuning::{Pipeline, Tuning, settled};
use consonance_spec::Kind;
use std::{
    fmt,
    time::{Duration, Instant},
};

/// A class of calls passes if the choice takes at most this part of the time of the fastest.
pub const LIMIT: f64 = 1.1;

/// The collectives that stage data in different patterns: from one rank to all, from each to all, a
/// block from each to each, and a reduction.
const KINDS: [Kind; 4] = [Kind::Broadcast, Kind::AllGather, Kind::AllToAll, Kind::AllReduce];

/// The bytes of a rank's data: they fit in a core's first cache, in its second, and in none.
const SIZES: [usize; 5] = [32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20];

/// The times of a class of calls of two ranks.
#[derive(Clone, Debug)]
pub struct Class {
    /// The collective.
    pub kind: Kind,
    /// The bytes of a rank's data.
    pub bytes: usize,
    /// The median time of a call as chosen.
    pub chosen: Duration,
    /// The median time of a call in each pipeline, in the order of [`Pipeline::ALL`].
    pub pipelines: [Duration; Pipeline::ALL.len()],
}

impl Class {
    /// Returns the classes that are measured: collectives, and bytes of a rank's data.
    pub fn all() -> impl Iterator<Item = (Kind, usize)> {
        KINDS.into_iter().flat_map(|kind| SIZES.map(|bytes| (kind, bytes)))
    }

    /// Returns the fastest pipeline.
    pub fn fastest(&self) -> Pipeline {
        let timed = Pipeline::ALL.into_iter().zip(self.pipelines);
        timed.min_by_key(|(_, time)| *time).map(|(pipeline, _)| pipeline).expect("there are pipelines")
    }

    /// Returns the time as chosen, as a part of the least time that was measured.
    pub fn part(&self) -> f64 {
        let least = self.pipelines.into_iter().fold(self.chosen, Duration::min);
        self.chosen.as_secs_f64() / least.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Returns the names of the table's columns.
    pub fn header() -> String {
        let names: String = Pipeline::ALL.iter().map(|pipeline| format!(" {pipeline:>12}")).collect();
        format!("# {:<14} {:>8}{names} {:>9} {:>12} {:>5}", "call", "bytes", "chosen", "fastest", "part")
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        write!(f, "  {:<14} {:>8}", self.kind.name(), self.bytes)?;
        self.pipelines.iter().try_for_each(|&time| write!(f, " {:>12.1}", micros(time)))?;
        write!(f, " {:>9.1} {:>12} {:>5.2}", micros(self.chosen), self.fastest(), self.part())
    }
}

/// Lets this process choose its pipelines, and then measures every pipeline in every class of
/// calls, in about `time`. Calls `row` with each class.
///
/// # Errors
/// The reason why ranks cannot meet, or a call fails.
pub fn compare_all(time: Duration, mut row: impl FnMut(&Class)) -> Result<(), String> {
    choose_pipelines().map_err(|error| error.to_string())?;
    let chosen = settled().map_err(|error| error.to_string())?.tuning;
    let ways = Pipeline::ALL.map(|pipeline| Tuning { near: pipeline, far: pipeline, ..chosen });
    let mut all: Vec<Ranks> = [chosen].iter().chain(&ways).map(Ranks::new).collect();
    let end = Instant::now() + time;
    let count = Class::all().count();
    for (index, (kind, bytes)) in Class::all().enumerate() {
        let slice = end.saturating_duration_since(Instant::now()) / (count - index) as u32;
        let work = Work::at(kind, bytes);
        let mut turns: Vec<&mut Ranks> = all.iter_mut().collect();
        let times = times(work, bytes / size_of::<f32>(), &mut turns, slice)?;
        let time = |index: usize| Duration::from_secs_f64(times[index]);
        row(&Class { kind, bytes, chosen: time(0), pipelines: std::array::from_fn(|index| time(1 + index)) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_compared_with_the_least_time() {
        let micros = Duration::from_micros;
        let pipelines = [30, 40, 20, 50, 60, 70, 80, 90].map(micros);
        let class = Class { kind: Kind::Broadcast, bytes: 64, chosen: micros(25), pipelines };
        assert_eq!((class.fastest(), class.part()), (Pipeline::Mixed, 1.25));
        // The same pipeline took less time in its own turns.
        assert_eq!(Class { chosen: micros(10), ..class.clone() }.part(), 1.0);
        let line = class.to_string();
        let columns = |line: &str| line.split_whitespace().count();
        assert_eq!(columns(&line) + 1, columns(&Class::header()), "{line}");
        assert!(line.ends_with(" 25.0        mixed  1.25"), "{line}");
        assert_eq!(Class { pipelines: [Duration::ZERO; 8], chosen: Duration::ZERO, ..class }.part(), 0.0);
    }
}
