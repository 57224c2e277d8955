//! Effects: changes of variables, the pieces of them that each server gets, and what a closure sees
//! of its own.

use super::variable::{Asked, Layout};
use crate::{
    DType, IndexedSlices, Result, Tensor,
    nest::{NestReader, NestWriter},
    value::nest::sent::malformed,
    variable::update::Update,
};
use consonance_kernels::memory::{HostBuf, HostBufMut, HostMemory};
use std::sync::Arc;

/// A change of a variable.
#[derive(Clone, Debug)]
pub(super) struct Effect {
    pub(super) variable: Arc<Layout>,
    pub(super) update: Update,
    pub(super) change: Change,
}

#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Of all rows.
    All(Tensor),
    /// Of these rows, one after the other.
    Rows(Vec<usize>, Tensor),
}

/// The part of a change that one shard takes. It was checked against the shard.
#[derive(Debug)]
pub(super) struct Piece {
    /// The number of the shard among the parts of its server's memory.
    pub(super) part: usize,
    update: Update,
    /// The rows in the shard; `None` for all.
    rows: Option<Vec<usize>>,
    values: Tensor,
}

impl Effect {
    pub(super) fn all(variable: &Arc<Layout>, update: Update, value: &Tensor) -> Effect {
        Effect { variable: variable.clone(), update, change: Change::All(value.clone()) }
    }

    pub(super) fn rows(variable: &Arc<Layout>, update: Update, rows: Vec<usize>, slices: &IndexedSlices) -> Effect {
        Effect { variable: variable.clone(), update, change: Change::Rows(rows, slices.values().clone()) }
    }

    /// Writes each shard's piece to the writer of its server.
    ///
    /// # Errors
    /// None for tensors in host memory.
    pub(super) fn split(&self, servers: &mut [NestWriter]) -> Result<()> {
        let layout = &self.variable;
        match &self.change {
            Change::All(value) if layout.shape.is_empty() => {
                let shard = &layout.shards[0];
                write(&mut servers[shard.server], shard.part, self.update, None, value)?;
            }
            Change::All(value) => {
                for shard in &layout.shards {
                    let rows = value.rows(shard.rows.clone())?;
                    write(&mut servers[shard.server], shard.part, self.update, None, &rows)?;
                }
            }
            Change::Rows(rows, values) => {
                let mut of_shard = vec![Vec::new(); layout.shards.len()];
                rows.iter().enumerate().for_each(|(place, &row)| of_shard[layout.shard_of(row)].push(place));
                for (shard, places) in layout.shards.iter().zip(of_shard).filter(|(_, places)| !places.is_empty()) {
                    let within: Vec<usize> = places.iter().map(|&place| rows[place] - shard.rows.start).collect();
                    let values = if places.len() == rows.len() { values.clone() } else { picked(values, &places)? };
                    write(&mut servers[shard.server], shard.part, self.update, Some(&within), &values)?;
                }
            }
        }
        Ok(())
    }

    /// Changes rows that were read before this effect, as they are after it.
    ///
    /// # Errors
    /// None for tensors in host memory.
    pub(super) fn apply(&self, asked: Asked<'_>, read: &mut HostMemory) -> Result<()> {
        let count = self.variable.row_count();
        let mut read = read.as_buf_mut();
        let mut each = |at: usize, from: usize, values| update_row(self.update, (at, from, count), values, &mut read);
        match (&self.change, asked) {
            (Change::All(value), Asked::All) => self.update.apply_to(&mut read, value.host()?),
            (Change::All(value), Asked::Rows(rows)) => {
                let value = value.host()?;
                rows.iter().enumerate().for_each(|(place, &row)| each(place, row, value));
            }
            (Change::Rows(changed, values), Asked::All) => {
                let values = values.host()?;
                changed.iter().enumerate().for_each(|(place, &row)| {
                    each(row, place, values);
                });
            }
            (Change::Rows(changed, values), Asked::Rows(rows)) => {
                let values = values.host()?;
                let mut places: Vec<(usize, usize)> = changed.iter().copied().zip(0..).collect();
                places.sort_unstable();
                for (at, &row) in rows.iter().enumerate() {
                    let start = places.partition_point(|&(changed, _)| changed < row);
                    let of_row = places[start..].iter().take_while(|&&(changed, _)| changed == row);
                    of_row.for_each(|&(_, place)| each(at, place, values));
                }
            }
        }
        Ok(())
    }
}

impl Piece {
    /// Reads a piece for the shards of a server, whose dtypes, rows and elements of a row `parts`
    /// has.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if it does not fit.
    pub(super) fn read(from: &mut NestReader<'_>, parts: &[PartSpec]) -> Result<Piece> {
        let part = from.count()?;
        let &PartSpec { dtype, rows: row_count, row } =
            parts.get(part).ok_or_else(|| malformed("there is no such shard"))?;
        let update = match from.number()? {
            0 => Update::Assign,
            1 => Update::AssignAdd,
            2 => Update::AssignSub,
            _ => return Err(malformed("there is no such update")),
        };
        let rows = if from.flag()? { Some(from.numbers_below(row_count)?) } else { None };
        let values = from.tensor()?;
        let expected = rows.as_ref().map_or(row_count, Vec::len) * row;
        if values.dtype() != dtype || values.count() != expected {
            return Err(malformed("the values are not those of the rows"));
        }
        if update != Update::Assign && dtype == DType::Bool {
            return Err(malformed("truth values are not added"));
        }
        Ok(Piece { part, update, rows, values })
    }

    /// Changes the shard, which has rows of so many elements.
    pub(super) fn apply(&self, row: usize, mut shard: HostBufMut<'_>) {
        let values = self.values.host().expect("made of bytes");
        match &self.rows {
            None => self.update.apply_to(&mut shard, values),
            Some(rows) => {
                for (place, &at) in rows.iter().enumerate() {
                    update_row(self.update, (at, place, row), values, &mut shard);
                }
            }
        }
    }
}

/// A shard, as its server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartSpec {
    pub(super) dtype: DType,
    pub(super) rows: usize,
    /// The elements of a row.
    pub(super) row: usize,
}

impl PartSpec {
    pub(super) fn count(&self) -> usize {
        self.rows * self.row
    }
}

fn write(to: &mut NestWriter, part: usize, update: Update, rows: Option<&[usize]>, values: &Tensor) -> Result<()> {
    to.number(part as u64);
    to.number(match update {
        Update::Assign => 0,
        Update::AssignAdd => 1,
        Update::AssignSub => 2,
    });
    to.number(u64::from(rows.is_some()));
    if let Some(rows) = rows {
        to.numbers(rows);
    }
    to.tensor(values)
}

/// Updates row `at` of `target` by row `from` of `values`, both of `count` elements.
fn update_row(
    update: Update,
    (at, from, count): (usize, usize, usize),
    values: HostBuf<'_>,
    target: &mut HostBufMut<'_>,
) {
    let row = |row: usize| row * count..(row + 1) * count;
    update.apply_to(&mut target.reborrow().slice(row(at)), values.slice(row(from)));
}

/// Returns the rows at these places.
fn picked(values: &Tensor, places: &[usize]) -> Result<Tensor> {
    let count = values.shape()[1..].iter().product::<usize>();
    let mut memory = HostMemory::unspecified(values.dtype(), places.len() * count);
    let (elements, mut target) = (values.host()?, memory.as_buf_mut());
    for (to, &from) in places.iter().enumerate() {
        update_row(Update::Assign, (to, from, count), elements, &mut target);
    }
    Tensor::from_memory([&[places.len()], &values.shape()[1..]].concat(), memory)
}
