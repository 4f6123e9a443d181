"""Functions that move elements and compute nothing."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.arrays import Array, held_like, index_array, row_indices
from shardwright.arrays import take as take_rows
from shardwright.eager import apply, find, taped
from shardwright.errors import OperationError
from shardwright.numpy.common import array, axes_of, axis_of, integer, integers, operands, sizes_of
from shardwright.numpy.common import arrays as lifted
from shardwright.ops import Attrs, RowMap


def reshape(x: Any, /, shape: int | Sequence[int], *, copy: bool | None = None) -> Array:
    """The same elements in another shape; dims that are not merged stay split."""
    a = array("reshape", x)
    new = list(integers("reshape", "shape", shape))
    if any(n < -1 for n in new):
        raise OperationError(f"reshape: sizes are 0 or more, or -1 for the rest; got {tuple(new)}.")
    if new.count(-1) > 1:
        raise OperationError(f"reshape: only one size can be -1; got {tuple(new)}.")
    if -1 in new:
        known = math.prod(n for n in new if n != -1)
        if not known or a.size % known:
            raise OperationError(f"reshape: {a.size} elements of shape {a.shape} don't fit {tuple(new)}.")
        new[new.index(-1)] = a.size // known
    return _shaped(a, tuple(new), copy)


def _shaped(a: Array, shape: tuple[int, ...], copy: bool | None = None) -> Array:
    result: Array = apply("reshape", (a,), Attrs(shape=shape))
    if copy:
        return result.copied()
    if copy is False and a.size and not _share_memory(result.data, a.data):
        raise ValueError(f"reshape of {a.summary()} to {shape} copies, and copy=False forbids it.")
    return result


def _share_memory(one: Any, other: Any) -> bool:
    return isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and np.shares_memory(one, other)


def permute_dims(x: Any, /, axes: Sequence[int]) -> Array:
    """Dims in another order."""
    a = array("permute_dims", x)
    order = tuple(axis_of("permute_dims", axis, a.ndim) for axis in integers("permute_dims", "axes", axes))
    if sorted(order) != list(range(a.ndim)):
        raise OperationError(
            f"permute_dims: axes={tuple(axes)} is not a permutation of the {a.ndim} dims of shape {a.shape}."
        )
    result: Array = apply("permute_dims", (a,), Attrs(axes=order))
    return result


def matrix_transpose(x: Any, /) -> Array:
    """The last two dims swapped."""
    a = array("matrix_transpose", x)
    if a.ndim < 2:
        raise OperationError(f"matrix_transpose takes at least two dims; got shape {a.shape}.")
    return permute_dims(a, (*range(a.ndim - 2), a.ndim - 1, a.ndim - 2))


def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int], /) -> Array:
    """Moves dims to other positions; the other dims keep their order."""
    a = array("moveaxis", x)
    came, goes = axes_of("moveaxis", source, a.ndim), axes_of("moveaxis", destination, a.ndim)
    if len(came) != len(goes):
        raise OperationError(f"moveaxis: {len(came)} dims {source} can't move to {len(goes)} positions {destination}.")
    order = [dim for dim in range(a.ndim) if dim not in came]
    for place, dim in sorted(zip(goes, came, strict=True)):
        order.insert(place, dim)
    return permute_dims(a, order)


def expand_dims(x: Any, /, axis: int | Sequence[int]) -> Array:
    """New dims of size 1."""
    a = array("expand_dims", x)
    count = len(integers("expand_dims", "axis", axis))
    new = axes_of("expand_dims", axis, a.ndim + count)
    old = iter(a.shape)
    return _shaped(a, tuple(1 if d in new else next(old) for d in range(a.ndim + count)))


def squeeze(x: Any, /, axis: int | Sequence[int]) -> Array:
    """Removes dims of size 1."""
    a = array("squeeze", x)
    gone = axes_of("squeeze", axis, a.ndim)
    for dim in gone:
        if a.shape[dim] != 1:
            raise OperationError(f"squeeze: dim {dim} of shape {a.shape} has size {a.shape[dim]}, not 1.")
    return _shaped(a, tuple(n for d, n in enumerate(a.shape) if d not in gone))


def broadcast_to(x: Any, /, shape: int | Sequence[int]) -> Array:
    """Elements repeated along new dims and dims of size 1."""
    a = array("broadcast_to", x)
    new = sizes_of("broadcast_to", shape)
    if len(new) < a.ndim:
        raise OperationError(f"broadcast_to: shape {a.shape} has more dims than {new}.")
    result: Array = apply("broadcast_to", (a,), Attrs(shape=new))
    return result


def broadcast_arrays(*arrays: Any) -> tuple[Array, ...]:
    """Arrays broadcast against one another."""
    given = lifted("broadcast_arrays", *arrays)
    shape = np.broadcast_shapes(*(x.shape for x in given))
    return tuple(broadcast_to(x, shape) for x in given)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that shapes broadcast to."""
    return np.broadcast_shapes(*(tuple(shape) for shape in shapes))


@taped
def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Array:
    """Joins arrays along a dim (flattened, if axis is None)."""
    given = lifted("concat", *arrays)
    if axis is None:
        given, axis = [reshape(x, -1) for x in given], 0
    at = axis_of("concat", axis, given[0].ndim)
    for x in given[1:]:
        if (
            x.ndim != given[0].ndim
            or x.shape[:at] + x.shape[at + 1 :] != given[0].shape[:at] + given[0].shape[at + 1 :]
        ):
            raise OperationError(f"concat along dim {at}: shapes {given[0].shape} and {x.shape} differ in other dims.")
    kind = np.result_type(*(x.dtype for x in given))
    same = [x if x.dtype == kind else apply("astype", (x,), Attrs(dtype=kind)) for x in given]
    result: Array = apply("concat", same, Attrs(axis=at)) if len(same) > 1 else same[0].again()
    return result


@taped
def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Array:
    """Joins arrays of one shape along a new dim."""
    given = lifted("stack", *arrays)
    at = axis_of("stack", axis, given[0].ndim + 1)
    return concat([expand_dims(x, at) for x in given], axis=at)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices along a dim, as arrays without it."""
    a = array("unstack", x)
    at = axis_of("unstack", axis, a.ndim)
    return tuple(a[(*(slice(None),) * at, i)] for i in range(a.shape[at]))


def _mapped(name: str, a: Array, maps: dict[int, RowMap]) -> Array:
    if not maps:
        return a.again()
    result: Array = apply("rows", (a,), Attrs(name=name, maps=tuple(maps.get(dim) for dim in range(a.ndim))))
    return result


@taped
def flip(x: Any, /, *, axis: int | Sequence[int] | None = None) -> Array:
    """Rows in reverse order along dims."""
    a = array("flip", x)
    return _mapped(
        "flip", a, {dim: RowMap(a.shape[dim], a.shape[dim] - 1, -1) for dim in axes_of("flip", axis, a.ndim)}
    )


@taped
def roll(x: Any, /, shift: int | Sequence[int], *, axis: int | Sequence[int] | None = None) -> Array:
    """Rows moved along dims, around the end."""
    a = array("roll", x)
    if axis is None:
        return reshape(roll(reshape(a, -1), shift, axis=0), a.shape)
    dims = [axis_of("roll", one, a.ndim) for one in integers("roll", "axis", axis)]
    by = integers("roll", "shift", shift)
    if len(by) == 1:
        by *= len(dims)
    elif len(dims) == 1:
        dims *= len(by)
    if len(by) != len(dims):
        raise OperationError(f"roll: {len(by)} shifts {shift} for {len(dims)} dims {axis}. Give equally many, or one.")
    totals: dict[int, int] = {}
    for dim, n in zip(dims, by, strict=True):
        totals[dim] = totals.get(dim, 0) + n
    sizes = {dim: a.shape[dim] for dim in totals if a.shape[dim]}
    return _mapped("roll", a, {dim: RowMap(n, -totals[dim] % n, 1, wrap=n) for dim, n in sizes.items()})


def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Array:
    """Repeats each row."""
    a = array("repeat", x)
    if axis is None:
        a, axis = reshape(a, -1), 0
    at = axis_of("repeat", axis, a.ndim)
    if not isinstance(repeats, Array) and not np.ndim(repeats):
        times = integer("repeat", "repeats", repeats)
        if times < 0:
            raise OperationError(f"repeat: repeats={times} is negative. Give 0 or more.")
        return _mapped("repeat", a, {at: RowMap(a.shape[at] * times, every=max(times, 1))})
    counts = index_array("repeat", lifted("repeat", a, repeats)[1], "repeats")
    if counts.ndim > 1 or counts.size not in (1, a.shape[at]):
        raise OperationError(
            f"repeat: counts of shape {counts.shape} don't fit dim {at} of size {a.shape[at]}. Give one count for each row."
        )
    return find("repeat", [a, counts], Attrs(axis=at))[0]


def tile(x: Any, repetitions: int | Sequence[int], /) -> Array:
    """Repeats the tensor along each dim; one integer is for the last dim."""
    a = array("tile", x)
    times = integers("tile", "repetitions", repetitions)
    if any(n < 0 for n in times):
        raise OperationError(f"tile: repetitions={repetitions} has a negative number. Give 0 or more.")
    times = (1,) * (a.ndim - len(times)) + times
    a = _shaped(a, (1,) * (len(times) - a.ndim) + a.shape)
    maps = {d: RowMap(n * t, wrap=n) for d, (n, t) in enumerate(zip(a.shape, times, strict=True)) if t != 1 and n}
    if not a.size:
        return held_like(a, np.zeros([n * t for n, t in zip(a.shape, times, strict=True)], a.dtype))
    return _mapped("tile", a, maps)


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Array:
    """Rows of a dim by index."""
    a, rows = operands("take", x, indices)
    rows = rows if isinstance(rows, Array) else a.beside(np.asarray(rows))
    if axis is None:
        if a.ndim != 1:
            raise OperationError(f"take: a tensor of {a.ndim} dims needs axis=.")
        axis = 0
    result: Array = take_rows(a, rows, axis_of("take", axis, a.ndim))
    return result


def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Array:
    """Elements along a dim by index, one index for each element of the result."""
    a, rows = lifted("take_along_axis", x, indices)
    at = axis_of("take_along_axis", axis, a.ndim)
    if rows.ndim != a.ndim:
        raise OperationError(
            f"take_along_axis: indices of shape {rows.shape} for a tensor of shape {a.shape}. Give {a.ndim} dims."
        )
    result: Array = apply("take_along_axis", (a, row_indices("take_along_axis", a, rows, at)), Attrs(axis=at))
    return result


def put_along_axis(x: Array, indices: Any, values: Any, /, axis: int) -> None:
    """Replaces elements of x along a dim in place, one index for each; of several for one element the last one counts.

    `nn.scatter_along_axis` adds instead, or takes products, maxima or minima.
    """
    if not isinstance(x, Array):
        raise OperationError(f"put_along_axis changes an Array in place; got {type(x).__name__}.")
    at = axis_of("put_along_axis", axis, x.ndim)
    rows = lifted("put_along_axis", x, indices)[1]
    if rows.ndim != x.ndim:
        raise OperationError(
            f"put_along_axis: indices of shape {rows.shape} for a tensor of shape {x.shape}. Give {x.ndim} dims."
        )
    places = [np.arange(n).reshape([-1 if e == d else 1 for e in range(x.ndim)]) for d, n in enumerate(x.shape)]
    x[tuple(rows if d == at else place for d, place in enumerate(places))] = values
