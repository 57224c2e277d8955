//! Tensors in serde's formats.

use crate::Tensor;
use consonance_kernels::memory::HostMemory;
use consonance_spec::{Class, DType};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use std::{borrow::Cow, fmt};

/// The form of a tensor, which is the same in every format.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Tensor", deny_unknown_fields)]
struct Parts<'t> {
    dtype: DType,
    shape: Vec<usize>,
    #[serde(borrow)]
    elements: Bytes<'t>,
}

/// The bytes of the elements, little-endian.
struct Bytes<'t>(Cow<'t, [u8]>);

/// Writes the element type by its name, the shape, and the bytes of the elements in row-major
/// order, little-endian. So every element keeps its bits, a NaN in JSON too. Needs the feature
/// `serde`. A tensor on a device is copied to the host first.
///
/// ```
/// use consonance::{ReduceOp, Tensor};
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Step {
///     op: ReduceOp,
///     gradient: Tensor,
/// }
/// let step = Step { op: ReduceOp::Mean, gradient: Tensor::from([[1u16, 515]]) };
/// let text = serde_json::to_string(&step)?;
/// assert_eq!(text, r#"{"op":"mean","gradient":{"dtype":"u16","shape":[1,2],"elements":[1,0,3,2]}}"#);
/// let read: Step = serde_json::from_str(&text)?;
/// assert_eq!(read.gradient, step.gradient);
///
/// let error = serde_json::from_str::<Step>(&text.replace("[1,2]", "[3]")).err().expect("an error");
/// assert!(error.to_string().starts_with("elements: expected 6 bytes for u16[3], found 4"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let host = self.to_host().map_err(ser::Error::custom)?;
        let buf = host.host().map_err(ser::Error::custom)?;
        let elements = Bytes(little_endian(self.dtype(), Cow::Borrowed(buf.as_bytes())));
        Parts { dtype: self.dtype(), shape: self.shape().to_vec(), elements }.serialize(serializer)
    }
}

/// Reads what a tensor writes. Refuses elements that are more or fewer than the shape has, and
/// bytes that are no `bool`.
impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tensor, D::Error> {
        let Parts { dtype, shape, elements: Bytes(bytes) } = Parts::deserialize(deserializer)?;
        let found = bytes.len();
        let needed = shape.iter().try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size));
        if needed != Some(found) {
            let needed = needed
                .map_or_else(|| "more bytes than there are numbers".to_owned(), |needed| format!("{needed} bytes"));
            return Err(de::Error::custom(format!("elements: expected {needed} for {dtype}{shape:?}, found {found}")));
        }
        if let Some(byte) = bytes.iter().find(|&&byte| dtype.class() == Class::Bool && byte > 1) {
            return Err(de::Error::custom(format!(
                "elements: expected bytes 0 and 1 for {dtype}{shape:?}, found {byte}"
            )));
        }
        let mut memory = HostMemory::try_unspecified(dtype, found / dtype.size()).map_err(de::Error::custom)?;
        memory.as_buf_mut().copy_from_bytes(&little_endian(dtype, bytes));
        Tensor::from_memory(shape, memory).map_err(de::Error::custom)
    }
}

/// Turns elements in the byte order of this machine into little-endian ones, and back.
fn little_endian(dtype: DType, mut bytes: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "big") {
        bytes.to_mut().chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    }
    bytes
}

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de: 't, 't> Deserialize<'de> for Bytes<'t> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes<'t>, D::Error> {
        deserializer.deserialize_bytes(BytesVisitor).map(Bytes)
    }
}

struct BytesVisitor;

impl<'de> de::Visitor<'de> for BytesVisitor {
    type Value = Cow<'de, [u8]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes of elements")
    }

    fn visit_borrowed_bytes<E: de::Error>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(bytes))
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        Ok(Cow::Owned(bytes.to_vec()))
    }

    fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Self::Value, E> {
        Ok(Cow::Owned(bytes))
    }

    /// Formats without bytes, such as JSON, have lists of numbers.
    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = list.next_element()? {
            bytes.push(byte);
        }
        Ok(Cow::Owned(bytes))
    }
}
