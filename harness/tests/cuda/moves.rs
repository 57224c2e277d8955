//! Sums of rows, concatenation, filling, conversion, scaling and comparison.

use crate::{judge, pairwise::pairwise};
use consonance_harness::cuda::{Case, ConcatCase, ElementsCase, RowsCase, Work, fuzzed};
use consonance_kernels::digest::mix;
use consonance_spec::{Class, DType, ReduceOp};

#[test]
fn rows_of_equal_index_are_added_as_the_spec_says() {
    let (rows, widths, dense) = ([0, 1, 2, 5, 9, 40, 300], [0, 1, 3, 33], [1, 2, 7]);
    let mut count = 0;
    for &dtype in DType::ALL.iter().filter(|&&dtype| ReduceOp::Sum.result(dtype).is_some()) {
        for row in pairwise(&[rows.len(), widths.len(), dense.len(), 3]) {
            let dense_rows = dense[row[2]];
            let index = |at: u64| (mix(at, row[0] as u64) >> 20) as i64 % dense_rows as i64;
            let case = RowsCase {
                dtype,
                indices: (0..rows[row[0]]).map(index).collect(),
                width: widths[row[1]],
                dense_rows,
                offset: row[3],
                blocks: 2,
                seed: mix(row[0] as u64, row[1] as u64) >> 8,
            };
            judge(case.seed, Case::Rows(case));
            count += 1;
        }
    }
    println!("{count} sparse tensors");
}

#[test]
fn ragged_tensors_are_concatenated_as_the_spec_says() {
    let axes: [&[usize]; 6] = [&[1], &[3, 0, 5], &[0, 0], &[8, 16, 32], &[7; 9], &[1; 40]];
    let offsets: [&[usize]; 4] = [&[0], &[1], &[0, 1, 2], &[16, 0]];
    let mut count = 0;
    for &dtype in DType::ALL {
        for row in pairwise(&[axes.len(), 3, 4, offsets.len(), 2]) {
            let case = ConcatCase {
                dtype,
                outer: [0, 1, 5][row[1]],
                axes: axes[row[0]].to_vec(),
                inner: [1, 3, 16, 64][row[2]],
                offsets: offsets[row[3]].to_vec(),
                blocks: [1, u32::MAX][row[4]],
                seed: row[0] as u64,
            };
            judge(case.seed, Case::Concat(case));
            count += 1;
        }
    }
    println!("{count} concatenations");
}

#[test]
fn memory_is_filled_with_an_element() {
    let mut count = 0;
    for &dtype in DType::ALL {
        for elements in [0, 1, 2, 15, 16, 17, 255, 256, 257, 5000] {
            for offset in [0, 1, 3, 16] {
                let (work, seed, offsets) = (Work::Fill, 0x8123_4567_89ab_cdef, [offset; 2]);
                judge(1, Case::Elements(ElementsCase { work, dtype, count: elements, offsets, blocks: 2, seed }));
                count += 1;
            }
        }
    }
    println!("{count} fills");
}

#[test]
fn elements_are_converted_with_one_rounding() {
    let mut count = 0;
    for &dtype in DType::ALL {
        for work in DType::ALL.iter().map(|&to| Work::Cast(to)) {
            // Any bits, and bits at edges.
            for seed in 1..3 {
                let offsets = [1; 2];
                judge(seed, Case::Elements(ElementsCase { work, dtype, count: 400, offsets, blocks: 2, seed }));
                count += 1;
            }
        }
    }
    println!("{count} conversions of 400 elements");
}

#[test]
fn elements_are_scaled_with_one_rounding() {
    let mut count = 0;
    for &dtype in DType::ALL.iter().filter(|dtype| dtype.class() == Class::Float) {
        let works = [0.3, -0.0, f64::INFINITY, 0.125, 1e-42]
            .into_iter()
            .flat_map(|factor| [false, true].map(|in_place| Work::Scale { factor, in_place }));
        for work in works {
            for elements in [0, 1, 7, 8, 9, 600] {
                for offset in [0, 1, 8] {
                    let (offsets, seed) = ([offset, offset + 1], elements as u64);
                    judge(1, Case::Elements(ElementsCase { work, dtype, count: elements, offsets, blocks: 2, seed }));
                    count += 1;
                }
            }
        }
    }
    println!("{count} products");
}

#[test]
fn the_first_difference_is_found() {
    let mut count = 0;
    for &dtype in DType::ALL {
        for elements in [0, 1, 255, 256, 257, 2000_usize] {
            for changed in [None, Some(0), Some(elements / 2), Some(elements.saturating_sub(1))] {
                let (work, offsets) = (Work::Compare { changed }, [1, 0]);
                judge(1, Case::Elements(ElementsCase { work, dtype, count: elements, offsets, blocks: 3, seed: 5 }));
                count += 1;
            }
        }
    }
    println!("{count} comparisons");
}

#[test]
fn random_shapes_are_right() {
    let bytes = |number: u64| (0..60).map(|place| (mix(number, place) >> 32) as u8).collect::<Vec<u8>>();
    for number in 0..400 {
        fuzzed(&bytes(number)).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
    println!("400 cases of random shapes");
}
