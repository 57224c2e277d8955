"""The exceptions of calls. Each has the call's name, and ``replica``: the rank that is to blame."""

import builtins


class Error(RuntimeError):
    """A call failed."""

    call: str | None = None
    replica: int | None = None


class MismatchError(Error):
    """The ranks did not make the same call. The group still works.

    ``replica`` differs from the others in ``argument``: they passed ``expected``, and it passed ``found``.
    """

    argument: str | None = None
    expected: str | None = None
    found: str | None = None


class TimeoutError(Error, builtins.TimeoutError):
    """Ranks did not come before the timeout: those in ``missing``. A call of all ranks ends the group."""

    waited: float | None = None
    missing: list[int] = []


class LostError(Error):
    """A rank has left the group, or was lost with its process."""


class AbortedError(Error):
    """The group was aborted: a rank failed, was interrupted, or missed the deadline of another one."""


class MeetingError(Error):
    """The processes did not form a group: the text names those that are missing."""


for _class in (Error, MismatchError, TimeoutError, LostError, AbortedError, MeetingError):
    _class.__module__ = "consonance"
