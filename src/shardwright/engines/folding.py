"""Lines on whole tensors that NumPy has one function for: `FOLDS` is their table, and each is tested against its lines."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.engines.chains import ChainLine
from shardwright.plan import Slot

Makers = Mapping[Slot, ChainLine]


def folded(lines: Sequence[ChainLine], outputs: Sequence[Slot]) -> list[ChainLine]:
    """The lines, with one in place of several wherever nothing else reads what lies between them."""
    makers = {line.outputs[0]: line for line in lines if len(line.outputs) == 1}
    reads = Counter([*outputs, *(x for line in lines for x in line.inputs if isinstance(x, Slot))])
    result, gone = list(lines), set[Slot]()
    for at, line in enumerate(lines):
        fold = FOLDS.get(line.name)
        found = None if fold is None else fold(line, makers)
        if found is not None:
            one, between = found
            if all(reads[slot] == 1 for slot in between):
                result[at] = one
                gone.update(between)
    return [line for line in result if gone.isdisjoint(line.outputs)]


def _argmax(line: ChainLine, makers: Makers) -> tuple[ChainLine, list[Slot]] | None:
    """The first place of an extreme: the first that equals it or, of floats, is a NaN."""
    assert line.plan is not None
    places = line.inputs[0]
    parts = _made(places, "bitwise_or", makers) or _made(places, "logical_or", makers)
    equal = parts[0] if parts else places
    compared = _made(equal, "equal", makers)
    if compared is None:
        return None
    x, best = compared
    between = [places, best, *(parts or ())]
    if parts and _made(parts[1], "not_equal", makers) != (x, x):
        return None
    for name, function in (("max", np.argmax), ("min", np.argmin)):
        maker = makers.get(best)
        if _made(best, name, makers) == (x,) and maker is not None and maker.plan is not None:
            (axis,), given = line.plan.attrs["axis"], dict(maker.plan.attrs)
            is_float = maker.plan.kinds[0][1].kind not in "biu"
            if tuple(given["axis"]) != (axis,) or not given["keepdims"] or is_float != bool(parts):
                return None
            return _one(line, function, x, axis), between
    return None


def _one(line: ChainLine, function: Callable[..., Any], x: Slot, axis: int) -> ChainLine:
    assert line.plan is not None
    keepdims, shape = bool(line.plan.attrs["keepdims"]), line.plan.results[0].shape
    return ChainLine(lambda x: np.asarray(function(x, axis, keepdims=keepdims)).reshape(shape), (x,), line.outputs)


def _made(slot: Any, name: str, makers: Makers) -> tuple[Any, ...] | None:
    """What an operation read that made a value; None if another made it."""
    line = makers.get(slot) if isinstance(slot, Slot) else None
    return line.inputs if line is not None and line.name == name else None


FOLDS = {"first_true": _argmax}
