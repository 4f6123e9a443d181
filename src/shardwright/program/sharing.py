"""Values that several operations read: where to move one once, for all of them.

Operations are planned one by one. Three products of one tensor would each gather their own weight where gathering the tensor
takes longer than one weight, but less than three.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from shardwright.plan import OperationPlan, move_steps
from shardwright.program.node import Node, Type
from shardwright.sharding import P, Sharding

ROUNDING = 1 - 1e-9  # of sums of the same terms in another order


class Common(NamedTuple):
    """Where a value is moved to for several operations, and which of them read it there."""

    sharding: Sharding
    readers: tuple[Node, ...]


def common_place(value: Node, kind: Type, readers: Mapping[Node, Callable[[Sharding], OperationPlan]]) -> Common | None:
    """Where a value of some kind is best moved to once; None if its readers, each on its own, take no longer.

    `readers` has for each operation its plan if the value lies in a sharding. No choice makes devices compute more.
    """
    here = kind.sharding
    assert here is not None
    if here.partial or here.halo:
        return None
    apart = {node: plan(here) for node, plan in readers.items()}
    if sum(_communication(plan) > 0 for plan in apart.values()) < 2:
        return None  # a move pays if it spares several readers something
    least, best = _time_apart(value, apart) * ROUNDING, None
    work = sum(plan.strategy.work for plan in apart.values())
    for there in _gathered(here, kind.shape):
        moving = sum(step.time for step in move_steps(here, there, kind.shape, kind.dtype))
        if moving >= least:
            continue
        moved = {node: plan(there) for node, plan in readers.items()}
        better = tuple(node for node in readers if _communication(moved[node]) < _communication(apart[node]))
        taken = [(moved if node in better else apart)[node].strategy for node in readers]
        time = moving + sum(strategy.priced.communication for strategy in taken)
        if len(better) > 1 and time < least and sum(strategy.work for strategy in taken) * ROUNDING <= work:
            least, best = time, Common(there, better)
    return best


def _communication(plan: OperationPlan) -> float:
    """Seconds that an operation communicates."""
    return plan.strategy.priced.communication


def _time_apart(value: Node, plans: Mapping[Node, OperationPlan]) -> float:
    """What operations take, each planned on its own: they share the moves of a value that lead to the same sharding."""
    time, places = 0.0, set()
    for node, plan in plans.items():
        time += _communication(plan)
        for operand, there, steps in zip(node.nodes, plan.strategy.operands, plan.moves, strict=True):
            if operand is value:
                time -= sum(step.time for step in steps) if there in places else 0.0
                places.add(there)
    return time


def _gathered(here: Sharding, shape: tuple[int, ...]) -> Iterator[Sharding]:
    """A sharding without one of its axes, each in turn, then without any."""
    axes = [axis for dim in here.dims for axis in dim]
    for gone in [*([axis] for axis in axes), *([axes] if len(axes) > 1 else [])]:
        yield Sharding(here.mesh, P(*[[a for a in dim if a not in gone] for dim in here.dims])).for_shape(shape)
