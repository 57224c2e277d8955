"""Futures of calls while the interpreter ends, or when it starts no more threads."""

import os
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from test_torch import ranks  # noqa: E402

# A function registered before the import runs at exit after those of the package.
PROGRAM = """
import atexit, sys

@atexit.register
def last():
    if rank == 0:
        try:
            early.wait()
        except RuntimeError as error:
            print("early:", error, flush=True)
    else:
        dist.all_reduce(torch.ones(2))
    (late,) = dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()
    print("late:", late.tolist(), flush=True)

import torch, torch.distributed as dist
import consonance.torch

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("consonance", init_method=f"file://{store}", rank=rank, world_size=2)
if rank == 0:
    early = dist.all_reduce(torch.ones(2), async_op=True).get_future()
"""


def test_a_future_is_set_after_the_threads_of_futures_have_ended(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        texts = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], texts
    assert all("late: [2.0, 2.0]" in printed for printed, _ in texts), texts
    assert "BackendError: consonance: the call had not ended" in texts[0][0], texts


def without_threads(group):
    def start(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0].tolist()).wait()


def test_a_future_is_set_where_no_thread_can_start(tmp_path):
    assert ranks(2, tmp_path, without_threads) == [[2.0, 2.0]] * 2
