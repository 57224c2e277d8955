//! Shared memory: the records are the protocol's, the segment is the model's.

#[path = "../../../src/shm/records.rs"]
#[allow(dead_code, reason = "the model needs a part of it")]
pub(crate) mod records;
#[path = "../../../src/shm/ring.rs"]
pub(crate) mod ring;
#[path = "../../../src/shm/codes.rs"]
#[allow(dead_code, reason = "the model needs a part of it")]
pub(crate) mod codes;
#[path = "../../../src/shm/rank_gpu.rs"]
pub(crate) mod rank_gpu;
#[path = "../../../src/shm/call_log.rs"]
#[allow(dead_code, reason = "the model needs a part of it")]
pub(crate) mod call_log_text;
pub(crate) mod call_log;
#[path = "../../../src/shm/local.rs"]
pub(crate) mod local;
#[path = "../../../src/shm/version.rs"]
pub(crate) mod version;
mod segment;

/// Limit on the bytes of an inline payload: a new record fits the stack of a thread of the model.
pub(crate) const PAYLOAD_BYTES: usize = 1 << 10;

pub(crate) use segment::{Area, Segment, Shape, watch_payloads};
