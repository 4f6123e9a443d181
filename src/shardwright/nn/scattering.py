"""Updates combined into rows that indices name: the reverse of reading rows, and what an embedding's gradient is."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shardwright.arrays import Array, row_indices
from shardwright.eager import apply
from shardwright.errors import OperationError
from shardwright.numpy import astype, broadcast_to
from shardwright.numpy.common import arrays, axes_of, axis_of
from shardwright.ops import Attrs

OPS = ("add", "mul", "max", "min")


def scatter_add(x: Array, indices: Any, updates: Any, axis: int = 0) -> Array:
    """x with `updates` added to the rows of a dim that `indices` name; rows named several times get all of their updates.

    `updates` has the shape of `take(x, indices, axis=axis)`, or broadcasts to it. If indices and updates are split, the
    result is a pending sum over those axes, and nothing is communicated. Rows of x may be split, too.
    """
    return scatter_reduce(x, indices, updates, op="add", axis=axis)


def scatter_reduce(x: Array, indices: Any, updates: Any, op: str = "add", axis: int | Sequence[int] = 0) -> Array:
    """x with updates combined into the rows that indices name, by "add", "mul", "max" or "min".

    The order of several updates for one row does not matter. To replace rows, assign them: `x[indices] = updates`. For
    several dims give an axis and an index array for each: `updates` then has the shape of `x[…]` with these arrays. Indices
    out of range are an error: at once if they are on the host, otherwise when the program has run.
    """
    single = isinstance(axis, int | np.integer)
    if not single and (isinstance(indices, str) or not isinstance(indices, Iterable)):
        raise OperationError(
            f"scatter_reduce: axis={axis!r} needs a list of index arrays; got {type(indices).__name__}."
        )
    x, values, *given = arrays("scatter_reduce", x, updates, *([indices] if single else indices))
    dims = axes_of("scatter_reduce", axis, x.ndim)
    if len(given) != len(dims):
        raise OperationError(f"scatter_reduce: {len(dims)} dims need an index array each; got {len(given)}.")
    given = [row_indices("scatter_reduce", x, index, dim) for dim, index in zip(dims, given, strict=True)]
    shape = np.broadcast_shapes(*(index.shape for index in given))
    given = [index if index.shape == shape else broadcast_to(index, shape) for index in given]
    points = [(f"i{at}", n) for at, n in enumerate(shape)]
    first = min(dims, default=0)
    if sorted(dims) != list(range(first, first + len(dims))):  # as in NumPy, the index comes first then
        first = 0
    rest = [(f"d{at}", n) for at, n in enumerate(x.shape) if at not in dims]
    return _scattered("scatter_reduce", x, dims, points, given, [*rest[:first], *points, *rest[first:]], values, op)


def scatter_along_axis(x: Array, indices: Any, updates: Any, axis: int = -1, op: str = "add") -> Array:
    """x with updates combined along a dim, one index for each update, as `take_along_axis` reads them.

    Along the other dims the indices may be shorter than x: what they don't reach stays as it is. `op` is as in
    `scatter_reduce`; `put_along_axis` replaces elements.
    """
    x, values, index = arrays("scatter_along_axis", x, updates, indices)
    at = axis_of("scatter_along_axis", axis, x.ndim)
    short = [d for d, n in enumerate(index.shape) if d != at and d < x.ndim and n < x.shape[d]]
    if index.ndim != x.ndim or any(n > x.shape[d] for d, n in enumerate(index.shape) if d != at):
        raise OperationError(
            f"scatter_along_axis: indices of shape {index.shape} for a tensor of shape {x.shape} along dim {at}. Give "
            f"{x.ndim} dims, none longer than the tensor's but dim {at}."
        )
    given = [row_indices("scatter_along_axis", x, index, at)]
    points = [(f"i{d}" if d == at or d in short else f"d{d}", n) for d, n in enumerate(index.shape)]
    for d in short:
        rows = np.arange(index.shape[d]).reshape([-1 if e == d else 1 for e in range(x.ndim)])
        given.append(broadcast_to(x.beside(rows), index.shape))
    return _scattered("scatter_along_axis", x, (at, *short), points, given, points, values, op)


def _scattered(
    name: str,
    x: Array,
    dims: Sequence[int],
    points: Sequence[tuple[str, int]],
    indices: Sequence[Array],
    wanted: Sequence[tuple[str, int]],
    updates: Array,
    op: str,
) -> Array:
    """The row, for updates that broadcast to dims of some factors and sizes."""
    if op not in OPS:
        raise OperationError(f"{name}: op={op!r}; give one of {', '.join(map(repr, OPS))}.")
    if not np.can_cast(updates.dtype, x.dtype, "same_kind"):
        raise OperationError(
            f"{name}: updates of {updates.dtype} would lose part of their values in {x.dtype}. Convert one with astype."
        )
    own = wanted[len(wanted) - updates.ndim :] if updates.ndim <= len(wanted) else ()
    if updates.ndim > len(wanted) or any(k not in (1, n) for k, (_, n) in zip(updates.shape, own, strict=True)):
        shape = tuple(n for _, n in wanted)
        raise OperationError(
            f"{name}: updates of shape {updates.shape} for a tensor of shape {x.shape} at indices of shape "
            f"{indices[0].shape}. Give updates of shape {shape}, or of one that broadcasts to it."
        )
    factors = ["()" if k != n else factor for k, (factor, n) in zip(updates.shape, own, strict=True)]
    result: Array = apply(
        "scatter_reduce",
        (x, updates if updates.dtype == x.dtype else astype(updates, x.dtype), *indices),
        Attrs(op=op, dims=tuple(dims), index=" ".join(factor for factor, _ in points), updates=" ".join(factors)),
    )
    return result
