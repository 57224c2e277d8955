//! Synchronisation: the atomics and the sleep are the model's.

#[macro_use]
#[path = "../../../src/sync/record.rs"]
#[allow(dead_code, reason = "the model has no segment of bytes")]
pub(crate) mod record;
#[path = "../../../src/sync/plain.rs"]
#[allow(unused_imports, reason = "the model needs a part of it")]
pub(crate) mod plain;
pub(crate) mod fork;
pub(crate) mod atomics;
pub(crate) mod futex;
#[path = "../../../src/sync/wait.rs"]
#[allow(dead_code, reason = "the model needs a part of it")]
pub(crate) mod wait;
pub(crate) mod core;
