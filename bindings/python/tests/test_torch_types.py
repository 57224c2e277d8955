"""Element types of PyTorch that hold no numbers which can be summed."""

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from test_torch import ranks, same  # noqa: E402

import consonance.torch  # noqa: E402

FLOAT4 = torch.float4_e2m1fn_x2


def pairs(rank, count):
    """Two numbers of 4 bits in each byte."""
    return (torch.arange(count, dtype=torch.uint8) * 7 + rank * 50).view(FLOAT4)


def packed(tensor):
    return tensor


def gaps(tensor):
    room = torch.zeros(tensor.numel(), 2, dtype=torch.uint8)
    room[:, 0] = tensor.view(torch.uint8)
    return room.view(FLOAT4)[:, 0]


def room(count):
    return torch.zeros(count, dtype=torch.uint8).view(FLOAT4)


def joined(tensors):
    return torch.cat([tensor.view(torch.uint8) for tensor in tensors]).view(FLOAT4)


def move_float4(group, layout):
    rank, size = dist.get_rank(), dist.get_world_size()
    own, wide = [pairs(other, 5) for other in range(size)], [pairs(other, 3 * size) for other in range(size)]
    part = slice(3 * rank, 3 * rank + 3)

    tensor = layout(own[rank].clone())
    dist.broadcast(tensor, 1, group)
    same(tensor, own[1])
    outs = [layout(room(5)) for _ in range(size)]
    dist.all_gather(outs, layout(own[rank]), group)
    same(joined(outs), joined(own))
    out = layout(room(5 * size))
    dist.all_gather_into_tensor(out, layout(own[rank]), group)
    same(out, joined(own))
    outs = [layout(room(5)) for _ in range(size)] if rank == 1 else None
    dist.gather(layout(own[rank]), outs, 1, group)
    same(joined(outs or own), joined(own))
    out = layout(room(3))
    dist.scatter(out, [layout(part) for part in wide[0].split(3)] if rank == 0 else None, 0, group)
    same(out, wide[0][part])
    out, expected = layout(room(3 * size)), joined([other[part] for other in wide])
    dist.all_to_all_single(out, layout(wide[rank]), group=group)
    same(out, expected)
    outs = [layout(room(3)) for _ in range(size)]
    dist.all_to_all(outs, [layout(part) for part in wide[rank].split(3)], group)
    same(joined(outs), expected)
    out = layout(room(5))
    sent = dist.isend(layout(own[rank]), (rank + 1) % size, group)
    dist.recv(out, (rank - 1) % size, group)
    sent.wait()
    same(out, own[rank - 1])
    return True


@pytest.mark.parametrize("layout", [packed, gaps])
@pytest.mark.parametrize("size", [2, 3])
def test_pairs_of_4_bits_move(size, layout, tmp_path):
    ranks(size, tmp_path, move_float4, layout)


def do_not_reduce(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    calls = [
        lambda op: dist.all_reduce(pairs(rank, 4), op, group),
        lambda op: dist.reduce(pairs(rank, 4), 0, op, group),
        lambda op: dist.reduce_scatter_tensor(room(4), pairs(rank, 4 * size), op, group),
    ]
    for op, name in ((dist.ReduceOp.SUM, "sum"), (dist.ReduceOp.MAX, "max"), (dist.ReduceOp.BOR, "or")):
        for call in calls:
            with pytest.raises(ValueError, match=f"a type that can be reduced, found {name} of float4_e2m1fn_x2"):
                call(op)
    # They are no bytes, and ranks that differ are told so.
    with pytest.raises(consonance.torch.MismatchError, match="float4_e2m1fn_x2"):
        dist.broadcast(pairs(rank, 5000) if rank == 0 else torch.zeros(5000, dtype=torch.uint8), 0, group)
    dist.barrier(group)
    return True


def test_pairs_of_4_bits_are_not_reduced(tmp_path):
    ranks(2, tmp_path, do_not_reduce)


QUANTISED = [torch.quint8, torch.qint8, torch.qint32]
# PyTorch has no arithmetic for these, and describes them to others as bytes.
SHORT = [torch.uint1, torch.uint4, torch.uint7, torch.int2]


def refused(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in QUANTISED + SHORT:

        def make(dtype=dtype):
            if dtype in SHORT:
                return torch.ones(4, dtype=torch.uint8).view(dtype)
            return torch.quantize_per_tensor(torch.ones(4), 0.5, 3, dtype)

        calls = [
            lambda group: dist.all_reduce(make(), group=group),
            lambda group: dist.broadcast(make(), 0, group),
            lambda group: dist.all_gather([make() for _ in range(size)], make(), group),
        ]
        for call in calls:
            # gloo refuses them, too.
            with pytest.raises((RuntimeError, TypeError, ValueError)):
                call(None)
            if rank == 0:
                with pytest.raises(ValueError, match=rf"data: expected an array .*, found one of {dtype}"):
                    call(group)
            else:
                with pytest.raises(consonance.torch.MismatchError):
                    dist.barrier(group)
        dist.barrier(group)
    return True


def test_quantised_tensors_and_parts_of_bytes_are_refused_by_name_on_all_ranks(tmp_path):
    ranks(2, tmp_path, refused)


HAS_BCOMPLEX = pytest.mark.skipif(
    not hasattr(torch, "bcomplex32"), reason="PyTorch has complex numbers of bfloat16 since 2.15"
)


def bcomplexes(rank, count):
    return (torch.arange(2 * count) * 3 - 5 * rank).to(torch.bfloat16).view(torch.bcomplex32)


def bcomplexes_apart(rank, count):
    room = torch.zeros(4 * count, dtype=torch.bfloat16).view(torch.bcomplex32)
    torch.view_as_real(room)[::2] = torch.view_as_real(bcomplexes(rank, count))
    return room[::2]


def bcomplexes_off(rank, count):
    """At an odd address."""
    tensor = torch.frombuffer(bytearray(4 * count + 1), dtype=torch.bfloat16, offset=1).view(torch.bcomplex32)
    torch.view_as_real(tensor).copy_(torch.view_as_real(bcomplexes(rank, count)))
    return tensor


def move_bcomplexes(group, make):
    rank, size = dist.get_rank(), dist.get_world_size()

    def results(group, make):
        tensor = make(rank, 4)
        dist.broadcast(tensor, 1, group)
        yield tensor
        out, outs = make(9, 4 * size), [make(9, 4) for _ in range(size)]
        dist.all_gather_into_tensor(out, make(rank, 4), group)
        dist.all_gather(outs, make(rank, 4), group)
        yield from [out, *outs]
        out = make(9, 3)
        dist.scatter(out, [make(other, 3) for other in range(size)] if rank == 0 else None, 0, group)
        yield out
        out = make(9, 2 * size)
        dist.all_to_all_single(out, make(rank, 2 * size), group=group)
        yield out
        tensor = make(rank, 4)
        dist.all_reduce(tensor, group=group)
        yield tensor
        tensor = make(rank, 4)
        dist.reduce(tensor, 1, group=group)
        yield tensor if rank == 1 else make(0, 1)
        out = make(9, 2)
        dist.reduce_scatter_tensor(out, make(rank, 2 * size), group=group)
        yield out

    # gloo is wrong where elements are apart.
    for ours, gloo in zip(results(group, make), results(None, bcomplexes), strict=True):
        same(torch.view_as_real(ours), torch.view_as_real(gloo))
    # gloo refuses this.
    outs = [make(9, 4) for _ in range(size)] if rank == 0 else None
    dist.gather(make(rank, 4), outs, 0, group)
    for other, out in enumerate(outs or []):
        same(torch.view_as_real(out), torch.view_as_real(make(other, 4)))
    return True


@HAS_BCOMPLEX
@pytest.mark.parametrize("make", [bcomplexes, bcomplexes_apart, bcomplexes_off])
def test_complex_numbers_of_bfloat16_are_those_of_gloo(make, tmp_path):
    ranks(2, tmp_path, move_bcomplexes, make)


@HAS_BCOMPLEX
def test_a_conjugate_view_of_complex_numbers_of_bfloat16():
    mirrored = torch.view_as_real(bcomplexes(1, 4)) * torch.tensor([1, -1], dtype=torch.bfloat16)
    conjugate = mirrored.reshape(-1).view(torch.bcomplex32).conj()

    def rank(comm):
        return torch.view_as_real(comm.broadcast(bcomplexes(9, 4))) if comm.rank else comm.broadcast(conjugate)

    _, received = consonance.run(2, rank)
    same(received, torch.view_as_real(bcomplexes(1, 4)))
