"""How the ranks of a process group find each other.

The store may have keys of a group that has ended: torchrun keeps its store when it starts the ranks again. So each rank
believes only an answer to what it has just made:

1. Rank 0 makes the group's id, and sets ``id``.
2. Each other rank makes a word, and sets ``answer RANK`` to its word and the id. If the id changes, it answers again.
3. When all answers have its own id, rank 0 sets ``start`` to the id, all words, and the id of the group: the same
   one, or an id across hosts if a rank is on another host or ``CONSONANCE_WIRE`` is set. A rank whose word is there
   joins.
4. Until it has joined, rank 0 looks whether a rank was started again and has a new word, and sets ``start`` again.

An answer to another id, or a start without the rank's word, is of another group.
"""

import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .. import Communicator, UniqueId
from .._errors import Error
from . import _errors

_NONE = timedelta(0)
_DAY = timedelta(days=1)

# The time that ranks wait for each other if PyTorch gives none, as elsewhere in Consonance.
_WAIT = timedelta(minutes=5)

# A store has no call that waits for a change of a key, so ranks ask again and again: soon at first,
# for ranks that are started together, and then rarely enough to leave a core to others.
_SOON_S, _RARELY_S = 0.0005, 0.05

# A rank says after this time whom it waits for, and again whenever the time has doubled.
_SAYS_S = 10


def limit(timeout: timedelta | None) -> timedelta | None:
    """Returns a timeout of PyTorch as one of Consonance, which is at most a day. None is the default."""
    if timeout is None or timeout <= _NONE:
        return None
    return min(timeout, _DAY)


def join(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Communicator:
    """Joins the group of the ranks that share a store.

    Ranks of one host share memory, those of several hosts have a network. If ``CONSONANCE_WIRE`` is set on rank 0, those
    of one host have one, too. Raises ``ValueError`` on every rank if two ranks have other users or builds, and names
    them. Raises ``MeetingError`` with the missing ranks after the timeout.
    """
    meeting = _Meeting(store, rank, size, limit(timeout) or _WAIT)
    id = meeting.lead() if rank == 0 else meeting.follow()
    try:
        with meeting.going_on(id) if rank == 0 else contextlib.nullcontext():
            return Communicator(id, rank, size, timeout=limit(timeout), join_timeout=meeting.left())
    except Error as error:
        raise _errors.of(error) from None


class _Meeting:
    """One rank's part of the exchange at the store."""

    def __init__(self, store: dist.Store, rank: int, size: int, wait: timedelta) -> None:
        self._store, self._rank, self._size, self._wait = store, rank, size, wait
        self._begin, self._pause_s, self._says_s = time.monotonic(), _SOON_S, _SAYS_S
        # The id of the group. Ranks that are started again get the same one, since rank 0 may have
        # begun to join it.
        self._group: UniqueId | None = None
        # The value of ``start`` from rank 0.
        self._start: dict[str, Any] | None = None

    def left(self) -> timedelta:
        """Returns the time that is left, which is more than none."""
        return max(self._wait - timedelta(seconds=time.monotonic() - self._begin), timedelta(seconds=1))

    def lead(self) -> UniqueId:
        """Returns the id of the group, when all ranks have answered it."""
        own = UniqueId()
        self._store.set("id", str(own))
        while self._start is None:
            missing = self._collect(own)
            if missing:
                self._pause(lambda missing=missing: missing)
        return _of_group(self._start)

    @contextlib.contextmanager
    def going_on(self, own: UniqueId) -> Iterator[None]:
        """Lets ranks that are started again into the group, while the block runs on rank 0."""
        has_ended = threading.Event()

        def collect() -> None:
            # If the store has ended, nobody can come.
            with contextlib.suppress(RuntimeError):
                while not has_ended.wait(_RARELY_S):
                    self._collect(own)

        thread = threading.Thread(target=collect, name="consonance meeting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            has_ended.set()
            thread.join()

    def _collect(self, own: UniqueId) -> list[int]:
        """Sets ``start`` if all ranks have answered, and it is not what it was. Returns the ranks that have not."""
        answers = self._answers(str(own))
        missing = self._missing(answers)
        problem = next(filter(None, (_problem(own, rank, answers[rank]) for rank in sorted(answers))), None)
        words = {str(rank): answer["word"] for rank, answer in answers.items()}
        if not missing:
            if self._group is None and problem is None:
                hosts = {own.host_id, *(answer["host_id"] for answer in answers.values())}
                is_across = len(hosts) > 1 or bool(os.environ.get("CONSONANCE_WIRE"))
                self._group = UniqueId.across_hosts() if is_across else own
            start = {"id": str(own), "words": words, "problem": problem, "group": str(self._group or own)}
            if start != self._start:
                self._store.set("start", json.dumps(start))
                self._start = start
        return missing

    def follow(self) -> UniqueId:
        """Returns the id of the group, when rank 0 has this rank's answer to it."""
        word, answered = secrets.token_hex(8), None
        while True:
            id = self._get("id")
            if id is not None and id != answered:
                own = UniqueId()
                answer = {"id": id, "word": word, "host_id": own.host_id, "place": own.place}
                answer["host"] = socket.gethostname()
                self._store.set(f"answer {self._rank}", json.dumps(answer))
                answered = id
            start = json.loads(self._get("start") or "null")
            if start is not None and start["words"].get(str(self._rank)) == word:
                return _of_group(start)
            # A rank without an answer to the id is missing; if all have answered, or there is no
            # id, it is rank 0.
            self._pause(lambda id=answered: (self._missing(self._answers(id)) if id else []) or [0])

    def _answers(self, id: str) -> dict[int, Any]:
        """Returns the answers to this id, by rank: anew each time, for a rank may be started again."""
        answers = {rank: json.loads(self._get(f"answer {rank}") or "null") for rank in range(1, self._size)}
        return {rank: answer for rank, answer in answers.items() if answer is not None and answer["id"] == id}

    def _missing(self, answers: dict[int, Any]) -> list[int]:
        return [rank for rank in range(1, self._size) if rank not in answers]

    def _get(self, key: str) -> str | None:
        return self._store.get(key).decode() if self._store.check([key]) else None

    def _pause(self, missing: Callable[[], list[int]]) -> None:
        """Waits a little. Says now and then whom this rank waits for, and raises an error at the timeout."""
        waited = time.monotonic() - self._begin
        if waited >= self._wait.total_seconds():
            raise _errors.late(self._rank, waited, missing())
        if waited >= self._says_s:
            self._says_s *= 2
            ranks = _errors.ranks(missing())
            print(f"consonance: rank {self._rank} has waited {waited:.0f} s for {ranks}", file=sys.stderr, flush=True)
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _RARELY_S)


def _of_group(start: dict[str, Any]) -> UniqueId:
    if start["problem"]:
        raise ValueError(start["problem"])
    return UniqueId(start["group"])


def _problem(own: UniqueId, rank: int, answer: dict[str, str]) -> str | None:
    if answer["place"].removeprefix(answer["host_id"]) == own.place.removeprefix(own.host_id):
        return None
    here, there = socket.gethostname(), answer["host"]
    ranks = f"consonance: rank {rank} on host {there} is of another user or of another build than rank 0 on host {here}"
    return f"{ranks}: the ranks of a group must share both"
