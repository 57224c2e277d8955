"""Tensors whose memory has other values than they: PyTorch's conjugate and negative views."""

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from test_torch import ranks  # noqa: E402

import consonance as cs  # noqa: E402


def conjugate(tensor):
    return tensor.conj().resolve_conj().conj()


def negative(tensor):
    """The tensor as an imaginary part of a conjugate, whose memory has the negative."""
    view = torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    assert view.is_neg()
    return view


def both(tensor):
    """A complex tensor with both bits."""
    view = torch._neg_view((-tensor).conj().resolve_conj().conj())
    assert view.is_neg() and view.is_conj()
    return view


def complexes(rank, count=4):
    return torch.complex(torch.arange(count) + rank + 1.0, torch.arange(count) * 2.0 - 5 * rank - 1)


def reals(rank, count=4):
    return torch.arange(count) * 2.0 - 5 * rank + 1


VIEWS = [(conjugate, complexes), (negative, reals), (both, complexes)]


def lazy(view, values):
    """Makes a lazy tensor of these values."""
    made = view(values)
    assert torch.equal(made.resolve_conj().resolve_neg(), values), "the test's own view"
    return made


def calls(comm, view, numbers, starts=False):
    """Makes each call on lazy tensors, and compares it with the values."""
    rank, size = comm.rank, comm.size
    all_of = [numbers(other) for other in range(size)]
    total = sum(all_of)

    def own():
        return lazy(view, numbers(rank))

    def zeros(count=4):
        return lazy(view, torch.zeros_like(numbers(0, count)))

    def made(request):
        if starts:
            request.wait()

    def same(tensor, expected):
        assert torch.equal(tensor.resolve_conj().resolve_neg(), expected), (tensor, expected)

    data = own()
    made(comm.all_reduce(data, out=data, async_op=starts))
    same(data, total)
    data, out = own(), zeros()
    made(comm.all_reduce(data, out=out, async_op=starts))
    same(out, total)
    same(data, numbers(rank))
    several = [own(), own()]
    made(comm.all_reduce_coalesced(several, out=several, async_op=starts))
    same(several[1], total)
    data = own()
    made(comm.reduce(data, root=1, out=data, async_op=starts))
    same(data, total if rank == 1 else numbers(rank))
    data = own()
    made(comm.broadcast(data, root=1, async_op=starts))
    same(data, numbers(1))
    out = zeros(4 * size)
    made(comm.all_gather(own(), out=out, async_op=starts))
    same(out, torch.cat(all_of))
    outs = [zeros() for _ in range(size)]
    made(comm.all_gather(own(), out=outs, async_op=starts))
    same(torch.cat(outs), torch.cat(all_of))
    # A block in place.
    wide = zeros(4 * size)
    wide[4 * rank : 4 * rank + 4] = numbers(rank)
    made(comm.all_gather(wide[4 * rank : 4 * rank + 4], out=wide, async_op=starts))
    same(wide, torch.cat(all_of))
    out = zeros(4 * size)
    made(comm.gather(own(), out=out, root=1, async_op=starts))
    same(out, torch.cat(all_of) if rank == 1 else torch.zeros_like(out))
    out = zeros(2)
    made(comm.scatter(lazy(view, numbers(7, 2 * size)), out=out, async_op=starts))
    same(out, numbers(7, 2 * size)[2 * rank : 2 * rank + 2])
    out = zeros(2)
    made(comm.reduce_scatter(lazy(view, numbers(rank, 2 * size)), out=out, async_op=starts))
    same(out, sum(numbers(other, 2 * size) for other in range(size))[2 * rank : 2 * rank + 2])
    out = zeros(2 * size)
    made(comm.all_to_all(lazy(view, numbers(rank, 2 * size)), out=out, async_op=starts))
    same(out, torch.cat([numbers(other, 2 * size)[2 * rank : 2 * rank + 2] for other in range(size)]))
    sent = comm.send(own(), (rank + 1) % size, async_op=True)
    received = zeros()
    made(comm.recv(received, (rank - 1) % size, async_op=starts))
    sent.wait()
    same(received, numbers((rank - 1) % size))
    # Elements that are apart, too.
    data = lazy(view, torch.stack([numbers(rank), numbers(rank)], 1))[:, 0]
    made(comm.all_reduce(data, out=data, async_op=starts))
    same(data, total)


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("view,numbers", VIEWS)
def test_lazy_tensors_have_their_values(view, numbers, starts):
    cs.run(2, calls, view, numbers, starts)


def test_lazy_negation_of_bools_and_integers_is_refused():
    tensor = torch._neg_view(torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="data.*resolve_neg"):
        cs.threads(1)[0].all_reduce(tensor)
    with pytest.raises(ValueError, match="negative view of i64"):
        cs.threads(1)[0].all_reduce(torch._neg_view(torch.arange(3)))


def test_a_tensor_without_memory_is_refused():
    with pytest.raises(ValueError, match="data.*memory"):
        cs.threads(1)[0].all_reduce(torch._efficientzerotensor(3))


def in_torch(group, view, numbers):
    rank, size = dist.get_rank(), dist.get_world_size()
    all_of = [numbers(other) for other in range(size)]

    def same(tensor, expected):
        assert torch.equal(tensor.resolve_conj().resolve_neg(), expected), (tensor, expected)

    for starts in (False, True):

        def made(work):
            if starts:
                work.wait()

        def zeros(count=4):
            return lazy(view, torch.zeros_like(numbers(0, count)))

        data = lazy(view, numbers(rank))
        group.broadcast(data, 1).wait()
        same(data, numbers(1))
        opts = dist.AllreduceOptions()
        opts.asyncOp = starts
        data = lazy(view, numbers(rank))
        made(group.allreduce([data], opts))
        same(data, sum(all_of))
        if rank == 0:
            group.send([lazy(view, numbers(0))], 1, 0).wait()
        elif rank == 1:
            received = zeros()
            group.recv([received], 0, 0).wait()
            same(received, numbers(0))
        outs = [zeros() for _ in range(size)]
        group.allgather([outs], [lazy(view, numbers(rank))]).wait()
        same(torch.cat(outs), torch.cat(all_of))
        if not numbers(0).is_complex():
            # Of complex numbers PyTorch itself takes the parts, which lazy ones do not give.
            data = lazy(view, numbers(rank))
            made(dist.broadcast(data, 1, group, async_op=starts))
            same(data, numbers(1))
            data = lazy(view, numbers(rank))
            made(dist.all_reduce(data, group=group, async_op=starts))
            same(data, sum(all_of))
            out = zeros(4 * size)
            made(dist.all_gather_into_tensor(out, lazy(view, numbers(rank)), group, async_op=starts))
            same(out, torch.cat(all_of))
            out = zeros(2)
            made(dist.reduce_scatter_tensor(out, lazy(view, numbers(rank, 2 * size)), group=group, async_op=starts))
            same(out, sum(numbers(other, 2 * size) for other in range(size))[2 * rank : 2 * rank + 2])
            data = lazy(view, numbers(rank))
            made(dist.all_reduce(data, dist._make_nccl_premul_sum(2.0), group=group, async_op=starts))
            same(data, 2 * sum(all_of))
    return True


@pytest.mark.parametrize("view,numbers", VIEWS)
def test_lazy_tensors_have_their_values_in_torch(view, numbers, tmp_path):
    ranks(2, tmp_path, in_torch, view, numbers)
