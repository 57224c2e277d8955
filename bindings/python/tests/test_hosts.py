"""Ranks on several hosts, which this machine plays in namespaces. Takes root, the commands that make these, and UCX."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import consonance as cs

COMMAND = [sys.executable, "-m", "consonance"]

# The address of the first host that is played.
FIRST = "10.77.0.1"


def _why_not():
    """Returns why this machine plays no hosts, in words."""
    report = subprocess.run([*COMMAND, "doctor", "--json"], capture_output=True, text=True, timeout=60)
    ucx = next(row for row in json.loads(report.stdout)["rows"] if row["name"] == "UCX")
    if ucx["state"] != "found":
        return f"no UCX: {ucx['finding']}; {ucx['advice']}"
    played = subprocess.run([*COMMAND, "run", "--hosts", "2", "-n", "1", "true"], capture_output=True, timeout=60)
    return None if played.returncode == 0 else f"hosts are not played: {played.stderr.decode()}"


@pytest.fixture(scope="session")
def play():
    """A function that runs a command as each of the ranks of two hosts, and returns what it said."""
    why_not = _why_not()
    if why_not:
        pytest.skip(why_not)

    def run(ranks, *command, **variables):
        done = subprocess.run(
            [*COMMAND, "run", "--hosts", "2", "-n", str(ranks), "--timeout", "120", "--", *map(str, command)],
            capture_output=True,
            text=True,
            timeout=150,
            env={**os.environ, **variables},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return sorted(line.split("] ", 1)[-1] for line in done.stdout.splitlines())

    return run


MEAN = """
import sys, numpy as np, consonance as cs
from pathlib import Path

def join(how):
    if how == "environment":
        return cs.Communicator.from_env()
    import json, os, time
    rank, place = json.loads(os.environ["TF_CONFIG"])["task"]["index"], Path(how)
    if rank == 0:
        place.with_suffix(".new").write_text(str(cs.UniqueId.across_hosts()))
        place.with_suffix(".new").rename(place)
    while not place.exists():
        time.sleep(0.01)
    return cs.Communicator(cs.UniqueId(place.read_text()), rank, 4)

with join(sys.argv[1]) as comm:
    data = np.arange(100_000, dtype=np.float32) * (comm.rank + 1.1)
    mean = comm.all_reduce(data, "mean")
    parts = comm.all_gather(np.array([comm.rank]))
    if comm.rank == 3:
        comm.send(data[:7], 0, tag=5)
    if comm.rank == 0:
        received = np.empty(7, np.float32)
        comm.recv(received, 3, tag=5)
        assert received.tolist() == (np.arange(7, dtype=np.float32) * (3 + 1.1)).tolist()
    print(f"{comm.rank} of {comm.size}: {mean.tobytes().hex()[-16:]} {parts.ravel().tolist()}", flush=True)
"""


@pytest.mark.parametrize("how", ["environment", "id"])
def test_ranks_of_two_hosts_have_the_bits_of_one(how, play, tmp_path):
    import numpy as np

    program = tmp_path / "mean.py"
    program.write_text(MEAN)
    mean = cs.run(4, lambda comm: comm.all_reduce(np.arange(100_000, dtype=np.float32) * (comm.rank + 1.1), "mean"))[0]
    said = play(2, sys.executable, program, "environment" if how == "environment" else tmp_path / "id")
    assert said == [f"{rank} of 4: {mean.tobytes().hex()[-16:]} [0, 1, 2, 3]" for rank in range(4)]


def test_a_rank_without_ucx_says_how_to_install_it():
    program = "import consonance as cs; cs.Communicator(cs.UniqueId.across_hosts(), 0, 2)"
    variables = {**os.environ, "CONSONANCE_UCX": "/no/such/libucp.so.0"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables, timeout=60)
    error = done.stderr.splitlines()[-1]
    assert "MeetingError" in error and "/no/such/libucp.so.0" in error and "apt install libucx0" in error, done.stderr


TRAIN = """
import os, torch, torch.distributed as dist
import consonance.torch
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("consonance")
rank = dist.get_rank()
torch.manual_seed(7)
model = DDP(torch.nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    optimizer.zero_grad()
    model(torch.full((4, 32), 0.1 * (rank + 1) + step)).square().mean().backward()
    optimizer.step()
parts = dist.new_group([0, 2])
if rank in (0, 2):
    ranks = torch.tensor([float(rank)])
    dist.all_reduce(ranks, group=parts)
    assert ranks.item() == 2.0
weights = b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())
# One write, since the ranks share the output.
print(f"rank {rank} of {dist.get_world_size()}: {weights.hex()[-32:]}\\n", end="", flush=True)
dist.destroy_process_group()
"""


TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def torchrun_on_two_hosts(play, folder, *words):
    """Runs a program of PyTorch as two ranks on each of two hosts, and returns the lines that begin with a rank."""
    nodes = f"--nnodes 2 --nproc-per-node 2 --node-rank $RANK --master-addr {FIRST} --master-port 29511"
    command = " ".join(map(str, [*TORCHRUN, nodes, *words]))
    said = play(1, "sh", "-c", f"cd {folder} && exec {command}", OMP_NUM_THREADS="1")
    return [line for line in said if line.startswith("rank ")]


def test_torchrun_trains_on_two_hosts(play, tmp_path):
    pytest.importorskip("torch")
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    command = [*TORCHRUN, "--nproc-per-node", "4", program]
    alone = subprocess.run(command, capture_output=True, text=True, timeout=150, cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    said = torchrun_on_two_hosts(play, tmp_path, program)
    assert len(said) == 4 and said == sorted(alone.stdout.splitlines()), said


RESTARTED = """
import os, torch, torch.distributed as dist
import consonance.torch

restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("consonance")
data = torch.ones(3)
dist.all_reduce(data)
# A rank of the first host, and then one of the other.
if restart < 2 and dist.get_rank() == 3 * restart:
    os.kill(os.getpid(), 9)
dist.barrier()
dist.barrier()
print(f"rank {dist.get_rank()} after {restart} restarts: {data.tolist()}\\n", end="", flush=True)
dist.destroy_process_group()
"""


def test_torchrun_restarts_killed_ranks_on_two_hosts(play, tmp_path):
    pytest.importorskip("torch")
    program = tmp_path / "restarted.py"
    program.write_text(RESTARTED)
    said = torchrun_on_two_hosts(play, tmp_path, "--max-restarts 2", program)
    assert said == [f"rank {rank} after 2 restarts: [4.0, 4.0, 4.0]" for rank in range(4)], said


def test_the_example_of_a_mean_runs_on_two_hosts(play):
    example = Path(__file__).parent.parent / "examples/mean.py"
    assert play(2, sys.executable, example)
