//! A kernel as it is executed: instructions over the lanes of a warp.
//!
//! Registers, immediates, special registers and the addresses of variables are all *planes*, one
//! value of 64 bits for each lane, so that an operand is the number of a plane.

use crate::parse::Space;

/// The lanes of a warp.
pub(crate) const LANES: usize = 32;

/// A value for each lane, extended with zeros to 64 bits.
pub(crate) type Plane = [u64; LANES];

/// The number of a plane.
pub(crate) type Register = u32;

/// The number of a mask, a bit for each lane. Mask 0 is always set.
pub(crate) type Predicate = u32;

/// A mask, or its complement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition {
    pub(crate) predicate: Predicate,
    pub(crate) is_negated: bool,
}

/// The condition that always holds.
pub(crate) const ALWAYS: Condition = Condition { predicate: 0, is_negated: false };

/// A kernel, translated.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) code: Vec<Step>,
    /// The line of each step.
    pub(crate) lines: Vec<u32>,
    /// The content of planes at the start. Others hold nothing in particular.
    pub(crate) constants: Vec<(Register, Constant)>,
    /// The bits of each plane's register.
    pub(crate) planes: Vec<u32>,
    pub(crate) predicates: u32,
    /// The bytes of a thread's local variables.
    pub(crate) local_bytes: u32,
    /// The shared variables: offset and bytes. All else in shared memory is no variable.
    pub(crate) shared: Vec<(u32, u32)>,
    /// The offset at which dynamic shared memory begins.
    pub(crate) dynamic_shared: u32,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) parameter_bytes: u32,
    pub(crate) required_block: Option<[u32; 3]>,
    pub(crate) largest_block: Option<u32>,
}

/// A parameter of a kernel, in the block of parameters that a launch passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The name in the text.
    pub name: String,
    /// The offset of its first byte.
    pub offset: usize,
    /// Its size in bytes.
    pub bytes: usize,
    /// Its alignment in bytes.
    pub align: usize,
}

/// The value of a plane that no step writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Constant {
    /// The same value in all lanes.
    Value(u64),
    /// The address of a variable of the module in global memory, plus an offset.
    Global(usize, i64),
    /// The address of dynamic shared memory, plus an offset.
    DynamicShared(i64),
    /// A special register.
    Special(Special),
}

/// The special registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread(usize),
    BlockShape(usize),
    Block(usize),
    GridShape(usize),
    Lane,
    Warp,
    Warps,
    /// The lanes in this order to the own.
    LaneMask(LaneOrder),
    DynamicSharedBytes,
    TotalShared,
}

/// The lanes of a lane mask, compared with the own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneOrder {
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
}

/// An instruction.
pub(crate) struct Step {
    pub(crate) guard: Condition,
    pub(crate) action: Action,
}

/// Computes a plane from a plane. Lanes that do not take part may hold anything.
pub(crate) type Unary = Box<dyn Fn(&Plane, &mut Plane) + Send + Sync>;
/// Computes a plane from two planes.
pub(crate) type Binary = Box<dyn Fn(&Plane, &Plane, &mut Plane) + Send + Sync>;
/// Computes a plane from three planes.
pub(crate) type Ternary = Box<dyn Fn(&Plane, &Plane, &Plane, &mut Plane) + Send + Sync>;
/// Compares two planes.
pub(crate) type Comparison = Box<dyn Fn(&Plane, &Plane) -> u32 + Send + Sync>;
/// Computes a plane and carries from three planes and carries.
pub(crate) type Carrying = Box<dyn Fn([u64; 3], bool) -> (u64, bool) + Send + Sync>;

/// The action of a step.
pub(crate) enum Action {
    Unary {
        to: Register,
        a: Register,
        compute: Unary,
    },
    Binary {
        to: Register,
        a: Register,
        b: Register,
        compute: Binary,
    },
    Ternary {
        to: Register,
        a: Register,
        b: Register,
        c: Register,
        compute: Ternary,
    },
    /// An operation with four operands, of which the last two are less than 2^32.
    Quaternary {
        to: Register,
        operands: [Register; 4],
        compute: fn([u64; 4], u32) -> u64,
        bits: u32,
    },
    Carry {
        to: Register,
        operands: [Register; 3],
        compute: Carrying,
        sets: bool,
    },
    /// Compares, then combines the result with a condition. `complement` gets the opposite.
    Compare {
        to: Predicate,
        complement: Option<Predicate>,
        a: Register,
        b: Register,
        compute: Comparison,
        combine: fn(u32, u32) -> u32,
        with: Condition,
    },
    /// An operation on predicates.
    Logic {
        to: Predicate,
        a: Condition,
        b: Condition,
        compute: fn(u32, u32) -> u32,
    },
    Select {
        to: Register,
        a: Register,
        b: Register,
        condition: Condition,
    },
    Load(Access),
    Store(Access),
    Branch {
        target: usize,
    },
    BranchIndexed {
        index: Register,
        targets: Vec<usize>,
    },
    Exit,
    Trap,
    Barrier(Barrier),
    WarpBarrier {
        members: Register,
    },
    Shuffle(Shuffle),
    Vote(Vote),
    ActiveLanes {
        to: Register,
    },
    /// A hint, or an order of accesses that one thread at a time already has.
    Nothing,
}

/// A load or store.
pub(crate) struct Access {
    pub(crate) space: Space,
    pub(crate) base: Register,
    pub(crate) offset: i64,
    /// The bytes of one element.
    pub(crate) bytes: u32,
    /// The registers of the elements; none where an element is ignored.
    pub(crate) elements: Vec<Option<Register>>,
    /// The bits of the registers, and whether elements are extended with their sign.
    pub(crate) register_bits: u32,
    pub(crate) is_signed: bool,
    /// Whether nothing may write the memory during the launch: `ld.global.nc`.
    pub(crate) is_read_only: bool,
}

/// A barrier of the block.
pub(crate) struct Barrier {
    pub(crate) id: Register,
    pub(crate) threads: Option<Register>,
    pub(crate) reduction: Option<BarrierReduction>,
}

/// The reduction of the predicates of all threads at a barrier.
#[derive(Clone, Copy)]
pub(crate) struct BarrierReduction {
    pub(crate) kind: ReductionKind,
    pub(crate) source: Condition,
    /// The number of a plane for a count, else of a predicate.
    pub(crate) to: u32,
}

/// The operation that reduces predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReductionKind {
    Count,
    And,
    Or,
}

/// A shuffle between the lanes of a warp.
pub(crate) struct Shuffle {
    pub(crate) mode: ShuffleMode,
    pub(crate) to: Register,
    pub(crate) in_range: Option<Predicate>,
    pub(crate) value: Register,
    pub(crate) lane: Register,
    pub(crate) clamp: Register,
    pub(crate) members: Register,
}

/// The lane that a shuffle reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

/// A vote of the lanes of a warp.
pub(crate) struct Vote {
    pub(crate) mode: VoteMode,
    /// The number of a plane for a ballot, else of a predicate.
    pub(crate) to: u32,
    pub(crate) source: Condition,
    pub(crate) members: Register,
}

/// The question of a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteMode {
    All,
    Any,
    Uniform,
    Ballot,
}

/// Returns a function of planes from a function of lanes.
pub(crate) fn unary(lane: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Unary {
    Box::new(move |a, to| {
        for at in 0..LANES {
            to[at] = lane(a[at]);
        }
    })
}

/// As [`unary`], with two operands.
pub(crate) fn binary(lane: impl Fn(u64, u64) -> u64 + Send + Sync + 'static) -> Binary {
    Box::new(move |a, b, to| {
        for at in 0..LANES {
            to[at] = lane(a[at], b[at]);
        }
    })
}

/// As [`unary`], with three operands.
pub(crate) fn ternary(lane: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static) -> Ternary {
    Box::new(move |a, b, c, to| {
        for at in 0..LANES {
            to[at] = lane(a[at], b[at], c[at]);
        }
    })
}

/// Returns a comparison of planes from one of lanes.
pub(crate) fn comparison(lane: impl Fn(u64, u64) -> bool + Send + Sync + 'static) -> Comparison {
    Box::new(move |a, b| (0..LANES).fold(0, |mask, at| mask | u32::from(lane(a[at], b[at])) << at))
}
