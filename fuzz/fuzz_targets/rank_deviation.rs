//! A rank that acts differently from the others: every rank is told, and the next call works.

#![no_main]

mod unit_end;

use consonance_harness::{
    compare::{self, check},
    subjects::GROUPS,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| unit_end::end(check(bytes, &GROUPS, compare::rank_deviation)));
