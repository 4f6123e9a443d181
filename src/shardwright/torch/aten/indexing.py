"""Elements by index: tables, gathers, and writes. Indices known on the host are looked at there, without communication."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import shardwright.nn as nn
import shardwright.numpy as xp
from shardwright.arrays import Array
from shardwright.errors import ModelError
from shardwright.torch.aten.shapes import pad, slice_rows
from shardwright.torch.aten.table import cast, row


def _host(index: Any) -> Any:
    """An index as NumPy has it, if it is known."""
    return index.numpy() if isinstance(index, torch.Tensor) else index


def _array(x: Any) -> Array:
    return x if isinstance(x, Array) else xp.asarray(_host(x))


# -- reading -------------------------------------------------------------------------------------------------------------


@row("embedding", raw=True)
def embedding(table: Any, indices: Any, *rest: Any) -> Array:
    """Rows of a table."""
    return nn.embedding(_array(table), _host(indices))


@row("index_select", raw=True)
def index_select(x: Any, dim: int, indices: Any) -> Array:
    """Rows of a dim by number."""
    x = _array(x)
    return xp.take(
        x, xp.reshape(indices, (-1,)) if isinstance(indices, Array) else _host(indices).reshape(-1), axis=dim
    )


@row("gather take_along_dim", raw=True)
def gather(x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Array:
    """Elements along a dim, one index for each element of the result."""
    x, index = _array(x), _array(index)
    if not x.ndim:
        return xp.broadcast_to(x, index.shape)
    for d, n in enumerate(index.shape):
        x = x if d == dim % x.ndim else slice_rows(x, d, 0, n)
    return xp.take_along_axis(x, index, axis=dim)


@row("take_along_dim", raw=True)
def take_along_dim(x: Any, index: Any, dim: int | None = None) -> Array:
    """As gather, with dims that broadcast."""
    x, index = _array(x), _array(index)
    if dim is None:
        return xp.take(xp.reshape(x, (-1,)), xp.reshape(index, (-1,)), axis=0)
    dim %= x.ndim
    shape = np.broadcast_shapes(*(tuple(1 if d == dim else n for d, n in enumerate(y.shape)) for y in (x, index)))
    x = xp.broadcast_to(x, [x.shape[d] if d == dim else n for d, n in enumerate(shape)])
    index = xp.broadcast_to(index, [index.shape[d] if d == dim else n for d, n in enumerate(shape)])
    return xp.take_along_axis(x, index, axis=dim)


@row("take", raw=True)
def take(x: Any, index: Any) -> Array:
    """Elements by their place in the flattened array."""
    x, index = _array(x), _array(index)
    return xp.reshape(xp.take(xp.reshape(x, (-1,)), xp.reshape(index, (-1,)), axis=0), index.shape)


@row("index.Tensor _unsafe_index.Tensor", raw=True)
def index(x: Any, indices: Sequence[Any]) -> Array:
    """Advanced indexing with integers: dims that are indexed become those of the indices."""
    x = _array(x)
    used = [d for d, i in enumerate(indices) if i is not None]
    known = [_host(indices[d]) for d in used]
    if any(i.dtype.kind == "b" for i in known):
        return _by_mask(x, indices, used, known)
    if len(used) == 1:
        return xp.take(x, known[0], axis=used[0])
    if used == [0, 1] and known[1].ndim == 1 and _counts(known[0], x.shape[0]):  # one row of each sample
        place = xp.reshape(_array(known[1]), (-1, 1, *(1,) * (x.ndim - 2)))
        found = xp.take_along_axis(x, xp.broadcast_to(place, (x.shape[0], 1, *x.shape[2:])), axis=1)
        return xp.squeeze(found, axis=1)
    shape = np.broadcast_shapes(*(i.shape for i in known))
    adjacent = used == list(range(used[0], used[-1] + 1))
    rest = [d for d in range(x.ndim) if d not in used]
    at = used[0] if adjacent else 0  # else the dims of the indices come first, as in NumPy
    order = [*rest[:at], *used, *rest[at:]]
    sizes = [x.shape[d] for d in used]
    moved = xp.permute_dims(x, order) if order != list(range(x.ndim)) else x
    merged = xp.reshape(moved, (*moved.shape[:at], int(np.prod(sizes)), *moved.shape[at + len(used) :]))
    return xp.take(merged, _flat_index(known, sizes, shape), axis=at)


def _counts(index: Any, size: int) -> bool:
    return isinstance(index, np.ndarray) and index.shape == (size,) and np.array_equal(index, np.arange(size))


def _flat_index(indices: Sequence[Any], sizes: Sequence[int], shape: tuple[int, ...]) -> Any:
    """One index into the merged dims for several; negative ones count from the end of their dim."""
    total: Any = 0
    for one, size in zip(indices, sizes, strict=True):
        wide = one.astype(np.int64) if isinstance(one, np.ndarray) else cast(one, np.int64)
        positive = (np if isinstance(one, np.ndarray) else xp).where(wide < 0, wide + size, wide)
        total = positive + total * size
    return xp.broadcast_to(total, shape) if isinstance(total, Array) else np.broadcast_to(total, shape)


def _by_mask(x: Array, indices: Sequence[Any], used: Sequence[int], known: Sequence[Any]) -> Array:
    """A mask that is known on the host is the rows that it holds; else the result's shape would depend on data."""
    if any(isinstance(i, Array) for i in known):
        raise ModelError(
            "x[mask] with a mask that depends on inputs has a data-dependent shape. Write torch.where(mask, x, 0) instead."
        )
    spread: list[Any] = []
    for entry in indices:
        host = _host(entry) if entry is not None else None
        spread += [None] if host is None else list(np.nonzero(host)) if host.dtype.kind == "b" else [host]
    return index(x, [None if i is None else torch.from_numpy(np.ascontiguousarray(i)) for i in spread])


@row("one_hot", raw=True)
def one_hot(indices: Any, classes: int = -1) -> Array:
    """1 at each index along a new last dim, in int64."""
    if classes < 0:
        raise ModelError("one_hot without num_classes has a data-dependent shape. Give num_classes.")
    return nn.one_hot(_array(indices), classes, dtype=np.int64)


# -- writing: of several writers of a place the last counts, which is the largest number among them ------------------------


def _along(x: Any, dim: int, index: Any, source: Any) -> tuple[Array, int, Array, Any]:
    """The operands of a scatter along a dim: what is written is as long as the index; scalars stay."""
    x, index = _array(x), _array(index)
    if isinstance(source, Array | torch.Tensor):
        source = cast(_array(source), x.dtype)
        for d, n in enumerate(index.shape if source.ndim else ()):
            source = slice_rows(source, d, 0, n)
    return x, dim % max(x.ndim, 1), index, source


@row("scatter.src scatter.value", raw=True)
def scatter(x: Any, dim: int, index: Any, source: Any) -> Array:
    """Elements written along a dim by index."""
    x, dim, index, source = _along(x, dim, index, source)
    numbers = np.arange(index.shape[dim]).reshape([-1 if d == dim else 1 for d in range(x.ndim)])
    none = xp.full(x.shape, -1, dtype=np.int64)
    last = nn.scatter_along_axis(none, index, np.broadcast_to(numbers, index.shape), axis=dim, op="max")
    if isinstance(source, Array) and source.ndim:
        for d, n in enumerate(x.shape):  # places that nothing reaches read any element
            source = source if d == dim else pad(source, [0, 0] * (x.ndim - 1 - d) + [0, n - source.shape[d]])
        source = xp.take_along_axis(source, xp.maximum(last, 0), axis=dim)
    return xp.where(last >= 0, source, x)


@row("scatter_add", raw=True)
def scatter_add(x: Any, dim: int, index: Any, source: Any) -> Array:
    """Elements added along a dim by index."""
    x, dim, index, source = _along(x, dim, index, source)
    return nn.scatter_along_axis(x, index, source, axis=dim)


_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "mean": "add"}


@row("scatter_reduce.two", raw=True)
def scatter_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Array:
    """Elements combined along a dim by index, with those that are there or, without `include_self`, among themselves."""
    x, dim, index, source = _along(x, dim, index, source)
    ones = np.ones((1,) * x.ndim, np.int64)
    hits = nn.scatter_along_axis(xp.zeros(x.shape, dtype=np.int64), index, np.broadcast_to(ones, index.shape), axis=dim)
    start = x
    if not include_self:
        start = xp.where(hits > 0, _identity(reduce, x.dtype), x)
    made = nn.scatter_along_axis(start, index, source, axis=dim, op=_REDUCTIONS[reduce])
    if reduce != "mean":
        return made
    count = xp.maximum(hits + int(include_self), 1)
    return xp.floor_divide(made, count) if x.dtype.kind in "iu" else made / cast(count, x.dtype)


def _identity(reduce: str, dtype: "np.dtype[Any]") -> Any:
    """What changes nothing beside other elements."""
    if reduce in ("sum", "mean", "prod"):
        return int(reduce == "prod")
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min if reduce == "amax" else np.iinfo(dtype).max)
    return -np.inf if reduce == "amax" else np.inf


@row("index_add", raw=True)
def index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Array:
    """Rows added to rows of a dim."""
    x, source = _array(x), _array(source)
    return nn.scatter_add(x, _array(index), source if alpha == 1 else source * alpha, axis=dim % x.ndim)


@row("index_copy", raw=True)
def index_copy(x: Any, dim: int, index: Any, source: Any) -> Array:
    """Rows of a dim replaced."""
    return _replaced(_array(x), [dim], [_array(index)], xp.moveaxis(_array(source), dim, 0))


@row("index_fill.int_Scalar", raw=True)
def index_fill(x: Any, dim: int, index: Any, value: Any) -> Array:
    """Rows of a dim filled with one value."""
    return _replaced(_array(x), [dim], [_array(index)], value)


def _replaced(x: Array, dims: Sequence[int], indices: Sequence[Array], rows: Any) -> Array:
    """x with rows of dims replaced; `rows` is a scalar or has the dims of the indices, then the other ones of x."""
    front = tuple(range(len(dims)))
    moved = xp.moveaxis(x, tuple(dims), front)
    shape = np.broadcast_shapes(*(index.shape for index in indices))
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    none = xp.full(moved.shape[: len(dims)], -1, dtype=np.int64)
    last = nn.scatter_reduce(none, list(indices), numbers, op="max", axis=front)
    if isinstance(rows, Array):
        rest = moved.shape[len(dims) :]
        flat = xp.reshape(xp.broadcast_to(rows, (*shape, *rest)), (-1, *rest))
        rows = xp.take(flat, xp.maximum(last, 0), axis=0)
    held = xp.reshape(last >= 0, (*last.shape, *(1,) * (x.ndim - len(dims))))
    return xp.moveaxis(xp.where(held, rows, moved), front, tuple(dims))


@row("index_put _unsafe_index_put", raw=True)
def index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Array:
    """Elements written, or added, by advanced integer indices or a mask."""
    x = _array(x)
    values = cast(_array(values), x.dtype)
    used = [d for d, i in enumerate(indices) if i is not None]
    known = [_array(indices[d]) for d in used]
    if len(known) == 1 and known[0].dtype.kind == "b":
        if values.size != 1:
            raise ModelError("x[mask] = values with several values has a data-dependent order. Use torch.where.")
        mask = xp.reshape(known[0], (*(1,) * used[0], *known[0].shape, *(1,) * (x.ndim - known[0].ndim - used[0])))
        one = xp.reshape(values, ())
        return xp.where(mask, x + one if accumulate else one, x)
    if accumulate:
        return nn.scatter_reduce(x, known, values, axis=used)
    if used != list(range(used[0], used[0] + len(used))):
        raise ModelError(f"index_put on dims {used}, which are not neighbours, is not known. Move them together first.")
    shape = np.broadcast_shapes(*(index.shape for index in known))
    full = xp.broadcast_to(values, (*x.shape[: used[0]], *shape, *x.shape[used[-1] + 1 :]))
    lead = tuple(range(used[0], used[0] + len(shape)))
    return _replaced(x, used, known, xp.moveaxis(full, lead, tuple(range(len(shape)))))


@row("tril")
def tril(x: Array, diagonal: int = 0) -> Array:
    """The lower triangle."""
    return xp.tril(x, k=diagonal)


@row("triu")
def triu(x: Array, diagonal: int = 0) -> Array:
    """The upper triangle."""
    return xp.triu(x, k=diagonal)


@row("diagonal diagonal_copy")
def diagonal(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """The diagonal of two dims, as the last dim."""
    return xp.linalg.diagonal(xp.moveaxis(x, (dim1, dim2), (-2, -1)), offset=offset)
