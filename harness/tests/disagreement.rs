//! Ranks whose calls differ: each rank gets an error at once that names the rank and the argument
//! that differ, and the next run works.

mod law;

use consonance::{CommunicationOptions, Error, Implementation, IndexedSlices, MirroredStrategy, PerReplica, Tensor};
use consonance_harness::{
    cases::{
        Caller, Collective, Counts, Leaf, Memory, NestCall, NestCase, RankDeviation, RankDoes, ReplicaDeviation,
        ReplicaDoes, Runs, Then,
    },
    compare::{self, check, check_case},
    subjects::{GROUPS, STRATEGIES},
};
use consonance_spec::{DType, Kind, ReduceOp, nest::Nest, packing::packs};
use law::check_law;

#[test]
fn one_rank_does_otherwise() {
    check_law(800, |bytes| check(&bytes.0, &GROUPS, compare::rank_deviation));
}

#[test]
fn one_replica_does_otherwise() {
    check_law(800, |bytes| check(&bytes.0, STRATEGIES, compare::replica_deviation));
}

/// Checks a call in which ranks 1 and 2 of three differ in `argument`.
fn check_rank(call: Collective, change: impl FnOnce(&mut Collective), argument: &'static str) {
    let mut other = call.clone();
    change(&mut other);
    let case = RankDeviation { size: 3, odd: 2, call, does: RankDoes::Calls(other, argument) };
    GROUPS.iter().try_for_each(|&group| check_case(group, &case, compare::rank_deviation)).unwrap();
}

fn collective(kind: Kind, counts: Counts) -> Collective {
    let (dtype, op) = (DType::I32, ReduceOp::Max);
    let (memory, runs) = (Memory::Own, None);
    Collective { kind, dtype, op, counts, runs, root: 1, in_place: false, memory, offset: 0, seed: 1 }
}

/// Found by `one_rank_does_otherwise`: the error named the two by their ranks in the pair, 0 and 1.
#[test]
fn a_sender_and_its_receiver_are_named_by_their_ranks_in_the_group() {
    check_rank(collective(Kind::SendRecv, Counts::Even(3)), |other| other.counts = Counts::Even(4), "count");
}

/// Found by `one_rank_does_otherwise`: the error named the counts, which were equal.
#[test]
fn a_dtype_beside_counts_for_each_rank() {
    check_rank(collective(Kind::AllGather, Counts::Ragged(vec![3, 0, 2])), |other| other.dtype = DType::F32, "dtype");
}

/// Found by `one_rank_does_otherwise`: the error did not say which of the counts differ.
#[test]
fn a_mismatch_names_the_different_counts() {
    let counts = |from_last| Counts::Pairs(vec![vec![1, 2, 3], vec![4, 5, 6], vec![from_last, 8, 9]]);
    check_rank(collective(Kind::AllToAll, counts(7)), |other| other.counts = counts(6), "recv_counts");
}

/// Found by `one_rank_does_otherwise`: the error named the counts.
#[test]
fn another_implementation() {
    let call = collective(Kind::AllReduce, Counts::Even(1000));
    let case = RankDeviation { size: 3, odd: 2, call, does: RankDoes::AllReducesOtherwise };
    GROUPS.iter().try_for_each(|&group| check_case(group, &case, compare::rank_deviation)).unwrap();
}

/// Found by `one_rank_does_otherwise`: the error named the implementation.
#[test]
fn leaves_beside_a_contribution_of_each_rank() {
    for (kind, count) in [(Kind::AllReduce, 3), (Kind::Reduce, 3), (Kind::ReduceScatter, 1)] {
        let (plain, runs) = (collective(kind, Counts::Even(count)), Some(Runs::of_lengths(&[1, 2, 0])));
        check_rank(plain.clone(), |other| other.runs = runs.clone(), "leaves");
        check_rank(Collective { runs, ..plain }, |other| other.runs = None, "leaves");
    }
}

/// Found by `one_rank_does_otherwise`: short nodes that travel reached all ranks of both calls, and
/// each rank ended its own call well.
#[test]
fn leaves_of_another_call() {
    let reduction =
        |kind, count| Collective { runs: Some(Runs::of_lengths(&[2, 2, 2])), ..collective(kind, Counts::Even(count)) };
    let kinds = [(Kind::AllReduce, 3), (Kind::Reduce, 3), (Kind::ReduceScatter, 1)];
    for (kind, count) in kinds {
        for (other_kind, other_count) in kinds.into_iter().filter(|&(other, _)| other != kind) {
            check_rank(reduction(kind, count), |other| *other = reduction(other_kind, other_count), "call");
        }
    }
}

/// Checks a call in which replica 2 of three differs.
fn check_replica(nest: Nest<Leaf>, call: NestCall, does: impl FnOnce(NestCase) -> ReplicaDoes) {
    let implementation = Implementation::Auto;
    let (caller, grains, bytes_per_pack, then) = (Caller::Replica, None, 0, Then::Keep);
    let case = NestCase { size: 3, grains, nest, call, caller, implementation, bytes_per_pack, then };
    let case = ReplicaDeviation { does: does(case.clone()), case, odd: 2 };
    STRATEGIES.iter().try_for_each(|&strategy| check_case(strategy, &case, compare::replica_deviation)).unwrap();
}

/// Found by `one_replica_does_otherwise`: a call on a nest without leaves had no step in which a
/// failure was noticed.
#[test]
fn a_nest_without_leaves_is_a_call_too() {
    for call in [NestCall::Broadcast(0), NestCall::ReduceScatter(ReduceOp::Mean), NestCall::Gather(0)] {
        check_replica(Nest::List(vec![]), call, |_| ReplicaDoes::Fails);
    }
}

fn leaf(sparse: bool) -> Nest<Leaf> {
    Nest::Leaf(Leaf { dtype: DType::F32, shapes: vec![vec![4, 3]; 3], sparse, seed: 8 })
}

/// Found by `one_replica_does_otherwise`: a sum of sparse rows on one replica and a mean on another
/// succeeded.
#[test]
fn another_operation_on_sparse_rows() {
    let mean = |case| NestCase { call: NestCall::Reduce(ReduceOp::Mean, vec![]), ..case };
    let call = NestCall::Reduce(ReduceOp::Sum, vec![]);
    check_replica(leaf(true), call, |case| ReplicaDoes::Calls(Box::new(mean(case)), "op"));
}

/// The error named the counts.
#[test]
fn indices_of_another_type() {
    let Nest::Leaf(narrow) = leaf(true) else { unreachable!() };
    let wide = Nest::Leaf(Leaf { seed: narrow.seed ^ 1, ..narrow });
    let call = NestCall::Reduce(ReduceOp::Sum, vec![]);
    check_replica(leaf(true), call, |case| ReplicaDoes::Calls(Box::new(NestCase { nest: wide, ..case }), "value"));
}

/// Strategies combined such rows, and panicked.
#[test]
fn indices_of_another_type_in_the_cross_replica_context() {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let rows = |indices| IndexedSlices::new(Tensor::from([[1.0f32]]), indices, Some(vec![3, 1])).unwrap();
    let value = PerReplica::new(vec![rows(Tensor::from([0i64])), rows(Tensor::from([0i32]))]);
    for error in [strategy.reduce("sum", &value, None).unwrap_err(), strategy.gather(&value, 0).unwrap_err()] {
        assert!(matches!(error, Error::Mismatch { replica: 1, .. }), "{error}");
    }
}

/// Found by `one_replica_does_otherwise`: the error named the leaf, whose shapes are equal.
#[test]
fn another_axis() {
    let other = |case| NestCase { call: NestCall::Gather(1), ..case };
    check_replica(leaf(false), NestCall::Gather(0), |case| ReplicaDoes::Calls(Box::new(other(case)), "axis"));
}

/// Each pack of tensors is one step. So replicas with different limits succeed only if the packs
/// are the same.
#[test]
fn packs_of_another_size() {
    let counts = [1, 0, 2, 1, 40, 3];
    let tensors = || {
        let tensor = |i: usize| {
            if i.is_multiple_of(2) { Tensor::from(vec![1f32; counts[i]]) } else { Tensor::from(vec![1i64; counts[i]]) }
        };
        (0..counts.len()).map(tensor).collect::<Vec<_>>()
    };
    let sizes: Vec<(DType, usize)> =
        (tensors().iter()).map(|tensor| (tensor.dtype(), tensor.count() * tensor.dtype().size())).collect();
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let limits = [0, 1, 4, 8, 12, 16, 32, 172, 4096, usize::MAX];
    for (one, other) in limits.iter().flat_map(|&one| limits.map(|other| (one, other))) {
        let result = strategy.run(|replica| {
            let bytes = if replica.replica_id_in_sync_group() == 0 { one } else { other };
            replica.all_reduce_with(ReduceOp::Sum, tensors(), CommunicationOptions::new().bytes_per_pack(bytes))
        });
        match (packs(&sizes, one) == packs(&sizes, other), &result) {
            (true, Ok(_)) | (false, Err(Error::Mismatch { .. })) => {}
            (same, result) => panic!("{one} and {other} bytes, of the same plan: {same}; the run gave {result:?}"),
        }
    }
}
