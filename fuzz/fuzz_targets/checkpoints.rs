//! Bytes as a checkpoint: variables are as before after an error, and what was restored can be
//! saved.

#![no_main]

use consonance_harness::compare::checkpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| checkpoint(bytes).unwrap_or_else(|wrong| panic!("{wrong}")));
