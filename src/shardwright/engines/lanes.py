"""`Lanes`: a tensor per device as one array, and the moves between lanes and dims that every collective is made of.

The leading dims of the array are lanes, one per mesh axis (or piece of one); a lane is as long as its axis, or 1 where
all devices along it hold the same. Devices may hold different sizes: the array is then padded to the largest, and
`extents` has, for such a dim, the true size over the lanes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import ArrayError, CollectiveError
from shardwright.mesh import Mesh
from shardwright.plan import LocalShapes

Data = NDArray[Any]
Extents = NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class Lanes:
    """A tensor per device: lanes first, then one device's tensor."""

    mesh: Mesh
    axes: tuple[str, ...]
    data: Data
    extents: tuple[Extents, ...]

    @property
    def ndim(self) -> int:
        """The dims of one device's tensor."""
        return len(self.extents)

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype of every device's tensor."""
        return self.data.dtype

    @property
    def local_shapes(self) -> LocalShapes:
        """The shapes of the tensors of all devices."""
        if all(held is None for held in self.extents):
            return LocalShapes(self.mesh, (self.local_shape,))
        per_dim = [np.broadcast_to(self.sizes(dim), self.full_shape).ravel().tolist() for dim in range(self.ndim)]
        return LocalShapes.of(self.mesh, list(zip(*per_dim, strict=True)))

    @property
    def local_shape(self) -> tuple[int, ...]:
        """One device's tensor, padding included."""
        return self.data.shape[len(self.axes) :]

    @property
    def full_shape(self) -> tuple[int, ...]:
        """How many devices there are along each lane."""
        return tuple(self.mesh.axis(axis).size for axis in self.axes)

    def sizes(self, dim: int) -> NDArray[np.int64]:
        """The true size of a dim, over the lanes."""
        held = self.extents[dim]
        return np.full((1,) * len(self.axes), self.local_shape[dim]) if held is None else held

    def shapes(self) -> list[tuple[int, ...]]:
        """The different shapes that devices hold."""
        if all(held is None for held in self.extents):
            return [self.local_shape]
        per_dim = np.broadcast_arrays(*(self.sizes(dim) for dim in range(self.ndim)))
        table = np.unique(np.stack([sizes.ravel() for sizes in per_dim], axis=1), axis=0)
        return [tuple(row) for row in table.tolist()]


def lanes_from(mesh: Mesh, axes: tuple[str, ...], data: Data, extents: Sequence[Extents]) -> Lanes:
    """A `Lanes` no larger than the largest tensor, whose extents are None wherever all devices hold that size."""
    room = [int(held.max(initial=0)) if held is not None else None for held in extents]
    data = data[(*(slice(None),) * len(axes), *(slice(0, n) for n in room))]
    local = data.shape[len(axes) :]
    kept = (None if held is None or bool((held == n).all()) else held for held, n in zip(extents, local, strict=True))
    return Lanes(mesh, axes, data, tuple(kept))


def stack(mesh: Mesh, tensors: Sequence[Data]) -> Lanes:
    """The tensors of all devices, in their order, as lanes; sizes may differ, ranks and dtypes may not."""
    kinds = {(tensor.ndim, tensor.dtype) for tensor in tensors}
    if len(kinds) > 1:
        raise ArrayError(f"The tensors of the devices differ in rank or dtype: {sorted(map(str, kinds))}.")
    ndim, dtype = next(iter(kinds))
    if all(tensor.shape == tensors[0].shape for tensor in tensors):
        joined = np.stack(tensors) if tensors[0].ndim else np.array(tensors, dtype)
        return Lanes(mesh, mesh.axis_names, joined.reshape(*mesh.shape, *tensors[0].shape), (None,) * ndim)
    sizes = np.array([tensor.shape for tensor in tensors], np.int64).reshape(*mesh.shape, ndim)
    room = sizes.max(axis=tuple(range(len(mesh.shape))), initial=0).tolist()
    data = np.empty((mesh.size, *room), dtype)
    some = next((tensor for tensor in tensors if tensor.size), np.zeros(1, dtype))
    for place, tensor in enumerate(tensors):
        data[place, ...] = (tensor if tensor.size else some).flat[0]  # padding of real values never warns
        data[place, ...][tuple(map(slice, tensor.shape))] = tensor
    return lanes_from(mesh, mesh.axis_names, data.reshape(*mesh.shape, *room), [sizes[..., dim] for dim in range(ndim)])


def tensor_at(v: Lanes, coords: Sequence[int]) -> Data:
    """The tensor of one device, without padding; a view."""
    tensor = v.data[tuple(at if n > 1 else 0 for at, n in zip(coords, v.data.shape[: len(v.axes)], strict=True))]
    held = [
        slice(None)
        if e is None
        else slice(0, int(e[tuple(a if n > 1 else 0 for a, n in zip(coords, e.shape, strict=True))]))
        for e in v.extents
    ]
    return np.asarray(tensor)[(*held, ...)]


def tensors(v: Lanes) -> list[Data]:
    """The tensors of all devices, in their order."""
    return [tensor_at(v, coords) for coords in np.ndindex(*v.full_shape)]


def focus(v: Lanes, axes: tuple[str, ...]) -> tuple[Lanes, tuple[int, ...]]:
    """The same tensors with each of `axes` a lane of its own, and the places of those lanes."""
    if not all(axis in v.axes for axis in axes):
        wanted = v.mesh.lanes(axes)
        v = relane(v, wanted)
    return v, tuple(v.axes.index(axis) for axis in axes)


def relane(v: Lanes, axes: tuple[str, ...]) -> Lanes:
    """The same tensors over other lanes: pieces of axes merged, or axes cut into pieces."""
    if axes == v.axes:
        return v

    def per_name(array: Data) -> Data:
        """Lanes to `axes`, where per mesh axis the lanes are all long, or all 1, after broadcasting mixed ones."""
        lanes, rest = array.shape[: len(v.axes)], array.shape[len(v.axes) :]
        long = {v.mesh.axis(axis).name for axis, n in zip(v.axes, lanes, strict=True) if n > 1}
        spread = [v.mesh.axis(axis).size if v.mesh.axis(axis).name in long else 1 for axis in v.axes]
        target = [v.mesh.axis(axis).size if v.mesh.axis(axis).name in long else 1 for axis in axes]
        return np.broadcast_to(array, (*spread, *rest)).reshape((*target, *rest))

    extents = tuple(None if held is None else per_name(held) for held in v.extents)
    return Lanes(v.mesh, axes, per_name(v.data), extents)


def spread(v: Lanes, lanes: Sequence[int]) -> Lanes:
    """Make some lanes as long as their axes: a view that repeats what devices share."""
    full = v.full_shape
    shape = [full[i] if i in lanes else n for i, n in enumerate(v.data.shape[: len(v.axes)])]
    return replace(v, data=np.broadcast_to(v.data, (*shape, *v.local_shape)))


def select(v: Lanes, lanes: Sequence[int], coords: Sequence[int]) -> Lanes:
    """What the devices at some coordinates hold, for all devices along those lanes."""

    def pick(array: Data) -> Data:
        where = [slice(None)] * array.ndim
        for lane, at in zip(lanes, coords, strict=True):
            where[lane] = slice(at, at + 1) if array.shape[lane] > 1 else slice(None)
        return array[tuple(where)]

    extents = tuple(None if held is None else pick(held) for held in v.extents)
    return lanes_from(v.mesh, v.axes, pick(v.data), extents)


def same_along(v: Lanes, lanes: Sequence[int], dims: Sequence[int], name: str) -> tuple[Extents, ...]:
    """The extents with `lanes` reduced to 1, which needs that the members of a group hold equal sizes of `dims`."""
    result = list(v.extents)
    for dim in dims:
        held = v.extents[dim]
        if held is None:
            continue
        first = held[tuple(slice(0, 1) if i in lanes else slice(None) for i in range(held.ndim))]
        if not bool((held == first).all()):
            sizes = sorted(set(held.ravel().tolist()))
            raise CollectiveError(
                f"{name}: the devices of one group hold tensors of different sizes {sizes} along dim {dim}. "
                f"They must be equal there: pad the tensors, or use a sharding whose shards are even."
            )
        result[dim] = first
    return tuple(result)


def same_sizes(a: Lanes, b: Lanes) -> bool:
    """Whether every device holds a tensor of one shape in both."""
    if a.ndim != b.ndim:
        return False
    a, b = aligned([a, b])
    return all(bool((a.sizes(dim) == b.sizes(dim)).all()) for dim in range(a.ndim))


def join(v: Lanes, lanes: tuple[int, ...], dim: int, name: str) -> Lanes:
    """Lanes become the outer part of a dim: what all_gather does."""
    others = [d for d in range(v.ndim) if d != dim]
    extents = list(same_along(v, lanes, others, name))
    wide = spread(v, lanes)
    count, n_lanes = math.prod(wide.data.shape[i] for i in lanes), len(v.axes)
    kept = [i for i in range(n_lanes) if i not in lanes]
    order = (*kept, *range(n_lanes, n_lanes + dim), *lanes, *range(n_lanes + dim, n_lanes + v.ndim))
    lane_shape = [1 if i in lanes else wide.data.shape[i] for i in range(n_lanes)]
    local = [count * n if d == dim else n for d, n in enumerate(v.local_shape)]
    data = wide.data.transpose(order).reshape((*lane_shape, *local))
    if v.extents[dim] is not None:
        data, extents[dim] = close_gaps(data, v.sizes(dim), v, lanes, dim)
    return lanes_from(v.mesh, v.axes, data, extents)


def close_gaps(
    data: Data, sizes: NDArray[np.int64], v: Lanes, lanes: tuple[int, ...], dim: int
) -> tuple[Data, NDArray[np.int64]]:
    """Drop the padding inside a dim just joined from pieces of different `sizes` (given over the lanes)."""
    n_lanes, full = len(v.axes), v.full_shape
    count = math.prod(full[i] for i in lanes)
    room = data.shape[n_lanes + dim] // count
    wide = np.broadcast_to(sizes, [full[i] if i in lanes else n for i, n in enumerate(sizes.shape)])
    real = np.arange(room) < wide[..., None]
    kept = [i for i in range(n_lanes) if i not in lanes]
    lane_shape = [1 if i in lanes else n for i, n in enumerate(wide.shape)]
    flat = real.transpose(*kept, *lanes, n_lanes).reshape((*lane_shape, count * room))
    total = wide.sum(axis=lanes, keepdims=True)
    places = np.argsort(~flat, axis=-1, kind="stable")[..., : int(total.max(initial=0))]
    return take(data, places, n_lanes, dim), total


def take(data: Data, places: NDArray[np.int64], n_lanes: int, dim: int) -> Data:
    """Rows of a dim by number; the numbers, in the last dim of `places`, may depend on the lanes before it."""
    if all(n == 1 for n in places.shape[:-1]):
        return np.take(data, places.ravel(), axis=n_lanes + dim)
    index = places.reshape((*places.shape[:-1], *(1,) * dim, -1, *(1,) * (data.ndim - n_lanes - dim - 1)))
    return np.take_along_axis(data, index, axis=n_lanes + dim)


def into_pieces(v: Lanes, dim: int, count: int) -> tuple[Lanes, Extents]:
    """Lay out a dim as `count` equal pieces, each padded alike, and say how large the pieces are."""
    if v.extents[dim] is None:
        return v, None
    size = v.sizes(dim) // count
    room = int(size.max(initial=0))
    places = (size[..., None, None] * np.arange(count)[:, None] + np.arange(room)).reshape((*size.shape, -1))
    data = take(v.data, np.minimum(places, max(v.local_shape[dim] - 1, 0)), len(v.axes), dim)
    return replace(v, data=data), size


def split(v: Lanes, lanes: tuple[int, ...], dim: int) -> Lanes:
    """The outer part of a dim becomes lanes: each device keeps its own piece. A view, unless sizes differ."""
    n_lanes, full = len(v.axes), v.full_shape
    v, size = into_pieces(v, dim, math.prod(full[i] for i in lanes))
    data, at = v.data, n_lanes + dim
    for lane in lanes:
        room = data.shape[at] // full[lane]
        data = data.reshape((*data.shape[:at], full[lane], room, *data.shape[at + 1 :]))
        if data.shape[lane] == 1:
            data = np.moveaxis(np.squeeze(data, axis=lane), at - 1, lane)
        else:  # devices differ already: the piece's number is the device's place
            data = np.moveaxis(np.diagonal(data, axis1=lane, axis2=at), -1, lane)
    extents = [size if d == dim else held for d, held in enumerate(v.extents)]
    return lanes_from(v.mesh, v.axes, data, extents)


def exchange(v: Lanes, lanes: tuple[int, ...], split_dim: int, concat_dim: int, name: str) -> Lanes:
    """Pieces of one dim become lanes while those lanes become the outer part of another: what all_to_all does."""
    n_lanes, full = len(v.axes), v.full_shape
    count = math.prod(full[i] for i in lanes)
    others = [d for d in range(v.ndim) if d != concat_dim]
    v, size = into_pieces(v, split_dim, count)
    v = replace(v, extents=tuple(size if d == split_dim else held for d, held in enumerate(v.extents)))
    extents = list(same_along(v, lanes, others, name))
    sent = v.extents[concat_dim]
    data = spread(v, lanes).data
    at = n_lanes + split_dim
    room = data.shape[at] // count
    data = data.reshape((*data.shape[:at], *(full[i] for i in lanes), room, *data.shape[at + 1 :]))
    new_lanes = [at + lanes.index(i) if i in lanes else i for i in range(n_lanes)]
    new_dims: list[int] = []
    shape = [data.shape[i] for i in new_lanes]
    for d in range(v.ndim):
        here = n_lanes + d + (len(lanes) if d >= split_dim else 0)
        new_dims += [*lanes, here] if d == concat_dim else [here]
        shape.append(data.shape[here] * (count if d == concat_dim else 1))
    data = data.transpose(*new_lanes, *new_dims).reshape(shape)
    if sent is not None:
        data, extents[concat_dim] = close_gaps(data, sent, v, lanes, concat_dim)
    return lanes_from(v.mesh, v.axes, data, extents)


def move(v: Lanes, lanes: tuple[int, ...], sources: NDArray[np.int64]) -> Lanes:
    """Each member p of a group gets the tensor of member sources[p], or zeros where that is -1."""
    some, missing = np.maximum(sources, 0), sources < 0

    def moved(array: Data, keep: bool) -> Data:
        shape = [n if i in lanes else array.shape[i] for i, n in enumerate(v.full_shape)]
        wide = np.broadcast_to(array, (*shape, *array.shape[len(v.axes) :]))
        rest = [i for i in range(wide.ndim) if i not in lanes]
        ordered = wide.transpose(*lanes, *rest)
        flat = ordered.reshape((len(sources), *ordered.shape[len(lanes) :]))
        result = flat[some]
        result[missing] = flat[missing] if keep else np.zeros((), array.dtype)
        back = [(*lanes, *rest).index(i) for i in range(wide.ndim)]
        return result.reshape(ordered.shape).transpose(back)

    extents = tuple(None if held is None else moved(held, keep=True) for held in v.extents)
    return lanes_from(v.mesh, v.axes, moved(v.data, keep=False), extents)


def only(v: Lanes, lanes: tuple[int, ...], coords: tuple[int, ...]) -> Lanes:
    """The tensors of the devices at some coordinates of their group, zeros on all others."""
    wide = spread(v, lanes).data
    data = np.zeros(wide.shape, wide.dtype)
    where = [slice(None)] * wide.ndim
    for lane, at in zip(lanes, coords, strict=True):
        where[lane] = slice(at, at + 1)
    data[tuple(where)] = wide[tuple(where)]
    return replace(v, data=data)


def aligned(values: Sequence[Lanes]) -> list[Lanes]:
    """The same tensors with the same lanes and, by new dims of size 1 in front, the same number of dims."""
    if any(v.axes != values[0].axes for v in values):
        values = [relane(v, v.mesh.axis_names) for v in values]
    ndim = max(v.ndim for v in values)
    result = []
    for v in values:
        lead, more = len(v.axes), ndim - v.ndim
        data = v.data.reshape((*v.data.shape[:lead], *(1,) * more, *v.local_shape))
        result.append(replace(v, data=data, extents=(*(None,) * more, *v.extents)))
    return result


def common_extents(values: Sequence[Lanes], name: str) -> tuple[Extents, ...]:
    """The extents of an element-by-element result; operands must agree wherever they are not 1 long."""
    result: list[Extents] = []
    for dim in range(values[0].ndim):
        sized = [v.sizes(dim) for v in values if v.local_shape[dim] != 1 or v.extents[dim] is not None]
        for sizes in sized[1:]:
            if not bool((sizes == sized[0]).all()):
                raise CollectiveError(
                    f"{name}: the operands have different sizes on some device along dim {dim}: "
                    f"{sorted(set(sized[0].ravel().tolist()))} and {sorted(set(sizes.ravel().tolist()))}."
                )
        ragged = [v.extents[dim] for v in values if v.extents[dim] is not None]
        result.append(ragged[0] if ragged else None)
    return tuple(result)
