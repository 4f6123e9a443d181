"""Indexing maps of linalg.generic, and elements that its body extracts, as rows taken from tensors."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr, AffineExpr
from xdsl.ir.affine.affine_expr import AffineBinaryOpExpr, AffineBinaryOpKind

from shardwright.errors import ShardwrightError
from shardwright.mlir.values import Value, View
from shardwright.ops import RowMap
from shardwright.xla import is_known

MOST_LISTED = 2**22  # rows that are listed one by one


class Spaced(NamedTuple):
    """Row `start + (d // every) · stride`, modulo `wrap` if that is not 0, for each number d of a loop."""

    loop: int
    start: int = 0
    stride: int = 1
    every: int = 1
    wrap: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether it is the loop's own number."""
        return self[1:] == (0, 1, 1, 0)

    def rows(self, size: int) -> RowMap:
        """The rows for a loop of a size."""
        return RowMap(size, self.start, self.stride, every=self.every, wrap=self.wrap)


def spaced(expression: AffineExpr) -> Spaced | None:
    """An expression of one loop as evenly spaced rows; None if it is something else.

    >>> d = AffineDimExpr(1)
    >>> spaced(d * -1 + 7), spaced((d // 3) * 2 + 1)
    (Spaced(loop=1, start=7, stride=-1, every=1, wrap=0), Spaced(loop=1, start=1, stride=2, every=3, wrap=0))
    """
    if isinstance(expression, AffineDimExpr):
        return Spaced(expression.position)
    if not isinstance(expression, AffineBinaryOpExpr):
        return None
    one, other = expression.lhs, expression.rhs
    if isinstance(one, AffineConstantExpr):
        one, other = other, one
    inner = spaced(one)
    if inner is None or not isinstance(other, AffineConstantExpr) or inner.wrap:
        return None
    number, swapped = other.value, other is expression.lhs
    match expression.kind:
        case AffineBinaryOpKind.Add:
            return inner._replace(start=inner.start + number)
        case AffineBinaryOpKind.Mul:
            return inner._replace(start=inner.start * number, stride=inner.stride * number)
        case AffineBinaryOpKind.FloorDiv if inner.is_plain and number > 0 and not swapped:
            return inner._replace(every=number)
        case AffineBinaryOpKind.Mod if number > 0 and not swapped:
            return inner._replace(wrap=number)
    return None


def loops_of(expression: AffineExpr) -> list[int]:
    """The loops that an expression reads, in order."""
    found = {e.position for e in expression.dfs() if isinstance(e, AffineDimExpr)}
    return sorted(found)


def index_table(expression: AffineExpr, sizes: Sequence[int]) -> Any:
    """The row that an expression of several loops names, for all numbers of these loops."""
    loops = loops_of(expression)
    if math.prod(sizes[loop] for loop in loops) > MOST_LISTED:
        raise ShardwrightError(
            f"The expression {expression} names more than {MOST_LISTED:,} rows. Use smaller tensors."
        )
    dims = [
        np.arange(n).reshape([-1 if loop == d else 1 for loop in loops]) if d in loops else np.asarray(0)
        for d, n in enumerate(sizes)
    ]
    return np.broadcast_to(_evaluated(expression, dims), [sizes[loop] for loop in loops])


def _evaluated(expression: AffineExpr, dims: Sequence[Any]) -> Any:
    if isinstance(expression, AffineDimExpr):
        return dims[expression.position]
    if isinstance(expression, AffineConstantExpr):
        return np.asarray(expression.value)
    assert isinstance(expression, AffineBinaryOpExpr), expression
    one, other = _evaluated(expression.lhs, dims), _evaluated(expression.rhs, dims)
    match expression.kind:
        case AffineBinaryOpKind.Add:
            return one + other
        case AffineBinaryOpKind.Mul:
            return one * other
        case AffineBinaryOpKind.FloorDiv:
            return one // other
        case AffineBinaryOpKind.CeilDiv:
            return -(-one // other)
        case AffineBinaryOpKind.Mod:
            return one % other


def ends_of(rows: RowMap) -> Any:
    """The lowest and the highest row that a row map reads, without listing all."""
    if rows.wrap:
        return rows.sources(0, rows.size) if rows.size <= MOST_LISTED else np.array([0, rows.wrap - 1])
    return (
        np.concatenate([rows.sources(at, at + 1) for at in (0, rows.size - 1)]) if rows.size else np.zeros(0, np.int64)
    )


def check_rows(rows: Any, size: int, dim: int) -> None:
    """Refuse rows outside of a tensor."""
    if rows.size and (rows.min() < 0 or rows.max() >= size):
        raise ShardwrightError(
            f"Rows {rows.min()} to {rows.max()} of dim {dim} are read, which has {size}. Stay inside the tensor."
        )


def extracted(view: View, value: Value, indices: Sequence[Value], loops: Sequence[int]) -> Value:
    """Elements of a tensor by indices, each a value over the loops (1 long where it does not depend on one).

    One index for whole rows, the others the loops' own numbers in order, is `take`; anything else reads the flat tensor.
    """
    for dim, index in enumerate(indices):
        if is_known(index):
            check_rows(index, value.shape[dim], dim)
    if not indices:
        return view.reshaped(value, (1,) * len(loops))
    axis = _taken_axis(value, indices, loops)
    if axis is not None:
        own = range(axis, axis + len(loops) - value.ndim + 1)
        flat = view.reshaped(indices[axis], [loops[d] for d in own])
        return view.row("take", view.lifted(value), view.lifted(flat), axis=axis)
    total: Value = np.zeros((1,) * len(loops), np.int64)
    for index, size in zip(indices, value.shape, strict=True):
        total = view.row("add", view.row("multiply", total, np.asarray(size)), index)
    shape = tuple(total.shape)
    flat = view.reshaped(view.lifted(total), (math.prod(shape),))
    made = view.row("take", view.reshaped(view.lifted(value), (math.prod(value.shape),)), flat, axis=0)
    return view.reshaped(made, shape)


def _taken_axis(value: Value, indices: Sequence[Value], loops: Sequence[int]) -> int | None:
    """The dim whose rows are taken by an index, if all others are the loops' own numbers in order."""
    count = len(loops) - value.ndim + 1  # loops that the index runs over
    if count < 0:
        return None
    for axis in range(value.ndim):
        others = [d if d < axis else d + count - 1 for d in range(value.ndim)]
        plain = all(
            _is_loop(index, loop, loops) and loops[loop] == value.shape[d]
            for d, (index, loop) in enumerate(zip(indices, others, strict=True))
            if d != axis
        )
        own = indices[axis].shape
        fits = all(n == (loops[d] if axis <= d < axis + count else 1) for d, n in enumerate(own))
        if plain and fits:
            return axis
    return None


def _is_loop(index: Value, loop: int, loops: Sequence[int]) -> bool:
    """Whether an index is the number of a loop."""
    shape = tuple(n if d == loop else 1 for d, n in enumerate(loops))
    return is_known(index) and index.shape == shape and np.array_equal(index.ravel(), np.arange(loops[loop]))
