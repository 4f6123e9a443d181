"""`Moves`: seconds of moves between placements, for the check of a certificate.

What a move between equal blocks takes follows from its pattern and the bytes of the tensor. For a pattern the chains of
collectives are found once (`repriced_chains`), and for a number of bytes all patterns are priced at once. Moves over unequal
blocks count with what they take at least, or, where the certificate says so, with what their steps take (`repriced_steps`).
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.mesh import Mesh
from shardwright.plan import move_steps
from shardwright.planner.repriced_chains import Axes, Group, Move
from shardwright.planner.repriced_links import Line, links_of
from shardwright.planner.repriced_middles import Ints, Lists, distinct
from shardwright.planner.repriced_patterns import Patterns
from shardwright.planner.repriced_rows import CROSSING, NAMES, UNEQUAL, Finder, Rows, rows_of
from shardwright.planner.repriced_steps import seconds_of_steps
from shardwright.sharding import Sharding

Shape = tuple[int, ...]
Shardings = tuple[Sharding, ...]
DType = np.dtype[Any]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Asked = tuple[Shardings, Shardings, Shape, DType]
Exact = Collection[tuple[Sharding, Sharding, Shape, DType]]
NEARLY = 1.25  # times an equal block: the largest block for which that is known
MOST_TABLES = 256  # of moves that are kept
EQUAL, SHORT, UNLIKE = range(3)  # how blocks differ: not at all; because there are more blocks than rows; otherwise


class Moves:
    """Seconds of moves on a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.group, self.patterns = mesh, Group(mesh), Patterns(mesh)
        axes = self.patterns.axes
        self._lists = Lists([mesh.sizes[axis] for axis in axes], self.patterns.lists)
        self._finder = Finder(self.group, axes, self._lists, self._named)
        self._least = np.zeros((0, 2))  # of patterns: what long chains take at least
        self._waiting = np.zeros(0, bool)  # whether the long chains of patterns were not looked for
        self._terms: dict[Any, int] = {}
        self._lines: list[list[Line]] = []  # of terms: algorithms, seconds to start and a byte of the tensor
        self._array = np.zeros((0, 1, 2))  # the same for all terms, and no term
        self._priced: dict[int, tuple[Floats, Floats]] = {}  # by bytes: of terms
        self._of_patterns: dict[int, tuple[Floats, int]] = {}  # by bytes: of patterns, and by how many chains
        self._rows: Rows | None = None
        self._table: _Table | None = None
        self._tables: dict[Asked, tuple[Floats, Flags]] = {}  # that were asked for

    def seconds(self, before: Shardings, after: Shardings, shape: Shape, dtype: DType, exact: Exact = ()) -> Floats:
        """Of the moves from each of some placements to each of others."""
        return self.several([(before, after, shape, dtype)], exact)[0]

    def several(self, asked: Sequence[Asked], exact: Exact = ()) -> list[Floats]:
        """The same for several tensors: what these moves have in common is found once."""
        new = [key for key in dict.fromkeys(asked) if key not in self._tables]
        found = {key: self._tables[key] for key in asked if key in self._tables}
        found.update(zip(new, self.made(new), strict=True))
        if len(self._tables) + len(new) > MOST_TABLES:
            self._tables.clear()
        self._tables.update({key: found[key] for key in new[:MOST_TABLES]})
        return [self.exactly(key, *found[key], exact) for key in asked]

    def exactly(self, asked: Asked, seconds: Floats, less: Flags, exact: Exact) -> Floats:
        """With the moves that count with what their steps take."""
        if not exact or not less.any():
            return seconds
        result, (before, after, shape, dtype) = seconds.copy(), asked
        for i, j in _listed(asked, less, exact):
            result[i, j] = stepped(before[i], after[j], shape, dtype)
        return result

    def made(self, asked: Sequence[Asked]) -> list[tuple[Floats, Flags]]:
        """Seconds of moves, and which of them may take longer."""
        every = [Matrix(key, self.patterns.has) for key in asked]
        known = [one for one in every if one.before and one.after]
        self.patterns.ask([(one.before, one.after, len(one.shape)) for one in known])
        if self.patterns.count > len(self._waiting):
            self._take_up(range(len(self._waiting), self.patterns.count))
        by_size: dict[tuple[int, int], list[Matrix]] = {}
        for one in known:
            one.patterns, one.dims = self.patterns.of(one.before, one.after, len(one.shape))
            by_size.setdefault((math.prod(one.shape), one.dtype.itemsize), []).append(one)
        further = np.zeros(len(self._waiting), bool)
        for (count, item), some in by_size.items():
            less = self._waiting & (self._even_seconds(count * item) > self._least @ (1.0, float(count * item)))
            for one in some:
                further[one.patterns] |= less[one.patterns]
        self._look_at(further)
        uneven = {key: self._uneven(some) for key, some in by_size.items()}
        for size, rows in uneven.items():
            self._look_at(self._further_uneven(rows, *size))
        for size, some in by_size.items():
            self._fill(some, uneven[size], *size)
        return [one.result() for one in every]

    def _fill(self, some: Sequence["Matrix"], uneven: Ints, count: int, item: int) -> None:
        """Fills in what moves of tensors of one size take, of which some may lead over unequal blocks."""
        prices = self._even_seconds(count * item)
        for one in some:
            one.fill(prices[one.patterns])
        if not len(uneven):
            return
        first, where = distinct(uneven)
        seconds, less = self._uneven_seconds(uneven[first, 0], uneven[first, 1:], count, item)
        ends = np.cumsum([len(one.uneven) for one in some])[:-1]
        for one, own in zip(some, np.split(where, ends), strict=True):
            one.fill_uneven(seconds[own], less[own])

    # -- chains -------------------------------------------------------------------------------------------------------

    def _take_up(self, numbers: range) -> None:
        """Finds the chains of more patterns."""
        changes = self.patterns.changes(numbers)
        rows, others = self._finder.rows(changes)
        self._add(rows._replace(owner=rows.owner + numbers.start))
        none, summed = others == 0, changes.summed > 0
        self._waiting = np.append(self._waiting, none & ~summed)
        self._least = np.concatenate([self._least, np.column_stack(self._finder.least_of_long(changes))])
        self._least[numbers.start :][~(none & ~summed)] = -math.inf, 0.0
        self._look_at(np.append(np.zeros(numbers.start, bool), none & summed))

    def _look_at(self, further: Flags) -> None:
        """Adds the long chains of patterns."""
        self._waiting &= ~further
        numbers, forms = np.flatnonzero(further).tolist(), self._finder.forms
        found = []
        for number, *pattern in zip(numbers, *self.patterns.changes(numbers), strict=True):
            source, target = (
                tuple([forms.names[some] for some in state[: pattern[3]].tolist()]) for state in pattern[:2]
            )
            move = Move(self.group, source, target, forms.axes_of(int(pattern[2])))
            found += [(number, move, chain) for chain in move.long()]
        if found:
            self._add(rows_of(found, self._term))

    def _add(self, rows: Rows) -> None:
        self._rows = rows if self._rows is None else self._rows.and_those(rows)

    def _named(self, name: int, some: int, part: float) -> int:
        """The number of a term on whole axes; an exchange between unequal blocks may be along others too."""
        every = [some] if name != CROSSING else [s for s in range(1, 1 << len(self.patterns.axes)) if s & some == some]
        links = tuple(map(self._finder.forms.axes_of, every))
        return self._term(NAMES[name] if name > 0 else "near", links, part)

    def _term(self, name: str, links: tuple[Axes, ...], part: float) -> int:
        key = name, links, part
        found = self._terms.get(key)
        if found is None:
            found = self._terms[key] = len(self._lines)
            names = {"permute": ["exchange"], "near": ["exchange", "permute"]}.get(name, [name])
            every = [line for axes in links for one in names for line in links_of(self.mesh, axes).lines(one)]
            self._lines.append(_quickest([(start, pace * part) for start, pace in every]))
        return found

    def _known(self) -> "_Table":
        """All chains."""
        assert self._rows is not None
        if self._table is None or self._table.count < len(self._rows.owner):
            self._table = _Table(self._rows, len(self._waiting))
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

    def _even_seconds(self, size: int) -> Floats:
        """Seconds of all patterns for a tensor of so many bytes, in equal blocks."""
        table, (prices, done) = self._known(), self._of_patterns.get(size, (np.zeros(0), 0))
        if done < table.count:
            prices = np.append(prices, np.full(len(self._waiting) - len(prices), math.inf))
            owner, terms = table.rows.owner[done:], table.rows.terms[done:]
            np.minimum.at(prices, owner, self._prices(size)[1][terms].sum(axis=1))
            self._of_patterns[size] = prices, table.count
        return prices

    def _uneven(self, some: Sequence["Matrix"]) -> Ints:
        """Notes the moves that may lead over unequal blocks, and gives the pattern and the sizes of dims of each."""
        rows, rank = [np.zeros((0, 1), np.int64)], max([len(one.shape) for one in some])
        for one in some:
            one.uneven = self._uneven_of(one.patterns, one.dims, one.shape)
            if len(one.uneven):
                dims = one.dims.reshape(one.patterns.size, -1)[one.uneven]
                sizes = as_wide(np.array(one.shape, np.int64)[dims], rank)
                rows.append(np.column_stack([one.patterns.reshape(-1)[one.uneven], sizes]))
        return np.concatenate(rows[1:] or rows)

    def _uneven_of(self, patterns: Ints, dims: NDArray[np.int8], shape: Shape) -> Ints:
        """These moves of a matrix, as places in it."""
        if shape and all(n % self.mesh.size == 0 for n in shape):
            return np.zeros(0, np.int64)
        table = self._known()
        found = (math.prod(shape) % table.divisor != 0)[patterns]
        if not any(n % self.mesh.size == 0 for n in shape):
            found |= table.is_staged[patterns]
        unfit = np.array(shape, np.int64)[:, None] % table.distinct != 0  # by dim and number of a divisor
        for column, divisors in enumerate(table.divisors.T[: len(shape)]):
            found |= unfit[dims[..., column], divisors[patterns]]
        return np.flatnonzero(found)

    def _further_uneven(self, rows: Ints, count: int, item: int) -> Flags:
        """For which patterns longer chains may take less, of moves that may lead over unequal blocks."""
        further, size = np.zeros(len(self._waiting), bool), count * item
        rows = rows[self._waiting[rows[:, 0]]]
        if len(rows):
            rows = rows[distinct(rows)[0]]
            direct, even = self._at_least(self._known().first[rows[:, 0]], rows[:, 1:], count, size)
            further[rows[~even | (direct > self._least[rows[:, 0]] @ (1.0, float(size))), 0]] = True
        return further

    def _uneven_seconds(self, patterns: Ints, sizes: Ints, count: int, item: int) -> tuple[Floats, Flags]:
        """Seconds of moves that may lead over unequal blocks, with dims of some sizes: NaN if only steps tell; and whether they
        may take longer."""
        size, table = count * item, self._known()
        move, chain = table.of(patterns)
        total, is_even = self._at_least(chain, sizes[move], count, size)
        first = np.searchsorted(move, np.arange(len(patterns)))  # the exchanges
        even = is_even[first]
        further = ~even | (total[first] > self._least[patterns] @ (1.0, float(size)))  # longer chains may take less
        left = table.fits(chain, sizes[move]) & (~table.rows.is_long[chain] | further[move])
        best, less = np.full((2, len(patterns)), math.inf)
        np.minimum.at(best, move[left & is_even], total[left & is_even])
        np.minimum.at(less, move[left & ~is_even], total[left & ~is_even])
        result, exchange = np.minimum(best, less), chain[first]
        ends = [as_wide(some[exchange], sizes.shape[1]) for some in (table.rows.blocks[:, 0], table.rows.target)]
        near = np.all([-(-sizes // k) * k <= NEARLY * sizes for k in ends], axis=(0, 2))
        result[~even & ~near] = math.nan
        return result, less < best

    def _at_least(self, chain: Ints, sizes: Ints, count: int, size: int) -> tuple[Floats, Flags]:
        """Seconds of chains, at least, where dims have some sizes; and whether they lead over equal blocks only.

        The busiest device receives no less than each would if blocks were equal, apart from what it keeps of its own: that is
        given away. Where blocks differ only because a dim has fewer rows than blocks, those that have one have what its
        length says, and nothing is given away.
        """
        rows, n = self._known().rows, sizes[:, None, :]
        lines, prices = self._prices(size)
        blocks = as_wide(rows.blocks[chain], sizes.shape[1])
        unlike = n % blocks != 0
        kinds = np.where((unlike & (blocks < n)).any(axis=2), UNLIKE, np.where(unlike.any(axis=2), SHORT, EQUAL))
        kind = np.maximum.accumulate(kinds, axis=1)[:, 1:]  # after each collective
        idle = np.maximum(blocks / np.maximum(n, 1), 1.0).prod(axis=2)  # times what it would be: blocks that have rows
        more = np.where(rows.after[chain], idle[:, 1:], idle[:, :-1])
        terms, least = rows.terms[chain], rows.least[chain]
        other = np.where(least >= 0, prices[least], UNEQUAL * prices[terms])
        short = (kind == SHORT) & (least < 0)
        start, pace = np.moveaxis(lines[terms[short]], 2, 0)
        other[short] = (start + pace * more[short][:, None]).min(axis=1)
        total: Floats = np.where(kind == EQUAL, prices[terms], other).sum(axis=1)
        return total, (kinds == EQUAL).all(axis=1) & (count % rows.divisor[chain] == 0)


def _listed(asked: Asked, less: Flags, exact: Exact) -> Iterator[tuple[int, int]]:
    """Which moves that may take longer are among the exact ones."""
    before, after, *kind = asked
    places: list[dict[Sharding, list[int]]] = [{}, {}]
    for some, shardings in zip(places, (before, after), strict=True):
        for at, s in enumerate(shardings):
            some.setdefault(s, []).append(at)
    for source, target, *own in exact:
        if own == kind:
            ends = product(places[0].get(source, ()), places[1].get(target, ()))
            yield from [(i, j) for i, j in ends if less[i, j]]


class Matrix:
    """The moves from some placements to others, those of which that have patterns, and what these take."""

    uneven: Ints  # the moves that may lead over unequal blocks, as places in the matrix of patterns
    patterns: Ints
    dims: NDArray[np.int8]

    def __init__(self, asked: Asked, has: Callable[[Sharding], bool]) -> None:
        self.ends, self.shape, self.dtype = asked[:2], asked[2], asked[3]
        self.every = [list(dict.fromkeys(some)) for some in self.ends]
        self._places = [[i for i, s in enumerate(some) if has(s)] for some in self.every]
        self.known = np.ix_(*self._places)
        self.before, self.after = ([some[i] for i in own] for some, own in zip(self.every, self._places, strict=True))
        self.seconds = np.full((len(self.every[0]), len(self.every[1])), math.nan)
        self.less = np.zeros(self.seconds.shape, bool)

    def fill(self, seconds: Floats, less: "Flags | bool" = False) -> None:
        """What moves with patterns take, and whether they may take longer."""
        self.seconds[self.known], self.less[self.known] = seconds, less

    def fill_uneven(self, seconds: Floats, less: Flags) -> None:
        """What those take that may lead over unequal ones, and whether they may take longer."""
        places = tuple(
            np.array(own)[at] for own, at in zip(self._places, divmod(self.uneven, len(self.after)), strict=True)
        )
        self.seconds[places], self.less[places] = seconds, less

    def result(self) -> tuple[Floats, Flags]:
        """Seconds of all, and whether they may take longer. Where no pattern tells, the steps do."""
        for i, j in np.argwhere(np.isnan(self.seconds)):
            self.seconds[i, j] = stepped(self.every[0][i], self.every[1][j], self.shape, self.dtype)
        if [len(some) for some in self.every] != [len(some) for some in self.ends]:
            number = [{s: i for i, s in enumerate(some)} for some in self.every]
            places = np.ix_(*[[own[s] for s in some] for own, some in zip(number, self.ends, strict=True)])
            self.seconds, self.less = self.seconds[places], self.less[places]
        self.seconds.setflags(write=False)
        return self.seconds, self.less


class _Table:
    """All chains, and what they say of patterns."""

    def __init__(self, rows: Rows, patterns: int) -> None:
        self.count, self.rows = len(rows.owner), rows
        order = np.argsort(rows.owner, kind="stable")
        self._order, self._starts = order, np.searchsorted(rows.owner[order], np.arange(patterns + 1))
        self.first = order[self._starts[:-1]]
        self.divisor = np.lcm.reduceat(rows.divisor[order], self._starts[:-1])
        self.is_staged = np.zeros(patterns, bool)
        self.is_staged[rows.owner[rows.more > 1]] = True
        blocks: Ints = np.lcm.reduceat(np.lcm.reduce(rows.blocks, axis=1)[order], self._starts[:-1])
        self.distinct, numbers = np.unique(blocks, return_inverse=True)
        self.divisors = numbers.reshape(blocks.shape)  # of patterns and dims, as numbers of distinct ones

    def of(self, patterns: Ints) -> tuple[Ints, Ints]:
        """The chains of all of some patterns: for each the pattern's place, and its number."""
        counts = self._starts[patterns + 1] - self._starts[patterns]
        place = np.repeat(np.arange(len(patterns)), counts)
        within = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
        return place, self._order[self._starts[patterns][place] + within]

    def fits(self, chain: Ints, sizes: Ints) -> Flags:
        """Whether some dim can be split further, where an all_reduce is in stages."""
        more = self.rows.more[chain]
        left = sizes // as_wide(self.rows.stage[chain], sizes.shape[1]) % more[:, None]
        found: Flags = (more == 1) | (left == 0).any(axis=1)
        return found


def as_wide(blocks: Ints, rank: int) -> Ints:
    """The blocks of so many dims."""
    more = max(rank - blocks.shape[-1], 0)
    return np.pad(blocks[..., :rank], [(0, 0)] * (blocks.ndim - 1) + [(0, more)], constant_values=1)


def _quickest(lines: Sequence[Line]) -> list[Line]:
    """Lines without those that another is never above."""
    found: list[Line] = []
    for start, pace in sorted(set(lines)):
        if not found or pace < found[-1][1]:
            found.append((start, pace))
    return found


@lru_cache(maxsize=1 << 16)
def stepped(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> float:
    """Seconds of the steps that run. That a value becomes partial takes nothing."""
    same = source.reduction == target.reduction
    if target.partial and not (same and set(target.partial) <= set(source.partial)):
        target = target.replace(partial=tuple([axis for axis in target.partial if same and axis in source.partial]))
    return seconds_of_steps(move_steps(source, target, shape, dtype))
