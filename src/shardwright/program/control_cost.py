"""What a loop or a choice costs and where its operands and results lie, as propagation lays it out: for planners."""

from collections.abc import Mapping
from typing import NamedTuple

from shardwright.program.explaining import explained
from shardwright.program.lowering import WithControl
from shardwright.program.node import Graph, Node, Program
from shardwright.program.propagate import Propagation
from shardwright.sharding import Sharding


class ControlOption(NamedTuple):
    """Where operands and results of a loop or a choice lie, its seconds, and the bytes that a device holds in it."""

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    seconds: float
    memory: int


def controlled(program: Program, node: Node, fixed: Mapping[Node, Sharding]) -> ControlOption:
    """The loop or choice on operands where propagation wants them; they are whole where it does not say."""
    known = Propagation(program, fixed)
    where = [
        (known.wanted(x) or Sharding(program.mesh)).replace(partial=(), halo={}).for_shape(x.type.shape)
        for x in node.nodes
    ]
    graph = Graph()
    inputs = [
        graph.input(at, x.type._replace(sharding=there))
        for at, (x, there) in enumerate(zip(node.nodes, where, strict=True))
    ]
    partitioner = WithControl(program, known)
    partitioner.graph = graph
    partitioner.made = dict(zip(node.nodes, inputs, strict=True))
    made = partitioner.control(node)
    outputs = [graph.pick(made, at) for at in range(len(made.types))]
    alone = explained(Program(program.mesh, list(dict.fromkeys(inputs)), outputs))
    results = tuple(kind.sharding for kind in made.types)
    assert all(s is not None for s in results)
    return ControlOption(tuple(where), results, alone.time, alone.peak_bytes)  # type: ignore[arg-type]
