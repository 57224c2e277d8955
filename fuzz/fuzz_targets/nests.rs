//! Collectives on nests of tensors, by replicas and by strategies, against the spec.

#![no_main]

mod unit_end;

use consonance_harness::{
    compare::{self, check},
    subjects::STRATEGIES,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| unit_end::end(check(bytes, STRATEGIES, compare::nest)));
