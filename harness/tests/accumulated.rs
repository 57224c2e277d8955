//! Reductions of ranks that have different numbers of contributions: they have the bits of as many
//! ranks with one contribution each.

use consonance::{
    Accumulator, Communicator, DType, Error, ReduceOp, World, bf16, f16,
    raw::{Agreement, Call, Carrier, Inbox, Letter},
};
use consonance_harness::{
    sample::{Sample, keys, sample},
    subjects::{GROUPS, Group, Rank},
};
use consonance_kernels::digest::mix;
use consonance_spec::{collective, order, partition};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// Counts of payloads, of few nodes that all ranks get, and of blocks; all of them can be divided
/// by the sizes of groups.
const COUNTS: [usize; 4] = [0, 30, 1020, 9030];

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

/// Returns runs of `0..of` for `size` ranks, some of them empty.
fn runs(seed: u64, of: usize, size: usize) -> Vec<Range<usize>> {
    let mut ends: Vec<usize> = (1..size as u64).map(|i| mix(seed, i) as usize % (of + 1)).collect();
    if seed.is_multiple_of(3) {
        ends = (1..size).map(|rank| partition::block(of, size, rank).start).collect();
    }
    ends.sort_unstable();
    ends.push(of);
    let mut start = 0;
    ends.into_iter().map(|end| std::mem::replace(&mut start, end)..end).collect()
}

/// Adds all leaves but the last. Returns that one, or room without leaves.
fn added<T: Sample>(sum: &mut Accumulator<T>, leaves: &[Vec<T>], count: usize) -> Vec<T> {
    let own = &leaves[sum.leaves()];
    let Some((last, before)) = own.split_last() else { return sample(99, count) };
    before.iter().for_each(|leaf| sum.add(leaf).expect("a valid leaf"));
    last.clone()
}

/// Makes the three reductions twice on the same accumulator, and compares their bits.
fn check<T: Sample>(communicator: &mut Communicator, op: ReduceOp, seed: u64, (of, count): (usize, usize)) {
    let (rank, size) = (communicator.rank(), communicator.size());
    let leaves: Vec<Vec<T>> = (0..of as u64).map(|leaf| sample(mix(seed, leaf) / 3 * 3, count)).collect();
    let run = runs(seed, of, size)[rank].clone();
    let context = format!("{op} of {}, {of} leaves, {run:?} on rank {rank} of {size}, count {count}", T::DTYPE);
    let expected = keys(&collective::reduce(op, &leaves).expect("there is a leaf"));
    let mut sum = communicator.accumulator::<T>(op, count, run, of).expect(&context);
    for _step in 0..2 {
        let mut last = added(&mut sum, &leaves, count);
        communicator.all_reduce_accumulated(&mut sum, &mut last).expect(&context);
        assert!(keys(&last) == expected, "all_reduce: {context}");

        let last = added(&mut sum, &leaves, count);
        let mut recv = vec![T::default(); count];
        communicator.all_reduce_accumulated_into(&mut sum, &last, &mut recv).expect(&context);
        assert!(keys(&recv) == expected, "all_reduce_into: {context}");

        let mut last = added(&mut sum, &leaves, count);
        let (root, before) = (seed as usize % size, last.clone());
        communicator.reduce_accumulated(&mut sum, &mut last, root).expect(&context);
        let right = if rank == root { expected.clone() } else { keys(&before) };
        assert!(keys(&last) == right, "reduce: {context}");

        let last = added(&mut sum, &leaves, count);
        let mut recv = vec![T::default(); count];
        let at_root = (rank == root).then_some(&mut recv[..]);
        communicator.reduce_accumulated_into(&mut sum, &last, at_root, root).expect(&context);
        assert!(rank != root || keys(&recv) == expected, "reduce_into: {context}");

        let mut last = added(&mut sum, &leaves, count);
        let (block, mut right) = (partition::block(count, size, rank), keys(&last));
        communicator.reduce_scatter_accumulated(&mut sum, &mut last).expect(&context);
        right[block.clone()].copy_from_slice(&expected[block.clone()]);
        assert!(keys(&last) == right, "reduce_scatter: {context}");

        let last = added(&mut sum, &leaves, count);
        let mut recv = vec![T::default(); block.len()];
        communicator.reduce_scatter_accumulated_into(&mut sum, &last, &mut recv).expect(&context);
        assert!(keys(&recv) == expected[block], "reduce_scatter_into: {context}");
    }
}

fn check_all(communicator: &mut Communicator) {
    for (seed, &count) in (0..8).zip(COUNTS.iter().cycle()) {
        let of = 1 + mix(seed, 7) as usize % 12;
        check::<f32>(communicator, ReduceOp::Sum, seed, (of, count));
        check::<bf16>(communicator, ReduceOp::Mean, seed, (of, count));
        match seed % 4 {
            0 => check::<f16>(communicator, ReduceOp::Max, seed, (of, count)),
            1 => check::<f64>(communicator, ReduceOp::Mean, seed, (of, count)),
            2 => check::<i32>(communicator, ReduceOp::Product, seed, (of, count)),
            _ => check::<bool>(communicator, ReduceOp::And, seed, (of, count)),
        }
    }
    // The run of the issue, and aligned ones.
    for of in [8, 16] {
        check::<f32>(communicator, ReduceOp::Mean, 3, (of, 9030));
    }
}

#[test]
fn any_runs_of_leaves_have_the_bits_of_the_spec() {
    for group in GROUPS.iter() {
        for size in [1, 2, 3, 5] {
            on_ranks(group, size, check_all);
        }
    }
}

/// Nodes in the memory of another group are staged, in several windows.
#[test]
fn leaves_in_memory_of_another_group_are_reduced_in_windows() {
    const COUNT: usize = 390_000;
    for group in GROUPS.iter().filter(|group| group.name.starts_with("processes")) {
        on_ranks(group, 3, |communicator| {
            let (rank, mut part) = (communicator.rank(), communicator.split(Some(0), 0).unwrap().unwrap());
            let leaves: Vec<Vec<f32>> = (0..6).map(|leaf| sample(3 * leaf, COUNT)).collect();
            let expected = keys(&collective::reduce(ReduceOp::Sum, &leaves).expect("there is a leaf"));
            let mut sum = communicator.accumulator::<f32>(ReduceOp::Sum, COUNT, 2 * rank..2 * rank + 2, 6).unwrap();
            for round in 0..3 {
                let mut last = added(&mut sum, &leaves, COUNT);
                part.reduce_accumulated(&mut sum, &mut last, round % 3).unwrap();
                assert!(round % 3 != rank || keys(&last) == expected, "{}: round {round}", group.name);
            }
        });
    }
}

#[test]
fn any_number_of_ranks_has_the_bits_of_a_rank_for_each_leaf() {
    let of = 8;
    let leaves: Vec<Vec<bf16>> = (0..of as u64).map(|leaf| sample(3 * leaf, 5040)).collect();
    let oracle = on_ranks(&GROUPS[0], of, |communicator| {
        let mut data = leaves[communicator.rank()].clone();
        communicator.all_reduce(ReduceOp::Mean, &mut data).expect("a result");
        keys(&data)
    });
    for group in GROUPS.iter() {
        for size in [1, 2, 3, 7] {
            let results = on_ranks(group, size, |communicator| {
                let run = partition::block(of, size, communicator.rank());
                let mut sum = communicator.accumulator::<bf16>("mean", 5040, run, of).expect("valid leaves");
                let mut last = added(&mut sum, &leaves, 5040);
                communicator.all_reduce_accumulated(&mut sum, &mut last).expect("a result");
                keys(&last)
            });
            assert!(results.iter().all(|result| *result == oracle[0]), "{size} ranks of {group:?}");
        }
    }
}

#[test]
fn a_mean_of_integers_is_not_rounded_before_the_end() {
    for group in GROUPS.iter() {
        let results = on_ranks(group, 3, |communicator| {
            let run = [0..3, 3..4, 4..6][communicator.rank()].clone();
            let leaves: Vec<Vec<i8>> = (0..6).map(|leaf| sample(leaf, 3000)).collect();
            let mut sum = communicator.accumulator::<i8>(ReduceOp::Mean, 3000, run, 6)?;
            let expected = collective::mean(&leaves).expect("there is a leaf");
            let last = added(&mut sum, &leaves, 3000);
            let mut mean = vec![0.0f32; 3000];
            communicator.all_reduce_accumulated_into(&mut sum, &last, &mut mean)?;
            assert!(keys(&mean) == keys(&expected), "{group:?}");
            let last = added(&mut sum, &leaves, 3000);
            let (is_root, mut mean) = (communicator.rank() == 1, vec![0.0f32; 3000]);
            communicator.reduce_accumulated_into(&mut sum, &last, is_root.then_some(&mut mean[..]), 1)?;
            assert!(!is_root || keys(&mean) == keys(&expected), "{group:?}");
            let last = added(&mut sum, &leaves, 3000);
            let (block, mut mean) = (partition::block(3000, 3, communicator.rank()), vec![0.0f32; 1000]);
            communicator.reduce_scatter_accumulated_into(&mut sum, &last, &mut mean)?;
            assert!(keys(&mean) == keys(&expected[block]), "{group:?}");
            Ok(())
        });
        assert!(results.iter().all(Result::<(), Error>::is_ok), "{group:?}: {results:?}");
    }
}

#[test]
fn asynchronous_calls_on_leaves_are_made_in_order() {
    let leaves: Vec<Vec<f32>> = (0..7).map(|leaf| sample(3 * leaf, 5040)).collect();
    let expected = keys(&collective::reduce(ReduceOp::Sum, &leaves).expect("there is a leaf"));
    for group in GROUPS.iter() {
        on_ranks(group, 3, |communicator| {
            let rank = communicator.rank();
            let mut make = || communicator.accumulator::<f32>("sum", 5040, partition::block(7, 3, rank), 7).unwrap();
            let mut sums = [make(), make(), make()];
            let mut data = sums.each_mut().map(|sum| added(sum, &leaves, 5040));
            let ([all, one, part], [all_data, one_data, part_data]) = (sums.each_mut(), data.each_mut());
            let mut ranks = [1];
            communicator
                .scope(|scope| {
                    scope.all_reduce_accumulated(all, all_data);
                    scope.all_reduce(ReduceOp::Sum, &mut ranks)?;
                    scope.reduce_accumulated(one, one_data, 1);
                    scope.reduce_scatter_accumulated(part, part_data).wait()
                })
                .expect("results");
            let block = partition::block(5040, 3, rank);
            assert!(ranks == [3] && keys(&data[0]) == expected, "{group:?}");
            assert!(rank != 1 || keys(&data[1]) == expected, "{group:?}");
            assert!(keys(&data[2])[block.clone()] == expected[block], "{group:?}");
        });
    }
}

/// Carries letters between threads, and counts the bytes in those of each rank.
struct Counting {
    inboxes: Vec<Arc<Inbox>>,
    sent: Vec<AtomicUsize>,
}

impl Carrier for Counting {
    fn carry(&self, from: usize, to: usize, letter: Letter) {
        self.sent[from].fetch_add(letter.body().len(), Ordering::Relaxed);
        self.inboxes[to].put(from, letter);
    }
}

#[test]
fn a_rank_sends_its_nodes_and_not_its_leaves() {
    const COUNT: usize = 30_000;
    // Bytes of descriptors, runs and the ends of groups.
    const BESIDES: usize = 4096;
    for (of, size) in [(8, 1), (8, 2), (8, 3), (8, 8), (40, 3)] {
        let inboxes: Vec<Arc<Inbox>> = (0..size).map(|rank| Arc::new(Inbox::new(rank, size))).collect();
        let sent = (0..size).map(|_| AtomicUsize::new(0)).collect();
        let counting = Arc::new(Counting { inboxes: inboxes.clone(), sent });
        thread::scope(|scope| {
            for (rank, inbox) in inboxes.into_iter().enumerate() {
                let world = World::new(rank, size).expect("one of the ranks");
                let mut communicator = Communicator::from_engine(inbox.engine(world, counting.clone()));
                scope.spawn(move || {
                    let run = partition::block(of, size, rank);
                    let mut sum = communicator.accumulator::<bf16>("sum", COUNT, run.clone(), of).expect("leaves");
                    let leaf = vec![bf16::ONE; COUNT];
                    run.skip(1).for_each(|_| sum.add(&leaf).expect("a leaf"));
                    communicator.all_reduce_accumulated(&mut sum, &mut leaf.clone()).expect("a sum");
                });
            }
        });
        for (rank, sent) in counting.sent.iter().enumerate() {
            let own = partition::block(COUNT, size, rank).len();
            let nodes = order::nodes(of, &partition::block(of, size, rank).collect()).len();
            // Nodes are sums in f32. A rank's only leaf is sent as it is.
            let each = if of == size { size_of::<bf16>() } else { size_of::<f32>() };
            let data = each * nodes * (COUNT - own) + size_of::<bf16>() * own * (size - 1);
            let sent = sent.load(Ordering::Relaxed);
            assert!((data..=data + BESIDES).contains(&sent), "{sent} bytes for {data}, {of} leaves on {size}");
        }
    }
}

/// Returns the errors of three ranks with these runs of leaves. Afterwards the ranks make a call
/// together.
fn errors(group: &Group, runs: &[(Range<usize>, usize); 3]) -> Vec<Error> {
    on_ranks(group, 3, |communicator| {
        let (run, of) = runs[communicator.rank()].clone();
        let done = communicator.accumulator::<f32>("sum", 4, run.clone(), of).and_then(|mut sum| {
            run.skip(1).try_for_each(|_| sum.add(&[1.0; 4]))?;
            let before = sum.added();
            let done = communicator.all_reduce_accumulated(&mut sum, &mut [1.0; 4]);
            assert_eq!(sum.added(), before, "the accumulator is as before");
            done
        });
        let mut ranks = [1.0f32];
        communicator.all_reduce("sum", &mut ranks).expect("the group works");
        assert_eq!(ranks, [3.0]);
        done.expect_err("the runs are invalid")
    })
}

#[test]
fn runs_with_a_gap_or_an_overlap_are_a_mismatch_on_all_ranks() {
    let wrong = [
        ([(0..2, 6), (3..4, 6), (4..6, 6)], 1, ["a run from 2 on", "3..4"]),
        ([(0..2, 6), (2..4, 6), (3..6, 6)], 2, ["a run from 4 on", "3..6"]),
        ([(0..2, 6), (2..2, 6), (2..5, 6)], 2, ["runs up to 6", "runs up to 5"]),
        ([(1..2, 6), (2..4, 6), (4..6, 6)], 0, ["a run from 0 on", "1..2"]),
        ([(0..2, 6), (2..4, 7), (4..6, 6)], 1, ["of 6", "of 7"]),
    ];
    for group in GROUPS.iter() {
        for (runs, at_fault, words) in &wrong {
            for error in errors(group, runs) {
                let Error::Mismatch { replica, argument, expected, found, .. } = &error else {
                    panic!("{group:?}: {runs:?}: {error}");
                };
                assert_eq!((*replica, &argument[..]), (*at_fault, "leaves"), "{group:?}: {runs:?}");
                assert_eq!([&expected[..], found], *words, "{group:?}: {runs:?}");
            }
        }
    }
}

#[test]
fn invalid_leaves_are_refused_with_both_numbers() {
    for group in GROUPS.iter() {
        let errors = errors(group, &[(0..2, 6), (2..7, 6), (4..6, 6)]);
        let Error::InvalidCall { replica: Some(1), argument, expected, found, .. } = &errors[1] else {
            panic!("{group:?}: {}", errors[1]);
        };
        assert_eq!([&argument[..], expected, found], ["leaves", "a run of 0..6", "2..7"]);
        for peer in [&errors[0], &errors[2]] {
            assert!(matches!(peer, Error::Mismatch { replica: 1, .. }), "{group:?}: {peer}");
        }
    }
}

#[test]
fn an_invalid_call_leaves_the_accumulator_as_before() {
    for group in GROUPS.iter() {
        let results = on_ranks(group, 2, |communicator| {
            let rank = communicator.rank();
            let mut sum = communicator.accumulator::<f32>("sum", 2, [0..3, 3..6][rank].clone(), 6).expect("valid");
            sum.add(&[1.0, 2.0]).expect("a valid leaf");
            assert!(matches!(sum.add(&[1.0]), Err(Error::InvalidCall { .. })), "another count");
            if rank == 1 {
                sum.add(&[1.0, 2.0]).expect("a valid leaf");
                assert!(matches!(sum.add(&[1.0, 2.0]), Err(Error::InvalidCall { .. })), "one too many");
            }
            // Rank 0 lacks a leaf.
            let missing =
                communicator.all_reduce_accumulated(&mut sum, &mut [1.0, 2.0]).expect_err("a leaf is missing");
            assert_eq!(matches!(missing, Error::InvalidCall { .. }), rank == 0, "{missing}");
            assert_eq!(matches!(missing, Error::Mismatch { replica: 0, .. }), rank == 1, "{missing}");
            if rank == 0 {
                sum.add(&[1.0, 2.0]).expect("a valid leaf");
            }
            // Rank 1's last leaf has another count.
            let mut short = vec![1.0; 2 - rank];
            let short = communicator.all_reduce_accumulated(&mut sum, &mut short).expect_err("another count");
            assert_eq!(matches!(short, Error::InvalidCall { .. }), rank == 1, "{short}");
            // One rank makes a plain call.
            let mut plain = [1.0, 2.0];
            let unlike = match rank {
                0 => communicator.all_reduce_accumulated(&mut sum, &mut plain),
                _ => communicator.all_reduce("sum", &mut plain),
            };
            let unlike = unlike.expect_err("one call has leaves");
            assert!(matches!(&unlike, Error::Mismatch { argument, .. } if argument == "leaves"), "{unlike}");
            let mut last = [1.0, 2.0];
            communicator.all_reduce_accumulated(&mut sum, &mut last).map(|()| last)
        });
        for result in results {
            assert_eq!(result.expect("the group works"), [6.0, 12.0], "{group:?}");
        }
    }
}

#[test]
fn a_result_needs_room_of_its_count_and_type() {
    let mut alone = Communicator::threads(1).remove(0);
    let mut sum = alone.accumulator::<i8>("mean", 2, 0..1, 1).expect("valid");
    let refusals = [
        (alone.reduce_accumulated_into::<i8, f32>(&mut sum, &[1, 2], None, 0), ["a buffer on the root", "none"]),
        (alone.reduce_accumulated_into(&mut sum, &[1, 2], Some(&mut [0f32; 3]), 0), ["2 elements", "3 elements"]),
        (alone.reduce_scatter_accumulated_into(&mut sum, &[1, 2], &mut [0f32]), ["2 elements", "1 elements"]),
        (
            alone.reduce_scatter_accumulated_into(&mut sum, &[1, 2], &mut [0i8; 2]),
            ["elements of f32", "elements of i8"],
        ),
    ];
    for (refused, words) in refusals {
        let Err(Error::InvalidCall { argument, expected, found, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!((&argument[..], [&expected[..], &found]), ("recv", words));
    }
}

#[test]
fn a_call_unlike_its_accumulator_is_refused_and_a_mismatch_on_peers() {
    let (op, mut data, mut wide, mut long) = (ReduceOp::Sum, [[0f32; 2]; 2], [0f64; 2], [0f32; 4]);
    let [first_data, second_data] = &mut data;
    let calls: [(Call<'_>, &str, &str); 6] = [
        (Call::AllReduce { op: ReduceOp::Max, send: None, recv: first_data.as_mut_slice().into() }, "op", "max"),
        (Call::AllReduce { op, send: None, recv: wide.as_mut_slice().into() }, "last", "elements of f64"),
        (Call::Reduce { op, send: None, recv: None, root: 0 }, "send", "none"),
        (Call::Reduce { op, send: Some([0f32; 2].as_slice().into()), recv: None, root: 1 }, "recv", "none"),
        (Call::ReduceScatter { op, send: None, recv: long.as_mut_slice().into() }, "last", "4 elements"),
        (Call::Broadcast { data: second_data.as_mut_slice().into(), root: 0 }, "call", "broadcast"),
    ];
    let mut ranks = Communicator::threads(2);
    let (mut second, mut first) = (ranks.remove(1), ranks.remove(0));
    let mut sum = second.accumulator_of(DType::F32, op, 2, 1..2, 2).expect("valid");
    for (call, wrong, value) in calls {
        thread::scope(|scope| {
            let peer = scope.spawn(|| first.barrier().expect_err("rank 1 makes no barrier"));
            let refused = second.execute_accumulated(call, &mut sum, &Agreement::NONE).expect_err(wrong);
            let Error::InvalidCall { replica: Some(1), argument, found, .. } = &refused else { panic!("{refused}") };
            assert_eq!((&argument[..], &found[..]), (wrong, value));
            let told = peer.join().expect("no rank panics");
            assert!(matches!(told, Error::Mismatch { replica: 1, .. }), "{told}");
        });
    }
    let mut leaves = second.accumulator_of(DType::F32, op, 2, 0..2, 2).expect("valid");
    let Err(Error::InvalidCall { argument, found, .. }) = leaves.add([0f64; 2].as_slice().into()) else {
        panic!("a leaf of another type")
    };
    assert_eq!((&argument[..], &found[..]), ("leaf", "elements of f64"));
}

#[test]
fn a_lost_rank_is_named() {
    for group in GROUPS.iter() {
        let mut ranks = (group.make)(2);
        drop(ranks.pop());
        let communicator = &mut ranks[0].communicator;
        let mut sum = communicator.accumulator::<f32>("sum", 2, 0..2, 4).expect("valid");
        sum.add(&[1.0, 2.0]).expect("a valid leaf");
        let left = communicator.all_reduce_accumulated(&mut sum, &mut [1.0, 2.0]).expect_err("rank 1 left");
        assert!(matches!(left, Error::Left { replica: 1, .. }), "{group:?}: {left}");
    }
}
