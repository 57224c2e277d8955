use consonance_spec::{
    Kind,
    ReduceOp::Or,
    Work,
    call::{Counts, Extent, Flow},
    collective::*,
    traffic::*,
};
use quickcheck::quickcheck;

/// A call of each rank: its data, what it brings, and what it gets. Each element is the set of the
/// ranks from which it comes.
struct Called {
    data: Vec<Data>,
    inputs: Vec<Vec<u64>>,
    outputs: Vec<Vec<u64>>,
}

/// Returns a call with a count for each rank. A kind that has no form for different counts has the
/// first one for all ranks.
fn called(kind: Kind, counts: &[usize], root: usize) -> Called {
    let ranks = counts.len();
    let counts = match kind.counts() {
        Counts::Equal => vec![counts[0]; ranks],
        Counts::EachRank | Counts::EachPair => counts.to_vec(),
    };
    // All ranks send and receive the same number of elements in all.
    let pair = |from: usize| (0..ranks).map(|to| counts[(from + to) % ranks]).collect::<Vec<_>>();
    let pairs: Vec<Vec<usize>> = (0..ranks).map(pair).collect();
    let (whole, receiver) = (if kind.has_parts() { counts.iter().sum() } else { counts[0] }, (root + 1) % ranks);
    let each = |count: &dyn Fn(usize) -> usize| (0..ranks).map(|rank| vec![1 << rank; count(rank)]).collect();
    let inputs: Vec<Vec<u64>> = match kind.flow() {
        Flow::Control => each(&|_| 0),
        Flow::FromRoot | Flow::Pair => each(&|rank| if rank == root { whole } else { 0 }),
        Flow::ToRoot | Flow::Everyone if !kind.combines() && kind.extent() == Extent::Whole => {
            each(&|rank| counts[rank])
        }
        Flow::ToRoot | Flow::Everyone => each(&|_| whole),
    };
    let to_root = |output: Vec<u64>| {
        let mut outputs = vec![Vec::new(); ranks];
        outputs[root] = output;
        outputs
    };
    let outputs = match kind {
        Kind::AllReduce => all_reduce(Or, &inputs).unwrap(),
        Kind::Reduce => to_root(reduce(Or, &inputs).unwrap()),
        Kind::ReduceScatter => reduce_scatter(Or, &inputs).unwrap(),
        Kind::Broadcast => {
            let mut outputs = broadcast(&inputs[root], ranks);
            // The root has its data already.
            outputs[root].clear();
            outputs
        }
        Kind::AllGather => all_gather(&inputs),
        Kind::Gather => to_root(gather(&inputs)),
        Kind::Scatter => scatter_v(&inputs[root], &counts).unwrap(),
        Kind::AllToAll => all_to_all_v(&inputs, &pairs).unwrap(),
        Kind::SendRecv => {
            let outputs = send_recv(&inputs, root, receiver).unwrap();
            outputs.into_iter().map(Option::unwrap_or_default).collect()
        }
        Kind::Barrier | Kind::Split | Kind::Extension(_) => vec![Vec::new(); ranks],
    };
    let place = |rank| match rank {
        _ if rank == root => Position::Root,
        _ if rank == receiver => Position::Receiver,
        _ => Position::Other,
    };
    let own = |rank: usize| if kind == Kind::AllToAll { pairs[rank][rank] } else { counts[rank] };
    let data = |rank| Data { kind, ranks, place: place(rank), whole, own: own(rank), in_place: false };
    Called { data: (0..ranks).map(data).collect(), inputs, outputs }
}

/// Checks a call of every kind of these ranks, with every root.
fn of_all_kinds(counts: Vec<u8>, law: impl Fn(Kind, &Called) -> bool) -> bool {
    let counts: Vec<usize> = counts.into_iter().take(7).chain([3, 5]).map(|count| count as usize % 13).collect();
    Kind::ALL.iter().all(|&kind| (0..counts.len()).all(|root| law(kind, &called(kind, &counts, root))))
}

fn elements(of: &[Vec<u64>]) -> usize {
    of.iter().map(Vec::len).sum()
}

quickcheck! {
    fn a_rank_needs_the_sources_of_its_result(counts: Vec<u8>) -> bool {
        of_all_kinds(counts, |_, Called { data, outputs, .. }| {
            data.iter().zip(outputs).enumerate().all(|(rank, (data, output))| {
                let Role { needed, kept, result, .. } = data.role();
                let from_itself = output.iter().filter(|&&sources| sources >> rank & 1 == 1).count();
                let from_all: u32 = output.iter().map(|sources| sources.count_ones()).sum();
                (needed, kept, result) == (from_all as usize, from_itself, output.len())
            })
        })
    }

    fn a_rank_contributes_all_elements_needed_by_the_others(counts: Vec<u8>) -> bool {
        of_all_kinds(counts, |_, Called { data, inputs, outputs }| {
            data.iter().zip(inputs).enumerate().all(|(rank, (data, input))| {
                let of_it = |output: &Vec<u64>| output.iter().filter(|&&sources| sources >> rank & 1 == 1).count();
                let others = outputs.iter().enumerate().filter(|(other, _)| *other != rank);
                let most = others.map(|(_, output)| of_it(output)).max().unwrap_or(0);
                (most..=input.len()).contains(&data.role().contributed)
            })
        })
    }

    /// In a reduction each contribution is read once and each result is written once. Otherwise
    /// each result is read once and written once.
    fn all_ranks_together_move_each_element_once(counts: Vec<u8>) -> bool {
        of_all_kinds(counts, |kind, Called { data, inputs, outputs }| {
            let moved: usize = data.iter().map(Data::least).sum();
            match kind.work() {
                // Blocks differ by an element, which `least` rounds down.
                Work::Combines => (0..data.len()).contains(&(elements(inputs) + elements(outputs) - moved)),
                Work::Moves => moved == 2 * elements(outputs),
            }
        })
    }

    /// In place, a rank's own part is not moved if all ranks have one in both buffers.
    fn own_parts_stay_where_they_are(counts: Vec<u8>) -> bool {
        of_all_kinds(counts, |kind, Called { data, .. }| {
            let stays = kind.flow() == Flow::Everyone && !kind.combines();
            data.iter().all(|data| {
                let in_place = Data { in_place: true, ..*data };
                in_place.least() + if stays { 2 * data.own } else { 0 } == data.least()
            })
        })
    }

    /// In place, a rank gets only what it lacks, except in an all-to-all: there all ranks exchange
    /// whole buffers.
    fn own_data_are_not_needed_in_place(counts: Vec<u8>) -> bool {
        of_all_kinds(counts, |kind, Called { data, .. }| {
            let has_own = !kind.combines() && kind != Kind::AllToAll;
            data.iter().all(|data| {
                let (apart, in_place) = (data.role(), Data { in_place: true, ..*data }.role());
                let own = if has_own { apart.kept } else { 0 };
                in_place.needed == apart.needed - own
                    && in_place.result == apart.result - own
                    && in_place.kept == apart.kept - own
                    && in_place.contributed <= apart.contributed
            })
        })
    }

    /// Data that are moved unchanged cross at the rank that sends or receives most, in parts of the
    /// buffer as the bus factor says.
    fn the_bus_factor_is_the_share_crossing_the_bus(count: u8, ranks: u8) -> bool {
        of_all_kinds(vec![count; ranks as usize % 7], |kind, Called { data, .. }| {
            let even = |data: &Data| Data { whole: if kind.has_parts() { data.ranks } else { 1 }, own: 1, ..*data };
            let crosses = |data: &Data| {
                let (role, even) = (even(data).role(), even(data));
                let scatters = kind.flow() == Flow::FromRoot && kind.has_parts();
                let sent = if scatters { role.contributed.saturating_sub(1) } else { 0 };
                sent.max(role.needed - role.kept) as f64 / even.whole as f64
            };
            let most = data.iter().map(crosses).fold(0.0, f64::max);
            kind.combines() || most == kind.bus_factor(data.len())
        })
    }
}
