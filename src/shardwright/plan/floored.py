"""`Floored`: prices of moves on a mesh of many axes. They count with floors (see `floors`), but for patterns that are opened:
of these the ways are found, so that a planner pays only for those that it may use."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.mesh import Mesh
from shardwright.plan.floors import Features, Flags, Floats, Floors
from shardwright.plan.patterns import Ints, Prices
from shardwright.plan.ways import NEARLY, UNEQUAL, Ways
from shardwright.sharding import Sharding

Shape = tuple[int, ...]
Move = tuple[Sharding, Sharding, Shape, Any]
AT_ONCE = 100_000  # moves that are looked at together
MOST_MOVES = 1 << 16  # whose patterns are kept


class Floored(Prices):
    """The prices of patterns of a mesh of many axes, numbered in order."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh)
        self._floors = Floors(mesh, self.axes)
        self._features: Features | None = None
        self._new: list[tuple[list[int], list[int], list[int]]] = []  # patterns whose features are not known yet
        self._ends: list[tuple[list[int], list[int], list[int]]] = []  # of patterns: their coded ends and their dims
        self._opened: dict[int, Ways] = {}
        self._of_moves: dict[Move, int] = {}

    @property
    def opened(self) -> int:
        """How many patterns there are whose ways were found."""
        return len(self._opened)

    def least(
        self, before: Sequence[Sharding], after: Sequence[Sharding], shape: Shape, itemsize: int
    ) -> tuple[Floats, Flags, Ints]:
        """Seconds that moves take at least, which of them may take longer, and their patterns."""
        clean = np.array([*[self._is_clean(n) for n in shape], True])
        step = max(AT_ONCE // len(after), 1)
        parts = [self._some(before[i : i + step], after, shape, itemsize, clean) for i in range(0, len(before), step)]
        seconds, less, patterns = (np.concatenate(some).reshape(len(before), -1) for some in zip(*parts, strict=True))
        return seconds, less, patterns

    def _some(
        self, before: Sequence[Sharding], after: Sequence[Sharding], shape: Shape, itemsize: int, clean: Flags
    ) -> tuple[Floats, Flags, Ints]:
        patterns, dims = self._patterns(before, after, len(shape))
        rank, count = max(len(shape), 1), math.prod(shape)  # patterns have no more dims
        lines, where = _distinct(
            patterns, dims[:, :rank]
        )  # moves that differ in no more than the names of axes and dims
        some, sizes = self._features_of(lines[:, 0]), np.array([*shape, 0])[lines[:, 1:]]
        seconds, less = self._floor(some, sizes, clean[lines[:, 1:]], count, count * itemsize)
        return seconds[where], less[where], patterns.astype(np.int32)

    def _floor(self, some: Features, sizes: Ints, clean: Flags, count: int, size: int) -> tuple[Floats, Flags]:
        """Seconds that moves take at least, and which of them may take longer."""
        products, rank = self._floors.products, sizes.shape[1]
        before, becomes, between = (blocks[:, :rank] for blocks in (some.before, some.becomes, some.between))
        even = ((sizes % before == 0) & (sizes % becomes == 0) & (sizes % between == 0)).all(axis=1)
        near = np.all([-(-sizes // blocks) * blocks <= NEARLY * sizes for blocks in (before, becomes)], axis=(0, 2))
        fits = sizes % products[some.split][:, None] == 0  # wherever axes are on the way
        chunks = (some.reduced == 0) | (count % (products[some.split] * products[some.reduced]) == 0)
        roomy, short = chunks & fits.all(axis=1), chunks & (fits | clean).all(axis=1)
        known = even & (some.scattered == 0) & (some.reduced == 0)
        (equal, shorter), (exact, least) = self._floors.chains(some, size), self._floors.exchanges(some, size)
        chain = np.where(roomy, equal, np.where(short, 1.0, UNEQUAL) * shorter)
        direct = np.where(known, exact, np.where(even, 1.0, UNEQUAL) * least)
        free = known & (some.left == 0)
        filled = np.all(
            [(sizes >= blocks) | (blocks == 1) for blocks in (before, becomes)], axis=(0, 2)
        )  # along every axis
        far = np.where(filled & (count > 0), self._floors.launches(some), 0.0)
        seconds = np.where(free, 0.0, np.where(near, np.minimum(chain, direct), far))
        return seconds, ~free & (~known | (chain < direct))

    def _is_clean(self, n: int) -> bool:
        """Whether a dim is in equal blocks, or has rows for no more than half of them, however axes split it."""
        counts = {1}
        for k in self._floors.sizes:
            counts = {one * part for one in counts for part in range(1, k + 1) if k % part == 0}
        return all(n % one == 0 or one >= 2 * n for one in counts)

    # -- patterns -----------------------------------------------------------------------------------------------------

    def _add_pattern(self, a: list[int], b: list[int], dims: list[int]) -> None:
        self._new.append((a, b, dims))

    def _count(self) -> int:
        return len(self._ends) + len(self._new)

    def _features_of(self, patterns: Ints) -> Features:
        if self._new:
            a, b, dims = (np.array([ends[i] for ends in self._new], np.int64) for i in range(3))
            more = self._floors.features(a, b, dims)
            self._features = more if self._features is None else self._features.with_more(more)
            self._ends += self._new
            self._new = []
        assert self._features is not None
        return self._features.some(patterns)

    # -- patterns that are opened -------------------------------------------------------------------------------------

    def open(
        self, patterns: NDArray[np.int32], seconds: Floats, less: Flags, about: Any, exact: Collection[Move]
    ) -> None:
        """Replaces floors of moves whose patterns are those of `exact` ones by what their ways take."""
        before, after, shape, dtype = about
        at = np.flatnonzero(less & np.isin(patterns, np.unique([self._of_move(move) for move in exact])))
        if not len(at):
            return
        i, j = np.divmod(at, len(after))
        own, dims = self._patterns_of(self._coded(before)[i], self._coded(after)[j], len(shape))
        lines, where = _distinct(own, dims)
        every = [self._uneven(line[0], line[1:], shape, dtype.itemsize) for line in lines.tolist()]
        found, more = np.array([some for some, _ in every]), np.array([flag > 0 for _, flag in every])
        known = ~np.isnan(found[where])
        at, found, more = at[known], found[where][known], more[where][known]
        flat_seconds, flat_less = seconds.reshape(-1), less.reshape(-1)
        flat_seconds[at] = np.where(more, np.maximum(found, flat_seconds[at]), found)
        flat_less[at] = more

    def _of_move(self, move: Move) -> int:
        """The pattern of a move; -1 if it has none."""
        found = self._of_moves.get(move)
        if found is None:
            source, target, shape, _ = move
            known = self.knows(source) and self.knows(target)
            if len(self._of_moves) >= MOST_MOVES:
                self._of_moves.clear()
            found = self._of_moves[move] = int(self._patterns((source,), (target,), len(shape))[0][0]) if known else -1
        return found

    def _ways_of(self, pattern: int) -> Ways:
        found = self._opened.get(pattern)
        if found is None:
            self._features_of(np.zeros(0, np.int64))
            a, b, dims = self._ends[pattern]
            some = [dim for dim in dims if dim >= 0]
            found = self._opened[pattern] = Ways(*[self._sharding(side, some, a[-1]) for side in (a, b)])
        return found


def _distinct(patterns: Ints, dims: Ints) -> tuple[Ints, Ints]:
    """The distinct pairs of a pattern and dims, as lines, and for all pairs which of them it is."""
    code = patterns.astype(np.int64)
    for column in dims.T:  # a dim, or -1; few enough that a number of 64 bits has all of them
        code = code * (int(dims.max(initial=0)) + 2) + column + 1
    _, first, where = np.unique(code, return_index=True, return_inverse=True)
    return np.column_stack([patterns[first], dims[first]]), where.reshape(-1)
