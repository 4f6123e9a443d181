"""XLA's operations along dims: reductions, running totals, sorts, the largest elements, their places."""

from collections.abc import Callable, Sequence

import numpy as np

import shardwright.numpy as xp
from shardwright.xla.elementwise import MONOIDS, Monoid
from shardwright.xla.shaping import concatenate, reverse, static_slice
from shardwright.xla.values import (
    Value,
    broadcast,
    cast,
    expand,
    full_like,
    is_known,
    row,
    splat,
)

Combine = Callable[[Value, Value], Value]


def reduce(x: Value, monoid: Monoid, dims: Sequence[int], init: Value | None = None) -> Value:
    """Elements combined over dims, and with a first value if one is given."""
    axis = tuple(sorted(dims))
    if not axis:
        result = x
    elif monoid.name in ("and", "or", "xor") and x.dtype.kind != "b":
        result = _reduced_bits(x, monoid, axis)
    elif monoid.name == "xor":
        result = cast(row("sum", x, axis=axis, keepdims=False, dtype=np.dtype(np.uint8)), np.uint8)
        result = row("equal", row("bitwise_and", result, full_like(result, 1)), full_like(result, 1))
    elif monoid.reduction in ("sum", "prod"):
        result = row(monoid.reduction, x, axis=axis, keepdims=False, dtype=x.dtype)
    else:
        result = row(monoid.reduction, x, axis=axis, keepdims=False)
    return result if init is None or monoid.is_identity(init) else monoid(result, broadcast(init, result.shape))


def _reduced_bits(x: Value, monoid: Monoid, axis: tuple[int, ...]) -> Value:
    """Bitwise reductions of integers: each bit is a boolean of its own."""
    kind, width = np.dtype(f"u{x.dtype.itemsize}"), x.dtype.itemsize * 8
    places = np.arange(width, dtype=kind).reshape((*(1,) * x.ndim, width))
    single = row("bitwise_and", row("bitwise_right_shift", expand(cast(x, kind), x.ndim), places), np.ones_like(places))
    found = reduce(row("equal", single, np.ones_like(places)), MONOIDS[monoid.name], axis)
    bits = row("bitwise_left_shift", cast(found, kind), places.reshape((*(1,) * (found.ndim - 1), width)))
    return cast(row("sum", bits, axis=(found.ndim - 1,), keepdims=False, dtype=kind), x.dtype)


# -- running totals ----------------------------------------------------------------------------------------------------------


def cumulative(x: Value, name: str, dim: int, backward: bool = False) -> Value:
    """Each row combined with all before it (or after it): "add", "multiply", "maximum", "minimum" or "logsumexp"."""
    if backward:
        return reverse(cumulative(reverse(x, (dim,)), name, dim), (dim,))
    rows = {"add": "cumulative_sum", "multiply": "cumulative_prod"}
    if name in rows:
        return row(rows[name], x, axis=dim, dtype=x.dtype)
    if name == "logsumexp":
        return prefix(x, lambda a, b: row("logaddexp", a, b), splat(-np.inf, (), x.dtype), dim)
    monoid = MONOIDS[name]
    return prefix(x, monoid, splat(monoid.identity(x.dtype), (), x.dtype), dim)


def shifted(x: Value, by: int, fill: Value, dim: int) -> Value:
    """Rows moved along a dim, filled in front."""
    size = x.shape[dim]
    front = broadcast(fill, (*x.shape[:dim], min(by, size), *x.shape[dim + 1 :]))
    limits = [max(n - by, 0) if d == dim else n for d, n in enumerate(x.shape)]
    return concatenate([front, static_slice(x, (0,) * x.ndim, limits)], dim)


def prefix(x: Value, combine: Combine, identity: Value, dim: int) -> Value:
    """Running totals of any associative function, in a logarithmic number of steps."""
    step = 1
    while step < x.shape[dim]:
        x = combine(shifted(x, step, identity, dim), x)
        step *= 2
    return x


# -- orders ------------------------------------------------------------------------------------------------------------------


def argument(x: Value, name: str, dim: int, dtype: np.dtype[np.generic]) -> Value:
    """The first index of the maximum ("argmax") or minimum along a dim; NaN counts as either."""
    if is_known(x):
        return np.asarray(getattr(np, name)(x, axis=dim)).astype(dtype)
    return cast(getattr(xp, name)(x, axis=dim), dtype)


def _order(key: Value, dim: int, descending: bool) -> Value:
    return row("argsort", key, axis=dim, descending=descending, stable=True)


def _along(x: Value, order: Value, dim: int) -> Value:
    return row("take_along_axis", x, order, axis=dim)


def sort(operands: Sequence[Value], dim: int, keys: Sequence[tuple[int, bool]]) -> list[Value]:
    """Operands in the order of some of them, the first key first; a key is an operand's number and whether it descends.

    The sort is stable, so of two keys the later one is sorted by first.
    """
    if len(operands) == 1:
        return (
            [row("sort", operands[0], axis=dim, descending=keys[0][1], stable=True)]
            if operands[0].ndim
            else list(operands)
        )
    order: Value | None = None
    for number, descending in reversed(keys):
        key = operands[number]
        if order is None:
            order = _order(key, dim, descending)
            continue
        order = _along(order, _order(_along(key, order, dim), dim, descending), dim)
    return [_along(x, order, dim) for x in operands]


def top_k(x: Value, count: int, dim: int, largest: bool = True) -> tuple[Value, Value]:
    """The largest elements along a dim in descending order, of equal ones the first, and their indices; NaN is largest."""
    values, places = row("top_k", x, axis=dim, k=count, largest=largest)
    return values, cast(places, np.int32)
