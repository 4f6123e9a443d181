"""`Layout`: a sharding applied to a shape. It has the offset and size of every shard, and its form in lanes.

In memory an array's leading dims are lanes, one per mesh axis (or piece of an axis, where a sharding uses one): as long
as the axis where devices hold different data, 1 where they hold the same. The shard follows, padded to the largest.
All sizes and offsets for cutting and joining are computed here, once per (sharding, shape), and cached.
"""

import itertools
import math
import operator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.caches import MIB, kept
from shardwright.sharding.cuts import MACHINE, Cuts, Nested
from shardwright.sharding.sharding import Sharding, are_blocks, block_size, largest

Ints = NDArray[np.int64]


class DimLayout(NamedTuple):
    """One dim of a tensor on a mesh."""

    size: int  # of the global dim
    lanes: tuple[int, ...]  # the lanes that split it, outermost first
    parts: int  # the number of shards
    block: int  # rows of the largest shard, without halo
    low: int  # rows of the shard below that each shard also holds
    high: int  # and of the shard above
    cuts: Cuts  # explicit offsets, or () for blocks of `block` rows, the last ones short or empty

    @property
    def local(self) -> int:
        """The rows allocated on a device."""
        return self.low + self.block + self.high

    @property
    def is_even(self) -> bool:
        """Whether the shards are equal blocks that tile the dim: cutting and joining are then reshapes."""
        return self.parts * self.block == self.size and self.local == self.block

    @property
    def is_trailing(self) -> bool:
        """Whether padding is only at the end of the global dim: cutting is padding, then a reshape."""
        return not self.cuts and self.local == self.block

    @property
    def dtype(self) -> "np.dtype[Any]":
        """What offsets are counted in: Python's integers where those of a machine are too small."""
        return np.dtype(object if self.size >= MACHINE else np.int64)

    @property
    def offsets(self) -> Ints:
        """Where each shard begins, followed by the size of the dim."""
        return np.asarray(self.cuts, self.dtype) if self.is_listed else self.starts(np.arange(self.parts + 1))

    @property
    def is_listed(self) -> bool:
        """Whether offsets are given one by one."""
        return bool(self.cuts) and not isinstance(self.cuts, Nested)

    def starts(self, shard: Ints) -> Ints:
        """Where shards begin, by arithmetic alone if they are not listed; number `parts` begins at the end of the dim."""
        if isinstance(self.cuts, Nested):
            return self.cuts.starts(shard)
        if self.cuts:
            return self.offsets[shard]
        return np.minimum(shard.astype(self.dtype) * self.block, self.size)

    def turns(self) -> Ints:
        """Numbers of shards next to a change of sizes, unless they are listed."""
        if isinstance(self.cuts, Nested):
            return self.cuts.turns()
        return self.size // max(self.block, 1) + np.arange(-1, 3)

    def owners(self, rows: Ints) -> Ints:
        """The shards that rows of the dim belong to."""
        if isinstance(self.cuts, Nested):
            return self.cuts.owners(rows)
        if self.cuts:
            return np.searchsorted(self.offsets, rows, side="right") - 1
        return rows // max(self.block, 1)

    @property
    def sizes(self) -> Ints:
        """The rows of each shard, without halo."""
        return np.diff(self.offsets)

    @property
    def distinct_sizes(self) -> set[int]:
        """The sizes that shards have, without halo; empty shards may be left out."""
        if isinstance(self.cuts, Nested):
            return self.cuts.sizes
        if self.cuts:
            return set(map(operator.sub, self.cuts[1:], self.cuts))
        return {self.block, self.size % max(self.block, 1)}

    def bounds(self, shard: int) -> tuple[int, int]:
        """Where one shard begins and ends."""
        if self.cuts:
            return self.cuts[shard], self.cuts[shard + 1]
        return min(shard * self.block, self.size), min((shard + 1) * self.block, self.size)

    def rows(self) -> tuple[Ints, NDArray[np.bool_]]:
        """For each shard and local row its row in the global dim, and a mask of local rows outside that dim.

        Rows past the end of a short shard repeat a real row: padding with real values never causes a warning.
        """
        places = self.offsets[:-1, None] - self.low + np.arange(self.local)
        outside = (places < 0) | (places >= self.size)
        return np.clip(places, 0, max(self.size - 1, 0)), outside

    def places(self) -> Ints:
        """For each global row its position in the concatenated shards, padding and halos included."""
        shard = np.repeat(np.arange(self.parts), self.sizes)
        return shard * self.local + self.low + np.arange(self.size) - self.offsets[shard]


class Layout:
    """How a tensor of a shape is distributed over a mesh. Made by `layout_of`, which caches equal layouts.

    >>> from shardwright.mesh import Mesh
    >>> from shardwright.sharding import P
    >>> layout = layout_of(Sharding(Mesh(data=2, model=4), P("model", None)), (10, 3))
    >>> layout.lanes, layout.lane_shape, layout.local_shape
    (('data', 'model'), (1, 4), (3, 3))
    >>> layout.dims[0].sizes
    array([3, 3, 3, 1])
    """

    def __init__(self, sharding: Sharding, shape: tuple[int, ...], lanes: tuple[str, ...] = ()) -> None:
        self.sharding = sharding.for_shape(shape)
        self.shape = shape
        self.mesh = mesh = sharding.mesh
        self.lanes = lanes or mesh.lanes(sharding.axes)
        place = {lane: i for i, lane in enumerate(self.lanes)}
        self.lanes_of = {axis: tuple(place[p] for p in mesh.cut((axis,), by=self.lanes)) for axis in sharding.axes}
        used = {i for axis in sharding.axes for i in self.lanes_of[axis]}
        self.partial_lanes = tuple(i for axis in sharding.partial for i in self.lanes_of[axis])
        self.full_shape = tuple(mesh.axis(lane).size for lane in self.lanes)
        self.lane_shape = tuple(n if i in used else 1 for i, n in enumerate(self.full_shape))
        self.dims = tuple(self._dim(dim) for dim in range(len(shape)))
        self.local_shape = tuple(dim.local for dim in self.dims)

    def _dim(self, dim: int) -> DimLayout:
        sharding, size = self.sharding, self.shape[dim]
        lanes = tuple(i for axis in sharding.dims[dim] for i in self.lanes_of[axis])
        parts = sharding.parts(dim)
        cuts = sharding.offsets_of(dim)
        block = largest(cuts) if cuts else block_size(size, parts)
        if cuts and are_blocks(cuts, block):  # as gathers of inner axes leave them
            cuts = ()
        return DimLayout(size, lanes, parts, block, *sharding.halo_of(dim), cuts)

    @cached_property
    def is_plain(self) -> bool:
        """Whether devices hold parts of one tensor and nothing else: no summands, no halos."""
        return not self.partial_lanes and not self.sharding.halo

    @cached_property
    def settled(self) -> "Layout":
        """The layout once pending reductions are done."""
        return layout_of(self.sharding.replace(partial=()), self.shape) if self.partial_lanes else self

    @cached_property
    def is_even(self) -> bool:
        """Whether no device holds padding or halos."""
        return all(dim.is_even for dim in self.dims)

    # -- the reshapes and transposes of cutting and joining -------------------------------------------------------

    @cached_property
    def dim_lanes(self) -> tuple[int, ...]:
        """The lanes that split a dim."""
        return tuple(lane for dim in self.dims for lane in dim.lanes)

    @cached_property
    def joined_lane_shape(self) -> tuple[int, ...]:
        """The lane sizes after every dim is joined: only partial lanes are longer than 1."""
        return tuple(1 if i in self.dim_lanes else n for i, n in enumerate(self.lane_shape))

    @cached_property
    def split_shape(self) -> tuple[int, ...]:
        """Lanes that split no dim, then for each dim its lanes and its local rows: the order in memory."""
        rest = [n for i, n in enumerate(self.lane_shape) if i not in self.dim_lanes]
        pieces = [n for dim in self.dims for n in (*(self.lane_shape[i] for i in dim.lanes), dim.local)]
        return (*rest, *pieces)

    @cached_property
    def split_order(self) -> tuple[int, ...]:
        """The transpose from `split_shape` to lanes first, shard last."""
        order = self.join_order
        return tuple(order.index(i) for i in range(len(order)))

    @cached_property
    def join_order(self) -> tuple[int, ...]:
        """The transpose from lanes first, shard last, to `split_shape`."""
        rest = [i for i in range(len(self.lanes)) if i not in self.dim_lanes]
        pieces = [i for at, dim in enumerate(self.dims) for i in (*dim.lanes, len(self.lanes) + at)]
        return (*rest, *pieces)

    @cached_property
    def padded_shape(self) -> tuple[int, ...]:
        """The joined tensor with padding and halos still in it."""
        return tuple(dim.parts * dim.local for dim in self.dims)

    @property
    def footprint(self) -> int:
        """About how many bytes it takes itself."""
        return 3000 + 64 * sum(dim.parts for dim in self.dims)

    # -- per device -------------------------------------------------------------------------------------------------

    def over_lanes(self, dim: int, per_shard: Ints) -> Ints:
        """One value per shard of a dim, as an array over the lanes (length 1 along lanes that don't matter)."""
        lanes = self.dims[dim].lanes
        by_lane = per_shard.reshape([self.full_shape[i] for i in lanes])
        ordered = by_lane.transpose([lanes.index(i) for i in sorted(lanes)])
        return ordered.reshape([n if i in lanes else 1 for i, n in enumerate(self.full_shape)])

    @cached_property
    def extents(self) -> tuple[Ints | None, ...]:
        """Per dim the valid rows of each device, halos included, over the lanes; None without padding."""
        return tuple(
            None if bool((dim.sizes == dim.block).all()) else self.over_lanes(at, dim.sizes + dim.low + dim.high)
            for at, dim in enumerate(self.dims)
        )

    def shard_numbers(self, place: int) -> tuple[int, ...]:
        """For each dim the index of the shard held by the device at a row-major position."""
        coords = []
        for n in reversed(self.full_shape):
            place, at = divmod(place, n)
            coords.append(at)
        coords.reverse()
        result = []
        for dim in self.dims:
            shard = 0
            for lane in dim.lanes:
                shard = shard * self.full_shape[lane] + coords[lane]
            result.append(shard)
        return tuple(result)

    def at(self, place: int) -> "View":
        """The layout of one device, by row-major position: its own sizes and offsets, without lanes or padding.

        >>> from shardwright.mesh import Mesh
        >>> from shardwright.sharding import P
        >>> layout_of(Sharding(Mesh(x=4), P("x")), (10, 3)).at(3).local_shape  # blocks of 3: the last holds one row
        (1, 3)
        """
        return View(self, self.shard_numbers(place))

    @cached_property
    def shard_slices(self) -> list[list[slice]]:
        """For each dim and shard its rows in the global tensor."""
        return [[slice(a, b) for a, b in itertools.pairwise(dim.offsets.tolist())] for dim in self.dims]

    @cached_property
    def shard_places(self) -> Ints:
        """For each device (row-major) and dim the index of the shard it holds."""
        columns = [
            np.broadcast_to(self.over_lanes(at, np.arange(dim.parts)), self.full_shape).ravel()
            for at, dim in enumerate(self.dims)
        ]
        return np.stack(columns, axis=1) if columns else np.zeros((math.prod(self.full_shape), 0), np.int64)

    @cached_property
    def boxes(self) -> Ints:
        """Where each device's shard begins and ends, without halos: an array of shape (2, devices, dims)."""
        if not self.dims:
            return np.zeros((2, math.prod(self.full_shape), 0), np.int64)
        columns = [
            (dim.offsets[:-1][at], dim.offsets[1:][at]) for dim, at in zip(self.dims, self.shard_places.T, strict=True)
        ]
        return np.array(columns).transpose(1, 2, 0)


class View:
    """The layout of one device, with the attributes of `Layout` that kernels use: kernels accept either."""

    lanes: tuple[str, ...] = ()
    full_shape: tuple[int, ...] = ()
    lane_shape: tuple[int, ...] = ()
    partial_lanes: tuple[int, ...] = ()

    def __init__(self, layout: Layout, numbers: tuple[int, ...]) -> None:
        self.sharding, self.shape, self.mesh = layout.sharding, layout.shape, layout.mesh
        self.dims = tuple(dim._replace(lanes=()) for dim in layout.dims)
        self.numbers = numbers
        self.offsets = tuple(dim.bounds(at) for dim, at in zip(layout.dims, numbers, strict=True))
        self.local_shape = tuple(
            high - low + dim.low + dim.high for (low, high), dim in zip(self.offsets, self.dims, strict=True)
        )
        self.extents: tuple[Ints | None, ...] = (None,) * len(self.shape)

    def over_lanes(self, dim: int, per_shard: Ints) -> Ints:
        """This device's entry of an array with one value per shard of a dim."""
        return np.asarray(per_shard[self.numbers[dim]])


def layout_of(sharding: Sharding, shape: tuple[int, ...], lanes: tuple[str, ...] = ()) -> Layout:
    """The layout of a sharding for a shape; cached. `lanes` are the mesh's axes cut finer than the sharding needs."""
    return _layout_of(sharding, shape, lanes)


@kept(limit=24 * MIB, size=lambda layout: layout.footprint, least=8)
def _layout_of(sharding: Sharding, shape: tuple[int, ...], lanes: tuple[str, ...]) -> Layout:
    fitted = sharding.for_shape(shape)
    finer = () if lanes == fitted.mesh.lanes(fitted.axes) else lanes
    if fitted is not sharding or finer != lanes:
        return _layout_of(fitted, shape, finer)
    return Layout(fitted, shape, lanes)
