//! The functions by which a test controls the library.

use crate::{objects, plan::Plan};
use std::{
    ffi::{CStr, c_char, c_int},
    slice,
};

/// Begins again with the plan in this text, see [`Plan`]. Objects that are alive are forgotten.
/// Returns 0, or 1 if the text is no plan.
///
/// # Safety
/// The text ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consonance_fake_configure(text: *const c_char) -> c_int {
    // SAFETY: by the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_string_lossy().parse::<Plan>() {
        Ok(plan) => {
            objects::configure(plan);
            0
        }
        Err(_) => 1,
    }
}

/// Writes what is alive, a line each: `memory 3` for three allocations. Then come lines `call
/// FUNCTION COUNT`, `misuse …` and `fault …`. Returns the number of bytes of the whole report, of
/// which the first ones are written.
///
/// # Safety
/// The buffer has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn consonance_fake_report(buffer: *mut u8, bytes: usize) -> usize {
    let report = objects::report();
    let written = report.len().min(bytes);
    if written > 0 {
        // SAFETY: by the caller's promise.
        unsafe { slice::from_raw_parts_mut(buffer, written) }.copy_from_slice(&report.as_bytes()[..written]);
    }
    report.len()
}
