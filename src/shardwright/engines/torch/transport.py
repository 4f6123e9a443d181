"""Tensors on the wire: exchanges with exact sizes, gathers, and reductions, as torch.distributed has them or made of exchanges.

What a backend refuses (gloo: int16, unsigned integers but bytes, small floats) travels as bytes; what it gets wrong (a maximum
of floats with NaNs) or lacks is combined here, chunk by chunk, in the order of the ring that plans speak of.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from shardwright.engines.torch.processes import Group
from shardwright.plan import sub_blocks

Tensor = torch.Tensor
Combine = Callable[[Tensor, Tensor], Tensor]

TRAVELS = frozenset((torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64))
_FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
_INTEGERS = frozenset((torch.uint8, torch.int8, torch.int32, torch.int64))

_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name from torch 2.13 on

# What gloo and NCCL combine as NumPy does. Maxima of floats are not here: they lose NaNs.
NATIVE: dict[str, tuple[Any, frozenset[torch.dtype]]] = {
    "sum": (dist.ReduceOp.SUM, _FLOATS | _INTEGERS),
    "product": (dist.ReduceOp.PRODUCT, _FLOATS | _INTEGERS),
    "max": (dist.ReduceOp.MAX, _INTEGERS),
    "min": (dist.ReduceOp.MIN, _INTEGERS),
}


def exchange(group: Group, sends: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """What each member sends to this process, flat. `sends` has a flat tensor for each member, `sizes` how much each sends."""
    dtype, device = sends[0].dtype, sends[0].device
    count = len(group.ranks)
    at = group.order if group.is_sorted else tuple(group.order.index(i) for i in range(count))
    given = torch.cat([sends[member] for member in at])
    taken = torch.empty(sum(sizes), dtype=dtype, device=device)
    width = 1 if dtype in TRAVELS else dtype.itemsize
    raw = [x if width == 1 and dtype in TRAVELS else x.view(torch.uint8) for x in (taken, given)]
    incoming, outgoing = [sizes[m] * width for m in at], [sends[m].numel() * width for m in at]
    dist.all_to_all_single(raw[0], raw[1], incoming, outgoing, group=group.handle)
    pieces = taken.split([sizes[member] for member in at])
    return [pieces[group.order[member]] for member in range(count)]


def all_gather(group: Group, tensor: Tensor) -> Tensor:
    """The tensors of all members, of one shape, along a new first dim, in the group's order."""
    flat = tensor.contiguous().reshape(-1)
    made = torch.empty((len(group.ranks), flat.numel()), dtype=tensor.dtype, device=tensor.device)
    raw = (made, flat) if tensor.dtype in TRAVELS else (made.view(torch.uint8), flat.view(torch.uint8))
    _gather(raw[0].view(-1), raw[1], group=group.handle)
    made = made.reshape(len(group.ranks), *tensor.shape)
    return made if group.is_sorted else made[list(group.order)]


def all_reduce(group: Group, tensor: Tensor, op: str, combine: Combine) -> Tensor:
    """What the tensors of all members, of one shape, come to; averages are sums here."""
    native, dtypes = NATIVE.get(op, (None, frozenset()))
    if tensor.dtype in dtypes:
        made = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(made, native, group=group.handle)
        return made
    flat = tensor.reshape(-1)
    bounds = list(sub_blocks(flat.numel(), len(group.ranks)))
    mine = reduce_scatter(group, [flat[a:b] for a, b in bounds], combine)
    sizes = [b - a for a, b in bounds]
    return torch.cat(exchange(group, [mine] * len(sizes), sizes)).reshape(tensor.shape)


def reduce_scatter(group: Group, chunks: Sequence[Tensor], combine: Combine) -> Tensor:
    """What the members' chunks for this process come to: chunk i belongs to member i, and is combined from i + 1 on around."""
    own = group.ranks.index(dist.get_rank())
    shape, count = chunks[own].shape, len(chunks)
    parts = exchange(group, [chunk.reshape(-1) for chunk in chunks], [chunks[own].numel()] * count)
    total = parts[(own + 1) % count]
    for hop in range(2, count + 1):
        total = combine(total, parts[(own + hop) % count])
    return total.reshape(shape)
