//! The errors of a wire.

use std::{error, fmt};

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
        /// The library's words.
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
    /// The peer is no peer of this wire: the reason in words.
    Foreign {
        /// The number of the peer.
        peer: usize,
        /// The reason.
        why: String,
    },
    /// The program has ended the library, or the process ends.
    Ended,
    /// A function of the library failed.
    Library {
        /// The function, such as `"ucp_ep_create"`.
        function: &'static str,
        /// The library's status.
        status: i32,
        /// The library's words.
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
            WireError::Foreign { peer, why } => write!(f, "peer {peer} cannot be reached: {why}"),
            WireError::Ended => write!(f, "the program has called MPI_Finalize; drop what uses a wire before"),
            WireError::Library { function, status, text } => {
                write!(f, "{function} failed with status {status}: {text}")
            }
        }
    }
}

impl error::Error for WireError {}
