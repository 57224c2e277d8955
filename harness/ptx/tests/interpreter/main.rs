//! The interpreter against the manual, against plain Rust, and against faulty kernels.

mod bench;
mod integers;
mod bits;
mod floats;
mod conversions;
mod comparisons;
mod straight_line;
mod branches;
mod exchanges;
mod memory;
mod races;
mod text;
