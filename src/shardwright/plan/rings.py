"""`Reduce`: what the devices of each group hold, combined around a ring."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from shardwright.collectives import AllReduce, Collective, ReduceScatter
from shardwright.mesh import Mesh
from shardwright.plan.steps import Box, Step, coords_of, place_of
from shardwright.sharding import block_size


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
            most = max(n - _chunk(n, p, p - 1) for n in self.here.dims[self.dim].distinct_sizes)
            return local // max(self.here.local_shape[self.dim], 1) * most * self.itemsize
        return max(map(self.received_by, self.busiest)) * self.itemsize

    @property
    def busiest(self) -> tuple[int, int]:
        """Of an all_reduce: the members of a group of which one receives most: chunks never grow from one to the next."""
        return 0, self.group - 1

    def received_by(self, member: int) -> int:
        """Of an all_reduce: elements that a member of a group receives, where shards are largest."""
        own, started = (_chunk(self.local, self.group, i % self.group) for i in (member, member - 1))
        return 2 * self.local - own - started

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
        return self.source.mesh.fabric(self.pieces).seconds(self.name, self.received)

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


def _chunk(size: int, parts: int, index: int) -> int:
    """The rows of one of the usual blocks of a size."""
    block: int = block_size(size, parts)
    return min(max(size - index * block, 0), block)


def sub_blocks(size: int, parts: int) -> Iterator[tuple[int, int]]:
    """Where each of the usual blocks of a size begins and ends."""
    block = int(block_size(size, parts))
    return ((min(i * block, size), min((i + 1) * block, size)) for i in range(parts))
