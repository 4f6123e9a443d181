"""`Moves`: seconds of moves between placements, for the check of a certificate.

What a move between equal blocks takes follows from its pattern and the bytes of the tensor. For a pattern the chains of
collectives are found once (`repriced_chains`), and for a number of bytes all patterns are priced at once. Moves over unequal
blocks count with what they take at least, or, where the certificate says so, with what their steps take (`repriced_steps`).
"""

import math
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.mesh import Mesh
from shardwright.plan import move_steps
from shardwright.planner.repriced_chains import Axes, Chain, Group, Move
from shardwright.planner.repriced_floors import Floors, Parts, is_clean
from shardwright.planner.repriced_links import Line, links_of
from shardwright.planner.repriced_patterns import Ints, Patterns, distinct
from shardwright.planner.repriced_steps import seconds_of_steps
from shardwright.sharding import Sharding

Shape = tuple[int, ...]
Shardings = tuple[Sharding, ...]
DType = np.dtype[Any]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Exact = Collection[tuple[Sharding, Sharding, Shape, DType]]
UNEQUAL = 0.75  # of what a collective takes between equal blocks: what it takes at least between unequal ones
NEARLY = 1.25  # times an equal block: the largest block for which that is known
MOST_TABLES = 256  # of moves that are kept
EQUAL, SHORT, UNLIKE = range(3)  # how blocks differ: not at all; because there are more blocks than rows; otherwise


FEW_AXES = 3  # of a mesh, for the chains of all patterns to be found


@lru_cache(maxsize=16)
def moves_of(mesh: Mesh) -> "Moves":
    """The moves of a mesh; what is found for patterns is kept."""
    return _Floored(mesh) if sum([n > 1 for n in mesh.shape]) > FEW_AXES else Moves(mesh)


class Moves:
    """Seconds of moves on a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.group, self.patterns = mesh, Group(mesh), Patterns(mesh)
        self._moves: list[Move] = []  # of patterns
        self._least: list[Line] = []  # of patterns: what long chains take at least
        self._waiting: set[int] = set()  # patterns whose long chains were not looked for
        self._terms: dict[Any, int] = {}
        self._lines: list[list[Line]] = []  # of terms: algorithms, seconds to start and a byte of the tensor
        self._states: dict[tuple[int, ...], int] = {(): 0}  # blocks of each dim
        self._array = np.zeros((0, 1, 2))  # the same for all terms, and no term
        self._priced: dict[int, tuple[Floats, Floats]] = {}  # by bytes: of terms
        self._of_patterns: dict[int, tuple[Floats, int]] = {}  # by bytes: of patterns, and by how many chains
        self._chains: list[_Chain] = []
        self._table = _Table()
        self._tables: dict[Any, tuple[Floats, Flags]] = {}  # that were asked for

    def seconds(self, before: Shardings, after: Shardings, shape: Shape, dtype: DType, exact: Exact = ()) -> Floats:
        """Of the moves from each of some placements to each of others."""
        key = before, after, shape, dtype
        if key not in self._tables:
            if len(self._tables) >= MOST_TABLES:
                self._tables.clear()
            self._tables[key] = self._made(before, after, shape, dtype)
        seconds, less = self._tables[key]
        if not exact or not less.any():
            return seconds
        result, less = seconds.copy(), less.copy()
        self._open(result, less, key, exact)
        for i, j in self._listed(less, key, exact):
            result[i, j] = stepped(before[i], after[j], shape, dtype)
        return result

    def _listed(self, less: Flags, about: Any, exact: Exact) -> Iterator[tuple[int, int]]:
        """Which moves that may take longer are among the exact ones."""
        before, after, *kind = about
        places: list[dict[Sharding, list[int]]] = [{}, {}]
        for some, shardings in zip(places, (before, after), strict=True):
            for at, s in enumerate(shardings):
                some.setdefault(s, []).append(at)
        for source, target, *own in exact:
            if own == kind:
                ends = product(places[0].get(source, ()), places[1].get(target, ()))
                yield from [(i, j) for i, j in ends if less[i, j]]

    def _open(self, seconds: Floats, less: Flags, about: Any, exact: Exact) -> None:
        """Finds the chains of moves whose patterns are those of exact ones, where others have floors."""

    def _made(self, before: Shardings, after: Shardings, shape: Shape, dtype: DType) -> tuple[Floats, Flags]:
        """Seconds of moves, and which of them may take longer."""
        rows, columns = tuple(dict.fromkeys(before)), tuple(dict.fromkeys(after))
        if len(rows) < len(before) or len(columns) < len(after):
            at = [{s: i for i, s in enumerate(some)} for some in (rows, columns)]
            places = np.ix_([at[0][s] for s in before], [at[1][s] for s in after])
            seconds, less = self._made(rows, columns, shape, dtype)
            return seconds[places], less[places]
        seconds, less = np.full((len(rows), len(columns)), math.nan), np.zeros((len(rows), len(columns)), bool)
        known = [[i for i, s in enumerate(some) if self.patterns.has(s)] for some in (rows, columns)]
        if all(known):
            places = np.ix_(*known)
            ends = [rows[i] for i in known[0]], [columns[j] for j in known[1]]
            seconds[places], less[places] = self._matrix(*ends, shape, dtype.itemsize)
        for i, j in np.argwhere(np.isnan(seconds)):
            seconds[i, j] = stepped(rows[i], columns[j], shape, dtype)
        seconds.setflags(write=False)
        return seconds, less

    def _matrix(
        self, before: Sequence[Sharding], after: Sequence[Sharding], shape: Shape, item: int
    ) -> tuple[Floats, Flags]:
        """Seconds of moves that have patterns, NaN where only steps tell; and which of them may take longer."""
        patterns, dims = self.patterns.of(before, after, len(shape))
        for pattern in self.patterns.found[len(self._moves) :]:
            self._take_up(Move(self.group, *pattern))
        count = math.prod(shape)
        seconds = self._even_seconds(np.flatnonzero(np.bincount(patterns.reshape(-1))), count * item)[patterns]
        less = np.zeros(patterns.shape, bool)
        uneven = self._uneven(patterns, dims, shape)
        if len(uneven):
            flat, sizes = (
                patterns.reshape(-1)[uneven],
                np.array(shape, np.int64)[dims.reshape(patterns.size, len(shape))[uneven]],
            )
            first, where = distinct(np.column_stack([flat, sizes]))
            found = self._uneven_seconds(flat[first], sizes[first], count, item)
            seconds.reshape(-1)[uneven], less.reshape(-1)[uneven] = found[0][where], found[1][where]
        return seconds, less

    # -- chains -------------------------------------------------------------------------------------------------------

    def _take_up(self, move: Move) -> None:
        """Finds the chains of one more pattern."""
        number, short = len(self._moves), move.short()
        self._moves.append(move)
        self._least.append((-math.inf, 0.0))
        self._add(number, False, [move.direct(), *short])
        if not short and not move.summed:
            self._waiting.add(number)
            self._least[-1] = move.least_of_long()
        elif not short:
            self._add(number, True, move.long())

    def _look_further(self, numbers: Sequence[int]) -> None:
        for number in sorted(self._waiting.intersection(numbers)):
            self._waiting.remove(number)
            self._add(number, True, self._moves[number].long())

    def _add(self, number: int, long: bool, chains: Sequence[Chain]) -> None:
        move = self._moves[number]
        target = self._state(self.group.blocks(move.target))
        for chain in chains:
            terms, least = [], []
            for name, axes, part in chain.terms:
                terms.append(self._term(name, (axes,), part) if part else -1)
                exchange = part and name in ("exchange", "permute")
                least.append(self._term("near", self._crossings(move, name, axes), UNEQUAL * part) if exchange else -1)
            after = [name in ("all_gather", "all_to_all") for name, _, _ in chain.terms]
            states = [self._state(blocks) for blocks in chain.blocks]
            figures = [number, long, target, chain.divisor, self._state(chain.stage[0]), max(chain.stage[1], 1)]
            self._chains.append(_Chain(figures, terms, least, after, states))

    def _term(self, name: str, links: tuple[Axes, ...], part: float) -> int:
        key = name, links, part
        found = self._terms.get(key)
        if found is None:
            found = self._terms[key] = len(self._lines)
            names = {"permute": ["exchange"], "near": ["exchange", "permute"]}.get(name, [name])
            every = [line for axes in links for one in names for line in links_of(self.mesh, axes).lines(one)]
            self._lines.append(_quickest([(start, pace * part) for start, pace in every]))
        return found

    def _state(self, blocks: tuple[int, ...]) -> int:
        return self._states.setdefault(blocks, len(self._states))

    def _crossings(self, move: Move, name: str, axes: Axes) -> tuple[Axes, ...]:
        """The axes that an exchange between unequal blocks may cross: those that leave a dim, and perhaps others."""
        if name == "permute":
            return (axes,)
        certain = {a for old, new in zip(move.source, move.target, strict=True) for a in old if a not in new}
        return tuple([some for some in self._sets if certain <= set(some)])

    @cached_property
    def _sets(self) -> list[Axes]:
        axes = self.patterns.axes
        return [some for n in range(1, len(axes) + 1) for some in combinations(axes, n)]

    def _known(self) -> "_Table":
        """All chains as arrays."""
        if self._table.count < len(self._chains):
            self._table = self._table.with_more(self._chains, list(self._states), len(self._moves))
        return self._table

    # -- prices -------------------------------------------------------------------------------------------------------

    def _prices(self, size: int) -> tuple[Floats, Floats]:
        """For a tensor of so many bytes the seconds of each algorithm to start and for what is received, and those of terms;
        the last is for no term."""
        found = self._priced.get(size)
        if found is None or len(found[1]) <= len(self._lines):
            if len(self._array) <= len(self._lines):
                width = max(map(len, self._lines), default=1)
                lines = [some + [some[0]] * (width - len(some)) for some in self._lines]
                self._array = np.array([*lines, [(0.0, 0.0)] * width])
            seconds = self._array * (1.0, float(size)) if size else 0 * self._array
            found = self._priced[size] = seconds, seconds.sum(axis=2).min(axis=1)
        return found

    def _even_seconds(self, used: Ints, size: int) -> Floats:
        """Seconds of all patterns for a tensor of so many bytes, in equal blocks."""
        while True:
            table, (prices, done) = self._known(), self._of_patterns.get(size, (np.zeros(0), 0))
            if done < table.count:
                prices = np.append(prices, np.full(len(self._moves) - len(prices), math.inf))
                np.minimum.at(prices, table.owner[done:], self._prices(size)[1][table.terms[done:]].sum(axis=1))
                self._of_patterns[size] = prices, table.count
            further = [n for n in self._waiting.intersection(used.tolist()) if prices[n] > _at(self._least[n], size)]
            if not further:
                return prices
            self._look_further(further)

    def _uneven(self, patterns: Ints, dims: NDArray[np.int8], shape: Shape) -> Ints:
        """The moves that may lead over unequal blocks, as places in the flattened matrix."""
        if shape and all(n % self.mesh.size == 0 for n in shape):
            return np.zeros(0, np.int64)
        table = self._known()
        found = (math.prod(shape) % table.divisor != 0)[patterns]
        if not any(n % self.mesh.size == 0 for n in shape):
            found |= table.is_staged[patterns]
        unfit = np.array(shape, np.int64)[:, None] % table.distinct != 0  # by dim and number of a divisor
        for column in range(min(len(shape), table.divisors.shape[1])):
            found |= unfit[dims[..., column], table.divisors[:, column][patterns]]
        return np.flatnonzero(found)

    def _uneven_seconds(self, patterns: Ints, sizes: Ints, count: int, item: int) -> tuple[Floats, Flags]:
        """Seconds of moves that may lead over unequal blocks, with dims of some sizes: NaN if only steps tell; and whether they
        may take longer."""
        size = count * item
        least = np.array([_at(self._least[number], size) for number in patterns.tolist()])
        some = np.array([number in self._waiting for number in patterns.tolist()])
        if some.any():
            direct, even = self._at_least(self._known().first[patterns[some]], sizes[some], count, size)
            self._look_further(patterns[some][~even | (direct > least[some])].tolist())
        table = self._known()
        move, chain = table.of(patterns)
        total, is_even = self._at_least(chain, sizes[move], count, size)
        first = np.searchsorted(move, np.arange(len(patterns)))  # the exchanges
        even = is_even[first]
        further = ~even | (total[first] > least)  # longer chains may take less
        left = table.fits(chain, sizes[move]) & (~table.is_long[chain] | further[move])
        best, less = np.full((2, len(patterns)), math.inf)
        np.minimum.at(best, move[left & is_even], total[left & is_even])
        np.minimum.at(less, move[left & ~is_even], total[left & ~is_even])
        result, blocks = np.minimum(best, less), table.blocks(sizes.shape[1])
        ends = [blocks[table.states[chain[first], 0]], blocks[table.target[chain[first]]]]
        near = np.all([-(-sizes // k) * k <= NEARLY * sizes for k in ends], axis=(0, 2))
        result[~even & ~near] = math.nan
        return result, less < best

    def _at_least(self, chain: Ints, sizes: Ints, count: int, size: int) -> tuple[Floats, Flags]:
        """Seconds of chains, at least, where dims have some sizes; and whether they lead over equal blocks only.

        The busiest device receives no less than each would if blocks were equal, apart from what it keeps of its own: that is
        given away. Where blocks differ only because a dim has fewer rows than blocks, those that have one have what its
        length says, and nothing is given away.
        """
        table, n = self._known(), sizes[:, None, :]
        lines, prices = self._prices(size)
        blocks = table.blocks(sizes.shape[1])[table.states[chain]]
        unlike = n % blocks != 0
        kinds = np.where((unlike & (blocks < n)).any(axis=2), UNLIKE, np.where(unlike.any(axis=2), SHORT, EQUAL))
        kind = np.maximum.accumulate(kinds, axis=1)[:, 1:]  # after each collective
        idle = np.maximum(blocks / np.maximum(n, 1), 1.0).prod(axis=2)  # times what it would be: blocks that have rows
        more = np.where(table.after[chain], idle[:, 1:], idle[:, :-1])
        terms, least = table.terms[chain], table.least[chain]
        short = (lines[terms][..., 0] + lines[terms][..., 1] * more[..., None]).min(axis=2)
        other = np.where(least >= 0, prices[least], np.where(kind == SHORT, short, UNEQUAL * prices[terms]))
        total: Floats = np.where(kind == EQUAL, prices[terms], other).sum(axis=1)
        return total, (kinds == EQUAL).all(axis=1) & (count % table.divisors_of_all[chain] == 0)


class _Floored(Moves):
    """Moves on a mesh of many axes: they count with floors, but for those whose patterns are among the exact ones."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh)
        self._floors = Floors(mesh)
        self._parts: dict[Parts, int] = {}  # numbered
        self._numbers: list[int] = []  # of the parts of patterns
        self._listed_blocks: list[
            list[int]
        ] = []  # of patterns: of each dim, before, after and between; then of axes in the way
        self._arrays = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
        self._taken: dict[int, int] = {}  # patterns whose chains were found
        self._of_moves: dict[Any, int] = {}  # patterns of moves

    def _matrix(
        self, before: Sequence[Sharding], after: Sequence[Sharding], shape: Shape, item: int
    ) -> tuple[Floats, Flags]:
        patterns, dims = self.patterns.of(before, after, len(shape))
        self._see_patterns()
        sizes = np.array(shape, np.int64)[dims.reshape(patterns.size, len(shape))]
        first, where = distinct(np.column_stack([patterns.reshape(-1), sizes]))
        seconds, less = self._floor(patterns.reshape(-1)[first], sizes[first], math.prod(shape), item)
        return seconds[where].reshape(patterns.shape), less[where].reshape(patterns.shape)

    def _see_patterns(self) -> None:
        """Finds what the floors of new patterns depend on."""
        have, width = len(self._numbers), len(self.patterns.axes) * 2 + 1
        if have == len(self.patterns.found):
            return
        for pattern in self.patterns.found[have:]:
            parts, blocks = self._floors.parts(*pattern)
            self._numbers.append(self._parts.setdefault(parts, len(self._parts)))
            own = [[*some, *[1] * (width - len(some))] for some in blocks]
            split = self.group.count(parts.split)
            way = [split] * len(pattern.source) + [1] * (width - len(pattern.source))
            chunks = split * self.group.count(parts.reduced) if parts.reduced else 1
            self._listed_blocks.append([n for some in (*own, way) for n in some] + [chunks])
        self._arrays = np.array(self._numbers), np.array(self._listed_blocks, np.int64)

    def _floor(self, patterns: Ints, sizes: Ints, count: int, item: int) -> tuple[Floats, Flags]:
        """Seconds that moves take at least, and which may take longer."""
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

    def _open(self, seconds: Floats, less: Flags, about: Any, exact: Exact) -> None:
        before, after, shape, dtype = about
        wanted = {self._pattern(move) for move in exact}
        if not wanted or not all(map(self.patterns.has, (*before, *after))):
            return
        patterns, dims = self.patterns.of(before, after, len(shape))
        at = np.flatnonzero(less & np.isin(patterns, list(wanted)))
        if not len(at):
            return
        for number in np.unique(patterns.reshape(-1)[at]).tolist():
            if number not in self._taken:
                self._taken[number] = len(self._moves)
                self._take_up(Move(self.group, *self.patterns.found[number]))
        sizes = np.array(shape, np.int64)[dims.reshape(patterns.size, len(shape))[at]]
        flat = np.array([self._taken[number] for number in patterns.reshape(-1)[at].tolist()])
        first, where = distinct(np.column_stack([flat, sizes]))
        found, more = self._uneven_seconds(flat[first], sizes[first], math.prod(shape), dtype.itemsize)
        found, more = found[where], more[where]
        known = ~np.isnan(found)
        at, found, more = at[known], found[known], more[known]
        flat_seconds, flat_less = seconds.reshape(-1), less.reshape(-1)
        flat_seconds[at] = np.where(more, np.maximum(found, flat_seconds[at]), found)
        flat_less[at] = more

    def _pattern(self, move: Any) -> int:
        source, target, shape, _ = move
        if not (self.patterns.has(source) and self.patterns.has(target)):
            return -1
        key = source, target, len(shape)
        if key not in self._of_moves:
            self._of_moves[key] = int(self.patterns.of((source,), (target,), len(shape))[0][0, 0])
        return self._of_moves[key]


class _Chain(NamedTuple):
    """A chain in numbers: of its pattern, whether it is long, of the target's state, what divides all elements, of the state in
    which an all_reduce is cut in stages, and into how many more blocks; then of its terms, and of its states."""

    figures: list[int]
    terms: list[int]  # -1 where nothing is received
    least: list[int]  # of exchanges between unequal blocks
    after: list[bool]  # whether what a device receives follows from the blocks after the term
    states: list[int]


class _Table:
    """Chains as arrays."""

    def __init__(self) -> None:
        self.count = 0
        self.figures = np.zeros((0, 6), np.int64)
        self.terms, self.least, self.states = (np.zeros((0, 1), np.int64) for _ in range(3))
        self.after = np.zeros((0, 1), bool)

    def with_more(self, chains: list[_Chain], states: list[tuple[int, ...]], patterns: int) -> "_Table":
        """All chains, of which those of this table are the first."""
        new, result = chains[self.count :], _Table()
        result.count = len(chains)
        result.figures = np.concatenate([self.figures, [chain.figures for chain in new]])
        width = max(self.terms.shape[1], *[len(chain.terms) for chain in new])
        result.terms = _stacked(self.terms, [chain.terms for chain in new], width, -1)
        result.least = _stacked(self.least, [chain.least for chain in new], width, -1)
        result.after = _stacked(self.after, [chain.after for chain in new], width, False)
        result.states = _stacked(self.states, [chain.states for chain in new], width + 1, -1)
        target = result.figures[:, 2:3]
        result.states = np.where(result.states < 0, target, result.states)
        result._finish(states, patterns)
        return result

    def _finish(self, states: list[tuple[int, ...]], patterns: int) -> None:
        self.owner, long, self.target, self.divisors_of_all, self.stage, self.more = self.figures.T
        self.is_long = long > 0
        most = max(map(len, states))
        self._blocks = np.array([[*blocks, *[1] * (most - len(blocks))] for blocks in states], np.int64)
        self._by_rank: dict[int, Ints] = {}
        order = np.argsort(self.owner, kind="stable")
        self._order, self._starts = order, np.searchsorted(self.owner[order], np.arange(patterns + 1))
        self.first = order[self._starts[:-1]]
        self.divisor, self.is_staged = np.ones(patterns, np.int64), np.zeros(patterns, bool)
        np.lcm.at(self.divisor, self.owner, self.divisors_of_all)
        np.logical_or.at(self.is_staged, self.owner, self.more > 1)
        divisors = np.ones((patterns, most), np.int64)
        np.lcm.at(divisors, self.owner, np.lcm.reduce(self._blocks[self.states], axis=1))
        self.distinct, numbers = np.unique(divisors, return_inverse=True)
        self.divisors = numbers.reshape(divisors.shape)  # of patterns and dims, as numbers of distinct ones

    def blocks(self, rank: int) -> Ints:
        """For each state into how many blocks each of so many dims is split."""
        found = self._by_rank.get(rank)
        if found is None:
            more = max(rank - self._blocks.shape[1], 0)
            found = self._by_rank[rank] = np.pad(self._blocks[:, :rank], ((0, 0), (0, more)), constant_values=1)
        return found

    def of(self, patterns: Ints) -> tuple[Ints, Ints]:
        """The chains of all of some patterns: for each the pattern's place, and its number."""
        counts = self._starts[patterns + 1] - self._starts[patterns]
        place = np.repeat(np.arange(len(patterns)), counts)
        within = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
        return place, self._order[self._starts[patterns][place] + within]

    def fits(self, chain: Ints, sizes: Ints) -> Flags:
        """Whether some dim can be split further, where an all_reduce is in stages."""
        more = self.more[chain]
        left = sizes // self.blocks(sizes.shape[1])[self.stage[chain]] % more[:, None]
        found: Flags = (more == 1) | (left == 0).any(axis=1)
        return found


def _stacked(old: Any, rows: Sequence[list[Any]], width: int, fill: Any) -> Any:
    """Rows below those of an array, all as wide as the longest."""
    padded = np.pad(old, ((0, 0), (0, width - old.shape[1])), constant_values=fill)
    return np.concatenate([padded, np.array([row + [fill] * (width - len(row)) for row in rows], old.dtype)])


def _quickest(lines: Sequence[Line]) -> list[Line]:
    """Lines without those that another is never above."""
    found: list[Line] = []
    for start, pace in sorted(set(lines)):
        if not found or pace < found[-1][1]:
            found.append((start, pace))
    return found


def _at(line: Line, size: int) -> float:
    return line[0] + line[1] * size


@lru_cache(maxsize=1 << 16)
def stepped(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> float:
    """Seconds of the steps that run. That a value becomes partial takes nothing."""
    same = source.reduction == target.reduction
    if target.partial and not (same and set(target.partial) <= set(source.partial)):
        target = target.replace(partial=tuple([axis for axis in target.partial if same and axis in source.partial]))
    return seconds_of_steps(move_steps(source, target, shape, dtype))
