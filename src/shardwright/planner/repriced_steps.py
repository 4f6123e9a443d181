"""Seconds of steps that run, for the check of a certificate: what each device receives and sends is counted device by device.

A step is a fact: its name, the axes that it runs along, where the tensor is before and after, and the rows that a fetch wants.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.mesh import Mesh
from shardwright.plan import Fetch, Reduce, Spaced
from shardwright.planner.repriced_links import links_of
from shardwright.sharding import Sharding

Ints = NDArray[np.int64]
AS = {
    "prefix": "all_gather",
    "permute": "exchange",
    "fetch": "exchange",
    "update_halo": "permute",
}  # that steps count as

LOCAL = {
    "AllReduce": "all_reduce",
    "ReduceScatter": "reduce_scatter",
    "Scatter": "reduce_scatter",
    "AllGather": "all_gather",
    "Gather": "all_gather",
    "AllToAll": "all_to_all",
    "Broadcast": "broadcast",
    "Reduce": "broadcast",
    "UpdateHalo": "permute",
}  # what collectives of the local view count as


def seconds_of_steps(steps: Sequence[Any]) -> float:
    """Of steps one after the other."""
    return sum([_reduced(step) if isinstance(step, Reduce) else _moved(step) for step in steps])


def seconds_of_local(step: Any) -> float:
    """Of a collective on tensors of each device, from what the busiest of them receives."""
    name = type(step.collective).__name__
    if name == "Shift":
        kind = "permute" if abs(int(step.collective.offset)) == 1 else "exchange"
    else:
        kind = LOCAL.get(name, "exchange")
    return links_of(step.mesh, step.axes).seconds(kind, step.received)


# -- what devices add up -------------------------------------------------------------------------------------------------


def seconds_of_fused(steps: Sequence[Reduce]) -> float:
    """Of all_reduces whose rings run in step: what goes to a neighbour is one message."""
    received = max([sum(some) for some in zip(*map(_received, steps), strict=True)])
    return links_of(steps[0].source.mesh, steps[0].pieces).seconds("all_reduce", received)


def _reduced(step: Reduce) -> float:
    return links_of(step.source.mesh, step.pieces).seconds(step.name, max(_received(step)))


def _received(step: Reduce) -> tuple[int, ...]:
    """Bytes that the first and the last device of a ring receive: all chunks of a shard but one; in an all_reduce once more,
    when they are finished."""
    rows = [_rows(step.source, dim, n) for dim, n in enumerate(step.shape)]
    p, item = step.source.mesh.axis_size(step.pieces), step.dtype.itemsize
    if step.source.reduction == "average":  # in a wider dtype
        item = 8 if step.dtype.kind in "biu" else max(item, 4)
    local = math.prod([some.most for some in rows])
    if p == 1 or not local:
        return 0, 0
    if step.name == "reduce_scatter":
        own = rows[step.dim]
        chunks = max([n - _chunk(n, p, p - 1) for n in set((own.high - own.low).tolist())])
        return (local // own.most * chunks * item,) * 2
    first, last = [2 * local - _chunk(local, p, i) - _chunk(local, p, (i - 1) % p) for i in (0, p - 1)]
    return first * item, last * item


def _chunk(size: int, parts: int, index: int) -> int:
    """Rows of one of the blocks that a size is cut into."""
    block = -(-size // parts)
    return min(max(size - index * block, 0), block)


# -- what devices get from others ----------------------------------------------------------------------------------------


def _moved(step: Any) -> float:
    if step.name in ("local", "all_slice", "regroup"):
        return 0.0
    mesh, item = step.source.mesh, step.dtype.itemsize
    assert step.result.mesh == mesh, "programs are on one mesh"
    here = [_rows(step.source, dim, n) for dim, n in enumerate(step.shape)]
    there = [_rows(step.result, dim, n) for dim, n in enumerate(step.result_shape)]
    even = all(rows.even for rows in (*here, *there))
    wants = keeps = np.ones(
        mesh.size, np.int64
    )  # of each device: elements that it wants, and those of them that it has
    for dim, (old, new) in enumerate(zip(here, there, strict=True)):
        if isinstance(step, Fetch) and step.maps[dim] is not None:
            some = _picked(step.wanted[dim], old, new)
            wants, keeps = wants * some[0], keeps * some[1]
        else:
            wants = wants * (new.last - new.first)
            keeps = keeps * np.maximum(np.minimum(new.last, old.last) - np.maximum(new.first, old.first), 0)
    moved = int(np.max(wants - keeps, initial=0))
    if not moved:
        return 0.0
    if not even and step.name not in ("fetch", "update_halo"):
        moved = max(moved, _sent(here, there, keeps))
    links, name = links_of(mesh, step.pieces), AS.get(step.name, step.name)
    if name == "exchange" and (step.name == "fetch" or not even):
        return links.near(moved * item, _distance(step, here, there))
    return links.seconds(name, moved * item)


class _Rows:
    """Of each device the rows of one dim that it has: the number of its shard, where that begins and ends, and where what it
    holds does, with halos."""

    def __init__(self, sharding: Sharding, dim: int, size: int) -> None:
        mesh = sharding.mesh
        axes = sharding.dims[dim] if dim < len(sharding.dims) else ()
        self.size, self.axes, self.parts = size, axes, mesh.axis_size(axes) if axes else 1
        cuts = sharding.offsets_of(dim)
        block = -(-size // self.parts)
        self.cuts = np.array(cuts) if cuts else np.minimum(np.arange(self.parts + 1) * block, size)
        self.shard = np.zeros(mesh.size, np.int64)
        for axis in axes:
            piece = mesh.axis(axis)
            inside = mesh.sizes[piece.name] // (piece.pre * piece.size)
            self.shard = self.shard * piece.size + _coordinates(mesh)[piece.name] // inside % piece.size
        below, above = sharding.halo_of(dim)
        self.low, self.high = self.cuts[self.shard], self.cuts[self.shard + 1]
        self.first, self.last = np.maximum(self.low - below, 0), np.minimum(self.high + above, size)
        self.most = int(np.diff(self.cuts).max()) + below + above
        self.even = not cuts and not below and not above and size % self.parts == 0

    def owners(self, rows: Ints) -> Ints:
        """The shards that rows are in."""
        return np.searchsorted(self.cuts, rows, side="right") - 1


@lru_cache(maxsize=512)
def _rows(sharding: Sharding, dim: int, size: int) -> _Rows:
    return _Rows(sharding, dim, size)


@lru_cache(maxsize=16)
def _coordinates(mesh: Mesh) -> dict[str, Ints]:
    """The coordinate of every device along each axis."""
    return {axis: some.reshape(-1) for axis, some in zip(mesh.axis_names, np.indices(mesh.shape), strict=True)}


def _picked(wanted: Any, old: _Rows, new: _Rows) -> tuple[Ints, Ints]:
    """Of each device how many rows it wants, and how many of them it has, where a row map says which."""
    wants, keeps = np.zeros_like(new.shard), np.zeros_like(new.shard)
    for shard in np.unique(new.shard).tolist():
        own, rows = new.shard == shard, np.asarray(wanted.rows(shard))
        rows = np.sort(rows[rows >= 0])
        wants[own] = len(rows)
        keeps[own] = np.maximum(np.searchsorted(rows, old.last[own]) - np.searchsorted(rows, old.first[own]), 0)
    return wants, keeps


def _sent(here: Sequence[_Rows], there: Sequence[_Rows], keeps: Ints) -> int:
    """What the busiest device sends, if those that hold the same share the work: all copies of what they hold, but for what
    they keep themselves."""
    devices = len(keeps)
    holders, copies = (devices // math.prod([rows.parts for rows in some]) for some in (here, there))
    shard = np.zeros(devices, np.int64)
    held = np.ones(devices, np.int64)
    for rows in here:
        shard, held = shard * rows.parts + rows.shard, held * (rows.high - rows.low)
    kept = np.zeros(int(shard.max()) + 1, np.int64)
    np.add.at(kept, shard, keeps)
    return -(-int(np.max(held * copies - kept[shard], initial=0)) // holders)


def _distance(step: Any, here: Sequence[_Rows], there: Sequence[_Rows]) -> int | None:
    """How many shards apart devices are that exchange rows, at most; None unless that is along one dim whose axes stay."""
    mesh = step.source.mesh
    every = (*step.source.axes, *step.result.axes)
    if not mesh.share_a_cut(every) or any(
        mesh.cut(a.axes, every) != mesh.cut(b.axes, every) for a, b in zip(here, there, strict=True)
    ):
        return None
    crossed = []
    for wanted, old in zip(step.wanted, here, strict=True):
        some = list(_stretches(wanted, old.parts))
        if not some:
            return None
        shard, low, high = (np.array(part) for part in zip(*some, strict=True))
        before, after = old.owners(low) - shard, old.owners(high) - shard
        if before.any() or after.any():
            crossed.append((before, after, old.parts))
    if len(crossed) != 1:
        return None
    ((before, after, parts),) = crossed
    apart = np.maximum(*[np.minimum(np.abs(some), parts - np.abs(some)) for some in (before, after)])
    half = parts // 2
    opposite = ((before <= half) & (half <= after)) | ((before <= -half) & (-half <= after))
    return int(np.where(opposite, half, apart).max(initial=0))


def _stretches(wanted: Any, parts: int) -> Any:
    """Shards, and the first and last row of each stretch of rows that they want."""
    for shard in range(parts):
        rows = np.asarray(wanted.rows(shard))
        rows = rows[rows >= 0]
        if not len(rows):
            continue
        if hasattr(wanted, "flat") and not isinstance(wanted, Spaced):  # any rows
            yield from [(shard, row, row) for row in rows.tolist()]
            continue
        turns = np.flatnonzero(np.diff(rows) * (rows[1] - rows[0] if len(rows) > 1 else 1) < 0) + 1  # around the end
        for some in np.split(rows, turns):
            yield shard, int(some.min()), int(some.max())
