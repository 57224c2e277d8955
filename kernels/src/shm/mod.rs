//! The memory that the processes of one group share: one anonymous file, mapped whole by each of
//! them.
//!
//! A segment is large in addresses and small in memory: the file has its full size from the start
//! and is sealed, so that it can neither shrink under who reads it nor grow, but its pages are
//! *reserved* (`fallocate`) part by part, by whoever is about to use them. What cannot be reserved
//! is an error. A page that nobody reserved would be made by the first touch, and where there is no
//! memory for it, that touch would end the process by `SIGBUS`; therefore nothing here is touched
//! before it is reserved. A container is charged for what its processes reserve, and at its limit
//! the kernel refuses nothing: it ends one of them.
//!
//! The file has no name: it ends with the last process that has it, however that one ends.
//!
//! Nothing that lies in the segment is trusted: [`Segment::open`] checks that it is what its peers
//! say, and every address is computed from what this process knows itself (`layout.rs`). No
//! reference is formed to bytes that a peer may write; only atomics are shared by reference.
//!
//! All bits zero are a fresh head, line and ring, because that is what new pages are.

pub(crate) mod records;
pub mod call_log;
pub(crate) mod local;
#[cfg(target_os = "linux")]
mod group_id;
#[cfg(target_os = "linux")]
mod error;
#[cfg(target_os = "linux")]
mod mapping;
#[cfg(target_os = "linux")]
pub mod codes;
#[cfg(target_os = "linux")]
mod layout;
#[cfg(target_os = "linux")]
mod header;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
mod fork_mark;
#[cfg(target_os = "linux")]
mod account;
#[cfg(target_os = "linux")]
mod segment;
#[cfg(target_os = "linux")]
mod heap;
#[cfg(target_os = "linux")]
mod inspect;
#[cfg(all(target_os = "linux", debug_assertions))]
mod parts;
#[cfg(not(target_os = "linux"))]
mod none;
#[cfg(all(test, target_os = "linux"))]
mod tests;

#[cfg(target_os = "linux")]
pub(crate) use layout::Area;
#[cfg(not(target_os = "linux"))]
pub(crate) use none::Area;
#[cfg(not(target_os = "linux"))]
pub use none::{Segment, Shape};
#[cfg(all(target_os = "linux", debug_assertions))]
#[doc(hidden)]
pub use parts::Part;
#[cfg(target_os = "linux")]
pub use {
    error::SegmentError,
    group_id::GroupId,
    inspect::{Inspection, RankCalls},
    layout::Shape,
    segment::Segment,
};
