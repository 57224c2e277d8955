"""What the tests share: groups of threads and of processes."""

import multiprocessing
import queue
import traceback

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
