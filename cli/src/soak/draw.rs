//! Random numbers that a seed determines.

use consonance_kernels::digest::mix;

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    state: u64,
    count: u64,
}

impl Draw {
    /// Returns the sequence of this seed with this number.
    pub(super) fn new(seed: u64, number: u64) -> Draw {
        Draw { state: mix(mix(0, seed), number), count: 0 }
    }

    /// Returns the next number, below a limit.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.count += 1;
        mix(self.state, self.count) % limit
    }
}
