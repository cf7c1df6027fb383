"""Sum and gather tensors over several processes; with one process these functions do nothing.

This is the only module that imports `torch.distributed`.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def is_on() -> bool:
    """Return whether a process group is initialized."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Return the rank of this process, 0 if there is only one process."""
    return dist.get_rank() if is_on() else 0


def world() -> int:
    """Return the number of processes in the group."""
    return dist.get_world_size() if is_on() else 1


def all_reduce(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes; the input is not changed."""
    if world() == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def all_gather(tensor: Tensor) -> Tensor:
    """Concatenate the tensors of all processes along axis 0, ordered by rank; their lengths may differ."""
    if world() == 1:
        return tensor
    length = torch.tensor([tensor.shape[0]], device=tensor.device)
    lengths = [torch.zeros_like(length) for _ in range(world())]
    dist.all_gather(lengths, length)
    longest = int(max(lengths))
    padded = tensor.new_zeros((longest, *tensor.shape[1:]))
    padded[: tensor.shape[0]] = tensor
    parts = [torch.zeros_like(padded) for _ in range(world())]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(n)] for part, n in zip(parts, lengths, strict=True)])


def barrier() -> None:
    """Wait until every process has reached this call."""
    if world() > 1:
        dist.barrier()
