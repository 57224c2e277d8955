"""A rank of torch.distributed with gloo: executes the requests that `consonance bench` sends over a socket.

rank.rs describes the protocol, mpi.c the data of a case after its words.
"""

import ctypes
import os
import signal
import socket
import struct
import sys
import time

import torch
import torch.distributed as dist

DTYPES = {
    "bool": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8,
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
}
OPS = {
    "sum": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX,
    "and": dist.ReduceOp.BAND, "or": dist.ReduceOp.BOR, "xor": dist.ReduceOp.BXOR,
}


class Case:
    def __init__(self, words, link, rank):
        self.collective, dtype, op, _, ranks, count, sets = words[:7]
        self.rank, self.ranks, self.count, self.sets = rank, int(ranks), int(count), int(sets)
        self.op = OPS.get(op)
        numbers = iter(map(int, words[8:]))
        self.period, size, tiles = next(numbers), next(numbers), next(numbers)

        def segments():
            return [(next(numbers), next(numbers), next(numbers)) for _ in range(next(numbers))]

        self.sent, self.before, self.after = segments(), segments(), segments()
        self.counts = list(numbers)
        patterns = [bytearray(link.read(self.period * size)) for _ in range(tiles)]
        self.why = None
        if dtype not in DTYPES:
            self.why = "torch has no such type"
        elif self.op is None and "reduce" in self.collective:
            self.why = "gloo has no such operation"
        else:
            self.patterns = [torch.frombuffer(pattern, dtype=DTYPES[dtype]) for pattern in patterns]
            self.buffers = [[self.empty(self.sent), self.empty(self.before)] for _ in range(self.sets)]

    def empty(self, segments):
        return torch.zeros(sum(count for _, _, count in segments), dtype=self.patterns[0].dtype)

    def walk(self, buffer, segments, turn, fill):
        """Fills `buffer`, or counts the elements that differ from the pattern."""
        at = wrong = 0
        for tile, shift, count in segments:
            pattern = self.patterns[tile].roll(-((shift + turn) % self.period))
            full = count // self.period * self.period
            for part, expected in (
                (buffer[at : at + full].view(-1, self.period), pattern.expand(full // self.period, self.period)),
                (buffer[at + full : at + count], pattern[: count - full]),
            ):
                if fill:
                    part.copy_(expected)
                else:
                    wrong += int((part != expected).sum())
            at += count
        return wrong

    def prepared(self, send, recv):
        """Returns the call with its arguments, made in advance: Python's lists of views are slow, and no part of gloo's work."""
        root, op = self.rank == 0, self.op
        parts = lambda buffer, counts: list(buffer.split(counts)) if buffer.numel() else None
        if self.collective == "all_reduce":
            return lambda: dist.all_reduce(recv, op)
        if self.collective == "reduce":
            return lambda: dist.reduce(recv, 0, op)
        if self.collective in ("all_gather", "all_gather_v"):
            outputs = parts(recv, self.counts)
            return lambda: dist.all_gather(outputs, send)
        if self.collective == "reduce_scatter":
            inputs = parts(send, [self.count] * self.ranks)
            return lambda: dist.reduce_scatter(recv, inputs, op)
        if self.collective == "broadcast":
            return lambda: dist.broadcast(recv, 0)
        if self.collective == "all_to_all":
            return lambda: dist.all_to_all_single(recv, send)
        if self.collective == "all_to_all_v":
            return lambda: dist.all_to_all_single(recv, send, self.counts, self.counts)
        if self.collective in ("gather", "gather_v"):
            outputs = parts(recv, self.counts) if root else None
            return lambda: dist.gather(send, outputs, 0)
        if self.collective in ("scatter", "scatter_v"):
            inputs = parts(send, self.counts) if root else None
            return lambda: dist.scatter(recv, inputs, 0)
        if self.collective == "send_recv":
            return (lambda: dist.send(send, 1), lambda: dist.recv(recv, 0))[self.rank] if self.rank < 2 else lambda: None
        if self.collective == "barrier":
            return dist.barrier
        raise ValueError(f"no call of torch for {self.collective}")

    def run(self, batches, turn):
        warm_up, times, cpu, wrong = batches > 1, [], 0.0, 0
        calls = [self.prepared(send, recv) for send, recv in self.buffers]
        for batch in range(batches + warm_up):
            for number, (send, recv) in enumerate(self.buffers):
                self.walk(send, self.sent, turn + number, True)
                self.walk(recv, self.before, turn + number, True)
            seconds, begin_cpu = [], time.process_time()
            for call in calls:
                # Not the bench's gate: a rank that polls takes its core from gloo's own threads,
                # which still serve other ranks.
                dist.barrier()
                begin = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - begin)
            if batch >= warm_up:
                cpu += time.process_time() - begin_cpu
                times += seconds
            for number, (_, recv) in enumerate(self.buffers):
                wrong += self.walk(recv, self.after, turn + number, False)
            turn += self.sets
        return times, cpu, wrong


def main():
    rank, ranks, store, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    # This process must not outlive the bench.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    stream = link.makefile("rb")
    link.sendall(f"rank {rank}\n".encode())
    case = None
    for line in stream:
        words = line.decode().split()
        if words[0] == "case":
            case = None
            case = Case(words[1:], stream, rank)
            link.sendall(f"none {case.why}\n".encode() if case.why else b"ok\n")
        else:
            try:
                times, cpu, wrong = case.run(int(words[1]), int(words[2]))
            except (RuntimeError, ValueError) as error:
                link.sendall(f"failed {' '.join(str(error).split())}\n".encode())
                break
            answer = f"done {len(times)} {cpu:e} {wrong}\n".encode()
            link.sendall(answer + struct.pack(f"={len(times)}d", *times))
    # Ends without gloo's shutdown, which waits for ranks that have ended.
    os._exit(0)


main()
