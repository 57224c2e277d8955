//! Tables of handles.

use crate::{codes, failure::Failure};
use consonance::raw::Origin;
use std::{
    cell::UnsafeCell,
    ops::Deref,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering, fence},
    },
};

/// The process that uses the library.
static ORIGIN: OnceLock<Origin> = OnceLock::new();

/// Whether this process is a fork of the one that uses the library.
pub(crate) fn forked() -> bool {
    ORIGIN.get_or_init(Origin::here).forked()
}

/// Values by handle. A handle has the kind of its table, the number of its slot, and how often the
/// slot was used before. To look one up takes no lock.
pub(crate) struct Table<T> {
    kind: u64,
    name: &'static str,
    /// Slots do not move. Each chunk has twice as many as the one before.
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

struct Slot<T> {
    /// The number of earlier uses of the slot, whether its handle is valid, and the number of
    /// [`Held`].
    word: AtomicU64,
    /// `None` in a slot without a valid handle and without a [`Held`].
    value: UnsafeCell<Option<T>>,
}

// SAFETY: a value is written and taken by the one thread that `Table::add` and `Held::drop` say.
// Between that, threads only read it.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

/// The slots without a value.
struct Free {
    /// Those that were used before.
    used: Vec<usize>,
    /// The first that was never used.
    next: usize,
}

/// A value of a table. It lives at least as long as this, also if its handle is freed.
pub(crate) struct Held<T: 'static> {
    table: &'static Table<T>,
    slot: &'static Slot<T>,
    index: usize,
}

/// Bits of a handle for the number of the slot, counted from 1, and for its uses.
const INDEX_BITS: u32 = 28;
const USES_BITS: u32 = 28;

/// Slots of the first chunk, as a power of two.
const FIRST_BITS: u32 = 6;
const CHUNKS: usize = (INDEX_BITS - FIRST_BITS) as usize;

/// The parts of a slot's word. Its upper bits are the uses.
const HELD: u64 = VALID - 1;
const VALID: u64 = 1 << (u64::BITS - USES_BITS - 1);
const ONE_USE: u64 = VALID << 1;

impl<T: Send + Sync> Table<T> {
    pub(crate) const fn new(kind: u64, name: &'static str) -> Table<T> {
        let free = Mutex::new(Free { used: Vec::new(), next: 0 });
        Table { kind, name, chunks: [const { OnceLock::new() }; CHUNKS], free }
    }

    /// Adds a value and returns its handle.
    ///
    /// # Panics
    /// If there is no slot left: each of 268 million has a value.
    pub(crate) fn add(&self, value: T) -> u64 {
        let index = self.take_free();
        let (chunk, place) = place(index);
        let new = |_| Slot { word: AtomicU64::new(0), value: UnsafeCell::new(None) };
        let slot = &self.chunks[chunk].get_or_init(|| (0..1 << (FIRST_BITS + chunk as u32)).map(new).collect())[place];
        // SAFETY: the slot was free, and this thread alone has taken it. What was done with it
        // before happened before the lock of `free`.
        unsafe { *slot.value.get() = Some(value) };
        let uses = slot.word.load(Ordering::Relaxed) / ONE_USE;
        slot.word.store((uses * ONE_USE) | VALID, Ordering::Release);
        self.kind << (INDEX_BITS + USES_BITS) | uses << INDEX_BITS | (index as u64 + 1)
    }

    fn take_free(&self) -> usize {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = free.used.pop() {
            return index;
        }
        assert!(place(free.next).0 < CHUNKS, "{}: {} handles", self.name, free.next);
        free.next += 1;
        free.next - 1
    }

    /// Returns the value of a handle.
    #[inline]
    pub(crate) fn get(&'static self, handle: u64) -> Result<Held<T>, Failure> {
        self.hold(handle, |valid| valid + 1).ok_or_else(|| self.freed(handle))
    }

    /// Frees a handle and returns its value.
    pub(crate) fn remove(&'static self, handle: u64) -> Result<Held<T>, Failure> {
        self.hold(handle, |valid| valid - VALID + 1).ok_or_else(|| self.freed(handle))
    }

    /// Holds the value of a handle, if that is valid, and changes the word of its slot.
    #[inline]
    fn hold(&'static self, handle: u64, change: impl Fn(u64) -> u64) -> Option<Held<T>> {
        let index = ((handle & ((1 << INDEX_BITS) - 1)) as usize).checked_sub(1)?;
        let (chunk, place) = place(index);
        let slot = self.chunks.get(chunk)?.get()?.get(place)?;
        let uses = handle >> INDEX_BITS & ((1 << USES_BITS) - 1);
        let mut word = slot.word.load(Ordering::Relaxed);
        loop {
            if word & !HELD != (uses * ONE_USE) | VALID || handle >> (INDEX_BITS + USES_BITS) != self.kind {
                return None;
            }
            match slot.word.compare_exchange_weak(word, change(word), Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Held { table: self, slot, index }),
                Err(now) => word = now,
            }
        }
    }

    #[cold]
    fn freed(&self, handle: u64) -> Failure {
        if handle == 0 {
            return Failure::argument(self.name, "a handle", "0");
        }
        let text = format!("{}: handle {handle:#x} was freed or never made", self.name);
        let mut failure = Failure::new(codes::CONS_ERR_FREED, text);
        self.name.clone_into(&mut failure.0.argument);
        failure
    }
}

/// Returns the chunk of a slot, and its place there.
#[inline]
fn place(index: usize) -> (usize, usize) {
    let number = index + (1 << FIRST_BITS);
    let bits = number.ilog2();
    ((bits - FIRST_BITS) as usize, number - (1 << bits))
}

impl<T> Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the slot has a value as long as it is held, and nobody writes it.
        unsafe { &*self.slot.value.get() }.as_ref().expect("a value that is held")
    }
}

impl<T> Drop for Held<T> {
    #[inline]
    fn drop(&mut self) {
        let before = self.slot.word.fetch_sub(1, Ordering::Release);
        if before & (VALID | HELD) == 1 {
            self.vacate();
        }
    }
}

impl<T> Held<T> {
    /// Drops the value of a slot that has no valid handle and that nobody holds any more.
    #[cold]
    fn vacate(&self) {
        fence(Ordering::Acquire);
        // SAFETY: only the last that held it comes here. The fence makes what the others did happen
        // before, and the slot is not free yet.
        let value = unsafe { (*self.slot.value.get()).take() };
        let uses = self.slot.word.load(Ordering::Relaxed) / ONE_USE + 1;
        // A slot whose uses no longer fit a handle is not used again.
        if uses < 1 << USES_BITS {
            self.slot.word.store(uses * ONE_USE, Ordering::Relaxed);
            self.table.free.lock().unwrap_or_else(PoisonError::into_inner).used.push(self.index);
        }
        drop(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::{AtomicBool, AtomicUsize},
        thread,
    };

    /// A value that counts itself.
    struct Counted<'c>(&'c AtomicUsize, AtomicBool);

    impl<'c> Counted<'c> {
        fn new(count: &'c AtomicUsize) -> Counted<'c> {
            count.fetch_add(1, Ordering::SeqCst);
            Counted(count, AtomicBool::new(true))
        }

        fn is_alive(&self) -> bool {
            self.1.load(Ordering::SeqCst)
        }
    }

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            assert!(self.1.swap(false, Ordering::SeqCst), "dropped twice");
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_handle_is_valid_until_it_is_freed_and_its_value_lives_while_it_is_held() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        static TABLE: Table<Counted<'_>> = Table::new(3, "test");
        let handles: Vec<u64> = (0..1000).map(|_| TABLE.add(Counted::new(&COUNT))).collect();
        assert_eq!(handles[0], 3 << 56 | 1);
        assert!(handles.iter().all(|&handle| TABLE.get(handle).is_ok_and(|held| held.is_alive())));
        let held = TABLE.get(handles[500]).unwrap();
        handles.iter().for_each(|&handle| drop(TABLE.remove(handle).unwrap()));
        assert!(held.is_alive() && COUNT.load(Ordering::SeqCst) == 1);
        drop(held);
        assert_eq!(COUNT.load(Ordering::SeqCst), 0);
        for handle in handles.iter().copied().chain([0, 1, 3 << 56, 3 << 56 | 2000, 3 << 56 | 0xfff_ffff, !0]) {
            assert!(TABLE.get(handle).is_err() && TABLE.remove(handle).is_err(), "{handle:#x}");
        }
        // The slots are used again, with other handles.
        let again: Vec<u64> = (0..1000).map(|_| TABLE.add(Counted::new(&COUNT))).collect();
        assert!(again.iter().all(|handle| !handles.contains(handle) && handle & 0xfff_ffff <= 1000));
        let other = 4 << 56 | again[0] & !(0xff << 56);
        assert!(TABLE.get(other).is_err() && TABLE.get(again[0]).is_ok());
    }

    #[test]
    fn threads_use_and_free_handles_at_once() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        static TABLE: Table<Counted<'_>> = Table::new(1, "test");
        const THREADS: usize = 4;
        let latest = AtomicU64::new(TABLE.add(Counted::new(&COUNT)));
        let freed = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let handle = latest.load(Ordering::SeqCst);
                        if let Ok(held) = TABLE.get(handle) {
                            assert!(held.is_alive());
                        }
                        // One of the threads frees a handle, and makes the next one.
                        if let Ok(held) = TABLE.remove(handle) {
                            assert!(held.is_alive());
                            freed.fetch_add(1, Ordering::SeqCst);
                            latest.store(TABLE.add(Counted::new(&COUNT)), Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        assert!(freed.load(Ordering::SeqCst) > 0);
        drop(TABLE.remove(latest.load(Ordering::SeqCst)).unwrap());
        assert_eq!(COUNT.load(Ordering::SeqCst), 0);
    }
}
