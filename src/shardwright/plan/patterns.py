"""Prices of moves by pattern: a move between equal blocks takes what its axes and the bytes of the tensor say, not its shape.

A planner prices every way to bring every value from anywhere to anywhere: millions of moves, of a few thousand patterns. What
axes do is a number for each axis; dims count in the order in which axes name them, so the pattern of all pairs of two
lists is found in one go. Moves that differ only in which of several alike axes does what have one pattern. For a pattern the
chains of collectives are found once (see `ways`), and for a number of bytes all patterns are priced at once. Moves that are
not between equal blocks are priced one by one. Either way the price is that of `move_steps`.
"""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.mesh import Mesh
from shardwright.plan.alike import namings
from shardwright.plan.ways import Term, Way, Ways
from shardwright.sharding import P, Sharding

Shape = tuple[int, ...]
Ints = NDArray[np.int64]
NONE, PARTIAL = -1, -2  # what an axis does that splits no dim
MOST_AXES = 5  # of a mesh, for a pattern to be one number of 64 bits
REDUCTIONS = ("", "sum", "max", "min", "product")  # that patterns know; "" without partial axes


class Prices:
    """The prices of all patterns of a mesh that were asked for, numbered in order."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.axes = [axis for axis, n in mesh.sizes.items() if n > 1]
        self.ways: list[Ways] = []
        self._numbers: dict[int, int] = {}  # by code
        self._orders: dict[int, list[int]] = {}  # by code: which of the dims that it names is which of its pattern's
        self._firsts: dict[int, int] = {}  # the numbers by the least code of each
        self._codes: dict[Sharding, list[int]] = {}
        self._terms: dict[Term, int] = {}
        self._rows: list[list[int]] = []  # of ways: the numbers of terms
        self._owners: list[int] = []  # of ways: the pattern
        self._waiting: set[int] = set()  # patterns whose longer ways were not taken up
        self._priced: dict[int, tuple[NDArray[np.float64], int]] = {}  # by bytes: of patterns; how many ways are in it
        self._needs: list[tuple[Ints, int, bool]] = []  # of patterns: what divides dims and elements; whether in stages

    def knows(self, s: Sharding) -> bool:
        """Whether a sharding is in blocks of whole axes, with a reduction that leaves the dtype as it is."""
        return (
            s.mesh == self.mesh  # a mesh that was made anew is another object
            and len(self.axes) <= MOST_AXES
            and not s.offsets
            and not s.halo
            and (s.reduction in REDUCTIONS or not s.partial)
            and all(axis in self.axes for axis in s.axes)
        )

    def matrix(
        self, before: Sequence[Sharding], after: Sequence[Sharding], shape: Shape, itemsize: int
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Seconds of moves, and which of them may take longer."""
        count = math.prod(shape)
        patterns, dims = self._patterns(before, after, len(shape))
        used, where = np.unique(patterns, return_inverse=True)
        where = where.reshape(-1)
        seconds = self._seconds(count * itemsize, used)[where]
        less = np.zeros(seconds.shape, bool)
        uneven = np.flatnonzero(~self._even(used, where, dims, shape, count))
        if len(uneven):
            rows = np.column_stack([patterns[uneven], np.array([*shape, 0])[dims[uneven]]])
            _, first, alike = np.unique(as_words(rows), return_index=True, return_inverse=True)
            priced = [self._uneven(int(patterns[at]), dims[at].tolist(), shape, itemsize) for at in uneven[first]]
            seconds[uneven], less[uneven] = np.array(priced).T[:, alike.reshape(-1)]
        size = len(before), len(after)
        return seconds.reshape(size), less.reshape(size)

    def _uneven(self, pattern: int, dims: list[int], shape: Shape, itemsize: int) -> tuple[float, bool]:
        """Seconds of a move that may be between unequal blocks, and whether it may take longer."""
        named = [d for d in dims if d >= 0]
        order = (*[shape[d] for d in named], *[n for d, n in enumerate(shape) if d not in named])
        seconds, known = self._ways_of(pattern).seconds(order, math.prod(shape), itemsize)
        return seconds, not known

    def _ways_of(self, pattern: int) -> Ways:
        return self.ways[pattern]

    # -- patterns -----------------------------------------------------------------------------------------------------

    def _coded(self, shardings: Sequence[Sharding]) -> Ints:
        """For each sharding and axis its dim, its place among the axes of that dim; last the reduction."""
        codes = self._codes
        for s in shardings:
            if s not in codes:
                at = {axis: (dim, place) for dim, axes in enumerate(s.dims) for place, axis in enumerate(axes)}
                at |= dict.fromkeys(s.partial, (PARTIAL, 0))
                code = [n for axis in self.axes for n in at.get(axis, (NONE, 0))]
                codes[s] = [*code, REDUCTIONS.index(s.reduction if s.partial else "")]
        return np.array([codes[s] for s in shardings], np.int64)

    def _patterns(self, before: Sequence[Sharding], after: Sequence[Sharding], rank: int) -> tuple[Ints, Ints]:
        """For all pairs the number of the pattern, and the dims that it names, in order, then the first that it does not name;
        -1 for none."""
        n, m = len(before), len(after)
        return self._patterns_of(np.repeat(self._coded(before), m, axis=0), np.tile(self._coded(after), (n, 1)), rank)

    def _patterns_of(self, a: Ints, b: Ints, rank: int) -> tuple[Ints, Ints]:
        """The same of pairs of coded shardings."""
        b[:, :-1:2][(b[:, :-1:2] == PARTIAL) & ((a[:, :-1:2] != PARTIAL) | (a[:, -1:] != b[:, -1:]))] = NONE
        code, dims = self._labelled(a, b, rank)
        found, first, where = np.unique(code, return_index=True, return_inverse=True)
        codes, where = found.tolist(), where.reshape(-1)
        unknown = [i for i, c in enumerate(codes) if c not in self._numbers]
        if unknown:
            at = first[unknown]
            self._number([codes[i] for i in unknown], a[at], b[at], dims[at], rank)
        numbers = np.array([self._numbers[c] for c in codes])
        orders = np.array([self._orders[c] for c in codes])
        return numbers[where], np.take_along_axis(dims, orders[where], axis=1)

    def _labelled(self, a: Ints, b: Ints, rank: int) -> tuple[Ints, Ints]:
        """For pairs of coded shardings what their axes do, as a number, and the dims in the order in which axes name them."""
        count, k = len(a), len(self.axes)
        rows, named = np.arange(count), np.zeros(count, np.int64)
        label = np.full((count, rank + 2), -1)  # of dims; PARTIAL and NONE are the last
        label[:, PARTIAL:] = 2 * k, 2 * k + 1
        dims = np.full((count, 2 * k + 1), -1)
        code = a[:, -1].copy()
        for axis in range(k):
            for side in (a, b):
                dim = side[:, 2 * axis]
                new = np.flatnonzero(label[rows, dim] < 0)
                label[new, dim[new]] = named[new]
                dims[new, named[new]] = dim[new]
                named[new] += 1
                code = (code * (2 * k + 2) + label[rows, dim]) * k + side[:, 2 * axis + 1]
        code = 2 * code + (named < rank)
        if rank:
            dims[rows, named] = np.where(named < rank, (label[:, :rank] < 0).argmax(axis=1), -1)
        return code, dims

    def _number(self, codes: Sequence[int], a: Ints, b: Ints, dims: Ints, rank: int) -> None:
        """Numbers codes: those that differ only in the names of alike axes have the number, and the dims, of the least."""
        every = [(a[:, order], b[:, order]) for order in self._renamings]
        labelled = [self._labelled(*ends, rank) for ends in every]
        least = np.argmin([found for found, _ in labelled], axis=0).tolist()
        for i, (code, naming) in enumerate(zip(codes, least, strict=True)):
            first, named = int(labelled[naming][0][i]), labelled[naming][1][i].tolist()
            if first not in self._firsts:
                self._firsts[first] = self._count()
                self._add_pattern(every[naming][0][i].tolist(), every[naming][1][i].tolist(), named)
            own = dims[i].tolist()
            self._numbers[code], self._orders[code] = self._firsts[first], [own.index(dim) for dim in named]

    @cached_property
    def _renamings(self) -> list[list[int]]:
        """For each naming of axes that swaps only alike ones the order of the numbers of a coded sharding."""
        found = []
        for numbers in namings(self.mesh, frozenset(self.axes)):
            order = sorted(range(len(self.axes)), key=lambda i: numbers[self.axes[i]])
            found.append([*[n for i in order for n in (2 * i, 2 * i + 1)], 2 * len(self.axes)])
        return found

    def _count(self) -> int:
        """How many patterns there are."""
        return len(self.ways)

    def _add_pattern(self, a: list[int], b: list[int], dims: list[int]) -> None:
        number, some = len(self.ways), [d for d in dims if d >= 0]
        self.ways.append(Ways(*[self._sharding(side, some, a[-1]) for side in (a, b)]))
        self._needs.append((np.ones(len(dims), np.int64), 1, False))
        self._add(number, self.ways[-1].every)
        if not self.ways[-1].searched:
            self._waiting.add(number)

    def _sharding(self, code: list[int], dims: list[int], reduction: int) -> Sharding:
        """The sharding of a code, of a tensor with some dims alone."""
        at = sorted([(code[2 * i], code[2 * i + 1], axis) for i, axis in enumerate(self.axes)])
        spec = P(*[tuple([axis for dim, _, axis in at if dim == wanted]) for wanted in dims])
        partial = tuple([axis for dim, _, axis in at if dim == PARTIAL])
        return Sharding(self.mesh, spec, partial=partial, reduction=REDUCTIONS[reduction] if partial else "sum")

    def _add(self, number: int, ways: Sequence[Way]) -> None:
        """Takes up ways of a pattern."""
        by_dim, divisor, staged = self._needs[number]
        for way in ways:
            numbers = [self._terms.setdefault(term, len(self._terms)) for term in way.terms if term[2]]
            self._rows.append(numbers)
            self._owners.append(number)
            for dim, n in way.by_dim:
                by_dim[dim] = math.lcm(int(by_dim[dim]), n)
            divisor, staged = math.lcm(divisor, way.divisor), staged or bool(way.stage[1])
        self._needs[number] = by_dim, divisor, staged

    # -- prices -------------------------------------------------------------------------------------------------------

    def _even(self, used: Ints, where: Ints, dims: Ints, shape: Shape, count: int) -> NDArray[np.bool_]:
        """Which moves are between equal blocks whatever way they take."""
        by_dim, divisors, staged = zip(*[self._needs[number] for number in used], strict=True)
        sizes = np.array([*shape, 0])[dims]
        roomy = any(n % self.mesh.size == 0 for n in shape)
        even = np.array([not count % n for n in divisors]) & (np.array([not s for s in staged]) | roomy)
        found: NDArray[np.bool_] = even[where] & (sizes % np.array(by_dim)[where] == 0).all(axis=1)
        return found

    def _seconds(self, size: int, used: Ints) -> NDArray[np.float64]:
        """Seconds of patterns for a tensor of so many bytes."""
        while True:
            prices = self._all_seconds(size)
            further = [
                number
                for number in used.tolist()
                if number in self._waiting and prices[number] > _at(self.ways[number].least, size)
            ]
            for number in further:
                self._waiting.remove(number)
                self._add(number, self.ways[number].search())
            if not further:
                found: NDArray[np.float64] = prices[used]
                return found

    def _all_seconds(self, size: int) -> NDArray[np.float64]:
        """Seconds of all patterns by the ways that are known."""
        prices, done = self._priced.get(size, (np.zeros(0), 0))
        if done < len(self._rows):
            terms = np.array([*[fabric.seconds(name, part * size) for name, fabric, part in self._terms], 0.0])
            width = max(map(len, self._rows[done:]))
            rows = np.array([row + [-1] * (width - len(row)) for row in self._rows[done:]], np.int64)
            prices = np.concatenate([prices, np.full(len(self.ways) - len(prices), math.inf)])
            np.minimum.at(prices, self._owners[done:], terms[rows].sum(axis=1))
            self._priced[size] = prices, len(self._rows)
        return prices


def as_words(rows: Ints) -> NDArray[np.void]:
    """Rows as single values, to be compared at once."""
    return np.ascontiguousarray(rows).view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).reshape(-1)


def _at(line: tuple[float, float], size: int) -> float:
    return line[0] + line[1] * size
