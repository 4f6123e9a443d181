"""`LocalStep`: a collective on a tensor per device, as messages between places.

In the local view tensors have no common meaning, so boxes are those of each device's own tensor. Reductions are rings, as for
sharded tensors; `reduce` is a chain that ends at the root.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from shardwright.collectives import (
    AllGather,
    AllReduce,
    AllSlice,
    AllToAll,
    Broadcast,
    Collective,
    Gather,
    Permute,
    Reduce,
    ReduceScatter,
    Scatter,
    Shift,
    UpdateHalo,
)
from shardwright.errors import CollectiveError
from shardwright.mesh import Mesh
from shardwright.plan.rings import carrier, group_of, sub_blocks
from shardwright.plan.steps import coords_of, place_of
from shardwright.sharding import Layout

Shape = tuple[int, ...]
Box = tuple[slice, ...]
_Part = tuple[Callable[[int], int], slice, slice]  # who has it, rows of its tensor, and of the receiver's


class LocalShapes(NamedTuple):
    """The shape of every device's tensor: one for all, or one for each place."""

    mesh: Mesh
    shapes: tuple[Shape, ...]

    def at(self, place: int) -> Shape:
        """The shape of the tensor at a place."""
        return self.shapes[place if len(self.shapes) > 1 else 0]

    @property
    def largest(self) -> Shape:
        """The largest size along each dim."""
        return tuple(map(max, zip(*self.shapes, strict=True)))

    @staticmethod
    def of(mesh: Mesh, shapes: Sequence[Shape]) -> "LocalShapes":
        """Shapes of all places; one where all are equal."""
        return LocalShapes(mesh, (shapes[0],) if len(set(shapes)) == 1 else tuple(shapes))


def local_shapes(layout: Layout) -> LocalShapes:
    """The shapes of a sharded tensor's shards."""
    even = all(extent is None for extent in layout.extents)
    count = 1 if even else layout.mesh.size
    return LocalShapes.of(layout.mesh, [layout.at(place).local_shape for place in range(count)])


class LocalMessage(NamedTuple):
    """A box of the sender's tensor, and where it goes in the receiver's."""

    sender: int
    source: Box
    target: Box


@dataclass(frozen=True)
class LocalStep:
    """A collective, bound to a mesh, on tensors of known shapes."""

    collective: Any  # a Collective
    shapes: LocalShapes
    dtype: "np.dtype[Any]"

    def __str__(self) -> str:
        return f"{self.name} over {', '.join(self.axes)}"

    @property
    def name(self) -> str:
        """The name of the collective."""
        name: str = self.collective.name
        return name

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that it runs along."""
        axes: tuple[str, ...] = self.collective.axes
        return axes

    @property
    def mesh(self) -> Mesh:
        """The mesh whose devices hold the tensors."""
        return self.shapes.mesh

    @property
    def result_dtype(self) -> "np.dtype[Any]":
        """The dtype of the results."""
        return getattr(self.collective, "dtype", None) or self.dtype

    @cached_property
    def group(self) -> int:
        """How many devices take part in one group."""
        return self.mesh.axis_size(self.axes)

    @property
    def groups(self) -> str:
        """How many groups of how many devices take part."""
        return f"{self.mesh.size // self.group} × {self.group}"

    def members(self, place: int) -> list[int]:
        """The places of a place's group, in group order."""
        found = self._group_of.get(place)
        return group_of(self.mesh, self.axes, place) if found is None else found

    @property
    def reduces(self) -> bool:
        """Whether it combines tensors."""
        return isinstance(self.collective, AllReduce | ReduceScatter | Reduce)

    def check(self) -> None:
        """Refuse groups whose members differ in size along a dim in which their tensors are joined or combined."""
        c = self.collective
        if isinstance(c, Scatter) and self.group > 1:
            for shape in {self.shapes.at(self.root(members[0])) for members in self._groups}:
                c.bind(self.mesh, shape, self.dtype)
        if isinstance(c, UpdateHalo):
            for dim, axes, low, high in c.dims():
                self._check_halo(dim, axes, low, high)
        if len(self.shapes.shapes) == 1 or not (self.reduces or isinstance(c, AllGather | Gather | AllToAll)):
            return
        joined = c.concat_dim if isinstance(c, AllToAll) else c.dim if isinstance(c, AllGather | Gather) else None
        for members in self._groups:
            self._check_sizes(members, joined)

    def check_ends(self, expected: LocalShapes, dtype: "np.dtype[Any]") -> None:
        """Of the transfer of a send and a recv: refuse a receiver that expects another shape or dtype than was sent."""
        if self.dtype == dtype and self.shapes.shapes == expected.shapes and len(expected.shapes) == 1:
            return
        for place in range(self.mesh.size):
            came = [message.sender for message in self.messages(place)]
            if not came:
                continue
            sent, waited = self.shapes.at(came[0]), expected.at(place)
            if sent != waited or self.dtype != dtype:
                members, sizes = self.members(place), [self.mesh.axis(axis).size for axis in self.axes]
                source, target = (coords_of(members.index(end), sizes) for end in (came[0], place))
                raise CollectiveError(
                    f"recv expects {dtype} of shape {waited}, but source {source} sent {self.dtype} of shape {sent} to "
                    f"{target} over {self.axes}. Both ends must agree."
                )

    def _check_sizes(self, members: Sequence[int], joined: int | None) -> None:
        for dim, sizes in enumerate(zip(*map(self.shapes.at, members), strict=True)):
            if dim != joined and len(set(sizes)) > 1:
                raise CollectiveError(
                    f"{self.name}: the devices of one group hold tensors of different sizes {sorted(set(sizes))} along "
                    f"dim {dim}. They must be equal there: pad the tensors, or use a sharding whose shards are even."
                )

    def _check_halo(self, dim: int, axes: tuple[str, ...], low: int, high: int) -> None:
        """Neighbours along a dim must agree in the others, and have as many rows of their own as a halo takes."""
        if not (low or high):
            return
        for members in _all_groups(self.mesh, axes) if len(self.shapes.shapes) > 1 else [group_of(self.mesh, axes, 0)]:
            self._check_sizes(members, dim)
            for at, member in enumerate(members):
                rows = self.shapes.at(member)[dim] - low - high
                if rows < max(low if at + 1 < len(members) else 0, high if at else 0):
                    raise CollectiveError(
                        f"update_halo: a halo of ({low}, {high}) along dim {dim} is wider than the neighbour's shard, which "
                        f"has {rows} rows of its own. Use fewer shards or a smaller halo."
                    )

    @cached_property
    def _groups(self) -> list[list[int]]:
        """Every group; one where all tensors have one shape."""
        if len(self.shapes.shapes) == 1:
            return [group_of(self.mesh, self.axes, 0)]
        return _all_groups(self.mesh, self.axes)

    @cached_property
    def _group_of(self) -> dict[int, list[int]]:
        return {place: members for members in self._groups for place in members}

    # -- results --------------------------------------------------------------------------------------------------------

    @cached_property
    def results(self) -> LocalShapes:
        """The shapes of the results."""
        if len(self.shapes.shapes) == 1 and not isinstance(self.collective, Scatter):
            return LocalShapes(self.mesh, (self.result_at(0),))
        return LocalShapes.of(self.mesh, [self.result_at(place) for place in range(self.mesh.size)])

    def result_at(self, place: int) -> Shape:
        """The shape of the result at a place."""
        c, members = self.collective, self.members(place)
        shape = self.shapes.at(place)
        if isinstance(c, AllGather | Gather):
            return _resized(shape, c.dim, self._joined_size(members, c.dim))
        if isinstance(c, AllSlice | ReduceScatter):
            return _resized(shape, c.dim, shape[c.dim] // self.group)
        if isinstance(c, AllToAll):
            joined = self._joined_size(members, c.concat_dim)
            if c.split_dim == c.concat_dim:
                return _resized(shape, c.split_dim, joined // self.group)
            return _resized(_resized(shape, c.split_dim, shape[c.split_dim] // self.group), c.concat_dim, joined)
        if isinstance(c, Scatter):
            root = self.shapes.at(self._member(members, c.root))
            return _resized(root, c.dim, root[c.dim] // self.group)
        if isinstance(c, Broadcast):
            return self.shapes.at(self._member(members, c.root))
        source = self._source(place) if isinstance(c, Permute | Shift) else None
        return shape if source is None else self.shapes.at(source)

    def _joined_size(self, members: Sequence[int], dim: int) -> int:
        """The rows of a group's tensors together."""
        if members[0] not in self._joined_sizes:
            self._joined_sizes[members[0]] = sum(self.shapes.at(m)[dim] for m in members)
        return self._joined_sizes[members[0]]

    @cached_property
    def _joined_sizes(self) -> dict[int, int]:
        return {}

    def root(self, place: int) -> int:
        """The place of the root in a place's group."""
        return self._member(self.members(place), self.collective.root)

    def _member(self, members: Sequence[int], coords: Sequence[int]) -> int:
        number = 0
        for at, axis in zip(coords, self.axes, strict=True):
            number = number * self.mesh.axis(axis).size + at
        return members[number]

    def _source(self, place: int) -> int | None:
        """Of a permute or a shift: the place that a place gets its tensor from."""
        c, members = self.collective, self.members(place)
        if isinstance(c, Shift):
            line = group_of(self.mesh, (c.shift_axis,), place)
            at = line.index(place) - int(c.offset)
            if c.rotate:
                return line[at % len(line)]
            return line[at] if 0 <= at < len(line) else None
        number = self._sources.get(members.index(place))
        return None if number is None else members[number]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Of a permute: the numbers of each source and its target in a group."""
        return [(source, target) for target, source in self._sources.items()]

    @cached_property
    def _sources(self) -> dict[int, int]:
        """Of a permute: for the number of each target in its group that of its source."""
        sizes = [self.mesh.axis(axis).size for axis in self.axes]
        return {place_of(target, sizes): place_of(source, sizes) for source, target in self.collective.pairs}

    # -- messages -------------------------------------------------------------------------------------------------------

    def messages(self, place: int) -> list[LocalMessage]:
        """What a device puts together, its own part included; what no message brings is zeros (of a halo: unchanged)."""
        c, members = self.collective, self.members(place)
        makers: dict[type[Collective], Callable[[], Iterator[LocalMessage]]] = {
            AllGather: lambda: self._joined(members, c.dim, place, None),
            Gather: lambda: self._joined(members if self._member(members, c.root) == place else [], c.dim, place, None),
            AllSlice: lambda: self._piece(place, place, c.dim, members.index(place)),
            AllToAll: lambda: self._joined(members, c.concat_dim, place, (c.split_dim, members.index(place))),
            Broadcast: lambda: self._whole(self._member(members, c.root)),
            Scatter: lambda: self._piece(self._member(members, c.root), place, c.dim, members.index(place)),
            Permute: lambda: self._whole(self._source(place)),
            Shift: lambda: self._whole(self._source(place)),
            UpdateHalo: lambda: self._halo(place),
        }
        return list(makers[type(c)]())

    def _whole(self, sender: int | None) -> Iterator[LocalMessage]:
        if sender is not None:
            box = tuple(slice(0, n) for n in self.shapes.at(sender))
            yield LocalMessage(sender, box, box)

    def _piece(self, sender: int, place: int, dim: int, number: int) -> Iterator[LocalMessage]:
        """One of the equal pieces of a dim of the sender's tensor."""
        shape = self.shapes.at(sender)
        box = _piece_box(shape, dim, number, self.group)
        yield LocalMessage(sender, box, tuple(slice(0, part.stop - part.start) for part in box))

    def _joined(
        self, members: Sequence[int], dim: int, place: int, piece: tuple[int, int] | None
    ) -> Iterator[LocalMessage]:
        """The members' tensors, or one piece of each, one after the other along a dim."""
        start = 0
        for member in members:
            shape = self.shapes.at(member)
            box = tuple(slice(0, n) for n in shape) if piece is None else _piece_box(shape, *piece, self.group)
            sizes = [part.stop - part.start for part in box]
            target = tuple(slice(start, start + n) if d == dim else slice(0, n) for d, n in enumerate(sizes))
            start += sizes[dim]
            yield LocalMessage(member, box, target)

    def _halo(self, place: int) -> Iterator[LocalMessage]:
        """Along each split dim the rows of the device before, its own, and those of the device after; corners included."""
        pieces: list[list[_Part]] = []
        split = {dim: (axes, low, high) for dim, axes, low, high in self.collective.dims()}
        shape = self.shapes.at(place)
        for dim, n in enumerate(shape):
            if dim not in split:
                pieces.append([(_same, slice(0, n), slice(0, n))])
                continue
            axes, low, high = split[dim]
            line = group_of(self.mesh, axes, place)
            at = line.index(place)
            found: list[_Part] = [(_same, slice(low, n - high), slice(low, n - high))]
            if at > 0 and low:
                before = self.shapes.at(line[at - 1])[dim]
                found.append((_next(self.mesh, axes, -1), slice(before - high - low, before - high), slice(0, low)))
            if at + 1 < len(line) and high:
                found.append((_next(self.mesh, axes, 1), slice(low, low + high), slice(n - high, n)))
            pieces.append(found)
        for parts in product(*pieces):
            sender = place
            for move, _, _ in parts:
                sender = move(sender)
            yield LocalMessage(sender, tuple(part[1] for part in parts), tuple(part[2] for part in parts))

    # -- figures --------------------------------------------------------------------------------------------------------

    @property
    def carrier(self) -> "np.dtype[Any]":
        """The dtype that travels in a reduction."""
        return carrier(self.collective.op, self.result_dtype)

    def chunks(self, place: int) -> list[Any]:
        """Of a ring: boxes of the tensor for reduce_scatter, ranges of it flattened for all_reduce."""
        shape = self.shapes.at(place)
        if isinstance(self.collective, ReduceScatter):
            return [_piece_box(shape, self.collective.dim, number, self.group) for number in range(self.group)]
        return [slice(a, b) for a, b in sub_blocks(math.prod(shape), self.group)]

    @cached_property
    def received(self) -> int:
        """Bytes that the busiest device receives."""
        if self.group == 1:
            return 0
        places = range(self.mesh.size) if len(self.shapes.shapes) > 1 else self._examples()
        return max(map(self._received, places))

    def _examples(self) -> Sequence[int]:
        """Places among which the busiest is, where all tensors have one shape: a group, or for halos borders and insides."""
        if not isinstance(self.collective, UpdateHalo):
            return self.members(0)
        turns = [sorted({0, n // 2, n - 1}) for n in self.mesh.shape]
        return [place_of(coords, self.mesh.shape) for coords in product(*turns)]

    def _received(self, place: int) -> int:
        if isinstance(self.collective, AllGather | AllToAll):  # the same as by messages, without listing them
            own = math.prod(self.shapes.at(place)) // (self.group if isinstance(self.collective, AllToAll) else 1)
            return (math.prod(self.result_at(place)) - own) * self.dtype.itemsize
        if not self.reduces:
            messages = (m for m in self.messages(place) if m.sender != place)
            return sum(math.prod(b.stop - b.start for b in m.source) for m in messages) * self.dtype.itemsize
        size, itemsize = math.prod(self.shapes.at(place)), self.carrier.itemsize
        at = self.members(place).index(place)
        if isinstance(self.collective, Reduce):
            return size * itemsize
        if isinstance(self.collective, ReduceScatter):
            return (size - size // self.group) * itemsize
        sizes = [b - a for a, b in sub_blocks(size, self.group)]
        return (2 * size - sizes[at - 1] - sizes[at]) * itemsize

    @property
    def lower_bound(self) -> int:
        """Bytes that some device must receive."""
        if not self.reduces or isinstance(self.collective, Reduce) or self.group == 1:
            return self.received
        size = min(math.prod(shape) for shape in self.shapes.shapes) * self.carrier.itemsize
        rounds = 2 if isinstance(self.collective, AllReduce) else 1
        return min(rounds * (size - size // self.group), self.received)

    @cached_property
    def time(self) -> float:
        """Seconds until the busiest device is done."""
        return self.mesh.fabric(self.axes).seconds(_priced_as(self.collective), self.received)


def _priced_as(collective: Collective) -> str:
    """The collective that a local one is priced as: to or from one root, a device sends as much as in the other direction."""
    match collective:
        case AllReduce():
            return "all_reduce"
        case ReduceScatter() | Scatter():
            return "reduce_scatter"
        case AllGather() | Gather():
            return "all_gather"
        case AllToAll():
            return "all_to_all"
        case Broadcast() | Reduce():
            return "broadcast"
        case UpdateHalo():
            return "permute"
        case Shift():
            return "permute" if abs(int(collective.offset)) == 1 else "exchange"
    return "exchange"


@dataclass(frozen=True, eq=False)
class SendRecv(LocalStep):
    """A send and the recv that matches it. Not pure: it is never dropped, and equal ones are not merged."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def _all_groups(mesh: Mesh, axes: tuple[str, ...]) -> list[list[int]]:
    return [[mesh.position(device) for device in group] for group in mesh.groups(axes)]


def _resized(shape: Shape, dim: int, size: int) -> Shape:
    return tuple(size if d == dim else n for d, n in enumerate(shape))


def _piece_box(shape: Shape, dim: int, number: int, count: int) -> Box:
    n = shape[dim] // count
    return tuple(slice(number * n, (number + 1) * n) if d == dim else slice(0, size) for d, size in enumerate(shape))


def _same(place: int) -> int:
    return place


def _next(mesh: Mesh, axes: tuple[str, ...], by: int) -> Callable[[int], int]:
    def moved(place: int) -> int:
        line = group_of(mesh, axes, place)
        return line[line.index(place) + by]

    return moved
