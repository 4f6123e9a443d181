"""Ways from one sharding to another: chains of collectives over pieces of axes, found without touching devices or data.

A chain slices first, then exchanges axes between dims and permutes devices, and gathers last, so that every step works
on the smallest shards there are and no device ever holds more than the larger of source and target. Per dim the pieces
of axes are a list, outermost first: a slice or an all-to-all adds to its end, a gather or an all-to-all takes from it,
and a permute rearranges all lists at once as long as each dim keeps its number of shards.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from shardwright.caches import MIB, kept
from shardwright.mesh import Mesh, SubAxis
from shardwright.plan.alike import canonical_order
from shardwright.plan.search import states_between
from shardwright.sharding import Sharding, kept_partial

State = tuple[tuple[str, ...], ...]  # per dim the pieces that split it
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
        if not axes:
            return ()
        return tuple(piece for piece in self.mesh.cut(axes, by=by) if self.size(piece) > 1)

    def size(self, piece: str) -> int:
        """The devices along a piece."""
        found = self._sizes.get(piece)
        if found is None:
            found = self._sizes[piece] = self.mesh.sizes.get(piece) or self.mesh.axis(piece).size
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
            order = self._order
            if order is not None:
                found = self._arranged.chains(further)
                self._found[further] = [[self._on_own_dims(hop, order) for hop in hops] for hops in found]
                return self._found[further]
            short = self.chains(False) if further else self._chains(0)
            longer = map(self._chains, (SOME_STATES, MOST_STATES) if further and not short else ())
            self._found[further] = short or next(filter(None, longer), [])
        return self._found[further]

    @cached_property
    def _order(self) -> list[int] | None:
        """The dims in the order in which chains are looked for, so that a chain costs the same whatever the order of dims, and
        whichever of several alike axes split them. None where it makes no difference."""
        if len(self.was) < 2 or len(self.held | self.wanted) < 2:
            return None
        order = canonical_order(self.mesh, self.was, self.becomes, (self.reduced, self.kept))
        return None if order == list(range(len(self.was))) else order

    @cached_property
    def _arranged(self) -> "Change":
        """The same change of a tensor with its dims in that order."""
        assert self._order is not None
        other = copy.copy(self)
        other.__dict__ = {k: v for k, v in vars(self).items() if k not in ("settled", "suffixes")}
        other._found, other._order = {}, None
        other.was, other.becomes = (tuple([state[dim] for dim in self._order]) for state in (self.was, self.becomes))
        return other

    def _on_own_dims(self, hop: Hop, order: Sequence[int]) -> Hop:
        state: list[tuple[str, ...]] = [()] * len(self.was)
        for dim, axes in zip(order, hop.state, strict=True):
            state[dim] = axes
        dim, other = (at if at < 0 else order[at] for at in (hop.dim, hop.other))
        return hop._replace(dim=dim, other=other, state=tuple(state))

    @cached_property
    def moved(self) -> int:
        """The devices along pieces that both ends use and every chain moves between slices and gathers.

        Lists of pieces change at their ends only, so that is every piece behind the first that differs.
        """
        return self.product([p for old, _ in _suffixes(self.was, self.becomes) for p in old if p in self.wanted])

    def _chains(self, deep: int) -> list[list[Hop]]:
        middles = self.middles(deep)
        return [[*self.grown(some[0]), *self._between(some), *self._shrunk(some[-1])] for some in middles]

    def middles(self, deep: int) -> list[tuple[State, ...]]:
        """The states from the one after all slices to the one before all gathers, of each chain."""
        new = [self._runs(axes, self.held) for axes in self.becomes]
        sliced_first = [
            sorted((r for run in runs for r in _by_reduction(run, self.reduced)), key=self._reduces) for runs in new
        ]
        found = self._middles_over(new, deep, False)
        if self.reduced and [r for runs in sliced_first for r in runs] != [r for runs in new for r in runs]:
            found += self._middles_over(sliced_first, deep, True)
        return found

    def _reduces(self, run: tuple[str, ...]) -> bool:
        return run[0] in self.reduced

    def _middles_over(self, new: list[list[tuple[str, ...]]], deep: int, in_order: bool) -> list[tuple[State, ...]]:
        was, becomes = self.was, self.becomes
        runs = [new, [self._runs(axes, self.wanted) for axes in was]]
        if deep:
            primes = self._primes
            was, becomes = _refined(was, primes), _refined(becomes, primes)
            runs = [[[(p,) for run in some for axis in run for p in primes[axis]] for some in every] for every in runs]
        number: dict[str, int] = {}
        ends = [tuple(tuple(number.setdefault(p, len(number)) for p in axes) for axes in s) for s in (was, becomes)]
        moved = [tuple(tuple(tuple(number[p] for p in run) for run in some) for some in every) for every in runs]
        names = list(number)
        found = states_between(*ends, *moved, tuple(map(self.size, names)), self.moved, in_order, deep)
        return [tuple([tuple([tuple([names[n] for n in axes]) for axes in s]) for s in states]) for states in found]

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

    @cached_property
    def _primes(self) -> dict[str, tuple[str, ...]]:
        """Every piece cut into pieces of prime size."""
        result = {}
        for piece in self.held | self.wanted:
            parts = result[piece] = _prime_pieces(self.mesh, piece)
            self._sizes.update(parts)
        return {piece: tuple(parts) for piece, parts in result.items()}

    # -- from states to collectives -----------------------------------------------------------------------------------

    def grown(self, first: State) -> Iterator[Hop]:
        """The slices that lead to the first state, then what is reduced and scattered."""
        whole = self._same_cut(first)
        state = list(self.was if whole else _refined(self.was, self._primes))
        later: list[tuple[int, tuple[str, ...]]] = []
        scattered = set(self.reduced if whole else _refined((self.reduced,), self._primes)[0])
        for dim in self._order or range(len(first)):
            axes = first[dim]
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
        if len(later) > 1:  # along fast links first, while shards are large; of equals that which slices most
            parts = {
                dim: [tuple(p for p in some if (p in scattered) == k) for k in (True, False)] for dim, some in later
            }
            later.sort(key=lambda entry: (self._paces(parts[entry[0]][0]), -self.product(parts[entry[0]][1])))
        for dim, added in later:
            rest = added[len(state[dim]) - len(first[dim]) + len(added) :]
            for run, name in _by_kind(rest, scattered):
                for part in self._by_link(run) if name == "reduce_scatter" else [run]:
                    state[dim] = state[dim] + part
                    yield Hop(name, part, dim, -1, tuple(state))
        left = tuple(piece for piece in self.reduced if piece not in self.wanted)
        if left:
            yield Hop("all_reduce", left, -1, -1, tuple(state))

    def before(self, hops: Sequence[Hop]) -> State:
        """The state before hops, in pieces as they cut them."""
        return self.was if not hops or self._same_cut(hops[0].state) else _refined(self.was, self._primes)

    def _same_cut(self, state: State) -> bool:
        known = self.held | self.wanted
        return all(piece in known for axes in state for piece in axes)

    def _between(self, states: Sequence[State]) -> Iterator[Hop]:
        for before, after in pairwise(states):
            fewer = [dim for dim, axes in enumerate(after) if self.product(axes) < self.product(before[dim])]
            if fewer:
                gains = next(d for d, axes in enumerate(after) if len(axes) > len(before[d]))
                yield Hop("all_to_all", after[gains][len(before[gains]) :], gains, fewer[0], after)
            else:
                unlike = dict.fromkeys(p for a, b in _suffixes(before, after) for p in (*a, *b))
                yield Hop("permute", tuple(unlike), -1, -1, after)

    def _shrunk(self, last: State) -> Iterator[Hop]:
        """The gathers that lead from the last state to the target: along slow links first, while shards are small."""
        state = list(last)
        wanted = self.becomes if self._same_cut(last) else _refined(self.becomes, self._primes)
        gathers = [(dim, axes[len(wanted[dim]) :]) for dim, axes in enumerate(last) if len(axes) > len(wanted[dim])]
        if len(gathers) > 1:
            gathers.sort(key=lambda entry: self._paces(entry[1]), reverse=True)
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

    def joined(self, hops: Sequence[Hop]) -> Sequence[Hop]:
        """A chain with neighbouring gathers, or scatters, of one dim as one: levels of links at once, in a pipeline."""
        result: list[Hop] = []
        for hop in hops:
            last = result[-1] if result else hop
            alike = last is not hop and (last.name, last.dim, last.other) == (hop.name, hop.dim, hop.other)
            if alike and hop.name == "all_gather":
                result[-1] = hop._replace(axes=hop.axes + last.axes)
            elif alike and hop.name == "reduce_scatter":
                result[-1] = hop._replace(axes=last.axes + hop.axes)
            else:
                result.append(hop)
        return result if len(result) < len(hops) else hops

    def staged(self, hops: Sequence[Hop], shape: tuple[int, ...]) -> Sequence[Hop]:
        """A chain between even shards whose all_reduce over links of several speeds is three steps: a reduce_scatter over
        the faster, an all_reduce of what is left over the slowest, an all_gather."""
        at = next((i for i, hop in enumerate(hops) if hop.name == "all_reduce"), -1)
        if at < 0:
            return hops
        hop = hops[at]
        slowest = max(self._pace((piece,)) for piece in hop.axes)
        fast = tuple(piece for piece in hop.axes if self._pace((piece,)) < slowest)
        locals_ = [n // self.product(axes) for n, axes in zip(shape, hop.state, strict=True)]
        fits = [dim for dim, n in enumerate(locals_) if n % self.product(fast) == 0]
        if not fast or not fits:
            return hops
        dim = max(fits, key=locals_.__getitem__)
        state = tuple(axes + fast if d == dim else axes for d, axes in enumerate(hop.state))
        slow = tuple(piece for piece in hop.axes if piece not in fast)
        return [
            *hops[:at],
            Hop("reduce_scatter", fast, dim, -1, state),
            Hop("all_reduce", slow, -1, -1, state),
            Hop("all_gather", fast, -1, dim, hop.state),
            *hops[at + 1 :],
        ]

    def _pace(self, pieces: tuple[str, ...]) -> float:
        """Seconds a byte of the slowest link along pieces."""
        return 1 / min(link.bandwidth for _, link in self.mesh.links_along(pieces))

    def _paces(self, pieces: tuple[str, ...]) -> tuple[float, float]:
        """The same, and seconds a byte of a gather along all of them at once: others share the load of slow links."""
        return self._pace(pieces), self.mesh.fabric(pieces).lines("all_gather")[0][1]

    def _by_link(self, pieces: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Pieces in runs along links of one speed: one after the other, the slow ones move less."""
        runs: list[list[str]] = []
        for piece in pieces:
            if runs and self._pace((runs[-1][-1],)) == self._pace((piece,)):
                runs[-1].append(piece)
            else:
                runs.append([piece])
        return [tuple(run) for run in runs]


# Results by source and target, whose offsets have an integer for each device.
kept_by_ends = kept(limit=16 * MIB, size=lambda key: 4000 + key[0].footprint + key[1].footprint, least=8, by_key=True)


@kept_by_ends
def change_between(source: Sharding, target: Sharding, dtype: "np.dtype[Any] | None" = None) -> Change:
    """The change from one sharding to another; made once."""
    return Change(source, target, dtype)


def longer_chains(source: Sharding, target: Sharding) -> list[tuple[State, ...]]:
    """The states between slices and gathers of the chains that a longer search finds, where there are none of at most one step
    in between, in pieces of axes."""
    change = change_between(source, target)
    order = change._order
    some = change if order is None else change._arranged
    found = some.middles(SOME_STATES) or some.middles(MOST_STATES)
    if order is None:
        return found
    own = sorted(range(len(order)), key=order.__getitem__)
    return [tuple([tuple([state[at] for at in own]) for state in states]) for states in found]


@lru_cache(maxsize=1024)
def _prime_pieces(mesh: Mesh, piece: str) -> dict[str, int]:
    """A piece cut into pieces of prime sizes."""
    axis, parts = mesh.axis(piece), {}
    pre, left, factor = axis.pre, axis.size, 2
    while left > 1:
        while left % factor == 0:
            parts[SubAxis(axis.name, pre, factor).text(mesh.sizes[axis.name])] = factor
            pre, left = pre * factor, left // factor
        factor += 1
    return parts


def _suffixes(before: State, after: State) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    result = []
    for old, new in zip(before, after, strict=True):
        same = 0
        while same < min(len(old), len(new)) and old[same] == new[same]:
            same += 1
        result.append((old[same:], new[same:]))
    return result


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
