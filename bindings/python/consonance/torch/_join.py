"""How the ranks of a process group find each other."""

import socket
from datetime import timedelta

import torch.distributed as dist

from .. import Communicator, UniqueId

_NONE = timedelta(0)
_DAY = timedelta(days=1)


def limit(timeout: timedelta | None) -> timedelta | None:
    """Returns a timeout of PyTorch as one of Consonance, which is at most a day. None is the default."""
    if timeout is None or timeout <= _NONE:
        return None
    return min(timeout, _DAY)


def join(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Communicator:
    """Joins the group of the ranks that share a store.

    Raises ``ValueError`` on every rank if two ranks cannot share memory, and names them.
    """
    own = UniqueId()
    store.set(f"place {rank}", f"{own.place} {socket.gethostname()}")
    if rank == 0:
        problem = next(filter(None, (_problem(store, own.place, other) for other in range(1, size))), None)
        store.set("id", f"! {problem}" if problem else str(own))
    told = store.get("id").decode()
    if told.startswith("!"):
        raise ValueError(told.removeprefix("! "))
    wait = limit(timeout)
    return Communicator(UniqueId(told), rank, size, timeout=wait, join_timeout=wait)


def _problem(store: dist.Store, place: str, rank: int) -> str | None:
    there, host = store.get(f"place {rank}").decode().split(" ", 1)
    if there == place:
        return None
    here = socket.gethostname()
    where = f"on host {host}" if host != here else "in another container, of another user, or of another build"
    return f"consonance: rank {rank} runs {where}, rank 0 on host {here}: the ranks of a group must share memory"
