"""What devices exchange while they compute: rows that are fetched, totals of shards, candidates, scores, extremes of their
data.

All of it follows from an operation's rule and from where its operands and results lie.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.ops import Rule
from shardwright.plan.fetch import Fetch
from shardwright.plan.reshard import move_steps
from shardwright.plan.rings import Reduce
from shardwright.plan.steps import Move, Step
from shardwright.sharding import P, Sharding, layout_of

Shape = tuple[int, ...]


def fetch_of(
    rule: Rule,
    operand: int,
    sharding: Sharding,
    results: Sequence[Sharding],
    shape: Shape,
    dtype: "np.dtype[Any]",
    fill: Any = 0,
) -> Fetch | None:
    """The rows of an operand that an operation's result reads; None where it reads rows in place."""
    dims = rule.inputs[operand]
    maps = tuple(rule.rows.get(dim[0]) if len(dim) == 1 else None for dim in dims)
    if not any(row_map is not None for row_map in maps):
        return None
    out = layout_of(results[0], rule.out_shape(0))
    cuts = tuple(
        () if row_map is None else tuple(out.dims[rule.outputs[0].index(dim)].offsets.tolist())
        for dim, row_map in zip(dims, maps, strict=True)
    )
    return Fetch.of(sharding, shape, dtype, maps, cuts, fill)


def totals_steps(rule: Rule, sharding: Sharding, shape: Shape, dtype: "np.dtype[Any]") -> tuple[Step, ...]:
    """The step that brings the total of every shard along a prefix factor, one row each, to all of them."""
    at = next(d for d, dim in enumerate(rule.inputs[0]) if dim == (rule.prefix,))
    parts = sharding.parts(at)
    if parts == 1:
        return ()
    rows, totals = totals_of(sharding, shape, at)
    whole = [() if d == at else axes for d, axes in enumerate(totals.dims)]
    cuts = {d: totals.offsets_of(d) for d in range(len(shape)) if d != at and totals.offsets_of(d)}
    target = totals.replace(spec=P(*whole), offsets=cuts).for_shape(rows)
    return (Move("prefix", sharding.dims[at], totals, target, rows, dtype, other=at),)


def totals_of(sharding: Sharding, shape: Shape, dim: int) -> tuple[Shape, Sharding]:
    """A tensor with one row for each shard of a dim: its shape, and its sharding beside the operand's."""
    rows = tuple(sharding.parts(dim) if d == dim else n for d, n in enumerate(shape))
    cuts = {d: sharding.offsets_of(d) for d in range(len(shape)) if d != dim and sharding.offsets_of(d)}
    return rows, sharding.replace(offsets=cuts, halo={}).for_shape(rows)


def candidates_of(rule: Rule, sharding: Sharding, shape: Shape) -> tuple[Shape, Sharding]:
    """A tensor of the candidates that shards pass on along the factor of a rule's `selects`: its shape, and its sharding beside
    the operand's."""
    at, count = _selected(rule)
    sizes = np.minimum(layout_of(sharding, shape).dims[at].sizes, count)
    cuts = {d: sharding.offsets_of(d) for d in range(len(shape)) if sharding.offsets_of(d)}
    cuts[at] = tuple(np.concatenate([[0], np.cumsum(sizes)]).tolist())
    rows = tuple(cuts[at][-1] if d == at else n for d, n in enumerate(shape))
    return rows, sharding.replace(offsets=cuts, halo={}).for_shape(rows)


def candidates_steps(rule: Rule, sharding: Sharding, shape: Shape, dtype: "np.dtype[Any]") -> tuple[Step, ...]:
    """The steps that bring the candidates of every shard to all of them."""
    at, _ = _selected(rule)
    if sharding.parts(at) == 1:
        return ()
    rows, source = candidates_of(rule, sharding, shape)
    whole = [() if d == at else axes for d, axes in enumerate(source.dims)]
    cuts = {d: source.offsets_of(d) for d in range(len(shape)) if d != at and source.offsets_of(d)}
    return move_steps(source, source.replace(spec=P(*whole), offsets=cuts).for_shape(rows), rows, dtype)


def _selected(rule: Rule) -> tuple[int, int]:
    """The dim of the first operand that rows are selected along, and how many candidates a shard has at most."""
    assert rule.selects is not None
    factor, count = rule.selects
    return rule.inputs[0].index((factor,)), count


def scores_of(rule: Rule, result: Sharding, reduction: str) -> tuple[Shape, Sharding]:
    """A number for each row of the result, partial along the axes that the result is: its shape and sharding."""
    rows = rule.out_shape()[:-1]
    cuts = {d: result.offsets_of(d) for d in range(len(rows)) if result.offsets_of(d)}
    spec = P(*result.dims[:-1])
    return rows, Sharding(result.mesh, spec, partial=result.partial, reduction=reduction, offsets=cuts).for_shape(rows)


def scores_steps(rule: Rule, result: Sharding, reduction: str, dtype: "np.dtype[Any]") -> tuple[Step, ...]:
    """The step that combines such a number over the axes that split the factor of a rule's `normalizes`."""
    rows, partial = scores_of(rule, result, reduction)
    return move_steps(partial, partial.replace(partial=()).for_shape(rows), rows, dtype)


def extremes_steps(sharding: Sharding, shape: Shape, dtype: "np.dtype[Any]") -> tuple[Step, ...]:
    """The step that lets all devices know the largest and the smallest of their integers."""
    axes = tuple(axis for axes in sharding.dims for axis in axes if sharding.mesh.axis(axis).size > 1)
    if not axes:
        return ()
    partial = Sharding(sharding.mesh, P(None), partial=axes, reduction="max").for_shape((2,))
    return (Reduce("all_reduce", axes, partial, partial.replace(partial=()).for_shape((2,)), (2,), dtype),)
