"""``monitored_barrier``: a barrier that tells rank 0 who did not come."""

import time
from datetime import timedelta

import torch

from .. import Communicator
from .._errors import Error
from ._errors import BackendError
from ._join import limit

# Far from the tags of programs.
_TAG = (1 << 64) - 1


def monitored_barrier(comm: Communicator, timeout: timedelta, wait_all_ranks: bool) -> None:
    """Waits for all ranks. Rank 0 raises an error with the first rank that is missing, or with all of them."""
    if comm.rank == 0:
        _lead(comm, timeout, wait_all_ranks)
    else:
        _follow(comm, timeout)


def _lead(comm: Communicator, timeout: timedelta, wait_all_ranks: bool) -> None:
    deadline = time.monotonic() + timeout.total_seconds()
    if timeout <= timedelta(0):
        raise BackendError(f"consonance: Rank {comm.rank} timed out in monitoredBarrier after {_ms(timeout)} ms.")
    came, missing = [], []
    for rank in range(1, comm.size):
        left = max(deadline - time.monotonic(), 0.001)
        try:
            comm.recv(torch.empty(1, dtype=torch.uint8), rank, _TAG, timeout=min(left, 24 * 60 * 60))
            came.append(rank)
        except Error:
            missing.append(rank)
            if not wait_all_ranks:
                break
    for rank in came:
        comm.send(torch.tensor([not missing], dtype=torch.uint8), rank, _TAG)
    if missing:
        ranks = ", ".join(map(str, missing))
        raise BackendError(
            f"consonance: Rank{'s' * (len(missing) > 1)} {ranks} failed to pass monitoredBarrier in {_ms(timeout)} ms."
        )


def _follow(comm: Communicator, timeout: timedelta) -> None:
    passed = torch.zeros(1, dtype=torch.uint8)
    try:
        comm.send(torch.ones(1, dtype=torch.uint8), 0, _TAG, timeout=limit(timeout))
        # Rank 0 may wait for the others as long as this rank does, and answers after that.
        comm.recv(passed, 0, _TAG, timeout=limit(2 * timeout + timedelta(seconds=1)))
    except Error as error:
        raise _failed(comm.rank, str(error)) from None
    if not passed:
        raise _failed(comm.rank, "other ranks did not come")


def _failed(rank: int, why: str) -> BackendError:
    return BackendError(
        f"consonance: Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for "
        f"send/recv from rank 0: {why}. Please check rank 0's error."
    )


def _ms(timeout: timedelta) -> int:
    return round(timeout.total_seconds() * 1000)
