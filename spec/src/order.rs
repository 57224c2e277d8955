//! The canonical reduction order: the order in which partial results are combined. With it a result
//! has the same bits on every path.
//!
//! [`fold`] is the order across contributions, and [`fold_along`] the order within a tensor.
//! Neither depends on an algorithm, a chunk, a thread count, a vector width or a transport.
//!
//! [`nodes`] and [`fold_nodes`] are the same order across contributions, for owners of several:
//! each owner combines its own as far as the order allows, and the owners' nodes are combined to
//! the result.

use std::{collections::BTreeSet, ops::Range};

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

/// Returns the largest nodes of the tree of [`fold`] over `n` contributions that have all their
/// contributions in `leaves`, from the first to the last. A node is the range of its contributions.
///
/// ```
/// use consonance_spec::order::nodes;
/// // Three owners of eight contributions.
/// assert_eq!(nodes(8, &(0..3).collect()), [0..2, 2..3]);
/// assert_eq!(nodes(8, &(3..6).collect()), [3..4, 4..6]);
/// assert_eq!(nodes(8, &(6..8).collect()), [6..8]);
/// ```
pub fn nodes(n: usize, leaves: &BTreeSet<usize>) -> Vec<Range<usize>> {
    nodes_below(0..n, leaves)
}

fn nodes_below(node: Range<usize>, leaves: &BTreeSet<usize>) -> Vec<Range<usize>> {
    if node.is_empty() {
        return Vec::new();
    }
    if node.clone().all(|leaf| leaves.contains(&leaf)) {
        return vec![node];
    }
    let Some((left, right)) = children(&node) else { return Vec::new() };
    [nodes_below(left, leaves), nodes_below(right, leaves)].concat()
}

/// Combines the values of [`nodes`] of the tree over `n` contributions to the value of the tree.
/// Returns `None` if there are no contributions, or if a part of the tree has no value. The order
/// of the nodes has no meaning.
///
/// ```
/// use consonance_spec::order::fold_nodes;
/// // The nodes of 0..3, and then the nodes of 3..5.
/// let nodes = [(0..2, "(0+1)"), (2..3, "2"), (3..4, "3"), (4..5, "4")];
/// let nodes = nodes.map(|(node, value)| (node, value.to_string()));
/// assert_eq!(fold_nodes(5, &nodes, |a, b| format!("({a}+{b})")).unwrap(), "(((0+1)+(2+3))+4)");
/// ```
pub fn fold_nodes<T: Clone>(n: usize, nodes: &[(Range<usize>, T)], combine: impl Fn(T, T) -> T + Copy) -> Option<T> {
    value(&(0..n), nodes, combine)
}

fn value<T: Clone>(node: &Range<usize>, nodes: &[(Range<usize>, T)], combine: impl Fn(T, T) -> T + Copy) -> Option<T> {
    if let Some((_, value)) = nodes.iter().find(|(known, _)| known == node) {
        return Some(value.clone());
    }
    let (left, right) = children(node)?;
    Some(combine(value(&left, nodes, combine)?, value(&right, nodes, combine)?))
}

/// Returns the two parts of a node that [`fold`] combines last; `None` for a node of one
/// contribution, or of none.
fn children(node: &Range<usize>) -> Option<(Range<usize>, Range<usize>)> {
    let middle = node.start + (1 << node.len().checked_sub(1)?.checked_ilog2()?);
    Some((node.start..middle, middle..node.end))
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
