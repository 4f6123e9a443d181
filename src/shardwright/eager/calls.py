"""From a call to its result: an operation's plan is made once per layouts and kept; a warm call looks it up.

`apply` is the one way an operation runs. Operands are brought where the plan has them, its instructions run on the mesh's
engine, and the result is an array with the sharding that the rule gives. Implicit gathers are noticed here: they warn, or
inside `strict()` raise.
"""

import contextlib
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from shardwright.caches import MIB, Cache
from shardwright.eager.dynamic import found
from shardwright.eager.held import Held, tracer
from shardwright.engines import Engine, engine_of
from shardwright.errors import ArrayError, ImplicitGatherError, ImplicitGatherWarning, OperationError
from shardwright.lines import source_line, user_depth
from shardwright.ops import NO_ATTRS, OPS, Attrs
from shardwright.plan import ImplicitGather, Local, OperationPlan, common_mesh, make_plan, plan_operation, scales_safely
from shardwright.sharding import Sharding, layout_of

WARN_ABOVE = 16 * 2**20  # bytes that an implicit gather may bring to a device unnoticed

_strict: ContextVar[tuple[Any, bool, bool]] = ContextVar(
    "strict", default=(None, False, False)
)  # what it was outside, whether gathers are errors, whether weights may be gathered all the same


@contextlib.contextmanager
def tracing(trace: Any) -> Iterator[None]:
    """Inside, operations without operands are handed to `trace.make` instead of being run, arrays can't be changed, and
    `trace` is told of what runs on arrays from outside."""
    token = tracer.set(trace)
    try:
        with watching(trace.ran):
            yield
    finally:
        tracer.reset(token)


def lifted(array: Any) -> Any:
    """A new array, as the program sees it that is being traced, if one is."""
    trace = tracer.get()
    return array if trace is None or array.traces else trace.lift(array)


class strict(contextlib.ContextDecorator):  # noqa: N801  # it is written like a function
    """Inside, an operation that would gather a sharded dim unasked raises `ImplicitGatherError` instead.

    With `weights=True` a program may gather its parameters, those placed by a rule or named `params`, `parameters` or
    `weights`, as fully sharded training does.

    It holds for the thread or asyncio task that entered it. A new thread is not strict: enter `strict()` in the thread, or
    run its function with `contextvars.copy_context().run`. Tasks inherit it when they are created.
    """

    def __init__(self, *, weights: bool = False) -> None:
        self._weights = weights

    def __enter__(self) -> None:
        _strict.set((_strict.get(), True, self._weights))

    def __exit__(self, *error: object) -> None:
        outer = _strict.get()[0]
        assert outer is not None, "it was entered"
        _strict.set(outer)


def strictness() -> tuple[bool, bool]:
    """Whether implicit gathers are errors here, and whether weights may be gathered all the same."""
    return _strict.get()[1:]


Seen = Callable[[Any, Sequence[Any], Any], None]  # is told of an operation that ran: how, its operands, its results
_watchers: dict[int, Seen] = {}  # by thread: who is told


@contextlib.contextmanager
def recording() -> Iterator["list[tuple[OperationPlan, str]]"]:
    """Inside, every operation that runs is noted, with the line that asked for it."""
    seen: list[tuple[OperationPlan, str]] = []
    with watching(lambda ready, operands, made: seen.append((ready.plan, source_line()))):
        yield seen


@contextlib.contextmanager
def watching(seen: Seen) -> Iterator[None]:
    """Inside, `seen` is told of every operation that this thread runs."""
    thread = threading.get_ident()
    before, _watchers[thread] = _watchers.get(thread), seen
    try:
        yield
    finally:
        if before is None:
            del _watchers[thread]
        else:
            _watchers[thread] = before


def is_watched() -> bool:
    """Whether this thread's operations are noted."""
    return bool(_watchers) and threading.get_ident() in _watchers


def is_traced() -> bool:
    """Whether a program is being traced here."""
    return tracer.get() is not None


class Ready:
    """An operation's plan, and what running it eagerly takes."""

    __slots__ = ("engine", "gathers", "lazy", "plain", "plan", "results", "whole")

    def __init__(self, plan: OperationPlan) -> None:
        self.plan = plan
        self.results = plan.results
        self.gathers = plan.gathers
        self.engine = engine_of(plan.problem.mesh)
        # The operation as one function. On engines that fuse it is one of whole tensors; where it leaves summands, these are
        # made when they are looked at.
        partial, several = any(layout.partial_lanes for layout in plan.results), len(plan.results) > 1
        fuses, halos = self.engine.fuses, any(layout.sharding.halo for layout in plan.given)
        self.whole = None if fuses and (halos or (partial and several)) else self.engine.operation(plan)
        self.lazy = fuses and partial and self.whole is not None
        totals = fuses and (partial or any(layout.partial_lanes for layout in plan.given))
        self.plain = self.whole if not (several or totals or self.gathers) else None


_ready: Cache[Any, Ready] = Cache(limit=64 * MIB, size=lambda ready: 1000 + ready.plan.footprint)


def _prepared(key: Any, name: str, operands: Sequence[Any], attrs: Attrs) -> Ready:
    """The plan for operands of these kinds, kept under a key.

    A key has only the types of scalars. Beside a partial operand the plan depends on a scalar's value too, and is looked up
    by that.
    """
    partial = any(isinstance(x, Held) and x._layout.partial_lanes for x in operands)
    verdict = _scales_safely(name, operands, attrs) if partial else None
    plan = plan_operation(name, [kind_of(x) for x in operands], attrs, trusted=bool(verdict))
    ready = _ready.get(plan)
    if ready is None:
        ready = Ready(plan)
        _ready.put(plan, ready)
    if not partial or (verdict is None and all(isinstance(x, Held) for x in operands)):
        _ready.put(key, ready)
    return ready


def _scales_safely(name: str, operands: Sequence[Any], attrs: Attrs) -> bool | None:
    """Whether a partial operand may be multiplied by other arrays summand by summand: an infinity, a NaN or a division by 0
    would not be the sum's. All devices decide by the same numbers, the extremes of all elements. None where no data decides."""
    arrays = [x for x in operands if isinstance(x, Held)]
    rule = OPS[name].fitted(tuple(x.shape for x in arrays), attrs) if len(arrays) > 1 else None
    if rule is None or rule.linear not in ("mul", "over"):
        return None
    summed = math.prod(rule.sizes[factor] for factor in rule.sums)
    result = OPS[name].dtypes([x.dtype if isinstance(x, Held) else type(x) for x in operands], attrs)[0]
    for x in arrays:
        if x._layout.partial_lanes or not x.size:
            continue
        size = apply("abs", (x,)) if x.dtype.kind != "u" else x
        everything = Attrs(axis=tuple(range(x.ndim)), keepdims=False)
        largest, smallest = (float(apply(which, (size,), everything).host()) for which in ("max", "min"))
        if not scales_safely(largest * summed, smallest, result, rule.linear == "over"):
            return False
    return True


def kind_of(operand: Any) -> Any:
    """What a plan needs to know of an operand: layout and dtype, or the scalar itself."""
    return (operand._layout, operand._dtype) if isinstance(operand, Held) else operand


def apply(name: str, operands: Sequence[Any], attrs: Attrs = NO_ATTRS) -> Any:
    """Run an operation of the table on arrays and, where it is element by element, Python scalars."""
    key = (name, *[(x._layout, x._dtype) if isinstance(x, Held) else type(x) for x in operands], attrs.key)
    ready = _ready.young.get(key) or _ready.get(key)
    if ready is None:
        traced = _traced(operands)
        if traced is not None:
            return traced.record(name, operands, attrs)
        ready = _prepared(key, name, operands, attrs)
    return _run(ready, operands, next(type(x) for x in operands if isinstance(x, Held)))


def _traced(operands: Sequence[Any]) -> Any:
    """The first traced operand, or None."""
    return next((x for x in operands if isinstance(x, Held) and x.traces), None)


def _run(ready: Ready, operands: Sequence[Any], cls: type[Held]) -> Any:
    """Bring the operands into place, run the plan's instructions, and wrap the results."""
    if ready.gathers:
        mind_gathers(ready.gathers)
    results = _results(ready, operands, cls)
    seen = _watchers.get(threading.get_ident()) if _watchers else None
    if seen is not None:
        seen(ready, operands, results)
    return results


def _results(ready: Ready, operands: Sequence[Any], cls: type[Held]) -> Any:
    plan, engine, whole = ready.plan, ready.engine, ready.whole
    if whole is not None:
        if ready.lazy:
            return _deferred(ready, [x.again() if isinstance(x, Held) else x for x in operands], cls)
        if engine.fuses:
            made = whole(*[x.total() if isinstance(x, Held) else x for x in operands])
        else:
            made = whole(*[x.data if isinstance(x, Held) else x for x in operands])
        if len(plan.results) == 1:
            return cls.of(plan.results[0], made)
    else:
        targets = iter(plan.operands)
        made = _stepped(plan, engine, [x.placed(next(targets)) if isinstance(x, Held) else x for x in operands])
        if len(made) == 1:
            return cls.of(plan.results[0], made[0])
    return tuple(cls.of(layout, x) for layout, x in zip(plan.results, made, strict=True))


MOST_WAITING = 64  # operations whose operands are kept for summands that may be looked at


def _deferred(ready: Ready, operands: Sequence[Any], cls: type[Held]) -> Any:
    """A partial result: what it comes to is made now, its summands when they are looked at."""
    plan, engine, whole = ready.plan, ready.engine, ready.whole
    assert whole is not None
    arrays = [x for x in operands if isinstance(x, Held)]
    waiting = 1 + max(x.waiting for x in arrays)
    layout = plan.results[0]

    total = whole(*[x.total() if isinstance(x, Held) else x for x in operands])

    def summands() -> Any:
        targets = iter(plan.operands)
        return _stepped(plan, engine, [x.placed(next(targets)) if isinstance(x, Held) else x for x in operands])[0]

    if waiting > MOST_WAITING:  # the first device of a group holds the value from here on
        return cls.of(layout, engine.move(total, layout.settled, layout))
    return cls.deferred(layout, total, summands, waiting)


def _stepped(plan: OperationPlan, engine: Engine, data: Sequence[Any]) -> list[Any]:
    """The results of a plan's instructions, one after the other, on operands in place."""
    values = dict(enumerate(data))
    for what, inputs, outputs, _ in plan.instructions:
        given = [values[slot.number] for slot in inputs]
        made = engine.local(what, given) if isinstance(what, Local) else (engine.step(what, given[0]),)
        values.update((slot.number, x) for slot, x in zip(outputs, made, strict=True))
    return [values[slot.number] for slot in plan.outputs]


def make(cls: type[Held], name: str, sharding: Sharding, shape: tuple[int, ...], attrs: Attrs = NO_ATTRS) -> Any:
    """Run an operation without operands: each device makes its own part of the result."""
    trace = tracer.get()
    if trace is not None:
        return trace.make(name, sharding, shape, attrs)
    local = make_plan(name, sharding, shape, attrs.key)
    (data,) = engine_of(sharding.mesh).local(local, ())
    made = cls.of(local.results[0], data)
    wanted = layout_of(sharding, shape)
    return made if wanted is made.layout else cls.of(wanted, made.placed(wanted))


def find(name: str, operands: Sequence[Any], attrs: Attrs = NO_ATTRS) -> list[Any]:
    """Run an operation whose results have data-dependent shapes; arrays of the operands' kind."""
    rule = OPS[name].rule([x.shape for x in operands], attrs)
    if _traced(operands) is not None:
        if not rule.outputs:
            raise OperationError(
                f"{name} works on the whole tensor on the host, which is unknown while a program is traced. Write it "
                f"with where(mask, value, x), take or slices, or do it outside of the traced function."
            )
        raise OperationError(
            f"{name} has a result with a data-dependent shape, which is unknown while a program is traced. Do this "
            f"outside of the traced function, or with a fixed shape: where(mask, x, 0)."
        )
    common_mesh([(x._layout, x._dtype) for x in operands])
    for x in operands:
        x.looked_at()
    if not rule.outputs:
        split = [x for x in operands if any(dim.parts > 1 for dim in x.layout.dims)]
        mind_gathers([ImplicitGather(name, x.summary(), (), x.nbytes) for x in split])
    return found(name, rule, operands, attrs)


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
    ready = _ready.young.get(key) or _ready.get(key)
    if ready is None:
        traced = _traced((a, b))
        if traced is not None:
            return traced.record(name, (a, b), NO_ATTRS)
        ready = _prepared(key, name, (a, b), NO_ATTRS)
    plain = ready.plain
    if plain is None or _watchers:
        return _run(ready, (a, b), type(a) if isinstance(a, Held) else type(b))
    if type(a) is type(b):
        return a.of(ready.results[0], plain(a.data, b.data))
    if isinstance(a, Held):
        return a.of(ready.results[0], plain(a.data, b))
    return b.of(ready.results[0], plain(a, b.data))


def matmul(a: Any, b: Any) -> Any:
    """`a @ b` for one to any number of dims."""
    if type(a) is not type(b):
        if type(a) in _SCALARS or type(b) in _SCALARS:
            return NotImplemented
        a, b = (a, a.beside(b)) if isinstance(a, Held) else (b.beside(a), b)
        if not isinstance(a, Held) or not isinstance(b, Held):
            return NotImplemented
    key = ("matmul", a._layout, b._layout, a._dtype, b._dtype)
    ready = _ready.young.get(key) or _ready.get(key)
    if ready is None:
        attrs = _MATMUL[min(a.ndim, 2), min(b.ndim, 2)]
        if attrs is None:
            raise OperationError(f"matmul: operands of shapes {a.shape} and {b.shape}; both need at least one dim.")
        traced = _traced((a, b))
        if traced is not None:
            return traced.record("einsum", (a, b), attrs)
        ready = _prepared(key, "einsum", (a, b), attrs)
    plain = ready.plain
    if plain is None or _watchers:
        return _run(ready, (a, b), type(a))
    return a.of(ready.results[0], plain(a.data, b.data))


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


# -- implicit gathers --------------------------------------------------------------------------------------------------


def mind_gathers(gathers: Sequence[ImplicitGather], line: str = "", weights: bool = False) -> None:
    """Warn of large gathers; inside `strict()` refuse any. Those of weights are intended: none is warned of."""
    is_strict, weights_may = strictness()
    if not is_strict and (weights or all(size <= WARN_ABOVE for *_, size in gathers)):
        return
    if weights and weights_may:
        return
    line = line or source_line()
    for name, text, dims, size in gathers:
        where = f"dim {', '.join(map(str, dims))}" if dims else "every dim"
        message = f"{name} gathers {where} of {text}: {size:,} bytes to every device. "
        advice = "Shard the operands so that it need not, or reshard explicitly where you mean it."
        if weights:
            advice = (
                "It is a parameter; if weights are to be gathered where they are used, enter sw.strict(weights=True)."
            )
        if is_strict:
            raise ImplicitGatherError(f"{message}{advice} ({'; '.join(filter(None, (line, 'inside strict()')))})")
        if size > WARN_ABOVE:
            at = f" ({line})" if line else ""
            warn(f"{message}{advice}{at}", ImplicitGatherWarning)


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the user's line."""
    warnings.warn(message, category, stacklevel=user_depth())
