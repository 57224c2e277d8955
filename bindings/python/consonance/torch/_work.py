"""Calls that were started, as PyTorch sees them."""

import atexit
import os
import threading
import time
from collections import deque
from datetime import timedelta

import torch
import torch.distributed as dist

from .. import Request
from .._errors import Error
from . import _errors


# A call of so many bytes takes about as long as another thread takes to set a future.
_FEW_BYTES = 4 << 20

# The seconds that such a call takes if the peers are there.
_MOMENT = 2e-3


class Work(dist._Work):
    """Requests that were started together, and the tensors with their results."""

    def __init__(self, requests: list[Request], outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self._requests = requests
        self._outputs = outputs
        self._future: torch.futures.Future | None = None

    @staticmethod
    def of(works: "list[Work]") -> "Work":
        """Returns the work that is done when all of these are."""
        return Work([one for work in works for one in work._requests], [out for work in works for out in work._outputs])

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for the requests. Raises the error of the first that failed, or at the timeout."""
        # 0 and less are PyTorch's words for no timeout.
        limit = timeout.total_seconds() if timeout is not None and timeout > timedelta(0) else None
        until = None if limit is None else time.monotonic() + limit
        for request in self._requests:
            try:
                has_ended = request.wait(None if until is None else max(until - time.monotonic(), 1e-6))
            except Error as error:
                raise _errors.of(error) from None
            if not has_ended:
                raise _errors.TimeoutError(f"consonance: Timed out waiting {limit * 1000:.0f}ms: the call goes on")
        return True

    def is_completed(self) -> bool:
        return all(request.done() for request in self._requests)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        for request in self._requests:
            error = request.exception() if request.done() else None
            if error is not None:
                return _errors.of(error) if isinstance(error, Error) else error
        return None

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def synchronize(self) -> None:
        self.wait()

    def _source_rank(self) -> int:
        source = self._requests[0].source
        return -1 if source is None else source

    source_rank = _source_rank

    def get_future(self) -> torch.futures.Future:
        """Returns a future of the list of results."""
        if self._future is None:
            # PyTorch's C++ code reads an exception that ``set_exception`` sets as if it were the
            # result, and DDP ends the process. What a callback of ``then`` raises is an error for
            # C++, too.
            ended: torch.futures.Future = torch.futures.Future()
            self._future = ended.then(self._results)
            if self._ends_soon():
                ended.set_result(True)
            else:
                _finisher.finish(ended, self._requests[-1])
        return self._future

    def _ends_soon(self) -> bool:
        """Returns whether all requests have ended. Waits a moment for results of few bytes.

        A thread that sets the future later wants the core and the interpreter's lock of the backward pass: that
        takes longer than such a call.
        """
        if self._requests and 0 < sum(out.nbytes for out in self._outputs) <= _FEW_BYTES:
            try:
                self._requests[-1].wait(_MOMENT)
            except Error:
                pass  # The future has it.
        return self.is_completed()

    def _results(self, ended: torch.futures.Future) -> list[torch.Tensor]:
        if not ended.value():
            raise _errors.BackendError("consonance: the call had not ended when the interpreter did")
        # The callback that led here may not have returned: until then a request is not done for
        # other threads.
        self.wait()
        return self._outputs


class _Finisher:
    """Threads that set futures to whether their calls have ended.

    What is called then may wait for another call, so it must run neither on the thread that executes calls, nor after
    what another future called: there is always a thread for the next one.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: set[torch.futures.Future] = set()
        self._ended: deque[torch.futures.Future] = deque()
        self._idle = self._busy = 0
        self._is_closed = False

    def close(self) -> None:
        """Waits a while for what runs: in PyTorch's C++ code a thread that the interpreter ends aborts the process.

        Later no thread sets a future: those whose calls go on fail.
        """
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: not self._ended and not self._busy, timeout=10)
            pending, self._pending = self._pending, set()
        for future in pending:
            future.set_result(False)

    def finish(self, future: torch.futures.Future, request: Request) -> None:
        """Sets the future when the request has ended."""
        with self._changed:
            is_closed = self._is_closed
            if not is_closed:
                self._pending.add(future)
        if is_closed:
            # The future's callback waits for the request, on this thread.
            future.set_result(True)
        else:
            request.add_done_callback(lambda _: self._submit(future))

    def _submit(self, future: torch.futures.Future) -> None:
        with self._changed:
            if future not in self._pending:
                return
            self._pending.remove(future)
            self._ended.append(future)
            if self._idle >= len(self._ended):
                self._changed.notify()
                return
            try:
                threading.Thread(target=self._run, name="consonance futures", daemon=True).start()
                return
            except RuntimeError:
                # Python 3.12 starts no thread at exit. This thread executes calls: better late than
                # never.
                self._ended.remove(future)
        future.set_result(True)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                # A thread that had nothing to do for a minute ends.
                has_ended = self._changed.wait_for(lambda: self._ended, timeout=60)
                self._idle -= 1
                if not has_ended:
                    return
                future = self._ended.popleft()
                self._busy += 1
            try:
                future.set_result(True)
            finally:
                with self._changed:
                    self._busy -= 1
                    if self._is_closed:
                        self._changed.notify_all()


_finisher = _Finisher()
atexit.register(_finisher.close)
# The child of a fork has none of these threads, and must not wait for them.
os.register_at_fork(after_in_child=_finisher.__init__)
