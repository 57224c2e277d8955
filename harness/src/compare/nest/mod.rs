//! Compares collectives on nests of tensors with the spec's tensors and sparse rows.

mod outcome;
mod tree;

pub(super) use outcome::{Outcome, outcomes};
pub(super) use tree::Tree;

use super::{Verdict, pool, script::DEADLINE};
use crate::{
    cases::{AxisCase, Caller, NestCall, NestCase, Then},
    subjects::{Replicas, Settings},
};
use consonance::{
    Axes, CommunicationOptions, Destinations, Device, Error, Grains, Mirrored, PerReplica, ReplicaContext, Result,
    Strategy,
};
use consonance_spec::{collective as spec, partition};

/// Judges a call on nests: each replica's result, or that the call fails if the spec has no result.
///
/// # Errors
/// The difference from the spec.
pub fn nest(replicas: Replicas, case: &NestCase) -> Verdict {
    let work = |strategy: &Strategy| {
        let found = carry_out(strategy, case).and_then(|trees| then(case.then, trees));
        (strategy.local_replicas().start, found)
    };
    pool::on_workers(replicas, case.size, settings(case), work, |found| match outcomes(case) {
        Ok(expected) => found.into_iter().try_for_each(|(first, found)| match found {
            Ok(found) => equal(case, first, &found, &expected),
            Err(error) => Err(format!("failed: {error}; expected a result")),
        }),
        Err(error) => refused(case, &error, found.into_iter().map(|(_, found)| found)),
    })
}

/// Checks that a call without a result in the spec, for the reason `why`, failed on each worker.
fn refused(case: &NestCase, why: &spec::Error, found: impl Iterator<Item = Result<Vec<Tree>>>) -> Verdict {
    let mut invalid = 0;
    for found in found {
        let Err(error) = found else { return Err(format!("succeeded, but the spec has no result: {why}")) };
        match &error {
            Error::InvalidCall { .. } => invalid += 1,
            Error::Replica { source, .. } if case.caller == Caller::Merge => match **source {
                Error::InvalidCall { .. } | Error::Other(_) => invalid += 1,
                _ => return Err(format!("another error than an invalid call: {error}")),
            },
            // The call is invalid on another worker.
            Error::Mismatch { .. } | Error::Aborted { .. } => {}
            _ => return Err(format!("failed: {error}; expected an invalid call")),
        }
    }
    if invalid == 0 { Err("no worker made an invalid call".to_owned()) } else { Ok(()) }
}

/// Judges a reduction along axes.
///
/// # Errors
/// The difference from the spec.
pub fn axes(replicas: Replicas, case: &AxisCase) -> Verdict {
    nest(replicas, &case.0)
}

/// Returns the options of a case.
pub(super) fn options(case: &NestCase) -> CommunicationOptions {
    let options = CommunicationOptions::new().bytes_per_pack(case.bytes_per_pack).implementation(case.implementation);
    options.timeout(DEADLINE).expect("a deadline that is not zero")
}

/// Returns the settings of the strategy that executes a case. If the calls themselves pass the
/// case's options, those here are only the deadline, so that cases share the strategy.
pub(super) fn settings(case: &NestCase) -> Settings {
    let passes_options = match (case.caller, &case.call) {
        // Reductions of grains take no options.
        (Caller::Replica, NestCall::Reduce(..)) => case.grains.is_none(),
        (Caller::Overlap, _) | (Caller::Replica, NestCall::Gather(_)) => true,
        (Caller::Replica, NestCall::ReduceScatter(_) | NestCall::Broadcast(_))
        | (Caller::Strategy | Caller::Merge | Caller::Batch, _) => false,
    };
    let options = match passes_options {
        true => CommunicationOptions::new().timeout(DEADLINE).expect("a deadline that is not zero"),
        false => options(case),
    };
    Settings { options, grains: case.grains }
}

/// Executes the case. Returns the result of every replica of this worker, or the one result for all
/// replicas.
pub(super) fn carry_out(strategy: &Strategy, case: &NestCase) -> Result<Vec<Tree>> {
    let own = own(strategy, case);
    if case.caller == Caller::Replica {
        return strategy.run_with(own, |replica, own| call(replica, case, own)).map(PerReplica::into_values);
    }
    if let (Caller::Strategy, NestCall::Reduce(op, axes), Some(_)) = (case.caller, &case.call, case.grains) {
        let reduced = match axes.is_empty() {
            true => strategy.reduce_grains(*op, &own, None),
            false => strategy.reduce_grains(*op, &own, Axes::from(axes.as_slice())),
        };
        return reduced.map(|result| vec![result]);
    }
    let values = PerReplica::new(own.into_values().into_iter().flat_map(Grains::into_values).collect());
    match case.caller {
        Caller::Replica => unreachable!("done above"),
        Caller::Overlap => {
            strategy.run_with(values, |replica, value| overlap(replica, case, value)).map(PerReplica::into_values)
        }
        Caller::Strategy => cross_call(strategy, &case.call, &values).map(|result| vec![result]),
        Caller::Batch => batch(strategy, case, values).map(|result| vec![result]),
        Caller::Merge => {
            let merge = |strategy: &Strategy, all: PerReplica<Tree>| {
                cross_call(strategy, &case.call, &all).map(|result| strategy.mirror(result))
            };
            strategy.run_with(values, |replica, value| replica.merge_call(value, merge)).map(PerReplica::into_values)
        }
    }
}

/// Returns the values of the grains of each replica of this worker. Without grains each replica has
/// one value.
pub(super) fn own(strategy: &Strategy, case: &NestCase) -> PerReplica<Grains<Tree>> {
    PerReplica::new(strategy.local_replicas().map(|replica| own_of(replica, case)).collect())
}

/// Returns the values of the grains of one replica.
pub(super) fn own_of(replica: usize, case: &NestCase) -> Grains<Tree> {
    let run = partition::block(case.contributions(), case.size, replica);
    Grains::new(run.start, tree::trees(case, run))
}

/// Applies `then` to the sparse rows of the results.
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

/// Makes the call on a replica, with the values of its grains.
pub(super) fn call(replica: &ReplicaContext<'_>, case: &NestCase, own: Grains<Tree>) -> Result<Tree> {
    if let (NestCall::Reduce(op, _), Some(_)) = (&case.call, case.grains) {
        return replica.all_reduce_grains(*op, own);
    }
    let value = own.into_values().pop().expect("a value of each replica");
    match &case.call {
        NestCall::Reduce(op, _) => replica.all_reduce_with(*op, value, options(case)),
        NestCall::Gather(axis) => replica.all_gather_with(value, *axis, options(case)),
        NestCall::ReduceScatter(op) => replica.reduce_scatter(*op, value),
        NestCall::Broadcast(root) => replica.broadcast(value, *root),
    }
}

/// Reduces the entries of a list one after the other, or any other nest as a whole. Only replicas
/// with an even id use communication threads.
fn overlap(replica: &ReplicaContext<'_>, case: &NestCase, value: Tree) -> Result<Tree> {
    let NestCall::Reduce(op, _) = &case.call else { unreachable!("replicas reduce") };
    let background_threads = replica.replica_id_in_sync_group().is_multiple_of(2);
    replica.overlap_with(options(case).background_threads(background_threads), |buckets| match value {
        Tree::List(items) => {
            let pending = items.into_iter().map(|item| buckets.all_reduce(*op, item)).collect::<Result<Vec<_>>>()?;
            pending.into_iter().map(|item| item.wait()).collect::<Result<_>>().map(Tree::List)
        }
        value => buckets.all_reduce(*op, value)?.wait(),
    })
}

/// Reduces the entries of a list as a batch, or any other nest as a whole.
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

/// Checks that each result has the structure of the argument, and the leaves that the spec gives.
/// `expected` is indexed by leaf, then by replica. The first result belongs to replica `first`.
pub(super) fn equal(case: &NestCase, first: usize, found: &[Tree], expected: &[Vec<Outcome>]) -> Verdict {
    for (replica, tree) in (first..).zip(found) {
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
