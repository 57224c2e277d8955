//! Reductions along axes whose sizes differ between replicas, against the spec.

#![no_main]

mod unit_end;

use consonance_harness::{
    compare::{self, check},
    subjects::STRATEGIES,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| unit_end::end(check(bytes, STRATEGIES, compare::axes)));
