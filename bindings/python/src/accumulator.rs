//! Accumulators: reductions of ranks with several contributions.

use crate::{
    arguments::{Given, array, operation, run},
    array::Loans,
    communicator::Communicator,
    failure::{Bad, exception},
    jobs::{self, Plan},
    timeout::Timeout,
    waiting,
};
use consonance::{World, raw::Kind};
use consonance_c::Leaves;
use pyo3::prelude::*;
use std::ops::Range;

/// The contributions of a rank that has several, its leaves, for a reduction whose result has the
/// bits of as many ranks with one leaf each, whatever the number of ranks.
///
/// Makes room for leaves of the type and the number of elements of the array `like`. `leaves` is
/// this rank's range of the `of` leaves of all ranks, which follow each other in rank order; it may
/// be empty. `op` is as for `Communicator.all_reduce`; a mean is divided by `of`, and rounded once.
///
/// Add all leaves but the last, in order, and make the call with the last one. The accumulator can
/// be used again and again. It holds a few partial results, not the leaves. A rank without leaves
/// passes any array like them.
///
/// >>> import consonance as cs, numpy as np
/// >>> leaves = [np.array([1.0]), np.array([10.0]), np.array([100.0])]
/// >>> def mean(comm):
/// ...     own = [range(0, 2), range(2, 3)][comm.rank]
/// ...     sum = cs.Accumulator(comm, leaves[0], own, of=3, op="mean")
/// ...     for leaf in own[:-1]:
/// ...         sum.add(leaves[leaf])
/// ...     return sum.all_reduce(leaves[own[-1]])
/// >>> cs.run(2, mean)
/// [array([37.]), array([37.])]
#[pyclass(module = "consonance", frozen)]
pub(crate) struct Accumulator {
    comm: Py<Communicator>,
    leaves: Leaves,
    range: Range<usize>,
    of: usize,
}

impl Accumulator {
    /// Makes the call on leaves that `plan` plans by their operation.
    fn call(
        &self,
        py: Python<'_>,
        call: (&'static str, Kind),
        mode: (bool, Option<Given<Timeout>>),
        plan: impl FnOnce(&mut Loans, World, &str) -> Result<Plan, Bad>,
    ) -> PyResult<Py<PyAny>> {
        let on_leaves = |loans: &mut Loans, world| plan(loans, world, self.leaves.op().name())?.on(&self.leaves);
        self.comm.get().call(py, call, mode, on_leaves)
    }

    /// Returns the leaves, if their memory is there: a fork does not have it.
    fn here(&self, py: Python<'_>) -> PyResult<&Leaves> {
        waiting::check_origin(py, self.comm.get().open()?.origin, "Accumulator")?;
        Ok(&self.leaves)
    }
}

#[pymethods]
impl Accumulator {
    #[new]
    #[pyo3(
        signature = (comm, like, leaves, of, op="sum"),
        text_signature = "(comm, like, leaves, of, op='sum')"
    )]
    fn new(
        py: Python<'_>,
        comm: Py<Communicator>,
        like: &Bound<'_, PyAny>,
        leaves: &Bound<'_, PyAny>,
        of: Given<usize>,
        op: &str,
    ) -> PyResult<Accumulator> {
        let open = comm.get().open()?;
        let arguments = || -> Result<_, Bad> {
            let (like, _) = array(&mut Loans::new(false), like, "like")?;
            let reduction = (like.of_type(), operation(op, like.of_type())?);
            Ok((reduction, like.parts(), run("leaves", leaves)?, of.get("of", "the number of leaves of all ranks")?))
        };
        let (reduction, count, range, of) = match arguments() {
            Ok(arguments) => arguments,
            Err(bad) => return Err(open.refuse(py, ("Accumulator", Kind::AllReduce), None, bad)),
        };
        let own = range.clone();
        let leaves = open.with(py, None, |communicator| Leaves::new(communicator, reduction, count, own, of))?;
        Ok(Accumulator { comm, leaves, range, of })
    }

    /// Adds the next leaf: each one but the rank's last, which the call takes. Reads it once. The
    /// other ranks are not told of an error.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> sum = cs.Accumulator(cs.threads(1)[0], np.empty(2), range(2), of=2)
    /// >>> sum.add(np.ones(2))
    /// >>> sum.add(np.ones(2))
    /// Traceback (most recent call last):
    ///     ...
    /// ValueError: add: leaves: expected 1 leaves before the last, found 2 leaves
    fn add(&self, py: Python<'_>, leaf: &Bound<'_, PyAny>) -> PyResult<()> {
        let (leaves, mut loans) = (self.here(py)?, Loans::new(false));
        let lent = array(&mut loans, leaf, "leaf").and_then(|(leaf, _)| {
            jobs::same_as_leaves("leaf", leaf.of_type(), leaves)?;
            Ok(loans.input(leaf, None))
        });
        let leaf = lent.map_err(|bad| bad.exception(py, "add"))?;
        // Another thread's call may have the leaves, and wait for the interpreter's lock.
        py.detach(|| leaves.add(leaf)).map_err(|error| exception(py, &error))
    }

    /// The number of leaves that were added since the last call.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> cs.Accumulator(cs.threads(1)[0], np.empty(2), range(2), of=2).added
    /// 0
    #[getter]
    fn added(&self, py: Python<'_>) -> PyResult<usize> {
        let leaves = self.here(py)?;
        Ok(py.detach(|| leaves.added()))
    }

    /// Drops the leaves that were added: the next one is the first.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let leaves = self.here(py)?;
        py.detach(|| leaves.clear());
        Ok(())
    }

    /// Combines the leaves of all ranks on all ranks: those that were added, and `data`, the last
    /// one of this rank. Returns `out`, or a new array like `data`. `out=data` is in place.
    /// Afterwards the accumulator has no leaves. After a ValueError and a MismatchError of this
    /// call it is as before.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> sum = cs.Accumulator(cs.threads(1)[0], np.empty(2), range(2), of=2)
    /// >>> sum.add(np.ones(2))
    /// >>> sum.all_reduce(np.array([1.0, 2.0]))
    /// array([2., 3.])
    #[pyo3(signature = (data, *, out=None, async_op=false, timeout=None))]
    fn all_reduce(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Py<PyAny>> {
        let call = ("all_reduce", Kind::AllReduce);
        self.call(py, call, (async_op, timeout), |loans, _, op| jobs::all_reduce(loans, data, op, out))
    }

    /// Does what `all_reduce` does on the root. Returns `out` or a new array there, else None.
    #[pyo3(
        signature = (data, *, root=Given::of(0), out=None, async_op=false, timeout=None),
        text_signature = "($self, data, *, root=0, out=None, async_op=False, timeout=None)"
    )]
    fn reduce(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        root: Given<isize>,
        out: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Py<PyAny>> {
        self.call(py, ("reduce", Kind::Reduce), (async_op, timeout), |loans, world, op| {
            jobs::reduce(loans, world, data, op, root.get("root", "a rank")?, out)
        })
    }

    /// Does what `all_reduce` does, and gives each rank its block: in `out`, or in a new array. The
    /// leaves are of as many rows for each rank. With `out=data` the block stays in its place.
    #[pyo3(signature = (data, *, out=None, async_op=false, timeout=None))]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Py<PyAny>> {
        let call = ("reduce_scatter", Kind::ReduceScatter);
        self.call(py, call, (async_op, timeout), |loans, world, op| jobs::reduce_scatter(loans, world, data, op, out))
    }

    fn __repr__(&self) -> String {
        let Range { start, end } = self.range;
        format!("Accumulator({}, leaves=range({start}, {end}), of={})", self.leaves.op().name(), self.of)
    }
}
