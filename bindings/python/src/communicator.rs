//! Communicators.

use crate::{
    arguments::{Counts, Given, input, output, rank},
    array::Loans,
    block::Block,
    collective::{self, Mode, Open},
    failure::{Bad, exception},
    id::UniqueId,
    jobs,
    timeout::{self, Timeout},
    waiting,
};
use consonance::{
    ProcessGroup, ProcessGroupBuilder, Result, World,
    raw::{Kind, Reason},
};
use consonance_c::{Job, Mailboxes};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyType};
use std::sync::{Arc, Mutex, PoisonError};

/// One rank of a group of processes, or of threads: MPI's collectives on arrays, with the same bits
/// on every rank.
///
/// Joins the `size` processes of this host that pass the same `id`, each with its own `rank`.
/// `timeout` limits how long a call waits for the other ranks, in seconds or as a timedelta: 5
/// minutes unless it is given. `join_timeout` limits the wait for the group.
///
/// Every rank makes the same calls in the same order. Arrays are NumPy arrays, or any arrays with
/// DLPack in host memory (PyTorch, JAX, TensorFlow), and are not copied unless their elements are
/// apart. A list or tuple of arrays stands for one that concatenates them. Collectives work in
/// place on `data`, or write `out`. With `async_op=True` a call returns a `Request` at once. `op`
/// is sum, mean, product, min, max, and, or, xor. `timeout` is that of one call.
///
/// A communicator is a context manager: its end closes it, and an exception aborts the group, so
/// that no other rank waits.
///
/// >>> import consonance as cs, numpy as np
/// >>> with cs.Communicator(cs.UniqueId(), rank=0, size=1) as comm:
/// ...     comm.all_reduce(np.array([1.5, 2.5]), "sum")
/// array([1.5, 2.5])
#[pyclass(module = "consonance", frozen)]
pub(crate) struct Communicator(Mutex<Option<Arc<Open>>>);

impl Communicator {
    pub(crate) fn of(communicator: consonance::Communicator) -> Communicator {
        Communicator::with(Open::new(communicator))
    }

    fn with(open: Open) -> Communicator {
        Communicator(Mutex::new(Some(Arc::new(open))))
    }

    fn open(&self) -> PyResult<Arc<Open>> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        open.ok_or_else(|| Python::attach(|py| exception(py, &collective::closed())))
    }

    fn join(
        py: Python<'_>,
        group: impl FnOnce() -> Result<ProcessGroupBuilder> + Send + 'static,
        timeout: Option<Timeout>,
        join_timeout: Option<Timeout>,
    ) -> PyResult<Communicator> {
        let joined = waiting::apart(py, move || timeout::join(group()?, timeout, join_timeout));
        joined?.map(Communicator::of).map_err(|error| exception(py, &error))
    }

    /// Makes the call of these jobs.
    fn call(
        &self,
        py: Python<'_>,
        (call, kind): (&'static str, Kind),
        (starts, timeout): (bool, Option<Given<Timeout>>),
        result: Option<&Bound<'_, PyAny>>,
        jobs: impl FnOnce(&mut Loans, World) -> Result<Vec<Job>, Bad>,
    ) -> PyResult<Py<PyAny>> {
        let open = self.open()?;
        let mode = Mode { call, kind, starts, timeout };
        open.call(py, mode, result, |loans| jobs(loans, open.world()))
    }
}

#[pymethods]
impl Communicator {
    #[new]
    #[pyo3(signature = (id, rank, size, *, timeout=None, join_timeout=None))]
    fn new(
        py: Python<'_>,
        id: &UniqueId,
        rank: usize,
        size: usize,
        timeout: Option<Timeout>,
        join_timeout: Option<Timeout>,
    ) -> PyResult<Communicator> {
        let id = id.0;
        Communicator::join(py, move || Ok(ProcessGroup::with_id(&id, rank, size)), timeout, join_timeout)
    }

    /// Joins the processes that a launcher has started: `consonance run`, torchrun, Slurm's srun,
    /// or any that sets TF_CONFIG. Without a launcher the process is a group of its own.
    ///
    /// >>> import consonance as cs
    /// >>> cs.Communicator.from_env().size
    /// 1
    #[classmethod]
    #[pyo3(signature = (*, timeout=None, join_timeout=None))]
    fn from_env(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        timeout: Option<Timeout>,
        join_timeout: Option<Timeout>,
    ) -> PyResult<Communicator> {
        Communicator::join(py, ProcessGroup::from_env, timeout, join_timeout)
    }

    /// This rank, counted from 0.
    #[getter]
    fn rank(&self) -> PyResult<usize> {
        Ok(self.open()?.world().rank())
    }

    /// The number of ranks.
    #[getter]
    fn size(&self) -> PyResult<usize> {
        Ok(self.open()?.world().size())
    }

    /// Whether the group was aborted: no call works any more.
    #[getter]
    fn is_aborted(&self) -> PyResult<bool> {
        Ok(self.open()?.queue.abort_handle().is_aborted())
    }

    /// The timeout of a call, in seconds. It can be set to seconds or a timedelta, at most a day.
    #[getter]
    fn timeout(&self) -> PyResult<f64> {
        Ok(self.open()?.timeout().as_secs_f64())
    }

    #[setter]
    fn set_timeout(&self, timeout: Timeout) -> PyResult<()> {
        self.open()?.set_timeout(timeout);
        Ok(())
    }

    /// Combines all ranks' data on all ranks. Returns the result: `out`, or `data`.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> cs.run(2, lambda comm: comm.all_reduce(np.array([comm.rank + 1.0]), "sum"))
    /// [array([3.]), array([3.])]
    #[pyo3(signature = (data, op="sum", *, out=None, async_op=false, timeout=None))]
    fn all_reduce(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        op: &str,
        out: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Py<PyAny>> {
        let mode = (async_op, timeout);
        self.call(py, ("all_reduce", Kind::AllReduce), mode, Some(out.unwrap_or(data)), |loans, _| {
            jobs::all_reduce(loans, data, op, out)
        })
    }

    /// Combines all ranks' data in several arrays, in place, on all ranks. Returns the list.
    #[pyo3(signature = (data, op="sum", *, async_op=false, timeout=None))]
    fn all_reduce_coalesced(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        op: &str,
        async_op: bool,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Py<PyAny>> {
        let (call, mode) = (("all_reduce_coalesced", Kind::AllReduce), (async_op, timeout));
        self.call(py, call, mode, Some(data), |loans, _| jobs::all_reduce_coalesced(loans, data, op))
    }

    /// Combines all ranks' data on the root. Returns the result there, and None elsewhere. Without
    /// `out` it replaces the root's data.
    #[pyo3(
        signature = (data, op="sum", *, root=Given::of(0), out=None, async_op=false, timeout=None),
        text_signature = "($self, data, op='sum', *, root=0, out=None, async_op=False, timeout=None)"
    )]
    #[allow(clippy::too_many_arguments, reason = "the arguments that users know")]
    fn reduce(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        op: &str,
        root: Given<isize>,
        out: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Py<PyAny>> {
        let is_root = root.is(&(self.rank()? as isize));
        let result = is_root.then(|| out.unwrap_or(data));
        self.call(py, ("reduce", Kind::Reduce), (async_op, timeout), result, |loans, world| {
            jobs::reduce(loans, world, data, op, root.get("root", "a rank")?, out)
        })
    }

    /// Combines all ranks' data, of as many elements for each rank, and gives each rank its block:
    /// in `out`, which it returns, or in its own block of `data`.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> cs.run(2, lambda comm: comm.reduce_scatter(np.array([1.0, 2.0]), out=np.empty(1)))
    /// [array([2.]), array([4.])]
    #[pyo3(signature = (data, op="sum", *, out=None, async_op=false, timeout=None))]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        op: &str,
        out: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Py<PyAny>> {
        let mode = (async_op, timeout);
        self.call(py, ("reduce_scatter", Kind::ReduceScatter), mode, Some(out.unwrap_or(data)), |loans, world| {
            jobs::reduce_scatter(loans, world, data, op, out)
        })
    }

    /// Copies the root's data to all ranks. Returns `data`.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> cs.run(2, lambda comm: comm.broadcast(np.array([comm.rank]), root=1))
    /// [array([1]), array([1])]
    #[pyo3(
        signature = (data, *, root=Given::of(0), async_op=false, timeout=None),
        text_signature = "($self, data, *, root=0, async_op=False, timeout=None)"
    )]
    fn broadcast(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        root: Given<isize>,
        async_op: bool,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Py<PyAny>> {
        self.call(py, ("broadcast", Kind::Broadcast), (async_op, timeout), Some(data), |loans, world| {
            jobs::broadcast(loans, world, data, root.get("root", "a rank")?)
        })
    }

    /// Concatenates all ranks' data in rank order on all ranks: in `out`, which it returns. Without
    /// `out`, `data` has the blocks of all ranks, and this rank's own is in place. `counts` has the
    /// number of elements of each rank, unless they are even.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> cs.run(2, lambda comm: comm.all_gather(np.array([comm.rank]), out=np.empty(2, int)))
    /// [array([0, 1]), array([0, 1])]
    #[pyo3(signature = (data, *, out=None, counts=None, async_op=false, timeout=None))]
    fn all_gather(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        counts: Counts,
        async_op: bool,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Py<PyAny>> {
        let mode = (async_op, timeout);
        self.call(py, ("all_gather", Kind::AllGather), mode, Some(out.unwrap_or(data)), |loans, world| {
            jobs::all_gather(loans, world, data, out, counts)
        })
    }

    /// Concatenates all ranks' data in rank order on the root, as `all_gather` does on all. Returns
    /// the result there, and None elsewhere.
    #[pyo3(
        signature = (data, *, root=Given::of(0), out=None, counts=None, async_op=false, timeout=None),
        text_signature = "($self, data, *, root=0, out=None, counts=None, async_op=False, timeout=None)"
    )]
    #[allow(clippy::too_many_arguments, reason = "the arguments that users know")]
    fn gather(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        root: Given<isize>,
        out: Option<&Bound<'_, PyAny>>,
        counts: Counts,
        async_op: bool,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Py<PyAny>> {
        let is_root = root.is(&(self.rank()? as isize));
        let result = is_root.then(|| out.unwrap_or(data));
        self.call(py, ("gather", Kind::Gather), (async_op, timeout), result, |loans, world| {
            jobs::gather(loans, world, data, root.get("root", "a rank")?, out, counts)
        })
    }

    /// Copies a part of the root's `data` to each rank's `out`, which it returns. Ranks other than
    /// the root pass no data. Without `out` the root's own part stays in place. `counts` has the
    /// number of elements of each rank, unless they are even.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> parts = np.array([5, 6])
    /// >>> cs.run(2, lambda comm: comm.scatter(None if comm.rank else parts, out=np.empty(1, int)))
    /// [array([5]), array([6])]
    #[pyo3(
        signature = (data, *, root=Given::of(0), out=None, counts=None, async_op=false, timeout=None),
        text_signature = "($self, data, *, root=0, out=None, counts=None, async_op=False, timeout=None)"
    )]
    #[allow(clippy::too_many_arguments, reason = "the arguments that users know")]
    fn scatter(
        &self,
        py: Python<'_>,
        data: Option<&Bound<'_, PyAny>>,
        root: Given<isize>,
        out: Option<&Bound<'_, PyAny>>,
        counts: Counts,
        async_op: bool,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Py<PyAny>> {
        let mode = (async_op, timeout);
        self.call(py, ("scatter", Kind::Scatter), mode, out.or(data), |loans, world| {
            jobs::scatter(loans, world, data, root.get("root", "a rank")?, out, counts)
        })
    }

    /// Copies a part of each rank's `data` to each rank's `out`, which it returns; without `out` to
    /// the same part of `data`. `counts` has the number of elements for each rank, and `out_counts`
    /// that from each rank, unless they are even.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> cs.run(2, lambda comm: comm.all_to_all(np.array([0, 1]) + 10 * comm.rank))
    /// [array([ 0, 10]), array([ 1, 11])]
    #[pyo3(signature = (data, *, out=None, counts=None, out_counts=None, async_op=false, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "the arguments that users know")]
    fn all_to_all(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        counts: Counts,
        out_counts: Counts,
        async_op: bool,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Py<PyAny>> {
        let mode = (async_op, timeout);
        self.call(py, ("all_to_all", Kind::AllToAll), mode, Some(out.unwrap_or(data)), |loans, world| {
            jobs::all_to_all(loans, world, data, out, counts, out_counts)
        })
    }

    /// Waits for all ranks. At the timeout the error names those that are missing.
    #[pyo3(signature = (*, async_op=false, timeout=None))]
    fn barrier(&self, py: Python<'_>, async_op: bool, timeout: Option<Given<Timeout>>) -> PyResult<Py<PyAny>> {
        self.call(py, ("barrier", Kind::Barrier), (async_op, timeout), None, |_, _| Ok(vec![Job::barrier()]))
    }

    /// Tells the other ranks that this rank's argument of the collective `call` is wrong, and
    /// raises `ValueError`: for code that looks at arguments of its own.
    #[pyo3(signature = (call, argument, expected, found, *, async_op=false))]
    fn _refuse(
        &self,
        py: Python<'_>,
        call: &str,
        argument: &str,
        expected: &str,
        found: &str,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let kind = Kind::ALL.iter().copied().find(|kind| kind.name() == call);
        let kind = kind.ok_or_else(|| PyValueError::new_err(format!("_refuse: call: found {call}")))?;
        self.call(py, (kind.name(), kind), (async_op, None), None, |_, _| Err(Bad::value(argument, expected, found)))
    }

    /// Sends an array to rank `to`, beside all collectives. Messages between two ranks with the
    /// same tag are received in order. A timeout leaves the group working.
    #[pyo3(signature = (data, to, tag=0, *, async_op=false, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        to: isize,
        tag: u64,
        async_op: bool,
        timeout: Option<Timeout>,
    ) -> PyResult<Py<PyAny>> {
        let open = self.open()?;
        let limit = open.limit(timeout);
        let start = |mailboxes: &Mailboxes, loans: &mut Loans| {
            let to = rank(open.world(), "to", to)?;
            let (data, of) = input(loans, data, None)?;
            Ok(mailboxes.of(of).start_send(data, to, tag, limit))
        };
        open.message(py, async_op, data, start, "send")
    }

    /// Receives a message with this tag from rank `source`, or from any other rank without it, into
    /// an array of its type and number of elements. Returns the rank that sent it.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> def ring(comm):
    /// ...     data = np.array([comm.rank])
    /// ...     comm.send(data, (comm.rank + 1) % comm.size)
    /// ...     return comm.recv(data), int(data[0])
    /// >>> cs.run(3, ring)
    /// [(2, 2), (0, 0), (1, 1)]
    #[pyo3(signature = (data, source=None, tag=0, *, async_op=false, timeout=None))]
    fn recv(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        source: Option<isize>,
        tag: u64,
        async_op: bool,
        timeout: Option<Timeout>,
    ) -> PyResult<Py<PyAny>> {
        let open = self.open()?;
        let limit = open.limit(timeout);
        let start = |mailboxes: &Mailboxes, loans: &mut Loans| {
            let from = source.map(|source| rank(open.world(), "source", source)).transpose()?;
            let (data, of) = output(loans, data, "data")?;
            Ok(mailboxes.of(of).start_recv(data, from, tag, limit))
        };
        open.message(py, async_op, data, start, "recv")
    }

    /// Makes an array of unspecified values in memory that all ranks of the group read and write in
    /// place, so that collectives need not stage it. The memory is used again after the array.
    ///
    /// >>> import consonance as cs
    /// >>> comm = cs.threads(1)[0]
    /// >>> comm.empty((2, 3), "float32").shape
    /// (2, 3)
    #[pyo3(signature = (shape, dtype=None))]
    fn empty<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Block::array(py, &*self.open()?, shape, dtype)
    }

    /// Splits the group as MPI_Comm_split does: returns a communicator of the ranks with the same
    /// `color`, ordered by `key` and then by rank; None for a rank whose color is None. Every rank
    /// makes the call. The new communicator's timeout is that of this one.
    #[pyo3(
        signature = (color, key=Given::of(0), *, timeout=None),
        text_signature = "($self, color, key=0, *, timeout=None)"
    )]
    fn split(
        &self,
        py: Python<'_>,
        color: Option<Given<u32>>,
        key: Given<i32>,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Option<Communicator>> {
        Ok(self.open()?.split(py, color, key, timeout)?.map(Communicator::with))
    }

    /// Aborts the group, from any thread: every rank that waits in it, or makes a later call, gets
    /// an AbortedError.
    fn abort(&self) -> PyResult<()> {
        self.open()?.queue.abort_handle().abort(Reason::Failure);
        Ok(())
    }

    /// Leaves the group. Calls that were started go on. A second close does nothing.
    fn close(&self, py: Python<'_>) {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(open));
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    #[pyo3(signature = (kind=None, _value=None, _traceback=None))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _value: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if kind.is_some()
            && let Ok(open) = self.open()
        {
            open.queue.abort_handle().abort(Reason::Failure);
        }
        self.close(py);
        Ok(())
    }

    fn __repr__(&self) -> String {
        self.open().map_or_else(
            |_| "Communicator(closed)".to_owned(),
            |open| format!("Communicator(rank={}, size={})", open.world().rank(), open.world().size()),
        )
    }
}
