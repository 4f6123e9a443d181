"""Steps: what moves elements between devices or combines what they hold. Nothing else communicates.

A **move** is its messages: every device gets, from devices that hold them, the elements that it wants and lacks. Its name
(all_gather, all_to_all, exchange, update_halo, fetch, …) only selects a native collective where an engine has one. A
**reduce** is a ring. Messages are made for one place when an engine asks; figures come from arithmetic per dim.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.collectives import (
    AllGather,
    AllSlice,
    AllToAll,
    Collective,
    Exchange,
    Permute,
    UpdateHalo,
)
from shardwright.mesh import Mesh
from shardwright.plan.route import change_between
from shardwright.plan.volume import Meeting, lower_bound, meeting
from shardwright.plan.windows import OUTSIDE, Blocks, Wanted, runs
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


# Elements that a device receives in a collective, from the size of its shard and of its group, if all shards are equal blocks.
EVEN: dict[str, Callable[[int, int], int]] = {
    "all_slice": lambda local, group: 0,
    "regroup": lambda local, group: 0,
    "all_gather": lambda local, group: local * (group - 1),
    "prefix": lambda local, group: local * (group - 1),
    "all_to_all": lambda local, group: local - local // group,
    "permute": lambda local, group: local,
}


# The collective that a move is priced as: a permute between any devices is an exchange, halos go to the next device.
PRICED_AS = {"prefix": "all_gather", "permute": "exchange", "fetch": "exchange", "update_halo": "permute"}


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
        return merged_axes(self.source.mesh, self.pieces)

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
        return tuple(Blocks(dim) for dim in self.there.dims)

    @cached_property
    def _meeting(self) -> Meeting:
        return meeting(self.source, self.result, self.shape)

    @cached_property
    def received(self) -> int:
        """Bytes that the busiest device receives."""
        if self.name in ("local", "all_slice"):
            return 0
        if self.is_even:
            return self._received_evenly() * self.itemsize
        return self._meeting.received * self.itemsize

    @cached_property
    def is_even(self) -> bool:
        """Whether all shards are equal blocks, before and after, on one mesh."""
        same = self.result.mesh == self.source.mesh
        return same and is_even(self.source, self.shape) and is_even(self.result, self.shape)

    def _received_evenly(self) -> int:
        """Elements, where all shards are equal blocks."""
        local, group = self.source.local_size(self.shape), self.source.mesh.axis_size(self.pieces)
        if self.name in EVEN:
            return EVEN[self.name](local, group)
        change = change_between(self.source, self.result)
        if not change.possible:
            return self._meeting.received
        return change.lacking(self.result.local_size(self.shape))

    @cached_property
    def sent(self) -> int:
        """Bytes that the busiest device sends, if those who hold the same share the work evenly."""
        if self.name == "update_halo" or not self.received:
            return self.received
        if self.name in ("all_gather", "prefix", "all_to_all", "permute") and self.is_even:
            return self.received
        return self._meeting.sent * self.itemsize

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
        # Where shards are even no device sends more than the busiest receives.
        moved = self.received if self.is_even else max(self.received, self.sent)
        priced_as = PRICED_AS.get(self.name, self.name)
        if priced_as == "exchange" and (self.name == "fetch" or not self.is_even):
            return mesh.fabric(self.pieces).exchanged(moved, self._meeting_of().distance)
        return mesh.fabric(self.pieces).seconds(priced_as, moved)

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
        base = coords_of(own if own is not None else place % self.source.mesh.size, here.full_shape)
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
        owners = np.where(rows == OUTSIDE, OUTSIDE, held.owners(rows))
        if mine is not None:  # what its own halo has need not come from elsewhere
            low, high = (int(bound) for bound in held.bounds(mine))
            near = (rows >= max(low - held.low, 0)) & (rows < min(high + held.high, held.size)) & (rows != OUTSIDE)
            owners = np.where(near, mine, owners)
        for owner, place, row, count, step in runs(rows, owners):
            local = row - held.bounds(owner)[0] + held.low
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
        coords = coords_of(place, shape)
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
                found.append(place_of(_with_numbers(there, at, numbers), shape))
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
            yield coords_of(holder[self.there.shard_numbers(place)], sizes), coords_of(at, sizes)


@dataclass(frozen=True)
class Regroup(Step):
    """The same elements on the same devices, seen as a tensor of another shape: every device reshapes its shard.

    A dim of equal shards becomes several, each with some of its axes, or several become one again. In between, axes are
    gathered and scattered in any order, slow links when there is least to carry.
    """

    result_shape: Shape = ()
    received: int = 0
    sent: int = 0
    message: int = 0
    time: float = 0.0

    @property
    def lower_bound(self) -> int:
        """Nothing moves."""
        return 0


def _between(here: Mesh, there: Mesh, moved: int) -> float:
    """Seconds of an exchange between meshes: as long as the slower of the two would take along all its axes."""
    links = [link for mesh in (here, there) for link in mesh.links.values()]
    least = max(link.latency + link.hop for link in links) + moved / min(link.bandwidth for link in links)
    return max(least, *(mesh.fabric(mesh.axis_names).seconds("exchange", moved) for mesh in (here, there)))


def merged_axes(mesh: Mesh, pieces: tuple[str, ...]) -> tuple[str, ...]:
    """Pieces of axes with neighbouring pieces of one axis as one."""
    if all(piece in mesh.sizes for piece in pieces):
        return pieces
    return Sharding(mesh, P(pieces)).dims[0]


def is_even(sharding: Sharding, shape: Shape) -> bool:
    """Whether all shards of a tensor are equal blocks."""
    if sharding.offsets or sharding.halo:
        return False
    size = sharding.mesh.axis_size
    return not any(n % size(axes) for n, axes in zip(shape, sharding.dims, strict=True) if axes)


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


def coords_of(place: int, shape: Sequence[int]) -> Shape:
    coords = []
    for n in reversed(shape):
        place, at = divmod(place, n)
        coords.append(at)
    return tuple(reversed(coords))


def place_of(coords: Sequence[int], shape: Sequence[int]) -> int:
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
    return place_of(_with_numbers(layout, base, numbers), layout.full_shape)
