"""The calls of ``ray.util.collective`` between actors on one host: the backend ``consonance``.

The driver and each actor import this module, which registers the backend:

    import consonance.ray
    ray.util.collective.init_collective_group(size, rank, backend="consonance")

Calls write the tensors that they get, as Ray's own backends do: NumPy's arrays or PyTorch's tensors on the CPU. A call
that fails raises the exceptions of this package. Calls of several GPUs in one actor are refused.
"""

from typing import Any

import ray
from ray.util.collective import types
from ray.util.collective.backend_registry import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup

from . import Communicator, UniqueId


class Group(BaseGroup):
    """A group of actors. Its id is made of Ray's job and the group's name, which are the same in each actor."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        job = ray.get_runtime_context().get_job_id()
        self._comm = Communicator(UniqueId.derived(f"ray {job} {group_name}"), rank, world_size)

    @classmethod
    def backend(cls) -> str:
        return "CONSONANCE"

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        self._comm.close()

    def allreduce(self, tensor: list, allreduce_options: Any = types.AllReduceOptions) -> None:
        data = _only(tensor)
        self._comm.all_reduce(data, _op(allreduce_options), out=data)

    def barrier(self, barrier_options: Any = types.BarrierOptions) -> None:
        self._comm.barrier()

    def reduce(self, tensor: list, reduce_options: Any = types.ReduceOptions) -> None:
        data = _only(tensor)
        self._comm.reduce(data, _op(reduce_options), root=reduce_options.root_rank, out=data)

    def broadcast(self, tensor: list, broadcast_options: Any = types.BroadcastOptions) -> None:
        self._comm.broadcast(_only(tensor), root=broadcast_options.root_rank)

    def allgather(self, tensor_list: list, tensor: list, allgather_options: Any = types.AllGatherOptions) -> None:
        self._comm.all_gather(_only(tensor), out=_only(tensor_list))

    def reducescatter(
        self, tensor: list, tensor_list: list, reducescatter_options: Any = types.ReduceScatterOptions
    ) -> None:
        self._comm.reduce_scatter(_only(tensor_list), _op(reducescatter_options), out=_only(tensor))

    def send(self, tensor: list, send_options: Any) -> None:
        self._comm.send(_only(tensor), send_options.dst_rank)

    def recv(self, tensor: list, recv_options: Any) -> None:
        self._comm.recv(_only(tensor), recv_options.src_rank)


def _only(tensors: list) -> Any:
    """Returns the tensor, or the list of tensors, of the only device of this actor."""
    if len(tensors) != 1:
        raise ValueError(f"consonance: tensors: expected those of one device, found {len(tensors)}")
    return tensors[0]


def _op(options: Any) -> str:
    return options.reduceOp.name.lower()


register_collective_backend("CONSONANCE", Group)
