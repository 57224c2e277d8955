"""Measures this backend beside gloo: ``python -m consonance.torch.bench``.

Both backends serve the same ranks and take turns. A time is the median of all calls, on the slowest rank.
"""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from . import register

_ROUNDS = 7


def _calls(size: int, ranks: int) -> dict[str, tuple[int, Callable]]:
    """Returns functions that make a call of `size` bytes in a group, on tensors that `make` makes.

    Before each is the number of bytes that its call has: calls with a part for each rank have even parts.
    """
    count = max(size // 4, 1)
    even = max(count // ranks, 1) * ranks

    def all_reduce(group, make):
        tensor = make(count)
        return lambda: dist.all_reduce(tensor, group=group)

    def all_gather(group, make):
        out, data = make(even), make(even // ranks)
        return lambda: dist.all_gather_into_tensor(out, data, group)

    def reduce_scatter(group, make):
        out, data = make(even // ranks), make(even)
        return lambda: dist.reduce_scatter_tensor(out, data, group=group)

    def broadcast(group, make):
        tensor = make(count)
        return lambda: dist.broadcast(tensor, 0, group)

    return {
        "all_reduce": (4 * count, all_reduce),
        "all_gather": (4 * even, all_gather),
        "reduce_scatter": (4 * even, reduce_scatter),
        "broadcast": (4 * count, broadcast),
    }


def _times(calls: list[Callable], seconds: float) -> list[float]:
    """Returns the median time of each call, on the slowest rank. The calls take turns."""
    taken: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(_ROUNDS):
        for call, times in zip(calls, taken, strict=True):
            dist.barrier()
            begin = time.perf_counter()
            call()
            once = time.perf_counter() - begin
            # All ranks make the same number of calls.
            repeats = torch.tensor(max(1, min(int(seconds / _ROUNDS / max(once, 1e-7)), 2000)))
            dist.broadcast(repeats, 0)
            for _ in range(int(repeats)):
                begin = time.perf_counter()
                call()
                times.append(time.perf_counter() - begin)
    medians = torch.tensor([statistics.median(times) for times in taken], dtype=torch.float64)
    dist.all_reduce(medians, dist.ReduceOp.MAX)
    return medians.tolist()


def _step(group: dist.ProcessGroup | None) -> Callable:
    """Returns a training step of a small network: alone without a group."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = model if group is None else DistributedDataParallel(model, process_group=group)
    data = torch.randn(32, 64)

    def step():
        model.zero_grad()
        model(data).sum().backward()

    for _ in range(5):
        step()
    return step


def _rank(rank: int, path: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    register()
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=options.ranks)
    gloo, ours = dist.group.WORLD, dist.new_group(backend="consonance")
    backend = ours._get_backend(torch.device("cpu"))

    def shared(count):
        return backend.allocate_tensor(count, dtype=torch.float32, device=torch.device("cpu")).fill_(1)

    say = print if rank == 0 else lambda *_, **__: None
    say(f"{options.ranks} ranks on {os.cpu_count()} cores ({_cpu()}), PyTorch {torch.__version__}, f32, times in us")
    say(f"{'call':16}{'bytes':>10}{'gloo':>12}{'consonance':>12}{'ratio':>8}{'shared':>12}{'ratio':>8}")
    size = options.begin
    while size <= options.end:
        for name, (has, make) in _calls(size, options.ranks).items():
            if options.call in (None, name):
                calls = [make(gloo, torch.ones), make(ours, torch.ones), make(ours, shared)]
                theirs, own, in_shared = _times(calls, options.seconds)
                say(
                    f"{name:16}{has:10}{theirs * 1e6:12.1f}{own * 1e6:12.1f}{own / theirs:8.3f}"
                    f"{in_shared * 1e6:12.1f}{in_shared / theirs:8.3f}"
                )
        size *= options.factor
    if options.call is None:
        alone, theirs, own = _times([_step(None), _step(gloo), _step(ours)], options.seconds)
        added = (own - alone) / (theirs - alone)
        say(f"A step of a small network takes {alone * 1e6:.0f} us alone, and with DDP {theirs * 1e6:.0f} us on gloo and")
        say(f"{own * 1e6:.0f} us on consonance: it adds {added:.2f} of what gloo adds.")
    dist.destroy_process_group()
    # If the interpreter ends while a thread of gloo drops a tensor, the process aborts.
    sys.stdout.flush()
    os._exit(0)


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m consonance.torch.bench", description=__doc__)
    parser.add_argument("-n", "--ranks", type=int, default=2, help="number of ranks (default: 2)")
    parser.add_argument("--begin", type=int, default=4, help="smallest size in bytes (default: 4)")
    parser.add_argument("--end", type=int, default=64 << 20, help="largest size in bytes (default: 64 MiB)")
    parser.add_argument("--factor", type=int, default=4, help="factor between sizes (default: 4)")
    parser.add_argument("--call", choices=_calls(4, 1), help="one call instead of all")
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each backend and size (default: 0.5)")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        mp.start_processes(_rank, (os.path.join(folder, "store"), options), nprocs=options.ranks)


if __name__ == "__main__":
    main()
