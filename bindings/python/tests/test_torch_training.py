"""Training on this backend: beside gloo, and to the bit."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from test_torch import ranks, same  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(4)])

    def forward(self, x):
        return torch.tanh(self.layers(x)).sum(1)


def batches(rank):
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(8, 32, generator=generator) for _ in range(5)]


def trained(model, step=lambda loss: loss.backward()):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    for batch in batches(dist.get_rank()):
        optimizer.zero_grad()
        step(model(batch).square().mean())
        optimizer.step()
    return model


def parameters(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def new_net():
    torch.manual_seed(1)
    return Net()


def train_ddp(group):
    gloo = parameters(trained(DDP(new_net())))
    results = [parameters(trained(DDP(new_net(), process_group=group, **options))) for options in (
        {}, {"bucket_cap_mb": 0.001}, {"bucket_cap_mb": 0.01}, {"gradient_as_bucket_view": True}, {"static_graph": True},
    )]  # fmt: skip
    for result in results:
        torch.testing.assert_close(result, gloo)
        same(result, results[0])
    same(results[0], gathered(results[0], group)[0])
    return results[0].tolist()


def gathered(tensor, group):
    outs = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(outs, tensor, group)
    return outs


@pytest.mark.parametrize("size", [2, 3])
def test_ddp_trains_as_on_gloo_and_to_the_bit_for_every_bucket(size, tmp_path):
    first, *others = ranks(size, tmp_path, train_ddp)
    assert all(other == first for other in others)


BUCKETS_MB = [25, 0.001, 0.005, 0.01]


def private(group, count):
    return torch.empty(count)


def shared(group, count):
    backend = group._get_backend(torch.device("cpu"))
    return backend.allocate_tensor(count, dtype=torch.float32, device=torch.device("cpu"))


def net_in(memory, group):
    """The network with its parameters in memory of this kind."""
    model = new_net()
    for parameter in model.parameters():
        parameter.data = memory(group, parameter.numel()).view_as(parameter).copy_(parameter.data)
    return model


def buckets_in(memory):
    """Returns a hook of DDP that sums each bucket of gradients in memory of this kind, and keeps the bucket there."""

    def sum_bucket(group, bucket):
        data = memory(group, bucket.buffer().numel()).copy_(bucket.buffer())
        bucket.set_buffer(data)
        return dist.all_reduce(data, group=group, async_op=True).get_future().then(lambda done: done.value()[0])

    return sum_bucket


def train_ddp_in_shared_memory(group):
    """The results with parameters, with buckets, and with both in shared memory, for every size of buckets."""
    by_default, by_hook = [], []
    for bucket_cap_mb in BUCKETS_MB:
        for memory in (private, shared):
            model = DDP(net_in(memory, group), process_group=group, bucket_cap_mb=bucket_cap_mb)
            by_default.append(parameters(trained(model)))
            for buckets in (private, shared):
                model = DDP(net_in(memory, group), process_group=group, bucket_cap_mb=bucket_cap_mb)
                model.register_comm_hook(group, buckets_in(buckets))
                by_hook.append(parameters(trained(model)))
    assert not torch.equal(by_default[0], parameters(new_net()))
    for results in (by_default, by_hook):
        for result in results:
            same(result, results[0])
    return by_default[0].tolist(), by_hook[0].tolist()


@pytest.mark.parametrize("size", [2, 3])
def test_ddp_trains_to_the_bit_in_shared_memory(size, tmp_path):
    first, *others = ranks(size, tmp_path, train_ddp_in_shared_memory)
    assert all(other == first for other in others)


def fsdp1(group, policy=None, strategy="FULL_SHARD"):
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    model = FullyShardedDataParallel(
        new_net(),
        process_group=group,
        device_id=torch.device("cpu"),
        auto_wrap_policy=policy,
        sharding_strategy=ShardingStrategy[strategy],
    )
    trained(model)
    with FullyShardedDataParallel.summon_full_params(model):
        return parameters(model)


def fsdp2(group, shared=False):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    model = new_net()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if shared:
        model.set_allocate_memory_from_process_group_for_comm(True)
    trained(model)
    return torch.cat([parameter.full_tensor().detach().flatten() for parameter in model.parameters()])


def train_fsdp(group):
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    expected, gloo = parameters(trained(DDP(new_net()))), dist.group.WORLD
    # FSDP2, with its buffers in private and in shared memory.
    second = fsdp2(group)
    torch.testing.assert_close(second, expected)
    torch.testing.assert_close(second, fsdp2(gloo))
    same(fsdp2(group), second)
    same(fsdp2(group, shared=True), second)
    # FSDP, whose pieces are the network, layers, or all layers: that decides which elements go
    # together.
    first = fsdp1(group)
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(first, fsdp1(gloo))
    same(fsdp1(group), first)
    for pieces in (torch.nn.Linear, torch.nn.Sequential):
        for strategy in ("FULL_SHARD", "SHARD_GRAD_OP"):
            same(fsdp1(group, ModuleWrapPolicy({pieces}), strategy), first)
    return first.tolist(), second.tolist()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_fsdp_trains_as_on_gloo_and_to_the_bit(size, tmp_path):
    first, *others = ranks(size, tmp_path, train_fsdp)
    assert all(other == first for other in others)


def test_the_bench_says_how_many_bytes_its_calls_have():
    command = [sys.executable, "-m", "consonance.torch.bench", "--end", "4", "--seconds", "0.05"]
    done = subprocess.run(command, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    sizes = {row[0]: row[1] for row in rows if len(row) == 7 and row[1].isdigit()}
    # A part has an element for each of two ranks.
    assert sizes == {"all_reduce": "4", "all_gather": "8", "reduce_scatter": "8", "broadcast": "4"}
