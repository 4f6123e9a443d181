"""Partitioning by a plan: operations run by the strategies that a planner chose, and values are moved where it says."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardwright.ops import OPS
from shardwright.plan import OperationPlan, Strategy, price_of
from shardwright.program.lowering import WithControl, inherit_origins
from shardwright.program.node import Apply, Control, Input, Node, Program, Settle
from shardwright.program.partition import kinds_of, moved, stepped
from shardwright.program.passes import scheduled
from shardwright.program.propagate import Propagation
from shardwright.sharding import Sharding

WHY = "it is part of the best plan of the whole program"


@dataclass
class Decision:
    """Where values of a program lie and how operations run."""

    places: dict[Node, Sharding] = field(default_factory=dict)  # of inputs, and of what is made or moved anywhere
    strategies: dict[Node, Strategy] = field(default_factory=dict)
    operands: dict[Node, tuple[Sharding, ...]] = field(default_factory=dict)  # of loops and choices
    hubs: dict[Node, Sharding] = field(default_factory=dict)  # where a value is moved once for all who read it
    several: dict[tuple[Node, Node | None], tuple[Sharding, ...]] = field(
        default_factory=dict
    )  # by value and reader, None for an output: where it is moved once more, for some
    outputs: list[Sharding | None] = field(default_factory=list)

    def on(self, same: Mapping[Node, Node]) -> "Decision":
        """The decision for another program of the same steps, given for each node its like."""
        return Decision(
            {same[node]: s for node, s in self.places.items()},
            {same[node]: s for node, s in self.strategies.items()},
            {same[node]: s for node, s in self.operands.items()},
            {same[node]: s for node, s in self.hubs.items()},
            {(same[value], reader and same[reader]): s for (value, reader), s in self.several.items()},
            self.outputs,
        )


class ByPlan(WithControl):
    """A partitioner that chooses nothing."""

    def __init__(self, program: Program, decision: Decision, fixed: Mapping[Node, Sharding]) -> None:
        super().__init__(program, _Unled(program, fixed), led=False)
        self.decision = decision
        self._plans: dict[Any, OperationPlan] = {}

    def _lowered(self, node: Node) -> Node:
        made = super()._lowered(node)
        hub = self.decision.hubs.get(node)
        return made if hub is None else moved(self.graph, made, hub, node.source)

    def _read(self, value: Node, reader: Node | None) -> Node:
        made = self.made[value]
        source = value.source if reader is None else reader.source
        if isinstance(value.what, Input) and value in self.decision.hubs:
            made = moved(self.graph, made, self.decision.hubs[value], source)
        for there in self.decision.several.get((value, reader), ()):
            made = moved(self.graph, made, there, source)
        return made

    def _operation(self, node: Node, what: Apply) -> Node:
        strategy = self.decision.strategies[node]
        operands = [self._read(x, node) if isinstance(x, Node) else x for x in node.inputs]
        kinds = kinds_of(operands)
        types = [kind if isinstance(kind, tuple) else (type(kind), repr(kind)) for kind in kinds]
        key = (what.name, what.attrs.key, *types, strategy.operands, strategy.results)
        plan = self._plans.get(key)
        if plan is None:
            plan = OperationPlan(OPS[what.name], kinds, what.attrs, strategy)
            price = price_of(plan.problem, strategy)
            assert price is not None
            plan.strategy = replace(strategy, price=price, why=WHY)
            self._plans[key] = plan
        steps = iter(plan.moves)
        placed = [stepped(self.graph, x, next(steps), node.source) if isinstance(x, Node) else x for x in operands]
        return self._emitted(plan, placed, node.source)

    def _wanted(self, node: Node) -> Sharding | None:
        return self.decision.places.get(node)

    def _settled(self, node: Node, what: Settle) -> Node:
        return moved(self.graph, self._read(node.nodes[0], node), self.decision.places[node], node.source)

    def control(self, node: Node) -> Node:
        """A loop or a choice, on operands where the plan has them."""
        assert isinstance(node.what, Control)
        before = dict(self.made)
        wanted = dict(zip(node.nodes, self.decision.operands[node], strict=True))  # what both sides read is moved once
        for x, there in wanted.items():
            self.made[x] = moved(self.graph, self._read(x, node), there, node.source)
        try:
            return super().control(node)
        finally:
            self.made.update({x: before[x] for x in node.nodes})


class _Unled(Propagation):
    """A propagation in which nothing flows: only what was given is known."""

    def _run(self) -> None:
        return


def partition_by(program: Program, decision: Decision, fixed: Mapping[Node, Sharding]) -> Program:
    """The program on shards by a plan, in the order that needs least memory; what it costs is what the planner promised."""
    partitioner = ByPlan(program, decision, fixed)
    parted = partitioner.run([decision.places.get(node) for node in program.inputs], decision.outputs)
    inherit_origins(parted)
    return scheduled(parted)
