"""From a traced program to a final one: propagate, partition, passes.

Propagation knows no prices, and what it wants can cost more than it saves. So operations are also planned one by one, as eager
calls are; what communicates less is kept, unless devices would compute more. A program is never slower than its operations.
"""

import functools
from collections.abc import Sequence

from shardwright.eager import mind_gathers
from shardwright.program.loops import lower_control
from shardwright.program.node import Communicates, Control, Node, Pick, Program, Settle, noted
from shardwright.program.partition import Partitioner, partition
from shardwright.program.passes import optimised
from shardwright.program.propagate import Propagation
from shardwright.sharding import Sharding


def lower(
    program: Program,
    inputs: Sequence[Sharding | None],
    outputs: Sequence[Sharding | None] | None = None,
) -> Program:
    """The final program, with all stages before it; inputs without a sharding get the one that propagation gives them."""
    given = [s if s is None else s.for_shape(node.type.shape) for s, node in zip(inputs, program.inputs, strict=True)]
    fixed: dict[Node, Sharding] = {n: s for n, s in zip(program.inputs, given, strict=True) if s is not None}
    known = Propagation(program, fixed)
    there = [
        s if n.type.local else s or known.wanted(n) or Sharding(program.mesh)
        for s, n in zip(given, program.inputs, strict=True)
    ]
    parts, parted, final = _cheaper(program, known, there, outputs or [None] * len(program.outputs))
    for gathers, source in parts.gathers:
        mind_gathers(gathers, source)
    final.stages = {"traced": program, "partitioned": parted, "final": final}
    final.propagated = functools.partial(_labelled, program, known)
    final.notes = [*final.notes, *conflicts(program, known)]
    return final


def _cheaper(
    program: Program, known: Propagation, inputs: Sequence[Sharding], outputs: Sequence[Sharding | None]
) -> tuple[Partitioner, Program, Program]:
    """The partitioner, the partitioned and the final program: as propagation wants it, or operations one by one."""
    led = WithControl(program, known)
    parted = partition(led, inputs, outputs)
    final = optimised(parted)
    time = _seconds(parted)
    if time and not any(isinstance(node.what, Control) for node in program.nodes):
        alone = WithControl(program, known, led=False)
        other = partition(alone, inputs, outputs)
        if _seconds(other) < time and _work(other) <= 1.01 * _work(parted):
            ended = optimised(other)
            if _seconds(ended) < _seconds(final):
                return alone, other, ended
    return led, parted, final


def _seconds(program: Program) -> float:
    """What the steps of a program without loops take."""
    return sum(node.what.time for node in program.nodes if isinstance(node.what, Communicates))


def _work(program: Program) -> float:
    """Floating-point operations of the busiest device."""
    return sum(node.plan.strategy.work for node in program.nodes if node.plan is not None)


class WithControl(Partitioner):
    """A partitioner that lowers the programs of loops and choices too."""

    def control(self, node: Node) -> Node:
        """A loop or a choice, its programs lowered for where its operands lie."""
        return lower_control(self, node, lower)


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
