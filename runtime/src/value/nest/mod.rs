//! Nests: structures of tensors that a call takes as one argument.

mod list;
pub(crate) mod path;
pub(crate) mod sent;
mod signature;

#[doc(hidden)]
pub use list::Elements;
pub use path::Path;
#[doc(hidden)]
pub use sent::{NestReader, NestWriter};
pub(crate) use signature::{NestSignature, Structure};

use crate::{
    Axis, Error, IndexedSlices, ReduceOp, Result, Tensor,
    error::{NEST, operation_on},
    value::indexed_slices,
};
use consonance_spec::for_each_dtype;
use std::{any::type_name, collections::BTreeMap, fmt, mem};

/// A tensor, a number, a list of numbers, [`IndexedSlices`], or a tuple, list, map, `Option` or
/// struct of nests.
///
/// A `Vec` or an array of numbers is one tensor, as `Tensor::from` makes it, and not a list of
/// nests: `vec![1.0f32; n]` has the shape `[n]`, `vec![[0u8; 3]; n]` has the shape `[n, 3]`. The
/// numbers of a vector are not copied, in or out; a vector of arrays is copied once, out. A call
/// that changes the length returns a vector of that length; an array cannot hold such a result.
///
/// A map is a [`BTreeMap`]: a `HashMap` iterates in another order on each replica.
///
/// Every collective of a replica and every cross-replica call takes a nest and returns a nest of
/// the same structure. The structure must be the same on all replicas; a mismatch names the path of
/// the leaf. Derive it for structs whose fields are nests:
///
/// ```
/// use consonance::{MirroredStrategy, Nest, ReduceOp, Tensor};
///
/// #[derive(Clone, Nest)]
/// struct Gradients {
///     weights: Tensor,
///     bias: Vec<Tensor>,
/// }
///
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let sums = strategy.run(|replica| {
///     let gradients = Gradients { weights: Tensor::from([1.0f32, 2.0]), bias: vec![Tensor::from(3.0f32)] };
///     replica.all_reduce(ReduceOp::Sum, gradients)
/// })?;
/// assert_eq!(sums[1].bias[0], Tensor::from(6.0f32));
/// # Ok::<(), consonance::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no value that replicas can combine",
    note = "use a `Tensor`, a number (`u64` for `usize`), or a tuple, `Vec`, array, `BTreeMap` or `Option` of them",
    note = "make a tensor of an array of `ndarray` by `Tensor::from(array)`, with the feature `ndarray`",
    note = "for a struct of them write `#[derive(Nest)]`"
)]
pub trait Nest: Sized {
    /// Moves every leaf out, in order, and records its path below `at`.
    fn take_leaves(&mut self, at: &Path, leaves: &mut Vec<Leaf>);

    /// Moves leaves back into the places they were taken from, in the same order.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if a leaf has another type than its place.
    fn put_leaves(&mut self, leaves: &mut dyn Iterator<Item = Leaf>) -> Result<()>;

    /// The conversion of a list of such values to one tensor. `None` if each of them is a nest of
    /// its own.
    #[doc(hidden)]
    const ELEMENTS: Option<Elements<Self>> = None;

    /// Writes the value for another process: the lengths of lists, the keys of maps, the options
    /// that are there, and the leaves in between.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a value that cannot be sent.
    #[doc(hidden)]
    fn write(&mut self, at: &Path, _: &mut NestWriter) -> Result<()> {
        Err(sent::refused(at, type_name::<Self>()))
    }

    /// Makes a value of what [`write`](Nest::write) has written.
    ///
    /// # Errors
    /// [`Error::System`] if it has written something else; [`Error::InvalidCall`] for a value that
    /// cannot be sent.
    #[doc(hidden)]
    fn read(_: &mut NestReader<'_>) -> Result<Self> {
        Err(sent::refused(&Path::default(), type_name::<Self>()))
    }
}

/// One leaf of a nest.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Its path in the nest.
    pub path: Path,
    /// Its value.
    pub value: Value,
}

/// The value of a leaf.
#[derive(Clone, Debug)]
pub enum Value {
    /// A tensor.
    Dense(Tensor),
    /// Rows of a tensor.
    Sparse(IndexedSlices),
}

impl Leaf {
    /// Returns the leaf as a tensor, for calls that take no sparse rows.
    pub(crate) fn dense(&mut self, call: &'static str) -> Result<&mut Tensor> {
        match &mut self.value {
            Value::Dense(tensor) => Ok(tensor),
            Value::Sparse(_) => Err(Error::invalid(call, self.path.to_string(), "a tensor", "IndexedSlices")),
        }
    }

    /// Returns the tensor, if it is one.
    pub(crate) fn as_dense(&self) -> Option<&Tensor> {
        match &self.value {
            Value::Dense(tensor) => Some(tensor),
            Value::Sparse(_) => None,
        }
    }

    /// Returns the sparse rows, if it has them.
    pub(crate) fn as_sparse(&self) -> Option<&IndexedSlices> {
        match &self.value {
            Value::Dense(_) => None,
            Value::Sparse(slices) => Some(slices),
        }
    }

    /// Returns whether both are tensors with the same path, dtype and shape.
    pub(crate) fn is_like(&self, other: &Leaf) -> bool {
        match (&self.value, &other.value) {
            (Value::Dense(own), Value::Dense(other_tensor)) => {
                (own.dtype(), own.shape()) == (other_tensor.dtype(), other_tensor.shape()) && self.path == other.path
            }
            (Value::Sparse(_), _) | (_, Value::Sparse(_)) => false,
        }
    }

    /// Checks that `op` can combine such leaves.
    pub(crate) fn check_op(&self, call: &'static str, op: ReduceOp) -> Result<()> {
        let dtype = match &self.value {
            Value::Dense(tensor) => tensor.dtype(),
            Value::Sparse(slices) => {
                indexed_slices::check_op(call, op)?;
                slices.values.dtype()
            }
        };
        match op.result(dtype) {
            Some(_) => Ok(()),
            None => {
                let expected = operation_on(dtype, &self.path.to_string());
                Err(Error::invalid(call, "op", expected, op.name()))
            }
        }
    }

    /// Returns the axis along which such leaves are gathered, counted from the front.
    pub(crate) fn gather_axis(&self, call: &'static str, axis: Axis) -> Result<usize> {
        match &self.value {
            Value::Dense(tensor) => axis.resolve(call, &self.path, tensor.rank()),
            Value::Sparse(slices) => indexed_slices::check_gather(call, &self.path, slices, axis).map(|_| 0),
        }
    }

    /// Checks that axis 0 can be divided into `parts` even blocks.
    pub(crate) fn divisible(&self, call: &'static str, parts: usize) -> Result<()> {
        let found = match &self.value {
            Value::Dense(tensor) => match tensor.shape().first() {
                Some(size) if size.is_multiple_of(parts) => return Ok(()),
                _ => tensor.spec(),
            },
            Value::Sparse(_) => "IndexedSlices".to_owned(),
        };
        let expected = format!("a tensor whose axis 0 has a multiple of {parts} entries");
        Err(Error::invalid(call, self.path.to_string(), expected, found))
    }
}

/// Moves all leaves out of a nest.
pub(crate) fn take<N: Nest>(nest: &mut N) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    nest.take_leaves(&Path::default(), &mut leaves);
    leaves
}

/// Moves these leaves back into the nest.
pub(crate) fn put<N: Nest>(mut nest: N, leaves: Vec<Leaf>) -> Result<N> {
    let mut leaves = leaves.into_iter();
    nest.put_leaves(&mut leaves)?;
    debug_assert!(leaves.next().is_none(), "a nest takes back what it gave");
    Ok(nest)
}

impl Nest for Tensor {
    fn take_leaves(&mut self, at: &Path, leaves: &mut Vec<Leaf>) {
        let value = Value::Dense(mem::take(self));
        leaves.push(Leaf { path: at.clone(), value });
    }

    fn put_leaves(&mut self, leaves: &mut dyn Iterator<Item = Leaf>) -> Result<()> {
        *self = dense(leaves.next())?.1;
        Ok(())
    }

    fn write(&mut self, _: &Path, to: &mut NestWriter) -> Result<()> {
        to.tensor(self)
    }

    fn read(from: &mut NestReader<'_>) -> Result<Tensor> {
        from.tensor()
    }
}

impl Nest for IndexedSlices {
    fn take_leaves(&mut self, at: &Path, leaves: &mut Vec<Leaf>) {
        let value = Value::Sparse(mem::take(self));
        leaves.push(Leaf { path: at.clone(), value });
    }

    fn put_leaves(&mut self, leaves: &mut dyn Iterator<Item = Leaf>) -> Result<()> {
        match leaves.next() {
            Some(Leaf { value: Value::Sparse(slices), .. }) => {
                *self = slices;
                Ok(())
            }
            Some(leaf) => {
                let found = "one for IndexedSlices; make the rows dense first, by IndexedSlices::to_dense";
                Err(Error::invalid(NEST, leaf.path.to_string(), "a place for a tensor", found))
            }
            None => Err(too_few()),
        }
    }

    fn write(&mut self, _: &Path, to: &mut NestWriter) -> Result<()> {
        to.slices(self)
    }

    fn read(from: &mut NestReader<'_>) -> Result<IndexedSlices> {
        from.slices()
    }
}

/// Returns the path and the tensor of a leaf for the place of a tensor.
fn dense(leaf: Option<Leaf>) -> Result<(Path, Tensor)> {
    match leaf {
        Some(Leaf { path, value: Value::Dense(tensor) }) => Ok((path, tensor)),
        Some(leaf) => Err(Error::invalid(NEST, leaf.path.to_string(), "a place for IndexedSlices", "one for a tensor")),
        None => Err(too_few()),
    }
}

fn too_few() -> Error {
    Error::invalid(NEST, "leaves", "as many as were taken", "fewer")
}

macro_rules! nest_of_scalar {
    ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
        $(
            impl Nest for $type {
                const ELEMENTS: Option<Elements<$type>> = Some(Elements::OF_TYPE);

                fn take_leaves(&mut self, at: &Path, leaves: &mut Vec<Leaf>) {
                    leaves.push(Leaf { path: at.clone(), value: Value::Dense(Tensor::from(*self)) });
                }

                fn put_leaves(&mut self, leaves: &mut dyn Iterator<Item = Leaf>) -> Result<()> {
                    let (path, tensor) = dense(leaves.next())?;
                    let name = || concat!("a number of type ", $name).to_owned();
                    *self = tensor.item().map_err(|_| list::other(&path, &tensor.spec(), name()))?;
                    Ok(())
                }

                fn write(&mut self, _: &Path, to: &mut NestWriter) -> Result<()> {
                    to.tensor(&Tensor::from(*self))
                }

                fn read(from: &mut NestReader<'_>) -> Result<$type> {
                    let tensor = from.tensor()?;
                    tensor.item().map_err(|_| sent::malformed(concat!("a tensor is no number of type ", $name)))
                }
            }
        )*
    };
}

for_each_dtype!(nest_of_scalar);

impl<K: fmt::Display + Ord + 'static, N: Nest> Nest for BTreeMap<K, N> {
    fn take_leaves(&mut self, at: &Path, leaves: &mut Vec<Leaf>) {
        for (key, nest) in self {
            nest.take_leaves(&at.join(key), leaves);
        }
    }

    fn put_leaves(&mut self, leaves: &mut dyn Iterator<Item = Leaf>) -> Result<()> {
        self.values_mut().try_for_each(|nest| nest.put_leaves(leaves))
    }

    fn write(&mut self, at: &Path, to: &mut NestWriter) -> Result<()> {
        to.number(self.len() as u64);
        self.iter_mut().try_for_each(|(key, nest)| {
            to.text(&key.to_string());
            nest.write(&at.join(key), to)
        })
    }

    fn read(from: &mut NestReader<'_>) -> Result<BTreeMap<K, N>> {
        let count = from.count()?;
        let mut map = BTreeMap::new();
        for _ in 0..count {
            map.insert(sent::key(from.text()?)?, N::read(from)?);
        }
        Ok(map)
    }
}

/// Wraps a value of any type as a nest without leaves, for
/// [`merge_call`](crate::ReplicaContext::merge_call).
///
/// ```
/// use consonance::{MirroredStrategy, nest::Opaque};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let names = strategy.run(|replica| {
///     let name = format!("replica {}", replica.replica_id_in_sync_group());
///     replica.merge_call(Opaque(name), |strategy, names| Ok(strategy.mirror(names[1].0.clone())))
/// })?;
/// assert_eq!(names.values(), ["replica 1", "replica 1"]);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opaque<T>(pub T);

impl<T> Nest for Opaque<T> {
    fn take_leaves(&mut self, _: &Path, _: &mut Vec<Leaf>) {}

    fn put_leaves(&mut self, _: &mut dyn Iterator<Item = Leaf>) -> Result<()> {
        Ok(())
    }
}

macro_rules! nest_of_tuple {
    ($(($($nest:ident $index:tt),*))*) => {
        $(
            impl<$($nest: Nest),*> Nest for ($($nest,)*) {
                #[allow(unused_variables, reason = "the empty tuple has no leaf to use them for")]
                fn take_leaves(&mut self, at: &Path, leaves: &mut Vec<Leaf>) {
                    $(self.$index.take_leaves(&at.join($index), leaves);)*
                }

                #[allow(unused_variables, reason = "as above")]
                fn put_leaves(&mut self, leaves: &mut dyn Iterator<Item = Leaf>) -> Result<()> {
                    $(self.$index.put_leaves(leaves)?;)*
                    Ok(())
                }

                #[allow(unused_variables, reason = "as above")]
                fn write(&mut self, at: &Path, to: &mut NestWriter) -> Result<()> {
                    $(self.$index.write(&at.join($index), to)?;)*
                    Ok(())
                }

                #[allow(unused_variables, reason = "as above")]
                #[allow(clippy::unused_unit, reason = "the empty tuple")]
                fn read(from: &mut NestReader<'_>) -> Result<Self> {
                    Ok(($($nest::read(from)?,)*))
                }
            }
        )*
    };
}

nest_of_tuple! {
    ()
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}

#[cfg(test)]
mod tests {
    use super::{Leaf, take};
    use crate::{Nest, Tensor};

    #[derive(Nest)]
    struct Generic<Vec> {
        x: Vec,
    }

    /// Found by a review: the derived code used these names unqualified, so a user's own items
    /// captured them.
    #[allow(dead_code, unused_imports, reason = "only their names matter")]
    mod shadowed {
        use Outcome::*;

        struct Vec<T>(T);
        struct Result;
        trait Iterator {}
        enum Outcome {
            Ok(u8),
            Err,
        }

        #[derive(crate::Nest)]
        pub(super) struct Raw<N> {
            pub(super) r#type: N,
        }
    }

    #[test]
    fn a_derived_nest_is_one_wherever_it_stands() {
        let paths = |leaves: Vec<Leaf>| leaves.iter().map(|leaf| leaf.path.to_string()).collect::<Vec<_>>();
        let x = || Tensor::from(1);
        assert_eq!(paths(take(&mut Generic { x: [x(), x()] })), ["value/x/0", "value/x/1"]);
        assert_eq!(paths(take(&mut shadowed::Raw { r#type: x() })), ["value/type"]);
    }
}
