"""Refreshing halos on lanes: each device copies its neighbours' border rows, corners included."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

import shardwright.engines.lanes as ln
from shardwright.collectives import UpdateHalo
from shardwright.engines.lanes import Data, Lanes


def update_halo(c: UpdateHalo, v: Lanes) -> Lanes:
    """Dim after dim: a dim's exchange carries the halos of the dims before it along, and so fills the corners."""
    was = v.data
    inside: NDArray[np.bool_] | None = None  # the cells that are part of the tensor, not beyond its border
    for dim, axes, low, high in c.dims():
        lanes = tuple(v.axes.index(axis) for axis in v.mesh.cut(axes, by=v.axes))
        v = ln.spread(v, lanes)
        sources, places, within = _sources(v, lanes, dim, low, high)
        v = replace(v, data=_fetch(v.data, lanes, len(v.axes) + dim, sources, places))
        shaped = _over(within, v, lanes, dim)
        inside = shaped if inside is None else inside & shaped
    if inside is None or bool(inside.all()):
        return v
    return replace(v, data=np.where(inside, v.data, was))


def _sources(
    v: Lanes, lanes: tuple[int, ...], dim: int, low: int, high: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """For each member of a group and each local row: which member and which of its rows to copy, and what is inside."""
    count = math.prod(v.full_shape[i] for i in lanes)
    sizes = ln.same_along(v, [i for i in range(len(v.axes)) if i not in lanes], [dim], "update_halo")[dim]
    held = np.full(count, v.local_shape[dim]) if sizes is None else _flat(sizes, v, lanes)
    core = (held - low - high)[:, None]
    member = np.arange(count)[:, None]
    row = np.arange(v.local_shape[dim])[None, :]
    below, above = row < low, (row >= low + core) & (row < low + core + high)
    first, last = member == 0, member == count - 1
    from_below, from_above = below & ~first, above & ~last
    core_below = np.roll(core, 1, axis=0)
    sources = np.where(from_below, member - 1, np.where(from_above, member + 1, member))
    places = np.where(from_below, core_below + row, np.where(from_above, row - core, row))
    return sources, places, ~((below & first) | (above & last))


def _flat(over_lanes: NDArray[np.int64], v: Lanes, lanes: tuple[int, ...]) -> NDArray[np.int64]:
    wide = np.broadcast_to(over_lanes, [v.full_shape[i] if i in lanes else 1 for i in range(over_lanes.ndim)])
    rest = [i for i in range(wide.ndim) if i not in lanes]
    return wide.transpose(*lanes, *rest).reshape(-1)


def _fetch(
    data: Data, lanes: tuple[int, ...], axis: int, sources: NDArray[np.int64], places: NDArray[np.int64]
) -> Data:
    rest = [i for i in range(data.ndim) if i not in (*lanes, axis)]
    order = (*lanes, axis, *rest)
    ordered = data.transpose(order)
    flat = ordered.reshape((len(sources), *ordered.shape[len(lanes) :]))
    return flat[sources, places].reshape(ordered.shape).transpose([order.index(i) for i in range(data.ndim)])


def _over(within: NDArray[np.bool_], v: Lanes, lanes: tuple[int, ...], dim: int) -> NDArray[np.bool_]:
    """(member, row) flags, shaped to broadcast against the data."""
    axis = len(v.axes) + dim
    by_lane = within.reshape([*(v.full_shape[i] for i in lanes), within.shape[1]])
    places = (*lanes, axis)
    ordered = by_lane.transpose([places.index(i) for i in sorted(places)])
    return ordered.reshape([v.data.shape[i] if i in places else 1 for i in range(v.data.ndim)])
