//! A `memcpy` and a `memmove` that note the largest number of bytes.
//!
//! A program that uses this crate has them in the place of the C library's: the linker takes them
//! for every call, also for those that the compiler makes of loops. A copy inside the C library,
//! such as that of `realloc`, is not seen.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::{
    arch::asm,
    cell::Cell,
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

pub mod object_code;
pub mod planted_copies;

/// A few hundred bytes. Larger copies are [found].
pub const MOST: usize = 512;

/// The largest copy of each kind of work, if it is too large.
static FOUND: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// The largest copy of this thread, if it is watched.
    static LARGEST: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Does `work`, and notes the copies that this thread makes meanwhile under the name `what`.
pub fn watched<T>(what: &str, work: impl FnOnce() -> T) -> T {
    LARGEST.set(Some(0));
    let result = work();
    let largest = LARGEST.take().unwrap_or(0);
    if largest > MOST {
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        let most = found.entry(what.to_owned()).or_default();
        *most = largest.max(*most);
    }
    result
}

/// Does `work`, a part of [watched] work that may copy as it likes.
pub fn unwatched<T>(work: impl FnOnce() -> T) -> T {
    let largest = LARGEST.take();
    let result = work();
    LARGEST.set(largest);
    result
}

/// Returns the kinds of work whose copies were too large so far, with the largest, and forgets
/// them.
pub fn found() -> BTreeMap<String, usize> {
    std::mem::take(&mut *FOUND.lock().unwrap_or_else(PoisonError::into_inner))
}

fn note(bytes: usize) {
    // A copy after the thread's values are gone is not of a data path.
    let _ = LARGEST.try_with(|largest| {
        if let Some(most) = largest.get()
            && bytes > most
        {
            largest.set(Some(bytes));
        }
    });
}

/// # Safety
/// As C's `memcpy`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(target: *mut u8, source: *const u8, bytes: usize) -> *mut u8 {
    note(bytes);
    // SAFETY: the caller's promises are the same; the direction flag is clear in Rust and C code.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rsi") source => _,
            inout("rdi") target => _,
            options(nostack, preserves_flags)
        );
    }
    target
}

/// # Safety
/// As C's `memmove`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(target: *mut u8, source: *const u8, bytes: usize) -> *mut u8 {
    if bytes == 0 || target.addr().wrapping_sub(source.addr()) >= bytes {
        // SAFETY: the caller's promises are the same; no byte is written before it is read, since
        // the target does not begin within the source.
        return unsafe { memcpy(target, source, bytes) };
    }
    note(bytes);
    let (last, last_target) = (source.wrapping_add(bytes - 1), target.wrapping_add(bytes - 1));
    // SAFETY: the caller's promises are the same; from the last byte to the first, no byte is
    // written before it is read. The direction flag is clear again at the end.
    unsafe {
        asm!(
            "std",
            "rep movsb",
            "cld",
            inout("rcx") bytes => _,
            inout("rsi") last => _,
            inout("rdi") last_target => _,
            options(nostack)
        );
    }
    target
}
