//! The end of the process beside threads that use wires.
//!
//! UCX ends with the libraries of the process, after the functions that are registered with the
//! system for its end. A thread that uses a wire then ends the process by a signal. So a function
//! of ours comes before: it refuses all further calls, and waits for those that threads are in.

use crate::sync::{
    fork::PerProcess,
    plain::{AtomicU32, Ordering},
};
use std::{
    sync::{Arc, Mutex, Once, PoisonError, RwLock, RwLockReadGuard, TryLockError, Weak},
    thread,
    time::{Duration, Instant},
};

/// The limit on the time for the calls that threads are in, of all wires.
const LIMIT: Duration = Duration::from_secs(1);

/// The wires of this process.
#[derive(Default)]
struct Wires {
    /// 1 once the process ends.
    ends: AtomicU32,
    open: Mutex<Vec<Weak<Mutex<dyn Send>>>>,
    /// Read while one is being opened.
    opening: RwLock<()>,
}

static WIRES: PerProcess<Wires> = PerProcess::new(Wires::default);

/// Begins to open a wire. The end of the process waits for the guard. `None` if the process ends.
pub(super) fn opening() -> Option<RwLockReadGuard<'static, ()>> {
    static REGISTERED: Once = Once::new();
    // SAFETY: the function waits for a second at most, and calls nothing that ends the process. If
    // the system has no memory to remember it, the process ends as it would without.
    REGISTERED.call_once(|| _ = unsafe { libc::atexit(refuse) });
    let guard = WIRES.get().opening.read().unwrap_or_else(PoisonError::into_inner);
    (!ends()).then_some(guard)
}

/// Notes a wire that is open: its lock, under which all calls of UCX are made.
pub(super) fn note(wire: Arc<Mutex<dyn Send>>) {
    let mut open = WIRES.get().open.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|wire| wire.strong_count() > 0);
    open.push(Arc::downgrade(&wire));
}

/// Returns whether the process ends. Whoever has the lock of a wire, or [opens](opening) one, asks
/// then.
pub(super) fn ends() -> bool {
    WIRES.get().ends.load(Ordering::SeqCst) != 0
}

extern "C" fn refuse() {
    let (wires, until) = (WIRES.get(), Instant::now() + LIMIT);
    wires.ends.store(1, Ordering::SeqCst);
    pass(until, || wires.opening.try_write());
    let mut open = Vec::new();
    pass(until, || wires.open.try_lock().map(|all| open.extend(all.iter().filter_map(Weak::upgrade))));
    for wire in open {
        pass(until, || wire.try_lock());
        // Another thread may have dropped it: its memory stays until the end.
        std::mem::forget(wire);
    }
}

/// Takes a lock and gives it back, before this time.
fn pass<G, W>(until: Instant, mut take: impl FnMut() -> Result<G, TryLockError<W>>) {
    while let Err(TryLockError::WouldBlock) = take() {
        if Instant::now() >= until {
            return;
        }
        thread::yield_now();
    }
}
