//! The memory that the processes of one group share: an anonymous file that each process maps as a
//! whole.
//!
//! A segment takes many addresses and little memory. The file has its full size from the start and
//! is sealed: it can neither shrink under a reader nor grow. Its pages are *reserved* (`fallocate`)
//! part by part, each by the process that is about to use them. A failed reservation is an error.
//! The first touch of a page that nobody reserved would allocate the page; if there is no memory
//! for it, that touch raises `SIGBUS`, which ends the process. So nothing here is touched before it
//! is reserved. A container is charged for the pages that its processes reserve. At the container's
//! limit the kernel does not refuse a reservation: it ends one of the processes.
//!
//! The file has no name. It is freed with the last process that has it, however that process ends.
//!
//! Nothing in the segment is trusted. [`Segment::open`] checks that the file is what its peers say.
//! Every address is computed from values that this process knows itself (`layout/mod.rs`). No
//! reference is formed to bytes that a peer may write; only atomics are shared by reference.
//!
//! [`Published`] memory is a file of its own, which one process writes and others read
//! (`published/`).
//!
//! New pages are zero, so all bits zero are a valid new head, rank record and call log.

pub(crate) mod records;
pub(crate) mod ring;
pub(crate) mod rank_gpu;
pub mod call_log;
pub mod codes;
pub(crate) mod local;
#[cfg(target_os = "linux")]
mod group_id;
#[cfg(target_os = "linux")]
mod error;
#[cfg(target_os = "linux")]
mod mapping;
#[cfg(target_os = "linux")]
mod life;
#[cfg(target_os = "linux")]
mod layout;
#[cfg(target_os = "linux")]
mod header;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
mod title;
#[cfg(target_os = "linux")]
mod fork_mark;
#[cfg(target_os = "linux")]
mod views;
#[cfg(target_os = "linux")]
mod account;
#[cfg(target_os = "linux")]
mod segment;
#[cfg(target_os = "linux")]
pub(crate) mod deaths;
#[cfg(target_os = "linux")]
mod heap;
#[cfg(target_os = "linux")]
mod inspection;
#[cfg(target_os = "linux")]
mod shared_file;
#[cfg(target_os = "linux")]
mod version;
#[cfg(target_os = "linux")]
mod published;
#[cfg(all(target_os = "linux", debug_assertions))]
mod parts;
#[cfg(not(target_os = "linux"))]
mod absent_segment;
#[cfg(all(test, target_os = "linux"))]
mod tests;

/// Limit on the bytes of an inline payload, which comes with an arrival: 8 KiB of data and 64
/// words.
pub(crate) const PAYLOAD_BYTES: usize = (8 << 10) + 512;

#[cfg(not(target_os = "linux"))]
pub(crate) use absent_segment::Area;
#[cfg(not(target_os = "linux"))]
pub use absent_segment::{Segment, Shape};
#[cfg(target_os = "linux")]
pub(crate) use layout::Area;
#[cfg(all(target_os = "linux", debug_assertions))]
#[doc(hidden)]
pub use parts::Part;
#[cfg(target_os = "linux")]
pub use {
    error::SegmentError,
    group_id::GroupId,
    inspection::{Inspection, RankCalls},
    layout::Shape,
    published::{Published, PublishedView, Reading},
    segment::Segment,
    shared_file::SharedFile,
    title::LinkTitle,
};
