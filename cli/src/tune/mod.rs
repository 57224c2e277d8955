//! `consonance tune`: sets the knobs that files have to what is fastest on this machine.
//!
//! `work.rs` says which calls show the effect of a knob. `trial.rs` makes such calls, in turn with
//! several values. `all.rs` compares the choice of the machine with all pipelines. `values.rs`
//! shows the values of all knobs, for other subcommands, too.

mod all;
mod values;
mod work;
mod trial;

pub use all::{Class, LIMIT, compare_all};
pub use values::Values;

use consonance_harness::counted_calls::choose_pipelines;
use consonance_kernels::{
    cpu::isa::Isa,
    tuning::{Knob, Pipeline, Tuning, Value, Way, settled},
};
use std::time::{Duration, Instant};
use trial::Ranks;
use work::Work;

/// A value is taken if calls with it take less than this part of the time. Less is noise.
const GAIN: f64 = 0.97;

/// No call may take more than this part of the time, whatever others gain.
const LOSS: f64 = 1.03;

/// The number of times that a number of bytes is halved or doubled.
const STEPS: usize = 3;

/// The result for one knob.
#[derive(Clone, Debug)]
pub struct Gain {
    /// The knob.
    pub knob: &'static Knob,
    /// Its value before.
    pub before: Value,
    /// Its value now.
    pub after: Value,
    /// The time of calls with the value now, as a part of that with the value before.
    pub time: f64,
}

/// Measures the knobs in `knobs`, one after the other, in about `time`. Starts from the values of
/// this process, and returns the best. Calls `progress` before each knob, with its index, and
/// `gain` after it.
///
/// # Errors
/// The reason why ranks cannot meet, or a call fails.
pub fn tune(
    knobs: &[&'static Knob],
    time: Duration,
    mut progress: impl FnMut(usize, &Knob),
    mut gain: impl FnMut(&Gain),
) -> Result<Tuning, String> {
    // Take the knobs of programs without a file of knobs.
    choose_pipelines().map_err(|error| error.to_string())?;
    let mut best = settled().map_err(|error| error.to_string())?.tuning;
    let end = Instant::now() + time;
    for (index, &knob) in knobs.iter().enumerate() {
        progress(index, knob);
        // A knob that takes longer, or finds better values and goes on, leaves less time for the
        // others.
        let trials: usize = knobs[index..].iter().map(|knob| works(knob, best.get(knob))).sum();
        let slice = end.saturating_duration_since(Instant::now()) / u32::try_from(trials.max(1)).unwrap_or(u32::MAX);
        let (before, mut time) = (best.get(knob), 1.0);
        let mut known = Ranks::new(&best);
        for direction in directions(before) {
            // The one direction would take back what the other has gained.
            if matches!(before, Value::Bytes(_)) && best.get(knob) != before {
                break;
            }
            let steps = if matches!(before, Value::Bytes(_)) { STEPS } else { 1 };
            for _ in 0..steps {
                let Some((value, part)) = step(&best, knob, direction, &mut known, slice)? else { break };
                best.set(knob, value)?;
                known = Ranks::new(&best);
                time *= part;
            }
        }
        gain(&Gain { knob, before, after: best.get(knob), time });
    }
    Ok(best)
}

/// A way in which a value changes.
#[derive(Clone, Copy)]
enum Direction {
    Half,
    Double,
    To(Value),
}

fn directions(value: Value) -> Vec<Direction> {
    match value {
        Value::Bytes(_) => vec![Direction::Half, Direction::Double],
        Value::Way(way) => {
            let others = Way::ALL.into_iter().filter(|&other| other != way && is_another(other));
            others.map(|way| Direction::To(Value::Way(way))).collect()
        }
        Value::Pipeline(pipeline) => {
            let others = Pipeline::ALL.into_iter().filter(|&other| other != pipeline);
            others.map(|pipeline| Direction::To(Value::Pipeline(pipeline))).collect()
        }
    }
}

/// Whether this machine has this way, and it is not [`Way::Vector`] by another name.
fn is_another(way: Way) -> bool {
    match way {
        Way::Vector | Way::Ahead | Way::Movsb | Way::Stream => true,
        Way::Avx512 => false,
        Way::Avx2 => Isa::best() > Isa::Avx2,
        Way::Baseline => Isa::best() > Isa::Baseline,
    }
}

/// Returns how many trials a knob takes, if no value but the first is better.
fn works(knob: &Knob, value: Value) -> usize {
    Work::of(knob).iter().filter(|work| work.shows((value, value))).count() * directions(value).len()
}

/// Tries the next value in a direction. Returns it, with its part of the time, if it is better.
fn step(
    best: &Tuning,
    knob: &Knob,
    direction: Direction,
    known: &mut Ranks,
    slice: Duration,
) -> Result<Option<(Value, f64)>, String> {
    let value = match (direction, best.get(knob)) {
        (Direction::Half, Value::Bytes(bytes)) => Value::Bytes(bytes / 2 / knob.unit * knob.unit),
        (Direction::Double, Value::Bytes(bytes)) => Value::Bytes(2 * bytes),
        (Direction::To(value), _) => value,
        (_, value) => value,
    };
    let values = (best.get(knob), value);
    let works: Vec<&Work> = Work::of(knob).iter().filter(|work| work.shows(values)).collect();
    let mut other = *best;
    if works.is_empty() || value == best.get(knob) || other.set(knob, value).is_err() {
        return Ok(None);
    }
    let mut ranks = Ranks::new(&other);
    let mut product = 1.0;
    for &work in &works {
        let times = trial::times(*work, work.count(values), &mut [known, &mut ranks], slice)?;
        let part = times[1] / times[0];
        if part > LOSS {
            return Ok(None);
        }
        product *= part;
    }
    let part = f64::powf(product, 1.0 / works.len() as f64);
    Ok((part < GAIN).then_some((value, part)))
}
