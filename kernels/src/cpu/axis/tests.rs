use super::*;
use crate::{
    cpu::{
        isa::Isa,
        reduce::{Node, Reducer, Source},
    },
    memory::HostMemory,
};
use consonance_spec::{
    DType, ReduceOp,
    array::{self, Array},
    for_each_dtype,
    sample::{Sample, samples},
};
use std::io;

/// Sizes along the axis at the edges of lanes and blocks: of one replica, and of several.
const AXES: [&[usize]; 23] = [
    &[0],
    &[1],
    &[7],
    &[10],
    &[16],
    &[24],
    &[31],
    &[32],
    &[33],
    &[64],
    &[96],
    &[97],
    &[164],
    &[4095],
    &[4096],
    &[4097],
    &[8193],
    &[12300],
    &[0, 5, 0],
    &[100, 150, 30],
    &[30, 150],
    &[90, 97, 7],
    &[33, 4100, 1, 64, 7],
];

/// `(outer, inner)`: tiles of lanes, narrow rows, rows that are one run, and strips (of more than
/// one width).
const AROUND: [(usize, usize); 13] =
    [(1, 1), (3, 1), (150, 1), (1, 2), (3, 7), (40, 9), (1, 16), (1, 33), (33, 50), (1, 140), (2, 700), (0, 3), (2, 0)];

/// Returns the result at each place beside the axis, computed by the spec.
fn expected<T: Sample<Mean: Sample>>(
    op: ReduceOp,
    tensors: &[Vec<T>],
    axes: &[usize],
    outer: usize,
    inner: usize,
) -> Vec<u64> {
    let shaped = |(tensor, &axis): (&Vec<T>, &usize)| Array::new(&[outer, axis, inner], tensor.clone());
    let tensors: Vec<Array<T>> = tensors.iter().zip(axes).map(shaped).collect();
    match op {
        ReduceOp::Mean => array::mean(&tensors, &[1]).unwrap().data.iter().map(|value| value.key()).collect(),
        ReduceOp::Sum
        | ReduceOp::Product
        | ReduceOp::Min
        | ReduceOp::Max
        | ReduceOp::And
        | ReduceOp::Or
        | ReduceOp::Xor => array::reduce(op, &tensors, &[1]).unwrap().data.iter().map(|value| value.key()).collect(),
    }
}

fn check<T: Sample<Mean: Sample>>(op: ReduceOp, axes: &[usize], outer: usize, inner: usize) {
    let tensor = |(replica, axis): (usize, &usize)| samples::<T>(replica as u64, outer * axis * inner);
    let tensors: Vec<Vec<T>> = axes.iter().enumerate().map(tensor).collect();
    let inputs: Vec<_> =
        tensors.iter().zip(axes).map(|(tensor, &axis)| (tensor[..].into(), [outer, axis, inner])).collect();
    let expected = expected(op, &tensors, axes, outer, inner);
    let alone = Isa::available().map(|isa| (isa, 1));
    let shared: &[usize] = if op == ReduceOp::Sum { &[2, 3, 8] } else { &[3] };
    for (isa, parts) in alone.chain(shared.iter().map(|&parts| (Isa::best(), parts))) {
        let mut along = Along::with_isa(op, &inputs, isa).unwrap().unwrap();
        along.parts(parts).into_iter().rev().for_each(Part::run);
        let what = format!("{op} of {} in {isa}, {parts} parts: [{outer}, {axes:?}, {inner}]", T::DTYPE);
        assert_eq!(keys::<T>(op, &along.finish().unwrap()), expected, "{what}");
    }
    let partial = |&(input, shape): &(_, _)| Partial::new(op, input, shape).unwrap().unwrap();
    let partials: Vec<Partial> = inputs.iter().map(partial).collect();
    let count = axes.iter().sum::<usize>() as u64;
    let result = finish(&partials, count).unwrap();
    assert_eq!(keys::<T>(op, &result), expected, "partials, {op} of {}: [{outer}, {axes:?}, {inner}]", T::DTYPE);
    let reducer = Reducer::new(op, T::DTYPE).unwrap();
    let nodes: Vec<Node> = (0..axes.len()).map(|replica| Node::kept(replica..replica + 1)).collect();
    let sources: Vec<Source<'_>> = partials.iter().map(|partial| Source::Accumulators(partial.as_bytes())).collect();
    let mut result = HostMemory::zeroed(reducer.output(), outer * inner);
    reducer.shape(axes.len(), &nodes).unwrap().finish(&sources, &mut result.as_buf_mut(), count);
    assert_eq!(keys::<T>(op, &result), expected, "bytes, {op} of {}: [{outer}, {axes:?}, {inner}]", T::DTYPE);
}

fn keys<T: Sample<Mean: Sample>>(op: ReduceOp, result: &HostMemory) -> Vec<u64> {
    if op.result(T::DTYPE) == Some(T::DTYPE) {
        result.as_buf().as_slice::<T>().unwrap().iter().map(|e| e.key()).collect()
    } else {
        result.as_buf().as_slice::<T::Mean>().unwrap().iter().map(|e| e.key()).collect()
    }
}

fn check_type<T: Sample<Mean: Sample>>() {
    for op in ReduceOp::ALL.into_iter().filter(|op| op.result(T::DTYPE).is_some()) {
        // Strips of several blocks have many elements, so only one operation is tested on them.
        let most = if op == ReduceOp::Sum { 600_000 } else { 40_000 };
        for (around, (outer, inner)) in AROUND.into_iter().enumerate() {
            for (along, axes) in AXES.iter().enumerate() {
                // Every axis with few places beside it, and of the other pairs of rows a third for
                // each type and operation: another third for the next.
                let is_narrow = (1..=3).contains(&(outer * inner));
                let is_drawn = is_narrow || (around + along + op as usize + T::DTYPE as usize).is_multiple_of(3);
                if is_drawn && outer * inner * axes.iter().sum::<usize>() < most {
                    check::<T>(op, axes, outer, inner);
                }
            }
        }
    }
}

macro_rules! check_types {
    ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => { $(check_type::<$type>();)* };
}

#[test]
fn every_reduction_along_an_axis_has_the_bits_of_the_spec() {
    for_each_dtype!(check_types);
}

#[test]
#[should_panic(expected = "what parts have not written")]
fn unrun_parts_give_no_result() {
    let elements = [1f32; 1000];
    let mut along = Along::new(ReduceOp::Sum, &[(elements[..].into(), [1, 2, 500])]).unwrap().unwrap();
    let mut parts = along.parts(2);
    parts.pop().unwrap().run();
    assert_eq!(parts.len(), 1);
    drop(parts);
    _ = along.finish();
}

/// Found by a trial: the number of results was a product that wrapped, so parts wrote past them.
#[test]
fn results_with_more_bytes_than_addresses_are_an_error() {
    let nothing = HostMemory::zeroed(DType::F64, 0);
    for (outer, inner) in [(5, (1 << 61) + 1383505805528216373), (5, 1 << 58), (1 << 58, 1), (usize::MAX, usize::MAX)] {
        let shape = [outer, 0, inner];
        let refused = Along::new(ReduceOp::Sum, &[(nothing.as_buf(), shape); 2]).err().map(|error| error.kind());
        assert_eq!(refused, Some(io::ErrorKind::OutOfMemory), "{shape:?}");
        let refused = Partial::new(ReduceOp::Mean, nothing.as_buf(), shape).err().map(|error| error.kind());
        assert_eq!(refused, Some(io::ErrorKind::OutOfMemory), "{shape:?}");
    }
}

#[test]
fn no_results_may_be_of_any_shape() {
    let nothing = HostMemory::zeroed(DType::F64, 0);
    for shape in [[0, 7, usize::MAX], [usize::MAX, 0, 0], [usize::MAX, usize::MAX, 0]] {
        let mut along = Along::new(ReduceOp::Sum, &[(nothing.as_buf(), shape)]).unwrap().unwrap();
        along.parts(usize::MAX).into_iter().for_each(Part::run);
        assert_eq!(along.finish().unwrap().count(), 0, "{shape:?}");
        let partial = Partial::new(ReduceOp::Sum, nothing.as_buf(), shape).unwrap().unwrap();
        assert_eq!(finish(&[partial], 0).unwrap().count(), 0, "{shape:?}");
    }
}
