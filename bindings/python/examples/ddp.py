"""Data-parallel training with PyTorch, and the proof that its bits do not depend on how gradients travel.

    torchrun --nproc-per-node 2 ddp.py
    consonance run -n 2 python ddp.py
"""

import hashlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import consonance.torch  # noqa: F401  Not needed from PyTorch 2.14 on.


def images(seed):
    """A task to learn: which of ten random patterns is in a noisy image."""
    patterns = torch.randn(10, 256, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    while True:
        labels = torch.randint(10, (64,), generator=generator)
        yield patterns[labels] + 4 * torch.randn(64, 256, generator=generator), labels


def train(backend, steps=200, **options):
    """Trains on a group of all ranks. Returns a digest of the weights, the accuracy and the time."""
    group = dist.new_group(backend=backend)
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    model = DistributedDataParallel(network, process_group=group, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    begin = time.perf_counter()
    for _, (data, labels) in zip(range(steps), images(seed=1 + dist.get_rank())):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data), labels).backward()
        optimizer.step()
    seconds = time.perf_counter() - begin
    data, labels = next(images(seed=0))
    with torch.no_grad():
        right = (network(data).argmax(1) == labels).float().mean()
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in network.parameters())
    return hashlib.sha256(weights).hexdigest()[:16], float(right), seconds


def main():
    torch.set_num_threads(1)
    dist.init_process_group("consonance")
    say = print if dist.get_rank() == 0 else lambda *_, **__: None
    say(f"{dist.get_world_size()} ranks, 200 steps of {64 * dist.get_world_size()} images")
    digests = set()
    for backend, buckets in [("gloo", 25), ("gloo", 0.01), ("consonance", 25), ("consonance", 0.01), ("consonance", 0.1)]:
        digest, right, seconds = train(backend, bucket_cap_mb=buckets)
        say(f"{backend:11} buckets of {buckets:5} MB: {seconds:6.2f} s, {right:6.1%} right, weights {digest}")
        if backend == "consonance":
            digests.add(digest)
    assert len(digests) == 1, "the bits depend on the buckets"
    # Rank 0 has the weights of all ranks in mind, too.
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, digests)
    assert all(other == digests for other in everywhere), "the bits depend on the rank"
    say("On consonance every bit of every weight is the same, on all ranks and for all buckets.")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
