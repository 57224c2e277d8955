//! The kernel of each operation, element type and instruction set.

use super::{
    axis_body::{self, Rows},
    combine::{All, And, Max, Min, Op, Or, Product, Sum, Xor},
    element::{Bf16, ElementCodec, F16, Ordered, Plain, Total, first_of_greatest, first_of_least},
    fold::{self, Finish},
    simd,
};
use crate::cpu::isa::Isa;
use consonance_spec::{DType, ReduceOp};
use std::ops::Range;

/// [`fold::fold`] for one type, operation and instruction set. Arguments: sources, targets, range
/// of elements, finish.
pub(crate) type Fold = unsafe fn(&[*const u8], &[*mut u8], Range<usize>, Finish);

/// [`axis_body::lanes`] for one type, operation and instruction set. Arguments: rows, how many
/// lanes have one row more, results, columns.
type Lanes = unsafe fn(Rows, usize, *mut u8, usize);

/// [`axis_body::accumulate`] for one type, operation and instruction set. Arguments: rows,
/// accumulators, columns, whether the accumulators are fresh.
pub(crate) type Accumulate = unsafe fn(Rows, *mut u8, usize, bool);

/// [`axis_body::neighbours`] for one type, operation and instruction set. Arguments: accumulators,
/// slices, rows of each slice, columns.
pub(crate) type Neighbours = unsafe fn(*mut u8, usize, usize, usize);

/// The functions compiled for one type, operation and instruction set.
///
/// A value is the permission to run them: [`Kernel::new`] returns it only if the machine has the
/// instruction set.
pub(crate) struct Kernel {
    /// Combines sources of elements.
    pub(crate) fold: Fold,
    /// [`fold`](Kernel::fold) in small tiles, for the ends of ranges and for few elements. It uses
    /// baseline instructions at every level, because wide registers cost more there than they save.
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
    /// Combines rows of elements, one after the other, into a row of accumulators.
    pub(crate) accumulate: Accumulate,
    /// Combines the rows of each lane of a group, and then the lanes.
    pub(crate) lanes: Lanes,
    /// Combines narrow rows of accumulators by the balanced tree.
    pub(crate) neighbours: Neighbours,
    /// Writes the operation's identity, or zeros if it has none, to the given number of
    /// accumulators.
    pub(crate) identity: unsafe fn(*mut u8, usize),
    /// Elements of a tile. The ranges of `fold`, `finish`, `keep` and `partial` are multiples of
    /// it.
    pub(crate) tile: usize,
    /// Elements of a small tile.
    pub(crate) small_tile: usize,
    /// Bytes of an element of the sources.
    pub(crate) source_bytes: usize,
    /// Bytes of an accumulator.
    pub(crate) acc_bytes: usize,
    /// Bytes of an element of the targets.
    pub(crate) target_bytes: usize,
    /// Whether elements, accumulators and results have the same bits, but for a division.
    pub(crate) is_plain: bool,
}

impl Kernel {
    /// Returns the kernel; `None` if the operation is not defined on the type or the machine lacks
    /// the instruction set.
    ///
    /// The kernels of bitwise operations, and of bool, are kernels of bytes: each byte of a wider
    /// type is an element.
    pub(crate) fn new(op: ReduceOp, dtype: DType, isa: Isa) -> Option<&'static Kernel> {
        op.result(dtype)?;
        // `Isa::best` returns only an instruction set that the machine has.
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
unsafe fn small<R: ElementCodec, O: Op<R::Acc>, const S: usize>(
    sources: &[*const u8],
    targets: &[*mut u8],
    range: Range<usize>,
    finish: Finish,
) {
    // SAFETY: the caller's promises are the same.
    unsafe { fold::fold::<R, O, simd::Small, S>(sources, targets, range, finish) }
}

/// Defines the kernels of one instruction set. The bodies are compiled for its features. The
/// accumulators of a tile have `$tile_bytes` bytes.
macro_rules! level {
    ($name:ident, $level:ident, $tile_bytes:literal $(, $feature:literal)*) => {
        mod $name {
            use super::{simd::$level, *};

            /// # Safety
            /// As for [`fold::fold`].
            $(#[target_feature(enable = $feature)])*
            unsafe fn fold<R: ElementCodec, O: Op<R::Acc>, const L: usize>(
                sources: &[*const u8],
                targets: &[*mut u8],
                range: Range<usize>,
                finish: Finish,
            ) {
                // SAFETY: the caller's promises are the same.
                unsafe { fold::fold::<R, O, $level, L>(sources, targets, range, finish) }
            }

            /// # Safety
            /// As for [`axis_body::accumulate`].
            $(#[target_feature(enable = $feature)])*
            unsafe fn accumulate<R: ElementCodec, O: Op<R::Acc>>(rows: Rows, accumulators: *mut u8, columns: usize, fresh: bool) {
                // SAFETY: the caller's promises are the same.
                unsafe { axis_body::accumulate::<R, O, $level>(rows, accumulators, columns, fresh) }
            }

            /// # Safety
            /// As for [`axis_body::lanes`].
            $(#[target_feature(enable = $feature)])*
            unsafe fn lanes<R: ElementCodec, O: Op<R::Acc>>(rows: Rows, more: usize, results: *mut u8, columns: usize) {
                // SAFETY: the caller's promises are the same.
                unsafe { axis_body::lanes::<R, O, $level>(rows, more, results, columns) }
            }

            /// # Safety
            /// As for [`axis_body::neighbours`].
            $(#[target_feature(enable = $feature)])*
            unsafe fn neighbours<A: Copy, O: Op<A>>(values: *mut u8, slices: usize, rows: usize, columns: usize) {
                // SAFETY: the caller's promises are the same.
                unsafe { axis_body::neighbours::<A, O>(values, slices, rows, columns) }
            }

            /// Bytes of the accumulators of a tile.
            pub(super) const TILE_BYTES: usize = $tile_bytes;

            pub(super) const fn of<R: ElementCodec, O: Op<R::Acc>, const L: usize, const S: usize>() -> Kernel {
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
                    identity: axis_body::identity::<R::Acc, O>,
                    tile: L,
                    small_tile: S,
                    source_bytes: size_of::<R::Source>(),
                    acc_bytes: size_of::<R::Acc>(),
                    target_bytes: size_of::<R::Target>(),
                    is_plain: R::IS_PLAIN,
                }
            }

            macro_rules! of {
                ($row:ty, $op:ident) => {
                    const {
                        &of::<
                            $row,
                            $op,
                            { TILE_BYTES / size_of::<<$row as ElementCodec>::Acc>() },
                            { SMALL_TILE_BYTES / size_of::<<$row as ElementCodec>::Acc>() },
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

/// Selects the kernel `$of!(row, op)` of an operation that is defined on the type. No match here
/// has a wildcard, so the compiler demands for a new operation or type a kernel or an entry among
/// the undefined ones.
macro_rules! select {
    ($of:ident, $op:expr, $dtype:expr) => {
        match $dtype {
            DType::Bool => match $op {
                ReduceOp::And | ReduceOp::Min => $of!(Plain<u8>, All),
                ReduceOp::Or | ReduceOp::Max => $of!(Plain<u8>, Or),
                ReduceOp::Xor => $of!(Plain<u8>, Xor),
                ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Product => undefined($op, $dtype),
            },
            DType::F16 => floats!($of, $op, $dtype, F16, LeastF16, GreatestF16),
            DType::Bf16 => floats!($of, $op, $dtype, Bf16, LeastBf16, GreatestBf16),
            DType::F32 => floats!($of, $op, $dtype, f32, f32, f32),
            DType::F64 => floats!($of, $op, $dtype, f64, f64, f64),
            DType::I8 => integers!($of, $op, Plain<u8>, Plain<i8>, $of!(Total<i8, i64, f32>, Sum)),
            DType::I16 => integers!($of, $op, Plain<u16>, Plain<i16>, $of!(Total<i16, i64, f32>, Sum)),
            DType::I32 => integers!($of, $op, Plain<u32>, Plain<i32>, $of!(Total<i32, i64, f64>, Sum)),
            DType::I64 => integers!($of, $op, Plain<u64>, Plain<i64>, mean_of_64_bits!(i64)),
            DType::U8 => integers!($of, $op, Plain<u8>, Plain<u8>, $of!(Total<u8, i64, f32>, Sum)),
            DType::U16 => integers!($of, $op, Plain<u16>, Plain<u16>, $of!(Total<u16, i64, f32>, Sum)),
            DType::U32 => integers!($of, $op, Plain<u32>, Plain<u32>, $of!(Total<u32, i64, f64>, Sum)),
            DType::U64 => integers!($of, $op, Plain<u64>, Plain<u64>, mean_of_64_bits!(u64)),
        }
    };
}

/// Selects a kernel of floats. `$added` is the codec for sums, means and products, `$least` for
/// minima, `$greatest` for maxima.
macro_rules! floats {
    ($of:ident, $op:expr, $dtype:expr, $added:ty, $least:ty, $greatest:ty) => {
        match $op {
            ReduceOp::Sum | ReduceOp::Mean => $of!($added, Sum),
            ReduceOp::Product => $of!($added, Product),
            ReduceOp::Min => $of!($least, Min),
            ReduceOp::Max => $of!($greatest, Max),
            ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => undefined($op, $dtype),
        }
    };
}

/// Selects a kernel of integers. `$added` is the codec for sums and products, `$ordered` for minima
/// and maxima; `$mean` is the kernel of means. Bitwise operations combine bytes.
macro_rules! integers {
    ($of:ident, $op:expr, $added:ty, $ordered:ty, $mean:expr) => {
        match $op {
            ReduceOp::Sum => $of!($added, Sum),
            ReduceOp::Mean => $mean,
            ReduceOp::Product => $of!($added, Product),
            ReduceOp::Min => $of!($ordered, Min),
            ReduceOp::Max => $of!($ordered, Max),
            ReduceOp::And => $of!(Plain<u8>, And),
            ReduceOp::Or => $of!(Plain<u8>, Or),
            ReduceOp::Xor => $of!(Plain<u8>, Xor),
        }
    };
}

/// The kernel of means of 64-bit integers at every level: no instruction set adds registers of
/// 128-bit lanes.
macro_rules! mean_of_64_bits {
    ($type:ident) => {
        const { &baseline::of::<Total<$type, i128, f64>, Sum, { baseline::TILE_BYTES / 16 }, { SMALL_TILE_BYTES / 16 }>() }
    };
}

/// # Panics
/// Always. [`ReduceOp::result`] has no type for these operations, so [`Kernel::new`] never selects
/// their kernel.
#[cold]
fn undefined(op: ReduceOp, dtype: DType) -> ! {
    unreachable!("{op} of {dtype}")
}

level!(baseline, Baseline, 64);
#[cfg(target_arch = "x86_64")]
level!(avx2, Avx2, 128, "avx2,f16c");
#[cfg(target_arch = "x86_64")]
level!(avx512, Avx512, 256, "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl");
