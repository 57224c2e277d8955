//! Threads that are kept between calls, and run one closure at a time.
//!
//! # The protocol
//!
//! `run` writes the job, sets the number of *running* threads, and counts a new *round*. A thread
//! that sees the round runs the job and counts itself out. `run` returns when no thread is running.
//! Both sides poll for a moment before they sleep. A thread that is about to sleep says so, fences,
//! and polls once more. A thread that publishes fences, and then checks for sleepers. At least one
//! of the two sees the other's store. So no wake-up is lost, and none is paid for where no thread
//! sleeps.

use crate::sync::{
    atomics::{AtomicU32, Ordering, fence},
    futex::Sleepers,
};
use std::{
    any::Any,
    cell::UnsafeCell,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    process,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The time that a thread polls for the next job before it sleeps: a program that makes calls
/// one after the other wakes no thread.
const LOOKS_FOR_JOB: Duration = Duration::from_micros(10);

/// The time that the caller polls for the end of a job before it sleeps: about the time of a
/// wake-up.
const LOOKS_FOR_END: Duration = Duration::from_micros(50);

/// Polls between two readings of the clock.
const LOOKS_PER_READING: u32 = 32;

/// A fixed number of threads that run one closure together, as often as requested. The caller acts
/// as the first thread, unless that thread is pinned to a core.
///
/// Idle threads sleep. They end when the team is dropped.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// let mut team = consonance_kernels::os::thread_pool::Team::new("example", &[None; 3])?;
/// let sum = AtomicUsize::new(0);
/// team.run(&|index| {
///     sum.fetch_add(index, Ordering::Relaxed);
/// });
/// assert_eq!(sum.into_inner(), 0 + 1 + 2);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Whether the caller runs `job(0)` of each round.
    caller_takes_part: bool,
    /// The process that has the threads. A fork of it has none of them.
    owner: u32,
}

type Job = dyn Fn(usize) + Sync + 'static;

struct Shared {
    /// The number of rounds so far, wrapping. Each round has one job, or ends the threads.
    round: AtomicU32,
    /// The number of threads that sleep until the round changes.
    asleep: AtomicU32,
    begin: Sleepers,
    /// The number of threads that have not yet finished this round.
    running: AtomicU32,
    /// 1 while the caller sleeps until no thread is running.
    caller_sleeps: AtomicU32,
    end: Sleepers,
    /// The job of this round.
    job: UnsafeCell<Option<JobPointer>>,
    /// 1 when the threads have to end.
    closing: AtomicU32,
    /// Whether there is a core for each thread: only then does a waiting thread poll before it
    /// sleeps.
    looks: bool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: only `job` is not atomic. `Team::run`, which one thread at a time calls, writes it when
// no thread is running. Threads read it after they have seen the round that was counted after the
// write.
unsafe impl Sync for Shared {}

#[derive(Clone, Copy)]
struct JobPointer(*const Job);

// SAFETY: the pointee is `Sync`, and `Team::run` keeps it alive until every thread is done with it.
unsafe impl Send for JobPointer {}

impl Shared {
    /// Polls until `ready`, at most for `limit`. Returns false if it was not ready.
    fn look(&self, limit: Duration, ready: impl Fn() -> bool) -> bool {
        if ready() {
            return true;
        }
        if !self.looks {
            return false;
        }
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS_PER_READING {
                std::hint::spin_loop();
                if ready() {
                    return true;
                }
            }
            if start.elapsed() >= limit {
                return false;
            }
        }
    }

    /// Begins a round.
    fn begin(&self) {
        // SYNC POINT job: a thread that sees the round sees its job; pairs with `await_round`.
        self.round.fetch_add(1, Ordering::Release);
        // SYNC POINT begin: pairs with the fence in `await_round`.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) > 0 {
            self.begin.wake(&self.round, false);
        }
    }

    /// Waits for the round after `seen`.
    fn await_round(&self, seen: u32) {
        // SYNC POINT job: pairs with `begin`.
        let begun = || self.round.load(Ordering::Acquire) != seen;
        if self.look(LOOKS_FOR_JOB, begun) {
            return;
        }
        self.asleep.fetch_add(1, Ordering::Relaxed);
        // SYNC POINT begin: pairs with the fence in `begin`.
        fence(Ordering::SeqCst);
        while !begun() {
            self.begin.wait(&self.round, seen, Duration::MAX, false);
        }
        self.asleep.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a thread out of its round.
    fn finish(&self) {
        // SYNC POINT end of a job: a caller that sees the thread counted out sees what the thread
        // did; pairs with `await_end`.
        if self.running.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        // SYNC POINT end: pairs with the fence in `await_end`.
        fence(Ordering::SeqCst);
        if self.caller_sleeps.load(Ordering::Relaxed) != 0 {
            self.end.wake(&self.running, false);
        }
    }

    /// Waits until no thread is running.
    fn await_end(&self) {
        // SYNC POINT end of a job: pairs with `finish`.
        let running = || self.running.load(Ordering::Acquire);
        if self.look(LOOKS_FOR_END, || running() == 0) {
            return;
        }
        self.caller_sleeps.store(1, Ordering::Relaxed);
        // SYNC POINT end: pairs with the fence in `finish`.
        fence(Ordering::SeqCst);
        loop {
            match running() {
                0 => break,
                count => self.end.wait(&self.running, count, Duration::MAX, false),
            }
        }
        self.caller_sleeps.store(0, Ordering::Relaxed);
    }

    /// Runs one thread's part of a job, and keeps its panic.
    fn part(&self, job: impl FnOnce()) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(job)) else { return };
        let mut first = self.panic.lock().expect("nobody panics holding this lock");
        match *first {
            None => *first = Some(panic),
            // Forget it: the drop of a panic's payload may panic in turn, and no code here could
            // handle that.
            Some(_) => std::mem::forget(panic),
        }
    }
}

impl Team {
    /// Starts one thread for each entry of `cores`. Its name is `name` and its index. It is pinned
    /// to the core of its entry, if the entry has one. If the first entry has none, the caller of
    /// [`run`](Team::run) takes the place of that thread.
    ///
    /// # Errors
    /// The system's, when it gives no thread or refuses a core.
    pub fn new(name: &str, cores: &[Option<usize>]) -> io::Result<Team> {
        let has_cores = thread::available_parallelism().is_ok_and(|all| cores.len() <= all.get());
        let shared = Arc::new(Shared {
            round: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            begin: Sleepers::default(),
            running: AtomicU32::new(0),
            caller_sleeps: AtomicU32::new(0),
            end: Sleepers::default(),
            job: UnsafeCell::new(None),
            closing: AtomicU32::new(0),
            looks: has_cores,
            panic: Mutex::new(None),
        });
        let caller_takes_part = matches!(cores.first(), Some(None));
        let mut team =
            Team { shared, threads: Vec::with_capacity(cores.len()), caller_takes_part, owner: process::id() };
        for (index, &core) in cores.iter().enumerate().skip(usize::from(caller_takes_part)) {
            let shared = team.shared.clone();
            let (tell, told) = std::sync::mpsc::sync_channel(1);
            let body = move || {
                let pinned = core.map_or(Ok(()), pin);
                let ready = pinned.is_ok();
                // The receiver waits below. It can be gone only if the process is ending.
                let _ = tell.send(pinned);
                if ready {
                    serve(&shared, index);
                }
            };
            team.threads.push(thread::Builder::new().name(format!("{name}-{index}")).spawn(body)?);
            told.recv().map_err(io::Error::other)??;
        }
        Ok(team)
    }

    /// Returns the number of threads, including the caller if it takes part.
    pub fn size(&self) -> usize {
        self.threads.len() + usize::from(self.caller_takes_part)
    }

    /// Whether this process is a fork of the process that has the threads.
    pub fn forked(&self) -> bool {
        self.owner != process::id()
    }

    /// Runs `job(i)` on thread `i`, on all threads at once. Returns when all have returned.
    ///
    /// # Panics
    /// With the first panic of a `job`, after all have ended. If this process is a fork of the
    /// process that made the team.
    pub fn run(&mut self, job: &(dyn Fn(usize) + Sync)) {
        assert!(!self.forked(), "a fork has no threads of process {}", self.owner);
        let shared = &*self.shared;
        if !self.threads.is_empty() {
            // SAFETY: only the lifetime is erased. Each thread drops its copy of the pointer before
            // it counts itself out, and this function returns only when none is running.
            let pointer =
                JobPointer(unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Job>(job) });
            // SAFETY: no thread is running, so none reads the job.
            unsafe { *shared.job.get() = Some(pointer) };
            // Relaxed: seen with the round.
            shared.running.store(self.threads.len() as u32, Ordering::Relaxed);
            shared.begin();
        }
        if self.caller_takes_part {
            shared.part(|| job(0));
        }
        shared.await_end();
        let panic = shared.panic.lock().expect("nobody panics holding this lock").take();
        if let Some(panic) = panic {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if self.forked() {
            // A fork has no threads to tell or to join.
            return std::mem::forget(std::mem::take(&mut self.threads));
        }
        // Relaxed: seen with the round.
        self.shared.closing.store(1, Ordering::Relaxed);
        self.shared.begin();
        for thread in self.threads.drain(..) {
            // `serve` does not panic. No team is dropped on one of its own threads, where the join
            // would not return: `run` borrows the team.
            let _ = thread.join();
        }
    }
}

/// The main loop of thread `index`: waits until there is a new job, runs it, and counts itself out.
fn serve(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        shared.await_round(seen);
        // No round begins before this thread has finished the last one.
        seen = seen.wrapping_add(1);
        if shared.closing.load(Ordering::Relaxed) != 0 {
            return;
        }
        // SAFETY: `Team::run` wrote the job before it counted the round, and writes the next job
        // only after this thread has finished.
        let job = unsafe { (*shared.job.get()).expect("a round has a job") };
        // SAFETY: `Team::run` set the pointer from a live reference and waits for this thread
        // before it returns.
        shared.part(|| unsafe { (*job.0)(index) });
        shared.finish();
    }
}

/// Pins the calling thread to the `core`-th of the cores that this process may use.
///
/// # Errors
/// If there is no such core, or the system refuses.
#[cfg(target_os = "linux")]
pub fn pin(core: usize) -> io::Result<()> {
    let allowed = allowed(0)?;
    // SAFETY: a cpu_set_t is plain bits, for which zero is valid; the call gets its true size.
    unsafe {
        let cpu = (0..libc::CPU_SETSIZE as usize)
            .filter(|&cpu| libc::CPU_ISSET(cpu, &allowed))
            .nth(core)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("there is no core {core}")))?;
        let mut only: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut only);
        match libc::sched_setaffinity(0, size_of_val(&only), &only) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Returns the number of cores that these processes may use together. If the system does not tell
/// the cores of a process, the cores of the calling process count for it.
#[cfg(target_os = "linux")]
pub fn cores_of(processes: &[u32]) -> usize {
    // SAFETY: a cpu_set_t is plain bits, for which zero is valid.
    let mut all: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &process in processes {
        let allowed = allowed(process).or_else(|_| allowed(0));
        for cpu in 0..libc::CPU_SETSIZE as usize {
            // SAFETY: both sets have `CPU_SETSIZE` bits.
            unsafe {
                if allowed.as_ref().is_ok_and(|allowed| libc::CPU_ISSET(cpu, allowed)) {
                    libc::CPU_SET(cpu, &mut all);
                }
            }
        }
    }
    // SAFETY: the set is plain bits.
    unsafe { libc::CPU_COUNT(&all) as usize }
}

/// Returns the cores that a process may use. 0 stands for the calling thread.
#[cfg(target_os = "linux")]
fn allowed(process: u32) -> io::Result<libc::cpu_set_t> {
    let process = process.try_into().map_err(io::Error::other)?;
    // SAFETY: a cpu_set_t is plain bits, for which zero is valid; the call gets its true size.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        match libc::sched_getaffinity(process, size_of_val(&allowed), &mut allowed) {
            0 => Ok(allowed),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Pins the calling thread to a core: not supported on this system.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn pin(_core: usize) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn every_part_of_every_job_runs_once() {
        for threads in 1..5 {
            let mut team = Team::new("test", &vec![None; threads]).unwrap();
            assert_eq!(team.size(), threads);
            for round in 0..3000 {
                let parts: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
                team.run(&|part| {
                    parts[part].fetch_add(1, Ordering::Relaxed);
                });
                assert!(parts.iter().all(|part| part.load(Ordering::Relaxed) == 1), "round {round} of {threads}");
                if round % 500 == 0 {
                    // The threads sleep by the end of this pause.
                    thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }

    #[test]
    fn a_caller_takes_part_unless_the_first_thread_is_pinned() {
        let first_thread = |cores: &[Option<usize>]| {
            let first = Mutex::new(None);
            Team::new("test", cores).unwrap().run(&|part| {
                if part == 0 {
                    *first.lock().unwrap() = Some(thread::current().id());
                }
            });
            first.into_inner().unwrap().unwrap()
        };
        let own = thread::current().id();
        assert_eq!(first_thread(&[None, None]), own);
        assert_ne!(first_thread(&[Some(0), None]), own);
    }

    #[test]
    fn a_panic_comes_after_all_parts_and_the_team_goes_on() {
        let mut team = Team::new("test", &[None; 3]).unwrap();
        for panics in [0, 1, 2] {
            let ran = AtomicUsize::new(0);
            let panic = catch_unwind(AssertUnwindSafe(|| {
                team.run(&|part| {
                    ran.fetch_add(1, Ordering::Relaxed);
                    assert!(part < panics, "part {part}");
                });
            }));
            assert!(panic.is_err());
            assert_eq!(ran.into_inner(), 3);
        }
        team.run(&|_| ());
    }

    #[test]
    fn a_long_job_is_awaited() {
        let mut team = Team::new("test", &[None; 2]).unwrap();
        let done = AtomicUsize::new(0);
        team.run(&|part| {
            thread::sleep(Duration::from_millis(20 * part as u64));
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 2);
    }
}
