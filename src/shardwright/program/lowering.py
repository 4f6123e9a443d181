"""From a traced program to a final one: propagate, partition, passes."""

import contextlib
import functools
import gc
import threading
from collections.abc import Iterator, Sequence

from shardwright.program.loops import lower_control
from shardwright.program.node import Node, Pick, Program, Settle, noted
from shardwright.program.partition import Partitioner, partition
from shardwright.program.passes import optimised
from shardwright.program.propagate import Propagation
from shardwright.sharding import Sharding

_lock = threading.Lock()
_under_way = 0  # programs that are being lowered, in all threads
_resumes = False  # whether the collector ran before the first of them


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Inside, Python does not look for cyclic garbage.

    Lowering leaves none, and its nodes live on. Going through all objects of the process again and again would take a fifth of
    the time of a large program, and more the larger it is.
    """
    global _under_way, _resumes
    with _lock:
        if not _under_way:
            _resumes = gc.isenabled()
            gc.disable()
        _under_way += 1
    try:
        yield
    finally:
        with _lock:
            _under_way -= 1
            if not _under_way and _resumes:
                gc.enable()


@_collector_paused()
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
    parted = partition(WithControl(program, known), there, outputs or [None] * len(program.outputs))
    final = optimised(parted)
    final.stages = {"traced": program, "partitioned": parted, "final": final}
    final.propagated = functools.partial(_labelled, program, known)
    final.notes = [*final.notes, *conflicts(program, known)]
    return final


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
