//! The steps of a reduction in any shape of tree.
//!
//! A step combines several values as the canonical order combines so many contributions, which is
//! what a [`Kernel`](super::Kernel) does in registers. A tree of another shape takes several steps:
//! what one of them gives is kept in a *room*, for a later one.

use super::nodes::{Node, Part, children};
use std::{cmp::Reverse, collections::BinaryHeap, ops::Range};

/// The number of values that a step combines in registers. A step with more than that and with a
/// room would need many rooms at a time.
const TOGETHER: usize = 8;

/// A value that a step combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    /// The source with this index.
    Source(usize),
    /// The room with this index.
    Room(usize),
}

/// A step: `room = operand ⊕ operand ⊕ …`.
#[derive(Debug)]
pub(super) struct Step {
    /// The form of all operands.
    pub(super) from: Part,
    pub(super) operands: Vec<Operand>,
    /// The room of the result. Only the last step has none: its result is the program's.
    pub(super) room: Option<usize>,
}

impl Step {
    /// Whether the operands are the first sources, in their order.
    pub(super) fn takes_sources_in_order(&self) -> bool {
        self.operands.iter().enumerate().all(|(place, operand)| *operand == Operand::Source(place))
    }
}

/// The steps of a tree, in order.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) steps: Vec<Step>,
    /// The number of rooms.
    pub(super) rooms: usize,
    /// Rooms whose values are no longer needed.
    free: Vec<usize>,
}

impl Program {
    /// Returns the program that combines the given nodes, its sources, to the canonical tree over
    /// `n` contributions; `None` if they are not the nodes of a cut through this tree. `is_plain`
    /// says that elements and accumulators have the same bits.
    pub(super) fn new(n: usize, nodes: &[Node], is_plain: bool) -> Option<Program> {
        let mut rest: Sources =
            nodes.iter().zip(0..).map(|(node, source)| Reverse((node.leaves.start, source))).collect();
        let tree = (n > 0).then(|| Tree::new(0..n, nodes, &mut rest)).flatten()?;
        if !rest.is_empty() {
            return None;
        }
        let mut program = Program::default();
        let part = |operand: &Operand| match operand {
            _ if is_plain => Part::Elements,
            Operand::Source(source) => nodes[*source].part,
            Operand::Room(_) => Part::Accumulators,
        };
        program.add(&tree, &part, true);
        Some(program)
    }

    /// Adds the steps that combine `tree`, and returns the room of the result. The root has none.
    fn add(&mut self, tree: &Tree, part: &impl Fn(&Operand) -> Part, is_root: bool) -> Option<usize> {
        let mut trees = tree.front(usize::MAX);
        if trees.len() > TOGETHER && trees.iter().any(|tree| matches!(tree, Tree::Join(..))) {
            trees = tree.front(TOGETHER);
        }
        let mut operands: Vec<Operand> = Vec::with_capacity(trees.len());
        for tree in trees {
            operands.push(match tree {
                Tree::Source(source) => Operand::Source(*source),
                Tree::Join(..) => Operand::Room(self.add(tree, part, false).expect("it is not the root")),
            });
        }
        let is_mixed = operands.iter().any(|operand| part(operand) != part(&operands[0]));
        let from = if is_mixed { Part::Accumulators } else { part(&operands[0]) };
        if is_mixed {
            for operand in operands.iter_mut().filter(|operand| part(operand) == Part::Elements) {
                *operand = Operand::Room(self.step(Part::Elements, vec![*operand], false).expect("not the root"));
            }
        }
        self.step(from, operands, is_root)
    }

    /// Adds a step, and returns the room of its result. A step may write where it reads.
    fn step(&mut self, from: Part, operands: Vec<Operand>, is_last: bool) -> Option<usize> {
        self.free.extend(operands.iter().filter_map(|operand| match operand {
            Operand::Room(room) => Some(*room),
            Operand::Source(_) => None,
        }));
        let room = (!is_last).then(|| {
            self.free.pop().unwrap_or_else(|| {
                self.rooms += 1;
                self.rooms - 1
            })
        });
        self.steps.push(Step { from, operands, room });
        room
    }
}

/// The first contributions of sources and their indices, in the order of the contributions.
type Sources = BinaryHeap<Reverse<(usize, usize)>>;

/// The canonical tree above the nodes that are the sources.
enum Tree {
    Source(usize),
    Join(Box<Tree>, Box<Tree>),
}

impl Tree {
    /// Returns the tree of `node`. Takes its sources from `rest`.
    fn new(node: Range<usize>, nodes: &[Node], rest: &mut Sources) -> Option<Tree> {
        let Reverse((_, source)) = *rest.peek()?;
        let Node { leaves, part } = &nodes[source];
        if *leaves == node {
            rest.pop();
            return (*part == Part::Accumulators || leaves.len() == 1).then_some(Tree::Source(source));
        }
        if leaves.start != node.start || leaves.end > node.end {
            return None;
        }
        let (left, right) = children(&node)?;
        Some(Tree::Join(Box::new(Tree::new(left, nodes, rest)?), Box::new(Tree::new(right, nodes, rest)?)))
    }

    /// Returns subtrees that make up this tree and are combined as the canonical order combines so
    /// many contributions: as many as there are, `most` at most.
    fn front(&self, most: usize) -> Vec<&Tree> {
        let mut front = Vec::new();
        self.add_front(most, &mut front);
        front
    }

    /// Adds the [front](Tree::front) of this tree to `front`, tree by tree: few are not worth a
    /// copy by the C library.
    fn add_front<'a>(&'a self, most: usize, front: &mut Vec<&'a Tree>) {
        match self {
            Tree::Join(left, right) if most > 1 => {
                let depth = left.depth().min((most - 1).ilog2());
                left.at(depth, front);
                let whole = 1 << depth;
                right.add_front(whole.min(most - whole), front);
            }
            _ => front.push(self),
        }
    }

    /// Returns to which depth the tree has all subtrees.
    fn depth(&self) -> u32 {
        match self {
            Tree::Source(_) => 0,
            Tree::Join(left, right) => 1 + left.depth().min(right.depth()),
        }
    }

    /// Adds the subtrees at `depth` to `front`.
    fn at<'a>(&'a self, depth: u32, front: &mut Vec<&'a Tree>) {
        match self {
            Tree::Join(left, right) if depth > 0 => {
                left.at(depth - 1, front);
                right.at(depth - 1, front);
            }
            _ => front.push(self),
        }
    }
}
