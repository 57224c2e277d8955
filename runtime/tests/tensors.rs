//! Tensors: what they are made of, what they give back, and how they print.

mod fields;

use consonance::{DType, Error, MirroredStrategy, PerReplica, Tensor, Variable, bf16, f16};
use fields::{found, refusal};

#[test]
fn a_vector_goes_in_and_comes_out_without_a_copy() {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let vectors = PerReplica::new(vec![vec![1.0f32; 100_000], vec![2.0; 100_000]]);
    let kept = strategy.run_with(vectors, |replica, vector| {
        let start = vector.as_ptr();
        let sum = replica.all_reduce("sum", Tensor::from(vector))?.into_vec::<f32>()?;
        assert_eq!(sum, vec![3.0; 100_000]);
        Ok(sum.as_ptr() == start)
    });
    assert_eq!(kept.unwrap().values(), [true, true]);
}

#[test]
fn shared_elements_are_copied_out() {
    let whole = Tensor::from(vec![1, 2, 3, 4]);
    assert_eq!(whole.rows(1..3).unwrap().into_vec::<i32>().unwrap(), [2, 3]);
    let other = whole.clone();
    assert_eq!(whole.into_vec::<i32>().unwrap(), [1, 2, 3, 4]);
    let part = other.rows(2..4).unwrap();
    drop(other);
    assert_eq!(part.into_vec::<i32>().unwrap(), [3, 4]);
    assert_eq!(Tensor::from([[1u8, 2], [3, 4]]).into_vec::<u8>().unwrap(), [1, 2, 3, 4]);
    assert_eq!(Vec::<bool>::try_from(Tensor::from([true])).unwrap(), [true]);
    assert!(Tensor::default().into_vec::<u8>().unwrap().is_empty());
    let Error::InvalidCall { expected, found, .. } = Tensor::from(1.0f32).into_vec::<f64>().unwrap_err() else {
        panic!("another error")
    };
    assert_eq!((expected.as_str(), found.as_str()), ("f32, the tensor's element type", "f64"));
}

#[test]
fn a_tensor_is_made_of_arrays_of_any_depth() {
    let deep = Tensor::from([[[[1, 2]], [[3, 4]], [[5, 6]]]]);
    assert_eq!(deep.shape(), [1, 3, 1, 2]);
    assert_eq!(deep.as_slice::<i32>().unwrap(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(Tensor::from([[0.0f64; 3]; 0]).shape(), [0, 3]);
    assert_eq!(Tensor::from([bf16::ONE]).dtype(), DType::Bf16);
    assert_eq!((0..4).map(f16::from_bits).collect::<Tensor>().shape(), [4]);
}

#[test]
fn an_operand_of_another_type_says_how_to_write_it() {
    let refused = |initial: Tensor, operand: Tensor| {
        let error = Variable::new(initial).unwrap().assign(operand).unwrap_err();
        assert_eq!(refusal(&error), ("Variable::assign", "value", None));
        found(&error).to_owned()
    };
    assert!(refused(Tensor::from(0.0f32), Tensor::from(1.0)).ends_with("1.0f32)"));
    assert!(refused(Tensor::from(0i64), Tensor::from(1)).ends_with("1i64)"));
    assert!(refused(Tensor::from(bf16::ONE), Tensor::from(1)).ends_with("bf16::from_f32(1.0))"));
    assert_eq!(refused(Tensor::from(true), Tensor::from(1)), "i32[]");
    assert_eq!(refused(Tensor::from(0), Tensor::from([1])), "i32[1]");
}
