//! The decision when a failed worker is replaced.

use std::time::{Duration, Instant};

/// The pause before the second replacement in a row. It doubles up to the second duration.
const PAUSE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// A process that has lived this long is not one that fails at once. Its replacement is the first
/// in a row again, and begins without a pause.
const LIVED: Duration = Duration::from_secs(10);

/// The replacements of one worker that fail soon after their start, one after another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row(u32);

/// A worker that is to be replaced.
pub(super) struct Due {
    pub(super) at: Instant,
    /// Its index.
    pub(super) worker: usize,
    /// The worker and why it is replaced, in words.
    pub(super) why: String,
    /// The number of this restart among all of the launch.
    pub(super) restart: usize,
}

impl Row {
    /// Returns the pause before the next replacement of a process that has lived this long.
    pub(super) fn pause(&mut self, lived: Duration) -> Duration {
        if lived >= LIVED {
            self.0 = 0;
        }
        let pause =
            self.0.checked_sub(1).map_or(Duration::ZERO, |doublings| PAUSE[0].saturating_mul(1 << doublings.min(16)));
        self.0 += 1;
        pause.min(PAUSE[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_while_processes_fail_at_once() {
        let mut row = Row::default();
        let mut pauses = |count: usize, lived| (0..count).map(|_| row.pause(lived).as_millis()).collect::<Vec<_>>();
        assert_eq!(pauses(9, Duration::ZERO), [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(pauses(2, LIVED), [0, 0]);
        assert_eq!(pauses(1, Duration::ZERO), [100]);
        assert!(pauses(200, Duration::ZERO).into_iter().all(|pause| pause <= 5000));
    }
}
