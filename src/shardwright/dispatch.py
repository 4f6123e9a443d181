"""From a call to its result: the strategy of an operation is chosen once per layouts and kept; a warm call looks it up.

`apply` is the one way an operation runs. Operands are brought where the strategy wants them, the kernel computes on all
lanes at once, and the result is an array with the sharding that the rule gives. Gathers that nobody asked for are
seen here: they warn, or inside `strict()` raise.
"""

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.engines import engine_named
from shardwright.errors import ArrayError, ImplicitGatherError, ImplicitGatherWarning, OperationError
from shardwright.held import Held, common_mesh
from shardwright.ops import OPS, Call, Op, Rule, contraction
from shardwright.plan import PARTIAL, Strategy, choose, gathered_dims
from shardwright.sharding import Layout, Sharding, layout_of

WARN_ABOVE = 16 * 2**20  # bytes that an implicit gather may bring to a device unnoticed

_strict: ContextVar[bool] = ContextVar("strict", default=False)


class Attrs(dict[str, Any]):
    """The attributes of a call: a dict that is made once and compared as a whole."""

    __slots__ = ("key",)

    def __init__(self, **attrs: Any) -> None:
        super().__init__(attrs)
        self.key = tuple(attrs.items())


NO_ATTRS = Attrs()


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Inside, an operation that would gather a sharded dim unasked raises `ImplicitGatherError` instead."""
    token = _strict.set(True)
    try:
        yield
    finally:
        _strict.reset(token)


_recorded: "tuple[int, list[tuple[Plan, str]]] | None" = None  # the thread that records, and what it saw


@contextlib.contextmanager
def recording() -> Iterator["list[tuple[Plan, str]]"]:
    """Inside, every operation that runs is noted, with the line that asked for it."""
    global _recorded  # a plain global: the warm path looks at it
    before = _recorded
    seen: list[tuple[Plan, str]] = []
    _recorded = (threading.get_ident(), seen)
    try:
        yield seen
    finally:
        _recorded = before


class Plan:
    """An operation on operands of known layouts: its rule, the strategy chosen, and all that running it needs."""

    def __init__(self, op: Op, operands: Sequence[Any], attrs: Attrs) -> None:
        arrays = [x for x in operands if isinstance(x, Held)]
        self.attrs = attrs
        mesh = common_mesh(*arrays)
        shapes = [x.shape for x in arrays]
        self.op = op
        self.made = op.dtypes([x.dtype if isinstance(x, Held) else type(x) for x in operands], attrs)
        self.rule: Rule = _honest(op.rule(shapes, _with_scalars(attrs, operands)), arrays, self.made[0])
        itemsizes = [x.dtype.itemsize for x in arrays]
        self.strategy: Strategy = choose(self.rule, [x.sharding for x in arrays], shapes, itemsizes)
        self.gathers = _gathers(op, self.strategy, arrays)
        self.engine = engine_named(mesh.engine)
        wanted, results = self.strategy.operands, self.strategy.results
        lanes = mesh.lanes([axis for sharding in (*wanted, *results) for axis in sharding.axes])
        self.operands = [layout_of(s, shape, lanes) for s, shape in zip(wanted, shapes, strict=True)]
        outs = [(s, self.rule.out_shape(i)) for i, s in enumerate(results)]
        self.fine = [layout_of(s, shape, lanes) for s, shape in outs]
        self.results = [layout_of(s, shape) for s, shape in outs]
        inner = {key: value for key, value in attrs.items() if key != "sizes"}  # sizes are the rule's
        self.call = Call(self.rule, self.operands, self.fine, inner, len(lanes))
        self.given = [x.layout for x in arrays]
        self.dtypes = [x.dtype for x in arrays]
        self.small = any(d.type.__module__.split(".")[0] == "ml_dtypes" for d in self.dtypes)
        self.guarded = self.rule.linear in ("mul", "over") and PARTIAL in self.strategy.placement.values()
        self.lazy = op.contracts and bool(self.results[0].partial_lanes)
        in_place = all(x.layout is layout for x, layout in zip(arrays, self.operands, strict=True))
        self.plain: Callable[..., Any] | None = None  # the operation as one call on the data as it is
        if in_place and self.fine == self.results and not self.gathers and not self.guarded:
            if op.plain is not None and not attrs and all(x.ndim == arrays[0].ndim for x in arrays):
                self.plain = op.plain
            elif op.contracts and not self.lazy:
                self.plain = contraction(self.call)

    def run(self, operands: Sequence[Any], cls: type[Held]) -> Any:
        """Bring the operands into place, compute, and wrap the results."""
        if self.gathers:
            mind_gathers(self.gathers)
        if self.guarded and not self._safe(operands):
            return apply(self.op.name, [x.whole() if isinstance(x, Held) else x for x in operands], self.attrs)
        if _recorded is not None and _recorded[0] == threading.get_ident():
            _recorded[1].append((self, _source()))
        targets = iter(self.operands)
        data = [x.placed(next(targets)) if isinstance(x, Held) else x for x in operands]
        if self.small:  # NumPy knows no weak numbers beside the small floats of ml_dtypes
            data = [np.asarray(x, self.dtypes[0]) if type(x) in (int, float) else x for x in data]
        if self.lazy:
            return cls.deferred(self.results[0], self.made[0], lambda reduce: self._contract(data, reduce))
        made = self.op.kernel(self.call, *data)
        if len(self.results) == 1:
            return cls.of(self.results[0], self.engine.reshard(np.asarray(made), self.fine[0], self.results[0]))
        outs = zip(self.results, self.fine, made, strict=True)
        return tuple(cls.of(out, self.engine.reshard(np.asarray(d), fine, out)) for out, fine, d in outs)

    def _safe(self, operands: Sequence[Any]) -> bool:
        """Whether summands may be scaled one by one: an infinity, a NaN or a division by 0 would not be the sum's."""
        for x in operands:
            if isinstance(x, Held) and x.sharding.partial:
                continue
            value = x.data if isinstance(x, Held) else np.asarray(x)
            if value.dtype.kind not in "fc":
                fine = self.rule.linear != "over" or bool((value != 0).all())
            else:
                size, limit = (
                    np.abs(value),
                    _SAFE[min(value.dtype.itemsize // (2 if value.dtype.kind == "c" else 1), 8)],
                )
                fine = float(size.max(initial=0)) < limit
                fine = fine and (self.rule.linear != "over" or float(size.min(initial=1)) > 1 / limit)
            if not fine:
                return False
        return True

    def _contract(self, data: Sequence[Any], reduce: bool) -> NDArray[Any]:
        made = self.op.kernel(self.call, *data, reduce=reduce)
        fine, out = self.fine[0], self.results[0]
        if reduce:
            fine, out = _unpartial(fine), _unpartial(out)
        return self.engine.reshard(made, fine, out)


_SAFE = {
    2: 100.0,
    4: 1e15,
    8: 1e100,
}  # by the size of a float: scales that no summand of a sensible size overflows under


def _honest(rule: Rule, arrays: Sequence[Held], result: "np.dtype[Any]") -> Rule:
    """The rule, not linear where the elements are not: sums of booleans are or, integers wrap, their averages are cut."""
    if rule.linear in ("", "move"):
        return rule
    for x in arrays:
        if not x.sharding.partial or x.dtype.kind not in "biu":
            continue
        wraps_alike = x.dtype.kind != "b" and x.dtype == result
        if not wraps_alike or x.sharding.reduction == "average":
            return replace(rule, linear="")
    return rule


def _unpartial(layout: Layout) -> Layout:
    return layout_of(layout.sharding.replace(partial=()), layout.shape, layout.lanes)


def _with_scalars(attrs: Mapping[str, Any], operands: Sequence[Any]) -> Mapping[str, Any]:
    """The attributes, with a note on which side scalars stand: adding one to a partial value is not linear."""
    if all(isinstance(x, Held) for x in operands):
        return attrs
    return {**attrs, "scalars": "right" if isinstance(operands[0], Held) else "left"}


_plans: dict[Any, Plan] = {}
MOST_PLANS = 65536  # then all are forgotten: a loop over ever new slices must not fill memory


def _keep(key: Any, plan: Plan) -> Plan:
    if len(_plans) >= MOST_PLANS:
        _plans.clear()
    _plans[key] = plan
    return plan


def plan_for(name: str, operands: Sequence[Any], attrs: Attrs = NO_ATTRS) -> Plan:
    """The plan of an operation on these operands; made once."""
    types = [(x._layout, x._dtype) if isinstance(x, Held) else type(x) for x in operands]
    key = (name, *types, attrs.key)
    plan = _plans.get(key)
    if plan is None:
        plan = _keep(key, Plan(OPS[name], operands, attrs))
    return plan


def apply(name: str, operands: Sequence[Any], attrs: Attrs = NO_ATTRS) -> Any:
    """Run an operation of the table on arrays and, where it is element by element, Python scalars."""
    cls = next(type(x) for x in operands if isinstance(x, Held))
    return plan_for(name, operands, attrs).run(operands, cls)


def make(cls: type[Held], name: str, sharding: Sharding, shape: tuple[int, ...], attrs: Attrs = NO_ATTRS) -> Any:
    """Run an operation without operands: each device makes its own part of the result."""
    layout = layout_of(sharding.replace(partial=(), halo={}), shape)
    rule = OPS[name].rule((), {**attrs, "shape": shape})
    call = Call(rule, (), (layout,), attrs, len(layout.lanes))
    made = cls.of(layout, np.asarray(OPS[name].kernel(call)))
    wanted = layout_of(sharding, shape)
    return made if wanted is layout else cls.of(wanted, made.placed(wanted))


def find(name: str, operands: Sequence[Any], attrs: Attrs = NO_ATTRS) -> list[tuple[Sharding | None, NDArray[Any]]]:
    """Run an operation whose results have shapes that only the data tells: (sharding, whole data) of each result.

    Operands lie as the first does; where the rule has no factor for a result, every device needs all of them.
    """
    op, mesh = OPS[name], common_mesh(*operands)
    rule = op.rule([x.shape for x in operands], attrs)
    whole = not rule.outputs
    if whole:
        split = [x for x in operands if any(dim.parts > 1 for dim in x.layout.dims)]
        mind_gathers([(name, x.summary(), (), x.nbytes) for x in split])
    there = Sharding(mesh) if whole else operands[0].sharding.replace(partial=(), halo={})
    layouts = [layout_of(there, x.shape) for x in operands]
    n_lanes = 0 if whole else len(layouts[0].lanes)
    data = [x.placed(layout) for x, layout in zip(operands, layouts, strict=True)]
    if whole:
        data = [x.reshape(layout.shape) for x, layout in zip(data, layouts, strict=True)]
    result: list[tuple[Sharding | None, NDArray[Any]]] = op.kernel(Call(rule, layouts, (), attrs, n_lanes), *data)
    return result


# -- operators ----------------------------------------------------------------------------------------------------------

_SCALARS = frozenset((bool, int, float, complex))


def binary(name: str, a: Any, b: Any) -> Any:
    """An operation on two operands, one of them an array: the path of a warm eager operator."""
    if type(a) is not type(b) and type(a) not in _SCALARS and type(b) not in _SCALARS:
        a, b = (a, a.beside(b)) if isinstance(a, Held) else (b.beside(a), b)
        if a is NotImplemented or b is NotImplemented:
            return NotImplemented
    if type(a) is type(b):
        key: tuple[Any, ...] = (name, a._layout, b._layout, a._dtype, b._dtype)
    elif isinstance(a, Held):
        key = (name, a._layout, type(b), a._dtype)
    else:
        key = (name, type(a), b._layout, b._dtype)
    plan = _plans.get(key)
    if plan is None:
        plan = _keep(key, Plan(OPS[name], (a, b), NO_ATTRS))
    plain = plan.plain
    if plain is None or _recorded is not None or plan.small:
        return plan.run((a, b), type(a) if isinstance(a, Held) else type(b))
    if type(a) is type(b):
        return a.of(plan.results[0], plain(a.data, b.data))
    if isinstance(a, Held):
        return a.of(plan.results[0], plain(a.data, b))
    return b.of(plan.results[0], plain(a, b.data))


def matmul(a: Any, b: Any) -> Any:
    """`a @ b` for one to any number of dims."""
    if type(a) is not type(b):
        if type(a) in _SCALARS or type(b) in _SCALARS:
            return NotImplemented
        a, b = (a, a.beside(b)) if isinstance(a, Held) else (b.beside(a), b)
        if a is NotImplemented or b is NotImplemented:
            return NotImplemented
    key = ("matmul", a._layout, b._layout, a._dtype, b._dtype)
    plan = _plans.get(key)
    if plan is None:
        attrs = _MATMUL[min(a.ndim, 2), min(b.ndim, 2)]
        if attrs is None:
            raise OperationError(f"matmul: operands of shapes {a.shape} and {b.shape}; both need at least one dim.")
        plan = _keep(key, Plan(OPS["einsum"], (a, b), attrs))
    plain = plan.plain
    if plain is None or _recorded is not None:
        return plan.run((a, b), type(a))
    return a.of(plan.results[0], plain(a.data, b.data))


_LEFT, _RIGHT = {1: "k", 2: "... m k"}, {1: "k", 2: "... k n"}
_MATMUL: dict[tuple[int, int], Any] = {
    (i, j): Attrs(name="matmul", text=f"{_LEFT[i]}, {_RIGHT[j]} -> {'... ' * (i + j > 2)}{'m ' * (i > 1)}{'n' * (j > 1)}")
    if i and j else None
    for i in range(3) for j in range(3)
}  # fmt: skip


def operator_method(name: str) -> Callable[[Any, Any], Any]:
    """The method of an operator, `x + y`."""
    if name == "matmul":
        return matmul
    return lambda self, other: binary(name, self, other)


def operators(name: str) -> tuple[Callable[[Any, Any], Any], ...]:
    """The methods of an operator: `x + y`, `1 + x` and `x += y`."""
    method = operator_method(name)
    return method, lambda self, other: method(other, self), _inplace(method)


def unary(name: str) -> Callable[[Any], Any]:
    """The method of an operator on one operand, `-x`."""
    return lambda self: apply(name, (self,))


def _inplace(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def update(self: Any, other: Any) -> Any:
        result = method(self, other)
        if result is NotImplemented:
            return result
        if result.shape != self.shape or result.dtype != self.dtype:
            raise ArrayError(
                f"An in-place operation would turn {self.dtype} of shape {self.shape} into {result.dtype} of shape "
                f"{result.shape}. Write x = x … instead."
            )
        self.become(result)
        return self

    return update


# -- gathers that nobody asked for ----------------------------------------------------------------------------------------


def _gathers(op: Op, strategy: Strategy, arrays: Sequence[Held]) -> list[tuple[str, str, Sequence[int], int]]:
    found: list[tuple[str, str, Sequence[int], int]] = []
    for x, there, costs in zip(arrays, strategy.operands, strategy.moves, strict=True):
        received = sum(cost.bytes for cost in costs)
        dims = gathered_dims(x.sharding, there) if received else []
        if dims:
            found.append((op.name, x.summary(), dims, received))
    return found


def mind_gathers(gathers: Sequence[tuple[str, str, Sequence[int], int]]) -> None:
    """Warn of large gathers; inside `strict()` refuse any."""
    for name, text, dims, size in gathers:
        where = f"dim {', '.join(map(str, dims))}" if dims else "every dim"
        message = f"{name} gathers {where} of {text}: {size:,} bytes to every device. "
        advice = "Shard the operands so that it need not, or reshard explicitly where you mean it."
        if _strict.get():
            raise ImplicitGatherError(f"{message}{advice} ({_source()}; inside strict())")
        if size > WARN_ABOVE:
            warnings.warn(f"{message}{advice} ({_source()})", ImplicitGatherWarning, stacklevel=_depth())


def _depth() -> int:
    """How many frames up the user's code is."""
    depth, frame = 0, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "shardwright":
        depth, frame = depth + 1, frame.f_back
    return depth


def _source() -> str:
    frame = sys._getframe(_depth() - 1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
