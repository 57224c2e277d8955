//! Text as Slurm's lists: refused, or written as lists that are read as the same.

#![no_main]

use consonance_harness::external_input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| external_input::slurm(text).unwrap_or_else(|wrong| panic!("{wrong}")));
