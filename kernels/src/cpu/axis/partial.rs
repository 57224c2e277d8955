//! The result of one replica's elements, for replicas that do not share its memory.

use crate::{cpu::reduce::Kernel, memory::HostMemory};
use consonance_spec::{DType, ReduceOp};
use std::io;

/// One replica's reduction of a tensor along an axis, kept as accumulators.
///
/// ```
/// use consonance_kernels::cpu::axis::{Partial, finish};
/// use consonance_spec::ReduceOp;
///
/// // A batch of two rows on one replica and of one row on another; the mean of the three.
/// let (two, one) = ([1.0f32, 10.0, 2.0, 20.0], [6.0f32, 60.0]);
/// let partials = [
///     Partial::new(ReduceOp::Mean, two[..].into(), [1, 2, 2])?.expect("floats have means"),
///     Partial::new(ReduceOp::Mean, one[..].into(), [1, 1, 2])?.expect("floats have means"),
/// ];
/// assert_eq!(finish(&partials, 3)?.as_buf().as_slice(), Some(&[3.0f32, 30.0][..]));
/// # std::io::Result::Ok(())
/// ```
pub struct Partial {
    pub(super) op: ReduceOp,
    pub(super) dtype: DType,
    pub(super) kernel: &'static Kernel,
    /// The number of results.
    pub(super) count: usize,
    /// The bytes of the kernel's accumulators for these results.
    pub(super) accumulators: HostMemory,
}

impl Partial {
    /// Returns the bytes of the accumulators, for a process of the same build: those of a
    /// [`Source`](crate::cpu::reduce::Source).
    pub fn as_bytes(&self) -> &[u8] {
        self.accumulators.as_buf().as_bytes()
    }
}

/// Combines the replicas' partials in canonical order, divides a mean by `count`, and rounds once.
/// `count` is the number of elements that each result combines.
///
/// # Errors
/// The system's, if it has no memory for the result.
///
/// # Panics
/// If there are no partials, or if they differ in operation, element type or number of results.
pub fn finish(partials: &[Partial], count: u64) -> io::Result<HostMemory> {
    let first = partials.first().expect("a result of no partials");
    for partial in partials {
        let what = |partial: &Partial| (partial.op, partial.dtype, partial.count);
        assert_eq!(what(partial), what(first), "operation, element type and results of partials");
    }
    let Partial { op, dtype, kernel, count: results, .. } = *first;
    // SAFETY: all results are written below.
    let mut memory =
        unsafe { HostMemory::try_uninit(op.result(dtype).expect("a partial's operation is defined"), results)? };
    let elements = memory.as_buf().bytes() / kernel.target_bytes;
    let sources: Vec<*const u8> = partials.iter().map(|partial| partial.accumulators.as_buf().as_ptr()).collect();
    let target = memory.as_buf_mut().as_mut_ptr();
    // SAFETY: each partial has an accumulator and the memory an element for each result; the memory
    // is new.
    unsafe { kernel.finish(&sources, &[target], elements, divisor(op, count), 0) }
    Ok(memory)
}

/// Returns the divisor of a result that combines `count` elements.
pub(super) fn divisor(op: ReduceOp, count: u64) -> u64 {
    if op == ReduceOp::Mean { count } else { 1 }
}
