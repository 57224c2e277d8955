//! Reductions and copies, and the instruction sets that they are compiled for.

pub mod isa;
pub(crate) mod half;
pub mod cache_hints;
pub mod reduce;
pub mod axis;
pub mod exact;
pub(crate) mod prefetch;
pub mod ways;
pub mod copy;
pub mod duplicate;
pub mod read;
pub mod rows;
