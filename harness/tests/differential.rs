//! Compares the runtime with the spec, bit for bit.

mod law;

use consonance::Implementation;
use consonance_harness::{
    cases::{Caller, Case, Collective, Counts, Leaf, Memory, NestCall, NestCase, Runs, Script, Source, Then},
    compare::{self, check, check_case},
    subjects::{GROUPS, Group, STRATEGIES},
};
use consonance_kernels::{
    digest::mix,
    group::plan::{Chunking, Protocol, StepKind, Targets, Topology},
    tuning::Tuning,
};
use consonance_spec::{DType, Kind, ReduceOp, nest::Nest, order::nodes};
use law::check_law;
use std::{mem, ops::Range};

#[test]
fn collectives_on_slices() {
    check_law(1500, |bytes| check(&bytes.0, &GROUPS, compare::script));
}

#[test]
fn messages_between_any_ranks() {
    check_law(1500, |bytes| check(&bytes.0, &GROUPS, compare::messages));
}

#[test]
fn collectives_on_nests() {
    check_law(1500, |bytes| check(&bytes.0, STRATEGIES, compare::nest));
}

#[test]
fn reductions_along_axes() {
    check_law(1500, |bytes| check(&bytes.0, STRATEGIES, compare::axes));
}

/// Checks one call on every kind of group.
fn check_call(size: usize, implementation: Implementation, call: Collective) {
    let script = Script { size, asynchronous: false, implementation, calls: vec![call] };
    GROUPS.iter().try_for_each(|&group| check_case(group, &script, compare::script)).unwrap();
}

/// Returns a call on a nest, with the automatic algorithm and without packs.
fn nest_case(size: usize, nest: Nest<Leaf>, call: NestCall, caller: Caller) -> NestCase {
    let (grains, implementation, bytes_per_pack, then) = (None, Implementation::Auto, 0, Then::Keep);
    NestCase { size, grains, nest, call, caller, implementation, bytes_per_pack, then }
}

fn check_nest(case: &NestCase) {
    check_nest_by(case, |_| true);
}

/// Checks a case on the strategies whose number of workers satisfies `is_meant`.
fn check_nest_by(case: &NestCase, is_meant: impl Fn(usize) -> bool) {
    let subjects =
        STRATEGIES.iter().filter(|subject| (subject.workers)(case.size).is_some_and(|workers| is_meant(workers.len())));
    subjects.copied().try_for_each(|subject| check_case(subject, case, compare::nest)).unwrap();
}

#[test]
fn every_operation_on_every_type() {
    for &dtype in DType::ALL {
        for op in ReduceOp::ALL {
            for (kind, count) in [(Kind::AllReduce, 33), (Kind::ReduceScatter, 11), (Kind::Reduce, 130)] {
                let leaves = || Some(Runs::of_lengths(&[4, 1, 2]));
                for (size, in_place, runs) in
                    [(3, true, None), (8, false, None), (3, true, leaves()), (3, false, leaves())]
                {
                    let (counts, memory) = (Counts::Even(count), Memory::Own);
                    let call =
                        Collective { kind, dtype, op, counts, runs, root: 1, in_place, memory, offset: 1, seed: 6 };
                    check_call(size, Implementation::Auto, call);
                }
            }
        }
    }
}

/// Checks counts around each size at which the protocol or the number of chunks changes. Each group
/// has its own such borders. Buffers are slices, or memory that the group shares.
#[test]
fn counts_around_every_border() {
    let narrow = [(DType::U8, ReduceOp::Xor), (DType::Bf16, ReduceOp::Mean), (DType::F64, ReduceOp::Sum)];
    for &group in GROUPS.iter() {
        for size in [2, 3] {
            let Some(topology) = (group.make)(size)[0].communicator.topology(None) else { continue };
            let largest = [4 * topology.slot_bytes.unwrap_or(0)].into_iter().filter(|&bytes| bytes > 0);
            for border_bytes in topology.borders().into_iter().chain(largest) {
                // With a narrow type the spec would take a minute, because there are so many
                // elements.
                let types = if border_bytes <= 32 << 10 { &narrow[..] } else { &narrow[2..] };
                for &(dtype, op) in types {
                    let border = border_bytes / dtype.size();
                    for count in [border - 1, border, border + 1] {
                        check_count(group, size, dtype, op, count, Memory::Own);
                    }
                    // Between threads all memory is alike, and small data are always staged.
                    if dtype == DType::F64
                        && border_bytes >= topology.tuning.in_place_bytes
                        && topology.slot_bytes.is_some()
                    {
                        check_count(group, size, dtype, op, border + 1, Memory::Shared);
                        check_count(group, size, dtype, op, border + 1, Memory::Mixed(border as u64));
                    }
                }
            }
        }
    }
}

/// Checks that the tested borders include every size at which a call's protocol changes.
#[test]
fn no_border_is_left_out() {
    let threads = Topology { ranks: 2, slot_bytes: None, reads: false, tuning: &Tuning::DEFAULT };
    let slots = [64 << 10, 1 << 10].map(|bytes| Topology { ranks: 3, slot_bytes: Some(bytes), ..threads });
    for topology in [threads].into_iter().chain(slots) {
        let divided = |targets| StepKind::Divided { targets, input_size: 1, output_size: 1 };
        let [to_all, to_one] = [Targets::All, Targets::Root(0)].map(divided);
        let way = |bytes: usize| {
            let steps =
                [topology.moving(bytes, Chunking::one_way(bytes, 1)), topology.gathering(bytes), to_all, to_one];
            let paths = steps.map(|step| mem::discriminant(&topology.protocol(step, bytes, false)));
            (paths, mem::discriminant(&topology.protocol(to_all, bytes, true)), topology.rides_to_all(bytes))
        };
        let (borders, mut changes) = (topology.borders(), (1..200_000).filter(|&bytes| way(bytes) != way(bytes + 1)));
        assert_eq!(changes.find(|bytes| !borders.contains(bytes)), None, "{topology:?}");
    }
}

/// Checks calls in which each rank has `count` elements.
fn check_count(group: Group, size: usize, dtype: DType, op: ReduceOp, count: usize, memory: Memory) {
    let call = |kind, in_place| {
        let is_divided = matches!(kind, Kind::ReduceScatter | Kind::AllToAll);
        let counts = Counts::Even(if is_divided { count / size } else { count });
        let offset = if memory == Memory::Own { 3 } else { 0 };
        Collective { kind, dtype, op, counts, runs: None, root: 1, in_place, memory, offset, seed: 4 }
    };
    let check = |implementation, calls| {
        let script = Script { size, asynchronous: false, implementation, calls };
        check_case(group, &script, compare::script).unwrap();
    };
    let kinds = [Kind::AllReduce, Kind::ReduceScatter, Kind::AllToAll, Kind::Reduce, Kind::Broadcast, Kind::AllGather];
    check(Implementation::Auto, kinds.iter().flat_map(|&kind| [call(kind, true), call(kind, false)]).collect());
    if memory == Memory::Own {
        check(Implementation::OneShot, vec![call(Kind::AllReduce, true)]);
        check(Implementation::TwoShot, vec![call(Kind::AllReduce, false)]);
    }
}

/// Found by thousands of kills: data in shared memory that are longer than all staged data were
/// read only up to the length of the staged data.
#[test]
fn unlike_counts_in_unlike_memory() {
    for (group, turn) in GROUPS.iter().flat_map(|&group| (0..3).map(move |turn| (group, turn))) {
        let lengths = [300_000, 900_000, 50_000].map(|length| length / shortness(group, 3));
        let count = |rank: usize| lengths[(rank + turn) % 3];
        let ragged = || Counts::Ragged((0..3).map(count).collect());
        let pairs = Counts::Pairs((0..3).map(|from| (0..3).map(|to| count(from + to) / 3).collect()).collect());
        for (kind, counts) in [(Kind::AllGather, ragged()), (Kind::Gather, ragged()), (Kind::AllToAll, pairs)] {
            for seed in 0..4 {
                let (dtype, op, memory) = (DType::U8, ReduceOp::Max, Memory::Mixed(seed));
                let counts = counts.clone();
                let (root, runs, in_place, offset) = (1, None, false, 0);
                let call = Collective { kind, dtype, op, counts, runs, root, in_place, memory, offset, seed };
                let script =
                    Script { size: 3, asynchronous: false, implementation: Implementation::Auto, calls: vec![call] };
                check_case(group, &script, compare::script).unwrap();
            }
        }
    }
}

/// Returns how many times as much staging groups of long data have as a group of this kind: its
/// data are as much shorter, and pass through as many windows.
fn shortness(group: Group, size: usize) -> usize {
    let topology = (group.make)(size)[0].communicator.topology(None);
    topology.and_then(|topology| topology.slot_bytes).map_or(1, |bytes| (64 << 10) / bytes)
}

fn random_script(seed: u64, size: usize) -> Script {
    let bytes: Vec<u8> = (0..64).flat_map(|word| mix(seed, word).to_le_bytes()).collect();
    Script::read_for(&mut Source::new(&bytes), size)
}

/// The ways of a reduction of leaves differ for a leaf of each rank, ranks without leaves, and
/// ranks with several nodes.
#[test]
fn random_reductions_have_runs_of_all_kinds() {
    let calls: Vec<Collective> = (0..200).flat_map(|seed| random_script(seed, 3).calls).collect();
    let all: Vec<&Runs> = calls.iter().filter_map(|call| call.runs.as_ref()).collect();
    assert!(20 * all.len() > calls.len(), "{} of {} calls", all.len(), calls.len());
    let nodes = |runs: &Runs, rank: usize| nodes(runs.of, &runs.by_rank[rank].clone().collect()).len();
    let share = |is: &dyn Fn(&Runs) -> bool| (all.iter().filter(|runs| is(runs)).count(), all.len());
    for (some, of) in [
        share(&|runs| runs.by_rank.iter().all(|run| run.len() == 1)),
        share(&|runs| runs.by_rank.iter().any(Range::is_empty)),
        share(&|runs| (0..3).any(|rank| nodes(runs, rank) > 2)),
        share(&|runs| (0..3).any(|rank| runs.by_rank[rank].len() > 3 && nodes(runs, rank) == 1)),
    ] {
        assert!(20 * some > of, "{some} of {of}");
    }
}

#[test]
fn random_reductions_take_means_of_integers_in_all_forms() {
    let scripts: Vec<Script> = (0..3000).map(|seed| random_script(seed, 3)).collect();
    for kind in [Kind::AllReduce, Kind::Reduce, Kind::ReduceScatter] {
        for (has_runs, asynchronous) in [(false, false), (true, false), (true, true)] {
            let is_meant = |call: &&Collective| {
                call.kind == kind && call.is_mean_of_integers() && !call.in_place && call.runs.is_some() == has_runs
            };
            let meant = scripts.iter().filter(|script| script.asynchronous == asynchronous);
            let count = meant.flat_map(|script| &script.calls).filter(is_meant).count();
            assert!(count > 0, "{kind}, leaves: {has_runs}, asynchronous: {asynchronous}");
        }
    }
}

#[test]
fn random_reductions_of_nests_have_grains_on_replicas_and_strategies() {
    let case = |seed| {
        let bytes: Vec<u8> = (0..64).flat_map(|word| mix(seed, word).to_le_bytes()).collect();
        NestCase::read(&mut Source::new(&bytes))
    };
    let cases: Vec<NestCase> = (0..1000).map(case).collect();
    let some = |is: &dyn Fn(&NestCase) -> bool| cases.iter().filter(|case| case.grains.is_some() && is(case)).count();
    let sparse = |case: &NestCase| case.nest.flatten().1.iter().any(|leaf| leaf.sparse);
    for (what, count) in [
        ("on replicas", some(&|case| case.caller == Caller::Replica)),
        ("on strategies", some(&|case| case.caller == Caller::Strategy)),
        ("along an axis", some(&|case| matches!(&case.call, NestCall::Reduce(_, axes) if !axes.is_empty()))),
        ("of sparse rows", some(&sparse)),
        ("several on a replica", some(&|case| case.contributions() > 2 * case.size)),
    ] {
        assert!(count > 10, "{count} of 1000 cases {what}");
    }
}

/// Small staging makes several windows of the few elements of a random call. A fault that only
/// later windows have shows in random calls only then.
#[test]
fn random_calls_pass_through_several_windows() {
    let topologies = GROUPS.iter().filter_map(|group| (group.make)(2)[0].communicator.topology(None));
    let topology = topologies.min_by_key(|topology| topology.slot_bytes.unwrap_or(usize::MAX)).expect("a group");
    let scripts = (0..200).map(|seed| random_script(seed, 2));
    let has_windows = |call: &Collective| {
        let bytes = (0..2).map(|rank| call.counts.of(rank, 0)).max().unwrap_or(0) * call.dtype.size();
        let divided = StepKind::Divided { targets: Targets::All, input_size: 1, output_size: 1 };
        let windows = match topology.protocol(divided, bytes, false) {
            Protocol::Staged(windows) | Protocol::TwoShot(windows) => windows.count,
            Protocol::Inline | Protocol::Message | Protocol::InPlace | Protocol::ProcessRead => 1,
        };
        call.memory == Memory::Own && windows > 1
    };
    let calls: Vec<Collective> = scripts.flat_map(|script| script.calls).collect();
    let several = calls.iter().filter(|call| has_windows(call)).count();
    assert!(20 * several > calls.len(), "{several} of {} calls", calls.len());
}

/// Here each rank has some hundred thousand elements, so that its data pass through usual staging
/// in several windows, too, unless they lie in shared memory.
#[test]
fn random_calls_of_long_data() {
    for (group, seed) in GROUPS.iter().flat_map(|&group| (0..16u64).map(move |seed| (group, seed))) {
        let mut script = random_script(seed, 2 + seed as usize % 3);
        let most = 300_000 / shortness(group, script.size) as u64;
        let long = |rank: usize| (mix(seed, 100 + rank as u64) % most) as usize;
        for call in &mut script.calls {
            if seed % 4 > 0 {
                (call.memory, call.offset) = (Memory::Mixed(seed), 0);
            }
            if matches!(call.kind, Kind::AllGather | Kind::Gather | Kind::Scatter) {
                call.counts = Counts::Ragged(vec![0; script.size]);
            }
            let parts = if call.kind.has_parts() { script.size } else { 1 };
            match &mut call.counts {
                Counts::Even(count) => *count = long(0) / parts,
                Counts::Ragged(counts) => (0..).zip(counts).for_each(|(rank, count)| *count = long(rank) / parts),
                Counts::Pairs(rows) => {
                    (0..).zip(rows.iter_mut().flatten()).for_each(|(pair, count)| *count = long(pair) / parts)
                }
            }
        }
        check_case(group, &script, compare::script).unwrap();
    }
}

/// Found by `collectives_on_slices`: only the root checked whether the operation is defined, and
/// the others went on to execute it.
#[test]
fn an_undefined_operation_of_a_reduce_to_a_root() {
    let counts = Counts::Even(41);
    let (kind, dtype, op, memory) = (Kind::Reduce, DType::F64, ReduceOp::Xor, Memory::Own);
    for runs in [None, Some(Runs::of_lengths(&[2, 0, 1]))] {
        let counts = counts.clone();
        let call = Collective { kind, dtype, op, counts, runs, root: 2, in_place: false, memory, offset: 3, seed: 2 };
        check_call(3, Implementation::Auto, call);
    }
}

/// Found by `collectives_on_nests`: the mean of an empty nest was taken for an in-place mean of
/// integers.
#[test]
fn the_mean_of_a_nest_without_leaves() {
    let call = NestCall::Reduce(ReduceOp::Mean, vec![]);
    check_nest(&nest_case(2, Nest::List(vec![]), call, Caller::Replica));
}

/// Found by `collectives_on_nests`: rows were gathered along the first axis, whatever axis was
/// passed.
#[test]
fn sparse_rows_along_another_axis_than_the_first() {
    for axis in [1, -1, 5] {
        let leaf = Leaf { dtype: DType::F32, shapes: vec![vec![4, 3]; 2], sparse: true, seed: 7 };
        check_nest(&nest_case(2, Nest::Leaf(leaf), NestCall::Gather(axis), Caller::Strategy));
    }
}

/// Found by `collectives_on_nests`: the spec made sparse rows of bool dense if there were no rows.
#[test]
fn no_sparse_rows_of_bool_along_an_axis() {
    let leaf = Leaf { dtype: DType::Bool, shapes: vec![vec![0, 1]; 4], sparse: true, seed: 7 };
    let call = NestCall::Reduce(ReduceOp::And, vec![1]);
    check_nest(&nest_case(4, Nest::Leaf(leaf), call, Caller::Strategy));
}

/// Checks each call that takes sparse rows: with indices of either width, tensors of one to three
/// dimensions, replicas without rows, and rows alone or beside a dense tensor.
#[test]
fn every_call_on_sparse_rows() {
    let calls = |size: usize| {
        [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max]
            .into_iter()
            .flat_map(|op| {
                let reduce = move |axes: &[isize], caller| (NestCall::Reduce(op, axes.to_vec()), caller);
                Caller::ALL.map(|caller| reduce(&[], caller)).into_iter().chain([reduce(&[0], Caller::Strategy)])
            })
            .chain([Caller::Replica, Caller::Strategy, Caller::Merge].map(|caller| (NestCall::Gather(0), caller)))
            .chain([(NestCall::ReduceScatter(ReduceOp::Sum), Caller::Replica)])
            .chain([(NestCall::Broadcast(size - 1), Caller::Replica)])
    };
    let mut seed = 0;
    for size in [1, 2, 3, 5] {
        for (call, caller) in calls(size) {
            for shape in [vec![4], vec![4, 3], vec![1, 2, 3], vec![3, 0], vec![0, 2]] {
                for dtype in [DType::F32, DType::Bf16, DType::I32] {
                    seed += 1;
                    let taller = |replica: usize| match &call {
                        NestCall::Gather(_) => [&[shape[0] + replica], &shape[1..]].concat(),
                        NestCall::Reduce(..) | NestCall::ReduceScatter(_) | NestCall::Broadcast(_) => shape.clone(),
                    };
                    let rows = Leaf { dtype, shapes: (0..size).map(taller).collect(), sparse: true, seed };
                    let tensor = Leaf { sparse: false, ..rows.clone() };
                    let then = [Then::Keep, Then::Dedupe, Then::Densify][seed as usize % 3];
                    let alone = nest_case(size, Nest::Leaf(rows.clone()), call.clone(), caller);
                    // Strategies of several workers run fewer cases, because the workers must meet
                    // for each.
                    let is_meant = |workers| workers == 1 || seed % 8 == 0;
                    check_nest_by(&NestCase { then, ..alone }, is_meant);
                    let list = [rows.clone(), tensor, Leaf { seed: !seed, ..rows }].map(Nest::Leaf);
                    check_nest_by(&nest_case(size, Nest::List(list.into()), call.clone(), caller), is_meant);
                }
            }
        }
    }
}

/// Checks that the bits do not depend on the size of packs.
#[test]
fn every_size_of_packs() {
    let leaf = |dtype, count: usize, seed| Leaf { dtype, shapes: vec![vec![count]; 5], sparse: false, seed };
    let counts = [0, 1, 3, 4, 5, 100, 1023, 1024, 1025, 0];
    let dtypes = [DType::F32, DType::F16, DType::F32, DType::I8, DType::I64];
    let leaves = (0..40).map(|i| Nest::Leaf(leaf(dtypes[i % 5], counts[i * 7 % 10], i as u64)));
    for nest in [Nest::List(leaves.collect()), Nest::List(vec![]), Nest::Leaf(leaf(DType::F32, 0, 1))] {
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            for size in [1, 2, 5] {
                for bytes_per_pack in [0, 1, 16, 4096, usize::MAX] {
                    let case = nest_case(size, nest.clone(), NestCall::Reduce(op, vec![]), Caller::Replica);
                    check_nest(&NestCase { bytes_per_pack, ..case });
                }
            }
        }
    }
}
