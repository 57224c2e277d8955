//! The kernel of each operation, element type and instruction set.

use super::{
    along::{self, Rows},
    combine::{All, And, Max, Min, Op, Or, Product, Sum, Xor},
    fold::{self, Finish},
    level,
    row::{Bf16, F16, Ordered, Plain, Row, Total, first_of_greatest, first_of_least},
};
use crate::isa::Isa;
use consonance_spec::{DType, ReduceOp};
use std::ops::Range;

/// [`fold::fold`] for one type, operation and instruction set: sources, targets, range of elements, finish.
pub(crate) type Fold = unsafe fn(&[*const u8], &[*mut u8], Range<usize>, Finish);

/// [`along::lanes`] for one type, operation and instruction set: rows, results, columns.
type Lanes = unsafe fn(Rows, usize, *mut u8, usize);

/// [`along::accumulate`] for one type, operation and instruction set: rows, accumulators, columns, whether they are fresh.
pub(crate) type Accumulate = unsafe fn(Rows, *mut u8, usize, bool);

/// [`along::neighbours`] for one type, operation and instruction set: accumulators, slices, rows of each, columns.
pub(crate) type Neighbours = unsafe fn(*mut u8, usize, usize, usize);

/// All that is compiled for one type, operation and instruction set.
///
/// A value is the permission to run it: it is made where the machine has the instruction set.
pub(crate) struct Kernel {
    /// Combines sources of elements.
    pub(crate) fold: Fold,
    /// [`fold`](Kernel::fold) in small tiles, for the ends of ranges and for few elements: in the baseline at every level, since
    /// wide registers cost more there than they give.
    pub(crate) small: Fold,
    /// Combines sources of accumulators.
    pub(crate) finish: Fold,
    /// [`finish`](Kernel::finish) in small tiles.
    pub(crate) small_finish: Fold,
    /// Combines sources of elements into accumulators.
    pub(crate) keep: Fold,
    /// [`keep`](Kernel::keep) in small tiles.
    pub(crate) small_keep: Fold,
    /// Combines sources of accumulators into accumulators.
    pub(crate) partial: Fold,
    /// [`partial`](Kernel::partial) in small tiles.
    pub(crate) small_partial: Fold,
    /// Adds rows of elements to a row of accumulators, one after the other.
    pub(crate) accumulate: Accumulate,
    /// Combines the rows of a group of lanes, and the lanes.
    pub(crate) lanes: Lanes,
    /// Combines narrow rows of accumulators by the balanced tree.
    pub(crate) neighbours: Neighbours,
    /// Writes the operation's identity to accumulators, as many as the number says.
    pub(crate) identity: unsafe fn(*mut u8, usize),
    /// Elements of a tile; ranges of `fold` and `finish` are multiples of it.
    pub(crate) tile: usize,
    /// Elements of a small tile.
    pub(crate) small_tile: usize,
    /// Bytes of an element of the sources.
    pub(crate) source_bytes: usize,
    /// Bytes of an accumulator.
    pub(crate) acc_bytes: usize,
    /// Bytes of an element of the targets.
    pub(crate) target_bytes: usize,
}

impl Kernel {
    /// The kernel; `None` where the operation is not defined on the type or the machine lacks the instruction set.
    ///
    /// Bitwise operations, and those of bool, are kernels of bytes: they take each byte of a wider type for an element.
    pub(crate) fn new(op: ReduceOp, dtype: DType, isa: Isa) -> Option<&'static Kernel> {
        op.result(dtype)?;
        // The best one is known to be there.
        (isa == Isa::best() || isa.is_available()).then(|| match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::kernel(op, dtype),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::kernel(op, dtype),
            _ => baseline::kernel(op, dtype),
        })
    }
}

type LeastF16 = Ordered<{ first_of_least(0x7c00) }>;
type GreatestF16 = Ordered<{ first_of_greatest(0x7c00) }>;
type LeastBf16 = Ordered<{ first_of_least(0x7f80) }>;
type GreatestBf16 = Ordered<{ first_of_greatest(0x7f80) }>;

/// Bytes of the accumulators of a small tile: one register of the baseline.
pub(crate) const SMALL_TILE_BYTES: usize = 16;

/// # Safety
/// As for [`fold::fold`].
unsafe fn small<R: Row, O: Op<R::Acc>, const S: usize>(
    sources: &[*const u8],
    targets: &[*mut u8],
    range: Range<usize>,
    finish: Finish,
) {
    // SAFETY: the caller's promises are the same.
    unsafe { fold::fold::<R, O, level::Small, S>(sources, targets, range, finish) }
}

/// The kernels of one instruction set, whose features the bodies are compiled for and whose tiles have so many bytes.
macro_rules! level {
    ($name:ident, $level:ident, $tile_bytes:literal $(, $feature:literal)*) => {
        mod $name {
            use super::{level::$level, *};

            /// # Safety
            /// As for [`fold::fold`].
            $(#[target_feature(enable = $feature)])*
            unsafe fn fold<R: Row, O: Op<R::Acc>, const L: usize>(
                sources: &[*const u8],
                targets: &[*mut u8],
                range: Range<usize>,
                finish: Finish,
            ) {
                // SAFETY: the caller's promises are the same.
                unsafe { fold::fold::<R, O, $level, L>(sources, targets, range, finish) }
            }

            /// # Safety
            /// As for [`along::accumulate`].
            $(#[target_feature(enable = $feature)])*
            unsafe fn accumulate<R: Row, O: Op<R::Acc>>(rows: Rows, accumulators: *mut u8, columns: usize, fresh: bool) {
                // SAFETY: the caller's promises are the same.
                unsafe { along::accumulate::<R, O, $level>(rows, accumulators, columns, fresh) }
            }

            /// # Safety
            /// As for [`along::lanes`].
            $(#[target_feature(enable = $feature)])*
            unsafe fn lanes<R: Row, O: Op<R::Acc>>(rows: Rows, more: usize, results: *mut u8, columns: usize) {
                // SAFETY: the caller's promises are the same.
                unsafe { along::lanes::<R, O, $level>(rows, more, results, columns) }
            }

            /// # Safety
            /// As for [`along::neighbours`].
            $(#[target_feature(enable = $feature)])*
            unsafe fn neighbours<A: Copy, O: Op<A>>(values: *mut u8, slices: usize, rows: usize, columns: usize) {
                // SAFETY: the caller's promises are the same.
                unsafe { along::neighbours::<A, O>(values, slices, rows, columns) }
            }

            const fn of<R: Row, O: Op<R::Acc>, const L: usize, const S: usize>() -> Kernel {
                Kernel {
                    fold: fold::<R, O, L>,
                    small: small::<R, O, S>,
                    finish: fold::<R::Widened, O, L>,
                    small_finish: small::<R::Widened, O, S>,
                    keep: fold::<R::Kept, O, L>,
                    small_keep: small::<R::Kept, O, S>,
                    partial: fold::<R::Partial, O, L>,
                    small_partial: small::<R::Partial, O, S>,
                    accumulate: accumulate::<R, O>,
                    lanes: lanes::<R, O>,
                    neighbours: neighbours::<R::Acc, O>,
                    identity: along::identity::<R::Acc, O>,
                    tile: L,
                    small_tile: S,
                    source_bytes: size_of::<R::Source>(),
                    acc_bytes: size_of::<R::Acc>(),
                    target_bytes: size_of::<R::Target>(),
                }
            }

            macro_rules! of {
                ($row:ty, $op:ident) => {
                    const {
                        &of::<
                            $row,
                            $op,
                            { $tile_bytes / size_of::<<$row as Row>::Acc>() },
                            { SMALL_TILE_BYTES / size_of::<<$row as Row>::Acc>() },
                        >()
                    }
                };
            }

            pub(super) fn kernel(op: ReduceOp, dtype: DType) -> &'static Kernel {
                select!(of, op, dtype)
            }
        }
    };
}

/// The kernel `$of!(row, op)` of an operation that is defined on the type.
macro_rules! select {
    ($of:ident, $op:expr, $dtype:expr) => {
        match ($op, $dtype) {
            (ReduceOp::And | ReduceOp::Min, DType::Bool) => $of!(Plain<u8>, All),
            (ReduceOp::And, _) => $of!(Plain<u8>, And),
            (ReduceOp::Or, _) | (ReduceOp::Max, DType::Bool) => $of!(Plain<u8>, Or),
            (ReduceOp::Xor, _) => $of!(Plain<u8>, Xor),
            (op, DType::F16) => numbers!($of, op, F16, LeastF16, GreatestF16, F16),
            (op, DType::Bf16) => numbers!($of, op, Bf16, LeastBf16, GreatestBf16, Bf16),
            (op, DType::F32) => numbers!($of, op, f32, f32, f32, f32),
            (op, DType::F64) => numbers!($of, op, f64, f64, f64, f64),
            (op, DType::I8) => numbers!($of, op, Plain<u8>, Plain<i8>, Plain<i8>, Total<i8, i64, f32>),
            (op, DType::I16) => numbers!($of, op, Plain<u16>, Plain<i16>, Plain<i16>, Total<i16, i64, f32>),
            (op, DType::I32) => numbers!($of, op, Plain<u32>, Plain<i32>, Plain<i32>, Total<i32, i64, f64>),
            (op, DType::I64) => numbers!($of, op, Plain<u64>, Plain<i64>, Plain<i64>, Total<i64, i128, f64>),
            (op, DType::U8) => numbers!($of, op, Plain<u8>, Plain<u8>, Plain<u8>, Total<u8, i64, f32>),
            (op, DType::U16) => numbers!($of, op, Plain<u16>, Plain<u16>, Plain<u16>, Total<u16, i64, f32>),
            (op, DType::U32) => numbers!($of, op, Plain<u32>, Plain<u32>, Plain<u32>, Total<u32, i64, f64>),
            (op, DType::U64) => numbers!($of, op, Plain<u64>, Plain<u64>, Plain<u64>, Total<u64, i128, f64>),
            (op, DType::Bool) => unreachable!("{op} of bool"),
        }
    };
}

/// The kernels of a number: the rows that are added, of which the least and the greatest are found, and that means are made of.
macro_rules! numbers {
    ($of:ident, $op:expr, $added:ty, $least:ty, $greatest:ty, $total:ty) => {
        match $op {
            ReduceOp::Sum => $of!($added, Sum),
            ReduceOp::Mean => $of!($total, Sum),
            ReduceOp::Product => $of!($added, Product),
            ReduceOp::Min => $of!($least, Min),
            ReduceOp::Max => $of!($greatest, Max),
            op => unreachable!("{op} is a kernel of bytes"),
        }
    };
}

level!(baseline, Baseline, 64);
#[cfg(target_arch = "x86_64")]
level!(avx2, Avx2, 128, "avx2,f16c");
#[cfg(target_arch = "x86_64")]
level!(avx512, Avx512, 256, "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl");
