//! Sleeping until a word changes.

use super::atomics::AtomicU32;
use std::time::Duration;
#[cfg(target_os = "linux")]
use std::{io, marker::PhantomData};

/// The threads that sleep until a word changes. On Linux the kernel keeps this list, by the word's
/// address.
#[derive(Default)]
pub(crate) struct Sleepers {
    #[cfg(not(target_os = "linux"))]
    lot: (std::sync::Mutex<()>, std::sync::Condvar),
}

#[cfg(target_os = "linux")]
impl Sleepers {
    /// Sleeps while `word` is `seen`, at most for `limit`; may wake early. `shared` says that the
    /// word lies in memory that other processes map.
    pub(crate) fn wait(&self, word: &AtomicU32, seen: u32, limit: Duration, shared: bool) {
        let limit = libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let wait = libc::FUTEX_WAIT | if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
        // SAFETY: the word and the time live until the call returns. The result is not read: after
        // any return the caller checks its condition again.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wait, seen, &raw const limit) };
    }

    /// Wakes all threads that sleep on `word`, which has changed.
    pub(crate) fn wake(&self, word: &AtomicU32, shared: bool) {
        let wake = libc::FUTEX_WAKE | if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
        // SAFETY: the word lives while it is borrowed; FUTEX_WAKE reads nothing else.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wake, i32::MAX) };
    }
}

/// The number of words on which the system lets a thread sleep at a time.
#[cfg(target_os = "linux")]
pub(crate) const MOST_WORDS: usize = 128;

/// Words on which a thread sleeps together. The list is kept between sleeps.
#[cfg(target_os = "linux")]
pub(crate) struct Words<'a> {
    waiters: Vec<Waiter>,
    words: PhantomData<&'a AtomicU32>,
}

/// A word, as the system declares it.
#[cfg(target_os = "linux")]
#[repr(C)]
struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

#[cfg(target_os = "linux")]
impl<'a> Words<'a> {
    /// Returns an empty list with room for so many words.
    pub(crate) fn with_room(count: usize) -> Words<'a> {
        Words { waiters: Vec::with_capacity(count), words: PhantomData }
    }

    pub(crate) fn clear(&mut self) {
        self.waiters.clear();
    }

    /// Adds a word, on which the thread sleeps while it is `value`. `shared` says that the word
    /// lies in memory that other processes map.
    ///
    /// # Panics
    /// If there are more than [`MOST_WORDS`] words.
    pub(crate) fn push(&mut self, word: &'a AtomicU32, value: u32, shared: bool) {
        /// The word has 32 bits.
        const BITS: u32 = 2;
        assert!(self.waiters.len() < MOST_WORDS, "{MOST_WORDS} words");
        let flags = BITS | if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG.cast_unsigned() };
        let address = word.as_ptr().addr() as u64;
        self.waiters.push(Waiter { value: value.into(), address, flags, reserved: 0 });
    }

    /// Sleeps while each word has its value, without a limit; may wake early.
    ///
    /// # Errors
    /// The system's, if it has no such call (Linux before 5.16).
    pub(crate) fn wait(&self) -> io::Result<()> {
        let (first, count) = (self.waiters.as_ptr(), self.waiters.len());
        let (none, clock) = (std::ptr::null::<libc::timespec>(), libc::CLOCK_MONOTONIC);
        // SAFETY: the list and the words live until the call returns.
        match unsafe { libc::syscall(libc::SYS_futex_waitv, first, count, 0, none, clock) } {
            0.. => Ok(()),
            _ => match io::Error::last_os_error() {
                // A word has changed before, or a signal came.
                error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(()),
                error => Err(error),
            },
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Sleepers {
    /// Sleeps while `word` is `seen`, at most for `limit`; may wake early.
    pub(crate) fn wait(&self, word: &AtomicU32, seen: u32, limit: Duration, _shared: bool) {
        let guard = self.lot.0.lock().unwrap_or_else(|poison| poison.into_inner());
        if word.load(crate::sync::atomics::Ordering::Acquire) == seen {
            drop(self.lot.1.wait_timeout(guard, limit));
        }
    }

    /// Wakes all threads that sleep on `word`, which has changed.
    pub(crate) fn wake(&self, _word: &AtomicU32, _shared: bool) {
        // Once this thread holds the lock, every thread that saw the old value sleeps; none is
        // still about to.
        let _guard = self.lot.0.lock().unwrap_or_else(|poison| poison.into_inner());
        self.lot.1.notify_all();
    }
}
