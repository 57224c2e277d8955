//! The kernels of CUDA devices, as PTX that ships, on the interpreter: bit for bit the results of
//! the spec and of the host. Each test prints how many cases it ran.

mod table;
mod folds;
mod alongs;
mod moves;
mod faults;

use consonance_spec::{DType, ReduceOp};

/// Returns each operation with each type on which it is defined.
fn defined() -> Vec<(ReduceOp, DType)> {
    let of = |&dtype: &DType| ReduceOp::ALL.into_iter().map(move |op| (op, dtype));
    DType::ALL.iter().flat_map(of).filter(|(op, dtype)| op.result(*dtype).is_some()).collect()
}
