"""`Plan`: an operation on operands of known layouts, lowered: its strategy, the layouts it wants, and its local computation.

Eager operators and traced programs lower through here alike. A plan never moves operands: whoever runs it brings them to the
layouts it names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.engines import engine_named
from shardwright.errors import ArrayError
from shardwright.mesh import Mesh
from shardwright.ops import OPS, Call, Op, Rule, as_weak, contraction, small_dtype
from shardwright.plan import PARTIAL, Strategy, choose, gathered_dims
from shardwright.sharding import Layout, Sharding, describe, layout_of

Gather = tuple[str, str, Sequence[int], int]  # operation, operand, dims, bytes


class Attrs(dict[str, Any]):
    """The attributes of a call: a dict that is made once and compared as a whole."""

    __slots__ = ("key",)

    def __init__(self, **attrs: Any) -> None:
        super().__init__(attrs)
        self.key = tuple(attrs.items())


NO_ATTRS = Attrs()
MOST_PLANS = 65536  # that are kept; then all are forgotten: a loop over ever new slices must not fill memory


class Plan:
    """An operation on operands of known layouts: its rule, the strategy chosen, and all that running it needs.

    `kinds` has a (layout, dtype) for each array and the value of each number. `wanted` says where results are to lie, as far as
    that is known. A `static` plan can't look at data when it runs, so it keeps a value partial only where that is safe
    whatever the data.
    """

    def __init__(
        self, op: Op, kinds: Sequence[Any], attrs: Attrs, wanted: Sequence[Sharding | None] = (), static: bool = False
    ) -> None:
        arrays = [kind for kind in kinds if isinstance(kind, tuple)]
        numbers = [kind for kind in kinds if not isinstance(kind, tuple)]
        self.op, self.attrs, self.wanted, self.numbers = op, attrs, tuple(wanted), bool(numbers)
        self.given: list[Layout] = [layout for layout, _ in arrays]
        self.dtypes: list[np.dtype[Any]] = [dtype for _, dtype in arrays]
        self.mesh = mesh = common_mesh(arrays, wanted)
        shapes = [layout.shape for layout in self.given]
        shardings = [layout.sharding for layout in self.given]
        self.dtypes_made = op.dtypes([kind[1] if isinstance(kind, tuple) else type(kind) for kind in kinds], attrs)
        rule = _honest(op.rule(shapes, with_scalars(attrs, kinds)), arrays, self.dtypes_made[0])
        if (
            static
            and rule.linear in ("mul", "over")
            and not (len(arrays) == 1 and _safe(numbers, rule.linear == "over"))
        ):
            rule = replace(rule, linear="")
        self.rule: Rule = rule
        itemsizes = [dtype.itemsize for dtype in self.dtypes]
        self.strategy: Strategy = choose(rule, shardings, shapes, itemsizes, self.wanted)
        self.gathers = _gathers(op, self.strategy, arrays)
        self.engine = engine_named(mesh.engine)
        there, results = self.strategy.operands, self.strategy.results
        lanes = mesh.lanes([axis for sharding in (*there, *results) for axis in sharding.axes])
        self.operands = [layout_of(s, shape, lanes) for s, shape in zip(there, shapes, strict=True)]
        outs = [(s, rule.out_shape(i)) for i, s in enumerate(results)]
        self.fine = [layout_of(s, shape, lanes) for s, shape in outs]
        self.results = [layout_of(s, shape) for s, shape in outs]
        inner = {key: value for key, value in attrs.items() if key != "sizes"}  # sizes are the rule's
        self.call = Call(rule, self.operands, self.fine, inner, len(lanes))
        self.small = small_dtype(self.dtypes)
        self.guarded = not static and rule.linear in ("mul", "over") and PARTIAL in self.strategy.placement.values()
        self.lazy = op.contracts and bool(self.results[0].partial_lanes)
        in_place = all(a is b for a, b in zip(self.given, self.operands, strict=True))
        self.plain = self.local_call() if in_place and not self.gathers and not self.guarded else None

    def local_call(self) -> Callable[..., Any] | None:
        """The operation as one call on operands that are in place, if it is one."""
        if self.fine != self.results or self.small is not None:
            return None
        ranks = {len(layout.shape) for layout in self.operands}
        if self.op.plain is not None and not self.attrs and len(ranks) == 1:
            return self.op.plain
        return contraction(self.call) if self.op.contracts and not self.lazy else None

    def compute(self, data: Sequence[Any]) -> list[NDArray[Any]]:
        """The results' shards from operands that lie where the plan wants them."""
        if self.small is not None:
            data = [as_weak(x, self.small) for x in data]
        made = self.op.kernel(self.call, *data)
        each = [np.asarray(x) for x in (made if isinstance(made, tuple) else (made,))]
        if self.small is not None:
            each = [x.astype(d, copy=False) for x, d in zip(each, self.dtypes_made, strict=True)]
        assert all(x.dtype == d for x, d in zip(each, self.dtypes_made, strict=True)), (
            f"{self.op.name}: {self.dtypes_made}"
        )
        rows = zip(each, self.fine, self.results, strict=True)
        return [self.engine.reshard(x, fine, out) for x, fine, out in rows]

    def contracted(self, data: Sequence[Any], reduce: bool) -> NDArray[Any]:
        """A partial product's shards; if `reduce`, product and reduction are one call."""
        made = self.op.kernel(self.call, *data, reduce=reduce).astype(self.dtypes_made[0], copy=False)
        fine, out = self.fine[0], self.results[0]
        if reduce:
            fine, out = unpartial(fine), unpartial(out)
        return self.engine.reshard(made, fine, out)

    def is_safe(self, values: Sequence[Any]) -> bool:
        """Whether summands may be scaled one by one: an infinity, a NaN or a division by 0 would not be the sum's."""
        layouts = iter(self.given)
        partial = [bool(next(layouts).partial_lanes) if isinstance(x, np.ndarray) else False for x in values]
        return _safe([x for x, some in zip(values, partial, strict=True) if not some], self.rule.linear == "over")


_static: dict[Any, Plan] = {}


def static_plan(name: str, kinds: Sequence[Any], attrs: Attrs, wanted: tuple[Sharding | None, ...]) -> Plan:
    """The plan of an operation inside a program; made once."""
    types = [kind if isinstance(kind, tuple) else (type(kind), repr(kind)) for kind in kinds]
    key = (name, *types, attrs.key, wanted)
    if key not in _static:
        if len(_static) >= MOST_PLANS:
            _static.clear()
        _static[key] = Plan(OPS[name], kinds, attrs, wanted, static=True)
    return _static[key]


_SAFE = {
    2: 100.0,
    4: 1e15,
    8: 1e100,
}  # by the size of a float: scales that no summand of a sensible size overflows under


def _safe(values: Sequence[Any], divides: bool) -> bool:
    """Whether every value is a scale that sums survive."""
    for x in values:
        value = np.asarray(x)
        if value.dtype.kind not in "fc":
            if divides and not bool((value != 0).all()):
                return False
            continue
        size = np.abs(value)
        limit = _SAFE[min(value.dtype.itemsize // (2 if value.dtype.kind == "c" else 1), 8)]
        if not float(size.max(initial=0)) < limit or (divides and not float(size.min(initial=1)) > 1 / limit):
            return False
    return True


def common_mesh(arrays: Sequence[tuple[Layout, Any]], wanted: Sequence[Sharding | None] = ()) -> Mesh:
    """The mesh of all arrays; different ones don't mix."""
    meshes = [layout.mesh for layout, _ in arrays] or [s.mesh for s in wanted if s is not None]
    for (layout, dtype), mesh in zip(arrays, meshes, strict=False):
        if mesh is not meshes[0] and mesh != meshes[0]:
            one = f"{describe(arrays[0][0].sharding, arrays[0][0].shape, arrays[0][1])} on {meshes[0]}"
            other = f"{describe(layout.sharding, layout.shape, dtype)} on {mesh}"
            raise ArrayError(
                f"Arrays on different meshes don't mix: {one} and {other}. "
                f"Bring both onto one mesh first: x.reshard(Sharding(mesh, P(…)))."
            )
    return meshes[0]


def _honest(rule: Rule, arrays: Sequence[tuple[Layout, Any]], result: "np.dtype[Any]") -> Rule:
    """The rule, not linear where the elements are not: sums of booleans are or, integers wrap, their averages are cut."""
    if rule.linear in ("", "move"):
        return rule
    for layout, dtype in arrays:
        if not layout.sharding.partial or dtype.kind not in "biu":
            continue
        wraps_alike = dtype.kind != "b" and dtype == result
        if not wraps_alike or layout.sharding.reduction == "average":
            return replace(rule, linear="")
    return rule


def unpartial(layout: Layout) -> Layout:
    """The layout once its reduction is done."""
    return layout_of(layout.sharding.replace(partial=()), layout.shape, layout.lanes)


def with_scalars(attrs: Mapping[str, Any], kinds: Sequence[Any]) -> Mapping[str, Any]:
    """The attributes, with a note on which side scalars stand: adding one to a partial value is not linear."""
    if all(isinstance(kind, tuple) for kind in kinds):
        return attrs
    return {**attrs, "scalars": "right" if isinstance(kinds[0], tuple) else "left"}


def _gathers(op: Op, strategy: Strategy, arrays: Sequence[tuple[Layout, Any]]) -> list[Gather]:
    """Moves that bring a split dim to every device."""
    found: list[Gather] = []
    for (layout, dtype), there, costs in zip(arrays, strategy.operands, strategy.moves, strict=True):
        received = sum(cost.bytes for cost in costs)
        dims = gathered_dims(layout.sharding, there) if received else []
        if dims:
            text = f"{describe(layout.sharding, layout.shape, dtype)} on {layout.mesh}"
            found.append((op.name, text, dims, received))
    return found
