"""Steps: what moves elements between devices or combines what they hold. Nothing else communicates.

A **move** is its messages: every device gets, from devices that hold them, the elements that it wants and lacks. Its name
(all_gather, all_to_all, exchange, update_halo, fetch, …) only selects a native collective where an engine has one. A
**reduce** is a ring. Messages are made for one place when an engine asks; figures come from arithmetic per dim.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.collectives import (
    AllGather,
    AllReduce,
    AllSlice,
    AllToAll,
    Collective,
    Exchange,
    Permute,
    ReduceScatter,
    UpdateHalo,
)
from shardwright.hardware import latency, seconds, seconds_per_byte
from shardwright.mesh import Mesh
from shardwright.ops import RowMap
from shardwright.plan.route import change_between
from shardwright.plan.volume import Meeting, lower_bound, meeting
from shardwright.plan.windows import OUTSIDE, Picked, Wanted, blocks_of, picked, runs
from shardwright.sharding import Layout, P, Sharding, block_size, layout_of

Shape = tuple[int, ...]
Box = tuple[slice, ...]
Ints = NDArray[np.int64]


class Message(NamedTuple):
    """Elements that go from one place to another, and where they lie in the tensor and in both shards."""

    sender: int  # a row-major place in the source's mesh
    receiver: int  # and in the result's
    box: Box  # rows of the whole tensor
    source: Box  # the same in the sender's shard
    target: Box  # and in the receiver's
    elements: int


class Transfer(NamedTuple):
    """A message as people look at it: from one device id to another."""

    sender: int
    receiver: int
    box: Box
    elements: int


@dataclass(frozen=True)
class Step:
    """One step: the shardings before and after it, and the bytes that the busiest device receives."""

    name: str
    pieces: tuple[str, ...]  # of axes that it runs along
    source: Sharding
    result: Sharding
    shape: Shape  # before it
    dtype: "np.dtype[Any]"

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The axes that it runs along: neighbouring pieces of one axis as one."""
        return Sharding(self.source.mesh, P(self.pieces)).dims[0]

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def result_shape(self) -> Shape:
        """The shape of the tensor after it."""
        return self.shape

    @cached_property
    def here(self) -> Layout:
        """The layout before it."""
        return layout_of(self.source, self.shape)

    @cached_property
    def there(self) -> Layout:
        """The layout after it."""
        return layout_of(self.result, self.result_shape)

    @property
    def received(self) -> int:
        """Bytes that the busiest device receives."""
        raise TypeError(f"{type(self).__name__} is abstract: use Move, Fetch or Reduce.")

    @property
    def time(self) -> float:
        """Seconds until the busiest device is done."""
        raise TypeError(f"{type(self).__name__} is abstract: use Move, Fetch or Reduce.")

    @property
    def message(self) -> int:
        """Bytes of the largest single message."""
        raise TypeError(f"{type(self).__name__} is abstract: use Move, Fetch or Reduce.")

    @property
    def lower_bound(self) -> int:
        """Bytes that some device must receive for this change, whatever the algorithm."""
        return lower_bound(self.source, self.result, self.shape, self.itemsize)

    @property
    def local_before(self) -> Shape:
        """The largest shard before the step."""
        return self.here.local_shape

    @property
    def local_after(self) -> Shape:
        """The largest shard after the step."""
        return self.there.local_shape

    @property
    def groups(self) -> str:
        """How many groups of how many devices take part."""
        if self.result.mesh != self.source.mesh:
            return f"from {self.source.mesh.size} to {self.result.mesh.size}"
        size = self.source.mesh.axis_size(self.axes)
        return f"{self.source.mesh.size // size} × {size}"

    def __str__(self) -> str:
        return f"{self.name} over {', '.join(self.axes) or 'nothing'}"


@dataclass(frozen=True)
class Move(Step):
    """The same elements in another sharding.

    A step called "local" has no messages: every device changes what it holds alone; if its result is partial over more
    axes, the first device of a group keeps the value and the others hold what adds nothing.
    """

    dim: int = -1  # that gains axes
    other: int = -1  # that loses axes

    @cached_property
    def wanted(self) -> tuple[Wanted, ...]:
        """For each dim the rows that the shards of the result want."""
        return tuple(blocks_of(dim) for dim in self.there.dims)

    @cached_property
    def _meeting(self) -> Meeting:
        return meeting(self.source, self.result, self.shape)

    @cached_property
    def received(self) -> int:
        """Bytes that the busiest device receives."""
        if self.name in ("local", "all_slice"):
            return 0
        if self.result.mesh == self.source.mesh and self.here.is_even and self.there.is_even:
            return self._received_evenly() * self.itemsize
        return self._meeting.received() * self.itemsize

    def _received_evenly(self) -> int:
        """Elements, where all shards are equal blocks."""
        local, group = math.prod(self.here.local_shape), self.source.mesh.axis_size(self.pieces)
        if self.name in ("all_gather", "prefix"):
            return local * (group - 1)
        if self.name == "all_to_all":
            return local - local // group
        after = math.prod(self.there.local_shape)
        change = change_between(self.source, self.result)
        if not change.possible:
            return self._meeting.received()
        if any(old and new for old, new in change.suffixes):
            return after  # some device holds none of its new shard
        return after - after // change.product([piece for old, new in change.suffixes if not new for piece in old])

    @cached_property
    def sent(self) -> int:
        """Bytes that the busiest device sends, if those who hold the same share the work evenly."""
        if self.name == "update_halo" or not self.received:
            return self.received
        if self.name in ("all_gather", "prefix", "all_to_all", "permute") and self.here.is_even and self.there.is_even:
            return self.received
        return self._meeting.sent() * self.itemsize

    @cached_property
    def message(self) -> int:
        """Bytes of the largest single message."""
        local, group = self.source.local_size(self.shape), self.source.mesh.axis_size(self.pieces)
        if self.name == "all_to_all":
            return int(block_size(local, group)) * self.itemsize
        return min(self.received, local * self.itemsize)

    @cached_property
    def time(self) -> float:
        """Seconds; where shards are uneven, of the busiest device."""
        if not self.received:
            return 0.0
        mesh = self.source.mesh
        if self.result.mesh != mesh:
            return _between(mesh, self.result.mesh, max(self.received, self.sent))
        even = self.here.is_even and self.there.is_even  # then no device sends more than the busiest receives
        moved = self.received if even else max(self.received, self.sent)
        return seconds(mesh.links_along(self.pieces), moved, neighbours=self.name == "update_halo")

    # -- messages -----------------------------------------------------------------------------------------------------

    def messages(self, place: int) -> list[Message]:
        """What the device at a place of the result's mesh puts together, its own part included (then it is the sender).

        Where several devices hold a part, the one sends that differs from the receiver only along axes that split the source,
        so that copies share the load and summands of a partial value never mix.
        """
        here, there = self.here, self.there
        own = _home(self.source.mesh, self.result.mesh, place)
        mine = here.shard_numbers(own if own is not None else place % self.source.mesh.size)
        pieces = [
            list(self._pieces(dim, number, mine[dim] if own is not None else None))
            for dim, number in enumerate(there.shard_numbers(place))
        ]
        base = _coords(own if own is not None else place % self.source.mesh.size, here.full_shape)
        found = []
        for parts in product(*pieces):
            sender = _holder(here, base, [part[0] for part in parts])
            elements = math.prod(part[4] for part in parts)
            if own is not None and all(part[0] == number for part, number in zip(parts, mine, strict=True)):
                sender = own
            boxes = tuple(part[1] for part in parts), tuple(part[2] for part in parts), tuple(part[3] for part in parts)
            found.append(Message(sender, place, *boxes, elements))
        return found

    def _pieces(self, dim: int, shard: int, mine: int | None) -> Iterator[tuple[int, slice, slice, slice, int]]:
        """The rows that a shard of the result wants along a dim, run by run: the source's shard that holds them, the rows in
        the tensor, in that shard, and their places in the result's shard."""
        held = self.here.dims[dim]
        rows = self.wanted[dim].rows(shard)
        offsets = held.offsets
        owners = np.where(rows == OUTSIDE, OUTSIDE, np.searchsorted(offsets, rows, side="right") - 1)
        if mine is not None:  # what its own halo has need not come from elsewhere
            low, high = (int(bound) for bound in held.bounds(mine))
            near = (rows >= max(low - held.low, 0)) & (rows < min(high + held.high, held.size)) & (rows != OUTSIDE)
            owners = np.where(near, mine, owners)
        for owner, place, row, count, step in runs(rows, owners):
            local = row - int(offsets[owner]) + held.low
            yield owner, _stretch(row, count, step), _stretch(local, count, step), slice(place, place + count), count

    def outgoing(self, place: int) -> list[Message]:
        """What the device at a place of the source's mesh sends to others."""
        receivers: Sequence[int] = range(self.result.mesh.size)
        if self._meeting_of().aligned:
            receivers = self._receivers(place)
        return [m for r in receivers for m in self.messages(r) if m.sender == place and not self._is_own(m)]

    def _is_own(self, message: Message) -> bool:
        return _home(self.source.mesh, self.result.mesh, message.receiver) == message.sender

    def _meeting_of(self) -> Meeting:
        return self._meeting

    def _receivers(self, place: int) -> list[int]:
        """Places that may want rows of this one's shard: they agree with it along axes that split nothing of the source."""
        here, there = self._meeting_of().source, self._meeting_of().target
        shape = here.full_shape
        coords = _coords(place, shape)
        split = {lane for dim in here.dims for lane in dim.lanes}
        per_dim = []
        for dim, number in enumerate(here.shard_numbers(place)):
            low, high = here.dims[dim].bounds(number)
            shards = np.arange(self.wanted[dim].parts)
            want = self.wanted[dim].within(shards, np.asarray(low), np.asarray(high)) > 0
            inner = there.dims[dim].parts
            for lane in there.dims[dim].lanes:
                inner //= shape[lane]
                if lane not in split:
                    want &= (shards // inner) % shape[lane] == coords[lane]
            per_dim.append(np.flatnonzero(want).tolist())
        taken = {lane for dim in there.dims for lane in dim.lanes}
        free = [range(n) if lane in split and lane not in taken else (coords[lane],) for lane, n in enumerate(shape)]
        found = []
        for numbers in product(*per_dim):
            for at in product(*free):
                found.append(_place(_with_numbers(there, at, numbers), shape))
        return found

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Every message between two devices, by their ids: for looking at, since it lists the whole mesh's."""
        senders, receivers = self.source.mesh.device_ids, self.result.mesh.device_ids
        every = (m for place in range(self.result.mesh.size) for m in self.messages(place))
        pairs = ((senders[m.sender], receivers[m.receiver], m) for m in every)
        return tuple(Transfer(a, b, m.box, m.elements) for a, b, m in pairs if a != b and m.elements)

    @cached_property
    def collective(self) -> Collective:
        """The step as a collective on the tensors of each device."""
        makers: dict[str, Callable[[], Collective]] = {
            "permute": lambda: Permute(self.axes, tuple(self._pairs())),
            "all_slice": lambda: AllSlice(self.axes, self.dim),
            "all_gather": lambda: AllGather(self.axes, self.other),
            "prefix": lambda: AllGather(self.axes, self.other),
            "all_to_all": lambda: AllToAll(self.axes, self.dim, self.other),
            "update_halo": lambda: UpdateHalo(
                self.axes,
                self.result.dims,
                tuple(self.result.halo_of(d) for d, axes in enumerate(self.result.dims) if axes),
            ),
        }
        return makers.get(self.name, lambda: Exchange(self.axes, self.result))()

    def _pairs(self) -> Iterator[tuple[Shape, Shape]]:
        """Of a permute: which member's shard goes to which, within the first group."""
        mesh, axes = self.source.mesh, self.axes
        sizes = [mesh.axis(axis).size for axis in axes]
        members = [mesh.position(device) for device in mesh.groups(axes)[0]]
        holder = {self.here.shard_numbers(place): at for at, place in enumerate(members)}
        for at, place in enumerate(members):
            yield _coords(holder[self.there.shard_numbers(place)], sizes), _coords(at, sizes)


@dataclass(frozen=True)
class Fetch(Move):
    """Rows of a tensor, brought to the devices whose part of an operation's result reads them.

    The result is an ordinary tensor: along a dim with a row map, the rows that each shard wants, one shard after the other,
    with explicit offsets; rows outside the tensor are `fill`. `cuts` are the offsets of the operation's result.
    """

    maps: tuple[RowMap | None, ...] = ()
    cuts: tuple[tuple[int, ...], ...] = ()
    fill: Any = 0

    @staticmethod
    def of(
        source: Sharding,
        shape: Shape,
        dtype: "np.dtype[Any]",
        maps: tuple[RowMap | None, ...],
        cuts: tuple[tuple[int, ...], ...],
        fill: Any = 0,
        everywhere: bool = False,
    ) -> "Fetch":
        """The fetch for row maps and the offsets of the result; it knows its own result and axes.

        With `everywhere` dims with a map are whole in the result: every device gets their rows.
        """
        offsets: dict[int, Sequence[int]] = {}
        sizes = list(shape)
        spec = [() if everywhere and row_map else axes for row_map, axes in zip(maps, source.dims, strict=True)]
        for dim, row_map in enumerate(maps):
            if row_map is not None:
                rows = picked(row_map, cuts[dim], shape[dim])
                sizes[dim] = rows.offsets[-1]
                if spec[dim]:
                    offsets[dim] = rows.offsets
            elif source.offsets_of(dim):
                offsets[dim] = source.offsets_of(dim)
        result = source.replace(spec=P(*spec), offsets=offsets, halo={}).for_shape(tuple(sizes))
        made = Fetch("fetch", (), source, result, shape, dtype, maps=maps, cuts=cuts, fill=fill)
        if not made._meeting_of().received():
            return made
        return Fetch(
            "fetch", made._meeting_of().crossed(), source, result, shape, dtype, maps=maps, cuts=cuts, fill=fill
        )

    @cached_property
    def result_shape(self) -> Shape:
        """The shape of the fetched tensor."""
        rows = zip(self.wanted, self.shape, strict=True)
        return tuple(w.offsets[-1] if isinstance(w, Picked) else n for w, n in rows)

    @cached_property
    def wanted(self) -> tuple[Wanted, ...]:
        """For each dim the rows that the shards of the result want."""
        return tuple(
            blocks_of(self.here.dims[dim]) if row_map is None else picked(row_map, self.cuts[dim], self.shape[dim])
            for dim, row_map in enumerate(self.maps)
        )

    @cached_property
    def _own_meeting(self) -> Meeting:
        return Meeting(self.here, self.there, self.wanted)

    def _meeting_of(self) -> Meeting:
        return self._own_meeting

    @cached_property
    def received(self) -> int:
        """Bytes that the busiest device receives."""
        return self._own_meeting.received() * self.itemsize

    @property
    def sent(self) -> int:
        """Bytes that the busiest device sends: about what it receives."""
        return self.received

    @property
    def lower_bound(self) -> int:
        """Bytes that some device must receive: it fetches only rows that it reads and lacks."""
        return self.received

    @property
    def gathered_dims(self) -> tuple[int, ...]:
        """Split dims of which some device wants every row."""
        if not self.received:
            return ()
        rows = enumerate(zip(self.wanted, self.here.dims, strict=True))
        return tuple(
            at
            for at, (w, dim) in rows
            if isinstance(w, Picked) and dim.size > dim.block and int(w.wants(np.arange(w.parts)).max()) == dim.size
        )

    @property
    def is_identity(self) -> bool:
        """Whether every device already holds just the rows that it wants."""
        rows = zip(self.maps, self.wanted, self.here.dims, strict=True)
        return all(
            row_map is None
            or (
                isinstance(w, Picked)
                and not dim.low
                and not dim.high
                and np.array_equal(w.starts, dim.offsets)
                and np.array_equal(w.flat, np.arange(dim.size))
            )
            for row_map, w, dim in rows
        )


@dataclass(frozen=True)
class Reduce(Step):
    """A ring over each group, in group order, of what its devices hold.

    all_reduce cuts the flattened local tensor into chunks of ceil(n/p): chunk i starts at member i + 1, is combined at each
    member on its way and ends at member i; a second round hands the finished chunks on. For reduce_scatter the chunks are the
    shards of the result, and there is no second round.
    """

    dim: int = -1  # of a reduce_scatter: the dim that gains axes

    @cached_property
    def carrier(self) -> "np.dtype[Any]":
        """The dtype that travels: averages of integers and of small floats are summed in a wider one."""
        return carrier(self.source.reduction, self.dtype)

    @property
    def itemsize(self) -> int:
        """Bytes of an element that travels."""
        return self.carrier.itemsize

    @cached_property
    def local(self) -> int:
        """Elements of the largest shard, halos included."""
        return math.prod(self.here.local_shape)

    @cached_property
    def group(self) -> int:
        """How many devices combine what they hold."""
        return self.source.mesh.axis_size(self.pieces)

    def chunks(self, place: int) -> list[Box | tuple[int, int]]:
        """What travels around the group of a place: boxes of the shard, or ranges of it flattened."""
        view = self.here.at(place)
        if self.name == "reduce_scatter":
            low, high = view.offsets[self.dim]
            bounds = sub_blocks(high - low, self.group)
            before, after = (slice(None),) * self.dim, (slice(None),) * (len(self.shape) - self.dim - 1)
            return [(*before, slice(a, b), *after) for a, b in bounds]
        return list(sub_blocks(math.prod(view.local_shape), self.group))

    @cached_property
    def received(self) -> int:
        """Bytes that the busiest device receives: all chunks but the one that starts with it, and its own."""
        local, p = self.local, self.group
        if p == 1 or not local:
            return 0
        if self.name == "reduce_scatter":
            rows = self.here.dims[self.dim].sizes
            least = np.maximum(rows - (p - 1) * block_size(rows, p), 0)  # of the last chunk
            most = int((rows - least).max(initial=0))
            return local // max(self.here.local_shape[self.dim], 1) * most * self.itemsize
        return int(self.per_member.max()) * self.itemsize

    @cached_property
    def per_member(self) -> Ints:
        """Of an all_reduce: elements that each member of a group receives, where shards are largest."""
        local, p = self.local, self.group
        block = int(block_size(local, p))
        sizes = np.clip(local - np.arange(p) * block, 0, block)
        return 2 * local - sizes - np.roll(sizes, 1)

    @property
    def sent(self) -> int:
        """Bytes that the busiest device sends: what its neighbour receives."""
        return self.received

    @cached_property
    def message(self) -> int:
        """Bytes of the largest single message."""
        if self.name == "reduce_scatter":
            return self.result.local_size(self.shape) * self.itemsize
        return int(block_size(self.local, self.group)) * self.itemsize

    @cached_property
    def time(self) -> float:
        """Seconds."""
        rounds = 2 if self.name == "all_reduce" else 1
        return seconds(self.source.mesh.links_along(self.pieces), self.received, rounds)

    @cached_property
    def collective(self) -> Collective:
        """The step as a collective on the tensors of each device."""
        if self.name == "reduce_scatter":
            return ReduceScatter(self.axes, self.dim, self.source.reduction)
        return AllReduce(self.axes, self.source.reduction)

    def members(self, place: int) -> list[int]:
        """The places of the group that a place belongs to, in group order."""
        return group_of(self.source.mesh, self.pieces, place)


def group_of(mesh: Mesh, axes: Sequence[str], place: int) -> list[int]:
    """The places of the group along some axes that a place belongs to, in group order: the first axis outermost."""
    lanes = mesh.lanes(axes)
    shape = tuple(mesh.axis(lane).size for lane in lanes)
    coords = list(_coords(place, shape))
    inner = [lanes.index(piece) for piece in mesh.cut(tuple(axes), by=lanes)]
    result = []
    for at in product(*(range(shape[lane]) for lane in inner)):
        for lane, n in zip(inner, at, strict=True):
            coords[lane] = n
        result.append(_place(coords, shape))
    return result


@lru_cache(maxsize=4096)
def element_step(source: Sharding, shape: Shape, dtype: "np.dtype[Any]", place: tuple[int, ...]) -> Fetch:
    """One element, from the devices that hold it to all."""
    maps = tuple(RowMap(1, row) for row in place)
    return Fetch.of(source, shape, dtype, maps, ((0, 1),) * len(shape), everywhere=True)


def carrier(reduction: str, dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """The dtype in which a reduction travels."""
    if reduction != "average":
        return dtype
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def sub_blocks(size: int, parts: int) -> Iterator[tuple[int, int]]:
    """Where each of the usual blocks of a size begins and ends."""
    block = int(block_size(size, parts))
    return ((min(i * block, size), min((i + 1) * block, size)) for i in range(parts))


def _between(here: Mesh, there: Mesh, moved: int) -> float:
    """Seconds of an exchange between meshes: as long as the slower of the two would take along all its axes."""
    pairs = [
        (mesh, tuple(axis for axis, n in mesh.sizes.items() if n > 1) or mesh.axis_names[:1]) for mesh in (here, there)
    ]
    least = max(link.latency for mesh, _ in pairs for link in mesh.links.values())
    groups = [mesh.links_along(axes) for mesh, axes in pairs]
    hops = [sum(latency(size, link) for size, link in group) for group in groups]
    return max(least, *hops) + moved * max(map(seconds_per_byte, groups))


def _stretch(first: int, count: int, step: int) -> slice:
    """Evenly spaced rows as a slice; a negative step may end before row 0."""
    last = first + count * step
    return slice(first, last if last >= 0 else None, step if step != 1 else None)


def _home(source: Mesh, result: Mesh, place: int) -> int | None:
    """The place in the source's mesh of the device at a place in the result's; None if it is not there."""
    if source.device_ids == result.device_ids:
        return place
    try:
        return source.device_ids.index(result.device_ids[place])
    except ValueError:
        return None


def _coords(place: int, shape: Sequence[int]) -> Shape:
    coords = []
    for n in reversed(shape):
        place, at = divmod(place, n)
        coords.append(at)
    return tuple(reversed(coords))


def _place(coords: Sequence[int], shape: Sequence[int]) -> int:
    place = 0
    for at, n in zip(coords, shape, strict=True):
        place = place * n + at
    return place


def _with_numbers(layout: Layout, coords: Sequence[int], numbers: Sequence[int]) -> list[int]:
    """Coordinates over a layout's lanes, with those that split dims set to the numbers of shards."""
    result = list(coords)
    for dim, number in zip(layout.dims, numbers, strict=True):
        for lane in reversed(dim.lanes):
            number, result[lane] = divmod(number, layout.full_shape[lane])
    return result


def _holder(layout: Layout, base: Sequence[int], numbers: Sequence[int]) -> int:
    """The place that holds some shards and agrees with `base` along every other lane."""
    return _place(_with_numbers(layout, base, numbers), layout.full_shape)
