//! The synchronisation protocol of ranks, which a model checker runs through its interleavings.
//!
//! The files of `kernels/src` that contain the protocol are compiled here a second time, unchanged,
//! with other primitives: the atomics and the sleep are loom's, and memory that ranks share is
//! watched. So the model finds two ranks that touch the same memory at the same time, as well as a
//! wrong sum or a rank that is never woken. Loom knows what the memory model allows. It therefore
//! finds errors that no test on one kind of processor can.
//!
//! [`scenario`] contains the scenarios. [`fault`] plants faults, which the model must find.
// Compiled for a test, the protocol's files would bring their own tests.
#![cfg(not(test))]
#![allow(
    missing_docs,
    unreachable_pub,
    reason = "for the tests of this crate; the protocol's files have docs where they are used"
)]

// Replacements of the machine.
mod data;
pub mod fault;
#[macro_use]
mod sync;
#[path = "../../src/digest.rs"]
#[allow(dead_code, reason = "the model needs a part of it")]
mod digest;
#[path = "../../src/tuning/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the model needs the defaults")]
mod tuning;
mod memory;
mod cpu;
mod os;
mod shm;
mod watched_memory;

// The protocol, unchanged.
#[path = "../../src/group/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the model needs a part of it")]
mod group;

pub mod scenario;
