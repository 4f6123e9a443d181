"""Lines of a compiled function that follow one another and treat elements or rows alone, made into one line each."""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

from shardwright.engines.blocks import LEAST, Line, Value, blocked
from shardwright.engines.rows import Cut, RowLine, RowOperation, by_rows, cut_of, is_elementwise
from shardwright.plan import OperationPlan, Slot

Runner = Callable[..., Any]
Entry = tuple[Runner, tuple[Any, ...], tuple[Slot, ...]]  # a function, what it reads, what it makes


class ChainLine(NamedTuple):
    """A function, what it reads, what it makes.

    NumPy's operations on whole tensors have their plan, and `rows` if they treat rows alone.
    """

    function: Runner
    inputs: tuple[Any, ...]
    outputs: tuple[Slot, ...]
    rows: RowOperation | None = None
    plan: OperationPlan | None = None

    @property
    def name(self) -> str:
        """The operation's name, where it is known."""
        return "" if self.plan is None else self.plan.op.name

    @property
    def reads(self) -> list[Slot]:
        """The values that it reads."""
        return [x for x in self.inputs if isinstance(x, Slot)]

    @property
    def is_view(self) -> bool:
        """Whether it makes a view of what it reads."""
        return self.rows is not None and self.rows.into is None


def chained(lines: Sequence[ChainLine], outputs: Sequence[Slot]) -> list[Entry]:
    """The lines, with those that treat rows alone and follow one another run block by block."""
    lines = _sunk(lines, outputs)
    readers = _last_readers(lines)
    result: list[Entry] = []
    at = 0
    while at < len(lines):
        end = _end_of_chain(lines, at, readers, outputs)
        if end - at < 2:
            result.append(lines[at][:3])
            end = at + 1
        else:
            chain = lines[at:end]
            made = {slot for line in chain for slot in line.outputs}
            result.append(_chain(chain, {x for x in made if readers.get(x, -1) >= end or x in outputs}))
        at = end
    return result


def _last_readers(lines: Sequence[ChainLine]) -> dict[Slot, int]:
    return {x: at for at, line in enumerate(lines) for x in line.reads}


def _end_of_chain(lines: Sequence[ChainLine], at: int, readers: dict[Slot, int], outputs: Sequence[Slot]) -> int:
    """The end of the longest chain from a line on that is worth it; views that are read outside of it stay views."""
    end = _end_of_run(lines, at)
    for place in range(at, end):
        (slot,) = lines[place].outputs
        if lines[place].is_view and (readers.get(slot, -1) >= end or slot in outputs):
            return _end_of_chain(lines[:place], at, readers, outputs)
    while end > at and lines[end - 1].is_view:
        end -= 1
    computed = [line.rows for line in lines[at:end] if line.rows is not None and not line.is_view]
    large = any(math.prod(x.shape) >= LEAST for x in computed)
    return end if len(computed) > 1 and large else at


def _end_of_run(lines: Sequence[ChainLine], at: int) -> int:
    """The end of the lines that may be cut along one dim. Each is on the shape of the line before it, or reads what an earlier
    one makes or reads by rows: what has nothing to do with them would only make their blocks smaller."""
    cut: Cut | None = None
    seen: set[Slot] = set()
    end = at
    while end < len(lines) and (rows := lines[end].rows) is not None:
        joined = cut_of(rows) if cut is None else cut.with_line(rows)
        before = lines[end - 1].rows
        related = (
            end == at or (before is not None and before.shape == rows.shape) or not seen.isdisjoint(lines[end].reads)
        )
        if joined.dim is None or not related:
            break
        cut = joined
        large = zip(lines[end].reads, rows.operands, strict=True)
        seen.update(lines[end].outputs, (x for x, shape in large if shape == rows.shape))
        end += 1
    return end


def _chain(lines: Sequence[ChainLine], kept: set[Slot]) -> Entry:
    """Lines as one, which makes the values that are read elsewhere."""
    made = [line.outputs[0] for line in lines]
    inputs = tuple(dict.fromkeys(x for line in lines for x in line.reads if x not in made))
    number = {slot: at for at, slot in enumerate((*inputs, *made))}
    outputs = tuple(slot for slot in made if slot in kept)
    steps = [
        RowLine(line.function, tuple(Value(number[x]) if isinstance(x, Slot) else x for x in line.inputs), line.rows)
        for line in lines
        if line.rows is not None
    ]
    wanted = [number[slot] for slot in outputs]
    if _is_elementwise(steps):
        plain = [Line(step.function, step.inputs, step.operation.dtype) for step in steps]
        run = blocked(len(inputs), plain, wanted)
    else:
        dim = reduce(Cut.with_line, (step.operation for step in steps[1:]), cut_of(steps[0].operation)).dim
        assert dim is not None, "chains have a dim that all lines may be cut along"
        run = by_rows(len(inputs), steps, wanted, dim)
    return (lambda *data: run(*data)[0]) if len(outputs) == 1 else run, inputs, outputs


def _is_elementwise(steps: Sequence[RowLine]) -> bool:
    """Whether all are NumPy functions of elements on one shape."""
    shapes = {shape for step in steps for shape in (step.operation.shape, *step.operation.operands)}
    return len(shapes) == 1 and all(is_elementwise(step.function) for step in steps)


def _sunk(lines: Sequence[ChainLine], outputs: Sequence[Slot]) -> list[ChainLine]:
    """The lines, with chains that make one value of one value moved to where that is read, if its reader treats rows alone.

    Between the products of a gated layer, `silu` of the first then runs with the multiplication behind the second.
    """
    result = list(lines)
    readers: dict[Slot, list[ChainLine]] = {}
    for line in lines:
        for slot in line.reads:
            readers.setdefault(slot, []).append(line)
    for at in range(len(lines) - 2, -1, -1):
        line, after = result[at], result[at + 1]
        if line.rows is None or after.rows is not None or line.outputs[0] in outputs:
            continue
        (reader, *others) = readers[line.outputs[0]]
        first = _start(result, at, readers) if reader.rows is not None and not others else None
        if first is not None:
            place = next(i for i in range(at + 1, len(result)) if result[i] is reader)
            result[first:place] = [*result[at + 1 : place], *result[first : at + 1]]
    return result


def _start(lines: Sequence[ChainLine], at: int, readers: dict[Slot, list[ChainLine]]) -> int | None:
    """Where the lines begin that make a line's floats of one value of the same shape; None if they need more than that."""
    rows = lines[at].rows
    assert rows is not None
    read: set[Slot] = set(lines[at].outputs)
    chain: list[ChainLine] = []
    for start in range(at, -1, -1):
        line = lines[start]
        alike = line.rows is not None and all(x == rows.shape for x in (line.rows.shape, *line.rows.operands))
        if not alike or line.outputs[0] not in read or rows.dtype.kind != "f":
            return None
        chain.append(line)
        if any(reader not in chain for reader in readers[line.outputs[0]] if line is not lines[at]):
            return None
        read = (read - set(line.outputs)) | set(line.reads)
        if len(read) == 1:
            return start
    return None
