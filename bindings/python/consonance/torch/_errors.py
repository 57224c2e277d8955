"""The exceptions of this backend: those of Consonance that are PyTorch's, too."""

import torch.distributed as dist

from .. import _errors as plain


class BackendError(plain.Error, dist.DistBackendError):
    """A call failed."""


class MismatchError(plain.MismatchError, BackendError):
    """The ranks did not make the same call. The group still works."""


class TimeoutError(plain.TimeoutError, BackendError):
    """Ranks did not come before the timeout."""


class LostError(plain.LostError, BackendError):
    """A rank has left the group, or was lost with its process."""


class AbortedError(plain.AbortedError, BackendError):
    """The group was aborted."""


class MeetingError(plain.MeetingError, BackendError):
    """The processes did not form a group."""


_CLASSES = {
    plain.MismatchError: MismatchError,
    plain.TimeoutError: TimeoutError,
    plain.LostError: LostError,
    plain.AbortedError: AbortedError,
    plain.MeetingError: MeetingError,
}


def of(error: RuntimeError) -> RuntimeError:
    """Returns the exception of PyTorch for one of Consonance, with its fields. Returns another exception as it is."""
    # A call that is not allowed here, as in a fork, is a plain RuntimeError with its problem.
    if not isinstance(error, plain.Error) and not hasattr(error, "problem"):
        return error
    text = str(error)
    if isinstance(error, plain.TimeoutError) and error.waited is not None:
        # PyTorch's own words, which programs look for.
        text = f"consonance: Timed out waiting {error.waited * 1000:.0f}ms: {text.removeprefix('Timed out: ')}"
    made = _CLASSES.get(type(error), BackendError)(text)
    made.__dict__.update(error.__dict__)
    return made


def late(rank: int, waited: float, missing: list[int]) -> MeetingError:
    """Returns the error of a rank whose peers have not come to the store."""
    made = MeetingError(f"consonance: rank {rank} waited {waited:.0f} s for {ranks(missing)}: not at the store")
    made.task, made.problem, made.missing = f"rank {rank}", f"waited {waited:.0f} s", missing
    made.replica = missing[0]
    return made


def ranks(numbers: list[int]) -> str:
    """Returns ranks in words."""
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
