"""Groups that are split, coalesced, forked or asked for what they are not."""

import gc
import inspect
import os
import weakref

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from test_torch import ranks  # noqa: E402

import consonance.torch  # noqa: E402, F401  Before PyTorch 2.14 this registers the backend.
from consonance.torch._group import _IS_BACKEND  # noqa: E402


def splits(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    # Ranks of a part are in the order of its list, and a rank may be in none.
    own = dist.split_group(group, [[2, 0]])
    if rank == 1:
        assert own == dist.GroupMember.NON_GROUP_MEMBER
    else:
        assert (dist.get_rank(own), dist.get_backend(own)) == ({2: 0, 0: 1}[rank], "consonance")
        data = torch.tensor([float(rank)])
        dist.broadcast(data, 2, own)
        assert data.tolist() == [2.0]
        dist.destroy_process_group(own)
    # A part of a part, and the group itself still works.
    pair = dist.split_group(group, [[0, 1], [2]])
    alone = dist.split_group(pair, [[0], [1]] if rank < 2 else [[0]])
    assert dist.get_world_size(alone) == 1
    data = torch.ones(2)
    for one, total in ((alone, 1), (pair, 2 if rank < 2 else 1), (group, None)):
        dist.all_reduce(data, group=one)
        assert total is None or data.tolist() == [total] * 2
    assert size == 3 and data.tolist() == [5.0] * 2
    return True


@pytest.mark.skipif(not _IS_BACKEND, reason="PyTorch splits groups that are written in Python since 2.14")
def test_a_group_is_split_into_parts(tmp_path):
    ranks(3, tmp_path, splits)


def splits_otherwise(group):
    with pytest.raises(dist.DistBackendError) as caught:
        if dist.get_rank() == 1:
            dist.barrier(group)
        else:
            dist.split_group(group, [[0, 1, 2]])
    return caught.value.replica


@pytest.mark.skipif(not _IS_BACKEND, reason="PyTorch splits groups that are written in Python since 2.14")
def test_a_rank_without_a_call_of_split_is_named(tmp_path):
    assert ranks(3, tmp_path, splits_otherwise) == [1] * 3


def coalesced(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    data, received, total = torch.full((3,), rank + 1.0), torch.zeros(2), torch.full((2,), rank + 1.0)
    with dist._coalescing_manager(group, device, async_ops=True) as manager:
        dist.broadcast(data, 1, group)
        dist.isend(torch.full((2,), float(rank)), (rank + 1) % size, group)
        dist.irecv(received, (rank - 1) % size, group)
    manager.wait()
    assert data.tolist() == [2.0] * 3 and received.tolist() == [float((rank - 1) % size)] * 2
    for starts in (False, True):
        with dist._coalescing_manager(group, device, async_ops=starts) as manager:
            dist.all_reduce(total, group=group)
            dist.all_reduce(data, group=group)
        if starts:
            manager.wait()
    assert data.tolist() == [2.0 * size * size] * 3
    return True


@pytest.mark.skipif(not _IS_BACKEND, reason="PyTorch coalesces calls of groups that are written in Python since 2.14")
@pytest.mark.parametrize("size", [2, 3])
def test_calls_are_coalesced(size, tmp_path):
    ranks(size, tmp_path, coalesced)


def coalescing_that_fails(group):
    with pytest.raises(ValueError):
        with dist._coalescing_manager(group, torch.device("cpu"), async_ops=True):
            dist.broadcast(torch.ones(2), 0, group)
            dist.broadcast(torch.ones(2).to_sparse(), 0, group)
    data = torch.ones(2)
    dist.broadcast(data, 0, group, async_op=True).wait()
    kept = weakref.ref(data)
    del data
    gc.collect()
    return kept() is None


@pytest.mark.skipif(not _IS_BACKEND, reason="PyTorch coalesces calls of groups that are written in Python since 2.14")
def test_an_error_ends_the_coalescing_of_calls(tmp_path):
    assert ranks(2, tmp_path, coalescing_that_fails) == [True] * 2


def forked(group):
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(2), group=group)
        except dist.DistBackendError as error:
            os._exit(7 if error.problem else 8)
        finally:
            os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_call_in_a_fork_is_an_error_of_the_backend(tmp_path):
    assert ranks(2, tmp_path, forked) == [7, 7]


@pytest.mark.skipif(
    "enable_reconfigure" not in inspect.signature(dist.init_process_group).parameters,
    reason="PyTorch has `enable_reconfigure` since 2.15",
)
@pytest.mark.parametrize("backend", ["consonance", "cpu:consonance_cpu"])
def test_a_reconfigurable_group_is_refused(backend):
    with pytest.raises(ValueError, match="enable_reconfigure"):
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, enable_reconfigure=True)
    assert not dist.is_initialized()


def means_of_complex_numbers(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    inputs = [torch.randn(4 * size, dtype=torch.complex64) for _ in range(size)]
    out = torch.zeros(4, dtype=torch.complex64)
    dist.reduce_scatter_tensor(out, inputs[rank].clone(), dist.ReduceOp.AVG, group)
    parts = [torch.view_as_real(one) for one in inputs]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    mean = torch.view_as_complex(total / size)[4 * rank : 4 * rank + 4]
    assert torch.equal(out, mean), (out - mean)
    return True


def test_a_mean_of_complex_numbers_has_the_means_of_the_parts(tmp_path):
    ranks(3, tmp_path, means_of_complex_numbers)
