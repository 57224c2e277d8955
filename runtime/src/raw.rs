//! The untyped layer below [`Communicator`](crate::Communicator): calls as values, buffers with
//! their element type as a value, and the engines that execute calls. For bindings to other
//! languages and for custom engines.
//!
//! [`Communicator::execute`](crate::Communicator::execute) executes a [`Call`]. [`Buf`] and
//! [`BufMut`] are made from typed slices, or from a pointer by [`Buf::from_raw`]. A [`LeafSum`] has
//! several contributions of a rank. Implement [`Engine`] for another transport between ranks.

pub use crate::cluster::Role;
#[doc(hidden)]
pub use crate::comm::engine::{Buffers, Copies, Crossing, LeavesStep, Place, Way};
pub use crate::comm::{
    accumulator::LeafSum,
    agreement::Agreement,
    call::Call,
    engine::{Abort, AbortHandle, Carrier, Engine, Explanation, Failure, Inbox, Letter, Service},
    options::Configuration,
    tagged_messages::{FinishMessage, MessageFault, Tag, TaggedMessages},
};
pub use crate::kind::EXTENSIONS;
pub use consonance_kernels::sync::fork::Origin;
#[cfg(target_os = "linux")]
pub use consonance_kernels::wire::Wire;
pub use consonance_kernels::{
    cuda::CallerStream,
    group::{Envelope, KeepWaiting, Reason},
    memory::{Buf, BufMut, DeviceBlock, DeviceMemory, HostBuf, HostBufMut, HostMemory, Memory, Space},
    os::launcher::Blame,
};
pub use consonance_spec::{Class, Extension, Kind, Signature};
