//! Calls of ranks in whose shared memory somebody writes meanwhile.

use super::{Verdict, kept, script};
use crate::{
    cases::Script,
    lie::{Lie, Memory},
    subjects::Rank,
};
use std::{thread, time::Duration};

/// How long a rank waits for others.
const DEADLINE: Duration = Duration::from_millis(50);

/// Calls that all end by their deadline have ended by then, however busy the machine.
const ENDLESS: Duration = Duration::from_secs(30);

/// Makes all ranks write what they write in calls: in lines, staging and rings.
pub(crate) fn warm(ranks: &mut [Rank]) {
    thread::scope(|scope| {
        for rank in ranks {
            scope.spawn(|| {
                let communicator = &mut rank.communicator;
                let mut small = [1u32; 8];
                let mut large = vec![1.0f64; 40_000];
                communicator.barrier().expect("all ranks call it");
                communicator.all_reduce(consonance::ReduceOp::Sum, &mut small).expect("all ranks call it");
                communicator.all_reduce(consonance::ReduceOp::Sum, &mut large).expect("all ranks call it");
            });
        }
    });
}

/// Judges whether the calls of a script end, in a group of which `memory` is told lies before and
/// meanwhile.
pub(crate) fn calls(
    ranks: Vec<Rank>,
    script: &Script,
    memory: Memory,
    before: Vec<Lie>,
    meanwhile: Vec<Lie>,
) -> Verdict {
    let by_rank = script::by_rank(script);
    let asynchronous = script.asynchronous;
    let judged = kept::on_judge(move || {
        before.into_iter().for_each(|lie| _ = memory.tell(lie));
        thread::scope(|scope| {
            for (mut rank, mut calls) in ranks.into_iter().zip(by_rank) {
                scope.spawn(move || {
                    let communicator = &mut rank.communicator;
                    communicator.set_timeout(DEADLINE).expect("a timeout that ends");
                    // Any result is right: a peer may have damaged what it comes from.
                    calls.iter_mut().for_each(|call| _ = call.place(communicator));
                    if asynchronous {
                        let _ = script::start_all(communicator, &mut calls);
                    } else {
                        calls.iter_mut().for_each(|call| _ = call.make(communicator));
                    }
                });
            }
            meanwhile.into_iter().for_each(|lie| {
                memory.tell(lie);
                thread::yield_now();
            });
        });
        Ok(())
    });
    judged.recv_timeout(ENDLESS).unwrap_or_else(|_| Err("a call does not end".to_owned()))
}
