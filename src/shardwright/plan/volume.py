"""How much moves: what the busiest device receives and sends, along which axes, and the least that any way needs.

All of it is arithmetic per dim. A device wants a box, the product of what it wants along each dim, and holds a box; it
receives the difference. Dims that share no mesh axis are independent, so nothing is listed device by device: tables run over
the pieces of axes that split a dim, and where those are long only over places next to a change of block sizes.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.caches import MIB, kept
from shardwright.plan.route import change_between
from shardwright.plan.windows import OUTSIDE, Blocks, Picked, Spaced, Wanted
from shardwright.sharding import DimLayout, Layout, Sharding, layout_of

Shape = tuple[int, ...]
Ints = NDArray[np.int64]
MOST_PLACES = 8192  # looked at one by one; beyond that only places next to a change of sizes are
MOST_MORE = 32768  # of these with all along lanes that only the target is split by; rows whose shards are all looked at
LARGEST = 2.0**62  # what a machine's integers count


class _Side(NamedTuple):
    """What devices want of some dims, what they hold, and what they want and hold, over a grid of them."""

    wants: Ints
    held: Ints
    kept: Ints
    coords: list[Ints]  # of the grid, by lane


class Meeting:
    """What devices want of a tensor and what they hold, over common pieces of axes.

    `wanted` has an entry for each dim. Meshes that differ, and pieces of axes without a common cut, are looked at device by
    device instead.
    """

    def __init__(self, source: Layout, target: Layout, wanted: Sequence[Wanted]) -> None:
        self.wanted = wanted
        same = source.mesh == target.mesh
        axes = (*source.sharding.axes, *target.sharding.axes)
        self.aligned = same and source.mesh.share_a_cut(axes)
        if self.aligned:
            lanes = source.mesh.lanes(axes)
            source = layout_of(source.sharding, source.shape, lanes)
            target = layout_of(target.sharding, target.shape, lanes)
        self.source, self.target = source, target
        stay = [self._stays(at) for at in range(len(wanted))]
        self.split = [at for at, stays in enumerate(stay) if not stays]  # the dims in which something may move
        self.beside = math.prod(dim.block for dim, stays in zip(source.dims, stay, strict=True) if stays)
        self._lanes_crossed: dict[int, list[int]] = {}

    def _stays(self, at: int) -> bool:
        """Whether every device wants just the rows of a dim that it holds. The dim is then a factor: the busiest device is
        one with the largest block, whatever its place along other axes."""
        wanted, here, there = self.wanted[at], self.source.dims[at], self.target.dims[at]
        if not isinstance(wanted, Blocks):
            return False
        return here.parts == there.parts == 1 or (self.aligned and here == there and here.local == here.block)

    @cached_property
    def _groups(self) -> list[list[int]]:
        """The split dims, those together that share lanes: what a device has in one group says nothing of the others."""
        if not self.aligned:
            return [self.split]
        groups: list[tuple[list[int], set[int]]] = []
        for at in self.split:
            lanes = {*self.source.dims[at].lanes, *self.target.dims[at].lanes}
            apart = [group for group in groups if not group[1] & lanes]
            joined = [group for group in groups if group[1] & lanes]
            dims = [dim for group in joined for dim in group[0]]
            groups = [*apart, ([*dims, at], lanes.union(*[group[1] for group in joined]))]
        return [dims for dims, _ in groups]

    def _numbers(self, group: Sequence[int]) -> tuple[list[Ints], list[Ints], Any, list[Ints]]:
        """For each dim of a group the numbers of the source's and the target's shards over a grid of devices, who holds
        nothing, and the grid."""
        if not self.aligned:
            return *self._one_by_one(), []
        layouts = self.source, self.target
        coords = self._coords({lane for layout in layouts for at in group for lane in layout.dims[at].lanes})
        here, there = ([_number(layout.dims[at], coords, layout.full_shape) for at in group] for layout in layouts)
        return here, there, None, coords

    def _one_by_one(self) -> tuple[list[Ints], list[Ints], Any]:
        there = list(self.target.shard_places.T[self.split])
        if self.source.mesh.device_ids == self.target.mesh.device_ids:
            return list(self.source.shard_places.T[self.split]), there, None
        places = {device: place for place, device in enumerate(self.source.mesh.device_ids)}
        at = np.array([places.get(device, -1) for device in self.target.mesh.device_ids])
        return list(self.source.shard_places[np.maximum(at, 0)].T[self.split]), there, at < 0

    def _coords(self, used: set[int]) -> list[Ints]:
        """Coordinates along the lanes in use, shaped to broadcast: all of them, or those next to a change of sizes.

        Along lanes that split only the target a shard of the source may be wanted anywhere: all of them, if these are not
        too many.
        """
        shape = self.source.full_shape
        places: dict[int, Sequence[int]] = {lane: range(shape[lane]) for lane in used}
        if self._are_many(used):
            places = {lane: sorted(self._turns(lane, shape[lane])) for lane in used}
            split = {lane for dim in self.source.dims for lane in dim.lanes}
            looked = math.prod(map(len, places.values()))
            for lane in sorted(used - split):
                looked = looked // len(places[lane]) * shape[lane]
                if looked <= MOST_MORE:
                    places[lane] = range(shape[lane])
        ones = [1] * len(shape)
        return [
            np.array(places.get(lane, [0]), np.int64).reshape([*ones[:lane], -1, *ones[lane + 1 :]])
            for lane in range(len(shape))
        ]

    def _are_many(self, lanes: Iterable[int]) -> bool:
        """Whether only a few places along lanes are looked at: there are many, and arithmetic tells which."""
        return self._is_regular and math.prod(self.source.full_shape[lane] for lane in lanes) > MOST_PLACES

    @cached_property
    def _is_regular(self) -> bool:
        listed = any(dim.is_listed for layout in (self.source, self.target) for dim in layout.dims)
        return not listed and all(isinstance(w, Blocks) for w in self.wanted)

    def _turns(self, lane: int, n: int) -> set[int]:
        """Coordinates along a lane of shards at both ends, and around the first that is short or empty."""
        chosen = {0, 1, n - 2, n - 1}
        for layout in (self.source, self.target):
            for dim in layout.dims:
                if lane not in dim.lanes or not dim.block:
                    continue
                inner = math.prod(layout.full_shape[i] for i in dim.lanes[dim.lanes.index(lane) + 1 :])
                chosen.update((dim.turns() // inner % n).tolist())
        return {at for at in chosen if 0 <= at < n}

    @cached_property
    def received(self) -> int:
        """Elements that the busiest device receives: what it wants and does not hold."""
        wants, kept = _pairs([(side.wants, side.kept) for side in self._sides])
        return int(np.max(wants - kept, initial=0)) * self.beside

    @cached_property
    def _sides(self) -> list[_Side]:
        """For each group of dims what devices want and hold of them."""
        found = []
        for group in self._groups:
            here, there, strangers, coords = self._numbers(group)
            wanted, own = [self.wanted[dim] for dim in group], [Blocks(self.source.dims[dim]) for dim in group]
            rows = [w.within(j, o.low(i), o.high(i)) for w, o, i, j in zip(wanted, own, here, there, strict=True)]
            kept = _product(rows) if strangers is None else np.where(strangers, 0, _product(rows))
            wants = _product([w.wants(j) for w, j in zip(wanted, there, strict=True)])
            held = _product([o.starts(i + 1) - o.starts(i) for o, i in zip(own, here, strict=True)])
            found.append(_Side(wants, held, kept, coords))
        return found

    @cached_property
    def sent(self) -> int:
        """Elements that the busiest device sends, if those who hold the same share the work evenly.

        The copies of the target together need every element of a shard as often as there are copies; what its holders keep
        for themselves is not sent.
        """
        copies = self.target.mesh.size // math.prod(dim.parts for dim in self.target.dims)
        holders = self.source.mesh.size // math.prod(dim.parts for dim in self.source.dims)
        looked, sides = 1 if self.aligned else holders, []
        for side in self._sides:
            if self.aligned:
                kept, devices = self._kept_by_holders(side)
                looked *= devices
                sides.append((side.held, kept))
            else:
                sides.append((side.held, self._kept_by_shard(side.kept)))
        held, kept = _pairs(sides)
        if float(held.max(initial=0)) * looked * max(copies, holders) > LARGEST:
            held, kept = held.astype(object), kept.astype(object)
        # held * copies / holders - kept / looked, over a common denominator
        most = int(np.max(held * (copies * looked) - kept * holders, initial=0)) * self.beside
        return -(-most // (holders * looked))

    def _kept_by_holders(self, side: _Side) -> tuple[Ints, int]:
        """What the holders of a shard keep of it, all together, and how many they are; between places that are looked at it
        changes evenly. Both count twice for each lane along which not all are."""
        split = {lane for dim in self.source.dims for lane in dim.lanes}
        kept, devices = side.kept, 1
        for lane, n in enumerate(kept.shape):
            if lane in split or n == 1:
                continue
            if n == self.source.full_shape[lane]:
                kept, devices = kept.sum(axis=lane, keepdims=True), devices * n
            else:
                apart = np.diff(side.coords[lane].ravel(), prepend=-1, append=self.source.full_shape[lane])
                weights = (apart[1:] + apart[:-1]).reshape(side.coords[lane].shape)
                large = float(kept.max(initial=0)) * float(weights.sum()) > LARGEST
                kept = ((kept.astype(object) if large else kept) * weights).sum(axis=lane, keepdims=True)
                devices *= 2 * self.source.full_shape[lane]
        return kept, devices

    def _kept_by_shard(self, kept: Ints) -> Any:
        """What the holders of a shard keep of it, all together, for each device of the target's mesh."""
        places = {device: place for place, device in enumerate(self.source.mesh.device_ids)}
        shard = shard_of(self.source)[[places.get(device, 0) for device in self.target.mesh.device_ids]]
        total = np.zeros(int(shard.max(initial=0)) + 1, kept.dtype)
        np.add.at(total, shard, kept)
        return total[shard]

    @cached_property
    def crossed(self) -> tuple[str, ...]:
        """The axes along which some device hears from another."""
        if not self.aligned:
            every = [axis for axes in self.source.sharding.dims for axis in axes]
            return tuple(every) or self.source.mesh.axis_names
        if not all(w.any_rows for w in self.wanted):
            return ()
        lanes = [lane for at in self.split for lane in self._crossed(at)]
        return tuple(self.source.lanes[lane] for lane in lanes)

    @cached_property
    def distance(self) -> int | None:
        """How far apart shards of one dim are, at most, that exchange rows: around the end, if that is nearer.

        None where more than one dim is exchanged, or its axes change: then nearly every device hears from every other.
        """
        if not self.aligned or not all(w.any_rows for w in self.wanted):
            return None
        crossed = [at for at in self.split if self._crossed(at)]
        if len(crossed) != 1 or any(
            here.lanes != there.lanes for here, there in zip(self.source.dims, self.target.dims, strict=True)
        ):
            return None
        dim, wanted = self.source.dims[crossed[0]], self.wanted[crossed[0]]
        shard, low, high = self._block_ends(crossed[0], wanted) if isinstance(wanted, Blocks) else _stretches(wanted)
        before, after = dim.owners(low) - shard, dim.owners(high) - shard
        if self._are_many(dim.lanes) and dim.size > MOST_MORE:  # others are as far as these
            before = np.concatenate([before, np.minimum(before[:-1], before[1:])])
            after = np.concatenate([after, np.maximum(after[:-1], after[1:])])
        apart = np.maximum(_around(before, dim.parts), _around(after, dim.parts))
        half = dim.parts // 2
        opposite = ((before <= half) & (half <= after)) | ((before <= -half) & (-half <= after))
        return int(np.where(opposite, half, apart).max(initial=0))

    def _block_ends(self, at: int, wanted: Blocks) -> tuple[Ints, Ints, Ints]:
        """The target's shards of a dim that want rows, all of them or those next to a change of sizes, and their first and
        last rows."""
        dim = self.target.dims[at]
        if self._are_many(dim.lanes) and dim.size <= MOST_MORE and dim.local == dim.block:
            some = np.unique(dim.owners(np.arange(dim.size)))
        else:
            number = _number(dim, self._coords(set(dim.lanes)), self.target.full_shape)
            some = np.unique(number) if number.size < dim.parts else np.arange(dim.parts)
            some = some[wanted.wants(some) > 0]
        return some, wanted.low(some), wanted.high(some) - 1

    def _crossed(self, at: int) -> list[int]:
        """The lanes of one dim along which a wanted row lies with another device."""
        if at not in self._lanes_crossed:
            self._lanes_crossed[at] = self._find_crossed(at)
        return self._lanes_crossed[at]

    def _find_crossed(self, at: int) -> list[int]:
        dim, other, wanted = self.source.dims[at], self.target.dims[at], self.wanted[at]
        if isinstance(wanted, Blocks):
            some, low, high = self._block_ends(at, wanted)
            shard, rows = np.concatenate([some, some]), np.concatenate([low, high])
        elif isinstance(wanted, Spaced):
            stretches = wanted.ends()
            shard = np.concatenate([some for some, _, _ in stretches] * 2)
            rows = np.concatenate([one for _, one, _ in stretches] + [last for _, _, last in stretches])
        else:
            shard = np.repeat(np.arange(wanted.parts), np.diff(wanted.starts))[wanted.flat != OUTSIDE]
            rows = wanted.flat[wanted.flat != OUTSIDE]
        owner = dim.owners(rows)
        result, inner = [], dim.parts
        for lane in dim.lanes:
            n = self.source.full_shape[lane]
            inner //= n
            if n == 1:
                continue
            if lane not in other.lanes:
                result.append(lane)  # its devices want the same rows, which only some of them hold
                continue
            behind = math.prod(self.target.full_shape[i] for i in other.lanes[other.lanes.index(lane) + 1 :])
            mine = (shard // behind) % n
            if bool(((owner // inner) % n != mine).any()) or self._spans(owner, inner, wanted):
                result.append(lane)
        return result

    def _spans(self, owner: Ints, inner: int, wanted: Wanted) -> bool:
        """Whether some shard's block reaches over all of a lane and into the next round: its ends alone don't tell."""
        if not isinstance(wanted, Blocks | Spaced):
            return False
        half = len(owner) // 2
        return bool((owner[half:] // inner != owner[:half] // inner).any())


def _stretches(wanted: Picked) -> tuple[Ints, Ints, Ints]:
    """For shards that want rows of a dim their numbers, and the first and last row of each stretch that they want."""
    if isinstance(wanted, Spaced):
        found = wanted.ends()
        shard, one, last = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return shard, np.minimum(one, last), np.maximum(one, last)
    inside = wanted.flat != OUTSIDE
    shard, rows = np.repeat(np.arange(wanted.parts), np.diff(wanted.starts))[inside], wanted.flat[inside]
    return shard, rows, rows


def _around(apart: Ints, parts: int) -> Ints:
    """Steps from one shard to another, in the direction that has fewer."""
    apart = np.abs(apart)
    return np.minimum(apart, parts - apart)


def _number(dim: DimLayout, coords: Sequence[Ints], shape: Shape) -> Ints:
    number = np.zeros((1,) * len(coords), np.int64)
    for lane in dim.lanes:
        number = number * shape[lane] + coords[lane]
    return number


def _product(sides: Sequence[Ints]) -> Ints:
    """The product of arrays that broadcast; in Python's integers where those of a machine would overflow."""
    large = math.prod(float(side.max(initial=0)) for side in sides) > LARGEST
    result: Ints = np.ones((), object if large else np.int64)
    for side in sides:
        result = result * (side.astype(object) if large else side)
    return np.asarray(result)


def _pairs(sides: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Sizes of boxes and what is kept of them, from those of groups of dims; of equal sizes only where least is kept."""
    if len(sides) == 1:
        return sides[0]
    sides = [_least_of_each(*side) for side in sides]
    grid = np.ix_(*[np.arange(len(sizes)) for sizes, _ in sides])
    sizes, kept = ([side[at][i] for side, i in zip(sides, grid, strict=True)] for at in (0, 1))
    return _product(sizes), _product(kept)


def _least_of_each(sizes: Ints, kept: Ints) -> tuple[Ints, Ints]:
    """The different sizes, and the least that is kept of each."""
    sizes, kept = (some.ravel() for some in np.broadcast_arrays(sizes, kept))
    order = np.argsort(sizes, kind="stable")
    found, first = np.unique(sizes[order], return_index=True)
    return found, np.minimum.reduceat(kept[order], first) if len(found) else found


@kept(limit=8 * MIB, size=lambda meeting: meeting.source.footprint + meeting.target.footprint, least=8)
def meeting(source: Sharding, target: Sharding, shape: Shape) -> Meeting:
    """What a change of sharding asks for: blocks of the target, halos included."""
    here, there = layout_of(source, shape), layout_of(target, shape)
    return Meeting(here, there, [Blocks(dim) for dim in there.dims])


def shard_of(layout: Layout) -> Ints:
    """The number of the shard that each device holds."""
    shard = np.zeros(layout.mesh.size, np.int64)
    for dim, places in zip(layout.dims, layout.shard_places.T, strict=True):
        shard = shard * dim.parts + places
    return shard


def lower_bound(source: Sharding, target: Sharding, shape: Shape, itemsize: int) -> int:
    """Bytes that some device must receive, whatever the algorithm.

    A device receives what it lacks of its new shard. A partial value needs more: every element has p summands, so p - 1
    messages combine them and one more goes to each further device that wants the result; spread over all devices, that is
    the least the busiest receives.
    """
    here, there = source.for_shape(shape), target.for_shape(shape)
    change = change_between(here, there) if here.mesh == there.mesh else None
    aligned = change is not None and change.possible
    kept = here.mesh.axis_size(change.kept) if aligned and change is not None and change.kept else 1
    made = there.mesh.axis_size(there.partial) if there.partial else 1
    lacking = meeting(here, there, shape).received if made == kept else 0  # others may hold what adds nothing
    pieces = change.reduced if aligned and change is not None else here.partial
    summands = here.mesh.axis_size(tuple(pieces)) if pieces else 1
    if summands > 1:
        parts = there.mesh.axis_size(tuple(axis for axes in there.dims for axis in axes))
        copies = max(there.mesh.size // parts // made, 1)
        messages = math.prod(shape) * kept * (summands - 1 + copies - 1)
        devices = len({*here.mesh.device_ids, *there.mesh.device_ids}) if here.mesh != there.mesh else there.mesh.size
        lacking = max(lacking, -(-messages // devices))
    return lacking * itemsize
