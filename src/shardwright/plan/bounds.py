"""A time that a chain between uneven shards takes at least, found without building its steps.

A slice cuts every shard by itself and a gather joins neighbours, so where shards begin after any number of them is a function
of their number. A few devices are asked what they receive; the busiest of all receives no less.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

from shardwright.mesh import Mesh
from shardwright.plan.route import Hop, State
from shardwright.plan.steps import PRICED_AS
from shardwright.sharding import Nested, Sharding, nested

SOME = 8  # parts of a dim, at whose ends devices are asked


def least_time(
    start: Sharding, was: State, hops: Sequence[Hop], target: Sharding, shape: tuple[int, ...], itemsize: int
) -> float:
    """Seconds that a chain takes at least, from a sharding with pieces `was`, with what is exchanged after it."""
    if start.partial or start.halo:
        return 0.0
    mesh, total = start.mesh, 0.0
    before = _cuts(start, shape)
    for hop in hops:
        group, after = mesh.axis_size(hop.axes), before.copy()
        if hop.name in ("all_gather", "all_to_all"):
            after[hop.other] = before[hop.other].joined(group)
        if hop.name in ("all_slice", "all_to_all"):
            after[hop.dim] = before[hop.dim].sliced(group)
        if hop.name != "all_slice":
            some = _receivers(mesh, hop, group)
            received = max(_lacking(_boxes(mesh, was, before, at), _boxes(mesh, hop.state, after, at)) for at in some)
            total += mesh.fabric(hop.axes).seconds(PRICED_AS.get(hop.name, hop.name), received * itemsize)
        was, before = hop.state, after
    total += _exchanged(mesh, was, before, target, shape, itemsize)
    return total * (1 - 1e-9)  # rounding must not make it more than the truth


def _exchanged(
    mesh: Mesh, state: State, before: Sequence[Nested], target: Sharding, shape: tuple[int, ...], itemsize: int
) -> float:
    """Seconds that an exchange takes at least, from shards that begin anywhere to those of the target, along the same axes.

    The axes that it crosses, and how far, are those of some devices: an exchange along more axes takes no less, but for
    the part of the group that a device is itself, which is given away.
    """
    after = _cuts(target, shape)
    lanes = {
        piece: lane for lane in target.axes for piece in mesh.cut((lane,), by=[p for pieces in state for p in pieces])
    }
    crossed, apart = set[str](), dict[int, int]()
    boxes = [(1, 1)]  # of some devices: elements that they want, and those of them that they have
    for dim, pieces in enumerate(state):
        rows, parts = set[tuple[int, int]](), mesh.axis_size(pieces)
        for own in _some_shards(parts):
            (low, high), (first, last) = ((cuts.start(own), cuts.start(own + 1)) for cuts in (before[dim], after[dim]))
            rows.add((last - first, max(min(high, last) - max(low, first), 0)))
            if first == last or (low <= first and last <= high):
                continue
            owners = [bisect_right(range(parts), row, key=before[dim].start) - 1 for row in (first, last - 1)]
            away = [abs(owner - own) for owner in owners]
            apart[dim] = max(apart.get(dim, 0), *[min(n, parts - n) for n in away])
            for owner in owners:
                there, here = (_digits(mesh, pieces, shard) for shard in (owner, own))
                crossed |= {lanes[piece] for (piece, at), (_, was) in zip(there, here, strict=True) if at != was}
        boxes = _worst((all_of * n, held * some) for all_of, held in boxes for n, some in rows)
    lacks = max(wants - has for wants, has in boxes)
    if not lacks:
        return 0.0
    if not crossed:
        return mesh.least_launch + lacks * itemsize * mesh.fabric(mesh.axis_names).least_pace
    fabric = mesh.fabric(tuple([lane for lane in target.axes if lane in crossed]))
    distance = next(iter(apart.values())) if len(apart) == 1 else None
    return fabric.exchanged(lacks * itemsize * (1 - 1 / fabric.size), distance)


def _worst(boxes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Boxes, as what is wanted and what of it is there, without those that want no more and lack no more; the largest few."""
    found: list[tuple[int, int]] = []
    for wants, has in sorted(boxes, key=lambda box: (-box[0], box[1])):
        if len(found) < SOME and (not found or has < found[-1][1]):
            found.append((wants, has))
    return found


def _cuts(sharding: Sharding, shape: tuple[int, ...]) -> list[Nested]:
    fitted = sharding.for_shape(shape)
    return [nested(fitted.offsets_of(dim), n, fitted.parts(dim)) for dim, n in enumerate(shape)]


def _receivers(mesh: Mesh, hop: Hop, group: int) -> Iterator[dict[str, int]]:
    """Some devices of the first group, as coordinates: for a permute those next to the first along each piece of an axis, else
    both ends and the middle."""
    if hop.name == "permute":
        yield from ({piece: 1} for piece in hop.axes)
        return
    for member in {0, 1, group // 2, group - 1}:
        coords = {}
        for piece in reversed(hop.axes):
            member, coords[piece] = divmod(member, mesh.axis(piece).size)
        yield coords


def _some_shards(parts: int) -> set[int]:
    """Some shards of a dim: the first, the last two, some between."""
    return {max(parts - 2, 0), *[(parts - 1) * part // SOME for part in range(SOME + 1)]}


def _digits(mesh: Mesh, pieces: Sequence[str], shard: int) -> Iterator[tuple[str, int]]:
    """The coordinates of a shard of a dim along the pieces that split it."""
    for piece in reversed(pieces):
        shard, at = divmod(shard, mesh.axis(piece).size)
        yield piece, at


def _number(mesh: Mesh, pieces: Sequence[str], coords: Mapping[str, int]) -> int:
    """The shard of a dim at some coordinates; those that are not given are 0."""
    shard = 0
    for piece in pieces:
        shard = shard * mesh.axis(piece).size + coords.get(piece, 0)
    return shard


def _boxes(mesh: Mesh, state: State, cuts: Sequence[Nested], coords: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Where a device's shard begins and ends along each dim."""
    for pieces, own in zip(state, cuts, strict=True):
        shard = _number(mesh, pieces, coords)
        yield own.start(shard), own.start(shard + 1)


def _lacking(held: Iterable[tuple[int, int]], wanted: Iterable[tuple[int, int]]) -> int:
    """Elements of a box that another does not have."""
    size = common = 1
    for (low, high), (first, last) in zip(held, wanted, strict=True):
        size *= last - first
        common *= max(min(high, last) - max(low, first), 0)
    return size - common
