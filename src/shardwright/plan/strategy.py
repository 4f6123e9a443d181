"""Strategies: every way the axes of a mesh can be put to the factors of an operation, priced, and the best of them.

An axis may go to a factor, to none (its dims are gathered), or, for a linear operation on a partial operand, stay partial.
From that choice follow the operands' shardings, the results', and the cost: what it takes to bring the operands there, what
devices exchange while they compute, and what it takes to reduce later what is left partial.

Enumerating (`strategies`), placing (`strategy_for`), pricing (`price_of`) and choosing (`choose`) are functions of a
`Problem`: an operation's rule on operands that lie somewhere.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np

from shardwright.mesh import Mesh
from shardwright.ops import Op, Rule
from shardwright.plan.factors import (
    PARTIAL,
    Placement,
    cut_together,
    dims_of,
    explicit_cuts,
    factors_with,
    fitted,
    homes,
    kept_of_operand,
    leaves_idle,
    ordered,
    overlaps,
    owned_cuts,
    pieces_of,
    result_cuts,
)
from shardwright.plan.inner import candidates_steps, extremes_steps, fetch_of, totals_steps
from shardwright.plan.reshard import Cost, move_costs, move_steps
from shardwright.plan.steps import Step
from shardwright.sharding import Sharding, block_size

_STAY, _SLICE, _MOVE, _GATHER, _SCATTER, _REDUCE = range(6)  # what an operand does about an axis
_FREE = frozenset((_STAY, _SLICE))
NEGLIGIBLE = 0.05  # of the time of communication
MOST_IDLE = 4  # axes that nothing uses which are tried
MOST = 81  # placements looked at beyond those that keep every axis where some operand has it

Shape = tuple[int, ...]


class _Effect(NamedTuple):
    """What putting a piece of an axis to a factor does."""

    hops: float  # seconds of latency
    pace: float  # bytes per second that a device receives along the piece at most
    size: int  # of the piece
    acts: list[int]  # for each operand what it must do about the piece
    split: bool  # whether a result is split by it
    left: bool  # whether it is left to be reduced
    shared: bool  # whether devices along it share the work


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


def choose(problem: "Problem") -> Strategy:
    """The strategy of least time; among equals the one that defers more, then needs less memory, then the first.

    Only axes that some operand or wanted result uses are put to use: an idle axis stays idle, since nobody asked for results
    that are split by it.
    """
    stages = iter(problem.stages)
    best: Strategy | None = None
    first = next(stages)
    sole = problem.in_place(first)
    looked = problem.placements(first) if sole is None else [(0.0, sole)]
    if looked:  # perhaps nothing needs to be communicated at all
        best = _within(problem, looked.pop(0)[1], math.inf)
        if best is not None and best.priced.communication == 0 and best.priced.compute <= problem.least_alternative:
            return best
    for stage in stages:
        looked += problem.placements(stage, math.inf if best is None else best.priced.weight)
    for bound, placement in sorted(looked, key=lambda pair: pair[0]):
        if best is not None and bound > best.priced.weight:
            break  # this one and all after it must take longer
        strategy = _within(problem, placement, math.inf if best is None else best.priced.weight)
        if strategy is not None and (best is None or strategy.rank < best.rank):
            best = strategy
    assert best is not None, "putting every axis to nothing is always possible"
    return best


def strategies(problem: "Problem") -> Iterator[Strategy]:
    """Every strategy there is to look at, chosen or not; axes that nothing uses yet are put to use last."""
    for stage in (*problem.stages, *problem.idle_stages):
        for _, placement in problem.placements(stage):
            strategy = _within(problem, placement, math.inf)
            if strategy is not None:
                yield strategy


def _within(problem: "Problem", placement: Placement, limit: float) -> Strategy | None:
    """The priced strategy of a placement; None if it is invalid or its moves take longer than `limit`."""
    placed = strategy_for(problem, placement)
    if placed is None:
        return None
    price = price_of(problem, placed, limit)
    if price is None:
        return None
    work = functools.partial(work_of, problem, placement)
    return Strategy(placement, placed.operands, placed.results, placed.idle, price, count_work=work)


def result_without_moves(problem: "Problem") -> tuple[Sharding, ...] | None:
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


def _moves(problem: "Problem", given: Sharding, wanted: Sharding, shape: Shape) -> tuple[Step, ...]:
    here, there = (
        s.replace(partial=tuple(a for a in s.partial if s.mesh.axis(a).size > 1)).for_shape(shape)
        for s in (given, wanted)
    )
    return move_steps(here, there, shape, np.dtype(np.float64))


class Problem:
    """An operation on operands that lie somewhere: the axes in use, cut into pieces, and where each may go."""

    def __init__(
        self,
        rule: Rule,
        operands: Sequence[Sharding],
        shapes: Sequence[Shape],
        dtypes: "Sequence[np.dtype[Any]]",
        wanted: Sequence[Sharding | None] = (),
        op: Op | None = None,
    ) -> None:
        self.rule, self.shapes, self.dtypes, self.given, self.op = rule, shapes, dtypes, operands, op
        self.asked = tuple(wanted)
        self.result_dtype = max(dtypes, key=lambda dtype: dtype.itemsize, default=np.dtype(np.int8))  # about
        self.itemsize = self.result_dtype.itemsize
        self.mesh = mesh = next(s for s in (*operands, *wanted) if s is not None).mesh
        used = [axis for sharding in operands for axis in sharding.axes]
        self.wanted = [s if s is not None and mesh.share_a_cut((*used, *s.axes)) else None for s in wanted]
        self.operands = cut_together(mesh, operands)
        given = [
            homes(rule, dims, mesh, s.dims, shape, s.offsets)
            for dims, s, shape in zip(rule.inputs, self.operands, shapes, strict=True)
        ]
        hints = [
            homes(rule, rule.outputs[i], mesh, s.dims, rule.out_shape(i), s.offsets)
            for i, s in enumerate(self.wanted)
            if s is not None
        ]
        self.homes = [*given, *hints]
        self.pieces = pieces_of(mesh, [*self.operands, *(s for s in self.wanted if s is not None)], self.homes)
        self.found = [{piece: factors_with(mesh, piece, home) for piece in self.pieces} for home in given]
        self.hinted = [{piece: factors_with(mesh, piece, home) for piece in self.pieces} for home in hints]
        self.partial = [{p for p in self.pieces if overlaps(mesh, p, s.partial)} for s in self.operands]
        self.seen: set[tuple[Any, ...]] = set()
        self._effects: dict[str, dict[str | None, _Effect]] = {}
        self.chip, self.launch = mesh.hardware.chip, mesh.least_launch

    @cached_property
    def _local(self) -> list[float]:
        """For each operand a bound of the bytes of its shards: one can be larger than its even share of the whole."""
        mesh, result = self.mesh, []
        for given, cut, shape, dtype in zip(self.given, self.operands, self.shapes, self.dtypes, strict=True):
            held = {piece for axes in cut.dims for piece in mesh.cut(axes, by=self.pieces)}
            even = math.prod(shape) * dtype.itemsize / mesh.axis_size(tuple(held))
            result.append(min(given.local_size(shape) * dtype.itemsize, even))
        return result

    @cached_property
    def _out_bytes(self) -> float:
        """Bytes of all results."""
        outs = [math.prod(self.rule.out_shape(at)) for at in range(len(self.rule.outputs))]
        return float(sum(outs) * self.itemsize)

    @cached_property
    def _whole_bytes(self) -> float:
        """Bytes of all operands and results, whole."""
        sizes = (math.prod(shape) * dtype.itemsize for shape, dtype in zip(self.shapes, self.dtypes, strict=True))
        return sum(sizes) + self._out_bytes

    @cached_property
    def _least_work(self) -> float:
        """Seconds that the work takes on one device."""
        return work_of(self, {}) / self.chip.flops_of(self.result_dtype)

    def afresh(self) -> "Problem":
        """The same problem with nothing looked at yet."""
        return Problem(self.rule, self.given, self.shapes, self.dtypes, self.asked, self.op)

    @property
    def least_alternative(self) -> float:
        """The weight of any strategy that communicates, at least: a launch, and the work shared by all devices."""
        shares = self.mesh.axis_size(tuple(self.pieces))
        touched = self._whole_bytes / self.chip.memory_bandwidth
        return (1 - NEGLIGIBLE) * self.launch + max(self._least_work, touched) / shares * 0.999999

    @property
    def keeps_partial(self) -> bool:
        """Whether partial operands may stay partial."""
        reductions = {s.reduction for s in self.operands if s.partial}
        return len(reductions) == 1 and self.rule.passes_partial(next(iter(reductions)))

    @property
    def idle_stages(self) -> Iterator[dict[str, list[str | None]]]:
        """Axes that nothing uses put to use: each in turn at any factor that is long enough, the others where they are."""
        used = {self.mesh.axis(axis).name for axis in self.pieces}
        idle = [axis for axis, n in self.mesh.sizes.items() if axis not in used and n > 1]
        settled = next(iter(self.stages))
        for axis in idle[:MOST_IDLE]:
            n = self.mesh.sizes[axis]
            fits: list[str | None] = [
                f for f, size in self.rule.sizes.items() if f not in self.rule.whole and size >= n
            ]
            if fits:
                yield {**{piece: known[:1] for piece, known in settled.items()}, axis: fits}

    @property
    def stages(self) -> Iterator[dict[str, list[str | None]]]:
        """Where each piece may go: first where operands have it, then where else, if that is not too much to look at."""
        if self.rule.keeps:
            yield {piece: [next(iter(self.found[0][piece]), None)] for piece in self.pieces}
            return
        stays_partial = self.keeps_partial
        options: dict[str, list[str | None]] = {}
        settled: dict[str, list[str | None]] = {}
        for piece in self.pieces:
            known_homes = (*self.found, *self.hinted)
            here: list[str | None] = [f for home in known_homes for f in home[piece] if f not in self.rule.whole]
            if stays_partial and any(piece in some for some in self.partial):
                here.append(PARTIAL)
            known = options[piece] = list(dict.fromkeys([*here, None]))
            in_place = here == [self.rule.prefix] or (self.rule.agrees and here and here != [PARTIAL])
            if in_place:  # shards pass on one row, or two numbers: nothing need be gathered
                known = options[piece] = here
            sure = len(known) == 2 and known[0] not in self.rule.sums and known[0] != PARTIAL
            settled[piece] = known[:1] if sure else known
        yield settled
        yield options
        others = [factor for factor in self.rule.sizes if factor not in self.rule.whole]
        wide = {piece: list(dict.fromkeys([*known, *others])) for piece, known in options.items()}
        if math.prod(len(some) for some in wide.values()) <= MOST:
            yield wide

    def in_place(self, stage: Mapping[str, list[str | None]]) -> Placement | None:
        """The only placement of a stage, if no operand moves for it and nothing is left to be reduced; its bound is 0."""
        placement: Placement = {}
        for piece, some in stage.items():
            if len(some) != 1 or self._is_left(some[0]) or not _FREE.issuperset(self._acts(piece, some[0])):
                return None
            placement[piece] = some[0]
        self.seen.add((*stage, *placement.values()))
        return placement

    def placements(
        self, stage: Mapping[str, list[str | None]], limit: float = math.inf
    ) -> list[tuple[float, Placement]]:
        """The placements of a stage not seen yet, each with a time it can't beat, shortest first; none whose latencies alone
        take longer than `limit`."""
        effects = self._effects
        for piece, some in stage.items():
            known = effects.setdefault(piece, {})
            for factor in some:
                if factor not in known:
                    known[factor] = self._effect(piece, factor)
        if limit < math.inf:
            least = {piece: min(effects[piece][f].hops for f in some) for piece, some in stage.items()}
            room = limit - sum(least.values())
            stage = {p: [f for f in some if effects[p][f].hops - least[p] <= room] for p, some in stage.items()}
        new = [choice for choice in self._choices(stage) if (*stage, *choice) not in self.seen]
        self.seen.update((*stage, *choice) for choice in new)
        found = [dict(zip(stage, choice, strict=True)) for choice in new]
        bounds = [self._bound([effects[piece][f] for piece, f in placement.items()]) for placement in found]
        return sorted(zip(bounds, found, strict=True), key=lambda pair: pair[0])

    def _is_left(self, factor: str | None) -> bool:
        """Whether pieces at a factor are left to be reduced."""
        return factor in self.rule.sums or factor == PARTIAL

    def _acts(self, piece: str, factor: str | None) -> list[int]:
        """For each operand what it must do about a piece that is put to a factor."""
        acts = []
        for at, (dims, found, partial) in enumerate(zip(self.rule.inputs, self.found, self.partial, strict=True)):
            has = any(factor in dim for dim in dims)
            if found.get(piece):
                acts.append(_STAY if factor in found[piece] else _MOVE if has else _GATHER)
            elif piece in partial:
                stays = factor == PARTIAL or (self.rule.joins and at == 0 and factor in self.rule.sums)
                acts.append(_STAY if stays else _SCATTER if has else _REDUCE)
            else:
                acts.append(_SLICE if has else _STAY)
        return acts

    def _effect(self, piece: str, factor: str | None) -> _Effect:
        """What putting a piece to a factor does."""
        acts, left = self._acts(piece, factor), self._is_left(factor)
        hops = left + sum([act not in _FREE for act in acts])
        split = any(factor in dim for dims in self.rule.outputs for dim in dims)
        fabric = self.mesh.fabric((piece,))
        least = fabric.hops if piece in self.mesh.sizes else 0.0  # pieces of an axis are crossed together in fewer hops
        full = any(link.kind == "full" for _, link in fabric.pieces)  # more devices have more links
        pace = 1 / (self.mesh.fabric(self.mesh.axis_names) if full else fabric).least_pace if fabric.levels else 0.0
        return _Effect(hops * least, pace, fabric.size, acts, split, left, factor in self.rule.sizes)

    def _bound(self, effects: Sequence[_Effect]) -> float:
        """A weight that no strategy with these effects can beat: all latencies, and the bytes and the work if all shards were
        even and all links of an operand were used at once."""
        time, parts, summands, shares, pace = 0.0, 1, 1, 1, 0.0
        for at, local in enumerate(self._local):
            size = [1, 1, 1, 1, 1, 1]
            along = 0.0
            for _, one, n, acts, _, _, _ in effects:
                size[acts[at]] *= n
                along += one if acts[at] > _SLICE else 0.0
            if along:
                received = (1 - 1 / size[_SCATTER]) * local
                local /= size[_SCATTER]
                received += 2 * (1 - 1 / size[_REDUCE]) * local
                received += (size[_GATHER] - 1 / size[_MOVE]) * local / size[_SLICE]
                time += received / along + self.launch
        for hops, one, n, _, split, left, shared in effects:
            time += hops
            parts *= n if split else 1
            summands *= n if left else 1
            pace += one if left else 0.0
            shares *= n if shared else 1
        if pace and not self.hinted:  # else results may be sliced before they are reduced
            time += (1 - 1 / summands) * self._out_bytes / parts / pace + self.launch
        weight = max(time, (1 - NEGLIGIBLE) * time + self._least_work / shares)
        return weight * 0.999999  # rounding must not make it more than the truth

    def _choices(self, stage: Mapping[str, list[str | None]]) -> Iterator[tuple[str | None, ...]]:
        """All choices; where there are too many, pieces that all operands have in the same places go together."""
        if math.prod(len(some) for some in stage.values()) <= MOST:
            yield from product(*stage.values())
            return
        known = (*self.found, *self.hinted)
        places = {p: (*(tuple(home[p]) for home in known), *(p in some for some in self.partial)) for p in stage}
        options = {places[piece]: some for piece, some in stage.items()}
        for choice in product(*options.values()):
            of = dict(zip(options, choice, strict=True))
            yield tuple(of[places[piece]] for piece in stage)


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
    return Price((), inner, (), memory, problem.chip.seconds(work, memory, problem.result_dtype))


def work_of(problem: Problem, placement: Placement) -> float:
    """Floating-point operations of the busiest device."""
    if problem.op is None:
        return 0.0
    sizes = dict(problem.rule.factors)
    for axis, factor in placement.items():
        if factor in sizes:
            sizes[factor] = int(block_size(sizes[factor], problem.mesh.axis(axis).size))
    return problem.op.work(problem.rule, sizes)


# -- what devices exchange while they compute -----------------------------------------------------------------------------


def inner_steps(problem: Problem, operands: Sequence[Sharding], results: Sequence[Sharding]) -> list[Step]:
    """The steps between operands in place and results: rows fetched, totals or candidates gathered, extremes
    compared."""
    rule, shapes, dtypes = problem.rule, problem.shapes, problem.dtypes
    if not (rule.rows or rule.prefix or rule.agrees or rule.selects):
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
        made.local_size(problem.rule.out_shape(at)) * problem.itemsize for at, made in enumerate(results)
    )


def _deferred(problem: Problem, results: Sequence[Sharding]) -> list[Cost]:
    """What is still to be communicated once results are there."""
    rule, deferred = problem.rule, []
    for at, made in enumerate(results):
        local = made.local_size(rule.out_shape(at)) * problem.itemsize
        target = problem.wanted[at] if at < len(problem.wanted) else None
        if target is not None:
            plain = target.replace(partial=(), halo={}).for_shape(rule.out_shape(at))
            if plain.dims == made.dims:  # cut elsewhere, perhaps, but on the same devices: as good
                plain = made.replace(partial=()) if made.partial else made
            costs = move_costs(made, plain, rule.out_shape(at), problem.result_dtype)
            deferred += [_scattered(made.mesh, c.axes, local) if c.name == "all_reduce" else c for c in costs]
        elif made.partial:  # the least that reading it later costs; a gather on top would be paid by any strategy
            deferred.append(_scattered(made.mesh, made.partial, local))
    return deferred


def _scattered(mesh: Mesh, axes: tuple[str, ...], local: int) -> Cost:
    """A reduce-scatter of so many bytes a device."""
    group = mesh.axis_size(axes)
    received = -(-local * (group - 1) // group)
    return Cost("reduce_scatter", axes, received, mesh.fabric(axes).seconds("reduce_scatter", received))
