//! The argument of an update function: a variable to write.

use super::{Update, Writing, update::other_operand};
use crate::{Element, Result, Tensor};
use std::{fmt, ops::Deref};

/// A copy or component of a [`Variable`](crate::Variable) that
/// [`Strategy::update`](crate::Strategy::update) passes for writing: a [`Tensor`] with fixed dtype
/// and shape.
///
/// Writes are in place. The elements are copied only if they are shared.
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
}

impl<'v> VariableMut<'v> {
    pub(super) fn new(writing: &'v mut Writing<'_>) -> VariableMut<'v> {
        VariableMut { value: writing }
    }

    /// Returns the elements for writing, in row-major order.
    ///
    /// # Errors
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) if they are not of type `T`.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.value.as_mut_slice()
    }

    /// Sets the value. The elements of `value` are shared, not copied.
    ///
    /// # Errors
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) if dtype or shape are not the variable's.
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
        update.check(call, &operand)?;
        update.apply(self.value, operand)
    }
}

/// Reads the value.
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
