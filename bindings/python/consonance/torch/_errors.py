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


_CLASSES = {
    plain.MismatchError: MismatchError,
    plain.TimeoutError: TimeoutError,
    plain.LostError: LostError,
    plain.AbortedError: AbortedError,
}


def of(error: plain.Error) -> BackendError:
    """Returns the exception of PyTorch for one of Consonance, with its fields."""
    text = str(error)
    if isinstance(error, plain.TimeoutError) and error.waited is not None:
        text = f"consonance: Timed out waiting {error.waited * 1000:.0f}ms: {text}"
    made = _CLASSES.get(type(error), BackendError)(text)
    made.__dict__.update(error.__dict__)
    return made
