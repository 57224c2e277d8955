//! Arithmetic of floats with every rounding mode of PTX.

mod exact;
mod format;
mod rounding;

pub(crate) use exact::Exact;
pub(crate) use format::{BF16, F16, F32, F64, Format, Value};
pub(crate) use rounding::Rounding;
