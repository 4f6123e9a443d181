"""`Rows`: chains of collectives in arrays, for the check of a certificate: those of many moves are made at once.

The collectives before and after what moves in between depend only on the axes that come, are summed or go: what is found for
these (`repriced_chains`) holds for all moves that have them in common.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.repriced_chains import Axes, Chain, Group, Hop, Move, by_speed, received, staged, together
from shardwright.planner.repriced_links import links_of
from shardwright.planner.repriced_middles import Changes, Ints, Lists, Middles, distinct, middles, settled

Floats = NDArray[np.float64]
UNEQUAL = 0.75  # of what a collective takes between equal blocks: what it takes at least between unequal ones
NAMES = ("regroup", "all_slice", "reduce_scatter", "all_reduce", "all_gather", "all_to_all", "permute", "exchange")
SLICE, SCATTER, REDUCE, GATHER, EXCHANGE, PERMUTE, DIRECT = range(1, len(NAMES))
BY_SPEED, AT_ONCE, STAGED, PLAIN = range(4)  # forms
NEAR, CROSSING = -1, -2  # instead of a name: what a permute, and an exchange, take at least between unequal blocks
Term = Callable[[int, int, float], int]  # the number of a term: of a name, a set of axes, and what part is received


class Rows(NamedTuple):
    """Chains. Blocks are numbers, one for each dim; terms are numbers too, -1 where nothing is received."""

    owner: Ints  # the pattern
    is_long: NDArray[np.bool_]
    divisor: Ints  # of the number of elements, if blocks are equal
    more: Ints  # blocks into which an all_reduce in stages cuts each block
    stage: Ints  # the blocks before that
    target: Ints  # the blocks at the end
    terms: Ints  # of each collective
    least: Ints  # of each exchange between unequal blocks, what it takes at least
    after: NDArray[np.bool_]  # whether what a device receives in a collective follows from the blocks after it
    blocks: Ints  # at first and after each collective; 1 while dims are regrouped

    def and_those(self, others: "Rows") -> "Rows":
        """These and others, as wide as the wider ones."""
        return Rows(*[_joined(*both, fill) for both, fill in zip(zip(self, others, strict=True), FILLS, strict=True)])


FILLS = (0, 0, 1, 1, 1, 1, -1, -1, 0, 1)


def _joined(a: Any, b: Any, fill: int) -> Any:
    shape = [max(some) for some in zip(a.shape[1:], b.shape[1:], strict=True)]
    result = np.full((len(a) + len(b), *shape), fill, a.dtype)
    for some, at in ((a, 0), (b, len(a))):
        result[(slice(at, at + len(some)), *[slice(n) for n in some.shape[1:]])] = some
        if some.ndim == 3 and some.shape[1] < shape[0]:  # the last blocks again
            result[at : at + len(some), some.shape[1] :, : some.shape[2]] = some[:, -1:]
    return result


def rows_of(found: Sequence[tuple[int, Move, Chain]], term: Callable[..., int]) -> Rows:
    """Long chains of patterns, which are over pieces of axes."""
    width, dims = max([len(chain.terms) for _, _, chain in found]), max([len(chain.blocks[0]) for _, _, chain in found])
    owner = np.array([number for number, _, _ in found])
    more, divisor = (
        np.array(some) for some in zip(*[(max(c.stage[1], 1), c.divisor) for _, _, c in found], strict=True)
    )
    stage, target = np.ones((2, len(found), dims), np.int64)
    terms, least = np.full((2, len(found), width), -1)
    after, blocks = np.zeros((len(found), width), bool), np.ones((len(found), width + 1, dims), np.int64)
    for at, (_, move, chain) in enumerate(found):
        own = move.group.blocks(move.target)
        target[at, : len(own)] = blocks[at, :, : len(own)] = own
        stage[at, : len(chain.stage[0])] = chain.stage[0]
        for row, some in zip(blocks[at], chain.blocks, strict=False):
            row[: len(own)] = some or 1
        for column, (name, axes, part) in enumerate(chain.terms):
            after[at, column] = name in ("all_gather", "all_to_all")
            if part:
                terms[at, column] = term(name, (axes,), part)
            if part and name == "permute":
                least[at, column] = term("near", (axes,), UNEQUAL * part)
    return Rows(owner, np.ones(len(found), bool), divisor, more, stage, target, terms, least, after, blocks)


class _Form(NamedTuple):
    """The hops before or after what moves in between, each with its name, the set of its axes, its dim and whether dims are
    regrouped after it; into how many more blocks an all_reduce in stages cuts."""

    hops: list[tuple[int, int, int, int]]
    more: int = 1


class Forms:
    """The collectives before, and after, what moves in between: in the order of links, with those of a dim at once, in stages,
    and one after the other; by the lists that come or go, and what is summed."""

    def __init__(self, group: Group, axes: Sequence[str], lists: Lists) -> None:
        self.group, self.axes, self.lists = group, axes, lists
        self.names = [tuple([axes[i] for i in some]) for some in lists.lists]
        self.every: list[_Form] = [_Form([])]
        self._known: dict[tuple[int, ...], tuple[int, int, int, int]] = {}

    def of(self, changes: Ints, summed: Ints | None) -> Ints:
        """The numbers of the forms of each change; -1 for none in stages. Without `summed` these are gathers."""
        keys = np.column_stack([changes, np.full(len(changes), -1) if summed is None else summed])
        first, where = distinct(keys + 1)
        found = [self._known.get(key) or self._made(key) for key in map(tuple, keys[first].tolist())]
        result: Ints = np.array(found, np.int64).reshape(-1, 4)[where]
        return result

    def _made(self, key: tuple[int, ...]) -> tuple[int, int, int, int]:
        *numbers, summed = key
        state, empty = tuple([self.names[number] for number in numbers]), ((),) * len(numbers)
        if summed < 0:
            before, plain = state, list(Move(self.group, state, empty, ()).gathers(state, empty))
        else:
            before, plain = empty, list(Move(self.group, empty, state, self.axes_of(summed)).grown(state))
        stages, more = staged(plain, self.group)
        last = self._kept(plain)
        forms = (
            self._kept(by_speed(plain, self.group, before)),
            self._kept(together(plain)),
            self._kept(stages, more) if stages else -1,
            last,
        )
        self._known[key] = forms
        return forms

    def _kept(self, hops: Sequence[Hop], more: int = 1) -> int:
        rows = [(NAMES.index(hop.name), self._set(hop.axes), hop.dim, int(not hop.state)) for hop in hops]
        self.every.append(_Form(rows, more))
        return len(self.every) - 1

    def axes_of(self, some: int) -> Axes:
        """The axes of a set."""
        return tuple([axis for i, axis in enumerate(self.axes) if some >> i & 1])

    def _set(self, axes: Axes) -> int:
        return sum([1 << self.axes.index(axis) for axis in axes])

    def arrays(self) -> tuple[Ints, Ints, Ints]:
        """Of all forms the hops, how many there were, and into how many more blocks they cut."""
        hops = np.zeros((len(self.every), max([len(form.hops) for form in self.every]), 4), np.int64)
        for at, form in enumerate(self.every):
            hops[at, : len(form.hops)] = np.array(form.hops, np.int64).reshape(-1, 4)
        return hops, np.array([len(form.hops) for form in self.every]), np.array([form.more for form in self.every])


class _Made(NamedTuple):
    """Chains put together: the move of each; the form of its hops before what moves in between, the step that does, the set of
    axes that it is along and the state after it; the form of the hops behind."""

    owner: Ints
    front: Ints
    step: Ints
    along: Ints
    end: Ints
    back: Ints


class Finder:
    """Finds the chains of moves with at most one step between slices and gathers, and those of one exchange."""

    def __init__(self, group: Group, axes: Sequence[str], lists: Lists, term: Term) -> None:
        self.lists, self.term, self.forms = lists, term, Forms(group, axes, lists)
        counts = lists.of_set.tolist()
        self.received = np.array([[received(name, n) for n in counts] for name in NAMES])

    def least_of_long(self, moves: Changes) -> tuple[Floats, Floats]:
        """Seconds to start, and a byte of the tensor, that no chain with other steps in between is below, if nothing is summed:
        all links are as fast as the fastest, the slowest that an exchange crosses is crossed, and a device gets all of its
        shard but for what it has: there is a permute, whose shards are exchanged, or an all_to_all and another step."""
        lists, mesh = self.lists, self.forms.group.mesh
        crossed, start = lists.union(lists.old[moves.source, moves.target]), np.zeros(len(lists.of_set))
        for some in np.unique(crossed).tolist():
            links = [link for _, link in mesh.links_along(self.forms.axes_of(some))]
            start[some] = sum([max([getattr(link, of) for link in links], default=0.0) for of in ("latency", "hop")])
        pace = links_of(mesh, tuple(mesh.axis_names)).least_pace
        return start[crossed], pace / lists.count[moves.target].prod(axis=1)

    def rows(self, moves: Changes) -> tuple[Rows, Ints]:
        """The chains of moves, whose numbers are from 0 on, the exchanges first; and how many others each has."""
        lists, found = self.lists, middles(self.lists, moves)
        direct, apart = self._direct(moves)
        made = _Made(*map(np.concatenate, zip(direct, self._short(moves, found), strict=True)))
        hops, lengths, more = self.forms.arrays()
        middle, behind = int(lengths[made.front].max()), int(lengths[made.back].max())
        between = np.column_stack([made.step, made.along, np.full(len(made.step), -1), 0 * made.step])[:, None]
        hops = np.concatenate([hops[made.front, :middle], between, hops[made.back, :behind]], axis=1)
        kinds, sets = hops[:, :, 0], hops[:, :, 1]
        blocks, parts, divisor = self._followed(
            lists.count[moves.source[made.owner]], hops, middle, lists.count[made.end]
        )
        parts[: len(apart), middle] = apart
        least, is_direct = np.full(parts.shape, -1), made.step == DIRECT
        near = np.where(is_direct, CROSSING, np.where(made.step == PERMUTE, NEAR, 0))
        leaving = np.bitwise_or.reduce(
            lists.sets[moves.source] & ~lists.sets[moves.target], axis=1
        )  # the dims that they split
        bounds = np.where(is_direct, leaving[made.owner], made.along)
        least[:, middle] = self._terms(near, bounds, UNEQUAL * parts[:, middle] * (near < 0))
        stages = more[made.front]
        rows = Rows(
            made.owner,
            np.zeros(len(made.owner), bool),
            divisor,
            stages,
            np.where(stages[:, None] > 1, blocks[:, middle], 1),
            lists.count[moves.target[made.owner]],
            self._terms(kinds, sets, parts),
            least,
            (kinds == GATHER) | (kinds == EXCHANGE),
            blocks,
        )
        return rows, np.bincount(found.owner, minlength=len(apart))

    def _direct(self, moves: Changes) -> tuple["_Made", Floats]:
        """For each move what is summed, then one exchange in which every device gets what it lacks; and what part that is."""
        lists, none = self.lists, np.zeros(len(moves.source), np.int64)
        state = np.where(moves.summed[:, None] > 0, settled(lists, moves), moves.source)
        front = self.forms.of(np.where(moves.summed[:, None] > 0, lists.new[moves.source, state], 0), moves.summed)
        old, new = lists.old[state, moves.target], lists.new[state, moves.target]
        apart = 1 / lists.count[moves.target].prod(axis=1)
        some = ~((old > 0) & (new > 0)).any(axis=1)  # every device has some of its new shard
        apart[some] -= apart[some] / lists.of_set[lists.union(np.where(new == 0, old, 0))[some]]
        step = np.where(apart > 0, DIRECT, none)
        made = _Made(np.arange(len(none)), front[:, PLAIN], step, lists.union(old), moves.target, none)
        return made, apart

    def _short(self, moves: Changes, found: Middles) -> "_Made":
        """The chains over middles: by the speed of links, with what is of one dim at once if that is other, and in stages."""
        lists, owner = self.lists, found.owner
        front = self.forms.of(lists.new[moves.source[owner], found.start], moves.summed[owner])
        back = self.forms.of(lists.old[found.end, moves.target[owner]], None)
        _, lengths, _ = self.forms.arrays()
        fewer = np.flatnonzero(sum([lengths[some[:, AT_ONCE]] - lengths[some[:, PLAIN]] for some in (front, back)]) < 0)
        every, stages = np.arange(len(owner)), np.flatnonzero(front[:, STAGED] >= 0)
        alike = (lists.count[found.start] == lists.count[found.end]).all(axis=1)
        step = np.where(found.along == 0, 0, np.where(alike, PERMUTE, EXCHANGE))
        which = np.concatenate([every, fewer, stages])
        fronts = np.concatenate([front[:, BY_SPEED], front[fewer, AT_ONCE], front[stages, STAGED]])
        backs = np.concatenate([back[:, BY_SPEED], back[fewer, AT_ONCE], back[stages, PLAIN]])
        return _Made(owner[which], fronts, step[which], found.along[which], found.end[which], backs)

    def _followed(self, now: Ints, hops: Ints, middle: int, ends: Ints) -> tuple[Ints, Floats, Ints]:
        """The blocks of each dim at first and after each hop, what part of the tensor a device receives in each, and what must
        divide the number of elements."""
        kinds, sets, dims, hidden = hops.transpose(2, 0, 1)
        sizes, parts = self.lists.of_set[sets], self.received[kinds, sets]
        shards, divisor, blocks = now.prod(axis=1), np.ones(len(now), np.int64), [now.copy()]
        for at in range(kinds.shape[1]):
            kind, n, dim = kinds[:, at], sizes[:, at], dims[:, at]
            parts[:, at] /= shards
            divisor = np.where(kind == REDUCE, np.maximum(divisor, shards * n), divisor)
            if at == middle:
                now = ends.copy()
            for some, change in (((kind == SLICE) | (kind == SCATTER), np.multiply), (kind == GATHER, np.floor_divide)):
                shards[some] = change(shards[some], n[some])
                own = np.flatnonzero(some & (dim >= 0))
                now[own, dim[own]] = change(now[own, dim[own]], n[own])
            blocks.append(np.where(hidden[:, at, None] > 0, 1, now))
        return np.stack(blocks, axis=1), parts, divisor

    def _terms(self, kinds: Ints, sets: Ints, parts: NDArray[np.float64]) -> Ints:
        """The numbers of terms, -1 where nothing is received."""
        result, some = np.full(parts.shape, -1), parts > 0
        values, where = np.unique(parts[some], return_inverse=True)
        first, which = distinct(np.column_stack([kinds[some] - CROSSING, sets[some], where.reshape(-1)]))
        keys = zip(kinds[some][first].tolist(), sets[some][first].tolist(), values[where[first]].tolist(), strict=True)
        result[some] = np.array([self.term(*key) for key in keys], np.int64)[which]
        return result
