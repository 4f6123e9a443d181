"""What moves take at least, for many patterns at once: by the sets of axes that come, go, move and are summed.

A mesh of four axes has so many patterns that finding the chains of all takes minutes. A floor of a chain is cheap: slices are
free, and the collectives after them are along sets of axes, which have small tables (see `floor_tables`). It leaves out the
places of axes on dims, and which of them may travel together. The floor of a direct exchange is its price, where blocks are
equal and nothing is summed.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.mesh import Mesh
from shardwright.plan.floor_tables import FloorTables, Tables

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
PARTIAL = -2  # what an axis does that is to be summed
ROUNDING = 1 - 1e-12  # the same terms may be added up in another order
FAR = np.iinfo(np.int64).max  # beyond all dims


class Features(NamedTuple):
    """What floors of some patterns depend on: sets of axes as bits; flags as 0 or 1; into how many blocks dims are split."""

    split: Ints  # axes that split a dim before or after
    after: Ints  # axes that split a dim after
    gone: Ints  # that split one before alone
    scattered: Ints  # summed, and split a dim after
    reduced: Ints  # summed, and don't
    moved: Ints  # behind the first axis of a dim that differs, used before and after, with what such axes take along
    unlike: Ints  # these and more, where no single all_to_all will do; else none
    left: Ints  # all behind the first that differs, before
    leaving: Ints  # of them those that are not on that dim afterwards
    whole: Ints  # whether a dim has such axes before and after: then some device has no part of its new shard
    near: Ints  # whether there is surely a chain with at most one step between slices and gathers
    before: Ints
    becomes: Ints
    between: Ints  # before an exchange: where something is summed, what is new was sliced

    def some(self, rows: Ints) -> "Features":
        """Those of some patterns."""
        return Features(*[column[rows] for column in self])

    def with_more(self, more: "Features") -> "Features":
        """These and others."""
        return Features(*[np.concatenate(pair) for pair in zip(self, more, strict=True)])


class Coded(NamedTuple):
    """The shardings of some patterns at one end: for each axis its dim and its place there, and whether it splits a dim."""

    dim: Ints
    place: Ints
    splits: Flags

    def behind(self, i: int, j: int) -> Flags:
        """Where axis j is behind axis i on a dim."""
        found: Flags = self.splits[:, i] & self.splits[:, j] & (self.dim[:, i] == self.dim[:, j])
        return found & (self.place[:, j] > self.place[:, i])


class Floors:
    """Floors of moves on a mesh, between shardings as axes have them."""

    def __init__(self, mesh: Mesh, axes: Sequence[str]) -> None:
        self.sizes = [mesh.sizes[axis] for axis in axes]
        self.tables = FloorTables(mesh, tuple(axes))
        self.products = np.array(self.tables.products)

    # -- features -----------------------------------------------------------------------------------------------------

    def features(self, a: Ints, b: Ints, dims: Ints) -> Features:
        """Of pairs of coded shardings; `dims` has the dims of their patterns, -1 for none."""
        k = len(self.sizes)
        old, new = (Coded(side[:, : 2 * k : 2], side[:, 1 : 2 * k : 2], side[:, : 2 * k : 2] >= 0) for side in (a, b))
        held, wanted, kept = old.splits, new.splits, self._kept(old, new)
        left, come, stays = held & ~kept, wanted & ~kept, held & wanted & ~kept
        both = np.zeros_like(held)
        for i, j in self._pairs():
            meet = left[:, i] & come[:, j] & (old.dim[:, i] == new.dim[:, j])
            both[:, i] |= meet
            both[:, j] |= meet
        summed: Flags = (old.dim == PARTIAL) & (new.dim != PARTIAL)
        moved, unlike = (self._with_behind(some, old, new) for some in (stays, stays | both))
        whole: Flags = np.asarray(both.any(axis=1))
        one = _on_one_dim(old.dim, stays) & _on_one_dim(new.dim, stays) & ~whole
        before, becomes = self._blocks(old.dim, held, dims), self._blocks(new.dim, wanted, dims)
        sliced = before * self._blocks(new.dim, wanted & ~held, dims)
        alike = (sliced == becomes * self._blocks(old.dim, held & ~wanted, dims)).all(axis=1)
        bits = 1 << np.arange(k)
        return Features(
            split=(held | wanted) @ bits,
            after=wanted @ bits,
            gone=(held & ~wanted) @ bits,
            scattered=(summed & wanted) @ bits,
            reduced=(summed & ~wanted) @ bits,
            moved=moved @ bits,
            unlike=np.where(one, 0, unlike @ bits),
            left=left @ bits,
            leaving=(held & (old.dim != new.dim)) @ bits,
            whole=np.asarray(whole, np.int64),
            near=(alike | (one & self._in_one_step(old, new, stays))).astype(np.int64),
            before=before,
            becomes=becomes,
            between=np.where(np.asarray(summed.any(axis=1))[:, None], sliced, before),
        )

    def _pairs(self) -> Iterator[tuple[int, int]]:
        return ((i, j) for i in range(len(self.sizes)) for j in range(len(self.sizes)))

    def _kept(self, old: Coded, new: Coded) -> Flags:
        """Axes that are where they were, as all before them on their dim."""
        same = old.splits & (old.dim == new.dim) & (old.place == new.place)
        found = same.copy()
        for i, j in self._pairs():
            found[:, i] &= same[:, j] | ~old.behind(j, i)
        return found

    def _with_behind(self, some: Flags, old: Coded, new: Coded) -> Flags:
        """Axes with those that move along, since they are behind them on a dim: gathers come later, slices came before."""
        found = some.copy()
        for _ in self.sizes:
            for i, j in self._pairs():
                found[:, j] |= found[:, i] & (old.behind(i, j) | new.behind(i, j))
        return found

    def _in_one_step(self, old: Coded, new: Coded, moved: Flags) -> Flags:
        """Whether one all_to_all, or none, leads from where all slices are on their own dims to where all gathers are: what
        moves is last before and after, in one order."""
        found = np.ones(len(moved), bool)
        for i, j in self._pairs():
            found &= ~(moved[:, i] & ~new.splits[:, j] & old.behind(i, j))
            found &= ~(moved[:, i] & ~old.splits[:, j] & new.behind(i, j))
            found &= ~(moved[:, i] & moved[:, j] & (old.behind(i, j) != new.behind(i, j)))
        return found

    def _blocks(self, side: Ints, some: Flags, dims: Ints) -> Ints:
        """Into how many blocks some of the axes split each dim."""
        found = np.ones(dims.shape, np.int64)
        for i, n in enumerate(self.sizes):
            found *= np.where(some[:, i, None] & (side[:, i, None] == dims), n, 1)
        return found

    # -- seconds ------------------------------------------------------------------------------------------------------

    def chains(self, some: Features, size: float) -> tuple[Floats, Floats]:
        """Seconds that chains take at least, for a tensor of so many bytes: in equal blocks, and where dims may be too short
        for all blocks, but are in equal ones otherwise."""
        tables = self.tables.of(size)
        ends = self._summed(some, tables) + tables.gather[some.split, some.gone]
        pieces = tables.scatter_pieces[some.split, some.scattered] + tables.reduce[some.split, some.reduced]
        pieces += tables.gather_pieces[some.split, some.gone]
        found = []
        for one, any_, several in (tables.even, tables.short):
            step = np.where(some.unlike > 0, any_[some.split, some.unlike], one[some.split, some.moved])
            near = ends + np.where(some.unlike | some.moved, step, 0.0)
            far = np.minimum(near, pieces + several[some.split, some.moved])
            found.append(np.where(some.near, near, far) * ROUNDING)
        return found[0], np.minimum(*found)

    def exchanges(self, some: Features, size: float) -> tuple[Floats, Floats]:
        """Seconds of direct exchanges for a tensor of so many bytes: between equal blocks where nothing is summed, and what
        others take at least."""
        tables = self.tables.of(size)
        exact = tables.exchange[some.whole, some.after, some.left]
        lacking = size / self.products[some.after] * np.where(some.whole, 1.0, 1 - 1 / self.products[some.left])
        start, pace = self.tables.least[some.leaving].T
        least = self._summed(some, tables) + np.where(some.left > 0, start + pace * lacking, 0.0)
        return exact, least * ROUNDING

    def launches(self, some: Features) -> Floats:
        """Seconds until devices hear from one another, where they must: along all axes that leave a dim or are summed."""
        found: Floats = self.tables.launch[some.leaving | some.scattered | some.reduced]
        return found * ROUNDING

    def _summed(self, some: Features, tables: Tables) -> Floats:
        found: Floats = tables.scatter[some.split, some.scattered] + tables.reduce[some.split, some.reduced]
        return found


def _on_one_dim(side: Ints, some: Flags) -> Flags:
    """Whether some axes, if there are any, are on one dim."""
    found: Flags = np.where(some, side, FAR).min(axis=1) == np.where(some, side, -1).max(axis=1)
    return found | ~some.any(axis=1)
