//! Reductions of several sources.

use crate::{defined, judge, pairwise::pairwise};
use consonance_harness::cuda::{Case, FoldCase, Route};
use consonance_kernels::digest::mix;
use consonance_spec::{DType, ReduceOp};

/// Threads of a block.
const BLOCK: usize = 256;

/// Returns the cases of an operation on a type: each number of inputs from 1 to 9 with each length
/// at an edge of up to a block, up to 3 inputs with each length of two blocks, and all pairs of
/// values of the other factors.
pub(crate) fn cases(op: ReduceOp, dtype: DType) -> Vec<FoldCase> {
    let vector = 16 / dtype.size();
    let lengths = [
        vec![0, 1],
        around(vector),
        around(32),
        around(32 * vector),
        around(BLOCK),
        around(BLOCK * vector),
        // A grid of two blocks.
        around(2 * BLOCK * vector),
    ]
    .concat();
    let offsets: [&[usize]; 5] = [&[0], &[1], &[vector - 1], &[0, 1, 2, 3], &[vector, 0, 2 * vector]];
    let (targets, blocks) = ([1, 2, 0], [1, 2, u32::MAX]);
    let routes = [Route::Whole, Route::Whole, Route::Kept(1), Route::Kept(4), Route::Paired(2)];
    let rows = pairwise(&[9, lengths.len(), offsets.len(), 2, targets.len(), blocks.len(), routes.len()]);
    let case = |row: &Vec<usize>| FoldCase {
        op,
        dtype,
        // Each block reads its sources in the same way, whatever the number of blocks.
        sources: if lengths[row[1]] > BLOCK * vector + 1 { row[0] % 3 + 1 } else { row[0] + 1 },
        count: lengths[row[1]],
        offsets: offsets[row[2]].to_vec(),
        in_place: row[3] == 1,
        targets: targets[row[4]],
        blocks: blocks[row[5]],
        route: routes[row[6]],
        seed: mix(row[0] as u64, row[1] as u64) >> 8,
    };
    rows.iter().map(case).collect()
}

/// Returns one less, the number, and one more.
fn around(number: usize) -> Vec<usize> {
    vec![number - 1, number, number + 1]
}

/// Judges the cases of the types for which `chosen` holds.
fn check(chosen: impl Fn(DType) -> bool) {
    let (mut count, mut pairs) = (0, 0);
    for (op, dtype) in defined().into_iter().filter(|(_, dtype)| chosen(*dtype)) {
        for case in cases(op, dtype) {
            judge(case.seed, Case::Fold(case));
            count += 1;
        }
        pairs += 1;
    }
    println!("{count} reductions of {pairs} pairs of operation and type");
}

#[test]
fn floats_are_reduced_as_the_spec_says() {
    check(|dtype| dtype.mean() == Some(dtype));
}

#[test]
fn small_integers_are_reduced_as_the_spec_says() {
    check(|dtype| dtype.mean() != Some(dtype) && dtype.size() <= 2);
}

#[test]
fn large_integers_are_reduced_as_the_spec_says() {
    check(|dtype| dtype.mean() != Some(dtype) && dtype.size() > 2);
}

/// More sources than the registers of the counter hold at once, and than a launch takes.
#[test]
fn many_sources_are_reduced_as_the_spec_says() {
    let mut count = 0;
    for (op, dtype) in defined() {
        for (sources, route) in [
            (10, Route::Whole),
            (13, Route::Whole),
            (16, Route::Whole),
            (17, Route::Kept(16)),
            (33, Route::Kept(8)),
            (70, Route::Paired(8)),
        ] {
            let case = FoldCase {
                op,
                dtype,
                sources,
                targets: 1,
                count: 40,
                offsets: vec![0],
                in_place: false,
                blocks: 1,
                route,
                seed: sources as u64,
            };
            judge(case.seed, Case::Fold(case));
            count += 1;
        }
    }
    println!("{count} reductions of 10 to 70 sources");
}

/// Blocks and warps take turns as the seed says; no order changes a result.
#[test]
fn no_order_of_blocks_changes_a_result() {
    let mut count = 0;
    for dtype in [DType::F32, DType::Bf16, DType::U8] {
        for seed in 0..16 {
            let case = FoldCase {
                op: ReduceOp::Max,
                dtype,
                sources: 3,
                targets: 3,
                count: 5000,
                offsets: vec![1],
                in_place: true,
                blocks: 5,
                route: Route::Whole,
                seed,
            };
            judge(mix(seed, 1), Case::Fold(case));
            count += 1;
        }
    }
    println!("{count} orders of blocks");
}
