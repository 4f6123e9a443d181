"""Collectives on a mesh, along one of its axes (`cluster_axis`) or over all its devices. Links don't affect results."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardwright.arrays import PerDevice
from shardwright.collectives import AllGather, AllReduce, AllSlice, AllToAll, Broadcast, Collective, ReduceScatter
from shardwright.engines.lanes import stack
from shardwright.errors import CollectiveError, ShardingError, ShardwrightError
from shardwright.sharding import Sharding
from shardwright.ttnn.calls import operation
from shardwright.ttnn.errors import fatal
from shardwright.ttnn.tensors import Tensor, as_blocks

_NEEDS = "Give a dim divisible by the group, or an axis of the mesh."


def _axes(tensor: Tensor, cluster_axis: int | None) -> tuple[str, ...]:
    names = tensor.mesh.axis_names
    if cluster_axis is None:
        return names
    if not -len(names) <= cluster_axis < len(names):
        raise fatal(f"Invalid cluster_axis {cluster_axis}", f"The mesh has axes 0 to {len(names) - 1}.")
    return (names[cluster_axis],)


def _run(tensor: Tensor, collective: Collective) -> Tensor:
    """Runs a collective; the result's sharding is known if it follows from the operand's."""
    try:
        made = as_blocks(tensor.value.apply_collective(collective), tensor.dtype)
    except ShardwrightError as error:
        text = str(error).split(". ")[0].removeprefix(f"{collective.name}: ")
        raise fatal(text, _NEEDS) from error
    sharding, shape = _placement(tensor, collective)
    return tensor.like(made, sharding, shape)


def _placement(tensor: Tensor, collective: Collective) -> tuple[Sharding | None, tuple[int, ...] | None]:
    sharding, shape = tensor.sharding, tensor._global
    if sharding is None or shape is None:
        return None, None
    long = tuple(axis for axis in collective.axes if tensor.mesh.axis(axis).size > 1)
    if not long:
        return sharding, shape
    collective = replace(collective, axes=long)
    made = _inferred(collective, tensor, sharding, shape)
    if made is not None:
        return made, shape
    if any(axis in sharding.axes for axis in collective.axes):
        return None, None
    return collective.on_copies(sharding, shape) or (None, None)


def _inferred(collective: Collective, tensor: Tensor, sharding: Sharding, shape: tuple[int, ...]) -> Sharding | None:
    """The result's sharding by the collective's own rule; None if the rule does not apply to one sharded tensor."""
    try:
        return collective.bind(tensor.mesh, shape, tensor.value.dtype, uneven=True).on(sharding, shape)
    except (CollectiveError, ShardingError):
        return None


def _coords(tensor: Tensor, coord: Sequence[int]) -> None:
    shape = tensor.mesh.shape
    if len(tuple(coord)) != len(shape) or any(not 0 <= a < n for a, n in zip(coord, shape, strict=True)):
        raise fatal(f"Coordinate {list(coord)} is not in the mesh {list(shape)}", "Give one coordinate per mesh axis.")


@operation(_NEEDS)
def all_gather(tensor: Tensor, dim: int, *, cluster_axis: int | None = None, **options: Any) -> Tensor:
    """Every device gets its group's tensors joined along a dim."""
    return _run(tensor, AllGather(_axes(tensor, cluster_axis), dim))


@operation(_NEEDS)
def all_reduce(tensor: Tensor, *, cluster_axis: int | None = None, **options: Any) -> Tensor:
    """Every device gets the sum of its group's tensors."""
    return _run(tensor, AllReduce(_axes(tensor, cluster_axis)))


@operation(_NEEDS)
def reduce_scatter(tensor: Tensor, dim: int, *, cluster_axis: int | None = None, **options: Any) -> Tensor:
    """Every device gets its piece, along a dim, of the sum of its group's tensors."""
    return _run(tensor, ReduceScatter(_axes(tensor, cluster_axis), dim))


@operation(_NEEDS)
def mesh_partition(tensor: Tensor, dim: int, cluster_axis: int | None = None, **options: Any) -> Tensor:
    """Every device keeps its piece of a dim of its own tensor."""
    return _run(tensor, AllSlice(_axes(tensor, cluster_axis), dim))


@operation(_NEEDS)
def all_to_all(tensor: Tensor, in_dim: int, out_dim: int, *, cluster_axis: int | None = None, **options: Any) -> Tensor:
    """A tensor split along `in_dim` becomes split along `out_dim`: on each device `in_dim` grows and `out_dim` shrinks.

    With a group of n, `in_dim` is n times as long afterwards, and `out_dim`, which n must divide, is cut into n pieces:
    piece i goes to member i, which joins the received pieces along `in_dim`.
    """
    return _run(tensor, AllToAll(_axes(tensor, cluster_axis), split_dim=out_dim, concat_dim=in_dim))


@operation(_NEEDS)
def broadcast(
    tensor: Tensor, sender_coord: Sequence[int], *, cluster_axis: int | None = None, **options: Any
) -> Tensor:
    """Every device of a group gets the tensor of the member at the sender's coordinates."""
    axes = _axes(tensor, cluster_axis)
    _coords(tensor, sender_coord)
    place = dict(zip(tensor.mesh.axis_names, tuple(sender_coord), strict=True))
    return _run(tensor, Broadcast(axes, tuple(place[axis] for axis in axes)))


@operation(_NEEDS)
def all_broadcast(tensor: Tensor, *, cluster_axis: int | None = None, **options: Any) -> list[Tensor]:
    """A list with the tensor of each member of a group, each on all members."""
    axes = _axes(tensor, cluster_axis)
    sizes = [tensor.mesh.axis(axis).size for axis in axes]
    made = []
    for number in range(tensor.mesh.axis_size(axes)):
        root, left = [], number
        for size in reversed(sizes):
            left, at = divmod(left, size)
            root.append(at)
        made.append(_run(tensor, Broadcast(axes, tuple(reversed(root)))))
    return made


@operation(_NEEDS)
def point_to_point(
    tensor: Tensor, sender_coord: Sequence[int], receiver_coord: Sequence[int], **options: Any
) -> Tensor:
    """The receiver gets the sender's tensor; all others keep their own."""
    mesh = tensor.mesh
    for coord in (sender_coord, receiver_coord):
        _coords(tensor, coord)
    here, there = (mesh.position(mesh.index(tuple(c))) for c in (sender_coord, receiver_coord))
    values = list(tensor.value.values())
    values[there] = values[here]
    same = tensor.sharding is not None and tensor.sharding.is_replicated
    return tensor.like(
        PerDevice.of(stack(mesh, [np.asarray(x) for x in values])),
        tensor.sharding if same else None,
        tensor._global if same else None,
    )
