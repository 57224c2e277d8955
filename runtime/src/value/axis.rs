//! Axes of tensors, as arguments.

use crate::{DType, Error, ReduceOp, Result, Tensor};
use consonance_kernels::{cpu::axis::Partial, digest::mix, memory::HostBuf};
use std::{
    fmt::{self, Display},
    io,
};

/// One axis; a negative one counts from the last (-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis(isize);

impl Axis {
    /// Returns 64 bits that differ if the axes differ.
    pub(crate) fn digest(self) -> u64 {
        self.0 as u64
    }

    /// Returns the axis counted from the front in a tensor of this rank, `None` if there is no such
    /// axis.
    pub(crate) fn of(self, rank: usize) -> Option<usize> {
        let axis = if self.0 < 0 { self.0.checked_add_unsigned(rank)? } else { self.0 };
        usize::try_from(axis).ok().filter(|&axis| axis < rank)
    }

    /// Returns the axis counted from the front.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if there is no such axis, or the tensor is a scalar.
    pub(crate) fn resolve(self, call: &'static str, path: &impl Display, rank: usize) -> Result<usize> {
        if rank == 0 {
            return Err(Error::invalid(
                call,
                path.to_string(),
                "a tensor with an axis",
                "a scalar (reshape it to [1])",
            ));
        }
        self.of(rank).ok_or_else(|| {
            let expected = format!("an axis from -{rank} to {} ({path} has rank {rank})", rank - 1);
            Error::invalid(call, "axis", expected, self.0.to_string())
        })
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<isize> for Axis {
    fn from(axis: isize) -> Self {
        Axis(axis)
    }
}

/// The axes that a reduction removes besides the replicas: none, one, or several.
///
/// Made from `None`, a number, or an array or slice of numbers; negative ones count from the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Axes(Option<Vec<Axis>>);

impl Axes {
    /// Returns for each axis of a tensor of this rank whether it is removed. `None` if only
    /// replicas are reduced.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if there is no such axis, or an axis is given twice.
    pub(crate) fn resolve(&self, call: &'static str, path: &impl Display, rank: usize) -> Result<Option<Vec<bool>>> {
        let Some(axes) = &self.0 else { return Ok(None) };
        let mut removed = vec![false; rank];
        for axis in axes {
            let index = axis.resolve(call, path, rank)?;
            if std::mem::replace(&mut removed[index], true) {
                return Err(Error::invalid(call, "axis", "each axis once", format!("{} twice", axis.0)));
            }
        }
        Ok(Some(removed))
    }

    /// Returns 64 bits that differ if the axes differ.
    pub(crate) fn digest(&self) -> u64 {
        self.0.iter().flatten().fold(self.0.is_some().into(), |digest, axis| mix(digest, axis.digest()))
    }

    /// Returns the axes as text, `None` if only replicas are reduced.
    pub(crate) fn describe(&self) -> Option<String> {
        let axes: Vec<String> = self.0.as_ref()?.iter().map(Axis::to_string).collect();
        Some(axes.join(", "))
    }
}

impl From<Option<isize>> for Axes {
    fn from(axis: Option<isize>) -> Self {
        Axes(axis.map(|axis| vec![Axis(axis)]))
    }
}

impl From<Axis> for Axes {
    fn from(axis: Axis) -> Self {
        Axes(Some(vec![axis]))
    }
}

impl From<isize> for Axes {
    fn from(axis: isize) -> Self {
        Axes::from(Some(axis))
    }
}

impl From<&[isize]> for Axes {
    fn from(axes: &[isize]) -> Self {
        Axes(Some(axes.iter().copied().map(Axis).collect()))
    }
}

impl<const COUNT: usize> From<[isize; COUNT]> for Axes {
    fn from(axes: [isize; COUNT]) -> Self {
        Axes::from(axes.as_slice())
    }
}

/// Checks that each replica contributes something along an axis, where the replicas have these
/// numbers of elements. A replica without elements contributes the identity of `op`, if that has
/// one.
///
/// # Errors
/// [`Error::InvalidCall`], which names the first replica without elements.
pub(crate) fn require_contributions(
    call: &'static str,
    op: &str,
    has_identity: bool,
    elements: impl IntoIterator<Item = usize>,
) -> Result<()> {
    match elements.into_iter().position(|elements| elements == 0 && !has_identity) {
        None => Ok(()),
        Some(replica) => {
            let expected = format!("elements along the axis, because {op} has no identity");
            Err(Error::invalid(call, "value", expected, "none").of_replica(replica))
        }
    }
}

/// Makes the error of a reduction for whose result, of the shape `kept`, the system has no memory.
/// An axis without elements has a result of any size.
pub(crate) fn no_memory(dtype: DType, kept: &[usize]) -> impl Fn(io::Error) -> Error {
    move |source| Error::system(format!("allocate a reduction of {dtype} to the shape {kept:?}"), source)
}

/// A tensor viewed as `[outer, axis, inner]`: the axis in the middle stands for all removed axes.
pub(crate) struct Flat {
    tensor: Tensor,
    outer: usize,
    axis: usize,
    inner: usize,
}

impl Flat {
    /// Flattens `tensor`. If the removed axes are not adjacent, copies it with these axes moved to
    /// the front, in their order. If none is removed, the axis has one place.
    pub(crate) fn new(tensor: &Tensor, removed: &[bool]) -> Result<Flat> {
        let sizes = |axes: &[usize]| axes.iter().map(|&axis| tensor.shape()[axis]).product();
        let (away, kept): (Vec<usize>, Vec<usize>) = (0..removed.len()).partition(|&axis| removed[axis]);
        let Some(&first) = away.first() else {
            return Ok(Flat { tensor: tensor.clone(), outer: 1, axis: 1, inner: tensor.count() });
        };
        if away.iter().enumerate().all(|(place, &axis)| axis == first + place) {
            let (outer, inner) = kept.split_at(first);
            return Ok(Flat { tensor: tensor.clone(), outer: sizes(outer), axis: sizes(&away), inner: sizes(inner) });
        }
        let order: Vec<usize> = away.iter().chain(&kept).copied().collect();
        Ok(Flat { tensor: tensor.transpose(&order)?, outer: 1, axis: sizes(&away), inner: sizes(&kept) })
    }

    /// Returns the sizes of the axes of `tensor` that are not removed.
    pub(crate) fn kept(tensor: &Tensor, removed: &[bool]) -> Vec<usize> {
        tensor.shape().iter().zip(removed).filter(|(_, removed)| !**removed).map(|(&size, _)| size).collect()
    }

    /// Returns the number of elements that are combined into each element of the result.
    pub(crate) fn elements(&self) -> usize {
        self.axis
    }

    /// Reduces the elements along the axis without rounding.
    ///
    /// # Errors
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) if they do not lie in host memory;
    /// [`Error::System`](crate::Error::System) if the system has no memory for the result.
    ///
    /// # Panics
    /// If `op` is not defined on their dtype.
    pub(crate) fn partial(&self, op: ReduceOp) -> Result<Partial> {
        let (elements, shape) = self.view()?;
        let partial = Partial::new(op, elements, shape).map_err(no_memory(elements.dtype(), &[shape[0], shape[2]]))?;
        Ok(partial.expect("the operation was checked"))
    }

    /// Returns the elements and the three sizes.
    ///
    /// # Errors
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) if they do not lie in host memory.
    pub(crate) fn view(&self) -> Result<(HostBuf<'_>, [usize; 3])> {
        Ok((self.tensor.host()?, [self.outer, self.axis, self.inner]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{found, refusal};

    #[test]
    fn a_replica_without_elements_contributes_the_identity_or_is_named() {
        let elements = [3, 0, 0];
        require_contributions("reduce", "sum", true, elements).unwrap();
        require_contributions("reduce", "nand", false, [3, 1]).unwrap();
        let error = require_contributions("reduce", "nand", false, elements).unwrap_err();
        assert_eq!((refusal(&error), found(&error)), (("reduce", "value", Some(1)), "none"));
    }
}
