//! Exact reductions between ranks that do not share memory.
//!
//! The results are computed in rounds of [`ROUND_BYTES`]. In each, a rank computes its block of the
//! results from what the others send it, and the blocks are gathered. They send elements, or, if
//! these are more bytes, the words of an exact sum for each result.

use super::{
    agreement::Agreement,
    call::{Call, OnHost},
};
use crate::{Communicator, Error, Result, error::IntoReduceOp, kind::ALL_REDUCE_EXACT, value::exact};
use consonance_kernels::{
    cpu::exact::{self as kernels, View},
    digest::mix,
    memory::{HostBuf, HostBufMut, HostMemory, Space},
};
use consonance_spec::{Element, ReduceOp, partition};
use std::ops::Range;

/// The bytes that a round sends and receives at most, if that is more than a result's.
const ROUND_BYTES: usize = 4 << 20;

/// A rank's elements and the place of the results, which have the place of the elements if there is
/// no `send`.
pub(crate) struct Ends<'a> {
    pub(crate) send: Option<HostBuf<'a>>,
    pub(crate) recv: HostBufMut<'a>,
    /// The sizes `[outer, axis, inner]` of the view of the elements. The results are those along
    /// the axis. Its size may differ between ranks.
    pub(crate) sizes: [usize; 3],
}

impl Ends<'_> {
    fn view(&self) -> View<'_> {
        (self.send.unwrap_or(self.recv.as_buf()), self.sizes)
    }

    fn results(&mut self, round: &Range<usize>) -> HostBufMut<'_> {
        self.recv.reborrow().slice(round.clone())
    }
}

impl Communicator {
    /// Adds every rank's `data`, or takes their mean, and writes the result to each rank's `data`:
    /// the exact sum or mean, rounded once. So it does not depend on the order of the ranks, and no
    /// sum in between loses digits or overflows. `T` is `f32` or `f64`, and `op` sum or mean.
    ///
    /// An infinity of one sign is the result, infinities of both signs and NaNs give NaN.
    /// [`Strategy::reduce_exact`](crate::Strategy::reduce_exact) also reduces along axes, as exact
    /// as over ranks.
    ///
    /// # Errors
    /// [`Error::UnknownReduceOp`]; [`Error::InvalidCall`] for other operations and element types;
    /// otherwise as [`barrier`](Communicator::barrier). A call is several steps, each with the
    /// timeout for its waits.
    ///
    /// ```
    /// use consonance::Communicator;
    /// let sums = std::thread::scope(|scope| {
    ///     let threads: Vec<_> = Communicator::threads(3)
    ///         .into_iter()
    ///         .map(|mut rank| {
    ///             scope.spawn(move || {
    ///                 let mut data = [[1e16, 1.0, -1e16][rank.rank()]];
    ///                 rank.all_reduce_exact("sum", &mut data).map(|()| data)
    ///             })
    ///         })
    ///         .collect();
    ///     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// assert_eq!(sums, [[1.0]; 3]);
    /// assert_eq!(1e16 + 1.0 - 1e16, 0.0);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_reduce_exact<T: Element>(&mut self, op: impl IntoReduceOp, data: &mut [T]) -> Result<()> {
        let op = self.op(ALL_REDUCE_EXACT, op)?;
        self.execute_exact(Call::AllReduce { op, send: None, recv: data.into() }, &Agreement::NONE)
    }

    /// Executes [`all_reduce_exact`](Communicator::all_reduce_exact) on buffers whose element type
    /// is a value, as [`execute`](Communicator::execute) does for other calls: `call` is an
    /// all-reduce.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for another call, or memory of a device; otherwise as
    /// [`all_reduce_exact`](Communicator::all_reduce_exact).
    ///
    /// ```
    /// use consonance::{Communicator, ReduceOp, raw::{Agreement, Call}};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let (data, mut sum) = ([1.5f32, 2.5], [0.0f32; 2]);
    /// let (send, recv) = (Some(data.as_slice().into()), sum.as_mut_slice().into());
    /// alone.execute_exact(Call::AllReduce { op: ReduceOp::Sum, send, recv }, &Agreement::NONE)?;
    /// assert_eq!(sum, data);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn execute_exact(&mut self, call: Call<'_>, agreement: &Agreement<'_>) -> Result<()> {
        match ends_of(call) {
            Ok((op, ends)) => self.agree_exactly(op, ends, agreement),
            Err(error) => {
                let error = error.of_replica(self.rank());
                let _ = self.refuse(ALL_REDUCE_EXACT, &error);
                Err(error)
            }
        }
    }

    /// Executes a call with valid arguments, which the ranks compare in each step.
    fn agree_exactly(&mut self, op: ReduceOp, ends: Ends<'_>, agreement: &Agreement<'_>) -> Result<()> {
        let (dtype, count) = (ends.recv.dtype(), ends.recv.count());
        let describe = || {
            let mut lines = (agreement.describe)();
            let own = [("op", op.to_string()), ("dtype", dtype.to_string()), ("count", count.to_string())];
            lines.extend(own.map(|(argument, value)| (argument.to_owned(), value)));
            lines
        };
        let digest = mix(mix(op as u64, dtype as u64), mix(count as u64, agreement.digest));
        let agreement = Agreement { call: Some(ALL_REDUCE_EXACT), ..Agreement::new(digest, &describe) };
        let sizes = vec![1; self.size()];
        self.reduce_exact(op, ends, &sizes, &agreement)
    }

    /// Reduces the elements of all ranks exactly. `axis` has the size of each rank's view along the
    /// axis. The ranks agree on the operation, the element type and the number of results.
    pub(crate) fn reduce_exact(
        &mut self,
        op: ReduceOp,
        mut ends: Ends<'_>,
        axis: &[usize],
        agreement: &Agreement<'_>,
    ) -> Result<()> {
        let (results, dtype) = (ends.recv.count(), ends.recv.dtype());
        let elements = axis.iter().fold(0, |sum: usize, size| sum.saturating_add(*size)).saturating_mul(dtype.size());
        let words = kernels::words(dtype) * self.size() * size_of::<u64>();
        let most = (ROUND_BYTES / elements.min(words).max(1)).max(self.size());
        self.as_one(|communicator| {
            let mut exchange = Exchange { communicator, op, axis, agreement };
            // Ranks also compare a call without results.
            (0..results.max(1)).step_by(most).try_for_each(|start| {
                let round = start..results.min(start + most);
                match elements <= words {
                    true => exchange.elements(&mut ends, round),
                    false => exchange.words(&mut ends, round),
                }
            })
        })
    }
}

/// Returns the operation and the buffers of a call, whose arguments it checks.
fn ends_of(call: Call<'_>) -> Result<(ReduceOp, Ends<'_>)> {
    let (name, kind) = (ALL_REDUCE_EXACT.name(), call.kind());
    let invalid = |argument: &str, expected: String, found: String| Error::invalid(name, argument, expected, found);
    if let Some((argument, space)) = call.outside(|space| space == Space::Host) {
        return Err(invalid(argument, format!("memory of {}", Space::Host), format!("memory of {space}")));
    }
    let Call::AllReduce { op, send, recv } = call else {
        return Err(invalid("call", "an all-reduce".to_owned(), kind.to_string()));
    };
    let (send, recv) = (send.on_host(), recv.on_host());
    let (dtype, count) = send.map_or((recv.dtype(), recv.count()), |send| (send.dtype(), send.count()));
    exact::check_op(name, op)?;
    if !kernels::is_defined(op, dtype) {
        return Err(invalid("data", "elements of f32 or f64".to_owned(), format!("elements of {dtype}")));
    }
    if recv.dtype() != dtype {
        return Err(invalid("recv", format!("elements of {dtype}"), format!("elements of {}", recv.dtype())));
    }
    if recv.count() != count {
        return Err(invalid("recv", format!("{count} elements"), format!("{} elements", recv.count())));
    }
    Ok((op, Ends { send, recv, sizes: [1, 1, count] }))
}

/// An exact reduction of ranks that exchange what they have.
struct Exchange<'a> {
    communicator: &'a mut Communicator,
    op: ReduceOp,
    /// The size along the axis of each rank's view.
    axis: &'a [usize],
    agreement: &'a Agreement<'a>,
}

impl Exchange<'_> {
    /// Computes a round of results of which few elements are on each rank.
    fn elements(&mut self, ends: &mut Ends<'_>, round: Range<usize>) -> Result<()> {
        let (rank, dtype) = (self.communicator.rank(), ends.recv.dtype());
        let blocks = self.blocks(&round);
        let (own, axis) = (blocks[rank].clone(), self.axis[rank]);
        let mut sent = HostMemory::unspecified(dtype, axis * round.len());
        let mut rest = sent.as_buf_mut();
        for block in &blocks {
            let (part, after) = rest.split_at(axis * block.len());
            kernels::rows(ends.view(), round.start + block.start..round.start + block.end, part);
            rest = after;
        }
        let counts: Vec<usize> = blocks.iter().map(|block| axis * block.len()).collect();
        let wanted: Vec<usize> = self.axis.iter().map(|size| size * own.len()).collect();
        let mut received = HostMemory::unspecified(dtype, wanted.iter().sum());
        let (send, recv) = (Some(sent.as_buf().into()), received.as_buf_mut().into());
        self.call(Call::AllToAll { send, recv, counts: Some((&counts, &wanted)) })?;
        let mut from = 0;
        let views = wanted.iter().zip(self.axis).map(|(count, size)| {
            from += count;
            (received.as_buf().slice(from - count..from), [1, *size, own.len()])
        });
        let views: Vec<View<'_>> = views.collect();
        kernels::reduce(self.op, &views, 0..own.len(), ends.results(&round).slice(own));
        self.gather(&blocks, ends.results(&round))
    }

    /// Computes a round of results of which each rank has many elements.
    fn words(&mut self, ends: &mut Ends<'_>, round: Range<usize>) -> Result<()> {
        let (rank, each) = (self.communicator.rank(), kernels::words(ends.recv.dtype()));
        let blocks = self.blocks(&round);
        let mut sent = vec![0; round.len() * each];
        kernels::partial(ends.view(), round.clone(), &mut sent);
        let counts: Vec<usize> = blocks.iter().map(|block| block.len() * each).collect();
        let wanted = vec![counts[rank]; blocks.len()];
        let mut received = vec![0u64; counts[rank] * blocks.len()];
        let (send, recv) = (Some(sent.as_slice().into()), received.as_mut_slice().into());
        self.call(Call::AllToAll { send, recv, counts: Some((&counts, &wanted)) })?;
        let part = |of: usize| &received[of * counts[rank]..(of + 1) * counts[rank]];
        let parts: Vec<&[u64]> = (0..blocks.len()).map(part).collect();
        let count = self.axis.iter().fold(0, |sum: u64, size| sum.wrapping_add(*size as u64));
        kernels::finish(self.op, &parts, count, ends.results(&round).slice(blocks[rank].clone()));
        self.gather(&blocks, ends.results(&round))
    }

    /// Returns the block of each rank in a round, counted from its start.
    fn blocks(&self, round: &Range<usize>) -> Vec<Range<usize>> {
        let size = self.communicator.size();
        (0..size).map(|rank| partition::block(round.len(), size, rank)).collect()
    }

    /// Gives the block of each rank to all.
    fn gather(&mut self, blocks: &[Range<usize>], target: HostBufMut<'_>) -> Result<()> {
        let counts: Vec<usize> = blocks.iter().map(Range::len).collect();
        self.call(Call::AllGather { send: None, recv: target.into(), counts: Some(&counts) })
    }

    fn call(&mut self, call: Call<'_>) -> Result<()> {
        self.communicator.execute(call, self.agreement)
    }
}
