//! Compares collectives on slices with the spec's flat collectives.

mod part;
mod leaves;
mod means;

pub use part::{Part, given};

use super::{Verdict, pool, with_type};
use crate::{
    cases::{Collective, Script},
    sample::Sample,
    subjects::Group,
};
use consonance::{Communicator, Error, Pending};
use consonance_spec::{DType, for_each_dtype};
use std::time::Duration;

/// The time that a rank waits for another. No case should reach it, however busy the machine is.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);

/// Judges a script: the contents of each rank's buffers after each call, and that invalid calls
/// fail on every rank and leave the group working.
///
/// # Errors
/// The difference from the spec.
pub fn script(group: Group, script: &Script) -> Verdict {
    let (_, group) = pool::lend(group, script.size).on_ranks(by_rank(script), |mut rank, mut calls| {
        let communicator = &mut rank.communicator;
        communicator.set_implementation(script.implementation);
        communicator.set_timeout(DEADLINE).expect("a timeout that ends");
        calls.iter_mut().try_for_each(|call| call.place(communicator)).map_err(|error| error.to_string())?;
        let results = if script.asynchronous {
            start_all(communicator, &mut calls)?
        } else {
            calls.iter_mut().map(|call| call.make(communicator)).collect()
        };
        for (number, (call, result)) in calls.iter().zip(results).enumerate() {
            call.judge(result).map_err(|wrong| format!("rank {}, call {number}: {wrong}", rank.communicator.rank()))?;
        }
        Ok(((), Some(rank)))
    })?;
    group.give_back();
    Ok(())
}

/// Returns every rank's parts of the calls of a script.
pub(crate) fn by_rank(script: &Script) -> Vec<Vec<Box<dyn Part>>> {
    let mut by_rank: Vec<Vec<Box<dyn Part>>> = (0..script.size).map(|_| Vec::new()).collect();
    for call in &script.calls {
        by_rank.iter_mut().zip(parts(call, script.size)).for_each(|(calls, part)| calls.push(part));
    }
    by_rank
}

/// Returns every rank's part of `call`.
pub fn parts(call: &Collective, size: usize) -> Vec<Box<dyn Part>> {
    for_each_dtype!(with_type call.dtype, parts_of(call, size);)
}

fn parts_of<T: Sample<Mean: Sample>>(call: &Collective, size: usize) -> Vec<Box<dyn Part>> {
    let has_means = call.is_mean_of_integers() && !call.in_place;
    let Some(runs) = &call.runs else {
        let all = part::contributions::<T>(call, size);
        return match has_means {
            true => means::parts(call, &all, all.iter().map(|own| (own.clone(), None)).collect()),
            false => part::parts_of(call, all),
        };
    };
    let (all, held) = leaves::leaves::<T>(call, runs);
    match has_means {
        true => means::parts(call, &all, held.into_iter().map(|(last, held)| (last, Some(held))).collect()),
        false => leaves::parts(call, &all, held),
    }
}

/// Starts all calls in one scope and returns the result of each.
pub fn start_all(
    communicator: &mut Communicator,
    calls: &mut [Box<dyn Part>],
) -> Result<Vec<Result<(), Error>>, String> {
    let results = communicator.scope(|scope| {
        let started: Vec<_> = calls.iter_mut().map(|call| call.start(scope)).collect();
        Ok(started.into_iter().map(|pending| pending?.map_or(Ok(()), Pending::wait)).collect())
    });
    results.map_err(|error| format!("the scope: {error}"))
}
