//! Below the typed slices of [`Communicator`](crate::Communicator): calls as values, buffers whose
//! element type is a value, and the engines that carry them out. For bindings to other languages,
//! and for engines of your own.
//!
//! [`Communicator::execute`](crate::Communicator::execute) makes a [`Call`]; [`Buf`] and [`BufMut`]
//! come from typed slices, or from a pointer by [`Buf::from_raw`]. [`Engine`] is what to implement
//! for another way between ranks.

pub use crate::comm::{
    agreement::Agreement,
    call::Call,
    engine::{Abort, AbortHandle, Engine, Failure, Service},
    options::Configuration,
};
pub use consonance_kernels::{
    group::Reason,
    memory::{Buf, BufMut, HostBuf, HostBufMut, Memory, Space},
};
pub use consonance_spec::{Kind, Signature};
