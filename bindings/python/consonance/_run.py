"""Runs a function on the ranks of a group of threads."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ._errors import Error
from ._native import Communicator, threads


_R = TypeVar("_R")


def run(size: int, function: Callable[..., _R], *args: Any, device: str | None = None) -> list[_R]:
    """Calls ``function(communicator, *args)`` in ``size`` threads, one for each rank of a new group.

    ``device`` is that of ``threads``.

    Returns the results in rank order. If a rank raises, the group is aborted, so that no other rank waits for it, and
    its exception is raised.

    >>> import consonance as cs
    >>> cs.run(2, lambda comm: comm.rank)
    [0, 1]
    """
    results: list[Any] = [None] * size
    raised: list[BaseException | None] = [None] * size

    def work(rank: int, communicator: Communicator) -> None:
        try:
            with communicator:
                results[rank] = function(communicator, *args)
        except BaseException as error:  # All of them are raised again below.
            raised[rank] = error

    workers = [threading.Thread(target=work, args=pair, daemon=True) for pair in enumerate(threads(size, device=device))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    errors = [error for error in raised if error is not None]
    # An error of the group is the consequence of another rank's own, if there is one.
    errors.sort(key=lambda error: isinstance(error, Error))
    if errors:
        raise errors[0]
    return results
