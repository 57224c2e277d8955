//! One rank's part of a collective: its buffers before the call, and their expected contents after
//! it.

use crate::{
    calls::{self, Call, Elements},
    cases::{Buffer, Collective, Counts},
    sample::{Sample, keys, sample},
};
use consonance::{Communicator, Error, Pending, Scope};
use consonance_kernels::digest::mix;
use consonance_spec::{
    Extent, Flow, Kind, ReduceOp, Work,
    collective::{self, Error as SpecError},
};
use std::ops::Range;

/// One rank's part of one call.
pub trait Part: Send {
    /// Moves the buffers to the memory that the case requires, and makes accumulators, before the
    /// first call.
    fn place(&mut self, communicator: &mut Communicator) -> Result<(), Error>;

    /// Makes the call.
    fn make(&mut self, communicator: &mut Communicator) -> Result<(), Error>;

    /// Starts the call. Returns `None` if this rank takes no part in it.
    fn start<'env>(&'env mut self, scope: &Scope<'env>) -> Result<Option<Pending>, Error>;

    /// Checks that the call's result and the buffers are as the spec says.
    fn judge(&self, result: Result<(), Error>) -> Result<(), String>;

    /// Checks that the buffers are unchanged by the call.
    fn untouched(&self) -> Result<(), String>;
}

/// Returns the one contribution of each rank.
pub(super) fn contributions<T: Sample>(call: &Collective, size: usize) -> Vec<Vec<T>> {
    (0..size).map(|rank| sample(mix(call.seed, rank as u64), given(call, size, rank))).collect()
}

/// Returns every rank's part of a call with one contribution of each.
pub(super) fn parts_of<T: Sample>(call: &Collective, contributions: Vec<Vec<T>>) -> Vec<Box<dyn Part>> {
    let size = contributions.len();
    if call.kind == Kind::Split {
        return split_parts(call, &contributions);
    }
    let results = results(call, &contributions, size);
    (contributions.into_iter().enumerate())
        .map(|(rank, given)| {
            let result = results.as_ref().map(|results| results[rank].as_deref());
            Box::new(Buffers::new(call, size, rank, given, result)) as Box<dyn Part>
        })
        .collect()
}

/// Returns the number of elements that a rank contributes.
pub fn given(call: &Collective, size: usize, rank: usize) -> usize {
    let all = |count: &dyn Fn(usize) -> usize| (0..size).map(count).sum();
    match (call.kind.flow(), call.kind.work(), call.kind.extent()) {
        // A group that is split off makes an all-reduce.
        (Flow::Control, _, _) if call.kind == Kind::Split => call.counts.of(rank, 0),
        (Flow::Pair, _, _) if rank == call.root => call.counts.of(rank, 0),
        // All ranks have the buffer of a broadcast.
        (Flow::FromRoot | Flow::ToRoot | Flow::Everyone, _, Extent::Whole) => call.counts.of(rank, 0),
        (Flow::FromRoot, _, Extent::Parts) if rank == call.root => all(&|to| call.counts.of(to, 0)),
        (Flow::Control | Flow::Pair, _, _) | (Flow::FromRoot, _, Extent::Parts) => 0,
        (Flow::ToRoot | Flow::Everyone, Work::Combines, Extent::Parts) => call.counts.of(rank, 0) * size,
        (Flow::ToRoot | Flow::Everyone, Work::Moves, Extent::Parts) => all(&|to| call.counts.of(rank, to)),
    }
}

/// Returns each rank's result; `None` for a rank without a result. The ranks of a reduction may
/// have any number of contributions.
pub(super) fn results<T: Sample>(
    call: &Collective,
    given: &[Vec<T>],
    size: usize,
) -> Result<Vec<Option<Vec<T>>>, SpecError> {
    let root = call.root;
    let all = |results: Vec<Vec<T>>| results.into_iter().map(Some).collect();
    Ok(match (call.kind, &call.counts) {
        (Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter, _) => {
            reduced(call, collective::reduce(call.op, given)?, size)?
        }
        (Kind::Broadcast, _) => all(collective::broadcast(&given[root], size)),
        (Kind::AllGather, _) => all(collective::all_gather(given)),
        (Kind::Gather, _) => only(root, collective::gather(given), size),
        (Kind::Scatter, Counts::Ragged(counts)) => all(collective::scatter_v(&given[root], counts)?),
        (Kind::Scatter, _) => all(collective::scatter(&given[root], size)?),
        (Kind::AllToAll, Counts::Pairs(counts)) => all(collective::all_to_all_v(given, counts)?),
        (Kind::AllToAll, _) => all(collective::all_to_all(given)?),
        (Kind::SendRecv, _) => collective::send_recv(given, root, call.receiver(size))?,
        (Kind::Barrier | Kind::Split | Kind::Extension(_), _) => vec![None; size],
    })
}

/// Returns each rank's result of a reduction, of which all elements are given.
pub(super) fn reduced<R: Sample>(
    call: &Collective,
    result: Vec<R>,
    size: usize,
) -> Result<Vec<Option<Vec<R>>>, SpecError> {
    Ok(match call.kind {
        Kind::Reduce => only(call.root, result, size),
        Kind::ReduceScatter => collective::scatter(&result, size)?.into_iter().map(Some).collect(),
        Kind::AllReduce => vec![Some(result); size],
        Kind::Barrier | Kind::Broadcast | Kind::AllGather | Kind::Gather | Kind::Scatter => vec![None; size],
        Kind::AllToAll | Kind::SendRecv | Kind::Split | Kind::Extension(_) => vec![None; size],
    })
}

fn only<R: Sample>(rank: usize, result: Vec<R>, size: usize) -> Vec<Option<Vec<R>>> {
    (0..size).map(|other| (other == rank).then(|| result.clone())).collect()
}

/// A buffer inside an allocation, with the bits of the whole allocation before and after the call.
pub(super) struct Slab<T> {
    elements: Elements<T>,
    /// Whether the elements are to lie in memory of the group.
    is_shared: bool,
    range: Range<usize>,
    pub(super) before: Vec<u64>,
    pub(super) after: Vec<u64>,
}

impl<T: Sample> Slab<T> {
    /// Returns the buffer of a rank in a call. Its contents are `before`, and `after` if the call
    /// succeeds.
    pub(super) fn new(call: &Collective, rank: usize, buffer: Buffer, before: &[T], after: &[T]) -> Slab<T> {
        let (offset, is_shared) = (call.offset, call.memory.is_shared(rank, buffer));
        // Elements on both sides that no call may touch. There are none if the buffer has its own
        // pages.
        let guards: Vec<T> = sample(offset as u64, if is_shared && offset == 0 { 0 } else { offset + 2 });
        let around = |inner: &[T]| [&guards[..offset], inner, &guards[offset..]].concat();
        let (elements, range) = (around(before), offset..offset + before.len());
        let (before, after) = (keys(&elements), keys(&around(after)));
        Slab { elements: Elements::Own(elements), is_shared, range, before, after }
    }

    pub(super) fn place(&mut self, communicator: &Communicator) -> Result<(), Error> {
        if self.is_shared {
            let mut elements = communicator.alloc(self.elements.len())?;
            elements.copy_from_slice(&self.elements);
            self.elements = Elements::Shared(elements);
        }
        Ok(())
    }

    pub(super) fn get(&self) -> &[T] {
        &self.elements[self.range.clone()]
    }

    pub(super) fn get_mut(&mut self) -> &mut [T] {
        &mut self.elements[self.range.clone()]
    }

    pub(super) fn compare(&self, what: &str, expected: &[u64]) -> Result<(), String> {
        let elements = &self.elements;
        let found = keys(elements);
        match (0..found.len()).find(|&i| found[i] != expected[i]) {
            None => Ok(()),
            Some(i) => Err(format!(
                "{what}: {} at {} of {:?}, found bits {:#x}, expected {:#x}",
                elements[i],
                i as isize - self.range.start as isize,
                self.range.len(),
                found[i],
                expected[i]
            )),
        }
    }
}

/// Checks a call's result and buffers. A call without a result in the spec must fail on every rank,
/// and must not change any buffer.
pub(super) fn judge(
    valid: bool,
    result: Result<(), Error>,
    after: impl FnOnce() -> Result<(), String>,
    before: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    match (valid, result) {
        (true, Ok(())) => after(),
        (true, Err(error)) => Err(format!("failed: {error}")),
        (false, Ok(())) => Err("succeeded, but the spec has no result for it".to_owned()),
        (false, Err(Error::InvalidCall { .. } | Error::Mismatch { .. })) => before(),
        (false, Err(error)) => Err(format!("neither an invalid call nor a mismatch: {error}")),
    }
}

/// A part whose result has the type of the contributions.
pub(super) struct Buffers<T> {
    call: Collective,
    /// Whether the spec has a result.
    valid: bool,
    rank: usize,
    size: usize,
    /// The counts that each rank sends to this one, where pairs of ranks have counts.
    to_us: Vec<usize>,
    send: Option<Slab<T>>,
    recv: Option<Slab<T>>,
}

impl<T: Sample> Buffers<T> {
    pub(super) fn new(
        call: &Collective,
        size: usize,
        rank: usize,
        given: Vec<T>,
        result: Result<Option<&[T]>, &SpecError>,
    ) -> Buffers<T> {
        use Buffer::{Recv, Send};
        let (valid, result) = (result.is_ok(), result.ok().flatten());
        let slab = |buffer, before: &[T], after: &[T]| Some(Slab::new(call, rank, buffer, before, after));
        let send = |before: &[T]| slab(Send, before, before);
        let recv = |before: &[T], after: &[T]| slab(Recv, before, after);
        let root = rank == call.root;
        // The range of this rank's part in the concatenation of all parts.
        let own = |count: &dyn Fn(usize) -> usize| {
            let start: usize = (0..rank).map(count).sum();
            start..start + count(rank)
        };
        let counted = |other: usize| call.counts.of(other, 0);
        let fresh = |count: usize| sample::<T>(!call.seed, count);
        let (send, recv) = match (call.kind, call.in_place) {
            (Kind::Barrier | Kind::Split | Kind::Extension(_), _) => (None, None),
            (Kind::Broadcast, _) => (None, recv(&given, result.unwrap_or(&given))),
            (Kind::AllReduce | Kind::AllToAll, true) if !matches!(call.counts, Counts::Pairs(_)) => {
                (None, recv(&given, result.unwrap_or(&given)))
            }
            (Kind::Reduce, true) => (None, recv(&given, result.unwrap_or(&given))),
            (Kind::ReduceScatter, true) => {
                let mut after = given.clone();
                if let Some(result) = result {
                    after[own(&counted)].copy_from_slice(result);
                }
                (None, recv(&given, &after))
            }
            (Kind::AllGather, true) => {
                let after = result.expect("a gather has a result");
                let mut before = fresh(after.len());
                before[own(&counted)].copy_from_slice(&given);
                (None, recv(&before, after))
            }
            (Kind::Gather, true) if root && matches!(call.counts, Counts::Ragged(_)) => {
                let after = result.expect("a gather has a result");
                let mut before = fresh(after.len());
                before[own(&counted)].copy_from_slice(&given);
                (None, recv(&before, after))
            }
            (Kind::Scatter, true) if root => (send(&given), None),
            (Kind::Scatter, _) | (Kind::SendRecv, _) => {
                let recv = result.and_then(|result| recv(&fresh(result.len()), result));
                (send(&given).filter(|_| root), recv)
            }
            // Invalid calls still need buffers as arguments.
            _ if !valid => (send(&given), {
                let count = if call.kind == Kind::ReduceScatter { given.len() / size } else { given.len() };
                recv(&given[..count], &given[..count]).filter(|_| call.kind != Kind::Reduce || root)
            }),
            (Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter, _)
            | (Kind::AllGather | Kind::Gather | Kind::AllToAll, _) => {
                (send(&given), result.and_then(|result| recv(&fresh(result.len()), result)))
            }
        };
        let to_us = match &call.counts {
            Counts::Pairs(counts) => counts.iter().map(|from| from[rank]).collect(),
            Counts::Even(_) | Counts::Ragged(_) => Vec::new(),
        };
        Buffers { call: call.clone(), valid, rank, size, to_us, send, recv }
    }

    pub(super) fn as_call(&mut self) -> Call<'_, T> {
        let Buffers { call, rank, size, to_us, send, recv, .. } = self;
        let counts = match &call.counts {
            Counts::Even(_) => calls::Counts::Even,
            Counts::Ragged(counts) => calls::Counts::Ragged(counts),
            Counts::Pairs(counts) => calls::Counts::Pairs(&counts[*rank], to_us),
        };
        let sends = call.kind == Kind::SendRecv && send.is_some();
        Call {
            kind: call.kind,
            op: call.op,
            root: if sends { call.receiver(*size) } else { call.root },
            counts,
            send: send.as_ref().map(Slab::get),
            recv: recv.as_mut().map(Slab::get_mut),
        }
    }
}

impl<T: Sample> Part for Buffers<T> {
    fn place(&mut self, communicator: &mut Communicator) -> Result<(), Error> {
        self.send.iter_mut().chain(&mut self.recv).try_for_each(|slab| slab.place(communicator))
    }

    fn make(&mut self, communicator: &mut Communicator) -> Result<(), Error> {
        self.as_call().make(communicator)
    }

    fn start<'env>(&'env mut self, scope: &Scope<'env>) -> Result<Option<Pending>, Error> {
        self.as_call().start(scope)
    }

    fn judge(&self, result: Result<(), Error>) -> Result<(), String> {
        let after = || {
            self.send.iter().try_for_each(|slab| slab.compare("send", &slab.after))?;
            self.recv.iter().try_for_each(|slab| slab.compare("recv", &slab.after))
        };
        judge(self.valid, result, after, || self.untouched())
    }

    fn untouched(&self) -> Result<(), String> {
        self.send.iter().chain(&self.recv).try_for_each(|slab| slab.compare("a failed call wrote", &slab.before))
    }
}

/// A part of a split and of an all-reduce in the resulting group.
struct Split<T> {
    op: ReduceOp,
    color: Option<u32>,
    key: i32,
    valid: bool,
    /// This rank's number among the ranks of its color, and the number of those ranks.
    place: Option<(usize, usize)>,
    data: Slab<T>,
}

fn split_parts<T: Sample>(call: &Collective, given: &[Vec<T>]) -> Vec<Box<dyn Part>> {
    let choice = |rank: usize| {
        let word = mix(call.seed, !(rank as u64));
        // Three colors or none, and repeated keys on both sides of zero.
        ([None, Some(0), Some(1), Some(u32::MAX)][word as usize % 4], (word >> 8) as i32 % 3)
    };
    let choices: Vec<_> = (0..given.len()).map(choice).collect();
    let groups = collective::split(&choices);
    let part = |rank: usize| {
        let (color, key) = choices[rank];
        let group = groups[rank].as_ref().map(|members| {
            let inputs: Vec<Vec<T>> = members.iter().map(|&other| given[other].clone()).collect();
            let place = members.iter().position(|&other| other == rank).expect("a rank is in its group");
            (collective::reduce(call.op, &inputs), (place, members.len()))
        });
        let (result, place) = match group {
            Some((result, place)) => (result, Some(place)),
            None => (Ok(given[rank].clone()), None),
        };
        let after = result.as_ref().unwrap_or(&given[rank]);
        let data = Slab::new(call, rank, Buffer::Recv, &given[rank], after);
        Box::new(Split { op: call.op, color, key, valid: result.is_ok(), place, data }) as Box<dyn Part>
    };
    (0..given.len()).map(part).collect()
}

impl<T: Sample> Part for Split<T> {
    fn place(&mut self, communicator: &mut Communicator) -> Result<(), Error> {
        self.data.place(communicator)
    }

    fn make(&mut self, communicator: &mut Communicator) -> Result<(), Error> {
        let group = communicator.split(self.color, self.key)?;
        let found = group.as_ref().map(|group| (group.rank(), group.size()));
        if found != self.place {
            let (color, expected) = (self.color, self.place);
            return Err(Error::other(format!("color {color:?} gave {found:?}, expected {expected:?}")));
        }
        group.map_or(Ok(()), |mut group| group.all_reduce(self.op, self.data.get_mut()))
    }

    fn start<'env>(&'env mut self, _: &Scope<'env>) -> Result<Option<Pending>, Error> {
        unreachable!("no asynchronous call is a split")
    }

    fn judge(&self, result: Result<(), Error>) -> Result<(), String> {
        judge(self.valid, result, || self.data.compare("data", &self.data.after), || self.untouched())
    }

    fn untouched(&self) -> Result<(), String> {
        self.data.compare("a failed call wrote data", &self.data.before)
    }
}
