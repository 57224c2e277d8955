//! Compares reductions of the nodes of several owners with the spec, bit for bit.

use super::{
    Accumulation, Node, Part, Reducer, Shape, Source, nodes,
    program::{Operand, Program},
    tests::expected,
};
use crate::{
    cpu::{
        cache_hints::{CacheHints, Locality},
        isa::Isa,
    },
    memory::{HostBufMut, HostMemory},
};
use consonance_spec::{
    DType, ReduceOp, bf16, f16, for_each_dtype, order,
    sample::{Sample, samples},
};
use std::{collections::BTreeSet, ops::Range};

/// Counts on each side of a tile and of several tiles. A room has 512 bytes in tests, so a tile 32
/// to 512 elements.
const COUNTS: [usize; 8] = [0, 1, 5, 33, 130, 257, 519, 1100];

/// Numbers that look random and are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 >> 33) as usize) % bound
    }

    /// Returns the owner of each of `n` leaves: of runs, or of any leaves.
    fn owners(&mut self, n: usize) -> Vec<usize> {
        let many = 1 + self.below(n.min(8));
        let mut owners: Vec<usize> = (0..n).map(|_| self.below(many)).collect();
        if self.below(2) == 0 {
            owners.sort_unstable();
        }
        owners
    }
}

/// Returns the nodes of each owner.
fn divided(owners: &[usize]) -> Vec<Vec<Range<usize>>> {
    let runs = |owner: usize| -> Vec<Range<usize>> {
        (0..owners.len()).filter(|&leaf| owners[leaf] == owner).map(|leaf| leaf..leaf + 1).collect()
    };
    (0..=owners.iter().copied().max().unwrap_or(0)).map(|owner| nodes(owners.len(), &runs(owner))).collect()
}

#[test]
fn nodes_are_those_of_the_spec() {
    let mut random = Random(1);
    for round in 0..600 {
        let n = random.below(70);
        let few = 1 + random.below(4);
        let leaves: BTreeSet<usize> = (0..n).filter(|_| random.below(few) == 0).collect();
        let runs: Vec<Range<usize>> = leaves.iter().map(|&leaf| leaf..leaf + 1).collect();
        assert_eq!(nodes(n, &runs), order::nodes(n, &leaves), "round {round}: {leaves:?} of {n}");
        let (start, end) = (random.below(n + 1), random.below(n + 1));
        assert_eq!(nodes(n, std::slice::from_ref(&(start..end))), order::nodes(n, &(start..end).collect()));
    }
    assert_eq!(nodes(usize::MAX, &[0..1, 1..4, 6..7]), [0..4, 6..7]);
}

#[test]
#[should_panic(expected = "in ascending order")]
fn overlapping_leaves_are_refused() {
    nodes(8, &[0..3, 2..4]);
}

fn node(leaves: Range<usize>, part: Part) -> Node {
    Node { leaves, part }
}

/// Returns the nodes, of which the single leaves are elements.
fn stored(nodes: &[Range<usize>]) -> Vec<Node> {
    let part = |leaves: &Range<usize>| if leaves.len() == 1 { Part::Elements } else { Part::Accumulators };
    nodes.iter().map(|leaves| node(leaves.clone(), part(leaves))).collect()
}

#[test]
fn only_a_cut_through_the_tree_has_a_shape() {
    let sum = Reducer::new(ReduceOp::Sum, DType::F32).unwrap();
    for (n, nodes) in [
        (0, Vec::new()),
        (1, Vec::new()),
        (0, vec![(0, 0)]),
        (1, vec![(0, 1), (0, 1)]),
        (2, vec![(0, 1)]),
        (2, vec![(0, 1), (0, 1), (1, 2)]),
        (2, vec![(0, 2), (2, 3)]),
        (3, vec![(0, 2)]),
        (3, vec![(0, 1), (1, 3)]),
        (4, vec![(0, 2), (1, 3), (3, 4)]),
        (4, vec![(0, 1), (1, 1), (1, 2), (2, 4)]),
        (5, vec![(0, 2), (2, 5)]),
        (usize::MAX, vec![(0, 4)]),
    ] {
        let nodes: Vec<Range<usize>> = nodes.into_iter().map(|(start, end)| start..end).collect();
        assert!(sum.shape(n, &stored(&nodes)).is_none(), "{nodes:?} of {n}");
    }
    assert!(sum.shape(2, &[node(0..2, Part::Elements)]).is_none(), "two leaves as one element");
    assert!(sum.shape(2, &[node(0..2, Part::Accumulators)]).is_some());
    assert!(sum.shape(3, &stored(&[2..3, 0..2])).is_some(), "the order has no meaning");
}

#[test]
fn leaves_alone_are_one_step() {
    for n in 1..200 {
        let leaves: Vec<Range<usize>> = (0..n).map(|leaf| leaf..leaf + 1).collect();
        for is_plain in [true, false] {
            let program = Program::new(n, &stored(&leaves), is_plain).unwrap();
            assert_eq!((program.steps.len(), program.rooms), (1, 0), "{n} leaves");
            assert_eq!(program.steps[0].operands, (0..n).map(Operand::Source).collect::<Vec<Operand>>());
        }
    }
}

#[test]
fn a_program_reads_each_source_once_and_needs_few_rooms() {
    let mut random = Random(7);
    for _ in 0..400 {
        let n = 1 + random.below(300);
        let all = stored(&divided(&random.owners(n)).concat());
        let program = Program::new(n, &all, random.below(2) == 0).unwrap();
        let mut read: Vec<usize> = Vec::new();
        for step in &program.steps {
            for operand in &step.operands {
                match operand {
                    Operand::Source(source) => read.push(*source),
                    Operand::Room(room) => assert!(*room < program.rooms),
                }
            }
        }
        read.sort_unstable();
        assert_eq!(read, (0..all.len()).collect::<Vec<usize>>());
        // A step has eight rooms at most, and a tree of 300 leaves three such steps above each
        // other.
        assert!(program.rooms <= 24, "{} rooms for {} nodes of {n}", program.rooms, all.len());
    }
}

/// The way of the owners to a result: the right one, or one with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Right,
    /// Each owner adds its leaves one after the other.
    InSequence,
    /// Each node is rounded, and widened again.
    RoundedEarly,
    /// Each owner divides by the number of its leaves, and then all by the number of owners.
    DividedByOwner,
}

/// Returns the accumulators of sources that are `n` contributions.
fn keep(reducer: Reducer, n: usize, sources: &[Source<'_>], count: usize, shift: usize) -> Vec<u8> {
    let part = |source: &Source<'_>| match source {
        Source::Elements(_) => Part::Elements,
        Source::Accumulators(_) => Part::Accumulators,
    };
    let all: Vec<Node> = (0..).zip(sources).map(|(leaf, source)| node(leaf..leaf + 1, part(source))).collect();
    let bytes = reducer.accumulator_bytes(count);
    let mut room = vec![0xa5; shift + bytes + 16];
    reducer.shape(n, &all).unwrap().keep(sources, &mut room[shift..][..bytes]);
    assert!(room[..shift].iter().chain(&room[shift + bytes..]).all(|byte| *byte == 0xa5), "beside {reducer:?}");
    room.truncate(shift + bytes);
    room
}

/// Returns the result of `inputs`, leaf `i` of which is with `owners[i]`.
fn reduced<T: Sample, O: Sample>(
    way: Way,
    reducer: Reducer,
    inputs: &[Vec<T>],
    owners: &[usize],
    random: &mut Random,
) -> Vec<u64> {
    let (n, count) = (inputs.len(), inputs[0].len());
    let element = |leaf: usize| Source::Elements(inputs[leaf].as_slice().into());
    let finish = |shape: &Shape, sources: &[Source<'_>], divisor: usize, shift: usize| -> Vec<O> {
        let mut result = vec![O::default(); shift + count + 3];
        shape.finish(sources, &mut HostBufMut::from(&mut result[shift..][..count]), divisor as u64);
        let beside = [&result[..shift], &result[shift + count..]].concat();
        assert!(beside.iter().all(|element| element.key() == O::default().key()), "beside {reducer:?}");
        result[shift..][..count].to_vec()
    };
    let mut all: Vec<Node> = Vec::new();
    // The accumulators of each node, or nothing for elements.
    let mut values: Vec<Option<(usize, Vec<u8>)>> = Vec::new();
    for own in divided(owners) {
        let leaves: Vec<usize> = own.iter().cloned().flatten().collect();
        if way == Way::DividedByOwner && !leaves.is_empty() {
            let sources: Vec<Source<'_>> = leaves.iter().map(|&leaf| element(leaf)).collect();
            let singles: Vec<Node> = (0..leaves.len()).map(|leaf| node(leaf..leaf + 1, Part::Elements)).collect();
            let shape = reducer.shape(leaves.len(), &singles).unwrap();
            let mean = finish(&shape, &sources, leaves.len(), 0);
            let mean: Vec<T> = mean.iter().map(|mean| T::any(mean.key())).collect();
            values.push(Some((0, keep(reducer, 1, &[Source::Elements(mean.as_slice().into())], count, 0))));
            all.push(node(all.len()..all.len() + 1, Part::Accumulators));
            continue;
        }
        for leaves in own {
            let (shift, is_kept) = (random.below(3), random.below(3) == 0);
            let sources: Vec<Source<'_>> = leaves.clone().map(element).collect();
            let value = match way {
                Way::InSequence => {
                    let mut sum = keep(reducer, 1, &sources[..1], count, 0);
                    for source in &sources[1..] {
                        sum = keep(reducer, 2, &[Source::Accumulators(&sum), *source], count, 0);
                    }
                    Some((0, sum))
                }
                Way::RoundedEarly => {
                    let singles: Vec<Node> = (0..leaves.len()).map(|l| node(l..l + 1, Part::Elements)).collect();
                    let rounded = finish(&reducer.shape(leaves.len(), &singles).unwrap(), &sources, 1, 0);
                    let rounded: Vec<T> = rounded.iter().map(|element| T::any(element.key())).collect();
                    Some((0, keep(reducer, 1, &[Source::Elements(rounded.as_slice().into())], count, 0)))
                }
                Way::Right | Way::DividedByOwner if leaves.len() == 1 && !is_kept => None,
                Way::Right | Way::DividedByOwner => Some((shift, keep(reducer, leaves.len(), &sources, count, shift))),
            };
            all.push(node(leaves, if value.is_some() { Part::Accumulators } else { Part::Elements }));
            values.push(value);
        }
    }
    let sources: Vec<Source<'_>> = all
        .iter()
        .zip(&values)
        .map(|(node, value)| match value {
            Some((shift, bytes)) => Source::Accumulators(&bytes[*shift..]),
            None => element(node.leaves.start),
        })
        .collect();
    let n = if way == Way::DividedByOwner { all.len() } else { n };
    let result = finish(&reducer.shape(n, &all).unwrap(), &sources, n, random.below(3));
    result.into_iter().map(Sample::key).collect()
}

fn check_type<T: Sample<Mean: Sample>>() {
    let mut random = Random(3);
    for op in ReduceOp::ALL.into_iter().filter(|op| op.result(T::DTYPE).is_some()) {
        for n in [1, 2, 3, 5, 8, 8, 9, 12, 16, 23, 40] {
            let owners = random.owners(n);
            let inputs: Vec<Vec<T>> =
                (0..n).map(|k| samples(k as u64 + 1, COUNTS[random.below(COUNTS.len())])).collect();
            let count = inputs[0].len();
            let inputs: Vec<Vec<T>> = (0..n).map(|k| samples(k as u64 + 1, count)).collect();
            let expected = expected(op, &inputs);
            for isa in Isa::available() {
                let reducer = Reducer::with_isa(op, T::DTYPE, isa).unwrap();
                let result = if reducer.output() == reducer.input() {
                    reduced::<T, T>(Way::Right, reducer, &inputs, &owners, &mut random)
                } else {
                    reduced::<T, T::Mean>(Way::Right, reducer, &inputs, &owners, &mut random)
                };
                assert_eq!(result, expected, "{reducer:?}, leaves with {owners:?}, count {count}");
            }
        }
    }
}

macro_rules! check_types {
    ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => { $(check_type::<$type>();)* };
}

#[test]
fn nodes_of_any_owners_have_the_bits_of_the_spec() {
    for_each_dtype!(check_types);
}

/// Returns in how many of some divisions of 8 leaves the results of `way` have the bits of the
/// spec. In half of the leaves an element is small, in the others so large that a sum loses the
/// small ones, until a large one of the other sign is added.
fn rights<T: Sample<Mean: Sample>>(way: Way, op: ReduceOp, from: fn(f64) -> T) -> usize {
    let mut random = Random(5);
    let mut inexact = || match random.below(4) {
        0 => from(32768.0),
        1 => from(-32768.0),
        _ => from((1.0 + random.below(1 << 31) as f64 / 3e9) / 1024.0),
    };
    let inputs: Vec<Vec<T>> = (0..8).map(|_| (0..130).map(|_| inexact()).collect()).collect();
    let expected = expected(op, &inputs);
    let reducer = Reducer::new(op, T::DTYPE).unwrap();
    let divisions = [vec![0, 0, 0, 0, 1, 1, 1, 1], vec![0, 0, 0, 0, 1, 1, 1, 2], vec![0, 1, 1, 1, 1, 1, 1, 1]];
    let is_right = |owners: &&Vec<usize>| reduced::<T, T>(way, reducer, &inputs, owners, &mut Random(1)) == expected;
    divisions.iter().filter(is_right).count()
}

/// Returns [`rights`] for f16, bf16, f32 and f64.
fn rights_of_floats(way: Way, op: ReduceOp) -> [usize; 4] {
    [
        rights(way, op, f16::from_f64),
        rights(way, op, bf16::from_f64),
        rights(way, op, |x| x as f32),
        rights(way, op, |x| x),
    ]
}

#[test]
fn each_planted_fault_is_found() {
    for op in [ReduceOp::Sum, ReduceOp::Mean] {
        assert_eq!(rights_of_floats(Way::Right, op), [3; 4], "{op}");
        assert_eq!(rights_of_floats(Way::InSequence, op), [0; 4], "leaves in sequence, {op}");
        // The accumulators of f32 and f64 are as wide as the elements.
        assert_eq!(rights_of_floats(Way::RoundedEarly, op), [0, 0, 3, 3], "nodes rounded early, {op}");
    }
    // A division by a power of two is exact, so f32 and f64 have the right bits if two owners have
    // four leaves each.
    assert_eq!(rights_of_floats(Way::DividedByOwner, ReduceOp::Mean), [0, 0, 1, 1], "a mean divided by owner");
}

/// Adds leaves to the accumulators in their own memory, as a binary counter does.
#[test]
fn accumulators_take_leaves_in_place() {
    let reducer = Reducer::new(ReduceOp::Sum, DType::Bf16).unwrap();
    let inputs: Vec<Vec<bf16>> = (0..4).map(|k| samples(k as u64 + 1, 777)).collect();
    let source = |leaf: usize| Source::Elements(inputs[leaf].as_slice().into());
    let mut sum = keep(reducer, 2, &[source(0), source(1)], 777, 0);
    let chain = [node(0..2, Part::Accumulators), node(2..3, Part::Elements), node(3..4, Part::Elements)];
    let shape = reducer.shape(4, &chain).unwrap();
    let own = sum.as_mut_ptr();
    // SAFETY: the inputs have 777 elements, the accumulators as many; the target is the first
    // source.
    unsafe {
        let sources = [own.cast_const(), inputs[2].as_ptr().cast(), inputs[3].as_ptr().cast()];
        shape.run(&sources, &[own], 777, None, CacheHints::from(Locality::Near));
    }
    // Of two NaN the compiler chooses the one that is kept.
    let expected = keep(reducer, 4, &[source(0), source(1), source(2), source(3)], 777, 0);
    assert_eq!(keys(ReduceOp::Sum, &sum), keys(ReduceOp::Sum, &expected));
}

/// Returns the keys of the accumulators of bf16: floats of 32 bits for sums, 16 bits for others.
fn keys(op: ReduceOp, accumulators: &[u8]) -> Vec<u64> {
    if matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
        return accumulators.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes).key()).collect();
    }
    accumulators.as_chunks().0.iter().map(|bytes| u16::from_ne_bytes(*bytes).key()).collect()
}

#[test]
fn an_accumulation_has_the_nodes_of_its_leaves() {
    let mut random = Random(11);
    for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max] {
        for _ in 0..40 {
            let of = 1 + random.below(40);
            let start = random.below(of + 1);
            let run = start..start + random.below(of + 1 - start);
            let count = COUNTS[random.below(COUNTS.len())];
            let inputs: Vec<Vec<bf16>> = (0..of).map(|k| samples(k as u64 + 1, count)).collect();
            let source = |leaf: usize| Source::Elements(inputs[leaf].as_slice().into());
            let reducer = Reducer::new(op, DType::Bf16).unwrap();
            let bytes = Accumulation::bytes(&reducer, count, run.clone(), of).unwrap();
            let mut sum = Accumulation::new(reducer, count, run.clone(), of, HostMemory::zeroed(DType::U8, bytes));
            for _step in 0..2 {
                for leaf in run.clone() {
                    sum.add(inputs[leaf].as_slice().into());
                    let added = run.start..leaf + 1;
                    assert_eq!(sum.nodes(), order::nodes(of, &added.clone().collect()), "{added:?} of {of}");
                    let value = |node: &Range<usize>| {
                        let sources: Vec<Source<'_>> = node.clone().map(source).collect();
                        keep(reducer, node.len(), &sources, count, 0)
                    };
                    let values: Vec<u8> = sum.nodes().iter().flat_map(value).collect();
                    assert!(keys(op, sum.values()) == keys(op, &values), "{op} of {added:?} of {of}, count {count}");
                }
                sum.clear();
                assert_eq!((sum.nodes().len(), sum.values().len(), sum.added()), (0, 0, 0));
            }
        }
    }
}

/// Checks nodes and a result beyond the caches, with each hint. The elements repeat, so the spec
/// has to compute few of them.
#[test]
fn joined_accumulations_are_one_of_their_elements() {
    let begun = |reducer: Reducer, count| {
        let bytes = Accumulation::bytes(&reducer, count, 1..6, 7).unwrap();
        Accumulation::new(reducer, count, 1..6, 7, HostMemory::zeroed(DType::U8, bytes))
    };
    let bytes: Vec<u8> = (0..5 * 36u32).map(|i| (i * 37 % 251) as u8).collect();
    for (op, dtype) in [(ReduceOp::Mean, DType::Bf16), (ReduceOp::Xor, DType::U16), (ReduceOp::Mean, DType::I16)] {
        let reducer = Reducer::new(op, dtype).unwrap();
        let mut whole = begun(reducer, 18);
        let mut parts = [1, 0, 17].map(|count| begun(reducer, count));
        for leaf in bytes.chunks(36) {
            let leaf = HostMemory::from_bytes(dtype, leaf.to_vec());
            let mut joined = begun(reducer, 18);
            joined.join(&parts.each_ref());
            assert_eq!((joined.nodes(), joined.values()), (whole.nodes(), whole.values()), "{op} of {dtype}");
            joined.add(leaf.as_buf());
            whole.add(leaf.as_buf());
            assert_eq!((joined.nodes(), joined.values()), (whole.nodes(), whole.values()), "{op} of {dtype}");
            for (part, range) in parts.iter_mut().zip([0..1, 1..1, 1..18]) {
                part.add(leaf.as_buf().slice(range));
            }
        }
    }
}

#[test]
fn long_nodes_have_the_bits_of_the_spec() {
    let (period, count, stream) = (600, 300_001, crate::tuning::Tuning::DEFAULT.stream_bytes);
    assert!(7 * 4 * count >= stream, "{stream} bytes are written past the caches");
    let inputs: Vec<Vec<f32>> = (0..8).map(|k| samples(k as u64 + 1, period)).collect();
    let expected = expected(ReduceOp::Mean, &inputs);
    let long: Vec<Vec<f32>> = inputs.iter().map(|input| input.iter().copied().cycle().take(count).collect()).collect();
    let reducer = Reducer::new(ReduceOp::Mean, DType::F32).unwrap();
    let source = |leaf: usize| Source::Elements(long[leaf].as_slice().into());
    let nodes: Vec<Vec<u8>> = [0..2, 4..6, 6..8]
        .map(|leaves: Range<usize>| keep(reducer, 2, &leaves.map(source).collect::<Vec<_>>(), count, 0))
        .into();
    let all = stored(&[0..2, 2..3, 3..4, 4..6, 6..8]);
    let sources =
        [nodes[0].as_ptr(), long[2].as_ptr().cast(), long[3].as_ptr().cast(), nodes[1].as_ptr(), nodes[2].as_ptr()];
    let shape = reducer.shape(8, &all).unwrap();
    for from in [Locality::Near, Locality::Far, Locality::Taken(1), Locality::Taken(4)] {
        for (first, second) in [(1, 1), (2, 3)] {
            let (mut a, mut b) = (vec![0.0f32; count + 4], vec![0.0f32; count + 4]);
            let targets = [a[first..].as_mut_ptr().cast(), b[second..].as_mut_ptr().cast()];
            // SAFETY: all have `count` elements, and the targets are apart.
            unsafe { shape.run(&sources, &targets, count, Some(8), CacheHints::from(from)) }
            for (result, shift) in [(&a, first), (&b, second)] {
                assert!(result[..shift].iter().chain(&result[shift + count..]).all(|beside| *beside == 0.0));
                let right = |(at, element): (usize, &f32)| element.key() == expected[at % period];
                assert!(result[shift..][..count].iter().enumerate().all(right), "{from:?}, shifts {first}, {second}");
            }
        }
    }
}
