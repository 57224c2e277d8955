//! Sums of rows, concatenation, filling, conversion, scaling and comparison.

use consonance_harness::cuda::{
    ConcatCase, FillCase, Interpreter, RowsCase, cast_all, compare_arrays, fuzzed, pairwise::pairwise, scale_all,
};
use consonance_kernels::digest::mix;
use consonance_spec::{DType, ReduceOp};

fn passed(verdict: Result<(), String>) {
    verdict.unwrap_or_else(|wrong| panic!("{wrong}"));
}

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
            passed(case.judge(&mut Interpreter::new(case.seed)));
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
            passed(case.judge(&mut Interpreter::new(case.seed)));
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
                let bits = 0x8123_4567_89ab_cdef;
                passed(FillCase { dtype, count: elements, offset, blocks: 2, bits }.judge(&mut Interpreter::new(1)));
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
        // Any bits, and bits at edges.
        for seed in 1..3 {
            count += cast_all(dtype, 400, seed, &mut Interpreter::new(seed)).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }
    println!("{count} conversions of 400 elements");
}

#[test]
fn elements_are_scaled_with_one_rounding() {
    let mut count = 0;
    for elements in [0, 1, 7, 8, 9, 600] {
        for offset in [0, 1, 8] {
            let machine = &mut Interpreter::new(1);
            count += scale_all(elements, offset, elements as u64, machine).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }
    println!("{count} products");
}

#[test]
fn the_first_difference_is_found() {
    let mut count = 0;
    for &dtype in DType::ALL {
        for elements in [0, 1, 255, 256, 257, 2000] {
            let machine = &mut Interpreter::new(1);
            count += compare_arrays(dtype, elements, 5, machine).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }
    println!("{count} comparisons");
}

#[test]
fn random_shapes_are_right() {
    let bytes = |number: u64| (0..60).map(|place| (mix(number, place) >> 32) as u8).collect::<Vec<u8>>();
    for number in 0..400 {
        passed(fuzzed(&bytes(number)));
    }
    println!("400 cases of random shapes");
}
