//! Calls on which the ranks disagree: one rank does something else.

use super::{Caller, Case, Collective, Counts, Leaf, NestCall, NestCase, Runs, Source, Then, script::SIZES};
use consonance_spec::{DType, Flow, Kind, ReduceOp, nest::Nest};
use std::ops::Range;

/// A case in which one rank of a group differs from the others.
#[derive(Clone, Debug)]
pub struct RankDeviation {
    /// The number of ranks, at least 2.
    pub size: usize,
    /// The rank that differs.
    pub odd: usize,
    /// The call of all other ranks, and of all ranks afterwards. It is valid.
    pub call: Collective,
    /// The odd rank's behaviour.
    pub does: RankDoes,
}

/// The behaviour of an odd rank.
#[derive(Clone, Debug)]
pub enum RankDoes {
    /// It makes a call that differs in an argument. The text is the argument's name in errors.
    Calls(Collective, &'static str),
    /// It uses another all-reduce algorithm: `Implementation::OneShot` where the others use
    /// `Implementation::TwoShot`.
    AllReducesOtherwise,
    /// It drops its communicator.
    Leaves,
    /// It calls after the others have given up.
    IsLate,
}

impl Case for RankDeviation {
    fn read(source: &mut Source<'_>) -> RankDeviation {
        let size = source.pick(SIZES).max(2);
        let mut call = Collective::read(source, size, false);
        if call.op.result(call.dtype) != Some(call.dtype) {
            call.op = ReduceOp::Min;
        }
        let mut odd = source.below(size);
        if call.kind == Kind::SendRecv && odd != call.root {
            odd = call.receiver(size);
        }
        let does = match source.below(8) {
            0 => RankDoes::Leaves,
            1 => RankDoes::IsLate,
            2 if call.kind == Kind::AllReduce && call.runs.is_none() => RankDoes::AllReducesOtherwise,
            _ => {
                let differences = differences(source, size, odd, &call);
                let (call, argument) = differences[source.below(differences.len())].clone();
                RankDoes::Calls(call, argument)
            }
        };
        // If only two ranks take part, the other ranks would not notice.
        let does = match does {
            RankDoes::Leaves | RankDoes::IsLate if call.kind.flow() == Flow::Pair => {
                RankDoes::Calls(Collective { counts: Counts::Even(1001), ..call.clone() }, "count")
            }
            does => does,
        };
        RankDeviation { size, odd, call, does }
    }
}

/// Returns calls that differ from `call` in one argument, with the argument's name.
fn differences(source: &mut Source<'_>, size: usize, odd: usize, call: &Collective) -> Vec<(Collective, &'static str)> {
    let mut all = Vec::new();
    let mut push = |argument, change: &mut dyn FnMut(&mut Collective)| {
        let mut other = call.clone();
        change(&mut other);
        all.push((other, argument));
    };
    if call.kind != Kind::SendRecv {
        let kinds = [Kind::Barrier, Kind::AllReduce, Kind::Broadcast, Kind::AllGather, Kind::Split];
        let others: Vec<Kind> = kinds.into_iter().filter(|&kind| kind != call.kind).collect();
        push("call", &mut |other| {
            (other.kind, other.counts) = (source.pick(&others), Counts::Even(3));
            other.runs = other.runs.take().filter(|_| other.kind.combines());
        });
    }
    if call.reduces() && call.kind != Kind::Split {
        let others: Vec<ReduceOp> = ReduceOp::ALL.into_iter().filter(|&op| op != call.op).collect();
        push("op", &mut |other| other.op = source.pick(&others));
    }
    if !matches!(call.kind, Kind::Barrier | Kind::Split) {
        let others: Vec<DType> = DType::ALL.iter().copied().filter(|&dtype| dtype != call.dtype).collect();
        push("dtype", &mut |other| other.dtype = source.pick(&others));
        let argument = if matches!(call.counts, Counts::Pairs(_)) { "recv_counts" } else { "count" };
        push(argument, &mut |other| match &mut other.counts {
            Counts::Even(count) => *count += 1,
            Counts::Ragged(counts) => counts[source.below(size)] += 1,
            // To another rank, which still expects the old count.
            Counts::Pairs(counts) => counts[odd][(odd + 1 + source.below(size - 1)) % size] += 1,
        });
    }
    if call.kind.combines() {
        push("leaves", &mut |other| other.runs = other_runs(source, size, odd, call.runs.as_ref()));
    }
    if call.kind.has_root() && call.kind != Kind::SendRecv {
        push("root", &mut |other| other.root = (other.root + 1 + source.below(size - 1)) % size);
    }
    all
}

/// Returns runs that are not those of the others: leaves instead of a contribution of each rank, or
/// the reverse; one leaf more of all ranks; a gap beside the odd rank's run, or an overlap.
fn other_runs(source: &mut Source<'_>, size: usize, odd: usize, runs: Option<&Runs>) -> Option<Runs> {
    let Some(runs) = runs else { return Some(Runs::read(source, size)) };
    let Runs { of, ref by_rank } = *runs;
    let Range { start, end } = by_rank[odd];
    let other = match source.below(6) {
        0 => return None,
        1 => {
            let mut longer = runs.clone();
            (longer.of, longer.by_rank[size - 1].end) = (of + 1, of + 1);
            return Some(longer);
        }
        2 if start < end => start + 1..end,
        3 if start > 0 => start - 1..end,
        4 if end < of => start..end + 1,
        _ if start < end => start..end - 1,
        _ if end < of => start..end + 1,
        _ => start - 1..end,
    };
    let mut others = runs.clone();
    others.by_rank[odd] = other;
    Some(others)
}

/// A case in which one replica of a strategy differs from the others.
#[derive(Clone, Debug)]
pub struct ReplicaDeviation {
    /// The call of all other replicas, and of all replicas afterwards, on their contexts.
    pub case: NestCase,
    /// The replica that differs.
    pub odd: usize,
    /// The odd replica's behaviour.
    pub does: ReplicaDoes,
}

/// The behaviour of an odd replica.
#[derive(Clone, Debug)]
pub enum ReplicaDoes {
    /// It makes a call that differs in an argument. The argument in errors begins with the text.
    Calls(Box<NestCase>, &'static str),
    /// It calls a barrier, which takes no value.
    Barrier,
    /// It returns.
    Returns,
    /// It returns its own error.
    Fails,
    /// It panics.
    Panics,
}

impl Case for ReplicaDeviation {
    fn read(source: &mut Source<'_>) -> ReplicaDeviation {
        let case = NestCase { then: Then::Keep, ..NestCase::read_on(source, 2, &[Caller::Replica]) };
        let odd = source.below(case.size);
        let does = match source.below(10) {
            0 => ReplicaDoes::Returns,
            1 => ReplicaDoes::Fails,
            2 => ReplicaDoes::Panics,
            3 => ReplicaDoes::Barrier,
            4 => ReplicaDoes::Calls(Box::new(NestCase { nest: one_more(&case), ..case.clone() }), "value"),
            5 | 6 => {
                let (call, argument) = other_call(source, &case);
                ReplicaDoes::Calls(Box::new(NestCase { call, ..case.clone() }), argument)
            }
            _ => other_leaf(source, &case),
        };
        ReplicaDeviation { case, odd, does }
    }
}

/// Returns a list of the nest of a case and one more leaf.
fn one_more(case: &NestCase) -> Nest<Leaf> {
    let row = Leaf { dtype: DType::I32, shapes: vec![vec![8]; case.contributions()], sparse: false, seed: 0 };
    Nest::List(vec![case.nest.clone(), Nest::Leaf(row)])
}

/// Returns a call that differs in one argument, and the argument's name.
fn other_call(source: &mut Source<'_>, case: &NestCase) -> (NestCall, &'static str) {
    let other_op = |op: ReduceOp| ReduceOp::ALL[(op as usize + 1) % ReduceOp::ALL.len()];
    match &case.call {
        NestCall::Reduce(op, axes) => (NestCall::Reduce(other_op(*op), axes.clone()), "op"),
        NestCall::ReduceScatter(op) => (NestCall::ReduceScatter(other_op(*op)), "op"),
        NestCall::Gather(axis) => (NestCall::Gather(axis + 1), "axis"),
        NestCall::Broadcast(root) => {
            (NestCall::Broadcast((root + 1 + source.below(case.size - 1)) % case.size), "root")
        }
    }
}

/// Returns the same call with one changed leaf: another dtype, another tensor rank, sparse instead
/// of dense or dense instead of sparse, or wider or narrower indices. Without leaves the replica
/// returns instead.
fn other_leaf(source: &mut Source<'_>, case: &NestCase) -> ReplicaDoes {
    let leaves = case.nest.flatten().1.len();
    if leaves == 0 {
        return ReplicaDoes::Returns;
    }
    let (place, change) = (source.below(leaves), source.below(4));
    let dtype = source.pick(DType::ALL);
    let mut at = 0;
    let nest = case.nest.map(&mut |leaf| {
        at += 1;
        let mut leaf = leaf.clone();
        match change {
            _ if at - 1 != place => {}
            0 if dtype != leaf.dtype => leaf.dtype = dtype,
            // The seed chooses between the two types of indices.
            2 if leaf.sparse => leaf.seed ^= 1,
            1 if !leaf.shapes[0].is_empty() => leaf.sparse = !leaf.sparse,
            _ => leaf.shapes.iter_mut().for_each(|shape| shape.push(2)),
        }
        leaf
    });
    ReplicaDoes::Calls(Box::new(NestCase { nest, ..case.clone() }), "value")
}
