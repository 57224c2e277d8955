//! The end of a unit whose threads outlive it.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// Ends the unit with this verdict, when the other threads of the process sleep. LeakSanitizer
/// takes what a starting thread owns for a leak, because it finds that thread's stack too late; the
/// library starts threads that nobody waits for.
pub fn end(verdict: Result<(), String>) {
    let begin = Instant::now();
    while other_threads_run() && begin.elapsed() < Duration::from_secs(1) {
        thread::yield_now();
    }
    verdict.unwrap_or_else(|wrong| panic!("{wrong}"));
}

fn other_threads_run() -> bool {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return false };
    let own = fs::read_link("/proc/thread-self").unwrap_or_default();
    tasks.flatten().filter(|task| Some(&*task.file_name()) != own.file_name()).any(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The state follows the name, which may have parentheses.
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R'))
    })
}
