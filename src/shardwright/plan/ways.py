"""The ways to make a move between blocks, whatever the size of the tensor: chains of collectives, each as a list of (links,
what part of the tensor a device receives). Bytes then give seconds by the same formulas as for steps that are built."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from shardwright.hardware import Fabric
from shardwright.mesh import Mesh
from shardwright.plan.route import Change, Hop, change_between
from shardwright.plan.search import least_middle
from shardwright.plan.steps import PRICED_AS
from shardwright.sharding import Sharding

Shape = tuple[int, ...]
UNEQUAL = 0.75  # of the time of a collective between equal blocks: what one between unequal blocks takes at least
NEARLY = 1.25  # times an equal block: the largest that unequal blocks may be for that to be known
EQUAL, SHORT, UNLIKE = range(3)  # how blocks differ: not at all, since dims are shorter than the devices, otherwise
Term = tuple[str, Fabric, float]  # a collective, its links, what part of the tensor's bytes the busiest device receives


class Way(NamedTuple):
    """One way: its collectives, and what must divide the tensor's dims and its elements for all blocks to be equal."""

    terms: tuple[Term, ...]
    states: tuple[tuple[int, ...], ...]  # at first and after each collective: what divides each dim; () where regrouped
    by_dim: tuple[tuple[int, int], ...]  # (dim, divisor)
    divisor: int  # of all elements
    crossing: tuple[
        Fabric, ...
    ] = ()  # the links that an exchange between unequal blocks may cross, if it ends with one
    stage: tuple[tuple[int, ...], int] = ((), 0)  # if an all_reduce is cut in stages: what splits dims, and by how many

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
        it may keep more of what it holds. Where blocks differ only because a dim is too short for all devices, those that
        hold some hold what the dim's length says, and no more is given away. Chunks of a ring that are unequal are longer.
        """
        total, kind = 0.0, _unlike(shape, self.states[0])
        for (name, fabric, part), before, after in zip(self.terms, self.states, self.states[1:], strict=False):
            kind = max(kind, _unlike(shape, after))
            if not part:
                continue
            if kind == EQUAL:
                total += fabric.seconds(name, part * size)
            elif name == "exchange":  # perhaps along fewer axes, or others, or to neighbours only
                received, links = UNEQUAL * part * size, self.crossing or (fabric,)
                total += min([f.seconds(to, received) for f in links for to in ("exchange", "permute")])
            elif kind == SHORT:
                state = after if name in ("all_gather", "all_to_all") else before
                idle = math.prod([max(1.0, split / max(n, 1)) for n, split in zip(shape, state, strict=False)])
                total += fabric.seconds(name, idle * part * size)
            else:
                total += UNEQUAL * fabric.seconds(name, part * size)
        return total


def _unlike(shape: Shape, splits: Sequence[int]) -> int:
    """How blocks differ that dims are split into."""
    pairs = [(n, split) for n, split in zip(shape, splits, strict=False) if n % split]
    return UNLIKE if any(split < n for n, split in pairs) else SHORT if pairs else EQUAL


class Ways:
    """The ways of one pattern, whatever the size of the tensor."""

    def __init__(self, source: Sharding, target: Sharding) -> None:
        self.mesh: Mesh = source.mesh
        self.change: Change = change_between(source, target)
        self.near = list(self._ways(False))
        first = list(self.change.grown(self.change.settled)) if self.change.reduced else []
        self.direct = self._way(first, self._exchange())
        self.searched = bool(self.near)  # whether the longer search was made, if one is needed
        self.far: list[Way] = []
        if self.change.reduced:
            self.search()
        self._known: dict[tuple[Shape, int], tuple[float, bool]] = {}

    @property
    def every(self) -> list[Way]:
        """All of them, as far as they were looked for."""
        return [self.direct, *self.near, *self.far]

    def search(self) -> list[Way]:
        """Looks further for chains, where none is near; those found."""
        if not self.searched:
            self.searched, self.far = True, list(self._ways(True))
        return self.far

    def seconds(self, shape: Shape, count: int, itemsize: int) -> tuple[float, bool]:
        """Seconds for a tensor of so many elements, and whether that is its price rather than less; NaN if nothing is known.
        In its shape dims with axes come first."""
        key = (shape, count * itemsize)
        if key not in self._known:
            self._known[key] = self._seconds(shape, count, itemsize)
        return self._known[key]

    def _seconds(self, shape: Shape, count: int, itemsize: int) -> tuple[float, bool]:
        size, direct_even = count * itemsize, self.direct.is_even(shape, count)
        if not direct_even and not self._nearly_even(shape):
            return math.nan, False
        best = self.direct.seconds(size) if direct_even else math.inf
        start, pace = self.least
        if best > start + pace * size:
            self.search()
        ways = [*self.near, *self.far, *([] if direct_even else [self.direct])]
        if self.change.reduced:
            ways = [way for way in ways if way.exists(shape)]
        even = [way.is_even(shape, count) for way in ways]
        best = min([best, *[way.seconds(size) for way, is_even in zip(ways, even, strict=True) if is_even]])
        least = min(
            [way.at_least(shape, size) for way, is_even in zip(ways, even, strict=True) if not is_even], default=best
        )
        return (least, False) if least < best else (best, True)

    def _nearly_even(self, shape: Shape) -> bool:
        """Whether before and after no block is much larger than if all were equal."""
        states = [[*map(self.change.product, state)] for state in (self.change.was, self.change.becomes)]
        pairs = [pair for state in states for pair in zip(shape, state, strict=False)]
        return all(-(-n // split) * split <= NEARLY * n for n, split in pairs)

    def _ways(self, further: bool) -> Iterator[Way]:
        change = self.change
        for hops in change.chains(further):
            yield self._way(change.eased(hops))
            joined = change.joined(hops)
            if joined is not hops:
                yield self._way(joined)
            if change.reduced and hops:
                yield from self._staged(hops)

    def _staged(self, hops: Sequence[Hop]) -> Iterator[Way]:
        """The chain with its all_reduce cut in stages, on dims that can be split once more."""
        change = self.change
        staged = change.staged(hops, (change.product(self.mesh.axis_names) ** 2,) * len(hops[0].state))
        if staged is hops:
            return
        at = next(i for i, hop in enumerate(hops) if hop.name == "all_reduce")
        own, way = self._way(hops), self._way(staged)  # the dim that is scattered for a while is any that fits
        splits = tuple(map(change.product, hops[at].state))
        states = (*way.states[: at + 1], *[splits] * 3, *way.states[at + 4 :])
        yield way._replace(states=states, by_dim=own.by_dim, stage=(splits, change.product(staged[at].axes)))

    def _way(self, hops: Sequence[Hop], after: Sequence[Term] = ()) -> Way:
        """What a device receives in each collective of a chain, and what must be divisible by what."""
        change, mesh = self.change, self.mesh
        splits = [*map(change.product, change.was)]
        least = [math.lcm(*pair) for pair in zip(splits, map(change.product, change.becomes), strict=True)]
        terms: list[Term] = []
        states = [tuple(splits)]
        divisor = 1
        for hop in hops:
            group, shards = change.product(hop.axes), math.prod(splits)
            received = _PARTS[hop.name](group) / shards if hop.name in _PARTS else 0.0
            terms.append((PRICED_AS.get(hop.name, hop.name), mesh.fabric(hop.axes), received))
            if hop.name == "all_reduce":
                divisor = max(divisor, shards * group)
            splits = [*map(change.product, hop.state)]
            regrouped = len(splits) != len(least)  # by factors of what splits dims
            states.append(() if regrouped else tuple(splits))
            if not regrouped:
                least = [math.lcm(*pair) for pair in zip(least, splits, strict=True)]
        by_dim = tuple((dim, n) for dim, n in enumerate(least) if n > 1)
        states += [tuple(map(change.product, change.becomes))] * len(after)
        return Way((*terms, *after), tuple(states), by_dim, divisor, self._crossing if after else ())

    def _exchange(self) -> list[Term]:
        change = self.change
        after = 1 / math.prod(map(change.product, change.becomes))
        lacking = after
        if not any(old and new for old, new in change.suffixes):
            lacking -= after / change.product([piece for old, new in change.suffixes if not new for piece in old])
        return [("exchange", self.mesh.fabric(change.crossed), lacking)] if lacking > 0 and change.crossed else []

    @cached_property
    def _crossing(self) -> tuple[Fabric, ...]:
        """The links along every set of axes that an exchange may cross: those along which it gathers or moves blocks, and
        perhaps others."""
        change, mesh = self.change, self.mesh
        certain = {p for old, new in zip(change.was, change.becomes, strict=True) for p in old if p not in new}
        axes = [axis for axis, n in mesh.sizes.items() if n > 1]
        some = (axes_ for count in range(1, len(axes) + 1) for axes_ in combinations(axes, count))
        return tuple(dict.fromkeys([mesh.fabric(axes_) for axes_ in some if certain <= set(axes_)]))

    @cached_property
    def least(self) -> tuple[float, float]:
        """Seconds to start, and a byte of the tensor, that every chain takes which a longer search finds, as `reshard` has
        them."""
        change, mesh = self.change, self.mesh
        links = mesh.links_along(change.crossed)
        after = 1 / math.prod(map(change.product, change.becomes))
        middle = 1 / change.product([*change.held, *(change.wanted - change.held)])
        moved = middle * least_middle(2, change.moved) + after - middle
        hops = sum(link.hop * min(math.log2(n), n // 2) for n, link in links)
        return mesh.fabric(change.crossed).launch + hops, moved * mesh.fabric(mesh.axis_names).least_pace


_PARTS: dict[str, Callable[[int], float]] = {
    "all_gather": lambda group: group - 1,
    "all_to_all": lambda group: 1 - 1 / group,
    "permute": lambda group: 1.0,
    "reduce_scatter": lambda group: 1 - 1 / group,
    "all_reduce": lambda group: 2 - 2 / group,
}  # of a shard: what a device receives in a group
