//! Code for the CPU: copies, prefetches and the reduction are the model's.

#[path = "../../../src/cpu/cache_hints.rs"]
#[allow(dead_code, reason = "the model needs a part of it")]
pub(crate) mod cache_hints;
pub(crate) mod copy;
#[path = "../../../src/cpu/duplicate.rs"]
#[allow(dead_code, reason = "the model needs a part of it")]
pub(crate) mod duplicate;
pub(crate) mod prefetch;
#[allow(dead_code, reason = "the model sums only")]
pub(crate) mod reduce;
