"""Assignment in all its forms, by operations of the table: the value moves to what it replaces, which stays where it is.

Slices and integers are an `assign`: the value's rows go to the devices that hold the rows they replace. A mask is a `fill`.
Index arrays are a `scatter`: arrays and value go to every device, and each writes what it holds.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from shardwright.arrays.indexing import WHOLE, checked_index, checked_indices, entries_of, is_array, lifted, sliced_rows
from shardwright.eager import apply, find
from shardwright.errors import OperationError
from shardwright.ops import Attrs, RowMap


def put(x: Any, index: Any, value: Any) -> Any:
    """x with x[index] = value; its sharding does not change."""
    entries = entries_of(x, index)
    if isinstance(value, bool | int | float | complex):
        filled = np.zeros((), x.dtype)
        filled[...] = value  # as NumPy assigns: what does not fit is an error
        value = filled
    given = lifted(x, value)
    if given.dtype != x.dtype:
        given = apply("astype", (given,), Attrs(dtype=x.dtype))
    masks = [entry for entry in entries if is_array(entry) and entry.dtype.kind == "b"]
    flags = [entry for entry in masks if not entry.ndim]
    if flags:
        alone = not any(isinstance(entry, int) for entry in entries) and sum(map(is_array, entries)) == 1
        if not alone or not bool(flags[0]):
            return _flagged(x, entries, given)
        entries, masks = [None if entry is flags[0] else entry for entry in entries], []
    if masks and masks[0] is entries[0] and all(_is_whole(entry) for entry in entries[1:]):
        made = _masked(x, lifted(x, masks[0]), given)
    elif any(is_array(entry) for entry in entries):
        made = _scattered(x, _without_masks(x, entries), given)
    else:
        made = _assigned(x, entries, given)
    return made if made.traces else made.reshard(x.sharding.replace(partial=()))


def _flagged(x: Any, entries: list[Any], value: Any) -> Any:
    """x with a value where booleans without dims stand among the entries: as in NumPy each is an index array of one place, or
    of none, along a dim of size 1 that is there for it alone."""
    index: list[Any] = []
    shape: list[int] = []
    sizes = iter(x.shape)
    for entry in entries:
        if is_array(entry) and entry.dtype.kind == "b" and not entry.ndim:
            shape.append(1)
            index.append(np.zeros(int(bool(entry)), np.int64))
            continue
        width = (
            0
            if entry is None or entry is Ellipsis
            else entry.ndim
            if is_array(entry) and entry.dtype.kind == "b"
            else 1
        )
        shape += [next(sizes) for _ in range(width)]
        index.append(entry)
    made = put(apply("reshape", (x,), Attrs(shape=tuple(shape))), tuple(index), value)
    made = apply("reshape", (made,), Attrs(shape=x.shape))
    return made if made.traces else made.reshard(x.sharding.replace(partial=()))


def _is_whole(entry: Any) -> bool:
    return isinstance(entry, slice) and entry == WHOLE


class Target(NamedTuple):
    """One dim of what is replaced, in the order in which NumPy has them."""

    kind: str  # "rows" of a slice, "new" for None, "arrays" for a dim of the index arrays
    size: int
    dim: int = -1  # of x


def _fitted(value: Any, targets: Sequence[Target]) -> Any:
    """The value with a dim for each of what is replaced, of size 1 where it is broadcast."""
    sizes = [target.size for target in targets]
    shape = value.shape
    extra = len(shape) - len(sizes)
    lead, own = shape[: max(extra, 0)], (1,) * max(-extra, 0) + shape[max(extra, 0) :]
    if any(n != 1 for n in lead) or any(n not in (1, size) for n, size in zip(own, sizes, strict=True)):
        raise ValueError(
            f"A value of shape {shape} does not broadcast to the shape {tuple(sizes)} of what it replaces. "
            f"Give it that shape, or sizes of 1 where it repeats."
        )
    return value if own == shape else apply("reshape", (value,), Attrs(shape=own))


def _assigned(x: Any, entries: list[Any], value: Any) -> Any:
    """x with a value in the rows that integers and slices name."""
    maps: list[RowMap | None] = []
    flips: list[RowMap | None] = []
    targets: list[Target] = []
    shape: list[int] = []  # of the value: a dim for each of x's
    for entry in entries:
        dim = len(maps)
        if entry is None:
            targets.append(Target("new", 1))
            continue
        rows = _rows(entry, x.shape[dim], dim)
        if isinstance(entry, slice):
            targets.append(Target("rows", len(rows), dim))
        back = rows.step < 0
        flips.append(RowMap(len(rows), len(rows) - 1, -1) if back else None)
        rows = rows[::-1] if back else rows
        maps.append(None if rows == range(x.shape[dim]) else RowMap(len(rows), rows.start, rows.step))
    fitted = _fitted(value, targets)
    if any(row_map is not None and not row_map.size for row_map in maps):
        return x.again()
    sizes = {target.dim: n for target, n in zip(targets, fitted.shape, strict=True) if target.kind == "rows"}
    shape = [sizes.get(dim, 1) for dim in range(x.ndim)]
    if fitted.shape != tuple(shape):
        fitted = apply("reshape", (fitted,), Attrs(shape=tuple(shape)))
    turned = tuple(flip if flip is not None and n > 1 else None for flip, n in zip(flips, shape, strict=True))
    if any(flip is not None for flip in turned):
        fitted = apply("rows", (fitted,), Attrs(name="flip", maps=turned))
    return apply("assign", (x, fitted), Attrs(maps=tuple(maps)))


def _rows(entry: Any, size: int, dim: int) -> range:
    """The rows that a slice or an integer names."""
    if isinstance(entry, slice):
        return sliced_rows(entry, size)
    row = checked_index(entry, size, dim)
    return range(row, row + 1)


# -- masks ----------------------------------------------------------------------------------------------------------------


def _masked(x: Any, mask: Any, value: Any) -> Any:
    """x with a value where a mask of its first dims is true; a value of several rows has one for each place, in order."""
    if mask.shape != x.shape[: mask.ndim]:
        raise IndexError(f"A mask of shape {mask.shape} does not fit the first dims of a tensor of shape {x.shape}.")
    rest = x.shape[mask.ndim :]
    wide = apply("reshape", (mask,), Attrs(shape=(*mask.shape, *(1,) * len(rest)))) if rest else mask
    if value.ndim > len(rest) and value.shape[-len(rest) - 1] == 1 and prod(value.shape[: -len(rest) - 1]) == 1:
        value = apply("reshape", (value,), Attrs(shape=value.shape[value.ndim - len(rest) :]))
    if value.ndim <= len(rest):
        fitted = _fitted(value, [Target("rows", n) for n in rest])
        return apply("fill", (x, wide, fitted))
    count = value.shape[-len(rest) - 1] if rest else value.shape[-1]
    fitted = _fitted(value, [Target("arrays", count), *(Target("rows", n) for n in rest)])
    if any(a != b for a, b in zip(fitted.shape[1:], rest, strict=True)):
        fitted = apply("broadcast_to", (fitted,), Attrs(shape=(count, *rest)))
    number, total = _ranks(mask)
    text = f"A value of {count} rows is assigned to the {{}} places where the mask is true."
    exact = Attrs(low=count, high=count, error=ValueError, text=text)
    total = apply("in_range", (total,), exact)
    if not count:
        return apply("fill", (x, wide, apply("astype", (total,), Attrs(dtype=x.dtype))))  # the mask is false everywhere
    number = apply("minimum", (number, apply("subtract", (total, 1))))
    return apply("fill", (x, wide, apply("take", (fitted, number), Attrs(axis=0))))


def _ranks(mask: Any) -> tuple[Any, Any]:
    """For each place how many places before it are true, in the order of the whole tensor; and how many are in all.

    Row by row: those before it in its row, and those in rows before. Devices exchange totals of rows, nothing else.
    """
    counts, before = apply("astype", (mask,), Attrs(dtype=np.dtype(np.int64))), []
    while counts.ndim:
        last = counts.ndim - 1
        running = apply("cumulative_sum", (counts,), Attrs(axis=last, dtype=np.dtype(np.int64)))
        before.append(apply("subtract", (running, counts)))
        counts = apply("sum", (counts,), Attrs(axis=(last,), dtype=np.dtype(np.int64), keepdims=False)).reduced()
    rank = before.pop()
    for inner in reversed(before):
        rank = apply("add", (apply("reshape", (rank,), Attrs(shape=(*rank.shape, 1))), inner))
    return rank, counts


# -- index arrays ---------------------------------------------------------------------------------------------------------


def _without_masks(x: Any, entries: list[Any]) -> list[Any]:
    """Masks as the index arrays of the places where they are true."""
    result: list[Any] = []
    for entry in entries:
        if not is_array(entry) or entry.dtype.kind != "b":
            if is_array(entry) and entry.dtype.kind not in "iu":
                raise OperationError(f"An index array has integers or booleans; got {entry.dtype}.")
            result.append(entry)
            continue
        dim = sum(other is not None and other is not Ellipsis for other in result)
        shape = x.shape[dim : dim + entry.ndim]
        if entry.shape != shape:
            raise IndexError(f"A mask of shape {entry.shape} does not fit dims of sizes {shape}.")
        if isinstance(entry, np.ndarray):
            result += list(np.nonzero(entry))
        else:
            result += find("nonzero", [entry])
    return result


def _scattered(x: Any, entries: list[Any], value: Any) -> Any:
    """x with a value at the places that index arrays name, with integers and slices beside them."""
    arrays = [at for at, entry in enumerate(entries) if is_array(entry) or isinstance(entry, int)]
    block = _common([np.shape(entries[at]) for at in arrays])
    together = all(b - a == 1 for a, b in pairwise(arrays))  # then their dims stand where they do, else first
    indexed: list[tuple[int, Any]] = []
    sliced: list[tuple[int, range]] = []
    targets: list[Target] = []
    dim = 0
    for at, entry in enumerate(entries):
        if at == (arrays[0] if together else 0):
            targets += [Target("arrays", n) for n in block]
        if entry is Ellipsis:  # stands for no dims, and parts the arrays beside it
            continue
        if entry is None:
            targets.append(Target("new", 1))
            continue
        if at in arrays:
            indexed.append((dim, entry))
        else:
            rows = sliced_rows(entry, x.shape[dim])
            sliced += [(dim, rows)] if rows != range(x.shape[dim]) else []
            targets.append(Target("rows", len(rows), dim))
        dim += 1
    shape = (*block, *(len(rows) for _, rows in sliced))
    indices = {dim: _spread(x, entry, dim, block, shape) for dim, entry in indexed}
    fitted = _fitted(value, targets)
    if 0 in (target.size for target in targets):
        return x.again()
    for at, (dim, rows) in enumerate(sliced, len(block)):
        own = np.arange(rows.start, rows.stop, rows.step).reshape([-1 if i == at else 1 for i in range(len(shape))])
        indices[dim] = lifted(x, np.ascontiguousarray(np.broadcast_to(own, shape)).reshape(-1))
    return apply(
        "scatter", (x, _ordered(fitted, targets, indices, shape), *indices.values()), Attrs(dims=tuple(indices))
    )


def _common(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise IndexError(f"Index arrays of shapes {', '.join(map(str, shapes))} don't broadcast together.") from error


def _spread(x: Any, entry: Any, dim: int, block: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """An index array, checked, with an entry for each place that all of them name."""
    index = checked_indices(x, entry if is_array(entry) else np.asarray(entry), dim)
    ones = (1,) * (len(block) - len(index.shape))
    own = (*ones, *index.shape, *(1,) * (len(shape) - len(block)))
    if isinstance(index, np.ndarray):
        return lifted(x, np.ascontiguousarray(np.broadcast_to(index.reshape(own), shape)).reshape(-1))
    for name, wanted in (("reshape", own), ("broadcast_to", shape), ("reshape", (prod(shape),))):
        if index.shape != wanted:
            index = apply(name, (index,), Attrs(shape=wanted))
    return index


def _ordered(value: Any, targets: Sequence[Target], indexed: Any, shape: tuple[int, ...]) -> Any:
    """The value with one dim for all places that are named, then x's dims that are replaced whole."""
    kinds = [0 if t.kind == "arrays" else 3 if t.kind == "new" else 1 if t.dim in indexed else 2 for t in targets]
    order = sorted(range(len(targets)), key=lambda at: kinds[at])
    if order != list(range(len(targets))):
        value = apply("permute_dims", (value,), Attrs(axes=tuple(order)))
    lead, rest = value.shape[: len(shape)], value.shape[len(shape) : len(shape) + kinds.count(2)]
    count = 1
    if prod(lead) > 1:
        count = prod(shape)
        if lead != shape:
            value = apply("broadcast_to", (value,), Attrs(shape=(*shape, *value.shape[len(shape) :])))
    return value if value.shape == (count, *rest) else apply("reshape", (value,), Attrs(shape=(count, *rest)))
