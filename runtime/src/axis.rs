//! Axes of tensors, as arguments.

use crate::{Error, Result};
use std::fmt::{self, Display};

/// One axis; a negative one counts from the last (-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis(isize);

impl Axis {
    /// 64 bits that differ where axes do.
    pub(crate) fn digest(self) -> u64 {
        self.0 as u64
    }

    /// The axis from the front, of a tensor of this rank; none if there is no such axis.
    pub(crate) fn of(self, rank: usize) -> Option<usize> {
        let axis = if self.0 < 0 { self.0.checked_add_unsigned(rank)? } else { self.0 };
        usize::try_from(axis).ok().filter(|&axis| axis < rank)
    }

    /// The axis from the front.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if there is no such axis, or no axis at all.
    pub(crate) fn resolve(self, call: &'static str, path: &impl Display, rank: usize) -> Result<usize> {
        if rank == 0 {
            return Err(Error::invalid(call, path.to_string(), "a tensor with an axis", "a scalar"));
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
    /// For each axis of a tensor of this rank, whether it is removed; `None` if only replicas are reduced.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if there is no such axis, or one is given twice.
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
