//! The calls of `reduce` and `gather` on the engines of this process's replicas. With several
//! workers every worker makes the call. The canonical order is over the replicas of all workers, so
//! results are bit for bit those of one process.

use crate::{
    Axes, Axis, Communicator, Error, ReduceOp, Result, Strategy, Tensor,
    comm::engine::AllRanks,
    replica::{exact, host_copies::on_host, nest_call::NestCall, packed_sums::PackedSums},
    value::{
        contract,
        nest::{Leaf, Value},
    },
};
use consonance_spec::{
    Kind, partition,
    static_shapes::{GATHERED_SHAPE, REDUCED_SHAPE, Rule},
};
use std::ops::Range;

/// A reduction of nests.
pub(super) struct Reduction<'a> {
    pub(super) call: &'static str,
    pub(super) kind: Kind,
    pub(super) op: ReduceOp,
    pub(super) axes: &'a Axes,
    /// The grains; `None` if each replica contributes one value.
    pub(super) grains: Option<Dealt<'a>>,
    /// Words after the error of values that differ.
    pub(super) hint: &'a str,
}

/// Grains as they were dealt when a call was made.
#[derive(Clone, Copy)]
pub(super) struct Dealt<'a> {
    /// The number of grains of all replicas.
    pub(super) of: usize,
    /// The grains of each replica of this process.
    pub(super) runs: &'a [Range<usize>],
}

impl Strategy {
    /// Reduces over the contributions of all workers. `values` are the leaves of those of this
    /// process.
    pub(super) fn reduce_leaves(&self, reduction: &Reduction<'_>, values: &[Vec<Leaf>]) -> Result<Vec<Leaf>> {
        let &Reduction { call, kind, op, axes, grains, hint } = reduction;
        let runs = grains.map_or(&[][..], |dealt| dealt.runs);
        let owner = |grain| runs.iter().position(|run| run.contains(&grain)).unwrap_or(grain);
        let at_once = || {
            let done = self.check_shapes(call, REDUCED_SHAPE, values);
            let done = done.and_then(|()| self.all_ranks(call, values, |all| all.reduce(op, axes)));
            done.map_err(|error| error.of_contribution(owner))
        };
        // A call that waits for a reform is made with the new numbers of the replicas.
        let on_engine = |communicator: &mut Communicator| {
            let (rank, size, place) = (communicator.rank(), communicator.size(), self.place(communicator));
            let Some(Dealt { of, runs }) = grains else {
                return self.reduce_on_engine(reduction, communicator, &values[place..=place]);
            };
            let (own, now) = (&runs[place], partition::block(of, size, rank));
            if now != *own {
                let expected = format!("grains {now:?}, dealt anew after a reform");
                let error = Error::invalid(call, "value", expected, format!("grains {own:?}"));
                return or_refuse(kind, communicator, Err(error.of_replica(rank)));
            }
            let first = runs[0].start;
            self.reduce_on_engine(reduction, communicator, &values[own.start - first..own.end - first])
        };
        let reduced = self.combine(call, REDUCED_SHAPE, at_once, on_engine);
        let hint = if self.contract().is_some() { "" } else { hint };
        reduced.map_err(|error| hinted(error, hint))
    }

    /// Reduces the contributions of a replica, at least one, with those of all other replicas.
    fn reduce_on_engine(
        &self,
        reduction: &Reduction<'_>,
        communicator: &mut Communicator,
        own: &[Vec<Leaf>],
    ) -> Result<Vec<Leaf>> {
        let &Reduction { call, kind, op, axes, grains, .. } = reduction;
        let (rank, size, limit) = (communicator.rank(), communicator.size(), self.options().pack_limit());
        let of = grains.map_or(size, |dealt| dealt.of);
        let is_on_host = grains.is_some() || *axes != Axes::default();
        let mut origin = None;
        let prepared = own.iter().map(|leaves| {
            let mut leaves = leaves.clone();
            if is_on_host {
                origin = Some(on_host(&mut leaves)?);
            }
            prepare(call, op, &leaves, axes, rank)
        });
        let prepared = prepared.collect::<Result<Vec<_>>>();
        let (prepared, removed): (Vec<_>, Vec<_>) = or_refuse(kind, communicator, prepared)?.into_iter().unzip();
        let (mut prepared, removed) = (prepared, removed.into_iter().next().unwrap_or_default());
        let mut sums = None;
        if of > size && !removed.iter().any(|removed| removed.contains(&true)) {
            let place = (op, partition::block(of, size, rank), of);
            let made = PackedSums::new(call, communicator, place, &prepared[0], limit);
            sums = Some(or_refuse(kind, communicator, made)?);
        }
        let mut session = NestCall::new(kind, &mut *communicator, &own[0], axes.clone(), self.contract());
        if grains.is_some() {
            session = session.with_contributions(of, None);
        }
        let mut last = prepared.pop().expect("each replica has a contribution");
        if let Some(mut sums) = sums {
            prepared.iter().try_for_each(|leaves| sums.add(leaves))?;
            sums.all_reduce(&mut session, &mut last)?;
        } else if *axes == Axes::default() || last.is_empty() {
            session.all_reduce_leaves(op, &mut last, limit)?;
        } else {
            for (place, removed) in removed.iter().enumerate() {
                if removed.contains(&true) {
                    let leaves = prepared.iter().map(|leaves| &leaves[place]).chain([&last[place]]);
                    let tensors: Vec<&Tensor> = leaves.filter_map(Leaf::as_dense).collect();
                    last[place].value = Value::Dense(session.all_reduce_along(op, &tensors, removed)?);
                } else {
                    session.all_reduce(op, last[place].dense(call)?)?;
                }
            }
        }
        drop(session);
        origin.map_or(Ok(()), |origin| origin.take_back(communicator, &mut last)).map(|()| last)
    }

    /// Reduces exactly over the replicas of all workers. `values` are the leaves of those of this
    /// process.
    pub(super) fn reduce_leaves_exactly(
        &self,
        kind: Kind,
        op: ReduceOp,
        values: &[Vec<Leaf>],
        axes: &Axes,
        hint: &str,
    ) -> Result<Vec<Leaf>> {
        let call = kind.name();
        let at_once = || {
            self.check_shapes(call, REDUCED_SHAPE, values)?;
            self.all_ranks(call, values, |all| all.reduce_exact(op, axes))
        };
        let on_engine = |communicator: &mut Communicator| {
            let id = communicator.rank();
            let mut leaves = values[self.place(communicator)].clone();
            let copied = on_host(&mut leaves);
            let checked = copied.and_then(|origin| exact::check_leaves(call, op, &leaves, axes).map(|_| origin));
            let origin = or_refuse(kind, communicator, checked.map_err(|error| error.of_replica(id)))?;
            let mut session = NestCall::new(kind, &mut *communicator, &leaves, axes.clone(), self.contract());
            session.all_reduce_exact(call, op, &mut leaves, axes)?;
            drop(session);
            origin.take_back(communicator, &mut leaves).map(|()| leaves)
        };
        let reduced = self.combine(call, REDUCED_SHAPE, at_once, on_engine);
        let hint = if self.contract().is_some() { "" } else { hint };
        reduced.map_err(|error| hinted(error, hint))
    }

    /// Gathers over the replicas of all workers. `values` are the leaves of those of this process.
    pub(super) fn gather_leaves(&self, kind: Kind, values: &[Vec<Leaf>], axis: Axis) -> Result<Vec<Leaf>> {
        let call = kind.name();
        let at_once = || {
            self.check_shapes(call, GATHERED_SHAPE, values)?;
            self.all_ranks(call, values, |all| all.gather(axis))
        };
        let on_engine = |communicator: &mut Communicator| {
            let mut leaves = values[self.place(communicator)].clone();
            let checked = self.check_gathered(call, communicator.rank(), &leaves);
            let axes = checked.and_then(|()| leaves.iter().map(|leaf| leaf.gather_axis(call, axis)).collect());
            let axes: Vec<usize> = or_refuse(kind, communicator, axes)?;
            let mut session = NestCall::new(kind, communicator, &leaves, Axes::from(axis), self.contract());
            session.all_gather_leaves(&mut leaves, &axes)?;
            Ok(leaves)
        };
        self.combine(call, GATHERED_SHAPE, at_once, on_engine)
    }

    /// Combines what the replicas have: at once if one thread can do it for all, else each on a
    /// thread of its own. With static shapes the values obey the rule `shapes`.
    fn combine(
        &self,
        call: &'static str,
        shapes: Rule,
        at_once: impl FnOnce() -> Result<Vec<Leaf>>,
        on_engine: impl Fn(&mut Communicator) -> Result<Vec<Leaf>> + Sync,
    ) -> Result<Vec<Leaf>> {
        if self.shares_memory() {
            return at_once();
        }
        let combined = self.on_engines(call, |communicator| communicator.complete(&on_engine));
        let combined = match self.contract() {
            None => combined?,
            Some(contract) => combined.map_err(|error| contract.by_rule(shapes, error))?,
        };
        // All replicas have the same result.
        Ok(combined.into_iter().next().expect("a process has replicas"))
    }

    /// Returns the place of the replica with this communicator among those of this process.
    fn place(&self, communicator: &Communicator) -> usize {
        communicator.rank() - self.local_replicas().start
    }

    /// Combines the leaves of all ranks on threads of this process.
    fn all_ranks(
        &self,
        call: &'static str,
        values: &[Vec<Leaf>],
        combine: impl FnOnce(AllRanks<'_>) -> Result<Vec<Leaf>>,
    ) -> Result<Vec<Leaf>> {
        combine(AllRanks { call, values, on_threads: &|threads, work| self.on_threads(threads, work) })
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

/// Returns the leaves of replica `id` in the form that is reduced, and which axes of each are
/// removed. Sparse leaves become dense if axes are given.
fn prepare(
    call: &'static str,
    op: ReduceOp,
    leaves: &[Leaf],
    axes: &Axes,
    id: usize,
) -> Result<(Vec<Leaf>, Vec<Vec<bool>>)> {
    let prepared = leaves.iter().map(|leaf| {
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
        Ok((leaf, removed))
    });
    Ok(prepared.collect::<Result<Vec<_>>>()?.into_iter().unzip())
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
