"""The mean of an array over all ranks: `consonance run -n 4 python mean.py`."""

import numpy as np

import consonance as cs

with cs.Communicator.from_env() as comm:
    data = np.full(1_000_000, comm.rank, np.float32)
    comm.all_reduce(data, "mean", out=data)
    print(f"rank {comm.rank} of {comm.size}: the mean is {data[0]}")
