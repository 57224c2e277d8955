//! The nodes of the canonical tree that an owner of several contributions has.

use std::ops::Range;

/// A node of the canonical tree, with what its owner has of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The contributions that the node combines.
    pub leaves: Range<usize>,
    /// The form in which their combination is stored.
    pub part: Part,
}

impl Node {
    /// Returns a node that its owner has combined.
    pub fn kept(leaves: Range<usize>) -> Node {
        Node { leaves, part: Part::Accumulators }
    }
}

/// The form in which a part of a reduction is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// As elements, which were not combined yet: a single contribution.
    Elements,
    /// As accumulators, which were not rounded yet.
    Accumulators,
}

/// Returns the largest nodes of the canonical tree over `n` contributions that have all their
/// contributions in `leaves`, from the first to the last. `leaves` are ranges in ascending order,
/// which do not overlap; what is not below `n` is no contribution.
///
/// ```
/// use consonance_kernels::cpu::reduce::nodes;
///
/// assert_eq!(nodes(8, &[0..3]), [0..2, 2..3]);
/// assert_eq!(nodes(8, &[3..6]), [3..4, 4..6]);
/// // The first leaf and the last two.
/// assert_eq!(nodes(5, &[0..1, 3..5]), [0..1, 3..4, 4..5]);
/// ```
///
/// # Panics
/// If the ranges are not in ascending order.
pub fn nodes(n: usize, leaves: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::with_capacity(leaves.len());
    for run in leaves.iter().filter(|run| !run.is_empty()) {
        match runs.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            last => {
                assert!(last.is_none_or(|last| last.end < run.start), "leaves {leaves:?} in ascending order");
                runs.push(run.clone());
            }
        }
    }
    let mut found = Vec::new();
    if n > 0 {
        collect(0..n, &runs, &mut found);
    }
    found
}

/// Adds the largest nodes in `node` to `found`. `runs` do not touch each other.
fn collect(node: Range<usize>, runs: &[Range<usize>], found: &mut Vec<Range<usize>>) {
    let next = &runs[runs.partition_point(|run| run.end <= node.start)..];
    match next.first() {
        Some(run) if run.start <= node.start && node.end <= run.end => found.push(node),
        Some(run) if run.start < node.end => {
            // A node of one contribution is inside a run that it meets.
            let (left, right) = children(&node).expect("a node of several contributions");
            collect(left, next, found);
            collect(right, next, found);
        }
        _ => {}
    }
}

/// Returns the two parts of a node that are combined last; `None` for a node of one contribution,
/// or of none.
pub(super) fn children(node: &Range<usize>) -> Option<(Range<usize>, Range<usize>)> {
    let middle = node.start + (1 << node.len().checked_sub(1)?.checked_ilog2()?);
    Some((node.start..middle, middle..node.end))
}
