"""Prices of moves by pattern: a move between equal blocks takes what its axes and the bytes of the tensor say, not its shape.

A planner prices every way to bring every value from anywhere to anywhere: millions of moves, of a few thousand patterns. For
a pattern the chains of collectives are found once, each as a list of (links, what part of the tensor a device receives);
bytes then give seconds by the same formulas as for steps that are built. Moves that are not between equal blocks are
priced one by one. Either way the price is that of `move_steps`.
"""

import math
from collections.abc import Callable, Container, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.hardware import Fabric
from shardwright.mesh import Mesh
from shardwright.plan.reshard import move_steps
from shardwright.plan.route import Change, Hop, change_between
from shardwright.plan.search import least_middle
from shardwright.plan.steps import PRICED_AS
from shardwright.sharding import P, Sharding

Shape = tuple[int, ...]
DType = np.dtype[Any]
UNEQUAL = 0.75  # of the time of a collective between equal blocks: what one between unequal blocks takes at least
Term = tuple[str, Fabric, float]  # a collective, its links, what part of the tensor's bytes the busiest device receives


class _Way(NamedTuple):
    """One way: its collectives, and what must divide the tensor's dims and its elements for all blocks to be equal."""

    terms: tuple[Term, ...]
    states: tuple[tuple[int, ...], ...]  # after each collective what divides each dim; () where that is regrouped
    by_dim: tuple[tuple[int, int], ...]  # (dim, divisor)
    divisor: int  # of all elements
    stage: tuple[tuple[int, ...], int] = (
        (),
        0,
    )  # what splits dims where an all_reduce is cut in stages, and by how many

    def exists(self, shape: Shape) -> bool:
        """Whether some dim can be scattered for stages, if there are any."""
        splits, fast = self.stage
        return not fast or any(n // (splits[d] if d < len(splits) else 1) % fast == 0 for d, n in enumerate(shape))

    def seconds(self, size: float) -> float:
        """Seconds for a tensor of so many bytes."""
        return sum([fabric.seconds(name, part * size) for name, fabric, part in self.terms if part])

    def is_even(self, shape: Shape, count: int) -> bool:
        """Whether all blocks on the way are equal, for a tensor of so many elements."""
        return not count % self.divisor and not any(shape[dim] % n for dim, n in self.by_dim)

    def at_least(self, shape: Shape, size: float) -> float:
        """Seconds that the way takes at least if blocks become unequal on it.

        The busiest device then receives no less than a device would if all were equal; some of that is given away, since
        it may keep more of what it holds.
        """
        total, equal = 0.0, True
        for (name, fabric, part), state in zip(self.terms, (*self.states, ()), strict=False):
            equal = equal and not any(n % split for n, split in zip(shape, state, strict=False))
            total += (1.0 if equal else UNEQUAL) * fabric.seconds(name, part * size) if part else 0.0
        return 0.0 if equal else total  # else elements don't divide, and chunks of a ring are longer


class _Ways:
    """The ways of one pattern, whatever the size of the tensor."""

    def __init__(self, source: Sharding, target: Sharding) -> None:
        self.mesh: Mesh = source.mesh
        self.change: Change = change_between(source, target)
        self._near = list(self._ways(False))
        self._far: list[_Way] | None = None
        first = list(self.change.grown(self.change.settled)) if self.change.reduced else []
        self._direct = self._way(first, self._exchange())
        self._known: dict[tuple[Shape, int], tuple[float, bool]] = {}

    def seconds(self, shape: Shape, count: int, itemsize: int) -> tuple[float, bool]:
        """Seconds for a tensor of so many elements, and whether that is its price rather than less; NaN if nothing is known.
        In its shape dims with axes come first."""
        key = (shape, count * itemsize)
        if key not in self._known:
            self._known[key] = self._seconds(shape, count, itemsize)
        return self._known[key]

    def _seconds(self, shape: Shape, count: int, itemsize: int) -> tuple[float, bool]:
        size, ways = count * itemsize, [*self._near]
        if not self._direct.is_even(shape, count):
            return math.nan, False
        best = self._direct.seconds(size)
        if not ways and (self.change.reduced or best > self._least(size)):
            if self._far is None:
                self._far = list(self._ways(True))
            ways += self._far
        if self.change.reduced:
            ways = [way for way in ways if way.exists(shape)]
        even = [way.is_even(shape, count) for way in ways]
        best = min([best, *[way.seconds(size) for way, is_even in zip(ways, even, strict=True) if is_even]])
        least = min(
            [way.at_least(shape, size) for way, is_even in zip(ways, even, strict=True) if not is_even], default=best
        )
        return (least, False) if least < best else (best, True)

    def _ways(self, further: bool) -> Iterator[_Way]:
        change = self.change
        for hops in change.chains(further):
            yield self._way(change.eased(hops))
            joined = change.joined(hops)
            if joined is not hops:
                yield self._way(joined)
            if change.reduced and hops:
                yield from self._staged(hops)

    def _staged(self, hops: Sequence[Hop]) -> Iterator[_Way]:
        """The chain with its all_reduce cut in stages, on dims that can be split once more."""
        change = self.change
        staged = change.staged(hops, (change.product(self.mesh.axis_names) ** 2,) * len(hops[0].state))
        if staged is hops:
            return
        at = next(i for i, hop in enumerate(hops) if hop.name == "all_reduce")
        own = self._way(hops)  # the dim that is scattered for a while is any that fits
        splits = tuple(map(change.product, hops[at].state))
        yield self._way(staged)._replace(by_dim=own.by_dim, stage=(splits, change.product(staged[at].axes)))

    def _way(self, hops: Sequence[Hop], after: Sequence[Term] = ()) -> _Way:
        """What a device receives in each collective of a chain, and what must be divisible by what."""
        change, mesh = self.change, self.mesh
        splits = [*map(change.product, change.was)]
        least = [math.lcm(*pair) for pair in zip(splits, map(change.product, change.becomes), strict=True)]
        terms: list[Term] = []
        states: list[tuple[int, ...]] = []
        divisor = 1
        for hop in hops:
            group, shards = change.product(hop.axes), math.prod(splits)
            received = _PARTS[hop.name](group) / shards if hop.name in _PARTS else 0.0
            terms.append((PRICED_AS.get(hop.name, hop.name), mesh.fabric(hop.axes), received))
            if received:
                divisor = max(divisor, shards * group)
            splits = [*map(change.product, hop.state)]
            regrouped = len(splits) != len(least)  # by factors of what splits dims
            states.append(() if regrouped else tuple(splits))
            if not regrouped:
                least = [math.lcm(*pair) for pair in zip(least, splits, strict=True)]
        by_dim = tuple((dim, n) for dim, n in enumerate(least) if n > 1)
        return _Way((*terms, *after), tuple(states), by_dim, divisor)

    def _exchange(self) -> list[Term]:
        change = self.change
        after = 1 / math.prod(map(change.product, change.becomes))
        lacking = after
        if not any(old and new for old, new in change.suffixes):
            lacking -= after / change.product([piece for old, new in change.suffixes if not new for piece in old])
        return [("exchange", self.mesh.fabric(change.crossed), lacking)] if lacking > 0 and change.crossed else []

    def _least(self, size: float) -> float:
        """Seconds that every chain takes which a longer search finds, as `reshard` has them."""
        change, mesh = self.change, self.mesh
        links = mesh.links_along(change.crossed)
        after = size / math.prod(map(change.product, change.becomes))
        middle = size / change.product([*change.held, *(change.wanted - change.held)])
        moved = middle * least_middle(2, change.moved) + after - middle
        hops = sum(link.hop * min(math.log2(n), n // 2) for n, link in links)
        return mesh.fabric(change.crossed).launch + hops + moved * mesh.fabric(mesh.axis_names).least_pace


_PARTS: dict[str, Callable[[int], float]] = {
    "all_gather": lambda group: group - 1,
    "all_to_all": lambda group: 1 - 1 / group,
    "permute": lambda group: 1.0,
    "reduce_scatter": lambda group: 1 - 1 / group,
    "all_reduce": lambda group: 2 - 2 / group,
}  # of a shard: what a device receives in a group


class _Pattern(NamedTuple):
    """What the axes of a move do; dims without axes are one, at the end."""

    mesh: Mesh
    dims: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    before: tuple[str, ...]  # partial axes
    after: tuple[str, ...]
    reduction: str
    rest: bool  # whether there are dims without axes


@lru_cache(maxsize=65536)
def _ways(pattern: _Pattern) -> _Ways:
    before, after = ([*(pair[i] for pair in pattern.dims), *[()] * pattern.rest] for i in (0, 1))
    source = Sharding(pattern.mesh, P(*before), partial=pattern.before, reduction=pattern.reduction)
    target = Sharding(pattern.mesh, P(*after), partial=pattern.after, reduction=pattern.reduction)
    return _Ways(source, target)


def move_seconds(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> float:
    """What `move_steps` takes. That a value becomes partial takes nothing: one device of a group keeps it, the others hold
    what adds nothing.

    >>> mesh, f4 = Mesh(x=4), np.dtype("f4")
    >>> here, there = Sharding(mesh, P("x", None)), Sharding(mesh, P(None, "x"))
    >>> move_seconds(here, there, (8, 8), f4) == sum(step.time for step in move_steps(here, there, (8, 8), f4))
    True
    """
    if source is target:
        return 0.0
    found, exact = _priced(source, target, shape, math.prod(shape), dtype)
    return found if exact else _stepped(source, target, shape, dtype)


def is_exact(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> bool:
    """Whether a move's entry in a matrix is its price, without being asked for."""
    if source is target:
        return True
    found, exact = _priced(source, target, shape, math.prod(shape), dtype)
    return exact or math.isnan(found)


def move_matrix(
    before: Sequence[Sharding],
    after: Sequence[Sharding],
    shape: Shape,
    dtype: DType,
    exact: "Container[tuple[Sharding, Sharding, Shape, DType]]" = (),
) -> NDArray[np.float64]:
    """Seconds of the moves from each of some shardings to each of others.

    Few moves lead over blocks that become unequal on the way, and fewer of them are worth it. They cost most to price, so
    unless they are among the `exact` they count with what they take at least.
    """
    rows, columns = ({s: i for i, s in enumerate(dict.fromkeys(some))} for some in (before, after))
    count = math.prod(shape)
    least = np.zeros((len(rows), len(columns)))
    for i, a in enumerate(rows):
        for j, b in enumerate(columns):
            if a is not b:
                found, known = _priced(a, b, shape, count, dtype)
                if found != found or (not known and (a, b, shape, dtype) in exact):
                    found = _stepped(a, b, shape, dtype)
                least[i, j] = found
    if len(rows) < len(before) or len(columns) < len(after):
        return least[np.ix_([rows[s] for s in before], [columns[s] for s in after])]
    return least


def _priced(source: Sharding, target: Sharding, shape: Shape, count: int, dtype: DType) -> tuple[float, bool]:
    """Seconds by pattern, and whether that is the price rather than less; NaN if nothing is known."""
    ways, order, _ = _between(source, target)
    if ways is None:
        return math.nan, False
    return ways.seconds(tuple([shape[dim] for dim in order]), count, dtype.itemsize)


@lru_cache(maxsize=1 << 16)
def _stepped(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> float:
    """Seconds by the steps themselves."""
    return sum([step.time for step in move_steps(source, _between(source, target)[2], shape, dtype)])


@lru_cache(maxsize=1 << 18)
def _between(source: Sharding, target: Sharding) -> tuple[_Ways | None, tuple[int, ...], Sharding]:
    """The ways of a move between blocks of whole axes, if it is one; its dims with those that have axes first; and the target
    without axes over which it only becomes partial."""
    if target.partial and (not set(target.partial) <= set(source.partial) or source.reduction != target.reduction):
        same = source.reduction == target.reduction
        kept = tuple(axis for axis in target.partial if axis in source.partial) if same else ()
        target = target.replace(partial=kept)
    mesh = source.mesh
    if mesh is not target.mesh or source.offsets or target.offsets or source.halo or target.halo:
        return None, (), target
    if source.reduction == "average" and source.partial:  # travels in another dtype
        return None, (), target
    sizes = mesh.sizes
    if any(sizes.get(axis, 1) == 1 for axis in (*source.axes, *target.axes)):
        return None, (), target
    pairs = [*zip(source.dims, target.dims, strict=True)]
    split = [dim for dim, pair in enumerate(pairs) if any(pair)]
    others = [dim for dim, pair in enumerate(pairs) if not any(pair)]
    reduction = source.reduction if source.partial else "sum"
    moved = tuple(pairs[dim] for dim in split)
    pattern = _Pattern(mesh, moved, source.partial, target.partial, reduction, bool(others))
    return _ways(pattern), (*split, *others), target
