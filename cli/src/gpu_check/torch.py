"""Measures sums of PyTorch on a CUDA device, for `consonance gpu-check`.

Arguments: the device's number, then DTYPE:INPUTS:BYTES for each row. Prints the version, then a line for each row: the
seconds of torch.stack(inputs).sum(0), of additions in place, and of torch._foreach_add_, with tabs between. A row for
which the device has no memory is "-". All lines begin with a mark, because libraries print warnings.
"""

import sys

import torch

ROUNDS, ROUND_MS, MOST = 5, 2.0, 200
# torch._foreach_add_ adds lists of tensors: each input is this many.
PIECES = 16

device = torch.device("cuda", int(sys.argv[1]))
torch.cuda.set_device(device)
torch.cuda.init()


def say(*words):
    print("consonance", *words, sep="\t", flush=True)


say(torch.__version__)


def once(launches, call):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(launches):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / launches


def seconds(call):
    once(1, call)
    launches = int(max(1, min(MOST, ROUND_MS / max(once(1, call), 1e-3))))
    return sorted(once(launches, call) for _ in range(ROUNDS))[ROUNDS // 2] / 1e3


def row(dtype, inputs, size):
    xs = [torch.full((size // dtype.itemsize,), 1.0, dtype=dtype, device=device) for _ in range(inputs)]

    def adds():
        for x in xs[1:]:
            xs[0].add_(x)

    pieces = [list(x.chunk(PIECES)) for x in xs]

    def foreach():
        for other in pieces[1:]:
            torch._foreach_add_(pieces[0], other)

    return [seconds(lambda: torch.stack(xs).sum(0)), seconds(adds), seconds(foreach)]


for word in sys.argv[2:]:
    name, inputs, size = word.split(":")
    try:
        say(*row({"f32": torch.float32, "bf16": torch.bfloat16}[name], int(inputs), int(size)))
    except torch.cuda.OutOfMemoryError:
        say("-")
    torch.cuda.empty_cache()
