"""Leaves on any number of ranks have the bits of as many ranks with a leaf each."""

import os
import threading

import numpy as np
import pytest
from conftest import in_processes

import consonance as cs

LEAVES = 8
DTYPES = ["float32", "float16", "float64", "complex64", "int32", "bool"]


def leaf(number, dtype, count):
    """Returns numbers whose sum depends on the order."""
    values = np.random.default_rng(number).standard_normal(count) * 10.0 ** (number % 4)
    return (values > 0.5) if dtype == "bool" else values.astype(dtype)


def expected(dtype, op, count):
    return cs.run(LEAVES, lambda comm: comm.all_reduce(leaf(comm.rank, dtype, count), op))[0].tobytes()


def reduce_all(comm, dtype, op, count, right):
    """Makes each reduction, at once and started, and compares the bits."""
    start, stop = (LEAVES * rank // comm.size for rank in (comm.rank, comm.rank + 1))
    sum = cs.Accumulator(comm, leaf(0, dtype, count), range(start, stop), LEAVES, op)

    def last():
        for number in range(start, stop - 1):
            sum.add(leaf(number, dtype, count))
        assert sum.added == max(stop - start - 1, 0)
        return leaf(stop - 1, dtype, count)

    block = count // comm.size * comm.rank, count // comm.size * (comm.rank + 1)
    own = np.frombuffer(right, leaf(0, dtype, 1).dtype)[slice(*block)].tobytes()
    for starts in False, True:

        def end(result):
            if not starts:
                return result
            result.wait()
            return result.result

        assert end(sum.all_reduce(last(), async_op=starts)).tobytes() == right
        data = last()
        assert end(sum.all_reduce(data, out=data, async_op=starts)) is data and data.tobytes() == right
        reduced = end(sum.reduce(last(), root=1, async_op=starts))
        assert (reduced is None) if comm.rank != 1 else (reduced.tobytes() == right)
        assert end(sum.reduce_scatter(last(), async_op=starts)).tobytes() == own
        data = last()
        end(sum.reduce_scatter(data, out=data, async_op=starts))
        assert data[slice(*block)].tobytes() == own


@pytest.mark.parametrize("dtype", DTYPES)
def test_fewer_ranks_have_the_bits_of_a_rank_for_each_leaf(dtype):
    op = "mean" if dtype.startswith(("float", "complex")) else "sum"
    for count in 6, 30_000:
        right = expected(dtype, op, count)
        for size in 2, 3:
            cs.run(size, reduce_all, dtype, op, count, right)


def test_processes_have_the_same_bits_as_threads():
    in_processes(3, reduce_all, "float32", "mean", 30_000, expected("float32", "mean", 30_000))


def test_a_rank_without_leaves_gets_the_result():
    def rank(comm):
        own = [range(0, 2), range(2, 2), range(2, 3)][comm.rank]
        sum = cs.Accumulator(comm, np.empty(2), own, 3)
        if comm.rank == 0:
            sum.add(np.ones(2))
        return sum.all_reduce(np.full(2, comm.rank + 1.0))

    for result in cs.run(3, rank):
        assert result.tolist() == [5, 5]


def test_leaves_need_not_be_in_one_piece():
    sum = cs.Accumulator(cs.threads(1)[0], np.empty((2, 3)), range(3), 3)
    sum.add(np.arange(12.0).reshape(2, 6)[:, ::2])
    sum.add([np.ones(2), np.ones(4)])
    assert sum.all_reduce(np.zeros((3, 2)).T).tolist() == [[1, 3, 5], [7, 9, 11]]


def test_a_bad_leaf_is_refused_and_nothing_is_added():
    sum = cs.Accumulator(cs.threads(1)[0], np.empty(4, "f"), range(2), 2)
    for bad, argument, wanted, found in [
        (np.ones(3, "f"), "leaf", "4 elements", "3 elements"),
        (np.ones(4), "leaf", "elements of f32, as in the accumulator", "f64"),
        (np.ones(2, "F"), "leaf", "elements of f32, as in the accumulator", "c64"),
    ]:
        with pytest.raises(ValueError) as raised:
            sum.add(bad)
        assert (raised.value.call, raised.value.argument) == ("add", argument)
        assert (raised.value.expected, raised.value.found) == (wanted, found)
    with pytest.raises(TypeError):
        sum.add("text")
    assert sum.added == 0
    sum.add(np.ones(4, "f"))
    with pytest.raises(ValueError) as raised:
        sum.add(np.ones(4, "f"))
    assert (raised.value.argument, raised.value.found) == ("leaves", "2 leaves")
    with pytest.raises(ValueError) as raised:
        sum.all_reduce(np.ones(5, "f"))
    assert (raised.value.argument, raised.value.expected) == ("data", "4 elements")
    assert sum.added == 1
    sum.clear()
    with pytest.raises(ValueError) as raised:
        sum.all_reduce(np.ones(4, "f"))
    assert (raised.value.argument, raised.value.found) == ("leaves", "0 leaves")
    assert sum.added == 0


def errors(size, function):
    def rank(comm):
        try:
            function(comm)
        except Exception as error:
            comm.barrier()
            return error
        pytest.fail("no error")

    return cs.run(size, rank)


def test_a_gap_between_runs_is_a_mismatch_on_all_ranks():
    def call(comm):
        own = [range(0, 1), range(2, 3), range(3, 4)][comm.rank]
        cs.Accumulator(comm, np.empty(2), own, 4).all_reduce(np.ones(2))

    for error in errors(3, call):
        assert isinstance(error, cs.MismatchError)
        assert (error.replica, error.argument, error.found) == (1, "leaves", "2..3")


@pytest.mark.parametrize(
    "change,kind,argument",
    [
        ({"leaves": range(1, 5)}, ValueError, "leaves"),
        ({"leaves": range(0, 2, 2)}, ValueError, "leaves"),
        ({"leaves": range(-1, 1)}, ValueError, "leaves"),
        ({"leaves": (1, 2)}, TypeError, "leaves"),
        ({"of": 0}, ValueError, "of"),
        ({"of": "many"}, TypeError, "of"),
        ({"op": "average"}, ValueError, "op"),
        ({"like": 5}, TypeError, "like"),
    ],
)
def test_a_bad_accumulator_is_refused_and_a_mismatch_on_peers(change, kind, argument):
    def call(comm):
        arguments = {"like": np.empty(2), "leaves": range(comm.rank, comm.rank + 1), "of": 2}
        if comm.rank == 1:
            arguments |= change
        cs.Accumulator(comm, **arguments).all_reduce(np.ones(2))

    peer, own = errors(2, call)
    assert isinstance(own, kind) and own.argument == argument
    assert isinstance(peer, cs.MismatchError) and peer.replica == 1


def test_a_mean_of_integers_is_refused():
    sum = cs.Accumulator(cs.threads(1)[0], np.empty(2, int), range(1), 1, "mean")
    with pytest.raises(ValueError):
        sum.all_reduce(np.ones(2, int))


def test_a_thread_sees_the_leaves_when_the_call_of_another_ends():
    ranks = cs.threads(2)
    sums = [cs.Accumulator(comm, np.empty(2), range(comm.rank, comm.rank + 1), 2) for comm in ranks]
    results = []
    call = threading.Thread(target=lambda: results.append(sums[0].all_reduce(np.ones(2))))
    call.start()
    seen = threading.Thread(target=lambda: results.append(sums[0].added))
    seen.start()
    assert sums[1].all_reduce(np.ones(2)).tolist() == [2, 2]
    call.join(20)
    seen.join(20)
    assert len(results) == 2 and 0 in [result for result in results if isinstance(result, int)]


def test_an_accumulator_ends_with_its_communicator():
    comm = cs.threads(1)[0]
    sum = cs.Accumulator(comm, np.empty(2), range(2), 2)
    comm.close()
    for call in (lambda: sum.add(np.ones(2)), lambda: sum.added, sum.clear, lambda: sum.all_reduce(np.ones(2))):
        with pytest.raises(RuntimeError):
            call()


def test_a_fork_does_not_have_the_leaves():
    sum = cs.Accumulator(cs.threads(1)[0], np.empty(2), range(2), 2)
    sum.add(np.ones(2))
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: sum.add(np.ones(2)), lambda: sum.added, sum.clear, lambda: sum.all_reduce(np.ones(2))):
            try:
                call()
            except RuntimeError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    assert sum.all_reduce(np.ones(2)).tolist() == [2, 2]
