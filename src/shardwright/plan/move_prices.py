"""Prices of moves: seconds from each of some shardings to each of others, as `move_steps` takes them.

Where blocks are equal they follow from patterns (see `patterns`). On meshes of many axes, and over unequal blocks, moves count
with what they take at least (see `floored`) until a planner asks for some.
"""

import math
from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.caches import MIB, kept
from shardwright.mesh import Mesh
from shardwright.plan.floored import Floored
from shardwright.plan.patterns import Prices
from shardwright.plan.reshard import move_steps
from shardwright.sharding import P, Sharding  # noqa: F401  # in doctests

Shape = tuple[int, ...]
Shardings = tuple[Sharding, ...]
DType = np.dtype[Any]
Exact = Collection[tuple[Sharding, Sharding, Shape, DType]]
FEW_AXES = 3  # of a mesh, for the ways of all patterns to be found


def has_floors(mesh: Mesh) -> bool:
    """Whether most moves on a mesh count with what they take at least, since there are too many patterns to find all ways."""
    return sum(n > 1 for n in mesh.shape) > FEW_AXES


class Matrix(NamedTuple):
    """Seconds of moves, those that nothing is known of NaN; which of them may take longer, if any; and, on meshes of many axes,
    the pattern of each, -1 for none."""

    seconds: NDArray[np.float64]
    less: "NDArray[np.bool_] | None"
    patterns: "NDArray[np.int32] | None" = None


def move_seconds(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> float:
    """What `move_steps` takes. That a value becomes partial takes nothing: one device of a group keeps it, the others hold
    what adds nothing.

    >>> mesh, f4 = Mesh(x=4), np.dtype("f4")
    >>> here, there = Sharding(mesh, P("x", None)), Sharding(mesh, P(None, "x"))
    >>> move_seconds(here, there, (8, 8), f4) == sum(step.time for step in move_steps(here, there, (8, 8), f4))
    True
    """
    seconds, less, _ = _matrix((source,), (target,), shape, dtype)
    return float(seconds[0, 0]) if less is None else _stepped(source, target, shape, dtype)


def is_exact(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> bool:
    """Whether a move's entry in a matrix is its price, without being asked for."""
    return _matrix((source,), (target,), shape, dtype).less is None


def moves_that_count_less(
    before: Shardings, after: Shardings, shape: Shape, dtype: DType, exact: Exact = frozenset()
) -> "NDArray[np.bool_] | None":
    """Which moves from each of some shardings to each of others count in a matrix with less than their price, unless asked
    for; None if all have their price."""
    return _with_exact(_prices(before[0].mesh), before, after, shape, dtype, exact).less


def move_matrix(
    before: Shardings, after: Shardings, shape: Shape, dtype: DType, exact: Exact = frozenset()
) -> NDArray[np.float64]:
    """Seconds of the moves from each of some shardings to each of others.

    Few moves lead over blocks that become unequal on the way, and fewer of them are worth it. They cost most to price, so
    unless they are among the `exact` they count with what they take at least. On meshes of more than three axes that is so for
    most moves; if one of their pattern is among the `exact`, its ways are found.
    """
    before, after = tuple(before), tuple(after)
    return _with_exact(_prices(before[0].mesh), before, after, shape, dtype, exact).seconds


def _with_exact(
    prices: Prices, before: Shardings, after: Shardings, shape: Shape, dtype: DType, exact: Exact
) -> Matrix:
    """A matrix in which some moves count with their price."""
    matrix = _matrix_by(prices, before, after, shape, dtype)
    if matrix.less is None or not exact:
        return matrix
    seconds, less = matrix.seconds.copy(), matrix.less.copy()
    if matrix.patterns is not None:
        assert isinstance(prices, Floored)
        prices.open(matrix.patterns, seconds, less, (before, after, shape, dtype), exact)
    rows, columns = _places_of(before), _places_of(after)
    for source, target, *kind in exact:
        if kind == [shape, dtype]:
            for i in rows.get(source, ()):
                for j in columns.get(target, ()):
                    if less[i, j]:
                        seconds[i, j], less[i, j] = _stepped(source, target, shape, dtype), False
    return Matrix(seconds, less, matrix.patterns)


def _places_of(shardings: Shardings) -> dict[Sharding, list[int]]:
    found: dict[Sharding, list[int]] = {}
    for i, s in enumerate(shardings):
        found.setdefault(s, []).append(i)
    return found


def _matrix(before: Shardings, after: Shardings, shape: Shape, dtype: DType) -> Matrix:
    return _matrix_by(_prices(before[0].mesh), before, after, shape, dtype)


@kept(limit=512 * MIB, size=lambda matrix: 1000 + 14 * matrix.seconds.size, least=64)
def _matrix_by(prices: Prices, before: Shardings, after: Shardings, shape: Shape, dtype: DType) -> Matrix:
    """By prices whose numbers of patterns the matrix has."""
    rows, columns = tuple(dict.fromkeys(before)), tuple(dict.fromkeys(after))
    if len(rows) < len(before) or len(columns) < len(after):
        places = [{s: i for i, s in enumerate(some)} for some in (rows, columns)]
        at = np.ix_([places[0][s] for s in before], [places[1][s] for s in after])
        seconds, less, patterns = _matrix_by(prices, rows, columns, shape, dtype)
        return Matrix(seconds[at], None if less is None else less[at], None if patterns is None else patterns[at])
    seconds = np.full((len(rows), len(columns)), math.nan)
    less, patterns = np.zeros(seconds.shape, bool), None
    known = [[i for i, s in enumerate(some) if prices.knows(s)] for some in (rows, columns)]
    if all(known):
        at = np.ix_(*known)
        ends = [rows[i] for i in known[0]], [columns[i] for i in known[1]]
        if isinstance(prices, Floored):
            patterns = np.full(seconds.shape, -1, np.int32)
            seconds[at], less[at], patterns[at] = prices.least(*ends, shape, dtype.itemsize)
        else:
            seconds[at], less[at] = prices.matrix(*ends, shape, dtype.itemsize)
    for i, j in np.argwhere(np.isnan(seconds)):
        seconds[i, j] = _stepped(rows[i], columns[j], shape, dtype)
    seconds.setflags(write=False)
    return Matrix(seconds, less if less.any() else None, patterns)


@lru_cache(maxsize=1 << 16)
def _stepped(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> float:
    """Seconds by the steps themselves."""
    if target.partial and (not set(target.partial) <= set(source.partial) or source.reduction != target.reduction):
        same = source.reduction == target.reduction
        target = target.replace(partial=tuple(axis for axis in target.partial if same and axis in source.partial))
    return sum([step.time for step in move_steps(source, target, shape, dtype)])


def _prices(mesh: Mesh) -> Prices:
    return _floored(mesh) if has_floors(mesh) else _of_all(mesh)


@lru_cache(maxsize=16)
def _of_all(mesh: Mesh) -> Prices:
    return Prices(mesh)


@lru_cache(maxsize=2)  # hundreds of megabytes
def _floored(mesh: Mesh) -> Floored:
    return Floored(mesh)
