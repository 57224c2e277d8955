//! The contributions of a rank that has several, combined as they come.

use super::engine::Known;
use crate::{Communicator, Error, Result, error::IntoReduceOp, error::operation_on};
use consonance_kernels::{
    cpu::reduce::{Accumulation, Reducer},
    memory::{Buf, HostBuf, HostBufMut, Memory, Space},
};
use consonance_spec::{DType, Element, Kind};
use std::{fmt, marker::PhantomData, ops::Range};

/// A rank's *leaves*: its contributions to a reduction, to which ranks bring different numbers of
/// contributions. The result has the bits of as many ranks with one contribution each. See
/// [`Communicator::accumulator`].
pub struct Accumulator<T> {
    pub(super) parts: LeafSum,
    element: PhantomData<T>,
}

/// A rank's leaves, of an element type that is a value. See [`Communicator::accumulator_of`].
pub struct LeafSum {
    pub(crate) sum: Accumulation,
    /// Room for the nodes of all ranks, kept from call to call.
    pub(super) received: Vec<u8>,
    /// The holdings of all ranks at the last call.
    pub(super) known: Option<Known>,
}

/// A rank's last leaf, and the place of the result.
pub(crate) enum Ends<'a> {
    /// The result takes the place of the leaf.
    InPlace(HostBufMut<'a>),
    Apart(HostBuf<'a>, Option<HostBufMut<'a>>),
}

impl<'a> Ends<'a> {
    pub(super) fn last(&self) -> HostBuf<'_> {
        match self {
            Ends::InPlace(data) => data.as_buf(),
            Ends::Apart(last, _) => *last,
        }
    }

    pub(super) fn into_recv(self) -> Option<HostBufMut<'a>> {
        match self {
            Ends::InPlace(data) => Some(data),
            Ends::Apart(_, recv) => recv,
        }
    }
}

impl<T: Element> Accumulator<T> {
    /// Adds the next leaf: each one but the rank's last, which the call takes. Reads it once.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for another count, or after the last but one. The accumulator is as
    /// before. The other ranks are not told.
    ///
    /// ```
    /// # use consonance::{Communicator, Error};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let mut sum = alone.accumulator::<f32>("sum", 2, 0..2, 2)?;
    /// assert!(matches!(sum.add(&[1.0]), Err(Error::InvalidCall { .. })));
    /// sum.add(&[1.0, 2.0])?;
    /// // The second leaf is the last one.
    /// assert!(matches!(sum.add(&[1.0, 2.0]), Err(Error::InvalidCall { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn add(&mut self, leaf: &[T]) -> Result<()> {
        self.parts.add(leaf.into())
    }

    /// Returns the leaves of this rank.
    pub fn leaves(&self) -> Range<usize> {
        self.parts.leaves()
    }

    /// Returns the number of leaves of all ranks.
    pub fn of(&self) -> usize {
        self.parts.of()
    }

    /// Returns the number of leaves that were added since the last call.
    pub fn added(&self) -> usize {
        self.parts.added()
    }

    /// Drops the leaves that were added: the next one is the first.
    pub fn clear(&mut self) {
        self.parts.clear();
    }
}

impl LeafSum {
    /// Adds the next leaf, as [`Accumulator::add`] does.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for another count or element type, for memory of a device, or after
    /// the last leaf but one.
    ///
    /// ```
    /// # use consonance::{Communicator, DType, Error};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let mut sum = alone.accumulator_of(DType::F32, "sum", 1, 0..2, 2)?;
    /// assert!(matches!(sum.add([1.0f64].as_slice().into()), Err(Error::InvalidCall { .. })));
    /// sum.add([1.0f32].as_slice().into())?;
    /// assert_eq!(sum.added(), 1);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn add(&mut self, leaf: Buf<'_>) -> Result<()> {
        let invalid = |argument, expected, found| Err(Error::invalid("Accumulator::add", argument, expected, found));
        let (count, most) = (self.sum.count(), self.sum.run().len().saturating_sub(1));
        let (dtype, space) = (self.sum.reducer().input(), leaf.space());
        if leaf.dtype() != dtype {
            return invalid("leaf", format!("elements of {dtype}"), format!("elements of {}", leaf.dtype()));
        }
        if leaf.count() != count {
            return invalid("leaf", format!("{count} elements"), format!("{} elements", leaf.count()));
        }
        let Some(leaf) = leaf.host() else {
            return invalid("leaf", format!("memory of {}", Space::Host), format!("memory of {space}"));
        };
        if self.added() >= most {
            let found = format!("{} leaves", self.added() + 1);
            return invalid("leaves", format!("{most} leaves before the last"), found);
        }
        self.sum.add(leaf);
        Ok(())
    }

    /// Returns the leaves of this rank.
    pub fn leaves(&self) -> Range<usize> {
        self.sum.run()
    }

    /// Returns the number of leaves of all ranks.
    pub fn of(&self) -> usize {
        self.sum.of()
    }

    /// Returns the number of leaves that were added since the last call.
    pub fn added(&self) -> usize {
        self.sum.added()
    }

    /// Drops the leaves that were added: the next one is the first.
    pub fn clear(&mut self) {
        self.sum.clear();
    }
}

impl Communicator {
    /// Makes room for this rank's leaves in reductions by `op` to which ranks bring different
    /// numbers of contributions: `leaves` is this rank's run of `0..of`, and each leaf has `count`
    /// elements. The runs of all ranks follow each other in rank order; a run may be empty. Such a
    /// reduction has the bits of `of` ranks with one contribution each, whatever the number of
    /// ranks: a mean is divided by `of`, and rounded once.
    ///
    /// [Add](Accumulator::add) all leaves but the last, in order, and then make the call with the
    /// last one. The accumulator can be used again and again. It holds a few partial results, not
    /// the leaves: at most 2 log2(m + 2) times `count` accumulators for m leaves, in memory that
    /// the ranks share. Sums of f16 and bf16 are held as f32.
    ///
    /// ```
    /// use consonance::Communicator;
    /// let results = std::thread::scope(|scope| {
    ///     let threads: Vec<_> = Communicator::threads(2)
    ///         .into_iter()
    ///         .map(|mut rank| {
    ///             scope.spawn(move || {
    ///                 // Three leaves on two ranks: leaf i is 10 to the power of i.
    ///                 let leaves = [0..2, 2..3][rank.rank()].clone();
    ///                 let mut sum = rank.accumulator::<f32>("mean", 1, leaves, 3)?;
    ///                 let mut last = if rank.rank() == 0 { [10.0] } else { [100.0] };
    ///                 if rank.rank() == 0 {
    ///                     sum.add(&[1.0])?;
    ///                 }
    ///                 rank.all_reduce_accumulated(&mut sum, &mut last).map(|()| last)
    ///             })
    ///         })
    ///         .collect();
    ///     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// assert_eq!(results, [[37.0], [37.0]]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownReduceOp`]; [`Error::InvalidCall`] if `op` is not defined on `T`, `of` is 0,
    /// or the leaves are not in `0..of`; [`Error::System`] if the system has no memory. The call
    /// then takes part in the other ranks' next call, which fails with [`Error::Mismatch`].
    pub fn accumulator<T: Element>(
        &mut self,
        op: impl IntoReduceOp,
        count: usize,
        leaves: Range<usize>,
        of: usize,
    ) -> Result<Accumulator<T>> {
        let parts = self.accumulator_of(T::DTYPE, op, count, leaves, of)?;
        Ok(Accumulator { parts, element: PhantomData })
    }

    /// Does what [`accumulator`](Communicator::accumulator) does for leaves whose element type is a
    /// value, for [`execute_accumulated`](Communicator::execute_accumulated).
    ///
    /// # Errors
    /// As [`accumulator`](Communicator::accumulator).
    ///
    /// ```
    /// # use consonance::{Communicator, DType};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let sum = alone.accumulator_of(DType::Bf16, "mean", 1000, 0..3, 3)?;
    /// assert_eq!((sum.leaves(), sum.of()), (0..3, 3));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn accumulator_of(
        &mut self,
        dtype: DType,
        op: impl IntoReduceOp,
        count: usize,
        leaves: Range<usize>,
        of: usize,
    ) -> Result<LeafSum> {
        let made = self.make_accumulator(dtype, op, count, leaves, of).map_err(|error| error.of_replica(self.rank()));
        made.inspect_err(|error| _ = self.refuse(Kind::AllReduce, error))
    }

    fn make_accumulator(
        &self,
        dtype: DType,
        op: impl IntoReduceOp,
        count: usize,
        leaves: Range<usize>,
        of: usize,
    ) -> Result<LeafSum> {
        let call = "Communicator::accumulator";
        let op = op.into_reduce_op().map_err(|error| error.of_call(call))?;
        let undefined = || Error::invalid(call, "op", operation_on(dtype, ""), op.name());
        let reducer = Reducer::new(op, dtype).ok_or_else(undefined)?;
        if of == 0 {
            return Err(Error::invalid(call, "of", "at least one leaf of all ranks", "0"));
        }
        if leaves.start > leaves.end || leaves.end > of {
            return Err(Error::invalid(call, "leaves", format!("a run of 0..{of}"), format!("{leaves:?}")));
        }
        self.leaf_sum(call, reducer, count, leaves, of)
    }

    /// Makes room for the leaves `leaves` of `0..of`, of `count` elements each.
    pub(crate) fn leaf_sum(
        &self,
        call: &'static str,
        reducer: Reducer,
        count: usize,
        leaves: Range<usize>,
        of: usize,
    ) -> Result<LeafSum> {
        let too_many = || {
            let found = format!("{count} elements in {} leaves", leaves.len());
            Error::invalid(call, "count", "leaves that memory can hold", found)
        };
        let bytes = Accumulation::bytes(&reducer, count, leaves.clone(), of).ok_or_else(too_many)?;
        let outside = || Error::invalid(call, "engine", "memory of the host from it", "memory of a device");
        if !self.engine.reaches(Space::Host) {
            return Err(outside());
        }
        let Memory::Host(memory) = self.engine.alloc(Space::Host, DType::U8, bytes)? else { return Err(outside()) };
        Ok(LeafSum { sum: Accumulation::new(reducer, count, leaves, of, memory), received: Vec::new(), known: None })
    }

    /// Combines the leaves of all ranks: those that were added to `sum`, and `last`, this rank's
    /// last one. Writes the result to each rank's `last`. If this rank has no leaves, `last` is
    /// room for the result. Each leaf has one place in the order of the sum, so the result has the
    /// bits of an [`all_reduce`](Communicator::all_reduce) with a rank for each leaf. Afterwards
    /// `sum` has no leaves.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if a leaf is missing, if `last` has another count, or if the result
    /// is of another type (the mean of integers); [`Error::Mismatch`] of the argument `leaves` if
    /// the ranks' runs do not follow each other; otherwise as
    /// [`all_reduce`](Communicator::all_reduce). After an [`Error::InvalidCall`] and after a
    /// [`Error::Mismatch`] of this call `sum` is as before; after any other error it has no leaves.
    /// A call is several steps, each with the timeout for its waits.
    ///
    /// ```
    /// # use consonance::{Communicator, Error};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let mut sum = alone.accumulator::<f32>("mean", 2, 0..3, 3)?;
    /// for _step in 0..2 {
    ///     sum.add(&[1.0, 2.0])?;
    ///     sum.add(&[2.0, 4.0])?;
    ///     let mut last = [6.0, 9.0];
    ///     alone.all_reduce_accumulated(&mut sum, &mut last)?;
    ///     assert_eq!(last, [3.0, 5.0]);
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn all_reduce_accumulated<T: Element>(&mut self, sum: &mut Accumulator<T>, last: &mut [T]) -> Result<()> {
        self.accumulated(Kind::AllReduce, &mut sum.parts, Ends::InPlace(last.into()), 0)
    }

    /// As [`all_reduce_accumulated`](Communicator::all_reduce_accumulated), with the result in
    /// `recv`: for the mean of integers, too.
    ///
    /// # Errors
    /// As [`all_reduce_accumulated`](Communicator::all_reduce_accumulated).
    ///
    /// ```
    /// # use consonance::Communicator;
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let mut sum = alone.accumulator::<i8>("mean", 1, 0..2, 2)?;
    /// sum.add(&[127])?;
    /// let mut mean = [0.0f32];
    /// alone.all_reduce_accumulated_into(&mut sum, &[126], &mut mean)?;
    /// assert_eq!(mean, [126.5]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_reduce_accumulated_into<T: Element, R: Element>(
        &mut self,
        sum: &mut Accumulator<T>,
        last: &[T],
        recv: &mut [R],
    ) -> Result<()> {
        self.accumulated(Kind::AllReduce, &mut sum.parts, Ends::Apart(last.into(), Some(recv.into())), 0)
    }

    /// As [`all_reduce_accumulated`](Communicator::all_reduce_accumulated), with the result on
    /// `root` alone. The other ranks' `last` is not changed.
    ///
    /// # Errors
    /// As [`all_reduce_accumulated`](Communicator::all_reduce_accumulated).
    ///
    /// ```
    /// # use consonance::Communicator;
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let mut sum = alone.accumulator::<f64>("sum", 1, 0..2, 2)?;
    /// sum.add(&[1.5])?;
    /// let mut last = [2.0];
    /// alone.reduce_accumulated(&mut sum, &mut last, 0)?;
    /// assert_eq!(last, [3.5]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn reduce_accumulated<T: Element>(
        &mut self,
        sum: &mut Accumulator<T>,
        last: &mut [T],
        root: usize,
    ) -> Result<()> {
        let ends = match self.rank() == root {
            true => Ends::InPlace(last.into()),
            false => Ends::Apart((&*last).into(), None),
        };
        self.accumulated(Kind::Reduce, &mut sum.parts, ends, root)
    }

    /// As [`reduce_accumulated`](Communicator::reduce_accumulated), with the result in `root`'s
    /// `recv`: for the mean of integers, too. The other ranks need no `recv`.
    ///
    /// # Errors
    /// As [`all_reduce_accumulated`](Communicator::all_reduce_accumulated).
    ///
    /// ```
    /// # use consonance::Communicator;
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let mut sum = alone.accumulator::<i8>("mean", 1, 0..2, 2)?;
    /// sum.add(&[127])?;
    /// let mut mean = [0.0f32];
    /// alone.reduce_accumulated_into(&mut sum, &[126], Some(&mut mean), 0)?;
    /// assert_eq!(mean, [126.5]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn reduce_accumulated_into<T: Element, R: Element>(
        &mut self,
        sum: &mut Accumulator<T>,
        last: &[T],
        recv: Option<&mut [R]>,
        root: usize,
    ) -> Result<()> {
        let recv = recv.filter(|_| self.rank() == root).map(Into::into);
        self.accumulated(Kind::Reduce, &mut sum.parts, Ends::Apart(last.into(), recv), root)
    }

    /// As [`all_reduce_accumulated`](Communicator::all_reduce_accumulated), with block `r` of the
    /// result in block `r` of rank `r`'s `last`. The rest of `last` is not changed. Blocks are
    /// even: the count is a multiple of the number of ranks.
    ///
    /// # Errors
    /// As [`all_reduce_accumulated`](Communicator::all_reduce_accumulated).
    ///
    /// ```
    /// # use consonance::Communicator;
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let mut greatest = alone.accumulator::<i32>("max", 2, 0..2, 2)?;
    /// greatest.add(&[1, 9])?;
    /// let mut last = [4, 5];
    /// alone.reduce_scatter_accumulated(&mut greatest, &mut last)?;
    /// assert_eq!(last, [4, 9]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn reduce_scatter_accumulated<T: Element>(&mut self, sum: &mut Accumulator<T>, last: &mut [T]) -> Result<()> {
        self.accumulated(Kind::ReduceScatter, &mut sum.parts, Ends::InPlace(last.into()), 0)
    }

    /// As [`reduce_scatter_accumulated`](Communicator::reduce_scatter_accumulated), with block `r`
    /// of the result in rank `r`'s `recv`: for the mean of integers, too. `last` has `size` times
    /// as many elements as `recv`.
    ///
    /// # Errors
    /// As [`all_reduce_accumulated`](Communicator::all_reduce_accumulated).
    ///
    /// ```
    /// # use consonance::Communicator;
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let mut sum = alone.accumulator::<u8>("mean", 2, 0..2, 2)?;
    /// sum.add(&[255, 1])?;
    /// let mut means = [0.0f32; 2];
    /// alone.reduce_scatter_accumulated_into(&mut sum, &[254, 2], &mut means)?;
    /// assert_eq!(means, [254.5, 1.5]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn reduce_scatter_accumulated_into<T: Element, R: Element>(
        &mut self,
        sum: &mut Accumulator<T>,
        last: &[T],
        recv: &mut [R],
    ) -> Result<()> {
        let ends = Ends::Apart(last.into(), Some(recv.into()));
        self.accumulated(Kind::ReduceScatter, &mut sum.parts, ends, 0)
    }
}

impl<T: Element> fmt::Debug for Accumulator<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.fmt(f)
    }
}

impl fmt::Debug for LeafSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (leaves, of) = (self.leaves(), self.of());
        write!(f, "Accumulator({:?}, {} of leaves {leaves:?} of {of})", self.sum.reducer(), self.added())
    }
}
