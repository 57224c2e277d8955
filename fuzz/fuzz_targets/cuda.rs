//! Kernels of CUDA devices on random shapes, on the interpreter, against the spec.

#![no_main]

use consonance_harness::cuda::fuzzed;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzzed(bytes).unwrap_or_else(|wrong| panic!("{wrong}")));
