//! The contents of the buffers: short patterns, repeated, so that a rank fills and checks megabytes
//! in the time of a copy.
//!
//! Elements are small whole numbers, whose sums no type rounds. In whatever order a library
//! combines them, there is one right result.

use super::case::{Case, Collective};
use consonance_harness::sample::Sample;
use consonance_kernels::{digest::mix, memory::HostBuf};
use consonance_spec::{ReduceOp, collective, for_each_dtype};

/// Elements after which patterns repeat. It is a prime, so that no block of a buffer looks like
/// another.
pub(super) const PERIOD: usize = 1021;

/// The distance in a pattern between the beginnings of the blocks for two ranks.
const BLOCK_SHIFT: usize = 17;

/// A part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// The index of the pattern in [`Tiles`].
    pub tile: usize,
    /// The position in the pattern at which the segment begins, in the first call.
    pub shift: usize,
    /// The number of elements.
    pub count: usize,
}

/// The library that makes the call, where libraries leave different contents in buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Habit {
    /// Elements outside the result stay as they were.
    Ours,
    /// The result of a reduce_scatter in place lies at the beginning of the buffer. The rest of the
    /// buffer is undefined.
    Mpi,
    /// On ranks other than the root, the buffer is undefined after a reduce.
    Gloo,
}

/// The contents of a rank's buffers before and after a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// The buffer that is sent; empty if there is none.
    pub send: Vec<Segment>,
    /// The other buffer before the call: the rank's own contribution if the call is in place,
    /// otherwise elements that no result has.
    pub recv: Vec<Segment>,
    /// The other buffer after the call.
    pub expect: Vec<Segment>,
}

impl Layout {
    /// Returns the buffers of `rank`.
    pub(super) fn of(case: &Case, rank: usize, habit: Habit) -> Layout {
        let Case { ranks, in_place, .. } = *case;
        let (all, part, root) = (case.elements(), case.part(rank), rank == 0);
        let (result, nothing) = (ranks, ranks + 1);
        let segment = |tile, shift, count| Segment { tile, shift, count };
        let one = |tile, shift: usize, count| vec![segment(tile, shift, count)];
        // Whole contributions, in rank order.
        let parts = || (0..ranks).map(|peer| segment(peer, 0, case.part(peer).len())).collect::<Vec<_>>();
        let own = one(rank, 0, part.len());
        // A buffer that holds only this rank's part.
        let own_of_all = || vec![segment(nothing, 0, part.start), own[0], segment(nothing, part.end, all - part.end)];
        let blocks = |tile: usize| {
            let counts = case.counts(rank).into_iter().enumerate();
            counts.map(|(peer, count)| segment(tile, peer * BLOCK_SHIFT, count)).collect()
        };
        match case.collective {
            Collective::Barrier => Layout::default(),
            Collective::AllReduce | Collective::Reduce => {
                let own = one(rank, 0, all);
                let combined = case.collective == Collective::AllReduce || root;
                let before = if in_place { own.clone() } else { one(nothing, 0, all) };
                let expect = match habit {
                    _ if combined => one(result, 0, all),
                    Habit::Gloo => Vec::new(),
                    Habit::Ours | Habit::Mpi => before.clone(),
                };
                Layout { send: if in_place { Vec::new() } else { own }, recv: before, expect }
            }
            Collective::ReduceScatter if in_place => {
                let block = segment(result, part.start, part.len());
                let expect = if habit == Habit::Mpi {
                    vec![block]
                } else {
                    vec![segment(rank, 0, part.start), block, segment(rank, part.end, all - part.end)]
                };
                Layout { send: Vec::new(), recv: one(rank, 0, all), expect }
            }
            Collective::ReduceScatter => Layout {
                send: one(rank, 0, all),
                recv: one(nothing, 0, part.len()),
                expect: one(result, part.start, part.len()),
            },
            Collective::Broadcast => {
                Layout { send: Vec::new(), recv: one(if root { 0 } else { nothing }, 0, all), expect: one(0, 0, all) }
            }
            Collective::AllGather | Collective::AllGatherV if in_place => {
                Layout { send: Vec::new(), recv: own_of_all(), expect: parts() }
            }
            Collective::AllGather | Collective::AllGatherV => {
                Layout { send: own, recv: one(nothing, 0, all), expect: parts() }
            }
            Collective::Gather | Collective::GatherV if root && in_place => {
                Layout { send: Vec::new(), recv: own_of_all(), expect: parts() }
            }
            Collective::Gather | Collective::GatherV if root => {
                Layout { send: own, recv: one(nothing, 0, all), expect: parts() }
            }
            Collective::Gather | Collective::GatherV => Layout { send: own, ..Layout::default() },
            Collective::Scatter | Collective::ScatterV => {
                let send = if root { blocks(0) } else { Vec::new() };
                if root && in_place {
                    return Layout { send, ..Layout::default() };
                }
                let expect = one(0, rank * BLOCK_SHIFT, part.len());
                Layout { send, recv: one(nothing, 0, part.len()), expect }
            }
            Collective::AllToAll | Collective::AllToAllV => {
                let counts = case.counts(rank).into_iter().enumerate();
                let expect = counts.map(|(peer, count)| segment(peer, rank * BLOCK_SHIFT, count)).collect();
                let send: Vec<Segment> = blocks(rank);
                let (send, recv) = if in_place { (Vec::new(), send) } else { (send, one(nothing, 0, all)) };
                Layout { send, recv, expect }
            }
            Collective::SendRecv => match rank {
                0 => Layout { send: one(0, 0, all), ..Layout::default() },
                1 => Layout { send: Vec::new(), recv: one(nothing, 0, all), expect: one(0, 0, all) },
                _ => Layout::default(),
            },
        }
    }
}

/// The patterns of a case: the contribution of each rank, then the result of combining the
/// contributions, then one that is neither.
pub(super) struct Tiles<T> {
    /// Each pattern twice in a row, so that a period from anywhere in the first half is contiguous.
    tiles: Vec<Vec<T>>,
}

/// An element type that has small whole numbers.
pub(super) trait Small: Sample {
    /// Returns the number, which must be less than 128. For `bool`, returns whether it is odd.
    fn small(number: u8) -> Self;
}

macro_rules! implement {
    ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
        $(impl Small for $type {
            fn small(number: u8) -> $type {
                implement!($class $type, number)
            }
        })*
    };
    (Bool $type:ty, $number:ident) => { $number & 1 == 1 };
    (Float $type:ty, $number:ident) => { <$type>::from($number as i8) };
    ($class:ident $type:ty, $number:ident) => { $number as $type };
}

for_each_dtype!(implement);

impl<T: Small> Tiles<T> {
    /// Makes the patterns of `case`.
    pub(super) fn new(case: &Case) -> Tiles<T> {
        let Case { ranks, op, .. } = *case;
        let whole = |i: usize, rank: usize| {
            let any = |of: usize| (mix(i as u64, of as u64) >> 57) as u8;
            // The same on all ranks.
            let (common, turn) = (any(ranks), (i + rank) % ranks);
            match op {
                _ if !case.collective.kind().combines() => any(rank),
                // The ranks' numbers differ, and both their sum and their mean are small whole
                // numbers.
                ReduceOp::Sum | ReduceOp::Mean if ranks <= 8 => common % 4 + 2 * turn as u8,
                // With more ranks, only one has a number that is not neutral.
                ReduceOp::Sum | ReduceOp::Mean if turn > 0 => 0,
                ReduceOp::Product if turn > 0 => 1,
                ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Product => 1 + common / 2,
                ReduceOp::Min | ReduceOp::Max | ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => any(rank),
            }
        };
        let tile = |rank: usize| -> Vec<T> { (0..PERIOD).map(|i| T::small(whole(i, rank))).collect() };
        let mut tiles: Vec<Vec<T>> = (0..ranks).map(tile).collect();
        tiles.push(match case.collective.kind().combines() {
            true => collective::reduce(op, &tiles).expect("an operation that is defined on the type"),
            false => Vec::new(),
        });
        tiles.push((0..PERIOD).map(|i| T::small((mix(i as u64, u64::MAX) >> 57) as u8)).collect());
        Tiles { tiles: tiles.into_iter().map(|tile| [&tile[..], &tile].concat()).collect() }
    }

    /// Returns the bytes of a period of each pattern; no bytes if the case has no such pattern.
    pub(super) fn bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.tiles.iter().map(|tile| HostBuf::from(&tile[..tile.len() / 2]).as_bytes())
    }

    /// Fills `buffer` for the call number `turn`.
    pub(super) fn fill(&self, buffer: &mut [T], segments: &[Segment], turn: usize) {
        let mut rest = buffer;
        for segment in segments {
            let (part, after) = rest.split_at_mut(segment.count);
            let period = self.period(segment, turn);
            part.chunks_mut(PERIOD).for_each(|chunk| chunk.copy_from_slice(&period[..chunk.len()]));
            rest = after;
        }
    }

    /// Counts the elements of `buffer` that differ from what `segments` say after the call number
    /// `turn`.
    pub(super) fn wrong(&self, buffer: &[T], segments: &[Segment], turn: usize) -> usize {
        let (mut rest, mut wrong) = (buffer, 0);
        for segment in segments {
            let (part, after) = rest.split_at(segment.count);
            let period = self.period(segment, turn);
            for chunk in part.chunks(PERIOD) {
                let expected = &period[..chunk.len()];
                // Comparing bytes is much faster than comparing numbers.
                if HostBuf::from(chunk).as_bytes() != HostBuf::from(expected).as_bytes() {
                    wrong += chunk.iter().zip(expected).filter(|(found, expected)| found != expected).count();
                }
            }
            rest = after;
        }
        wrong
    }

    fn period(&self, segment: &Segment, turn: usize) -> &[T] {
        let begin = (segment.shift + turn) % PERIOD;
        &self.tiles[segment.tile][begin..begin + PERIOD]
    }
}

/// Counts the elements of segments.
pub(super) fn count(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use consonance_spec::{DType, bf16};

    #[test]
    fn a_filled_buffer_passes_and_a_changed_element_fails() {
        let case = Case {
            collective: Collective::AllReduce,
            ranks: 3,
            count: 5000,
            dtype: DType::Bf16,
            op: ReduceOp::Sum,
            in_place: true,
            spread: 0,
        };
        let (tiles, layout) = (Tiles::<bf16>::new(&case), Layout::of(&case, 1, Habit::Ours));
        let mut buffer = vec![bf16::ZERO; case.count];
        tiles.fill(&mut buffer, &layout.expect, 7);
        assert_eq!(tiles.wrong(&buffer, &layout.expect, 7), 0);
        buffer[4999] += bf16::ONE;
        assert_eq!(tiles.wrong(&buffer, &layout.expect, 7), 1);
        // Almost all elements count as wrong if the buffer is compared with its contents before the
        // call, or with the result of another call.
        assert!(tiles.wrong(&buffer, &layout.recv, 7) > 3000);
        assert!(tiles.wrong(&buffer, &layout.expect, 8) > 3000);
    }

    /// The spec's results for the data that is sent are the data that is expected.
    #[test]
    fn layouts_are_those_of_the_spec() {
        use Collective::{AllGather, AllGatherV, AllReduce, AllToAll, AllToAllV, ReduceScatter};
        for collective in [AllReduce, ReduceScatter, AllGather, AllGatherV, AllToAll, AllToAllV] {
            let case = Case {
                collective,
                ranks: 3,
                count: 40,
                dtype: DType::I32,
                op: ReduceOp::Max,
                in_place: false,
                spread: 40,
            };
            let tiles = Tiles::<i32>::new(&case);
            let layouts: Vec<Layout> = (0..3).map(|rank| Layout::of(&case, rank, Habit::Ours)).collect();
            let filled = |segments: &[Segment]| {
                let mut buffer = vec![0; count(segments)];
                tiles.fill(&mut buffer, segments, 5);
                buffer
            };
            let sent: Vec<Vec<i32>> = layouts.iter().map(|layout| filled(&layout.send)).collect();
            let results = match collective {
                AllReduce => collective::all_reduce(case.op, &sent),
                ReduceScatter => collective::reduce_scatter(case.op, &sent),
                AllToAllV => {
                    let counts: Vec<Vec<usize>> = (0..3).map(|rank| case.counts(rank)).collect();
                    collective::all_to_all_v(&sent, &counts)
                }
                AllGather | AllGatherV => Ok(collective::all_gather(&sent)),
                AllToAll => collective::all_to_all(&sent),
                other => unreachable!("{other:?} is none of these"),
            };
            let expected: Vec<Vec<i32>> = layouts.iter().map(|layout| filled(&layout.expect)).collect();
            assert_eq!(results.expect("a right call"), expected, "{collective}");
        }
    }
}
