"""`Floors`: what moves take at least, by their patterns, for the check of a certificate on a mesh of many axes.

There the chains of all patterns would take minutes to find. A floor keeps of a chain only which axes are along its collectives:
after free slices some are summed and scattered, some summed, at most one step moves some, or several steps do, and some are
gathered. Each is the cheapest way to treat such a set of axes; where there are several steps, of pieces of axes, of which only
the numbers of devices along each kind of link count.

That holds between equal blocks. Where a dim is too short for all blocks of a chain, half of the devices hold nothing and the
others twice as much; where blocks differ otherwise, a part is given away.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

from shardwright.mesh import Mesh
from shardwright.planner.repriced_chains import Axes, State
from shardwright.planner.repriced_links import Links, links_of

UNEQUAL, NEARLY = (
    0.75,
    1.25,
)  # of a collective between unequal blocks, at least; times an equal block, for that to be known
SHORT = 2 * UNEQUAL  # of a permute between blocks of which no more than half have rows
GRIDS = ("ring", "line", "torus")
ROUNDING = 1 - 1e-12
Units = tuple[Any, ...]  # what a collective is along: axes, or numbers of devices along each kind of link


class Parts(NamedTuple):
    """What a floor depends on."""

    split: Axes  # the axes that split a dim before or after
    after: Axes
    gone: Axes
    scattered: Axes
    reduced: Axes
    moved: (
        Axes  # behind the first axis of a dim that differs, and used before and after, with what such axes take along
    )
    unlike: Axes  # these and more, where no single all_to_all will do
    left: Axes  # all behind the first that differs, before
    leaving: Axes  # of them those that are not on that dim afterwards
    whole: bool  # whether some dim has such axes before and after
    near: bool  # whether there is surely a chain with at most one step between slices and gathers


class Blocks(NamedTuple):
    """In how many blocks each dim is: before a move, after it, and where what is summed is scattered."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    between: tuple[int, ...]


class Floors:
    """Floors on a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.axes = tuple([axis for axis, n in mesh.sizes.items() if n > 1])
        self._sets = [some for n in range(1, len(self.axes) + 1) for some in combinations(self.axes, n)]
        self._kinds = {
            axis: [(self._kind(axis, link), n) for n, link in mesh.links_along((axis,))] for axis in self.axes
        }
        self._classes = tuple(dict.fromkeys([kind for some in self._kinds.values() for kind, _ in some]))
        self._known: dict[Any, float] = {}
        self._links: dict[Units, Links] = {}

    def _kind(self, axis: str, link: Any) -> Any:
        return link, axis if link.kind in GRIDS else ""

    # -- patterns -----------------------------------------------------------------------------------------------------

    def parts(self, source: State, target: State, summed: Axes) -> tuple[Parts, Blocks]:
        """What the floor of a pattern depends on."""
        held, wanted = (
            {axis: (dim, at) for dim, axes in enumerate(state) for at, axis in enumerate(axes)}
            for state in (source, target)
        )
        unlike = [_behind(old, new) for old, new in zip(source, target, strict=True)]
        left = {axis for old, _ in unlike for axis in old}
        both = {axis for old, new in unlike if old and new for axis in (*old, *new)}
        stays = [axis for axis in self.axes if axis in left and axis in wanted]
        moved, more = (self._with_behind(some, source, target) for some in ({*stays}, {*stays, *both}))
        one = not both and all(len({side[axis][0] for axis in stays}) <= 1 for side in (held, wanted))
        before, after = (
            tuple([self.mesh.axis_size(axes) if axes else 1 for axes in state]) for state in (source, target)
        )
        grown, shrunk = (
            tuple(
                [
                    k * math.prod([self.mesh.sizes[a] for a in axes if a not in other])
                    for k, axes in zip(blocks, state, strict=True)
                ]
            )
            for blocks, state, other in ((before, target, held), (after, source, wanted))
        )
        near = grown == shrunk or (one and self._together(stays, source, target, held, wanted))
        comes, goes = {*wanted}, {*held}
        leaving = {axis for axis in held if axis not in wanted or wanted[axis][0] != held[axis][0]}
        parts = Parts(
            split=self._sorted(goes | comes),
            after=self._sorted(comes),
            gone=self._sorted(goes - comes),
            scattered=self._sorted({*summed} & comes),
            reduced=self._sorted({*summed} - comes),
            moved=self._sorted(moved),
            unlike=() if one else self._sorted(more),
            left=self._sorted(left),
            leaving=self._sorted(leaving),
            whole=bool(both),
            near=near,
        )
        return parts, Blocks(before, after, grown if summed else before)

    def _sorted(self, some: set[str]) -> Axes:
        return tuple([axis for axis in self.axes if axis in some])

    def _with_behind(self, some: set[str], source: State, target: State) -> set[str]:
        """Axes with those that move along, since they are behind them on a dim."""
        while True:
            more = set(some)
            for axes in (*source, *target):
                first = next((at for at, axis in enumerate(axes) if axis in more), len(axes))
                more.update(axes[first:])
            if more == some:
                return more
            some = more

    def _together(self, stays: Sequence[str], source: State, target: State, held: Any, wanted: Any) -> bool:
        """Whether one all_to_all, or none, leads from where all slices are on their own dims to where all gathers are."""
        if not stays:
            return True
        old, new = source[held[stays[0]][0]], target[wanted[stays[0]][0]]
        moves = [axis for axis in old if axis in stays]
        return (
            moves == [axis for axis in new if axis in stays]
            and self._last(moves, old, wanted)
            and self._last(moves, new, held)
        )

    def _last(self, moves: Sequence[str], axes: Axes, other: Any) -> bool:
        """Whether what comes behind the first of them is one of them, or on the other side too."""
        return all(axis in moves or axis in other for axis in axes[axes.index(moves[0]) :])

    # -- seconds ------------------------------------------------------------------------------------------------------

    def figures(self, parts: Parts, size: float) -> tuple[float, float, float, float, float]:
        """Seconds of chains, at least, between equal blocks and where dims may be too short; of an exchange between equal
        blocks where nothing is summed, and of others at least; until any device hears of those along axes that it must."""
        chains = self.chain(parts, size, False), self.chain(parts, size, True)
        crossed = (*parts.leaving, *parts.scattered, *parts.reduced)
        launch = max([min([kind[0].latency for kind, _ in self._kinds[axis]]) for axis in crossed], default=0.0)
        return *chains, self.exchange(parts, size, True), self.exchange(parts, size, False), launch * ROUNDING

    def chain(self, parts: Parts, size: float, short: bool) -> float:
        """Seconds that chains take at least, for a tensor of so many bytes: between equal blocks, or where dims may be too
        short."""
        key = "chain", parts, size, short
        found = self._known.get(key)
        if found is None:
            found = self._chain(parts, size, SHORT if short else 1.0)
            if short:
                found = min(found, self.chain(parts, size, False))
            self._known[key] = found
        return found

    def _chain(self, parts: Parts, size: float, part: float) -> float:
        local = size / self._count(parts.split)
        ends = self._summed(parts, local) + self._joined("all_gather", parts.gone, local)
        near = ends
        if parts.unlike or parts.moved:
            near += self._step(parts.unlike or parts.moved, parts.split, local, part, not parts.unlike)
        if parts.near:
            return near * ROUNDING
        counts = [self._counts(some) for some in (parts.scattered, parts.moved, parts.gone)]
        far = self._reduced(parts.reduced, local) + self._joined("reduce_scatter", counts[0], local)
        far += self._several(counts[1], local, part) + self._joined("all_gather", counts[2], local)
        return min(near, far) * ROUNDING

    def exchange(self, parts: Parts, size: float, even: bool) -> float:
        """Seconds of a direct exchange: if blocks are equal and nothing is summed, else at least."""
        key = "exchange", parts, size, even
        found = self._known.get(key)
        if found is None:
            received = size / self._count(parts.after) * (1.0 if parts.whole else 1 - 1 / self._count(parts.left))
            if even:
                found = self._of(parts.left).seconds("exchange", received)
            else:
                sets = [some for some in self._sets if {*parts.leaving} <= {*some}]
                lines = [
                    line for some in sets for name in ("exchange", "permute") for line in self._of(some).lines(name)
                ]
                least = min([start for start, _ in lines]) + min([pace for _, pace in lines]) * received
                found = self._summed(parts, size / self._count(parts.split)) + (least if parts.left else 0.0)
                found *= ROUNDING
            self._known[key] = found
        return found

    def _summed(self, parts: Parts, local: float) -> float:
        return self._joined("reduce_scatter", parts.scattered, local) + self._reduced(parts.reduced, local)

    def _joined(self, name: str, units: Units, local: float) -> float:
        """Gathers along some axes, or pieces, in any groups and order, from shards of so many bytes; or scatters, which end
        with those."""
        if self._count(units) == 1:
            return 0.0
        key = name, units, local
        found = self._known.get(key)
        if found is None:
            found = math.inf
            for first, rest in self._cut(units):
                p = self._count(first)
                took = self._of(first).seconds(name, local * (p - 1))
                if took < found:
                    found = min(found, took + self._joined(name, rest, local * p))
            self._known[key] = found
        return found

    def _reduced(self, axes: Axes, local: float) -> float:
        """An all_reduce, some of it perhaps as a scatter before and a gather afterwards."""
        if not axes:
            return 0.0
        key = "reduced", axes, local
        if key not in self._known:
            ways = []
            for fast, slow in [*self._cut(axes), ((), axes)]:
                p, q = self._count(fast), self._count(slow)
                ways.append(self._of(fast).seconds("reduce_scatter", local * (1 - 1 / p)))
                ways[-1] += self._of(slow).seconds("all_reduce", local / p * (2 - 2 / q))
                ways[-1] += self._of(fast).seconds("all_gather", local / p * (p - 1))
            self._known[key] = min(ways)
        return self._known[key]

    def _step(self, axes: Axes, split: Axes, local: float, part: float, single: bool) -> float:
        """One all_to_all (if a `single` one may do) or one permute, along some axes and perhaps more."""
        key = "step", axes, split, local, part, single
        if key not in self._known:
            sets = [some for some in self._sets if {*axes} <= {*some} <= {*split}]
            self._known[key] = min([self._moved(some, local, part, single) for some in sets], default=math.inf)
        return self._known[key]

    def _moved(self, units: Units, local: float, part: float, single: bool = True) -> float:
        links = self._of(units)
        ways = [links.seconds(name, part * local) for name in (("exchange",) if part == 1 else ("exchange", "permute"))]
        if single:
            ways.append(links.seconds("all_to_all", local * (1 - 1 / self._count(units))))
        return min(ways)

    def _several(self, counts: Units, local: float, part: float) -> float:
        """Two steps or more, which cross so many devices."""
        key = "several", counts, local, part
        if key not in self._known:
            self._known[key] = self._two_or_more(counts, local, part)
        return self._known[key]

    def _two_or_more(self, counts: Units, local: float, part: float) -> float:
        ones = tuple([1] * len(counts))
        pairs = [(*ones[:i], 2, *ones[i + 1 :]) for i in range(len(counts))]
        least = min([self._moved(pair, local, part) for pair in pairs])
        if counts == ones:
            return 2 * least
        found = least + self._any(counts, local, part)
        for first, rest in self._cut(counts):
            took = self._moved(first, local, part)
            if took < found:
                found = min(found, took + (least if rest == ones else self._any(rest, local, part)))
        return found

    def _any(self, counts: Units, local: float, part: float) -> float:
        """One step or more."""
        key = "any", counts, local, part
        if key not in self._known:
            found = self._moved(counts, local, part)
            for first, rest in self._cut(counts):
                if self._count(rest) > 1:
                    took = self._moved(first, local, part)
                    if took < found:
                        found = min(found, took + self._any(rest, local, part))
            self._known[key] = found
        return self._known[key]

    # -- sets of axes, and numbers of devices -------------------------------------------------------------------------

    def _counts(self, axes: Axes) -> tuple[int, ...]:
        """How many devices there are along each kind of link."""
        every = [some for axis in axes for some in self._kinds[axis]]
        return tuple([math.prod([n for kind, n in every if kind == one]) for one in self._classes])

    def _count(self, units: Units) -> int:
        return math.prod([self.mesh.sizes[one] if isinstance(one, str) else one for one in units])

    def _cut(self, units: Units) -> Iterator[tuple[Units, Units]]:
        """The ways to take a part first, and what is left."""
        if units and isinstance(units[0], str):
            for n in range(1, len(units) + 1):
                for some in combinations(units, n):
                    yield some, tuple([one for one in units if one not in some])
            return
        for some in product(*[[k for k in range(1, n + 1) if n % k == 0] for n in units]):
            if math.prod(some) > 1:
                yield some, tuple([n // k for n, k in zip(units, some, strict=True)])

    def _of(self, units: Units) -> Links:
        found = self._links.get(units)
        if found is None:
            pieces = [
                (n, link)
                for (link, _), n in zip(self._classes, units, strict=False)
                if not isinstance(n, str) and n > 1
            ]
            own = bool(units) and not isinstance(units[0], str)
            found = self._links[units] = Links(pieces) if own else links_of(self.mesh, units)
        return found


def _behind(old: Axes, new: Axes) -> tuple[Axes, Axes]:
    """Two lists of axes from the first that differs."""
    same = next(
        (i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new))
    )
    return old[same:], new[same:]


def is_clean(n: int, sizes: Sequence[int]) -> bool:
    """Whether a dim of n rows is in equal blocks, or has rows for no more than half of them, however axes split it."""
    counts = {1}
    for k in sizes:
        counts = {one * d for one in counts for d in range(1, k + 1) if k % d == 0}
    return all(n % one == 0 or one >= 2 * n for one in counts)
