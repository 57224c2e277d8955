//! Lists of elements: a `Vec` or an array of numbers is one tensor, not a nest of numbers.

use super::{Leaf, Nest, NestReader, NestWriter, Path, Value, dense, sent};
use crate::{Error, Result, Tensor, error::NEST};
use consonance_kernels::cpu::copy::copy_own;
use consonance_spec::Element;
use std::{array, mem};

/// The conversion between values of one type and the entries of a tensor along axis 0.
///
/// A function that makes values of a tensor returns `None` if they are not of its dtype and shape.
#[derive(Debug)]
pub struct Elements<N> {
    /// Returns the name of the type.
    name: fn() -> String,
    /// Copies the values into a tensor.
    copy: fn(&[N]) -> Tensor,
    /// Makes a tensor of the values, which stay where they are.
    pack: fn(Vec<N>) -> Tensor,
    /// Copies the tensor into the values.
    fill: fn(&mut [N], &Tensor) -> Option<()>,
    /// Makes values of the tensor. Elements stay where they are if no other tensor shares them.
    unpack: fn(Tensor) -> Option<Vec<N>>,
}

impl<N> Elements<N> {
    /// Returns the name of a list of such values.
    fn list_name(&self) -> String {
        format!("Vec<{}>", (self.name)())
    }

    /// Reads a tensor whose values make up a list.
    fn read(&self, from: &mut NestReader<'_>) -> Result<Vec<N>> {
        let tensor = from.tensor()?;
        let spec = tensor.spec();
        (self.unpack)(tensor).ok_or_else(|| other(&Path::default(), &spec, self.list_name()))
    }
}

impl<T: Element> Elements<T> {
    /// Numbers, or truth values.
    pub(super) const OF_TYPE: Elements<T> = Elements {
        name: || T::DTYPE.name().to_owned(),
        copy: |values| Tensor::from(values),
        pack: |values| Tensor::from(values),
        fill: |values, tensor| {
            let fits = tensor.dtype() == T::DTYPE && tensor.shape() == [values.len()];
            copy_own(tensor.host().ok().filter(|_| fits)?, &mut values.into());
            Some(())
        },
        unpack: |tensor| if tensor.rank() == 1 { tensor.into_vec().ok() } else { None },
    };
}

impl<N: Nest, const COUNT: usize> Elements<[N; COUNT]> {
    /// Arrays of elements: a tensor of them has one dimension more.
    const OF_ARRAY: Elements<[N; COUNT]> = Elements {
        name: || format!("[{}; {COUNT}]", (of::<N>().name)()),
        copy: |arrays| parted((of::<N>().copy)(arrays.as_flattened()), arrays.len(), COUNT),
        pack: |arrays| {
            let rows = arrays.len();
            parted((of::<N>().pack)(arrays.into_flattened()), rows, COUNT)
        },
        fill: |arrays, tensor| {
            let (rows, count) = (arrays.len(), COUNT);
            let flat = joined(tensor.clone(), count).filter(|_| tensor.shape()[0] == rows)?;
            (of::<N>().fill)(arrays.as_flattened_mut(), &flat)
        },
        unpack: |tensor| {
            let rows = *tensor.shape().first()?;
            let mut values = (of::<N>().unpack)(joined(tensor, COUNT)?)?.into_iter();
            let mut row = || array::from_fn(|_| values.next().expect("as many values as the shape says"));
            Some((0..rows).map(|_| row()).collect())
        },
    };
}

/// Returns the functions of a type that has them.
fn of<N: Nest>() -> Elements<N> {
    N::ELEMENTS.expect("only arrays of elements have functions that use their elements'")
}

/// Splits axis 0 of the tensor into `rows` rows of `count` entries.
fn parted(tensor: Tensor, rows: usize, count: usize) -> Tensor {
    let shape = [&[rows, count], &tensor.shape()[1..]].concat();
    tensor.reshape(shape).expect("as many elements as in the arrays")
}

/// Joins the first two axes of the tensor, of which the second has `count` entries.
fn joined(tensor: Tensor, count: usize) -> Option<Tensor> {
    match *tensor.shape() {
        [rows, own, ref inner @ ..] if own == count => {
            let shape = [&[rows * own], inner].concat();
            tensor.reshape(shape).ok()
        }
        _ => None,
    }
}

impl<N: Nest> Nest for Vec<N> {
    fn take_leaves(&mut self, at: &Path, leaves: &mut Vec<Leaf>) {
        match N::ELEMENTS {
            Some(elements) => {
                let value = Value::Dense((elements.pack)(mem::take(self)));
                leaves.push(Leaf { path: at.clone(), value });
            }
            None => take_each(self, at, leaves),
        }
    }

    fn put_leaves(&mut self, leaves: &mut dyn Iterator<Item = Leaf>) -> Result<()> {
        let Some(elements) = N::ELEMENTS else { return put_each(self, leaves) };
        let (path, tensor) = dense(leaves.next())?;
        let spec = tensor.spec();
        *self = (elements.unpack)(tensor).ok_or_else(|| other(&path, &spec, elements.list_name()))?;
        Ok(())
    }

    fn write(&mut self, at: &Path, to: &mut NestWriter) -> Result<()> {
        match N::ELEMENTS {
            Some(elements) => to.tensor(&(elements.pack)(mem::take(self))),
            None => sent::write_each(self, at, to),
        }
    }

    fn read(from: &mut NestReader<'_>) -> Result<Vec<N>> {
        match N::ELEMENTS {
            Some(elements) => elements.read(from),
            None => sent::read_each(from),
        }
    }
}

impl<N: Nest, const COUNT: usize> Nest for [N; COUNT] {
    const ELEMENTS: Option<Elements<Self>> = match N::ELEMENTS {
        Some(_) => Some(Elements::OF_ARRAY),
        None => None,
    };

    fn take_leaves(&mut self, at: &Path, leaves: &mut Vec<Leaf>) {
        match N::ELEMENTS {
            Some(elements) => leaves.push(Leaf { path: at.clone(), value: Value::Dense((elements.copy)(self)) }),
            None => take_each(self, at, leaves),
        }
    }

    fn put_leaves(&mut self, leaves: &mut dyn Iterator<Item = Leaf>) -> Result<()> {
        let Some(elements) = N::ELEMENTS else { return put_each(self, leaves) };
        let (path, tensor) = dense(leaves.next())?;
        let name = || format!("[{}; {COUNT}]", (elements.name)());
        (elements.fill)(self, &tensor).ok_or_else(|| other(&path, &tensor.spec(), name()))
    }

    fn write(&mut self, at: &Path, to: &mut NestWriter) -> Result<()> {
        match N::ELEMENTS {
            Some(elements) => to.tensor(&(elements.copy)(self)),
            None => sent::write_each(self, at, to),
        }
    }

    fn read(from: &mut NestReader<'_>) -> Result<[N; COUNT]> {
        let nests = match N::ELEMENTS {
            Some(elements) => elements.read(from)?,
            None => sent::read_each(from)?,
        };
        nests.try_into().map_err(|_| sent::malformed("a list is not as long as its array"))
    }
}

impl<N: Nest> Nest for Option<N> {
    fn take_leaves(&mut self, at: &Path, leaves: &mut Vec<Leaf>) {
        take_each(self.as_mut_slice(), at, leaves);
    }

    fn put_leaves(&mut self, leaves: &mut dyn Iterator<Item = Leaf>) -> Result<()> {
        put_each(self.as_mut_slice(), leaves)
    }

    fn write(&mut self, at: &Path, to: &mut NestWriter) -> Result<()> {
        to.number(u64::from(self.is_some()));
        self.as_mut().map_or(Ok(()), |nest| nest.write(&at.join(0), to))
    }

    fn read(from: &mut NestReader<'_>) -> Result<Option<N>> {
        Ok(if from.flag()? { Some(N::read(from)?) } else { None })
    }
}

fn take_each<N: Nest>(nests: &mut [N], at: &Path, leaves: &mut Vec<Leaf>) {
    for (index, nest) in nests.iter_mut().enumerate() {
        nest.take_leaves(&at.join(index), leaves);
    }
}

fn put_each<N: Nest>(nests: &mut [N], leaves: &mut dyn Iterator<Item = Leaf>) -> Result<()> {
    nests.iter_mut().try_for_each(|nest| nest.put_leaves(leaves))
}

/// Returns the error for a result of another dtype or shape than its place, which has this type.
/// Only the mean of integers changes the dtype. Calls that move parts, and reductions along an
/// axis, change the shape.
pub(super) fn other(path: &Path, result: &str, place: String) -> Error {
    let expected = format!("a tensor, since the result is {result}");
    Error::invalid(NEST, path.to_string(), expected, place)
}
