//! Messages with tags between the ranks of a group, against the spec.

#![no_main]

mod unit_end;

use consonance_harness::{
    compare::{self, check},
    subjects::GROUPS,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| unit_end::end(check(bytes, &GROUPS, compare::messages)));
