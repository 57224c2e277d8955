//! A case of a rank with its buffers, and what it measures.

use super::{Memory, tile::Small};
use consonance::Communicator;
use consonance_harness::calls::Elements;
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;

/// The measurements of a run.
pub(super) struct Run {
    pub(super) clock: ClockId,
    /// The time of each call.
    pub(super) seconds: Vec<f64>,
    /// The CPU time of all calls and the waits before them.
    pub(super) cpu_seconds: f64,
    /// The number of wrong elements.
    pub(super) wrong: usize,
}

impl Run {
    pub(super) fn cpu(&self) -> f64 {
        let time = clock_gettime(self.clock);
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    }
}

/// Steps with each set of buffers, one after another.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    /// The number of steps with each set.
    pub(super) batches: usize,
    /// The rounds of the computation before each call.
    pub(super) rounds: u64,
    pub(super) turn: usize,
}

/// The way in which a rank meets the others before a call.
pub(super) type Meeting<'a> = &'a mut dyn FnMut(&mut Communicator) -> Result<(), Box<dyn Error>>;

/// A case with its buffers.
pub(super) trait Prepared {
    /// Fills, calls and checks, `batches` times. If there are several batches, one more comes
    /// first, to warm up.
    fn run(
        &mut self,
        communicator: &mut Communicator,
        meet: Meeting<'_>,
        batches: usize,
        turn: usize,
        run: &mut Run,
    ) -> Result<(), Box<dyn Error>>;

    /// Fills, makes the steps, and checks. The ranks meet once. The time is the mean of a step.
    fn steps(
        &mut self,
        communicator: &mut Communicator,
        meet: Meeting<'_>,
        steps: Steps,
        run: &mut Run,
    ) -> Result<(), Box<dyn Error>>;

    /// Makes one call, with whatever is in the buffers.
    fn once(&mut self, communicator: &mut Communicator) -> Result<(), Box<dyn Error>>;
}

/// Makes a buffer in this memory.
pub(super) fn room<T: Small>(
    communicator: &Communicator,
    memory: Memory,
    count: usize,
) -> Result<Elements<T>, Box<dyn Error>> {
    if memory == Memory::Alloc {
        return Ok(Elements::Shared(communicator.alloc(count)?));
    }
    let mut slice = Vec::new();
    slice.try_reserve_exact(count).map_err(|_| format!("no memory for {count} elements"))?;
    slice.resize(count, T::default());
    Ok(Elements::Own(slice))
}
