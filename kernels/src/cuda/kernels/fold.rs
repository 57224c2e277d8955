//! Launches that combine several sources element by element.

use super::{
    launch::{Kernel, Launch, Parameters, Unsupported, aligned, number},
    module::{self, named},
};
use consonance_spec::{
    Class, DType,
    ReduceOp::{self, And, Max, Mean, Min, Or, Product, Sum, Xor},
    for_each_dtype,
};

/// Limit on the sources of a launch, and on its targets. More sources are reduced in aligned groups
/// of this many: each is kept as accumulators, and the accumulators are finished.
pub const MOST: usize = 16;

/// The content of a launch's sources and of its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Elements to results.
    Whole,
    /// Elements to accumulators: a node of the canonical tree, not rounded.
    Keep,
    /// Accumulators to accumulators.
    Partial,
    /// Accumulators to results.
    Finish,
}

impl Stage {
    /// Every stage.
    pub const ALL: [Stage; 4] = [Stage::Whole, Stage::Keep, Stage::Partial, Stage::Finish];
}

/// The type of accumulators in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulator {
    /// The element type: it holds each partial result exactly or as the order says.
    Element,
    /// `f32`, for sums and products of f16 and bf16.
    F32,
    /// `i64`, for means of integers of at most 32 bits.
    I64,
    /// An integer of 128 bits, for means of integers of 64 bits: the low half first.
    I128,
}

impl Accumulator {
    /// Returns the type of the accumulators; `None` if the operation is not defined on the type.
    pub fn new(op: ReduceOp, dtype: DType) -> Option<Accumulator> {
        op.result(dtype)?;
        Some(match (op, dtype.class(), dtype.size()) {
            (Sum | Mean | Product, Class::Float, 2) => Accumulator::F32,
            (Mean, Class::Signed | Class::Unsigned, 8) => Accumulator::I128,
            (Mean, Class::Signed | Class::Unsigned, _) => Accumulator::I64,
            (Min | Max | And | Or | Xor, _, _)
            | (Sum | Mean | Product, Class::Float, _)
            | (Sum | Product, Class::Signed | Class::Unsigned, _)
            | (Sum | Mean | Product, Class::Bool, _) => Accumulator::Element,
        })
    }

    /// Returns the bytes of an accumulator of elements of this type.
    pub fn bytes(self, dtype: DType) -> usize {
        match self {
            Accumulator::Element => dtype.size(),
            Accumulator::F32 => 4,
            Accumulator::I64 => 8,
            Accumulator::I128 => 16,
        }
    }
}

/// Computes `targets[..][i] = sources[0][i] ⊕ sources[1][i] ⊕ …` in canonical order, rounded once.
/// A mean is divided by the number of sources.
///
/// The sources are 1 to [`MOST`] device addresses of `count` elements; the targets, as many at
/// most, are addresses of `count` results. A target is equal to a source or disjoint from it; equal
/// only where elements and results have the same size.
///
/// ```
/// use consonance_kernels::cuda::kernels::reduce;
/// use consonance_spec::{DType, ReduceOp};
///
/// // Two replicas' buffers on one device, reduced and written back in one pass.
/// let buffers = [0x7f00_0000, 0x7f10_0000];
/// let launch = reduce(ReduceOp::Sum, DType::F32, &buffers, &buffers, 1 << 18).unwrap();
/// assert_eq!(launch.kernel.name, "fold_sum_f32");
/// ```
///
/// # Errors
/// If the operation is not defined on the type, or arguments are out of their limits.
pub fn reduce(op: ReduceOp, dtype: DType, sources: &[u64], targets: &[u64], count: u64) -> Result<Launch, Unsupported> {
    fold(Stage::Whole, op, dtype, sources, targets, count, sources.len() as u64)
}

/// [Reduces](reduce) in two steps: `keep` elements as accumulators on each owner of a run of
/// sources, and later [`finish`] all accumulators. A run begins at a multiple of its length, a
/// power of two, or is the last.
///
/// # Errors
/// As for [`reduce`].
pub fn keep(op: ReduceOp, dtype: DType, sources: &[u64], targets: &[u64], count: u64) -> Result<Launch, Unsupported> {
    fold(Stage::Keep, op, dtype, sources, targets, count, 1)
}

/// Makes results of accumulators that [`keep`] made. A mean is divided by `divisor`, the number of
/// all sources.
///
/// # Errors
/// As for [`reduce`].
pub fn finish(
    op: ReduceOp,
    dtype: DType,
    sources: &[u64],
    targets: &[u64],
    count: u64,
    divisor: u64,
) -> Result<Launch, Unsupported> {
    fold(Stage::Finish, op, dtype, sources, targets, count, divisor)
}

/// [Reduces](reduce) from and to what the stage says. Only whole and finished means are divided, by
/// `divisor`.
///
/// # Errors
/// As for [`reduce`].
pub fn fold(
    stage: Stage,
    op: ReduceOp,
    dtype: DType,
    sources: &[u64],
    targets: &[u64],
    count: u64,
    divisor: u64,
) -> Result<Launch, Unsupported> {
    let row = Row::new(stage, op, dtype).ok_or(Unsupported::Undefined { op, dtype })?;
    let limits = |least| least..=MOST as u64;
    number("sources", limits(1), sources.len())?;
    number("targets", limits(0), targets.len())?;
    aligned("sources", sources, row.source_bytes)?;
    aligned("targets", targets, row.target_bytes)?;
    let count = count.checked_mul(row.units).ok_or(Unsupported::TooLarge)?;
    let head = row.head(sources, targets);
    let (head, vectors) = match head {
        Some(head) if head <= count => (head, (count - head) / row.lanes),
        _ => (0, 0),
    };
    let divides = op == Mean && matches!(stage, Stage::Whole | Stage::Finish) && divisor != 1;
    let parameters = Parameters::new()
        .u64(count)
        .u64(head)
        .u64(vectors)
        .f64(divisor as f64)
        .f32(divisor as f32)
        .u32(divides.into())
        .u32(sources.len() as u32)
        .u32(targets.len() as u32)
        .array(sources.iter().copied(), MOST)
        .array(targets.iter().copied(), MOST);
    Ok(Launch::new(row.kernel, count - vectors * (row.lanes - 1), 1, parameters))
}

/// The row of the kernel of a stage, an operation and an element type.
struct Row {
    kernel: Kernel,
    /// The bytes of the kernel's elements.
    source_bytes: usize,
    target_bytes: usize,
    /// The number of the kernel's elements in an element.
    units: u64,
    /// The elements of a vector.
    lanes: u64,
}

/// The kernel of an operation whose accumulators are elements. It combines elements of any type
/// with the same bits: signed sums and products are unsigned, bitwise operations combine bytes.
pub(super) enum Same {
    /// Bytes.
    Bits(Bitwise),
    /// Elements of this type.
    Of(DType),
}

/// The operations that combine bytes.
pub(super) enum Bitwise {
    And,
    Or,
    Xor,
}

impl Same {
    pub(super) fn new(op: ReduceOp, dtype: DType) -> Same {
        match (op, dtype) {
            (And, _) | (Min, DType::Bool) => Same::Bits(Bitwise::And),
            (Or, _) | (Max, DType::Bool) => Same::Bits(Bitwise::Or),
            (Xor, _) => Same::Bits(Bitwise::Xor),
            (Sum | Product, DType::I8) => Same::Of(DType::U8),
            (Sum | Product, DType::I16) => Same::Of(DType::U16),
            (Sum | Product, DType::I32) => Same::Of(DType::U32),
            (Sum | Product, DType::I64) => Same::Of(DType::U64),
            (Sum | Mean | Product | Min | Max, _) => Same::Of(dtype),
        }
    }
}

impl Row {
    fn new(stage: Stage, op: ReduceOp, dtype: DType) -> Option<Row> {
        let (accumulator, result) = (Accumulator::new(op, dtype)?, op.result(dtype)?);
        let kept = accumulator.bytes(dtype);
        let (source_bytes, target_bytes) = match stage {
            Stage::Whole => (dtype.size(), result.size()),
            Stage::Keep => (dtype.size(), kept),
            Stage::Partial => (kept, kept),
            Stage::Finish => (kept, result.size()),
        };
        let of = |name, dtype| Kernel { module: module::fold(dtype), name };
        let total = |name| Kernel { module: module::FOLD_TOTAL, name };
        let row = |kernel, lanes| Row { kernel, source_bytes, target_bytes, units: 1, lanes };
        Some(match (accumulator, stage) {
            (Accumulator::Element, _) => match Same::new(op, dtype) {
                Same::Bits(op) => {
                    let name = match op {
                        Bitwise::And => "fold_and",
                        Bitwise::Or => "fold_or",
                        Bitwise::Xor => "fold_xor",
                    };
                    let kernel = Kernel { module: module::FOLD_BITS, name };
                    Row { kernel, source_bytes: 1, target_bytes: 1, units: dtype.size() as u64, lanes: 16 }
                }
                Same::Of(dtype) => row(of(whole(op, dtype), dtype), 16 / dtype.size() as u64),
            },
            (Accumulator::F32, Stage::Whole) => row(of(whole(op, dtype), dtype), 8),
            (Accumulator::F32, Stage::Keep) => {
                let name = match op {
                    Product => for_each_dtype!(named ["keep_product_" dtype]),
                    Sum | Mean | Min | Max | And | Or | Xor => for_each_dtype!(named ["keep_sum_" dtype]),
                };
                row(of(name, dtype), 8)
            }
            (Accumulator::F32, Stage::Partial) => row(of(whole(op, DType::F32), DType::F32), 4),
            (Accumulator::F32, Stage::Finish) => {
                let name = match op {
                    Product => for_each_dtype!(named ["finish_product_" dtype]),
                    Sum | Mean | Min | Max | And | Or | Xor => for_each_dtype!(named ["finish_sum_" dtype]),
                };
                row(of(name, dtype), 4)
            }
            (Accumulator::I64, Stage::Partial) => row(of("fold_sum_u64", DType::U64), 2),
            (Accumulator::I64 | Accumulator::I128, Stage::Whole) => {
                let lanes = if accumulator == Accumulator::I128 { 1 } else { 4 };
                row(of(for_each_dtype!(named ["fold_mean_" dtype]), dtype), lanes)
            }
            (Accumulator::I64 | Accumulator::I128, Stage::Keep) => {
                let lanes = if accumulator == Accumulator::I128 { 2 } else { 4 };
                row(of(for_each_dtype!(named ["keep_mean_" dtype]), dtype), lanes)
            }
            (Accumulator::I128, Stage::Partial) => row(total("partial_i128"), 1),
            (Accumulator::I128, Stage::Finish) => row(total("finish_i128_f64"), 2),
            (Accumulator::I64, Stage::Finish) if result == DType::F32 => row(total("finish_i64_f32"), 2),
            (Accumulator::I64, Stage::Finish) => row(total("finish_i64_f64"), 2),
        })
    }

    /// Returns how many elements come before the first vector; `None` if the addresses are not
    /// aligned alike.
    fn head(&self, sources: &[u64], targets: &[u64]) -> Option<u64> {
        let fits = |addresses: &[u64], head: u64, bytes: usize| {
            let unit = (self.lanes * bytes as u64).min(16);
            addresses.iter().all(|address| (address + head * bytes as u64).is_multiple_of(unit))
        };
        (0..self.lanes).find(|&head| fits(sources, head, self.source_bytes) && fits(targets, head, self.target_bytes))
    }
}

/// Returns the name of the kernel that reduces elements to results.
fn whole(op: ReduceOp, dtype: DType) -> &'static str {
    match op {
        Sum | Mean => for_each_dtype!(named ["fold_sum_" dtype]),
        Product => for_each_dtype!(named ["fold_product_" dtype]),
        Min => for_each_dtype!(named ["fold_min_" dtype]),
        Max => for_each_dtype!(named ["fold_max_" dtype]),
        And => "fold_and",
        Or => "fold_or",
        Xor => "fold_xor",
    }
}
