//! The argument of an update function: a variable to write.

use super::{Update, update::other_operand};
use crate::{Element, Result, Tensor};
use consonance_kernels::memory::Space;
use std::{fmt, ops::Deref};

/// A copy or component of a [`Variable`](crate::Variable) that
/// [`Strategy::update`](crate::Strategy::update) passes for writing: a [`Tensor`] with fixed dtype
/// and shape.
///
/// Writes are in place. The elements are copied only if they are shared.
///
/// If the strategy's devices have several memories, this is the host's copy, or the first GPU's if
/// the host has none. After the function the others get its bits.
///
/// ```
/// use consonance::{MirroredStrategy, Tensor};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let (weights, gradient) = (strategy.variable(|| Tensor::from([1.0f32, 2.0]))?, Tensor::from([0.5f32, -1.0]));
/// strategy.update(&weights, |copy| {
///     copy.assign_sub(gradient.clone())?;
///     copy.as_mut_slice::<f32>()?.iter_mut().for_each(|weight| *weight *= 2.0);
///     Ok(())
/// })?;
/// assert_eq!(weights.read()?, Tensor::from([1.0f32, 6.0]));
/// # Ok::<(), consonance::Error>(())
/// ```
pub struct VariableMut<'v> {
    value: &'v mut Tensor,
    /// Whether operands lie in host memory alone.
    is_on_host: bool,
}

impl<'v> VariableMut<'v> {
    pub(super) fn new(value: &'v mut Tensor, is_on_host: bool) -> VariableMut<'v> {
        VariableMut { value, is_on_host }
    }

    /// Returns the elements for writing, in row-major order. Those in the memory of a GPU are
    /// copied to the host first, and back after the function.
    ///
    /// # Errors
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) if they are not of type `T`;
    /// [`Error::System`](crate::Error::System) if a GPU cannot be read.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        if self.value.space() != Space::Host {
            *self.value = self.value.to_host()?;
        }
        self.value.as_mut_slice()
    }

    /// Sets the value. The elements of `value` are shared, not copied, if they lie in the memory of
    /// this copy.
    ///
    /// # Errors
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) if dtype or shape are not the variable's,
    /// or `value` lies in the memory of a GPU and the strategy has none;
    /// [`Error::System`](crate::Error::System) if a GPU has no memory, or cannot be read or
    /// written.
    pub fn assign(&mut self, value: impl Into<Tensor>) -> Result<()> {
        self.update("VariableMut::assign", Update::Assign, value.into())
    }

    /// Adds to the value; integers wrap.
    ///
    /// # Errors
    /// As [`assign`](VariableMut::assign), and [`Error::InvalidCall`](crate::Error::InvalidCall)
    /// for a variable of `bool`.
    pub fn assign_add(&mut self, value: impl Into<Tensor>) -> Result<()> {
        self.update("VariableMut::assign_add", Update::AssignAdd, value.into())
    }

    /// Subtracts from the value; integers wrap.
    ///
    /// # Errors
    /// As [`assign_add`](VariableMut::assign_add).
    pub fn assign_sub(&mut self, value: impl Into<Tensor>) -> Result<()> {
        self.update("VariableMut::assign_sub", Update::AssignSub, value.into())
    }

    fn update(&mut self, call: &'static str, update: Update, operand: Tensor) -> Result<()> {
        if self.value.spec() != operand.spec() {
            return Err(other_operand(call, self.value.spec(), self.value.dtype(), &operand));
        }
        match self.is_on_host {
            true => update.check(call, &operand)?,
            false => update.check_dtype(call, operand.dtype())?,
        }
        update.apply(self.value, operand)
    }
}

/// Reads the value, in the memory that it lies in.
impl Deref for VariableMut<'_> {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        self.value
    }
}

impl fmt::Debug for VariableMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VariableMut({:?})", self.value)
    }
}
