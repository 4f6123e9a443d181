"""`Maker`: the steps of a move, as a chain of collectives or as one exchange, for tensors of one shape and dtype.

Shards that are not equal blocks stay where collectives leave them on the way of a chain, and what then still lies elsewhere
than it is wanted is exchanged at the end.
"""

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

import shardwright.plan.volume as volume
from shardwright.mesh import Mesh
from shardwright.plan.bounds import least_time
from shardwright.plan.rings import Reduce
from shardwright.plan.route import Change, Hop, change_between
from shardwright.plan.steps import Move, Regroup, Step, is_even
from shardwright.sharding import P, Sharding, truncates

Shape = tuple[int, ...]
DType = np.dtype[Any]


class Maker:
    """Makes verified steps for tensors of one shape and dtype."""

    def __init__(self, shape: Shape, dtype: DType) -> None:
        self.shape, self.dtype = shape, dtype

    def portable(self, source: Sharding, target: Sharding, within: float = math.inf) -> tuple[Step, ...] | None:
        """A chain of collectives; uneven shards that end elsewhere than the target has them are exchanged last.

        Chains that take longer than `within` seconds, as far as that is known before their steps are built, are left out, and
        none is searched for that takes no time.
        """
        if source.mesh != target.mesh:
            return None
        change = change_between(source, target, self.dtype)
        if not change.possible:
            return None
        steps: list[Step] = []
        start = self._bare(source, target, steps)
        variants = [
            (least, at, variant)
            for at, variant in enumerate(
                variant
                for hops in change.chains(further=within > 0)
                for variant in self._variants(change, start, hops)
                if self._reduces_well(source, variant)
            )
            if (least := self._least_time(change, start, target, variant)) <= within
        ]
        best: tuple[float, int, list[Step]] | None = None
        for least, at, variant in sorted(variants, key=itemgetter(0)):
            if best is not None and least > best[0]:
                break
            chain = self.followed(start, target, variant)
            best = min(best or (math.inf, 0, chain), (time_of(chain), at, chain), key=itemgetter(0, 1))
        return None if best is None else (*steps, *best[2])

    def followed(self, start: Sharding, target: Sharding, hops: Sequence[Hop]) -> list[Step]:
        """The steps of a chain."""
        steps: list[Step] = []
        at, maker = start, self
        for hop in hops:
            at = maker._hopped(at, hop, steps)
            if hop.name == "regroup":
                maker = Maker(steps[-1].result_shape, self.dtype)
        self._finish(at, target, steps)
        return steps

    def _least_time(self, change: Change, start: Sharding, target: Sharding, variant: Sequence[Hop]) -> float:
        """Seconds that a chain takes at least; 0 where shards are regrouped, which is quickly built."""
        if any(hop.name == "regroup" for hop in variant):
            return 0.0
        return least_time(start, change.before(variant), variant, target, self.shape, self.dtype.itemsize)

    def _variants(self, change: Change, start: Sharding, hops: Sequence[Hop]) -> list[Sequence[Hop]]:
        """A chain, with levels of links one after the other and at once."""
        even = is_even(start, self.shape) and stays_even(change.mesh, self.shape, hops)
        found = [change.eased(hops) if even else hops, change.joined(hops)]
        if even:
            found.append(change.staged(hops, self.shape))
        return [found[0], *(variant for variant in found[1:] if variant is not hops)]

    def direct(self, source: Sharding, target: Sharding) -> tuple[Step, ...]:
        """What is partial is reduced; then one exchange."""
        steps: list[Step] = []
        at = self._bare(source, target, steps, bool(source.partial))
        if at.partial:
            change = change_between(at, target, self.dtype) if at.mesh == target.mesh else None
            possible = change is not None and change.possible
            hops = list(change.grown(change.settled)) if change is not None and possible and change.reduced else []
            if not possible or not self._reduces_well(at, hops):
                hops = [Hop("all_reduce", at.partial, -1, -1, at.dims)]
            for hop in hops:
                at = self._hopped(at, hop, steps)
        self._finish(at, target, steps)
        return tuple(steps)

    def _reduces_well(self, source: Sharding, hops: Sequence[Hop]) -> bool:
        """Whether hops reduce in one step a value that must be."""
        reduces = sum(hop.name in ("all_reduce", "reduce_scatter") for hop in hops)
        return reduces <= 1 or not truncates(source.reduction, self.dtype)

    def _bare(self, source: Sharding, target: Sharding, steps: list[Step], tidy: bool = True) -> Sharding:
        """The source, if `tidy` without axes of size 1, and without halos that the target lacks: nothing moves."""
        mesh = source.mesh
        halo = source.halo and (source.dims, source.offsets) != (target.dims, target.offsets)
        at = source.replace(halo={}).for_shape(self.shape) if halo else source
        if tidy and any(mesh.axis(axis).size == 1 for axis in at.axes) and at is not target:
            kept = [tuple(axis for axis in axes if mesh.axis(axis).size > 1) for axes in at.dims]
            partial = tuple(axis for axis in at.partial if mesh.axis(axis).size > 1)
            cuts = {dim: at.offsets_of(dim) for dim, axes in enumerate(kept) if axes and at.offsets_of(dim)}
            halos = {dim: pair for dim, pair in enumerate(at.halo) if pair != (0, 0)}
            if not all(kept[dim] for dim in halos):  # a halo along an axis of size 1 is zeros only
                halos = {}
            at = Sharding(mesh, P(*kept), partial=partial, reduction=at.reduction, offsets=cuts, halo=halos)
            at = at.for_shape(self.shape)
        if at is not source:
            steps.append(self._move("local", (), source, at))
        return at

    def _hopped(self, at: Sharding, hop: Hop, steps: list[Step]) -> Sharding:
        """The sharding after one collective of a chain; its step is added."""
        if hop.name == "regroup":
            dims = slice(hop.dim, hop.dim + hop.other)
            shape = list(self.shape)
            shape[dims] = [*hop.factors, math.prod(shape[dims]) // math.prod(hop.factors)]
            result = Sharding.fitted(at.mesh, hop.state, at.partial, at.reduction, tuple(shape))
            steps.append(Regroup("regroup", (), at, result, self.shape, self.dtype, tuple(shape)))
            return result
        result = self._after(at, hop)
        if hop.name in ("all_reduce", "reduce_scatter"):
            steps.append(Reduce(hop.name, hop.axes, at, result, self.shape, self.dtype, hop.dim))
        else:
            steps.append(self._move(hop.name, hop.axes, at, result, hop.dim, hop.other))
        return result

    def _after(self, at: Sharding, hop: Hop) -> Sharding:
        """Where a collective leaves a tensor: even shards where the chain says, uneven ones where the collective does."""
        mesh, shape = at.mesh, self.shape
        if is_even(at, shape) and all(n % mesh.axis_size(axes) == 0 for n, axes in zip(shape, hop.state, strict=True)):
            partial = at.partial
            if hop.name in ("all_reduce", "reduce_scatter"):
                partial = tuple(axis for axis in mesh.cut(partial, by=hop.axes) if axis not in hop.axes)
            return Sharding.fitted(mesh, hop.state, partial, at.reduction, shape)
        if hop.name == "permute":
            return at.replace(spec=P(*hop.state)).for_shape(shape)  # every dim keeps its number of shards and offsets
        reduces = hop.name in ("all_reduce", "reduce_scatter")
        probe: Any = (
            Reduce(hop.name, hop.axes, at, at, shape, self.dtype, hop.dim)
            if reduces
            else self._move(hop.name, hop.axes, at, at, hop.dim, hop.other)
        )
        result: Sharding = probe.collective.on(at, shape).for_shape(shape)
        return result

    def _move(
        self, name: str, pieces: tuple[str, ...], at: Sharding, result: Sharding, dim: int = -1, other: int = -1
    ) -> Move:
        return Move(name, pieces, at, result, self.shape, self.dtype, dim, other)

    def _finish(self, at: Sharding, target: Sharding, steps: list[Step]) -> None:
        """Exchange what other devices still hold, fill halos, mark what is to be partial."""
        if at is target:
            return
        plain = target
        if target.halo or (target.partial, target.reduction) != (at.partial, at.reduction):
            plain = target.replace(halo={}, partial=at.partial, reduction=at.reduction).for_shape(self.shape)
        if at.mesh != target.mesh:
            plain = target.replace(halo={}, partial=()).for_shape(self.shape)
        if (plain.mesh, plain.dims, plain.offsets) != (at.mesh, at.dims, at.offsets):
            steps.append(self._exchange("exchange", at, plain))
        else:
            plain = at
        if target.halo != plain.halo:
            pairs = {d: pair for d, pair in enumerate(target.halo) if pair != (0, 0)}
            there = plain.replace(halo=pairs).for_shape(self.shape)
            steps.append(self._exchange("update_halo", plain, there))
            plain = there
        if plain is not target:  # the first device of a group keeps the value, the others hold what adds nothing
            steps.append(self._move("local", (), plain, target))

    def _exchange(self, name: str, at: Sharding, result: Sharding) -> Move:
        """A step that names every axis it crosses; a local one if it crosses none."""
        if name == "exchange" and at.mesh == result.mesh and is_even(at, self.shape) and is_even(result, self.shape):
            change = change_between(at, result)
            if change.possible:
                return self._move(name if change.crossed else "local", change.crossed, at, result)
        found = volume.meeting(at, result, self.shape)
        if not found.received:
            return self._move("local", (), at, result)
        return self._move(name, found.crossed, at, result)


def stays_even(mesh: Mesh, shape: Shape, hops: Sequence[Hop]) -> bool:
    """Whether every state of a chain divides a shape into equal blocks."""
    return all(n % mesh.axis_size(axes) == 0 for hop in hops for n, axes in zip(shape, hop.state, strict=True))


def time_of(steps: Sequence[Any]) -> float:
    """Seconds of steps one after the other."""
    return sum(step.time for step in steps)
