"""XLA's windows: reductions of them, and the gradient of their maximum."""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from shardwright.ops import RowMap
from shardwright.xla.elementwise import MONOIDS, Monoid
from shardwright.xla.products import Window
from shardwright.xla.reducing import cumulative
from shardwright.xla.shaping import pad, rows
from shardwright.xla.values import Value, broadcast, cast, full_like, is_float, reshape, row, splat, where

Sizes = Sequence[int]


def _maps(x: Value, sizes: Sizes, window: Window) -> list[RowMap]:
    maps = []
    for n, width, stride, (low, high), dilation in zip(
        x.shape, sizes, window.strides, window.padding, window.dilation, strict=True
    ):
        room = n + low + high - ((width - 1) * dilation + 1)
        maps.append(RowMap(room // stride + 1 if room >= 0 else 0, -low, stride, width, dilation))
    return maps


def _spread(x: Value, window: Window, fill: Value) -> Value:
    none = (0,) * x.ndim
    return pad(x, fill, none, none, [d - 1 for d in window.base_dilation])


def reduce_window(x: Value, monoid: Monoid, sizes: Sizes, window: Window, init: Value | None = None) -> Value:
    """Every window combined, and with a first value if one is given; what lies outside of the tensor does not count."""
    identity = splat(monoid.identity(x.dtype), (), x.dtype)
    x = _spread(x, window, identity)
    maps = _maps(x, sizes, window)
    shape = tuple(each.size for each in maps)
    result = broadcast(identity, shape) if 0 in shape or 0 in x.shape else _windows(x, monoid, maps, identity)
    return result if init is None or monoid.is_identity(init) else monoid(result, broadcast(init, shape))


def _running(x: Value, monoid: Monoid, maps: Sequence[RowMap]) -> Value | None:
    """Windows that begin or end with the tensor are running totals, which is how XLA writes these; None for others."""
    wide = [dim for dim, (each, n) in enumerate(zip(maps, x.shape, strict=True)) if each != RowMap(n)]
    if len(wide) != 1 or monoid.name not in ("add", "multiply", "maximum", "minimum"):
        return None
    (dim,) = wide
    n = x.shape[dim]
    for start, backward in ((1 - n, False), (0, True)):
        if n > 1 and maps[dim] == RowMap(n, start, 1, n):
            return cumulative(x, monoid.name, dim, backward)
    return None


def _windows(x: Value, monoid: Monoid, maps: Sequence[RowMap], identity: Value) -> Value:
    running = _running(x, monoid, maps)
    if running is not None:
        return running
    if monoid.name in ("maximum", "minimum") and x.dtype.kind != "c":
        return _pooled("max_pool", x, maps, backward=monoid.name == "minimum")
    if monoid.name == "add" and is_float(x.dtype):
        wide = cast(x, np.float32) if x.dtype.itemsize < 4 else x
        mean = _pooled("avg_pool", wide, maps)
        count = np.prod([each.width for each in maps])
        return cast(row("multiply", mean, full_like(mean, count)), x.dtype)
    result: Value | None = None
    for part in parts(x, maps, identity):
        result = part if result is None else monoid(result, part)
    return result


def parts(x: Value, maps: Sequence[RowMap], fill: Value) -> Iterator[Value]:
    """For each place in a window, row-major, the element that every window has there."""
    low = [max(-each.start, 0) for each in maps]
    reach = [each.start + (each.size - 1) * each.stride + (each.width - 1) * each.dilation + 1 for each in maps]
    high = [max(end - n, 0) for end, n in zip(reach, x.shape, strict=True)]
    x = pad(x, fill, low, high, (0,) * x.ndim)
    for offsets in product(*(range(each.width) for each in maps)):
        picked = [
            RowMap(each.size, each.start + shift + offset * each.dilation, each.stride)
            for each, offset, shift in zip(maps, offsets, low, strict=True)
        ]
        yield rows(x, "slice", [None if m == RowMap(n) else m for m, n in zip(picked, x.shape, strict=True)])


def _pooled(name: str, x: Value, maps: Sequence[RowMap], backward: bool = False) -> Value:
    """Pooling by the table's row, which takes `b spatial… c`: the first and last dims if they have no windows, or new ones."""
    trivial = [each == RowMap(n) for each, n in zip(maps, x.shape, strict=True)]
    first, last = int(x.ndim > 2 and trivial[0]), int(x.ndim > 2 and trivial[-1])
    wide = reshape(x, (*(1,) * (1 - first), *x.shape, *(1,) * (1 - last)))
    inner = tuple(maps[first : len(maps) - last])
    turn = "negative" if is_float(x.dtype) else "bitwise_invert"  # reverses the order
    turned = row(turn, wide) if backward else wide
    made = row(name, turned, maps=inner)
    made = row(turn, made) if backward else made
    return reshape(made, [each.size for each in maps])


# -- the gradient of a maximum of windows ------------------------------------------------------------------------------------


def _winners(x: Value, maps: Sequence[RowMap], keeps: str) -> Iterator[tuple[tuple[int, ...], Value]]:
    """For each place in a window which windows select the element there.

    That is the first element which `keeps` ("greater_equal") its place against every later one.
    """
    fill = splat(0, (), x.dtype)
    ones = splat(True, x.shape, bool)
    best: Value | None = None
    which: Value | None = None
    pairs = zip(parts(x, maps, fill), parts(ones, maps, np.asarray(False)), strict=True)
    for number, (element, inside) in enumerate(pairs):
        if best is None or which is None:
            best = element
            which = where(
                broadcast(inside, element.shape), splat(0, element.shape, np.int32), splat(-1, element.shape, np.int32)
            )
            continue
        beaten = row("bitwise_invert", row(keeps, best, element))
        none = row("less", which, full_like(which, 0))
        take = row("bitwise_and", inside, row("bitwise_or", none, beaten))
        best, which = where(take, element, best), where(take, full_like(which, number), which)
    places = product(*(range(each.width) for each in maps))
    for number, place in enumerate(places):
        yield place, row("equal", which, full_like(which, number))


def select_and_scatter(
    x: Value, source: Value, keeps: str, sizes: Sizes, window: Window, init: Value | None = None
) -> Value:
    """Each window's source added to the element that the window selects; the gradient of a maximum of windows."""
    maps = _maps(x, sizes, window)
    zero = splat(0, (), source.dtype)
    total: Value = full_like(splat(0, x.shape, source.dtype), 0) if init is None else broadcast(init, x.shape)
    for place, mine in _winners(x, maps, keeps):
        share = where(mine, source, full_like(source, 0))
        low = [each.start + offset * each.dilation for each, offset in zip(maps, place, strict=True)]
        interior = [each.stride - 1 for each in maps]
        high = [n - a - ((each.size - 1) * each.stride + 1) for n, a, each in zip(x.shape, low, maps, strict=True)]
        total = row("add", total, pad(share, zero, low, high, interior))
    return total


def select_and_gather(x: Value, tangents: Value, keeps: str, sizes: Sizes, window: Window) -> Value:
    """Of each window the tangent at the element that the window selects."""
    maps = _maps(x, sizes, window)
    total: Value | None = None
    for (_, mine), tangent in zip(
        _winners(x, maps, keeps), parts(tangents, maps, splat(0, (), tangents.dtype)), strict=True
    ):
        share = where(mine, tangent, full_like(tangent, 0))
        total = share if total is None else row("add", total, share)
    return total


KEEPS = {"ge": "greater_equal", "le": "less_equal", "gt": "greater", "lt": "less"}

__all__ = ["KEEPS", "MONOIDS", "reduce_window", "select_and_gather", "select_and_scatter"]
