"""All-reduce of sparse tensors."""

from datetime import timedelta

import torch

from .. import Communicator
from .._native import refuse


def all_reduce(comm: Communicator, tensor: torch.Tensor, op: str, timeout: timedelta | None) -> None:
    """Combines sparse COO tensors of one shape in place.

    The values are combined at the union of all ranks' indices, in the order of a dense all-reduce: elsewhere the sum of
    zeros is zero. ``timeout`` is that of each of the three calls that this takes.
    """
    if tensor.layout != torch.sparse_coo or op not in ("sum", "mean"):
        refuse(comm, "all_reduce", "tensor", "sum or mean of a sparse COO tensor", f"{op} of {tensor.layout}")
    own = tensor.coalesce()
    indices = own.indices().contiguous()
    counts = torch.zeros(comm.size, dtype=torch.int64)
    comm.all_gather(torch.tensor([own._nnz()]), out=counts, timeout=timeout)
    dimensions = own.sparse_dim()
    # A row for each index: rows of all ranks follow each other.
    rows = torch.empty(int(counts.sum()), dimensions, dtype=torch.int64)
    parts = [int(count) * dimensions for count in counts]
    comm.all_gather(indices.t().contiguous(), out=rows, counts=parts, timeout=timeout)
    union, places = torch.unique(rows, dim=0, return_inverse=True)
    begin = int(counts[: comm.rank].sum())
    values = own.values().new_zeros(len(union), *own.values().shape[1:])
    values[places[begin : begin + own._nnz()]] = own.values()
    comm.all_reduce(values, op, out=values, timeout=timeout)
    result = torch.sparse_coo_tensor(union.t(), values, tensor.shape, is_coalesced=True)
    tensor.copy_(result)
