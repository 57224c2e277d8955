//! Text as a `TF_CONFIG`: refused, or written as text that is read as the same.

#![no_main]

use consonance_harness::external_input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| external_input::tf_config(text).unwrap_or_else(|wrong| panic!("{wrong}")));
