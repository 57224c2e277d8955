"""Every collective, with every element type and layout, against plain arithmetic."""

import threading

import numpy as np
import pytest
from conftest import in_processes

import consonance as cs

DTYPES = "? b h i q B H I Q e f d F D".split()
INTEGERS = "b h i q B H I Q".split()
SIZES = [1, 2, 3]


def packed(array):
    return array.copy()


def gaps(array):
    room = np.zeros((array.size, 2), array.dtype)
    view = room[:, 0]
    view[:] = array
    return view


def transposed(array):
    # The elements in the array's order, with strides that grow.
    if array.size % 2:
        return gaps(array)
    view = np.empty((2, array.size // 2), array.dtype).T.reshape(-1, 2).T[:, ::-1]
    view[:] = array.reshape(view.shape)
    return view


def misaligned(array):
    room = np.zeros(array.nbytes + 1, np.uint8)[1:]
    view = room.view(array.dtype) if array.dtype.itemsize == 1 else np.frombuffer(room.data, array.dtype)
    view[:] = array
    return view


LAYOUTS = [packed, gaps, transposed, misaligned]


def data(rank, count, dtype):
    """Small numbers, which every order sums exactly."""
    if dtype == "?":
        return (np.arange(count) + rank) % 3 == 0
    return ((np.arange(count) * 3 + rank * 5) % 7).astype(dtype)


def reduced(op, arrays):
    if op == "mean":
        # Part by part: a division of complex numbers rounds in another way.
        parts = {"F": "f", "D": "d"}.get(arrays[0].dtype.char, arrays[0].dtype.char)
        total = sum(array.view(parts).astype(np.float64) for array in arrays)
        return (total / len(arrays)).astype(parts).view(arrays[0].dtype)
    functions = {
        "sum": np.add,
        "product": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    result = arrays[0]
    for array in arrays[1:]:
        result = functions[op](result, array)
    return result


def ops(dtype):
    if dtype in "FD":
        return ["sum", "mean"]
    if dtype in "efd":
        return ["sum", "mean", "product", "min", "max"]
    return ["sum", "product", "min", "max", "and", "or", "xor"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reductions(size, dtype, layout):
    count = 6 * size
    inputs = [data(rank, count, dtype) for rank in range(size)]

    def rank(comm):
        own, n = inputs[comm.rank], comm.rank
        block = slice(n * 6, n * 6 + 6)
        for op in ops(dtype):
            expected = reduced(op, inputs).reshape(-1)
            inplace = layout(own)
            assert comm.all_reduce(inplace, op, out=inplace) is inplace
            np.testing.assert_array_equal(inplace.reshape(-1), expected)
            out = layout(np.zeros_like(own))
            assert comm.all_reduce(layout(own), op, out=out) is out
            np.testing.assert_array_equal(out.reshape(-1), expected)
            result = comm.reduce(layout(own), op, root=size - 1)
            assert (result is None) == (n != size - 1)
            if result is not None:
                np.testing.assert_array_equal(result.reshape(-1), expected)
            part = layout(np.zeros(6, own.dtype))
            comm.reduce_scatter(layout(own), op, out=part)
            np.testing.assert_array_equal(part.reshape(-1), expected[block])
            inplace = own.copy()
            comm.reduce_scatter(inplace, op, out=inplace)
            np.testing.assert_array_equal(inplace[block], expected[block])

    cs.run(size, rank)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_moves(size, dtype, layout):
    inputs = [data(rank, 6, dtype) for rank in range(size)]
    wide = [data(rank, 6 * size, dtype) for rank in range(size)]
    whole = np.concatenate(inputs)

    def rank(comm):
        n, root = comm.rank, size - 1
        sent = layout(inputs[n])
        comm.broadcast(sent, root=root)
        np.testing.assert_array_equal(sent.reshape(-1), inputs[root])
        out = layout(np.zeros_like(whole))
        comm.all_gather(layout(inputs[n]), out=out)
        np.testing.assert_array_equal(out.reshape(-1), whole)
        inplace = np.zeros_like(whole)
        inplace[n * 6 : n * 6 + 6] = inputs[n]
        comm.all_gather(inplace, out=inplace)
        np.testing.assert_array_equal(inplace, whole)
        view = np.zeros_like(whole)
        view[n * 6 : n * 6 + 6] = inputs[n]
        comm.all_gather(view[n * 6 : n * 6 + 6], out=view)
        np.testing.assert_array_equal(view, whole)
        out = layout(np.zeros_like(whole)) if n == root else None
        result = comm.gather(layout(inputs[n]), root=root, out=out)
        assert (result is None) == (n != root)
        if result is not None:
            np.testing.assert_array_equal(result.reshape(-1), whole)
        part = layout(np.zeros(6, whole.dtype))
        comm.scatter(layout(wide[root]) if n == root else None, root=root, out=part)
        np.testing.assert_array_equal(part.reshape(-1), wide[root][n * 6 : n * 6 + 6])
        expected = np.concatenate([wide[r][n * 6 : n * 6 + 6] for r in range(size)])
        out = layout(np.zeros(6 * size, whole.dtype))
        comm.all_to_all(layout(wide[n]), out=out)
        np.testing.assert_array_equal(out.reshape(-1), expected)
        inplace = layout(wide[n])
        comm.all_to_all(inplace, out=inplace)
        np.testing.assert_array_equal(inplace.reshape(-1), expected)

    cs.run(size, rank)


@pytest.mark.parametrize("size", SIZES)
def test_counts_and_lists(size):
    counts = [rank + 1 for rank in range(size)]

    def rank(comm):
        n = comm.rank
        own = np.full(counts[n], n)
        whole = np.concatenate([np.full(count, rank) for rank, count in enumerate(counts)])
        np.testing.assert_array_equal(comm.all_gather(own, out=np.zeros_like(whole), counts=counts), whole)
        parts = [np.zeros(count, int) for count in counts]
        assert comm.all_gather(own, out=parts) is parts
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        out = np.zeros_like(whole) if n == 0 else None
        result = comm.gather(own, out=out, counts=counts)
        if n == 0:
            np.testing.assert_array_equal(result, whole)
        part = np.zeros(counts[n], int)
        comm.scatter(whole if n == 0 else None, out=part, counts=counts)
        np.testing.assert_array_equal(part, n)
        # This rank sends n + 1 elements to each rank, and receives counts[r] from each rank r.
        sent = np.full((n + 1) * size, n)
        out = comm.all_to_all(sent, out=np.zeros_like(whole), counts=[n + 1] * size, out_counts=counts)
        np.testing.assert_array_equal(out, whole)
        parts = tuple(np.zeros(count, int) for count in counts)
        comm.all_to_all([np.full(n + 1, n) for _ in range(size)], out=parts)
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        # Blocks of different sizes, of which each rank gets its own; also where its result
        # overwrites another block.
        blocks = [np.full(count, 1.5) for count in counts]
        out = comm.reduce_scatter(blocks, "sum", out=np.zeros(counts[n]))
        np.testing.assert_array_equal(out, 1.5 * size)
        blocks = [np.full(count, rank + 1.0) for rank, count in enumerate(counts)]
        out = comm.reduce_scatter(blocks, "sum", out=blocks[-1][: counts[n]])
        np.testing.assert_array_equal(out, (n + 1.0) * size)

    cs.run(size, rank)


def every_call(comm):
    """All collectives between processes, in private and in shared memory, started and not."""
    n, size = comm.rank, comm.size
    expected = sum(np.arange(300_000, dtype=np.float32) * (rank + 1) for rank in range(size))
    for make in (lambda: np.empty(300_000, np.float32), lambda: comm.empty(300_000, "float32")):
        for starts in (False, True):
            array = make()
            array[:] = np.arange(300_000, dtype=np.float32) * (n + 1)
            done = comm.all_reduce(array, out=array, async_op=starts)
            if starts:
                assert isinstance(done, cs.Request) and done.wait() and done.done()
                assert done.exception() is None and done.result is array
            np.testing.assert_array_equal(array, expected)
    several = [np.full(count, n + 1.0) for count in (1, 10, 1000)]
    comm.all_reduce_coalesced(several, "max", out=several)
    assert all((array == size).all() for array in several)
    comm.barrier()
    half = comm.split(n % 2, key=-n)
    assert (half.size, half.rank) == ((size + 1 - n % 2) // 2, (half.size - 1) - n // 2)
    assert comm.split(None) is None
    assert comm.empty((2, 3)).shape == (2, 3)
    assert comm.empty(0, "int8").size == 0
    return float(array.sum())


@pytest.mark.parametrize("size", [2, 3])
def test_processes(size):
    assert len(set(in_processes(size, every_call))) == 1


def test_shared_memory_is_used_again():
    comm = cs.threads(1)[0]
    first, second = comm.empty(100_000), comm.empty(100_000)
    addresses = {first.ctypes.data, second.ctypes.data}
    assert len(addresses) == 2
    part = first[10:20]
    del first
    # A view keeps the memory.
    third = comm.empty(99_999)
    assert third.ctypes.data not in addresses
    del part, second
    assert {comm.empty(100_000).ctypes.data for _ in range(3)} <= addresses
    comm.close()
    third[:] = 1
    assert third.sum() == 99_999


def bits(comm):
    values = np.random.default_rng(comm.rank).standard_normal(10_001).astype(np.float32)
    return comm.all_reduce(values).tobytes()


def test_the_bits_are_the_same_in_threads_and_processes():
    everywhere = set(cs.run(3, bits)) | set(in_processes(3, bits))
    assert len(everywhere) == 1


def test_messages():
    turn = threading.Barrier(3)

    def rank(comm):
        to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        for count in (0, 1, 1000, 1_000_000):
            sent, received = np.full(count, comm.rank, np.int32), np.zeros((count, 2), np.int32)[:, 0]
            request = comm.recv(received, tag=count, async_op=True)
            comm.send(sent, to, count)
            assert request.wait() and request.source == source
            assert (received == source).all()
        for waiting in range(comm.size):
            # Of ranks that all wait in a ring an error may name another one.
            if comm.rank == waiting:
                assert comm.recv(sent, source, 9, async_op=True, timeout=0.05).exception().missing == [source]
            turn.wait(60)
        comm.barrier()

    cs.run(3, rank)


def test_a_list_may_change_while_its_arrays_are_used():
    first, second = cs.threads(2)
    arrays = [np.ones(200_000) for _ in range(3)]
    request = first.all_reduce_coalesced(arrays, out=arrays, async_op=True)
    gathered = [np.zeros(100_000) for _ in range(2)]
    other = first.all_gather(np.full(100_000, 1.0), out=gathered, async_op=True)
    kept = arrays[0]
    arrays.clear()
    gathered.clear()
    # Other arrays take the memory, if it is free.
    others = [np.zeros(200_000) for _ in range(6)]
    second.all_reduce_coalesced([np.ones(200_000) for _ in range(3)])
    second.all_gather(np.full(100_000, 2.0), out=np.zeros(200_000))
    assert request.wait() and other.wait()
    assert (kept == 2).all() and not any(array.any() for array in others)


def test_arrays_of_other_libraries():
    torch = pytest.importorskip("torch")

    def rank(comm):
        tensor = torch.full((3, 4), comm.rank + 1.0).t()
        assert comm.all_reduce(tensor, out=tensor) is tensor and (tensor == 3).all()
        for dtype in (torch.bfloat16, torch.float8_e5m2, torch.bool, torch.complex64, torch.uint16, torch.complex32):
            own = torch.full((4,), comm.rank).to(dtype)
            out = torch.zeros(8).to(dtype)
            comm.all_gather(own, out=out)
            assert out.to(torch.complex64).real.tolist() == [0] * 4 + [1] * 4, dtype
        # A byte of a bool may be any.
        odd = torch.tensor([comm.rank * 2, 0], dtype=torch.uint8).view(torch.bool)
        assert comm.all_reduce(odd).tolist() == [True, False]

    cs.run(2, rank)


def test_arrays_of_jax():
    jax = pytest.importorskip("jax")

    def rank(comm):
        # Arrays of JAX never change: they are read, and refused as `out`.
        out = np.zeros(3, np.float32)
        comm.all_reduce(jax.numpy.full(3, comm.rank + 1.0), out=out)
        assert comm.broadcast(jax.numpy.arange(3) if comm.rank == 0 else np.zeros(3, np.int32)).tolist() == [0, 1, 2]
        with pytest.raises(ValueError, match="read-only"):
            comm.all_reduce(jax.numpy.ones(3), out=jax.numpy.ones(3))
        return out.tolist()

    assert cs.run(2, rank) == [[3.0] * 3] * 2


def test_float8_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def rank(comm):
        out = np.zeros(2, ml_dtypes.float8_e4m3fn)
        comm.all_gather(np.array([comm.rank + 1], ml_dtypes.float8_e4m3fn), out=out)
        assert out.astype(float).tolist() == [1, 2]
        return float(comm.all_reduce(np.ones(3, ml_dtypes.bfloat16))[0])

    assert cs.run(2, rank) == [2, 2]
