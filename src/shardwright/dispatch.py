"""From a call to its result: the strategy of an operation is chosen once per layouts and kept; a warm call looks it up.

`apply` is the one way an operation runs. Operands are brought where the strategy wants them, the kernel computes on all
lanes at once, and the result is an array with the sharding that the rule gives. Gathers that nobody asked for are
seen here: they warn, or inside `strict()` raise.
"""

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import ArrayError, ImplicitGatherError, ImplicitGatherWarning, OperationError
from shardwright.held import Held, changing
from shardwright.lowering import MOST_PLANS, NO_ATTRS, Attrs, Plan, common_mesh
from shardwright.ops import OPS, Call
from shardwright.sharding import Sharding, layout_of

WARN_ABOVE = 16 * 2**20  # bytes that an implicit gather may bring to a device unnoticed

_strict: ContextVar[bool] = ContextVar("strict", default=False)
_tracer: ContextVar[Any] = ContextVar("tracer", default=None)


@contextlib.contextmanager
def tracing(trace: Any) -> Iterator[None]:
    """Inside, operations without operands are handed to `trace.make` instead of being run, and arrays can't be changed."""
    token, frozen = _tracer.set(trace), changing.set(False)
    try:
        yield
    finally:
        _tracer.reset(token)
        changing.reset(frozen)


def lifted(array: Any) -> Any:
    """A new array, as the program sees it that is being traced, if one is."""
    trace = _tracer.get()
    return array if trace is None or array.traces else trace.lift(array)


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Inside, an operation that would gather a sharded dim unasked raises `ImplicitGatherError` instead."""
    token = _strict.set(True)
    try:
        yield
    finally:
        _strict.reset(token)


def is_strict() -> bool:
    """Whether implicit gathers are errors here."""
    return _strict.get()


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


_plans: dict[Any, Plan] = {}


def _keep(key: Any, plan: Plan) -> Plan:
    if len(_plans) >= MOST_PLANS:
        _plans.clear()
    _plans[key] = plan
    return plan


def kind_of(operand: Any) -> Any:
    """What a plan needs to know of an operand: layout and dtype, or the number itself."""
    return (operand._layout, operand._dtype) if isinstance(operand, Held) else operand


def apply(name: str, operands: Sequence[Any], attrs: Attrs = NO_ATTRS) -> Any:
    """Run an operation of the table on arrays and, where it is element by element, Python scalars."""
    key = (name, *[(x._layout, x._dtype) if isinstance(x, Held) else type(x) for x in operands], attrs.key)
    plan = _plans.get(key)
    if plan is None:
        traced = _traced(operands)
        if traced is not None:
            return traced.record(name, operands, attrs)
        plan = _keep(key, Plan(OPS[name], [kind_of(x) for x in operands], attrs))
    return _run(plan, operands, next(type(x) for x in operands if isinstance(x, Held)))


def _traced(operands: Sequence[Any]) -> Any:
    """An operand that stands for a value that nobody knows yet, if there is one: it records what is asked of it."""
    return next((x for x in operands if isinstance(x, Held) and x.traces), None)


def _run(plan: Plan, operands: Sequence[Any], cls: type[Held]) -> Any:
    """Bring the operands into place, compute, and wrap the results."""
    if plan.gathers:
        mind_gathers(plan.gathers)
    if plan.guarded and not plan.is_safe([x.data if isinstance(x, Held) else x for x in operands]):
        return apply(plan.op.name, [x.whole() if isinstance(x, Held) else x for x in operands], plan.attrs)
    if _recorded is not None and _recorded[0] == threading.get_ident():
        _recorded[1].append((plan, source_line()))
    targets = iter(plan.operands)
    data = [x.placed(next(targets)) if isinstance(x, Held) else x for x in operands]
    if plan.lazy:
        return cls.deferred(plan.results[0], plan.dtypes_made[0], lambda reduce: plan.contracted(data, reduce))
    made = plan.compute(data)
    if len(plan.results) == 1:
        return cls.of(plan.results[0], made[0])
    return tuple(cls.of(out, d) for out, d in zip(plan.results, made, strict=True))


def make(cls: type[Held], name: str, sharding: Sharding, shape: tuple[int, ...], attrs: Attrs = NO_ATTRS) -> Any:
    """Run an operation without operands: each device makes its own part of the result."""
    trace = _tracer.get()
    if trace is not None:
        return trace.make(name, sharding, shape, attrs)
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
    if _traced(operands) is not None and not OPS[name].rule([x.shape for x in operands], attrs).outputs:
        raise OperationError(
            f"{name} works on the whole tensor on the host, and while a program is traced there is none. Write it with "
            f"where(mask, value, x), take or slices, or do it outside of the traced function."
        )
    if _traced(operands) is not None:
        raise OperationError(
            f"{name}: only the data tells the shape of the result, and while a program is traced there is none. Do this "
            f"outside of the traced function, or with a fixed shape: where(mask, x, 0)."
        )
    op, mesh = OPS[name], common_mesh([(x._layout, x._dtype) for x in operands])
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
        traced = _traced((a, b))
        if traced is not None:
            return traced.record(name, (a, b), NO_ATTRS)
        plan = _keep(key, Plan(OPS[name], (kind_of(a), kind_of(b)), NO_ATTRS))
    plain = plan.plain
    if plain is None or _recorded is not None:
        return _run(plan, (a, b), type(a) if isinstance(a, Held) else type(b))
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
        traced = _traced((a, b))
        if traced is not None:
            return traced.record("einsum", (a, b), attrs)
        plan = _keep(key, Plan(OPS["einsum"], (kind_of(a), kind_of(b)), attrs))
    plain = plan.plain
    if plain is None or _recorded is not None:
        return _run(plan, (a, b), type(a))
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


def mind_gathers(gathers: Sequence[tuple[str, str, Sequence[int], int]], line: str = "") -> None:
    """Warn of large gathers; inside `strict()` refuse any."""
    line = line or source_line()
    for name, text, dims, size in gathers:
        where = f"dim {', '.join(map(str, dims))}" if dims else "every dim"
        message = f"{name} gathers {where} of {text}: {size:,} bytes to every device. "
        advice = "Shard the operands so that it need not, or reshard explicitly where you mean it."
        if _strict.get():
            raise ImplicitGatherError(f"{message}{advice} ({line}; inside strict())")
        if size > WARN_ABOVE:
            warnings.warn(f"{message}{advice} ({line})", ImplicitGatherWarning, stacklevel=_depth())


def _depth() -> int:
    """How many frames up the user's code is."""
    depth, frame = 0, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "shardwright":
        depth, frame = depth + 1, frame.f_back
    return depth


def source_line() -> str:
    frame = sys._getframe(_depth() - 1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
