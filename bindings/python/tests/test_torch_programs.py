"""PyTorch's programs as users write them: each twice on gloo and twice on this backend, in turn.

Two ranks sum in one order, so every bit is gloo's. `CONSONANCE_TORCH_PROGRAMS=all` runs all programs (five minutes);
otherwise the ten shortest run.
"""

import os

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from test_torch import ranks, same  # noqa: E402
from torch_programs import PROGRAMS  # noqa: E402

import consonance.torch  # noqa: E402, F401  Before PyTorch 2.14 this registers the backend.
from consonance.torch._group import _IS_BACKEND  # noqa: E402

# The ten that take the least time.
SHORT = [
    "ddp",
    "ddp_of_a_static_graph_with_tiny_buckets",
    "calls_that_are_coalesced",
    "calls_with_gradients",
    "functional_collectives",
    "futures",
    "messages_in_a_batch",
    "objects",
    "subgroups_with_local_synchronization",
    "two_groups_in_opposite_orders",
]
ALL = os.environ.get("CONSONANCE_TORCH_PROGRAMS") == "all"

# PyTorch's code in C++ makes the calls of these itself, on a backend.
OF_BACKENDS = ["calls_that_are_coalesced", "functional_collectives", "functional_collectives_that_are_compiled"]


def programs():
    long = pytest.mark.skip(reason="CONSONANCE_TORCH_PROGRAMS=all runs all programs, in five minutes")
    new = pytest.mark.skip(reason="PyTorch calls backends that are written in Python since 2.14")
    for name in PROGRAMS:
        skip = new if name in OF_BACKENDS and not _IS_BACKEND else None if ALL or name in SHORT else long
        yield pytest.param(name, marks=[skip] if skip else [])


def beside_gloo(group, name, folder):
    """Runs the program on each backend in turn, on a default group of its own."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    returned, held = [], []
    for index, backend in enumerate(["gloo", "consonance"] * 2):
        dist.init_process_group(backend, init_method=f"file://{folder}/{index}", rank=rank, world_size=size)
        # A thread of gloo that drops the last reference to its group waits for itself, and aborts
        # the process.
        held.append(dist.group.WORLD)
        returned.append([tensor.detach().clone() for tensor in PROGRAMS[name]()])
        dist.destroy_process_group()
        torch.compiler.reset()
    gloo, ours, _, again = returned
    assert len(gloo) == len(ours) == len(again)
    for expected, found, repeated in zip(gloo, ours, again, strict=True):
        same(found, expected)
        same(repeated, found)
    return len(ours)


@pytest.mark.parametrize("name", list(programs()))
def test_a_program_has_the_bits_of_gloo(name, tmp_path):
    ranks(2, tmp_path, beside_gloo, name, tmp_path)
