"""Training on this backend: beside gloo, and to the bit."""

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


def train_fsdp(group):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    single = new_net()
    expected = parameters(trained(DDP(single)))

    def sharded(group, shared=False):
        mesh = DeviceMesh.from_group(group, "cpu")
        model = new_net()
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if shared:
            model.set_allocate_memory_from_process_group_for_comm(True)
        trained(model)
        return torch.cat([parameter.full_tensor().detach().flatten() for parameter in model.parameters()])

    ours = sharded(group)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(ours, sharded(dist.group.WORLD))
    same(sharded(group, shared=True), ours)
    one = FullyShardedDataParallel(new_net(), process_group=group, device_id=torch.device("cpu"))
    trained(one)
    with FullyShardedDataParallel.summon_full_params(one):
        torch.testing.assert_close(parameters(one), expected)
    return ours.tolist()


@pytest.mark.parametrize("size", [2])
def test_fsdp_trains_as_on_gloo(size, tmp_path):
    first, *others = ranks(size, tmp_path, train_fsdp)
    assert all(other == first for other in others)
