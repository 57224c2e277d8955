//! Tensors, element types and operations in the formats of serde.

use consonance::{Communicator, DType, ReduceOp, Tensor, raw::HostMemory};
use quickcheck::{Arbitrary, Gen, quickcheck};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{fmt::Debug, thread};

/// A tensor of any element type and shape, of any bits.
#[derive(Clone, Debug)]
struct Any {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Any {
    fn tensor(&self) -> Tensor {
        let mut memory = HostMemory::zeroed(self.dtype, self.shape.iter().product());
        memory.as_buf_mut().copy_from_bytes(&self.bytes);
        Tensor::from_memory(self.shape.clone(), memory).unwrap()
    }
}

impl Arbitrary for Any {
    fn arbitrary(g: &mut Gen) -> Any {
        let dtype = *g.choose(DType::ALL).unwrap();
        let shape: Vec<usize> = (0..usize::arbitrary(g) % 4).map(|_| usize::arbitrary(g) % 5).collect();
        let count = shape.iter().product::<usize>() * dtype.size();
        let last = if dtype == DType::Bool { 1 } else { u8::MAX };
        Any { dtype, shape, bytes: (0..count).map(|_| u8::arbitrary(g) & last).collect() }
    }
}

/// Returns the value after it was written and read in each format.
fn again<T: Serialize + DeserializeOwned>(value: &T) -> [T; 3] {
    let text = serde_json::to_string(value).unwrap();
    let named = rmp_serde::to_vec_named(value).unwrap();
    let unnamed = rmp_serde::to_vec(value).unwrap();
    [
        serde_json::from_str(&text).unwrap(),
        rmp_serde::from_slice(&named).unwrap(),
        rmp_serde::from_slice(&unnamed).unwrap(),
    ]
}

/// Returns the bytes of a tensor as JSON has them: a NaN differs from itself, its bytes do not.
fn parts(tensor: &Tensor) -> Value {
    serde_json::to_value(tensor).unwrap()
}

quickcheck! {
    fn a_tensor_reads_again_with_every_bit(any: Any) -> bool {
        let tensor = any.tensor();
        let expected = json!({ "dtype": any.dtype.name(), "shape": any.shape, "elements": any.bytes });
        parts(&tensor) == expected && again(&tensor).iter().all(|read| parts(read) == expected)
    }

    fn a_tensor_with_other_bytes_is_refused(any: Any, more: bool, by: u8) -> bool {
        let mut parts = parts(&any.tensor());
        let elements = parts["elements"].as_array_mut().unwrap();
        let by = usize::from(by) + 1;
        let count = elements.len();
        if more { elements.extend(vec![Value::from(0); by]) } else { elements.truncate(count.saturating_sub(by)) }
        let found = elements.len();
        let error = match serde_json::from_value::<Tensor>(parts) {
            // There was nothing to take away.
            Ok(tensor) => return found == count && tensor.count() == 0,
            Err(error) => error.to_string(),
        };
        error == format!("elements: expected {count} bytes for {}{:?}, found {found}", any.dtype, any.shape)
    }
}

#[test]
fn words_read_again_and_others_are_refused() {
    for &dtype in DType::ALL {
        assert_eq!(serde_json::to_string(&dtype).unwrap(), format!("\"{dtype}\""));
        assert_eq!(again(&dtype), [dtype; 3]);
    }
    for op in ReduceOp::ALL {
        assert_eq!(serde_json::to_string(&op).unwrap(), format!("\"{op}\""));
        assert_eq!(again(&op), [op; 3]);
    }
    assert_eq!(
        refusal::<ReduceOp>(json!("avg")),
        "invalid value: string \"avg\", expected the name of an operation: sum, mean, product, min, max, and, or, xor"
    );
    assert!(refusal::<DType>(json!("float")).contains("expected the name of an element type: bool, i8, "));
    assert!(refusal::<DType>(json!(3)).starts_with("invalid type: integer `3`, expected the name of an element type"));
}

#[test]
fn invalid_tensors_are_refused() {
    let tensor =
        |dtype: &str, shape: Value, elements: Value| json!({ "dtype": dtype, "shape": shape, "elements": elements });
    let cases = [
        (tensor("bool", json!([2]), json!([1, 2])), "elements: expected bytes 0 and 1 for bool[2], found 2"),
        (tensor("f32", json!([]), json!([0, 0])), "elements: expected 4 bytes for f32[], found 2"),
        (
            tensor("f32", json!([1u64 << 40, 1u64 << 40]), json!([])),
            "elements: expected more bytes than there are numbers for f32[1099511627776, 1099511627776], found 0",
        ),
        (
            tensor("u8", json!([0, 1u64 << 40, 1u64 << 40]), json!([])),
            "Tensor::new: shape: expected sizes whose product is a number, zeros left out",
        ),
        (tensor("u8", json!([1]), json!([256])), "invalid value: integer `256`, expected u8"),
        (tensor("f4", json!([1]), json!([0])), "invalid value: string \"f4\", expected the name of an element type"),
        (tensor("u8", json!([-1]), json!([0])), "invalid value: integer `-1`, expected usize"),
        (json!({ "dtype": "u8", "shape": [0] }), "missing field `elements`"),
        (json!({ "dtype": "u8", "shape": [0], "elements": [], "device": "cpu:0" }), "unknown field `device`"),
    ];
    for (value, expected) in cases {
        let found = refusal::<Tensor>(value.clone());
        assert!(found.starts_with(expected), "{value}: {found}");
    }
}

#[test]
fn an_object_may_have_tensors() {
    let objects = thread::scope(|scope| {
        let ranks = Communicator::threads(2).into_iter().map(|mut rank| {
            scope.spawn(move || {
                let own = vec![("weights".to_owned(), Tensor::from([[rank.rank() as f64, f64::INFINITY]]))];
                rank.all_gather_object(&own).unwrap()
            })
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    for all in objects {
        assert_eq!(all[1], [("weights".to_owned(), Tensor::from([[1.0, f64::INFINITY]]))]);
    }
}

fn refusal<T: DeserializeOwned + Debug>(value: Value) -> String {
    serde_json::from_value::<T>(value).unwrap_err().to_string()
}
