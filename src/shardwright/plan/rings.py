"""`Reduce`: what the devices of each group hold, combined around a ring."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.collectives import AllReduce, Collective, ReduceScatter
from shardwright.hardware import seconds
from shardwright.mesh import Mesh
from shardwright.plan.steps import Box, Step, coords_of, place_of
from shardwright.sharding import block_size

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Reduce(Step):
    """A ring over each group, in group order, of what its devices hold.

    all_reduce cuts the flattened local tensor into chunks of ceil(n/p): chunk i starts at member i + 1, is combined at each
    member on its way and ends at member i; a second round hands the finished chunks on. For reduce_scatter the chunks are the
    shards of the result, and there is no second round.
    """

    dim: int = -1  # of a reduce_scatter: the dim that gains axes

    @cached_property
    def carrier(self) -> "np.dtype[Any]":
        """The dtype that travels: averages of integers and of small floats are summed in a wider one."""
        return carrier(self.source.reduction, self.dtype)

    @property
    def itemsize(self) -> int:
        """Bytes of an element that travels."""
        return self.carrier.itemsize

    @cached_property
    def local(self) -> int:
        """Elements of the largest shard, halos included."""
        return math.prod(self.here.local_shape)

    @cached_property
    def group(self) -> int:
        """How many devices combine what they hold."""
        return self.source.mesh.axis_size(self.pieces)

    def chunks(self, place: int) -> list[Box | tuple[int, int]]:
        """What travels around the group of a place: boxes of the shard, or ranges of it flattened."""
        view = self.here.at(place)
        if self.name == "reduce_scatter":
            low, high = view.offsets[self.dim]
            bounds = sub_blocks(high - low, self.group)
            before, after = (slice(None),) * self.dim, (slice(None),) * (len(self.shape) - self.dim - 1)
            return [(*before, slice(a, b), *after) for a, b in bounds]
        return list(sub_blocks(math.prod(view.local_shape), self.group))

    @cached_property
    def received(self) -> int:
        """Bytes that the busiest device receives: all chunks but the one that starts with it, and its own."""
        local, p = self.local, self.group
        if p == 1 or not local:
            return 0
        if self.name == "reduce_scatter":
            rows = self.here.dims[self.dim].sizes
            least = np.maximum(rows - (p - 1) * block_size(rows, p), 0)  # of the last chunk
            most = int((rows - least).max(initial=0))
            return local // max(self.here.local_shape[self.dim], 1) * most * self.itemsize
        return int(self.per_member.max()) * self.itemsize

    @cached_property
    def per_member(self) -> Ints:
        """Of an all_reduce: elements that each member of a group receives, where shards are largest."""
        local, p = self.local, self.group
        block = int(block_size(local, p))
        sizes = np.clip(local - np.arange(p) * block, 0, block)
        return 2 * local - sizes - np.roll(sizes, 1)

    @property
    def sent(self) -> int:
        """Bytes that the busiest device sends: what its neighbour receives."""
        return self.received

    @cached_property
    def message(self) -> int:
        """Bytes of the largest single message."""
        if self.name == "reduce_scatter":
            return self.result.local_size(self.shape) * self.itemsize
        return int(block_size(self.local, self.group)) * self.itemsize

    @cached_property
    def time(self) -> float:
        """Seconds."""
        rounds = 2 if self.name == "all_reduce" else 1
        return seconds(self.source.mesh.links_along(self.pieces), self.received, rounds)

    @cached_property
    def collective(self) -> Collective:
        """The step as a collective on the tensors of each device."""
        if self.name == "reduce_scatter":
            return ReduceScatter(self.axes, self.dim, self.source.reduction)
        return AllReduce(self.axes, self.source.reduction)

    def members(self, place: int) -> list[int]:
        """The places of the group that a place belongs to, in group order."""
        return group_of(self.source.mesh, self.pieces, place)


def group_of(mesh: Mesh, axes: Sequence[str], place: int) -> list[int]:
    """The places of the group along some axes that a place belongs to, in group order: the first axis outermost."""
    lanes = mesh.lanes(axes)
    shape = tuple(mesh.axis(lane).size for lane in lanes)
    coords = list(coords_of(place, shape))
    inner = [lanes.index(piece) for piece in mesh.cut(tuple(axes), by=lanes)]
    result = []
    for at in product(*(range(shape[lane]) for lane in inner)):
        for lane, n in zip(inner, at, strict=True):
            coords[lane] = n
        result.append(place_of(coords, shape))
    return result


def carrier(reduction: str, dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """The dtype in which a reduction travels."""
    if reduction != "average":
        return dtype
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def sub_blocks(size: int, parts: int) -> Iterator[tuple[int, int]]:
    """Where each of the usual blocks of a size begins and ends."""
    block = int(block_size(size, parts))
    return ((min(i * block, size), min((i + 1) * block, size)) for i in range(parts))
