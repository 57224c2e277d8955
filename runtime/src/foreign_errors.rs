//! Conversions of the errors of user code and of other libraries.

use crate::{BoxError, Error};
use std::fmt;

/// Returns the error itself if the box contains one.
impl From<BoxError> for Error {
    fn from(error: BoxError) -> Self {
        error.downcast().map_or_else(Error::other, |error| *error)
    }
}

/// Returns the error itself if it contains one without context. [`Error::root`] finds one with
/// context.
#[cfg(feature = "anyhow")]
impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Self {
        let is_bare = error.chain().next().is_some_and(|first| first.is::<Error>());
        // With context, a downcast would find the error and drop the context.
        let bare = if is_bare { error.downcast() } else { Err(error) };
        bare.unwrap_or_else(Error::other)
    }
}

/// Conversions of errors of user code. A generic one would overlap with the conversion of `Error`
/// to itself, and a generic error type of replica functions would make `?` in them ambiguous.
macro_rules! from_errors {
    ($($error:ty)*) => {
        $(
            impl From<$error> for Error {
                fn from(error: $error) -> Self {
                    Error::other(error)
                }
            }
        )*
    };
}

from_errors! {
    &'static str String std::io::Error fmt::Error
    std::num::ParseIntError std::num::ParseFloatError std::num::TryFromIntError
    std::str::ParseBoolError std::str::Utf8Error std::string::FromUtf8Error std::string::FromUtf16Error
    std::char::ParseCharError std::char::CharTryFromError std::char::TryFromCharError
    std::array::TryFromSliceError std::collections::TryReserveError
    std::net::AddrParseError std::env::VarError std::env::JoinPathsError std::path::StripPrefixError
    std::time::SystemTimeError std::sync::mpsc::RecvError std::sync::mpsc::RecvTimeoutError
    std::sync::mpsc::TryRecvError std::thread::AccessError std::cell::BorrowError std::cell::BorrowMutError
    std::ffi::NulError std::ffi::FromBytesWithNulError std::ffi::FromBytesUntilNulError std::ffi::IntoStringError
}
