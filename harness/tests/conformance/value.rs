//! Values in the format of the golden vectors: reading them, using them as nests, comparing them.

use consonance::{
    DType, Element, Error, IndexedSlices, Nest, Result, Tensor, bf16, f16,
    nest::{Leaf, Path},
};
use consonance_spec::for_each_dtype;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// A nest whose structure is known only at run time.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Tensor(Tensor),
    Sparse(IndexedSlices),
    List(Vec<Value>),
    Tuple(Vec<Value>),
    Dict(BTreeMap<String, Value>),
    /// Each replica's result. A single one stands for all replicas.
    Local(Vec<Value>),
    /// None, a number or text that is not a tensor, or a tensor of a dtype that we lack: the JSON
    /// as it is written.
    Other(Json),
}

impl Value {
    pub(crate) fn parse(json: &Json) -> Value {
        let all = |list: &Json| list.as_array().expect("a list").iter().map(Value::parse).collect();
        let tensor = |json: &Json| Value::parse(json).into_tensor().expect("a tensor");
        if let Some(dtype) = json.get("dtype") {
            let dtype = DType::ALL.iter().find(|known| dtype == known.name());
            return dtype.map_or_else(|| Value::Other(json.clone()), |&dtype| Value::Tensor(parse_tensor(dtype, json)));
        }
        match json {
            Json::Array(_) => Value::List(all(json)),
            Json::Object(object) => match object.iter().next().map(|(key, value)| (key.as_str(), value)) {
                Some(("tuple", list)) => Value::Tuple(all(list)),
                Some(("local_results" | "per_replica", list)) => Value::Local(all(list)),
                Some(("np", array)) => Value::parse(array),
                // The answers to the steps of a case.
                Some(("results", list)) => Value::List(all(list)),
                Some(("result" | "ok", answer)) => Value::parse(answer),
                Some(("error", kind)) => Value::Other(json!({ "error": kind })),
                Some(("dict", Json::Object(dict))) => {
                    Value::Dict(dict.iter().map(|(key, value)| (key.clone(), Value::parse(value))).collect())
                }
                Some(("indexed_slices", slices)) => {
                    let dense_shape = Some(&slices["dense_shape"]).filter(|shape| !shape.is_null());
                    let dense_shape =
                        dense_shape.map(|shape| bits(&tensor(shape)).iter().map(|&dim| dim as usize).collect());
                    let (values, indices) = (tensor(&slices["values"]), tensor(&slices["indices"]));
                    Value::Sparse(IndexedSlices::new(values, indices, dense_shape).expect("fitting shapes"))
                }
                _ => Value::Other(json.clone()),
            },
            _ => Value::Other(json.clone()),
        }
    }

    /// Returns a plain number, bool or text.
    pub(crate) fn plain(value: impl Into<Json>) -> Value {
        Value::Other(json!({ "py": value.into() }))
    }

    pub(crate) fn none() -> Value {
        Value::Other(Json::Null)
    }

    pub(crate) fn dict<const COUNT: usize>(entries: [(&str, Value); COUNT]) -> Value {
        Value::Dict(entries.map(|(key, value)| (key.to_owned(), value)).into())
    }

    /// Returns the tensor. A plain number becomes a scalar as in TensorFlow: i32 or f32.
    pub(crate) fn into_tensor(self) -> Option<Tensor> {
        match self {
            Value::Tensor(tensor) => Some(tensor),
            Value::Other(json) => {
                let number = json.get("py")?.as_number()?;
                let integer = number.as_i64().map(|integer| Tensor::from(integer as i32));
                integer.or_else(|| Some(Tensor::from(number.as_f64()? as f32)))
            }
            _ => None,
        }
    }

    /// Returns the value with tensors in place of plain numbers; `None` if a leaf is not a tensor
    /// that we have.
    pub(crate) fn into_nest(self) -> Option<Value> {
        let all = |list: Vec<Value>| list.into_iter().map(Value::into_nest).collect::<Option<Vec<_>>>();
        match self {
            Value::Sparse(_) => Some(self),
            Value::List(list) => all(list).map(Value::List),
            Value::Tuple(list) => all(list).map(Value::Tuple),
            Value::Dict(dict) => {
                let dict = dict.into_iter().map(|(key, value)| Some((key, value.into_nest()?)));
                dict.collect::<Option<_>>().map(Value::Dict)
            }
            Value::Local(_) => None,
            leaf => leaf.into_tensor().map(Value::Tensor),
        }
    }

    /// Makes sparse leaves dense.
    pub(crate) fn densify(self) -> Result<Value> {
        match self {
            Value::Sparse(slices) => slices.to_dense().map(Value::Tensor),
            Value::Local(list) => list.into_iter().map(Value::densify).collect::<Result<_>>().map(Value::Local),
            value => Ok(value),
        }
    }

    /// Returns how `found` differs from this value. Floats may differ by `ulp` units in the last
    /// place.
    pub(crate) fn difference(&self, found: &Value, ulp: u64) -> Option<String> {
        let same = match (self, found) {
            // Answers that differed from run to run.
            (Value::Other(expected), found) if expected.get("any_of").is_some() => {
                let mut answers = expected["any_of"].as_array().expect("answers").iter().map(Value::parse);
                answers.any(|expected| expected.difference(found, ulp).is_none())
            }
            (Value::Tensor(expected), Value::Tensor(found)) => near(expected, found, ulp),
            (Value::Sparse(expected), Value::Sparse(found)) => {
                near(expected.values(), found.values(), ulp)
                    && near(expected.indices(), found.indices(), 0)
                    && expected.dense_shape() == found.dense_shape()
            }
            (Value::Local(expected), Value::Local(found)) if expected.len() == 1 && !found.is_empty() => {
                return found.iter().find_map(|found| expected[0].difference(found, ulp));
            }
            (Value::List(expected), Value::List(found))
            | (Value::Tuple(expected), Value::Tuple(found))
            | (Value::Local(expected), Value::Local(found))
                if expected.len() == found.len() =>
            {
                return expected.iter().zip(found).find_map(|(expected, found)| expected.difference(found, ulp));
            }
            (Value::Dict(expected), Value::Dict(found)) if expected.keys().eq(found.keys()) => {
                let mut pairs = expected.iter().zip(found.values());
                return pairs.find_map(|((key, expected), found)| {
                    expected.difference(found, ulp).map(|difference| format!("{key}: {difference}"))
                });
            }
            (Value::Other(expected), Value::Other(found)) => expected == found,
            // TensorFlow returns a plain number unchanged where we return a tensor.
            (Value::Other(_), Value::Tensor(tensor)) => {
                self.clone().into_tensor().is_some_and(|expected| near(&expected, tensor, 0))
            }
            _ => false,
        };
        (!same).then(|| format!("expected {self:?}, found {found:?}"))
    }
}

impl Nest for Value {
    fn take_leaves(&mut self, at: &Path, leaves: &mut Vec<Leaf>) {
        match self {
            Value::Tensor(tensor) => tensor.take_leaves(at, leaves),
            Value::Sparse(slices) => slices.take_leaves(at, leaves),
            Value::List(list) | Value::Tuple(list) | Value::Local(list) => list.take_leaves(at, leaves),
            Value::Dict(dict) => dict.take_leaves(at, leaves),
            Value::Other(_) => {}
        }
    }

    fn put_leaves(&mut self, leaves: &mut dyn Iterator<Item = Leaf>) -> Result<()> {
        match self {
            // A reduction over an axis makes sparse rows dense.
            Value::Tensor(_) | Value::Sparse(_) => match leaves.next().map(|leaf| leaf.value) {
                Some(consonance::nest::Value::Dense(tensor)) => *self = Value::Tensor(tensor),
                Some(consonance::nest::Value::Sparse(slices)) => *self = Value::Sparse(slices),
                None => return Err(Error::other("fewer leaves than places")),
            },
            Value::List(list) | Value::Tuple(list) | Value::Local(list) => list.put_leaves(leaves)?,
            Value::Dict(dict) => dict.put_leaves(leaves)?,
            Value::Other(_) => {}
        }
        Ok(())
    }
}

/// An element type whose values are read and written as bits.
trait Bits: Element {
    fn from_bits64(bits: u64) -> Self;
    fn bits64(self) -> u64;
}

macro_rules! bits_of {
    ($($type:ty: $from:expr, $to:expr;)*) => {
        $(
            impl Bits for $type {
                fn from_bits64(bits: u64) -> Self {
                    $from(bits)
                }

                fn bits64(self) -> u64 {
                    $to(self)
                }
            }
        )*
    };
}

bits_of! {
    bool: |bits| bits != 0, u64::from;
    i8: |bits| bits as i8, |element| element as u8 as u64;
    i16: |bits| bits as i16, |element| element as u16 as u64;
    i32: |bits| bits as i32, |element| element as u32 as u64;
    i64: |bits| bits as i64, |element| element as u64;
    u8: |bits| bits as u8, u64::from;
    u16: |bits| bits as u16, u64::from;
    u32: |bits| bits as u32, u64::from;
    u64: |bits| bits, |element| element;
    f16: |bits| f16::from_bits(bits as u16), |element: f16| element.to_bits().into();
    bf16: |bits| bf16::from_bits(bits as u16), |element: bf16| element.to_bits().into();
    f32: |bits| f32::from_bits(bits as u32), |element: f32| element.to_bits().into();
    f64: f64::from_bits, f64::to_bits;
}

/// Returns each element's bits, in row-major order.
pub(crate) fn bits(tensor: &Tensor) -> Vec<u64> {
    fn of<T: Bits>(tensor: &Tensor) -> Vec<u64> {
        tensor.as_slice::<T>().expect("the dtype was matched").iter().map(|&element| element.bits64()).collect()
    }
    macro_rules! by_dtype {
        ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
            match tensor.dtype() {
                $(DType::$variant => of::<$type>(tensor),)*
            }
        };
    }
    for_each_dtype!(by_dtype)
}

/// Returns the tensor of this shape whose elements have these bits.
pub(crate) fn from_bits(dtype: DType, shape: Vec<usize>, bits: &[u64]) -> Tensor {
    fn of<T: Bits>(shape: Vec<usize>, bits: &[u64]) -> Tensor {
        let elements: Vec<T> = bits.iter().map(|&bits| T::from_bits64(bits)).collect();
        Tensor::new(shape, &elements).expect("as many elements as the shape says")
    }
    macro_rules! by_dtype {
        ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
            match dtype {
                $(DType::$variant => of::<$type>(shape, bits),)*
            }
        };
    }
    for_each_dtype!(by_dtype)
}

fn parse_tensor(dtype: DType, json: &Json) -> Tensor {
    let shape = json["shape"].as_array().expect("a shape").iter().map(|dim| dim.as_u64().expect("a size") as usize);
    let hex = json["hex"].as_str().expect("hexadecimal digits");
    let byte = |at: usize| u64::from_str_radix(&hex[at..at + 2], 16).expect("a hexadecimal byte");
    let element = |start: usize| (0..dtype.size()).map(|place| byte(start + 2 * place) << (8 * place)).sum();
    let bits: Vec<u64> = (0..hex.len()).step_by(2 * dtype.size()).map(element).collect();
    from_bits(dtype, shape.collect(), &bits)
}

/// Returns whether dtypes and shapes are equal and floats differ by at most `ulp` units. All NaNs
/// are equal.
fn near(expected: &Tensor, found: &Tensor, ulp: u64) -> bool {
    let dtype = expected.dtype();
    // The bits of infinity. Larger bits, without the sign, are NaN. The bits of floats have the
    // order of the floats.
    let infinity = match dtype {
        DType::F16 => f16::INFINITY.bits64(),
        DType::Bf16 => bf16::INFINITY.bits64(),
        DType::F32 => f32::INFINITY.bits64(),
        DType::F64 => f64::INFINITY.bits64(),
        DType::Bool
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64 => {
            return dtype == found.dtype() && expected.shape() == found.shape() && bits(expected) == bits(found);
        }
    };
    let sign = 1 << (8 * dtype.size() - 1);
    let place = |bits: u64| if bits & sign == 0 { bits as i128 } else { -((bits & !sign) as i128) };
    let same = |expected: u64, found: u64| match (expected & !sign > infinity, found & !sign > infinity) {
        (false, false) => expected == found || place(expected).abs_diff(place(found)) <= ulp.into() && ulp > 0,
        (expected, found) => expected && found,
    };
    let pairs = || bits(expected).into_iter().zip(bits(found));
    dtype == found.dtype()
        && expected.shape() == found.shape()
        && pairs().all(|(expected, found)| same(expected, found))
}
