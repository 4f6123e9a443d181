"""`FloorTables`: what collectives along sets of axes take, for one size of a tensor: of which floors of moves are made.

A table is over two sets of axes, as bits: those that split dims on the way, which say how large shards are, and those that a
collective is along. Each entry is the least of all ways to do so: along all at once or in any groups and order.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.hardware import Fabric
from shardwright.mesh import Mesh
from shardwright.plan.steps import PRICED_AS
from shardwright.plan.ways import UNEQUAL

Floats = NDArray[np.float64]
Counts = tuple[int, ...]
Middle = tuple[Floats, Floats, Floats]  # one all_to_all or permute; one permute; several of them, along pieces of axes
SHORT = (
    2 * UNEQUAL
)  # times what a permute receives between equal blocks: at least, if no more than half of the devices hold any
GRIDS = ("ring", "line", "torus")
MOST_SIZES = 256  # whose tables are kept


class Tables(NamedTuple):
    """Seconds; of pieces of axes where names say so."""

    gather: Floats
    gather_pieces: Floats
    scatter: Floats  # of what is summed
    scatter_pieces: Floats
    reduce: Floats  # an all_reduce, at once or in stages
    exchange: Floats  # directly: by whether no device has a part of its new shard, what splits it, what is crossed
    even: Middle
    short: Middle  # where dims may be too short for all blocks


class FloorTables:
    """The tables of a mesh."""

    def __init__(self, mesh: Mesh, axes: tuple[str, ...]) -> None:
        self.count = 1 << len(axes)
        sets = [tuple([axis for i, axis in enumerate(axes) if some >> i & 1]) for some in range(self.count)]
        self.products = [math.prod([mesh.sizes[axis] for axis in some]) for some in sets]
        self.fabrics = [mesh.fabric(some) for some in sets]
        kinds = {
            axis: [((link, axis if link.kind in GRIDS else ""), n) for n, link in mesh.links_along((axis,))]
            for axis in axes
        }
        self.classes = tuple(dict.fromkeys([kind for own in kinds.values() for kind, _ in own]))
        self.counts = [
            tuple([math.prod([n for axis in some for kind, n in kinds[axis] if kind == one]) for one in self.classes])
            for some in sets
        ]  # of each set of axes how many devices are along each kind of link
        latencies = [min([link.latency for _, link in mesh.links_along((axis,))]) for axis in axes]
        self.launch = np.array(
            [max([latencies[i] for i in range(len(axes)) if some >> i & 1], default=0.0) for some in range(self.count)]
        )  # seconds that steps take at least which cross all of some axes
        self.least = np.array([self._least(some) for some in range(self.count)])
        self._known: dict[float, Tables] = {}

    def of(self, size: float) -> Tables:
        """For a tensor of so many bytes."""
        found = self._known.get(size)
        if found is None:
            if len(self._known) >= MOST_SIZES:
                self._known.clear()
            found = self._known[size] = self._made(size)
        return found

    def _least(self, some: int) -> tuple[float, float]:
        """Seconds to start and a byte that no exchange or permute is below that crosses some axes and perhaps more."""
        every = [self.fabrics[own] for own in range(1, self.count) if own & some == some]
        lines = [line for fabric in every for name in ("exchange", "permute") for line in fabric.lines(name)]
        return min([start for start, _ in lines]), min([pace for _, pace in lines])

    def _made(self, size: float) -> Tables:
        n = self.count
        gather, gather_pieces, scatter, scatter_pieces, reduce, *middle = np.zeros((11, n, n))
        even, short = (middle[0], middle[1], middle[2]), (middle[3], middle[4], middle[5])
        tables = Tables(gather, gather_pieces, scatter, scatter_pieces, reduce, np.zeros((2, n, n)), even, short)
        for split in range(n):
            local = size / self.products[split]
            self._joined(tables, split, local)
            self._reduced(tables.reduce, split, local)
            self._moved(tables, split, local)
            for left in range(1, n):
                received = local * (1 - 1 / self.products[left])
                tables.exchange[:, split, left] = [self._seconds("exchange", left, some) for some in (received, local)]
        return tables

    def _seconds(self, name: str, some: int, received: float) -> float:
        return self.fabrics[some].seconds(PRICED_AS.get(name, name), received)

    def _joined(self, tables: Tables, split: int, local: float) -> None:
        """Gathers from shards of so many bytes, and scatters that end with them; smaller sets were before."""
        steps = _Pieces(self.classes, local)
        for some in _subsets(split):
            if some:
                for table, name in ((tables.gather, "all_gather"), (tables.scatter, "reduce_scatter")):
                    table[split, some] = min(
                        [
                            self._seconds(name, first, local * (self.products[first] - 1))
                            + table[split ^ first, some ^ first]
                            for first in _subsets(some)
                            if first
                        ]
                    )
            tables.gather_pieces[split, some] = steps.joined("all_gather", self.counts[some], local)
            tables.scatter_pieces[split, some] = steps.joined("reduce_scatter", self.counts[some], local)
            tables.even[2][split, some] = steps.several(self.counts[some], 1.0)
            tables.short[2][split, some] = steps.several(self.counts[some], SHORT)

    def _reduced(self, table: Floats, split: int, local: float) -> None:
        """All_reduces, of which a part may be a scatter before and a gather afterwards."""
        for some in _subsets(self.count - 1 - split):
            ways = []
            for fast in _subsets(some):
                p, slow = self.products[fast], some ^ fast
                ways.append(self._seconds("reduce_scatter", fast, local * (1 - 1 / p)))
                ways[-1] += self._seconds("all_reduce", slow, local / p * (2 - 2 / self.products[slow]))
                ways[-1] += self._seconds("all_gather", fast, local / p * (p - 1))
            table[split, some] = min(ways)

    def _moved(self, tables: Tables, split: int, local: float) -> None:
        """One step between slices and gathers, along some axes and perhaps more."""
        own = [some for some in _subsets(split) if some]
        swaps = [self._seconds("all_to_all", some, local * (1 - 1 / self.products[some])) for some in own]
        even = [self._seconds("permute", some, local) for some in own]
        short = [
            min([self.fabrics[some].seconds(name, SHORT * local) for name in ("exchange", "permute")]) for some in own
        ]
        for (either, permute, _), permutes in ((tables.even, even), (tables.short, short)):
            for some in _subsets(split):
                ways = [
                    (took, swap) for more, took, swap in zip(own, permutes, swaps, strict=True) if more & some == some
                ]
                permute[split, some] = min([took for took, _ in ways], default=math.inf)
                either[split, some] = min([min(pair) for pair in ways], default=math.inf)


class _Pieces:
    """Collectives along pieces of axes, of which only counts: how many devices there are along each kind of link."""

    def __init__(self, classes: tuple[Any, ...], local: float) -> None:
        self.classes, self.local = classes, local  # bytes of the smallest shards
        self._known: dict[Any, float] = {}

    def joined(self, name: str, counts: Counts, local: float) -> float:
        """Seconds of gathers, or scatters, along so many devices, in any groups and order."""
        if max(counts) == 1:
            return 0.0
        key = name, counts, local
        found = self._known.get(key)
        if found is None:
            found = math.inf
            for first, rest in _cuts(counts):
                p = math.prod(first)
                took = self._fabric(first).seconds(name, local * (p - 1))
                if took < found:
                    found = min(found, took + self.joined(name, rest, local * p))
            self._known[key] = found
        return found

    def several(self, counts: Counts, part: float) -> float:
        """Seconds of two steps or more that move pieces along so many devices; permutes receive some part of a shard."""
        ones = (1,) * len(counts)
        least = min([self._one((*ones[:i], 2, *ones[i + 1 :]), part) for i in range(len(ones))])
        if counts == ones:
            return 2 * least
        found = least + self._any(counts, part)
        for first, rest in _cuts(counts):
            took = self._one(first, part)
            if took < found:
                found = min(found, took + (least if rest == ones else self._any(rest, part)))
        return found

    def _any(self, counts: Counts, part: float) -> float:
        """One step or more."""
        key = "any", counts, part
        found = self._known.get(key)
        if found is None:
            found = self._one(counts, part)
            for first, rest in _cuts(counts):
                if max(rest) > 1:
                    took = self._one(first, part)
                    if took < found:
                        found = min(found, took + self._any(rest, part))
            self._known[key] = found
        return found

    def _one(self, counts: Counts, part: float) -> float:
        """One all_to_all or permute."""
        key = "one", counts, part
        found = self._known.get(key)
        if found is None:
            fabric, names = self._fabric(counts), ("exchange",) if part == 1 else ("exchange", "permute")
            swap = fabric.seconds("all_to_all", self.local * (1 - 1 / math.prod(counts)))
            found = self._known[key] = min([swap, *[fabric.seconds(name, part * self.local) for name in names]])
        return found

    def _fabric(self, counts: Counts) -> Fabric:
        return _fabric(self.classes, counts)


@lru_cache(maxsize=4096)
def _fabric(classes: tuple[Any, ...], counts: Counts) -> Fabric:
    return Fabric([(n, link) for (link, _), n in zip(classes, counts, strict=True) if n > 1])


@lru_cache(maxsize=4096)
def _cuts(counts: Counts) -> tuple[tuple[Counts, Counts], ...]:
    """The ways to take some devices first, and what is left."""
    every = product(*[[k for k in range(1, n + 1) if n % k == 0] for n in counts])
    return tuple(
        [(some, tuple([n // k for n, k in zip(counts, some, strict=True)])) for some in every if max(some) > 1]
    )


def _subsets(some: int) -> Iterator[int]:
    """The sets of bits in a set, smaller numbers first."""
    return (part for part in range(some + 1) if part & some == part)
