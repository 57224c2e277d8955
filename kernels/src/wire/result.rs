//! Turns a status of UCX into a [`Result`], and has the errors of a wire. This is the only place
//! where a status becomes one.

use super::sys::{Functions, LAST, OK, ucs_status_ptr_t, ucs_status_t};
use std::{
    error,
    ffi::{CStr, c_void},
    fmt,
    ptr::NonNull,
};

/// The reason why a wire did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireError {
    /// This process is a child, made by `fork`, of the process that opened the wire.
    Forked,
    /// There is no endpoint of this number.
    NotConnected {
        /// The number.
        peer: usize,
    },
    /// There is an endpoint of this number.
    Connected {
        /// The number.
        peer: usize,
    },
    /// The endpoint had a fault.
    Lost {
        /// Its number.
        peer: usize,
        /// UCX's words.
        why: String,
    },
    /// The bytes are no address of a wire.
    Address,
    /// The peer has another version of UCX. Only those of one minor version talk with each other.
    Version {
        /// The version of this wire.
        own: [u32; 3],
        /// The version of the peer.
        theirs: [u32; 3],
    },
    /// A function of UCX failed.
    Library {
        /// The function, such as `"ucp_ep_create"`.
        function: &'static str,
        /// UCX's status.
        status: i8,
        /// UCX's words.
        text: String,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Forked => {
                write!(f, "the wire belongs to the process that forked this one; open a wire in the child")
            }
            WireError::NotConnected { peer } => write!(f, "there is no endpoint of peer {peer}; connect it first"),
            WireError::Connected { peer } => write!(f, "there is an endpoint of peer {peer}"),
            WireError::Lost { peer, why } => write!(f, "the endpoint of peer {peer} is lost: {why}"),
            WireError::Address => write!(f, "the bytes are no address of a wire"),
            WireError::Version { own, theirs } => {
                let [own, theirs] = [own, theirs].map(|[major, minor, release]| format!("{major}.{minor}.{release}"));
                write!(f, "the peer has UCX {theirs}, this process {own}; install one version on all hosts")
            }
            WireError::Library { function, status, text } => {
                write!(f, "{function} failed with status {status}: {text}")
            }
        }
    }
}

impl error::Error for WireError {}

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
            _ => Err(WireError::Library { function, status, text: self.text(status) }),
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
