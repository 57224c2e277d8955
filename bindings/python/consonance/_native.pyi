from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, NoReturn, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike
from typing_extensions import Self, final

# A NumPy array, or any array with DLPack in host memory.
class _Array(Protocol):
    @property
    def shape(self) -> Any: ...

# Several arrays stand for one that concatenates them.
_Data = _Array | Sequence[_Array]
_A = TypeVar("_A", bound=_Array)
_D = TypeVar("_D", bound=_Data)
_Timeout = float | timedelta | None
_Op = Literal["sum", "mean", "product", "min", "max", "and", "or", "xor"]

__all__ = [
    "__version__",
    "Accumulator",
    "Communicator",
    "UniqueId",
    "Request",
    "Block",
    "threads",
    "refuse",
    "command",
]

__version__: str

def threads(size: int, *, device: str | None = None) -> list[Communicator]: ...
def refuse(
    communicator: Communicator, call: str, argument: str, expected: str, found: str, *, async_op: bool = False
) -> NoReturn: ...
def command(arguments: Sequence[str], starter: Sequence[str]) -> int: ...

@final
class UniqueId:
    def __new__(cls, data: bytes | str | None = None) -> Self: ...
    @staticmethod
    def derived(text: str) -> UniqueId: ...
    @staticmethod
    def across_hosts() -> UniqueId: ...
    @property
    def host_id(self) -> str: ...
    @property
    def place(self) -> str: ...
    def __bytes__(self) -> bytes: ...
    def __hash__(self) -> int: ...
    def __eq__(self, value: object, /) -> bool: ...

@final
class Request:
    def wait(self, timeout: _Timeout = None) -> bool: ...
    def done(self) -> bool: ...
    def exception(self) -> Exception | None: ...
    def add_done_callback(self, function: Callable[[Exception | None], object]) -> None: ...
    @property
    def result(self) -> Any: ...
    @property
    def source(self) -> int | None: ...

@final
class Block:
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

@final
class Communicator:
    def __new__(
        cls,
        id: UniqueId,
        rank: int,
        size: int,
        *,
        device: str | None = None,
        timeout: _Timeout = None,
        join_timeout: _Timeout = None,
    ) -> Self: ...
    @classmethod
    def from_env(
        cls, *, device: str | None = None, timeout: _Timeout = None, join_timeout: _Timeout = None
    ) -> Communicator: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def is_aborted(self) -> bool: ...
    @property
    def timeout(self) -> float: ...
    @timeout.setter
    def timeout(self, timeout: float | timedelta) -> None: ...
    # A result is `out`, or a new array of the kind of `data`.
    @overload
    def all_reduce(
        self,
        data: _D,
        op: _Op = "sum",
        *,
        out: None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D: ...
    @overload
    def all_reduce(
        self,
        data: _Data,
        op: _Op = "sum",
        *,
        out: _D,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D: ...
    @overload
    def all_reduce(
        self,
        data: _Data,
        op: _Op = "sum",
        *,
        out: _Data | None = None,
        async_op: Literal[True],
        timeout: _Timeout = None,
    ) -> Request: ...
    @overload
    def all_reduce_exact(
        self,
        data: _D,
        op: _Op = "sum",
        *,
        out: None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D: ...
    @overload
    def all_reduce_exact(
        self,
        data: _Data,
        op: _Op = "sum",
        *,
        out: _D,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D: ...
    @overload
    def all_reduce_exact(
        self,
        data: _Data,
        op: _Op = "sum",
        *,
        out: _Data | None = None,
        async_op: Literal[True],
        timeout: _Timeout = None,
    ) -> Request: ...
    @overload
    def all_reduce_coalesced(
        self,
        data: list[_A],
        op: _Op = "sum",
        *,
        out: None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> list[_A]: ...
    @overload
    def all_reduce_coalesced(
        self,
        data: Sequence[_Array],
        op: _Op = "sum",
        *,
        out: _D,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D: ...
    @overload
    def all_reduce_coalesced(
        self,
        data: Sequence[_Array],
        op: _Op = "sum",
        *,
        out: Sequence[_Array] | None = None,
        async_op: Literal[True],
        timeout: _Timeout = None,
    ) -> Request: ...
    @overload
    def reduce(
        self,
        data: _D,
        op: _Op = "sum",
        *,
        root: int = 0,
        out: None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D | None: ...
    @overload
    def reduce(
        self,
        data: _Data,
        op: _Op = "sum",
        *,
        root: int = 0,
        out: _D,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D | None: ...
    @overload
    def reduce(
        self,
        data: _Data,
        op: _Op = "sum",
        *,
        root: int = 0,
        out: _Data | None = None,
        async_op: Literal[True],
        timeout: _Timeout = None,
    ) -> Request: ...
    @overload
    def reduce_scatter(
        self,
        data: _A | Sequence[_A],
        op: _Op = "sum",
        *,
        out: None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _A: ...
    @overload
    def reduce_scatter(
        self,
        data: _Data,
        op: _Op = "sum",
        *,
        out: _D,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D: ...
    @overload
    def reduce_scatter(
        self,
        data: _Data,
        op: _Op = "sum",
        *,
        out: _Data | None = None,
        async_op: Literal[True],
        timeout: _Timeout = None,
    ) -> Request: ...
    @overload
    def broadcast(
        self, data: _A, *, root: int = 0, async_op: Literal[False] = False, timeout: _Timeout = None
    ) -> _A: ...
    @overload
    def broadcast(
        self, data: _Array, *, root: int = 0, async_op: Literal[True], timeout: _Timeout = None
    ) -> Request: ...
    @overload
    def all_gather(
        self,
        data: _A,
        *,
        out: None = None,
        counts: Sequence[int] | None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _A: ...
    @overload
    def all_gather(
        self,
        data: _Data,
        *,
        out: _D,
        counts: Sequence[int] | None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D: ...
    @overload
    def all_gather(
        self,
        data: _Data,
        *,
        out: _Data | None = None,
        counts: Sequence[int] | None = None,
        async_op: Literal[True],
        timeout: _Timeout = None,
    ) -> Request: ...
    @overload
    def gather(
        self,
        data: _A,
        *,
        root: int = 0,
        out: None = None,
        counts: Sequence[int] | None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _A | None: ...
    @overload
    def gather(
        self,
        data: _Data,
        *,
        root: int = 0,
        out: _D,
        counts: Sequence[int] | None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D | None: ...
    @overload
    def gather(
        self,
        data: _Data,
        *,
        root: int = 0,
        out: _Data | None = None,
        counts: Sequence[int] | None = None,
        async_op: Literal[True],
        timeout: _Timeout = None,
    ) -> Request: ...
    @overload
    def scatter(
        self,
        data: _A | Sequence[_A],
        *,
        root: int = 0,
        out: None = None,
        counts: Sequence[int] | None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _A: ...
    @overload
    def scatter(
        self,
        data: _Data | None,
        *,
        root: int = 0,
        out: _D,
        counts: Sequence[int] | None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D: ...
    @overload
    def scatter(
        self,
        data: _Data | None,
        *,
        root: int = 0,
        out: _Data | None = None,
        counts: Sequence[int] | None = None,
        async_op: Literal[True],
        timeout: _Timeout = None,
    ) -> Request: ...
    @overload
    def all_to_all(
        self,
        data: _D,
        *,
        out: None = None,
        counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D: ...
    @overload
    def all_to_all(
        self,
        data: _Data,
        *,
        out: _D,
        counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D: ...
    @overload
    def all_to_all(
        self,
        data: _Data,
        *,
        out: _Data | None = None,
        counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        async_op: Literal[True],
        timeout: _Timeout = None,
    ) -> Request: ...
    @overload
    def barrier(self, *, async_op: Literal[False] = False, timeout: _Timeout = None) -> None: ...
    @overload
    def barrier(self, *, async_op: Literal[True], timeout: _Timeout = None) -> Request: ...
    @overload
    def send(
        self, data: _Array, to: int, tag: int = 0, *, async_op: Literal[False] = False, timeout: _Timeout = None
    ) -> None: ...
    @overload
    def send(
        self, data: _Array, to: int, tag: int = 0, *, async_op: Literal[True], timeout: _Timeout = None
    ) -> Request: ...
    @overload
    def recv(
        self,
        data: _Array,
        source: int | None = None,
        tag: int = 0,
        *,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> int: ...
    @overload
    def recv(
        self,
        data: _Array,
        source: int | None = None,
        tag: int = 0,
        *,
        async_op: Literal[True],
        timeout: _Timeout = None,
    ) -> Request: ...
    def empty(self, shape: int | Sequence[int], dtype: DTypeLike | None = None) -> np.ndarray: ...
    def split(self, color: int | None, key: int = 0, *, timeout: _Timeout = None) -> Communicator | None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        _value: BaseException | None = None,
        _traceback: TracebackType | None = None,
    ) -> None: ...

@final
class Accumulator:
    def __new__(cls, comm: Communicator, like: _Data, leaves: range, of: int, op: _Op = "sum") -> Self: ...
    def add(self, leaf: _Data) -> None: ...
    @property
    def added(self) -> int: ...
    def clear(self) -> None: ...
    @overload
    def all_reduce(
        self,
        data: _D,
        *,
        out: None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D: ...
    @overload
    def all_reduce(
        self,
        data: _Data,
        *,
        out: _D,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D: ...
    @overload
    def all_reduce(
        self,
        data: _Data,
        *,
        out: _Data | None = None,
        async_op: Literal[True],
        timeout: _Timeout = None,
    ) -> Request: ...
    @overload
    def reduce(
        self,
        data: _D,
        *,
        root: int = 0,
        out: None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D | None: ...
    @overload
    def reduce(
        self,
        data: _Data,
        *,
        root: int = 0,
        out: _D,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D | None: ...
    @overload
    def reduce(
        self,
        data: _Data,
        *,
        root: int = 0,
        out: _Data | None = None,
        async_op: Literal[True],
        timeout: _Timeout = None,
    ) -> Request: ...
    @overload
    def reduce_scatter(
        self,
        data: _A | Sequence[_A],
        *,
        out: None = None,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _A: ...
    @overload
    def reduce_scatter(
        self,
        data: _Data,
        *,
        out: _D,
        async_op: Literal[False] = False,
        timeout: _Timeout = None,
    ) -> _D: ...
    @overload
    def reduce_scatter(
        self,
        data: _Data,
        *,
        out: _Data | None = None,
        async_op: Literal[True],
        timeout: _Timeout = None,
    ) -> Request: ...
