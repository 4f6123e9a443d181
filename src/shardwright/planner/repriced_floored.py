"""`moves_of`: seconds of the moves of a mesh, for the check of a certificate. On a mesh of many axes they count with floors
(`repriced_floors`), but for those whose patterns are among the exact ones."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from shardwright.mesh import Mesh
from shardwright.planner.repriced_floors import Floors, Parts, is_clean
from shardwright.planner.repriced_middles import Ints, distinct
from shardwright.planner.repriced_moves import NEARLY, Asked, Exact, Flags, Floats, Matrix, Moves
from shardwright.planner.repriced_patterns import Patterns
from shardwright.planner.repriced_rows import UNEQUAL
from shardwright.sharding import Sharding

FEW_AXES = 3  # of a mesh, for the chains of all patterns to be found


def moves_of(mesh: Mesh) -> "Moves | Floored":
    """The moves of a mesh; what is found for patterns is kept."""
    return _with_floors(mesh) if sum([n > 1 for n in mesh.shape]) > FEW_AXES else _of_all(mesh)


@lru_cache(maxsize=16)
def _of_all(mesh: Mesh) -> Moves:
    return Moves(mesh)


@lru_cache(maxsize=2)  # hundreds of megabytes
def _with_floors(mesh: Mesh) -> "Floored":
    return Floored(mesh)


class Floored:
    """Seconds of moves on a mesh of many axes."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.patterns = mesh, Patterns(mesh)
        self._moves, self._floors = Moves(mesh), Floors(mesh)
        self._parts: dict[Parts, int] = {}  # numbered
        self._numbers: list[int] = []  # of the parts of patterns
        self._blocks: list[
            list[int]
        ] = []  # of patterns: of each dim, before, after and between; then of axes in the way
        self._arrays = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
        self._of_moves: dict[tuple[Sharding, Sharding, int], int] = {}  # patterns of moves

    def several(self, asked: Sequence[Asked], exact: Exact = ()) -> list[Floats]:
        """Of the moves from each of some placements to each of others, for several tensors."""
        opened = np.array(sorted({self._pattern(*move[:3]) for move in exact} - {-1}), np.int64)
        every = {key: Matrix(key, self.patterns.has) for key in dict.fromkeys(asked)}
        known = [one for one in every.values() if one.before and one.after]
        self.patterns.ask([(one.before, one.after, len(one.shape)) for one in known])
        self._see_patterns()
        for one in known:
            one.patterns, one.dims = self.patterns.of(one.before, one.after, len(one.shape))
            one.fill(*self._floor(one))
        if len(opened):
            self._open(known, opened)
        made = {key: self._moves.exactly(key, *one.result(), exact) for key, one in every.items()}
        return [made[key] for key in asked]

    # -- floors -------------------------------------------------------------------------------------------------------

    def _see_patterns(self) -> None:
        """Finds what the floors of new patterns depend on."""
        have, width, mesh = len(self._numbers), len(self.patterns.axes) * 2 + 1, self.mesh
        if have == self.patterns.count:
            return
        names = [tuple([self.patterns.axes[i] for i in some]) for some in self.patterns.lists]
        for before, after, summed, dims in zip(*self.patterns.changes(range(have, self.patterns.count)), strict=True):
            source, target = (tuple([names[some] for some in state[:dims].tolist()]) for state in (before, after))
            parts, blocks = self._floors.parts(
                source, target, tuple([axis for i, axis in enumerate(self.patterns.axes) if summed >> i & 1])
            )
            self._numbers.append(self._parts.setdefault(parts, len(self._parts)))
            own = [[*some, *[1] * (width - len(some))] for some in blocks]
            split = mesh.axis_size(parts.split) if parts.split else 1
            way = [split] * len(source) + [1] * (width - len(source))
            chunks = split * mesh.axis_size(parts.reduced) if parts.reduced else 1
            self._blocks.append([n for some in (*own, way) for n in some] + [chunks])
        self._arrays = np.array(self._numbers), np.array(self._blocks, np.int64)

    def _floor(self, one: Matrix) -> tuple[Floats, Flags]:
        """Seconds that moves take at least, and which may take longer."""
        sizes, where, patterns = self._sizes(one, np.arange(one.patterns.size))
        seconds, less = self._least(patterns, sizes, math.prod(one.shape), one.dtype.itemsize)
        return seconds[where].reshape(one.patterns.shape), less[where].reshape(one.patterns.shape)

    def _sizes(self, one: Matrix, at: Ints) -> tuple[Ints, Ints, Ints]:
        """Of some moves of a matrix the sizes of dims in the order of the pattern, each distinct one once; which each has; the
        patterns."""
        patterns = one.patterns.reshape(-1)[at]
        sizes = np.array(one.shape, np.int64)[one.dims.reshape(one.patterns.size, len(one.shape))[at]]
        first, where = distinct(np.column_stack([patterns, sizes]))
        return sizes[first], where, patterns[first]

    def _least(self, patterns: Ints, sizes: Ints, count: int, item: int) -> tuple[Floats, Flags]:
        numbers, blocks = self._arrays[0][patterns], self._arrays[1][patterns]
        width, rank = blocks.shape[1] // 4, sizes.shape[1]
        kinds = [blocks[:, at * width : at * width + min(rank, width)] for at in range(4)]
        sizes = sizes[:, :width]
        near = np.all([-(-sizes // k) * k <= NEARLY * sizes for k in kinds[:2]], axis=(0, 2))
        even = np.all([sizes % k == 0 for k in kinds[:3]], axis=(0, 2))
        fits, chunks = sizes % kinds[3] == 0, count % blocks[:, -1] == 0
        clean = np.isin(sizes, [n for n in np.unique(sizes) if is_clean(int(n), self.mesh.shape)])
        roomy, short = chunks & fits.all(axis=1), chunks & (fits | clean).all(axis=1)
        figures = np.zeros((len(self._parts), 7))
        for parts, number in self._parts.items():
            figures[number, 5:] = not parts.scattered and not parts.reduced, not parts.left
        every = list(self._parts)
        for number in np.unique(numbers).tolist():
            figures[number, :5] = self._floors.figures(every[number], count * item)
        equal, shorter, exact, least, launch, plain, stays = figures[numbers].T
        known = even & (plain > 0)
        chain = np.where(roomy, equal, np.where(short, 1.0, UNEQUAL) * shorter)
        direct = np.where(known, exact, np.where(even, 1.0, UNEQUAL) * least)
        free = known & (stays > 0)
        filled = np.all([sizes >= k for k in kinds[:2]], axis=(0, 2))
        seconds = np.where(near, np.minimum(chain, direct), np.where(filled, launch, 0.0))
        return np.where(free, 0.0, seconds), ~free & (~known | (chain < direct))

    # -- patterns that have their prices ------------------------------------------------------------------------------

    def _open(self, every: Sequence[Matrix], opened: Ints) -> None:
        """Prices the moves that have the patterns of exact ones: of each pattern and sizes of dims one for all."""
        places, asked = [], list[Asked]()
        for one in every:
            at = np.flatnonzero(one.less[one.known] & np.isin(one.patterns, opened))
            _, where, _ = self._sizes(one, at)
            first = at[np.unique(where, return_index=True)[1]]
            rows, columns = np.divmod(first, len(one.after))
            places.append((one, at, where, len(asked)))
            asked += [
                ((one.before[i],), (one.after[j],), one.shape, one.dtype) for i, j in zip(rows, columns, strict=True)
            ]
        if not asked:
            return
        found = self._moves.made(asked)
        prices, more = (np.array([float(some[side][0, 0]) for some in found]) for side in (0, 1))
        for one, at, where, start in places:
            seconds, less = one.seconds[one.known], one.less[one.known]
            price, longer = prices[start + where], more[start + where] > 0
            seconds.reshape(-1)[at] = np.where(longer, np.maximum(price, seconds.reshape(-1)[at]), price)
            less.reshape(-1)[at] = longer
            one.fill(seconds, less)

    def _pattern(self, source: Sharding, target: Sharding, shape: tuple[int, ...]) -> int:
        """The number of a move's pattern; -1 if it has none."""
        if not (self.patterns.has(source) and self.patterns.has(target)):
            return -1
        key = source, target, len(shape)
        if key not in self._of_moves:
            self.patterns.ask([((source,), (target,), len(shape))])
            self._of_moves[key] = int(self.patterns.of((source,), (target,), len(shape))[0][0, 0])
        return self._of_moves[key]
