"""What a training program sees when another rank fails: an exception with our words, wherever it is at that time."""

import os
import re
import signal
import subprocess
import sys
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from test_torch import start  # noqa: E402
from torch.distributed.distributed_c10d import _set_pg_timeout as set_timeout  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import consonance.torch  # noqa: E402

STEP, CULPRIT, SIZE = 2, 1, 3


class Net(torch.nn.Module):
    """A network with a buffer, which DDP broadcasts in each forward pass."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        return self.layers(x) * self.scale


def kill(group):
    os.kill(os.getpid(), signal.SIGKILL)


def stop(group):
    os.kill(os.getpid(), signal.SIGSTOP)


def fail(group):
    raise ValueError("a fault of the program")


def leave(group):
    dist.destroy_process_group(group)
    os._exit(0)


def disagree(group):
    dist.barrier(group)


# Each fault, and the classes of the errors that the other ranks may have.
FAULTS = {
    kill: {"LostError"},
    stop: {"TimeoutError", "AbortedError"},
    fail: {"LostError", "AbortedError"},
    leave: {"LostError"},
    disagree: {"MismatchError"},
}
FAULTS_OF_FSDP = [("fsdp1", kill), ("fsdp1", disagree), *[("fsdp2", fault) for fault in FAULTS]]


def step_of_ddp(group, fault, place, options):
    """Returns a function that makes a step, with the fault in this place."""
    torch.manual_seed(1)
    model = DDP(Net(), process_group=group, bucket_cap_mb=0.01, **options)
    due = []

    def in_backward(_gradient):
        if due:
            due.pop()(group)

    model.module.layers[2].weight.register_hook(in_backward)
    if place == "hook":

        def sum_bucket(state, bucket):
            if due:
                due.pop()(group)
            return dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future().then(
                lambda done: done.value()[0]
            )

        model.register_comm_hook(None, sum_bucket)

    def step(is_due):
        if is_due and place == "forward":
            fault(group)
        elif is_due:
            due.append(fault)
        model(torch.randn(8, 64)).sum().backward()

    return step


def step_of_fsdp(group, fault, place, options):
    if place == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(Net(), process_group=group, device_id=torch.device("cpu"))
    else:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        model = Net()
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

    def step(is_due):
        y = model(torch.randn(8, 64)).sum()
        if is_due:
            fault(group)
        y.backward()

    return step


def training(group, make, fault, place, options):
    """Trains until an error comes. Returns its class and its text."""
    step = make(group, fault, place, options)
    try:
        for index in range(10):
            if index == STEP and fault is stop:
                set_timeout(timedelta(seconds=3), group)
            step(index == STEP and dist.get_rank() == CULPRIT)
    except RuntimeError as error:
        return type(error).__name__, str(error)
    return "no error"


def survivors(tmp_path, *args):
    """Returns what the other ranks have seen, and checks that they ended as programs do."""
    # A machine under load may hold a rank for seconds.
    processes, results = start(SIZE, tmp_path / "store", *args, seconds=30)
    seen = {}
    try:
        while len(seen.keys() - {CULPRIT}) < SIZE - 1:
            rank, returned, failed = results.get(timeout=60)
            seen[rank] = returned or failed
        for rank in seen.keys() - {CULPRIT}:
            processes[rank].join(20)
            assert processes[rank].exitcode == 0
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [seen[rank] for rank in range(SIZE) if rank != CULPRIT]


def check(seen, fault):
    for error in seen:
        assert isinstance(error, tuple), error
        kind, text = error
        # An error that goes through PyTorch's C++ code comes back as a `RuntimeError`, with the
        # class in its text.
        assert kind in FAULTS[fault] or any(f"{one}: " in text for one in FAULTS[fault]), error
        assert "replica 1 " in text or "replica 1:" in text, error


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("place", ["forward", "backward", "hook"])
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_ddp_raises_an_error_naming_the_rank(static, place, fault, tmp_path):
    check(survivors(tmp_path, training, step_of_ddp, fault, place, {"static_graph": static}), fault)


@pytest.mark.parametrize("place, fault", FAULTS_OF_FSDP, ids=lambda value: getattr(value, "__name__", value))
def test_fsdp_raises_an_error_naming_the_rank(place, fault, tmp_path):
    check(survivors(tmp_path, training, step_of_fsdp, fault, place, {}), fault)


def saving(group, fault, folder):
    """Saves until an error comes, which it does while the plan of the save is made. Returns its class and its text."""
    import torch.distributed.checkpoint as dcp

    class Planner(dcp.DefaultSavePlanner):
        def create_local_plan(self):
            if index == STEP and dist.get_rank() == CULPRIT:
                fault(group)
            return super().create_local_plan()

    try:
        for index in range(10):
            if index == STEP and fault is stop:
                set_timeout(timedelta(seconds=3), group)
            dcp.async_save(
                {"model": Net().state_dict()},
                checkpoint_id=folder / str(index),
                process_group=group,
                planner=Planner(),
            ).result(timeout=60)
    except Exception as error:
        return type(error).__name__, str(error)
    return "no error"


# An error of the program while it makes the plan is an exception of PyTorch's on all ranks.
@pytest.mark.parametrize("fault", [kill, stop, leave, disagree], ids=lambda fault: fault.__name__)
def test_a_save_beside_the_program_raises_an_error_naming_the_rank(fault, tmp_path):
    check(survivors(tmp_path, saving, fault, tmp_path), fault)


def saving_beside_training(group, folder):
    """Saves on a thread while this one trains on the same group, whose calls then come in any order."""
    import torch.distributed.checkpoint as dcp

    model = DDP(Net(), process_group=group, bucket_cap_mb=0.01)
    errors = []
    try:
        for index in range(20):
            saved = dcp.async_save(
                {"model": model.module.state_dict()}, checkpoint_id=folder / str(index), process_group=group
            )
            for _ in range(5):
                model(torch.randn(8, 64)).sum().backward()
            saved.result(timeout=30)
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")
    return errors


def test_a_save_beside_training_on_the_same_group_ends_no_process(tmp_path):
    processes, results = start(2, tmp_path / "store", saving_beside_training, tmp_path, seconds=5)
    try:
        for _ in processes:
            rank, errors, failed = results.get(timeout=90)
            assert errors is not None, failed
            # Whether two calls come in other orders is chance, and so are the ranks that differ or
            # wait.
            assert all(re.search(r"\b(Mismatch|Timeout|Aborted|Lost)Error: ", error) for error in errors), errors
    finally:
        for process in processes:
            process.join(30)
            code = process.exitcode
            process.kill()
            assert code == 0


PROGRAM = """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
import consonance.torch

rank, store, fault = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group(
    "consonance", init_method=f"file://{store}", rank=rank, world_size=3, timeout=timedelta(seconds=120)
)
model = DDP(nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]), bucket_cap_mb=1)
x = torch.randn(64, 512)
model(x).sum().backward()
dist.barrier()
if fault == "sleep":
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=5))
for i in range(2000):
    if rank == 1 and i == 5:
        if fault == "kill":
            os.kill(os.getpid(), 9)
        time.sleep(15)
    model(x).sum().backward()
"""


# The rank whose deadline comes first aborts the group of the others.
@pytest.mark.parametrize("fault, classes", [("kill", FAULTS[kill]), ("sleep", FAULTS[stop])])
def test_an_uncaught_error_ends_the_program_with_our_text(fault, classes, tmp_path):
    command = [sys.executable, "-c", PROGRAM]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), fault], stderr=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(3)
    ]
    for rank in (0, 2):
        text = processes[rank].communicate(timeout=120)[1]
        assert processes[rank].returncode == 1, text
        assert any(f"{one}: " in text for one in classes) and "replica 1" in text, text
    # The rank that came late finds that the group has ended.
    text = processes[1].communicate(timeout=120)[1]
    assert processes[1].returncode == (-9 if fault == "kill" else 1), text
