//! Collectives on slices, blocking and asynchronous, against the spec.

#![no_main]

use consonance_harness::{
    compare::{self, check},
    subjects::GROUPS,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check(bytes, GROUPS, compare::script).unwrap_or_else(|wrong| panic!("{wrong}")));
