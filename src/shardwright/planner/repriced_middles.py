"""`Lists` and `middles`: where the chains of many moves may pass between their slices and their gathers, found for all of them
at once, for the check of a certificate.

Lists of axes are numbers, so that what follows from one or two lists is looked up in tables, and a state is a row of numbers:
for each dim the list that splits it.
"""

import math
from collections.abc import Sequence
from itertools import permutations, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
PLACINGS = 64  # of axes that come or go, that are looked at
PERMUTE, NOTHING = 1 << 40, 1 << 41  # after any number of devices of an all_to_all


class Lists:
    """Lists of axes by number, the empty one first, and sets of axes as bits."""

    def __init__(self, sizes: Sequence[int], lists: Sequence[tuple[int, ...]]) -> None:
        number = {some: at for at, some in enumerate(lists)}
        self.lists, every = lists, range(1 << len(sizes))
        self.sets = np.array([sum([1 << axis for axis in some]) for some in lists])
        self.count = np.array([math.prod([sizes[axis] for axis in some]) for some in lists])  # of devices
        self.of_set = np.array([math.prod([n for axis, n in enumerate(sizes) if some >> axis & 1]) for some in every])
        # two lists as one, if they have no axis in common; what two lists have behind those axes with which both begin
        self.joined = np.array([[number.get(a + b, 0) for b in lists] for a in lists])
        same = [[_same(a, b) for b in lists] for a in lists]
        self.old = np.array([[number[a[n:]] for n in row] for a, row in zip(lists, same, strict=True)])
        self.new = self.old.T
        # a list without a set of axes, and the runs that are left of it
        self.without = np.array([[number[tuple([i for i in a if not s >> i & 1])] for s in every] for a in lists])
        width = (len(sizes) + 1) // 2
        self.runs = np.zeros((len(lists), len(every), width), np.int64)
        for at, some in enumerate(lists):
            for s in every:
                runs = _runs(some, s)
                self.runs[at, s, : len(runs)] = [number[run] for run in runs]

    def union(self, states: Ints) -> Ints:
        """The axes of each state."""
        found: Ints = np.bitwise_or.reduce(self.sets[states], axis=1)
        return found


class Changes(NamedTuple):
    """Changes in numbers: lists before and after for each dim, the set of axes that are summed, and how many dims there are."""

    source: Ints
    target: Ints
    summed: Ints
    dims: Ints


class Middles(NamedTuple):
    """For each chain of at most one step between slices and gathers its move, the states before and after that step, and the
    set of axes that it is along."""

    owner: Ints
    start: Ints
    end: Ints
    along: Ints


def settled(lists: Lists, moves: Changes) -> Ints:
    """The states once sums are done: what comes is sliced before it is summed."""
    held, summed = lists.union(moves.source)[:, None], moves.summed[:, None]
    sliced = lists.joined[moves.source, lists.without[moves.target, held | summed]]
    everything = len(lists.of_set) - 1
    found: Ints = lists.joined[sliced, lists.without[moves.target, held | (everything & ~summed)]]
    return found


def middles(lists: Lists, moves: Changes) -> Middles:
    """The middles of all chains that may be the cheapest."""
    held, wanted = lists.union(moves.source), lists.union(moves.target)
    starts = _placed(lists, moves.source, lists.runs[moves.target, held[:, None]], moves.dims)
    ends = _placed(lists, moves.target, lists.runs[moves.source, wanted[:, None]], moves.dims)
    found = _meeting(lists, moves.target, starts, ends)
    other = np.flatnonzero(_mixed(lists, moves, held))  # chains that slice first are others
    more = _meeting(lists, moves.target, (other, settled(lists, moves)[other]), ends)
    return Middles(*[np.concatenate(both) for both in zip(found, more, strict=True)])


def _mixed(lists: Lists, moves: Changes, held: Ints) -> NDArray[np.bool_]:
    """Whether axes that come are summed before others of their dim, or within a run of others."""
    rows, dim = np.nonzero(lists.sets[moves.target] & moves.summed[:, None])
    found = np.zeros(len(held), bool)
    for row, at in zip(rows.tolist(), dim.tolist(), strict=True):
        summed, runs = int(moves.summed[row]), lists.runs[moves.target[row, at], held[row]].tolist()
        own = [[summed >> axis & 1 for axis in lists.lists[run]] for run in runs]
        found[row] |= any(0 in some and 1 in some for some in own) or own != sorted(own, key=lambda some: some[:1])
    return found


def _placed(lists: Lists, base: Ints, runs: Ints, dims: Ints) -> tuple[Ints, Ints]:
    """States with runs of axes behind those of their own dims; then, if there are not too many ways, of any dims. For each its
    move and itself."""
    own = base
    for at in range(runs.shape[2]):
        own = lists.joined[own, runs[:, :, at]]
    flat = runs.reshape(len(runs), -1)
    flat = np.take_along_axis(flat, np.argsort(flat == 0, axis=1, kind="stable"), axis=1)
    counts = (flat > 0).sum(axis=1)
    owner, states = [np.arange(len(base))], [own]
    for rank, count in {*zip(dims.tolist(), counts.tolist(), strict=True)}:
        if count and rank**count * math.factorial(count) <= PLACINGS:
            some = np.flatnonzero((dims == rank) & (counts == count))
            ways = [(order, at) for order in permutations(range(count)) for at in product(range(rank), repeat=count)]
            orders, places = np.array(ways).transpose(1, 0, 2)
            way, state = np.arange(len(ways)), np.repeat(base[some][:, None], len(ways), axis=1)
            for step in range(count):
                at = places[:, step]
                state[:, way, at] = lists.joined[state[:, way, at], flat[some][:, orders[:, step]]]
            owner.append(np.repeat(some, len(ways)))
            states.append(state.reshape(-1, base.shape[1]))
    rows = np.column_stack([np.concatenate(owner), np.concatenate(states)])
    rows = rows[np.sort(distinct(rows)[0])]
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    return rows[:, 0], rows[:, 1:]


def _meeting(lists: Lists, target: Ints, starts: tuple[Ints, Ints], ends: tuple[Ints, Ints]) -> Middles:
    """Pairs of states that are the same; else an all_to_all along as few devices as there are apart; else a permute."""
    i, j = _pairs(starts[0], ends[0])
    owner, start, end = starts[0][i], starts[1][i], ends[1][j]
    old, new = lists.old[start, end], lists.new[start, end]
    moved = lists.union(old) | lists.union(new)
    last, first = old.max(axis=1, initial=0), new.max(axis=1, initial=0)
    exchanged = (last == first) & (last > 0) & ((old > 0).sum(axis=1) == 1) & ((new > 0).sum(axis=1) == 1)
    alike = (lists.count[start] == lists.count[end]).all(axis=1)
    kind = np.where(moved == 0, 0, np.where(exchanged, lists.count[last], np.where(alike, PERMUTE, NOTHING)))
    least = np.full(len(target), NOTHING)
    np.minimum.at(least, owner, kind)
    left = np.flatnonzero((kind == least[owner]) & (kind < NOTHING))
    left = left[_different(owner[left], np.sort(lists.old[end[left], target[owner[left]]], axis=1), moved[left])]
    return Middles(owner[left], start[left], end[left], moved[left])


def _different(owner: Ints, gathered: Ints, moved: Ints) -> Ints:
    """Of chains that gather alike those that move along different axes, and along no more than another."""
    group = distinct(np.column_stack([owner, gathered]))[1]
    left = distinct(np.column_stack([group, moved]))[0]  # in the order of groups
    i, j = _pairs(group[left], group[left])
    one, other = moved[left[i]], moved[left[j]]
    fewer = np.zeros(len(left), bool)
    fewer[i[(other & ~one == 0) & (other != one)]] = True
    return np.sort(left[~fewer])


def _pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """All pairs of places whose numbers, in order in the second list, are equal."""
    first = np.searchsorted(right, left)
    counts = np.searchsorted(right, left, side="right") - first
    i = np.repeat(np.arange(len(left)), counts)
    return i, np.arange(len(i)) - np.repeat(np.cumsum(counts) - counts, counts) + first[i]


def distinct(rows: Ints) -> tuple[Ints, Ints]:
    """Where each distinct row is first, and for all rows which of them it is."""
    code = np.zeros(len(rows), np.int64)
    for column in rows.T:
        width = int(column.max(initial=0)) + 1
        if int(code.max(initial=0)) >= 2**62 // width:
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
        code = code * width + column
    order = np.argsort(code)
    code = code[order]
    starts = np.flatnonzero(np.append(True, code[1:] != code[:-1])[: len(code)])
    where = np.empty(len(code), np.int64)
    where[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(code))))
    return np.minimum.reduceat(order, starts) if len(starts) else starts, where


def _same(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """With how many axes both begin."""
    return next((n for n, (i, j) in enumerate(zip(a, b, strict=False)) if i != j), min(len(a), len(b)))


def _runs(some: tuple[int, ...], others: int) -> list[tuple[int, ...]]:
    """Axes that follow one another and are not among others: they come, or go, together."""
    runs: list[tuple[int, ...]] = []
    new = True
    for axis in some:
        if others >> axis & 1:
            new = True
        elif new:
            runs.append((axis,))
            new = False
        else:
            runs[-1] += (axis,)
    return runs
