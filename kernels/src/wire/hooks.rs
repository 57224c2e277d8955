//! Keeps UCX and Open MPI from rewriting the C library's `mmap`, `munmap` and others while they are
//! loaded or start: they write jumps over the first instructions, and another thread that runs
//! these ends in the middle of a jump. They want to see there which memory goes, for their caches
//! of registrations.

use std::{
    env,
    ffi::{CString, OsString, c_char},
    os::unix::ffi::OsStrExt,
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
};

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// The variables by which they are told then, and by nothing else: those of UCX and of Open MPI.
const VARIABLES: [(&str, &str); 2] = [("UCX_MEM_EVENTS", "n"), ("OMPI_MCA_memory", "^patcher")];

/// The lists of variables that were made. Another thread may read one, or make a list from it, so
/// neither a list nor its texts are ever freed.
struct Lists {
    made: Vec<Vec<*mut c_char>>,
    /// The number of calls that need the list of the first of them, and the one from before.
    calls: usize,
    before: *mut *mut c_char,
}

// SAFETY: nobody reads or writes through these pointers under the lock.
unsafe impl Send for Lists {}

static LISTS: Mutex<Lists> = Mutex::new(Lists { made: Vec::new(), calls: 0, before: ptr::null_mut() });

fn lists() -> MutexGuard<'static, Lists> {
    LISTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a call that needs the variables.
struct Needed;

impl Drop for Needed {
    fn drop(&mut self) {
        let mut lists = lists();
        lists.calls -= 1;
        let of_process = ptr::addr_of_mut!(environ);
        let with = lists.made.last_mut().map_or(ptr::null_mut(), |list| list.as_mut_ptr());
        // SAFETY: the list from before is complete. If another thread has set a variable meanwhile,
        // the list is that thread's, and stays.
        unsafe {
            if lists.calls == 0 && of_process.read_volatile() == with {
                of_process.write_volatile(lists.before);
            }
        }
    }
}

/// Runs `load` with the variables in the environment, without those that the user has set. `load`
/// may take long.
pub(super) fn without<T>(load: impl FnOnce() -> T) -> T {
    let _needed = need();
    load()
}

fn need() -> Needed {
    let mut lists = lists();
    lists.calls += 1;
    if lists.calls > 1 {
        return Needed;
    }
    let missing = VARIABLES.into_iter().filter(|(name, _)| env::var_os(name).is_none());
    let missing = missing.map(|(name, value)| (name.into(), value.into()));
    let text =
        |(name, value): (OsString, OsString)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok();
    let mut list: Vec<*mut c_char> = env::vars_os().chain(missing).filter_map(text).map(CString::into_raw).collect();
    list.push(ptr::null_mut());
    let with = list.as_mut_ptr();
    lists.made.push(list);
    let of_process = ptr::addr_of_mut!(environ);
    // SAFETY: the list is complete, and ends with null. The list from before stays as it is for
    // those that read it.
    unsafe {
        lists.before = of_process.read_volatile();
        of_process.write_volatile(with);
    }
    Needed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_at_one_time_have_the_variables_until_the_last_one_ends() {
        let are_set = || VARIABLES.iter().all(|(name, _)| env::var_os(name).is_some());
        let first = need();
        without(|| assert!(are_set()));
        assert!(are_set());
        drop(first);
        // Other tests may load libraries now.
    }
}
