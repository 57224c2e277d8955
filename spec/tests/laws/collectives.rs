use crate::sample::Sample;
use crate::sample::{Ranks, all_keys, for_ranks, keys};
use consonance_spec::{
    ReduceOp,
    array::{self, Array},
    collective::*,
    for_each_dtype,
};
use quickcheck::quickcheck;

fn defined<T: Sample>() -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.into_iter().filter(|op| op.result(T::DTYPE) == Some(T::DTYPE))
}

#[test]
fn all_reduce_is_all_gather_of_reduce_scatter() {
    fn law<T: Sample>(inputs: Ranks<T>) -> bool {
        let ranks = inputs.0.len();
        // The same number of elements for each rank.
        let even: Vec<Vec<T>> = inputs.0.iter().map(|input| input.repeat(ranks)).collect();
        defined::<T>().all(|op| {
            let blocks = reduce_scatter(op, &even).unwrap();
            blocks.iter().all(|block| block.len() == inputs.0[0].len())
                && all_keys(&all_gather(&blocks)) == all_keys(&all_reduce(op, &even).unwrap())
        })
    }
    for_each_dtype!(for_ranks law);
}

#[test]
fn flat_data_are_tensors_without_axes() {
    fn law<T: Sample>(inputs: Ranks<T>) -> bool {
        let arrays: Vec<Array<T>> = inputs.0.iter().map(|input| Array::new(&[input.len()], input.clone())).collect();
        defined::<T>()
            .all(|op| keys(&reduce(op, &inputs.0).unwrap()) == keys(&array::reduce(op, &arrays, &[]).unwrap().data))
    }
    for_each_dtype!(for_ranks law);
}

#[test]
fn reduce_goes_element_by_element() {
    fn law<T: Sample>(inputs: Ranks<T>) -> bool {
        let reversed = |rank: &Vec<T>| rank.iter().rev().copied().collect::<Vec<T>>();
        let backwards: Vec<Vec<T>> = inputs.0.iter().map(reversed).collect();
        defined::<T>().all(|op| {
            let result = reduce(op, &inputs.0).unwrap();
            keys(&reversed(&result)) == keys(&reduce(op, &backwards).unwrap())
        })
    }
    for_each_dtype!(for_ranks law);
}

quickcheck! {
    fn scatter_is_undone_by_gather(inputs: Vec<Vec<u8>>) -> bool {
        let counts: Vec<usize> = inputs.iter().map(Vec::len).collect();
        scatter_v(&gather(&inputs), &counts) == Ok(inputs)
    }

    fn even_blocks_are_equal_counts(input: Vec<u8>, ranks: u8) -> bool {
        let ranks = 1 + ranks as usize % 9;
        let counts = vec![input.len() / ranks; ranks];
        match input.len() % ranks {
            0 => scatter(&input, ranks) == scatter_v(&input, &counts),
            _ => scatter(&input, ranks) == Err(Error::Indivisible { count: input.len(), ranks }),
        }
    }

    fn every_rank_gets_the_same(inputs: Vec<Vec<u8>>) -> bool {
        all_gather(&inputs).into_iter().eq(inputs.iter().map(|_| inputs.concat()))
    }

    fn all_to_all_is_undone_by_itself(inputs: Vec<Vec<u8>>) -> bool {
        let counts: Vec<Vec<usize>> = inputs.iter().map(|input| cut(input.len(), inputs.len())).collect();
        let back: Vec<Vec<usize>> = (0..inputs.len()).map(|to| counts.iter().map(|from| from[to]).collect()).collect();
        let sent = all_to_all_v(&inputs, &counts).unwrap();
        all_to_all_v(&sent, &back) == Ok(inputs)
    }

    fn block_r_of_rank_s_becomes_block_s_of_rank_r(ranks: u8, count: u8) -> bool {
        let (ranks, count) = (1 + ranks as usize % 9, count as usize % 5);
        let element = |s: usize, r: usize| (0..count).map(move |i| (s, r, i));
        let inputs: Vec<Vec<_>> = (0..ranks).map(|s| (0..ranks).flat_map(|r| element(s, r)).collect()).collect();
        let outputs: Vec<Vec<_>> = (0..ranks).map(|r| (0..ranks).flat_map(|s| element(s, r)).collect()).collect();
        all_to_all(&inputs) == Ok(outputs)
    }
}

/// Returns uneven parts of `count`. The first is the largest.
fn cut(count: usize, parts: usize) -> Vec<usize> {
    let mut left = count;
    (1..=parts)
        .map(|i| {
            if i == parts {
                left
            } else {
                let half = left.div_ceil(2);
                left -= half;
                half
            }
        })
        .collect()
}

#[test]
fn errors_of_mismatched_calls_name_the_place() {
    let ragged = [vec![1, 2], vec![3, 4], vec![5]];
    assert_eq!(reduce(ReduceOp::Sum, &ragged), Err(Error::Shape { replica: 2 }));
    assert_eq!(mean(&ragged), Err(Error::Shape { replica: 2 }));
    assert_eq!(all_to_all(&ragged), Err(Error::Shape { replica: 2 }));
    assert_eq!(
        reduce_scatter(ReduceOp::Sum, &[vec![1; 3], vec![2; 3]]),
        Err(Error::Indivisible { count: 3, ranks: 2 })
    );
    assert_eq!(scatter_v(&[1, 2, 3], &[1, 1]), Err(Error::Shape { replica: 0 }));
    let counts = [vec![1, 1, 0], vec![1, 1, 0], vec![1, 1, 0]];
    assert_eq!(all_to_all_v(&ragged, &counts), Err(Error::Shape { replica: 2 }));
}
