"""From a traced program to a final one: propagate, partition, passes.

Propagation knows no prices, and what it wants can cost more than it saves. Where sums are sent to all devices, which then
compute the same, propagation is also asked to scatter them, and the program that takes less time is kept. Where what it wants
may communicate more than needed, operations are also planned one by one, as eager calls are. What communicates less is kept,
unless devices would compute more or the batch would lose the axes that integer inputs give it. A program that holds loops or
choices is lowered as propagation wants it; the programs inside are compared each on its own.
"""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from shardwright.eager import mind_gathers, strictness
from shardwright.errors import ProgramError
from shardwright.garbage import no_collection
from shardwright.plan import Reduce, Step
from shardwright.program.loops import lower_control
from shardwright.program.node import Apply, Communicates, Control, Node, Pick, Program, Settle, noted
from shardwright.program.partition import Partitioner, partition
from shardwright.program.passes import optimised
from shardwright.program.propagate import Propagation
from shardwright.sharding import Sharding

Parts = dict[Any, Program]  # by program, and the shardings of its inputs and outputs

WORTH = 0.1  # of a program's time that must be saved for its sums to be scattered: else it runs as people write it
MORE_WORK = 1.01  # by which devices may compute more if they communicate less: masks and positions, not products


@no_collection()
def lower(
    program: Program,
    inputs: Sequence[Sharding | None],
    outputs: Sequence[Sharding | None] | None = None,
    lowered_parts: "Parts | None" = None,
) -> Program:
    """The final program, with all stages before it; inputs without a sharding get the one that propagation gives them.

    `lowered_parts` are the programs of loops and choices that were lowered already, for where their operands lie.
    """
    given = [s if s is None else s.for_shape(node.type.shape) for s, node in zip(inputs, program.inputs, strict=True)]
    fixed: dict[Node, Sharding] = {n: s for n, s in zip(program.inputs, given, strict=True) if s is not None}
    known = Propagation(program, fixed)
    there = [
        s if n.type.local else s or known.wanted(n) or Sharding(program.mesh)
        for s, n in zip(given, program.inputs, strict=True)
    ]
    parts: Parts = {} if lowered_parts is None else lowered_parts
    lowered = _cheaper(program, known, there, outputs or [None] * len(program.outputs), parts)
    for gathers, source, weights in lowered.partitioner.gathers:
        mind_gathers(gathers, source, weights=weights)
    final = lowered.final
    final.stages = {"traced": program, "partitioned": lowered.partitioned, "final": final}
    known = lowered.partitioner.known
    final.propagated = functools.partial(_labelled, program, known)
    final.notes = [*final.notes, *(conflicts(program, known) if lowered.partitioner.led else lowered.notes)]
    return final


PLACEMENTS: dict[str, Callable[..., Program]] = {"propagate": lower}  # planners add theirs


def lowering_of(placement: Any) -> Callable[..., Program]:
    """How traced programs are laid out, by name; a function is taken as it is."""
    if callable(placement):
        return placement
    if placement not in PLACEMENTS:
        raise ProgramError(f"The placement {placement!r} is unknown. Use one of {', '.join(map(repr, PLACEMENTS))}.")
    return PLACEMENTS[placement]


class _Lowered(NamedTuple):
    """A program in its last stages, who partitioned it, and what is to be said of that."""

    partitioner: Partitioner
    partitioned: Program
    final: Program
    notes: list[str]


def _cheaper(
    program: Program, known: Propagation, inputs: Sequence[Any], outputs: Sequence[Sharding | None], parts: Parts
) -> _Lowered:
    """The program as propagation wants it, or with its operations planned one by one if that takes less."""
    first = WithControl(program, known)
    first.parts = parts
    parted = partition(first, inputs, outputs)
    if any(isinstance(node.what, Control) for node in program.nodes):
        return _Lowered(first, parted, optimised(parted), [])
    led, parted = _scattered(first, parted, inputs, outputs)
    final = optimised(parted)
    if led.costs_more:
        alone = WithControl(program, known, led=False)
        other = partition(alone, inputs, outputs)
        less = _seconds(other) < _seconds(parted) and _time(other) < _time(parted)
        if less and _work(other) <= MORE_WORK * _work(parted) and _keeps_batch(led, alone):
            inherit_origins(other)
            shorter = optimised(other)
            before, after = _seconds(final), _seconds(shorter)
            if after < before:
                return _Lowered(alone, other, shorter, _departure(led, alone, before, after))
    return _Lowered(led, parted, final, [])


def _scattered(
    led: Partitioner, parted: Program, inputs: Sequence[Any], outputs: Sequence[Sharding | None]
) -> tuple[Partitioner, Program]:
    """The program with its sums scattered, if that takes less and gathers nothing that `strict` forbids; itself where devices
    compute too little twice to look."""
    summed = {axis for node in parted.nodes if isinstance(node.what, Reduce) for axis in node.what.axes}
    spared = sum(_redundant(node, summed) for node in parted.nodes)
    time = _time(parted)
    if spared <= WORTH * time:
        return led, parted
    known = led.known.scattered()
    if known is None:
        return led, parted
    other = WithControl(led.program, known)
    made = partition(other, inputs, outputs)
    if _time(made) >= (1 - WORTH) * time or _refused(other) > _refused(led):
        return led, parted
    return other, made


def _refused(partitioner: Partitioner) -> int:
    """How many gathers are errors here."""
    strict, weights_may = strictness()
    return sum(not (weights and weights_may) for _, _, weights in partitioner.gathers) if strict else 0


def _redundant(node: Node, axes: Collection[str]) -> float:
    """Seconds of a node that devices along axes spend on computing the same."""
    if node.plan is None:
        return 0.0
    strategy = node.plan.strategy
    idle = node.plan.problem.mesh.axis_size(tuple(axis for axis in axes if strategy.placement.get(axis) is None))
    return strategy.priced.compute * (1 - 1 / idle)


def _time(program: Program) -> float:
    """Seconds that a program without loops takes: its steps and its computation."""
    computed = sum(node.plan.strategy.priced.compute for node in program.nodes if node.plan is not None)
    return _seconds(program) + computed


def _seconds(program: Program) -> float:
    """What the steps of a program without loops take."""
    return sum(node.what.time for node in program.nodes if isinstance(node.what, Communicates))


def _work(program: Program) -> float:
    """Floating-point operations of the busiest device."""
    return sum(node.plan.strategy.work for node in program.nodes if node.plan is not None)


def _keeps_batch(led: Partitioner, alone: Partitioner) -> bool:
    """Whether values that are split as integer inputs are stay so if operations are planned one by one."""
    for node in led.program.nodes:
        first = led.known.flowed_first(node)
        if first and not {*_places(led.made[node])}.intersection(first) <= {*_places(alone.made[node])}:
            return False
    return True


def _departure(led: Partitioner, alone: Partitioner, before: float, after: float) -> list[str]:
    """Where a program first departs from what propagation wants, and what that saves."""
    for node in led.program.nodes:
        wanted, kind = led.made[node].type, alone.made[node].type
        if isinstance(node.what, Apply) and node.nodes and wanted != kind:
            text = f"{node.title}, {kind}: by cost, not {wanted} as propagation wants it"
            return [noted(f"{text}: {before * 1e6:,.1f} µs of communication become {after * 1e6:,.1f} µs", node.source)]
    return []


def inherit_origins(program: Program) -> None:
    """Says where axes come from if operations placed them: from an operand that has the axis, else from the step itself."""
    for node in program.nodes:
        known = program.origins.setdefault(node, {})
        for dim, axis in _places(node):
            if axis not in known:
                stays = [x for x in node.nodes if (dim, axis) in _places(x) or not isinstance(node.what, Step)]
                origins = [program.origins[x][axis] for x in stays if axis in program.origins[x]]
                known[axis] = origins[0] if origins else f"{node.title}, by cost"


def _places(node: Node) -> list[tuple[int, str]]:
    """The axes of a node's results, each with the dim that it splits."""
    shardings = [kind.sharding for kind in node.types if kind.sharding is not None]
    return [(dim, axis) for sharding in shardings for dim, axes in enumerate(sharding.dims) for axis in axes]


class WithControl(Partitioner):
    """A partitioner that lowers the programs of loops and choices too.

    A body is lowered several times to see where its values lie. Each program inside it is lowered once for each place of its
    operands, so that the time does not double with every loop inside a loop.
    """

    def __init__(self, program: Program, known: Propagation, led: bool = True) -> None:
        super().__init__(program, known, led)
        self.parts: Parts = {}

    def control(self, node: Node) -> Node:
        """A loop or a choice, its programs lowered for where its operands lie."""
        return lower_control(self, node, self._lowered_part)

    def _lowered_part(
        self, program: Program, inputs: Sequence[Sharding | None], outputs: Sequence[Sharding | None] | None = None
    ) -> Program:
        key = id(program), tuple(inputs), tuple(outputs or ())
        made = self.parts.get(key)
        if made is None:
            made = self.parts[key] = lower(program, inputs, outputs, self.parts)
        return made


def _labelled(program: Program, known: Propagation) -> Program:
    """The traced program with the sharding that each value is to have."""
    made: dict[Node, Node] = {}
    for node in program.nodes:
        types = tuple(t._replace(sharding=t.sharding or known.wanted(node)) for t in node.types)
        operands = tuple(made[x] if isinstance(x, Node) else x for x in node.inputs)
        made[node] = Node(node.number, node.what, operands, types, node.source, node.plan)
    inputs, outputs = ([made[node] for node in some] for some in (program.inputs, program.outputs))
    result = program.like(inputs, outputs, made)
    result.origins = {made[node]: known.origins.get(node, {}) for node in program.nodes}
    return result


def conflicts(program: Program, known: Propagation) -> list[str]:
    """What was proposed and not taken."""
    names = dict(zip(program.inputs, program.names, strict=True))
    notes = []
    for node, some in known.conflicts.items():
        value = node
        while isinstance(value.what, Pick | Settle):  # no steps of the table
            value = value.nodes[0]
        notes += [noted(f"{names.get(value, value.title)}, {node.type}: {text}", node.source) for text in some]
    return notes
