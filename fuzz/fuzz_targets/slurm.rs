//! Text as Slurm's lists: refused, or written as lists that are read as the same.

#![no_main]

use consonance_harness::parsers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| parsers::slurm(text).unwrap_or_else(|wrong| panic!("{wrong}")));
