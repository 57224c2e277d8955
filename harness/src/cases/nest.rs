//! Collectives on nests of tensors.

use super::{Case, Source, script::SIZES};
use consonance::Implementation;
use consonance_kernels::digest::mix;
use consonance_spec::{DType, ReduceOp, nest::Nest};
use std::collections::BTreeMap;

/// A call on a nest that all replicas make.
#[derive(Clone, Debug)]
pub struct NestCase {
    /// The number of replicas.
    pub size: usize,
    /// The number of grains of the strategy, if it has some: a reduction then takes a value of each
    /// grain. On replicas and the strategy itself only.
    pub grains: Option<usize>,
    /// The value of every replica, or grain.
    pub nest: Nest<Leaf>,
    /// The call.
    pub call: NestCall,
    /// The object on which it is called.
    pub caller: Caller,
    /// The algorithm of all-reduces.
    pub implementation: Implementation,
    /// The number of bytes of tensors that are packed together.
    pub bytes_per_pack: usize,
    /// The operation on resulting sparse rows.
    pub then: Then,
}

/// One leaf on every replica, or of every grain.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// The element type.
    pub dtype: DType,
    /// The shape of each replica, or grain. For sparse rows, the shape of their dense tensor.
    pub shapes: Vec<Vec<usize>>,
    /// Whether the leaf is sparse rows. Their dense tensor has at least one axis.
    pub sparse: bool,
    /// The seed of the elements.
    pub seed: u64,
}

/// A call on a nest.
#[derive(Clone, Debug)]
pub enum NestCall {
    /// Combines all replicas' values, for all replicas; also along axes, in the cross-replica
    /// context.
    Reduce(ReduceOp, Vec<isize>),
    /// Concatenates all values along an axis, for all replicas.
    Gather(isize),
    /// Combines all values, and gives each replica a block along the first axis.
    ReduceScatter(ReduceOp),
    /// Gives one replica's value to all replicas.
    Broadcast(usize),
}

/// The object on which a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The replica's context.
    Replica,
    /// The strategy.
    Strategy,
    /// The strategy, in a merge function.
    Merge,
    /// The strategy, with a batch of the values in the nest. Every other value is reduced to a
    /// device. Reductions without an axis only.
    Batch,
    /// The replica's context, with overlap: the entries of the nest one after the other. Reductions
    /// without an axis only.
    Overlap,
}

impl Caller {
    /// Every caller.
    pub const ALL: [Caller; 5] = [Caller::Replica, Caller::Strategy, Caller::Merge, Caller::Batch, Caller::Overlap];
}

/// An operation on resulting sparse rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing.
    Keep,
    /// Each index once.
    Dedupe,
    /// The tensor.
    Densify,
}

/// Sizes of a dimension.
const DIMENSIONS: &[usize] = &[2, 1, 3, 0, 4, 5, 8, 16, 33];

/// Sizes along a reduced axis: at the edges of lanes and blocks.
const LENGTHS: &[usize] = &[0, 1, 2, 3, 31, 32, 33, 64, 65, 100, 4095, 4096, 4097, 8192, 8193, 12289];

/// The maximum number of elements. With more, the spec takes longer than the extra coverage is
/// worth.
const MOST: usize = 20_000;

/// The maximum number of elements of most cases. With more, a fuzzer tries fewer cases.
const USUALLY: usize = 1_000;

/// Returns the maximum number of elements of a case.
fn most(source: &mut Source<'_>) -> usize {
    if source.once_in(8) { MOST } else { USUALLY }
}

const OPS: &[ReduceOp] = &ReduceOp::ALL;

/// Grains of each replica. Some replicas have one more.
const GRAINS: &[Option<usize>] = &[None, Some(4), None, Some(2), None, Some(1), Some(7)];

impl Case for NestCase {
    fn read(source: &mut Source<'_>) -> NestCase {
        NestCase::read_on(source, 1, &Caller::ALL)
    }
}

impl NestCase {
    /// Returns a case of at least `fewest` replicas, on one of `callers`.
    pub(super) fn read_on(source: &mut Source<'_>, fewest: usize, callers: &[Caller]) -> NestCase {
        let size = source.pick(SIZES).max(fewest);
        let axis = source.pick(&[0, 0, 0, -1, 1, -2, 2]);
        let op = source.pick(OPS);
        let caller = source.pick(callers);
        let call = match (caller, source.below(6)) {
            (Caller::Replica, 0) => NestCall::ReduceScatter(op),
            (Caller::Replica, 1) => NestCall::Broadcast(source.below(size)),
            (Caller::Strategy | Caller::Merge, 0 | 1) => NestCall::Reduce(op, vec![axis]),
            (Caller::Replica | Caller::Strategy | Caller::Merge, 2 | 3) => NestCall::Gather(axis),
            (Caller::Replica | Caller::Strategy | Caller::Merge | Caller::Batch | Caller::Overlap, _) => {
                NestCall::Reduce(op, vec![])
            }
        };
        // One byte chooses both, so that inputs from before grains still make the same calls.
        let choice = source.below(256);
        let implementation = [Implementation::Auto, Implementation::OneShot, Implementation::TwoShot][choice % 3];
        let takes_grains = matches!((caller, &call), (Caller::Replica | Caller::Strategy, NestCall::Reduce(..)));
        let grains = GRAINS[choice / 3 % GRAINS.len()].filter(|_| takes_grains).map(|each| each * size + choice % size);
        let bytes_per_pack = source.pick(&[64 << 10, 0, 1, 16, 80, 100, 1000]);
        let contributions = grains.unwrap_or(size);
        let nest = tree(source, 2, &mut |source| Leaf::read(source, size, &call).of_each(contributions, &call));
        let then = source.pick(&[Then::Keep, Then::Dedupe, Then::Densify]);
        NestCase { size, grains, nest, call, caller, implementation, bytes_per_pack, then }
    }

    /// Returns the number of values that are reduced.
    pub fn contributions(&self) -> usize {
        self.grains.unwrap_or(self.size)
    }
}

/// A reduction of one tensor along axes, with sizes at the edges of the canonical order.
#[derive(Clone, Debug)]
pub struct AxisCase(pub NestCase);

impl Case for AxisCase {
    fn read(source: &mut Source<'_>) -> AxisCase {
        let size = source.pick(SIZES);
        let op = source.pick(OPS);
        let dtype = dtype(source, op);
        let rank = 1 + source.below(4);
        let mut axes: Vec<isize> = (0..rank as isize).filter(|_| !source.once_in(2)).collect();
        let long = axes.first().copied().unwrap_or(0) as usize;
        let shape: Vec<usize> = (0..rank).map(|_| source.pick(&[1, 2, 3, 0, 5])).collect();
        let rest: usize = (0..rank).filter(|&axis| axis != long).map(|axis| shape[axis]).product();
        let most = most(source);
        let lengths = &LENGTHS[..LENGTHS.partition_point(|length| length * rest * size <= 2 * most)];
        let shapes = (0..size).map(|_| {
            let mut shape = shape.clone();
            shape[long] = if axes.is_empty() { shape[long] } else { source.pick(lengths) };
            shape
        });
        let leaf = Leaf { dtype, shapes: shapes.collect(), sparse: false, seed: source.seed() };
        // Neither the order of the axes nor the end from which they are counted matters.
        if source.once_in(2) {
            axes.reverse();
        }
        if source.once_in(2) {
            axes.iter_mut().for_each(|axis| *axis -= rank as isize);
        }
        AxisCase(NestCase {
            size,
            grains: None,
            nest: Nest::Leaf(leaf),
            call: NestCall::Reduce(op, axes),
            caller: Caller::Strategy,
            implementation: Implementation::Auto,
            bytes_per_pack: 0,
            then: Then::Keep,
        })
    }
}

impl Leaf {
    fn read(source: &mut Source<'_>, size: usize, call: &NestCall) -> Leaf {
        let op = match call {
            NestCall::Reduce(op, _) | NestCall::ReduceScatter(op) => *op,
            NestCall::Gather(_) | NestCall::Broadcast(_) => ReduceOp::Min,
        };
        let dtype = dtype(source, op);
        let rank = 1 + source.below(4);
        let mut shape: Vec<usize> = (0..rank).map(|_| source.pick(DIMENSIONS)).collect();
        let most = most(source);
        while shape.iter().product::<usize>() * size > most / 4 {
            shape.pop();
        }
        if source.once_in(8) {
            shape.clear();
        }
        let sparse = !shape.is_empty() && source.once_in(4);
        if let (NestCall::ReduceScatter(_), Some(first)) = (call, shape.first_mut()) {
            // Nearly always even blocks.
            *first = *first * size + usize::from(source.once_in(16));
        }
        Leaf { dtype, shapes: vec![shape], sparse, seed: source.seed() }.of_each(size, call)
    }

    /// Returns a leaf of so many replicas or grains, whose shapes differ along the axes of the
    /// call.
    fn of_each(&self, count: usize, call: &NestCall) -> Leaf {
        let ragged: &[isize] = match call {
            NestCall::Gather(axis) => &[*axis],
            NestCall::Reduce(_, axes) => axes,
            NestCall::ReduceScatter(_) | NestCall::Broadcast(_) => &[],
        };
        let shapes = (0..count).map(|number| {
            let mut shape = self.shapes[0].clone();
            for &axis in ragged {
                let axis = if axis < 0 { axis + shape.len() as isize } else { axis };
                if let Some(dimension) = usize::try_from(axis).ok().and_then(|axis| shape.get_mut(axis)) {
                    *dimension = DIMENSIONS[mix(self.seed, number as u64) as usize % DIMENSIONS.len()];
                }
            }
            shape
        });
        Leaf { shapes: shapes.collect(), ..*self }
    }
}

/// Returns a dtype, nearly always one on which `op` is defined.
fn dtype(source: &mut Source<'_>, op: ReduceOp) -> DType {
    let defined: Vec<DType> = DType::ALL.iter().copied().filter(|dtype| op.result(*dtype).is_some()).collect();
    if source.once_in(16) { source.pick(DType::ALL) } else { source.pick(&defined) }
}

/// Returns a leaf, or a list or map of up to four nests, of at most `depth` levels.
fn tree(source: &mut Source<'_>, depth: usize, leaf: &mut impl FnMut(&mut Source<'_>) -> Leaf) -> Nest<Leaf> {
    let kind = if depth == 0 { 0 } else { source.below(4) };
    if kind < 2 {
        return Nest::Leaf(leaf(source));
    }
    let items: Vec<Nest<Leaf>> = (0..source.below(5)).map(|_| tree(source, depth - 1, leaf)).collect();
    match kind {
        2 => Nest::List(items),
        _ => Nest::Map(BTreeMap::from_iter(items.into_iter().enumerate().map(|(i, item)| (format!("key{i}"), item)))),
    }
}
