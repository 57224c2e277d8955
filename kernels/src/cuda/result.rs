//! The driver's functions, each of which returns a [`Result`]. This is the only place where a code
//! of the driver becomes one.

use super::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule, CUresult, CUstream, CUuuid, Functions,
};
use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    fmt, ptr,
};

/// An error of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The function that returned it, such as `"cuMemAlloc_v2"`.
    pub function: &'static str,
    /// The driver's code.
    pub code: CUresult,
    /// The code's name, such as `"CUDA_ERROR_OUT_OF_MEMORY"`; empty if the driver has none.
    pub name: String,
    /// The driver's words for the code; empty if it has none.
    pub text: String,
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DriverError { function, code: CUresult(code), name, text } = self;
        write!(f, "{function} failed with code {code}")?;
        if !name.is_empty() {
            write!(f, " ({name})")?;
        }
        if !text.is_empty() {
            write!(f, ": {text}")?;
        }
        Ok(())
    }
}

impl std::error::Error for DriverError {}

/// Returns whether work has ended, from the result of a query. A query tells by an error that the
/// work has not ended.
pub(super) fn has_ended(query: Result<(), DriverError>) -> Result<bool, DriverError> {
    match query {
        Ok(()) => Ok(true),
        Err(error) if error.code == CUresult::NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
}

type Texts = unsafe extern "system" fn(CUresult, *mut *const c_char) -> CUresult;

/// Returns the driver's text for a code; an empty one if it has none.
fn text_of(texts: Texts, code: CUresult) -> String {
    let mut text = ptr::null();
    // SAFETY: the functions take any code, and write a pointer.
    let result = unsafe { texts(code, &mut text) };
    if result != CUresult::SUCCESS || text.is_null() {
        return String::new();
    }
    // SAFETY: a function that succeeds gives a text of its own, which ends with a zero and is never
    // freed.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

macro_rules! call {
    ($($method:ident = $symbol:ident($($argument:ident: $type:ty),*);)*) => {
        /// Calls the functions. Each method's errors are the driver's.
        #[allow(clippy::too_many_arguments, reason = "the driver's functions have as many as they have")]
        #[allow(dead_code, reason = "the texts of errors are asked for by the error itself")]
        impl Functions {
            $(
                /// Calls the driver's function.
                ///
                /// # Safety
                /// The arguments are as the driver's manual demands for this function: pointers are
                /// valid for what it reads and writes, handles are alive.
                pub(super) unsafe fn $method(&self, $($argument: $type),*) -> Result<(), DriverError> {
                    // SAFETY: the caller's promise is the same.
                    let code = unsafe { (self.$method)($($argument),*) };
                    if code == CUresult::SUCCESS {
                        return Ok(());
                    }
                    // An answer of queries, which are asked often.
                    let is_answer = code == CUresult::NOT_READY;
                    let text_of = |texts| if is_answer { String::new() } else { text_of(texts, code) };
                    let (name, text) = (text_of(self.error_name), text_of(self.error_string));
                    Err(DriverError { function: stringify!($symbol), code, name, text })
                }
            )*
        }
    };
}

crate::for_each_driver_function!(call);
