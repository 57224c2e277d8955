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
use std::{cell::OnceCell, sync::Arc};

/// A change of variables.
#[derive(Debug)]
pub(super) enum Effect {
    /// Of one.
    Write(Arc<Layout>, Write),
    /// Of one and its slots, by a function.
    Call(Call),
}

/// A call of an update function by a closure.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) function: usize,
    /// The variable, and its slots.
    pub(super) variables: Vec<Arc<Layout>>,
    /// The rows of the gradient, in order and each once; `None` for all.
    pub(super) rows: Option<Vec<usize>>,
    pub(super) gradient: Tensor,
    /// The variables after the call, as the closure sees them.
    pub(super) seen: OnceCell<Vec<Write>>,
}

/// New values of rows, or values that are added to them.
#[derive(Debug)]
pub(super) struct Write {
    update: Update,
    /// The rows, which change one after the other; `None` for all.
    rows: Option<Vec<usize>>,
    values: Tensor,
}

/// The part of an effect that one shard takes, or a shard and those of the slots beside it. It was
/// checked against them.
#[derive(Debug)]
pub(super) enum Piece {
    /// A change of this part of the server's memory.
    Write(usize, Write),
    /// A call of an update function for parts, of which the first is the variable's.
    Call(CallPiece),
}

/// A call of an update function, for a shard.
#[derive(Debug)]
pub(super) struct CallPiece {
    pub(super) function: usize,
    /// The part of the variable, and those of its slots.
    pub(super) parts: Vec<usize>,
    /// The rows in the shard, in order and each once; `None` for all.
    pub(super) rows: Option<Vec<usize>>,
    pub(super) gradient: Tensor,
}

/// The server's shard of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartSpec {
    pub(super) dtype: DType,
    /// The shape, whose first axis has the rows; `[]` of a scalar.
    pub(super) shape: Vec<usize>,
}

impl Effect {
    pub(super) fn all(variable: &Arc<Layout>, update: Update, value: &Tensor) -> Effect {
        Effect::Write(variable.clone(), Write { update, rows: None, values: value.clone() })
    }

    pub(super) fn rows(variable: &Arc<Layout>, update: Update, rows: Vec<usize>, slices: &IndexedSlices) -> Effect {
        Effect::Write(variable.clone(), Write { update, rows: Some(rows), values: slices.values().clone() })
    }

    /// Writes each shard's piece to the writer of its server.
    ///
    /// # Errors
    /// None for tensors in host memory.
    pub(super) fn split(&self, servers: &mut [NestWriter]) -> Result<()> {
        let (layout, rows, values) = match self {
            Effect::Write(layout, write) => (layout, &write.rows, &write.values),
            Effect::Call(call) => (&call.variables[0], &call.rows, &call.gradient),
        };
        let mut of_shard = vec![Vec::new(); layout.shards.len()];
        rows.iter().flatten().enumerate().for_each(|(place, &row)| of_shard[layout.shard_of(row)].push(place));
        for (number, (shard, places)) in layout.shards.iter().zip(of_shard).enumerate() {
            let (within, values) = match rows {
                None if layout.shape.is_empty() => (None, values.clone()),
                None => (None, values.rows(shard.rows.clone())?),
                Some(_) if places.is_empty() => continue,
                Some(rows) => {
                    let within: Vec<usize> = places.iter().map(|&place| rows[place] - shard.rows.start).collect();
                    let values = if places.len() == rows.len() { values.clone() } else { picked(values, &places)? };
                    (Some(within), values)
                }
            };
            let to = &mut servers[shard.server];
            match self {
                Effect::Write(_, write) => {
                    to.number(match write.update {
                        Update::Assign => 0,
                        Update::AssignAdd => 1,
                        Update::AssignSub => 2,
                    });
                    to.number(shard.part as u64);
                }
                Effect::Call(call) => {
                    to.number(3);
                    to.number(call.function as u64);
                    let parts: Vec<usize> = call.variables.iter().map(|of| of.shards[number].part).collect();
                    to.numbers(&parts);
                }
            }
            to.number(u64::from(within.is_some()));
            if let Some(within) = within {
                to.numbers(&within);
            }
            to.tensor(&values)?;
        }
        Ok(())
    }
}

impl Write {
    pub(super) fn assign(rows: Option<Vec<usize>>, values: Tensor) -> Write {
        Write { update: Update::Assign, rows, values }
    }

    /// Changes rows that were read before this change, as they are after it. They have `count`
    /// elements each.
    ///
    /// # Errors
    /// None for tensors in host memory.
    pub(super) fn show(&self, asked: Asked<'_>, count: usize, read: &mut HostMemory) -> Result<()> {
        let (mut read, values) = (read.as_buf_mut(), self.values.host()?);
        let mut each = |at: usize, from: usize| update_row(self.update, (at, from, count), values, &mut read);
        match (&self.rows, asked) {
            (_, Asked::All) => self.apply(count, read),
            (None, Asked::Rows(rows)) => rows.iter().enumerate().for_each(|(place, &row)| each(place, row)),
            (Some(changed), Asked::Rows(rows)) => {
                let mut places: Vec<(usize, usize)> = changed.iter().copied().zip(0..).collect();
                places.sort_unstable();
                for (at, &row) in rows.iter().enumerate() {
                    let start = places.partition_point(|&(changed, _)| changed < row);
                    let of_row = places[start..].iter().take_while(|&&(changed, _)| changed == row);
                    of_row.for_each(|&(_, place)| each(at, place));
                }
            }
        }
        Ok(())
    }

    /// Changes a shard, or a whole variable, of rows of `count` elements each.
    pub(super) fn apply(&self, count: usize, mut shard: HostBufMut<'_>) {
        let values = self.values.host().expect("made of bytes, or checked");
        match &self.rows {
            None => self.update.apply_to(&mut shard, values),
            Some(rows) => {
                for (place, &at) in rows.iter().enumerate() {
                    update_row(self.update, (at, place, count), values, &mut shard);
                }
            }
        }
    }
}

impl Piece {
    /// Reads a piece for the parts of a server. `slots` has the number of slots of each update
    /// function.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if it does not fit.
    pub(super) fn read(from: &mut NestReader<'_>, parts: &[PartSpec], slots: &[usize]) -> Result<Piece> {
        let (update, function) = match from.number()? {
            0 => (Update::Assign, None),
            1 => (Update::AssignAdd, None),
            2 => (Update::AssignSub, None),
            3 => (Update::AssignAdd, Some(from.count()?)),
            _ => return Err(malformed("there is no such update")),
        };
        let of_piece = match function {
            None => vec![from.count()?],
            Some(_) => from.numbers_below(parts.len())?,
        };
        let spec = of_piece.first().and_then(|&part| parts.get(part));
        let spec = spec.ok_or_else(|| malformed("there is no such shard"))?;
        if let Some(function) = function {
            let count = slots.get(function).ok_or_else(|| malformed("there is no such update function"))?;
            if of_piece.len() != count + 1 || of_piece.iter().any(|&part| parts[part].rows() != spec.rows()) {
                return Err(malformed("the slots are not those of the shard"));
            }
        }
        let rows = if from.flag()? { Some(from.numbers_below(spec.rows())?) } else { None };
        if function.is_some() && rows.as_ref().is_some_and(|rows| !rows.is_sorted_by(|row, next| row < next)) {
            return Err(malformed("a row has several gradients"));
        }
        let values = from.tensor()?;
        if (values.dtype(), values.shape()) != (spec.dtype, &spec.shape_of(rows.as_deref())[..]) {
            return Err(malformed("the values are not those of the rows"));
        }
        if update != Update::Assign && spec.dtype == DType::Bool {
            return Err(malformed("truth values are not added"));
        }
        Ok(match function {
            None => Piece::Write(of_piece[0], Write { update, rows, values }),
            Some(function) => Piece::Call(CallPiece { function, parts: of_piece, rows, gradient: values }),
        })
    }
}

impl PartSpec {
    pub(super) fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Returns the elements of a row.
    pub(super) fn row(&self) -> usize {
        self.shape.get(1..).unwrap_or_default().iter().product()
    }

    pub(super) fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the shape of these rows; of the shard for `None`.
    pub(super) fn shape_of(&self, rows: Option<&[usize]>) -> Vec<usize> {
        match rows {
            None => self.shape.clone(),
            Some(rows) => [&[rows.len()], self.shape.get(1..).unwrap_or_default()].concat(),
        }
    }
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
