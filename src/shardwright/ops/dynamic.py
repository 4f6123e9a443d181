"""Operations whose results have shapes that only the data tells: each device looks at its own shard, then results are combined.

Their kernels give (sharding, whole data) pairs, since no layout is known beforehand; a sharding of None leaves it to the
policy. What travels between devices are the places or the different values that were found, never the operand.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.ops.call import Call, Data
from shardwright.sharding import Layout, P, Sharding

Made = list[tuple[Sharding | None, Data]]


def _locations(call: Call, at: Sequence[Data]) -> list[NDArray[np.int64]]:
    """Coordinates in the whole tensor of elements of the first operand, given by lanes and local places."""
    layout = call.operands[0]
    result = []
    for dim, held in enumerate(layout.dims):
        starts = np.broadcast_to(layout.over_lanes(dim, held.offsets[:-1]), layout.lane_shape)
        result.append(starts[tuple(at[: call.n])] + at[call.n + dim])
    return result


def _found(call: Call, flags: Data) -> tuple[list[NDArray[np.int64]], tuple[Data, ...], Sharding]:
    """The places of what is true, in the order of the whole tensor; the same by lanes; and where the list of them lies.

    If only the first dim is split the devices' lists follow one another, and all of them stay where they were made.
    """
    real = call.mask(0, range(len(call.operands[0].shape)))
    at = np.nonzero(flags if real is None else flags & real)
    places = _locations(call, at)
    order = np.lexsort(places[::-1])
    return [p[order] for p in places], tuple(a[order] for a in at), _list_sharding(call.operands[0], places[0])


def _list_sharding(layout: Layout, rows: NDArray[np.int64]) -> Sharding:
    axes = tuple(axis for dim in layout.sharding.dims for axis in dim)
    if any(dim.parts > 1 for dim in layout.dims[1:]):
        return Sharding(layout.mesh, P(axes))
    cuts = np.searchsorted(np.sort(rows), layout.dims[0].offsets[:-1])
    return Sharding(layout.mesh, P(layout.sharding.dims[0]), offsets={0: [*cuts.tolist(), len(rows)]})


def nonzero(call: Call, x: Data) -> Made:
    """The coordinates of elements that are not zero, an array per dim."""
    places, _, sharding = _found(call, x != 0)
    return [(sharding, p) for p in places]


def masked(call: Call, x: Data, mask: Data) -> Made:
    """The elements where a mask of the same shape is true."""
    _, at, sharding = _found(call, np.broadcast_to(mask, x.shape))
    return [(sharding, x[at])]


def unique(call: Call, x: Data) -> Made:
    """Different elements in order, where each is first, which of them each element is, and how often each occurs.

    Each device lists its own different elements; the lists are merged. NaNs are all different.
    """
    layout = call.operands[0]
    dtype = x.dtype
    if dtype.type.__module__.split(".")[0] == "ml_dtypes":  # NumPy does not sort their NaNs last
        x = x.astype(np.float32)
    numbers = np.arange(int(np.prod(layout.shape))).reshape(layout.shape)
    inverse = np.empty(layout.shape, np.int64)
    parts, lists = [], []
    for lanes in np.ndindex(*layout.lane_shape):
        index = tuple(_rows_of(layout, lanes, dim) for dim in range(len(layout.shape)))
        shard = x[lanes][tuple(slice(0, part.stop - part.start) for part in index)]
        values, first, which, counts = np.unique(
            shard.ravel(), return_index=True, return_inverse=True, return_counts=True, equal_nan=False
        )
        parts.append((index, which.reshape(shard.shape)))
        lists.append((values, numbers[index].ravel()[first], counts))
    values, first, counts = (np.concatenate(some) for some in zip(*lists, strict=True))
    by_place = np.argsort(first)  # so that of equal values the first comes first
    order = by_place[np.argsort(values[by_place], kind="stable")]
    ordered = values[order]
    new = np.ones(len(ordered), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    number = np.empty(len(ordered), np.int64)
    number[order] = np.cumsum(new) - 1
    begins = np.flatnonzero(new)
    base = 0
    for (index, which), (local, _, _) in zip(parts, lists, strict=True):
        inverse[index] = number[base + which]
        base += len(local)
    spread = Sharding(layout.mesh, P(tuple(axis for dim in layout.sharding.dims for axis in dim)))
    total = np.add.reduceat(counts[order], begins) if len(begins) else counts[:0]
    return [
        (spread, ordered[begins].astype(dtype)),
        (spread, first[order][begins]),
        (layout.sharding, inverse),
        (spread, total),
    ]


def _rows_of(layout: Layout, lanes: tuple[int, ...], dim: int) -> slice:
    """The rows of the whole tensor that the device at some lanes holds of a dim."""
    shard = 0
    for lane in layout.dims[dim].lanes:
        shard = shard * layout.full_shape[lane] + lanes[lane]
    return layout.shard_slices[dim][shard]
