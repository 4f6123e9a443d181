"""Resharding: the steps that turn one sharding into another, priced, verified, and set against the lower bound.

Two algorithms. The **direct** one is a single exchange: every device gets what it lacks from devices that hold it, so no
byte moves that need not. The **portable** one is a chain of collectives (see `route`). The cheaper by the links of
the mesh is taken; of equals the chain, which every communication library runs well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import shardwright.plan.volume as volume
from shardwright.caches import MIB, kept
from shardwright.errors import ShardingError
from shardwright.hardware import Hardware, Link
from shardwright.mesh import Mesh, as_ints
from shardwright.plan.maker import Maker, stays_even, time_of
from shardwright.plan.route import MOST_STATES, Change, Hop, change_between, kept_by_ends
from shardwright.plan.search import least_middle
from shardwright.plan.steps import EVEN, PRICED_AS, Step, is_even, merged_axes
from shardwright.sharding import P, Sharding, as_dtype, as_spec, check_partial, describe, layout_of

Shape = tuple[int, ...]
Ints = NDArray[np.int64]
DType = np.dtype[Any]
MOST_SHOWN = 16  # offsets of a dim in the text of a plan


class Cost(NamedTuple):
    """One step as a price: its name, its axes, the bytes that the busiest device receives, the seconds it takes."""

    name: str
    axes: tuple[str, ...]
    bytes: int
    time: float


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
    steps: tuple[Any, ...]  # of Move, Reduce and Regroup

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
                f"   {describe(step.result, step.result_shape, self.dtype, MOST_SHOWN)}",
            ]
        return "\n".join([*lines, self._total()])

    def _title(self) -> str:
        here, there = (describe(s, self.shape, self.dtype, MOST_SHOWN) for s in (self.source, self.target))
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


@kept(limit=16 * MIB, size=lambda plan: 8000 + plan.source.footprint + plan.target.footprint, least=8)
def _plan(shape: Shape, dtype: Any, mesh: Mesh, source: Any, target: Any, algorithm: str, permute: bool) -> ReshardPlan:
    here, there = ((s if isinstance(s, Sharding) else Sharding(mesh, s)).for_shape(shape) for s in (source, target))
    known = as_dtype(dtype)
    for sharding in (here, there):
        check_partial(sharding, known)
    if permute:
        moved = relabelled(here, there, shape)
        if moved is not None:
            return ReshardPlan(shape, known, here, moved, "relabel", ())
    if algorithm == "best":
        algorithm, steps = cheapest(here, there, shape, known)
    elif algorithm == "direct":
        steps = Maker(shape, known).direct(here, there)
    else:
        chain = Maker(shape, known).portable(here, there)
        if chain is None:
            raise ShardingError(
                f"No chain of collectives was found from {here} to {there}: {_why_no_chain(here, there)}. Use "
                f"algorithm='direct'."
            )
        steps = chain
    return ReshardPlan(shape, known, here, there, algorithm, steps)


def _why_no_chain(source: Sharding, target: Sharding) -> str:
    if source.mesh != target.mesh:
        return "they lie on different meshes"
    if not source.mesh.share_a_cut((*source.axes, *target.axes)):
        return "they have no common pieces of axes"
    return f"none is among the first {MOST_STATES:,} states of a search"


@kept_by_ends
def cheapest(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> tuple[str, tuple[Any, ...]]:
    """The algorithm and the steps of least time; every price of a move is the price of these."""
    if source is target:
        return "portable", ()
    maker, even = Maker(shape, dtype), _even_way(source, target, shape, dtype)
    if even is not None and even.hops is not None:
        return even.algorithm, tuple(maker.followed(source, target, even.hops))
    if even is not None:
        return even.algorithm, maker.direct(source, target)
    chain = maker.portable(source, target, within=0.0)
    if chain is not None and not time_of(chain):
        return "portable", chain
    exchange = maker.direct(source, target)
    chain = maker.portable(source, target, within=time_of(exchange))
    if chain is None or (time_of(exchange), len(exchange)) < (time_of(chain), len(chain)):
        return "direct", exchange
    return "portable", chain


class _Way(NamedTuple):
    """The better of two algorithms between even shards: the hops of its chain (None for one exchange) and its costs."""

    algorithm: str
    hops: tuple[Hop, ...] | None
    costs: tuple[Cost, ...]


def _even_way(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> _Way | None:
    """The way of least time between even shards, which have no offsets; None between others."""
    return None if source.offsets or target.offsets else _way_without_offsets(source, target, shape, dtype)


@lru_cache(maxsize=4096)
def _way_without_offsets(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> _Way | None:
    """The way of least time, priced before any step is built; None unless all shards on the way are equal blocks.

    Choosing a strategy prices many moves and runs few of them, so this is what cold plans spend their time on. A way depends
    on the sizes and links of axes, not on their names: it is found on a mesh with numbers for names, and named again.
    """
    mesh = source.mesh
    if mesh != target.mesh or source.partial or target.partial:
        return None
    if not (is_even(source, shape) and is_even(target, shape)):
        return None
    axes = (*source.axes, *target.axes)
    if any(mesh.axis(axis).size == 1 for axis in axes):
        return None
    plain, numbers, names = _unnamed(mesh)
    for axis in axes:
        if axis not in numbers:
            return _even_way_of(source, target, shape, dtype)
    ends = (
        Sharding.fitted(plain, tuple([tuple([numbers[a] for a in dim]) for dim in s.dims]), (), "sum", shape)
        for s in (source, target)
    )
    way = _even_way_of(*ends, shape, dtype)
    return way and _renamed(way, names)


@lru_cache(maxsize=256)
def _unnamed(mesh: Mesh) -> tuple[Mesh, dict[str, str], dict[str, str]]:
    """The mesh with numbers for names of axes, the number of each name, and the name of each number."""
    plain = _numbered(mesh.shape, mesh.hardware, mesh.own_links)
    pairs = list(zip(mesh.axis_names, plain.axis_names, strict=True))
    return plain, dict(pairs), {number: name for name, number in pairs}


@lru_cache(maxsize=256)
def _numbered(shape: Shape, hardware: Hardware, links: tuple[Link | None, ...]) -> Mesh:
    """The mesh of some sizes and links whose axes have numbers for names."""
    names = [str(number) for number in range(len(shape))]
    own = {name: link for name, link in zip(names, links, strict=True) if link is not None}
    return Mesh(shape, names, hardware=hardware, links=own)


def _renamed(way: _Way, names: dict[str, str]) -> _Way:
    """A way with other names for axes; pieces of axes keep their bounds."""

    def named(axes: Sequence[str]) -> tuple[str, ...]:
        return tuple(names[axis] if axis in names else _piece(axis, names) for axis in axes)

    hops = way.hops and tuple(
        hop._replace(axes=named(hop.axes), state=tuple(map(named, hop.state))) for hop in way.hops
    )
    return _Way(way.algorithm, hops, tuple(cost._replace(axes=named(cost.axes)) for cost in way.costs))


def _piece(axis: str, names: dict[str, str]) -> str:
    name, _, rest = axis.partition(":")
    return f"{names[name]}:{rest}"


@lru_cache(maxsize=4096)
def _even_way_of(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> _Way | None:
    """The same between even shards of the axes themselves."""
    mesh = source.mesh
    change = change_between(source, target, dtype)
    if not change.possible:
        return None
    lacking, crossed = change.lacking(target.local_size(shape)) * dtype.itemsize, change.crossed
    time = mesh.fabric(crossed).seconds("exchange", lacking) if lacking else 0.0
    exchange = Cost("exchange", merged_axes(mesh, crossed), lacking, time)
    chains = change.chains(False)
    if not chains and time > _least_time(change, target, shape, dtype.itemsize):
        chains = change.chains(True)
    if not chains:
        return _Way("direct", None, (exchange,))
    found = []
    for chain in chains:
        even = stays_even(mesh, shape, chain)
        found.append(_priced(change.eased(chain) if even else chain, source, shape, dtype.itemsize, even))
        together = change.joined(chain)
        if together is not chain:
            found.append(_priced(together, source, shape, dtype.itemsize, even))
    taken, costs, hops, even = min(found, key=lambda chain: chain[0])
    if time < taken:
        return _Way("direct", None, (exchange,))
    return _Way("portable", tuple(hops), costs) if even else None


def _priced(
    hops: Sequence[Hop], source: Sharding, shape: Shape, itemsize: int, stays: bool
) -> tuple[float, tuple[Cost, ...], Sequence[Hop], bool]:
    """The seconds and costs of a chain from even shards; if it leads to uneven ones, less than it takes, and False."""
    mesh, local, size, total = source.mesh, source.local_size(shape), math.prod(shape), 0.0
    costs: list[Cost] = []
    for hop in hops:
        received = EVEN[hop.name](local, mesh.axis_size(hop.axes)) * itemsize
        even = stays or stays_even(mesh, shape, [hop])
        priced_as = PRICED_AS.get(hop.name, hop.name)
        if received and not even:
            # To uneven shards one element moves at least, and at least one more step leads on from there.
            return total + mesh.fabric(hop.axes).seconds(priced_as, itemsize) + mesh.least_launch, (), hops, False
        if received:
            taken = mesh.fabric(hop.axes).seconds(priced_as, received)
            costs.append(Cost(hop.name, merged_axes(mesh, hop.axes), received, taken))
            total += taken
        if not even:
            return total, (), hops, False
        local = size // math.prod(map(mesh.axis_size, hop.state))
    return total, tuple(costs), hops, True


def _least_time(change: Change, target: Sharding, shape: Shape, itemsize: int) -> float:
    """Seconds that every chain takes that is found by searching further: each piece that an exchange crosses is crossed, at
    best in pieces of two devices, and the fastest link carries what chains move."""
    mesh, links = change.mesh, change.mesh.links_along(change.crossed)
    after = target.local_size(shape)
    middle = math.prod(shape) // change.product([*change.held, *(change.wanted - change.held)])
    moved = (middle * least_middle(2, change.moved) + after - middle) * itemsize
    hops = sum(link.hop * min(math.log2(n), n // 2) for n, link in links)
    return mesh.fabric(change.crossed).launch + hops + moved * mesh.fabric(mesh.axis_names).least_pace


def move_steps(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> tuple[Any, ...]:
    """The steps that a change of sharding takes."""
    return cheapest(source.for_shape(shape), target.for_shape(shape), shape, dtype)[1]


@kept_by_ends
def move_costs(source: Sharding, target: Sharding, shape: Shape, dtype: DType) -> tuple[Cost, ...]:
    """What those steps cost.

    >>> mesh = Mesh(x=2, y=4)
    >>> [cost[:3] for cost in move_costs(Sharding(mesh, P("y")), Sharding(mesh, P(None, "y")), (8, 8), np.dtype("f4"))]
    [('all_to_all', ('y',), 48)]
    """
    source, target = source.for_shape(shape), target.for_shape(shape)
    even = _even_way(source, target, shape, dtype) if source is not target else None
    if even is not None:
        return even.costs
    steps = cheapest(source, target, shape, dtype)[1]
    return tuple(Cost(step.name, step.axes, step.received, step.time) for step in steps if step.received)


@kept_by_ends
def gathered_dims(source: Sharding, target: Sharding) -> tuple[int, ...]:
    """The dims that a move brings together: axes split them before and split nothing afterwards."""
    change = change_between(source, target)
    if change.possible:
        return tuple(change.lost_dims)
    return tuple(dim for dim, axes in enumerate(source.dims) if axes)


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
    return target.replace(mesh=target.mesh.with_devices(ids.tolist())).for_shape(shape)


def _box_rows(sharding: Sharding, shape: Shape) -> Ints:
    """Each device's box as one row of numbers; those without elements are all alike."""
    boxes = layout_of(sharding, shape).boxes
    some = (boxes[1] > boxes[0]).all(axis=1)
    return np.where(some[:, None], boxes.transpose(1, 0, 2).reshape(sharding.mesh.size, -1), 0)
