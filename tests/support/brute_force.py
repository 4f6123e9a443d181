"""The cheapest chain of collectives between two shardings, by looking at all of them. Nothing here uses the library.

A state says, per dim, which prime pieces of the mesh's axes split it, outermost first. Moves are slices, gathers,
all-to-alls and permutes; a move costs what the busiest device lacks of its new box. No device may ever hold more than the
larger of the two ends.
"""

import heapq
import math
from functools import cache
from itertools import permutations, product

from oracle import devices, offsets_of, piece, rank


def primes(sizes):
    """The axes cut into pieces of prime size."""
    result = []
    for name, size in sizes.items():
        pre, factor, left = 1, 2, size
        while left > 1:
            while left % factor == 0:
                result.append(name if factor == size else f"{name}:({pre}){factor}")
                pre, left = pre * factor, left // factor
            factor += 1
    return result


class Shardings:
    """All shardings of a tensor of a shape on a mesh, over prime pieces, and the moves between them."""

    def __init__(self, sizes, shape):
        self.sizes, self.shape = sizes, shape
        self.pieces = primes(sizes)
        self.states = list(self._all())
        self.by_parts = {}
        for state in self.states:
            self.by_parts.setdefault(self.parts(state), []).append(state)

    def _all(self):
        for count in range(len(self.pieces) + 1):
            for chosen in permutations(self.pieces, count):
                for homes in product(range(len(self.shape)), repeat=count):
                    if list(homes) == sorted(homes):
                        yield tuple(
                            tuple(p for p, home in zip(chosen, homes, strict=True) if home == dim)
                            for dim in range(len(self.shape))
                        )

    def refined(self, dims):
        """A state from lists of whole axes."""
        return tuple(tuple(p for axis in axes for p in self.pieces if p.split(":")[0] == axis) for axes in dims)

    def parts(self, state):
        return tuple(math.prod(piece(axis, self.sizes)[2] for axis in axes) for axes in state)

    def local(self, state):
        return math.prod(-(-n // k) for n, k in zip(self.shape, self.parts(state), strict=True))

    @cache  # noqa: B019  # lives as long as a test
    def boxes(self, state):
        result = []
        for device in devices(self.sizes):
            box = []
            for size, axes, parts in zip(self.shape, state, self.parts(state), strict=True):
                cuts, at = offsets_of(size, parts), rank(device, axes, self.sizes)
                box.append((cuts[at], cuts[at + 1]))
            result.append(box)
        return result

    @cache  # noqa: B019
    def lacking(self, a, b):
        """The elements that the busiest device lacks."""
        most = 0
        for here, there in zip(self.boxes(a), self.boxes(b), strict=True):
            total = math.prod(high - low for low, high in there)
            common = math.prod(
                max(0, min(h1, h2) - max(l1, l2)) for (l1, h1), (l2, h2) in zip(here, there, strict=True)
            )
            most = max(most, total - common)
        return most

    def moves(self, state):
        used = {p for axes in state for p in axes}

        def change(**lists):
            return tuple(lists.get(f"d{dim}", axes) for dim, axes in enumerate(state))

        for dim, axes in enumerate(state):
            for free in self.pieces:
                if free not in used:
                    yield change(**{f"d{dim}": (*axes, free)})
            for count in range(1, len(axes) + 1):
                yield change(**{f"d{dim}": axes[:-count]})
                for other in range(len(state)):
                    if other != dim:
                        yield change(**{f"d{dim}": axes[:-count], f"d{other}": (*state[other], *axes[-count:])})
        yield from (other for other in self.by_parts[self.parts(state)] if other != state)

    def least(self, start, end):
        """The bytes (of elements of one byte) of the cheapest chain."""
        room = max(self.local(start), self.local(end))
        queue, best = [(0, 0, start)], {start: 0}
        count = 0
        while queue:
            cost, _, state = heapq.heappop(queue)
            if state == end:
                return cost
            if cost > best[state]:
                continue
            for other in self.moves(state):
                if self.local(other) <= room:
                    total = cost + self.lacking(state, other)
                    if total < best.get(other, math.inf):
                        best[other] = total
                        count += 1
                        heapq.heappush(queue, (total, count, other))
        raise AssertionError("every state is reachable by gathers and slices")


def whole_axes(names, ndim):
    """Every way to deal whole axes to dims."""
    for count in range(len(names) + 1):
        for chosen in permutations(names, count):
            for homes in product(range(ndim), repeat=count):
                if list(homes) == sorted(homes):
                    yield tuple(
                        tuple(a for a, home in zip(chosen, homes, strict=True) if home == dim) for dim in range(ndim)
                    )
