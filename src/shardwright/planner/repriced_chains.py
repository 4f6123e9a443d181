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
from itertools import pairwise
from typing import NamedTuple

from shardwright.mesh import Mesh, SubAxis
from shardwright.plan import longer_chains
from shardwright.planner.repriced_links import links_of
from shardwright.sharding import P, Sharding

Axes = tuple[str, ...]
State = tuple[Axes, ...]


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

    def long(self) -> list[Chain]:
        """Those with more steps, over pieces of axes."""
        source, target = (Sharding(self.group.mesh, P(*state)) for state in (self.source, self.target))
        if self.summed:
            source = source.replace(partial=self.summed)
        return [chain for middle in longer_chains(source, target) for chain in self._variants(middle)]

    def _is_summed(self, axis: str) -> bool:
        return axis.partition(":")[0] in self.summed

    # -- the collectives of a chain -------------------------------------------------------------------------------------

    def _variants(self, middle: tuple[State, ...]) -> Iterator[Chain]:
        """A chain whose gathers and scatters are by the speed of links; with those of a dim at once; with stages."""
        source, target = self.source, self.target
        if any(axis not in self.group.sizes for state in middle for axes in state for axis in axes):
            source, target = (
                tuple([tuple([piece for axis in axes for piece in self.group.primes(axis)]) for axes in state])
                for state in (source, target)
            )
        grown = list(self.grown(middle[0], source))
        between = [self._between(*pair) for pair in pairwise(middle)]
        gathers = list(self.gathers(middle[-1], target))
        scattered = by_speed(grown, self.group, source) if self.summed else grown
        last = by_speed(gathers, self.group, middle[-1]) if len(gathers) > 1 else gathers
        yield self._chain(source, [*scattered, *between, *last])
        at_once = [*together(grown), *between, *together(gathers)]
        if len(at_once) < len(grown) + len(between) + len(gathers):
            yield self._chain(source, at_once)
        stages, more = staged(grown, self.group)
        if stages:
            chain = self._chain(source, [*stages, *between, *gathers])
            yield chain._replace(stage=(self.group.blocks(stages[-1].state), more))

    def grown(self, start: State, source: State | None = None) -> Iterator[Hop]:
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
        tails = list(map(_unlike, before, after))
        if self.group.blocks(before) != self.group.blocks(after):
            return Hop("all_to_all", next(old for old, _ in tails if old), -1, after)
        return Hop(
            "permute", tuple(dict.fromkeys([axis for sides in tails for some in sides for axis in some])), -1, after
        )

    def gathers(self, last: State, target: State) -> Iterator[Hop]:
        """Along slow links first, while shards are small."""
        state = list(last)
        parts = [(dim, axes[len(target[dim]) :]) for dim, axes in enumerate(last) if len(axes) > len(target[dim])]
        if len(parts) > 1:
            parts.sort(key=lambda entry: self.group.paces(entry[1]), reverse=True)
        for dim, axes in parts:
            for run in self.group.by_speed(axes)[::-1]:
                state[dim] = state[dim][: -len(run)]
                yield Hop("all_gather", run, dim, tuple(state))

    def _chain(self, source: State, hops: Sequence[Hop]) -> Chain:
        """What a device receives in each collective."""
        group, terms, divisor = self.group, [], 1
        blocks = [group.blocks(source)]
        shards = math.prod(blocks[0])
        for hop in hops:
            p = group.count(hop.axes)
            terms.append((hop.name, hop.axes, received(hop.name, p) / shards))
            if hop.name == "all_reduce":
                divisor = max(divisor, shards * p)
            if hop.name == "all_gather":
                shards //= p
            elif hop.name in ("all_slice", "reduce_scatter"):
                shards *= p
            blocks.append(group.blocks(hop.state))
        return Chain(tuple(terms), tuple(blocks), divisor)


def received(name: str, p: int) -> float:
    """What a device of p receives in a collective, of its shard before it."""
    if name == "all_gather":
        return p - 1
    if name in ("all_to_all", "reduce_scatter"):
        return 1 - 1 / p
    return 2 - 2 / p if name == "all_reduce" else 1.0 if name == "permute" else 0.0


def staged(hops: Sequence[Hop], group: Group) -> tuple[list[Hop], int]:
    """Hops that end with an all_reduce, that as a reduce_scatter along the faster axes, an all_reduce along the slowest, and an
    all_gather, of any dim; and into how many more blocks that cuts. No hops if axes do not differ in speed."""
    if not hops or hops[-1].name != "all_reduce":
        return [], 1
    *before, reduction = hops
    slowest = max([group.pace(axis) for axis in reduction.axes])
    fast = tuple([axis for axis in reduction.axes if group.pace(axis) < slowest])
    if not fast:
        return [], 1
    slow, state = tuple([axis for axis in reduction.axes if axis not in fast]), reduction.state
    stages = [("reduce_scatter", fast), ("all_reduce", slow), ("all_gather", fast)]
    return [*before, *[Hop(name, axes, -1, state) for name, axes in stages]], group.count(fast)


def by_speed(hops: Sequence[Hop], group: Group, before: State) -> Sequence[Hop]:
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


def together(hops: Sequence[Hop]) -> list[Hop]:
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


def _unlike(old: Axes, new: Axes) -> tuple[Axes, Axes]:
    """Two lists of axes without those that both begin with."""
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    return old[same:], new[same:]
