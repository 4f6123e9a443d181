"""Ways from one sharding to another: chains of collectives over pieces of axes, found without touching devices or data.

A chain slices first, then exchanges axes between dims and permutes devices, and gathers last, so that every step works
on the smallest shards there are and no device ever holds more than the larger of source and target. Per dim the pieces
of axes are a list, outermost first: a slice or an all-to-all adds to its end, a gather or an all-to-all takes from it,
and a permute rearranges all lists at once as long as each dim keeps its number of shards.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import groupby, permutations, product
from typing import Any, NamedTuple

import numpy as np

from shardwright.hardware import seconds_per_byte
from shardwright.mesh import Mesh, SubAxis
from shardwright.sharding import Sharding, kept_partial

State = tuple[tuple[str, ...], ...]  # per dim the pieces that split it
Known = Mapping[State, tuple[float, State | None]]  # states with the cost of reaching them, and from which
Chain = list[tuple[float, State]]  # states after each move, with the move's cost in units of the local size
SOME_STATES = 300  # looked at for a chain that needs several steps between slices and gathers
MOST_STATES = 20_000  # and where those lead to none


class Hop(NamedTuple):
    """One collective of a chain: its name, its axes, the dim that gains, the dim that loses, the state it leaves.

    A "regroup" has `other` dims from `dim` on become one, or as many as it has `factors` and one more, for the rest.
    """

    name: str
    axes: tuple[str, ...]
    dim: int
    other: int
    state: State
    factors: tuple[int, ...] = ()


class Change:
    """Two shardings of one mesh, with their axes cut into common pieces: what stays, comes, goes and moves."""

    def __init__(self, source: Sharding, target: Sharding, dtype: "np.dtype[Any] | None" = None) -> None:
        self.mesh: Mesh = source.mesh
        self._sizes: dict[str, int] = {}  # searches ask for the same ones by the thousand
        self._products: dict[tuple[str, ...], int] = {}
        self._found: dict[bool, list[list[Hop]]] = {}
        everything = (*source.axes, *target.axes)
        self.possible = self.mesh.share_a_cut(everything)  # halves and thirds of one axis have no common pieces
        if not self.possible:
            return
        self.was = tuple(self._pieces(axes, everything) for axes in source.dims)
        self.becomes = tuple(self._pieces(axes, everything) for axes in target.dims)
        self.held = {piece for axes in self.was for piece in axes}
        self.wanted = {piece for axes in self.becomes for piece in axes}
        partial = self._pieces(source.partial, everything)
        kept = self._pieces(kept_partial(source, target, dtype), everything)
        self.reduced = tuple(piece for piece in partial if piece not in kept)  # partial, and no longer so
        self.kept = tuple(piece for piece in partial if piece in kept)

    def _pieces(self, axes: Sequence[str], by: Sequence[str]) -> tuple[str, ...]:
        return tuple(piece for piece in self.mesh.cut(axes, by=by) if self.size(piece) > 1)

    def size(self, piece: str) -> int:
        """The devices along a piece."""
        found = self._sizes.get(piece)
        if found is None:
            found = self._sizes[piece] = self.mesh.axis(piece).size
        return found

    def product(self, pieces: Sequence[str]) -> int:
        """The devices along pieces."""
        key = tuple(pieces)
        found = self._products.get(key)
        if found is None:
            found = self._products[key] = math.prod([self.size(piece) for piece in key])
        return found

    @cached_property
    def settled(self) -> State:
        """The state in which nothing is left to reduce: new pieces are there, the sliced before the reduced."""
        if not self.reduced:
            return self.was
        state = []
        for old, new in zip(self.was, self.becomes, strict=True):
            added = [piece for piece in new if piece not in self.held]
            state.append(old + tuple(sorted(added, key=lambda piece: piece in self.reduced)))
        return tuple(state)

    @cached_property
    def suffixes(self) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Per dim what follows the common outer pieces, before an exchange and after."""
        return _suffixes(self.settled, self.becomes)

    @property
    def crossed(self) -> tuple[str, ...]:
        """The pieces along which devices must hear from one another: data lies along them that belongs elsewhere."""
        return tuple(piece for old, _ in self.suffixes for piece in old)

    def lacking(self, after: int) -> int:
        """Elements of its new shard of a size that the busiest device does not hold, where shards are even."""
        if any(old and new for old, new in self.suffixes):
            return after  # some device holds none of its new shard
        return after - after // self.product([piece for old, new in self.suffixes if not new for piece in old])

    @property
    def lost_dims(self) -> list[int]:
        """The dims with pieces that split nothing any more: these are gathered."""
        return [dim for dim, axes in enumerate(self.was) if any(piece not in self.wanted for piece in axes)]

    # -- chains -------------------------------------------------------------------------------------------------------

    def chains(self, further: bool) -> list[list[Hop]]:
        """Chains of collectives of least bytes: new pieces in the target's order and, where that would reduce before it
        slices, with slices first. Those of at most one step between slices and gathers come first; where there are none, a
        search goes `further`."""
        if further not in self._found:
            short = self.chains(False) if further else self._chains(0)
            longer = map(self._chains, (SOME_STATES, MOST_STATES) if further and not short else ())
            self._found[further] = short or next(filter(None, longer), [])
        return self._found[further]

    @cached_property
    def moved(self) -> int:
        """The devices along pieces that both ends use and every chain moves between slices and gathers.

        Lists of pieces change at their ends only, so that is every piece behind the first that differs.
        """
        return self.product([p for old, _ in _suffixes(self.was, self.becomes) for p in old if p in self.wanted])

    def least_middle(self, count: int) -> float:
        """What a chain with `count` all-to-alls or more exchanges between slices and gathers at least, in units of the local
        size: an all-to-all along k devices is 1 - 1/k, which is least in total if all but one are of two devices."""
        return max(count / 2, (count + 1) / 2 - 2 ** (count - 1) / self.moved)

    def _chains(self, deep: int) -> list[list[Hop]]:
        new = [self._runs(axes, self.held) for axes in self.becomes]
        sliced_first = [
            sorted((r for run in runs for r in _by_reduction(run, self.reduced)), key=self._reduces) for runs in new
        ]
        found = [self._chain(new, deep, 64)]
        if self.reduced and [r for runs in sliced_first for r in runs] != [r for runs in new for r in runs]:
            found.append(self._chain(sliced_first, deep, 0))
        return [chain for chain in found if chain is not None]

    def _reduces(self, run: tuple[str, ...]) -> bool:
        return run[0] in self.reduced

    def _chain(self, new: list[list[tuple[str, ...]]], deep: int, most: int) -> list[Hop] | None:
        was, becomes = self.was, self.becomes
        gone = [self._runs(axes, self.wanted) for axes in was]
        if not deep:
            middle = self._meet(list(_placed(was, new, most)), list(_placed(becomes, gone, 64)))
        else:
            primes = self._primes
            split = [[(p,) for run in runs for axis in run for p in primes[axis]] for runs in (*new, *gone)]
            starts = list(_placed(_refined(was, primes), split[: len(new)], most and deep // 10))
            ends = list(_placed(_refined(becomes, primes), split[len(new) :], deep // 10))
            middle = self._search(starts, ends, deep)
        if middle is None:
            return None
        first, last = middle[0][1], middle[-1][1]
        moves = [*self.grown(first), *self._between(middle)]
        return [*moves, *self._shrunk(last)]

    def _runs(self, axes: tuple[str, ...], others: set[str]) -> list[tuple[str, ...]]:
        """Neighbouring pieces that the other side does not have: they come, or go, together."""
        runs: list[tuple[str, ...]] = []
        open_run: list[str] = []
        for piece in (*axes, ""):
            if piece and piece not in others:
                open_run.append(piece)
            elif open_run:
                runs.append(tuple(open_run))
                open_run = []
        return runs

    def _meet(self, starts: list[State], ends: list[State]) -> Chain | None:
        """No move, one all-to-all, or one permute: in the order of their bytes."""
        for start in starts:
            if start in ends:
                return [(0.0, start)]
        pairs = [(self._exchanged(start, end), start, end) for start in starts for end in ends]
        found = [(cost, start, end) for cost, start, end in pairs if cost is not None]
        if found:
            cost, start, end = min(found, key=lambda entry: entry[0])
            return [(0.0, start), (cost, end)]
        shards = [self._shards(end) for end in ends]
        for start in starts:
            if self._shards(start) in shards:
                return [(0.0, start), (1.0, ends[shards.index(self._shards(start))])]
        return None

    def _shards(self, state: State) -> tuple[int, ...]:
        return tuple(map(self.product, state))

    def _exchanged(self, start: State, end: State) -> float | None:
        """The cost of the one all-to-all that leads from a state to another, if one does."""
        unlike = [dim for dim, axes in enumerate(start) if axes != end[dim]]
        if len(unlike) != 2:
            return None
        for i, j in (unlike, unlike[::-1]):
            moved = start[i][len(end[i]) :]
            if moved and start[i][: len(end[i])] == end[i] and end[j] == start[j] + moved:
                return 1 - 1 / self.product(moved)
        return None

    def _search(self, starts: list[State], ends: list[State], most: int) -> Chain | None:
        """Chains of any number of all-to-alls and at most one permute, from both sides until they meet."""
        ahead: dict[State, tuple[float, State | None]] = dict.fromkeys(starts, (0.0, None))
        behind: dict[State, tuple[float, State | None]] = dict.fromkeys(ends, (0.0, None))
        best = self._joined(starts, ends, ahead, behind)
        fresh = [starts, ends]
        for depth in range(1, 7):
            if best is not None and best[0] <= self.least_middle(depth):
                break
            side = 1 - depth % 2
            fresh[side] = self._expanded((ahead, behind)[side], fresh[side], most)
            if len(ahead) + len(behind) > most:
                break
            found = self._joined(ahead if side else fresh[0], fresh[1] if side else behind, ahead, behind)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if best is None:
            return None
        _, here, there = best
        forward, backward = _path(ahead, here), _path(behind, there)
        chain = [(cost, state) for cost, state in forward]
        if here != there:
            chain.append((1.0, there))
        return chain + [(cost, backward[i - 1][1]) for i, (cost, _) in reversed(list(enumerate(backward))) if i]

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
        for i, axes in enumerate(state):
            for count in range(1, len(axes) + 1):
                moved = axes[-count:]
                cost, rest = 1 - 1 / self.product(moved), (*state[:i], axes[:-count], *state[i + 1 :])
                for j in range(len(state)):
                    if j != i:
                        yield cost, (*rest[:j], rest[j] + moved, *rest[j + 1 :])

    def _joined(
        self, some: Iterable[State], others: Iterable[State], ahead: Known, behind: Known
    ) -> tuple[float, State, State] | None:
        """The cheapest pair of states, some from ahead and others from behind, that are the same or a permute apart."""
        shards: dict[tuple[int, ...], State] = {}
        for state in others:
            key = self._shards(state)
            if key not in shards or behind[state][0] < behind[shards[key]][0]:
                shards[key] = state
        pairs = [(ahead[state][0] + behind[state][0], state, state) for state in some if state in behind]
        for state in some:
            other = shards.get(self._shards(state))
            if other is not None:
                pairs.append((ahead[state][0] + 1 + behind[other][0], state, other))
        return min(pairs, key=lambda pair: pair[0], default=None)

    @cached_property
    def _primes(self) -> dict[str, tuple[str, ...]]:
        """Every piece cut into pieces of prime size."""
        result = {}
        for piece in self.held | self.wanted:
            axis, parts = self.mesh.axis(piece), []
            pre, left, factor = axis.pre, axis.size, 2
            while left > 1:
                while left % factor == 0:
                    parts.append(SubAxis(axis.name, pre, factor).text(self.mesh.sizes[axis.name]))
                    pre, left = pre * factor, left // factor
                factor += 1
            result[piece] = tuple(parts)
        return result

    # -- from states to collectives -----------------------------------------------------------------------------------

    def grown(self, first: State) -> Iterator[Hop]:
        """The slices that lead to the first state, then what is reduced and scattered."""
        whole = self._same_cut(first)
        state = list(self.was if whole else _refined(self.was, self._primes))
        later: list[tuple[int, tuple[str, ...]]] = []
        scattered = set(self.reduced if whole else _refined((self.reduced,), self._primes)[0])
        for dim, axes in enumerate(first):
            added = axes[len(state[dim]) :]
            if added and not set(added) & scattered:
                state[dim] = axes
                yield Hop("all_slice", added, dim, -1, tuple(state))
            elif added:
                later.append((dim, added))
        for dim, added in later:  # what comes before the first piece to reduce is sliced first
            count = next(i for i, piece in enumerate(added) if piece in scattered)
            if count:
                state[dim] = state[dim] + added[:count]
                yield Hop("all_slice", added[:count], dim, -1, tuple(state))
        for dim, added in later:
            rest = added[len(state[dim]) - len(first[dim]) + len(added) :]
            for run, name in _by_kind(rest, scattered):
                for part in self._by_link(run) if name == "reduce_scatter" else [run]:
                    state[dim] = state[dim] + part
                    yield Hop(name, part, dim, -1, tuple(state))
        left = tuple(piece for piece in self.reduced if piece not in self.wanted)
        if left:
            yield Hop("all_reduce", left, -1, -1, tuple(state))

    def _same_cut(self, state: State) -> bool:
        known = self.held | self.wanted
        return all(piece in known for axes in state for piece in axes)

    def _between(self, chain: Chain) -> Iterator[Hop]:
        before = chain[0][1]
        for cost, state in chain[1:]:
            if cost == 1.0 and self._exchanged(before, state) is None:
                unlike = dict.fromkeys(p for a, b in _suffixes(before, state) for p in (*a, *b))
                yield Hop("permute", tuple(unlike), -1, -1, state)
            else:
                loses = next(d for d, axes in enumerate(state) if len(axes) < len(before[d]))
                gains = next(d for d, axes in enumerate(state) if len(axes) > len(before[d]))
                yield Hop("all_to_all", state[gains][len(before[gains]) :], gains, loses, state)
            before = state

    def _shrunk(self, last: State) -> Iterator[Hop]:
        """The gathers that lead from the last state to the target: along slow links first, while shards are small."""
        state = list(last)
        wanted = self.becomes if self._same_cut(last) else _refined(self.becomes, self._primes)
        gathers = [(dim, axes[len(wanted[dim]) :]) for dim, axes in enumerate(last) if len(axes) > len(wanted[dim])]
        if len(gathers) > 1:
            gathers.sort(key=lambda entry: -self._pace(entry[1]))
        for dim, gathered in gathers:
            for part in reversed(self._by_link(gathered)):
                state[dim] = state[dim][: -len(part)]
                yield Hop("all_gather", part, -1, dim, tuple(state))

    def eased(self, hops: Sequence[Hop]) -> Sequence[Hop]:
        """A chain between even shards with gathers along slow links first and scatters along slow links last, while shards
        are small; dims whose pieces would be in the way are split into their factors for that time."""
        result: list[Hop] = []
        for name, group in groupby(hops, key=lambda hop: hop.name):
            some = list(group)
            if name in ("all_gather", "reduce_scatter") and len(some) > 1:
                some = self._by_pace(some, gathers=name == "all_gather")
            result += some
        return result

    def _by_pace(self, hops: list[Hop], gathers: bool) -> list[Hop]:
        """Gathers, or scatters, that follow one another, in the order of their links."""
        order = sorted(hops, key=lambda hop: self._pace(hop.axes), reverse=gathers)
        if order == hops:
            return hops
        first, dim_of = hops[0], {hop: hop.other if gathers else hop.dim for hop in hops}
        state, home = list(first.state), dim_of[first]
        state[home] = state[home] + first.axes if gathers else state[home][: -len(first.axes)]
        ahead: list[Hop] = []
        split: list[tuple[int, int]] = []
        place = {hop: dim_of[hop] for hop in hops}  # the dim that it gathers or scatters
        for dim in sorted(set(dim_of.values()), reverse=True):
            own = [hop for hop in hops if dim_of[hop] == dim]
            if own == [hop for hop in order if dim_of[hop] == dim]:
                continue
            runs = own[::-1] if gathers else own  # outermost first
            outer = hops[-1].state[dim] if gathers else state[dim]
            factors = [self.product((*outer, *runs[0].axes)), *(self.product(run.axes) for run in runs[1:-1])]
            parts = (
                [(*outer, *runs[0].axes), *(run.axes for run in runs[1:])] if gathers else [outer, *[()] * len(own[1:])]
            )
            state[dim : dim + 1] = parts
            place = {hop: at + (len(own) - 1) * (dim_of[hop] > dim) for hop, at in place.items()}
            place |= {run: dim + i for i, run in enumerate(runs)}
            ahead.append(Hop("regroup", (), dim, 1, tuple(state), tuple(factors)))
            split.append((dim, len(own)))
        moves: list[Hop] = []
        for hop in order:
            at = place[hop]
            state[at] = state[at][: -len(hop.axes)] if gathers else state[at] + hop.axes
            moves.append(hop._replace(dim=-1 if gathers else at, other=at if gathers else -1, state=tuple(state)))
        for dim, count in split[::-1]:
            state[dim : dim + count] = [tuple(piece for axes in state[dim : dim + count] for piece in axes)]
            moves.append(Hop("regroup", (), dim, count, tuple(state)))
        return [*ahead, *moves]

    def _pace(self, pieces: tuple[str, ...]) -> float:
        return seconds_per_byte(self.mesh.links_along(pieces))

    def _by_link(self, pieces: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Pieces in runs along links of one speed: together they would all wait for the slowest."""
        runs: list[list[str]] = []
        for piece in pieces:
            if runs and self._pace((runs[-1][-1],)) == self._pace((piece,)):
                runs[-1].append(piece)
            else:
                runs.append([piece])
        return [tuple(run) for run in runs]


@lru_cache(maxsize=4096)
def change_between(source: Sharding, target: Sharding, dtype: "np.dtype[Any] | None" = None) -> Change:
    """The change from one sharding to another; made once."""
    return Change(source, target, dtype)


def _suffixes(before: State, after: State) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    result = []
    for old, new in zip(before, after, strict=True):
        same = 0
        while same < min(len(old), len(new)) and old[same] == new[same]:
            same += 1
        result.append((old[same:], new[same:]))
    return result


def _placed(base: State, runs: Sequence[Sequence[tuple[str, ...]]], most: int) -> Iterator[State]:
    """The states with runs of pieces put innermost: first each on its own dim, then, if that is not too many, on any."""
    everything = [run for some in runs for run in some]
    homes = [dim for dim, some in enumerate(runs) for _ in some]
    yield _with(base, everything, homes)
    count, n = len(everything), len(base)
    if count and n**count * math.factorial(count) <= most:
        for order in permutations(range(count)):
            for dims in product(range(n), repeat=count):
                yield _with(base, [everything[i] for i in order], dims)


def _with(base: State, runs: Sequence[tuple[str, ...]], dims: Sequence[int]) -> State:
    state = list(base)
    for run, dim in zip(runs, dims, strict=True):
        state[dim] = state[dim] + run
    return tuple(state)


def _refined(state: State, primes: Mapping[str, tuple[str, ...]]) -> State:
    return tuple(tuple(p for piece in axes for p in primes.get(piece, (piece,))) for axes in state)


def _by_reduction(run: tuple[str, ...], reduced: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """A run cut where pieces that are reduced begin or end."""
    for part, _ in _by_kind(run, set(reduced)):
        yield part


def _by_kind(pieces: tuple[str, ...], scattered: set[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Neighbouring pieces that are sliced, or reduced and scattered, together."""
    run: list[str] = []
    for at, piece in enumerate(pieces):
        run.append(piece)
        if at + 1 == len(pieces) or (pieces[at + 1] in scattered) != (piece in scattered):
            yield tuple(run), "reduce_scatter" if piece in scattered else "all_slice"
            run = []


def _path(known: Known, state: State) -> Chain:
    """The states that led to one, in order, with the cost of the move to each."""
    path: Chain = []
    at: State | None = state
    while at is not None:
        cost, before = known[at]
        path.append((cost - (known[before][0] if before is not None else 0.0), at))
        at = before
    return path[::-1]
