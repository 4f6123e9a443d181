"""`Sharding` and DTensor's placements. What DTensor can't hold, or would read back wrongly, is refused.

Placements are one per mesh dim: Shard(d) splits dim d, mesh dims from left to right, the left one outermost. Where a
later mesh dim is the outer one, torch writes _StridedShard for the inner one: for P(("y", "x")) on Mesh(x=2, y=3) it is
_StridedShard(0, split_factor=3) and Shard(0), because 3 blocks of y lie around those of x.
"""

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardwright.errors import ShardingError
from shardwright.mesh import Mesh
from shardwright.sharding import P, Sharding, block_size

REDUCE_OPS = MappingProxyType({"sum": "sum", "average": "avg", "max": "max", "min": "min", "product": "product"})
STRIDED_SINCE = (2, 13)  # earlier releases of torch were not tested, and read _StridedShard in other ways


def to_placements(sharding: Sharding, shape: int | Sequence[int]) -> tuple[Placement, ...]:
    """The placements of a DTensor with this sharding, one per mesh axis.

    >>> mesh = Mesh(data=2, model=4)
    >>> to_placements(Sharding(mesh, P(None, "model"), partial="data"), (8, 16))
    (Partial(sum), Shard(dim=1))
    >>> to_placements(Sharding(mesh, P(("model", "data"))), (8, 16))
    (_StridedShard(dim=0, sf=4), Shard(dim=0))

    `shape` is the tensor's shape, or its number of dims; then sizes are not checked. Refused are halos, explicit offsets,
    sub-axes, bitwise reductions, and a dim that several axes split unevenly: torch cuts it in other blocks.
    """
    if not isinstance(sharding, Sharding):
        raise ShardingError(f"to_placements takes a Sharding and a shape; got {type(sharding).__name__}.")
    known = not isinstance(shape, int)
    sizes = tuple(int(n) for n in shape) if not isinstance(shape, int) else (0,) * shape
    fitted = sharding.for_shape(sizes) if known or not (sharding.offsets or sharding.halo) else sharding
    _check_held(fitted)
    result: list[Placement] = [Replicate() for _ in fitted.mesh.axis_names]
    place = {axis: i for i, axis in enumerate(fitted.mesh.axis_names)}
    for dim, axes in enumerate(fitted.dims):
        if known:
            check_even(fitted.mesh, axes, dim, sizes[dim])
        for i, axis in enumerate(axes):
            around = math.prod(fitted.mesh.sizes[outer] for outer in axes[:i] if place[outer] > place[axis])
            result[place[axis]] = Shard(dim) if around == 1 else _strided(dim, around, fitted)
    for axis in fitted.partial:
        result[place[axis]] = Partial(REDUCE_OPS[fitted.reduction])
    return tuple(result)


def from_placements(mesh: Mesh, placements: Sequence[Placement], shape: int | Sequence[int]) -> Sharding:
    """The sharding of a DTensor with these placements on a mesh with the same axes.

    >>> from_placements(Mesh(data=2, model=4), (Shard(0), Shard(0)), (16, 3))
    Sharding(Mesh(data=2, model=4), P(('data', 'model'), None))

    `shape` is the tensor's shape, or its number of dims; then sizes are not checked. Refused are the same things as by
    `to_placements`, strides that no order of axes has, and Partial placements of several kinds.
    """
    if len(placements) != len(mesh.axis_names):
        raise ShardingError(
            f"{len(placements)} placements {_shown(placements)} for {mesh}, which has {len(mesh.axis_names)} axes: "
            f"give one per axis."
        )
    ndim = shape if isinstance(shape, int) else len(shape)
    orders: list[list[str]] = [[] for _ in range(ndim)]
    for axis, placement in reversed(list(zip(mesh.axis_names, placements, strict=True))):
        if isinstance(placement, Shard | _StridedShard):
            _insert(orders[_dim_of(placement, ndim, placements)], axis, placement, mesh, placements)
        elif type(placement) not in (Partial, Replicate):
            raise ShardingError(
                f"The placement {placement} along axis {axis!r} has no counterpart in a Sharding. Bring the DTensor to "
                f"Shard, Replicate or Partial placements first, with redistribute."
            )
    partial = {axis: p.reduce_op for axis, p in zip(mesh.axis_names, placements, strict=True) if type(p) is Partial}
    sharding = Sharding(mesh, P(*orders), partial=tuple(partial), reduction=_reduction(partial))
    if not isinstance(shape, int):
        for dim, axes in enumerate(sharding.dims):
            check_even(mesh, axes, dim, int(shape[dim]))
    return sharding


def check_even(mesh: Mesh, axes: Sequence[str], dim: int, size: int) -> None:
    """Refuse a dim that several axes split unevenly.

    torch cuts it axis by axis: 5 rows over 2 x 2 are 2, 1, 1, 1 rows, not 2, 2, 1, 0. And once these dims of a DeviceMesh
    are flattened, as torch's own warning advises, `full_tensor()` of such a DTensor is wrong (torch 2.13).
    """
    split = [axis for axis in axes if mesh.axis(axis).size > 1]
    parts = mesh.axis_size(tuple(split)) if split else 1
    if len(split) < 2 or size % parts == 0:
        return
    raise ShardingError(
        f"Dim {dim} of size {size} is split by the axes {', '.join(split)} into {parts} uneven shards. DTensor would cut "
        f"it axis by axis, into other blocks than shardwright's blocks of {block_size(size, parts)}, and its full_tensor() "
        f"can be wrong. Pad the dim to {parts * block_size(size, parts)}, split it by one axis, or merge the axes: a mesh "
        f"with one axis of size {parts} in their place."
    )


def _check_held(sharding: Sharding) -> None:
    """Refuse what DTensor has no words for."""
    mesh = sharding.mesh
    if sharding.halo:
        raise ShardingError(f"{sharding} has a halo, which a DTensor can't hold. Reshard to one without a halo first.")
    if sharding.offsets:
        raise ShardingError(
            f"{sharding} has explicit offsets; the shards of a DTensor are blocks of ceil(size / shards). Reshard to "
            f"{sharding.replace(offsets={}).spec} first."
        )
    for axis in sharding.axes:
        if axis not in mesh.sizes:
            whole = mesh.axis(axis)
            raise ShardingError(
                f"{sharding.spec} splits by the sub-axis {axis!r}; DTensor shards along entire mesh dims. Make a mesh in "
                f"which this part of {whole.name!r} is an axis of its own."
            )
    if sharding.partial and sharding.reduction not in REDUCE_OPS:
        raise ShardingError(
            f"{sharding} has a pending {sharding.reduction}; DTensor has {', '.join(REDUCE_OPS)}. Reduce it first, with "
            f"reshard."
        )


def _strided(dim: int, around: int, sharding: Sharding) -> Placement:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < STRIDED_SINCE:
        raise ShardingError(
            f"Dim {dim} of {sharding.spec} is split by axes in another order than that of {sharding.mesh}. torch "
            f"{torch.__version__} reads such DTensors back in ways that were not tested; use torch "
            f"{'.'.join(map(str, STRIDED_SINCE))} or newer, or name the axes in the order of the mesh."
        )
    return _StridedShard(dim, split_factor=around)


def _dim_of(placement: Any, ndim: int, placements: Sequence[Placement]) -> int:
    dim = int(placement.dim)
    if not -ndim <= dim < ndim:
        raise ShardingError(
            f"The placements {_shown(placements)} split dim {dim}, but the tensor has {ndim} dims. Use a dim from "
            f"{-ndim} to {ndim - 1}."
        )
    return dim % ndim


def _insert(order: list[str], axis: str, placement: Any, mesh: Mesh, placements: Sequence[Placement]) -> None:
    """Put an axis to the right of as many axes, all of them later in the mesh, as its stride says."""
    around, wanted = 1, int(getattr(placement, "split_factor", 1))
    for i in range(len(order) + 1):
        if around == wanted:
            order.insert(i, axis)
            return
        if i < len(order):
            around *= mesh.sizes[order[i]]
    raise ShardingError(
        f"The placements {_shown(placements)} have a stride of {wanted} along axis {axis!r}, which no order of the axes of "
        f"{mesh} gives. Bring the DTensor to Shard placements first, with redistribute."
    )


def _reduction(partial: dict[str, str]) -> str:
    if len(set(partial.values())) > 1:
        pairs = ", ".join(f"{op} along {axis}" for axis, op in partial.items())
        raise ShardingError(f"A Sharding has one pending reduction; got {pairs}. Reduce one first, with redistribute.")
    names = {op: name for name, op in REDUCE_OPS.items()}
    for axis, op in partial.items():
        if op not in names:
            raise ShardingError(
                f"Partial({op!r}) along axis {axis!r} has no counterpart; the reductions are {', '.join(names)}. "
                f"Reduce it first, with redistribute."
            )
        return names[op]
    return "sum"


def _shown(placements: Sequence[Placement]) -> str:
    return f"({', '.join(map(repr, placements))})"
