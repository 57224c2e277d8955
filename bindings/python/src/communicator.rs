//! Communicators.

use crate::{
    arguments::{Counts, Given},
    array::Loans,
    block::Block,
    collective::{self, Mode, Open},
    failure::{Bad, exception},
    id::UniqueId,
    jobs::{self, Plan},
    timeout::Timeout,
};
use consonance::{
    ProcessGroup, World,
    raw::{Kind, Reason},
};
use pyo3::{prelude::*, types::PyType};
use std::sync::{Arc, Mutex, PoisonError};

/// One rank of a group of processes, or of threads: MPI's collectives on arrays, with the same bits
/// on every rank.
///
/// Joins the `size` processes, of this host or of those of the `id`, that pass the same `id`, each
/// with its `rank`. `timeout` limits how long a call waits for the other ranks, in seconds or as a
/// timedelta: 5 minutes unless it is given, also to one call. `join_timeout` is that of the group.
///
/// Every rank makes the same calls in the same order. Arrays are NumPy arrays, or any arrays with
/// DLPack in host memory (PyTorch, JAX, TensorFlow), and are not copied unless their elements are
/// apart. A list or tuple of arrays stands for one that concatenates them. With `async_op=True` a
/// call returns a `Request` at once. `op` is sum, mean, product, min, max, and, or, xor.
///
/// A result is a new array of the kind of `data`: NumPy's, PyTorch's, or one of another library
/// with `__array_namespace__`, such as JAX. `out` gets the result instead, and is returned;
/// `out=data` is in place. Only `broadcast` and `recv` write `data` itself. Shapes may differ
/// between ranks, counts may not: elements are in the order of rows. No call works in `jax.jit`.
/// With `device="cuda:0"` collectives also take packed arrays in the memory of that GPU.
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

    pub(crate) fn open(&self) -> PyResult<Arc<Open>> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        open.ok_or_else(|| Python::attach(|py| exception(py, &collective::closed())))
    }

    /// Makes the call that `plan` plans.
    pub(crate) fn call(
        &self,
        py: Python<'_>,
        (call, kind): (&'static str, Kind),
        (starts, timeout): (bool, Option<Given<Timeout>>),
        plan: impl FnOnce(&mut Loans, World) -> Result<Plan, Bad>,
    ) -> PyResult<Py<PyAny>> {
        let open = self.open()?;
        let mode = Mode { call, kind, starts, timeout };
        open.call(py, mode, |loans| plan(loans, open.world()))
    }
}

#[allow(clippy::too_many_arguments, reason = "the arguments that users know")]
#[pymethods]
impl Communicator {
    #[new]
    #[pyo3(signature = (id, rank, size, *, device=None, timeout=None, join_timeout=None))]
    fn new(
        py: Python<'_>,
        id: &UniqueId,
        rank: Given<usize>,
        size: Given<usize>,
        device: Option<String>,
        timeout: Option<Timeout>,
        join_timeout: Option<Timeout>,
    ) -> PyResult<Communicator> {
        let (id, refused) = (id.0, |bad: Bad| bad.exception(py, "Communicator"));
        let rank = rank.get("rank", "a rank of the group").map_err(refused)?;
        let size = size.get("size", "a number of ranks").map_err(refused)?;
        let group = move || Ok(ProcessGroup::with_id(&id, rank, size));
        Open::join(py, group, device, timeout, join_timeout).map(Communicator::with)
    }

    /// Joins the processes that a launcher has started: `consonance run`, torchrun, Slurm's srun,
    /// or any that sets TF_CONFIG. Without a launcher the process is a group of its own.
    ///
    /// >>> import consonance as cs
    /// >>> cs.Communicator.from_env().size
    /// 1
    #[classmethod]
    #[pyo3(signature = (*, device=None, timeout=None, join_timeout=None))]
    fn from_env(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        device: Option<String>,
        timeout: Option<Timeout>,
        join_timeout: Option<Timeout>,
    ) -> PyResult<Communicator> {
        Open::join(py, ProcessGroup::from_env, device, timeout, join_timeout).map(Communicator::with)
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

    /// Combines all ranks' data on all ranks. Returns `out`, or a new array like `data`.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> cs.run(2, lambda comm: comm.all_reduce(np.array([comm.rank + 1.0]), "sum"))
    /// [array([3.]), array([3.])]
    /// >>> data = np.ones(2)
    /// >>> cs.threads(1)[0].all_reduce(data, "mean", out=data) is data
    /// True
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
        self.call(py, ("all_reduce", Kind::AllReduce), mode, |loans, _| jobs::all_reduce(loans, data, op, out))
    }

    /// Does what `all_reduce` does, with exact sums or means of floats of 32 or 64 bits, or of
    /// complex numbers of those: each is rounded once, and follows from the elements alone, in any
    /// order.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> parts = np.array([1e16, 1.0, -1e16])
    /// >>> cs.run(3, lambda comm: comm.all_reduce_exact(parts[comm.rank:][:1]))[0]
    /// array([1.])
    #[pyo3(signature = (data, op="sum", *, out=None, async_op=false, timeout=None))]
    fn all_reduce_exact(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        op: &str,
        out: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Py<PyAny>> {
        let call = ("all_reduce_exact", Kind::AllReduce);
        self.call(py, call, (async_op, timeout), |loans, _| Ok(jobs::all_reduce(loans, data, op, out)?.exact()))
    }

    /// Combines all ranks' data of several arrays, each as `all_reduce` does, in one call. Returns
    /// the list `out`, or one of new arrays.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> data = [np.array([1.0]), np.array([2, 3])]
    /// >>> cs.run(2, lambda comm: comm.all_reduce_coalesced(data))[0]
    /// [array([2.]), array([4, 6])]
    #[pyo3(signature = (data, op="sum", *, out=None, async_op=false, timeout=None))]
    fn all_reduce_coalesced(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        op: &str,
        out: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Py<PyAny>> {
        let call = ("all_reduce_coalesced", Kind::AllReduce);
        self.call(py, call, (async_op, timeout), |loans, _| jobs::all_reduce_coalesced(loans, data, op, out))
    }

    /// Combines all ranks' data on the root. Returns `out` or a new array there, else None.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> cs.run(2, lambda comm: comm.reduce(np.array([comm.rank + 1.0])))
    /// [array([3.]), None]
    #[pyo3(
        signature = (data, op="sum", *, root=Given::of(0), out=None, async_op=false, timeout=None),
        text_signature = "($self, data, op='sum', *, root=0, out=None, async_op=False, timeout=None)"
    )]
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
        self.call(py, ("reduce", Kind::Reduce), (async_op, timeout), |loans, world| {
            jobs::reduce(loans, world, data, op, root.get("root", "a rank")?, out)
        })
    }

    /// Combines all ranks' data, of as many rows for each rank, and gives each rank its block: in
    /// `out`, or in a new array. `data` may be a list with a block for each rank. With `out=data`
    /// the block stays in its place in `data`.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> cs.run(2, lambda comm: comm.reduce_scatter(np.array([1.0, 2.0])))
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
        self.call(py, ("reduce_scatter", Kind::ReduceScatter), mode, |loans, world| {
            jobs::reduce_scatter(loans, world, data, op, out)
        })
    }

    /// Copies the root's data to all ranks: into `data`, which it returns. JAX's arrays never
    /// change: where such an array would be written, the result is a new one.
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
        self.call(py, ("broadcast", Kind::Broadcast), (async_op, timeout), |loans, world| {
            jobs::broadcast(loans, world, data, root.get("root", "a rank")?)
        })
    }

    /// Concatenates all ranks' data in rank order on all ranks: in `out`, which may be a list with
    /// an array for each rank, or in a new array of all ranks' rows. `counts` has the number of
    /// elements of each rank, unless they are even. With `out=data`, `data` has the blocks of all
    /// ranks, and this rank's own is in place.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> cs.run(2, lambda comm: comm.all_gather(np.array([[comm.rank, 5]])).tolist())[0]
    /// [[0, 5], [1, 5]]
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
        self.call(py, ("all_gather", Kind::AllGather), mode, |loans, world| {
            jobs::all_gather(loans, world, data, out, counts)
        })
    }

    /// Concatenates all ranks' data in rank order on the root, as `all_gather` does on all. Returns
    /// `out` or a new array there, and None elsewhere.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> cs.run(2, lambda comm: comm.gather(np.array([comm.rank])))
    /// [array([0, 1]), None]
    #[pyo3(
        signature = (data, *, root=Given::of(0), out=None, counts=None, async_op=false, timeout=None),
        text_signature = "($self, data, *, root=0, out=None, counts=None, async_op=False, timeout=None)"
    )]
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
        self.call(py, ("gather", Kind::Gather), (async_op, timeout), |loans, world| {
            jobs::gather(loans, world, data, root.get("root", "a rank")?, out, counts)
        })
    }

    /// Copies a part of the root's `data` to each rank's `out`, which it returns. Ranks other than
    /// the root pass no data, and need an `out`, because only the root knows how large their parts
    /// are; the root itself may get a new array. `data` may be a list with a part for each rank.
    /// `counts` has the number of elements of each rank, unless they are even.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> parts = np.array([5, 6])
    /// >>> cs.run(2, lambda comm: comm.scatter(None if comm.rank else parts, out=np.empty(1, int)))
    /// [array([5]), array([6])]
    #[pyo3(
        signature = (data, *, root=Given::of(0), out=None, counts=None, async_op=false, timeout=None),
        text_signature = "($self, data, *, root=0, out=None, counts=None, async_op=False, timeout=None)"
    )]
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
        self.call(py, ("scatter", Kind::Scatter), mode, |loans, world| {
            jobs::scatter(loans, world, data, root.get("root", "a rank")?, out, counts)
        })
    }

    /// Copies a part of each rank's `data` to each rank: to its `out`, which it returns, or to a
    /// new array. `counts` has the number of elements for each rank, and `out_counts` that from
    /// each rank, unless they are even. `data` and `out` may be lists with a part for each rank.
    ///
    /// >>> import consonance as cs, numpy as np
    /// >>> cs.run(2, lambda comm: comm.all_to_all(np.array([0, 1]) + 10 * comm.rank))
    /// [array([ 0, 10]), array([ 1, 11])]
    #[pyo3(signature = (data, *, out=None, counts=None, out_counts=None, async_op=false, timeout=None))]
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
        self.call(py, ("all_to_all", Kind::AllToAll), mode, |loans, world| {
            jobs::all_to_all(loans, world, data, out, counts, out_counts)
        })
    }

    /// Waits for all ranks. At the timeout the error names those that are missing.
    #[pyo3(signature = (*, async_op=false, timeout=None))]
    fn barrier(&self, py: Python<'_>, async_op: bool, timeout: Option<Given<Timeout>>) -> PyResult<Py<PyAny>> {
        self.call(py, ("barrier", Kind::Barrier), (async_op, timeout), |_, _| Ok(Plan::barrier()))
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
        self.open()?.send(py, async_op, data, (to, tag), timeout)
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
        self.open()?.recv(py, async_op, data, (source, tag), timeout)
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
