//! The timeline of the calls of processes, from the records that their threads have written.
//! Perfetto and `chrome://tracing` open it.
//!
//! `consonance run --profile` makes it for its workers, and `consonance timeline` for processes
//! that another launcher has started (`folders.rs`). Both correct the times of hosts (`clocks.rs`)
//! and write the tracks of all threads (`tracks.rs`).

mod clocks;
mod folders;
mod tracks;

pub(crate) use clocks::Clock;
pub(crate) use folders::{Joined, join};
pub(crate) use tracks::{Clocks, Count, Recorded, Worker, count, tracks_of, write};
