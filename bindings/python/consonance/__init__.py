"""Collectives on arrays: the same bits on every rank, and no call hangs.

A group's ranks are processes, of one host or of several, or threads:

* ``Communicator.from_env()`` joins the processes that a launcher has started;
* ``Communicator(id, rank, size)`` joins those that pass the same ``UniqueId``, one made by
  ``UniqueId.across_hosts()`` if they are on several hosts;
* ``threads(n)`` makes a group of threads, and ``run(n, function)`` runs a function in each.

>>> import consonance as cs, numpy as np
>>> cs.run(2, lambda comm: comm.all_reduce(np.array([comm.rank + 1.0, 2.0])))
[array([3., 4.]), array([3., 4.])]

Calls raise ``ValueError`` and ``TypeError`` for arguments that are wrong, and otherwise an ``Error``:
``MismatchError``, ``TimeoutError``, ``LostError``, ``AbortedError`` or ``MeetingError``.
"""

from pathlib import Path as _Path

from ._errors import AbortedError, Error, LostError, MeetingError, MismatchError, TimeoutError
from ._native import Accumulator, Communicator, Request, UniqueId, __version__, threads
from ._run import run

__all__ = [
    "AbortedError",
    "Accumulator",
    "Communicator",
    "Error",
    "LostError",
    "MeetingError",
    "MismatchError",
    "Request",
    "TPUStrategy",
    "TimeoutError",
    "UniqueId",
    "get_include",
    "run",
    "threads",
]


class TPUStrategy:
    """TensorFlow's strategy for TPUs, which does not exist here.

    >>> import consonance as cs
    >>> cs.TPUStrategy()
    Traceback (most recent call last):
        ...
    NotImplementedError: no strategy runs on a TPU; in Rust, Builder::static_shapes makes a strategy that refuses what a TPU would refuse
    """

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        raise NotImplementedError(
            "no strategy runs on a TPU; "
            "in Rust, Builder::static_shapes makes a strategy that refuses what a TPU would refuse"
        )


def get_include() -> str:
    """Returns the folder of the C library's header, ``consonance.h``.

    The functions that it declares are in the package's own library, ``consonance._native.__file__``.

    >>> import consonance as cs, os
    >>> os.listdir(cs.get_include())
    ['consonance.h']
    """
    return str(_Path(__file__).parent / "include")
