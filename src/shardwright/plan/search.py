"""What leads from slices to gathers: the all-to-alls, and at most one permute, that move least.

Pieces of axes are numbers here, and only their sizes count. What is found for one pattern of pieces therefore holds for all
axes and meshes with that pattern, and is kept.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import permutations, product

State = tuple[tuple[int, ...], ...]  # per dim the pieces that split it, outermost first
Runs = tuple[State, ...]  # per dim neighbouring pieces that come, or go, together
Known = Mapping[State, tuple[float, State | None]]  # states with the cost of reaching them, and from which
MOST_PLACED = 64  # ways to place what comes, or goes, that are tried for a chain of one step


@lru_cache(maxsize=2048)
def states_between(
    was: State, becomes: State, new: Runs, gone: Runs, sizes: tuple[int, ...], moved: int, in_order: bool, deep: int
) -> tuple[tuple[State, ...], ...]:
    """The states from the one after all slices to the one before all gathers, for each chain that is found.

    `new` pieces are sliced, on any dim unless `in_order`; those `gone` are gathered. Every chain moves pieces along `moved`
    devices. There is at most one step, and a chain for each set of pieces that it may be along, and each way to gather
    after it; or, if `deep`, one chain of as many steps as a search of about so many states finds.
    """
    most = deep // 10 or MOST_PLACED
    starts, ends = list(_placed(was, new, 0 if in_order else most)), list(_placed(becomes, gone, most))
    search = _Search(sizes, moved)
    if not deep:
        return _different(search.meet(starts, ends), becomes)
    found = search.search(starts, ends, deep)
    return (found,) if found else ()


def least_middle(count: int, moved: int) -> float:
    """What a chain with `count` all-to-alls or more, or one and a permute, exchanges at least, in units of the local size.

    An all-to-all along k devices is 1 - 1/k; several are least in total if all but one are along two devices.
    """
    return max(count / 2, (count + 1) / 2 - 2 ** (count - 1) / moved)


class _Search:
    """A search over pieces of some sizes."""

    def __init__(self, sizes: tuple[int, ...], moved: int) -> None:
        self.sizes, self.moved = sizes, moved
        self._shards: dict[State, tuple[int, ...]] = {}

    def product(self, pieces: Sequence[int]) -> int:
        """The devices along pieces."""
        return math.prod([self.sizes[piece] for piece in pieces])

    def shards(self, state: State) -> tuple[int, ...]:
        """The number of shards of each dim."""
        found = self._shards.get(state)
        if found is None:
            found = self._shards[state] = tuple(map(self.product, state))
        return found

    def meet(self, starts: Sequence[State], ends: Sequence[State]) -> Sequence[tuple[State, ...]]:
        """No move, one all-to-all, or one permute: the first of these that there is, wherever it moves least."""
        same = [(start,) for start in starts if start in ends]
        if same:
            return same
        pairs = [(self._exchanged(start, end), start, end) for start in starts for end in ends]
        least = min([pair[0] for pair in pairs if pair[0]], default=0)
        if least:
            return [pair[1:] for pair in pairs if pair[0] == least]
        by_shards: dict[tuple[int, ...], list[State]] = {}
        for end in ends:
            by_shards.setdefault(self.shards(end), []).append(end)
        return [(start, end) for start in starts for end in by_shards.get(self.shards(start), ())]

    def _exchanged(self, start: State, end: State) -> int:
        """The devices along the one all-to-all that leads from a state to another; 0 if none does."""
        unlike = [dim for dim, axes in enumerate(start) if axes != end[dim]]
        if len(unlike) != 2:
            return 0
        for i, j in (unlike, unlike[::-1]):
            moved = start[i][len(end[i]) :]
            if moved and start[i][: len(end[i])] == end[i] and end[j] == start[j] + moved:
                return self.product(moved)
        return 0

    def search(self, starts: list[State], ends: list[State], most: int) -> tuple[State, ...]:
        """Any number of all-to-alls and at most one permute, from both sides until they meet."""
        ahead: dict[State, tuple[float, State | None]] = dict.fromkeys(starts, (0.0, None))
        behind: dict[State, tuple[float, State | None]] = dict.fromkeys(ends, (0.0, None))
        best = self._joined(starts, ends, ahead, behind)
        fresh = [starts, ends]
        for depth in range(1, 7):
            if best is not None and best[0] <= least_middle(depth, self.moved):
                break
            side = 1 - depth % 2
            fresh[side] = self._expanded((ahead, behind)[side], fresh[side], most)
            if len(ahead) + len(behind) > most:
                break
            found = self._joined(ahead if side else fresh[0], fresh[1] if side else behind, ahead, behind)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if best is None:
            return ()
        _, here, there = best
        backward = list(_path(behind, there))
        return (*reversed(list(_path(ahead, here))), *(backward if here != there else backward[1:]))

    def _expanded(self, known: dict[State, tuple[float, State | None]], layer: list[State], most: int) -> list[State]:
        result: dict[State, None] = {}
        for state in layer:
            if len(known) > most:
                break
            for cost, other in self._neighbours(state):
                total = known[state][0] + cost
                if other not in known or known[other][0] > total:
                    known[other] = (total, state)
                    result[other] = None
        return list(result)

    def _neighbours(self, state: State) -> Iterator[tuple[float, State]]:
        """Every all-to-all from a state: the innermost pieces of a dim become the innermost of another."""
        shards = self.shards(state)
        for i, axes in enumerate(state):
            size = 1
            for first in range(len(axes) - 1, -1, -1):
                size *= self.sizes[axes[first]]
                for j in range(len(state)):
                    if j != i:
                        lists, counts = list(state), list(shards)
                        lists[i], lists[j] = axes[:first], lists[j] + axes[first:]
                        counts[i], counts[j] = counts[i] // size, counts[j] * size
                        other = tuple(lists)
                        self._shards[other] = tuple(counts)
                        yield 1 - 1 / size, other

    def _joined(
        self, some: Iterable[State], others: Iterable[State], ahead: Known, behind: Known
    ) -> tuple[float, State, State] | None:
        """The cheapest pair of states, some from ahead and others from behind, that are the same or a permute apart."""
        cheapest: dict[tuple[int, ...], State] = {}
        for state in others:
            key = self.shards(state)
            if key not in cheapest or behind[state][0] < behind[cheapest[key]][0]:
                cheapest[key] = state
        pairs = [(ahead[state][0] + behind[state][0], state, state) for state in some if state in behind]
        for state in some:
            other = cheapest.get(self.shards(state))
            if other is not None:
                pairs.append((ahead[state][0] + 1 + behind[other][0], state, other))
        return min(pairs, key=lambda pair: pair[0], default=None)


def _different(chains: Sequence[tuple[State, ...]], target: State) -> tuple[tuple[State, ...], ...]:
    """Of chains of at most one step those that differ in what they cost on some links: in the pieces that move, or in what is
    gathered together at the end. Those that move more than another and gather alike are left out."""
    found: dict[tuple[tuple[int, ...], ...], dict[frozenset[int], tuple[State, ...]]] = {}
    for chain in chains:
        gathered = tuple(sorted([axes[len(kept) :] for axes, kept in zip(chain[-1], target, strict=True)]))
        moved = frozenset([p for old, new in zip(chain[0], chain[-1], strict=True) for p in _unlike(old, new)])
        found.setdefault(gathered, {}).setdefault(moved, chain)
    return tuple(
        chain for some in found.values() for moved, chain in some.items() if not any(other < moved for other in some)
    )


def _unlike(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    """The pieces of two lists behind the first that differs."""
    same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    return old[same:] + new[same:]


def _path(known: Known, state: State) -> Iterator[State]:
    """A state and those that led to it, the last first."""
    at: State | None = state
    while at is not None:
        yield at
        at = known[at][1]


def _placed(base: State, runs: Runs, most: int) -> Iterator[State]:
    """The states with runs of pieces put innermost: first each on its own dim, then, if that is not too many, on any."""
    everything = [run for some in runs for run in some]
    homes = [dim for dim, some in enumerate(runs) for _ in some]
    yield _with(base, everything, homes)
    count, n = len(everything), len(base)
    if count and n**count * math.factorial(count) <= most:
        for order in permutations(range(count)):
            for dims in product(range(n), repeat=count):
                yield _with(base, [everything[i] for i in order], dims)


def _with(base: State, runs: Sequence[tuple[int, ...]], dims: Sequence[int]) -> State:
    state = list(base)
    for run, dim in zip(runs, dims, strict=True):
        state[dim] = state[dim] + run
    return tuple(state)
