"""`Patterns`: moves between placements by what they have in common, for the check of a certificate.

A pattern says what splits each dim before and after, and what is summed. Its dims are in an order of their own, without those
that nothing splits but one, and alike axes (of equal sizes and links) have the names that put it first. All moves between two
lists of placements are numbered at once.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from shardwright.mesh import Mesh
from shardwright.planner.repriced_middles import Changes, Ints, distinct
from shardwright.sharding import Sharding

PLAIN = ("sum", "max", "min", "product")  # reductions that travel in the tensor's dtype
MOST_AXES = 5  # of a mesh whose moves have patterns
MOST_NAMES = 120  # ways to name alike axes that are looked at


class Patterns:
    """The patterns of a mesh, numbered in the order in which they are asked for."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.axes = [axis for axis, n in mesh.sizes.items() if n > 1]
        self._own = set(self.axes)
        orders = [some for n in range(len(self.axes) + 1) for some in permutations(range(len(self.axes)), n)]
        self.lists = sorted(orders) if len(self.axes) <= MOST_AXES else []  # of axes that split a dim, by number
        self._lists = {tuple([self.axes[i] for i in some]): number for number, some in enumerate(self.lists)}
        self._keys: list[tuple[int, ...]] = []  # of each dim the lists before and after; what is summed
        self._numbers: dict[tuple[int, ...], int] = {}
        self._ranks: dict[int, _Rank] = {}

    def has(self, s: Sharding) -> bool:
        """Whether a placement is in blocks of whole axes, with a usual reduction."""
        plain = not s.offsets and not s.halo and (not s.partial or s.reduction in PLAIN)
        return plain and s.mesh == self.mesh and bool(self.lists) and self._own.issuperset(s.axes)

    def ask(self, asked: Sequence[tuple[Sequence[Sharding], Sequence[Sharding], int]]) -> None:
        """Numbers all pairs of placements of each of several tensors, with so many dims, at once."""
        by_rank: dict[int, list[tuple[Sequence[Sharding], Sequence[Sharding]]]] = {}
        for before, after, rank in asked:
            by_rank.setdefault(rank, []).append((before, after))
        for rank, some in by_rank.items():
            self._ranks.setdefault(rank, _Rank(self, rank)).ask(some)

    def of(self, before: Sequence[Sharding], after: Sequence[Sharding], rank: int) -> tuple[Ints, NDArray[np.int8]]:
        """For all pairs of placements that were numbered the number of the pattern, and the dims in its order."""
        return self._ranks[rank].of(before, after)

    def coded(self, s: Sharding, rank: int) -> list[int]:
        """For each dim the number of its list of axes; the partial axes, and the reduction, as numbers."""
        partial = sum([1 << self.axes.index(axis) for axis in s.partial])
        return [*[self._lists[axes] for axes in s.dims[:rank]], partial, PLAIN.index(s.reduction) if partial else 0]

    @cached_property
    def namings(self) -> list[tuple[Ints, Ints]]:
        """For each way to name alike axes: the numbers of lists, and of sets of axes, under these names."""
        kinds: dict[object, list[int]] = {}
        for number, axis in enumerate(self.axes):
            kinds.setdefault((self.mesh.sizes[axis], tuple(self.mesh.links_along((axis,)))), []).append(number)
        orders = [permutations(kind) for kind in kinds.values()]
        if math.prod([math.factorial(len(kind)) for kind in kinds.values()]) > MOST_NAMES:
            orders = [iter([tuple(kind)]) for kind in kinds.values()]  # type: ignore[misc]
        found, numbers = [], {some: number for number, some in enumerate(self.lists)}
        for order in product(*orders):
            name = dict(
                zip([i for some in order for i in some], [i for kind in kinds.values() for i in kind], strict=True)
            )
            lists = [numbers[tuple([name[i] for i in some])] for some in self.lists]
            sets = [sum([1 << name[i] for i in name if s >> i & 1]) for s in range(1 << len(self.axes))]
            found.append((np.array(lists), np.array(sets)))
        return found

    def number(self, codes: tuple[int, ...], summed: int) -> int:
        """The number of a pattern: of dims, each with its lists before and after as one number, and axes to be summed."""
        key = (*codes, -1 - summed)
        found = self._numbers.setdefault(key, len(self._keys))
        if found == len(self._keys):
            self._keys.append(key)
        return found

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._keys)

    def changes(self, numbers: Sequence[int]) -> Changes:
        """What some patterns say."""
        keys = [self._keys[number] for number in numbers]
        dims = np.array([len(key) - 1 for key in keys], np.int64)
        codes = np.zeros((len(keys), int(dims.max(initial=0))), np.int64)
        for row, key in zip(codes, keys, strict=True):
            row[: len(key) - 1] = key[:-1]
        return Changes(*np.divmod(codes, len(self.lists)), np.array([-1 - key[-1] for key in keys], np.int64), dims)


class _Rank:
    """The placements of tensors with so many dims, and the patterns of the moves between them."""

    def __init__(self, patterns: Patterns, rank: int) -> None:
        self.patterns, self.rank = patterns, rank
        self._numbers: dict[Sharding, int] = {}
        self._codes: list[list[int]] = []
        self._known = np.full((0, 0), -1)  # by placements before and after; -1 where nothing was asked
        self._dims = np.zeros((0, 0, rank), np.int8)

    def ask(self, asked: Sequence[tuple[Sequence[Sharding], Sequence[Sharding]]]) -> None:
        pairs = [[[self._number(s) for s in some] for some in ends] for ends in asked]
        have = len(self._known)
        if len(self._codes) > have:
            more = max(2 * len(self._codes), 64) - have
            self._known = np.pad(self._known, (0, more), constant_values=-1)
            self._dims = np.pad(self._dims, ((0, more), (0, more), (0, 0)))
        new = np.zeros(self._known.shape, bool)
        for rows, columns in pairs:
            new[np.ix_(rows, columns)] = True
        pair = np.nonzero(new & (self._known < 0))
        if len(pair[0]):
            self._known[pair], self._dims[pair] = self._made(*pair)

    def of(self, before: Sequence[Sharding], after: Sequence[Sharding]) -> tuple[Ints, NDArray[np.int8]]:
        at = np.ix_(*[[self._numbers[s] for s in some] for some in (before, after)])
        return self._known[at], self._dims[at]

    def _number(self, s: Sharding) -> int:
        found = self._numbers.get(s)
        if found is None:
            found = self._numbers[s] = len(self._codes)
            self._codes.append(self.patterns.coded(s, self.rank))
        return found

    def _made(self, source: Ints, target: Ints) -> tuple[Ints, Ints]:
        codes, rank, count = np.array(self._codes, np.int64), self.rank, len(self.patterns.lists)
        a, b = codes[source], codes[target]
        summed = a[:, -2] & ~np.where(a[:, -1] == b[:, -1], b[:, -2], 0)
        dims, order = self._sorted(a[:, :rank] * count + b[:, :rank])
        first, where = distinct(np.column_stack([dims, summed]))
        named, inner = self._named(dims[first], summed[first])
        once, which = distinct(named)
        named = named[once]
        split = (named[:, :-1] != 0).sum(axis=1).tolist()
        numbers = [
            self.patterns.number(tuple(row[: min(some + 1, rank)]), row[-1])
            for row, some in zip(named.tolist(), split, strict=True)
        ]
        return np.array(numbers)[which][where], np.take_along_axis(order, inner[where], axis=1)

    def _sorted(self, dims: Ints) -> tuple[Ints, Ints]:
        """The dims of moves in order, those that nothing splits last, and which these are."""
        most, rank = len(self.patterns.lists) ** 2, self.rank
        both = np.sort(np.where(dims == 0, most, dims) * rank + np.arange(rank), axis=1)
        found, order = np.divmod(both, max(rank, 1))
        return np.where(found == most, 0, found), order

    def _named(self, dims: Ints, summed: Ints) -> tuple[Ints, Ints]:
        """Changes under the names of alike axes that put them first, and the order of their dims under these."""
        best: Ints | None = None
        orders = dims
        old, new = np.divmod(dims, len(self.patterns.lists))
        for lists, sets in self.patterns.namings:
            some, order = self._sorted(lists[old] * len(lists) + lists[new])
            some = np.column_stack([some, sets[summed]])
            if best is None:
                best, orders = some, order
            else:
                at = (some != best).argmax(axis=1)[:, None]  # the first number that differs decides
                less = (np.take_along_axis(some, at, 1) < np.take_along_axis(best, at, 1))[:, 0]
                best[less], orders[less] = some[less], order[less]
        assert best is not None
        return best, orders
