//! Slices of tensors, by the rules of Python.

use super::store::Kind;
use consonance::{DType, Element, Tensor};
use consonance_spec::for_each_dtype;
use serde_json::Value as Json;

/// Returns the part of a tensor that has, along each of its first axes, these entries: one by its
/// index, or those from a start to a stop by a step.
pub(crate) fn slice(tensor: &Tensor, axes: &[Json]) -> Result<Tensor, Kind> {
    let mut shape = Vec::new();
    let mut picks = Vec::new();
    for (axis, &size) in tensor.shape().iter().enumerate() {
        let size = size as i64;
        let all = match axes.get(axis) {
            None => (0..size).collect(),
            Some(Json::Array(range)) => {
                let all = range_of(range, size)?;
                shape.push(all.len());
                all
            }
            Some(index) => {
                let index = index.as_i64().expect("an index");
                let index = if index < 0 { index + size } else { index };
                if !(0..size).contains(&index) {
                    return Err(Kind("index_out_of_range"));
                }
                vec![index]
            }
        };
        if axes.get(axis).is_none() {
            shape.push(all.len());
        }
        picks.push(all);
    }
    macro_rules! by_dtype {
        ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
            match tensor.dtype() {
                $(DType::$variant => picked::<$type>(tensor, &picks, shape),)*
            }
        };
    }
    Ok(for_each_dtype!(by_dtype))
}

/// Returns the entries of an axis that a range has.
fn range_of(range: &[Json], size: i64) -> Result<Vec<i64>, Kind> {
    let given = |place: usize| range.get(place).and_then(Json::as_i64);
    let step = given(2).unwrap_or(1);
    if step == 0 {
        return Err(Kind("zero_step"));
    }
    let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
    let place = |number: i64| (if number < 0 { number + size } else { number }).clamp(low, high);
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (start, stop) = (given(0).map_or(first, place), given(1).map_or(last, place));
    let is_before = |place: &i64| if step > 0 { *place < stop } else { *place > stop };
    Ok(std::iter::successors(Some(start), |place| Some(place + step)).take_while(is_before).collect())
}

/// Returns the elements at all places that have one of these entries along each axis.
fn picked<T: Element>(tensor: &Tensor, picks: &[Vec<i64>], shape: Vec<usize>) -> Tensor {
    let elements = tensor.as_slice::<T>().expect("the dtype was matched");
    let mut places = vec![0];
    for (all, &size) in picks.iter().zip(tensor.shape()) {
        let along = |&place: &usize| all.iter().map(move |&entry| place * size + entry as usize);
        places = places.iter().flat_map(along).collect();
    }
    let picked: Vec<T> = places.into_iter().map(|place| elements[place]).collect();
    Tensor::new(shape, &picked).expect("as many elements as the shape says")
}
