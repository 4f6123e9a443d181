"""Operations that treat every row alone, some rows at a time: what one line writes, the next reads from the cache.

`row_operation` has what is known of an operation: the dims along which it may be cut, and a form that writes into given memory.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardwright.engines.blocks import BLOCK, EXTREMA, Data, Value, aligned
from shardwright.plan import OperationPlan

Shape = tuple[int, ...]
Function = Callable[..., Any]
MOST = 8 * BLOCK  # elements of one row at most


class RowOperation(NamedTuple):
    """An operation on whole tensors that gives the same on some of their rows.

    `dims` are the dims of the result along which that holds. `into` takes the memory of the result behind the operands; None
    for operations whose result is a view of their operand.
    """

    operands: tuple[Shape, ...]
    shape: Shape
    dtype: "np.dtype[Any]"
    dims: frozenset[int]
    into: Function | None


def row_operation(plan: OperationPlan, function: Function) -> RowOperation | None:
    """What is known of an operation that NumPy runs by this function; None if its rows depend on one another."""
    if len(plan.results) != 1 or any(kind.kind not in "biufc" for kind in plan.dtypes):
        return None
    name, shape = plan.op.name, plan.results[0].shape
    touched: frozenset[int]
    into: Function | None
    if is_elementwise(function):
        touched, into = frozenset(), _ufunc_into(function)
    elif name in ROWWISE:
        found = ROWWISE[name](plan)
        if found is None:
            return None
        touched, into = found
    else:
        return None
    operands = tuple(layout.shape for layout in plan.given)
    dims = [
        dim
        for dim, size in enumerate(shape)
        if size > 1 and dim not in touched and all(_size(x, dim, len(shape)) in (1, size) for x in operands)
    ]
    return RowOperation(operands, shape, plan.dtypes[0], frozenset(dims), into)


def is_elementwise(function: Function) -> bool:
    """Whether a function of NumPy treats elements alone; matmul is a ufunc that does not."""
    return isinstance(function, np.ufunc) and function.signature is None


def _size(shape: Shape, dim: int, rank: int) -> int:
    """The size of an operand along a dim of a result of this rank; 1 if it has no such dim."""
    at = dim - (rank - len(shape))
    return shape[at] if at >= 0 else 1


def _ufunc_into(function: Any) -> Function:
    # By position is faster than by name; NumPy deprecates it for these two.
    return (lambda *data: function(*data[:-1], out=data[-1])) if function in EXTREMA else function


def _reduction(ufunc: np.ufunc) -> "Callable[[OperationPlan], tuple[frozenset[int], Function | None] | None]":
    reduce: Any = ufunc.reduce

    def made(plan: OperationPlan) -> tuple[frozenset[int], Function | None] | None:
        attrs = dict(plan.attrs)
        axis, keepdims, dtype = tuple(attrs.pop("axis")), attrs.pop("keepdims", False), attrs.pop("dtype", None)
        if attrs or not keepdims or (dtype is None and plan.kinds[0][1] != plan.dtypes[0]):
            return None
        if ufunc in EXTREMA and 0 in (plan.given[0].shape[dim] for dim in axis):  # has no value
            return None
        return frozenset(axis), lambda x, out: reduce(x, axis, dtype, out, keepdims=True)

    return made


def _concat(plan: OperationPlan) -> tuple[frozenset[int], Function | None]:
    axis = plan.attrs["axis"]
    return frozenset((axis,)), lambda *data: np.concatenate(data[:-1], axis, out=data[-1])


def _rows(plan: OperationPlan) -> tuple[frozenset[int], Function | None] | None:
    maps = plan.attrs["maps"]
    if len(plan.given[0].shape) != len(plan.results[0].shape):  # windows have a dim of their own
        return None
    return frozenset(dim for dim, m in enumerate(maps) if m is not None), None


def _sigmoid(plan: OperationPlan) -> tuple[frozenset[int], Function | None] | None:
    if plan.dtypes[0] not in (np.float32, np.float64) or plan.kinds[0][1] != plan.dtypes[0]:
        return None
    one = np.asarray(1, plan.dtypes[0])

    def sigmoid(x: Data, out: Data) -> None:
        with np.errstate(over="ignore"):
            np.exp(np.negative(x, out), out)
        np.add(out, one, out)
        np.divide(one, out, out)

    return frozenset(), sigmoid


ROWWISE: dict[str, Callable[[OperationPlan], tuple[frozenset[int], Function | None] | None]] = {
    "concat": _concat,
    "max": _reduction(np.maximum),
    "min": _reduction(np.minimum),
    "rows": _rows,
    "sigmoid": _sigmoid,
    "sum": _reduction(np.add),
}


class RowLine(NamedTuple):
    """One operation on values by number, and scalars; it makes the next value."""

    function: Function
    inputs: tuple[Any, ...]  # of `Value` and scalars
    operation: RowOperation

    @property
    def values(self) -> list[int]:
        """The values that it reads."""
        return [x.number for x in self.inputs if isinstance(x, Value)]


class Cut(NamedTuple):
    """Where lines may be cut: dims of a rank with their sizes, and the elements of the largest result."""

    places: frozenset[tuple[int, int, int]]  # rank, dim, size
    largest: int

    def with_line(self, operation: RowOperation) -> "Cut":
        """Where this line may be cut too."""
        other = cut_of(operation)
        return Cut(self.places & other.places, max(self.largest, other.largest))

    @property
    def dim(self) -> int | None:
        """The first dim of which rows are small enough."""
        return min((dim for _, dim, size in self.places if self.largest // size <= MOST), default=None)


def cut_of(operation: RowOperation) -> Cut:
    """Where one line may be cut."""
    shape = operation.shape
    return Cut(frozenset((len(shape), dim, shape[dim]) for dim in operation.dims), math.prod(shape))


def by_rows(arrays: int, lines: Sequence[RowLine], outputs: Sequence[int], dim: int) -> Callable[..., tuple[Data, ...]]:
    """A function of arrays that runs lines on some rows of `dim` after the others, and gives some of their results."""
    rank, size = len(lines[0].operation.shape), lines[0].operation.shape[dim]
    largest = max(math.prod(line.operation.shape) for line in lines) // size
    step = min(max(2 * BLOCK // max(largest, 1), 1), size)
    homes, buffers = _homes(arrays, lines, outputs, step, dim)
    cuts = _cuts(arrays, lines, dim, rank)
    lead = (slice(None),) * dim

    def run(*data: Data) -> tuple[Data, ...]:
        made = {number: aligned(op.shape, op.dtype) for number in outputs if (op := lines[number - arrays].operation)}
        memory = [aligned(shape, dtype) for shape, dtype in buffers]
        for start in range(0, size, step):
            rows = slice(start, min(start + step, size))
            short = (*lead, slice(rows.stop - start))
            values: list[Any] = [x if at is None else x[(*at, rows)] for x, at in zip(data, cuts, strict=True)]
            for number, line in enumerate(lines, arrays):
                operands = [values[x.number] if isinstance(x, Value) else x for x in line.inputs]
                out = made[number][(*lead, rows)] if number in made else None
                if line.operation.into is None:
                    result = line.function(*operands)
                    if out is not None:
                        out[...] = result
                else:
                    result = memory[homes[number]][short] if out is None else out
                    line.operation.into(*operands, result)
                values.append(result)
        return tuple(made.values())

    return run


def _cuts(arrays: int, lines: Sequence[RowLine], dim: int, rank: int) -> list[tuple[slice, ...] | None]:
    """For each array the dims before the one that is cut; None if it has the same for all rows."""
    found: list[tuple[slice, ...] | None] = [None] * arrays
    for line in lines:
        shapes = iter(line.operation.operands)
        for number in line.values:
            shape = next(shapes)
            if number < arrays and _size(shape, dim, rank) > 1:
                found[number] = (slice(None),) * (dim - rank + len(shape))
    return found


def _homes(
    arrays: int, lines: Sequence[RowLine], outputs: Sequence[int], step: int, dim: int
) -> tuple[dict[int, int], list[tuple[Shape, Any]]]:
    """The buffer of every value on the way, and shapes and dtypes of buffers.

    One is used again once its value, and all views of it, were last read; by a ufunc also for its own result.
    """
    last = _last_reads(arrays, lines)
    buffers: list[tuple[Shape, Any]] = []
    free: list[int] = []
    homes: dict[int, int] = {}
    for at, line in enumerate(lines):
        number, op = arrays + at, line.operation
        done = [homes[x] for x in homes if last.get(x, -1) == at]
        if is_elementwise(line.function):
            free, done = [*done, *free], []
        if op.into is not None and number not in outputs:
            kind = ((*op.shape[:dim], step, *op.shape[dim + 1 :]), op.dtype)
            home = next((x for x in free if buffers[x] == kind), None)
            if home is None:
                home = len(buffers)
                buffers.append(kind)
            else:
                free.remove(home)
            homes[number] = home
        free += done
    return homes, buffers


def _last_reads(arrays: int, lines: Sequence[RowLine]) -> dict[int, int]:
    """The last line that reads each value or a view of it."""
    last: dict[int, int] = {}
    for at in range(len(lines) - 1, -1, -1):
        end = at if lines[at].operation.into is not None else max(at, last.get(arrays + at, at))
        for number in lines[at].values:
            last[number] = max(last.get(number, -1), end)
    return last
