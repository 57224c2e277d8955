//! The canonical reduction order: the order in which partial results are combined. With it a result
//! has the same bits on every path.
//!
//! [`fold`] is the order across contributions, and [`fold_along`] the order within a tensor.
//! Neither depends on an algorithm, a chunk, a thread count, a vector width or a transport.

/// The number of lanes of a block. Lane `j` combines the block's elements `j`, `j + LANES`, `j + 2
/// * LANES`, …
///
/// 32 lanes fill the registers of every vector width from SSE2 to AVX-512, and the warp of a GPU.
pub const LANES: usize = 32;

/// The number of consecutive elements in a block. A block is combined in lanes before it is
/// combined with other blocks.
pub const BLOCK: usize = 4096;

/// Combines contributions by a balanced tree. Returns `None` if there are none.
///
/// The left part has the largest power of two below the number of items. So aligned groups of 2, 4,
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

/// Combines the elements of one tensor along an axis. Returns `None` if there are none.
///
/// The elements are divided into blocks of [`BLOCK`]. Within a block, each of the [`LANES`] lanes
/// (fewer if there are fewer elements) combines its elements from the first to the last. The lanes'
/// results are combined by [`fold`], and then the blocks' results by [`fold`].
pub fn fold_along<T: Clone>(elements: &[T], combine: impl Fn(T, T) -> T + Copy) -> Option<T> {
    let blocks: Vec<T> = elements.chunks(BLOCK).filter_map(|block| fold_block(block, combine)).collect();
    fold(&blocks, combine)
}

fn fold_block<T: Clone>(block: &[T], combine: impl Fn(T, T) -> T + Copy) -> Option<T> {
    let lane = |first: usize| block.iter().skip(first).step_by(LANES).cloned().reduce(combine);
    let lanes: Vec<T> = (0..LANES).filter_map(lane).collect();
    fold(&lanes, combine)
}
