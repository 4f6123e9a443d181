"""Indexing in all its forms, by operations of the table.

Slices of a sharded dim stay where they lie: every device keeps the rows it has. An integer takes a slice of one row. One
integer array is a `take`. Masks and mixtures of arrays have data-dependent shapes or orders: they work on the whole tensor,
and that gather is noticed.
"""

import operator
from typing import Any

import numpy as np

from shardwright.arrays.hosts import host_array, is_tensor
from shardwright.eager import Held, apply, auto_spec, find, taped, tracer
from shardwright.engines import engine_of
from shardwright.errors import OperationError
from shardwright.ops import Attrs, RowMap
from shardwright.plan import element_step
from shardwright.sharding import Sharding, layout_of

WHOLE = slice(None)


def get(x: Any, index: Any) -> Any:
    """x[index]."""
    spelled = _spelled(index)
    return _get(x, index) if spelled is None else _get_spelled(x, spelled)


def _spelled(index: Any) -> Any:
    """An index of integers, slices, None and `...` as a value that can be compared; None for others."""
    kind = type(index)
    if kind is int:
        return index
    if kind is slice:
        return ("slice", index.start, index.stop, index.step)
    if kind is not tuple:
        return None
    parts: list[Any] = []
    for entry in index:
        kind = type(entry)
        if kind is slice:
            parts.append(("slice", entry.start, entry.stop, entry.step))
        elif kind is int or entry is None:
            parts.append(entry)
        elif entry is Ellipsis:
            parts.append("...")
        else:
            return None
    return ("index", *parts)


@taped
def _get_spelled(x: Any, spelled: Any) -> Any:
    """x[index] for an index that was spelled out."""

    def entry(part: Any) -> Any:
        return slice(*part[1:]) if type(part) is tuple else Ellipsis if part == "..." else part

    is_tuple = type(spelled) is tuple and spelled[0] == "index"
    return _get(x, tuple(map(entry, spelled[1:])) if is_tuple else entry(spelled))


def _get(x: Any, index: Any) -> Any:
    entries = entries_of(x, index)
    arrays = [entry for entry in entries if is_array(entry)]
    if not arrays:
        return _basic(x, entries)
    others = [entry for entry in entries if not is_array(entry)]
    if len(arrays) == 1 and _dtype(arrays[0]).kind in "iu" and all(isinstance(entry, slice) for entry in others):
        axis = next(i for i, entry in enumerate(entries) if is_array(entry))
        sliced = _basic(x, [WHOLE if is_array(entry) else entry for entry in entries])
        return take(sliced, arrays[0], axis)
    pattern, operands = _pattern(x, entries)
    if pattern == ("array",) and operands[0].dtype.kind == "b" and operands[0].shape == x.shape and x.ndim:
        return find("masked", [x, *operands])[0]
    return find("index", [x, *operands], Attrs(pattern=pattern))[0]


def take(x: Any, indices: Any, axis: int) -> Any:
    """Rows of a dim by number."""
    return apply("take", (x, lifted(x, row_indices("take", x, indices, axis))), Attrs(axis=axis))


def row_indices(name: str, x: Any, indices: Any, axis: int) -> Any:
    """Indices of rows of a dim, checked to be integers in range."""
    return checked_indices(x, index_array(name, indices), axis)


def checked_index(index: int, size: int, dim: int) -> int:
    """An index counted from the front; an error if it is out of bounds."""
    if not -size <= index < size:
        raise IndexError(f"Index {index} is out of bounds for dim {dim} of size {size}.")
    return index % size


def checked_indices(x: Any, indices: Any, dim: int) -> Any:
    """Indices of a dim; an error if one is out of bounds. Those on the host are looked at there, without communication."""
    size = x.shape[dim]
    if isinstance(indices, np.ndarray):
        for extreme in (indices.min(), indices.max()) if indices.size else ():
            checked_index(int(extreme), size, dim)
        return indices
    text = f"Index {{}} is out of bounds for dim {dim} of size {size}."
    return apply("in_range", (indices,), Attrs(low=-size, high=size - 1, error=IndexError, text=text))


def index_array(name: str, indices: Any, what: str = "indices") -> Any:
    """Indices, or other counts of rows, checked to be integers."""
    if indices.dtype.kind not in "iu":
        mask = " A mask selects by x[mask]." if indices.dtype.kind == "b" else ""
        raise OperationError(
            f"{name}: {what} must be integers; got {indices.dtype}. Use {what}.astype(np.int64).{mask}"
        )
    return indices


def held_like(x: Any, data: Any, sharding: Sharding | None = None) -> Any:
    """A host result as an array of x's kind on x's mesh."""
    layout = layout_of(sharding or Sharding(x.mesh, auto_spec(np.shape(data), x.mesh)), np.shape(data))
    return type(x).of(layout, engine_of(x.mesh).put(np.asarray(data), layout))


def sliced_rows(entry: slice, size: int) -> range:
    """The rows of a dim that a slice takes; a step that leads nowhere, which may be beyond 64 bits, is 1."""
    rows = range(*entry.indices(size))
    return rows if len(rows) > 1 else range(rows.start, rows.start + len(rows))


def is_array(entry: Any) -> bool:
    return isinstance(entry, Held | np.ndarray)


def _dtype(entry: Any) -> "np.dtype[Any]":
    return np.dtype(entry.dtype)


def lifted(x: Any, value: Any) -> Any:
    return value if isinstance(value, Held) else x.beside(host_array(value))


def entries_of(x: Any, index: Any) -> list[Any]:
    """The index with `...` spelled out: one entry per dim, and None for new dims; arrays for all that is like one.

    A `...` between two advanced entries stays, even if it stands for no dims: as in NumPy it parts them, so that their dims
    come first in the result.
    """
    given = list(index) if isinstance(index, tuple) else [index]
    entries: list[Any] = []
    for entry in given:
        if entry is None or entry is Ellipsis or isinstance(entry, slice):
            entries.append(entry)
        elif is_array(entry) and entry.ndim == 0 and _dtype(entry).kind in "iu" and not getattr(entry, "traces", False):
            entries.append(int(entry))  # an Array of one integer is one
        elif isinstance(entry, Held | np.ndarray):
            entries.append(entry)
        elif isinstance(entry, bool | np.bool_ | list | tuple | range):
            array = np.asarray(entry)
            entries.append(array if array.size else array.astype(np.int64))
        else:
            entries.append(_other_entry(entry))
    used = sum(_width(entry) for entry in entries)
    if used > x.ndim:
        raise IndexError(f"The index has {used} entries, but the tensor of shape {x.shape} has {x.ndim} dims.")
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise IndexError("An index can have only one '...'.")
    at = dots[0] if dots else len(entries)
    before, after, rest = entries[:at], entries[at + 1 :], [WHOLE] * (x.ndim - used)
    parts = any(map(is_array, entries)) and all(any(map(_is_advanced, some)) for some in (before, after))
    return [*before, *([Ellipsis] if parts and not rest else rest), *after]


def _other_entry(entry: Any) -> Any:
    """An array for a tensor of torch or JAX; an integer for all else."""
    if is_tensor(entry) and not isinstance(entry, np.generic):
        array = host_array(entry)
        if array.ndim or array.dtype.kind == "b":
            return array
        entry = array[()]
    try:
        return operator.index(entry)
    except TypeError:
        raise IndexError(
            f"{entry!r} is not an index. Give integers, slices, '...', None, or arrays of integers or booleans."
        ) from None


def _is_advanced(entry: Any) -> bool:
    return not (entry is None or isinstance(entry, slice))


def _width(entry: Any) -> int:
    if entry is None or entry is Ellipsis:
        return 0
    return int(entry.ndim) if is_array(entry) and _dtype(entry).kind == "b" else 1


def _basic(x: Any, entries: list[Any]) -> Any:
    maps: list[RowMap | None] = []
    shape: list[int] = []
    dims = iter(x.shape)
    for entry in entries:
        if entry is None:
            shape.append(1)
            continue
        size = next(dims)
        if isinstance(entry, slice):
            rows = sliced_rows(entry, size)
            maps.append(None if rows == range(size) else RowMap(len(rows), rows.start, rows.step))
            shape.append(len(rows))
        else:
            maps.append(RowMap(1, checked_index(entry, size, len(maps))))
    sliced = not x.ndim or any(entry is None or isinstance(entry, slice) for entry in entries)
    if not sliced and tracer.get() is None:  # a program takes elements as it takes rows
        return _element(x, [row_map.start for row_map in maps if row_map is not None])
    if any(row_map is not None for row_map in maps):
        x = apply("rows", (x,), Attrs(name="slice", maps=tuple(maps)))
        given = [entry for entry in entries if entry is not None]
        x = _everywhere(x, [dim for dim, entry in enumerate(given) if not isinstance(entry, slice)])
        return x if x.shape == tuple(shape) else apply("reshape", (x,), Attrs(shape=tuple(shape)))
    return x.again() if x.shape == tuple(shape) else apply("reshape", (x,), Attrs(shape=tuple(shape)))


def _everywhere(x: Any, dims: list[int]) -> Any:
    """x with its only row along some dims on every device: who asks for one row by its number asks for that."""
    here = x.layout.sharding
    if x.traces or not any(here.dims[dim] for dim in dims):
        return x
    spec = [() if dim in dims else axes for dim, axes in enumerate(here.dims)]
    cuts = {dim: here.offsets_of(dim) for dim in range(x.ndim) if dim not in dims and here.offsets_of(dim)}
    return x.reshard(here.replace(spec=spec, offsets=cuts, halo={}))


def _element(x: Any, place: list[int]) -> Any:
    """One element, on every device: its owners broadcast it, and summands are reduced."""
    step = element_step(x.sharding, x.shape, x.dtype, tuple(place))
    made = type(x).of(step.there, engine_of(x.mesh).step(step, x.data)).reduced()
    return apply("reshape", (made,), Attrs(shape=()))


def _pattern(x: Any, entries: list[Any]) -> tuple[tuple[Any, ...], list[Any]]:
    """The index with arrays taken out, as values that can be compared."""
    pattern: list[Any] = []
    operands = []
    for entry in entries:
        if is_array(entry):
            pattern.append("array")
            operands.append(lifted(x, entry))
        else:
            spelled = ("slice", entry.start, entry.stop, entry.step) if isinstance(entry, slice) else entry
            pattern.append("..." if entry is Ellipsis else spelled)
    for operand in operands:
        if _dtype(operand).kind not in "iub":
            raise OperationError(f"An index array has integers or booleans; got {operand.dtype}.")
    return tuple(pattern), operands
