//! Our answers where TensorFlow's arithmetic differs: a second, plain computation for the few cases
//! in the table.
//!
//! Sums use the balanced tree over the replicas. f16 and bf16 are summed in f32 and rounded once.
//! Integers wrap in sums but not in means.

use crate::value::{Value, bits, from_bits};
use consonance::{DType, IndexedSlices, ReduceOp, Tensor, bf16, f16};
use std::{
    collections::BTreeMap,
    ops::{Add, Div},
};

/// Reduces all replicas' nests to one nest, over the replicas and over `axes` of each tensor.
pub(crate) fn reduce(op: ReduceOp, axes: &[isize], nests: &[Value]) -> Value {
    by_leaf(nests, &|leaves| match &leaves[0] {
        Value::Sparse(_) => Value::Sparse(reduce_rows(op, leaves)),
        _ => Value::Tensor(reduce_tensors(op, axes, leaves)),
    })
}

/// Concatenates all replicas' nests to one nest, along axis 0. Sparse rows are made dense.
pub(crate) fn gather(nests: &[Value]) -> Value {
    by_leaf(nests, &|leaves| {
        let dense = leaves.iter().map(|leaf| leaf.clone().densify().ok()?.into_tensor());
        let dense: Vec<Tensor> = dense.collect::<Option<_>>().expect("tensors");
        Value::Tensor(concat(&dense.iter().collect::<Vec<_>>()))
    })
}

/// Combines all replicas' nests, which have the same structure, leaf by leaf.
fn by_leaf(nests: &[Value], combine: &dyn Fn(&[Value]) -> Value) -> Value {
    let entries = |nest: &Value| match nest {
        Value::List(list) | Value::Tuple(list) => Some(list.clone()),
        Value::Dict(dict) => Some(dict.values().cloned().collect()),
        _ => None,
    };
    let Some(lists) = nests.iter().map(entries).collect::<Option<Vec<_>>>() else { return combine(nests) };
    let at = |place: usize| lists.iter().map(|list| list[place].clone()).collect::<Vec<_>>();
    let combined = (0..lists[0].len()).map(|place| by_leaf(&at(place), combine));
    match &nests[0] {
        Value::Dict(dict) => Value::Dict(dict.keys().cloned().zip(combined).collect()),
        Value::Tuple(_) => Value::Tuple(combined.collect()),
        _ => Value::List(combined.collect()),
    }
}

/// Concatenates all rows. For a mean they are divided by the number of replicas.
fn reduce_rows(op: ReduceOp, replicas: &[Value]) -> IndexedSlices {
    let slices = replicas.iter().map(|replica| match replica {
        Value::Sparse(slices) => slices,
        other => panic!("not sparse: {other:?}"),
    });
    let slices: Vec<&IndexedSlices> = slices.collect();
    let rows = concat(&slices.iter().map(|slices| slices.values()).collect::<Vec<_>>());
    let indices = concat(&slices.iter().map(|slices| slices.indices()).collect::<Vec<_>>());
    let count = if op == ReduceOp::Mean { slices.len() as f32 } else { 1.0 };
    let divided: Vec<f32> = rows.as_slice::<f32>().expect("f32").iter().map(|element| element / count).collect();
    let values = Tensor::new(rows.shape(), &divided).expect("the same shape");
    IndexedSlices::new(values, indices, slices[0].dense_shape().map(<[usize]>::to_vec)).expect("fitting shapes")
}

fn concat(tensors: &[&Tensor]) -> Tensor {
    let mut shape = tensors[0].shape().to_vec();
    shape[0] = tensors.iter().map(|tensor| tensor.shape()[0]).sum();
    let elements: Vec<u64> = tensors.iter().flat_map(|tensor| bits(tensor)).collect();
    from_bits(tensors[0].dtype(), shape, &elements)
}

fn reduce_tensors(op: ReduceOp, axes: &[isize], tensors: &[Value]) -> Tensor {
    let tensors: Vec<Tensor> = tensors.iter().filter_map(|tensor| tensor.clone().into_tensor()).collect();
    let removed = |axis: usize| axes.iter().any(|&other| other.rem_euclid(tensors[0].rank() as isize) as usize == axis);
    let kept: Vec<usize> =
        (0..tensors[0].rank()).filter(|&axis| !removed(axis)).map(|axis| tensors[0].shape()[axis]).collect();
    // The contributions to each element of the result, in the order of replicas and indices.
    let mut columns: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for tensor in &tensors {
        for (place, bits) in bits(tensor).into_iter().enumerate() {
            let (mut rest, mut column, mut stride) = (place, 0, 1);
            for axis in (0..tensor.rank()).rev() {
                let size = tensor.shape()[axis];
                if !removed(axis) {
                    column += rest % size * stride;
                    stride *= size;
                }
                rest /= size;
            }
            columns.entry(column).or_default().push(bits);
        }
    }
    let dtype = tensors[0].dtype();
    let result = if op == ReduceOp::Mean { dtype.mean().expect("numbers") } else { dtype };
    let elements: Vec<u64> = columns.into_values().map(|column| combine(op, dtype, &column)).collect();
    from_bits(result, kept, &elements)
}

/// Returns the bits of the result, from the bits of its contributions.
fn combine(op: ReduceOp, dtype: DType, column: &[u64]) -> u64 {
    match dtype {
        DType::F64 => floats(op, column, f64::from_bits, f64::max).to_bits(),
        DType::F32 => floats(op, column, |bits| f32::from_bits(bits as u32), f32::max).to_bits().into(),
        DType::F16 => {
            let result = floats(op, column, |bits| f16::from_bits(bits as u16).to_f32(), f32::max);
            f16::from_f32(result).to_bits().into()
        }
        DType::Bf16 => {
            let result = floats(op, column, |bits| bf16::from_bits(bits as u16).to_f32(), f32::max);
            bf16::from_f32(result).to_bits().into()
        }
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
            let others = 64 - 8 * dtype.size() as u32;
            integers(op, dtype, column, |bits| ((bits as i64) << others >> others).into())
        }
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => integers(op, dtype, column, i128::from),
        DType::Bool => panic!("no vectors of {op} of bools"),
    }
}

/// Reduces the floats that have these bits.
fn floats<T>(op: ReduceOp, column: &[u64], widen: fn(u64) -> T, max: fn(T, T) -> T) -> T
where
    T: Copy + From<u16> + Add<Output = T> + Div<Output = T>,
{
    let numbers: Vec<T> = column.iter().map(|&bits| widen(bits)).collect();
    match op {
        ReduceOp::Max => tree(&numbers, max),
        ReduceOp::Sum => tree(&numbers, T::add),
        ReduceOp::Mean => tree(&numbers, T::add) / u16::try_from(numbers.len()).expect("few replicas").into(),
        ReduceOp::Product | ReduceOp::Min | ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => {
            panic!("no vectors of {op} of floats")
        }
    }
}

/// Reduces the integers that have these bits. Returns the bits of the result.
fn integers(op: ReduceOp, dtype: DType, column: &[u64], widen: impl Fn(u64) -> i128) -> u64 {
    let (sum, count): (i128, usize) = (column.iter().map(|&bits| widen(bits)).sum(), column.len());
    match op {
        ReduceOp::Mean if dtype.mean() == Some(DType::F32) => (sum as f32 / count as f32).to_bits().into(),
        ReduceOp::Mean => (sum as f64 / count as f64).to_bits(),
        ReduceOp::Sum => sum as u64 & (u64::MAX >> (64 - 8 * dtype.size())),
        ReduceOp::Product | ReduceOp::Min | ReduceOp::Max | ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => {
            panic!("no vectors of {op} of integers")
        }
    }
}

/// Reduces by the balanced tree: the left part has the largest power of two below the count.
fn tree<T: Copy>(numbers: &[T], combine: fn(T, T) -> T) -> T {
    match numbers {
        [number] => *number,
        _ => {
            let (left, right) = numbers.split_at(numbers.len().next_power_of_two() / 2);
            combine(tree(left, combine), tree(right, combine))
        }
    }
}
