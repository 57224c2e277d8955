//! The functions by which a test controls the library.

use crate::{objects, plan::Plan};
use libloading::Library;
use std::{
    ffi::{CStr, c_char, c_int},
    path::Path,
    slice,
};

/// The name of the function that reports.
const REPORT: &[u8] = b"consonance_fake_report\0";

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
/// FUNCTION COUNT`, `enqueued DEVICE WORK COUNT BYTES`, `misuse …` and `fault …`. A copy is work
/// `to_host` or `to_device`, a launch is work with the name of its kernel. Returns the number of
/// bytes of the whole report, of which the first ones are written.
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

/// Returns the report of the library at this path, which this process has loaded as its driver.
///
/// # Panics
/// If it is no such library.
pub fn report_of(library: &Path) -> String {
    // SAFETY: the library runs no code when it is loaded.
    let library = unsafe { Library::new(library) }.unwrap_or_else(|error| panic!("{}: {error}", library.display()));
    let mut bytes = vec![0; 1 << 20];
    // SAFETY: the function has this type, and the buffer the room.
    let written = unsafe {
        let report = library.get::<unsafe extern "C" fn(*mut u8, usize) -> usize>(REPORT);
        report.expect("the function")(bytes.as_mut_ptr(), bytes.len())
    };
    assert!(written <= bytes.len(), "a report of {written} bytes");
    bytes.truncate(written);
    String::from_utf8(bytes).expect("a text")
}
