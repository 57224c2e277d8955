//! Threads that are kept between calls, and lend themselves to one closure at a time.

use std::{
    any::Any,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    process,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle},
};

/// A fixed number of threads that run one closure together, as often as asked.
///
/// Idle threads sleep. They end when the team is dropped.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// let mut team = consonance_kernels::team::Team::new("example", &[None; 3])?;
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
    /// The process that has the threads: a fork of it has none of them.
    owner: u32,
}

type Job = dyn Fn(usize) + Sync + 'static;

struct Shared {
    state: Mutex<State>,
    begin: Condvar,
    end: Condvar,
}

struct State {
    /// What to run, while it is run.
    job: Option<JobPointer>,
    /// Counts jobs, so that a thread takes each once.
    round: u64,
    /// Threads that have not yet finished this round.
    running: usize,
    panic: Option<Box<dyn Any + Send>>,
    closing: bool,
}

#[derive(Clone, Copy)]
struct JobPointer(*const Job);

// SAFETY: the pointee is `Sync`, and `Team::run` keeps it alive until every thread is done with it.
unsafe impl Send for JobPointer {}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No thread panics while it holds the lock: jobs run outside it.
        self.state.lock().expect("the lock of a team")
    }
}

impl Team {
    /// Starts one thread for each entry of `cores`, named `name` and its index, pinned to that core where one is given.
    ///
    /// # Errors
    /// The system's, when it gives no thread or refuses a core.
    pub fn new(name: &str, cores: &[Option<usize>]) -> io::Result<Team> {
        let state = State { job: None, round: 0, running: 0, panic: None, closing: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), begin: Condvar::new(), end: Condvar::new() });
        let mut team = Team { shared, threads: Vec::with_capacity(cores.len()), owner: process::id() };
        for (index, &core) in cores.iter().enumerate() {
            let shared = team.shared.clone();
            let (tell, told) = std::sync::mpsc::sync_channel(1);
            let body = move || {
                let pinned = core.map_or(Ok(()), pin);
                let ready = pinned.is_ok();
                // The receiver waits below; it can only be gone if the process is ending.
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

    /// The number of threads.
    pub fn size(&self) -> usize {
        self.threads.len()
    }

    /// Whether the threads are in another process, of which this one is a fork.
    pub fn forked(&self) -> bool {
        self.owner != process::id()
    }

    /// Runs `job(i)` on thread `i`, on all threads at once, and returns when all have returned.
    ///
    /// # Panics
    /// With the first panic of a `job`, after all have ended; in a fork of the process that made the team.
    pub fn run(&mut self, job: &(dyn Fn(usize) + Sync)) {
        assert!(!self.forked(), "a fork has no threads of process {}", self.owner);
        // SAFETY: only the lifetime is erased. Each thread drops its copy of the pointer before it counts itself out, and this
        // function returns only when `running` is 0.
        let job = JobPointer(unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Job>(job) });
        let mut state = self.shared.lock();
        state.job = Some(job);
        state.round += 1;
        state.running = self.threads.len();
        self.shared.begin.notify_all();
        while state.running > 0 {
            state = self.shared.end.wait(state).expect("the lock of a team");
        }
        state.job = None;
        if let Some(panic) = state.panic.take() {
            drop(state);
            std::panic::resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if self.forked() {
            // There is nobody to tell or to join, and the lock may be that of a thread that is not here.
            return std::mem::forget(std::mem::take(&mut self.threads));
        }
        self.shared.lock().closing = true;
        self.shared.begin.notify_all();
        for thread in self.threads.drain(..) {
            // `serve` does not panic, and a team dropped on one of its own threads would not end: `run` borrows it.
            let _ = thread.join();
        }
    }
}

/// The life of thread `index`: sleep until there is a new job, run it, count itself out.
fn serve(shared: &Shared, index: usize) {
    let mut round = 0;
    loop {
        let job = {
            let mut state = shared.lock();
            loop {
                if state.closing {
                    return;
                }
                match state.job {
                    Some(job) if state.round != round => break job,
                    _ => state = shared.begin.wait(state).expect("the lock of a team"),
                }
            }
        };
        round += 1;
        // SAFETY: `Team::run` set the pointer from a live reference and waits for this thread before it returns.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*job.0)(index) }));
        let mut state = shared.lock();
        if let Err(panic) = result {
            match state.panic {
                None => state.panic = Some(panic),
                // Dropping what was thrown may panic in turn, which nobody here could answer.
                Some(_) => std::mem::forget(panic),
            }
        }
        state.running -= 1;
        if state.running == 0 {
            shared.end.notify_one();
        }
    }
}

/// Binds the calling thread to the `core`-th of the cores that this process may use.
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

/// How many cores these processes may use together; one that cannot be asked may use those of this one.
#[cfg(target_os = "linux")]
pub fn cores_of(processes: &[u32]) -> usize {
    // SAFETY: a cpu_set_t is plain bits, for which zero is valid.
    let mut all: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &process in processes {
        let allowed = allowed(process).or_else(|_| allowed(0));
        for cpu in 0..libc::CPU_SETSIZE as usize {
            // SAFETY: the sets have so many bits.
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

/// The cores that a process may use; 0 is the calling thread.
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

/// Binds the calling thread to a core: not supported on this system.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn pin(_core: usize) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}
