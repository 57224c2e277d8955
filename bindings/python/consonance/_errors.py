"""The exceptions of calls. Each has the call's name, and ``replica``: the rank that is to blame.

The exceptions of Python have fields, too: a ``ValueError`` or ``TypeError`` of an argument has ``call``, ``replica``,
``argument``, ``expected`` and ``found``, the ``RuntimeError`` of a call that is not allowed has ``call`` and
``problem``, and an ``OSError`` has ``what``, the request that the system refused.
"""

import builtins


class Error(RuntimeError):
    """A call failed. ``message`` is that of a panic."""

    call: str | None = None
    replica: int | None = None
    message: str | None = None


class MismatchError(Error):
    """The ranks did not make the same call. The group still works.

    ``replica`` differs from the others in ``argument``: they passed ``expected``, and it passed ``found``.
    """

    argument: str | None = None
    expected: str | None = None
    found: str | None = None


class TimeoutError(Error, builtins.TimeoutError):
    """Ranks did not come before the timeout: those in ``missing``. A call of all ranks ends the group.

    ``waited`` is the timeout in seconds. ``calls`` has each missing rank with its last call.
    """

    waited: float | None = None
    missing: list[int] = []
    calls: list[tuple[int, str]] = []


class LostError(Error):
    """A rank has left the group, or was lost with its process: then ``lost`` is true.

    ``last`` is the last call of that rank. If the loss aborted the group, there are the fields of ``AbortedError``
    instead: ``reason`` and ``calls``.
    """

    lost: bool = False
    last: str | None = None
    reason: str | None = None
    calls: list[tuple[int, str]] = []


class AbortedError(Error):
    """The group was aborted: a rank failed, was interrupted, or missed the deadline of another one.

    ``reason`` says why. ``calls`` has the ranks with their last calls, if ``replica`` was lost or missed a deadline.
    """

    reason: str | None = None
    lost: bool = False
    calls: list[tuple[int, str]] = []


class MeetingError(Error):
    """The processes did not form a group. ``task`` is this process, and ``missing`` has the ranks that are missing."""

    task: str | None = None
    problem: str | None = None
    missing: list[int] = []


for _class in (Error, MismatchError, TimeoutError, LostError, AbortedError, MeetingError):
    _class.__module__ = "consonance"
