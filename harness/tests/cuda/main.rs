//! The kernels of CUDA devices, as PTX that ships, on the interpreter: bit for bit the results of
//! the spec and of the host. Each test prints how many cases it ran.

mod pairwise;
mod table;
mod folds;
mod alongs;
mod moves;
mod faults;

use consonance_harness::cuda::{Case, Interpreter};
use consonance_spec::{DType, ReduceOp};

/// Judges a case on an interpreter whose blocks and warps take turns as `seed` says.
fn judge(seed: u64, case: Case) {
    Interpreter::new(seed).judge(&case).unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// Returns each operation with each type on which it is defined.
fn defined() -> Vec<(ReduceOp, DType)> {
    let of = |&dtype: &DType| ReduceOp::ALL.into_iter().map(move |op| (op, dtype));
    DType::ALL.iter().flat_map(of).filter(|(op, dtype)| op.result(*dtype).is_some()).collect()
}
