"""Strategies: every way the axes of a mesh can be put to the factors of an operation, priced, and the best of them.

An axis may go to a factor, to none (its dims are gathered), or, for a linear operation on a partial operand, stay partial.
From that choice follow the operands' shardings, the results', and the cost: what it takes to bring the operands there, what
devices exchange while they compute, and what it takes to reduce later what is left partial.

Enumerating (`strategies`), placing (`strategy_for`), pricing (`price_of`) and choosing (`choose`) are functions of a
`Problem`: an operation's rule on operands that lie somewhere.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import itemgetter

import numpy as np

from shardwright.mesh import Mesh
from shardwright.ops import work_dtype
from shardwright.plan.factors import (
    PARTIAL,
    Placement,
    dims_of,
    explicit_cuts,
    fitted,
    kept_of_operand,
    leaves_idle,
    ordered,
    owned_cuts,
    result_cuts,
)
from shardwright.plan.inner import candidates_steps, extremes_steps, fetch_of, scores_steps, totals_steps
from shardwright.plan.problem import NEGLIGIBLE, Problem, Shape, work_of
from shardwright.plan.reshard import Cost, move_costs, move_steps
from shardwright.plan.steps import Step
from shardwright.sharding import Sharding


@dataclass(frozen=True)
class Price:
    """What a strategy costs."""

    moves: tuple[tuple[Cost, ...], ...]  # per operand: bringing it into place
    inner: tuple[Cost, ...]  # what devices exchange while they compute
    deferred: tuple[Cost, ...]  # what it still takes to read the results
    memory: int  # bytes that a device holds of operands and results
    compute: float = 0.0  # seconds of the local computation, by the roofline of the chip

    @cached_property
    def communication(self) -> float:
        """Seconds of communication."""
        return sum(cost.time for cost in self)

    @cached_property
    def time(self) -> float:
        """Seconds of communication and computation."""
        return self.communication + self.compute

    @cached_property
    def weight(self) -> float:
        """The time without a computation that takes less than a part of the communication: with this, strategies that
        communicate alike stay equal where the model can't tell them apart."""
        return self.communication + max(self.compute - NEGLIGIBLE * self.communication, 0.0)

    @cached_property
    def rank(self) -> tuple[float, float, int]:
        """What is least for the best: the weight, then what of it is spent now rather than deferred, then the memory."""
        return self.weight, sum(cost.time for cost in chain(*self.moves, self.inner)), self.memory

    def __iter__(self) -> Iterator[Cost]:
        return chain(*self.moves, self.inner, self.deferred)


@dataclass(frozen=True)
class Strategy:
    """One way to run an operation: where its operands must lie, where its results will, and what that costs."""

    placement: Placement
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    idle: int = 0  # axes put to use that no operand or wanted result uses
    price: Price | None = None
    why: str = ""  # it was taken, if not for its price alone
    count_work: Callable[[], float] = field(default=float, repr=False, compare=False)

    @property
    def priced(self) -> Price:
        """The price; only strategies that were enumerated or chosen have one."""
        assert self.price is not None, "this strategy was placed but not priced"
        return self.price

    @property
    def time(self) -> float:
        """Seconds of communication and computation."""
        return self.priced.time

    @property
    def rank(self) -> tuple[int, float, float, int]:
        """What is least for the best: idle axes are put to use last: no operand or wanted result is split by them."""
        return self.idle, *self.priced.rank

    @property
    def moves(self) -> tuple[tuple[Cost, ...], ...]:
        """Per operand what it costs to bring it into place."""
        return self.priced.moves

    @property
    def memory(self) -> int:
        """Bytes that a device holds of operands and results."""
        return self.priced.memory

    @property
    def work(self) -> float:
        """Floating-point operations of the busiest device."""
        return self.count_work()

    @property
    def bytes(self) -> int:
        """Bytes that the busiest device receives."""
        return sum(cost.bytes for cost in self.priced)

    def __str__(self) -> str:
        parts = ", ".join(f"{axis} → {factor or 'nothing'}" for axis, factor in self.placement.items())
        costs = ", ".join(f"{c.name}({', '.join(c.axes)}) {c.bytes} B" for c in self.priced if c.bytes)
        return f"{parts or 'nothing is split'}: {costs or 'no communication'}"


def choose(problem: Problem) -> Strategy:
    """The strategy of least time; among equals the one that defers more, then needs less memory, then the first.

    Only axes that some operand or wanted result uses are put to use: an idle axis stays idle, because no
    operand and no wanted result is split by it.
    """
    stages = iter(problem.stages)
    best: Strategy | None = None
    first = next(stages)
    sole = problem.in_place(first)
    looked = problem.placements(first) if sole is None else [(0.0, sole)]
    if looked and looked[0][0] == 0:  # perhaps nothing needs to be communicated at all
        best = _within(problem, dict(zip(first, looked.pop(0)[1], strict=True)), math.inf)
        if best is not None and best.priced.communication == 0 and best.priced.compute <= problem.least_alternative:
            return best
    for stage in stages:
        looked += problem.placements(stage, math.inf if best is None else best.priced.weight)
    for bound, choice in sorted(looked, key=itemgetter(0)):
        if best is not None and bound > best.priced.weight:
            break  # this one and all after it must take longer
        placement = dict(zip(first, choice, strict=True))
        strategy = _within(problem, placement, math.inf if best is None else best.priced.weight)
        if strategy is not None and (best is None or strategy.rank < best.rank):
            best = strategy
    assert best is not None, "putting every axis to nothing is always possible"
    return best


def strategies(problem: Problem) -> Iterator[Strategy]:
    """Every strategy there is to look at, chosen or not; axes that nothing uses yet are put to use last."""
    for stage in (*problem.stages, *problem.idle_stages):
        for _, choice in problem.placements(stage):
            strategy = _within(problem, dict(zip(stage, choice, strict=True)), math.inf)
            if strategy is not None:
                yield strategy


def _within(problem: Problem, placement: Placement, limit: float) -> Strategy | None:
    """The priced strategy of a placement; None if it is invalid or its moves take longer than `limit`."""
    placed = strategy_for(problem, placement)
    if placed is None:
        return None
    price = price_of(problem, placed, limit)
    if price is None:
        return None
    work = functools.partial(work_of, problem, placement)
    return Strategy(placement, placed.operands, placed.results, placed.idle, price, count_work=work)


def result_without_moves(problem: Problem) -> tuple[Sharding, ...] | None:
    """Where the results lie if every device computes on what it holds and nothing moves; None where that has no meaning."""
    placement: Placement = {}
    for piece in problem.pieces:
        found = {f for home in problem.found for f in home[piece]}
        partial = any(piece in some for some in problem.partial)
        if len(found) + partial > 1 or not found.isdisjoint(problem.rule.whole):
            return None
        placement[piece] = PARTIAL if partial else next(iter(found), None)
    if not problem.keeps_partial and PARTIAL in placement.values():
        return None
    placed = strategy_for(problem, placement)
    if placed is None or inner_steps(problem, placed.operands, placed.results):
        return None
    for given, wanted, shape in zip(problem.given, placed.operands, problem.shapes, strict=True):
        if any(
            step.received or step.result.partial != step.source.partial
            for step in _moves(problem, given, wanted, shape)
        ):
            return None
    return placed.results


def _moves(problem: Problem, given: Sharding, wanted: Sharding, shape: Shape) -> tuple[Step, ...]:
    here, there = (
        s.replace(partial=tuple(a for a in s.partial if s.mesh.axis(a).size > 1)).for_shape(shape)
        for s in (given, wanted)
    )
    return move_steps(here, there, shape, np.dtype(np.float64))


def strategy_for(problem: Problem, placement: Placement) -> Strategy | None:
    """Where operands and results lie for a placement, not priced; None where it has no meaning."""
    rule, mesh, operands = problem.rule, problem.mesh, problem.operands
    axes_by_factor = ordered(mesh, placement, problem.homes)
    if any(leaves_idle(rule, mesh, factor, axes, problem.homes) for factor, axes in axes_by_factor.items()):
        return None
    cuts_by_factor = explicit_cuts(rule, axes_by_factor, operands)
    if rule.owners:
        axes_by_factor.update({f: axes_by_factor.get(other, ()) for f, (other, _) in rule.owners.items()})
        cuts_by_factor.update(owned_cuts(rule, mesh, axes_by_factor, cuts_by_factor))
    kept = tuple(axis for axis, factor in placement.items() if factor == PARTIAL)
    reductions = {s.reduction for s in operands if s.partial} if kept else set()
    summed = {axis: rule.sums[f] for f, axes in axes_by_factor.items() if f in rule.sums for axis in axes}
    kinds = {*summed.values(), *reductions}
    if len(kinds) > 1:
        return None
    reduction = next(iter(kinds), "sum")
    wanted: list[Sharding] = []
    for at, shape in enumerate(problem.shapes):
        dims = dims_of(mesh, rule.inputs[at], axes_by_factor, rule.sizes)
        partial = kept_of_operand(rule, mesh, kept, operands, at)
        if dims is None or partial is None:
            return None
        offsets = {
            d: cuts_by_factor[dim[0]]
            for d, dim in enumerate(rule.inputs[at])
            if len(dim) == 1 and dim[0] in cuts_by_factor
        }
        if rule.joins and at == 0:
            partial = (*partial, *summed)
        wanted.append(fitted(mesh, dims, partial, reduction if partial else "sum", offsets, shape))
    results: list[Sharding] = []
    for at, out in enumerate(rule.outputs):
        dims = dims_of(mesh, out, axes_by_factor, rule.sizes)
        if dims is None:
            return None
        cuts = result_cuts(rule, mesh, at, axes_by_factor, cuts_by_factor)
        results.append(fitted(mesh, dims, (*kept, *summed), reduction, cuts, rule.out_shape(at)))
    idle = sum(axis not in problem.pieces for axis in placement)
    return Strategy(placement, tuple(wanted), tuple(results), idle)


def price_of(problem: Problem, strategy: Strategy, limit: float = math.inf) -> Price | None:
    """What a strategy costs; None once its moves alone take longer than `limit`."""
    moves: list[tuple[Cost, ...]] = []
    for given, wanted, shape, dtype in zip(
        problem.given, strategy.operands, problem.shapes, problem.dtypes, strict=True
    ):
        moves.append(() if given is wanted else move_costs(given, wanted, shape, dtype))
        limit -= sum(cost.time for cost in moves[-1])
        if limit < 0:
            return None
    there = in_place(problem, strategy)
    deferred = _deferred(problem, strategy.results)
    return Price(tuple(moves), there.inner, tuple(deferred), there.memory, there.compute)


def in_place(problem: Problem, strategy: Strategy) -> Price:
    """What a strategy costs once its operands are in place, whatever becomes of its results."""
    memory = _held(problem, strategy.operands, strategy.results)
    steps = inner_steps(problem, strategy.operands, strategy.results)
    inner = tuple(Cost(step.name, step.axes, step.received, step.time) for step in steps if step.received)
    work = work_of(problem, strategy.placement)
    return Price((), inner, (), memory, problem.chip.seconds(work, memory, problem.work_dtype))


# -- what devices exchange while they compute -----------------------------------------------------------------------------


def inner_steps(problem: Problem, operands: Sequence[Sharding], results: Sequence[Sharding]) -> list[Step]:
    """The steps between operands in place and results: rows fetched, totals or candidates gathered, scores and
    extremes compared."""
    rule, shapes, dtypes = problem.rule, problem.shapes, problem.dtypes
    if not (rule.rows or rule.prefix or rule.agrees or rule.selects or rule.normalizes):
        return []
    steps: list[Step] = [
        step
        for at in range(len(operands))
        if (step := fetch_of(rule, at, operands[at], results, shapes[at], dtypes[at])) is not None
    ]
    if rule.prefix:
        steps += totals_steps(rule, operands[0], shapes[0], dtypes[0])
    if rule.selects:
        for dtype in (dtypes[0], np.dtype(np.int64)):  # candidates and their places
            steps += candidates_steps(rule, operands[0], shapes[0], dtype)
    if rule.normalizes and results[0].partial:
        for reduction in ("max", "sum"):  # the largest scores, the weights
            steps += scores_steps(rule, results[0], reduction, work_dtype(dtypes[0]))
    if rule.agrees:
        steps += extremes_steps(operands[0], shapes[0], dtypes[0])
    return [step for step in steps if step.received]


def _held(problem: Problem, wanted: Sequence[Sharding], results: Sequence[Sharding]) -> int:
    """The bytes that a device holds of operands in place and of results."""
    memory = sum(
        there.local_size(shape) * dtype.itemsize
        for there, shape, dtype in zip(wanted, problem.shapes, problem.dtypes, strict=True)
    )
    return memory + sum(
        made.local_size(problem.rule.out_shape(at)) * dtype.itemsize
        for at, (made, dtype) in enumerate(zip(results, problem.made, strict=True))
    )


def _deferred(problem: Problem, results: Sequence[Sharding]) -> list[Cost]:
    """What is still to be communicated once results are there. Results count with the widest dtype of the operands: sums of
    booleans are added up, though gathering what they are of may take less."""
    rule, deferred, dtype = problem.rule, list[Cost](), problem.work_dtype
    for at, made in enumerate(results):
        local = made.local_size(rule.out_shape(at)) * dtype.itemsize
        target = problem.wanted[at] if at < len(problem.wanted) else None
        if target is not None:
            plain = target.replace(partial=(), halo={}).for_shape(rule.out_shape(at))
            if plain.dims == made.dims:  # cut elsewhere, perhaps, but on the same devices: as good
                plain = made.replace(partial=()) if made.partial else made
            costs = move_costs(made, plain, rule.out_shape(at), dtype)
            deferred += [_scattered(made.mesh, c.axes, local) if c.name == "all_reduce" else c for c in costs]
        elif made.partial:  # the least that reading it later costs; a gather on top would be paid by any strategy
            deferred.append(_scattered(made.mesh, made.partial, local))
    return deferred


def _scattered(mesh: Mesh, axes: tuple[str, ...], local: int) -> Cost:
    """A reduce-scatter of so many bytes a device."""
    group = mesh.axis_size(axes)
    received = -(-local * (group - 1) // group)
    return Cost("reduce_scatter", axes, received, mesh.fabric(axes).seconds("reduce_scatter", received))
