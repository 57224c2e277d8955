//! Cross-replica calls with several workers. Every worker makes the call, and one thread per
//! replica takes part in a collective of all replicas. The canonical order is over the replicas of
//! all workers, so results are bit for bit those of one process.

use crate::{
    Axes, Axis, Communicator, Error, Nest, PerReplica, ReduceOp, Result, Strategy, Tensor,
    comm::{agreement::Agreement, call::Call},
    replica::nest_call::NestCall,
    value::nest::{self, Leaf, Value},
};
use consonance_kernels::digest::digest;
use consonance_spec::Kind;
use std::{iter, sync::Mutex};

impl Strategy {
    /// Reduces over the replicas of all workers. Returns `None` with one worker.
    pub(super) fn reduce_across<N: Nest + Clone>(
        &self,
        call: &'static str,
        kind: Kind,
        op: ReduceOp,
        value: &PerReplica<N>,
        axes: &Axes,
        hint: &str,
    ) -> Option<Result<N>> {
        let limit = self.options().pack_limit();
        let none = *axes == Axes::default();
        self.combine_across(call, kind, value, hint, |communicator, leaves| {
            let id = communicator.rank();
            let prepared = leaves.iter().map(|leaf| prepare(call, op, leaf, axes, id)).collect();
            let (mut prepared, removed): (Vec<Leaf>, Vec<Vec<bool>>) = or_refuse(kind, communicator, prepared)?;
            let mut session = NestCall::new(kind, communicator, &leaves, axes.clone());
            if none || leaves.is_empty() {
                session.all_reduce_leaves(op, &mut prepared, limit)?;
                return Ok(prepared);
            }
            for (leaf, removed) in prepared.iter_mut().zip(removed) {
                let tensor = leaf.dense(call)?;
                if removed.contains(&true) {
                    session.all_reduce_along(op, tensor, &removed)?;
                } else {
                    session.all_reduce(op, tensor)?;
                }
            }
            Ok(prepared)
        })
    }

    /// Gathers over the replicas of all workers. Returns `None` with one worker.
    pub(super) fn gather_across<N: Nest + Clone>(
        &self,
        kind: Kind,
        value: &PerReplica<N>,
        axis: Axis,
    ) -> Option<Result<N>> {
        self.combine_across(kind.name(), kind, value, "", |communicator, mut leaves| {
            let axes = leaves.iter().map(|leaf| leaf.gather_axis(kind.name(), axis)).collect();
            let axes: Vec<usize> = or_refuse(kind, communicator, axes)?;
            let mut session = NestCall::new(kind, communicator, &leaves, Axes::from(axis));
            session.all_gather_leaves(&mut leaves, &axes)?;
            Ok(leaves)
        })
    }

    /// Broadcasts the chief's tensor to all workers, if there are several. They agree on its dtype
    /// and size, and on `argument` (name and value).
    pub(crate) fn chiefs(&self, kind: Kind, argument: (&str, &str), tensor: Tensor) -> Result<Tensor> {
        let sent = self.across(kind.name(), |communicator| {
            let mut own = tensor.clone();
            let describe = || vec![(argument.0.to_owned(), argument.1.to_owned())];
            let agreement = Agreement { call: Some(kind), digest: digest(argument.1), describe: &describe };
            communicator.execute(Call::Broadcast { data: own.buf_mut()?, root: 0 }, &agreement).map(|()| own)
        });
        match sent {
            Some(sent) => Ok(sent?.swap_remove(0)),
            None => Ok(tensor),
        }
    }

    /// Makes the workers agree on `argument` (name and value), if there are several.
    pub(crate) fn agree(&self, kind: Kind, argument: (&str, &str)) -> Result<()> {
        let met = self.across(kind.name(), |communicator| {
            let describe = || vec![(argument.0.to_owned(), argument.1.to_owned())];
            communicator.meet(kind, &Agreement { call: Some(kind), digest: digest(argument.1), describe: &describe })
        });
        met.map_or(Ok(()), |met| met.map(drop))
    }

    fn combine_across<N: Nest + Clone>(
        &self,
        call: &'static str,
        kind: Kind,
        value: &PerReplica<N>,
        hint: &str,
        combine: impl Fn(&mut Communicator, Vec<Leaf>) -> Result<Vec<Leaf>> + Sync,
    ) -> Option<Result<N>> {
        self.workers()?;
        if let Err(error) = self.or_refuse(kind, self.check_count(call, "value", value.values().len())) {
            return Some(Err(error));
        }
        // The rest of the first replica's clone takes the result.
        let mut rest = value[0].clone();
        let others = value.iter().skip(1).map(|value| nest::take(&mut value.clone()));
        let leaves: Vec<_> = iter::once(nest::take(&mut rest)).chain(others).map(Mutex::new).collect();
        let combined = self.across(call, |communicator| {
            let place = communicator.rank() - self.local_replicas().start;
            let leaves = std::mem::take(&mut *leaves[place].lock().expect("nobody panics holding leaves"));
            combine(communicator, leaves)
        })?;
        Some(combined.map_err(|error| hinted(error, hint)).and_then(|mut combined| {
            // All replicas have the same result.
            nest::put(rest, combined.swap_remove(0)).map_err(|error| error.of_call(call))
        }))
    }
}

/// Returns the leaf of replica `id` in the form that is reduced, and which of its axes are removed.
/// A sparse leaf becomes dense if axes are given.
fn prepare(call: &'static str, op: ReduceOp, leaf: &Leaf, axes: &Axes, id: usize) -> Result<(Leaf, Vec<bool>)> {
    let mut leaf = leaf.clone();
    if let Value::Sparse(slices) = &leaf.value
        && *axes != Axes::default()
    {
        leaf.value = Value::Dense(slices.to_dense().map_err(|error| error.of_replica(id))?);
    }
    leaf.check_op(call, op)?;
    let removed = match &leaf.value {
        Value::Dense(tensor) => axes.resolve(call, &leaf.path, tensor.rank())?,
        Value::Sparse(_) => None,
    };
    Ok((leaf, removed.unwrap_or_default()))
}

/// Returns the value. On an error, refuses the call, so that the other replicas in it fail too, and
/// returns the error; if the refusal itself fails, returns that error.
fn or_refuse<T>(kind: Kind, communicator: &mut Communicator, checked: Result<T>) -> Result<T> {
    checked.or_else(|error| communicator.refuse(kind, &error).and(Err(error)))
}

/// Adds a hint to the error if values differ.
fn hinted(error: Error, hint: &str) -> Error {
    match error {
        Error::Mismatch { call, replica, argument, expected, found } if argument.starts_with("value") => {
            Error::Mismatch { call, replica, argument, expected, found: found + hint }
        }
        error => error,
    }
}
