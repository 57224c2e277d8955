//! The core on which a thread runs, and how the thread gives it away.
//!
//! A yield is the fastest way to let another rank run, unless a busy process is on the core: that
//! keeps it for a time slice, of milliseconds. So a thread whose yield took so long stops yielding
//! for a while, and for longer if the next one takes so long again.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};

/// The shortest time slice of a busy process.
const SLICE: Duration = Duration::from_micros(500);

/// The times for which a thread does not yield after it lost a slice: the first, and the longest.
/// The time doubles with each slice that is lost soon after.
const RESTRAINT: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// The experience of a thread with yields.
#[derive(Clone, Copy)]
struct Past {
    /// The time from which on the thread may yield again, if it has lost a slice.
    resumes: Option<Instant>,
    /// The time for which it did not yield before that.
    restraint: Duration,
}

thread_local! {
    static PAST: Cell<Past> = const { Cell::new(Past { resumes: None, restraint: Duration::ZERO }) };
}

/// Lets other threads run on this core, and returns true when this one runs again. Returns false if
/// a busy process is likely to be there: a sleep is better then.
pub(crate) fn leave() -> bool {
    let (begin, past) = (Instant::now(), PAST.get());
    if past.resumes.is_some_and(|resumes| begin < resumes) {
        return false;
    }
    thread::yield_now();
    PAST.set(past.after(begin, Instant::now()));
    true
}

impl Past {
    /// Returns the experience after a yield from `begin` to `end`.
    fn after(self, begin: Instant, end: Instant) -> Past {
        let [first, longest] = RESTRAINT;
        if end - begin >= SLICE {
            let restraint = (2 * self.restraint).clamp(first, longest);
            return Past { resumes: Some(end + restraint), restraint };
        }
        // As many yields as were left out have been short.
        if self.resumes.is_some_and(|resumes| end >= resumes + self.restraint) {
            return Past { resumes: None, restraint: Duration::ZERO };
        }
        self
    }
}

/// Returns the number of the core on which this thread runs plus 1, or 0 if the system does not
/// tell. It may have moved since. The C library reads a word of the thread, without a system call.
#[cfg(target_os = "linux")]
pub(crate) fn current() -> u32 {
    // SAFETY: the call takes no argument and accesses no memory of this program.
    let core = unsafe { libc::sched_getcpu() };
    u32::try_from(core).map_or(0, |core| core.saturating_add(1))
}

/// Returns 0: the system does not tell.
#[cfg(not(target_os = "linux"))]
pub(crate) fn current() -> u32 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_losing_slices_yields_less_and_less() {
        let (short, slice) = (SLICE / 2, 2 * SLICE);
        let [first, longest] = RESTRAINT;
        let mut now = Instant::now();
        let mut past = Past { resumes: None, restraint: Duration::ZERO };
        past = past.after(now, now + short);
        assert_eq!((past.resumes, past.restraint), (None, Duration::ZERO));
        for round in 0..20 {
            past = past.after(now, now + slice);
            assert_eq!(past.restraint, (first * 2u32.pow(round)).min(longest));
            assert_eq!(past.resumes, Some(now + slice + past.restraint));
            now += slice + past.restraint;
        }
        past = past.after(now, now + short);
        assert_eq!(past.restraint, longest);
        now += longest;
        past = past.after(now, now + short);
        assert_eq!((past.resumes, past.restraint), (None, Duration::ZERO));
    }
}
