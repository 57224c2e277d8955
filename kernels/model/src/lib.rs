//! The protocol by which ranks meet, run by a model checker through its interleavings.
//!
//! The files of `kernels/src` that make up the protocol are compiled here a second time, the same
//! text, on other ground: the atomics and the sleep are loom's, and memory that ranks share is
//! watched, so that two ranks that touch it at the same time are found as surely as a wrong sum or
//! a rank that nobody wakes. Loom knows what the memory model allows, and so shows what no test on
//! this machine's processor can.
//!
//! [`scenario`] has what is run, [`fault`] what is broken on purpose to see that the model finds
//! it.
// Compiled for a test, the protocol's files would bring their own tests.
#![cfg(not(test))]
#![allow(
    missing_docs,
    unreachable_pub,
    reason = "for the tests of this crate; the protocol's files have docs where they are used"
)]

// The ground.
mod data;
pub mod fault;
#[macro_use]
mod sync;
mod memory;
mod cpu;
mod os;
mod shm;
mod watched;

// The protocol, as it is.
#[path = "../../src/group/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the model needs a part of it")]
mod group;

pub mod scenario;
