//! Bytes as a file of each format that data sets read: at worst an error.

#![no_main]

use consonance_harness::compare::file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| file(bytes).unwrap_or_else(|wrong| panic!("{wrong}")));
