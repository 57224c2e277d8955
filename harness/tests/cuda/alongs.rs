//! Reductions along an axis.

use crate::{defined, judge, pairwise::pairwise};
use consonance_harness::cuda::{AlongCase, Case};
use consonance_kernels::digest::mix;
use consonance_spec::{DType, ReduceOp};

/// Returns the cases of an operation on a type: all pairs of sizes, replicas, alignments and grids.
pub(crate) fn cases(op: ReduceOp, dtype: DType) -> Vec<AlongCase> {
    let axes = [1, 2, 31, 32, 33, 63, 64, 65, 160, 161, 300];
    let (outers, inners) = ([0, 1, 3, 18], [0, 1, 2, 31, 32, 33]);
    let replicas: [&[usize]; 4] = [&[], &[1], &[40, 7], &[1, 1, 1, 1]];
    let rows = pairwise(&[axes.len(), outers.len(), inners.len(), replicas.len(), 3, 3]);
    let case = |row: &Vec<usize>| AlongCase {
        op,
        dtype,
        // The most rows are for grids of many blocks, which small rows have, too.
        outer: if axes[row[0]] * inners[row[2]] > 1024 { outers[row[1]].min(3) } else { outers[row[1]] },
        axes: [&[axes[row[0]]], replicas[row[3]]].concat(),
        inner: inners[row[2]],
        offsets: vec![row[4]],
        blocks: [1, 2, u32::MAX][row[5]],
        seed: mix(row[0] as u64, row[2] as u64) >> 8,
    };
    rows.iter().map(case).collect()
}

fn check(chosen: impl Fn(DType) -> bool) {
    let mut count = 0;
    for (op, dtype) in defined().into_iter().filter(|(_, dtype)| chosen(*dtype)) {
        for case in cases(op, dtype) {
            judge(case.seed, Case::Along(case));
            count += 1;
        }
    }
    println!("{count} reductions along an axis");
}

#[test]
fn axes_of_floats_and_bool_are_reduced_as_the_spec_says() {
    check(|dtype| dtype.mean().is_none_or(|mean| mean == dtype));
}

#[test]
fn axes_of_integers_are_reduced_as_the_spec_says() {
    check(|dtype| dtype.mean().is_some_and(|mean| mean != dtype));
}

/// Axes around one, two and more blocks of 4,096, and around 16 blocks, which one step of the tree
/// combines.
#[test]
fn long_axes_are_reduced_as_the_spec_says() {
    let mut count = 0;
    for (op, dtype) in defined() {
        for (axis, outer, inner) in [(4095, 1, 1), (4096, 1, 3), (4097, 2, 1), (8193, 1, 2), (3 * 4096 + 100, 1, 1)] {
            // One type of each size takes the longest axes, all take the first.
            if axis > 4097 && !matches!(dtype, DType::U8 | DType::F16 | DType::F32 | DType::I64) {
                continue;
            }
            let case =
                AlongCase { op, dtype, outer, axes: vec![axis], inner, offsets: vec![1], blocks: 3, seed: axis as u64 };
            judge(case.seed, Case::Along(case));
            count += 1;
        }
    }
    for (op, dtype) in [(ReduceOp::Sum, DType::F32), (ReduceOp::Mean, DType::I64), (ReduceOp::Sum, DType::Bf16)] {
        let case = AlongCase {
            op,
            dtype,
            outer: 1,
            axes: vec![18 * 4096 + 5],
            inner: 1,
            offsets: vec![0],
            blocks: 8,
            seed: 3,
        };
        judge(case.seed, Case::Along(case));
        count += 1;
    }
    println!("{count} reductions along long axes");
}
