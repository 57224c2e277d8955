//! The canonical order: which partial results meet, so that a result has the same bits on every
//! path.
//!
//! There is one order across contributions, [`fold`], and one inside a tensor, [`fold_along`].
//! Neither depends on an algorithm, a chunk, a thread count, a vector width or a transport.

/// Lanes of a block: lane `j` takes the elements `j`, `j + LANES`, `j + 2 * LANES`, … of it.
///
/// 32 lanes keep every vector width from SSE2 to AVX-512, and a GPU's warp, busy.
pub const LANES: usize = 32;

/// Consecutive elements that are combined in lanes before they meet other blocks.
pub const BLOCK: usize = 4096;

/// Combines contributions by a balanced tree; `None` if there are none.
///
/// The left part is as long as the largest power of two below the whole, so aligned groups of 2, 4,
/// 8, … neighbours may be combined first, wherever they are:
///
/// ```
/// use consonance_spec::order::fold;
/// let names: Vec<String> = ["0", "1", "2", "3", "4"].map(String::from).to_vec();
/// assert_eq!(fold(&names, |a, b| format!("({a}+{b})")).unwrap(), "(((0+1)+(2+3))+4)");
/// ```
pub fn fold<T: Clone>(items: &[T], combine: impl Fn(T, T) -> T + Copy) -> Option<T> {
    match items {
        [] => None,
        [item] => Some(item.clone()),
        _ => {
            let (left, right) = items.split_at(1 << (items.len() - 1).ilog2());
            Some(combine(fold(left, combine)?, fold(right, combine)?))
        }
    }
}

/// Combines the elements of one tensor along an axis; `None` if there are none.
///
/// The elements are cut into blocks of [`BLOCK`]. Within a block each of the [`LANES`] lanes (or of
/// as many as there are elements) takes its elements from the first to the last, then the lanes
/// meet by [`fold`]. The blocks meet by [`fold`].
pub fn fold_along<T: Clone>(elements: &[T], combine: impl Fn(T, T) -> T + Copy) -> Option<T> {
    let blocks: Vec<T> = elements.chunks(BLOCK).filter_map(|block| fold_block(block, combine)).collect();
    fold(&blocks, combine)
}

fn fold_block<T: Clone>(block: &[T], combine: impl Fn(T, T) -> T + Copy) -> Option<T> {
    let lane = |first: usize| block.iter().skip(first).step_by(LANES).cloned().reduce(combine);
    let lanes: Vec<T> = (0..LANES).filter_map(lane).collect();
    fold(&lanes, combine)
}
