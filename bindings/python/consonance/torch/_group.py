"""The process group: PyTorch's calls as Consonance's."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Backend as C10DBackend

from .._native import Communicator, refuse
from . import _errors, _sparse
from ._join import join, limit
from ._monitored import monitored_barrier
from ._work import Work

# The operations by the number that is the hash of PyTorch's.
_OPS = {
    hash(getattr(dist.ReduceOp, name)): op
    for name, op in {
        "SUM": "sum",
        "AVG": "mean",
        "PRODUCT": "product",
        "MIN": "min",
        "MAX": "max",
        "BAND": "and",
        "BOR": "or",
        "BXOR": "xor",
    }.items()
}
_AllreduceOptions = dist.AllreduceOptions
_REDUCE_OPS = (dist.ReduceOp, dist.ReduceOp.RedOpType)
_PREMUL_SUM = hash(dist.ReduceOp.PREMUL_SUM)


_NOTHING = object()


class _Given:
    """What a caller gives beside tensors: PyTorch's options, or their values one by one, by place or by name."""

    def __init__(self, *values: Any, **named: Any) -> None:
        self.starts, self.timeout, self.root, self.op, self.factor = True, None, 0, "sum", None
        for value in (*values, *named.values()):
            if isinstance(value, timedelta):
                self.timeout = limit(value)
            elif isinstance(value, int):
                self.root = value
            elif isinstance(value, _REDUCE_OPS):
                self._set_op(value)
            elif value is not None:
                self.starts = getattr(value, "asyncOp", True)
                self.timeout = limit(getattr(value, "timeout", None))
                self.root = getattr(value, "rootRank", 0)
                self._set_op(getattr(value, "reduceOp", dist.ReduceOp.SUM))

    def _set_op(self, op: Any) -> None:
        number = hash(op)
        state = op.__getstate__() if number == _PREMUL_SUM else None
        if isinstance(state, tuple):
            self.factor = state[1]
        else:
            # An operation that nobody knows is refused by the call, which tells the other ranks.
            self.op = _OPS.get(number) or str(op)


class _Collectives:
    """The calls of a process group and of a backend, on one communicator.

    A call returns ``None`` after it has been executed, if its options say that it is not asynchronous; else it is
    started, and returns a ``Work``. Calls of PyTorch's C++ code are always asynchronous.
    """

    _comm: Communicator
    _timeout: timedelta
    # The calls that were started since the start of coalescing.
    _coalesced: list[Work] | None = None

    def _make_call(self, name: str, data: Any, outputs: list[Tensor], given: "_Given", **arguments: Any) -> Work | None:
        call = getattr(self._comm, name)
        data = () if data is _NOTHING else (data,)
        try:
            made = call(*data, async_op=given.starts, timeout=given.timeout, **arguments)
        except Exception as error:
            # PyTorch does not end the coalescing of calls whose block raises an error.
            self._coalesced = None
            if isinstance(error, RuntimeError):
                raise _errors.of(error) from None
            raise
        if not given.starts:
            return None
        work = Work([made], outputs)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _scaled(self, name: str, tensors: list[Tensor], given: "_Given") -> list[Tensor]:
        """Returns the data of a sum: times the factor of ``PREMUL_SUM``."""
        if given.factor is None:
            return tensors
        try:
            return [tensor.clone().mul_(given.factor) for tensor in tensors]
        except RuntimeError as error:
            refuse(self._comm, name, "op", "a factor that the tensor's type has", str(error).splitlines()[0])
            raise

    def _make_calls(self, name: str, outputs: list, inputs: list[Tensor], given: "_Given", **arguments: Any) -> Work | None:
        """Makes a call for each output, a tensor or a list of them, and its input."""
        works = [
            self._make_call(name, data, _list(out), given, out=out, **arguments)
            for out, data in zip(outputs, inputs, strict=True)
        ]
        return Work.of(works) if given.starts else None

    def allreduce(self, tensors: list[Tensor], opts: Any = None, *more: Any, **named: Any) -> Work | None:
        # The way of most calls, with nothing looked at twice.
        if type(opts) is _AllreduceOptions and not opts.asyncOp and len(tensors) == 1:
            tensor, op = tensors[0], _OPS.get(hash(opts.reduceOp))
            if op is not None and tensor.layout is torch.strided:
                try:
                    self._comm.all_reduce(tensor, op, out=tensor, timeout=limit(opts.timeout))
                    return None
                except RuntimeError as error:
                    raise _errors.of(error) from None
        return self.allreduce_coalesced(tensors, opts, *more, **named)

    def allreduce_coalesced(self, tensors: list[Tensor], *opts: Any, **named: Any) -> Work | None:
        tensors, given = _list(tensors), _Given(*opts, **named)
        if any(tensor.layout != torch.strided for tensor in tensors):
            op = given.op if given.factor is None else "premul_sum"
            try:
                for tensor in tensors:
                    _sparse.all_reduce(self._comm, tensor, op, given.timeout)
            except RuntimeError as error:
                raise _errors.of(error) from None
            return Work([], tensors)
        if given.factor is not None:
            # An error must find the tensors unchanged.
            scaled = self._scaled("all_reduce", tensors, given)
            return self._make_calls("all_reduce", tensors, scaled, given, op=given.op)
        return self._make_call("all_reduce_coalesced", tensors, tensors, given, op=given.op, out=tensors)

    def broadcast(self, tensors: list[Tensor], *opts: Any, **named: Any) -> Work | None:
        (tensor,), given = _list(tensors), _Given(*opts, **named)
        return self._make_call("broadcast", tensor, [tensor], given, root=given.root)

    def reduce(self, tensors: list[Tensor], *opts: Any, **named: Any) -> Work | None:
        (tensor,), given = _list(tensors), _Given(*opts, **named)
        (scaled,) = self._scaled("reduce", [tensor], given)
        return self._make_call("reduce", scaled, [tensor], given, op=given.op, root=given.root, out=tensor)

    def allgather(self, outputs: list, inputs: list[Tensor], *opts: Any, **named: Any) -> Work | None:
        (data,), outputs = _list(inputs), _first(outputs)
        return self._make_call("all_gather", data, outputs, _Given(*opts, **named), out=outputs)

    def all_gather_single(self, output: Tensor, input: Tensor, *opts: Any, **named: Any) -> Work | None:
        return self._make_call("all_gather", input, [output], _Given(*opts, **named), out=output)

    _allgather_base = all_gather_single

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], *opts: Any, **named: Any
    ) -> Work | None:
        # The lists have a tensor for each input, and there is a list for each rank.
        outputs = [list(parts) for parts in zip(*output_lists, strict=True)]
        return self._make_calls("all_gather", outputs, inputs, _Given(*opts, **named))

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], *opts: Any, **named: Any
    ) -> Work | None:
        return self._make_calls("all_gather", outputs, inputs, _Given(*opts, **named))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: list, inputs: list[Tensor], *opts: Any, **named: Any) -> Work | None:
        (data,), outputs, given = _list(inputs), _first(outputs), _Given(*opts, **named)
        out = {"out": outputs} if self._comm.rank == given.root else {}
        return self._make_call("gather", data, outputs, given, root=given.root, **out)

    def gather_single(self, output: Tensor, input: Tensor, *opts: Any, **named: Any) -> Work | None:
        return self.gather([output], [input], *opts, **named)

    gather_into_tensor = gather_single

    def scatter(self, outputs: list[Tensor], inputs: list, *opts: Any, **named: Any) -> Work | None:
        (out,), given = _list(outputs), _Given(*opts, **named)
        data = _first(inputs) if self._comm.rank == given.root else None
        return self._make_call("scatter", data, [out], given, root=given.root, out=out)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list, *opts: Any, **named: Any) -> Work | None:
        (out,), given = _list(outputs), _Given(*opts, **named)
        data = self._scaled("reduce_scatter", _first(inputs), given)
        return self._make_call("reduce_scatter", data, [out], given, op=given.op, out=out)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, *opts: Any, **named: Any) -> Work | None:
        given = _Given(*opts, **named)
        (data,) = self._scaled("reduce_scatter", [input], given)
        return self._make_call("reduce_scatter", data, [output], given, op=given.op, out=output)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], *opts: Any, **named: Any
    ) -> Work | None:
        given = _Given(*opts, **named)
        data = self._scaled("reduce_scatter", inputs, given)
        return self._make_calls("reduce_scatter", outputs, data, given, op=given.op)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], *opts: Any, **named: Any) -> Work | None:
        return self._make_call("all_to_all", inputs, outputs, _Given(*opts, **named), out=outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: list[int] | None = None,
        input_splits: list[int] | None = None,
        *opts: Any,
        **named: Any,
    ) -> Work | None:
        given = _Given(*opts, **named)
        # Counts are given even if they are even: they may not be on another rank.
        counts = {
            "counts": self._counts("input", input, input_splits, given),
            "out_counts": self._counts("output", output, output_splits, given),
        }
        return self._make_call("all_to_all", input, [output], given, out=output, **counts)

    alltoall_base = all_to_all_single

    def _counts(self, argument: str, tensor: Tensor, splits: list[int] | None, given: "_Given") -> list[int]:
        """Returns the number of elements for each rank, of splits in rows."""
        size, rows = self._comm.size, tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % size:
                expected = f"rows for {size} ranks"
                refuse(self._comm, "all_to_all", argument, expected, str(rows), async_op=given.starts)
            splits = [rows // size] * size
        elif sum(splits) != rows or len(splits) != size or min(splits) < 0:
            expected = f"{size} splits of {rows} rows"
            refuse(self._comm, "all_to_all", argument, expected, str(splits), async_op=given.starts)
        width = tensor.numel() // rows if rows else 0
        return [split * width for split in splits]

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> Work:
        (tensor,) = _list(tensors)
        return self._make_call("send", tensor, [tensor], _Given(), to=to, tag=tag)

    def recv(self, tensors: list[Tensor], source: int | None, tag: int = 0) -> Work:
        (tensor,) = _list(tensors)
        return self._make_call("recv", tensor, [tensor], _Given(), source=source, tag=tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        return self.recv(tensors, None, tag)

    recvAnysource = recv_anysource

    def barrier(self, *opts: Any, **named: Any) -> Work | None:
        return self._make_call("barrier", _NOTHING, [], _Given(*opts, **named))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        monitored_barrier(self._comm, self._timeout if timeout is None else timeout, wait_all_ranks)

    def _start_coalescing(self, _device: torch.device | None = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, _device: torch.device | None = None) -> Work:
        works, self._coalesced = self._coalesced or [], None
        return Work.of(works)

    def getBackendName(self) -> str:
        return "consonance"

    name = getBackendName

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self._comm.timeout = limit(timeout)

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        self._comm.abort()

    def shutdown(self) -> None:
        self._comm.close()


def _can_be_written_in_python() -> bool:
    try:
        C10DBackend(0, 1)
    except TypeError:
        return False
    return True


# Before PyTorch 2.14 a backend cannot be written in Python: only Python code that asks for the
# backend of a device can use ours then.
_IS_BACKEND = _can_be_written_in_python()


class Backend(_Collectives, C10DBackend if _IS_BACKEND else object):
    """The backend of the CPU in a group of several backends: ``consonance_cpu``."""

    # A group whose backends are several splits itself in C++, which cannot split a backend in
    # Python.
    supports_splitting = False
    supports_coalescing = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    supports_abort_hooks = False
    _supports_time_estimate = False

    def __init__(self, comm: Communicator, timeout: timedelta) -> None:
        if _IS_BACKEND:
            super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._timeout = timeout
        self._options = C10DBackend.Options("consonance", timeout)

    @staticmethod
    def _make(options: Any, _backend_options: Any) -> "Backend":
        return Backend(_joined(options), options.timeout)

    @property
    def options(self) -> Any:
        return self._options

    def supports_tensor_alloc(self, device: Any) -> bool:
        # DDP's C++ code passes a number, and takes no memory from Python.
        return isinstance(device, torch.device) and device.type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns a tensor in memory that all ranks of the group share: calls need not copy it."""
        memory = self._comm.empty(size * dtype.itemsize, "uint8")
        return torch.from_numpy(memory).view(dtype)


class ProcessGroup(_Collectives, dist.ProcessGroup):
    """A process group on the CPU: ``consonance``."""

    def __init__(self, store: dist.Store, comm: Communicator, timeout: timedelta) -> None:
        try:
            super().__init__(store, comm.rank, comm.size)
        except TypeError:
            # Before PyTorch 2.14.
            super().__init__(comm.rank, comm.size)
        self._store = store
        self._comm = comm
        self._timeout = timeout
        # For code that asks for the backend of a device.
        self._backend = Backend(comm, timeout)
        self._backend.supports_splitting = True
        kind = dist.ProcessGroup.BackendType.CUSTOM
        self._register_backend(torch.device("cpu"), kind, self._backend if _IS_BACKEND else None)
        self._set_default_backend(kind)

    if not _IS_BACKEND:

        def _get_backend(self, device: torch.device) -> Backend:
            return self._backend

        def _set_group_name(self, name: str) -> None:
            self._name = name

        @property
        def group_name(self) -> str:
            return self._name

        def _set_group_desc(self, description: str) -> None:
            self._description = description

        @property
        def group_desc(self) -> str:
            return self._description

    @staticmethod
    def _make(options: Any, _backend_options: Any) -> "ProcessGroup":
        return ProcessGroup(options.store, _joined(options), options.timeout)

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: list[torch.device] | None = None,
    ) -> "ProcessGroup | None":
        """Returns the group of these ranks of this group. Every rank of this group calls it; others get None."""
        timeout = self._timeout if timeout is None else timeout
        is_member = self._comm.rank in new_ranks
        # The parts of a split have no rank in common.
        color, key = (min(new_ranks), new_ranks.index(self._comm.rank)) if is_member else (None, 0)
        try:
            comm = self._comm.split(color, key, timeout=limit(timeout))
        except RuntimeError as error:
            raise _errors.of(error) from None
        if comm is None:
            return None
        comm.timeout = limit(timeout) or comm.timeout
        group = ProcessGroup(dist.PrefixStore(f"{group_name}/", self._store), comm, timeout)
        group._set_group_name(group_name)
        group._set_group_desc(group_desc or "")
        return group


def _joined(options: Any) -> Communicator:
    if getattr(options, "enable_reconfigure", False):
        raise ValueError("consonance: enable_reconfigure: expected False, found True: no group can be reconfigured")
    return join(options.store, options.group_rank, options.group_size, options.timeout)


def _list(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _first(tensors: list) -> list[Tensor]:
    """Returns the first list of a list of lists, or the list of tensors that it is."""
    return tensors[0] if tensors and isinstance(tensors[0], list) else tensors
