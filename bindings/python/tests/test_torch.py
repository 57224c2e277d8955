"""PyTorch's calls on this backend: against gloo, where gloo is right, and else against plain arithmetic."""

import itertools
import multiprocessing
import os
import queue
import signal
import time
import traceback
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from conftest import leave_nothing, things_around  # noqa: E402
from torch._C._distributed_c10d import AllgatherOptions, GatherOptions, ReduceScatterOptions  # noqa: E402

import consonance.torch  # noqa: E402, F401  Before PyTorch 2.14 this registers the backend.
import torch._dynamo  # noqa: E402, F401  DDP imports it: so it is imported once, and not by each rank.
from consonance.torch._group import _IS_BACKEND  # noqa: E402

# Ranks are forked, and a fork cannot use the threads of its parent.
torch.set_num_threads(1)
# In a fork, the first call of PyTorch's thread pool replaces it without a lock: a second thread may
# find none ("Invalid thread pool!"). So that call is made before there is a second thread.
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def _work(function, rank, size, path, seconds, results, args):
    try:
        torch.manual_seed(7)
        dist.init_process_group(
            "gloo", init_method=f"file://{path}", rank=rank, world_size=size, timeout=timedelta(seconds=30)
        )
        ours = dist.new_group(backend="consonance", timeout=timedelta(seconds=seconds))
        results.put((rank, function(ours, *args), None))
        if dist.is_initialized():
            dist.destroy_process_group(ours)
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
    results.close()
    results.join_thread()
    # The test ends before the libraries' own work at exit.
    os._exit(0)


def start(size, path, function, *args, seconds=20):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [
        context.Process(target=_work, args=(function, rank, size, path, seconds, results, args))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    return processes, results


def ranks(size, tmp_path, function, *args):
    """Runs a function in forked ranks, which have both backends. Returns what they returned, in rank order."""
    processes, results = start(size, tmp_path / "store", function, *args)
    try:
        ended = sorted((results.get(timeout=120) for _ in processes), key=lambda result: result[0])
    except queue.Empty:
        pytest.fail("a rank hangs")
    finally:
        for process in processes:
            process.join(20)
    failed = [text for _, _, text in ended if text]
    assert not failed, "\n".join(failed)
    return [returned for _, returned, _ in ended]


# All that this version of PyTorch has: they move, and are not summed.
FLOAT8 = [getattr(torch, name) for name in dir(torch) if name.startswith("float8_")]
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128, *FLOAT8,
]  # fmt: skip
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]


def packed(tensor):
    return tensor.clone()


def gaps(tensor):
    room = torch.zeros(*tensor.shape, 2, dtype=torch.uint8).to(tensor.dtype)
    room[..., 0] = tensor
    return room[..., 0]


def transposed(tensor):
    return tensor.t().contiguous().t()


LAYOUTS = [packed, gaps, transposed]


# Among them are zeros, infinities and what is no number in each type of 8 bits.
BYTES = torch.tensor([0x00, 0x7F, 0x80, 0xFF, 0x7C, 0xFC, 0x3A, 0xC5, 0x01], dtype=torch.uint8)


def numbers(rank, dtype, rows, columns=3):
    """Small numbers, which every order sums exactly; in types that are not summed, bytes."""
    places = (torch.arange(rows * columns) * 3 + rank * 5).reshape(rows, columns)
    if dtype in FLOAT8:
        return BYTES[(places + rank) % len(BYTES)].view(dtype)
    if dtype.is_complex:
        return torch.stack([places % 4, (places + 1) % 3 - 1], -1).to(dtype.to_real()).view(dtype)[..., 0]
    return (places % 4).to(dtype)


def plain(op, tensors):
    """The reduction in plain arithmetic, or None if it is not defined."""
    dtype = tensors[0].dtype
    if dtype.is_complex:
        # Part by part.
        parts = [torch.view_as_real(tensor) for tensor in tensors]
        return plain(op, parts).view(dtype)[..., 0] if op in ("SUM", "AVG") else None
    is_float = dtype.is_floating_point
    if dtype in FLOAT8 or (op == "AVG" and not is_float) or (op in ("BAND", "BOR", "BXOR") and is_float):
        return None
    if dtype == torch.bool:
        op = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}.get(op, op)
    stack = torch.stack([tensor.to(torch.float64 if is_float else torch.int64) for tensor in tensors])
    if op == "AVG":
        # Exact, and rounded once.
        return (stack.sum(0) / len(tensors)).to(dtype)
    result = stack[0]
    for tensor in stack[1:]:
        result = {
            "SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
            "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
        }[op](result, tensor)  # fmt: skip
    return result.to(dtype)


def name_of(dtype):
    """The name of a type in errors."""
    text = str(dtype).removeprefix("torch.")
    for long, short in (("uint", "u"), ("int", "i"), ("bfloat", "bf"), ("float", "f"), ("complex", "c")):
        bits = text.removeprefix(long)
        if bits.isdigit() and dtype != torch.complex32:
            return short + bits
    return text


def same(found, expected):
    assert torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)), (found, expected)


def reducing(group, layout, op, inputs, starts):
    """Each call that reduces, as a function that returns a tensor, and the part of the result that this holds."""
    rank, own = dist.get_rank(), inputs[dist.get_rank()]
    block = slice(2 * rank, 2 * rank + 2)

    def done(work):
        if starts:
            work.wait()

    def all_reduce():
        tensor = layout(own)
        work = dist.all_reduce(tensor, op, group, async_op=starts)
        # First the work: a future puts an error into PyTorch's own words.
        done(work)
        assert not starts or work.get_future().wait()[0].data_ptr() == tensor.data_ptr()
        return tensor

    def reduce():
        tensor = layout(own)
        done(dist.reduce(tensor, 1, op, group, async_op=starts))
        return tensor

    def reduce_scatter_tensor():
        out = layout(torch.zeros(2, 3).to(own.dtype))
        done(dist.reduce_scatter_tensor(out, layout(own), op, group, async_op=starts))
        return out

    def reduce_scatter():
        out = layout(torch.zeros(2, 3).to(own.dtype))
        done(dist.reduce_scatter(out, [layout(part) for part in own.split(2)], op, group, async_op=starts))
        return out

    # The result of a reduce is on its root only.
    return [
        (all_reduce, slice(None)),
        (reduce, slice(None) if rank == 1 else None),
        (reduce_scatter_tensor, block),
        (reduce_scatter, block),
    ]


def reductions(group, layout):
    """Every reduction of every type is right, or refused on all ranks in words that name the type."""
    rank, size, checked, refused = dist.get_rank(), dist.get_world_size(), 0, 0
    for dtype, name, starts in itertools.product(DTYPES, OPS, (False, True)):
        inputs = [numbers(other, dtype, 2 * size) for other in range(size)]
        expected = plain(name, inputs)
        for call, part in reducing(group, layout, getattr(dist.ReduceOp, name), inputs, starts):
            if expected is not None:
                same(call(), inputs[rank] if part is None else expected[part])
                checked += 1
                continue
            text = rf"(op|out)\b.* {name_of(dtype)}\b"
            if dtype.is_complex and call.__name__ == "all_reduce":
                # PyTorch's own refusal.
                text = rf"all_reduce does not support .*{name} on complex tensors"
            # Only the root of a reduce has a result, whose type is not that of a mean of integers.
            told = name == "AVG" and part is None and name_of(dtype)[0] in "iu"
            with pytest.raises(consonance.torch.MismatchError if told else ValueError, match=text):
                call()
            refused += 1
    return checked, refused


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [2, 3])
def test_reductions(size, layout, tmp_path):
    defined = 8 * 7 + 7 + 4 * 5 + 3 * 2  # of integers, bools, floats and complex numbers
    refused = len(DTYPES) * len(OPS) - defined
    calls = 2 * 4  # each waited for and started
    assert ranks(size, tmp_path, reductions, layout) == [(calls * defined, calls * refused)] * size


def calls(rank, size, dtype):
    """Each call with its results on this rank, as a function of the group."""
    wide = [numbers(other, dtype, 2 * size) for other in range(size)]
    own = wide[rank]

    def room(rows=2):
        return torch.zeros(rows, 3).to(dtype)

    def of(results, call, *args, **named):
        call(*args, **named)
        return results

    for name in OPS:
        op = getattr(dist.ReduceOp, name)

        def all_reduce(group, op=op):
            tensor = own.clone()
            return of([tensor], dist.all_reduce, tensor, op, group)

        def reduce(group, op=op):
            tensor = own.clone()
            return of([tensor] if rank == 1 else [], dist.reduce, tensor, 1, op, group)

        def reduce_scatter(group, op=op):
            out = room()
            return of([out], dist.reduce_scatter, out, list(own.clone().split(2)), op, group)

        def reduce_scatter_tensor(group, op=op):
            out = room()
            return of([out], dist.reduce_scatter_tensor, out, own.clone(), op, group)

        for call in (all_reduce, reduce, reduce_scatter, reduce_scatter_tensor):
            yield f"{call.__name__} {name}", call

    def broadcast(group):
        tensor = own.clone()
        return of([tensor], dist.broadcast, tensor, 1, group)

    def all_gather(group):
        outs = [room(2 * size) for _ in range(size)]
        return of(outs, dist.all_gather, outs, own.clone(), group)

    def all_gather_into_tensor(group):
        out = room(2 * size * size)
        return of([out], dist.all_gather_into_tensor, out, own.clone(), group)

    def gather(group):
        outs = [room(2 * size) for _ in range(size)] if rank == 0 else None
        return of(outs or [], dist.gather, own.clone(), outs, 0, group)

    def scatter(group):
        out, parts = room(), list(own.clone().split(2)) if rank == 1 else None
        return of([out], dist.scatter, out, parts, 1, group)

    def all_to_all(group):
        outs = [room() for _ in range(size)]
        return of(outs, dist.all_to_all, outs, list(own.clone().split(2)), group)

    def all_to_all_single(group):
        out = room(2 * size)
        return of([out], dist.all_to_all_single, out, own.clone(), group=group)

    for call in (broadcast, all_gather, all_gather_into_tensor, gather, scatter, all_to_all, all_to_all_single):
        yield call.__name__, call


def beside_gloo(group):
    rank, size, compared, differ = dist.get_rank(), dist.get_world_size(), set(), set()
    for dtype in DTYPES:
        for name, call in calls(rank, size, dtype):
            try:
                gloo = call(None)
            except (RuntimeError, TypeError, ValueError):
                continue  # gloo refuses it
            ours = call(group)
            # gloo rounds a mean of complex numbers more than once.
            rounds = name.endswith("AVG") and dtype.is_complex
            equal = torch.allclose if rounds else lambda a, b: torch.equal(a.view(torch.uint8), b.view(torch.uint8))
            agree = all(equal(a, b) for a, b in zip(ours, gloo, strict=True))
            (compared if agree else differ).add((name, dtype))
    return compared, differ


@pytest.mark.parametrize("size", [2, 3])
def test_every_call_has_the_results_of_gloo(size, tmp_path):
    for compared, differ in ranks(size, tmp_path, beside_gloo):
        # gloo adds bools as bytes, which makes a 2.
        assert all("SUM" in name and dtype == torch.bool for name, dtype in differ), differ
        assert len(compared) > 250


def moves(group, layout):
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in DTYPES:
        inputs = [numbers(other, dtype, 2) for other in range(size)]
        wide = [numbers(other, dtype, 2 * size) for other in range(size)]
        for starts in (False, True):

            def made(work):
                if starts:
                    work.wait()

            tensor = layout(inputs[rank])
            made(dist.broadcast(tensor, 1, group, async_op=starts))
            same(tensor, inputs[1])
            outs = [layout(torch.zeros(2, 3).to(dtype)) for _ in range(size)]
            made(dist.all_gather(outs, layout(inputs[rank]), group, async_op=starts))
            for out, expected in zip(outs, inputs, strict=True):
                same(out, expected)
            out = layout(torch.zeros(2 * size, 3).to(dtype))
            made(dist.all_gather_into_tensor(out, layout(inputs[rank]), group, async_op=starts))
            same(out, torch.cat([tensor.view(torch.uint8) for tensor in inputs]).view(dtype))
            outs = [layout(torch.zeros(2, 3).to(dtype)) for _ in range(size)] if rank == 0 else None
            made(dist.gather(layout(inputs[rank]), outs, 0, group, async_op=starts))
            for out, expected in zip(outs or [], inputs):
                same(out, expected)
            parts = [layout(part) for part in wide[1].split(2)] if rank == 1 else None
            out = layout(torch.zeros(2, 3).to(dtype))
            made(dist.scatter(out, parts, 1, group, async_op=starts))
            same(out, wide[1][2 * rank : 2 * rank + 2])
            out = layout(torch.zeros(2 * size, 3).to(dtype))
            made(dist.all_to_all_single(out, layout(wide[rank]), group=group, async_op=starts))
            expected = [wide[other][2 * rank : 2 * rank + 2] for other in range(size)]
            same(out, torch.cat([tensor.view(torch.uint8) for tensor in expected]).view(dtype))
            outs = [layout(torch.zeros(2, 3).to(dtype)) for _ in range(size)]
            made(dist.all_to_all(outs, [layout(part) for part in wide[rank].split(2)], group, async_op=starts))
            for out, part in zip(outs, expected, strict=True):
                same(out, part)
            received = layout(torch.zeros(2, 3).to(dtype))
            if starts:
                works = dist.batch_isend_irecv([
                    dist.P2POp(dist.isend, layout(inputs[rank]), (rank + 1) % size, group),
                    dist.P2POp(dist.irecv, received, (rank - 1) % size, group),
                ])  # fmt: skip
                for work in works:
                    work.wait()
            else:
                dist.send(layout(inputs[rank]), (rank + 1) % size, group)
                assert dist.recv(received, (rank - 1) % size, group) == (rank - 1) % size
            same(received, inputs[rank - 1])
    # Splits that are uneven on one rank only are those of all.
    splits = [2 if (rank, other) == (0, 1) else 1 for other in range(size)]
    received = [2 if (other, rank) == (0, 1) else 1 for other in range(size)]
    out = torch.zeros(sum(received), 2)
    dist.all_to_all_single(out, torch.full((sum(splits), 2), float(rank)), received, splits, group)
    assert out[:, 0].tolist() == [float(other) for other in range(size) for _ in range(received[other])]
    return True


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [2, 3])
def test_moves(size, layout, tmp_path):
    ranks(size, tmp_path, moves, layout)


def special(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    # The factor of a sum, as a number and as a tensor.
    for factor in (2.0, torch.tensor([3.0])):
        tensor = torch.ones(4)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor), group)
        assert tensor.tolist() == [float(factor) * size] * 4
    # Coalesced calls, and those of functional collectives.
    tensors = [torch.full((count,), rank + 1.0) for count in (1, 5)]
    with dist._coalescing_manager(group, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    manager.wait()
    assert all((tensor == size * (size + 1) / 2).all() for tensor in tensors)
    outs, own = [torch.zeros(size), torch.zeros(2 * size)], [torch.full((1,), rank), torch.full((2,), rank)]
    with dist._coalescing_manager(group):
        for out, data in zip(outs, own, strict=True):
            dist.all_gather_into_tensor(out, data.float(), group)
    assert outs[1].tolist() == [float(other) for other in range(size) for _ in range(2)]
    import torch.distributed._functional_collectives as functional

    total = functional.all_reduce(torch.ones(3), "sum", group)
    assert functional.wait_tensor(total).tolist() == [size] * 3
    gathered = functional.all_gather_tensor(torch.full((2,), rank), 0, group)
    assert functional.wait_tensor(gathered).tolist() == [other for other in range(size) for _ in range(2)]
    # Sparse tensors: the union of the indices.
    sparse = torch.sparse_coo_tensor([[rank, 9]], [1.0, rank + 0.5], (10,))
    dist.all_reduce(sparse, group=group)
    expected = [1.0] * size + [0.0] * (9 - size) + [sum(other + 0.5 for other in range(size))]
    assert sparse.to_dense().tolist() == expected
    # Read-only memory stays unchanged.
    wide = torch.ones(1).expand(4)
    with pytest.raises(ValueError, match="overlaps in itself"):
        dist.all_reduce(wide, group=group)
    with pytest.raises((BufferError, RuntimeError, ValueError), match="meta"):
        group.allreduce([torch.ones(2, device="meta")], dist.AllreduceOptions())
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank}, group)
    assert objects == [{"rank": other} for other in range(size)]
    # A difference names the rank, in an exception that is PyTorch's, too.
    with pytest.raises(dist.DistBackendError, match="mismatch in count of replica 1: expected 2, found 3") as caught:
        dist.all_reduce(torch.ones(3 if rank == 1 else 2), group=group)
    assert (caught.value.replica, caught.value.expected, caught.value.found) == (1, "2", "3")
    work = dist.all_reduce(torch.ones(3 if rank == 1 else 2), group=group, async_op=True)
    with pytest.raises(consonance.torch.MismatchError):
        work.wait()
    assert work.is_completed() and not work.is_success() and work.exception() is not None
    with pytest.raises(RuntimeError, match="mismatch"):
        work.get_future().wait()
    # A future's callback may make a call and wait for it.
    first = dist.all_reduce(torch.ones(2), group=group, async_op=True).get_future()
    second = first.then(lambda done: dist.all_reduce(done.value()[0], group=group, async_op=True).get_future().wait())
    assert second.wait()[0].tolist() == [size * size] * 2
    return True


@pytest.mark.parametrize("size", [2, 3])
def test_special_cases(size, tmp_path):
    ranks(size, tmp_path, special)


def late(group):
    """Rank 1 comes after the deadline."""
    if dist.get_rank() == 0:
        work = group.allreduce([torch.ones(2)], dist.ReduceOp.SUM, timedelta(milliseconds=50))
        future = work.get_future()
        # Until this has returned, the request is not done for other threads.
        work._requests[0].add_done_callback(lambda _: time.sleep(0.3))
        with pytest.raises(RuntimeError, match="TimeoutError: consonance: Timed out"):
            future.wait()
        assert work.is_completed()
    dist.barrier()
    return True


def test_the_future_of_a_failed_call_has_its_error(tmp_path):
    ranks(2, tmp_path, late)


REFUSED = {
    "splits": (lambda out, group: dist.all_to_all_single(out, torch.ones(4), [2, 2], [1, 2], group), "input.*found .1, 2"),
    "rows": (lambda out, group: dist.all_to_all_single(out, torch.ones(5), group=group), "input.*rows for 2 ranks, found 5"),
    "negative": (lambda out, group: dist.all_to_all_single(out, out, [2, 2], [5, -1], group), "input.*found .5, -1"),
    "op": (lambda out, group: group.allreduce(out, dist.ReduceOp.PREMUL_SUM), "op: expected one of sum.*PREMUL_SUM"),
    "factor": (
        lambda out, group: dist.all_reduce(out.to(torch.int64), dist._make_nccl_premul_sum(2.5), group),
        "op: expected a factor that the tensor's type has",
    ),
    "sparse op": (lambda out, group: dist.all_reduce(out.to_sparse(), dist.ReduceOp.MAX, group), "found max of torch.sparse_coo"),
    "sparse layout": (lambda out, group: dist.all_reduce(out.view(2, 2).to_sparse_csr(), group=group), "torch.sparse_csr"),
}  # fmt: skip


def refusing(group, what):
    if dist.get_rank() == 0:
        call, text = REFUSED[what]
        with pytest.raises(ValueError, match=text):
            call(torch.ones(4), group)
    else:
        with pytest.raises(consonance.torch.MismatchError) as caught:
            dist.barrier(group)
        assert caught.value.replica == 0
    dist.barrier(group)
    return True


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_arguments_are_refused_on_all_ranks(what, tmp_path):
    ranks(2, tmp_path, refusing, what)


def forms(group, how):
    """The options of a call come as one value, or one by one, by place or by name."""
    rank, size = dist.get_rank(), dist.get_world_size()
    soon, own, most = timedelta(seconds=5), torch.tensor([rank + 1.0]), [float(size)]
    for given in ([dist.ReduceOp.MAX], [dist.ReduceOp.MAX, soon]):
        tensor = own.clone()
        group.allreduce(tensor, *given).wait()
        assert tensor.tolist() == most
    tensor = own.clone()
    group.allreduce([tensor], op=dist.ReduceOp.MAX, timeout=soon).wait()
    assert tensor.tolist() == most
    tensor = own.clone()
    group.reduce(tensor, 1, dist.ReduceOp.MAX, soon).wait()
    assert tensor.tolist() == (most if rank == 1 else own.tolist())
    for given, named in (([1], {}), ([1, soon], {}), ([], {"root": 1})):
        tensor = own.clone()
        group.broadcast(tensor, *given, **named).wait()
        assert tensor.tolist() == [2.0]
    outs = [torch.zeros(1) for _ in range(size)]
    group.allgather(outs, own, soon).wait()
    assert torch.cat(outs).tolist() == [other + 1.0 for other in range(size)]
    outs = [torch.zeros(1) for _ in range(size)] if rank == 1 else []
    group.gather(outs, own, 1, soon).wait()
    assert torch.cat([*outs, own])[0].item() == (1.0 if rank == 1 else own.item())
    out = torch.zeros(1)
    group.scatter(out, [torch.tensor([10.0 + other]) for other in range(size)] if rank == 1 else [], 1, soon).wait()
    assert out.tolist() == [10.0 + rank]
    group.barrier(soon).wait()
    # So do those of coalesced calls and of calls with one tensor.
    outs = [torch.zeros(size), torch.zeros(size)]
    group.all_gather_single_coalesced(outs, [own, own], opts=AllgatherOptions()).wait()
    lists = [[torch.zeros(1), torch.zeros(1)] for _ in range(size)]
    group.allgather_coalesced(lists, [own, own], opts=AllgatherOptions()).wait()
    assert [out.tolist() for out in outs] == [[one.item() for one, _ in lists]] * 2 == [[1.0, 2.0]] * 2
    outs, blocks = [torch.zeros(1), torch.zeros(1)], torch.arange(2.0) + rank
    options = ReduceScatterOptions()
    options.reduceOp = dist.ReduceOp.MAX
    group.reduce_scatter_single_coalesced(outs, [blocks, blocks], opts=options).wait()
    assert [out.item() for out in outs] == [rank + 1.0] * 2
    options, out = GatherOptions(), torch.zeros(size)
    options.rootRank = 1
    group.gather_single(out, own, opts=options).wait()
    assert out.tolist() == ([1.0, 2.0] if rank == 1 else [0.0, 0.0])
    # A timeout that is given is the call's own.
    options = dist.AllreduceOptions()
    options.timeout, options.asyncOp = timedelta(milliseconds=50), False
    if rank == 0:
        with pytest.raises(consonance.torch.TimeoutError, match="Timed out waiting 50ms"):
            if how == "options":
                group.allreduce([own], options)
            else:
                group.allreduce(own, dist.ReduceOp.SUM, timedelta(milliseconds=50)).wait()
    else:
        # A rank that leaves is an error before the deadline.
        time.sleep(2)
    return True


@pytest.mark.parametrize("how", ["values", "options"])
def test_options_come_in_all_forms(how, tmp_path):
    ranks(2, tmp_path, forms, how)


def scaled(group):
    """A sum with a factor, ``PREMUL_SUM``, writes nothing before the ranks agree."""
    rank, size = dist.get_rank(), dist.get_world_size()
    double = dist._make_nccl_premul_sum(2.0)
    for starts in (False, True):
        data = torch.ones(3 if rank == 1 else 2)
        with pytest.raises(consonance.torch.MismatchError):
            work = dist.all_reduce(data, double, group, async_op=starts)
            work.wait()
        assert data.tolist() == [1.0] * len(data)
        several = [torch.ones(2), torch.ones(3)]
        with dist._coalescing_manager(group, async_ops=starts) as manager:
            for tensor in several:
                dist.all_reduce(tensor, double, group)
        if starts:
            manager.wait()
        assert [tensor.tolist() for tensor in several] == [[2.0 * size] * 2, [2.0 * size] * 3]
        # The factor's type is not the result's.
        half = torch.ones(2, dtype=torch.float16)
        work = dist.all_reduce(half, dist._make_nccl_premul_sum(torch.tensor([3.0])), group, async_op=starts)
        if starts:
            work.wait()
        assert half.tolist() == [3.0 * size] * 2
        out, wide = torch.zeros(1, dtype=torch.float16), torch.ones(size, dtype=torch.float16)
        factor = dist._make_nccl_premul_sum(torch.tensor([3.0]))
        work = dist.reduce_scatter_tensor(out, wide, factor, group, async_op=starts)
        if starts:
            work.wait()
        assert out.tolist() == [3.0 * size] and wide.tolist() == [1.0] * size
    return True


def test_a_sum_with_a_factor(tmp_path):
    ranks(2, tmp_path, scaled)


def with_loader(group):
    data = torch.utils.data.TensorDataset(torch.arange(32.0).reshape(16, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
    total = torch.zeros(2)
    for (batch,) in loader:
        total += batch.sum(0)
        dist.all_reduce(total, dist.ReduceOp.MAX, group)
    return total.tolist()


def test_a_data_loader_forks_from_a_rank(tmp_path):
    assert ranks(2, tmp_path, with_loader) == [[240.0, 256.0]] * 2


def killed(group, how, starts):
    dist.barrier(group)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), how)
    try:
        work = dist.all_reduce(torch.ones(100_000), group=group, async_op=starts)
        if starts:
            work.wait()
    except dist.DistBackendError as error:
        return type(error).__name__, error.replica, str(error)
    return "no error"


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_rank_is_named(how, starts, tmp_path):
    processes, results = start(2, tmp_path / "store", killed, how, starts, seconds=4)
    begin = time.monotonic()
    rank, told, failed = results.get(timeout=60)
    assert rank == 0 and not failed, failed
    assert told[:2] == (("LostError" if how == signal.SIGKILL else "TimeoutError"), 1), told
    if how == signal.SIGSTOP:
        assert " Timed out waiting 4000ms" in told[2] and told[2].count("Timed out") == 1, told
        assert time.monotonic() - begin < 30
    for process in processes:
        process.kill()
        process.join()


def mixed(group):
    both = dist.new_group(backend="cpu:consonance_cpu")
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=both)
    outs = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(outs, torch.tensor([float(dist.get_rank())]), both)
    work = dist.all_reduce(torch.ones(2), group=both, async_op=True)
    work.wait()
    dist.barrier(both)
    return tensor.tolist(), torch.cat(outs).tolist()


@pytest.mark.skipif(not _IS_BACKEND, reason="PyTorch takes a backend written in Python since 2.14")
def test_the_second_name_is_for_groups_of_several_backends(tmp_path):
    assert ranks(2, tmp_path, mixed) == [([2.0] * 3, [0.0, 1.0])] * 2


def many_groups(group, folder):
    def make(_):
        one = dist.new_group(backend="consonance")
        dist.all_reduce(torch.ones(3), group=one)
        dist.destroy_process_group(one)

    return things_around(make, folder)


def test_a_thousand_groups_leave_nothing(tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    for before, after in ranks(2, tmp_path, many_groups, folder):
        leave_nothing(before, after)
