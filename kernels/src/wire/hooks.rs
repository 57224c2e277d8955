//! Keeps UCX from rewriting the C library's `mmap`, `munmap` and others while it is loaded: it
//! writes jumps over their first instructions, and another thread that runs these ends in the
//! middle of a jump. UCX wants to see there which memory goes, for its cache of registrations.

use std::{
    env,
    ffi::{CString, OsString, c_char},
    os::unix::ffi::OsStrExt,
    ptr,
    sync::{Mutex, PoisonError},
};

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// The variable by which UCX is told when it is loaded, and by nothing else.
const VARIABLE: &str = "UCX_MEM_EVENTS";

/// The lists of variables that were made. Another thread may read one, or make a list from it, so
/// neither a list nor its texts are ever freed.
struct Lists(Vec<Vec<*mut c_char>>);

// SAFETY: nobody reads or writes through these pointers under the lock.
unsafe impl Send for Lists {}

/// Runs `load` with the variable in the environment, unless the user has set it.
pub(super) fn without<T>(load: impl FnOnce() -> T) -> T {
    static LISTS: Mutex<Lists> = Mutex::new(Lists(Vec::new()));
    let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    if env::var_os(VARIABLE).is_some() {
        return load();
    }
    let variables = env::vars_os().chain([(VARIABLE.into(), "n".into())]);
    let text =
        |(name, value): (OsString, OsString)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok();
    let mut list: Vec<*mut c_char> = variables.filter_map(text).map(CString::into_raw).collect();
    list.push(ptr::null_mut());
    let with = list.as_mut_ptr();
    lists.0.push(list);
    let of_process = ptr::addr_of_mut!(environ);
    // SAFETY: the list is complete, and ends with null. The list from before stays as it is for
    // those that read it.
    let before = unsafe {
        let before = of_process.read_volatile();
        of_process.write_volatile(with);
        before
    };
    let loaded = load();
    // SAFETY: as above. If another thread has set a variable meanwhile, the list is that thread's,
    // and stays.
    unsafe {
        if of_process.read_volatile() == with {
            of_process.write_volatile(before);
        }
    }
    loaded
}
