//! The rows of a variable: what is read of them, and the effects on them.

use super::{closure::Variables, update_function::FunctionUpdate};
use crate::{
    array::Array,
    dtype::{Class, DType},
    number::Number,
    variable::Update,
};

/// The read or the effect has no meaning for the variable. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The operand has another shape than is expected.
    Shape {
        /// The shape of the variable, or of the rows that the indices ask for.
        expected: Vec<usize>,
        /// The shape of the operand.
        found: Vec<usize>,
    },
    /// A scalar has no rows.
    Scalar,
    /// There is no such row.
    IndexOutOfRange {
        /// The position of the index among the indices.
        position: usize,
        /// The index.
        index: i64,
        /// The number of rows.
        rows: usize,
    },
    /// Elements of this type are not added or not subtracted.
    Undefined {
        /// The type.
        dtype: DType,
    },
}

/// An effect on a variable. Elements are added and subtracted as [`Update::updated`] does.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect<T> {
    /// The update of all rows: `assign`, `assign_add`, `assign_sub`.
    Assign(Update, Array<T>),
    /// The update of some rows: `scatter_update`, `scatter_add`, `scatter_sub`. The rows are
    /// updated one after the other, in the order of the indices.
    Scatter(Update, Vec<i64>, Array<T>),
}

impl<T: Number> Effect<T> {
    /// Returns the variable after the effect.
    ///
    /// ```
    /// use consonance_spec::{array::Array, parameter_server::Effect, variable::Update};
    /// let table = Array::new(&[3, 1], vec![1, 2, 3]);
    /// let twice = Effect::Scatter(Update::AssignAdd, vec![2, 2], Array::new(&[2, 1], vec![10, 100]));
    /// assert_eq!(twice.apply(&table), Ok(Array::new(&[3, 1], vec![1, 2, 113])));
    /// ```
    ///
    /// # Errors
    /// If the operand has another shape, an index is out of range, or the update is not defined:
    /// then no row is updated.
    pub fn apply(&self, table: &Array<T>) -> Result<Array<T>, Refused> {
        match self {
            Effect::Assign(update, operand) => {
                fits(&table.shape, &operand.shape)?;
                Ok(Array::new(&table.shape, updated(*update, &table.data, &operand.data)?))
            }
            Effect::Scatter(update, indices, values) => {
                let rows = rows_at(table, indices)?;
                let row_shape = &table.shape[1..];
                fits(&[&[indices.len()], row_shape].concat(), &values.shape)?;
                let width = row_shape.iter().product::<usize>();
                let mut data = table.data.clone();
                for (place, row) in rows.into_iter().enumerate() {
                    let (row, value) = (row * width..(row + 1) * width, &values.data[place * width..][..width]);
                    let updated = updated(*update, &data[row.clone()], value)?;
                    data[row].copy_from_slice(&updated);
                }
                Ok(Array::new(&table.shape, data))
            }
        }
    }
}

/// Returns the rows with these indices, in the order of the indices, each as often as it is there.
///
/// # Errors
/// If an index is out of range, or the variable is a scalar.
pub fn lookup<T: Clone>(table: &Array<T>, indices: &[i64]) -> Result<Array<T>, Refused> {
    let rows = rows_at(table, indices)?;
    let width = table.shape[1..].iter().product::<usize>();
    let data = rows.into_iter().flat_map(|row| table.data[row * width..][..width].to_vec()).collect();
    Ok(Array::new(&[&[indices.len()], &table.shape[1..]].concat(), data))
}

/// Variables of one element type.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables<T>(pub Vec<Array<T>>);

/// A change of variables.
#[derive(Clone, Debug)]
pub enum Change<T> {
    /// An effect on the variable of this place.
    Effect(usize, Effect<T>),
    /// The update of a variable and its slots by a function.
    Function(FunctionUpdate<T>),
}

/// The rows of a variable that are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The place of the variable.
    pub variable: usize,
    /// The indices; `None` for the whole variable.
    pub indices: Option<Vec<i64>>,
}

impl<T: Number> Variables for Tables<T> {
    type Read = Rows;
    type Value = Array<T>;
    type Effect = Change<T>;
    type Refused = Refused;

    fn read(&self, read: &Rows) -> Result<Array<T>, Refused> {
        let table = &self.0[read.variable];
        read.indices.as_ref().map_or_else(|| Ok(table.clone()), |indices| lookup(table, indices))
    }

    fn update(&mut self, change: &Change<T>) -> Result<(), Refused> {
        match change {
            Change::Effect(variable, effect) => self.0[*variable] = effect.apply(&self.0[*variable])?,
            Change::Function(update) => update.apply(&mut self.0)?,
        }
        Ok(())
    }
}

pub(super) fn rows_at<T>(table: &Array<T>, indices: &[i64]) -> Result<Vec<usize>, Refused> {
    let rows = *table.shape.first().ok_or(Refused::Scalar)?;
    let row = |(position, &index): (usize, &i64)| {
        let row = usize::try_from(index).ok().filter(|&row| row < rows);
        row.ok_or(Refused::IndexOutOfRange { position, index, rows })
    };
    indices.iter().enumerate().map(row).collect()
}

pub(super) fn fits(expected: &[usize], found: &[usize]) -> Result<(), Refused> {
    if expected == found {
        return Ok(());
    }
    Err(Refused::Shape { expected: expected.to_vec(), found: found.to_vec() })
}

pub(super) fn updated<T: Number>(update: Update, elements: &[T], operand: &[T]) -> Result<Vec<T>, Refused> {
    // The sum of truth values is refused also where there are none.
    let is_defined = update == Update::Assign || T::DTYPE.class() != Class::Bool;
    let updated = is_defined.then(|| update.updated(elements, operand).ok()).flatten();
    updated.ok_or(Refused::Undefined { dtype: T::DTYPE })
}
