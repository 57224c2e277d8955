use crate::sample::{Ranks, Sample, for_ranks, keys};
use consonance_spec::{
    ReduceOp,
    array::{Array, gather, mean, reduce},
    collective::Error,
    f16, for_each_dtype,
    order::{fold, fold_along},
};
use quickcheck::quickcheck;

/// Returns the elements of a tensor with their coordinates, in row-major order.
fn walk<T: Copy>(array: &Array<T>) -> Vec<(Vec<usize>, T)> {
    let mut all = vec![vec![]];
    for &size in &array.shape {
        all = all.into_iter().flat_map(|c: Vec<usize>| (0..size).map(move |i| [&c[..], &[i]].concat())).collect();
    }
    all.into_iter().zip(array.data.iter().copied()).collect()
}

/// Makes a tensor whose element at position `i` is `of(i)`.
fn array<T>(shape: &[usize], of: impl Fn(usize) -> T) -> Array<T> {
    Array::new(shape, (0..shape.iter().product()).map(of).collect())
}

/// Returns the tensors of 1 to 5 replicas, ragged along `axis`.
fn ragged(sizes: &[u8], shape: [u8; 3], axis: usize) -> Vec<Array<i64>> {
    let sizes = sizes.iter().chain([&2]).take(5);
    let one = |(replica, &size): (usize, &u8)| {
        let mut shape = shape.map(|size| size as usize % 4);
        shape[axis] = size as usize % 6;
        array(&shape, |i| (1000 * replica + i) as i64)
    };
    sizes.enumerate().map(one).collect()
}

quickcheck! {
    fn gather_puts_each_element_after_those_of_earlier_replicas(sizes: Vec<u8>, shape: (u8, u8, u8), axis: u8) -> bool {
        let axis = axis as usize % 3;
        let replicas = ragged(&sizes, shape.into(), axis);
        let gathered = gather(&replicas, axis as isize).unwrap();
        let mut expected = Vec::new();
        let mut before = 0;
        for replica in &replicas {
            for (mut coordinates, element) in walk(replica) {
                coordinates[axis] += before;
                expected.push((coordinates, element));
            }
            before += replica.shape[axis];
        }
        expected.sort();
        gathered.shape[axis] == before && walk(&gathered) == expected && gather(&replicas, axis as isize - 3) == Ok(gathered)
    }

    fn reduce_adds_all_elements_of_equal_other_coordinates(sizes: Vec<u8>, shape: (u8, u8, u8), axis: u8) -> bool {
        let axis = axis as usize % 3;
        let replicas = ragged(&sizes, shape.into(), axis);
        let sum = reduce(ReduceOp::Sum, &replicas, &[axis as isize]).unwrap();
        let means = mean(&replicas, &[axis as isize]).unwrap();
        let count: usize = replicas.iter().map(|replica| replica.shape[axis]).sum();
        let others = |mut coordinates: Vec<usize>| { coordinates.remove(axis); coordinates };
        let total = |at: &Vec<usize>| -> i64 {
            let all = replicas.iter().flat_map(walk);
            all.filter(|(coordinates, _)| others(coordinates.clone()) == *at).map(|(_, element)| element).sum()
        };
        walk(&sum).iter().all(|(at, element)| *element == total(at))
            && walk(&means).iter().all(|(at, element)| {
                element.to_bits() == (total(at) as f64 / count as f64).to_bits() || count == 0 && element.is_nan()
            })
            && reduce(ReduceOp::Sum, &replicas, &[axis as isize - 3]) == Ok(sum)
    }

    fn elements_meet_along_the_axis_then_across_replicas(replicas: Vec<Vec<i8>>) -> bool {
        // Sevenths, so that sums round. There are several elements per lane.
        let sevenths = |x: Vec<i8>| x.iter().take(9).map(|&x| f32::from(x) / 7.0).collect::<Vec<f32>>().repeat(40);
        let replicas: Vec<Vec<f32>> = replicas.into_iter().take(4).chain([vec![1, 2, 4]]).map(sevenths).collect();
        let along = |replica: &Vec<f32>| fold_along(replica, |a, b| a + b).unwrap_or(0.0);
        let sum = fold(&replicas.iter().map(along).collect::<Vec<f32>>(), |a, b| a + b).unwrap();
        let arrays: Vec<Array<f32>> = replicas.iter().map(|x| Array::new(&[x.len()], x.clone())).collect();
        keys(&reduce(ReduceOp::Sum, &arrays, &[0]).unwrap().data) == keys(&[sum])
    }

    fn gather_along_the_axis_keeps_all_operands_of_reduce(sizes: Vec<u8>, shape: (u8, u8, u8), axis: u8) -> bool {
        let axis = axis as isize % 3;
        let replicas = ragged(&sizes, shape.into(), axis as usize);
        let gathered = [gather(&replicas, axis).unwrap()];
        [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max, ReduceOp::And, ReduceOp::Or, ReduceOp::Xor]
            .into_iter()
            .all(|op| reduce(op, &replicas, &[axis]) == reduce(op, &gathered, &[axis]))
    }
}

#[test]
fn several_axes_are_one_axis_of_their_elements_in_row_major_order() {
    fn law<T: Sample>(inputs: Ranks<T>) -> bool {
        // 35 elements along the axes, so that some lanes have several elements, and rounding shows
        // their order.
        let count = inputs.0[0].len();
        let cubes: Vec<Array<T>> = inputs.0.iter().map(|x| Array::new(&[5, count, 7], x.repeat(35))).collect();
        let row = |cube: &Array<T>, j: usize| {
            let of = |i: usize| (0..7).map(move |k| (i * count + j) * 7 + k);
            Array::new(&[35], (0..5).flat_map(of).map(|place| cube.data[place]).collect())
        };
        let rows = |j: usize| cubes.iter().map(|cube| row(cube, j)).collect::<Vec<Array<T>>>();
        [ReduceOp::Sum, ReduceOp::Xor].into_iter().filter(|op| op.result(T::DTYPE).is_some()).all(|op| {
            let result = reduce(op, &cubes, &[-1, 0]).unwrap();
            let each: Vec<T> = (0..count).flat_map(|j| reduce(op, &rows(j), &[0]).unwrap().data).collect();
            result.shape == [count] && keys(&result.data) == keys(&each)
        })
    }
    for_each_dtype!(for_ranks law);
}

#[test]
fn partial_sums_are_not_rounded() {
    // In f16, 2048 + 1 rounds to 2048; the replicas' sums 2049 and 2049 are kept in f32.
    let replica = Array::new(&[2], [2048.0, 1.0].map(f16::from_f32).to_vec());
    let sum = reduce(ReduceOp::Sum, &[replica.clone(), replica], &[0]).unwrap();
    assert_eq!(sum, Array::new(&[], vec![f16::from_f32(4098.0_f32)]));
}

#[test]
fn a_mean_divides_by_the_elements_of_all_replicas() {
    let replicas = [Array::new(&[3], vec![1.0, 2.0, 3.0]), Array::new(&[1], vec![6.0]), Array::new(&[0], vec![])];
    assert_eq!(reduce(ReduceOp::Mean, &replicas, &[0]), Ok(Array::new(&[], vec![3.0])));
    let bytes = [Array::new(&[2], vec![255u8, 255]), Array::new(&[1], vec![0])];
    assert_eq!(mean(&bytes, &[0]), Ok(Array::new(&[], vec![170f32])));
    assert!(mean(&[Array::new(&[0], Vec::<i32>::new())], &[0]).unwrap().data[0].is_nan());
}

#[test]
fn a_replica_without_elements_contributes_the_identity() {
    fn law<T: Sample>(inputs: Ranks<T>) -> bool {
        let full = Array::new(&[inputs.0[0].len()], inputs.0[0].clone());
        let empty = Array::new(&[0], Vec::<T>::new());
        ReduceOp::ALL.into_iter().filter_map(|op| Some((op, T::reduction(op)?))).all(|(op, steps)| {
            let Some(identity) = steps.identity else { return true };
            let of = |replicas: &[&Array<T>]| {
                let replicas: Vec<Array<T>> = replicas.iter().map(|&replica| replica.clone()).collect();
                reduce(op, &replicas, &[0]).unwrap().data[0]
            };
            of(&[&empty]).key() == (steps.finish)(identity, 0).key()
                // 0 + -0 is 0.
                && (of(&[&full, &empty]).key() == of(&[&full]).key() || of(&[&full, &empty]) == of(&[&full]))
        })
    }
    for_each_dtype!(for_ranks law);
    assert_eq!(reduce(ReduceOp::Max, &[Array::new(&[0], Vec::<f32>::new())], &[0]).unwrap().data, [f32::NEG_INFINITY]);
    assert_eq!(reduce(ReduceOp::Min, &[Array::new(&[0], Vec::<i8>::new())], &[0]).unwrap().data, [i8::MAX]);
    assert_eq!(reduce(ReduceOp::Min, &[Array::new(&[0], Vec::<bool>::new())], &[0]).unwrap().data, [true]);
    assert_eq!(reduce(ReduceOp::And, &[Array::new(&[0], Vec::<u16>::new())], &[0]).unwrap().data, [0xffff]);
}

#[test]
fn errors_of_mismatched_calls_name_the_place() {
    let of = |shape: &[usize]| array(shape, |i| i as i32);
    let sum = |replicas: &[Array<i32>], axes: &[isize]| reduce(ReduceOp::Sum, replicas, axes).unwrap_err();
    assert_eq!(sum(&[of(&[2, 3]), of(&[2, 3]), of(&[1, 3])], &[]), Error::Shape { replica: 2 });
    assert_eq!(sum(&[of(&[2, 3]), of(&[1, 4])], &[0]), Error::Shape { replica: 1 });
    assert_eq!(sum(&[of(&[2]), of(&[2, 1])], &[0]), Error::Shape { replica: 1 });
    assert_eq!(sum(&[of(&[2, 3])], &[2]), Error::AxisOutOfRange { axis: 2, rank: 2 });
    assert_eq!(sum(&[of(&[2, 3])], &[-3]), Error::AxisOutOfRange { axis: -3, rank: 2 });
    assert_eq!(sum(&[of(&[])], &[0]), Error::AxisOutOfRange { axis: 0, rank: 0 });
    assert_eq!(sum(&[of(&[2, 3])], &[1, -1]), Error::AxisRepeated { axis: 1 });
    assert_eq!(gather(&[of(&[])], 0), Err(Error::Scalar));
    assert_eq!(gather(&[of(&[1])], 1), Err(Error::AxisOutOfRange { axis: 1, rank: 1 }));
    assert_eq!(gather(&[of(&[2, 3]), of(&[3, 2])], 0), Err(Error::Shape { replica: 1 }));
    let undefined = Error::Undefined { op: ReduceOp::Mean, dtype: consonance_spec::DType::I32 };
    assert_eq!(reduce(ReduceOp::Mean, &[of(&[1])], &[]), Err(undefined));
}
