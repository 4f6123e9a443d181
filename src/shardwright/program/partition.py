"""Partitioning: every operation becomes a local step on shards, and every move of a value explicit collectives."""

from collections.abc import Sequence
from typing import Any

from shardwright.dispatch import mind_gathers
from shardwright.errors import ProgramError
from shardwright.lowering import Attrs, static_plan
from shardwright.plan import Step, plan_reshard
from shardwright.program.node import Graph, Node, Program, Type
from shardwright.program.propagate import Propagation
from shardwright.sharding import Sharding, layout_of


class Partitioner:
    """Makes the nodes of a partitioned program, in which every value has a sharding."""

    def __init__(self, program: Program, known: Propagation) -> None:
        self.program, self.known = program, known
        self.graph = Graph()
        self.users = program.users
        self.made: dict[Node, Node] = {}
        self.notes: list[str] = []
        self.origins: dict[Node, dict[str, str]] = {}

    def run(self, inputs: Sequence[Sharding], outputs: Sequence[Sharding | None]) -> Program:
        """The partitioned program, its inputs and outputs as given; outputs left open are never partial."""
        given = dict(zip(self.program.inputs, inputs, strict=True))
        for at, node in enumerate(self.program.inputs):
            fitted = given[node].for_shape(node.type.shape)
            kind = Type(node.type.shape, node.type.dtype, fitted)
            self.made[node] = self.graph.add("input", (), (kind,), key=at)
        for node in self.program.nodes:
            if node not in self.made:
                self.made[node] = self._lowered(node)
            self.origins.setdefault(self.made[node], self.known.origins.get(node, {}))
        last = [self._output(node, there) for node, there in zip(self.program.outputs, outputs, strict=True)]
        constants = {self.made[node]: value for node, value in self.program.constants.items()}
        first = [self.made[node] for node in self.program.inputs]
        result = Program(self.program.mesh, first, last, self.program.names, constants)
        result.notes, result.origins = self.notes, self.origins
        return result

    def _output(self, node: Node, there: Sharding | None) -> Node:
        made = self.made[node]
        assert made.type.sharding is not None
        if there is None:
            wanted = self.known.wanted(node)
            there = made.type.sharding.replace(partial=())
            if made.type.sharding.partial and wanted is not None:
                there = wanted
        return moved(self.graph, made, there, node.source)

    def _lowered(self, node: Node) -> Node:
        if node.op == "constant":
            return self.graph.add("constant", (), node.types, key=id(node))
        if node.op == "constraint":
            return moved(self.graph, self.made[node.nodes[0]], node.attrs["sharding"], node.source)
        if node.op == "reduced":
            made = self.made[node.nodes[0]]
            assert made.type.sharding is not None
            return moved(self.graph, made, made.type.sharding.replace(partial=()), node.source)
        if node.op == "pick":
            return self.graph.pick(self.made[node.nodes[0]], node.attrs["index"])
        if isinstance(node.how, dict):
            return node.attrs["lower"](self, node)
        if not node.nodes:
            return self._made_from_nothing(node)
        return self._operation(node)

    def _made_from_nothing(self, node: Node) -> Node:
        sharding = (self.known.wanted(node) or Sharding(self.program.mesh)).for_shape(node.type.shape)
        kind = Type(node.type.shape, node.type.dtype, sharding)
        return self.graph.add(node.op, (), (kind,), node.attrs, node.source, node.how)

    def _operation(self, node: Node) -> Node:
        operands = [self.made[x] if isinstance(x, Node) else x for x in node.inputs]
        kinds = [_kind(x) if isinstance(x, Node) else x for x in operands]
        wanted = [self.known.wanted(node)] if len(node.types) == 1 else []
        plan = static_plan(node.op, kinds, node.attrs, tuple(wanted))
        if plan.gathers:
            mind_gathers(plan.gathers, node.source)
            self.notes += [
                f"{name} gathers dim {', '.join(map(str, dims))} of {text}: {size:,} B ({node.source})"
                for name, text, dims, size in plan.gathers
            ]
        there = iter(plan.strategy.operands)
        placed = [moved(self.graph, x, next(there), node.source) if isinstance(x, Node) else x for x in operands]
        rows = zip(plan.results, plan.dtypes_made, strict=True)
        types = [Type(layout.shape, dtype, layout.sharding) for layout, dtype in rows]
        made = self.graph.add(node.op, placed, types, node.attrs, node.source, plan)
        if len(types) == 1 and types[0].sharding is not None and types[0].sharding.partial and self._shared(node):
            target = wanted[0] or types[0].sharding.replace(partial=())
            return moved(self.graph, made, target, node.source)  # once for all who read it
        return made

    def _shared(self, node: Node) -> bool:
        """Whether several steps read a value."""
        return len(self.users[node]) + self.program.outputs.count(node) > 1


def _kind(node: Node) -> tuple[Any, Any]:
    kind = node.type
    assert kind.sharding is not None
    return layout_of(kind.sharding, kind.shape), kind.dtype


def moved(graph: Graph, node: Node, target: Sharding, source: str) -> Node:
    """A value laid out anew: the nodes of the steps of its plan, each with the sharding it leaves."""
    shape, dtype, here = node.type
    assert here is not None
    there = target.for_shape(shape)
    if here is there:
        return node
    for step in plan_reshard(shape, dtype, there.mesh, here, there).steps:
        node = collective(graph, node, step, source)
    return node


def collective(graph: Graph, node: Node, step: Step, source: str) -> Node:
    """The node of one step of a plan."""
    attrs = Attrs(over=step.axes, result=step.result)
    return graph.add(step.name, (node,), (node.type._replace(sharding=step.result),), attrs, source, step)


def is_collective(node: Node) -> bool:
    """Whether a node moves a value between devices."""
    return isinstance(node.how, Step)


def partition(
    program: Program,
    known: Propagation,
    inputs: Sequence[Sharding],
    outputs: Sequence[Sharding | None],
) -> Program:
    """The program on shards, with explicit collectives; inputs and outputs as given."""
    for node, there in zip(program.outputs, outputs, strict=True):
        if not isinstance(node, Node):
            raise ProgramError(f"A program gives arrays; {node!r} is none.")
        if there is not None:
            there.for_shape(node.type.shape)
    return Partitioner(program, known).run(inputs, outputs)
