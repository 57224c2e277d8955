//! Turns a status of UCX into a [`Result`]. This is the only place where a status becomes one.

use super::sys::{Functions, LAST, OK, ucs_status_ptr_t, ucs_status_t};
use crate::wire::WireError;
use std::{
    ffi::{CStr, c_void},
    ptr::NonNull,
};

impl Functions {
    /// Returns UCX's words for a status.
    pub(super) fn text(&self, status: ucs_status_t) -> String {
        // SAFETY: takes any status, and returns a text that is never freed, or null.
        let text = unsafe { (self.status_string)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: UCX's texts end with a zero.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Returns the result that a status says.
    pub(super) fn check(&self, function: &'static str, status: ucs_status_t) -> Result<(), WireError> {
        match status {
            OK => Ok(()),
            _ => Err(WireError::Library { function, status: i32::from(status), text: self.text(status) }),
        }
    }

    /// Returns the request that an operation made; none if it is complete.
    pub(super) fn request(
        &self,
        function: &'static str,
        pointer: ucs_status_ptr_t,
    ) -> Result<Option<NonNull<c_void>>, WireError> {
        // The last addresses are statuses.
        if pointer.addr() >= (LAST as isize).cast_unsigned() {
            return self.check(function, pointer.addr() as ucs_status_t).map(|()| None);
        }
        Ok(NonNull::new(pointer))
    }
}
