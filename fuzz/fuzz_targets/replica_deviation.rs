//! A replica that acts differently from the others: every replica is told, and the next run works.

#![no_main]

mod unit_end;

use consonance_harness::{
    compare::{self, check},
    subjects::STRATEGIES,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| unit_end::end(check(bytes, STRATEGIES, compare::replica_deviation)));
