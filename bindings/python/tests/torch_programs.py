"""Programs of PyTorch as their users write them, on the default group. Each returns tensors that its arithmetic decides."""

import contextlib
import copy
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def net(width=32, depth=3):
    torch.manual_seed(1)
    return nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())])


def batches(count=4, width=32):
    generator = torch.Generator().manual_seed(dist.get_rank())
    return [torch.randn(8, width, generator=generator) for _ in range(count)]


def train(model, optimizer=None, count=4, around=lambda index: contextlib.nullcontext()):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for index, batch in enumerate(batches(count)):
        optimizer.zero_grad()
        with around(index):
            model(batch).square().mean().backward()
        optimizer.step()
    return weights(model)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def whole(model):
    return [parameter.full_tensor().detach().clone() for parameter in model.parameters()]


@program
def ddp():
    return train(DDP(net()))


@program
def ddp_of_a_static_graph_with_tiny_buckets():
    return train(DDP(net(), static_graph=True, bucket_cap_mb=0.001))


@program
def ddp_with_unused_parameters_and_views_of_buckets():
    model = net()
    model.append(nn.Identity())
    model.unused = nn.Linear(3, 3)
    model.forward = lambda x: nn.Sequential.forward(model[:-1], x)
    return train(DDP(model, find_unused_parameters=True, gradient_as_bucket_view=True))


@program
def ddp_that_accumulates_without_synchronization():
    model = DDP(net())
    return train(model, around=lambda index: contextlib.nullcontext() if index % 2 else model.no_sync())


@program
def ddp_that_joins_uneven_inputs():
    model = DDP(net())
    with model.join():
        return train(model, count=3 + dist.get_rank())


def with_hook(state, hook):
    model = DDP(net(), bucket_cap_mb=0.01)
    model.register_comm_hook(state, hook)
    return train(model)


@program
def ddp_with_the_hook_of_float16():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return with_hook(None, default_hooks.fp16_compress_hook)


@program
def ddp_with_the_hook_of_bfloat16():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return with_hook(None, default_hooks.bf16_compress_hook)


@program
def ddp_with_power_sgd():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    return with_hook(state, powerSGD_hook.powerSGD_hook)


@program
def ddp_with_quantized_gradients():
    from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks

    return with_hook(None, quantization_hooks.quantization_pertensor_hook)


@program
def ddp_with_local_steps():
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    model = DDP(net())
    model.register_comm_hook(
        post_localSGD_hook.PostLocalSGDState(None, dist.group.WORLD, start_localSGD_iter=2),
        post_localSGD_hook.post_localSGD_hook,
    )
    averager = PeriodicModelAverager(period=2, warmup_steps=2)
    return train(model, PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), averager))


@program
def ddp_with_the_hook_that_is_built_in():
    model = DDP(net())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    return train(model)


@program
def ddp_of_a_compiled_model():
    return train(DDP(torch.compile(net(), backend="aot_eager")))


@program
def compiled_ddp():
    return train(torch.compile(DDP(net()), backend="aot_eager"))


@program
def zero_redundancy_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    result = train(model, optimizer)
    optimizer.consolidate_state_dict(0)
    return result


@program
def zero_redundancy_optimizer_with_views_of_buckets():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(net())
    return train(
        model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, parameters_as_bucket_view=True, lr=0.01)
    )


@program
def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    train(model)
    with FullyShardedDataParallel.summon_full_params(model):
        return weights(model)


def fully_sharded(mesh, shared=False, **options):
    from torch.distributed.fsdp import fully_shard

    model = net()
    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    if shared and dist.get_backend() == "consonance":
        model.set_allocate_memory_from_process_group_for_comm(True)
    train(model, torch.optim.Adam(model.parameters(), lr=0.01))
    return whole(model)


def mesh(*shape, names=None):
    return dist.init_device_mesh("cpu", shape, mesh_dim_names=names)


@program
def fsdp2():
    return fully_sharded(mesh(dist.get_world_size()))


@program
def fsdp2_of_mixed_precision_in_shared_memory():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fully_sharded(mesh(dist.get_world_size()), shared=True, mp_policy=policy)


@program
def fsdp2_with_replicas():
    return fully_sharded(mesh(dist.get_world_size(), 1, names=("replicas", "shards")))


@program
def checkpoint_saved_and_loaded():
    import torch.distributed.checkpoint as dcp

    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    model = net()
    train(DDP(model))
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    other = net()
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=folder[0])
    return list(state["model"].values())


@program
def data_loader_with_workers():
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(32, 2))
    sampler = torch.utils.data.distributed.DistributedSampler(data, shuffle=True, seed=3)
    loader = torch.utils.data.DataLoader(
        data, batch_size=4, num_workers=2, sampler=sampler, multiprocessing_context="fork"
    )
    total = torch.zeros(2)
    for (batch,) in loader:
        total += batch.sum(0)
        dist.all_reduce(total, dist.ReduceOp.MAX)
    return [total]


@program
def monitored_barriers():
    dist.monitored_barrier()
    dist.monitored_barrier(wait_all_ranks=True)
    return []


@program
def objects():
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 3_200_000})
    own = [None]
    dist.scatter_object_list(own, [f"for {other}" for other in range(size)] if rank == 0 else None)
    several = [{"a": rank}, "b"]
    dist.broadcast_object_list(several, src=1)
    if rank == 0:
        dist.send_object_list([{"c": 3}], dst=1)
    elif rank == 1:
        message = [None]
        dist.recv_object_list(message, src=0)
        assert message == [{"c": 3}]
    return [torch.tensor([one["rank"] for one in gathered] + [several[0]["a"], len(own[0])])]


@program
def messages_in_a_batch():
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.zeros(1000)
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, torch.full((1000,), rank + 1.0), (rank + 1) % size),
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
    ])  # fmt: skip
    for work in works:
        work.wait()
    return [received]


@program
def messages_from_any_source():
    if dist.get_rank():
        dist.send(torch.full((3,), float(dist.get_rank())), 0)
        return []
    parts = [torch.zeros(3) for _ in range(dist.get_world_size() - 1)]
    sources = [dist.recv(part) for part in parts]
    return [torch.tensor(sorted(sources)), sum(parts)]


@program
def subgroups():
    one, _ = dist.new_subgroups(1)
    two, _ = dist.new_subgroups_by_enumeration([list(range(dist.get_world_size()))])
    data = torch.ones(3)
    dist.all_reduce(data, group=one)
    dist.all_reduce(data, group=two)
    return [data]


@program
def subgroups_with_local_synchronization():
    group = dist.new_group([0, 1], use_local_synchronization=True) if dist.get_rank() < 2 else None
    data = torch.ones(3)
    if group is not None:
        dist.all_reduce(data, group=group)
    return [data]


@program
def forty_groups():
    groups = [dist.new_group() for _ in range(40)]
    data = torch.full((2,), dist.get_rank() + 1.0)
    for group in groups:
        dist.all_reduce(data, dist.ReduceOp.AVG if dist.get_backend() != "gloo" else dist.ReduceOp.SUM, group=group)
        if dist.get_backend() == "gloo":
            data /= dist.get_world_size()
    return [data]


@program
def two_groups_in_opposite_orders():
    groups = [dist.new_group(), dist.new_group()]
    own = [torch.full((2,), dist.get_rank() + index + 1.0) for index in range(2)]
    works = {}
    for index in (0, 1) if dist.get_rank() == 0 else (1, 0):
        works[index] = dist.all_reduce(own[index], group=groups[index], async_op=True)
    for work in works.values():
        work.wait()
    return own


@program
def split_groups():
    size = dist.get_world_size()
    halves = [list(range(size // 2)), list(range(size // 2, size))[::-1]]
    own = dist.split_group(split_ranks=halves)
    data = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(data, group=own)
    first = dist.split_group(split_ranks=[[0]])
    assert (first == dist.GroupMember.NON_GROUP_MEMBER) == (dist.get_rank() != 0)
    # On gloo a rank that leaves now fails the split of another one.
    dist.barrier()
    return [data, torch.tensor([dist.get_rank(own), dist.get_world_size(own)])]


@program
def calls_that_are_coalesced():
    own = [torch.full((count,), dist.get_rank() + 1.0) for count in (1, 5)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in own:
            dist.all_reduce(tensor)
    manager.wait()
    return own


def tensor_parallel(model, mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def same_inputs():
    torch.manual_seed(2)
    return [torch.randn(8, 32) for _ in range(3)]


@program
def tensor_parallelism():
    model = tensor_parallel(net(depth=2)[:3], mesh(dist.get_world_size()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in same_inputs():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return whole(model)


@program
def tensor_parallelism_with_fsdp():
    from torch.distributed.fsdp import fully_shard

    both = mesh(1, dist.get_world_size(), names=("data", "model"))
    model = tensor_parallel(net(depth=2)[:3], both["model"])
    fully_shard(model, mesh=both["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in same_inputs():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return whole(model)


@program
def distributed_tensors():
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    over = mesh(dist.get_world_size())
    torch.manual_seed(3)
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    left, right = distribute_tensor(a, over, [Shard(1)]), distribute_tensor(b, over, [Shard(0)])
    product = left @ right
    assert isinstance(product.placements[0], Partial)
    return [
        product.redistribute(over, [Replicate()]).to_local(),
        distribute_tensor(a, over, [Shard(0)]).redistribute(over, [Shard(1)]).full_tensor(),
        torch.softmax(left, 1).full_tensor(),
    ]


def pipelined(schedule):
    from torch.distributed.pipelining import PipelineStage

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    layers = [nn.Linear(32, 32) for _ in range(size)]
    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    run = schedule(stage, n_microbatches=4, loss_fn=lambda y, target: (y - target).square().mean())
    (x, *_), target = same_inputs(), torch.zeros(8, 32)
    if rank == 0:
        run.step(x)
    elif rank == size - 1:
        run.step(target=target)
    else:
        run.step()
    return [parameter.grad.clone() for parameter in layers[rank].parameters()]


@program
def pipeline_of_gpipe():
    from torch.distributed.pipelining import ScheduleGPipe

    return pipelined(ScheduleGPipe)


@program
def pipeline_of_1f1b():
    from torch.distributed.pipelining import Schedule1F1B

    return pipelined(Schedule1F1B)


def functional_calls(x):
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    total = functional.all_reduce(x, "sum", group)
    gathered = functional.all_gather_tensor(x, 0, group)
    return total + 1, gathered * 2


@program
def functional_collectives():
    return list(functional_calls(torch.full((4,), dist.get_rank() + 1.0)))


@program
def functional_collectives_that_are_compiled():
    compiled = torch.compile(functional_calls, backend="aot_eager")
    return list(compiled(torch.full((4,), dist.get_rank() + 1.0)))


@program
def compiled_calls():
    @torch.compile(backend="aot_eager")
    def run(x):
        dist.broadcast(x, 0)
        return x + 1

    return [run(torch.full((3,), dist.get_rank() + 1.0 + step)) for step in range(3)]


@program
def inference():
    model = DDP(net())
    with torch.inference_mode():
        y = model(batches(1)[0]).sum(0)
        dist.all_reduce(y)
    return [y.clone()]


@program
def calls_with_gradients():
    import torch.distributed.nn.functional as functional

    x = torch.full((4,), dist.get_rank() + 1.0, requires_grad=True)
    functional.all_reduce(x * 2).square().sum().backward()
    return [x.grad]


@program
def futures():
    work = dist.all_reduce(torch.full((3,), dist.get_rank() + 1.0), async_op=True)
    return [work.get_future().then(lambda done: [one * 2 for one in done.value()]).wait()[0]]


@program
def a_hundred_calls_at_once():
    own = [torch.full((index + 1,), dist.get_rank() + 1.0) for index in range(100)]
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in own]:
        work.wait()
    return own


@program
def an_uneven_all_to_all():
    rank, size = dist.get_rank(), dist.get_world_size()
    splits, received = [other + 1 for other in range(size)], [rank + 1] * size
    out = torch.zeros(sum(received), 2)
    dist.all_to_all_single(out, torch.arange(2.0 * sum(splits)).reshape(-1, 2) + rank, received, splits)
    return [out]


@program
def copies_of_a_model():
    model = DDP(net())
    train(model)
    return weights(copy.deepcopy(model.module))
