//! The cases of a device.

use super::{AlongCase, Case, ConcatCase, ElementsCase, FoldCase, Route, Work};
use consonance_kernels::digest::mix;
use consonance_spec::{Class, DType, ReduceOp};

/// The bytes of a vector, the threads of a warp and of a block, as the kernels use them.
const VECTOR: usize = 16;
const WARP: usize = 32;
const BLOCK: usize = 256;

/// The most sources of a fold.
const SOURCES: usize = 9;

/// The offsets of a case's buffers: each begins at a vector, each one element after one, or each
/// one element later than the one before.
const OFFSETS: [&[usize]; 3] = [&[0], &[1], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]];

/// The sizes before, along and after the axis, and the numbers of replicas.
const OUTER: [usize; 2] = [1, 2];
const AXIS: [usize; 12] = [1, 2, 31, 32, 33, 65, 4095, 4096, 4097, 8193, 65_536, 65_537];
const INNER: [usize; 3] = [1, 3, 33];
const REPLICAS: [usize; 2] = [1, 3];

/// Limit on the elements of a tensor: more are at no other edge.
const LONGEST: usize = 140_000;

/// Returns every case whose buffers have at most `most` elements: each element type, operation that
/// is defined on it, number of sources up to 9, place of the results and alignment, with counts at
/// each edge of a vector, a warp, a block and a grid.
pub fn cases(most: usize, seed: u64) -> Vec<Case> {
    let defined = || {
        let pairs = DType::ALL.iter().flat_map(|&dtype| ReduceOp::ALL.map(|op| (dtype, op)));
        pairs.filter(|(dtype, op)| op.result(*dtype).is_some())
    };
    let folds = defined().flat_map(|(dtype, op)| folds(dtype, op, most, seed));
    let alongs = defined().flat_map(|(dtype, op)| alongs(dtype, op, most, seed));
    folds.chain(alongs).chain(DType::ALL.iter().flat_map(|&dtype| elements(dtype, most, seed))).collect()
}

/// Returns the counts of elements at the edges of a vector, a warp and a block.
fn edges(dtype: DType) -> impl Iterator<Item = usize> {
    let vector = VECTOR / dtype.size();
    [1, vector, vector * WARP, vector * BLOCK].into_iter().flat_map(|edge| [edge - 1, edge, edge + 1])
}

fn folds(dtype: DType, op: ReduceOp, most: usize, seed: u64) -> Vec<Case> {
    let keeps_size = op.result(dtype).is_some_and(|result| result.size() == dtype.size());
    let grid = 2 * BLOCK * VECTOR / dtype.size();
    let grids = [grid - 1, grid + 1, 3 * grid + 1].map(|count| (count, 2));
    let counts = edges(dtype).map(|count| (count, u32::MAX)).chain(grids).filter(|(count, _)| *count <= most);
    // Apart, to two targets, in place, and in two steps.
    let forms =
        [(1, false, Route::Whole), (2, false, Route::Whole), (1, true, Route::Whole), (1, false, Route::Kept(2))];
    let mut cases = Vec::new();
    for (count, blocks) in counts {
        for sources in 1..=SOURCES {
            let seed = mix(seed, (count * (SOURCES + 1) + sources) as u64);
            for (targets, in_place, route) in forms.into_iter().filter(|(_, in_place, _)| keeps_size || !in_place) {
                for offsets in OFFSETS.map(<[usize]>::to_vec) {
                    let case = FoldCase { op, dtype, sources, targets, count, offsets, in_place, blocks, route, seed };
                    cases.push(Case::Fold(case));
                }
            }
        }
    }
    cases
}

fn alongs(dtype: DType, op: ReduceOp, most: usize, seed: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    for (index, axis) in AXIS.into_iter().enumerate() {
        for (outer, inner) in OUTER.into_iter().flat_map(|outer| INNER.map(|inner| (outer, inner))) {
            if outer * axis * inner > most.min(LONGEST) {
                continue;
            }
            for replicas in REPLICAS {
                let mut axes = vec![axis; replicas];
                // The last of several tensors is shorter, if any element is left.
                axes[replicas - 1] -= usize::from(replicas > 1 && axis > 1);
                let offsets = OFFSETS[(index + inner) % OFFSETS.len()].to_vec();
                let seed = mix(seed, ((outer + axis + inner) * 7 + replicas) as u64);
                cases.push(Case::Along(AlongCase { op, dtype, outer, axes, inner, offsets, blocks: u32::MAX, seed }));
            }
        }
    }
    cases
}

fn elements(dtype: DType, most: usize, seed: u64) -> Vec<Case> {
    const BLOCKS: u32 = 3;
    let mut cases = Vec::new();
    for count in edges(dtype).filter(|count| *count <= most) {
        let seed = mix(seed, count as u64);
        let scales = [false, true].map(|in_place| Work::Scale { factor: 0.25, in_place });
        let compares = [None, Some(count / 2)].map(|changed| Work::Compare { changed });
        let casts = DType::ALL.iter().map(|&to| Work::Cast(to));
        let works = [Work::Fill].into_iter().chain(scales).chain(compares).chain(casts);
        for work in works.filter(|work| work.name() != "scale" || dtype.class() == Class::Float) {
            let case = |offsets: &[usize]| {
                let offsets = [offsets[0], offsets[1 % offsets.len()]];
                Case::Elements(ElementsCase { work, dtype, count, offsets, blocks: BLOCKS, seed })
            };
            cases.extend(OFFSETS.map(case));
        }
        let axes = vec![count, 0, 3, count / 2 + 1];
        let concat = |offsets: &[usize]| {
            let (axes, offsets) = (axes.clone(), offsets.to_vec());
            Case::Concat(ConcatCase { dtype, outer: 2, axes, inner: 1, offsets, blocks: BLOCKS, seed })
        };
        cases.extend(OFFSETS.map(concat));
    }
    cases
}
