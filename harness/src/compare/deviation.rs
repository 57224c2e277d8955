//! Judges errors when one rank differs from the others: each rank must get an error at once that
//! names the odd rank, and the next run must work.

use super::{
    Verdict,
    nest::{self, outcomes},
    pool,
    script::{self, DEADLINE, parts},
};
use crate::{
    cases::{Collective, Counts, NestCase, RankDeviation, RankDoes, ReplicaDeviation, ReplicaDoes, Script},
    subjects::{Group, Replicas},
};
use consonance::{Communicator, Error, Implementation, Strategy};
use consonance_kernels::{
    digest::digest_counts,
    group::plan::{Chunking, StepKind, Topology},
};
use consonance_spec::{
    Kind, Signature,
    blame::blame,
    ending::{self, Act, Told},
};
use std::{
    panic,
    sync::{Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};

/// The time that ranks wait for a late rank.
const SHORT: Duration = Duration::from_millis(50);

/// The limit on this time where other ranks are late, too.
const LONG: Duration = Duration::from_secs(5);

/// Judges a call that one rank makes differently, and a call after it that all ranks make equally.
///
/// # Errors
/// A missing or wrong error, or the difference from the spec.
pub fn rank_deviation(group: Group, case: &RankDeviation) -> Verdict {
    rank_deviation_within(group, case, SHORT)
}

/// Judges such a call, in which ranks wait this long for a late rank.
fn rank_deviation_within(group: Group, case: &RankDeviation, short: Duration) -> Verdict {
    let RankDeviation { size, odd, ref call, ref does } = *case;
    let mut first = parts(call, size);
    if let RankDoes::Calls(other, _) = does {
        first[odd] = parts(other, size).swap_remove(odd);
    }
    let leaves = matches!(does, RankDoes::Leaves);
    let others_are_done = Barrier::new(size);
    let calls = first.into_iter().zip(parts(call, size));
    let (told, kept) = pool::lend(group, size).on_ranks(calls, |mut rank, (mut first, mut second)| {
        let communicator = &mut rank.communicator;
        let number = communicator.rank();
        let (is_odd, mut is_told_late) = (number == odd, false);
        communicator
            .set_timeout(if matches!(does, RankDoes::IsLate) { short } else { DEADLINE })
            .expect("a timeout that ends");
        communicator.set_implementation(match does {
            RankDoes::AllReducesOtherwise if is_odd => Implementation::OneShot,
            RankDoes::AllReducesOtherwise => Implementation::TwoShot,
            _ => Implementation::Auto,
        });
        let placed = first.place(communicator).and_then(|()| second.place(communicator));
        placed.map_err(|error| error.to_string())?;
        if leaves && is_odd {
            drop(rank);
            others_are_done.wait();
            return Ok((None, None));
        }
        let result = match does {
            RankDoes::IsLate if is_odd => {
                others_are_done.wait();
                // On an engine of messages, the end of the group is itself a message. A call before
                // its arrival may still succeed.
                let ended = communicator.abort_handle();
                let deadline = Instant::now() + DEADLINE;
                while !ended.is_aborted() && Instant::now() < deadline {
                    thread::sleep(Duration::from_micros(50));
                }
                first.make(communicator)
            }
            _ => first.make(communicator),
        };
        let own = if let (RankDoes::Calls(other, _), true) = (does, is_odd) { other } else { call };
        let result = match result {
            Ok(()) if may_go_on(communicator, own) => {
                // It has the data of the rank that gave them, and is told at its next call, which
                // is made all the same.
                first.judge(Ok(())).map_err(|wrong| format!("rank {number}, which went on: {wrong}"))?;
                let told = second.make(communicator);
                if matches!(told, Err(Error::Mismatch { .. })) {
                    second.judge(Ok(())).map_err(|wrong| format!("rank {number}, which was told: {wrong}"))?;
                }
                is_told_late = true;
                told
            }
            result => result,
        };
        if matches!(does, RankDoes::IsLate) && !is_odd {
            others_are_done.wait();
        }
        if leaves {
            others_are_done.wait();
        }
        if !is_told_late && matches!(result, Err(Error::Mismatch { .. } | Error::InvalidCall { .. })) {
            first.untouched().map_err(|wrong| format!("rank {number}: {wrong}"))?;
            communicator.set_implementation(Implementation::Auto);
            let result = second.make(communicator);
            second.judge(result).map_err(|wrong| format!("rank {number} after the mismatch: {wrong}"))?;
        }
        Ok((Some(result), Some(rank)))
    })?;
    match does {
        RankDoes::Calls(other, argument) => {
            told_of_arguments(case, other, argument, &told)?;
            kept.give_back();
        }
        RankDoes::AllReducesOtherwise => {
            told_of_arguments(case, call, "implementation", &told)?;
            kept.give_back();
        }
        RankDoes::Leaves => told_of_end(case, Act::Leaves, &told)?,
        RankDoes::IsLate => {
            let judged = told_of_end(case, Act::IsLate, &told);
            // On a busy machine another rank may be late, too, and an engine may name that one
            // alone.
            if judged.is_err() && short < LONG && names_another(&told, odd) {
                return rank_deviation_within(group, case, 4 * short);
            }
            judged?;
        }
    }
    let implementation = Implementation::Auto;
    script::script(group, &Script { size, asynchronous: false, implementation, calls: vec![call.clone()] })
}

/// Whether this rank may be told at its next call only what became of `call`.
fn may_go_on(communicator: &Communicator, call: &Collective) -> bool {
    if call.runs.is_some() {
        // Ranks meet when they tell their runs.
        return false;
    }
    let (rank, size) = (communicator.rank(), communicator.size());
    let takes_part = call.kind != Kind::SendRecv || rank == call.root || rank == call.receiver(size);
    let parts = if call.kind == Kind::Scatter { size } else { 1 };
    let (elements, counts) = match &call.counts {
        Counts::Even(count) => (count * parts, None),
        Counts::Ragged(counts) if call.kind == Kind::Scatter => (counts.iter().sum(), Some(&counts[..])),
        Counts::Ragged(counts) => (counts.iter().copied().max().unwrap_or(0), Some(&counts[..])),
        Counts::Pairs(_) => return false,
    };
    let bytes = elements * call.dtype.size();
    let detail = counts.map_or(0, digest_counts);
    let signature = Signature { detail, ..Signature::new(call.kind) };
    let is_message = |topology: Topology| {
        topology.one_way(&signature, counts, bytes, Chunking::one_way(bytes, 1)) == StepKind::Message
    };
    takes_part
        && ending::is_told_late(call.kind, rank == call.root)
        && communicator.topology(None).is_some_and(is_message)
}

/// The result of each rank, if it made the call.
type Results = [Option<Result<(), Error>>];

/// Whether a rank waited for another rank than the odd one until its deadline.
fn names_another(results: &Results, odd: usize) -> bool {
    let is_another = |result: &Result<(), Error>| match result {
        Err(Error::Timeout { missing, .. }) => missing.iter().any(|&(rank, _)| rank != odd),
        _ => false,
    };
    results.iter().flatten().any(is_another)
}

/// Whether every rank that made the call is told what the spec says of a group whose odd rank does
/// this.
fn told_of_end(case: &RankDeviation, act: Act<()>, results: &Results) -> Verdict {
    let RankDeviation { size, odd, .. } = *case;
    let acts: Vec<_> = (0..size).map(|rank| if rank == odd { act.clone() } else { Act::Calls(Some(())) }).collect();
    let (expected, goes_on) = ending::told(&acts);
    let is_told = |result: &Result<(), Error>, expected: &Told| match (result, expected) {
        (Err(Error::Left { replica, .. }), Told::Left(rank)) => replica == rank,
        // On a busy machine other ranks may be late, too.
        (Err(Error::Timeout { missing, .. }), Told::Late(ranks)) => {
            ranks.iter().all(|late| missing.iter().any(|(rank, _)| rank == late))
        }
        (Err(Error::Aborted { .. }), Told::Late(_)) => true,
        _ => false,
    };
    // A rank that was late makes its call in a group that has ended, and is told of that.
    let wrong = (0..size).find(|&rank| match (&results[rank], &expected[rank]) {
        (Some(result), Some(expected)) => !is_told(result, expected),
        (Some(result), None) => goes_on || !matches!(result, Err(Error::Aborted { .. } | Error::Timeout { .. })),
        (None, expected) => expected.is_some(),
    });
    let timed_out = |result: &Result<(), Error>| matches!(result, Err(Error::Timeout { .. }));
    let is_late = expected.iter().flatten().any(|told| matches!(told, Told::Late(_)));
    match wrong {
        Some(rank) => Err(format!("rank {rank} is not told {:?}: {results:?}", expected[rank])),
        None if is_late && !results.iter().flatten().any(timed_out) => Err(format!("nobody timed out: {results:?}")),
        None => Ok(()),
    }
}

/// Whether every rank is told of the odd rank's argument, or, if its call cannot be right by
/// itself, of that.
fn told_of_arguments(case: &RankDeviation, other: &Collective, argument: &str, told: &Results) -> Verdict {
    let RankDeviation { size, odd, ref call, .. } = *case;
    let takes_part = |rank: usize| call.kind != Kind::SendRecv || rank == call.root || rank == call.receiver(size);
    let refused = matches!(told[odd], Some(Err(Error::InvalidCall { .. })));
    let argument = if refused { "the call" } else { argument };
    let members: Vec<usize> = (0..size).filter(|&rank| takes_part(rank)).collect();
    let calls: Vec<_> = members.iter().map(|&rank| (rank != odd || !refused).then_some(rank == odd)).collect();
    let named = gap(case, other).or_else(|| blame(&calls).map(|(named, _)| members[named]));
    for (rank, result) in told.iter().enumerate() {
        let right = match result {
            Some(Ok(())) => !takes_part(rank),
            Some(Err(Error::InvalidCall { .. })) => rank == odd,
            Some(Err(Error::Mismatch { replica, argument: found_argument, .. })) => {
                // A receiver is named together with the sender with which it disagrees.
                let names_both = *found_argument == format!("recv_counts[{odd}]");
                (Some(*replica) == named || names_both) && found_argument.starts_with(argument)
            }
            _ => false,
        };
        if !right {
            return Err(format!(
                "rank {rank} is told {result:?}, expected {argument} of rank {odd} (which called {other:?})"
            ));
        }
    }
    Ok(())
}

/// Returns the rank to name if the ranks agree but for a run of leaves.
fn gap(case: &RankDeviation, other: &Collective) -> Option<usize> {
    let (runs, others) = (case.call.runs.as_ref()?, other.runs.as_ref()?);
    let mut all = runs.clone();
    all.by_rank[case.odd] = others.by_rank[case.odd].clone();
    all.first_gap().filter(|_| runs.of == others.of)
}

/// Judges a run in which one replica differs, and a run afterwards in which none does.
///
/// # Errors
/// A missing or wrong error, or the difference from the spec.
pub fn replica_deviation(replicas: Replicas, case: &ReplicaDeviation) -> Verdict {
    let ReplicaDeviation { case: ref common, odd, ref does } = *case;
    let (Some(workers), Ok(expected)) = ((replicas.workers)(common.size), outcomes(common)) else {
        // There is no such strategy, or the common call has no result.
        return Ok(());
    };
    let first = |worker: usize| workers[..worker].iter().sum::<usize>();
    let local = |worker: usize| first(worker)..first(worker) + workers[worker];
    let is_alone = (0..workers.len()).any(|worker| local(worker) == (odd..odd + 1));
    if matches!(does, ReplicaDoes::Returns) && workers.len() > 1 && is_alone {
        // The run of this replica's worker has ended, and the worker's next calls match the calls
        // for which the others still wait.
        return Ok(());
    }
    // The error of each replica that ran. A worker that learns of the failure before its run does
    // not run its replicas.
    let told: Mutex<Vec<Option<Option<String>>>> = Mutex::new(vec![None; common.size]);
    let work = |strategy: &Strategy| {
        let result = strategy.run_with(nest::own(strategy, common), |replica, own| {
            let id = replica.replica_id_in_sync_group();
            let make = |case: &NestCase, own| nest::call(replica, case, own).map(drop);
            let result = match does {
                _ if id != odd => make(common, own),
                ReplicaDoes::Calls(other, _) => make(other, nest::own_of(odd, other)),
                ReplicaDoes::Barrier => replica.barrier(),
                ReplicaDoes::Returns => return Ok(()),
                ReplicaDoes::Fails => return Err(Error::other("a fault of its own")),
                // Prints nothing to stderr.
                ReplicaDoes::Panics => panic::resume_unwind(Box::new("a panic of its own")),
            };
            told.lock().expect("nobody panics holding this")[id] = Some(result.as_ref().err().map(Error::to_string));
            result
        });
        (result.map(drop), nest::carry_out(strategy, common))
    };
    pool::on_workers(replicas, common.size, nest::settings(common), work, |results| {
        let told = told.lock().expect("nobody panics holding this");
        let was_told = |replica: usize| match &told[replica] {
            Some(told) => told.is_some(),
            None => (0..workers.len()).any(|worker| local(worker).contains(&replica) && !local(worker).contains(&odd)),
        };
        if let Some(replica) = (0..common.size).find(|&replica| replica != odd && !was_told(replica)) {
            return Err(format!("replica {replica} was not told: {told:?}"));
        }
        for (worker, (result, next)) in results.into_iter().enumerate() {
            if !is_right(case, local(worker).contains(&odd), &result) {
                return Err(format!("the run of worker {worker} gave {result:?}; replicas were told {told:?}"));
            }
            match next {
                Ok(found) => nest::equal(common, first(worker), &found, &expected)?,
                Err(error) => return Err(format!("the next run of worker {worker} failed: {error}")),
            }
        }
        Ok(())
    })
}

/// Returns whether a worker's error fits what the odd replica did. `has_odd`: the odd replica is
/// one of the worker's.
fn is_right(case: &ReplicaDeviation, has_odd: bool, result: &Result<(), Error>) -> bool {
    let ReplicaDeviation { case: ref common, odd, ref does } = *case;
    let calls: Vec<_> = (0..common.size).map(|replica| Some(replica == odd)).collect();
    let named = |replica: usize| blame(&calls).is_some_and(|(named, _)| named == replica);
    match (does, result) {
        (ReplicaDoes::Calls(..) | ReplicaDoes::Barrier, Err(Error::InvalidCall { replica: Some(replica), .. })) => {
            *replica == odd
        }
        (ReplicaDoes::Calls(..) | ReplicaDoes::Barrier, Err(Error::Mismatch { replica, argument, .. }))
            if !has_odd && argument == "the call" =>
        {
            *replica == odd
        }
        (ReplicaDoes::Calls(_, expected), Err(Error::Mismatch { replica, argument, .. })) => {
            named(*replica) && argument.starts_with(expected)
        }
        (ReplicaDoes::Barrier, Err(Error::Mismatch { replica, argument, .. })) => named(*replica) && argument == "call",
        (ReplicaDoes::Returns, Err(Error::Left { replica, .. })) => *replica == odd,
        (ReplicaDoes::Fails, Err(Error::Replica { replica, source })) => {
            *replica == odd && matches!(**source, Error::Other(_))
        }
        (ReplicaDoes::Panics, Err(Error::Panic { replica, message })) => {
            *replica == odd && message == "a panic of its own"
        }
        (ReplicaDoes::Returns | ReplicaDoes::Fails | ReplicaDoes::Panics, Err(Error::Aborted { replica, .. })) => {
            !has_odd && *replica == odd
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cases::Memory, subjects::GROUPS};
    use consonance_spec::{DType, ReduceOp};

    /// Found by `one_rank_does_otherwise` on a busy machine: a rank that was late by chance was
    /// named instead of the one that was meant to be.
    #[test]
    fn a_deadline_missed_by_other_ranks_is_lengthened() {
        let (kind, dtype, op, counts) = (Kind::Reduce, DType::U64, ReduceOp::Xor, Counts::Even(41));
        let (memory, offset, seed) = (Memory::Own, 1, 42090);
        let call = Collective { kind, dtype, op, counts, runs: None, root: 0, in_place: true, memory, offset, seed };
        let case = RankDeviation { size: 8, odd: 3, call, does: RankDoes::IsLate };
        for &group in GROUPS.iter() {
            rank_deviation_within(group, &case, Duration::from_micros(1)).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }
}
