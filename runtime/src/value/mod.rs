//! What replicas hold and exchange: tensors, structures of them, and values that differ from
//! replica to replica.

pub(crate) mod tensor;
pub(crate) mod indexed_slices;
pub(crate) mod axis;
pub mod nest;
pub(crate) mod per_replica;
