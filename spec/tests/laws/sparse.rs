use crate::sample::keys;
use consonance_spec::{
    ReduceOp,
    array::{self, Array},
    collective::Error,
    number::Number,
    order::fold,
    sparse::*,
};
use quickcheck::quickcheck;

const DENSE: [usize; 2] = [5, 2];

/// Returns rows of a tensor of shape `[5, 2]`. The values are in the range of `u8`, so that every
/// order of additions is exact.
fn slices<T: From<u8>>(rows: &[(u8, u8, u8)]) -> IndexedSlices<T> {
    IndexedSlices {
        values: Array::new(&[rows.len(), 2], rows.iter().flat_map(|row| [row.1.into(), row.2.into()]).collect()),
        indices: rows.iter().map(|row| (row.0 % 5).into()).collect(),
        dense_shape: DENSE.to_vec(),
    }
}

/// Returns the rows of each replica, and one replica more, so that there is at least one.
fn replicas<T: From<u8>>(rows: &[Vec<(u8, u8, u8)>]) -> Vec<IndexedSlices<T>> {
    rows.iter().map(|rows| slices(rows)).chain([slices(&[(1, 2, 3)])]).collect()
}

fn dense<T: Number>(replicas: &[IndexedSlices<T>]) -> Vec<Array<T>> {
    replicas.iter().map(|slices| densify(slices).unwrap()).collect()
}

quickcheck! {
    fn the_sum_is_the_sum_of_the_dense(rows: Vec<Vec<(u8, u8, u8)>>) -> bool {
        let replicas = replicas::<i64>(&rows);
        densify(&sum(&replicas).unwrap()) == array::reduce(ReduceOp::Sum, &dense(&replicas), &[])
    }

    fn the_mean_is_the_mean_of_the_dense(rows: Vec<Vec<(u8, u8, u8)>>) -> bool {
        // The number of replicas is a power of two, so that every order is exact.
        let replicas = replicas::<f64>(&rows[..rows.len().min(7)]);
        let power = replicas.len().next_power_of_two();
        let replicas: Vec<_> = replicas.iter().cycle().take(power).cloned().collect();
        densify(&mean(&replicas).unwrap()) == array::reduce(ReduceOp::Mean, &dense(&replicas), &[])
    }

    fn gather_is_the_gather_of_the_dense(rows: Vec<Vec<(u8, u8, u8)>>) -> bool {
        let replicas = replicas::<i64>(&rows);
        densify(&gather(&replicas).unwrap()) == array::gather(&dense(&replicas), 0)
    }

    fn a_scatter_adds_the_dense(rows: Vec<(u8, u8, u8)>, target: (u8, u8)) -> bool {
        let slices = slices::<i64>(&rows);
        let target = Array::new(&DENSE, (0..10).map(|place| i64::from(target.0) + place * i64::from(target.1)).collect());
        let dense = densify(&slices).unwrap();
        scatter(&target, &slices, |element, row| element + row)
            == array::reduce(ReduceOp::Sum, &[target.clone(), dense], &[])
    }

    fn a_scatter_changes_no_other_row(rows: Vec<(u8, u8, u8)>) -> bool {
        let slices = slices::<f64>(&rows);
        let target = Array::new(&DENSE, vec![-0.0; 10]);
        let found = scatter(&target, &slices, |element, row| element + row).unwrap();
        (0..5).filter(|row| !slices.indices.contains(row)).all(|row| {
            found.data[row as usize * 2..][..2].iter().all(|element| element.to_bits() == (-0.0f64).to_bits())
        })
    }

    fn the_sum_keeps_every_row(rows: Vec<Vec<(u8, u8, u8)>>) -> bool {
        let replicas = replicas::<i64>(&rows);
        let all: Vec<_> = rows.concat().into_iter().chain([(1, 2, 3)]).collect();
        sum(&replicas) == Ok(slices(&all))
    }

    fn dedupe_leaves_one_row_an_index(rows: Vec<(u8, u8, u8)>) -> bool {
        let deduped = dedupe(&slices::<i64>(&rows)).unwrap();
        let used = |index: &i64| rows.iter().any(|row| i64::from(row.0 % 5) == *index);
        deduped.indices.is_sorted_by(|a, b| a < b)
            && deduped.indices.iter().copied().eq((0..5).filter(used))
            && densify(&deduped) == densify(&slices(&rows))
            && dedupe(&deduped) == Ok(deduped)
    }

    fn dedupe_adds_in_canonical_order(values: Vec<f32>) -> bool {
        let count = values.len();
        let slices = |values: Vec<f32>, indices| IndexedSlices { values: Array::new(&[values.len()], values), indices, dense_shape: vec![3] };
        let sum = fold(&values, |a, b| a + b);
        keys(&dedupe(&slices(values, vec![2; count])).unwrap().values.data) == keys(sum.as_slice())
    }
}

#[test]
fn errors_of_mismatched_rows_name_the_place() {
    let good = slices::<i64>(&[(0, 1, 2), (4, 3, 4)]);
    for index in [-1, 5] {
        let mut bad = good.clone();
        bad.indices[1] = index;
        let error = Error::IndexOutOfRange { replica: 1, row: 1, index };
        assert_eq!(sum(&[good.clone(), bad.clone()]), Err(error.clone()));
        assert_eq!(gather(&[good.clone(), bad]), Err(error));
    }
    let mut taller = good.clone();
    taller.dense_shape[0] = 6;
    assert_eq!(sum(&[good.clone(), taller.clone()]), Err(Error::Shape { replica: 1 }));
    assert_eq!(gather(&[good.clone(), taller]).unwrap().dense_shape, [11, 2]);
    let mut fewer = good.clone();
    fewer.indices.pop();
    assert_eq!(sum(&[good.clone(), fewer]), Err(Error::Shape { replica: 1 }));
    let mut wider = good.clone();
    wider.dense_shape[1] = 3;
    assert_eq!(gather(&[good, wider]), Err(Error::Shape { replica: 1 }));
}
