//! Bytes as a checkpoint: after an error the variables are unchanged, and restored variables can be
//! saved.

#![no_main]

use consonance_harness::compare::checkpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| checkpoint(bytes).unwrap_or_else(|wrong| panic!("{wrong}")));
