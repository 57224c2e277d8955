//! The pace of calls: apart from each other, or back to back in steps, beside busy processes.
//!
//! A step is a computation, then a call. The ranks of steps meet before the first one alone, and
//! may move between cores, as those of a program do. A turn of many steps gives their mean time: a
//! rank that loses its core for a while makes few steps slow, and no median shows these.

use crate::{executable, subprocess::OwnedChild};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::{
    convert::Infallible,
    fmt,
    hint::black_box,
    io,
    process::Stdio,
    sync::OnceLock,
    time::{Duration, Instant},
};

/// The hidden subcommand of a busy process.
const BUSY: &str = "bench-busy";

/// The environment variable that is set for ranks that may move between cores: `mpi.c` reads it,
/// too.
pub(super) const FREE: &str = "CONSONANCE_BENCH_FREE";

/// The rounds of a computation that are timed to learn how long one takes.
const TIMED: u64 = 100_000;

/// A step: what is measured if calls are not apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The time of the computation before each call, on a core of its own; zero: none.
    pub computes: Duration,
    /// The number of busy processes beside.
    pub beside: usize,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { computes, beside } = self;
        let (micros, es) = (1e6 * computes.as_secs_f64(), if *beside == 1 { "" } else { "es" });
        write!(f, "mean of steps, {micros} us and the call, {beside} busy process{es} beside")
    }
}

impl Step {
    /// Returns the rounds of the computation.
    pub(super) fn rounds(&self) -> u64 {
        static SECONDS: OnceLock<f64> = OnceLock::new();
        let seconds = *SECONDS.get_or_init(|| {
            let timed = |_| {
                let begin = Instant::now();
                compute(TIMED);
                begin.elapsed().as_secs_f64() / TIMED as f64
            };
            (0..32).map(timed).fold(f64::INFINITY, f64::min)
        });
        (self.computes.as_secs_f64() / seconds) as u64
    }
}

/// Computes in registers alone. `mpi.c` has the same computation. Its rounds take as long, since no
/// compiler makes one of two: the shift keeps a product from being one with the next.
pub(super) fn compute(rounds: u64) {
    let mut value = black_box(1u64);
    for _ in 0..rounds {
        value = (value ^ (value >> 29)).wrapping_mul(6_364_136_223_846_793_005);
    }
    black_box(value);
}

/// Starts processes that compute until they are dropped.
///
/// # Errors
/// The system's.
pub(super) fn start_busy(count: usize) -> io::Result<Vec<OwnedChild>> {
    let start = |_| {
        let mut command = executable::command()?;
        command.arg(BUSY).stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().map(OwnedChild)
    };
    (0..count).map(start).collect()
}

/// Runs as a busy process, until the bench kills it or ends.
///
/// # Errors
/// The system's, if the process could outlive the bench.
pub fn busy() -> io::Result<Infallible> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    loop {
        compute(TIMED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_computation_has_more_rounds() {
        let rounds = |micros| Step { computes: Duration::from_micros(micros), beside: 0 }.rounds();
        assert_eq!(rounds(0), 0);
        assert!(rounds(10) > 0 && rounds(1000).abs_diff(100 * rounds(10)) <= 100);
    }
}
