"""XLA's operations that move elements: slices, padding, joins, and slices whose starts depend on data."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.ops import RowMap
from shardwright.xla.values import (
    MOST_FOLDED,
    Value,
    broadcast,
    cast,
    expand,
    full_like,
    is_known,
    is_splat,
    known_int,
    reshape,
    row,
    splat,
    where,
)

__all__ = [
    "concatenate",
    "dynamic_slice",
    "dynamic_update_slice",
    "iota",
    "pad",
    "reverse",
    "split",
    "static_slice",
    "tile",
]


def rows(x: Value, name: str, maps: Sequence[RowMap | None]) -> Value:
    """Rows of known numbers along dims."""
    return x if all(each is None for each in maps) else row("rows", x, name=name, maps=tuple(maps))


def iota(shape: Sequence[int], dim: int, dtype: Any) -> Value:
    """The position along a dim."""
    line = np.arange(shape[dim]).astype(dtype)
    return np.broadcast_to(line.reshape([-1 if d == dim else 1 for d in range(len(shape))]), tuple(shape))


def static_slice(x: Value, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int] | None = None) -> Value:
    """Rows from starts to limits, every stride-th."""
    steps = strides or (1,) * len(starts)
    if is_known(x):
        return x[tuple(slice(a, b, s) for a, b, s in zip(starts, limits, steps, strict=True))]
    maps = []
    for size, start, limit, step in zip(x.shape, starts, limits, steps, strict=True):
        count = max(-(-(limit - start) // step), 0)
        maps.append(None if count == size else RowMap(count, start, step))
    return rows(x, "slice", maps)


def reverse(x: Value, dims: Sequence[int]) -> Value:
    """Rows in reverse order along dims."""
    if is_known(x):
        return np.flip(x, tuple(dims)) if dims else x
    maps = [RowMap(n, n - 1, -1) if d in dims and n > 1 else None for d, n in enumerate(x.shape)]
    return rows(x, "flip", maps)


def concatenate(operands: Sequence[Value], dim: int) -> Value:
    """Values joined along a dim."""
    if len(operands) == 1:
        return operands[0]
    return row("concat", *operands, axis=dim)


def split(x: Value, sizes: Sequence[int], dim: int) -> list[Value]:
    """Parts of given sizes along a dim."""
    ends = np.cumsum([0, *sizes]).tolist()
    whole = [(0, n) for n in x.shape]
    parts = []
    for start, end in itertools.pairwise(ends):
        bounds = [*whole[:dim], (start, end), *whole[dim + 1 :]]
        parts.append(static_slice(x, [a for a, _ in bounds], [b for _, b in bounds]))
    return parts


def tile(x: Value, times: Sequence[int]) -> Value:
    """The tensor repeated along each dim."""
    if is_known(x):
        return np.tile(x, tuple(times))
    maps = [RowMap(n * t, wrap=n) if t != 1 and n else None for n, t in zip(x.shape, times, strict=True)]
    return rows(x, "tile", maps)


def pad(x: Value, value: Value, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> Value:
    """Elements of one value before, after and between rows; a negative number removes rows instead."""
    shape = tuple(a + b + n + max(n - 1, 0) * i for n, a, b, i in zip(x.shape, low, high, interior, strict=True))
    if shape == tuple(x.shape) and not any(low) and not any(interior):
        return x
    if 0 in shape or 0 in x.shape or (is_splat(x) and is_splat(value) and x.flat[0] == value.flat[0]):
        return broadcast(value, shape)
    if is_known(x) and is_known(value) and math.prod(shape) <= MOST_FOLDED:
        return _padded_now(x, value, shape, low, interior)
    padded = _zero_padded(x, shape, low, high, interior)
    if is_splat(value) and not np.any(value) and not np.signbit(value.flat[0].real if value.dtype.kind in "fc" else 0):
        return padded
    for dim, (n, a, i) in enumerate(zip(x.shape, low, interior, strict=True)):
        place = np.arange(shape[dim]) - a
        inside = (place >= 0) & (place % (i + 1) == 0) & (place // (i + 1) < n)
        if not inside.all():
            mask = inside.reshape([-1 if d == dim else 1 for d in range(len(shape))])
            padded = where(np.broadcast_to(mask, shape), padded, broadcast(value, shape))
    return padded


def _padded_now(x: Any, value: Any, shape: Sequence[int], low: Sequence[int], interior: Sequence[int]) -> Any:
    made = np.full(shape, value, x.dtype)
    source, target = [], []
    for n, size, a, i in zip(x.shape, shape, low, interior, strict=True):
        places = a + np.arange(n) * (i + 1)
        keep = np.flatnonzero((places >= 0) & (places < size))
        source.append(keep)
        target.append(places[keep])
    made[np.ix_(*target)] = x[np.ix_(*source)]
    return made


def _zero_padded(
    x: Value, shape: Sequence[int], low: Sequence[int], high: Sequence[int], interior: Sequence[int]
) -> Value:
    """Padding with zeros: rows outside of a tensor are read as 0, also between rows once each is a dim of its own."""
    maps: list[RowMap | None] = []
    for dim, (size, a, b, i) in enumerate(zip(shape, low, high, interior, strict=True)):
        n = x.shape[dim]
        if i and n > 1:
            apart = expand(x, dim + 1)
            apart = rows(apart, "pad", [RowMap(i + 1) if d == dim + 1 else None for d in range(apart.ndim)])
            x = reshape(apart, (*x.shape[:dim], n * (i + 1), *x.shape[dim + 1 :]))
        maps.append(None if (a, b, x.shape[dim]) == (0, 0, size) else RowMap(size, -a))
    return rows(x, "pad", maps)


# -- slices whose starts depend on data ------------------------------------------------------------------------------------


def dynamic_slice(x: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
    """A box of given sizes; starts are moved so that it is inside of the tensor."""
    known = [known_int(start) for start in starts]
    begins = [
        min(max(k or 0, 0), n - s) if k is not None or n == s else 0
        for k, n, s in zip(known, x.shape, sizes, strict=True)
    ]
    ends = [b + s if k is not None or n == s else n for b, k, n, s in zip(begins, known, x.shape, sizes, strict=True)]
    x = static_slice(x, begins, ends)
    for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if x.shape[dim] != size:
            x = take(x, row("add", clipped(start, x.shape[dim] - size, (1,)), np.arange(size)), dim)
    return x


def clipped(start: Value, most: int, shape: Sequence[int]) -> Value:
    """A start as int64 from 0 to `most`."""
    wide = cast(start, np.int64)
    inside = row("minimum", row("maximum", wide, full_like(wide, 0)), full_like(wide, most))
    return reshape(inside, shape)


def take(x: Value, indices: Value, dim: int) -> Value:
    """Rows of a dim by indices that are in range; split rows are summed over the devices, never gathered."""
    return np.take(x, indices, axis=dim) if is_known(x) and is_known(indices) else row("take", x, indices, axis=dim)


def dynamic_update_slice(x: Value, update: Value, starts: Sequence[Value]) -> Value:
    """x with a box replaced by an update; starts are moved so that it is inside of the tensor."""
    known = [known_int(start) for start in starts]
    sizes = list(zip(x.shape, update.shape, strict=True))
    if 0 in update.shape:
        return x
    if all(k is not None or n == s for k, (n, s) in zip(known, sizes, strict=True)):
        return assign(x, update, [min(max(k or 0, 0), n - s) for k, (n, s) in zip(known, sizes, strict=True)])
    mask: Value = splat(True, (1,) * x.ndim, bool)
    for dim, (start, (n, size)) in enumerate(zip(starts, sizes, strict=True)):
        if n == size:
            continue
        place = row("subtract", np.arange(n), clipped(start, n - size, (1,)))
        inside = row(
            "bitwise_and", row("greater_equal", place, full_like(place, 0)), row("less", place, full_like(place, size))
        )
        mask = row("bitwise_and", mask, reshape(inside, [n if d == dim else 1 for d in range(x.ndim)]))
        if size > 1:
            within = row("minimum", row("maximum", place, full_like(place, 0)), full_like(place, size - 1))
            update = take(update, within, dim)
    return where(mask, update, x)


def assign(x: Value, update: Value, starts: Sequence[int]) -> Value:
    """x with a box at known starts replaced; its rows go to the devices that hold those they replace."""
    if tuple(x.shape) == tuple(update.shape):
        return update
    if is_known(x) and is_known(update):
        made = np.array(x)
        made[tuple(slice(a, a + n) for a, n in zip(starts, update.shape, strict=True))] = update
        return made
    maps = [None if n == m else RowMap(m, a) for a, n, m in zip(starts, x.shape, update.shape, strict=True)]
    return row("assign", x, update, maps=tuple(maps))
