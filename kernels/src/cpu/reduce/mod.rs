//! Reductions of several buffers into one result, element by element.
//!
//! A [`Reducer`] is chosen once for an operation, an element type and an instruction set. Its
//! results have the same bits for every instruction set, alignment and count.
//!
//! The bodies are loops over arrays of lanes, inlined into one function per instruction set. They
//! do not use the crate `wide`, whose vector width is fixed by the build: SSE2 for a program that
//! must run anywhere. A sum written with `wide` is slower for data in the caches
//! (`harness/benches/reducer.rs` measures both), and no shorter.

mod combine;
mod simd;
mod element;
mod fold;
mod axis_body;
mod kernel;
mod nodes;
mod run;
mod program;
mod shape;
mod accumulation;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod shape_tests;

pub use accumulation::Accumulation;
pub(crate) use axis_body::{GROUP, LANES, Rows};
pub(crate) use fold::LINE;
pub(crate) use kernel::Kernel;
pub use nodes::{Node, Part, nodes};
pub use shape::{Shape, Source};
#[cfg(target_arch = "x86_64")]
pub(crate) use simd::Avx2;
pub(crate) use simd::{Baseline, Simd};

use self::fold::Finish;
use crate::{
    cpu::{
        cache_hints::{CacheHints, Locality},
        isa::Isa,
    },
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::{DType, ReduceOp};
use std::{cmp::Ordering, fmt};

/// An operation on an element type, ready to run on this machine.
///
/// ```
/// use consonance_kernels::{cpu::reduce::Reducer, memory::{HostBuf, HostBufMut}};
/// use consonance_spec::{DType, ReduceOp};
///
/// let sum = Reducer::new(ReduceOp::Sum, DType::F32).unwrap();
/// let (a, b, c) = ([1.0f32, 2.0], [10.0f32, 20.0], [100.0f32, 200.0]);
/// let mut total = [0.0f32; 2];
/// sum.reduce(&[a[..].into(), b[..].into(), c[..].into()], &mut HostBufMut::from(&mut total[..]));
/// assert_eq!(total, [111.0, 222.0]);
///
/// assert!(Reducer::new(ReduceOp::Sum, DType::Bool).is_none());
/// ```
#[derive(Clone, Copy)]
pub struct Reducer {
    op: ReduceOp,
    input: DType,
    output: DType,
    isa: Isa,
    kernel: &'static Kernel,
}

impl Reducer {
    /// Returns the operation in the widest instruction set of this machine; `None` if the operation
    /// is not defined on the type.
    #[inline]
    pub fn new(op: ReduceOp, dtype: DType) -> Option<Reducer> {
        Reducer::with_isa(op, dtype, Isa::best())
    }

    /// Returns the operation in the instruction set `isa`; `None` if the operation is not defined
    /// on the type or the machine lacks the instruction set.
    #[inline]
    pub fn with_isa(op: ReduceOp, dtype: DType, isa: Isa) -> Option<Reducer> {
        let kernel = Kernel::new(op, dtype, isa)?;
        Some(Reducer { op, input: dtype, output: op.result(dtype)?, isa, kernel })
    }

    /// Returns the operation.
    pub fn op(&self) -> ReduceOp {
        self.op
    }

    /// Returns the element type of the inputs.
    pub fn input(&self) -> DType {
        self.input
    }

    /// Returns the element type of the result.
    pub fn output(&self) -> DType {
        self.output
    }

    /// Returns the instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Computes `output[i] = inputs[0][i] ⊕ inputs[1][i] ⊕ …` in canonical order, rounded once.
    ///
    /// # Panics
    /// If there are no inputs, or if counts or element types differ from the output's or the
    /// reducer's.
    pub fn reduce(&self, inputs: &[HostBuf<'_>], output: &mut HostBufMut<'_>) {
        assert!(!inputs.is_empty(), "a reduction of no inputs");
        assert_eq!(output.dtype(), self.output, "the output's element type");
        for input in inputs {
            assert_eq!(
                (input.dtype(), input.count()),
                (self.input, output.count()),
                "an input's element type and count"
            );
        }
        let sources: Vec<*const u8> = inputs.iter().map(HostBuf::as_ptr).collect();
        // SAFETY: the types and counts are those of the buffers; the output is exclusive, so it
        // overlaps no shared input.
        unsafe { self.fold(&sources, &[output.as_mut_ptr()], output.count(), CacheHints::from(Locality::Near)) }
    }

    /// Computes `target[i] = target[i] ⊕ inputs[0][i] ⊕ …` in canonical order, rounded once, in
    /// place.
    ///
    /// # Panics
    /// If counts or element types differ from those of the target or the reducer, or if the
    /// reducer's result has another type than its inputs.
    ///
    /// ```
    /// use consonance_kernels::{cpu::reduce::Reducer, memory::HostBufMut};
    /// use consonance_spec::{DType, ReduceOp};
    ///
    /// let mut total = [1.0f32, 2.0];
    /// let sum = Reducer::new(ReduceOp::Sum, DType::F32).unwrap();
    /// sum.accumulate(&mut HostBufMut::from(&mut total[..]), &[[10.0f32, 20.0][..].into()]);
    /// assert_eq!(total, [11.0, 22.0]);
    /// ```
    pub fn accumulate(&self, target: &mut HostBufMut<'_>, inputs: &[HostBuf<'_>]) {
        self.reduce_in_place(0, target, inputs);
    }

    /// [Reduces](Reducer::reduce) the target, as the input of this place, and the other inputs, in
    /// place.
    ///
    /// # Panics
    /// As [`accumulate`](Reducer::accumulate), and if there are fewer other inputs than `place`.
    pub fn reduce_in_place(&self, place: usize, target: &mut HostBufMut<'_>, inputs: &[HostBuf<'_>]) {
        assert_eq!(self.input, self.output, "a reduction in place changes no element type");
        for buf in inputs.iter().copied().chain([target.as_buf()]) {
            assert_eq!((buf.dtype(), buf.count()), (self.input, target.count()), "element type and count");
        }
        let own = target.as_mut_ptr();
        assert!(place <= inputs.len(), "place {place} among {} other inputs", inputs.len());
        let source = |at: usize| match at.cmp(&place) {
            Ordering::Less => inputs[at].as_ptr(),
            Ordering::Equal => own.cast_const(),
            Ordering::Greater => inputs[at - 1].as_ptr(),
        };
        let sources: Vec<*const u8> = (0..=inputs.len()).map(source).collect();
        // SAFETY: the types and counts are those of the buffers; the target is one of the sources,
        // and it is exclusive, so it overlaps no other source.
        unsafe { self.fold(&sources, &[own], target.count(), CacheHints::from(Locality::Near)) }
    }

    /// [Reduces](Reducer::reduce) `count` elements at `sources`, some of them written by other
    /// ranks, into each of `targets`.
    ///
    /// # Safety
    /// There is a source. Each source is valid for reads of `count` elements of the input type,
    /// each target for writes of `count` elements of the output type. A target is disjoint from a
    /// source or equal to it; equal only where elements of both have the same size. Targets are
    /// disjoint from each other or equal. Until this returns, nobody else writes the sources or
    /// accesses the targets.
    pub(crate) unsafe fn fold(&self, sources: &[*const u8], targets: &[*mut u8], count: usize, flow: CacheHints) {
        let divisor = if self.op == ReduceOp::Mean { sources.len() as u64 } else { 1 };
        // SAFETY: the caller's promises are the same; a kernel of bytes takes the same memory as
        // more and smaller elements.
        unsafe { self.kernel.reduce(sources, targets, self.elements(count), divisor, flow) }
    }

    /// Returns how many of the kernel's elements `count` input elements are. Shifts, because all
    /// sizes are powers of two and a division is slow.
    fn elements(&self, count: usize) -> usize {
        (count * self.input.size()) >> self.kernel.source_bytes.trailing_zeros()
    }
}

impl Reducer {
    /// [Folds](Reducer::fold) few elements into one target. Sources and target have room for
    /// `count` elements rounded up to a multiple of [`Reducer::SMALL_BYTES`] bytes.
    ///
    /// # Safety
    /// As for [`fold`](Reducer::fold), for all elements of the rounded count.
    #[inline]
    pub(crate) unsafe fn fold_small(&self, sources: &[*const u8], target: *mut u8, count: usize) {
        let divisor = if self.op == ReduceOp::Mean { sources.len() as u64 } else { 1 };
        let whole = self.kernel.small_tile - 1;
        let elements = (self.elements(count) + whole) & !whole;
        // SAFETY: the caller's promises are the same.
        unsafe { (self.kernel.small)(sources, &[target], 0..elements, Finish::in_turn(divisor)) }
    }

    /// Upper bound on the unit to which [`fold_small`](Reducer::fold_small) rounds up the bytes
    /// that it reads from a source.
    pub(crate) const SMALL_BYTES: usize = kernel::SMALL_TILE_BYTES;
}

impl fmt::Debug for Reducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reducer({} of {} in {})", self.op, self.input, self.isa)
    }
}
