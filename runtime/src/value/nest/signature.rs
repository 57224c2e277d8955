//! The properties of nests that replicas must agree on.

use super::{Leaf, Path, Value};
use crate::Axes;
use consonance_kernels::{digest::mix, memory::Space};
use consonance_spec::DType;
use std::fmt;

/// The properties of a nest that all replicas must agree on: for each leaf its path, whether it is
/// sparse, its dtype and shape, and whether it lies in the memory of a device.
pub(crate) struct NestSignature(Vec<(Path, Spec)>);

/// The properties that replicas must agree on if dtypes and shapes may differ: for each leaf its
/// path and whether it is sparse.
pub(crate) struct Structure(Vec<(Path, bool)>);

impl Structure {
    pub(crate) fn new(leaves: &[Leaf]) -> Structure {
        let is_sparse = |leaf: &Leaf| matches!(leaf.value, Value::Sparse(_));
        Structure(leaves.iter().map(|leaf| (leaf.path.clone(), is_sparse(leaf))).collect())
    }

    /// Returns 64 bits that differ if the structures differ.
    pub(crate) fn digest(&self) -> u64 {
        let leaves = self.0.iter();
        leaves.fold(self.0.len() as u64, |digest, (path, sparse)| mix(mix(digest, path.digest()), (*sparse).into()))
    }

    /// Returns each leaf's path and kind, for errors.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (String, String)> {
        let kind = |sparse: bool| if sparse { "IndexedSlices" } else { "a tensor" };
        self.0.iter().map(move |(path, sparse)| (path.to_string(), kind(*sparse).to_owned()))
    }
}

#[derive(PartialEq)]
struct Spec {
    /// The element type of the indices, if the leaf is sparse.
    indices: Option<DType>,
    dtype: DType,
    /// `None` for a dimension that may differ or is not known.
    shape: Vec<Option<usize>>,
    /// Whether the elements lie in the memory of a device, where they are not packed.
    on_device: bool,
}

impl NestSignature {
    /// Makes the signature of these leaves. The sizes of the axes `ragged` may differ.
    pub(crate) fn new(leaves: &[Leaf], ragged: &Axes) -> NestSignature {
        let outline = leaves.iter().map(|leaf| {
            let known = |shape: &[usize]| shape.iter().copied().map(Some).collect::<Vec<_>>();
            let (values, indices, mut shape) = match &leaf.value {
                Value::Dense(tensor) => (tensor, None, known(tensor.shape())),
                // The number of rows may differ; the shape of their large tensor may not.
                Value::Sparse(slices) => {
                    let mut shape = known(slices.values.shape());
                    shape[0] = slices.dense_shape.as_ref().map(|shape| shape[0]);
                    (&slices.values, Some(slices.indices.dtype()), shape)
                }
            };
            match ragged.resolve("", &leaf.path, shape.len()) {
                Ok(None) => {}
                Ok(Some(ragged)) => {
                    shape.iter_mut().zip(ragged).for_each(|(dim, ragged)| *dim = dim.filter(|_| !ragged))
                }
                // Without a valid axis no size can be compared. Ignore all sizes, so that the error
                // names the axis.
                Err(_) => shape.fill(None),
            }
            let (dtype, on_device) = (values.dtype(), values.space() != Space::Host);
            (leaf.path.clone(), Spec { indices, dtype, shape, on_device })
        });
        NestSignature(outline.collect())
    }

    /// Returns 64 bits that differ if the signatures differ.
    pub(crate) fn digest(&self) -> u64 {
        self.0.iter().fold(self.0.len() as u64, |digest, (path, spec)| {
            let indices = spec.indices.map_or(0, |indices| indices as u64 + 1);
            let kind =
                spec.dtype as u64 | indices << 8 | (spec.shape.len() as u64) << 16 | u64::from(spec.on_device) << 63;
            let dims = spec.shape.iter().map(|dim| dim.map_or(u64::MAX, |dim| dim as u64));
            dims.fold(mix(mix(digest, path.digest()), kind), mix)
        })
    }

    /// Returns each leaf's path with its dtype and shape, for errors.
    pub(crate) fn lines(&self) -> Vec<(String, String)> {
        self.0.iter().map(|(path, spec)| (path.to_string(), spec.to_string())).collect()
    }

    /// Returns the first leaf in which `found` differs from this signature: its path, the expected
    /// and the found text.
    pub(crate) fn difference(&self, found: &NestSignature) -> Option<(String, String, String)> {
        if self.0 == found.0 {
            return None;
        }
        let (expected, found) = (self.lines(), found.lines());
        let missing = || "nothing".to_owned();
        (0..expected.len().max(found.len())).find_map(|index| match (expected.get(index), found.get(index)) {
            (Some(expected), Some(found)) if expected == found => None,
            (Some((path, expected)), Some((other, found))) if path == other => {
                Some((path.clone(), expected.clone(), found.clone()))
            }
            (Some((path, expected)), _) => Some((path.clone(), expected.clone(), missing())),
            (None, Some((path, found))) => Some((path.clone(), missing(), found.clone())),
            (None, None) => None,
        })
    }
}

/// `f32[2, ?]`
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> =
            self.shape.iter().map(|dim| dim.map_or_else(|| "?".to_owned(), |dim| dim.to_string())).collect();
        if let Some(indices) = self.indices {
            write!(f, "IndexedSlices with indices of {indices}, of ")?;
        }
        let place = if self.on_device { " on a device" } else { "" };
        write!(f, "{}[{}]{place}", self.dtype, dims.join(", "))
    }
}
