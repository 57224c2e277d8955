//! Tensors on memory of another library, which only a binding can make.

use consonance::{DType, MirroredStrategy, ReduceOp, Result, Tensor, raw::HostMemory};
use std::{ptr::NonNull, sync::Arc};

#[test]
fn a_tensor_on_memory_of_another_library_is_read_where_it_lies_and_never_written() -> Result<()> {
    let array = Arc::new([1.5f32, 2.5]);
    let tensor = || {
        // SAFETY: the owner keeps the elements, which nobody writes.
        let memory = unsafe {
            HostMemory::foreign(NonNull::from(array.as_ref()).cast(), DType::F32, 2, Box::new(array.clone()))
        };
        Tensor::from_memory(vec![2], memory)
    };
    assert!(std::ptr::eq(tensor()?.as_slice::<f32>()?, &array[..]));
    // A tensor that nobody else holds is reduced in its own memory; this one is not.
    let sums = MirroredStrategy::new(["cpu:0", "cpu:1"])?.run(|replica| {
        let sum = replica.all_reduce(ReduceOp::Sum, tensor()?)?;
        sum.as_slice::<f32>().map(<[f32]>::to_vec)
    })?;
    assert_eq!(sums.values(), [[3.0, 5.0], [3.0, 5.0]]);
    assert_eq!(*array, [1.5, 2.5]);
    assert_eq!(Arc::strong_count(&array), 1);
    Ok(())
}
