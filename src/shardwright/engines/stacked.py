"""The stacked engine: all devices of a mesh in one process, one array for all of them.

An array is held as the whole tensor, whatever its sharding: a device's shard is a view of it, a change of sharding changes
nothing, and an operation runs once on whole tensors. All of that equals the steps of the plans, and costs the same for one
device and for thousands, for even shapes and uneven ones. Where devices hold what is no part of one tensor (summands, halos, a
tensor per device) lanes lead, one per mesh axis, and kernels and collectives run on them.
"""

import math
from collections.abc import Callable, Sequence
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
from shardwright.engines.compiled import compiled
from shardwright.engines.halo import update_halo
from shardwright.engines.lanes import Data, Lanes
from shardwright.engines.mailbox import Mailbox, received
from shardwright.engines.views import LaneViews, Shards
from shardwright.engines.whole import fetched, whole_call, whole_operation
from shardwright.kernels import NUMPY, run
from shardwright.mesh import Mesh
from shardwright.plan import Code, Fetch, Local, LocalShapes, LocalStep, OperationPlan, Regroup, Step
from shardwright.sharding import REDUCTIONS, Layout, kept_partial, layout_of


class Stacked(LaneViews):
    """Every device in one process, on NumPy, in lanes."""

    name = "numpy"
    xp: Any = NUMPY
    processes = 1
    fuses = True
    keeps_host = True

    def __init__(self) -> None:
        self._mailbox = Mailbox()

    def check(self, mesh: Mesh) -> None:
        """Virtual devices cost nothing: every mesh will do."""

    def agree(self, mesh: Mesh, steps: tuple[str, ...]) -> None:
        """There is one process."""

    # -- three forms -----------------------------------------------------------------------------------------------
    # An array's data is the whole tensor. If it is partial, lanes lead, as long as their axes where summands differ; with
    # halos it is the shards over all lanes. *Joined* has all lanes ahead of the whole tensor, *cut* is the shards over lanes.

    def joined(self, data: Data, layout: Layout) -> Data:
        """The whole tensor behind lanes that are 1 long, but for partial ones."""
        if layout.sharding.halo:
            return self.join(data, layout)
        return data if layout.partial_lanes else data.reshape((*(1,) * len(layout.lanes), *layout.shape))

    def packed(self, joined: Data, layout: Layout) -> Data:
        """The data of an array from its joined form."""
        if layout.sharding.halo:
            return self.cut(joined, layout)
        return joined if layout.partial_lanes else joined.reshape(layout.shape)

    def spread(self, data: Data, layout: Layout, fine: Layout | None = None) -> Data:
        """The shards over lanes, or over the lanes of a layout that is cut finer."""
        if layout.sharding.halo:
            over = fine or layout
            return data.reshape((*over.lane_shape, *over.local_shape))
        over = fine or layout
        return self.cut(self.joined(data, layout).reshape((*over.joined_lane_shape, *over.shape)), over)

    def gathered(self, shards: Data, layout: Layout, fine: Layout | None = None) -> Data:
        """The data of an array from shards over lanes."""
        over = fine or layout
        joined = self.join(shards, over).reshape((*layout.joined_lane_shape, *layout.shape))
        return self.packed(joined, layout)

    # -- host tensors and lanes -----------------------------------------------------------------------------------

    def put(self, host: Data, layout: Layout) -> Data:
        """The shards of a host tensor: the tensor itself where it is not partial and has no halos."""
        if layout.is_plain:
            return host
        return self.packed(self.apart(host.reshape((*(1,) * len(layout.lanes), *host.shape)), layout), layout)

    def whole(self, data: Data, layout: Layout) -> Data:
        """The tensor on the host, reduced; a view where no copy is needed."""
        if layout.is_plain:
            return data
        joined = self.joined(data, layout)
        if layout.partial_lanes:
            joined = self.reduce(joined, layout.partial_lanes, layout.sharding.reduction)
        return joined.reshape(layout.shape)

    def total(self, data: Data, layout: Layout) -> Data:
        """The data of a tensor once it is reduced."""
        return self.whole(data, layout)

    def shard(self, data: Data, layout: Layout, place: int) -> Data:
        """What the device at a place holds; a view."""
        view = layout.at(place)
        if layout.is_plain:
            return _at(np.asarray(data), view.offsets)
        coords = np.unravel_index(place, layout.full_shape)
        lanes = layout.lane_shape if layout.sharding.halo else layout.joined_lane_shape
        where: tuple[Any, ...] = tuple(int(i) if n > 1 else 0 for i, n in zip(coords, lanes, strict=True))
        tensor = data[(*where, ...)]
        if layout.sharding.halo:
            return _at(tensor, [(0, n) for n in view.local_shape])
        return _at(tensor, view.offsets)

    def assemble(self, shards: Shards, layout: Layout) -> Data:
        """Data from the tensor of every device; of devices that hold the same, the first one's counts."""
        lanes = layout.lane_shape
        kept = (
            (place, coords)
            for place, coords in enumerate(np.ndindex(*layout.full_shape))
            if all(at < n for at, n in zip(coords, lanes, strict=True))
        )
        if layout.sharding.halo:
            data = np.zeros((*lanes, *layout.local_shape), shards[0].dtype)
            for place, coords in kept:
                data[(*coords, *map(slice, shards[place].shape))] = shards[place]
            return data
        data = np.zeros((*layout.joined_lane_shape, *layout.shape), shards[0].dtype)
        for place, coords in kept:
            at = (c if n > 1 else 0 for c, n in zip(coords, layout.joined_lane_shape, strict=True))
            data[(*at, *(slice(*bounds) for bounds in layout.at(place).offsets))] = shards[place]
        return self.packed(data, layout)

    def astype(self, data: Data, dtype: Any) -> Data:
        """Elements converted to a dtype."""
        return data.astype(dtype)

    def copy(self, data: Data) -> Data:
        """The same shards in memory of their own."""
        return data.copy(order="K")

    # -- local computations and steps -----------------------------------------------------------------------------

    def operation(self, plan: OperationPlan) -> Callable[..., Any]:
        """An operation as a function of whole tensors and scalars, which gives whole tensors, reduced where the plan leaves
        summands: that equals its steps."""
        return whole_operation(plan)

    def local(self, local: Local, data: Sequence[Any]) -> tuple[Data, ...]:
        """A kernel on all lanes at once."""
        call = local.call
        if not local.operands:  # elements from nothing but their places are the same however they are cut
            return run(whole_call(local), ())
        arrays = iter(zip(local.operands, call.operands, strict=True))
        shards = [self.spread(x, *next(arrays)) if isinstance(x, np.ndarray) else x for x in data]  # type: ignore[arg-type]
        made = run(call, shards)
        pairs = zip(made, local.results, call.results, strict=True)
        return tuple(self.gathered(x, layout, fine) for x, layout, fine in pairs)  # type: ignore[arg-type]

    def step(self, step: Step, data: Data) -> Data:
        """One move or reduce step."""
        if isinstance(step, Fetch):
            joined = self.joined(data, step.here)
            return self.packed(fetched(step, joined, len(step.here.lanes)), step.there)
        if isinstance(step, Regroup):
            there = step.there
            return self.packed(self.joined(data, step.here).reshape((*there.joined_lane_shape, *there.shape)), there)
        return self.move(data, step.here, step.there)

    def move(self, data: Data, source: Layout, target: Layout) -> Data:
        """A change of sharding at once: the steps between make no difference here. Partial values are reduced unless the target
        keeps them."""
        if source is target or (source.is_plain and target.is_plain):
            return data
        kept = kept_partial(source.sharding, target.sharding, data.dtype)
        here, there = _finer(source, kept), _finer(target, kept)
        joined = self.joined(data, source).reshape((*here.joined_lane_shape, *here.shape))
        done = tuple(lane for lane in here.partial_lanes if here.lanes[lane] not in kept)
        if done:
            joined = self.reduce(joined, done, source.sharding.reduction)
        lane_shape = (n if lane in kept else 1 for lane, n in zip(there.lanes, there.full_shape, strict=True))
        made = self.apart(joined.reshape((*lane_shape, *target.shape)), there, kept)
        return self.packed(made.reshape((*target.joined_lane_shape, *target.shape)), target)

    def lanes(self, data: Data, layout: Layout) -> Lanes:
        """The shards as a tensor per device."""
        return Lanes(layout.mesh, layout.lanes, self.spread(data, layout), layout.extents)

    def from_lanes(self, lanes: Lanes, layout: Layout) -> Data:
        """Data from a tensor per device, over the layout's lanes; where devices hold the same, they were checked to."""
        lanes = ln.relane(lanes, layout.lanes)
        lanes = ln.spread(lanes, [lane for lane, n in enumerate(layout.lane_shape) if n > 1])
        shards = lanes.data[tuple(slice(0, n) for n in layout.lane_shape)]
        return shards if layout.sharding.halo else self.gathered(shards, layout)

    def compile(self, code: Code, mesh: Mesh, label: str = "") -> Callable[..., tuple[Data, ...]]:
        """One generated Python function, a line an operation, on whole tensors."""
        return compiled(self, code)

    def row(self, data: Data, layout: Layout, at: int) -> Data:
        """One row of a table whose first dim is whole."""
        return data[at] if layout.is_plain else data[(slice(None),) * len(layout.lanes) + (at,)]

    def stack(self, rows: Sequence[Data], layout: Layout, dtype: Any) -> Data:
        """Rows as a table."""
        lead = () if layout.is_plain else layout.lane_shape if layout.sharding.halo else layout.joined_lane_shape
        if not rows:
            return np.zeros((*lead, *(layout.local_shape if layout.sharding.halo else layout.shape)), dtype)
        return np.stack(rows, axis=len(lead))

    def cut(self, joined: Data, layout: Layout) -> Data:
        """A joined tensor as shards over lanes: a view where they are even."""
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

    def apart(self, whole: Data, layout: Layout, kept: tuple[str, ...] = ()) -> Data:
        """A value as one that is partial: the reduction over the devices gives the value back."""
        missing = [lane for lane in layout.partial_lanes if layout.lanes[lane] not in kept]
        if not missing:
            return whole
        rest = REDUCTIONS[layout.sharding.reduction].neutral(whole.dtype)
        shape = (*layout.joined_lane_shape, *layout.shape)
        if rest is None:
            return np.broadcast_to(whole, shape)
        data = np.full(shape, rest, dtype=whole.dtype)
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
        if isinstance(bound, UpdateHalo):
            local_shapes = LocalShapes.of(v.mesh, [x.shape for x in ln.tensors(v)]) if len(v.shapes()) > 1 else None
            shapes = local_shapes or LocalShapes(v.mesh, (v.shapes()[0],))
            LocalStep(bound, shapes, v.data.dtype).check()
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

    def check_sends(self, mesh: Mesh, when: str) -> None:
        """Refuse to go on while a send has no matching recv."""
        self._mailbox.check(mesh, when)

    def forget_sends(self, mesh: Mesh) -> None:
        """Drop open sends, after an error."""
        self._mailbox.forget(mesh)

    def _send(self, c: Send, v: Lanes, lanes: tuple[int, ...]) -> Lanes:
        self._mailbox.send(v.mesh, c, v)
        return v

    def _recv(self, c: Recv, v: Lanes, lanes: tuple[int, ...]) -> Lanes:
        sent, transfer = received(self._mailbox, c, v)
        sent, at = ln.focus(sent, c.axes)
        return self._permute(transfer, sent, at)


def _at(tensor: Data, bounds: Sequence[tuple[int, int]]) -> Data:
    where: tuple[Any, ...] = tuple(slice(*pair) for pair in bounds)
    return tensor[(*where, ...)]


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
    """Pad the dims whose last shards are short, by repeating the last row: padding made of real values never warns.

    Dims that are broadcast (of stride 0) stay so.
    """
    n_lanes = len(layout.lanes)
    room = tuple(dim.parts * dim.block if dim.is_trailing else dim.size for dim in layout.dims)
    if room == layout.shape:
        return joined
    alike = [n > 1 and stride == 0 for n, stride in zip(layout.shape, joined.strides[n_lanes:], strict=True)]
    once = joined[(*(slice(None),) * n_lanes, *(slice(0, 1) if same else slice(None) for same in alike))]
    wanted = tuple(1 if same else n for same, n in zip(alike, room, strict=True))
    out = np.empty((*joined.shape[:n_lanes], *wanted), joined.dtype)
    lead = (slice(None),) * n_lanes
    out[(*lead, *(slice(0, n) for n in once.shape[n_lanes:]))] = once
    for at, (n, padded) in enumerate(zip(once.shape[n_lanes:], wanted, strict=True)):
        if 0 < n < padded:
            before = (slice(None),) * (n_lanes + at)
            out[(*before, slice(n, padded))] = out[(*before, slice(n - 1, n))]
    return np.broadcast_to(out, (*joined.shape[:n_lanes], *room)) if any(alike) else out


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
