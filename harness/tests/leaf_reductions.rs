//! Reductions of ranks that have different numbers of contributions: they have the bits of as many
//! ranks with one contribution each.

use consonance::{
    Accumulator, Communicator, DType, Error, ReduceOp, World, bf16,
    raw::{Agreement, Call, Carrier, Inbox, Letter},
};
use consonance_harness::{
    sample::{Sample, keys, sample},
    subjects::{GROUPS, Group, Rank},
};
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

/// Adds all leaves but the last. Returns that one, or room without leaves.
fn added<T: Sample>(sum: &mut Accumulator<T>, leaves: &[Vec<T>], count: usize) -> Vec<T> {
    let own = &leaves[sum.leaves()];
    let Some((last, before)) = own.split_last() else { return sample(99, count) };
    before.iter().for_each(|leaf| sum.add(leaf).expect("a valid leaf"));
    last.clone()
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
