"""Axes that are alike: of equal sizes along equal links. Whatever has one in place of the other costs the same, so what is
found for a move must not depend on which of them it names."""

import math
from functools import lru_cache
from itertools import permutations, product

from shardwright.mesh import Mesh

State = tuple[tuple[str, ...], ...]  # per dim the pieces of axes that split it
MOST_NAMINGS = 120  # looked at; meshes with more have many alike axes on one tensor, and keep their names


@lru_cache(maxsize=256)
def alike_axes(mesh: Mesh) -> tuple[tuple[str, ...], ...]:
    """The axes with more than one device, those that are alike together.

    >>> alike_axes(Mesh(a=2, b=4, c=2))
    (('a', 'c'), ('b',))
    """
    found: dict[object, list[str]] = {}
    for axis, n in mesh.sizes.items():
        if n > 1:
            found.setdefault((n, mesh.fabric((axis,)).pieces), []).append(axis)
    return tuple(map(tuple, found.values()))


@lru_cache(maxsize=1024)
def namings(mesh: Mesh, axes: frozenset[str]) -> tuple[dict[str, int], ...]:
    """The ways to number some axes so that alike ones have the numbers of the first of their kind, in any order."""
    numbers = {axis: number for number, axis in enumerate(mesh.axis_names)}
    kinds = [([axis for axis in kind if axis in axes], [*map(numbers.__getitem__, kind)]) for kind in alike_axes(mesh)]
    if math.prod(math.factorial(len(used)) for used, _ in kinds) > MOST_NAMINGS:
        return (numbers,)
    used = [axis for some, _ in kinds for axis in some]
    orders = product(*[permutations(own[: len(some)]) for some, own in kinds])
    return tuple(dict(zip(used, [n for some in order for n in some], strict=True)) for order in orders)


def canonical_order(mesh: Mesh, before: State, after: State, others: State) -> list[int]:
    """The dims in an order that depends neither on their own nor on which of several alike axes splits them: by their pieces
    under the naming of axes that puts them first; of those without any the first, last.

    `others` are pieces that split no dim, in kinds.
    """
    states = (*before, *after, *others)
    pieces = {piece: mesh.axis(piece) for axes in states for piece in axes}
    split = [dim for dim, axes in enumerate(before) if axes or after[dim]]
    found = []
    for numbers in namings(mesh, frozenset([axis.name for axis in pieces.values()])):
        key = {piece: (numbers[axis.name], axis.pre) for piece, axis in pieces.items()}
        pairs = {dim: (*[key[p] for p in before[dim]], (-1, -1), *[key[p] for p in after[dim]]) for dim in split}
        order = sorted(split, key=pairs.__getitem__)
        whole = [pairs[dim] for dim in order], [sorted([key[p] for p in axes]) for axes in others]
        found.append((whole, order))
    return min(found)[1] + [dim for dim in range(len(before)) if dim not in split][:1]
