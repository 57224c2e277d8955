"""The process group: PyTorch's calls as Consonance's."""

import itertools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Backend as C10DBackend

from .._errors import Error
from .._native import Communicator
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
_PREMUL_SUM = hash(dist.ReduceOp.PREMUL_SUM)


class _Collectives:
    """The calls of a process group and of a backend, on one communicator.

    A call returns ``None`` after it has been executed, if its options say that it is not asynchronous; else it is
    started, and returns a ``Work``. Calls of PyTorch's C++ code are always asynchronous.
    """

    _comm: Communicator
    _timeout: timedelta

    def _make_call(self, name: str, data: Any, outputs: list[Tensor], opts: Any, **arguments: Any) -> Work | None:
        starts = getattr(opts, "asyncOp", True)
        timeout = limit(getattr(opts, "timeout", None))
        try:
            made = getattr(self._comm, name)(data, async_op=starts, timeout=timeout, **arguments)
        except Error as error:
            raise _errors.of(error) from None
        return Work([made], outputs) if starts else None

    def _make_calls(self, name: str, pairs: list[tuple[Tensor, Tensor]], opts: Any, **arguments: Any) -> Work | None:
        """Makes a call for each pair of an output and an input."""
        works = [self._make_call(name, data, [out], opts, out=out, **arguments) for out, data in pairs]
        if not getattr(opts, "asyncOp", True):
            return None
        return Work([request for work in works for request in work._requests], [out for out, _ in pairs])

    def allreduce(self, tensors: list[Tensor], opts: Any = None, timeout: timedelta | None = None) -> Work | None:
        # The way of most calls, with nothing looked at twice.
        if type(opts) is _AllreduceOptions and not opts.asyncOp and len(tensors) == 1:
            tensor, op = tensors[0], _OPS.get(hash(opts.reduceOp))
            if op is not None and not tensor.is_sparse:
                try:
                    self._comm.all_reduce(tensor, op)
                    return None
                except Error as error:
                    raise _errors.of(error) from None
        return self.allreduce_coalesced(tensors, opts, timeout)

    def allreduce_coalesced(
        self, tensors: list[Tensor], opts: Any = None, timeout: timedelta | None = None
    ) -> Work | None:
        tensors = _list(tensors)
        opts, op, factor = _reduction(opts, timeout)
        if any(tensor.layout != torch.strided for tensor in tensors):
            for tensor in tensors:
                _sparse.all_reduce(self._comm, tensor, op)
            return Work([], tensors)
        if factor is not None:
            for tensor in tensors:
                tensor.mul_(factor)
        return self._make_call("all_reduce_coalesced", tensors, tensors, opts, op=op)

    def broadcast(
        self, tensors: list[Tensor], opts: Any = None, root: int = 0, timeout: timedelta | None = None
    ) -> Work | None:
        (tensor,) = _list(tensors)
        if isinstance(opts, int):
            opts, root = None, opts
        return self._make_call("broadcast", tensor, [tensor], opts, root=getattr(opts, "rootRank", root))

    def reduce(
        self, tensors: list[Tensor], opts: Any = None, op: Any = None, timeout: timedelta | None = None
    ) -> Work | None:
        (tensor,) = _list(tensors)
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        opts, op, factor = _reduction(op if isinstance(opts, int) else opts, timeout)
        data = tensor if factor is None else tensor * factor
        out = {} if factor is None or root != self._comm.rank else {"out": tensor}
        return self._make_call("reduce", data, [tensor], opts, op=op, root=root, **out)

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None, timeout: timedelta | None = None
    ) -> Work | None:
        (data,) = _list(inputs)
        outputs = outputs[0] if outputs and isinstance(outputs[0], list) else outputs
        return self._make_call("all_gather", data, outputs, opts, out=outputs)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None, timeout: Any = None) -> Work | None:
        return self._make_call("all_gather", input, [output], opts, out=output)

    _allgather_base = all_gather_single

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Work | None:
        outputs = [list(parts) for parts in zip(*output_lists, strict=True)]
        works = [
            self._make_call("all_gather", data, out, opts, out=out) for out, data in zip(outputs, inputs, strict=True)
        ]
        if works and works[0] is None:
            return None
        return Work([request for work in works for request in work._requests], list(itertools.chain(*output_lists)))

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work | None:
        return self._make_calls("all_gather", list(zip(outputs, inputs, strict=True)), opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self,
        outputs: list[list[Tensor]],
        inputs: list[Tensor],
        opts: Any = None,
        root: int = 0,
        timeout: timedelta | None = None,
    ) -> Work | None:
        (data,) = _list(inputs)
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", root)
        if self._comm.rank != root:
            return self._make_call("gather", data, [], opts, root=root)
        outputs = outputs[0] if outputs and isinstance(outputs[0], list) else outputs
        return self._make_call("gather", data, outputs, opts, root=root, out=outputs)

    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work | None:
        root = getattr(opts, "rootRank", 0)
        out = {"out": output} if self._comm.rank == root else {}
        return self._make_call("gather", input, [output], opts, root=root, **out)

    gather_into_tensor = gather_single

    def scatter(
        self,
        outputs: list[Tensor],
        inputs: list[list[Tensor]],
        opts: Any = None,
        root: int = 0,
        timeout: timedelta | None = None,
    ) -> Work | None:
        (out,) = _list(outputs)
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", root)
        data = None
        if self._comm.rank == root:
            data = inputs[0] if inputs and isinstance(inputs[0], list) else inputs
        return self._make_call("scatter", data, [out], opts, root=root, out=out)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None, timeout: timedelta | None = None
    ) -> Work | None:
        (out,) = _list(outputs)
        opts, op, factor = _reduction(opts, timeout)
        data = inputs[0] if inputs and isinstance(inputs[0], list) else inputs
        if factor is not None:
            data = [tensor * factor for tensor in data]
        return self._make_call("reduce_scatter", data, [out], opts, op=op, out=out)

    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, opts: Any = None, timeout: timedelta | None = None
    ) -> Work | None:
        opts, op, factor = _reduction(opts, timeout)
        data = input if factor is None else input * factor
        return self._make_call("reduce_scatter", data, [output], opts, op=op, out=output)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work | None:
        opts, op, factor = _reduction(opts, None)
        if factor is not None:
            inputs = [tensor * factor for tensor in inputs]
        return self._make_calls("reduce_scatter", list(zip(outputs, inputs, strict=True)), opts, op=op)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None, timeout: timedelta | None = None
    ) -> Work | None:
        return self._make_call("all_to_all", inputs, outputs, opts, out=outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: list[int] | None = None,
        input_splits: list[int] | None = None,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work | None:
        # Counts are given even if they are even: they may not be on another rank.
        counts = _counts("input", input, input_splits, self._comm.size)
        out_counts = _counts("output", output, output_splits, self._comm.size)
        return self._make_call(
            "all_to_all", input, [output], opts, out=output, counts=counts, out_counts=out_counts
        )

    alltoall_base = all_to_all_single

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> Work:
        (tensor,) = _list(tensors)
        return self._make_call("send", tensor, [tensor], None, to=to, tag=tag)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Work:
        (tensor,) = _list(tensors)
        return self._make_call("recv", tensor, [tensor], None, source=source, tag=tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        (tensor,) = _list(tensors)
        return self._make_call("recv", tensor, [tensor], None, tag=tag)

    recvAnysource = recv_anysource

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work | None:
        starts = getattr(opts, "asyncOp", True)
        timeout = limit(getattr(opts, "timeout", timeout))
        try:
            made = self._comm.barrier(async_op=starts, timeout=timeout)
        except Error as error:
            raise _errors.of(error) from None
        return Work([made], []) if starts else None

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        monitored_barrier(self._comm, self._timeout if timeout is None else timeout, wait_all_ranks)

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


# Before PyTorch 2.14 a backend cannot be written in Python: only Python code that asks for the backend of a device can
# use ours then.
_IS_BACKEND = _can_be_written_in_python()


class Backend(_Collectives, C10DBackend if _IS_BACKEND else object):
    """The backend of the CPU in a group of several backends: ``consonance_cpu``."""

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
    def _make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> "Backend":
        return Backend(join(store, rank, size, timeout), timeout)

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
        self._comm = comm
        self._timeout = timeout
        # For code that asks for the backend of a device.
        self._backend = Backend(comm, timeout)
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
    def _make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> "ProcessGroup":
        return ProcessGroup(store, join(store, rank, size, timeout), timeout)


def _list(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _reduction(opts: Any, timeout: timedelta | None) -> tuple[Any, str, Any]:
    """Returns the options of a reduction, its operation, and the factor of the data before it."""
    reduce_op = getattr(opts, "reduceOp", opts)
    if reduce_op is None:
        return opts, "sum", None
    number = hash(reduce_op)
    if number == _PREMUL_SUM:
        return opts, "sum", reduce_op.__getstate__()[1]
    if number not in _OPS:
        raise ValueError(f"consonance: op: expected an operation of torch.distributed.ReduceOp, found {reduce_op}")
    return opts, _OPS[number], None


def _counts(argument: str, tensor: Tensor, splits: list[int] | None, size: int) -> list[int]:
    """Returns the number of elements for each rank, of splits in rows."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise ValueError(f"all_to_all_single: {argument}: expected rows for {size} ranks, found {rows}")
        splits = [rows // size] * size
    elif sum(splits) != rows or len(splits) != size:
        raise ValueError(f"all_to_all_single: {argument}: expected {size} splits of {rows} rows, found {splits}")
    width = tensor.numel() // rows if rows else 0
    return [split * width for split in splits]
