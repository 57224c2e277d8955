//! Functions that update rows of a variable together with those of its slots.

use super::table::{Effect, Refused, fits, lookup, rows_at, updated};
use crate::{array::Array, number::Number, variable::Update};

/// A function that updates rows of a variable, which come first, and the same rows of its slots, by
/// a gradient of these rows. Each row depends on its own values and gradient alone. So it does not
/// matter how the rows are divided into shards.
pub type UpdateFunction<T> = fn(&mut [Array<T>], &Array<T>);

/// The update of a variable by a function.
#[derive(Clone, Debug)]
pub struct FunctionUpdate<T> {
    /// The places of the variable and of its slots, which differ. All have the same number of rows.
    pub variables: Vec<usize>,
    /// The indices of the gradient's rows; `None` if it has all of them.
    pub indices: Option<Vec<i64>>,
    /// The gradient, whose rows have the shape of the variable's.
    pub gradient: Array<T>,
    /// The function.
    pub function: UpdateFunction<T>,
}

impl<T: Number> FunctionUpdate<T> {
    /// Updates the variables. The function gets each row of the gradient once, in the order of the
    /// rows: gradients of the same row are added first, one after the other.
    ///
    /// ```
    /// use consonance_spec::{array::Array, parameter_server::FunctionUpdate};
    /// // Momentum without decay: the slot has the sum of all gradients.
    /// let function = |rows: &mut [Array<i32>], gradient: &Array<i32>| {
    ///     let [table, sum] = rows else { unreachable!("one slot") };
    ///     for ((row, sum), gradient) in table.data.iter_mut().zip(&mut sum.data).zip(&gradient.data) {
    ///         *sum += gradient;
    ///         *row -= *sum;
    ///     }
    /// };
    /// let gradient = Array::new(&[3], vec![1, 10, 2]);
    /// let update = FunctionUpdate { variables: vec![0, 1], indices: Some(vec![2, 0, 2]), gradient, function };
    /// let mut tables = [Array::new(&[3], vec![0, 0, 0]), Array::new(&[3], vec![0, 0, 5])];
    /// update.apply(&mut tables).unwrap();
    /// assert_eq!(tables.map(|table| table.data), [[-10, 0, -8], [10, 0, 8]]);
    /// ```
    ///
    /// # Errors
    /// If the gradient has another shape, an index is out of range, or elements of this type are
    /// not added: then nothing is updated.
    pub fn apply(&self, tables: &mut [Array<T>]) -> Result<(), Refused> {
        let table = &tables[self.variables[0]];
        // Also where no row has two gradients.
        updated::<T>(Update::AssignAdd, &[], &[])?;
        let Some(indices) = &self.indices else {
            fits(&table.shape, &self.gradient.shape)?;
            let mut rows: Vec<Array<T>> = self.variables.iter().map(|&variable| tables[variable].clone()).collect();
            (self.function)(&mut rows, &self.gradient);
            self.variables.iter().zip(rows).for_each(|(&variable, rows)| tables[variable] = rows);
            return Ok(());
        };
        let places = rows_at(table, indices)?;
        fits(&[&[indices.len()], &table.shape[1..]].concat(), &self.gradient.shape)?;
        let mut distinct = places.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let indices: Vec<i64> = distinct.iter().map(|&row| row as i64).collect();
        let gradient = self.summed(&places, &distinct)?;
        let rows = self.variables.iter().map(|&variable| lookup(&tables[variable], &indices));
        let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
        (self.function)(&mut rows, &gradient);
        for (&variable, rows) in self.variables.iter().zip(rows) {
            tables[variable] = Effect::Scatter(Update::Assign, indices.clone(), rows).apply(&tables[variable])?;
        }
        Ok(())
    }

    /// Returns the gradient of each of the `distinct` rows, given the row of each gradient.
    fn summed(&self, places: &[usize], distinct: &[usize]) -> Result<Array<T>, Refused> {
        let row_shape = &self.gradient.shape[1..];
        let width = row_shape.iter().product::<usize>();
        let mut sums: Vec<T> = Vec::new();
        for row in distinct {
            let mut gradients = (0..places.len()).filter(|&place| places[place] == *row);
            let of = |place: usize| &self.gradient.data[place * width..][..width];
            let first = gradients.next().map(of).expect("it is the row of a gradient").to_vec();
            sums.extend(gradients.try_fold(first, |sum, place| updated(Update::AssignAdd, &sum, of(place)))?);
        }
        Ok(Array::new(&[&[distinct.len()], row_shape].concat(), sums))
    }
}
