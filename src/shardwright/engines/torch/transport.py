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

# What gloo and NCCL combine as NumPy does. Maxima of floats are not here: they lose NaNs.
NATIVE: dict[str, tuple[Any, frozenset[torch.dtype]]] = {
    "sum": (dist.ReduceOp.SUM, _FLOATS | _INTEGERS),
    "product": (dist.ReduceOp.PRODUCT, _FLOATS | _INTEGERS),
    "max": (dist.ReduceOp.MAX, _INTEGERS),
    "min": (dist.ReduceOp.MIN, _INTEGERS),
}


def exchange(group: Group, sends: Sequence[Tensor], sizes: Sequence[int], tag: int = 0) -> Tensor:
    """What all members send to this process, flat, one after the other. `sends` has a tensor for each member, `sizes` how many
    elements each sends. On gloo only messages of one `tag` meet."""
    if isinstance(group.handle, dist.ProcessGroupGloo):
        return _messages(group, sends, sizes, tag)
    dtype, device = sends[0].dtype, sends[0].device
    given = _joined(sends)
    taken = torch.empty(sum(sizes), dtype=dtype, device=device)
    width = 1 if dtype in TRAVELS else dtype.itemsize
    incoming, outgoing = [n * width for n in sizes], [x.numel() * width for x in sends]
    work = group.handle.alltoall_base(_raw(taken), _raw(given), incoming, outgoing, dist.AllToAllOptions())
    work.wait()
    return taken


def _messages(group: Group, sends: Sequence[Tensor], sizes: Sequence[int], tag: int) -> Tensor:
    """An exchange as a message to and from each member. Gloo's own collectives end a process that gets another number of bytes
    than it expects; messages whose tags differ never meet, and who waits for one is told after the time-out."""
    handle, own, count = group.handle, group.own, len(sizes)
    taken = torch.empty(sum(sizes), dtype=sends[0].dtype, device=sends[0].device)
    parts, works = torch.split(taken, list(sizes)), []
    for hop in range(1, count):
        source, target = (own - hop) % count, (own + hop) % count
        if sizes[source]:
            works.append(handle.recv([parts[source]], source, tag))
        if sends[target].numel():
            works.append(handle.send([sends[target].contiguous()], target, tag))
    if sizes[own]:
        parts[own].copy_(sends[own].reshape(-1))
    for work in works:
        work.wait()
    return taken


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Tensors as one flat one: without a copy where they follow one another in memory, else with one."""
    total = sum(part.numel() for part in parts)
    first = next((part for part in parts if part.numel()), parts[0])
    at = first.data_ptr()
    for part in parts:
        if part.numel() and (part.data_ptr() != at or not part.is_contiguous()):
            return _copied(parts, total)
        at += part.numel() * part.dtype.itemsize
    return first.as_strided((total,), (1,))


def _copied(parts: Sequence[Tensor], total: int) -> Tensor:
    made = torch.empty(total, dtype=parts[0].dtype, device=parts[0].device)
    at = 0
    for part in parts:
        made[at : at + part.numel()].view(part.shape).copy_(part)
        at += part.numel()
    return made


def all_gather(group: Group, tensor: Tensor, tag: int = 0) -> Tensor:
    """The tensors of all members, of one shape, along a new first dim."""
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))  # one element may have a stride of 0
    count = len(group.ranks)
    if isinstance(group.handle, dist.ProcessGroupGloo):  # three times as fast as its own for large tensors
        return _messages(group, [flat] * count, [flat.numel()] * count, tag).reshape(count, *tensor.shape)
    made = torch.empty((count, flat.numel()), dtype=tensor.dtype, device=tensor.device)
    group.handle._allgather_base(_raw(made).view(-1), _raw(flat)).wait()
    return made.reshape(count, *tensor.shape)


def _raw(tensor: Tensor) -> Tensor:
    """A contiguous tensor as the backend takes it: what it refuses goes as bytes."""
    return tensor if tensor.dtype in TRAVELS else tensor.view(torch.uint8)


def all_reduce(group: Group, tensor: Tensor, op: str, combine: Combine, spare: bool = False, tag: int = 0) -> Tensor:
    """What the tensors of all members, of one shape, come to; averages are sums here. A `spare` tensor may be overwritten."""
    native, dtypes = NATIVE.get(op, (None, frozenset()))
    if tensor.dtype in dtypes:
        made = tensor.contiguous() if spare else tensor.clone(memory_format=torch.contiguous_format)
        options = dist.AllreduceOptions()
        options.reduceOp = native
        group.handle.allreduce([made], options).wait()
        return made
    flat = tensor.reshape(-1)
    bounds = list(sub_blocks(flat.numel(), len(group.ranks)))
    mine = reduce_scatter(group, [flat[a:b] for a, b in bounds], op, combine, tag)
    return exchange(group, [mine] * len(bounds), [b - a for a, b in bounds], tag).reshape(tensor.shape)


def reduce_scatter(group: Group, chunks: Sequence[Tensor], op: str, combine: Combine, tag: int = 0) -> Tensor:
    """What the members' chunks for this process come to: chunk i belongs to member i, and is combined from i + 1 on around."""
    own = group.own
    shape, count = chunks[own].shape, len(chunks)
    sizes = [chunks[own].numel()] * count
    parts = torch.split(exchange(group, chunks, sizes, tag), sizes)
    total = parts[(own + 1) % count]
    in_place = op == "sum" and total.dtype in NATIVE["sum"][1]
    for hop in range(2, count + 1):
        part = parts[(own + hop) % count]
        total = total.add_(part) if in_place else combine(total, part)
    return total.reshape(shape)
