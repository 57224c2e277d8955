//! The properties of nests that replicas must agree on.

use super::{Leaf, Path, Value};
use crate::Axes;
use consonance_kernels::{digest::mix, memory::Space};
use consonance_spec::DType;
use std::fmt;

/// The properties of a nest that all replicas must agree on: for each leaf its path, whether it is
/// sparse, its dtype and shape, and whether it lies in the memory of a device.
#[derive(Clone, Debug)]
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

#[derive(Clone, Debug, PartialEq)]
struct Spec {
    /// The element type of the indices, if the leaf is sparse.
    indices: Option<DType>,
    /// The number of indices, where it may not differ.
    rows: Option<usize>,
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
            (leaf.path.clone(), Spec { indices, rows: None, dtype, shape, on_device })
        });
        NestSignature(outline.collect())
    }

    /// Makes the signature of these leaves, of which no size may differ: also not the numbers of
    /// sparse rows.
    pub(crate) fn of_static_shapes(leaves: &[Leaf]) -> NestSignature {
        let mut signature = NestSignature::new(leaves, &Axes::default());
        for ((_, spec), leaf) in signature.0.iter_mut().zip(leaves) {
            if let Value::Sparse(slices) = &leaf.value {
                spec.rows = Some(slices.indices.count());
            }
        }
        signature
    }

    /// Returns the same signature of values in any memory.
    pub(crate) fn in_any_memory(mut self) -> NestSignature {
        self.0.iter_mut().for_each(|(_, spec)| spec.on_device = false);
        self
    }

    /// Returns the one signature of values that differ in sizes along axis 0 only: with the largest
    /// of those sizes. `None` if there are no values.
    pub(crate) fn padded(values: &[NestSignature]) -> Option<NestSignature> {
        let mut padded = values.first()?.clone();
        for (place, (_, spec)) in padded.0.iter_mut().enumerate() {
            let others = || values.iter().map(|value| &value.0[place].1);
            spec.rows = others().filter_map(|other| other.rows).max();
            if let Some(rows) = spec.shape.first_mut() {
                *rows = others().filter_map(|other| other.shape[0]).max();
            }
        }
        Some(padded)
    }

    /// Returns the same signature with the sizes along axis 0 left open.
    pub(crate) fn beyond_rows(&self) -> NestSignature {
        NestSignature(self.0.iter().map(|(path, spec)| (path.clone(), spec.beyond_rows())).collect())
    }

    /// Returns the same signature of values that are the part `key` of others.
    pub(crate) fn below(&self, key: usize) -> NestSignature {
        NestSignature(self.0.iter().map(|(path, spec)| (path.below(key), spec.clone())).collect())
    }

    /// Returns the signature of these leaves and those of `other`.
    pub(crate) fn beside(mut self, other: NestSignature) -> NestSignature {
        self.0.extend(other.0);
        self
    }

    /// Returns 64 bits that differ if the signatures differ.
    pub(crate) fn digest(&self) -> u64 {
        self.0.iter().fold(self.0.len() as u64, |digest, (path, spec)| {
            let indices = spec.indices.map_or(0, |indices| indices as u64 + 1);
            let kind =
                spec.dtype as u64 | indices << 8 | (spec.shape.len() as u64) << 16 | u64::from(spec.on_device) << 63;
            let sizes = spec.shape.iter().map(|dim| dim.map_or(u64::MAX, |dim| dim as u64));
            let rows = spec.rows.map(|rows| rows as u64);
            sizes.chain(rows).fold(mix(mix(digest, path.digest()), kind), mix)
        })
    }

    /// Returns each leaf's path with its dtype and shape, for errors.
    pub(crate) fn lines(&self) -> Vec<(String, String)> {
        self.0.iter().map(|(path, spec)| (path.to_string(), spec.to_string())).collect()
    }

    /// Returns the first leaf in which `found` differs from this signature: its path, the expected
    /// and the found text.
    pub(crate) fn difference(&self, found: &NestSignature) -> Option<(String, String, String)> {
        self.difference_by(found, |own, other| own == other)
    }

    /// Does [`difference`](NestSignature::difference) without the sizes along axis 0.
    pub(crate) fn difference_beyond_rows(&self, found: &NestSignature) -> Option<(String, String, String)> {
        self.difference_by(found, |(own_path, own), (path, other)| {
            own_path == path && own.beyond_rows() == other.beyond_rows()
        })
    }

    fn difference_by(
        &self,
        found: &NestSignature,
        same: impl Fn(&(Path, Spec), &(Path, Spec)) -> bool,
    ) -> Option<(String, String, String)> {
        let count = self.0.len().max(found.0.len());
        let differs = |index: &usize| match (self.0.get(*index), found.0.get(*index)) {
            (Some(own), Some(other)) => !same(own, other),
            (_, None) | (None, _) => true,
        };
        let index = (0..count).find(differs)?;
        let missing = || "nothing".to_owned();
        match (self.lines().into_iter().nth(index), found.lines().into_iter().nth(index)) {
            (Some((path, expected)), Some((other, found))) if path == other => Some((path, expected, found)),
            (Some((path, expected)), _) => Some((path, expected, missing())),
            (None, found) => found.map(|(path, found)| (path, missing(), found)),
        }
    }
}

/// `f32[2, ?]`
impl Spec {
    /// Returns the same properties with the size along axis 0 left open.
    fn beyond_rows(&self) -> Spec {
        let mut open = Spec { rows: None, ..self.clone() };
        open.shape.iter_mut().take(1).for_each(|rows| *rows = None);
        open
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> =
            self.shape.iter().map(|dim| dim.map_or_else(|| "?".to_owned(), |dim| dim.to_string())).collect();
        if let Some(indices) = self.indices {
            let rows = self.rows.map_or_else(String::new, |rows| format!("{rows} "));
            write!(f, "IndexedSlices with {rows}indices of {indices}, of ")?;
        }
        let place = if self.on_device { " on a device" } else { "" };
        write!(f, "{}[{}]{place}", self.dtype, dims.join(", "))
    }
}
