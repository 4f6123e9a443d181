"""`Fabric`: the links that a group of devices communicates over, and the seconds that a collective takes on them.

The only cost model. Every collective is one or more algorithms, each with seconds to start and seconds for each byte that the
busiest device receives; the quickest for that many bytes counts. With p devices, b bytes per second and h seconds a hop:

- A ring, line or torus uses all its links at once, in both directions: a device receives 2·b along every ring, b along a
  line (it has ends) and along two devices. An all-to-all is bound by its busiest link: on a ring each has p/8 of what a
  device holds.
- A switch gives every device b. Libraries run large collectives as rings (p - 1 hops, all of b), small ones as trees (log2 p
  hops, half of b: messages carry flags beside data). A small all_reduce is log2 p exchanges of everything, a small
  all-to-all log2 p exchanges of half of it.
- A full mesh has p - 1 links a device.
- Several levels run as pipelined rings: each byte that enters a node does so once, by any of its members, so the pace is the
  least of what a device receives inside and members × what it receives outside.
- A switch that reduces in the network takes every device's n bytes and hands out n, and n/p more for its own part, at 4/5 of
  the pace of rings: NVLink SHARP attains 309 of 370 GB/s on 8 H100, 543 of 695 on 8 B300 (NVIDIA/nccl#2140), and on up to 4
  H100 no more than rings (NVIDIA/nccl#1455).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from shardwright.errors import MeshError
from shardwright.hardware.links import Link

IN_NETWORK = 0.8  # of the pace of rings
Line = tuple[float, float]  # of an algorithm: seconds to start, seconds a received byte


class _Level(NamedTuple):
    """Links of one speed: a switch or full mesh of some devices, or a grid with a size for each axis."""

    link: Link
    sizes: tuple[float, ...]
    kinds: tuple[str, ...]

    @property
    def size(self) -> float:
        return math.prod(self.sizes)

    @property
    def is_grid(self) -> bool:
        return self.link.kind in ("ring", "line")

    @property
    def paces(self) -> list[float]:
        """Bytes per second that a device receives along each axis."""
        link, n = self.link, self.size
        if self.is_grid:
            return [link.bandwidth * _ways(*axis) for axis in zip(self.kinds, self.sizes, strict=True)]
        return [link.bandwidth * (n - 1 if link.kind == "full" else 1)]

    @property
    def pace(self) -> float:
        """The same along all axes at once."""
        return len(self.paces) * min(self.paces)

    @property
    def hops(self) -> float:
        """Messages that follow one another until all devices know of all others, at least."""
        if not self.is_grid:
            return math.log2(self.size)
        axes = zip(self.kinds, self.sizes, strict=True)
        return float(sum(n // 2 if _ways(kind, n) == 2 else math.ceil(n) - 1 for kind, n in axes))

    def exchanged(self) -> float:
        """Seconds for each byte that a device sends to others evenly: the load of the busiest link."""
        link, n = self.link, self.size
        if not self.is_grid:
            return (n - 1) / n / self.paces[0]
        return max(_load(*axis) for axis in zip(self.kinds, self.sizes, strict=True)) / link.bandwidth


def _ways(kind: str, size: float) -> int:
    """Links along an axis that a device receives from: two devices have one between them, the ends of a line too."""
    return 2 if kind == "ring" and size > 2 else 1


def _load(kind: str, size: float) -> float:
    """What the busiest link along an axis carries, if every device sends one byte, an equal part to each device."""
    if _ways(kind, size) == 2:
        return size * size // 4 / (2 * size) if size % 1 == 0 else size / 8
    half = size // 2
    return half * (size - half) / size


class Fabric:
    """The links of a group: for each axis that it runs along how many devices, and what connects them.

    >>> ring = Fabric([(4, Link())])
    >>> round(ring.seconds("all_gather", 3_000_000) * 1e6)  # µs: the launch, two hops, 3 MB at 2 × 100 GB/s
    18
    """

    __slots__ = ("_lines", "hops", "launch", "least_pace", "levels", "pieces", "size")

    def __init__(self, pieces: Sequence[tuple[int, Link]]) -> None:
        self.pieces = tuple(pieces)
        self.size: int = math.prod(size for size, _ in pieces)
        self.levels = _levels(self.pieces)
        self.launch = max((level.link.latency for level in self.levels), default=0.0)  # seconds, of any collective
        self.hops = sum(
            level.hops * level.link.hop for level in self.levels
        )  # seconds of any collective, beside its launch
        self.least_pace = _least_pace(
            self.levels
        )  # seconds a received byte that no collective over some of the links beats
        self._lines: dict[str, tuple[Line, ...]] = {}

    def seconds(self, collective: str, received: float) -> float:
        """Seconds until the busiest device has received its bytes; the quickest algorithm counts."""
        if not received or not self.levels:
            return 0.0
        lines = self._lines.get(collective)
        if lines is None:
            lines = self._lines[collective] = self.lines(collective)
        if len(lines) == 1:
            return lines[0][0] + lines[0][1] * received
        return min([start + pace * received for start, pace in lines])

    def exchanged(self, received: float, distance: int | None = None) -> float:
        """Seconds of an exchange until the busiest device has received its bytes.

        Without a `distance` every device sends to all others alike. With it messages go at most so many devices along the
        group: each link of a ring or line carries what so many devices receive, and there are so many hops. The less of both
        counts, and no less than a permute.
        """
        even = self.seconds("exchange", received)
        if not distance or not self._has_neighbours:
            return even
        start, pace = self._permute()[0]
        slowest = max([(distance if level.is_grid else 1) / level.link.bandwidth for level in self.levels], default=0.0)
        hop = max(level.link.hop for level in self.levels)
        return min(even, start + (distance - 1) * hop + max(slowest, pace) * received) if received else 0.0

    @property
    def _has_neighbours(self) -> bool:
        """Whether devices that follow one another are next to each other: not along a grid of several axes."""
        grids = [level for level in self.levels if level.is_grid]
        return not grids or (len(self.levels) == 1 and len(grids[0].sizes) == 1)

    def lines(self, collective: str) -> tuple[Line, ...]:
        """The algorithms of a collective, each with seconds to start and seconds a received byte."""
        if collective not in _MAKERS:
            raise MeshError(f"The collective {collective!r} is unknown. Use one of {', '.join(_MAKERS)}.")
        if not self.levels:
            return ((0.0, 0.0),)
        return _MAKERS[collective](self)

    def _pace(self) -> float:
        """Bytes per second that a device receives from all others, over all levels at once."""
        pace, members = math.inf, 1.0
        for level in self.levels:
            pace = min(pace, members * level.pace)
            members *= level.size
        if all(level.is_grid for level in self.levels):  # a torus whose axes differ in speed
            every = [one for level in self.levels for one in level.paces]
            pace = max(pace, len(every) * min(every))
        return pace

    def _ring(self) -> float:
        """Seconds of hops around a ring through all levels."""
        total, outside = 0.0, 1.0
        for level in reversed(self.levels):
            around = (level.size - 1) * outside if level.link.kind == "switch" else level.hops
            total += around * level.link.hop
            outside *= level.size if level.link.kind == "switch" else 1.0
        return total

    @property
    def _has_trees(self) -> bool:
        return any(level.link.kind == "switch" for level in self.levels)

    def _doubling(self) -> float:
        """Seconds a byte of exchanging everything with one partner after the other, log2 p of them."""
        return sum(math.log2(level.size) / level.link.bandwidth for level in self.levels)

    def _gather(self, rounds: int = 1) -> tuple[Line, ...]:
        ring = self.launch + rounds * self._ring(), 1 / self._pace()
        if not self._has_trees:
            return (ring,)
        return ring, (self.launch + rounds * self.hops, 2 / self._pace())

    def _all_reduce(self) -> tuple[Line, ...]:
        found, share = self._gather(2), self.size / (self.size - 1) / 2  # of n bytes a device receives 2 (p - 1)/p
        if all(not level.is_grid for level in self.levels):
            found += ((self.launch + self.hops, self._doubling() * share),)
        if len(self.levels) == 1 and self.levels[0].link.reduces_in_network:
            found += ((self.launch + self.hops, (1 + 1 / self.size) * share / (IN_NETWORK * self.levels[0].pace)),)
        return found

    def _all_to_all(self) -> tuple[Line, ...]:
        busiest, whole = max(level.exchanged() for level in self.levels), self.size / (self.size - 1)
        direct = self.launch + self._ring(), busiest * whole  # a partner after the other
        if not self._has_trees:
            return (direct,)
        return direct, (self.launch + self.hops, busiest * whole * max(2.0, math.log2(self.size) / 2))

    def _permute(self) -> tuple[Line, ...]:
        hop = max(level.link.hop for level in self.levels)
        return ((self.launch + hop, 1 / min(level.link.bandwidth for level in self.levels)),)

    def _broadcast(self) -> tuple[Line, ...]:
        ring = self.launch + self._ring(), 1 / self._pace()
        if any(level.is_grid for level in self.levels):
            return (ring,)
        return ring, (self.launch + self.hops, self._doubling())


_MAKERS = {
    "all_gather": Fabric._gather,
    "reduce_scatter": Fabric._gather,
    "all_reduce": Fabric._all_reduce,
    "all_to_all": Fabric._all_to_all,
    "exchange": Fabric._all_to_all,
    "permute": Fabric._permute,  # to the next device
    "broadcast": Fabric._broadcast,
}
COLLECTIVES = tuple(_MAKERS)


def _least_pace(levels: Sequence[_Level]) -> float:
    if not levels:
        return 0.0
    in_network = any(level.link.reduces_in_network for level in levels)
    paces = [level.paces for level in levels]
    return (0.5 if in_network else 1.0) / sum(len(some) * max(some) for some in paces)


def _levels(pieces: Sequence[tuple[int, Link]]) -> tuple[_Level, ...]:
    """Pieces that share a switch, or make a grid, together; the fastest first, whatever the order of pieces."""
    joined: dict[object, _Level] = {}
    for size, link in pieces:
        for n, one in _axes(size, link):
            grid = one.kind in ("ring", "line")
            key = (one.bandwidth, one.latency, one.hop) if grid else one
            known = joined.get(key)
            if known is None:
                joined[key] = _Level(one, (n,), (one.kind,))
            elif grid:
                joined[key] = _Level(known.link, (*known.sizes, n), (*known.kinds, one.kind))
            else:
                joined[key] = _Level(known.link, (known.size * n,), (one.kind,))
    return tuple(sorted(joined.values(), key=lambda level: (-min(level.paces), level.link.hop, level.size)))


def _axes(size: int, link: Link) -> list[tuple[float, Link]]:
    """A torus of so many devices as two rings of about as many devices; other links as they are."""
    if size == 1:
        return []
    if link.kind != "torus":
        return [(size, link)]
    ring = Link("ring", link.bandwidth, link.latency, link.hop, link.efficiency)
    return [(size, ring)] if size < 4 else [(math.sqrt(size), ring)] * 2
