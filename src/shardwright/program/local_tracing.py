"""Tensors per device inside a program that is being traced: what a function asks of them is recorded.

Collectives are steps, everything else runs on each device alone. Beside its shapes a value knows along which axes devices may
hold different tensors, so that a result which an array's sharding says is the same everywhere is known to be.
"""

import hashlib
from collections.abc import Callable, Sequence
from types import CellType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from shardwright.arrays import Array, PerDevice, host_array, joined_layout, read_only, same_mesh
from shardwright.collectives import AllGather, AllReduce, Broadcast, Collective, Recv, Scatter, Send
from shardwright.eager import source_line
from shardwright.engines import engine_of, row_function
from shardwright.errors import ArrayError, TraceError
from shardwright.mesh import Mesh, overlap
from shardwright.ops import NO_ATTRS, OPS, Attrs
from shardwright.plan import Each, FromLocal, LocalShapes, LocalStep, SendRecv, ToLocal, local_shapes, scalar_side
from shardwright.program.node import Node, Type
from shardwright.sharding import Sharding, check_partial, layout_of

Shape = tuple[int, ...]


class RowKey(NamedTuple):
    """An operation of the table on each device's own tensors; an operand is a scalar, or None for a tensor."""

    name: str
    attrs: Any  # the items of its Attrs
    scalars: tuple[Any, ...]
    kinds: tuple[type, ...]  # of the scalars: 1 and 1.0 and True are equal


class KnownKey(NamedTuple):
    """A tensor that is known while the program is traced, and the same on every device."""

    dtype: str
    shape: Shape
    data: bytes  # one element where all are equal

    @property
    def value(self) -> Any:
        """The tensor, read-only."""
        made = np.frombuffer(self.data, np.dtype(self.dtype))
        return np.broadcast_to(made[0], self.shape) if len(made) == 1 else made.reshape(self.shape)

    @property
    def told(self) -> str:
        """What tells it from other tensors."""
        return f"{self.dtype}{list(self.shape)} {hashlib.sha256(self.data).hexdigest()[:16]}"

    @staticmethod
    def of(value: Any) -> "KnownKey":
        """The key of a NumPy array."""
        array = np.asarray(value)
        first = array[(slice(0, 1),) * array.ndim]
        single = array.size and (not any(array.strides) or first.tobytes() * array.size == array.tobytes())
        return KnownKey(array.dtype.name, array.shape, (first if single else array).tobytes())


class TracedLocal(PerDevice):
    """A tensor per device inside a function that is being traced: shapes and dtype are known, elements are not."""

    __slots__ = ("node", "trace", "varies")

    traces = True
    node: Node
    trace: Any
    varies: tuple[str, ...]  # axes, or pieces of them, along which devices may hold different tensors

    def recorder(self) -> "LocalTrace":
        """The recorder of the function that is being traced now."""
        return LocalTrace(self.trace.recorder_of(self))

    @property
    def mesh(self) -> Mesh:
        return self.shapes.mesh

    @property
    def shapes(self) -> LocalShapes:
        """The shapes of the devices' tensors."""
        assert self.node.type.local is not None
        return self.node.type.local

    @property
    def dtype(self) -> "np.dtype[Any]":
        return self.node.type.dtype

    @property
    def ndim(self) -> int:
        return len(self.node.type.shape)

    @property
    def shape(self) -> Shape:
        shapes = self.shapes.shapes
        if len(shapes) > 1:
            raise ArrayError(f"The devices hold tensors of different shapes, {sorted(set(shapes))}.")
        return shapes[0]

    @property
    def lanes(self) -> Any:
        raise TraceError(self._unknown())

    @property
    def local_shapes(self) -> LocalShapes:
        return self.shapes

    def values(self) -> Any:
        raise TraceError(self._unknown())

    def __getitem__(self, device: Any) -> Any:
        raise TraceError(self._unknown())

    def _unknown(self) -> str:
        return f"The elements of {self.node.type} are not known while the program is traced ({source_line()})."

    def apply_collective(self, collective: Collective) -> Any:
        """Record a collective."""
        return self.recorder().collective(collective, self)

    def map(self, function: Callable[..., Any], *others: PerDevice) -> Any:
        """Record a function of each device's tensors."""
        for other in others:
            if not isinstance(other, PerDevice):
                raise ArrayError(
                    f".map applies to PerDevice values; got {type(other).__name__}. Close over it instead."
                )
            same_mesh(self.mesh, other.mesh)
        return self.record_map(function, (self, *others))

    def record_map(self, function: Callable[..., Any], operands: Sequence[PerDevice]) -> Any:
        """Record a function of the tensors that each device has of several values."""
        name = getattr(function, "__name__", "map")
        return self.recorder().each(name, object(), _frozen(function), operands)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", None)
        if out is not None and out[0] is not self:  # v += 1 gives the function's own variable another value
            raise ArrayError("A result on every device can't go into out=; use what the function gives back.")
        local = [x for x in inputs if isinstance(x, PerDevice)]
        scalars = all(isinstance(x, PerDevice) or type(x) in (bool, int, float) for x in inputs)
        if method == "__call__" and not options and scalars and _is_row(ufunc):
            return self.recorder().row(ufunc.__name__, inputs, NO_ATTRS)
        frozen = tuple(x if isinstance(x, PerDevice) else _copied(x) for x in inputs)
        kept = {name: _copied(value) for name, value in options.items()}
        others = [x for x in (*frozen, *kept.values()) if not isinstance(x, PerDevice)]
        simple = all(isinstance(x, bool | int | float | complex | str | tuple | None) for x in others)
        call = ufunc if method == "__call__" else getattr(ufunc, method)

        def run(*tensors: Any) -> Any:
            given = iter(tensors)
            return call(*(next(given) if isinstance(x, PerDevice) else x for x in frozen), **kept)

        told = f"{method} {[KnownKey.of(x).told if isinstance(x, np.ndarray) else x for x in others]} {tuple(kept)}"
        key: Any = (ufunc.__name__, told) if simple else object()
        if ufunc.nout == 1:
            return self.recorder().each(ufunc.__name__, key, run, local, told)
        numbers = range(ufunc.nout)
        return tuple(self.recorder().each(ufunc.__name__, (key, n), _result(run, n), local, told) for n in numbers)

    def to_array(self, sharding: Sharding) -> Array:
        """The array whose shards these are."""
        return self.recorder().to_array(self, sharding)

    def __repr__(self) -> str:
        return f"TracedLocal({self.node.type} on {self.mesh})"

    __str__ = __repr__


class LocalTrace:
    """Records what a traced function does with tensors per device."""

    def __init__(self, trace: Any) -> None:
        self.trace = trace

    def value(self, node: Node, varies: tuple[str, ...]) -> TracedLocal:
        """The value of a node."""
        made: TracedLocal = object.__new__(TracedLocal)
        made.node, made.trace, made.varies = node, self.trace, varies
        return made

    def _add(
        self, what: Any, operands: Sequence[Node], shapes: LocalShapes, dtype: Any, varies: tuple[str, ...]
    ) -> Any:
        kind = Type(shapes.largest, np.dtype(dtype), None, shapes)
        return self.value(self.trace.graph.add(what, operands, (kind,), source_line()), varies)

    def to_local(self, x: Any, sharding: Sharding) -> TracedLocal:
        """The shards of an array."""
        layout = layout_of(sharding, x.shape)
        node, varies = self.trace.node_of(x), layout.sharding.axes
        made: TracedLocal = self._add(ToLocal(layout), (node,), local_shapes(layout), x.dtype, varies)
        return made

    def node_of(self, v: PerDevice) -> tuple[Node, tuple[str, ...]]:
        """The node of a value; one that is known is a function without operands."""
        if isinstance(v, TracedLocal):
            return self.trace.local_node(v), v.varies
        lanes = v.lanes
        shapes = v.local_shapes
        varies = v.mesh.axis_names
        own = engine_of(v.mesh)

        def constant(engine: Any) -> Any:
            return lanes if engine is own else engine.view(v.mesh, own.values(lanes))

        made = self._add(Each("constant", constant, ("constant", id(lanes))), (), shapes, v.dtype, varies)
        return made.node, varies

    # -- functions of each device's tensors -----------------------------------------------------------------------------

    def each(
        self, name: str, key: Any, function: Callable[..., Any], operands: Sequence[PerDevice], told: str = ""
    ) -> Any:
        """A function of the tensors that each device has of some values; `told` is what processes compare of it."""
        mesh = operands[0].mesh
        pairs = [self.node_of(v) for v in operands]
        shapes = [node.type.local for node, _ in pairs]
        dtypes = [node.type.dtype for node, _ in pairs]
        seen: dict[tuple[Shape, ...], Any] = {}
        results = []
        count = mesh.size if any(s is not None and len(s.shapes) > 1 for s in shapes) else 1
        for place in range(count):
            own = tuple(s.at(place) for s in shapes if s is not None)
            if own not in seen:
                with np.errstate(all="ignore"):
                    seen[own] = host_array(function(*(_example(s, d) for s, d in zip(own, dtypes, strict=True))))
            results.append(seen[own])
        varies = tuple(dict.fromkeys(axis for _, some in pairs for axis in some))
        made = LocalShapes.of(mesh, [x.shape for x in results])
        run = _over_devices(name, function, made, results[0].dtype)
        return self._add(Each(name, run, key, told), [node for node, _ in pairs], made, results[0].dtype, varies)

    def row(self, name: str, operands: Sequence[Any], attrs: Attrs) -> Any:
        """An operation of the table on each device's own tensors; operands are values per device and Python scalars."""
        op = OPS[name]
        pairs = [self.node_of(x) if isinstance(x, PerDevice) else None for x in operands]
        nodes = [pair[0] for pair in pairs if pair is not None]
        mesh = next(x.mesh for x in operands if isinstance(x, PerDevice))
        shapes = [node.type.local for node in nodes]
        kinds = [
            x if pair is None else (pair[0].type.shape, pair[0].type.dtype)
            for x, pair in zip(operands, pairs, strict=True)
        ]
        dtypes = op.dtypes([kind[1] if isinstance(kind, tuple) else type(kind) for kind in kinds], attrs)
        count = mesh.size if any(s is not None and len(s.shapes) > 1 for s in shapes) else 1
        side = scalar_side(kinds)
        made = [
            op.fitted(tuple(s.at(place) for s in shapes if s is not None), attrs, side).out_shape(0)
            for place in range(count)
        ]
        scalars = tuple(None if pair is not None else x for x, pair in zip(operands, pairs, strict=True))
        key = RowKey(name, attrs.key, scalars, tuple(map(type, scalars)))
        varies = tuple(dict.fromkeys(axis for pair in pairs if pair is not None for axis in pair[1]))
        run = _row_runner(name, attrs, scalars, [kind[1] for kind in kinds if isinstance(kind, tuple)])
        return self._add(Each(name, run, key, repr(key)), nodes, LocalShapes.of(mesh, made), dtypes[0], varies)

    def known(self, mesh: Mesh, value: Any) -> TracedLocal:
        """A host tensor that every device has."""
        key = KnownKey.of(value)
        host = key.value

        def run(engine: Any) -> Any:
            return engine.everywhere(mesh, host)

        shapes = LocalShapes(mesh, (key.shape,))
        made: TracedLocal = self._add(Each("constant", run, key, key.told), (), shapes, host.dtype, ())
        return made

    def named(self, v: PerDevice, name: str, key: Any) -> TracedLocal:
        """A value that is known on every device, under a name and a key of its own."""
        lanes, own = v.lanes, engine_of(v.mesh)

        def run(engine: Any) -> Any:
            return lanes if engine is own else engine.view(v.mesh, own.values(lanes))

        made: TracedLocal = self._add(Each(name, run, key), (), v.local_shapes, v.dtype, v.mesh.axis_names)
        return made

    # -- collectives ------------------------------------------------------------------------------------------------------

    def collective(self, collective: Collective, v: TracedLocal) -> Any:
        """A collective; a recv and the send it matches are one transfer."""
        mesh, boxes = v.mesh, self.trace.mailbox
        if isinstance(collective, Send | Recv):
            bound: Any = collective.bind(mesh, v.node.type.shape, v.dtype)
            if isinstance(bound, Send):
                boxes.send(mesh, bound, v)
                return v
            expected = v
            v, collective = boxes.match(mesh, bound)
            transfer = SendRecv(collective.bind(mesh, v.node.type.shape, v.dtype), v.shapes, v.dtype)
            transfer.check_ends(expected.shapes, expected.dtype)
            node, varies = self.node_of(v)
            after = tuple(dict.fromkeys((*varies, *transfer.axes)))
            return self._add(transfer, (node,), transfer.results, transfer.result_dtype, after)
        boxes.check(mesh, f"before {collective.name}")
        for shape in dict.fromkeys(v.shapes.shapes):
            bound = collective.bind(mesh, shape, v.dtype, uneven=isinstance(collective, Scatter))
        node, varies = self.node_of(v)
        step = LocalStep(bound, v.shapes, v.dtype)
        step.check()
        same = isinstance(bound, AllReduce | AllGather | Broadcast)
        after = _without(mesh, varies, bound.axes) if same else tuple(dict.fromkeys((*varies, *bound.axes)))
        return self._add(step, (node,), step.results, step.result_dtype, after)

    def check_sends(self, mesh: Mesh, when: str) -> None:
        """Refuse to go on while a send has no matching recv."""
        self.trace.mailbox.check(mesh, when)

    def forget_sends(self, mesh: Mesh) -> None:
        """Drop open sends, after an error."""
        self.trace.mailbox.forget(mesh)

    # -- back to arrays -----------------------------------------------------------------------------------------------------

    def to_array(self, v: TracedLocal, sharding: Sharding) -> Array:
        """The array whose shards a value is; devices along axes that the sharding does not name must hold the same."""
        mesh = v.mesh
        if len(sharding.dims) > v.ndim:
            sharding.for_shape(v.node.type.shape)  # raises: the spec is longer than the rank
        check_partial(sharding, v.dtype, ArrayError)
        differing = [axis for axis in _without(mesh, v.varies, sharding.axes) if mesh.axis(axis).size > 1]
        if differing:
            raise ArrayError(
                f"shard_map: {sharding} says devices along {', '.join(map(repr, differing))} hold the same, but here "
                f"they may hold different tensors. Name the axis in a dim, make it partial, or reduce or broadcast the value "
                f"along it first."
            )
        layout = joined_layout(sharding, v.shapes)
        node, _ = self.node_of(v)
        kind = Type(layout.shape, v.dtype, layout.sharding)
        result: Array = self.trace.value(self.trace.graph.add(FromLocal(layout), (node,), (kind,), source_line()))
        return result


def _without(mesh: Mesh, axes: tuple[str, ...], gone: tuple[str, ...]) -> tuple[str, ...]:
    """Axes less those in `gone`, cut into pieces where need be; an axis whose pieces have no common cut stays whole."""
    result: list[str] = []
    for name in mesh.axis_names:
        own, other = ([a for a in some if mesh.axis(a).name == name] for some in (axes, gone))
        if not own or name in other:
            continue
        if not mesh.share_a_cut((*own, *other)):
            result.append(name)
            continue
        pieces = dict.fromkeys(mesh.cut(tuple(own), by=(*own, *other)))
        result += [a for a in pieces if not any(overlap(mesh.axis(a), mesh.axis(b)) for b in other)]
    return tuple(result)


def _is_row(ufunc: np.ufunc) -> bool:
    """Whether a function of NumPy is an element-wise operation of the table."""
    op = OPS.get(ufunc.__name__)
    return op is not None and op.elementwise and ufunc.nout == 1 and getattr(np, ufunc.__name__, None) is ufunc


def _row_runner(name: str, attrs: Attrs, scalars: Sequence[Any], dtypes: Sequence[Any]) -> Callable[..., Any]:
    """An operation of the table as a function of an engine and its tensors per device."""
    ufunc = getattr(np, name, None)
    if isinstance(ufunc, np.ufunc) and not attrs:

        def together(engine: Any, *views: Any) -> Any:
            given = iter(views)
            with np.errstate(all="ignore"):
                return engine.elementwise(ufunc, [next(given) if x is None else x for x in scalars], {})[0]

        return together

    def one(*tensors: Any) -> Any:
        given = iter(tensors)
        operands = [next(given) if x is None else x for x in scalars]
        kinds = [(x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in operands]
        with np.errstate(all="ignore"):
            return np.asarray(row_function(name, kinds, attrs)(*operands))

    return lambda engine, *views: engine.each(one, views)


def _copied(value: Any) -> Any:
    """A host value as it is now: a program must not see what becomes of it."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _frozen(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the variables of its closure as they are now: it runs later, when they may have changed."""
    cells = getattr(function, "__closure__", None)
    if not isinstance(function, FunctionType) or not cells:
        return function
    try:
        kept = tuple(CellType(_copied(cell.cell_contents)) for cell in cells)
    except ValueError:  # a variable that is not set yet
        return function
    made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, kept)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _result(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    return lambda *tensors: function(*tensors)[number]


def _example(shape: Shape, dtype: "np.dtype[Any]") -> Any:
    """A tensor to try a function on: different numbers, so that a matrix can be inverted."""
    count = int(np.prod(shape, dtype=np.int64))
    values = 1 + np.arange(count) * 7 % 5 if dtype.kind in "biu" else 0.5 + np.sin(np.arange(count) * 1.7) / 4
    return values.astype(dtype).reshape(shape)


def _over_devices(
    name: str, function: Callable[..., Any], shapes: LocalShapes, dtype: "np.dtype[Any]"
) -> Callable[..., Any]:
    """A function of each device's tensors as one of tensors per device; its results must be what tracing found."""

    def one(*tensors: Any) -> Any:
        return host_array(function(*map(read_only, tensors)))

    def run(engine: Any, *views: Any) -> Any:
        made = engine.each(one, views)
        for place in range(made.mesh.size):
            if made.local_shapes.at(place) != shapes.at(place) or made.dtype != dtype:
                raise ArrayError(
                    f"{name}: device {place} gives {made.dtype} of shape {made.local_shapes.at(place)}, but when the program "
                    f"was traced it gave {dtype} of shape {shapes.at(place)}. Inside a program shapes can't depend on data."
                )
        return made

    return run
