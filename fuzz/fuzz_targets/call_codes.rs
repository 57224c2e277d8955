//! Codes of calls, as another build may write them: read as the call with the same code, or as an
//! unknown call.

#![no_main]

use consonance_harness::external_input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| external_input::call_codes(bytes).unwrap_or_else(|wrong| panic!("{wrong}")));
