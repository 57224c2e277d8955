//! The C library: `consonance.h`, on top of the crate `consonance`. It translates and decides
//! nothing.
//!
//! A handle is a checked number: a handle that was freed is an error. Each function returns a code.
//! The error of the last call that failed, of a communicator or a thread, has the details. No panic
//! crosses the border. After a `fork`, each call in the child is an error.
//!
//! `codes.rs` has the numbers of element types, operations and errors, which never change.
//! `handles.rs` has the tables of handles. `failure.rs` makes codes and details of errors.
//! `buffers.rs` makes buffers of pointers. `job.rs` is a call with its counts. `leaves.rs` has
//! an accumulator for jobs and handles. `gpu.rs` orders calls on a GPU. The other files have the
//! functions.
#![cfg(target_os = "linux")]

#[macro_use]
mod table;
pub mod codes;
mod failure;
mod handles;
mod buffers;
mod gpu;
mod comm;
mod gpu_communicators;
mod last_error;
mod requests;
mod leaves;
mod job;
mod collectives;
mod coalesced_calls;
mod blocks;
mod accumulators;
mod leaf_reductions;
mod messages;
mod memory;

pub use accumulators::*;
pub use blocks::*;
pub use coalesced_calls::*;
pub use collectives::*;
pub use comm::*;
pub use gpu_communicators::*;
pub use job::Job;
pub use last_error::{ConsError, cons_code_name, cons_last_error};
pub use leaf_reductions::*;
pub use leaves::Leaves;
pub use memory::*;
pub use messages::*;
pub use requests::*;

/// Returns the prototypes of all functions in C, for the test of the header.
pub fn prototypes() -> Vec<String> {
    let files = [
        last_error::PROTOTYPES,
        comm::PROTOTYPES,
        gpu_communicators::PROTOTYPES,
        requests::PROTOTYPES,
        collectives::PROTOTYPES,
        coalesced_calls::PROTOTYPES,
        blocks::PROTOTYPES,
        accumulators::PROTOTYPES,
        leaf_reductions::PROTOTYPES,
        messages::PROTOTYPES,
        memory::PROTOTYPES,
    ];
    files.concat().into_iter().map(table::in_c).collect()
}

/// Returns the sizes of all structs and the places of their fields, for the test of the header.
pub fn layouts() -> Vec<(&'static str, usize)> {
    [&comm::LAYOUTS[..], &[last_error::LAYOUT]].concat().concat()
}
