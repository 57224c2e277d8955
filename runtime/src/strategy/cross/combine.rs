//! The calls of `reduce` and `gather` on the engines of this process's replicas. With several
//! workers every worker makes the call. The canonical order is over the replicas of all workers, so
//! results are bit for bit those of one process.

use crate::{
    Axes, Axis, Communicator, Error, Nest, PerReplica, ReduceOp, Result, Strategy,
    comm::engine::AllRanks,
    replica::nest_call::NestCall,
    value::{
        contract,
        nest::{self, Leaf, Value},
    },
};
use consonance_spec::{
    Kind,
    static_shapes::{GATHERED_SHAPE, REDUCED_SHAPE, Rule},
};
use std::{iter, sync::Mutex};

impl Strategy {
    /// Reduces over the replicas of all workers.
    pub(super) fn reduce_leaves<N: Nest + Clone>(
        &self,
        call: &'static str,
        kind: Kind,
        op: ReduceOp,
        value: &PerReplica<N>,
        axes: &Axes,
        hint: &str,
    ) -> Result<N> {
        let limit = self.options().pack_limit();
        let none = *axes == Axes::default();
        let at_once = |all: AllRanks<'_>| all.reduce(op, axes);
        let on_engine = |communicator: &mut Communicator, leaves: &mut Vec<Leaf>| {
            let id = communicator.rank();
            let prepared = leaves.iter().map(|leaf| prepare(call, op, leaf, axes, id)).collect();
            let (mut prepared, removed): (Vec<Leaf>, Vec<Vec<bool>>) = or_refuse(kind, communicator, prepared)?;
            let mut session = NestCall::new(kind, communicator, leaves, axes.clone(), self.contract());
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
        };
        let hint = if self.contract().is_some() { "" } else { hint };
        self.combine(call, kind, REDUCED_SHAPE, value, at_once, on_engine).map_err(|error| hinted(error, hint))
    }

    /// Gathers over the replicas of all workers.
    pub(super) fn gather_leaves<N: Nest + Clone>(&self, kind: Kind, value: &PerReplica<N>, axis: Axis) -> Result<N> {
        let on_engine = |communicator: &mut Communicator, leaves: &mut Vec<Leaf>| {
            let checked = self.check_gathered(kind.name(), communicator.rank(), leaves);
            let axes = checked.and_then(|()| leaves.iter().map(|leaf| leaf.gather_axis(kind.name(), axis)).collect());
            let axes: Vec<usize> = or_refuse(kind, communicator, axes)?;
            let mut session = NestCall::new(kind, communicator, leaves, Axes::from(axis), self.contract());
            session.all_gather_leaves(leaves, &axes)?;
            Ok(std::mem::take(leaves))
        };
        self.combine(kind.name(), kind, GATHERED_SHAPE, value, |all| all.gather(axis), on_engine)
    }

    /// Combines the values on the engines of this process's replicas: at once if one thread can do
    /// it for all, else each on a thread of its own. With static shapes the values obey the rule
    /// `shapes`.
    fn combine<N: Nest + Clone>(
        &self,
        call: &'static str,
        kind: Kind,
        shapes: Rule,
        value: &PerReplica<N>,
        at_once: impl FnOnce(AllRanks<'_>) -> Result<Vec<Leaf>>,
        on_engine: impl Fn(&mut Communicator, &mut Vec<Leaf>) -> Result<Vec<Leaf>> + Sync,
    ) -> Result<N> {
        self.or_refuse(kind, self.check_count(call, "value", value.values().len()))?;
        // The rest of the first replica's clone takes the result.
        let mut rest = value[0].clone();
        let others = value.iter().skip(1).map(|value| nest::take(&mut value.clone()));
        let values: Vec<Vec<Leaf>> = iter::once(nest::take(&mut rest)).chain(others).collect();
        let combined = if self.shares_memory() {
            self.check_shapes(call, shapes, &values)?;
            at_once(AllRanks { call, values: &values, on_threads: &|threads, work| self.on_threads(threads, work) })?
        } else {
            let values: Vec<_> = values.into_iter().map(Mutex::new).collect();
            let combined = self.on_engines(call, |communicator| {
                let place = communicator.rank() - self.local_replicas().start;
                let mut leaves = values[place].lock().expect("nobody panics holding leaves");
                communicator.complete(|communicator| on_engine(communicator, &mut leaves))
            });
            let combined = match self.contract() {
                None => combined?,
                Some(contract) => combined.map_err(|error| contract.by_rule(shapes, error))?,
            };
            // All replicas have the same result.
            combined.into_iter().next().expect("a process has replicas")
        };
        nest::put(rest, combined).map_err(|error| error.of_call(call))
    }

    /// Checks the values of all replicas by the rules of static shapes, if the strategy has them.
    fn check_shapes(&self, call: &'static str, shapes: Rule, values: &[Vec<Leaf>]) -> Result<()> {
        if self.contract().is_none() {
            return Ok(());
        }
        if shapes == GATHERED_SHAPE {
            values.iter().enumerate().try_for_each(|(id, leaves)| self.check_gathered(call, id, leaves))?;
        }
        contract::check_equal(call, shapes, 0, values)
    }

    /// Checks the leaves that replica `id` gives to a gather.
    fn check_gathered(&self, call: &'static str, id: usize, leaves: &[Leaf]) -> Result<()> {
        match self.contract() {
            None => Ok(()),
            Some(_) => contract::check_gathered(call, leaves).map_err(|error| error.of_replica(id)),
        }
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
        Value::Dense(tensor) => axes.resolve(call, &leaf.path, tensor.rank())?.unwrap_or_default(),
        Value::Sparse(_) => Vec::new(),
    };
    if let Value::Dense(tensor) = &leaf.value
        && removed.contains(&true)
    {
        // The host reduces along axes.
        tensor.host().map_err(|error| error.of_replica(id))?;
    }
    Ok((leaf, removed))
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
