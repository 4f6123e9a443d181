"""Elements by index: tables, gathers, and writes. Indices known on the host are looked at there, without communication."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import shardwright.nn as nn
import shardwright.numpy as xp
from shardwright.arrays import Array
from shardwright.errors import ModelError
from shardwright.torch.aten.shapes import slice_rows
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
    return xp.take(x, xp.reshape(indices, (-1,)) if isinstance(indices, Array) else _host(indices).reshape(-1), axis=dim)


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
    shape = np.broadcast_shapes(
        *(tuple(1 if d == dim else n for d, n in enumerate(y.shape)) for y in (x, index))
    )
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
        positive = (np if isinstance(one, np.ndarray) else xp).where(wide < 0, wide + size, wide)  # type: ignore[attr-defined]
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


# -- writing: every element of the result looks for who writes it --------------------------------------------------------


def _writers(index: Array, size: int) -> tuple[Array, Array]:
    """For the last dim of an index, which of its entries name each of `size` places, and the last that does, else -1."""
    hits = xp.expand_dims(index, -1) == xp.arange(size, dtype=index.dtype)
    numbers = xp.expand_dims(xp.arange(index.shape[-1], dtype=np.int64), axis=-1)
    return hits, xp.max(xp.where(hits, numbers, -1), axis=-2)


def _along_last(x: Array, dim: int) -> Array:
    return xp.moveaxis(x, dim, -1)


def _checked(name: str, x: Array, index: Array, dim: int) -> None:
    other = [d for d in range(x.ndim) if d != dim and index.shape[d] != x.shape[d]]
    if other:
        raise ModelError(
            f"{name}: indices of shape {index.shape} write a part of dims {other} of shape {x.shape}; only whole ones are known."
        )


def _scattered(name: str, x: Any, dim: int, index: Any, source: Any) -> Array:
    x, index = _array(x), _array(index)
    dim %= max(x.ndim, 1)
    _checked(name, x, index, dim)
    _, last = _writers(_along_last(index, dim), x.shape[dim])
    if isinstance(source, Array | torch.Tensor) and source.ndim:
        source = _array(source)
        for d, n in enumerate(index.shape):
            source = slice_rows(source, d, 0, n)
        value: Any = xp.take_along_axis(_along_last(cast(source, x.dtype), dim), xp.maximum(last, 0), axis=-1)
    else:
        value = _array(source) if isinstance(source, torch.Tensor) else source
    return xp.moveaxis(xp.where(last >= 0, value, _along_last(x, dim)), -1, dim)


@row("scatter.src scatter.value", raw=True)
def scatter(x: Any, dim: int, index: Any, source: Any) -> Array:
    """Elements written along a dim by index; the last of several counts."""
    return _scattered("scatter", x, dim, index, source)


@row("scatter_add", raw=True)
def scatter_add(x: Any, dim: int, index: Any, source: Any) -> Array:
    """Elements added along a dim by index."""
    x, index, source = _array(x), _array(index), _array(source)
    dim %= max(x.ndim, 1)
    _checked("scatter_add", x, index, dim)
    for d, n in enumerate(index.shape):
        source = slice_rows(source, d, 0, n)
    hits, _ = _writers(_along_last(index, dim), x.shape[dim])
    added = xp.sum(xp.where(hits, xp.expand_dims(_along_last(source, dim), -1), 0), axis=-2)
    return x + cast(xp.moveaxis(added, -1, dim), x.dtype)


@row("index_add", raw=True)
def index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Array:
    """Rows added to rows of a dim."""
    x, source = _array(x), _array(source)
    dim %= max(x.ndim, 1)
    added = accumulated(xp.moveaxis(source, dim, 0), _array(index), x.shape[dim])
    return x + cast(xp.moveaxis(added, 0, dim), x.dtype) * alpha


def accumulated(rows: Array, index: Array, size: int) -> Array:
    """Sums of rows that share an index, as `size` rows."""
    hot = nn.one_hot(index, size, dtype=rows.dtype)
    return xp.einsum("rn,r...->n...", hot, rows)


@row("index_copy", raw=True)
def index_copy(x: Any, dim: int, index: Any, source: Any) -> Array:
    """Rows of a dim replaced."""
    x, source = _array(x), _array(source)
    return xp.moveaxis(_replaced(xp.moveaxis(x, dim, 0), _array(index), xp.moveaxis(source, dim, 0)), 0, dim)


@row("index_fill.int_Scalar", raw=True)
def index_fill(x: Any, dim: int, index: Any, value: Any) -> Array:
    """Rows of a dim filled with one value."""
    x = _array(x)
    _, last = _writers(_array(index), x.shape[dim])
    shape = [x.shape[d] if d == dim % x.ndim else 1 for d in range(x.ndim)]
    return xp.where(xp.reshape(last, shape) >= 0, value, x)


def _replaced(x: Array, index: Array, rows: Any) -> Array:
    """Rows of the first dim replaced; of several the last counts."""
    _, last = _writers(index, x.shape[0])
    held = xp.reshape(last >= 0, (-1, *(1,) * (x.ndim - 1)))
    if isinstance(rows, Array) and rows.ndim == x.ndim:
        rows = xp.take(rows, xp.maximum(last, 0), axis=0)
    return xp.where(held, rows, x)


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
        mask = xp.reshape(known[0], (*known[0].shape, *(1,) * (x.ndim - known[0].ndim)))
        one = xp.reshape(values, ())
        return xp.where(mask, x + one if accumulate else one, x)
    if used != list(range(len(used))):
        raise ModelError(f"index_put on dims {used}: only leading dims are known. Move them to the front first.")
    sizes, rest = x.shape[: len(used)], x.shape[len(used) :]
    shape = np.broadcast_shapes(*(i.shape for i in known))
    flat = xp.reshape(_flat_index(known, sizes, shape), (-1,))
    rows = xp.reshape(xp.broadcast_to(values, (*shape, *rest)), (-1, *rest))
    whole = xp.reshape(x, (int(np.prod(sizes)), *rest))
    made = whole + accumulated(rows, flat, whole.shape[0]) if accumulate else _replaced(whole, flat, rows)
    return xp.reshape(made, x.shape)


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
