"""`Moves`: seconds of moves between placements, for the check of a certificate.

What a move between equal blocks takes follows from its pattern: what splits each dim before and after, and what is summed. Dims
count in one order, and alike axes (equal sizes and links) under one name. For a pattern the chains of collectives are found
once (`repriced_chains`), and for a number of bytes all patterns are priced at once. Moves over unequal blocks count with what
they take at least, or, where the certificate says so, with what their steps take (`repriced_steps`).
"""

import math
from collections.abc import Container, Sequence
from functools import cached_property, lru_cache
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.mesh import Mesh
from shardwright.plan import move_steps
from shardwright.planner.repriced_chains import Chain, Group, Move
from shardwright.planner.repriced_links import Line, links_of
from shardwright.planner.repriced_steps import seconds_of_steps
from shardwright.sharding import Sharding

Shape = tuple[int, ...]
Shardings = tuple[Sharding, ...]
DType = np.dtype[Any]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Exact = Container[tuple[Sharding, Sharding, Shape, DType]]
PLAIN = ("sum", "max", "min", "product")  # reductions that travel in the tensor's dtype
MOST_AXES = 5  # of a mesh whose moves have patterns
MOST_NAMES = 120  # ways to name alike axes that are looked at
UNEQUAL = 0.75  # of what a collective takes between equal blocks: what it takes at least between unequal ones
NEARLY = 1.25  # times an equal block: the largest block for which that is known
EQUAL, SHORT, UNLIKE = range(3)  # how blocks differ: not at all; because there are more blocks than rows; otherwise


@lru_cache(maxsize=16)
def moves_of(mesh: Mesh) -> "Moves":
    """The moves of a mesh; what is found for patterns is kept."""
    return Moves(mesh)


class Moves:
    """Seconds of moves on a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.group = mesh, Group(mesh)
        self.axes = [axis for axis, n in mesh.sizes.items() if n > 1]
        orders = [some for n in range(len(self.axes) + 1) for some in permutations(range(len(self.axes)), n)]
        self.lists = sorted(orders) if len(self.axes) <= MOST_AXES else []  # of axes that split a dim, by number
        self._numbers = {tuple([self.axes[i] for i in some]): number for number, some in enumerate(self.lists)}
        self._ranks: dict[int, _Rank] = {}
        self.patterns: list[Pattern] = []
        self._known: dict[tuple[int, ...], int] = {}  # the number of a pattern
        self._terms: dict[tuple[str, tuple[str, ...], float], int] = {}
        self._lines: list[list[Line]] = []  # of terms: algorithms, seconds to start and a byte of the tensor
        self._rows: list[list[int]] = []  # of chains: terms
        self._owners: list[int] = []  # of chains: the pattern
        self._priced: dict[int, tuple[Floats, int]] = {}  # by bytes: of patterns, and how many chains that has

    def seconds(self, before: Shardings, after: Shardings, shape: Shape, dtype: DType, exact: Exact = ()) -> Floats:
        """Of the moves from each of some placements to each of others."""
        rows, columns = list(dict.fromkeys(before)), list(dict.fromkeys(after))
        result = np.full((len(rows), len(columns)), math.nan)
        known = [[i for i, s in enumerate(some) if self._has_pattern(s)] for some in (rows, columns)]
        if all(known):
            ends = [rows[i] for i in known[0]], [columns[j] for j in known[1]]
            seconds, less = self._matrix(*ends, shape, dtype)
            if exact:
                for i, j in np.argwhere(less):
                    if (ends[0][i], ends[1][j], shape, dtype) in exact:
                        seconds[i, j] = math.nan
            result[np.ix_(*known)] = seconds
        for i, j in np.argwhere(np.isnan(result)):
            result[i, j] = stepped(rows[i], columns[j], shape, dtype)
        if len(rows) == len(before) and len(columns) == len(after):
            return result
        at = [{s: i for i, s in enumerate(some)} for some in (rows, columns)]
        return result[np.ix_([at[0][s] for s in before], [at[1][s] for s in after])]

    def _has_pattern(self, s: Sharding) -> bool:
        plain = not s.offsets and not s.halo and (not s.partial or s.reduction in PLAIN)
        return plain and s.mesh == self.mesh and bool(self.lists) and all(axis in self.axes for axis in s.axes)

    def _matrix(
        self, before: Sequence[Sharding], after: Sequence[Sharding], shape: Shape, dtype: DType
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Seconds of moves that have patterns, NaN where only steps tell; and which of them may take longer."""
        size = math.prod(shape) * dtype.itemsize
        rank = self._ranks.setdefault(len(shape), _Rank(self, len(shape)))
        patterns, dims = rank.patterns(before, after)
        used = np.unique(patterns)
        prices = self._prices(size, used)
        seconds, less = prices[patterns], np.zeros(patterns.shape, bool)
        uneven = self._uneven(used, patterns, dims, shape)
        if len(uneven):
            flat, sizes = patterns.reshape(-1)[uneven], np.array(shape, np.int64)[dims.reshape(-1, len(shape))[uneven]]
            for number, *lengths in np.unique(np.column_stack([flat, sizes]), axis=0).tolist():
                same = uneven[(flat == number) & (sizes == lengths).all(axis=1)]
                found = self.patterns[number].uneven_seconds(tuple(lengths), size, dtype.itemsize)
                seconds.reshape(-1)[same], less.reshape(-1)[same] = found
        return seconds, less

    def _uneven(self, used: Ints, patterns: Ints, dims: Ints, shape: Shape) -> Ints:
        """The moves that may lead over unequal blocks."""
        if shape and all(n % self.mesh.size == 0 for n in shape):
            return np.zeros(0, np.int64)
        count, roomy = math.prod(shape), any(n % self.mesh.size == 0 for n in shape)
        width = len(shape)
        divisors = np.ones((len(self.patterns), width), np.int64)
        odd = np.zeros(len(self.patterns), bool)
        for number in used.tolist():
            pattern = self.patterns[number]
            divisors[number, : min(width, len(pattern.divisors))] = pattern.divisors[:width]
            odd[number] = bool(count % pattern.divisor) or (pattern.staged and not roomy)
        distinct, which = np.unique(divisors, return_inverse=True)
        unfit = np.array(shape, np.int64)[:, None] % distinct[None, :] != 0  # by dim and divisor
        which = which.reshape(divisors.shape)[patterns]
        found = odd[patterns]
        for column in range(width):
            found |= unfit[dims[..., column], which[..., column]]
        return np.flatnonzero(found)

    # -- patterns -----------------------------------------------------------------------------------------------------

    def coded(self, s: Sharding, rank: int) -> list[int]:
        """For each dim the number of its list of axes; the partial axes, and the reduction, as numbers."""
        partial = sum([1 << self.axes.index(axis) for axis in s.partial])
        return [*[self._numbers[axes] for axes in s.dims[:rank]], partial, PLAIN.index(s.reduction) if partial else 0]

    @cached_property
    def namings(self) -> list[tuple[Ints, Ints]]:
        """For each way to name alike axes: the numbers of lists, and of sets of axes, under these names."""
        kinds: dict[object, list[int]] = {}
        for number, axis in enumerate(self.axes):
            kinds.setdefault((self.mesh.sizes[axis], tuple(self.mesh.links_along((axis,)))), []).append(number)
        every = product(*[permutations(kind) for kind in kinds.values()])
        if math.prod(math.factorial(len(kind)) for kind in kinds.values()) > MOST_NAMES:
            every = iter([tuple(map(tuple, kinds.values()))])
        found, numbers = [], {some: number for number, some in enumerate(self.lists)}
        for order in every:
            name = {old: new for kind, some in zip(kinds.values(), order, strict=True) for old, new in zip(some, kind, strict=True)}
            lists = [numbers[tuple([name[i] for i in some])] for some in self.lists]
            sets = [sum([1 << name[i] for i in name if s >> i & 1]) for s in range(1 << len(self.axes))]
            found.append((np.array(lists), np.array(sets)))
        return found

    def pattern(self, codes: tuple[int, ...], summed: int) -> int:
        """The number of a pattern: of dims, each the lists before and after in one number, with axes to be summed."""
        key = (*codes, summed)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.patterns)
            pairs = [divmod(code, len(self.lists)) for code in codes]
            source, target = (
                tuple([tuple([self.axes[i] for i in self.lists[pair[side]]]) for pair in pairs]) for side in (0, 1)
            )
            axes = tuple([axis for i, axis in enumerate(self.axes) if summed >> i & 1])
            self.patterns.append(Pattern(Move(self.group, source, target, axes)))
            self._add(found, self.patterns[-1].chains)
        return found

    # -- prices -------------------------------------------------------------------------------------------------------

    def _add(self, number: int, chains: Sequence[Chain]) -> None:
        for chain in chains:
            row = []
            for name, axes, part in chain.terms:
                if part:
                    key = name, axes, part
                    if key not in self._terms:
                        self._terms[key] = len(self._lines)
                        lines = links_of(self.mesh, axes).lines("exchange" if name == "permute" else name)
                        self._lines.append([(start, pace * part) for start, pace in lines])
                    row.append(self._terms[key])
            self._rows.append(row)
            self._owners.append(number)

    def _prices(self, size: int, used: Ints) -> Floats:
        """Of all patterns, for a tensor of so many bytes."""
        prices = self._known_prices(size)
        further = [
            number for number in used.tolist() if (line := self.patterns[number].further) and prices[number] > line[0] + line[1] * size
        ]
        for number in further:
            self._add(number, self.patterns[number].search())
        return self._known_prices(size) if further else prices

    def _known_prices(self, size: int) -> Floats:
        prices, done = self._priced.get(size, (np.zeros(0), 0))
        if done < len(self._rows):
            if not size:
                return np.zeros(len(self.patterns))
            width = max(map(len, self._lines), default=1)
            lines = np.array([some + [some[0]] * (width - len(some)) for some in self._lines]).reshape(-1, width, 2)
            terms = np.append((lines[..., 0] + lines[..., 1] * size).min(axis=1), 0.0)
            longest = max(map(len, self._rows[done:]))
            rows = np.array([row + [-1] * (longest - len(row)) for row in self._rows[done:]], np.int64)
            prices = np.concatenate([prices, np.full(len(self.patterns) - len(prices), math.inf)])
            np.minimum.at(prices, self._owners[done:], terms[rows].sum(axis=1))
            self._priced[size] = prices, len(self._rows)
        return prices


class _Rank:
    """The placements of tensors with so many dims, and the patterns of the moves between them."""

    def __init__(self, moves: Moves, rank: int) -> None:
        self.moves, self.rank = moves, rank
        self._numbers: dict[Sharding, int] = {}
        self._codes: list[list[int]] = []
        self._patterns = np.full((0, 0), -1)
        self._dims = np.zeros((0, 0, rank), np.int8)

    def patterns(self, before: Sequence[Sharding], after: Sequence[Sharding]) -> tuple[Ints, Ints]:
        """For all pairs the number of the pattern, and the dims of the tensor in its order."""
        rows, columns = ([self._number(s) for s in some] for some in (before, after))
        have = len(self._patterns)
        if len(self._codes) > have:
            more = max(2 * len(self._codes), 64) - have
            self._patterns = np.pad(self._patterns, (0, more), constant_values=-1)
            self._dims = np.pad(self._dims, ((0, more), (0, more), (0, 0)))
        at = np.ix_(rows, columns)
        found = self._patterns[at]
        if (found < 0).any():
            i, j = np.nonzero(found < 0)
            pairs = np.array(rows)[i], np.array(columns)[j]
            self._patterns[pairs], self._dims[pairs] = self._made(*pairs)
            found = self._patterns[at]
        return found, self._dims[at]

    def _number(self, s: Sharding) -> int:
        found = self._numbers.get(s)
        if found is None:
            found = self._numbers[s] = len(self._codes)
            self._codes.append(self.moves.coded(s, self.rank))
        return found

    def _made(self, source: Ints, target: Ints) -> tuple[Ints, Ints]:
        codes, rank = np.array(self._codes, np.int64), self.rank
        a, b, count = codes[source], codes[target], len(self.moves.lists)
        summed = a[:, -2] & ~np.where(a[:, -1] == b[:, -1], b[:, -2], 0)
        dims = a[:, :rank] * count + b[:, :rank]
        order = np.argsort(np.where(dims == 0, count * count, dims), axis=1, kind="stable")  # those that nothing splits last
        rows = np.column_stack([np.take_along_axis(dims, order, axis=1), summed])
        rows, first, where = _distinct(rows)
        named, inner = self._named(rows)
        free = (named[:, :-1] == 0).argmax(axis=1) if rank else np.zeros(len(named), np.int64)
        full = (named[:, :-1] != 0).all(axis=1)
        numbers = []
        for row, one, is_full in zip(named.tolist(), free.tolist(), full.tolist(), strict=True):
            numbers.append(self.moves.pattern(tuple(row[:rank] if is_full else row[: one + 1]), row[-1]))
        order = np.take_along_axis(order, inner[where], axis=1)
        return np.array(numbers)[where], order

    def _named(self, rows: Ints) -> tuple[Ints, Ints]:
        """Patterns under the names of alike axes that put them first, and the order of their dims under these."""
        count = len(self.moves.lists)
        best = orders = None
        for lists, sets in self.moves.namings:
            old, new = np.divmod(rows[:, :-1], count)
            dims = lists[old] * count + lists[new]
            order = np.argsort(np.where(dims == 0, count * count, dims), axis=1, kind="stable")
            some = np.column_stack([np.take_along_axis(dims, order, axis=1), sets[rows[:, -1]]])
            if best is None or orders is None:
                best, orders = some, order
            else:
                less = _before(some, best)
                best[less], orders[less] = some[less], order[less]
        assert best is not None
        assert orders is not None
        return best, orders


def _before(some: Ints, others: Ints) -> NDArray[np.bool_]:
    """Which rows are less than others: by the first number that differs."""
    differ = some != others
    first = differ.argmax(axis=1)[:, None]
    less: NDArray[np.bool_] = np.take_along_axis(some, first, 1)[:, 0] < np.take_along_axis(others, first, 1)[:, 0]
    return less


def _distinct(rows: Ints) -> tuple[Ints, Ints, Ints]:
    """The distinct rows, where each is first, and for all rows which of them it is."""
    code = np.zeros(len(rows), np.int64)
    for column in rows.T:
        width = int(column.max(initial=0)) + 1
        if int(code.max(initial=0)) >= 2**62 // width:
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
        code = code * width + column
    _, first, where = np.unique(code, return_index=True, return_inverse=True)
    return rows[first], first, where.reshape(-1)


class Pattern:
    """The chains of one pattern, whatever the size of the tensor."""

    def __init__(self, move: Move) -> None:
        self.move, self.group = move, move.group
        self.direct, self.short = move.direct(), move.short()
        self.long: list[Chain] | None = [] if self.short else None
        if move.summed:
            self.search()
        self._needs()

    @cached_property
    def _least(self) -> Line:
        return self.move.least_of_long()

    @property
    def further(self) -> Line | None:
        """What longer chains take at least, if none were looked for."""
        return self._least if self.long is None else None

    def search(self) -> list[Chain]:
        """Looks for longer chains, where there are no short ones."""
        if self.long is None:
            self.long = self.move.long()
            self._needs()
        return self.long

    @property
    def chains(self) -> list[Chain]:
        """All of them that were looked for."""
        return [self.direct, *self.short, *(self.long or ())]

    def _needs(self) -> None:
        """What must divide each dim, and all elements, for equal blocks; whether an all_reduce may be in stages."""
        states = [blocks for chain in self.chains for blocks in chain.blocks if blocks and not chain.stage[1]]
        states.append(self.group.blocks(self.move.target))
        self.divisors = [math.lcm(*some) for some in zip(*states, strict=True)]
        self.divisor = math.lcm(*[chain.divisor for chain in self.chains])
        self.staged = any(chain.stage[1] for chain in self.chains)

    def uneven_seconds(self, shape: Shape, size: int, itemsize: int) -> tuple[float, bool]:
        """Seconds if blocks may be unequal, NaN if only steps tell, and whether it may take longer. Dims are in the order of the
        pattern."""
        count = size // itemsize
        ends = self.direct.blocks[0], self.group.blocks(self.move.target)
        even = self._is_even(self.direct, shape, count)
        if not even and not all(-(-n // k) * k <= NEARLY * n for end in ends for n, k in zip(shape, end, strict=False)):
            return math.nan, False
        best = self._seconds(self.direct, size) if even else math.inf
        if self.further and best > self.further[0] + self.further[1] * size:
            self.search()
        least = math.inf
        for chain in [*self.short, *(self.long or ()), *([] if even else [self.direct])]:
            if self._exists(chain, shape):
                if self._is_even(chain, shape, count):
                    best = min(best, self._seconds(chain, size))
                else:
                    least = min(least, self._at_least(chain, shape, size))
        return (least, True) if least < best else (best, False)

    def _exists(self, chain: Chain, shape: Shape) -> bool:
        """Whether some dim can be split further, if there are stages."""
        blocks, more = chain.stage
        return not more or any(n // k % more == 0 for n, k in zip(shape, (*blocks, *[1] * len(shape)), strict=False))

    def _is_even(self, chain: Chain, shape: Shape, count: int) -> bool:
        states = [*chain.blocks, self.group.blocks(self.move.target)]
        if chain.stage[1]:  # the dim that is split further is any that fits
            states = [self.direct.blocks[0], chain.stage[0], states[-1]]
        return not count % chain.divisor and not any(
            n % k for blocks in states for n, k in zip(shape, blocks, strict=False)
        )

    def _seconds(self, chain: Chain, size: float) -> float:
        return sum([self._term(name, axes, part * size) for name, axes, part in chain.terms])

    def _term(self, name: str, axes: tuple[str, ...], received: float) -> float:
        return links_of(self.group.mesh, axes).seconds("exchange" if name == "permute" else name, received)

    def _at_least(self, chain: Chain, shape: Shape, size: float) -> float:
        """Seconds of a chain that leads over unequal blocks, at least.

        The busiest device receives no less than each would if blocks were equal, apart from what it keeps of its own: that is
        given away. Where blocks differ only because a dim has fewer rows than blocks, those that have one have what its
        length says, and nothing is given away.
        """
        total, kind = 0.0, _difference(shape, chain.blocks[0])
        for (name, axes, part), before, after in zip(chain.terms, chain.blocks, chain.blocks[1:], strict=False):
            kind = max(kind, _difference(shape, after))
            received = part * size
            if not part:
                continue
            if kind == EQUAL:
                total += self._term(name, axes, received)
            elif name in ("exchange", "permute"):
                total += min([self._least_exchange(some, UNEQUAL * received) for some in self._crossings(name, axes)])
            elif kind == SHORT:
                blocks = after if name in ("all_gather", "all_to_all") else before
                more = math.prod([max(1.0, k / n) for n, k in zip(shape, blocks, strict=False)])
                total += self._term(name, axes, more * received)
            else:
                total += UNEQUAL * self._term(name, axes, received)
        return total

    def _least_exchange(self, axes: tuple[str, ...], received: float) -> float:
        links = links_of(self.group.mesh, axes)
        return min(links.seconds("exchange", received), links.seconds("permute", received))

    def _crossings(self, name: str, axes: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The axes that an exchange between unequal blocks may cross: those that leave a dim, and perhaps others."""
        if name == "permute":
            return [axes]
        move, every = self.move, [axis for axis, n in self.group.sizes.items() if n > 1]
        certain = {a for old, new in zip(move.source, move.target, strict=True) for a in old if a not in new}
        some = [some for n in range(1, len(every) + 1) for some in combinations(every, n)]
        return [axes_ for axes_ in some if certain <= set(axes_)]


def _difference(shape: Shape, blocks: tuple[int, ...]) -> int:
    """How blocks of dims differ."""
    pairs = [(n, k) for n, k in zip(shape, blocks, strict=False) if n % k]
    return UNLIKE if any(k < n for n, k in pairs) else SHORT if pairs else EQUAL


@lru_cache(maxsize=1 << 16)
def stepped(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> float:
    """Seconds of the steps that run. That a value becomes partial takes nothing."""
    same = source.reduction == target.reduction
    if target.partial and not (same and set(target.partial) <= set(source.partial)):
        target = target.replace(partial=tuple([axis for axis in target.partial if same and axis in source.partial]))
    return seconds_of_steps(move_steps(source, target, shape, dtype))
