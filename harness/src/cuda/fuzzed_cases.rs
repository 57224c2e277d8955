//! Cases that bytes choose.

use super::{AlongCase, Case, ConcatCase, FoldCase, Interpreter, Route, RowsCase};
use crate::{cases::Source, compare::Verdict};
use consonance_spec::{DType, ReduceOp};

/// Judges the case that `bytes` encode. Every byte string is a case.
///
/// # Errors
/// The difference from the spec, with the case.
pub fn fuzzed(bytes: &[u8]) -> Verdict {
    let source = &mut Source::new(bytes);
    let kind = source.below(4);
    let dtype = source.pick(DType::ALL);
    let ops: Vec<ReduceOp> = ReduceOp::ALL.into_iter().filter(|op| op.result(dtype).is_some()).collect();
    let op = source.pick(&ops);
    let (seed, blocks) = (source.seed(), 1 + source.below(4) as u32);
    // Two bytes: more elements than a block of threads has.
    let mut size = |limit: usize| (source.below(256) << 8 | source.below(256)) % limit;
    let count = size(5000);
    let axis = 1 + size(5000);
    let case = match kind {
        0 => {
            let sources = 1 + source.below(16);
            let route = match source.below(3) {
                0 => Route::Whole,
                // At most 16 nodes are left.
                1 => Route::Kept(1 << source.below(5)),
                _ => Route::Paired(1 << source.below(5)),
            };
            let targets = 1 + source.below(3);
            let offsets = (0..4).map(|_| source.below(17)).collect();
            let in_place = source.once_in(2);
            Case::Fold(FoldCase { op, dtype, sources, targets, count, offsets, in_place, blocks, route, seed })
        }
        1 => {
            let axes = (0..=source.below(3)).map(|replica| if replica == 0 { axis } else { 1 + source.below(70) });
            let axes = axes.collect();
            let (outer, inner) = (1 + source.below(3), 1 + source.below(if axis > 300 { 3 } else { 40 }));
            Case::Along(AlongCase { op, dtype, outer, axes, inner, offsets: vec![source.below(5)], blocks, seed })
        }
        2 => {
            let axes = (0..=source.below(18)).map(|_| source.below(40)).collect();
            let offsets = (0..4).map(|_| source.below(17)).collect();
            let (outer, inner) = (1 + source.below(4), 1 + source.below(8));
            Case::Concat(ConcatCase { dtype, outer, axes, inner, offsets, blocks, seed })
        }
        _ if ReduceOp::Sum.result(dtype).is_none() => return Ok(()),
        _ => {
            let dense_rows = 1 + source.below(30);
            let indices = (0..source.below(200)).map(|_| source.below(dense_rows) as i64).collect();
            let (width, offset) = (1 + source.below(40), source.below(5));
            Case::Rows(RowsCase { dtype, indices, width, dense_rows, offset, blocks, seed })
        }
    };
    Interpreter::new(seed).judge(&case)
}
