"""What calls return: new arrays of the caller's kind without `out`, and `out` itself with it."""

import numpy as np
import pytest

import consonance as cs


def values(rank):
    return np.arange(12.0).reshape(4, 3) + 100 * rank


first, second = values(0), values(1)
summed, all_of = first + second, np.concatenate([first, second])
CALLS = {
    "all_reduce": (lambda comm, data: comm.all_reduce(data), [summed] * 2),
    "all_reduce_exact": (lambda comm, data: comm.all_reduce_exact(data), [summed] * 2),
    "all_reduce_coalesced": (lambda comm, data: comm.all_reduce_coalesced([data])[0], [summed] * 2),
    "reduce": (lambda comm, data: comm.reduce(data), [summed, None]),
    "reduce_scatter": (lambda comm, data: comm.reduce_scatter(data), [summed[:2], summed[2:]]),
    "all_gather": (lambda comm, data: comm.all_gather(data), [all_of] * 2),
    "gather": (lambda comm, data: comm.gather(data), [all_of, None]),
    "all_to_all": (lambda comm, data: comm.all_to_all(data), [all_of[[0, 1, 4, 5]], all_of[[2, 3, 6, 7]]]),
}


def numpy_array(array):
    return np.array(array, np.float32)


def strided_array(array):
    return np.asfortranarray(array, np.float32)


def jax_array(array):
    return pytest.importorskip("jax").numpy.asarray(array, "float32")


def jax_bfloat16(array):
    return pytest.importorskip("jax").numpy.asarray(array, "bfloat16")


def torch_tensor(array):
    torch = pytest.importorskip("torch")
    return torch.tensor(array, dtype=torch.float32)


KINDS = [numpy_array, strided_array, jax_array, jax_bfloat16, torch_tensor]
# Exact sums are those of f32 and f64.
CASES = [(call, make) for call in CALLS for make in KINDS if (call, make) != ("all_reduce_exact", jax_bfloat16)]


def plain(array):
    """The numbers of an array of any kind."""
    return np.asarray(array).astype(np.float64)


@pytest.mark.parametrize(("call", "make"), CASES)
def test_without_out_a_result_is_a_new_array_of_the_callers_kind(call, make):
    function, expected = CALLS[call]
    ours = make(first)  # skips here, and not in a thread

    def rank(comm):
        data = make(values(comm.rank))
        result = function(comm, data)
        np.testing.assert_array_equal(plain(data), plain(make(values(comm.rank))))
        assert result is None or (type(result) is type(ours) and result.dtype == ours.dtype)
        return result

    for result, numbers in zip(cs.run(2, rank), expected, strict=True):
        assert (result is None) == (numbers is None)
        if numbers is not None:
            np.testing.assert_array_equal(plain(result), plain(make(numbers)))


@pytest.mark.parametrize("make", KINDS)
def test_the_root_of_a_scatter_may_get_a_new_array(make):
    ours = make(first)

    def rank(comm):
        if comm.rank == 1:
            return comm.scatter(None, out=np.empty((2, 3), getattr(ours, "numpy", lambda: ours)().dtype))
        result = comm.scatter(ours)
        assert type(result) is type(ours) and result.dtype == ours.dtype
        return result

    for result, numbers in zip(cs.run(2, rank), [first[:2], first[2:]], strict=True):
        np.testing.assert_array_equal(plain(result), plain(make(numbers)))


@pytest.mark.parametrize("make", KINDS)
def test_the_result_of_a_request_is_a_new_array_of_the_callers_kind(make):
    ours = make(first)

    def rank(comm):
        request = comm.all_gather(make(values(comm.rank)), async_op=True)
        request.wait()
        assert type(request.result) is type(ours) and request.result is request.result
        return plain(request.result)

    for result in cs.run(2, rank):
        np.testing.assert_array_equal(result, plain(make(all_of)))


def test_a_request_for_a_new_array_of_jax_has_none_before_its_end_and_after_an_error():
    jax = pytest.importorskip("jax")
    one, _two = cs.threads(2)
    request = one.all_reduce(jax.numpy.ones(3), async_op=True, timeout=0.2)
    assert request.result is None
    assert isinstance(request.exception(), cs.TimeoutError) and request.result is None


def test_with_out_the_result_is_out():
    def rank(comm):
        n, data = comm.rank, values(comm.rank)
        for name, out in (
            ("all_reduce", np.empty((4, 3))),
            ("all_gather", np.empty(24)),
            ("all_to_all", np.empty((4, 3))),
            ("reduce_scatter", np.empty(6)),
        ):
            assert getattr(comm, name)(data, out=out) is out
            np.testing.assert_array_equal(out.reshape(-1), CALLS[name][1][n].reshape(-1))
        outs = [np.empty((4, 3))]
        assert comm.all_reduce_coalesced([data], out=outs) is outs
        np.testing.assert_array_equal(outs[0], summed)
        np.testing.assert_array_equal(data, values(n))

    cs.run(2, rank)


def test_out_equal_to_data_is_in_place():
    def rank(comm):
        n = comm.rank
        data = values(n)
        assert comm.all_reduce(data, out=data) is data
        np.testing.assert_array_equal(data, summed)
        data = [values(n), values(n)]
        assert comm.all_reduce_coalesced(data, out=data) is data
        np.testing.assert_array_equal(data[1], summed)
        data = values(n)
        comm.reduce(data, out=data)
        np.testing.assert_array_equal(data, summed if n == 0 else second)
        data = values(n)
        comm.reduce_scatter(data, out=data)
        np.testing.assert_array_equal(data[2 * n : 2 * n + 2], summed[2 * n : 2 * n + 2])
        data = np.full((2, 3), n)
        comm.all_gather(data, out=data)
        np.testing.assert_array_equal(data, [[0] * 3, [1] * 3])
        data = values(n)
        comm.all_to_all(data, out=data)
        np.testing.assert_array_equal(data, CALLS["all_to_all"][1][n])

    cs.run(2, rank)


def test_lists_give_lists_or_the_part_of_this_rank():
    def rank(comm):
        n = comm.rank
        one, two = comm.all_reduce([np.ones(2), np.full((1, 3), float(n))])
        assert one.tolist() == [2, 2] and two.tolist() == [[1] * 3]
        assert comm.reduce_scatter([np.ones(2), np.ones((3, 1))]).tolist() == [[2, 2], [[2]] * 3][n]
        parts = comm.all_to_all([np.array([n, 5]), np.array([n, 6])])
        assert [part.tolist() for part in parts] == [[0, 5 + n], [1, 5 + n]]
        part = comm.scatter([np.ones((1, 2)), np.ones(2)] if n == 0 else None, out=None if n == 0 else np.empty(2))
        assert part.shape == [(1, 2), (2,)][n]

    cs.run(2, rank)


def test_counts_give_rows():
    def rank(comm):
        n = comm.rank
        data = np.full((n + 1, 2), n)
        whole = comm.all_gather(data, counts=[2, 4])
        assert whole.tolist() == [[0, 0], [1, 1], [1, 1]]
        gathered = comm.gather(data, root=1, counts=[2, 4])
        assert gathered is None if n == 0 else gathered.tolist() == whole.tolist()
        out = None if n == 1 else np.empty((1, 2), int)
        part = comm.scatter(whole if n == 1 else None, root=1, out=out, counts=[2, 4])
        assert part.tolist() == data.tolist()
        moved = comm.all_to_all(np.full((3, 2), n), counts=[2, 4], out_counts=[2 * n + 2] * 2)
        assert moved.tolist() == [[0, 0]] * (n + 1) + [[1, 1]] * (n + 1)

    cs.run(2, rank)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_arrays_without_elements(library):
    zeros = pytest.importorskip(library).zeros

    def rank(comm):
        nothing = zeros((0,))
        parts = [zeros((0,)), zeros((0,))] if comm.rank == 0 else None
        assert comm.scatter(parts, out=nothing) is nothing
        assert comm.scatter(nothing if comm.rank == 0 else None, out=nothing) is nothing
        results = [
            comm.all_reduce(nothing),
            comm.all_gather(zeros((3, 0))),
            comm.all_gather(zeros((3, 0)), counts=[0, 0]),
            comm.reduce_scatter(zeros((0, 2))),
            comm.all_to_all(nothing),
            comm.gather(nothing, root=1),
        ]
        return [None if result is None else tuple(result.shape) for result in results]

    shapes = [(0,), (6, 0), (0, 0), (0, 2), (0,)]
    assert cs.run(2, rank) == [[*shapes, None], [*shapes, (0,)]]


def test_arrays_without_dimensions():
    def rank(comm):
        own = np.array(comm.rank + 1.0)
        assert comm.all_reduce(own).shape == () and comm.all_reduce(own) == 3
        assert comm.all_gather(own).tolist() == [1, 2]

    cs.run(2, rank)


def test_equal_numbers_of_elements_may_have_other_shapes():
    def rank(comm):
        return comm.all_reduce(np.arange(6).reshape((2, 3) if comm.rank else (3, 2))).tolist()

    assert cs.run(2, rank) == [[[0, 2], [4, 6], [8, 10]], [[0, 2, 4], [6, 8, 10]]]


def test_a_broadcast_of_jax_gives_a_new_array_where_it_would_write():
    jax = pytest.importorskip("jax")

    def rank(comm):
        own = jax.numpy.full(3, comm.rank)
        result = comm.broadcast(own, root=1)
        assert own.tolist() == [comm.rank] * 3 and isinstance(result, jax.Array)
        assert (result is own) == (comm.rank == 1)
        return result.tolist()

    assert cs.run(2, rank) == [[1] * 3] * 2


def test_a_call_within_jit_is_refused():
    jax = pytest.importorskip("jax")
    comm = cs.threads(1)[0]
    with pytest.raises(TypeError) as caught:
        jax.jit(comm.all_reduce)(jax.numpy.ones(3))
    assert (caught.value.argument, caught.value.expected) == ("data", "an array with values, outside jax.jit")


def test_arrays_of_a_library_without_a_namespace_need_out():
    class Exported:
        """An array of a library with DLPack, and without `__array_namespace__`."""

        def __init__(self, array):
            self.array = array

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

    comm = cs.threads(1)[0]
    with pytest.raises(ValueError) as caught:
        comm.all_reduce(Exported(np.ones(2)))
    assert (caught.value.argument, caught.value.found) == ("out", "None, with data of Exported")
    assert comm.all_reduce(Exported(np.ones(2)), out=np.empty(2)).tolist() == [1, 1]
