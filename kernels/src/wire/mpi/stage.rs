//! The start and the end of the MPI of this process.

use super::{
    calls::Calls,
    last_words::{Ending, PATIENCE, exchange, say_unclean},
    launcher::Launcher,
    library::Library,
    process::Mpi,
    sys::Constants,
};
use crate::{
    sync::fork::Origin,
    wire::{Absent, Kind, hooks, signals},
};
use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The limit on the time of `MPI_Finalize`, once all processes have said that they call it.
const FINALIZE: Duration = Duration::from_secs(60);

/// The stage of this process's MPI.
enum Stage {
    Fresh,
    /// A thread of ours initializes it.
    Starting(Instant),
    Ready(&'static Mpi),
    Failed(String, String),
    /// The thread of ours has to end it.
    Ending,
    /// It is in `MPI_Finalize`.
    Finalizing,
    Ended,
}

static STAGE: Mutex<Stage> = Mutex::new(Stage::Fresh);
static CHANGED: Condvar = Condvar::new();

/// The process that uses MPI, or starts it.
static ORIGIN: OnceLock<Origin> = OnceLock::new();

fn stage() -> MutexGuard<'static, Stage> {
    STAGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins another stage. Whoever waits hears of it.
fn begin(next: Stage) {
    *stage() = next;
    CHANGED.notify_all();
}

/// Returns the MPI of this process, and starts it if there is none yet, within the limit. A wire is
/// counted, whose number is returned, too: as long as it is there, MPI does not end.
///
/// # Errors
/// The reason if there is none.
pub(super) fn open(limit: Duration) -> Result<(&'static Mpi, u32), Absent> {
    let absent =
        |place: &str, found: String| Absent { kinds: vec![Kind::Mpi], looked: vec![(place.to_owned(), found)] };
    if ORIGIN.get().is_some_and(|origin| origin.forked()) {
        return Err(absent("MPI", "this process is a fork of one that uses MPI".to_owned()));
    }
    let mut now = stage();
    if let Stage::Fresh = *now {
        let launcher = Launcher::here();
        let library = Library::load(launcher.as_ref().ok().and_then(Option::as_ref))?;
        let name = library.name.clone();
        *now = match (library.calls.is_initialized(), launcher) {
            (true, _) => Stage::Ready(adopt(library).map_err(|found| absent(&name, found))?),
            (_, Err(found)) => return Err(absent(&name, found)),
            (_, Ok(None)) => {
                let found = "the program has not called MPI_Init_thread, and was started by no launcher of an MPI";
                return Err(absent(&name, found.to_owned()));
            }
            (_, Ok(Some(launcher))) => {
                let started = thread::Builder::new().name("consonance-mpi".to_owned()).spawn(|| run(library, launcher));
                started.map_err(|error| absent(&name, format!("no thread for it: {error}")))?;
                Stage::Starting(Instant::now())
            }
        };
        ORIGIN.get_or_init(Origin::here);
    }
    let waited = CHANGED.wait_timeout_while(now, limit, |now| matches!(now, Stage::Starting(_)));
    let (now, _) = waited.unwrap_or_else(PoisonError::into_inner);
    match &*now {
        // The stage stays until the wire is counted.
        &Stage::Ready(mpi) => match mpi.lock() {
            Ok(mut locked) => Ok((mpi, locked.add_wire())),
            Err(error) => Err(absent(&mpi.library.name, error.to_string())),
        },
        Stage::Starting(since) => {
            let waited = since.elapsed().as_secs();
            let found = format!(
                "MPI_Init_thread has waited {waited} s for other processes of the launcher: all of them must open it"
            );
            Err(absent("MPI", found))
        }
        Stage::Failed(place, found) => Err(absent(place, found.clone())),
        Stage::Fresh | Stage::Ending | Stage::Finalizing | Stage::Ended => {
            Err(absent("MPI", "this process ends".to_owned()))
        }
    }
}

/// Uses an MPI that the program has initialized.
fn adopt(library: Library) -> Result<&'static Mpi, String> {
    let Calls { functions, constants: Constants { multiple, .. }, .. } = library.calls;
    if library.calls.is_finalized() {
        return Err("the program has called MPI_Finalize".to_owned());
    }
    let mut level = 0;
    // SAFETY: writes a number. MPI was initialized, and not finalized.
    let status = unsafe { (functions.query_thread)(&mut level) };
    library.calls.check("MPI_Query_thread", status).map_err(|error| error.to_string())?;
    if level < multiple {
        return Err(format!(
            "the program has initialized it with the thread level {level}, and other threads call it, too: call \
             MPI_Init_thread with MPI_THREAD_MULTIPLE ({multiple})"
        ));
    }
    Ok(Box::leak(Box::new(Mpi::of(library, false, None)?)))
}

/// Starts MPI, waits until the process ends, and ends MPI.
fn run(library: Library, launcher: Launcher) {
    // MPICH's launcher sends it to the processes that are left when one has ended. Without MPICH's
    // handler it would end them.
    let kept = signals::keep().but_for(libc::SIGUSR1);
    let (name, calls) = (library.name.clone(), library.calls);
    let Calls { functions, constants: Constants { serialized, multiple, .. }, .. } = calls;
    let mut level: c_int = 0;
    // Some MPIs load UCX only now.
    let status = hooks::without(|| {
        // SAFETY: once in a process, since the stage was fresh and the program has not initialized
        // it. There are no arguments. Writes a number.
        unsafe { (functions.init_thread)(ptr::null_mut(), ptr::null_mut(), multiple, &mut level) }
    });
    let made = calls.check("MPI_Init_thread", status).map_err(|error| error.to_string()).and_then(|()| {
        if level < serialized {
            return Err(format!("it gives the thread level {level}; needed is MPI_THREAD_SERIALIZED ({serialized})"));
        }
        Mpi::of(library, true, launcher.size)
    });
    drop(kept);
    match made {
        Ok(mpi) => {
            let mpi: &'static Mpi = Box::leak(Box::new(mpi));
            // Registered after MPI's own handlers, ours runs before them.
            let is_registered = on_exit::register(at_exit);
            begin(Stage::Ready(mpi));
            if is_registered {
                end(mpi);
            }
        }
        Err(found) => {
            begin(Stage::Failed(name, found));
            if status == 0 {
                // SAFETY: MPI runs, and nobody else calls it.
                unsafe { (functions.finalize)() };
            }
        }
    }
}

/// Waits until the process ends, and ends MPI if all others do.
fn end(mpi: &Mpi) {
    let waits = |now: &mut Stage| !matches!(now, Stage::Ending);
    drop(CHANGED.wait_while(stage(), waits).unwrap_or_else(PoisonError::into_inner));
    if exchange(mpi, PATIENCE) == Ending::Whole {
        begin(Stage::Finalizing);
        // SAFETY: MPI runs. There is no wire, and no way to a new one in this stage. The thread is
        // the one that initialized it.
        unsafe { (mpi.library.calls.functions.finalize)() };
    }
    begin(Stage::Ended);
}

/// Ends MPI when the process ends, if it may. A process with a failure must not wait for the
/// others, which may wait for it: its launcher ends them.
extern "C" fn at_exit(status: c_int, _argument: *mut c_void) {
    if ORIGIN.get().is_none_or(|origin| origin.forked()) {
        return;
    }
    let mut now = stage();
    let Stage::Ready(mpi) = *now else { return };
    if status != 0 || !mpi.is_clean() {
        // Before another process waits in `MPI_Finalize` for this one.
        return say_unclean(mpi);
    }
    *now = Stage::Ending;
    CHANGED.notify_all();
    // The exchange has a limit of its own.
    let now = CHANGED.wait_while(now, |now| matches!(now, Stage::Ending)).unwrap_or_else(PoisonError::into_inner);
    let waits = |now: &mut Stage| matches!(now, Stage::Finalizing);
    drop(CHANGED.wait_timeout_while(now, FINALIZE, waits).unwrap_or_else(PoisonError::into_inner));
}

/// The handlers of the C library that learn the status of the process.
mod on_exit {
    use std::ffi::{c_int, c_void};

    /// A handler. It gets the status of the process.
    type Handler = extern "C" fn(status: c_int, argument: *mut c_void);

    /// Registers a handler for the end of the process by `exit`. Returns whether it is.
    #[cfg(target_env = "gnu")]
    pub(super) fn register(handler: Handler) -> bool {
        use std::{mem::MaybeUninit, ptr};
        unsafe extern "C" {
            fn on_exit(function: Handler, argument: *mut c_void) -> c_int;
        }
        let mut found = MaybeUninit::<libc::Dl_info>::uninit();
        // The library with the handler stays, even if the program unloads it.
        // SAFETY: finds the file of the handler, and writes its name. The file is loaded, so no
        // code runs.
        unsafe {
            if libc::dladdr(handler as *const c_void, found.as_mut_ptr()) != 0 {
                libc::dlopen(found.assume_init().dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
            }
        }
        // SAFETY: the handler takes a lock, and waits with a limit.
        unsafe { on_exit(handler, ptr::null_mut()) == 0 }
    }

    /// Other C libraries have no such handlers: MPI is not ended there.
    #[cfg(not(target_env = "gnu"))]
    pub(super) fn register(_handler: Handler) -> bool {
        false
    }
}
