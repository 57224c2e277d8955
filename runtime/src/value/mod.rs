//! The values that replicas hold and exchange: tensors, nests of tensors, and values that differ
//! per replica.

pub(crate) mod tensor;
pub(crate) mod elements;
pub(crate) mod display;
#[cfg(feature = "ndarray")]
mod ndarray;
#[cfg(feature = "serde")]
mod serde;
pub(crate) mod indexed_slices;
pub(crate) mod axis;
pub(crate) mod exact;
pub mod nest;
pub(crate) mod per_replica;
pub(crate) mod grains;
pub(crate) mod contract;
mod device_copy;
