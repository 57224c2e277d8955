//! Calls of ranks while another thread writes false values into their shared memory.

use super::{Verdict, pool, script};
use crate::{
    cases::Script,
    false_values::{FalseValue, Memory},
    subjects::Rank,
};
use std::{thread, time::Duration};

/// The time that a rank waits for others.
const DEADLINE: Duration = Duration::from_millis(50);

/// The time after which calls that all end by their deadline have ended, however busy the machine
/// is.
const ENDLESS: Duration = Duration::from_secs(30);

/// Makes all ranks write to all parts of shared memory that calls use: records, staging and call
/// logs.
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

/// Judges whether the calls of a script end in a group whose `memory` is changed before and during
/// the calls.
pub(crate) fn calls(
    ranks: Vec<Rank>,
    script: &Script,
    memory: Memory,
    before: Vec<FalseValue>,
    meanwhile: Vec<FalseValue>,
) -> Verdict {
    let by_rank = script::by_rank(script);
    let asynchronous = script.asynchronous;
    let judged = pool::on_judge(move || {
        before.into_iter().for_each(|value| _ = memory.change(value));
        thread::scope(|scope| {
            for (mut rank, mut calls) in ranks.into_iter().zip(by_rank) {
                scope.spawn(move || {
                    let communicator = &mut rank.communicator;
                    communicator.set_timeout(DEADLINE).expect("a timeout that ends");
                    // Any result is right, because its inputs may be damaged.
                    calls.iter_mut().for_each(|call| _ = call.place(communicator));
                    if asynchronous {
                        let _ = script::start_all(communicator, &mut calls);
                    } else {
                        calls.iter_mut().for_each(|call| _ = call.make(communicator));
                    }
                });
            }
            meanwhile.into_iter().for_each(|value| {
                memory.change(value);
                thread::yield_now();
            });
        });
        Ok(())
    });
    judged.recv_timeout(ENDLESS).unwrap_or_else(|_| Err("a call does not end".to_owned()))
}
