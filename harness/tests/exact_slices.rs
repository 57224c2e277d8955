//! Exact reductions of slices have the bits of the spec on every engine, for any number of ranks.

use consonance::{
    Communicator, Error, ReduceOp, Result,
    raw::{Agreement, Call},
};
use consonance_harness::{
    sample::{Sample, keys, sample},
    subjects::{GROUPS, Group, Rank},
};
use consonance_spec::exact::{self, Exact};
use std::{thread, time::Duration};

const SIZES: [usize; 4] = [1, 2, 3, 5];

/// Runs `work` on each rank of a group and returns what the ranks return.
fn on_ranks<R: Send>(group: &Group, size: usize, work: impl Fn(&mut Communicator) -> R + Sync) -> Vec<R> {
    let ranks = (group.make)(size);
    thread::scope(|scope| {
        let work = &work;
        // A rank that panics leaves its group.
        let run = |mut rank: Rank| {
            scope.spawn(move || {
                rank.communicator.set_timeout(Duration::from_secs(60)).expect("a valid timeout");
                work(&mut rank.communicator)
            })
        };
        let threads: Vec<_> = ranks.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// Returns the results of the elements of all ranks.
fn of<T: Sample + Exact>(op: ReduceOp, ranks: &[Vec<T>]) -> Vec<T> {
    let result = |at: usize| {
        let elements: Vec<T> = ranks.iter().map(|data| data[at]).collect();
        if op == ReduceOp::Mean { exact::mean(&elements) } else { exact::sum(&elements) }
    };
    (0..ranks[0].len()).map(result).collect()
}

/// Reduces in place, apart and in a scope.
fn check<T: Sample + Exact>(group: &Group, op: ReduceOp, ranks: &[Vec<T>]) {
    let (size, expected) = (ranks.len(), keys(&of(op, ranks)));
    let context = format!("{group:?}: {op} of {} x {} on {size}", ranks[0].len(), T::DTYPE);
    on_ranks(group, size, |communicator| {
        let own = &ranks[communicator.rank()];
        let mut data = own.clone();
        communicator.all_reduce_exact(op, &mut data).expect(&context);
        assert!(keys(&data) == expected, "{context}");
        let (mut sent, mut apart) = (own.clone(), vec![T::any(1); own.len()]);
        let call = Call::AllReduce { op, send: Some(sent.as_slice().into()), recv: apart.as_mut_slice().into() };
        communicator.execute_exact(call, &Agreement::NONE).expect(&context);
        assert!(keys(&apart) == expected && keys(&sent) == keys(own), "apart: {context}");
        communicator.scope(|scope| scope.all_reduce_exact(op, &mut sent)?.wait()).expect(&context);
        assert!(keys(&sent) == expected, "in a scope: {context}");
    });
}

fn check_all<T: Sample + Exact>(group: &Group, counts: &[usize]) {
    for size in SIZES {
        for (seed, &count) in (0..).zip(counts) {
            let op = [ReduceOp::Sum, ReduceOp::Mean][(seed as usize + size) % 2];
            // Values of all kinds on all ranks, or such as make no NaN.
            let seeds = (0..size as u64).map(|rank| if seed % 2 == 0 { 7 * seed + rank } else { 3 * (seed + rank) });
            check(group, op, &seeds.map(|seed| sample::<T>(seed, count)).collect::<Vec<_>>());
        }
    }
}

#[test]
fn exact_results_of_slices_have_the_bits_of_the_spec_on_every_engine() {
    for group in GROUPS.iter() {
        check_all::<f32>(group, &[0, 1, 2, 7, 300]);
        check_all::<f64>(group, &[301, 7, 2, 1, 0]);
    }
}

/// Results of more than a round.
#[test]
fn large_slices_are_exact() {
    const COUNT: usize = 400_000;
    for group in GROUPS.iter() {
        let data = |value: f64| (0..COUNT).map(|at| value * (at % 7) as f64).collect::<Vec<f64>>();
        let ranks = [1e16, 1.0, -1e16].map(data);
        let expected: Vec<f64> = (0..COUNT).map(|at| (at % 7) as f64).collect();
        on_ranks(group, 3, |communicator| {
            let mut data = ranks[communicator.rank()].clone();
            communicator.all_reduce_exact("sum", &mut data).expect("a sum");
            assert!(data == expected, "{group:?}");
        });
    }
}

#[test]
fn cancelled_values_infinities_and_nans_have_exact_sums_and_means() {
    const MAX: f64 = f64::MAX;
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    // A row has an element of each of three ranks, the sum, and the mean.
    let rows = [
        ([1e16, 1.0, -1e16], 1.0, 1.0 / 3.0),
        ([1.0, 1e-16, 1e-16], 1.0000000000000002, 0.3333333333333334),
        ([MAX, MAX, -MAX], MAX, MAX / 3.0),
        ([MAX, MAX, 0.0], inf, MAX / 3.0 * 2.0),
        ([-0.0, -0.0, -0.0], -0.0, -0.0),
        ([1.0, 0.0, -1.0], 0.0, 0.0),
        ([inf, 1.0, -MAX], inf, inf),
        ([inf, 1.0, -inf], nan, nan),
        ([nan, 1.0, 2.0], nan, nan),
    ];
    for group in GROUPS.iter() {
        for (op, expected) in [("sum", rows.map(|row| row.1)), ("mean", rows.map(|row| row.2))] {
            let results = on_ranks(group, 3, |communicator| {
                let mut data = rows.map(|row| row.0[communicator.rank()]);
                communicator.all_reduce_exact(op, &mut data).expect("a result");
                keys(&data)
            });
            assert_eq!(results, vec![keys(&expected); 3], "{group:?}: {op}");
        }
    }
}

/// Returns the errors of three ranks, and makes a call with them afterwards.
fn errors(group: &Group, call: impl Fn(&mut Communicator, bool) -> Result<()> + Sync) -> Vec<Error> {
    on_ranks(group, 3, |communicator| {
        let is_odd = communicator.rank() == 1;
        let error = call(communicator, is_odd).expect_err("rank 1 makes another call");
        let mut data = [1.0f32];
        communicator.all_reduce_exact("sum", &mut data).expect("the group works");
        assert_eq!(data, [3.0]);
        error
    })
}

#[test]
fn other_calls_are_a_mismatch_with_both_facts_on_all_ranks() {
    type Odd = fn(&mut Communicator) -> Result<()>;
    let cases: [(Odd, &str, [&str; 2]); 6] = [
        (|rank| rank.all_reduce_exact("mean", &mut [1.0f32; 4]), "op", ["sum", "mean"]),
        (|rank| rank.all_reduce_exact("sum", &mut [1.0f64; 4]), "dtype", ["f32", "f64"]),
        (|rank| rank.all_reduce_exact("sum", &mut [1.0f32; 5]), "count", ["4", "5"]),
        (|rank| rank.all_reduce_exact::<f32>("sum", &mut []), "count", ["4", "0"]),
        (|rank| rank.all_reduce("sum", &mut [1.0f32; 4]), "call", ["all_reduce_exact", "all_reduce"]),
        (
            |rank| rank.all_to_all_v(&[1.0f32; 4], &[1, 2, 1], &mut [1.0; 4], &[1, 2, 1]),
            "call",
            ["all_reduce_exact", "all_to_all"],
        ),
    ];
    for group in GROUPS.iter() {
        for (odd, wrong, words) in &cases {
            let call = |communicator: &mut Communicator, is_odd: bool| match is_odd {
                true => odd(communicator),
                false => communicator.all_reduce_exact("sum", &mut [1.0f32; 4]),
            };
            for error in errors(group, call) {
                let Error::Mismatch { call, replica: 1, argument, expected, found } = &error else {
                    panic!("{group:?}: {error}");
                };
                assert_eq!([&call[..], argument, expected, found], ["all_reduce_exact", wrong, words[0], words[1]]);
            }
        }
    }
}

#[test]
fn invalid_calls_are_refused_with_both_facts_and_a_mismatch_on_peers() {
    type Odd = fn(&mut Communicator) -> Result<()>;
    let cases: [(Odd, [&str; 3]); 6] = [
        (|rank| rank.all_reduce_exact("max", &mut [1.0f32]), ["op", "sum or mean", "max"]),
        (|rank| rank.all_reduce_exact("sum", &mut [1i32]), ["data", "elements of f32 or f64", "elements of i32"]),
        (
            |rank| rank.all_reduce_exact("mean", &mut [consonance::bf16::ONE]),
            ["data", "elements of f32 or f64", "elements of bf16"],
        ),
        (|rank| apart(rank, &[1.0f32], &mut [1.0f64]), ["recv", "elements of f32", "elements of f64"]),
        (|rank| apart(rank, &[1.0f32], &mut [1.0f32; 2]), ["recv", "1 elements", "2 elements"]),
        (|rank| rank.execute_exact(Call::Barrier, &Agreement::NONE), ["call", "an all-reduce", "barrier"]),
    ];
    fn apart<T: Sample, R: Sample>(rank: &mut Communicator, send: &[T], recv: &mut [R]) -> Result<()> {
        let call = Call::AllReduce { op: ReduceOp::Sum, send: Some(send.into()), recv: recv.into() };
        rank.execute_exact(call, &Agreement::NONE)
    }
    for group in GROUPS.iter() {
        for (odd, words) in &cases {
            let call = |communicator: &mut Communicator, is_odd: bool| match is_odd {
                true => odd(communicator),
                false => communicator.all_reduce_exact("sum", &mut [1.0f32]),
            };
            let errors = errors(group, call);
            let Error::InvalidCall { call: "all_reduce_exact", replica: Some(1), argument, expected, found } =
                &errors[1]
            else {
                panic!("{group:?}: {}", errors[1]);
            };
            assert_eq!([&argument[..], expected, found], *words, "{group:?}");
            for peer in [&errors[0], &errors[2]] {
                assert!(matches!(peer, Error::Mismatch { replica: 1, .. }), "{group:?}: {peer}");
            }
        }
        let named =
            errors(group, |rank, is_odd| rank.all_reduce_exact(["sum", "total"][usize::from(is_odd)], &mut [1.0f32]));
        assert!(matches!(&named[1], Error::UnknownReduceOp { .. }), "{group:?}: {}", named[1]);
    }
}

/// The root of a message hears of a mismatch in its next call, which has several steps.
#[test]
fn an_earlier_mismatch_comes_after_all_steps() {
    for group in GROUPS.iter() {
        let results = on_ranks(group, 3, |communicator| {
            let (rank, mut data) = (communicator.rank(), [1e16, 1.0, -1e16]);
            let told = communicator.broadcast(&mut [0u8; 2][..1 + usize::from(rank == 2)], 0).is_err();
            let mut own = [data[rank]];
            let late = communicator.all_reduce_exact("sum", &mut own).is_err();
            communicator.all_reduce_exact("sum", &mut data).expect("the ranks are in step");
            (told, late, own)
        });
        for (told, late, own) in results {
            assert!(told ^ late, "{group:?}: one error: {told} {late}");
            assert_eq!(own, [1.0], "{group:?}: the call was made all the same");
        }
    }
}

#[test]
fn a_lost_rank_is_named() {
    for group in GROUPS.iter() {
        let mut ranks = (group.make)(2);
        drop(ranks.pop());
        let left = ranks[0].communicator.all_reduce_exact("sum", &mut [1.0f32]).expect_err("rank 1 left");
        assert!(matches!(left, Error::Left { replica: 1, .. }), "{group:?}: {left}");
    }
}
