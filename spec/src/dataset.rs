//! The distribution of the elements of a data set to the replicas.

use crate::strategy::replica_ids;
use std::ops::Range;

/// Returns the `index`-th of `parts` even blocks of `count` elements. The first `count % parts`
/// have one element more.
///
/// # Panics
/// If `parts` is 0.
pub fn block(count: usize, parts: usize, index: usize) -> Range<usize> {
    let before = |index: usize| index * (count / parts) + index.min(count % parts);
    before(index)..before(index + 1)
}

/// Returns the sizes of the batches into which `worker` divides its elements, repeatedly. There is
/// one size for each replica of all workers.
///
/// The sizes are the even blocks of the global batch, rotated to begin at the worker's first
/// replica. So in a global step, in which every worker takes a batch for each of its replicas, the
/// batches have `global_batch` elements together.
///
/// ```
/// use consonance_spec::dataset::batch_sizes_for_worker;
/// assert_eq!(batch_sizes_for_worker(7, &[2, 2], 0), [2, 2, 2, 1]);
/// assert_eq!(batch_sizes_for_worker(7, &[2, 2], 1), [2, 1, 2, 2]);
/// ```
///
/// # Panics
/// If there is no such worker.
pub fn batch_sizes_for_worker(global_batch: usize, replicas_per_worker: &[usize], worker: usize) -> Vec<usize> {
    let replicas = replicas_per_worker.iter().sum();
    let mut sizes: Vec<usize> = (0..replicas).map(|replica| block(global_batch, replicas, replica).len()).collect();
    sizes.rotate_left(replica_ids(replicas_per_worker, worker).start % replicas.max(1));
    sizes
}

/// The way in which a global batch is dealt to the replicas. The last batch may be partial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deal {
    /// A full batch in even blocks. A partial batch fills the blocks of the first replicas, so the
    /// last replicas may get nothing.
    Packed,
    /// Each batch in chunks of its number of elements divided by the number of replicas, rounded
    /// up. The last replicas may get less or nothing.
    Chunked,
    /// Each batch in even blocks, also a partial one.
    Balanced,
}

impl Deal {
    /// Every variant.
    pub const ALL: [Deal; 3] = [Deal::Packed, Deal::Chunked, Deal::Balanced];
}

/// Returns the elements of a batch of `count` that each replica gets.
///
/// ```
/// use consonance_spec::dataset::{Deal, deal};
/// assert_eq!(deal(Deal::Packed, 6, 8, 2), [0..4, 4..6]);
/// assert_eq!(deal(Deal::Chunked, 6, 8, 2), [0..3, 3..6]);
/// assert_eq!(deal(Deal::Chunked, 4, 4, 3), [0..2, 2..4, 4..4]);
/// assert_eq!(deal(Deal::Balanced, 4, 8, 3), [0..2, 2..3, 3..4]);
/// ```
///
/// # Panics
/// If there are no replicas, or the batch is larger than `global_batch`.
pub fn deal(deal: Deal, count: usize, global_batch: usize, replicas: usize) -> Vec<Range<usize>> {
    assert!(count <= global_batch, "a batch of {count} where {global_batch} are a full one");
    let part = |replica: usize| match deal {
        Deal::Packed => block(global_batch, replicas, replica),
        Deal::Chunked => replica * count.div_ceil(replicas)..(replica + 1) * count.div_ceil(replicas),
        Deal::Balanced => block(count, replicas, replica),
    };
    (0..replicas).map(part).map(|part| part.start.min(count)..part.end.min(count)).collect()
}

/// Returns for each global step the elements of a data set that each replica gets. The elements are
/// in order, one global batch per step.
///
/// # Panics
/// If there are no replicas or `global_batch == 0`.
pub fn steps(how: Deal, elements: usize, global_batch: usize, replicas: usize) -> Vec<Vec<Range<usize>>> {
    let step = |first: usize| {
        let parts = deal(how, global_batch.min(elements - first), global_batch, replicas);
        parts.into_iter().map(|part| first + part.start..first + part.end).collect()
    };
    (0..elements).step_by(global_batch).map(step).collect()
}

/// Returns the numbers from `start` on, each `step` after the one before, as long as they have not
/// reached `stop`.
///
/// # Panics
/// If `step` is 0.
pub fn range(start: i64, stop: i64, step: i64) -> Vec<i64> {
    assert!(step != 0, "a step of 0 reaches nothing");
    let has_reached = |number: i128| if step > 0 { number >= stop.into() } else { number <= stop.into() };
    let mut numbers = Vec::new();
    let mut number = i128::from(start);
    while !has_reached(number) {
        numbers.push(number as i64);
        number += i128::from(step);
    }
    numbers
}

/// Returns the order in which elements of data sets of these sizes are interleaved: the data set
/// and the element in it.
///
/// There are `cycle_length` slots, which have their turns one after the other. In its turn a slot
/// without a data set takes the next one. Then it gives `block_length` elements of it. If there are
/// fewer, the slot loses the data set, and has no other before its next turn.
///
/// ```
/// use consonance_spec::dataset::interleave;
/// // The second data set begins in the first turn of the second slot. The third one follows in the
/// // first slot, which has lost its data set in a turn without elements.
/// let order = interleave(&[2, 4, 1], 2, 2);
/// assert_eq!(order, [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]);
/// ```
///
/// # Panics
/// If a length is 0.
pub fn interleave(sizes: &[usize], cycle_length: usize, block_length: usize) -> Vec<(usize, usize)> {
    assert!(cycle_length > 0 && block_length > 0, "without slots or elements it does not end");
    let mut waiting = 0..sizes.len();
    let mut slots: Vec<Option<(usize, Range<usize>)>> = vec![None; cycle_length];
    let mut order = Vec::new();
    for slot in (0..cycle_length).cycle() {
        if waiting.is_empty() && slots.iter().all(Option::is_none) {
            break;
        }
        if slots[slot].is_none() {
            slots[slot] = waiting.next().map(|dataset| (dataset, 0..sizes[dataset]));
        }
        let Some((dataset, left)) = &mut slots[slot] else { continue };
        let given: Vec<usize> = left.take(block_length).collect();
        order.extend(given.iter().map(|&element| (*dataset, element)));
        if given.len() < block_length {
            slots[slot] = None;
        }
    }
    order
}

/// Returns the order of `count` rows that are shuffled with this seed in this epoch: the row at
/// each place.
///
/// From the last place down, the row at a place is swapped with an earlier row or with itself. The
/// choice is the high word of the product of a random word and the number of choices. The random
/// words are SplitMix64's. The initial state is SplitMix64's first word for `seed`, plus `epoch`.
pub fn shuffled(count: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..count).collect();
    let mut state = split_mix(seed.wrapping_add(GOLDEN)).wrapping_add(epoch);
    for place in (1..count).rev() {
        state = state.wrapping_add(GOLDEN);
        let choices = place as u128 + 1;
        rows.swap(place, ((u128::from(split_mix(state)) * choices) >> 64) as usize);
    }
    rows
}

/// The fraction of the golden ratio in 64 bits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the word of a state in SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom
/// number generators" (2014).
fn split_mix(state: u64) -> u64 {
    let word = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
