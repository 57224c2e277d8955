from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, NoReturn, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike
from typing_extensions import Self, final

# A NumPy array, or any array with DLPack in host memory.
_Array = Any
_A = TypeVar("_A", bound=_Array)
_Timeout = float | timedelta | None
_Op = Literal["sum", "mean", "product", "min", "max", "and", "or", "xor"]

__all__ = ["__version__", "Communicator", "UniqueId", "Request", "Block", "threads", "command"]

__version__: str

def threads(size: int) -> list[Communicator]: ...
def command(arguments: Sequence[str], starter: Sequence[str]) -> int: ...

@final
class UniqueId:
    def __new__(cls, data: bytes | str | None = None) -> Self: ...
    @staticmethod
    def derived(text: str) -> UniqueId: ...
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
        cls, id: UniqueId, rank: int, size: int, *, timeout: _Timeout = None, join_timeout: _Timeout = None
    ) -> Self: ...
    @classmethod
    def from_env(cls, *, timeout: _Timeout = None, join_timeout: _Timeout = None) -> Communicator: ...
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
    @overload
    def all_reduce(
        self, data: _A, op: _Op = "sum", *, out: None = None, async_op: Literal[False] = False, timeout: _Timeout = None
    ) -> _A: ...
    @overload
    def all_reduce(
        self, data: _Array, op: _Op = "sum", *, out: _A, async_op: Literal[False] = False, timeout: _Timeout = None
    ) -> _A: ...
    @overload
    def all_reduce(
        self,
        data: _Array,
        op: _Op = "sum",
        *,
        out: _Array | None = None,
        async_op: Literal[True],
        timeout: _Timeout = None,
    ) -> Request: ...
    def all_reduce_coalesced(
        self, data: Sequence[_Array], op: _Op = "sum", *, async_op: bool = False, timeout: _Timeout = None
    ) -> Any: ...
    def reduce(
        self,
        data: _Array,
        op: _Op = "sum",
        *,
        root: int = 0,
        out: _Array | None = None,
        async_op: bool = False,
        timeout: _Timeout = None,
    ) -> Any: ...
    def reduce_scatter(
        self,
        data: _Array | list[_Array],
        op: _Op = "sum",
        *,
        out: _Array | None = None,
        async_op: bool = False,
        timeout: _Timeout = None,
    ) -> Any: ...
    def broadcast(self, data: _Array, *, root: int = 0, async_op: bool = False, timeout: _Timeout = None) -> Any: ...
    def all_gather(
        self,
        data: _Array,
        *,
        out: _Array | list[_Array] | None = None,
        counts: Sequence[int] | None = None,
        async_op: bool = False,
        timeout: _Timeout = None,
    ) -> Any: ...
    def gather(
        self,
        data: _Array,
        *,
        root: int = 0,
        out: _Array | list[_Array] | None = None,
        counts: Sequence[int] | None = None,
        async_op: bool = False,
        timeout: _Timeout = None,
    ) -> Any: ...
    def scatter(
        self,
        data: _Array | list[_Array] | None,
        *,
        root: int = 0,
        out: _Array | None = None,
        counts: Sequence[int] | None = None,
        async_op: bool = False,
        timeout: _Timeout = None,
    ) -> Any: ...
    def all_to_all(
        self,
        data: _Array | list[_Array],
        *,
        out: _Array | list[_Array] | None = None,
        counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        async_op: bool = False,
        timeout: _Timeout = None,
    ) -> Any: ...
    def barrier(self, *, async_op: bool = False, timeout: _Timeout = None) -> Request | None: ...
    def _refuse(
        self, call: str, argument: str, expected: str, found: str, *, async_op: bool = False
    ) -> NoReturn: ...
    def send(
        self, data: _Array, to: int, tag: int = 0, *, async_op: bool = False, timeout: _Timeout = None
    ) -> Request | None: ...
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
