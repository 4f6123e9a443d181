"""Maps a logical mesh to a physical grid of devices, using entire physical axes or, if allowed, pieces of them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from shardwright.errors import MeshError
from shardwright.hardware import Link
from shardwright.mesh.axes import check_devices

Shares = tuple[int, ...]  # the part of each physical axis that a logical axis uses


def lay_out(
    physical: tuple[int, ...], logical: Mapping[str, int], split: bool, link: Link
) -> tuple[list[int], dict[str, Link]]:
    """Device ids of the logical mesh in row-major order, and the link along each logical axis."""
    check_devices(math.prod(physical), "The physical topology")
    grid = "×".join(map(str, physical))
    wanted = ", ".join(f"{name}={size}" for name, size in logical.items())
    if not physical or any(size < 1 for size in physical) or any(size < 1 for size in logical.values()):
        raise MeshError(f"Physical topology {grid or '()'} and logical mesh {wanted} need positive sizes throughout.")
    if math.prod(physical) != math.prod(logical.values()):
        raise MeshError(
            f"The logical mesh {wanted} has {math.prod(logical.values())} devices, the physical topology {grid} has "
            f"{math.prod(physical)}. Choose logical sizes whose product is {math.prod(physical)}."
        )
    shares = _best(physical, tuple(logical.values()), split)
    if shares is None:
        raise MeshError(_refusal(physical, logical, grid, wanted))
    return _ids(physical, shares), _links(physical, logical, shares, link)


def _best(physical: Shares, sizes: tuple[int, ...], split: bool) -> tuple[Shares, ...] | None:
    """The share of each physical axis that each logical axis uses; entire axes only, unless `split`.

    Prefers the fewest splits, then the fewest physical axes, then outer physical axes for outer logical axes.
    """

    @cache
    def best(remaining: Shares, first: int) -> tuple[int, int, tuple[Shares, ...]] | None:
        if first == len(sizes):
            return (0, 0, ()) if all(size == 1 for size in remaining) else None
        found: tuple[int, int, tuple[Shares, ...]] | None = None
        for share in _shares(remaining, physical, sizes[first], split):
            rest = best(tuple(n // taken for n, taken in zip(remaining, share, strict=True)), first + 1)
            if rest is None:
                continue
            cut = sum(1 < taken < whole for taken, whole in zip(share, physical, strict=True))
            used = sum(taken > 1 for taken in share)
            mine = (cut + rest[0], used + rest[1], (tuple(-taken for taken in share), *rest[2]))
            found = mine if found is None or mine < found else found
        return found

    result = best(physical, 0)
    return None if result is None else tuple(tuple(-taken for taken in share) for share in result[2])


def _shares(remaining: Shares, physical: Shares, size: int, split: bool, most: int | None = None) -> Iterator[Shares]:
    """The ways to take a size from what remains of each physical axis; of axes that are alike the outer ones first."""
    if not remaining:
        if size == 1:
            yield ()
        return
    if math.prod(remaining) % size:  # nothing that is left comes to this size
        return
    first = remaining[0]
    alike = (remaining[:2], physical[:2]) == ((first, first), (physical[0], physical[0]))
    for taken in _divisors(first) if split else sorted({1, first}):
        if size % taken == 0 and (most is None or taken <= most):
            rest = _shares(remaining[1:], physical[1:], size // taken, split, taken if alike else None)
            yield from ((taken, *others) for others in rest)


@cache
def _divisors(size: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(size) + 1) if size % n == 0]
    return sorted({*small, *(size // n for n in small)})


def _ids(physical: tuple[int, ...], shares: tuple[Shares, ...]) -> list[int]:
    """Cuts every physical axis by its shares (first logical axis outermost), then groups the pieces by logical axis."""
    pieces = [(axis, p) for p in range(len(physical)) for axis, share in enumerate(shares) if share[p] > 1]
    grid = np.arange(math.prod(physical)).reshape([shares[axis][p] for axis, p in pieces])
    by_logical = sorted(range(len(pieces)), key=pieces.__getitem__)
    ids: list[int] = grid.transpose(by_logical).ravel().tolist()
    return ids


def _links(
    physical: tuple[int, ...], logical: Mapping[str, int], shares: tuple[Shares, ...], link: Link
) -> dict[str, Link]:
    """Entire physical axes keep their link (several make a torus); a piece shares its wires with other pieces."""
    links = {}
    for name, share in zip(logical, shares, strict=True):
        used = [(taken, size) for taken, size in zip(share, physical, strict=True) if taken > 1]
        sharing = max((size // taken for taken, size in used), default=1)
        if sharing > 1:
            links[name] = replace(link, kind="line", bandwidth=link.bandwidth / sharing)
        elif len(used) > 1:
            links[name] = replace(link, kind="torus")
        else:
            links[name] = link
    return links


def _refusal(physical: tuple[int, ...], logical: Mapping[str, int], grid: str, wanted: str) -> str:
    products = {1}
    for size in physical:
        products |= {known * size for known in products}
    misfits = [f"{name}={size}" for name, size in logical.items() if size not in products]
    why = (
        f"{' and '.join(misfits)} is not a product of entire physical axes, which give {sorted(products)}"
        if misfits
        else "the entire physical axes can't be divided among them"
    )
    return (
        f"The logical mesh {wanted} does not fit the physical topology {grid} without splitting a physical axis: "
        f"{why}. Choose other sizes, or pass split_physical_axes=True; a split axis shares its links, so its bandwidth "
        f"drops."
    )
