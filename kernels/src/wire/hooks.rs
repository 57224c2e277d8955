//! Keeps UCX from rewriting the C library's `mmap`, `munmap` and others while it is loaded: it
//! writes jumps over their first instructions, and another thread that runs these ends in the
//! middle of a jump. UCX wants to see there which memory goes, for its cache of registrations.

use std::{
    env,
    ffi::{CStr, c_char},
    ptr,
    sync::Mutex,
};

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// The variable by which UCX is told when it is loaded, and by nothing else.
const VARIABLE: &str = "UCX_MEM_EVENTS";
const TEXT: &CStr = c"UCX_MEM_EVENTS=n";

/// Runs `load` with the variable in the environment, unless the user has set it.
pub(super) fn without<T>(load: impl FnOnce() -> T) -> T {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    if env::var_os(VARIABLE).is_some() {
        return load();
    }
    let of_process = ptr::addr_of_mut!(environ);
    // SAFETY: the C library's list of variables ends with null. A thread that changes a variable
    // now makes a list of its own, of which at worst this one knows nothing.
    let before = unsafe { *of_process };
    let mut list = Vec::new();
    if !before.is_null() {
        // SAFETY: as above.
        list.extend((0..).map(|place| unsafe { *before.add(place) }).take_while(|text| !text.is_null()));
    }
    list.extend([TEXT.as_ptr().cast_mut(), ptr::null_mut()]);
    // Another thread may be reading a list, so neither is ever freed or changed.
    let with: *mut *mut c_char = list.leak().as_mut_ptr();
    // SAFETY: the list is complete.
    unsafe { of_process.write_volatile(with) };
    let loaded = load();
    // SAFETY: the list from before is still there. If another thread has set a variable meanwhile,
    // the list is that thread's, and keeps the variable of this one.
    unsafe {
        if *of_process == with {
            of_process.write_volatile(before);
        }
    }
    loaded
}
