"""The stacked engine: all devices of a mesh in one process, one array for all of them.

An array's lanes are labels on the whole tensor's memory, so a change of sharding joins lanes and cuts them again, mostly by
views: that equals the steps of its plan. Collectives on a tensor per device are moves between lanes and dims.
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
from shardwright.kernels import NUMPY, PLAIN, Call, contraction, run
from shardwright.mesh import Mesh
from shardwright.plan import OUTSIDE, Code, Fetch, Local, LocalShapes, LocalStep, Picked, Step
from shardwright.sharding import REDUCTIONS, Layout, kept_partial, layout_of


class Stacked:
    """Every device in one process, on NumPy, in lanes."""

    name = "numpy"
    xp = NUMPY
    processes = 1
    fuses = True

    def __init__(self) -> None:
        self._mailbox = Mailbox()

    def check(self, mesh: Mesh) -> None:
        """Virtual devices cost nothing: every mesh will do."""

    def agree(self, steps: tuple[str, ...]) -> None:
        """There is one process."""

    # -- host tensors and lanes -----------------------------------------------------------------------------------

    def put(self, host: Data, layout: Layout) -> Data:
        """The shards of a host tensor: views of it where they are even."""
        return self.cut(self.apart(host.reshape((*(1,) * len(layout.lanes), *host.shape)), layout), layout)

    def whole(self, data: Data, layout: Layout) -> Data:
        """The tensor on the host, reduced; a view where no copy is needed."""
        if layout.partial_lanes:
            data = self.reduce(data, layout.partial_lanes, layout.sharding.reduction)
        return self.join(data, layout).reshape(layout.shape)

    def shard(self, data: Data, layout: Layout, place: int) -> Data:
        """What the device at a place holds; a view."""
        view = layout.at(place)
        coords = np.unravel_index(place, layout.full_shape)
        tensor = data[tuple(int(i) if n > 1 else 0 for i, n in zip(coords, layout.lane_shape, strict=True))]
        held: tuple[Any, ...] = tuple(slice(0, n) for n in view.local_shape)
        return np.asarray(tensor)[(*held, ...)]

    def assemble(self, shards: Sequence[Data], layout: Layout) -> Data:
        """Data from the tensor of every device; of devices that hold the same, the first one's counts."""
        data = np.zeros((*layout.lane_shape, *layout.local_shape), shards[0].dtype)
        for coords, tensor in zip(np.ndindex(*layout.full_shape), shards, strict=True):
            if all(at < n for at, n in zip(coords, layout.lane_shape, strict=True)):
                data[(*coords, *map(slice, tensor.shape))] = tensor
        if layout.is_even or layout.sharding.halo:
            return data
        return self.cut(self.join(data, layout), layout)  # padding repeats real rows, which no operation trips over

    def astype(self, data: Data, dtype: Any) -> Data:
        """Elements converted to a dtype."""
        return data.astype(dtype)

    def copy(self, data: Data) -> Data:
        """The same shards in memory of their own."""
        return data.copy(order="K")

    # -- local computations and steps -----------------------------------------------------------------------------

    def local(self, local: Local, data: Sequence[Any]) -> tuple[Data, ...]:
        """A kernel on all lanes at once."""
        call = local.call
        fine = _relabelled(data, local.operands, call.operands)
        faster = FASTER.get(call.name)
        made = run(call, fine) if faster is None else (faster(self, call, *fine),)
        return tuple(
            x if a is b else x.reshape((*b.lane_shape, *b.local_shape))
            for x, a, b in zip(made, call.results, local.results, strict=True)
        )

    def plain(self, local: Local, scalars: bool) -> Callable[..., Data] | None:
        """The computation as one function of the operands' arrays, if it is one."""
        call = local.call
        if call.operands != local.operands or call.results != local.results or len(call.results) != 1:
            return None
        if call.name == "einsum":
            return contraction(call) if call.result_dtypes[0].kind != "V" else None
        ranks = {len(layout.shape) for layout in call.operands}
        if call.name in PLAIN and not call.attrs and len(ranks) == 1 and all(d.kind != "V" for d in call.dtypes):
            function: Callable[..., Data] = getattr(np, call.name)
            return function
        return None

    def product(self, local: Local, data: Sequence[Data], reduce: bool) -> Data:
        """A partial product; if `reduce`, product and reduction are one call."""
        call, layout = local.call, local.results[0]
        fine = _relabelled(data, local.operands, call.operands)
        made = contraction(call, reduce)(*fine).astype(call.result_dtypes[0], copy=False)
        target = reduced_layout(layout) if reduce else layout
        return made.reshape((*target.lane_shape, *target.local_shape))

    def step(self, step: Step, data: Data) -> Data:
        """One move or reduce step: joining and cutting."""
        if isinstance(step, Fetch):
            return _fetched(step, data)
        return self.reshard(data, step.here, step.there)

    def move(self, data: Data, source: Layout, target: Layout) -> Data:
        """A change of sharding at once: the steps between make no difference here."""
        return self.reshard(data, source, target)

    def lanes(self, data: Data, layout: Layout) -> Lanes:
        """The shards as a tensor per device."""
        return Lanes(layout.mesh, layout.lanes, data, layout.extents)

    def from_lanes(self, lanes: Lanes, layout: Layout) -> Data:
        """Data from a tensor per device, over the layout's lanes; where devices hold the same, they were checked to."""
        lanes = ln.relane(lanes, layout.lanes)
        lanes = ln.spread(lanes, [lane for lane, n in enumerate(layout.lane_shape) if n > 1])
        data = lanes.data[tuple(slice(0, n) for n in layout.lane_shape)]
        if layout.is_even or layout.sharding.halo:
            return data
        return self.cut(self.join(data, layout), layout)  # padding repeats real rows, which no operation trips over

    def compile(self, code: Code) -> Callable[..., tuple[Data, ...]]:
        """One generated Python function, a line an instruction; partial products wait for their reduction."""
        return compiled(self, code)

    def row(self, data: Data, layout: Layout, at: int) -> Data:
        """One row of a table whose first dim is whole."""
        return data[(slice(None),) * len(layout.lanes) + (at,)]

    def stack(self, rows: Sequence[Data], layout: Layout, dtype: Any) -> Data:
        """Rows as a table."""
        if not rows:
            return np.zeros((*layout.lane_shape, *layout.local_shape), dtype)
        return np.stack(rows, axis=len(layout.lanes))

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
        kept = kept_partial(source.sharding, target.sharding, data.dtype)
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


def reduced_layout(layout: Layout) -> Layout:
    """The layout once its reduction is done, over the same lanes."""
    return layout_of(layout.sharding.replace(partial=()), layout.shape, layout.lanes)


def _relabelled(data: Sequence[Any], layouts: Sequence[Layout], fine: Sequence[Any]) -> list[Any]:
    """Operands over the lanes that a call counts by: as they are, or reshaped where axes are cut finer."""
    arrays = iter(zip(layouts, fine, strict=True))
    result = []
    for x in data:
        if isinstance(x, np.ndarray):
            layout, other = next(arrays)
            x = x if layout is other else x.reshape((*other.lane_shape, *other.local_shape))
        result.append(x)
    return result


def _fetched(step: Fetch, data: Data) -> Data:
    """Each device's rows, dim by dim, wherever they lie."""
    here, there = step.here, step.there
    for dim, wanted in enumerate(step.wanted):
        if isinstance(wanted, Picked):
            data = _fetched_rows(data, here, dim, wanted, there.local_shape[dim], step.fill)
    return data


def _fetched_rows(data: Data, layout: Layout, dim: int, wanted: Picked, room: int, fill: Any) -> Data:
    held, axis = layout.dims[dim], len(layout.lanes) + dim
    at = np.minimum(wanted.starts[:-1, None] + np.arange(room), np.maximum(wanted.starts[1:, None] - 1, 0))
    rows = wanted.flat[np.minimum(at, max(len(wanted.flat) - 1, 0))] if len(wanted.flat) else np.full(at.shape, OUTSIDE)
    outside = rows == OUTSIDE
    if held.parts == 1 and room and not outside.any():
        step = int(rows[0, 1] - rows[0, 0]) if room > 1 else 1
        if step > 0 and bool((np.diff(rows[0]) == step).all()):
            first, last = (held.low + int(rows[0, at]) for at in (0, -1))
            return data[(*(slice(None),) * axis, slice(first, last + 1, step))]
    if not held.size or not room:
        long = [layout.full_shape[i] if i in held.lanes else n for i, n in enumerate(data.shape[: len(layout.lanes)])]
        return np.full((*long, *data.shape[len(layout.lanes) : axis], room, *data.shape[axis + 1 :]), fill, data.dtype)
    places = held.places()[np.maximum(rows, 0)]
    lanes = held.lanes
    order = [i for i in range(axis) if i not in lanes] + [*lanes, *range(axis, data.ndim)]
    ordered = data.transpose(order)
    first = axis - len(lanes)
    joined = ordered.reshape((*ordered.shape[:first], held.parts * held.local, *ordered.shape[axis + 1 :]))
    taken = np.take(joined, places.ravel(), axis=first)
    if outside.any():
        border: tuple[Any, ...] = (*(slice(None),) * first, outside.ravel())
        taken[border] = fill
    spread = [layout.full_shape[i] if wanted.parts > 1 else 1 for i in lanes]  # one window is for every device
    shape = [*taken.shape[:first], *spread, room, *taken.shape[first + 1 :]]
    return taken.reshape(shape).transpose([order.index(i) for i in range(data.ndim)])


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


# -- replacements for kernels: the same results, on whole tensors ----------------------------------------------------------


def _joined(engine: Stacked, call: Call, data: Sequence[Data]) -> list[Data]:
    """The operands of a call as whole tensors, behind lanes that are 1 long, since nothing is partial."""
    return [engine.join(x, layout) for x, layout in zip(data, call.operands, strict=True) if isinstance(layout, Layout)]


def _assign(engine: Stacked, call: Call, *data: Data) -> Data:
    whole, value = _joined(engine, call, data)
    made = np.array(whole)
    rows = (
        slice(None)
        if row_map is None
        else slice(row_map.start, row_map.sources(0, row_map.size)[-1] + 1, row_map.stride)
        for row_map in call.attrs["maps"]
    )
    made[(*(slice(None),) * call.n, *rows)] = value
    return engine.cut(made, call.result)  # type: ignore[arg-type]  # of all devices


def _scatter(engine: Stacked, call: Call, *data: Data) -> Data:
    whole, value, *indices = _joined(engine, call, data)
    n, dims = call.n, call.attrs["dims"]
    rest = [dim for dim in range(len(call.result.shape)) if dim not in dims]
    made = np.array(whole)
    rows = made.reshape(made.shape[n:]).transpose((*dims, *rest))
    rows[tuple(index.reshape(-1) for index in indices)] = value.reshape(value.shape[n:])
    return engine.cut(made, call.result)  # type: ignore[arg-type]  # of all devices


FASTER: dict[str, Callable[..., Data]] = {"assign": _assign, "scatter": _scatter}

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
