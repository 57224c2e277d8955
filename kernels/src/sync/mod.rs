//! Atomics, sleeping and waiting, and the declaration of records in shared memory.

#[macro_use]
pub(crate) mod record;
pub(crate) mod plain;
pub mod fork;
pub mod one_thread;
#[doc(hidden)]
pub mod watch;
pub(crate) mod atomics;
pub(crate) mod core;
pub(crate) mod futex;
pub(crate) mod wait;
