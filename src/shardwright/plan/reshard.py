"""Resharding: the steps that turn one sharding into another, priced, verified, and set against the lower bound.

Two algorithms. The **direct** one is a single exchange: every device gets what it lacks from devices that hold it, so no
byte moves that need not. The **portable** one is a chain of collectives (see `route`). The cheaper by the links of
the mesh is taken; of equals the chain, which every communication library runs well.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shardwright.plan.volume as volume
from shardwright.collectives import (
    AllGather,
    AllReduce,
    AllSlice,
    AllToAll,
    Collective,
    Exchange,
    Permute,
    ReduceScatter,
    UpdateHalo,
    cost_of,
    latency,
    seconds_per_byte,
)
from shardwright.errors import ShardingError
from shardwright.mesh import Mesh, as_ints
from shardwright.plan.price import chain_costs, move_costs
from shardwright.plan.route import MOST_STATES, SOME_STATES, Change, Move
from shardwright.plan.transfers import Transfer, transfers
from shardwright.sharding import REDUCTIONS, P, Sharding, as_spec, describe, layout_of, parse_dtype

Shape = tuple[int, ...]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """One collective of a plan: the shardings before and after it, and the bytes that the busiest device moves.

    A step called "local" is none: every device changes what it holds alone.
    """

    name: str
    pieces: tuple[str, ...]  # of axes that it runs along
    source: Sharding
    result: Sharding
    shape: Shape
    itemsize: int
    dim: int = -1  # that gains axes
    other: int = -1  # that loses axes

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The axes that it runs along: neighbouring pieces of one axis as one."""
        return Sharding(self.source.mesh, P(self.pieces)).dims[0]

    @cached_property
    def received(self) -> int:
        """Bytes that the busiest device receives."""
        if self.name in ("all_reduce", "reduce_scatter"):  # a tensor smaller than its group makes fewer messages
            group = self.source.mesh.axis_size(self.pieces)
            chunks = -(-self.source.local_size(self.shape) * self.itemsize // max(self.message, 1))
            return (2 if self.name == "all_reduce" else 1) * min(group - 1, chunks) * self.message
        return int(volume.received(self.source, self.result, self.shape).max(initial=0)) * self.itemsize

    @cached_property
    def sent(self) -> int:
        """Bytes that the busiest device sends, if those who hold the same share the work evenly."""
        if self.name in ("all_reduce", "reduce_scatter", "update_halo"):
            return self.received
        return volume.sent(self.source, self.result, self.shape) * self.itemsize

    @cached_property
    def message(self) -> int:
        """Bytes of the largest single message."""
        local, group = self.source.local_size(self.shape), self.source.mesh.axis_size(self.pieces)
        if self.name in ("all_reduce", "all_to_all"):
            return -(-local // group) * self.itemsize
        if self.name == "reduce_scatter":
            return self.result.local_size(self.shape) * self.itemsize
        return min(self.received, local * self.itemsize)

    @cached_property
    def time(self) -> float:
        """Seconds; where shards are uneven, of the busiest device."""
        mesh = self.source.mesh
        if self.name in ("all_reduce", "reduce_scatter"):
            return cost_of(self.name, mesh, self.pieces, self.source.local_size(self.shape) * self.itemsize).time
        if self.result.mesh != mesh:
            return _between(mesh, self.result.mesh, max(self.received, self.sent)) if self.received else 0.0
        moved = max(self.received, self.sent) if self.received else 0
        kind = "update_halo" if self.name == "update_halo" else "exchange"
        return cost_of(kind, mesh, self.pieces, moved).time if moved else 0.0

    @cached_property
    def collective(self) -> Collective:
        """The step as a collective: what an engine runs."""
        if self.name == "permute":
            return Permute(self.axes, tuple(self._pairs()))
        return _collective(self)

    def _pairs(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Which member's shard goes to which, within a group."""
        mesh, axes = self.source.mesh, self.axes
        lanes = mesh.lanes((*self.source.axes, *self.result.axes, *axes))
        here, there = (_shard_numbers(s, self.shape, lanes) for s in (self.source, self.result))
        inner = [lanes.index(piece) for piece in mesh.cut(axes, by=lanes)]
        first = tuple(slice(None) if i in inner else 0 for i in range(len(lanes)))
        sizes = [mesh.axis(axis).size for axis in axes]
        order = [sorted(inner).index(i) for i in inner]
        before, after = (numbers[first].transpose(order).ravel() for numbers in (here, there))
        holder = {int(number): at for at, number in enumerate(before)}
        for at, number in enumerate(after):
            members = (np.unravel_index(holder[int(number)], sizes), np.unravel_index(at, sizes))
            yield tuple(int(n) for n in members[0]), tuple(int(n) for n in members[1])

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """Of an exchange: who sends which part of the tensor to whom. Among those who hold a part the load is shared."""
        return tuple(transfers(layout_of(self.source, self.shape), layout_of(self.result, self.shape)))

    @property
    def local_before(self) -> Shape:
        """The largest shard before the step."""
        return layout_of(self.source, self.shape).local_shape

    @property
    def local_after(self) -> Shape:
        """The largest shard after the step."""
        return layout_of(self.result, self.shape).local_shape

    @property
    def groups(self) -> str:
        """How many groups of how many devices take part."""
        if self.result.mesh != self.source.mesh:
            return f"from {self.source.mesh.size} to {self.result.mesh.size}"
        size = self.source.mesh.axis_size(self.axes)
        return f"{self.source.mesh.size // size} × {size}"

    def __str__(self) -> str:
        return f"{self.name} over {', '.join(self.axes) or 'nothing'}"


def _between(here: Mesh, there: Mesh, moved: int) -> float:
    """Seconds of an exchange between meshes: as long as the slower of the two would take along all its axes."""
    pairs = [
        (mesh, tuple(axis for axis, n in mesh.sizes.items() if n > 1) or mesh.axis_names[:1]) for mesh in (here, there)
    ]
    least = max(link.latency for mesh, _ in pairs for link in mesh.links.values())
    paces = [seconds_per_byte(mesh, axes) for mesh, axes in pairs]
    hops = [sum(latency(mesh, axis) for axis in axes) for mesh, axes in pairs]
    return max(least, *hops) + moved * max(paces)


def _shard_numbers(sharding: Sharding, shape: Shape, lanes: tuple[str, ...]) -> Ints:
    """The number of the shard that each device holds, over lanes."""
    layout = layout_of(sharding, shape, lanes)
    number = np.zeros(layout.full_shape, np.int64)
    for at, dim in enumerate(layout.dims):
        number = number * dim.parts + layout.over_lanes(at, np.arange(dim.parts))
    return number


def _collective(step: Step) -> Collective:
    makers: dict[str, Any] = {
        "all_slice": lambda: AllSlice(step.axes, step.dim),
        "all_gather": lambda: AllGather(step.axes, step.other),
        "all_to_all": lambda: AllToAll(step.axes, step.dim, step.other),
        "all_reduce": lambda: AllReduce(step.axes, step.source.reduction),
        "reduce_scatter": lambda: ReduceScatter(step.axes, step.dim, step.source.reduction),
        "update_halo": lambda: UpdateHalo(
            step.axes,
            step.result.dims,
            tuple(step.result.halo_of(d) for d, axes in enumerate(step.result.dims) if axes),
        ),
        "exchange": lambda: Exchange(step.axes, step.result),
        "local": lambda: Exchange(step.axes, step.result),
    }
    result: Collective = makers[step.name]()
    return result


@dataclass(frozen=True)
class ReshardPlan:
    """The steps from one sharding of a tensor to another, and what they cost.

    Steps are synchronous, so `bytes_received` adds up what the busiest device of each receives.
    """

    shape: Shape
    dtype: "np.dtype[Any]"
    source: Sharding
    target: Sharding
    algorithm: str  # "direct", "portable", or "relabel"
    steps: tuple[Step, ...]

    @property
    def bytes_received(self) -> int:
        """Bytes that a device receives."""
        return sum(step.received for step in self.steps)

    @cached_property
    def lower_bound(self) -> int:
        """Bytes that a device must receive, whatever the algorithm."""
        if self.algorithm == "relabel":
            return 0
        return volume.lower_bound(self.source, self.target, self.shape, self.dtype.itemsize)

    @property
    def time(self) -> float:
        """Seconds, by the α-β model over the links of the mesh."""
        return sum(step.time for step in self.steps)

    @property
    def peak_bytes(self) -> int:
        """The most that a device holds at a time: the larger shard of a step and one message, for an exchange both shards."""
        size = self.dtype.itemsize

        def held(step: Step) -> int:
            before, after = (math.prod(local) * size for local in (step.local_before, step.local_after))
            return (before + after if step.name == "exchange" else max(before, after)) + step.message

        ends = (math.prod(layout_of(s, self.shape).local_shape) * size for s in (self.source, self.target))
        return max([*ends, *map(held, self.steps)])

    def explain(self) -> str:
        """Every step: its collective and groups, what a device sends and receives, its shard before and after."""
        lines = [self._title()]
        for number, step in enumerate(self.steps, 1):
            before, after = ("×".join(map(str, local)) or "1" for local in (step.local_before, step.local_after))
            lines += [
                f"{number}. {step}: {step.groups} devices, {step.time * 1e6:.3g} µs",
                f"   sends {step.sent:,} B, receives {step.received:,} B; shard {before} → {after}",
                f"   {describe(step.result, self.shape, self.dtype)}",
            ]
        return "\n".join([*lines, self._total()])

    def _title(self) -> str:
        here, there = (describe(s, self.shape, self.dtype) for s in (self.source, self.target))
        return f"{here} → {there}  ({self.algorithm})"

    def _total(self) -> str:
        bound = self.lower_bound
        times = f" ({self.bytes_received / bound:.2f} ×)" if bound else ""
        return (
            f"receives {self.bytes_received:,} B, bound {bound:,} B{times}; "
            f"{self.time * 1e6:.3g} µs; peak {self.peak_bytes:,} B"
        )

    def __str__(self) -> str:
        steps = [f"  {n}. {step}: {step.received:,} B" for n, step in enumerate(self.steps, 1)]
        if len(steps) > 16:
            steps = [*steps[:15], f"  … and {len(steps) - 15} more"]
        lines = [self._title(), *(steps or ["  nothing moves"]), self._total()]
        return "\n".join(line if len(line) <= 79 else line[:78] + "…" for line in lines)


def plan_reshard(
    shape: Sequence[int],
    dtype: Any,
    mesh: "Mesh",
    source: "Sharding | P",
    target: "Sharding | P",
    *,
    algorithm: str = "best",
    allow_device_permutation: bool = False,
) -> ReshardPlan:
    """The plan to turn one sharding of a tensor into another.

    >>> plan = plan_reshard((16, 16, 16), np.float32, Mesh(x=2, y=4), P("y", None, "x"), P(None, ("x", "y"), None))
    >>> plan.bytes_received, plan.lower_bound, [step.name for step in plan.steps]
    (1792, 1792, ['exchange'])

    `algorithm` is "best", or one of "direct" and "portable". Shardings of another mesh than `mesh` move by the direct one.
    If `allow_device_permutation`, and the target's shards are the source's on other devices, devices change places and
    nothing moves: the plan's target is then on a mesh with its devices in another order.
    """
    if algorithm not in ("best", "direct", "portable"):
        raise ShardingError(f"The algorithm {algorithm!r} is unknown. Use 'best', 'direct' or 'portable'.")
    if type(source) not in (P, Sharding) or type(target) not in (P, Sharding):
        source, target = (s if isinstance(s, Sharding) else as_spec(s) for s in (source, target))
    return _plan(_checked_shape(shape), dtype, mesh, source, target, algorithm, allow_device_permutation)


def _checked_shape(shape: Sequence[int]) -> Shape:
    if type(shape) is tuple and all(type(n) is int and n >= 0 for n in shape):
        return shape
    sizes = as_ints(shape, "The shape")
    if any(n < 0 for n in sizes):
        raise ShardingError(f"The shape {sizes} has a negative size.")
    return sizes


def _dtype(dtype: Any) -> "np.dtype[Any]":
    try:
        return np.dtype(dtype)
    except TypeError:
        return parse_dtype(str(dtype))


@lru_cache(maxsize=16384)
def _plan(shape: Shape, dtype: Any, mesh: Mesh, source: Any, target: Any, algorithm: str, permute: bool) -> ReshardPlan:
    here, there = ((s if isinstance(s, Sharding) else Sharding(mesh, s)).for_shape(shape) for s in (source, target))
    known = _dtype(dtype)
    for sharding in (here, there):
        if sharding.partial and not REDUCTIONS[sharding.reduction].accepts(known):
            raise ShardingError(
                f"{sharding} leaves a {sharding.reduction} to be done, which works on the bits of integers and booleans; "
                f"{known.name} is neither. Choose another reduction, or another dtype."
            )
    if permute:
        moved = relabelled(here, there, shape)
        if moved is not None:
            return ReshardPlan(shape, known, here, moved, "relabel", ())
    alike = len(set(mesh.links.values())) == 1
    simple = algorithm == "best" and here.mesh == there.mesh and _even(here, shape) and _even(there, shape)
    if simple and (alike or _has_short_chain(here, there)):
        costs = move_costs(here, there, shape, known.itemsize)  # exact for even shards: one plan need not be made
        algorithm = "direct" if any(cost.name == "exchange" for cost in costs) else "portable"
    made = _Maker(shape, known.itemsize)
    deep = MOST_STATES if algorithm == "portable" else 0 if alike else SOME_STATES
    chain = None if algorithm == "direct" else made.portable(here, there, deep)
    if algorithm == "portable" and chain is None:
        raise ShardingError(
            f"No chain of collectives was found from {here} to {there}: they have no common pieces of axes, or lie on "
            f"different meshes. Use algorithm='direct'."
        )
    plans = [] if chain is None else [ReshardPlan(shape, known, here, there, "portable", chain)]
    if algorithm != "portable":
        plans.append(ReshardPlan(shape, known, here, there, "direct", made.direct(here, there)))
    return plans[0] if len(plans) == 1 else min(plans, key=lambda plan: (plan.time, len(plan.steps)))


def _has_short_chain(source: Sharding, target: Sharding) -> bool:
    """Whether there is a chain that need not be searched for."""
    change = Change(source, target)
    return change.possible and bool(change.chains())


def _even(sharding: Sharding, shape: Shape) -> bool:
    return layout_of(sharding, shape).is_even


def relabelled(source: Sharding, target: Sharding, shape: Shape) -> Sharding | None:
    """The target on a mesh whose devices already hold its shards; None where they don't.

    >>> mesh = Mesh(x=2, y=2)
    >>> relabelled(Sharding(mesh, P(("x", "y"))), Sharding(mesh, P(("y", "x"))), (4,))
    Sharding(Mesh(x=2, y=2, devices=(0, 2, 1, 3)), P(('y', 'x')))
    """
    if source.partial or target.partial or source.halo != target.halo:
        return None
    if set(source.mesh.device_ids) != set(target.mesh.device_ids):
        return None
    if len(shape) == 0:
        return target
    here, there = (_box_rows(s, shape) for s in (source, target))
    by_source, by_target = (np.lexsort(boxes.T[::-1]) for boxes in (here, there))
    if not np.array_equal(here[by_source], there[by_target]):
        return None
    ids = np.empty(target.mesh.size, np.int64)
    ids[by_target] = np.asarray(source.mesh.device_ids)[by_source]
    mesh = Mesh(target.mesh.sizes, devices=ids.tolist(), links=dict(target.mesh.links), engine=target.mesh.engine)
    return target.replace(mesh=mesh).for_shape(shape)


def _box_rows(sharding: Sharding, shape: Shape) -> Ints:
    """Each device's box as one row of numbers; those without elements are all alike."""
    boxes = layout_of(sharding, shape).boxes
    return np.where(volume.sizes_of(boxes) > 0, boxes.transpose(1, 0, 2).reshape(sharding.mesh.size, -1).T, 0).T


class _Maker:
    """Makes verified steps for tensors of one shape."""

    def __init__(self, shape: Shape, itemsize: int) -> None:
        self.shape, self.itemsize = shape, itemsize

    def portable(self, source: Sharding, target: Sharding, deep: int) -> tuple[Step, ...] | None:
        """A chain of collectives; uneven shards that end elsewhere than the target has them are exchanged last."""
        if source.mesh != target.mesh:
            return None
        change = Change(source, target)
        found = change.chains(deep) if change.possible else []
        if not found:
            return None
        local = float(source.local_size(self.shape) * self.itemsize)
        moves = min(found, key=lambda some: sum(cost.time for cost in chain_costs(change, some, local)))
        steps: list[Step] = []
        at = self._bare(source, target, steps)
        for move in moves:
            at = self._moved(at, move, steps)
        self._finish(at, target, steps)
        return tuple(steps)

    def direct(self, source: Sharding, target: Sharding) -> tuple[Step, ...]:
        """What is partial is reduced; then one exchange."""
        steps: list[Step] = []
        at = self._bare(source, target, steps, bool(source.partial))
        if at.partial:
            change = Change(at, target) if at.mesh == target.mesh else None
            if change is not None and change.possible:
                for move in change.grown(change.settled):
                    if change.reduced:
                        at = self._moved(at, move, steps)
            else:
                at = self._moved(at, Move("all_reduce", at.partial, -1, -1, at.dims), steps)
        self._finish(at, target, steps)
        return tuple(steps)

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
            steps.append(self._step("local", (), source, at))
        return at

    def _moved(self, at: Sharding, move: Move, steps: list[Step]) -> Sharding:
        step = self._step(move.name, move.axes, at, at, move.dim, move.other)
        if move.name == "permute":
            cuts = {dim: layout_of(at, self.shape).dims[dim].offsets.tolist() for dim, a in enumerate(move.state) if a}
            result = at.replace(spec=P(*move.state), offsets=cuts).for_shape(self.shape)
            _check_permuted(at, result, self.shape)
        else:
            result = _collective(step).on(at, self.shape).for_shape(self.shape)
            if not result.offsets:  # uneven shards are where the collective leaves them; even ones where the chain says
                stated = at.replace(spec=P(*move.state), partial=result.partial, offsets={}).for_shape(self.shape)
                assert result is stated, f"{step} gives {result}, not {stated}"
        steps.append(self._step(move.name, move.axes, at, result, move.dim, move.other))
        return result

    def _step(
        self, name: str, pieces: tuple[str, ...], at: Sharding, result: Sharding, dim: int = -1, other: int = -1
    ) -> Step:
        return Step(name, pieces, at, result, self.shape, self.itemsize, dim, other)

    def _finish(self, at: Sharding, target: Sharding, steps: list[Step]) -> None:
        """Exchange what still lies elsewhere, fill halos, mark what is to be partial."""
        plain = target.replace(halo={}, partial=at.partial, reduction=at.reduction).for_shape(self.shape)
        if at.mesh != target.mesh:
            plain = target.replace(halo={}, partial=()).for_shape(self.shape)
        if (plain.mesh, plain.dims, plain.offsets) != (at.mesh, at.dims, at.offsets):
            moves = int(volume.received(at, plain, self.shape).max(initial=0)) > 0
            steps.append(
                self._step("exchange", _crossed(at, plain), at, plain) if moves else self._step("local", (), at, plain)
            )
        else:
            plain = at
        if target.halo != plain.halo:
            pairs = {d: pair for d, pair in enumerate(target.halo) if pair != (0, 0)}
            there = plain.replace(halo=pairs).for_shape(self.shape)
            if int(volume.received(plain, there, self.shape).max(initial=0)):
                axes = tuple(axis for axes in target.dims for axis in axes)
                steps.append(self._step("update_halo", axes, plain, there))
            else:
                steps.append(self._step("local", (), plain, there))
            plain = there
        if plain is not target:  # the first device of a group keeps the value, the others hold what adds nothing
            steps.append(self._step("local", (), plain, target))


def _crossed(source: Sharding, target: Sharding) -> tuple[str, ...]:
    """The axes along which an exchange sends."""
    everything = tuple(axis for axes in source.dims for axis in axes)
    if source.mesh != target.mesh:
        return everything or source.mesh.axis_names
    change = Change(source, target)
    crossed = change.crossed if change.possible and source.offsets == target.offsets else everything
    return crossed or everything


def _check_permuted(source: Sharding, result: Sharding, shape: Shape) -> None:
    """A permute is right if every dim keeps its cuts, and each shard lies on as many devices as before."""
    here, there = layout_of(source, shape), layout_of(result, shape)
    same = all(np.array_equal(a.offsets, b.offsets) for a, b in zip(here.dims, there.dims, strict=True))
    counts = (np.bincount(volume.shard_of(layout)) for layout in (here, there))
    before, after = counts
    assert same, f"{result} cuts other shards than {source}"
    assert np.array_equal(before, after), f"{result} does not permute {source}"
