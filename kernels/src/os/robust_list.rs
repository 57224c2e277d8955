//! Words that the system marks when this process ends: the list of robust futexes of a thread that
//! lives as long as the process.
//!
//! Each thread can have such a list. When the thread ends, the system walks it: a word that has the
//! thread's id becomes [`OWNER_DIED`], and one thread that sleeps on the word is woken, if the word
//! says that there is one ([`WAITERS`]). This comes before the system frees the memory of the
//! process and closes its sockets, which takes long if the memory is large.
//!
//! The C library has lists of its own, for the mutexes of its threads. So one thread is started
//! whose list replaces the C library's. It locks none of these mutexes: it only sleeps.
//!
//! A fork does not have the thread, and starts another one for its own words.

use crate::sync::{
    fork::PerProcess,
    plain::{AtomicPtr, Ordering},
};
use std::{
    io,
    ptr::{self, NonNull},
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread,
};

/// Set in a word by a thread that sleeps on it.
pub(crate) const WAITERS: u32 = libc::FUTEX_WAITERS;

/// Set in a word by the system when the thread whose id it had has ended.
pub(crate) const OWNER_DIED: u32 = libc::FUTEX_OWNER_DIED;

/// The bytes from the start of an entry to its word: the same for all entries, because the system
/// knows one number for the list.
pub(crate) const DISTANCE: usize = 64 << 10;

/// Enough for the frames of a thread that only sleeps.
const STACK_BYTES: usize = 64 << 10;

/// An entry of the list.
#[repr(C)]
pub(crate) struct Entry {
    /// The next entry; the head after the last.
    next: AtomicPtr<Entry>,
}

/// The head of the list, as the system declares it.
#[repr(C)]
struct Head {
    first: Entry,
    distance: libc::c_long,
    /// An entry that is being added or removed. None is: a word without its entry, and an entry
    /// without its word, are harmless.
    pending: AtomicPtr<Entry>,
}

/// The list and the thread that has it.
struct List {
    /// Lives as long as the process.
    head: &'static Head,
    thread: u32,
}

/// The list of this process, once it has one.
static LIST: PerProcess<Mutex<Option<List>>> = PerProcess::new(Mutex::default);

/// Adds an entry, after `hold` has got the id of the thread that has the list, which it writes to
/// the entry's word.
///
/// # Errors
/// The system's, if it has no thread, or no such lists.
///
/// # Safety
/// Until the entry is [removed](remove), it lies in memory of this process that nobody else uses.
/// [`DISTANCE`] bytes behind it lies a word of 4 bytes, aligned, that is mapped as long.
pub(crate) unsafe fn add(entry: NonNull<Entry>, hold: impl FnOnce(u32)) -> io::Result<()> {
    let mut list = list();
    let list = match &mut *list {
        Some(list) => list,
        none => none.insert(List::start()?),
    };
    hold(list.thread);
    let first = &list.head.first.next;
    // SAFETY: the caller vouches for the entry, which is in no list yet.
    unsafe { (*entry.as_ptr()).next.store(first.load(Ordering::Relaxed), Ordering::Relaxed) }
    // Release: the process may end at any time, and the system then follows what was stored.
    first.store(entry.as_ptr(), Ordering::Release);
    Ok(())
}

/// Removes an entry that was [added](add). After that, nobody reads it.
pub(crate) fn remove(entry: NonNull<Entry>) {
    let list = list();
    let Some(list) = &*list else { return };
    let mut before = &list.head.first;
    while before.next.load(Ordering::Relaxed) != entry.as_ptr() {
        let next = before.next.load(Ordering::Relaxed);
        if ptr::eq(next, &list.head.first) {
            return;
        }
        // SAFETY: an entry of the list is valid until it is removed, which needs the lock.
        before = unsafe { &*next };
    }
    // SAFETY: as above.
    let after = unsafe { entry.as_ref() }.next.load(Ordering::Relaxed);
    before.next.store(after, Ordering::Release);
}

fn list() -> MutexGuard<'static, Option<List>> {
    LIST.get().lock().unwrap_or_else(PoisonError::into_inner)
}

impl List {
    /// Starts the thread and gives it an empty list.
    fn start() -> io::Result<List> {
        let head: &'static Head = Box::leak(Box::new(Head {
            first: Entry { next: AtomicPtr::default() },
            distance: DISTANCE as libc::c_long,
            pending: AtomicPtr::default(),
        }));
        head.first.next.store(ptr::from_ref(&head.first).cast_mut(), Ordering::Relaxed);
        let (tell, told) = mpsc::sync_channel(1);
        let thread = thread::Builder::new().name("consonance-life".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || {
            // SAFETY: the head lives as long as the process. The thread locks no mutex of the C
            // library's robust kind, so the list that this replaces stays empty.
            let result = unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) };
            let is_set = result == 0;
            // SAFETY: the call has no arguments.
            let thread = unsafe { libc::gettid() }.cast_unsigned();
            let _ = tell.send(if is_set { Ok(thread) } else { Err(io::Error::last_os_error()) });
            if is_set {
                loop {
                    thread::park();
                }
            }
        })?;
        let thread = told.recv().map_err(io::Error::other)??;
        Ok(List { head, thread })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;

    #[repr(C)]
    struct Held {
        entry: Entry,
        between: [MaybeUninit<u8>; DISTANCE - size_of::<Entry>()],
        word: u32,
    }

    /// Returns how many of these the list has. Other tests of this process have entries, too.
    fn listed(held: &[NonNull<Held>]) -> usize {
        let list = list();
        let Some(list) = &*list else { return 0 };
        let (mut count, mut entry) = (0, list.head.first.next.load(Ordering::Relaxed));
        while !ptr::eq(entry, &list.head.first) {
            count += held.iter().filter(|one| ptr::eq(one.as_ptr().cast(), entry)).count();
            // SAFETY: an entry of the list is valid while the lock is held.
            entry = unsafe { &*entry }.next.load(Ordering::Relaxed);
        }
        count
    }

    #[test]
    fn a_list_has_all_entries_added_and_not_removed() {
        let mut held: Vec<NonNull<Held>> = Vec::new();
        for _ in 0..3 {
            let entry = Entry { next: AtomicPtr::default() };
            let between = [MaybeUninit::uninit(); DISTANCE - size_of::<Entry>()];
            held.push(NonNull::from(Box::leak(Box::new(Held { entry, between, word: 0 }))));
        }
        let mut thread = 0;
        for one in &held {
            // SAFETY: the entry and its word are freed after the entry was removed.
            unsafe { add(one.cast(), |id| thread = id) }.unwrap();
        }
        assert_eq!(listed(&held), 3);
        assert!(std::path::Path::new(&format!("/proc/self/task/{thread}")).exists());
        for index in [1, 0, 2] {
            remove(held[index].cast());
            remove(held[index].cast());
        }
        assert_eq!(listed(&held), 0);
        for one in held {
            // SAFETY: made by a box above, and in no list.
            drop(unsafe { Box::from_raw(one.as_ptr()) });
        }
    }
}
