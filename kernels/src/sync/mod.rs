//! What the protocol asks of the machine's memory and of sleep.

#[macro_use]
pub(crate) mod record;
pub(crate) mod plain;
#[doc(hidden)]
pub mod watch;
pub(crate) mod atomics;
pub(crate) mod futex;
pub(crate) mod wait;
