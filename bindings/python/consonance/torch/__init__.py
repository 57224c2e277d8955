"""PyTorch's collectives on Consonance: ``init_process_group("consonance")``.

PyTorch 2.14 and later find the backend by itself. Before, ``import consonance.torch`` registers it.

``consonance`` serves a group on the CPU alone. For a group with another backend on a GPU there is a second name::

    init_process_group("cpu:consonance_cpu,cuda:nccl")
"""

import torch.distributed as dist

from ._compiler import keep_out
from ._errors import AbortedError, BackendError, LostError, MeetingError, MismatchError, TimeoutError
from ._group import Backend, ProcessGroup

__all__ = [
    "AbortedError",
    "Backend",
    "BackendError",
    "LostError",
    "MeetingError",
    "MismatchError",
    "ProcessGroup",
    "TimeoutError",
    "register",
]


def register() -> None:
    """Registers the backends ``consonance`` and ``consonance_cpu`` with PyTorch."""
    for name, make in (("consonance", ProcessGroup._make), ("consonance_cpu", Backend._make)):
        if name.upper() not in dist.Backend._plugins:
            dist.Backend.register_backend(name, make, extended_api=True, devices=["cpu"])


keep_out()
register()
