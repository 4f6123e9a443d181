"""Chains of collectives from one placement to another, for the check of a certificate: what a device receives in each.

A placement is a state: for each dim the axes that split it, outermost first, and the axes that are still to be summed. A
collective is an edge to another state; all cost what their links and the bytes say, except that to slice is free:

    slice, reduce_scatter   put axes behind those of a dim
    all_reduce              sums over axes that split no dim afterwards; also in stages, where links differ in speed
    all_to_all              takes the last axes of a dim and puts them behind those of another
    permute                 any other lists of axes, if every dim is in as many blocks
    all_gather              takes the last axes of a dim; in equal blocks any of its axes, since a device can regroup its shard

Slices come first, gathers last, so that what moves in between is smallest. Where slices lead to states that gathers start from,
nothing moves in between; else one all_to_all does, along as few devices as there are; else one permute. These are the chains
that the library runs, found here by other code. Where there is none of these, a chain has several steps in between, over pieces
of axes; which steps these are is read from the library, and priced here.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations, product
from typing import Any, NamedTuple

from shardwright.mesh import Mesh, SubAxis
from shardwright.plan import longer_chains
from shardwright.planner.repriced_links import Line, links_of
from shardwright.sharding import P, Sharding

Axes = tuple[str, ...]
State = tuple[Axes, ...]
PLACINGS = 64  # of axes that come or go, that are looked at


class Hop(NamedTuple):
    """One collective: its name, its axes, its dim (-1 if it has none or several), the state after it (() while regrouped)."""

    name: str
    axes: Axes
    dim: int
    state: State


class Chain(NamedTuple):
    """Collectives, each with its axes and what part of the tensor the busiest device receives; how many blocks each dim is in
    at first and after each of them (() while dims are regrouped); what must divide the number of elements."""

    terms: tuple[tuple[str, Axes, float], ...]
    blocks: tuple[tuple[int, ...], ...]
    divisor: int
    stage: tuple[tuple[int, ...], int] = (
        (),
        0,
    )  # of an all_reduce in stages: the blocks of each dim, and into how many more


class Group:
    """The axes of a mesh: their sizes and links."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.sizes = dict(mesh.sizes)
        self._paces: dict[str, float] = {}
        self._primes: dict[str, Axes] = {}
        self._counts: dict[Axes, int] = {}
        self._blocks: dict[State, tuple[int, ...]] = {}
        self._exchanges: dict[State, list[tuple[int, Axes, State]]] = {}
        self._placed: dict[Any, list[State]] = {}

    def count(self, axes: Axes) -> int:
        """The devices along axes, or pieces of axes."""
        found = self._counts.get(axes)
        if found is None:
            found = math.prod([self.sizes.get(axis) or self.mesh.axis(axis).size for axis in axes])
            self._counts[axes] = found
        return found

    def blocks(self, state: State) -> tuple[int, ...]:
        """How many blocks each dim is in."""
        found = self._blocks.get(state)
        if found is None:
            found = self._blocks[state] = tuple([self.count(axes) for axes in state])
        return found

    def exchanges(self, state: State) -> list[tuple[int, Axes, State]]:
        """Every all_to_all from a state: its devices, its axes, and the state after it."""
        found = self._exchanges.get(state)
        if found is None:
            found = self._exchanges[state] = []
            for i, axes in enumerate(state):
                for kept in range(len(axes)):
                    moved = axes[kept:]
                    for j in range(len(state)):
                        if j != i:
                            after = list(state)
                            after[i], after[j] = axes[:kept], state[j] + moved
                            found.append((self.count(moved), moved, tuple(after)))
        return found

    def placed(self, base: State, runs: tuple[tuple[Axes, ...], ...], most: int) -> list[State]:
        """A state with runs of axes behind those of their own dims; then, if there are not too many ways, of any dims."""
        found = self._placed.get((base, runs, most))
        if found is None:
            found = self._placed[base, runs, most] = list(dict.fromkeys(_placed(base, runs, most)))
        return found

    def pace(self, axis: str) -> float:
        """Seconds a byte of the slowest link along an axis."""
        found = self._paces.get(axis)
        if found is None:
            found = self._paces[axis] = 1 / min([link.bandwidth for _, link in self.mesh.links_along((axis,))])
        return found

    def paces(self, axes: Axes) -> tuple[float, float]:
        """Seconds a byte of the slowest link along axes, and of a ring along all of them."""
        return max(map(self.pace, axes)), links_of(self.mesh, axes).lines("all_gather")[0][1]

    def by_speed(self, axes: Axes) -> list[Axes]:
        """Axes in runs along links of one speed."""
        runs: list[Axes] = []
        for axis in axes:
            if runs and self.pace(runs[-1][-1]) == self.pace(axis):
                runs[-1] += (axis,)
            else:
                runs.append((axis,))
        return runs

    def primes(self, axis: str) -> Axes:
        """An axis cut into pieces of prime sizes."""
        if axis in self._primes:
            return self._primes[axis]
        pieces, before, left, factor = [], 1, self.sizes[axis], 2
        while left > 1:
            if left % factor:
                factor += 1
            else:
                pieces.append(SubAxis(axis, before, factor).text(self.sizes[axis]))
                before, left = before * factor, left // factor
        self._primes[axis] = tuple(pieces)
        return self._primes[axis]


class Move:
    """From a state, with axes to be summed, to another."""

    def __init__(self, group: Group, source: State, target: State, summed: Axes) -> None:
        self.group, self.source, self.target, self.summed = group, source, target, summed
        self.held = {axis for axes in source for axis in axes}
        self.wanted = {axis for axes in target for axis in axes}

    # -- the chains ---------------------------------------------------------------------------------------------------

    def short(self) -> list[Chain]:
        """The chains with at most one step between slices and gathers."""
        come = tuple([_runs(axes, self.held) for axes in self.target])
        go = tuple([_runs(axes, self.wanted) for axes in self.source])
        ends = self.group.placed(self.target, go, PLACINGS)
        found = self._meeting(self.group.placed(self.source, come, PLACINGS), ends)
        if self.summed:
            sliced_first = tuple([tuple(sorted(_cut(runs, self.summed), key=self._sums)) for runs in come])
            if [run for runs in sliced_first for run in runs] != [run for runs in come for run in runs]:
                found += self._meeting(self.group.placed(self.source, sliced_first, 0), ends)
        return [chain for middle in found for chain in self._variants(middle)]

    def long(self) -> list[Chain]:
        """Those with more steps, over pieces of axes."""
        source, target = (Sharding(self.group.mesh, P(*state)) for state in (self.source, self.target))
        if self.summed:
            source = source.replace(partial=self.summed)
        return [chain for middle in longer_chains(source, target) for chain in self._variants(middle)]

    def direct(self) -> Chain:
        """What is summed, then one exchange in which every device gets what it lacks."""
        state, hops = self.source, list[Hop]()
        if self.summed:
            state = tuple([self._settled(*axes) for axes in zip(self.source, self.target, strict=True)])
            hops = list(self._grown(state))
        chain = self._chain(self.source, hops)
        unlike = [_unlike(*axes) for axes in zip(state, self.target, strict=True)]
        crossed = tuple([axis for old, _ in unlike for axis in old])
        after = self.group.blocks(self.target)
        part = 1 / math.prod(after)
        if not any(old and new for old, new in unlike):  # every device has some of its new shard
            part -= part / self.group.count(tuple([axis for old, new in unlike if not new for axis in old]))
        if not crossed or part <= 0:
            return chain
        return chain._replace(terms=(*chain.terms, ("exchange", crossed, part)), blocks=(*chain.blocks, after))

    def least_of_long(self) -> Line:
        """Seconds to start, and a byte of the tensor, that no chain with several steps in between is below: each axis that an
        exchange crosses is crossed, at best in pieces of two devices, all links are as fast as the fastest, and in two
        steps or more a device gets more of its shard than in one."""
        group, mesh = self.group, self.group.mesh
        state = tuple([self._settled(*axes) for axes in zip(self.source, self.target, strict=True)])
        crossed = tuple([axis for old, _ in map(_unlike, state, self.target) for axis in old])
        pieces = mesh.links_along(crossed)
        both = [axis for old, _ in map(_unlike, self.source, self.target) for axis in old if axis in self.wanted]
        smallest = 1 / group.count((*sorted(self.held | self.wanted),))
        twice = max(1.0, 1.5 - 2 / group.count(tuple(both)))
        received = smallest * twice + 1 / math.prod(group.blocks(self.target)) - smallest
        start = max([link.latency for _, link in pieces], default=0.0)
        start += sum([link.hop * min(math.log2(n), n // 2) for n, link in pieces])
        return start, received * links_of(mesh, tuple(mesh.axis_names)).least_pace

    def _settled(self, old: Axes, new: Axes) -> Axes:
        """The axes of a dim once sums are done: what comes is sliced before it is summed."""
        if not self.summed:
            return old
        return (*old, *sorted([axis for axis in new if axis not in self.held], key=self._is_summed))

    def _is_summed(self, axis: str) -> bool:
        return axis.partition(":")[0] in self.summed

    def _sums(self, run: Axes) -> bool:
        return run[0] in self.summed

    def _meeting(self, starts: Sequence[State], ends: Sequence[State]) -> list[tuple[State, ...]]:
        """The states after slices, and before gathers if these differ, of all chains that may be the cheapest."""
        known = set(ends)
        found: list[tuple[State, ...]] = [(start,) for start in starts if start in known]
        if not found:
            pairs = [(n, start, end) for start in starts for n, _, end in self.group.exchanges(start) if end in known]
            least = min([n for n, _, _ in pairs], default=0)
            found = [(start, end) for n, start, end in pairs if n == least]
        if not found:
            alike: dict[tuple[int, ...], list[State]] = {}
            for end in ends:
                alike.setdefault(self.group.blocks(end), []).append(end)
            found = [(start, end) for start in starts for end in alike.get(self.group.blocks(start), ())]
        return self._different(found)

    def _different(self, middles: list[tuple[State, ...]]) -> list[tuple[State, ...]]:
        """Of chains that gather alike those that move along different axes, and along no more than another."""
        if len(middles) < 2:
            return middles
        found: dict[object, dict[frozenset[str], tuple[State, ...]]] = {}
        for middle in middles:
            pairs = zip(middle[-1], self.target, strict=True)
            gathered = tuple(sorted([axes[len(kept) :] for axes, kept in pairs]))
            moved = frozenset(
                [axis for sides in map(_unlike, middle[0], middle[-1]) for some in sides for axis in some]
            )
            found.setdefault(gathered, {}).setdefault(moved, middle)
        return [
            middle
            for some in found.values()
            for moved, middle in some.items()
            if not any(other < moved for other in some)
        ]

    # -- the collectives of a chain -------------------------------------------------------------------------------------

    def _variants(self, middle: tuple[State, ...]) -> Iterator[Chain]:
        """A chain whose gathers and scatters are by the speed of links; with those of a dim at once; with stages."""
        source, target = self.source, self.target
        if any(axis not in self.group.sizes for state in middle for axes in state for axis in axes):
            source, target = (
                tuple([tuple([piece for axis in axes for piece in self.group.primes(axis)]) for axes in state])
                for state in (source, target)
            )
        grown = list(self._grown(middle[0], source))
        between = [self._between(*pair) for pair in pairwise(middle)]
        gathers = list(self._gathers(middle[-1], target))
        scattered = _by_speed(grown, self.group, source) if self.summed else grown
        last = _by_speed(gathers, self.group, middle[-1]) if len(gathers) > 1 else gathers
        yield self._chain(source, [*scattered, *between, *last])
        together = [*_together(grown), *between, *_together(gathers)]
        if len(together) < len(grown) + len(between) + len(gathers):
            yield self._chain(source, together)
        reduction = next((hop for hop in grown if hop.name == "all_reduce"), None)
        if reduction is not None:
            yield from self._staged(source, reduction, grown, [*between, *gathers])

    def _grown(self, start: State, source: State | None = None) -> Iterator[Hop]:
        """Slices, then what is summed: along fast links first, while shards are large."""
        state, later = list(source or self.source), []
        for dim, axes in enumerate(start):
            added = axes[len(state[dim]) :]
            if added and not any(map(self._is_summed, added)):
                state[dim] = axes
                yield Hop("all_slice", added, dim, tuple(state))
            elif added:
                later.append((dim, added))
        rest = []
        for dim, added in later:
            first = next(at for at, axis in enumerate(added) if self._is_summed(axis))
            if first:
                state[dim] += added[:first]
                yield Hop("all_slice", added[:first], dim, tuple(state))
            summed = tuple(filter(self._is_summed, added))
            others = self.group.count(tuple([axis for axis in added if axis not in summed]))
            rest.append((self.group.paces(summed) if len(later) > 1 else (), -others, dim, added[first:]))
        for _, _, dim, added in sorted(rest, key=lambda entry: entry[:2]):
            for part in _cut([added], self.summed):
                for run in self.group.by_speed(part) if self._is_summed(part[0]) else [part]:
                    state[dim] += run
                    yield Hop("reduce_scatter" if self._is_summed(run[0]) else "all_slice", run, dim, tuple(state))
        left = tuple([axis for axis in self.summed if axis not in self.wanted])
        if left:
            yield Hop("all_reduce", left, -1, tuple(state))

    def _between(self, before: State, after: State) -> Hop:
        for _, moved, state in self.group.exchanges(before):
            if state == after:
                return Hop("all_to_all", moved, -1, after)
        assert self.group.blocks(before) == self.group.blocks(after), (before, after)
        unlike = [axis for sides in map(_unlike, before, after) for some in sides for axis in some]
        return Hop("permute", tuple(dict.fromkeys(unlike)), -1, after)

    def _gathers(self, last: State, target: State) -> Iterator[Hop]:
        """Along slow links first, while shards are small."""
        state = list(last)
        parts = [(dim, axes[len(target[dim]) :]) for dim, axes in enumerate(last) if len(axes) > len(target[dim])]
        if len(parts) > 1:
            parts.sort(key=lambda entry: self.group.paces(entry[1]), reverse=True)
        for dim, axes in parts:
            for run in self.group.by_speed(axes)[::-1]:
                state[dim] = state[dim][: -len(run)]
                yield Hop("all_gather", run, dim, tuple(state))

    def _staged(self, source: State, reduction: Hop, grown: list[Hop], after: list[Hop]) -> Iterator[Chain]:
        """With a reduce_scatter along the faster axes, an all_reduce along the slowest, and an all_gather, of any dim."""
        group, state = self.group, reduction.state
        slowest = max([group.pace(axis) for axis in reduction.axes])
        fast = tuple([axis for axis in reduction.axes if group.pace(axis) < slowest])
        if not fast:
            return
        slow = tuple([axis for axis in reduction.axes if axis not in fast])
        stages = [
            Hop("reduce_scatter", fast, -1, state),
            Hop("all_reduce", slow, -1, state),
            Hop("all_gather", fast, -1, state),
        ]
        yield self._chain(source, [*grown[:-1], *stages, *after])._replace(
            stage=(group.blocks(state), group.count(fast))
        )

    def _chain(self, source: State, hops: Sequence[Hop]) -> Chain:
        """What a device receives in each collective."""
        group, terms, divisor = self.group, [], 1
        blocks = [group.blocks(source)]
        shards = math.prod(blocks[0])
        for hop in hops:
            p = group.count(hop.axes)
            terms.append((hop.name, hop.axes, _received(hop.name, p) / shards))
            if hop.name == "all_reduce":
                divisor = max(divisor, shards * p)
            if hop.name == "all_gather":
                shards //= p
            elif hop.name in ("all_slice", "reduce_scatter"):
                shards *= p
            blocks.append(group.blocks(hop.state))
        return Chain(tuple(terms), tuple(blocks), divisor)


def _received(name: str, p: int) -> float:
    """What a device of p receives in a collective, of its shard before it."""
    if name == "all_gather":
        return p - 1
    if name in ("all_to_all", "reduce_scatter"):
        return 1 - 1 / p
    return 2 - 2 / p if name == "all_reduce" else 1.0 if name == "permute" else 0.0


def _by_speed(hops: Sequence[Hop], group: Group, before: State) -> Sequence[Hop]:
    """Hops with scatters in the order of their links, the fastest first, and gathers the other way round. Where axes of a dim
    are not in that order, devices regroup their shards before and afterwards."""
    some = [hop for hop in hops if hop.name in ("reduce_scatter", "all_gather")]
    if len(some) < 2:
        return hops
    result: list[Hop] = []
    for at, hop in enumerate(hops):
        if at and hop.name == hops[at - 1].name and hop.name in ("reduce_scatter", "all_gather"):
            continue  # one that was taken with those before it
        last = at
        while last + 1 < len(hops) and hops[last + 1].name == hop.name:
            last += 1
        if hop.name in ("reduce_scatter", "all_gather"):
            result += _ordered(hops[at : last + 1], group, hops[at - 1].state if at else before)
        else:
            result.append(hop)
    return result


def _ordered(hops: Sequence[Hop], group: Group, before: State) -> Sequence[Hop]:
    gathers = hops[0].name == "all_gather"
    order = sorted(hops, key=lambda hop: max(map(group.pace, hop.axes)), reverse=gathers)
    if order == list(hops):
        return hops
    dims = {hop.dim for hop in hops}
    if any([h for h in order if h.dim == dim] != [h for h in hops if h.dim == dim] for dim in dims):
        return [*[hop._replace(state=()) for hop in order], Hop("regroup", (), -1, hops[-1].state)]
    state, result = list(before), []
    for hop in order:
        state[hop.dim] = state[hop.dim][: -len(hop.axes)] if gathers else state[hop.dim] + hop.axes
        result.append(hop._replace(state=tuple(state)))
    return result


def _together(hops: Sequence[Hop]) -> list[Hop]:
    """Hops with gathers, or scatters, of one dim that follow one another as one."""
    result: list[Hop] = []
    for hop in hops:
        last = result[-1] if result else None
        if last is None or (last.name, last.dim) != (hop.name, hop.dim) or hop.name == "all_slice":
            result.append(hop)
        else:
            axes = hop.axes + last.axes if hop.name == "all_gather" else last.axes + hop.axes
            result[-1] = hop._replace(axes=axes)
    return result


def _runs(axes: Axes, others: set[str]) -> tuple[Axes, ...]:
    """Axes that follow one another and are not among others: they come, or go, together."""
    runs: list[Axes] = []
    new = True
    for axis in axes:
        if axis in others:
            new = True
        elif new:
            runs.append((axis,))
            new = False
        else:
            runs[-1] += (axis,)
    return tuple(runs)


def _cut(runs: Sequence[Axes], summed: Axes) -> list[Axes]:
    """Runs cut where axes begin or cease to be summed."""
    result: list[Axes] = []
    for run in runs:
        for at, axis in enumerate(run):
            own = axis.partition(":")[0] in summed
            if at and own == (run[at - 1].partition(":")[0] in summed):
                result[-1] += (axis,)
            else:
                result.append((axis,))
    return result


def _placed(base: State, runs: Sequence[Sequence[Axes]], most: int) -> Iterator[State]:
    yield tuple([sum(some, axes) for axes, some in zip(base, runs, strict=True)])
    every = [run for some in runs for run in some]
    if every and len(base) ** len(every) * math.factorial(len(every)) <= most:
        for order in permutations(every):
            for dims in product(range(len(base)), repeat=len(every)):
                state = list(base)
                for run, dim in zip(order, dims, strict=True):
                    state[dim] += run
                yield tuple(state)


def _unlike(old: Axes, new: Axes) -> tuple[Axes, Axes]:
    """Two lists of axes without those that both begin with."""
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    return old[same:], new[same:]
