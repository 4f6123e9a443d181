"""Strategies: every way the axes of a mesh can be put to the factors of an operation, priced, and the best of them.

An axis that some operand uses may go to a factor, to none (its dims are gathered), or, for a linear operation on a
partial operand, stay partial. From that choice follow the operands' shardings, the results', and the cost: what it
takes to bring the operands there, and to reduce later what is left partial.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product

import numpy as np

from shardwright.collectives import Cost, cost_of, latency, seconds_per_byte
from shardwright.mesh import Mesh
from shardwright.ops import Dims, Rule
from shardwright.plan.price import move_costs
from shardwright.sharding import P, Sharding, layout_of

PARTIAL = "partial"
_STAY, _SLICE, _MOVE, _GATHER, _SCATTER, _REDUCE = range(6)  # what an operand does about an axis
MOST = 81  # placements looked at beyond those that keep every axis where some operand has it

Placement = dict[str, str | None]  # axis -> factor, None or PARTIAL
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Strategy:
    """One way to run an operation: where its operands must lie, where its results will, and what that costs."""

    placement: Placement
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    moves: tuple[tuple[Cost, ...], ...]  # per operand
    fetched: tuple[Cost, ...]  # rows that devices get from others while they compute
    deferred: tuple[Cost, ...]  # what it still takes to read the results
    memory: int  # bytes that a device holds of operands and results

    @cached_property
    def time(self) -> float:
        """Seconds of communication, by the α-β model."""
        return sum(cost.time for cost in chain(*self.moves, self.fetched, self.deferred))

    @cached_property
    def rank(self) -> tuple[float, float, int]:
        """What is least for the best: the time, then what of it is spent now rather than put off, then the memory."""
        return self.time, sum(cost.time for cost in chain(*self.moves, self.fetched)), self.memory

    @cached_property
    def bytes(self) -> int:
        """Bytes that a device receives."""
        return sum(cost.bytes for cost in chain(*self.moves, self.fetched, self.deferred))

    def __str__(self) -> str:
        parts = ", ".join(f"{axis} → {factor or 'nothing'}" for axis, factor in self.placement.items())
        costs = ", ".join(
            f"{c.name}({', '.join(c.axes)}) {c.bytes} B"
            for c in chain(*self.moves, self.fetched, self.deferred)
            if c.bytes
        )
        return f"{parts or 'nothing is split'}: {costs or 'no communication'}"


def choose(
    rule: Rule,
    operands: Sequence[Sharding],
    shapes: Sequence[Shape],
    itemsizes: Sequence[int],
    wanted: Sequence[Sharding | None] = (),
) -> Strategy:
    """The strategy of least time; among equals the one that puts more off, then needs less memory, then the first.

    `wanted` says where results are to lie, as far as that is known: bringing them there then counts too.
    """
    search = _Search(rule, operands, shapes, itemsizes, wanted)
    stages = iter(search.stages)
    best: Strategy | None = None
    looked = search.placements(next(stages))
    if looked and looked[0][0] == 0:  # perhaps nothing needs to be communicated at all
        best = _strategy(search, looked[0][1], math.inf)
        if best is not None and best.time == 0:
            return best
    looked += [pair for stage in stages for pair in search.placements(stage)]
    for bound, placement in sorted(looked, key=lambda pair: pair[0]):
        if best is not None and bound > best.time:
            break  # this one and all after it must take longer
        strategy = _strategy(search, placement, math.inf if best is None else best.time)
        if strategy is not None and (best is None or strategy.rank < best.rank):
            best = strategy
    assert best is not None, "putting every axis to nothing is always possible"
    return best


def strategies(
    rule: Rule,
    operands: Sequence[Sharding],
    shapes: Sequence[Shape],
    itemsizes: Sequence[int],
    wanted: Sequence[Sharding | None] = (),
) -> Iterator[Strategy]:
    """Every strategy there is to look at, whether or not the choice needs to."""
    search = _Search(rule, operands, shapes, itemsizes, wanted)
    for stage in search.stages:
        for _, placement in search.placements(stage):
            strategy = _strategy(search, placement, math.inf)
            if strategy is not None:
                yield strategy


class _Search:
    """The axes in use, cut into pieces, and where each may go."""

    def __init__(
        self,
        rule: Rule,
        operands: Sequence[Sharding],
        shapes: Sequence[Shape],
        itemsizes: Sequence[int],
        wanted: Sequence[Sharding | None],
    ) -> None:
        self.rule, self.shapes, self.itemsizes, self.given = rule, shapes, itemsizes, operands
        self.mesh = mesh = next(s for s in (*operands, *wanted) if s is not None).mesh
        used = [axis for sharding in operands for axis in sharding.axes]
        self.wanted = [s if s is not None and mesh.share_a_cut((*used, *s.axes)) else None for s in wanted]
        self.operands = _cut_together(mesh, operands)
        given = [homes(rule, dims, s, shape) for dims, s, shape in zip(rule.inputs, self.operands, shapes, strict=True)]
        hints = [homes(rule, rule.outputs[i], s, rule.out_shape(i)) for i, s in enumerate(self.wanted) if s is not None]
        self.homes = [*given, *hints]
        self.pieces = _pieces(mesh, [*self.operands, *(s for s in self.wanted if s is not None)], self.homes)
        self.found = [{piece: _where(mesh, piece, home) for piece in self.pieces} for home in given]
        self.hinted = [{piece: _where(mesh, piece, home) for piece in self.pieces} for home in hints]
        self.partial = [{p for p in self.pieces if _overlaps(mesh, p, s.partial)} for s in self.operands]
        self.seen: set[tuple[str | None, ...]] = set()
        sizes = [s.local_size(shape) * n for s, shape, n in zip(operands, shapes, itemsizes, strict=True)]
        held = [{p for axes in s.dims for p in mesh.cut(axes, by=self.pieces)} for s in self.operands]
        # A shard can be larger than its even share, so bound by that share of the whole.
        whole = [math.prod(shape) * n for shape, n in zip(shapes, itemsizes, strict=True)]
        self.local = [min(a, b / mesh.axis_size(tuple(u))) for a, b, u in zip(sizes, whole, held, strict=True)]
        outs = [math.prod(rule.out_shape(at)) for at in range(len(rule.outputs))]
        self.out_bytes = float(sum(outs) * max(itemsizes, default=1))
        self.least_seconds = min(seconds_per_byte(mesh, (axis,)) for axis in mesh.axis_names)

    @property
    def stages(self) -> Iterator[dict[str, list[str | None]]]:
        """Where each piece may go: first where operands have it, then where else, if that is not too much to look at."""
        reductions = {s.reduction for s in self.operands if s.partial}
        stays_partial = len(reductions) == 1 and self.rule.passes_partial(next(iter(reductions)))
        options: dict[str, list[str | None]] = {}
        settled: dict[str, list[str | None]] = {}
        for piece in self.pieces:
            known_homes = (*self.found, *self.hinted)
            here: list[str | None] = [f for home in known_homes for f in home[piece] if f not in self.rule.whole]
            if stays_partial and any(piece in some for some in self.partial):
                here.append(PARTIAL)
            known = options[piece] = list(dict.fromkeys([*here, None]))
            sure = len(known) == 2 and known[0] not in self.rule.sums and known[0] != PARTIAL
            settled[piece] = known[:1] if sure else known
        yield settled
        yield options
        others = [factor for factor in self.rule.sizes if factor not in self.rule.whole]
        wide = {piece: list(dict.fromkeys([*known, *others])) for piece, known in options.items()}
        if math.prod(len(some) for some in wide.values()) <= MOST:
            yield wide

    def placements(self, stage: Mapping[str, list[str | None]]) -> list[tuple[float, Placement]]:
        """The placements of a stage not seen yet, each with a time it can't beat, shortest first."""
        effects = {piece: {f: self._effect(piece, f) for f in some} for piece, some in stage.items()}
        new = [choice for choice in self._choices(stage) if choice not in self.seen]
        self.seen.update(new)
        found = [dict(zip(self.pieces, choice, strict=True)) for choice in new]
        bounds = [self._bound([effects[piece][f] for piece, f in placement.items()]) for placement in found]
        return sorted(zip(bounds, found, strict=True), key=lambda pair: pair[0])

    def _effect(self, piece: str, factor: str | None) -> tuple[float, int, list[int], bool, bool]:
        """What putting a piece to a factor does: latency, its size, what each operand must do, whether it splits or is
        left to be reduced in the result."""
        acts = []
        for dims, found, partial in zip(self.rule.inputs, self.found, self.partial, strict=True):
            has = any(factor in dim for dim in dims)
            if found[piece]:
                acts.append(_STAY if factor in found[piece] else _MOVE if has else _GATHER)
            elif piece in partial:
                acts.append(_STAY if factor == PARTIAL else _SCATTER if has else _REDUCE)
            else:
                acts.append(_SLICE if has else _STAY)
        left = factor in self.rule.sums or factor == PARTIAL
        hops = left + sum(act not in (_STAY, _SLICE) for act in acts)
        split = any(factor in dim for dims in self.rule.outputs for dim in dims)
        return hops * latency(self.mesh, piece), self.mesh.axis(piece).size, acts, split, left

    def _bound(self, effects: Sequence[tuple[float, int, list[int], bool, bool]]) -> float:
        """A time that no strategy with these effects can beat: all latencies, and the bytes if all shards were even."""
        time, received, parts, summands = 0.0, 0.0, 1, 1
        for at, local in enumerate(self.local):
            size = [1, 1, 1, 1, 1, 1]
            for effect in effects:
                size[effect[2][at]] *= effect[1]
            received += (1 - 1 / size[_SCATTER]) * local
            local /= size[_SCATTER]
            received += 2 * (1 - 1 / size[_REDUCE]) * local
            received += (size[_GATHER] - 1 / size[_MOVE]) * local / size[_SLICE]
        for seconds, n, _, split, left in effects:
            time += seconds
            parts *= n if split else 1
            summands *= n if left else 1
        if not self.hinted:  # else results may be sliced before they are reduced
            received += (1 - 1 / summands) * self.out_bytes / parts
        return time + received * self.least_seconds * 0.999999  # rounding must not make it more than the truth

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


def _cut_together(mesh: Mesh, operands: Sequence[Sharding]) -> list[Sharding]:
    """The operands without those pieces of axes that share no cut with the pieces of operands before them."""
    result: list[Sharding] = []
    used: list[str] = []
    for sharding in operands:
        lost = [axis for axis in sharding.axes if not mesh.share_a_cut((*used, axis))]
        if lost:
            dims = [tuple(axis for axis in axes if axis not in lost) for axes in sharding.dims]
            kept = {
                d: sharding.offsets_of(d)
                for d in range(len(dims))
                if dims[d] == sharding.dims[d] and sharding.offsets_of(d)
            }
            partial = tuple(axis for axis in sharding.partial if axis not in lost)
            sharding = Sharding(mesh, dims, partial=partial, reduction=sharding.reduction, offsets=kept)
        used += sharding.axes
        result.append(sharding)
    return result


# -- from dims to factors ---------------------------------------------------------------------------------------------


def homes(rule: Rule, dims: Dims, sharding: Sharding, shape: Shape) -> dict[str, tuple[str, ...]]:
    """Which axes an operand or result has on each factor; a product dim hands its axes to its factors, outermost first."""
    result: dict[str, tuple[str, ...]] = {}
    for at, (dim, axes) in enumerate(zip(dims, sharding.dims, strict=True)):
        if len(dim) == 1:
            result[dim[0]] = axes
        elif len(dim) > 1 and shape[at] % sharding.mesh.axis_size(axes) == 0 and not sharding.offsets_of(at):
            result.update(_deal(rule, sharding.mesh, dim, axes))
    return result


def _deal(rule: Rule, mesh: Mesh, dim: tuple[str, ...], axes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Axes of a product dim, dealt to its factors; an axis that fills one factor and more is cut in two."""
    pending = [mesh.axis(axis) for axis in axes]
    result: dict[str, tuple[str, ...]] = {}
    for factor in dim:
        room = rule.sizes[factor]
        taken: list[str] = []
        while pending and room > 1:
            axis = pending[0]
            if room % axis.size == 0:
                pending.pop(0)
            elif axis.size % room == 0:
                axis, rest = axis._replace(size=room), axis._replace(pre=axis.pre * room, size=axis.size // room)
                pending[0] = rest
            else:
                return result | {factor: tuple(taken)}
            taken.append(axis.text(mesh.sizes[axis.name]))
            room //= axis.size
        result[factor] = tuple(taken)
        if room > 1:
            break  # factors further in would not be contiguous
    return result


def _pieces(
    mesh: Mesh, operands: Sequence[Sharding], homes: Sequence[Mapping[str, tuple[str, ...]]]
) -> tuple[str, ...]:
    """The axes in use, cut wherever any operand or factor cuts them."""
    used = list(dict.fromkeys(axis for sharding in operands for axis in sharding.axes if mesh.axis(axis).size > 1))
    cuts = [axis for home in homes for axes in home.values() for axis in axes]
    return tuple(dict.fromkeys(mesh.cut(used, by=(*used, *cuts))))


def _overlaps(mesh: Mesh, piece: str, axes: Sequence[str]) -> bool:
    return piece in mesh.cut(tuple(axes), by=(piece,))


def _where(mesh: Mesh, piece: str, home: Mapping[str, tuple[str, ...]]) -> list[str | None]:
    return [factor for factor, axes in home.items() if _overlaps(mesh, piece, axes)]


# -- from factors to shardings ----------------------------------------------------------------------------------------


def _strategy(search: _Search, placement: Placement, limit: float) -> Strategy | None:
    """The strategy of a placement; None where there is none, or once its moves alone take longer than `limit`."""
    rule, mesh, operands = search.rule, search.mesh, search.operands
    axes_of = _ordered(mesh, placement, search.homes)
    if any(_leaves_idle(rule, mesh, factor, axes, search.homes) for factor, axes in axes_of.items()):
        return None
    cuts_of = _cuts(rule, axes_of, operands)
    kept = tuple(axis for axis, factor in placement.items() if factor == PARTIAL)
    reductions = {s.reduction for s in operands if s.partial} if kept else set()
    wanted: list[Sharding] = []
    moves: list[tuple[Cost, ...]] = []
    for at, shape in enumerate(search.shapes):
        dims = dims_of(mesh, rule.inputs[at], axes_of, rule.sizes)
        partial = _kept_partial(rule, mesh, kept, operands, at)
        if dims is None or partial is None:
            return None
        offsets = {d: cuts_of[dim[0]] for d, dim in enumerate(rule.inputs[at]) if len(dim) == 1 and dim[0] in cuts_of}
        reduction = next(iter(reductions)) if partial else "sum"
        there = _sharding(mesh, dims, partial, reduction, offsets, shape)
        wanted.append(there)
        moves.append(move_costs(search.given[at], there, shape, search.itemsizes[at]))
        limit -= sum(cost.time for cost in moves[-1])
        if limit < 0:
            return None
    summed = {axis: rule.sums[f] for f, axes in axes_of.items() if f in rule.sums for axis in axes}
    kinds = {*summed.values(), *reductions}
    if len(kinds) > 1:
        return None
    results: list[Sharding] = []
    for at, out in enumerate(rule.outputs):
        dims = dims_of(mesh, out, axes_of, rule.sizes)
        if dims is None:
            return None
        cuts = _result_cuts(rule, mesh, at, axes_of, cuts_of)
        results.append(_sharding(mesh, dims, (*kept, *summed), next(iter(kinds), "sum"), cuts, rule.out_shape(at)))
    memory, deferred = _afterwards(search, wanted, results)
    factors = (*rule.rows, *([rule.prefix] if rule.prefix else []))
    fetched = [cost for f in factors for cost in _row_costs(rule, f, wanted, search.shapes, search.itemsizes)]
    return Strategy(placement, tuple(wanted), tuple(results), tuple(moves), tuple(fetched), tuple(deferred), memory)


def _sharding(
    mesh: Mesh,
    dims: Sequence[tuple[str, ...]],
    partial: tuple[str, ...],
    reduction: str,
    offsets: Mapping[int, Sequence[int]],
    shape: Shape,
) -> Sharding:
    if not offsets:
        return Sharding.fitted(mesh, tuple(dims), partial, reduction, shape)
    return Sharding(mesh, P(*dims), partial=partial, reduction=reduction, offsets=offsets).for_shape(shape)


def _leaves_idle(
    rule: Rule, mesh: Mesh, factor: str, axes: tuple[str, ...], homes: Sequence[Mapping[str, tuple[str, ...]]]
) -> bool:
    """Whether axes are put to a factor too small for them, where no operand has them already."""
    if mesh.axis_size(axes) <= rule.sizes[factor]:
        return False
    return not set(axes) <= {p for home in homes for p in mesh.cut(home.get(factor, ()), by=axes)}


def _afterwards(search: _Search, wanted: list[Sharding], results: list[Sharding]) -> tuple[int, list[Cost]]:
    """The bytes that a device holds, and what is still to be communicated once operands are in place."""
    rule, itemsizes = search.rule, search.itemsizes
    memory = 0
    deferred: list[Cost] = []
    for there, shape, size in zip(wanted, search.shapes, itemsizes, strict=True):
        memory += there.local_size(shape) * size
    for at, made in enumerate(results):
        local = made.local_size(rule.out_shape(at)) * max(itemsizes, default=1)
        memory += local
        target = search.wanted[at] if at < len(search.wanted) else None
        if target is not None:
            plain = target.replace(partial=(), halo={}).for_shape(rule.out_shape(at))
            if plain.dims == made.dims:  # cut elsewhere, perhaps, but on the same devices: as good
                plain = made.replace(partial=()) if made.partial else made
            costs = move_costs(made, plain, rule.out_shape(at), max(itemsizes, default=1))
            deferred += [
                cost_of("reduce_scatter", made.mesh, c.axes, local) if c.name == "all_reduce" else c for c in costs
            ]
        elif made.partial:  # the least that reading it later costs; a gather on top would be paid by any strategy
            deferred.append(cost_of("reduce_scatter", made.mesh, made.partial, local))
    return memory, deferred


def _row_costs(
    rule: Rule, factor: str, wanted: list[Sharding], shapes: Sequence[Shape], itemsizes: Sequence[int]
) -> Iterator[Cost]:
    """The rows that devices fetch from others: one, a halo, or all rows where they are reordered."""
    for dims, sharding, shape, size in zip(rule.inputs, wanted, shapes, itemsizes, strict=True):
        for at, dim in enumerate(dims):
            if dim == (factor,) and sharding.dims[at]:
                layout = layout_of(sharding, shape)
                held = layout.dims[at]
                rows, stays = 1, False
                if factor in rule.rows:
                    stays = _owned_cuts(rule, factor, held.parts, held.cuts) is not None
                    rows = rule.rows[factor].span - 1 if stays else held.block
                local = float(np.prod(layout.local_shape)) / max(held.block, 1) * rows * size
                yield cost_of("update_halo" if stays else "exchange", sharding.mesh, sharding.dims[at], local)


def _ordered(
    mesh: Mesh, placement: Placement, homes: Sequence[Mapping[str, tuple[str, ...]]]
) -> dict[str, tuple[str, ...]]:
    """The axes of each factor, in the order that the first operand which has them there has; new ones innermost."""
    axes_of: dict[str, list[str]] = {}
    for home in homes:
        for factor, axes in home.items():
            for piece in mesh.cut(axes, by=tuple(placement)):
                if placement.get(piece) == factor and piece not in axes_of.setdefault(factor, []):
                    axes_of[factor].append(piece)
    for piece, where in placement.items():
        if where is not None and where != PARTIAL and piece not in axes_of.setdefault(where, []):
            axes_of[where].append(piece)
    return {factor: tuple(axes) for factor, axes in axes_of.items()}


def _cuts(
    rule: Rule, axes_of: Mapping[str, tuple[str, ...]], operands: Sequence[Sharding]
) -> dict[str, tuple[int, ...]]:
    """Explicit offsets that an operand already has along a factor, if its axes there are those of the strategy."""
    cuts: dict[str, tuple[int, ...]] = {}
    if not any(sharding.offsets for sharding in operands):
        return cuts
    blocks = {f for dims in (*rule.inputs, *rule.outputs) for dim in dims if len(dim) > 1 for f in dim}  # must be even
    for dims, sharding in zip(rule.inputs, operands, strict=True):
        for at, dim in enumerate(dims):
            given = sharding.offsets_of(at)
            if given and len(dim) == 1 and dim[0] not in cuts and dim[0] not in blocks:
                mesh = sharding.mesh
                axes = axes_of.get(dim[0], ())
                if mesh.cut(sharding.dims[at], by=axes) == mesh.cut(axes, by=sharding.dims[at]):
                    cuts[dim[0]] = given
    return cuts


def dims_of(
    mesh: Mesh, dims: tuple[tuple[str, ...], ...], axes_of: Mapping[str, tuple[str, ...]], sizes: Mapping[str, int]
) -> list[tuple[str, ...]] | None:
    """The axes of each dim, or None where a product dim would not be cut in contiguous blocks."""
    result = []
    for dim in dims:
        axes: list[str] = []
        for place, factor in enumerate(dim):
            mine = axes_of.get(factor, ())
            if mine and len(dim) > 1:
                outer = dim[:place]
                if any(mesh.axis_size(axes_of.get(f, ())) != sizes[f] for f in outer if sizes[f] > 1):
                    return None
                if sizes[factor] % mesh.axis_size(mine):
                    return None
            axes += mine
        result.append(tuple(axes))
    return result


def _kept_partial(
    rule: Rule, mesh: Mesh, kept: tuple[str, ...], operands: Sequence[Sharding], at: int
) -> tuple[str, ...] | None:
    """The partial axes an operand has in a strategy that keeps some; None where that would not be linear."""
    if not kept:
        return ()
    if rule.linear not in ("mul", "first", "over"):
        return kept
    if rule.linear != "mul" and at > 0 and any(axis in mesh.cut(operands[at].partial, by=kept) for axis in kept):
        return None
    own = mesh.cut(operands[at].partial, by=kept)
    for axis in kept:
        holders = [i for i, sharding in enumerate(operands) if axis in mesh.cut(sharding.partial, by=kept)]
        if len(holders) > 1:
            return None
    return tuple(axis for axis in kept if axis in own)


def _result_cuts(
    rule: Rule,
    mesh: Mesh,
    at: int,
    axes_of: Mapping[str, tuple[str, ...]],
    cuts_of: Mapping[str, tuple[int, ...]],
) -> dict[int, Sequence[int]]:
    offsets: dict[int, Sequence[int]] = {}
    for d, dim in enumerate(rule.outputs[at]):
        if len(dim) != 1 or not axes_of.get(dim[0]):
            continue
        factor = dim[0]
        if factor in rule.rows:
            cuts = _owned_cuts(rule, factor, mesh.axis_size(axes_of[factor]), cuts_of.get(factor))
            if cuts is not None:
                offsets[d] = cuts
        elif factor in cuts_of:
            offsets[d] = cuts_of[factor]
    return offsets


def _owned_cuts(rule: Rule, factor: str, parts: int, cuts: tuple[int, ...] | None) -> list[int] | None:
    """Where the result's shards begin if every row is made by the owner of the row it comes from."""
    size, row_map = rule.sizes[factor], rule.rows[factor]
    block = max(-(-size // parts), 1)
    bounds = np.asarray(cuts) if cuts else np.minimum(np.arange(parts + 1) * block, size)
    anchors = row_map.anchors(size)
    owners = np.searchsorted(bounds, anchors, side="right") - 1
    if len(owners) and bool((np.diff(owners) < 0).any()):
        return None  # rows change their order: the usual blocks do
    return [int(n) for n in np.searchsorted(owners, np.arange(parts), side="left")] + [row_map.size]
