"""The stacked engine: all devices of a mesh in one process, one array for all of them.

It cuts host tensors into lanes and joins them again, and runs every collective as moves between lanes and dims.
"""

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import shardwright.engines.lanes as ln
from shardwright.collectives import (
    AllGather,
    AllReduce,
    AllSlice,
    AllToAll,
    Broadcast,
    Collective,
    Gather,
    Permute,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
    Shift,
    UpdateHalo,
)
from shardwright.engines.halo import update_halo
from shardwright.engines.lanes import Data, Lanes
from shardwright.errors import CollectiveError
from shardwright.mesh import Mesh, overlap
from shardwright.sharding import REDUCTIONS, Layout, Sharding, layout_of


class Stacked:
    """Every device in one process, on NumPy."""

    processes = 1  # that share the work

    def __init__(self) -> None:
        self._open = threading.local()

    def everyones(self, steps: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The steps of the program that each process holds: here there is one process."""
        return [steps]

    # -- host tensors and lanes -----------------------------------------------------------------------------------

    def cut(self, joined: Data, layout: Layout) -> Data:
        """A whole tensor (behind lanes that are 1 long, but for partial ones) as shards: a view where they are even."""
        if not layout.is_even:
            joined = _pad(joined, layout)
            for at, dim in enumerate(layout.dims):
                if not dim.is_trailing:
                    joined = _windows(joined, layout, at)
        return joined.reshape(layout.split_shape).transpose(layout.split_order)

    def join(self, data: Data, layout: Layout) -> Data:
        """The inverse of `cut`: a view where the shards still lie in memory as the whole tensor does."""
        lane_shape = [1 if lane in layout.dim_lanes else data.shape[lane] for lane in range(len(layout.lanes))]
        whole = data.transpose(layout.join_order).reshape((*lane_shape, *layout.padded_shape))
        for at, dim in enumerate(layout.dims, start=len(layout.lanes)):
            if not dim.is_trailing:
                whole = np.take(whole, dim.places(), axis=at)
            elif not dim.is_even:
                whole = whole[(*(slice(None),) * at, slice(0, dim.size))]
        return whole

    def reshard(self, data: Data, source: Layout, target: Layout) -> Data:
        """The shards of one layout as those of another; partial values are reduced unless the target keeps them."""
        if source is target:
            return data
        kept = _kept_partial(source.sharding, target.sharding, data.dtype)
        here, there = _finer(source, kept), _finer(target, kept)
        data = data.reshape((*here.lane_shape, *here.local_shape))
        done = tuple(lane for lane in here.partial_lanes if here.lanes[lane] not in kept)
        if done:
            data = self.reduce(data, done, source.sharding.reduction)
        lane_shape = (n if lane in kept else 1 for lane, n in zip(there.lanes, there.full_shape, strict=True))
        whole = self.join(data, here).reshape((*lane_shape, *target.shape))
        made = self.cut(self.apart(whole, there, kept), there)
        return made.reshape((*target.lane_shape, *target.local_shape))

    def apart(self, whole: Data, layout: Layout, kept: tuple[str, ...] = ()) -> Data:
        """A value as one that is partial: the reduction over the devices gives the value back."""
        missing = [lane for lane in layout.partial_lanes if layout.lanes[lane] not in kept]
        if not missing:
            return whole
        rest = REDUCTIONS[layout.sharding.reduction].rest
        shape = (*layout.joined_lane_shape, *layout.shape)
        if rest is None:
            return np.broadcast_to(whole, shape)
        data = np.full(shape, rest, dtype=whole.dtype)
        if rest == 0 and whole.dtype.kind in "fc":
            data = np.negative(data)  # -0.0 + x is x for every x, 0.0 + -0.0 is not
        first = tuple(slice(0, 1) if i in missing else slice(None) for i in range(len(layout.lanes)))
        data[first] = whole
        return data

    def reduce(self, data: Data, lanes: tuple[int, ...], op: str, dtype: "np.dtype[Any] | None" = None) -> Data:
        """Combine what the devices along some lanes hold, converted to `dtype` first; the lanes are 1 long then."""
        if dtype is not None and dtype != data.dtype:
            data = data.astype(dtype)
        ufunc = REDUCTIONS[op].ufunc
        if ufunc is not None:
            combine: np.ufunc = getattr(np, ufunc)
            options: dict[str, Any] = {"initial": -0.0} if op == "sum" and data.dtype.kind == "f" else {}  # keeps -0.0
            result: Data = combine.reduce(data, axis=lanes, dtype=data.dtype, keepdims=True, **options)
            return result
        wide = (
            data.astype(np.float32)
            if (data.dtype.itemsize < 2 and data.dtype.kind in "fV") or data.dtype.kind == "V"
            else data
        )
        with np.errstate(over="ignore", invalid="ignore"):
            average: Data = np.mean(wide, axis=lanes, keepdims=True).astype(data.dtype)
        first = data[tuple(slice(0, 1) if i in lanes else slice(None) for i in range(data.ndim))]
        same = (data == first).all(axis=lanes, keepdims=True)
        return np.where(same, first, average)  # the average of equal values is that value, without rounding

    # -- collectives on a tensor per device -----------------------------------------------------------------------

    def run(self, collective: Collective, v: Lanes) -> Lanes:
        """Run a collective on a tensor per device."""
        if not isinstance(collective, Send | Recv):
            self.check_sends(v.mesh, f"before {collective.name}")
        uneven = isinstance(collective, Scatter)  # whose operand is the root's tensor alone
        for shape in v.shapes():
            bound = collective.bind(v.mesh, shape, v.data.dtype, uneven=uneven)
        v, lanes = ln.focus(v, bound.axes)
        if isinstance(bound, Scatter):
            v = ln.select(v, lanes, bound.root)
            for shape in v.shapes():
                bound.bind(v.mesh, shape, v.data.dtype)
        return _RUN[type(bound)](self, bound, v, lanes)

    def _all_reduce(self, c: AllReduce | Reduce | ReduceScatter, v: Lanes, lanes: tuple[int, ...]) -> Lanes:
        extents = ln.same_along(v, lanes, range(v.ndim), c.name)
        data = self.reduce(ln.spread(v, lanes).data, lanes, c.op, c.dtype)
        return ln.lanes_from(v.mesh, v.axes, data, extents)

    def _shift(self, c: Shift, v: Lanes, lanes: tuple[int, ...]) -> Lanes:
        lane = lanes[c.axes.index(c.shift_axis)]
        count = v.full_shape[lane]
        sources = np.arange(count) - int(c.offset)
        inside = (sources >= 0) & (sources < count)
        return ln.move(v, (lane,), sources % count if c.rotate else np.where(inside, sources, -1))

    def _permute(self, c: Permute, v: Lanes, lanes: tuple[int, ...]) -> Lanes:
        shape = [v.full_shape[i] for i in lanes]
        sources = np.full(math.prod(shape), -1)
        for source, target in c.pairs:
            sources[_rank(target, shape)] = _rank(source, shape)
        return ln.move(v, lanes, sources)

    # -- send and receive -----------------------------------------------------------------------------------------

    def _sends(self, mesh: Mesh) -> list[tuple[Send, Lanes]]:
        boxes: dict[Mesh, list[tuple[Send, Lanes]]] = self._open.__dict__.setdefault("boxes", {})
        return boxes.setdefault(mesh, [])

    def check_sends(self, mesh: Mesh, when: str) -> None:
        """An open send would never end on real devices: say so, and forget it."""
        sends = self._sends(mesh)
        if sends:
            send = sends[0][0]
            sends.clear()
            raise CollectiveError(
                f"send over {send.axes} to destination {send.destination} has no matching recv over {send.axes} "
                f"{when}: on real devices it would wait for ever. Follow it with recv(v, {send.axes}, source=…)."
            )

    def _send(self, c: Send, v: Lanes, lanes: tuple[int, ...]) -> Lanes:
        self._sends(v.mesh).append((c, v))
        return v

    def _recv(self, c: Recv, v: Lanes, lanes: tuple[int, ...]) -> Lanes:
        sends = self._sends(v.mesh)
        match = next((i for i, (send, _) in enumerate(sends) if send.axes == c.axes), None)
        if match is None:
            there = [f"to {send.destination} over {send.axes}" for send, _ in sends]
            sends.clear()
            raise CollectiveError(
                f"recv over {c.axes} from source {c.source if c.source is not None else 'any'} has no matching send "
                f"(open sends: {', '.join(there) or 'none'}): on real devices it would wait for ever. "
                f"Precede it with send(v, {c.axes}, destination=…)."
            )
        send, sent = sends[match]
        source = c.source if c.source is not None else self._only_other(send, v, lanes)
        del sends[match]
        sent, at = ln.focus(sent, c.axes)
        came, waited = ln.select(sent, at, source), ln.select(v, lanes, send.destination)
        if not ln.same_sizes(came, waited) or sent.data.dtype != v.data.dtype:
            raise CollectiveError(
                f"recv expects {v.data.dtype} of shape {waited.shapes()[0]}, but source {source} sent "
                f"{sent.data.dtype} of shape {came.shapes()[0]} to {send.destination} over {send.axes}. Both ends must agree."
            )
        return ln.only(came, at, send.destination)

    def forget_sends(self, mesh: Mesh) -> None:
        """Drop open sends, after an error."""
        self._sends(mesh).clear()

    def _only_other(self, send: Send, v: Lanes, lanes: tuple[int, ...]) -> tuple[int, ...]:
        shape = [v.full_shape[i] for i in lanes]
        others = [at for at in np.ndindex(*shape) if at != send.destination]
        if len(others) != 1:
            self._sends(v.mesh).clear()
            raise CollectiveError(
                f"recv over {send.axes} without a source: {len(others)} members could have sent to "
                f"{send.destination}. Name one with source=."
            )
        return others[0]


def _kept_partial(source: Sharding, target: Sharding, dtype: "np.dtype[Any]") -> tuple[str, ...]:
    """The partial axes, or pieces of them, over which a value stays partial."""
    if source.mesh != target.mesh or source.reduction != target.reduction:
        return ()
    if source.reduction == "average" and dtype.kind in "biu" and source.partial != target.partial:
        return ()  # averages of integers are cut off: one step at a time they would not give the average of all
    if not source.mesh.share_a_cut((*source.partial, *target.partial)):
        return ()
    shared = [
        a for a in source.partial if any(overlap(source.mesh.axis(a), source.mesh.axis(b)) for b in target.partial)
    ]
    pieces = source.mesh.cut(tuple(shared), by=target.partial)
    return tuple(axis for axis in pieces if axis in source.mesh.cut(target.partial, by=source.partial))


def _finer(layout: Layout, kept: tuple[str, ...]) -> Layout:
    """The layout with a lane of its own for each of `kept`."""
    if all(axis in layout.lanes for axis in kept):
        return layout
    return layout_of(layout.sharding, layout.shape, layout.mesh.lanes((*layout.sharding.axes, *kept)))


def _rank(coords: tuple[int, ...], shape: list[int]) -> int:
    place = 0
    for at, n in zip(coords, shape, strict=True):
        place = place * n + at
    return place


def _pad(joined: Data, layout: Layout) -> Data:
    """Pad the dims whose last shards are short, by repeating the last row: padding made of real values never warns."""
    n_lanes = len(layout.lanes)
    room = [dim.parts * dim.block if dim.is_trailing else dim.size for dim in layout.dims]
    if tuple(room) == layout.shape:
        return joined
    out = np.empty((*joined.shape[:n_lanes], *room), joined.dtype)
    lead = (slice(None),) * n_lanes
    out[(*lead, *(slice(0, n) for n in layout.shape))] = joined
    for at, (n, padded) in enumerate(zip(layout.shape, room, strict=True)):
        if 0 < n < padded:
            before = (slice(None),) * (n_lanes + at)
            out[(*before, slice(n, padded))] = out[(*before, slice(n - 1, n))]
    return out


def _windows(joined: Data, layout: Layout, at: int) -> Data:
    """Lay a dim out shard by shard where shards overlap (halos) or begin anywhere; zeros beyond the border."""
    dim, axis = layout.dims[at], len(layout.lanes) + at
    rows, outside = dim.rows()
    if not dim.size:
        return np.zeros((*joined.shape[:axis], rows.size, *joined.shape[axis + 1 :]), joined.dtype)
    data = np.take(joined, rows.ravel(), axis=axis)
    if dim.low or dim.high:
        border: tuple[Any, ...] = (*(slice(None),) * axis, outside.ravel())
        data[border] = 0
    return data


_RUN: dict[type[Collective], Callable[[Stacked, Any, Lanes, tuple[int, ...]], Lanes]] = {
    AllGather: lambda e, c, v, at: ln.join(v, at, c.dim, c.name),
    AllReduce: Stacked._all_reduce,
    AllSlice: lambda e, c, v, at: ln.split(v, at, c.dim),
    AllToAll: lambda e, c, v, at: ln.exchange(v, at, c.split_dim, c.concat_dim, c.name),
    Broadcast: lambda e, c, v, at: ln.select(v, at, c.root),
    Gather: lambda e, c, v, at: ln.only(ln.join(v, at, c.dim, c.name), at, c.root),
    Permute: Stacked._permute,
    Recv: Stacked._recv,
    Reduce: lambda e, c, v, at: ln.only(e._all_reduce(c, v, at), at, c.root),
    ReduceScatter: lambda e, c, v, at: ln.split(e._all_reduce(c, v, at), at, c.dim),
    Scatter: lambda e, c, v, at: ln.split(v, at, c.dim),
    Send: Stacked._send,
    Shift: Stacked._shift,
    UpdateHalo: lambda e, c, v, at: update_halo(c, v),
}
