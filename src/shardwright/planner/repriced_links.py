"""`Links`: what a collective takes over the links of a group, for the check of a certificate.

Written from the formulas of docs/hardware.md: it shares no code with `shardwright.hardware.Fabric`, which the search uses, and
reads only how many devices a group has along each of its links, and the figures of these links.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from shardwright.hardware import Link
from shardwright.mesh import Mesh

Line = tuple[float, float]  # of an algorithm: seconds to start, seconds for each byte that the busiest device receives
GRID = ("ring", "line")
IN_NETWORK = 0.8  # the pace of reductions in a switch, of that of rings


class Links:
    """Levels of links, the fastest first: each a switch, a full mesh, or a grid of rings and lines."""

    def __init__(self, pieces: Sequence[tuple[int, Link]]) -> None:
        self.devices = math.prod([size for size, _ in pieces])
        self.levels = sorted(_levels(pieces), key=lambda level: (-min(level.paces), level.hop, level.size))
        self._lines: dict[str, tuple[Line, ...]] = {}

    def seconds(self, collective: str, received: float) -> float:
        """Of a collective in which the busiest device receives so many bytes, by its quickest algorithm."""
        if not received or not self.levels:
            return 0.0
        return min([start + pace * received for start, pace in self.lines(collective)])

    def near(self, received: float, distance: int | None) -> float:
        """Of an exchange between devices that are at most so far apart along one axis; None if they are not known to be."""
        even = self.seconds("exchange", received)
        grid = any(level.is_grid for level in self.levels)
        if not distance or not even or (grid and (len(self.levels) > 1 or len(self.levels[0].axes) > 1)):
            return even
        start, pace = self._next()
        along = max([(distance if level.is_grid else 1) / level.bandwidth for level in self.levels])
        hop = max([level.hop for level in self.levels])
        return min(even, start + (distance - 1) * hop + max(along, pace) * received)

    def lines(self, collective: str) -> tuple[Line, ...]:
        """The algorithms of a collective."""
        found = self._lines.get(collective)
        if found is None:
            found = self._lines[collective] = tuple(self._algorithms(collective)) if self.levels else ((0.0, 0.0),)
        return found

    @property
    def least_pace(self) -> float:
        """Seconds a received byte that no collective over some of the links is below, if it reduces nothing."""
        return 1 / sum([len(level.paces) * max(level.paces) for level in self.levels]) if self.levels else 0.0

    def _algorithms(self, collective: str) -> list[Line]:
        p, levels = self.devices, self.levels
        launch = max([level.latency for level in levels])
        tree = launch + sum([level.steps * level.hop for level in levels])
        switched = any(level.kind == "switch" for level in levels)
        grids = any(level.is_grid for level in levels)
        if collective == "permute":
            return [self._next()]
        if collective in ("all_to_all", "exchange"):
            load = max([level.load for level in levels]) * p / (p - 1)
            found = [(launch + self._around(), load)]
            return [*found, (tree, load * max(2.0, math.log2(p) / 2))] if switched else found
        rounds = 2 if collective == "all_reduce" else 1
        found = [(launch + rounds * self._around(), 1 / self._pace())]
        if collective in ("all_gather", "reduce_scatter", "all_reduce") and switched:
            found.append((launch + rounds * (tree - launch), 2 / self._pace()))
        everything = sum(
            [math.log2(level.size) / level.bandwidth for level in levels]
        )  # to one partner after the other
        if collective == "broadcast" and not grids:
            found.append((tree, everything))
        if collective == "all_reduce":
            n = p / (2 * (p - 1))  # bytes that a device starts with, for each that it receives in a ring
            if not grids:
                found.append((tree, everything * n))
            if len(levels) == 1 and levels[0].in_network:
                found.append((tree, n * (1 + 1 / p) / (IN_NETWORK * levels[0].pace)))
        return found

    def _next(self) -> Line:
        """What a device sends to the next."""
        start = max([level.latency for level in self.levels]) + max([level.hop for level in self.levels])
        return start, 1 / min([level.bandwidth for level in self.levels])

    def _pace(self) -> float:
        """Bytes per second that a device receives from all others: what enters a level is shared by all devices inside."""
        paces, inside = [], 1.0
        for level in self.levels:
            paces.append(inside * level.pace)
            inside *= level.size
        if all(level.is_grid for level in self.levels):  # a torus whose axes differ in speed
            every = [pace for level in self.levels for pace in level.paces]
            return max(min(paces), len(every) * min(every))
        return min(paces)

    def _around(self) -> float:
        """Seconds of the hops of a ring through all levels: that of a switch runs once for each device of slower switches."""
        total, outside = 0.0, 1.0
        for level in self.levels[::-1]:
            if level.kind == "switch":
                total += (level.size - 1) * outside * level.hop
                outside *= level.size
            else:
                total += level.steps * level.hop
        return total


class _Level:
    """Links of equal figures: the devices along each axis of a grid, or those of a switch or full mesh."""

    def __init__(self, link: Link, axes: Sequence[tuple[float, str]]) -> None:
        self.kind, self.bandwidth, self.latency, self.hop = link.kind, link.bandwidth, link.latency, link.hop
        self.in_network, self.is_grid = link.reduces_in_network, link.kind in GRID
        self.axes = axes if self.is_grid else [(math.prod([n for n, _ in axes]), link.kind)]
        self.size = math.prod([n for n, _ in self.axes])
        self.paces = [self.bandwidth * _links(n, kind) for n, kind in self.axes]  # bytes a second along each axis
        self.pace = len(self.paces) * min(self.paces)
        self.steps = sum([_steps(n, kind) for n, kind in self.axes])  # hops until all know of all
        self.load = max([_load(n, kind) for n, kind in self.axes]) / self.bandwidth


def _levels(pieces: Sequence[tuple[int, Link]]) -> list[_Level]:
    links: dict[object, Link] = {}
    axes: dict[object, list[tuple[float, str]]] = {}
    for size, link in pieces:
        kind, sizes = link.kind, [float(size)]
        if kind == "torus":  # of two rings, if it has devices for them
            kind, sizes = "ring", [math.sqrt(size)] * 2 if size >= 4 else sizes
        key = (link.bandwidth, link.latency, link.hop) if kind in GRID else link
        if size > 1:
            links.setdefault(key, Link(kind, link.bandwidth, link.latency, link.hop) if kind in GRID else link)
            axes.setdefault(key, []).extend([(n, kind) for n in sizes])
    return [_Level(links[key], some) for key, some in axes.items()]


def _links(n: float, kind: str) -> float:
    """Links of n devices over which each receives: a ring of two is a line, whose ends have one."""
    return n - 1 if kind == "full" else 2 if kind == "ring" and n > 2 else 1


def _steps(n: float, kind: str) -> float:
    if kind not in GRID:
        return math.log2(n)
    return n // 2 if _links(n, kind) == 2 else math.ceil(n) - 1


def _load(n: float, kind: str) -> float:
    """What the busiest link carries if each of n devices sends one byte, in equal parts to all."""
    if kind not in GRID:
        return (n - 1) / n / _links(n, kind)
    if _links(n, kind) == 1:
        return (n // 2) * (n - n // 2) / n
    return n * n // 4 / (2 * n) if n == int(n) else n / 8


@lru_cache(maxsize=1024)
def links_of(mesh: Mesh, axes: tuple[str, ...]) -> Links:
    """The links along axes of a mesh, or pieces of them; made once."""
    return Links(mesh.links_along(axes))
