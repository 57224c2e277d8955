//! Tensors as arrays of `ndarray`, and arrays as tensors.

#![cfg(feature = "ndarray")]

mod fields;

use consonance::Tensor;
use fields::{found, refusal};
use ndarray::{Array0, Array1, Array2, Ix1, Ix2, IxDyn, array, s};

#[test]
fn elements_stay_where_they_are() {
    let weights = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    let start = weights.as_ptr();
    let tensor = Tensor::from(weights.clone());
    assert_eq!(tensor, Tensor::from([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]]));
    let moved = Tensor::from(weights);
    assert_eq!(moved.view::<f32, Ix2>().unwrap().as_ptr(), start);
    let back = Array2::<f32>::try_from(moved).unwrap();
    assert_eq!(back.as_ptr(), start);
}

#[test]
fn other_layouts_are_copied_in_row_major_order() {
    let x = array![[1, 2, 3], [4, 5, 6]];
    let transposed = Tensor::from([[1, 4], [2, 5], [3, 6]]);
    assert_eq!(Tensor::from(x.t()), transposed);
    assert_eq!(Tensor::from(x.clone().reversed_axes()), transposed);
    assert_eq!(Tensor::from(x.clone().slice_move(s![1.., ..])), Tensor::from([[4, 5, 6]]));
    assert_eq!(Tensor::from(x.clone().slice_move(s![..1, ..])), Tensor::from([[1, 2, 3]]));
    assert_eq!(Tensor::from(x.slice(s![.., ..;-1])), Tensor::from([[3, 2, 1], [6, 5, 4]]));
    assert_eq!(Tensor::from(Array0::from_elem((), 7u8)), Tensor::from(7u8));
    assert_eq!(Tensor::from(Array1::<f64>::zeros(0)).shape(), [0]);
    assert_eq!(Tensor::from(Array2::<f64>::zeros((0, 3))).view::<f64, Ix2>().unwrap().dim(), (0, 3));
}

#[test]
fn another_rank_or_type_is_refused() {
    let mut x = Tensor::from([[1.0f32, 2.0]]);
    assert_eq!(x.view::<f32, IxDyn>().unwrap().shape(), [1, 2]);
    let error = x.view::<f32, Ix1>().unwrap_err();
    assert_eq!((refusal(&error), found(&error)), (("Tensor::view", "self", None), "f32[1, 2]"));
    let error = x.view_mut::<f64, Ix2>().unwrap_err();
    assert_eq!((refusal(&error), found(&error)), (("Tensor::view_mut", "T", None), "f64"));
    assert!(Array1::<f32>::try_from(x).is_err());
}
