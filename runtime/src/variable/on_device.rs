//! Sums and differences in the memory of a GPU, by the kernels of reductions. They have the bits of
//! the host's.

use crate::{Error, ReduceOp, Result, Tensor, device};
use consonance_kernels::{cuda::Gpu, memory::Memory};
use consonance_spec::{DType, for_each_dtype};
use std::{io, sync::Arc};

/// Returns `value + operand` in new memory of the GPU that has both. The kernels are enqueued.
///
/// # Errors
/// [`Error::System`] if the GPU has no memory, or the driver fails.
pub(super) fn sum(call: &'static str, value: &Tensor, operand: &Tensor) -> Result<Tensor> {
    computed(call, value, |gpu| {
        let (from, count) = ([at(value), at(operand)], value.count());
        fold(gpu, ReduceOp::Sum, value.dtype(), from, count)
    })
}

/// Returns `value - operand`: see [`sum`].
///
/// # Errors
/// As [`sum`].
pub(super) fn difference(call: &'static str, value: &Tensor, operand: &Tensor) -> Result<Tensor> {
    computed(call, value, |gpu| {
        let (dtype, count) = (value.dtype(), value.count());
        let minus_one = Memory::from(gpu.alloc(dtype, count)?);
        gpu.fill(dtype, start(&minus_one), count, bits_of_minus_one(dtype))?;
        // For every type `x - y` equals `x + y * -1` bit for bit.
        let negated = fold(gpu, ReduceOp::Product, dtype, [at(operand), start(&minus_one)], count)?;
        fold(gpu, ReduceOp::Sum, dtype, [at(value), start(&negated)], count)
    })
}

/// Makes a tensor of the value's shape from what is computed on the GPU that has the value.
fn computed(
    call: &'static str,
    value: &Tensor,
    compute: impl FnOnce(&Arc<Gpu>) -> io::Result<Memory>,
) -> Result<Tensor> {
    let gpu = device::open_space(call, value.space())?;
    let what = || format!("{call} of {} on {}", value.spec(), value.space());
    let memory = compute(&gpu).map_err(|source| Error::system(what(), source))?;
    Tensor::from_memory(value.shape().to_vec(), memory)
}

/// Enqueues a reduction of two sources to new memory.
fn fold(gpu: &Arc<Gpu>, op: ReduceOp, dtype: DType, from: [u64; 2], count: usize) -> io::Result<Memory> {
    let result = Memory::from(gpu.alloc(dtype, count)?);
    gpu.fold(op, dtype, (&from, &[start(&result)]), count)?;
    Ok(result)
}

fn at(tensor: &Tensor) -> u64 {
    device::address(&tensor.buf())
}

fn start(memory: &Memory) -> u64 {
    device::address(&memory.as_buf())
}

fn bits_of_minus_one(dtype: DType) -> u64 {
    macro_rules! bits {
        (Float $type:ty) => {
            <$type>::from(-1i8).to_bits().into()
        };
        (Bool $type:ty) => {
            unreachable!("Update::check refuses truth values")
        };
        ($integer:ident $type:ty) => {
            u64::MAX
        };
    }
    macro_rules! by_dtype {
        ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
            match dtype {
                $(DType::$variant => bits!($class $type),)*
            }
        };
    }
    for_each_dtype!(by_dtype)
}
