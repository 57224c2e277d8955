//! Collectives on slices against the spec's flat ones.

mod part;

pub(crate) use part::{Part, given, parts};

use super::{Verdict, message};
use crate::{
    cases::Script,
    subjects::{Group, Rank},
};
use consonance::{Communicator, Error, Pending};
use std::{thread, time::Duration};

/// How long a rank waits for another. No case ought to come to it, however busy the machine.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);

/// Judges a script: what each call leaves in each rank's buffers, and that calls that cannot be right fail on every rank and
/// leave the group working.
///
/// # Errors
/// What differs from the spec.
pub fn script(group: Group, script: &Script) -> Verdict {
    let mut by_rank: Vec<Vec<Box<dyn Part>>> = (0..script.size).map(|_| Vec::new()).collect();
    for call in &script.calls {
        by_rank.iter_mut().zip(parts(call, script.size)).for_each(|(calls, part)| calls.push(part));
    }
    let ranks = (group.make)(script.size);
    on_ranks(ranks.into_iter().zip(by_rank), |(mut rank, mut calls): (Rank, Vec<Box<dyn Part>>)| {
        let communicator = &mut rank.communicator;
        communicator.set_implementation(script.implementation);
        communicator.set_timeout(DEADLINE).expect("a timeout that ends");
        let results = if script.asynchronous {
            start_all(communicator, &mut calls)?
        } else {
            calls.iter_mut().map(|call| call.make(communicator)).collect()
        };
        for (number, (call, result)) in calls.iter().zip(results).enumerate() {
            call.judge(result).map_err(|wrong| format!("rank {}, call {number}: {wrong}", rank.communicator.rank()))?;
        }
        Ok(rank)
    })
    .map(drop)
}

/// Starts all calls in one scope and gives the result of each.
pub(crate) fn start_all(
    communicator: &mut Communicator,
    calls: &mut [Box<dyn Part>],
) -> Result<Vec<Result<(), Error>>, String> {
    let results = communicator.scope(|scope| {
        let pending = calls.iter_mut().map(|call| call.start(scope)).collect::<Result<Vec<_>, Error>>()?;
        Ok(pending.into_iter().map(|pending| pending.map_or(Ok(()), Pending::wait)).collect())
    });
    results.map_err(|error| format!("the scope: {error}"))
}

/// Runs `body` on a thread for each rank; gives their results in rank order, or the first that is wrong.
pub(super) fn on_ranks<A: Send, R: Send>(
    ranks: impl Iterator<Item = A>,
    body: impl Fn(A) -> Result<R, String> + Sync,
) -> Result<Vec<R>, String> {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || body(rank))).collect();
        // Every thread is waited for, so that no rank gives up its communicator while another is judged.
        let results: Vec<Result<R, String>> =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| Err(message(&*panic)))).collect();
        results.into_iter().collect()
    })
}
