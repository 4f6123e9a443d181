"""XLA's gather and scatter, for all dimension numbers and ways to treat indices out of bounds.

Both come to one form: the operand with its batch dims first, then one dim that all indexed dims are merged in, then the
rest; and an array of row numbers of that dim. Windows along indexed dims are spelled out as more rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwright.errors import OperationError
from shardwright.xla.elementwise import Monoid
from shardwright.xla.shaping import assign, pad, static_slice, take
from shardwright.xla.values import (
    Value,
    broadcast,
    cast,
    full_like,
    is_known,
    permute,
    reshape,
    row,
    splat,
    where,
)

CLIP, FILL, PROMISE = "clip", "fill", "promise"
COMBINES = {"add": "add", "multiply": "mul", "maximum": "max", "minimum": "min"}


@dataclass(frozen=True)
class Numbers:
    """Dimension numbers, the same words for gather and scatter.

    `windows` are the dims of slices (of a gather's result, a scatter's updates), `collapsed` the operand's dims that these
    lack, `indexed` the operand's dim of each index. Batch dims of operand and indices run together.
    """

    windows: tuple[int, ...]
    collapsed: tuple[int, ...]
    indexed: tuple[int, ...]
    operand_batch: tuple[int, ...] = ()
    indices_batch: tuple[int, ...] = ()


class _Form:
    """An operand's dims sorted, and the row numbers that indices name."""

    def __init__(self, shape: Sequence[int], indices: Value, numbers: Numbers, sizes: Sequence[int], mode: str) -> None:
        self.shape, self.numbers = tuple(shape), numbers
        order = sorted(range(len(numbers.indexed)), key=lambda i: numbers.indexed[i])
        self.indexed = [numbers.indexed[i] for i in order]
        self.batch = list(numbers.operand_batch)
        self.rest = [d for d in range(len(shape)) if d not in self.indexed and d not in self.batch]
        self.sizes = tuple(sizes)
        lead = [d for d in range(indices.ndim - 1) if d not in numbers.indices_batch]
        wide = permute(cast(indices, np.int64), (*numbers.indices_batch, *lead, indices.ndim - 1))
        self.batch_shape = tuple(wide.shape[: len(self.batch)])
        self.lead_shape = tuple(wide.shape[len(self.batch) : -1])
        self.window_shape = tuple(self.sizes[d] for d in self.indexed)
        self.room = math.prod(shape[d] for d in self.indexed)
        self.count = math.prod(self.lead_shape)
        columns = [_column(wide, i) for i in order]
        self.inside = self._inside(columns) if mode == FILL else None
        self.row_numbers = self._rows(columns)

    def _inside(self, columns: Sequence[Value]) -> Value:
        """Whether windows are inside of the operand, in the shape of the indices."""
        result: Value = splat(True, (*self.batch_shape, *self.lead_shape), bool)
        for dim, start in zip(self.indexed, columns, strict=True):
            most = self.shape[dim] - self.sizes[dim]
            low = row("greater_equal", start, full_like(start, 0))
            result = row(
                "bitwise_and", result, row("bitwise_and", low, row("less_equal", start, full_like(start, most)))
            )
        return result

    def _rows(self, columns: Sequence[Value]) -> Value:
        """Row numbers of the merged dim: batch dims, the indices' dims, the windows' dims. Starts are moved inside."""
        shape = (*self.batch_shape, *self.lead_shape)
        total: Value = splat(0, (*shape, *(1,) * len(self.indexed)), np.int64)
        for place, (dim, start) in enumerate(zip(self.indexed, columns, strict=True)):
            most = max(self.shape[dim] - self.sizes[dim], 0)
            moved = row("minimum", row("maximum", start, full_like(start, 0)), full_like(start, most))
            moved = reshape(moved, (*shape, *(1,) * len(self.indexed)))
            if self.sizes[dim] > 1:
                within = np.arange(self.sizes[dim]).reshape([-1 if i == place else 1 for i in range(len(self.indexed))])
                moved = row("add", moved, np.broadcast_to(within, (*(1,) * len(shape), *within.shape)))
            total = row("add", row("multiply", total, full_like(total, self.shape[dim])), moved)
        return broadcast(total, (*shape, *self.window_shape))

    def merged(self, x: Value) -> Value:
        """An operand as `batch…, rows, rest…`."""
        x = permute(x, (*self.batch, *self.indexed, *self.rest))
        b, k = len(self.batch), len(self.indexed)
        return reshape(x, (*x.shape[:b], self.room, *x.shape[b + k :]))

    def split(self, x: Value) -> Value:
        """What `merged` gives, as the operand is."""
        x = reshape(x, [self.shape[d] for d in (*self.batch, *self.indexed, *self.rest)])
        order = [*self.batch, *self.indexed, *self.rest]
        return permute(x, [order.index(d) for d in range(len(order))])

    def slice_order(self) -> list[int]:
        """The order of dims of a slice array (windows and indices' dims) as `batch…, indices…, indexed windows…, rest…`."""
        numbers = self.numbers
        rank = len(numbers.windows) + len(self.lead_shape) + len(self.batch_shape)
        others = [d for d in range(rank) if d not in numbers.windows]  # the indices' dims, in their order
        indices_dims = range(len(others))
        batch = [others[d] for d in numbers.indices_batch]
        lead = [others[d] for d in indices_dims if d not in numbers.indices_batch]
        shown = [d for d in range(len(self.shape)) if d not in numbers.collapsed and d not in self.batch]
        of = dict(zip(shown, numbers.windows, strict=True))
        kept = [of[d] for d in self.indexed if d in of]
        return [*batch, *lead, *kept, *(of[d] for d in self.rest)]


def _column(indices: Value, number: int) -> Value:
    """One index of each row of an array of indices."""
    starts = [0] * (indices.ndim - 1) + [number]
    limits = [*indices.shape[:-1], number + 1]
    return reshape(static_slice(indices, starts, limits), indices.shape[:-1])


# -- gather ------------------------------------------------------------------------------------------------------------------


def gather(
    x: Value, indices: Value, numbers: Numbers, sizes: Sequence[int], mode: str = CLIP, fill: Any = None
) -> Value:
    """Slices of x at indices. Out of bounds, starts are moved inside, or with `fill` the slice is a fill value."""
    at = _static(x.shape, indices, numbers, sizes)
    if at is not None and not _outside(x.shape, at[0], sizes, mode):
        starts, lead = at
        box = static_slice(x, starts, [a + n for a, n in zip(starts, sizes, strict=True)])
        kept = reshape(box, [n for d, n in enumerate(sizes) if d not in (*numbers.collapsed, *numbers.operand_batch)])
        shape = list(kept.shape)
        for d in range(len(lead) + len(shape)):
            if d not in numbers.windows:
                shape.insert(d, 1)
        return reshape(kept, shape)
    form = _Form(x.shape, indices, numbers, sizes, mode)
    merged, b = form.merged(x), len(form.batch)
    flat = (*form.batch_shape, form.count * math.prod(form.window_shape))
    index = reshape(form.row_numbers, flat)
    rest = tuple(merged.shape[b + 1 :])
    if not form.room or 0 in flat:
        taken: Value = splat(0, (*flat, *rest), x.dtype)
    elif not b:
        taken = take(merged, reshape(form.row_numbers, form.row_numbers.shape), 0)
    elif flat[-1] == 1 and not rest:
        taken = row("pick", merged, reshape(index, form.batch_shape), axis=b)
    else:
        wide = broadcast(reshape(index, (*flat, *(1,) * len(rest))), (*flat, *rest))
        taken = row("take_along_axis", merged, wide, axis=b)
    kept_window = [form.sizes[d] for d in form.indexed if d not in numbers.collapsed]
    taken = reshape(taken, (*form.batch_shape, *form.lead_shape, *kept_window, *rest))
    if form.inside is not None:
        mask = reshape(form.inside, (*form.inside.shape, *(1,) * (taken.ndim - form.inside.ndim)))
        taken = where(mask, taken, splat(_fill_of(x.dtype, fill), taken.shape, x.dtype))
    order = form.slice_order()
    return permute(taken, [order.index(d) for d in range(len(order))])


def _fill_of(dtype: "np.dtype[Any]", fill: Any) -> Any:
    """What slices out of bounds are: as JAX has it NaN, the least signed or the largest unsigned integer."""
    if fill is not None:
        return fill
    if dtype.kind == "b":
        return True
    if dtype.kind == "i":
        return np.iinfo(dtype).min
    return np.iinfo(dtype).max if dtype.kind == "u" else np.nan


def _static(
    shape: Sequence[int], indices: Value, numbers: Numbers, sizes: Sequence[int]
) -> tuple[list[int], tuple[int, ...]] | None:
    """The starts of the only slice, if they are known, and the shape of the indices without them."""
    if not is_known(indices) or math.prod(indices.shape[:-1]) != 1 or numbers.operand_batch:
        return None
    starts = [0] * len(shape)
    for dim, start in zip(numbers.indexed, np.reshape(indices, -1).tolist(), strict=True):
        starts[dim] = int(start)
    return starts, tuple(indices.shape[:-1])


def _outside(shape: Sequence[int], starts: list[int], sizes: Sequence[int], mode: str) -> bool:
    """Whether a slice is out of bounds and filled; otherwise its starts are moved inside."""
    out = any(not 0 <= a <= n - s for a, n, s in zip(starts, shape, sizes, strict=True))
    if out and mode != FILL:
        starts[:] = [min(max(a, 0), n - s) for a, n, s in zip(starts, shape, sizes, strict=True)]
        return False
    return out


# -- scatter -----------------------------------------------------------------------------------------------------------------


def scatter(
    x: Value, indices: Value, updates: Value, numbers: Numbers, monoid: Monoid | None = None, mode: str = FILL
) -> Value:
    """x with updates at indices: in place of its elements, or combined with them. Updates out of bounds are dropped, unless
    the mode is to move them inside."""
    if 0 in updates.shape or 0 in x.shape:
        return x
    sizes = _window_sizes(x.shape, updates.shape, numbers)
    at = _static(x.shape, indices, numbers, sizes)
    if at is not None:
        return _box(x, reshape(updates, sizes), at[0], sizes, monoid, mode)
    form = _Form(x.shape, indices, numbers, sizes, FILL if mode != CLIP else CLIP)
    merged, b = form.merged(x), len(form.batch)
    rest = tuple(merged.shape[b + 1 :])
    count = form.count * math.prod(form.window_shape)
    values = reshape(permute(updates, form.slice_order()), (*form.batch_shape, count, *rest))
    index, inside = reshape(form.row_numbers, (*form.batch_shape, count)), None
    if form.inside is not None:
        mask = reshape(form.inside, (*form.batch_shape, form.count, 1))
        wide = broadcast(mask, (*form.batch_shape, form.count, math.prod(form.window_shape)))
        inside = reshape(wide, (*form.batch_shape, count))
    if monoid is not None:
        return form.split(_combined(merged, index, values, inside, monoid, b))
    if b and count == 1:
        return form.split(_one_each(merged, index, values, inside))
    return form.split(_replaced(merged, index, values, inside, b))


def _combined(x: Value, index: Value, values: Value, inside: Value | None, monoid: Monoid, batch: int) -> Value:
    """Values combined with rows of x; those out of bounds as values that change nothing."""
    if monoid.name not in COMBINES:
        raise OperationError(
            f"scatter by {monoid.name!r} is not supported. Use one of {', '.join(map(repr, COMBINES))}."
        )
    if inside is not None:
        mask = reshape(inside, (*inside.shape, *(1,) * (values.ndim - inside.ndim)))
        values = where(mask, values, full_like(values, monoid.identity(x.dtype)))
    lead = [f"d{d}" for d in range(batch)]
    rest = [f"d{d}" for d in range(batch + 1, x.ndim)]
    return row(
        "scatter_reduce",
        x,
        values,
        index,
        op=COMBINES[monoid.name],
        dims=(batch,),
        index=" ".join((*lead, "i")),
        updates=" ".join((*lead, "i", *rest)),
    )


def _one_each(x: Value, index: Value, values: Value, inside: Value | None) -> Value:
    """One value for every place of the batch: by a comparison with row numbers, so that nothing moves."""
    batch = index.ndim - 1
    hit = row("equal", index, np.arange(x.shape[batch]).reshape((*(1,) * batch, -1)))
    if inside is not None:
        hit = row("bitwise_and", hit, inside)
    return where(reshape(hit, (*hit.shape, *(1,) * (x.ndim - hit.ndim))), values, x)


def _replaced(x: Value, index: Value, values: Value, inside: Value | None, batch: int) -> Value:
    """Rows of x replaced by values; of several for one row the last one stays. Batch dims are merged with the rows."""
    groups, room, rest = math.prod(x.shape[:batch]), x.shape[batch], tuple(x.shape[batch + 1 :])
    count = groups * index.shape[-1]
    flat = reshape(index, (groups, index.shape[-1]))
    if groups > 1:
        flat = row("add", flat, np.arange(groups).reshape(-1, 1) * room)
    flat = reshape(flat, (count,))
    if inside is not None:  # a row that no device has
        flat = where(reshape(inside, (count,)), flat, full_like(flat, groups * room))
    table = reshape(x, (groups * room, *rest))
    return reshape(row("scatter", table, reshape(values, (count, *rest)), flat, dims=(0,)), x.shape)


def _window_sizes(shape: Sequence[int], updates: Sequence[int], numbers: Numbers) -> tuple[int, ...]:
    windows = iter(numbers.windows)
    absent = (*numbers.collapsed, *numbers.operand_batch)
    return tuple(1 if d in absent else updates[next(windows)] for d in range(len(shape)))


def _box(x: Value, update: Value, starts: list[int], sizes: Sequence[int], monoid: Monoid | None, mode: str) -> Value:
    """One update at known starts: a box of x."""
    if mode == CLIP:
        starts = [min(max(a, 0), n - s) for a, n, s in zip(starts, x.shape, sizes, strict=True)]
    elif any(not 0 <= a <= n - s for a, n, s in zip(starts, x.shape, sizes, strict=True)):
        return x
    if monoid is None:
        return assign(x, update, starts)
    high = [n - a - s for a, n, s in zip(starts, x.shape, sizes, strict=True)]
    identity = splat(monoid.identity(x.dtype), (), x.dtype)
    return monoid(x, pad(update, identity, starts, high, (0,) * x.ndim))


__all__ = ["CLIP", "FILL", "PROMISE", "Numbers", "gather", "scatter"]
