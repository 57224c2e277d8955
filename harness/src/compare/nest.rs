//! Collectives on nests of tensors against the spec's tensors and sparse rows.

mod outcome;
mod tree;

pub(super) use outcome::{Outcome, outcomes};
pub(super) use tree::{Tree, trees};

use super::{Verdict, script::DEADLINE};
use crate::{
    cases::{AxisCase, Carrier, NestCall, NestCase, Then},
    subjects::Replicas,
};
use consonance::{
    Axes, CommunicationOptions, Destinations, Device, Error, Mirrored, PerReplica, ReplicaContext, Result, Strategy,
};

/// Judges a call on nests: what each replica gets, or that it fails where the spec has no result.
///
/// # Errors
/// What differs from the spec.
pub fn nest(replicas: Replicas, case: &NestCase) -> Verdict {
    let Some(strategy) = (replicas.make)(case.size, options(case)) else { return Ok(()) };
    let found = carry_out(&strategy, case).and_then(|trees| then(case.then, trees));
    match (found, outcomes(case)) {
        (Ok(found), Ok(expected)) => equal(case, &found, &expected),
        (Err(Error::InvalidCall { .. }), Err(_)) => Ok(()),
        (Err(Error::Replica { source, .. }), Err(_)) if case.carrier == Carrier::Merge => match *source {
            Error::InvalidCall { .. } | Error::Other(_) => Ok(()),
            error => Err(format!("another error than an invalid call: {error}")),
        },
        (Ok(_), Err(error)) => Err(format!("succeeded, but the spec has no result: {error}")),
        (Err(error), expected) => {
            Err(format!("failed: {error}; expected {}", if expected.is_ok() { "a result" } else { "an invalid call" }))
        }
    }
}

/// Judges a reduction along axes.
///
/// # Errors
/// What differs from the spec.
pub fn axes(replicas: Replicas, case: &AxisCase) -> Verdict {
    nest(replicas, &case.0)
}

/// The options of a case.
pub(super) fn options(case: &NestCase) -> CommunicationOptions {
    let options = CommunicationOptions::new().bytes_per_pack(case.bytes_per_pack).implementation(case.implementation);
    options.timeout(DEADLINE).expect("a deadline that is not zero")
}

/// Every replica's result, or the one that is for all.
pub(super) fn carry_out(strategy: &Strategy, case: &NestCase) -> Result<Vec<Tree>> {
    let values = PerReplica::new(trees(case));
    match case.carrier {
        Carrier::Replica => {
            let results = strategy.run_with(values, |replica, value| call(replica, &case.call, options(case), value));
            results.map(PerReplica::into_values)
        }
        Carrier::Overlap => {
            strategy.run_with(values, |replica, value| overlap(replica, case, value)).map(PerReplica::into_values)
        }
        Carrier::Strategy => cross_call(strategy, &case.call, &values).map(|result| vec![result]),
        Carrier::Batch => batch(strategy, case, values).map(|result| vec![result]),
        Carrier::Merge => {
            let merge = |strategy: &Strategy, all: PerReplica<Tree>| {
                cross_call(strategy, &case.call, &all).map(|result| strategy.mirror(result))
            };
            strategy.run_with(values, |replica, value| replica.merge_call(value, merge)).map(PerReplica::into_values)
        }
    }
}

/// Results with what is asked of their sparse rows.
fn then(then: Then, trees: Vec<Tree>) -> Result<Vec<Tree>> {
    trees
        .into_iter()
        .map(|tree| {
            tree.map_rows(&|slices| match then {
                Then::Keep => Ok(Tree::Sparse(slices)),
                Then::Dedupe => slices.dedupe().map(Tree::Sparse),
                Then::Densify => slices.to_dense().map(Tree::Dense),
            })
        })
        .collect()
}

/// The call, on a replica.
pub(super) fn call(
    replica: &ReplicaContext<'_>,
    call: &NestCall,
    options: CommunicationOptions,
    value: Tree,
) -> Result<Tree> {
    match call {
        NestCall::Reduce(op, _) => replica.all_reduce_with(*op, value, options),
        NestCall::Gather(axis) => replica.all_gather_with(value, *axis, options),
        NestCall::ReduceScatter(op) => replica.reduce_scatter(*op, value),
        NestCall::Broadcast(root) => replica.broadcast(value, *root),
    }
}

/// The entries of a list one after the other; of any other nest the whole. Replicas carry it out in different ways.
fn overlap(replica: &ReplicaContext<'_>, case: &NestCase, value: Tree) -> Result<Tree> {
    let NestCall::Reduce(op, _) = &case.call else { unreachable!("replicas reduce") };
    let carriers = replica.replica_id_in_sync_group().is_multiple_of(2);
    replica.overlap_with(options(case).carriers(carriers), |buckets| match value {
        Tree::List(items) => {
            let pending = items.into_iter().map(|item| buckets.all_reduce(*op, item)).collect::<Result<Vec<_>>>()?;
            pending.into_iter().map(|item| item.wait()).collect::<Result<_>>().map(Tree::List)
        }
        value => buckets.all_reduce(*op, value)?.wait(),
    })
}

/// The entries of a list as a batch; of any other nest the whole.
fn batch(strategy: &Strategy, case: &NestCase, values: PerReplica<Tree>) -> Result<Tree> {
    let NestCall::Reduce(op, _) = &case.call else { unreachable!("a batch is reduced") };
    let parts = |tree: &Tree| match tree {
        Tree::List(items) => items.clone(),
        tree => vec![tree.clone()],
    };
    let parts: Vec<Vec<Tree>> = values.iter().map(parts).collect();
    let pairs = (0..parts[0].len()).map(|place| {
        let value = PerReplica::new(parts.iter().map(|own| own[place].clone()).collect());
        (value, if place % 2 == 0 { Destinations::Replicas } else { Destinations::Device(Device::Cpu(0)) })
    });
    let mut reduced = strategy.batch_reduce_to(*op, &pairs.collect::<Vec<_>>())?.into_iter().map(Mirrored::into_value);
    match &values[0] {
        Tree::List(_) => Ok(Tree::List(reduced.collect())),
        _ => Ok(reduced.next().expect("a result for the only value")),
    }
}

fn cross_call(strategy: &Strategy, call: &NestCall, values: &PerReplica<Tree>) -> Result<Tree> {
    match call {
        NestCall::Reduce(op, axes) if axes.is_empty() => strategy.reduce(*op, values, None),
        NestCall::Reduce(op, axes) => strategy.reduce(*op, values, Axes::from(axes.as_slice())),
        NestCall::Gather(axis) => strategy.gather(values, *axis),
        NestCall::ReduceScatter(_) | NestCall::Broadcast(_) => unreachable!("calls of replicas alone"),
    }
}

/// Whether each result has the structure of the argument, and the leaves that the spec says; `expected` is by leaf, then by replica.
pub(super) fn equal(case: &NestCase, found: &[Tree], expected: &[Vec<Outcome>]) -> Verdict {
    for (replica, tree) in found.iter().enumerate() {
        let structure = tree.structure();
        if let Some(path) = case.nest.mismatch(&structure) {
            return Err(format!("replica {replica}: structure differs at {path}"));
        }
        for (place, (found, expected)) in structure.flatten().1.iter().zip(expected).enumerate() {
            let expected = &expected[replica];
            if found != expected {
                return Err(format!("replica {replica}, leaf {place}: found {found:?}\nexpected {expected:?}"));
            }
        }
    }
    Ok(())
}
