"""Reductions, searches, sorts and sets. Split dims are reduced locally, then combined; only sorts gather a split dim."""

import math
from typing import Any, NamedTuple

import numpy as np

from shardwright.arrays import Array, held_like
from shardwright.arrays import take as take_rows
from shardwright.eager import apply, find, make, taped, warn
from shardwright.errors import OperationError
from shardwright.numpy.common import (
    Axis,
    array,
    arrays,
    axes_of,
    axis_of,
    integer,
    is_float,
    number_dtype,
    operands,
    reduced,
    sum_dtype,
    wide_dtype,
)
from shardwright.numpy.elementwise import astype
from shardwright.numpy.moves import broadcast_to, concat
from shardwright.ops import Attrs
from shardwright.sharding import Sharding


def _reduce(name: str, x: Any, axis: Axis, keepdims: bool, dtype: Any = None) -> Array:
    a = array(name, x)
    dims = axes_of(name, axis, a.ndim)
    options = {} if dtype is None else {"dtype": number_dtype(name, dtype)}
    result: Array = apply(name, (a,), Attrs(axis=dims, keepdims=bool(keepdims), **options))
    return result


@taped
def sum(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Sums over dims; over split dims the result is partial until it is first read."""
    return _reduce("sum", x, axis, keepdims, dtype or sum_dtype(array("sum", x).dtype))


@taped
def prod(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Products over dims."""
    return _reduce("prod", x, axis, keepdims, dtype or sum_dtype(array("prod", x).dtype))


@taped
def max(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Maxima over dims."""
    return _extreme("max", x, axis, keepdims)


@taped
def min(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Minima over dims."""
    return _extreme("min", x, axis, keepdims)


def _extreme(name: str, x: Any, axis: Axis, keepdims: bool) -> Array:
    a = array(name, x)
    for dim in axes_of(name, axis, a.ndim):
        if not a.shape[dim]:
            raise OperationError(f"{name} over dim {dim} of size 0 has no value; got shape {a.shape}.")
    return _reduce(name, a, axis, keepdims)


@taped
def all(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether all elements are true."""
    return _reduce("all", x, axis, keepdims)


@taped
def any(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether any element is true."""
    return _reduce("any", x, axis, keepdims)


@taped
def count_nonzero(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The number of elements that are not zero."""
    a = array("count_nonzero", x)
    return _reduce("sum", a != 0, axis, keepdims, np.int64)


@taped
def mean(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Averages over dims; in float64 for integers and booleans, as in NumPy."""
    a = array("mean", x)
    dims = axes_of("mean", axis, a.ndim)
    count = math.prod(a.shape[dim] for dim in dims)
    wide = wide_dtype(a.dtype)
    result: Array = _reduce("sum", a, dims, keepdims, wide) / (count if count else float("nan"))
    return result if wide == a.dtype or not is_float(a.dtype) else astype(result, a.dtype)


def var(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Variances over dims, from the differences to the mean: stable, with two small reductions if dims are split.

    Without degrees of freedom (`correction` is at least the number of elements) it warns and divides by 0, as NumPy does.
    """
    a = array("var", x)
    dims = axes_of("var", axis, a.ndim)
    count = math.prod(a.shape[dim] for dim in dims)
    if count <= correction:
        warn(f"var: {count} elements and correction={correction} leave no degrees of freedom.", RuntimeWarning)
    wide = wide_dtype(a.dtype)
    values = a if wide == a.dtype else astype(a, wide)
    # The sum is reduced before it is divided: equal elements have the variance 0.
    distance = values - reduced(_reduce("sum", values, dims, True)) / (count or math.nan)
    squares = apply("real", (distance * apply("conj", (distance,)),)) if wide.kind == "c" else distance * distance
    free = count - correction
    result: Array = _reduce("sum", squares, dims, keepdims) / (free if free > 0 else 0)
    return result if wide == a.dtype or not is_float(a.dtype) else astype(result, a.dtype)


def std(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Standard deviations over dims."""
    result: Array = apply("sqrt", (var(x, axis=axis, correction=correction, keepdims=keepdims),))
    return result


# -- searching ----------------------------------------------------------------------------------------------------------


def _numbers(a: Array, dims: tuple[int, ...]) -> Array:
    """The row-major index of every element within `dims`, sharded like the array; each device computes its own."""
    numbers = 0
    for dim in dims:
        sharding = Sharding(a.mesh, [a.layout.sharding.dims[dim]], offsets={0: a.layout.dims[dim].offsets.tolist()})
        row = astype(make(Array, "places", sharding, (a.shape[dim],)), np.int64)
        shape = tuple(n if d == dim else 1 for d, n in enumerate(a.shape))
        numbers = numbers * a.shape[dim] + apply("reshape", (row,), Attrs(shape=shape))
    result: Array = numbers  # type: ignore[assignment]
    return result


def _arg(name: str, x: Any, axis: int | None, keepdims: bool) -> Array:
    """The first index of an extreme: reduces the extreme, then the smallest index that has it."""
    a = array(name, x)
    axis = None if axis is None else axis_of(name, axis, a.ndim)
    if not a.size and (axis is None or not a.shape[axis_of(name, axis, a.ndim)]):
        raise OperationError(f"{name} of a tensor without elements has no value; got shape {a.shape}.")
    dims = axes_of(name, axis, a.ndim)
    if not dims:
        return held_like(a, np.zeros((), np.int64))
    best = reduced(_reduce("max" if name == "argmax" else "min", a, dims, True))
    found = a == best
    if is_float(a.dtype):
        found = found | (a != a)  # NaN wins, as in NumPy: then nothing equals the extreme
    if len(dims) == 1:
        result: Array = apply("first_true", (found,), Attrs(axis=dims, keepdims=bool(keepdims)))
        return result
    total = math.prod(a.shape[dim] for dim in dims)
    numbers = apply("where", (found, _numbers(a, dims), total))
    return _reduce("min", numbers, dims, keepdims)


@taped
def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The first index of the maximum, along a dim or over all elements; nothing is gathered."""
    return _arg("argmax", x, axis, keepdims)


@taped
def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The first index of the minimum, along a dim or over all elements; nothing is gathered."""
    return _arg("argmin", x, axis, keepdims)


def nonzero(x: Any, /) -> tuple[Array, ...]:
    """The indices of the elements that are not zero, one array per dim."""
    a = array("nonzero", x)
    if not a.ndim:
        raise OperationError("nonzero needs at least one dim; got a tensor without dims. Reshape it to (1,) first.")
    return tuple(find("nonzero", [a]))


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Array:
    """The indices at which values keep an array sorted."""
    a, values = operands("searchsorted", x1, x2)
    values = values if isinstance(values, Array) else a.beside(np.asarray(values))
    if side not in ("left", "right"):
        raise OperationError(f"searchsorted: side is 'left' or 'right', not {side!r}.")
    if sorter is not None:
        a = take_rows(a, arrays("searchsorted", a, sorter)[1], 0)
    result: Array = apply("searchsorted", (a, values), Attrs(side=side))
    return result


# -- sorting and sets -----------------------------------------------------------------------------------------------------


@taped
def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool | None = True) -> Array:
    """Elements sorted along a dim; a split dim is gathered first."""
    a = array("sort", x)
    attrs = Attrs(axis=axis_of("sort", axis, a.ndim), descending=descending, stable=stable is not False)
    result: Array = apply("sort", (a,), attrs)
    return result


@taped
def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool | None = True) -> Array:
    """The indices that sort a dim; a split dim is gathered first."""
    a = array("argsort", x)
    attrs = Attrs(axis=axis_of("argsort", axis, a.ndim), descending=descending, stable=stable is not False)
    result: Array = apply("argsort", (a,), attrs)
    return result


class TopK(NamedTuple):
    """Selected elements along a dim, and their places."""

    values: Array
    indices: Array


def top_k(x: Any, /, k: int, *, axis: int = -1, largest: bool = True) -> TopK:
    """The k largest elements along a dim in descending order, or the k smallest in ascending order, and their indices.

    Of equal elements the first comes first; NaNs are larger than all else. Along a split dim devices exchange their own k.
    """
    a = array("top_k", x)
    at, count = axis_of("top_k", axis, a.ndim), integer("top_k", "k", k)
    if not 0 <= count <= a.shape[at]:
        raise OperationError(f"top_k: k={count} of a dim of size {a.shape[at]}. Give 0 to {a.shape[at]}.")
    return TopK(*apply("top_k", (a,), Attrs(axis=at, k=count, largest=bool(largest))))


class UniqueAll(NamedTuple):
    """The result of `unique_all`."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """The result of `unique_counts`."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """The result of `unique_inverse`."""

    values: Array
    inverse_indices: Array


def unique_all(x: Any, /) -> UniqueAll:
    """Unique elements, their first indices, inverse indices and counts; nothing is gathered."""
    a = array("unique", x)
    return UniqueAll(*find("unique", [a]))


def unique_counts(x: Any, /) -> UniqueCounts:
    """Unique elements and their counts."""
    every = unique_all(x)
    return UniqueCounts(every.values, every.counts)


def unique_inverse(x: Any, /) -> UniqueInverse:
    """Unique elements and the inverse indices."""
    every = unique_all(x)
    return UniqueInverse(every.values, every.inverse_indices)


def unique_values(x: Any, /) -> Array:
    """Unique elements, sorted."""
    return unique_all(x).values


# -- prefixes -----------------------------------------------------------------------------------------------------------


def _cumulative(name: str, x: Any, axis: int | None, dtype: Any, include_initial: bool) -> Array:
    a = array(name, x)
    if axis is None:
        if a.ndim != 1:
            raise OperationError(f"{name}: a tensor of {a.ndim} dims needs axis=.")
        axis = 0
    at = axis_of(name, axis, a.ndim)
    kind = number_dtype(name, dtype) if dtype is not None else sum_dtype(a.dtype)
    result: Array = apply(name, (a,), Attrs(axis=at, dtype=kind))
    if not include_initial:
        return result
    shape = tuple(1 if d == at else n for d, n in enumerate(a.shape))
    first = held_like(a, np.full(shape, 0 if name == "cumulative_sum" else 1, kind))
    joined: Array = apply("concat", (first, result), Attrs(axis=at))
    return joined


@taped
def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Cumulative sums; along a split dim each device sends one row."""
    return _cumulative("cumulative_sum", x, axis, dtype, include_initial)


@taped
def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Cumulative products; along a split dim each device sends one row."""
    return _cumulative("cumulative_prod", x, axis, dtype, include_initial)


def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Array:
    """Differences between neighbours along a dim, n times."""
    a = array("diff", x)
    at = axis_of("diff", axis, a.ndim)
    if integer("diff", "n", n) < 0:
        raise OperationError(f"diff: n={n} is negative. Give 0 or more.")
    if not n:
        return a.again()
    row = tuple(1 if d == at else size for d, size in enumerate(a.shape))
    parts = arrays("diff", *(p for p in (prepend, a, append) if p is not None))
    a = concat([p if p.ndim else broadcast_to(p, row) for p in parts], axis=at)
    for _ in range(n):
        if not a.shape[at]:
            break
        lead = (slice(None),) * at
        later, earlier = a[(*lead, slice(1, None))], a[(*lead, slice(None, -1))]
        a = later != earlier if a.dtype.kind == "b" else later - earlier
    return a
