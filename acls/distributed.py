"""Several processes as one: sums and gathers that do nothing where there is one process.

The only importer of `torch.distributed`.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def is_on() -> bool:
    """Whether a process group runs."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This process's number, 0 where there is only one."""
    return dist.get_rank() if is_on() else 0


def world() -> int:
    """How many processes work together."""
    return dist.get_world_size() if is_on() else 1


def all_reduce(tensor: Tensor) -> Tensor:
    """Sum a tensor over the processes; the input is left as it was."""
    if world() == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def all_gather(tensor: Tensor) -> Tensor:
    """Concatenate the processes' tensors along axis 0, in the order of ranks; their lengths may differ."""
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
    """Wait until every process is here."""
    if world() > 1:
        dist.barrier()
