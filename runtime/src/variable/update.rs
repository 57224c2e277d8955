//! The effect of an assignment on a value.

use super::on_device;
use crate::{DType, Element, Error, IndexedSlices, ReduceOp, Result, Tensor, kind, value::indexed_slices};
use consonance_kernels::{
    cpu::{copy::copy_own, reduce::Reducer},
    memory::{HostBuf, HostBufMut, HostMemory, Space},
};
use consonance_spec::{Class, Kind, for_each_dtype};
use std::ops::Neg;

/// The kind of an assignment. The operand has the value's dtype and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    Assign,
    AssignAdd,
    AssignSub,
}

/// Number of elements of an operand that are negated at a time, so that their copy stays in the L1
/// cache.
const NEGATED_COUNT: usize = 2048;

impl Update {
    pub(super) fn kind(self) -> Kind {
        match self {
            Update::Assign => kind::ASSIGN,
            Update::AssignAdd => kind::ASSIGN_ADD,
            Update::AssignSub => kind::ASSIGN_SUB,
        }
    }

    /// Checks an operand of the variable's dtype and shape, which lies in host memory.
    pub(crate) fn check(self, call: &'static str, operand: &Tensor) -> Result<()> {
        operand.host().map_err(|error| error.of_call(call))?;
        self.check_dtype(call, operand.dtype())
    }

    /// Checks the dtype of a variable and its operand, which lies in any memory.
    pub(super) fn check_dtype(self, call: &'static str, dtype: DType) -> Result<()> {
        if self != Update::Assign && dtype.class() == Class::Bool {
            return Err(Error::invalid(call, "variable", "one of numbers", format!("one of {dtype}")));
        }
        Ok(())
    }

    /// Updates `value`, which stays in its memory. `Assign` takes over the operand's elements if
    /// they lie there. On the host a sum is in place unless the elements are shared.
    ///
    /// # Errors
    /// [`Error::System`] if a device has no memory, or cannot be read or written.
    ///
    /// # Panics
    /// If `operand` has another dtype or count, or [`check`](Update::check) refuses the dtype.
    pub(super) fn apply(self, value: &mut Tensor, operand: Tensor) -> Result<()> {
        let call = self.kind().name();
        let operand = operand.into_space(call, value.space())?;
        match (self, value.space()) {
            (Update::Assign, _) => *value = operand,
            (Update::AssignAdd | Update::AssignSub, Space::Host) => {
                self.apply_to(&mut on_host(value)?, operand.host()?);
            }
            (Update::AssignAdd, Space::Cuda(_)) => *value = on_device::sum(call, value, &operand)?,
            (Update::AssignSub, Space::Cuda(_)) => *value = on_device::difference(call, value, &operand)?,
        }
        Ok(())
    }

    /// Updates elements in place.
    ///
    /// # Panics
    /// As [`apply`](Update::apply).
    pub(crate) fn apply_to(self, value: &mut HostBufMut<'_>, operand: HostBuf<'_>) {
        let dtype = value.dtype();
        let sum = || Reducer::new(ReduceOp::Sum, dtype).expect("numbers have a sum");
        match self {
            Update::Assign => copy_own(operand, value),
            Update::AssignAdd => sum().accumulate(value, &[operand]),
            // For every type `x - y` equals `x + -y` bit for bit.
            Update::AssignSub => {
                let (sum, count) = (sum(), value.count());
                let mut negated = HostMemory::unspecified(dtype, count.min(NEGATED_COUNT));
                for start in (0..count).step_by(NEGATED_COUNT) {
                    let end = count.min(start + NEGATED_COUNT);
                    let mut chunk = negated.as_buf_mut().slice(0..end - start);
                    negate(operand.slice(start..end), &mut chunk);
                    sum.accumulate(&mut value.reborrow().slice(start..end), &[chunk.as_buf()]);
                }
            }
        }
    }
}

impl Update {
    /// Adds `rows` to rows of `value`, or subtracts them, in place unless its elements are shared.
    /// A value in the memory of a device becomes one in host memory.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for rows outside of host memory; [`Error::System`] if a device cannot
    /// be read.
    ///
    /// # Panics
    /// If the rows are of another tensor, or [`check`](Update::check) refuses the dtype.
    pub(super) fn scatter(self, value: &mut Tensor, rows: &IndexedSlices) -> Result<()> {
        let rows = rows.dedupe()?;
        if value.space() != Space::Host {
            *value = value.to_host()?;
        }
        let row_count: usize = value.shape()[1..].iter().product();
        let mut operand = rows.values().clone();
        if self == Update::AssignSub {
            let mut negated = HostMemory::unspecified(operand.dtype(), operand.count());
            negate(operand.host()?, &mut negated.as_buf_mut());
            operand = Tensor::from_memory(operand.shape().to_vec(), negated)?;
        }
        let sum = Reducer::new(ReduceOp::Sum, value.dtype()).expect("numbers have a sum");
        let (operand, mut value) = (operand.host()?, on_host(value)?);
        for (row, index) in rows.wide_indices().enumerate() {
            let (from, to) = (row * row_count, index as usize * row_count);
            sum.accumulate(&mut value.reborrow().slice(to..to + row_count), &[operand.slice(from..from + row_count)]);
        }
        Ok(())
    }
}

/// Returns the elements of `value` for writing.
fn on_host(value: &mut Tensor) -> Result<HostBufMut<'_>> {
    value.host()?;
    Ok(value.buf_mut()?.host().expect("the space was checked"))
}

/// Returns the error of an operand that has not the dtype and shape of the variable.
pub(crate) fn other_operand(call: &'static str, expected: String, dtype: DType, operand: &Tensor) -> Error {
    let literal = match (dtype.class(), dtype) {
        (Class::Bool, _) => None,
        (Class::Float, DType::F16 | DType::Bf16) => Some(format!("{dtype}::from_f32(1.0)")),
        (Class::Float, _) => Some(format!("1.0{dtype}")),
        (Class::Signed | Class::Unsigned, _) => Some(format!("1{dtype}")),
    };
    // A number without a type is of one of these types, which beginners do not expect.
    let hint = match (operand.dtype(), literal) {
        (found, Some(literal)) if found != dtype && matches!(found, DType::F64 | DType::I32) => {
            let number = if found == DType::F64 { "1.0" } else { "1" };
            format!(" ({number} alone is {found}: write {literal})")
        }
        _ => String::new(),
    };
    Error::invalid(call, "value", expected, format!("{}{hint}", operand.spec()))
}

/// Writes every element of `from` negated: `-x` for floats, wrapping `0 - x` for integers.
fn negate(from: HostBuf<'_>, into: &mut HostBufMut<'_>) {
    fn each<T: Element>(from: HostBuf<'_>, into: &mut HostBufMut<'_>, negative: impl Fn(T) -> T) {
        let from = from.as_slice::<T>().expect("the dtype was matched");
        let into = into.reborrow().into_mut_slice::<T>().expect("the dtype was matched");
        into.iter_mut().zip(from).for_each(|(into, &from)| *into = negative(from));
    }
    macro_rules! negative {
        (Float $type:ty) => {
            each(from, into, <$type>::neg)
        };
        (Bool $type:ty) => {
            unreachable!("Update::check refuses truth values")
        };
        ($integer:ident $type:ty) => {
            each(from, into, <$type>::wrapping_neg)
        };
    }
    macro_rules! by_dtype {
        ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
            match from.dtype() {
                $(DType::$variant => negative!($class $type),)*
            }
        };
    }
    for_each_dtype!(by_dtype);
}

/// Returns the share of `operand` of replica `replica` of `replicas`. For floats it is the
/// quotient. Integers are split into whole parts that add up to the operand, larger parts first.
///
/// # Errors
/// None for numbers.
pub(super) fn share(operand: &Tensor, replicas: usize, replica: usize) -> Result<Tensor> {
    macro_rules! part {
        (Float $type:ty) => {
            indexed_slices::divide("Variable::assign", operand, replicas)
        };
        (Bool $type:ty) => {
            unreachable!("no variable is the sum of truth values")
        };
        ($integer:ident $type:ty) => {{
            let replicas = replicas as i128;
            let part = |&whole: &$type| {
                let larger = (replica as i128) < i128::from(whole).rem_euclid(replicas);
                (i128::from(whole).div_euclid(replicas) + i128::from(larger)) as $type
            };
            let parts: Vec<$type> = operand.as_slice::<$type>()?.iter().map(part).collect();
            Tensor::new(operand.shape(), &parts)
        }};
    }
    macro_rules! by_dtype {
        ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
            match operand.dtype() {
                $(DType::$variant => part!($class $type),)*
            }
        };
    }
    for_each_dtype!(by_dtype)
}
