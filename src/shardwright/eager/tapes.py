"""Tapes: a function of several operations that ran once for arrays of some kinds is played back for others of these kinds.

The functions of a namespace look at shapes, dtypes and options, not at elements. So what they do is the same for all arrays
of one layout and dtype: on engines that run an operation as one function of whole tensors, the first call records these
functions, and later calls run them one after the other, with nothing else in between. A call that does look at elements
(an array of one integer as a bound or a shift) is not kept.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from shardwright.caches import MIB, Cache
from shardwright.eager.calls import Ready, is_traced, is_watched, mind_gathers, watching
from shardwright.eager.held import Held
from shardwright.engines import ChainLine, shortened, whole_line
from shardwright.plan import Slot
from shardwright.sharding import Layout

Line = tuple[Callable[..., Any], list[Any]]  # a function, and what it reads: values by number, and scalars
F = TypeVar("F", bound=Callable[..., Any])
_PLAIN = frozenset((bool, int, str, type(None), type))
MOST_ARRAYS = 8  # of a call that is taped


class NotTaped:
    """In place of a tape, where playing back would not be the same."""

    __slots__ = ("footprint",)

    footprint: int


def taped(function: F) -> F:
    """The function, played back where it has run for arrays of these kinds before without looking at their elements."""
    tapes: Cache[Any, Any] = Cache(limit=4 * MIB, size=lambda tape: tape.footprint, least=4)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        arrays: list[Any] = []
        key = _key(args, kwargs, arrays)
        if key is None or not arrays or is_watched() or is_traced():
            return function(*args, **kwargs)
        tape = tapes.young.get(key) or tapes.get(key)
        if tape is None:
            return _recorded(function, args, kwargs, arrays, tapes, key)
        if type(tape) is NotTaped:
            return function(*args, **kwargs)
        return tape.play(arrays, function, args, kwargs)

    return call  # type: ignore[return-value]


def _key(args: Sequence[Any], kwargs: dict[str, Any], arrays: list[Any]) -> Any:
    """What is equal for calls that do the same; None where only running tells."""
    parts: list[Any] = []
    for x in (*args, *kwargs.values()) if kwargs else args:
        kind = type(x)
        if kind in _PLAIN:
            parts.append(kind)
            parts.append(x)
        elif isinstance(x, Held):
            if x.traces or len(arrays) == MOST_ARRAYS:
                return None
            if x._data is None:  # known by what it comes to, if that was not given away
                if x._later.total is None:
                    return None
                parts.append("deferred")
            if arrays:  # which of the arrays before it is the same one, if any
                parts.append([_value(y) is _value(x) for y in arrays].index(True) if _among(x, arrays) else -1)
            arrays.append(x)
            parts.append(x._layout)
            parts.append(x._dtype)
        elif kind is float:
            parts.append(x.hex())
        elif kind is tuple or kind is list:
            inner = _key(x, {}, arrays)
            if inner is None:
                return None
            parts.append((kind, inner))
        else:
            return None
    return (tuple(parts), *kwargs) if kwargs else tuple(parts)


def _among(x: Held, arrays: Sequence[Any]) -> bool:
    return any(_value(y) is _value(x) for y in arrays)


def _value(x: Held) -> Any:
    """The data of an array; of a deferred one what it comes to."""
    return x._later.total if x._data is None else x._data


class Tape:
    """The operations of one call, on numbered values: its arrays, then what each operation made."""

    __slots__ = ("cls", "footprint", "gathers", "layout", "lines", "result")

    footprint: int  # about how many bytes it takes, with its key

    def __init__(self, cls: type[Held], layout: Layout, lines: list[Line], result: int, gathers: list[Any]) -> None:
        self.cls, self.layout, self.lines, self.result, self.gathers = cls, layout, lines, result, gathers

    def play(self, arrays: Sequence[Held], function: Any, args: Any, kwargs: Any) -> Any:
        """The result for other arrays."""
        if self.gathers:
            mind_gathers(self.gathers)
        values = [_value(x) for x in arrays]
        for run, inputs in self.lines:
            values.append(run(*[values[x] if type(x) is int else x.value for x in inputs]))
        made, layout = values[self.result], self.layout
        if not layout.partial_lanes:
            return self.cls.of(layout, made)
        kept = _snapshot(args)

        def summands() -> Any:
            return function(*kept, **kwargs).data

        return self.cls.deferred(layout, made, summands, 1)


class _Scalar:
    """A Python scalar among the operands of a tape."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _snapshot(args: Sequence[Any]) -> list[Any]:
    """The arguments as they are now, whatever their variables become."""
    return [x.again() if isinstance(x, Held) else _snapshot(x) if isinstance(x, list | tuple) else x for x in args]


def _recorded(function: Any, args: Any, kwargs: Any, arrays: Sequence[Held], tapes: Cache[Any, Any], key: Any) -> Any:
    """The function's result, and its tape if it can be played back."""
    seen: list[tuple[Ready, Sequence[Any], Any]] = []
    before = Held.reads
    with watching(lambda ready, operands, made: seen.append((ready, list(operands), made))):
        result = function(*args, **kwargs)
    if Held.reads == before:
        tape = _tape_of(seen, arrays, result) or NotTaped()
        layouts = [x._layout for x in (*arrays, result) if isinstance(x, Held)]
        tape.footprint = 2000 + 64 * sum(dim.parts for layout in layouts for dim in layout.dims)
        tapes.put(key, tape)
    return result


def _tape_of(seen: Sequence[tuple[Ready, Sequence[Any], Any]], arrays: Sequence[Held], result: Any) -> Tape | None:
    """The tape of what was seen; None where values come from elsewhere."""
    known: dict[int, Slot] = {}
    for number, x in enumerate(arrays):
        if not (x._layout.settled.is_plain if x._data is None else x._layout.is_plain):
            return None
        known.setdefault(id(_value(x)), Slot(number))
    lines: list[ChainLine] = []
    for ready, operands, made in seen:
        if ready.whole is None or not ready.engine.fuses or not isinstance(made, Held):
            return None
        inputs: list[Any] = []
        for x in operands:
            if not isinstance(x, Held):
                inputs.append(x)
            elif id(x.total()) in known:
                inputs.append(known[id(x.total())])
            else:
                return None
        slot = Slot(len(arrays) + len(lines))
        known.setdefault(id(made.total()), slot)
        lines.append(whole_line(ready.engine.xp, ready.plan, ready.whole, tuple(inputs), (slot,)))
    if not isinstance(result, Held) or result.traces or result._layout.sharding.halo:
        return None
    total = result.total() if result._data is None or not result._layout.partial_lanes else None
    if total is None or id(total) not in known:
        return None
    if result._layout.partial_lanes and any(x._data is None for x in arrays):  # it would wait for what waits itself
        return None
    gathers = [gather for ready, _, _ in seen for gather in ready.gathers]
    return _tape(type(result), result._layout, len(arrays), lines, known[id(total)], gathers)


def _tape(
    cls: type[Held], layout: Layout, count: int, lines: list[ChainLine], result: Slot, gathers: list[Any]
) -> Tape | None:
    """The tape of lines; None where one makes several values."""
    places = {Slot(number): number for number in range(count)}
    played: list[Line] = []
    read = {x for line in lines for x in line.reads}
    unread = [
        slot for line in lines for slot in line.outputs if slot not in read and slot != result
    ]  # checks that raise
    for function, inputs, made in shortened(lines, (result, *unread)):
        if len(made) != 1:
            return None
        played.append((function, [places[x] if isinstance(x, Slot) else _Scalar(x) for x in inputs]))
        places[made[0]] = count + len(played) - 1
    return Tape(cls, layout, played, places[result], gathers)
