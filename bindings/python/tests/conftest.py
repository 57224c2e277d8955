"""What the tests share: groups of threads and of processes, and what they leave."""

import gc
import multiprocessing
import os
import queue
import tempfile
import time
import traceback
from pathlib import Path

import pytest

import consonance as cs


def _work(function, id, rank, size, results, args):
    try:
        with cs.Communicator(id, rank, size, timeout=20, join_timeout=20) as comm:
            results.put((rank, function(comm, *args), None))
    except BaseException as error:
        results.put((rank, None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


class Processes:
    """Ranks in processes of their own."""

    def __init__(self, size, function, *args):
        context = multiprocessing.get_context("spawn")
        self._results = context.Queue()
        id = cs.UniqueId()
        self.processes = [
            context.Process(target=_work, args=(function, id, rank, size, self._results, args))
            for rank in range(size)
        ]
        for process in self.processes:
            process.start()

    def result(self, timeout=60):
        """Returns the next rank that has ended, what it returned, and the text of what it raised."""
        try:
            return self._results.get(timeout=timeout)
        except queue.Empty:
            pytest.fail(f"no rank ended within {timeout} s")

    def results(self):
        """Returns what all ranks returned, in rank order."""
        ended = sorted((self.result() for _ in self.processes), key=lambda result: result[0])
        for process in self.processes:
            process.join(10)
        failed = [text for _, _, text in ended if text]
        assert not failed, "\n".join(failed)
        return [returned for _, returned, _ in ended]


def in_processes(size, function, *args):
    return Processes(size, function, *args).results()


def _tasks():
    return os.listdir("/proc/self/task")


def _children(task):
    try:
        return len(Path(f"/proc/self/task/{task}/children").read_text().split())
    except OSError:
        return 0  # the thread has ended


def _settle(most):
    """Waits until this process has at most so many threads: those that serve a group end after it."""
    until = time.monotonic() + 30
    while len(_tasks()) > most and time.monotonic() < until:
        time.sleep(0.01)


def _things():
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "tasks": len(_tasks()),
        "children": sum(_children(task) for task in _tasks()),
        "temporary files": os.listdir(tempfile.gettempdir()),
        "shared files": len(os.listdir("/dev/shm")),
    }


def things_around(make, folder):
    """Makes a thousand groups. Returns what this process has before and after them.

    The folder for temporary files is `folder`. What the first groups leave serves the later ones.
    """
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    make(0)
    time.sleep(2)
    tasks = len(_tasks())
    for index in range(1, 20):
        make(index)
    gc.collect()
    _settle(tasks)
    before = _things()
    for index in range(20, 1020):
        make(index)
    gc.collect()
    _settle(before["tasks"])
    return before, _things()


def leave_nothing(before, after):
    """Checks what a process has before and after a thousand groups."""
    told = (before, after)
    assert after["files"] <= before["files"] + 2 and after["mappings"] <= before["mappings"] + 20, told
    assert all(after[what] <= before[what] for what in ("tasks", "children")), told
    assert after["temporary files"] == before["temporary files"], told
    # Other programs have files there, too.
    assert after["shared files"] < before["shared files"] + 100, told
