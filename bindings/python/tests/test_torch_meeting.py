"""How the ranks of a process group meet: over a store that is new, or that has the keys of groups that have ended."""

import itertools
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import consonance.torch  # noqa: E402
from consonance.torch import _join  # noqa: E402

LIMIT = timedelta(seconds=20)


class Killed(Exception):
    """In the place of SIGKILL, for a rank that is a thread."""


class Store:
    """A store, for a rank that is killed at some step, and all others with it, as torchrun does."""

    def __init__(self, store, killed, steps=None):
        self._store, self._killed, self._steps = store, killed, steps

    def __getattr__(self, name):
        def call(*args):
            if self._steps == 0:
                self._killed.set()
            if self._killed.is_set():
                raise Killed
            if self._steps is not None:
                self._steps -= 1
            return getattr(self._store, name)(*args)

        return call


def attempt(store, size, begins=(), steps=None, wait=LIMIT):
    """Ranks that are threads meet. Rank `r` begins after `begins[r]` seconds. Returns their ids, or errors.

    If `steps` is `(rank, count)`, this rank is killed after so many calls to the store.
    """
    killed, ended = threading.Event(), {}

    def run(rank):
        time.sleep(begins[rank] if begins else 0)
        own = Store(store, killed, steps[1] if steps and steps[0] == rank else None)
        meeting = _join._Meeting(own, rank, size, wait)
        try:
            ended[rank] = str(meeting.lead() if rank == 0 else meeting.follow())
        except (Killed, RuntimeError, ValueError) as error:
            ended[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [ended[rank] for rank in range(size)]


def one_id(store, size, *args):
    """Returns the id that all ranks have."""
    ids = attempt(store, size, *args)
    assert all(isinstance(id, str) for id in ids) and len(set(ids)) == 1, ids
    return ids[0]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_meet_in_any_order_over_the_keys_of_an_earlier_group(size):
    store, seen = dist.HashStore(), set()
    orders = list(itertools.permutations(range(size)))
    for order in orders:
        seen.add(one_id(store, size, [0.05 * place for place in order]))
    assert len(seen) == len(orders), "an id of an earlier group"


def test_shrinking_and_growing_groups_meet_over_the_same_store():
    store, sizes = dist.HashStore(), [3, 1, 4, 2, 3, 5, 2]
    # Rank 0 comes last: the others find the keys of the group before.
    ids = [one_id(store, size, [0.1] + [0] * size) for size in sizes]
    assert len(set(ids)) == len(sizes)


@pytest.mark.parametrize("last", [0, 1, 2])
def test_kills_at_any_step_do_not_mislead_the_next_attempt(last):
    store = dist.HashStore()
    for rank, steps in itertools.product(range(3), range(8)):
        before = attempt(store, 3, steps=(rank, steps))
        begins = [0.03 if other == last else 0 for other in range(3)]
        assert one_id(store, 3, begins) not in before


class Replaced(Store):
    """A store, for a rank that is killed alone as soon as it has set its answer."""

    def __init__(self, store):
        super().__init__(store, threading.Event())

    def __getattr__(self, name):
        call = super().__getattr__(name)

        def then_killed(*args):
            call(*args)
            if name == "set":
                self._killed.set()

        return then_killed if name == "set" else call


def joins(stores):
    """Ranks that are threads join over these stores: one for each start, `(rank, store, begin)`. Returns their sums."""
    ended, size = {}, 1 + max(rank for rank, _, _ in stores)

    def run(rank, store, begin):
        time.sleep(begin)
        try:
            with _join.join(store, rank, size, LIMIT) as comm:
                ended[rank] = comm.all_reduce(torch.ones(1)).tolist()
        except Killed:
            pass
        except Exception as error:
            ended[rank] = error

    threads = [threading.Thread(target=run, args=one) for one in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return ended


# Rank 2 comes after the replacement of rank 1, so rank 0 collects; or before it, so rank 0 has set
# `start`.
@pytest.mark.parametrize("begins", [(0, 0.4, 0.8), (0, 0.8, 0.4)])
def test_a_single_replaced_rank_meets_the_others(begins):
    store = dist.HashStore()
    stores = [(1, Replaced(store), 0), *[(rank, store, begin) for rank, begin in enumerate(begins)]]
    assert joins(stores) == {rank: [3.0] for rank in range(3)}


def test_ranks_of_one_host_meet_over_a_wire_by_a_variable(monkeypatch):
    monkeypatch.setenv("CONSONANCE_WIRE", "ucx")
    monkeypatch.setenv("CONSONANCE_UCX", "/no/such/libucp.so.0")
    ended = joins([(rank, store, 0) for store in [dist.HashStore()] for rank in range(2)])
    for rank in range(2):
        assert isinstance(ended[rank], consonance.torch.MeetingError), ended
        assert "/no/such/libucp.so.0" in str(ended[rank]), ended


def test_fifty_restarts_over_one_store_meet():
    store, chance, ids = dist.HashStore(), random.Random(7), set()
    for _ in range(50):
        size = chance.randint(1, 4)
        if chance.random() < 0.5:
            attempt(store, size, steps=(chance.randrange(size), chance.randrange(12)))
        ids.add(one_id(store, size, [chance.choice([0, 0.01, 0.03]) for _ in range(size)]))
    assert len(ids) == 50


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_an_absent_rank_is_named_after_the_timeout(absent, monkeypatch, capsys):
    store = dist.HashStore()
    monkeypatch.setattr(_join, "_SAYS_S", 0.3)
    one_id(store, 3)
    begins = [1.5 if rank == absent else 0 for rank in range(3)]
    errors = attempt(store, 3, begins, None, timedelta(seconds=1))
    said = capsys.readouterr().err
    for rank in {0, 1, 2} - {absent}:
        assert re.search(rf"^consonance: rank {rank} has waited \d s for rank {absent}$", said, re.M), said
        error = errors[rank]
        assert isinstance(error, consonance.torch.MeetingError) and isinstance(error, dist.DistBackendError), error
        assert (error.task, error.missing) == (f"rank {rank}", [absent])


def test_an_error_of_the_meeting_is_an_error_of_the_backend():
    with pytest.raises(dist.DistBackendError) as caught:
        _join.join(dist.HashStore(), 1, 2, timedelta(seconds=0.2))
    assert caught.value.missing == [0]


def test_ranks_of_other_builds_are_refused_by_name_and_those_of_other_hosts_meet(monkeypatch):
    monkeypatch.setattr(_join.socket, "gethostname", lambda: HOSTS[threading.current_thread()])
    HOSTS = {}

    def meet(hosts, places):
        store, problems, ids = dist.HashStore(), {}, {}

        def run(rank):
            HOSTS[threading.current_thread()] = hosts[rank]
            meeting = _join._Meeting(Placed(store, places[rank]), rank, 2, LIMIT)
            try:
                ids[rank] = meeting.lead() if rank == 0 else meeting.follow()
            except ValueError as error:
                problems[rank] = str(error)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return problems, ids

    class Placed:
        """A store, for a rank at another place."""

        def __init__(self, store, place):
            self._store, self._place = store, place

        def __getattr__(self, name):
            return getattr(self._store, name)

        def set(self, key, value):
            if key.startswith("answer"):
                host_id = self._place[: len(consonance.UniqueId().host_id)]
                value = json.dumps({**json.loads(value), "place": self._place, "host_id": host_id})
            self._store.set(key, value)

    own = consonance.UniqueId()
    for hosts in (["thishost", "otherhost"], ["thishost"] * 2):
        problems, ids = meet(hosts, [own.place, f"{own.place[:-1]}x"])
        text = f"rank 1 on host {hosts[1]} is of another user or of another build than rank 0 on host thishost"
        assert problems.keys() == {0, 1} and all(text in problem for problem in problems.values()), problems
    # Another container of this machine is another host, too.
    for hosts in (["thishost", "otherhost"], ["thishost"] * 2):
        problems, ids = meet(hosts, [own.place, f"x{own.place[1:]}"])
        assert not problems and ids[0] == ids[1], problems
        assert any(bytes(ids[0])[64:]), "the addresses of rank 0"
    problems, ids = meet(["thishost"] * 2, [own.place] * 2)
    assert not problems and ids[0] == ids[1] and not any(bytes(ids[0])[64:])


PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
import consonance.torch

late, kills = int(sys.argv[1]), int(sys.argv[2])
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if restart and rank == late:
    time.sleep(0.5)
dist.init_process_group("consonance")
data = torch.ones(3)
dist.all_reduce(data)
if restart < kills:
    if rank == restart % dist.get_world_size():
        os.kill(os.getpid(), 9)
    dist.barrier()
print(f"rank {rank} after {restart} restarts: {data.tolist()}", flush=True)
dist.destroy_process_group()
"""


# By hand, fifty: each takes as long as PyTorch takes to start.
RESTARTS = int(os.environ.get("CONSONANCE_TORCH_RESTARTS", "2"))


@pytest.mark.parametrize(
    "rendezvous, late", [(["--standalone"], 0), (["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"], 1)]
)
def test_torchrun_restarts_killed_ranks(rendezvous, late, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", *rendezvous, "--nproc-per-node=2"),
            *(f"--max-restarts={RESTARTS}", "--monitor-interval=0.1", str(program), str(late), str(RESTARTS)),
        ],
        capture_output=True,
        text=True,
        timeout=60 + 30 * RESTARTS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert f"rank {rank} after {RESTARTS} restarts: [2.0, 2.0, 2.0]" in done.stdout, done.stdout + done.stderr
