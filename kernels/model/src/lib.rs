//! The protocol by which ranks meet, run by a model checker through its interleavings.
//!
//! The files of `kernels/src` that make up the protocol are compiled here a second time, the same text, on other ground: the
//! atomics and the sleep are loom's, and memory that ranks share is watched, so that two ranks that touch it at the same time
//! are found as surely as a wrong sum or a rank that nobody wakes. Loom knows what the memory model allows, and so shows what
//! no test on this machine's processor can.
//!
//! [`scenario`] has what is run, [`fault`] what is broken on purpose to see that the model finds it.
// Compiled for a test, the protocol's files would bring their own tests.
#![cfg(not(test))]
#![allow(
    missing_docs,
    unreachable_pub,
    reason = "for the tests of this crate; the protocol's files have docs where they are used"
)]

// The ground.
mod atomics;
mod copy;
pub mod fault;
mod futex;
mod memory;
mod pages;
#[allow(dead_code, reason = "the model sums only")]
mod reduce;
mod remote;
mod segment;
mod trace;
use trace as ring;

// The protocol, as it is.
#[path = "../../src/buffer.rs"]
#[allow(dead_code, reason = "the model needs a part of it")]
mod buffer;
#[path = "../../src/direct.rs"]
mod direct;
#[path = "../../src/flow.rs"]
#[allow(dead_code, reason = "as above")]
mod flow;
#[path = "../../src/hub.rs"]
#[allow(dead_code, reason = "as above")]
mod hub;
#[path = "../../src/line.rs"]
#[allow(dead_code, reason = "as above")]
mod line;
#[path = "../../src/phase.rs"]
#[allow(dead_code, reason = "as above")]
mod phase;
#[path = "../../src/plan.rs"]
#[allow(dead_code, reason = "as above")]
mod plan;
#[path = "../../src/ring.rs"]
#[allow(dead_code, reason = "as above")]
mod ring_text;
#[path = "../../src/shared.rs"]
mod shared;
#[path = "../../src/stage.rs"]
#[allow(dead_code, reason = "as above")]
mod stage;
#[path = "../../src/step.rs"]
#[allow(dead_code, reason = "as above")]
mod step;
#[path = "../../src/trade.rs"]
mod trade;
#[path = "../../src/wait.rs"]
#[allow(dead_code, reason = "as above")]
mod wait;

pub mod scenario;
