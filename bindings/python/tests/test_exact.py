"""Exact sums and means are those of `math.fsum` and of fractions, for any number of ranks."""

import math
from fractions import Fraction

import numpy as np
import pytest
from conftest import in_processes

import consonance as cs


def own(rank, count, dtype="float64"):
    """Returns numbers of which plain sums lose digits."""
    values = np.random.default_rng(rank).standard_normal(count) * 10.0 ** (16 * (rank % 2))
    return values.astype(dtype)


def right(size, count, dtype, op):
    """Returns the sums or means as fractions, rounded once."""
    columns = zip(*(own(rank, count, dtype).tolist() for rank in range(size)))
    if dtype == "float64" and op == "sum":
        return [math.fsum(column) for column in columns]
    sums = [sum(map(Fraction, column)) / (size if op == "mean" else 1) for column in columns]
    return [float(value) if dtype == "float64" else nearest_f32(value) for value in sums]


def nearest_f32(value):
    """Rounds a fraction to f32 once: `float` would round it before."""
    near = np.float32(float(value))
    around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return float(min(around, key=lambda other: (abs(Fraction(float(other)) - value), int(other.view("u4")) % 2)))


def reduce_all(comm, dtype, op, expected):
    """Makes the call at once and started, apart and in place."""
    for starts in False, True:

        def end(result):
            if not starts:
                return result
            result.wait()
            return result.result

        data = own(comm.rank, len(expected), dtype)
        assert end(comm.all_reduce_exact(data, op, async_op=starts)).tolist() == expected
        assert data.tolist() == own(comm.rank, len(expected), dtype).tolist()
        assert end(comm.all_reduce_exact(data, op, out=data, async_op=starts)) is data
        assert data.tolist() == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_results_are_those_of_exact_arithmetic(dtype, op):
    for size in 1, 2, 3, 5:
        for count in 0, 1, 1000:
            cs.run(size, reduce_all, dtype, op, right(size, count, dtype, op))


def test_processes_have_the_same_bits_as_threads():
    in_processes(3, reduce_all, "float64", "mean", right(3, 1000, "float64", "mean"))


def test_plain_sums_differ():
    parts = [1e16, 1.0, -1e16]
    assert cs.run(3, lambda comm: comm.all_reduce(np.array([parts[comm.rank]])).tolist()) == [[0]] * 3
    assert cs.run(3, lambda comm: comm.all_reduce_exact(np.array([parts[comm.rank]])).tolist()) == [[1]] * 3


def test_infinities_and_nans_have_results():
    inf, nan = math.inf, math.nan
    rows = [[nan, 1, 2], [inf, 1, -1e300], [inf, -inf, 1], [1e308, 1e308, -1e308]]

    def call(comm):
        return comm.all_reduce_exact(np.array([row[comm.rank] for row in rows]))

    for result in cs.run(3, call):
        np.testing.assert_array_equal(result, [nan, inf, nan, 1e308])


def test_arrays_of_any_layout_lists_and_complex_numbers():
    def call(comm):
        value = [1e16, 1.0, -1e16][comm.rank]
        strided = np.full((3, 4), value)[:, ::2]
        first, second = comm.all_reduce_exact([strided, np.full(1, value)])
        return strided.shape == first.shape, first.tolist(), second, comm.all_reduce_exact(np.array([value - value * 1j]))

    for same_shape, first, second, pair in cs.run(3, call):
        assert same_shape and first == [[1, 1]] * 3 and second == [1] and pair == [1 - 1j]


def errors(function):
    def rank(comm):
        try:
            function(comm)
        except Exception as error:
            assert comm.all_reduce_exact(np.ones(1)).tolist() == [2], "the group works"
            return error
        pytest.fail("no error")

    return cs.run(2, rank)


@pytest.mark.parametrize(
    "odd,argument,expected,found",
    [
        (lambda comm: comm.all_reduce_exact(np.ones(5)), "count", "4", "5"),
        (lambda comm: comm.all_reduce_exact(np.ones(4, "f")), "dtype", "f64", "f32"),
        (lambda comm: comm.all_reduce_exact(np.ones(4), "mean"), "op", "sum", "mean"),
        (lambda comm: comm.all_reduce(np.ones(4)), "call", "all_reduce_exact", "all_reduce"),
    ],
)
def test_another_call_is_a_mismatch_on_all_ranks(odd, argument, expected, found):
    for error in errors(lambda comm: odd(comm) if comm.rank else comm.all_reduce_exact(np.ones(4))):
        assert isinstance(error, cs.MismatchError)
        assert (error.call, error.replica, error.argument) == ("all_reduce_exact", 1, argument)
        assert (error.expected, error.found) == (expected, found)


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize(
    "data,op,argument,expected,found",
    [
        (np.ones(4), "max", "op", "sum or mean", "max"),
        (np.ones(4, int), "sum", "data", "elements of f32 or f64", "elements of i64"),
        (np.ones(4, "e"), "sum", "data", "elements of f32 or f64", "elements of f16"),
    ],
)
def test_bad_arguments_are_refused_and_a_mismatch_on_peers(data, op, argument, expected, found, starts):
    def call(comm):
        request = comm.all_reduce_exact(*((data, op) if comm.rank else (np.ones(4),)), async_op=starts)
        if starts:
            request.wait()

    peer, refused = errors(call)
    assert isinstance(peer, cs.MismatchError) and peer.replica == 1
    assert isinstance(refused, ValueError)
    assert (refused.call, refused.argument) == ("all_reduce_exact", argument)
    assert (refused.expected, refused.found) == (expected, found)
