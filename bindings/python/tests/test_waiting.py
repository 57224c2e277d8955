"""Waits: their end by a signal, a timeout, an abort or a lost rank, and what goes on meanwhile."""

import itertools
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import Processes, in_processes, leave_nothing, things_around

import consonance as cs


# A wait ends at most so long after Ctrl-C. No run of a wait is held to it, because the machine may
# be busy: the best of several is.
PROMPT = 0.2
TRIES = 10


def best_of(comm, ids, wait, once):
    """Calls `once` with new groups, in which rank 1 makes no call, until it returns less than `PROMPT`. Returns the least."""
    best = float("inf")
    for id in ids:
        with cs.Communicator(id, comm.rank, 2, timeout=20) as group:
            if comm.rank == 0:
                best = min(best, once(group, wait))
            if comm.all_reduce(np.array([best < PROMPT]), "or")[0]:
                break
    return best


def interrupted(group, wait):
    """Waits for a rank that makes no call, until Ctrl-C. Returns how long the wait went on after it."""
    # A shell starts the commands that it does not wait for without this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sent = []
    threading.Timer(0.25, lambda: (sent.append(time.monotonic()), os.kill(os.getpid(), signal.SIGINT))).start()
    with pytest.raises(KeyboardInterrupt):
        WAITS[wait](group)
    return time.monotonic() - sent[0]


class Enough(Exception):
    pass


def asking(group, wait):
    """Waits for a rank that makes no call. Returns the median of the times between its looks for signals.

    If there are signals all the time, a look is what runs their handler.
    """
    asked = []

    def handler(_signal, _frame):
        asked.append(time.monotonic())
        if asked[-1] - asked[0] > 1:
            raise Enough

    signal.signal(signal.SIGALRM, handler)
    # The first when the wait has begun.
    signal.setitimer(signal.ITIMER_REAL, 0.4, 0.01)
    try:
        with pytest.raises(Enough):
            WAITS[wait](group)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return statistics.median(later - before for before, later in itertools.pairwise(asked))


def after_another_thread(comm):
    def first():
        with pytest.raises(cs.AbortedError):
            comm.barrier()

    thread = threading.Thread(target=first)
    thread.start()
    time.sleep(0.2)  # so that the other thread's call is before this one
    try:
        comm.barrier()
    finally:
        thread.join()


WAITS = {
    "call": lambda comm: comm.barrier(),
    "request": lambda comm: comm.all_reduce(np.ones(3), async_op=True).wait(),
    "call after a request": lambda comm: (comm.barrier(async_op=True), comm.barrier()),
    "call after another thread's": after_another_thread,
    "recv": lambda comm: comm.recv(np.ones(3), 1),
    "split": lambda comm: comm.split(0),
    "join": lambda comm: cs.Communicator(cs.UniqueId(), 0, 2),
}


@pytest.mark.parametrize("once", [interrupted, asking])
@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait_at_once(wait, once):
    best, _ = in_processes(2, best_of, [cs.UniqueId() for _ in range(TRIES)], wait, once)
    assert best < PROMPT


def test_other_threads_run_while_a_call_waits():
    first, second = cs.threads(2)
    counted = []

    def count():
        for number in range(1000):
            counted.append(number)
        second.barrier()

    thread = threading.Thread(target=count)
    thread.start()
    first.barrier()
    thread.join()
    assert len(counted) == 1000


def test_a_timeout_names_the_missing():
    first, second = cs.threads(2)
    with pytest.raises(cs.TimeoutError, match="Timed out: barrier") as caught:
        first.barrier(timeout=0.05)
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.call, caught.value.missing, caught.value.replica) == ("barrier", [1], 1)
    assert caught.value.waited == 0.05
    assert [rank for rank, _ in caught.value.calls] == [1] and "no call" in caught.value.calls[0][1]
    with pytest.raises(cs.AbortedError) as caught:
        second.barrier()
    assert caught.value.replica == 1 and second.is_aborted
    assert (caught.value.call, caught.value.lost) == ("barrier", False)
    assert "deadline" in caught.value.reason and [rank for rank, _ in caught.value.calls] == [0, 1]
    first, second = cs.threads(2)
    first.timeout = 0.05
    assert first.timeout == 0.05
    with pytest.raises(cs.TimeoutError):
        first.barrier()


def test_a_split_has_the_timeout_of_its_group():
    def rank(comm):
        comm.timeout = 7
        return comm.split(0, timeout=3).timeout

    assert cs.run(2, rank) == [7, 7]


def test_an_abort_ends_a_wait():
    first, second = cs.threads(2)
    threading.Timer(0.1, second.abort).start()
    with pytest.raises(cs.AbortedError) as caught:
        first.barrier()
    assert (caught.value.replica, caught.value.call, caught.value.calls) == (1, "barrier", [])
    assert "failed" in caught.value.reason and not caught.value.lost


def test_a_closed_rank_is_named():
    first, second = cs.threads(2)
    second.close()
    with pytest.raises(cs.LostError) as caught:
        first.barrier()
    assert (caught.value.call, caught.value.replica, caught.value.lost) == ("barrier", 1, False)
    assert "no call" in caught.value.last


def test_an_exception_of_one_rank_frees_the_others():
    def rank(comm):
        if comm.rank == 1:
            raise KeyError("mine")
        comm.barrier()

    begin = time.monotonic()
    with pytest.raises(KeyError, match="mine") as caught:
        cs.run(3, rank)
    assert time.monotonic() - begin < 5
    assert any(entry.name == "rank" for entry in caught.traceback)


def leaves(comm):
    comm.barrier()
    if comm.rank == 1:
        os._exit(3)
    with pytest.raises(cs.LostError) as caught:
        comm.all_reduce(np.ones(10))
    assert caught.value.lost and "barrier" in (caught.value.last or str(caught.value.calls))
    return caught.value.replica


def test_an_exited_rank_is_named():
    processes = Processes(3, leaves)
    assert sorted(processes.result()[:2] for _ in range(2)) == [(0, 1), (2, 1)]


def killed(comm, how):
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), how)
    try:
        comm.all_reduce(np.ones(100_000), timeout=2)
    except cs.Error as error:
        return type(error).__name__, error.replica, getattr(error, "missing", None)
    return "no error"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_rank_is_named(how):
    processes = Processes(3, killed, how)
    ended = sorted(processes.result()[:2] for _ in range(2))
    kinds = {"LostError"} if how == signal.SIGKILL else {"TimeoutError", "AbortedError"}
    for rank, (kind, culprit, _) in ended:
        assert rank != 1 and kind in kinds and culprit == 1, ended
    for process in processes.processes:
        process.kill()


def in_a_fork(calls):
    """Makes calls in a forked child. Returns what each returned, or the text of its exception."""

    def child(connection):
        told = []
        for call in calls:
            try:
                told.append(call())
            except Exception as error:
                told.append(f"{type(error).__name__}: {error}")
        connection.send(told)

    mine, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(other,))
    process.start()
    other.close()
    assert mine.poll(20)
    told = mine.recv()
    process.join(20)
    assert process.exitcode == 0
    return told


def are_refused(told):
    return all("RuntimeError" in str(text) and "fork" in str(text) for text in told)


def fork_afterwards(comm):
    """A child that is forked from a rank makes no call, and harms nobody."""
    told = in_a_fork([comm.barrier, lambda: comm.all_reduce(np.ones(2)), lambda: comm.send(np.ones(1), 0), comm.close])
    assert are_refused(told[:3]) and told[3] is None, told
    return float(comm.all_reduce(np.ones(1))[0])


def fork_with_requests(comm):
    """A child uses neither memory that the ranks share, nor requests."""
    # A block that is kept: the child does not have its pages.
    comm.empty(5000).fill(0)
    comm.send(np.ones(1), 1 - comm.rank)
    comm.recv(np.empty(1), 1 - comm.rank)
    if comm.rank == 1:
        comm.recv(np.empty(1), 0)
    request = comm.all_reduce(np.ones(3), async_op=True)
    if comm.rank == 0:
        told = in_a_fork([
            lambda: comm.empty(5000).fill(1),
            request.done,
            lambda: request.source,
            lambda: request.add_done_callback(print),
            request.exception,
            request.wait,
            lambda: comm.all_reduce(np.ones(2)),
            lambda: comm.split(0),
            comm.abort,
            lambda: comm.is_aborted,
        ])  # fmt: skip
        assert are_refused(told[:-2]) and told[-2:] == [None, False], told
        assert in_a_fork([lambda: repr(request), lambda: raises_within(comm)]) == ["Request(done=?)", "ValueError: mine"]
        comm.send(np.ones(1), 1, async_op=True).wait()
    request.wait()
    return float(comm.all_reduce(np.ones(1))[0])


def raises_within(comm):
    with comm:
        raise ValueError("mine")


@pytest.mark.parametrize("function", [fork_afterwards, fork_with_requests])
def test_a_fork_makes_no_call(function):
    assert in_processes(2, function) == [2, 2]


def test_a_callback_is_called_once():
    first, second = cs.threads(2)
    called = threading.Event()
    told = []
    request = first.all_reduce(np.ones(2), async_op=True)
    request.add_done_callback(lambda error: (told.append(error), called.set()))
    assert not request.done() and not request.wait(timeout=0.01)
    second.all_reduce(np.ones(2))
    assert called.wait(10) and request.wait()
    request.add_done_callback(told.append)
    assert told == [None, None]
    first.barrier(async_op=True, timeout=0.05).add_done_callback(told.append)
    assert isinstance(first.barrier(async_op=True).exception(), cs.Error)
    assert isinstance(told[2], cs.TimeoutError)


def test_thousands_of_calls_of_several_threads_take_turns():
    comms = cs.threads(2)
    totals = []

    def rank(comm):
        data = np.zeros(100)
        requests = []
        for number in range(2000):
            if number % 3:
                requests.append(comm.all_reduce(np.full(10, number), async_op=True))
            else:
                comm.all_reduce(data)
        assert all(request.wait() for request in requests)
        totals.append(sum(int(request.result[0]) for request in requests))

    threads = [threading.Thread(target=rank, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [2 * sum(number for number in range(2000) if number % 3)] * 2


def test_an_exit_in_the_middle_of_a_started_call_does_not_hang():
    code = "import consonance as cs, numpy as np; c = cs.threads(2)[0]; c.all_reduce(np.ones(3), async_op=True)"
    done = subprocess.run([sys.executable, "-c", code], timeout=30, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_message_does_not_wait_for_started_calls():
    def rank(comm):
        # Rank 1 makes its call after the message.
        if comm.rank == 1:
            comm.recv(np.empty(1), 0)
        request = comm.all_reduce(np.ones(1), async_op=True)
        if comm.rank == 0:
            comm.send(np.ones(1), 1)
        return request.wait() and float(request.result[0])

    assert cs.run(2, rank) == [2, 2]


def many_groups(comm, ids, folder):
    def make(index):
        with cs.Communicator(ids[index], comm.rank, comm.size) as group:
            group.all_reduce(np.ones(3))

    return things_around(make, folder)


def test_a_thousand_groups_leave_nothing(tmp_path):
    for before, after in in_processes(2, many_groups, [cs.UniqueId() for _ in range(1020)], tmp_path):
        leave_nothing(before, after)
