"""The parts of a tensor on the host that devices hold: cut out for one of them, and put together again."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.sharding import REDUCTIONS, Layout

Array = NDArray[Any]


def cut(host: Array, layout: Layout, place: int) -> Array:
    """One device's part of a host tensor, in memory of its own; halos beyond the border are zeros."""
    view = layout.at(place)
    made = np.zeros(view.local_shape, host.dtype)
    source, target = [], []
    for dim, (low, high), size in zip(view.dims, view.offsets, host.shape, strict=True):
        first, last = max(low - dim.low, 0), min(high + dim.high, size)
        source.append(slice(first, max(last, first)))
        target.append(slice(first - low + dim.low, max(last, first) - low + dim.low))
    made[tuple(target)] = host[tuple(source)]
    return made


def is_first(layout: Layout, place: int, lanes: Sequence[int]) -> bool:
    """Whether a device is the first of its group along some lanes: the one that keeps a value that becomes partial."""
    coords = np.unravel_index(place, layout.full_shape)
    return all(int(coords[lane]) == 0 for lane in lanes)


def apart(part: Array, layout: Layout, place: int, lanes: Sequence[int]) -> Array:
    """A device's shard of a value as that of one that is partial along some lanes: the first of a group keeps it."""
    rest = REDUCTIONS[layout.sharding.reduction].neutral(part.dtype)
    if not lanes or rest is None or is_first(layout, place, lanes):
        return part
    return np.full(part.shape, rest, part.dtype)


def join(host: Array, part: Array, layout: Layout, place: int) -> None:
    """Write a device's part, without halos, where it belongs in a host tensor."""
    view = layout.at(place)
    core = tuple(slice(dim.low, dim.low + high - low) for dim, (low, high) in zip(view.dims, view.offsets, strict=True))
    host[tuple(slice(low, high) for low, high in view.offsets)] = part[core]
