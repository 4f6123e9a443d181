"""Partitioning: every operation becomes local computations on shards, and everything that moves an explicit step."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from shardwright.eager import mind_gathers
from shardwright.errors import ProgramError
from shardwright.plan import (
    Each,
    Fetch,
    FromLocal,
    Local,
    LocalStep,
    OperationPlan,
    Slot,
    Step,
    ToLocal,
    make_plan,
    move_steps,
    plan_operation,
)
from shardwright.program.node import (
    Apply,
    Compute,
    Constant,
    Constrain,
    Control,
    Graph,
    Input,
    Node,
    Pick,
    Program,
    Settle,
    Type,
    noted,
)
from shardwright.program.propagate import Propagation
from shardwright.sharding import Layout, Sharding, layout_of


class Part(NamedTuple):
    """One node of an operation's plan, its operands by slots."""

    what: Any
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    types: tuple[Type, ...]
    plan: OperationPlan | None


class Partitioner:
    """Makes the nodes of a partitioned program, in which every value has a sharding."""

    def __init__(self, program: Program, known: Propagation) -> None:
        self.program, self.known = program, known
        self.graph = Graph()
        self.reads = program.reads
        self.made: dict[Node, Node] = {}
        self.notes: list[str] = []
        self.implicit: set[tuple[str, tuple[str, ...], str]] = set()
        self.origins: dict[Node, dict[str, str]] = {}
        self._parts: dict[OperationPlan, list[Part]] = {}

    def run(self, inputs: Sequence[Any], outputs: Sequence[Sharding | None]) -> Program:
        """The partitioned program, its inputs and outputs as given; outputs left open are never partial."""
        given = dict(zip(self.program.inputs, inputs, strict=True))
        for at, node in enumerate(self.program.inputs):
            kind = node.type
            if kind.local is None:
                kind = Type(kind.shape, kind.dtype, given[node].for_shape(kind.shape))
            self.made[node] = self.graph.input(at, kind)
        for node in self.program.nodes:
            if node not in self.made:
                self.made[node] = self._lowered(node)
            self.origins.setdefault(self.made[node], self.known.origins.get(node, {}))
        last = [self._output(node, there) for node, there in zip(self.program.outputs, outputs, strict=True)]
        first = [self.made[node] for node in self.program.inputs]
        result = self.program.like(first, last, self.made)
        result.notes, result.origins, result.implicit = self.notes, self.origins, frozenset(self.implicit)
        return result

    def _output(self, node: Node, there: Sharding | None) -> Node:
        made = self.made[node]
        if made.type.local is not None:
            return made
        assert made.type.sharding is not None
        if there is None:
            wanted = self.known.wanted(node)
            there = made.type.sharding.replace(partial=())
            if made.type.sharding.partial and wanted is not None:
                there = wanted
        return moved(self.graph, made, there, node.source)

    def _lowered(self, node: Node) -> Node:
        what = node.what
        if isinstance(what, Apply):
            return self._operation(node, what) if node.nodes else self._made_from_nothing(node, what)
        if isinstance(what, Constant):
            return self.graph.add(what, (), node.types)
        if isinstance(what, Constrain):
            return moved(self.graph, self.made[node.nodes[0]], what.sharding, node.source)
        if isinstance(what, Settle):
            made = self.made[node.nodes[0]]
            assert made.type.sharding is not None
            return moved(self.graph, made, made.type.sharding.replace(partial=()), node.source)
        if isinstance(what, Pick):
            return self.graph.pick(self.made[node.nodes[0]], what.which)
        if isinstance(what, Control):
            return self.control(node)
        if isinstance(what, ToLocal):
            placed = moved(self.graph, self.made[node.nodes[0]], what.layout.sharding, node.source)
            return self.graph.add(what, (placed,), node.types, node.source)
        assert isinstance(what, FromLocal | Each | LocalStep), what
        return self.graph.add(what, [self.made[x] for x in node.nodes], node.types, node.source)

    def control(self, node: Node) -> Node:
        """A loop or a choice; `program.control` has how."""
        raise ProgramError(f"{node.op} needs the partitioner of control flow.")

    def _made_from_nothing(self, node: Node, what: Apply) -> Node:
        sharding = (self.known.wanted(node) or Sharding(self.program.mesh)).for_shape(node.type.shape)
        attrs = tuple((key, value) for key, value in what.attrs.items() if key != "shape")
        local = make_plan(what.name, sharding, node.type.shape, attrs)
        kind = Type(node.type.shape, node.type.dtype, local.results[0].sharding)
        made = self.graph.add(Compute(local, what.attrs), (), (kind,), node.source)
        return moved(self.graph, made, sharding, node.source)

    def _operation(self, node: Node, what: Apply) -> Node:
        operands = [self.made[x] if isinstance(x, Node) else x for x in node.inputs]
        kinds = [_kind(x) if isinstance(x, Node) else x for x in operands]
        wanted = [self.known.wanted(node)] if len(node.types) == 1 else []
        plan = plan_operation(what.name, kinds, what.attrs, tuple(wanted))
        if plan.gathered_operands:
            self._mind(node, plan)
        steps = iter(plan.moves)
        placed = [stepped(self.graph, x, next(steps), node.source) if isinstance(x, Node) else x for x in operands]
        made = self._emitted(plan, placed, node.source)
        sharding = made.types[0].sharding
        if len(made.types) == 1 and sharding is not None and sharding.partial and self._shared(node):
            target = wanted[0] or sharding.replace(partial=())
            return moved(self.graph, made, target, node.source)  # once for all who read it
        return made

    def _mind(self, node: Node, plan: OperationPlan) -> None:
        """Note what an operation gathers unasked; weights that are gathered where they are used are meant to be."""
        arrays = [x for x in node.inputs if isinstance(x, Node)]
        weights = {at for at, x in enumerate(arrays) if self._is_weight(x)}
        unasked = [(at, gather) for at, gather in plan.gathered_operands if at not in weights]
        meant = [gather for at, gather in plan.gathered_operands if at in weights]
        if meant:
            mind_gathers(meant, node.source, weights=True)
        if unasked:
            mind_gathers([gather for _, gather in unasked], node.source)
        self.notes += [
            noted(f"{g.operation} gathers dim {', '.join(map(str, g.dims))} of {g.operand}: {g.bytes:,} B", node.source)
            for _, g in unasked
        ]
        steps = [step for at, _ in unasked for step in (plan.moves[at] if at is not None else _fetches(plan))]
        self.implicit |= {(step.name, step.axes, node.source) for step in steps if step.received}

    def _is_weight(self, node: Node) -> bool:
        """Whether a traced value is a parameter as it came in, perhaps constrained, cast or transposed."""
        while isinstance(node.what, Constrain | Settle) or (
            isinstance(node.what, Apply) and node.what.name in ("astype", "permute_dims") and len(node.nodes) == 1
        ):
            node = node.nodes[0]
        return isinstance(node.what, Input) and node.what.number in self.program.parameters

    def _emitted(self, plan: OperationPlan, operands: Sequence[Any], source: str) -> Node:
        """The nodes of an operation whose operands are in place; the last one, which has the results."""
        parts = self._parts.get(plan)
        if parts is None:
            parts = self._parts[plan] = _parts(plan)
        values: dict[Slot, Any] = {Slot(at): x for at, x in enumerate(operands)}
        node: Node | None = None
        for what, inputs, outputs, types, owner in parts:
            node = self.graph.add(what, [values[slot] for slot in inputs], types, source, owner)
            for at, slot in enumerate(outputs):
                values[slot] = self.graph.pick(node, at)
        if node is None:  # rows that lie where they are read
            made: Node = values[plan.outputs[0]]
            return made
        return node

    def _shared(self, node: Node) -> bool:
        """Whether several steps read a value."""
        return self.reads[node] + self.program.outputs.count(node) > 1


def _fetches(plan: OperationPlan) -> list[Step]:
    """The steps of an operation that fetch rows."""
    return [line.what for line in plan.instructions if isinstance(line.what, Fetch)]


def _parts(plan: OperationPlan) -> list[Part]:
    """The nodes of an operation, whatever its operands."""
    dtypes = {Slot(at): kind[1] for at, kind in enumerate(plan.kinds) if isinstance(kind, tuple)}
    parts = []
    for at, (what, inputs, outputs, _) in enumerate(plan.instructions):
        owner = plan if at + 1 == len(plan.instructions) else None
        if isinstance(what, Local):
            types = [_type(layout, dtype) for layout, dtype in zip(what.results, what.call.result_dtypes, strict=True)]
            payload: Any = Compute(what, plan.attrs if what.name == plan.op.name else what.call.attrs)
        else:
            types = [_type(what.there, dtypes[inputs[0]])]
            payload = what
        dtypes.update(zip(outputs, [kind.dtype for kind in types], strict=True))
        parts.append(Part(payload, inputs, outputs, tuple(types), owner))
    return parts


def _type(layout: Layout, dtype: Any) -> Type:
    return Type(layout.shape, dtype, layout.sharding)


def _kind(node: Node) -> tuple[Any, Any]:
    kind = node.type
    assert kind.sharding is not None
    return layout_of(kind.sharding, kind.shape), kind.dtype


def moved(graph: Graph, node: Node, target: Sharding, source: str) -> Node:
    """A value in another sharding: the nodes of the steps that takes, each with the sharding it leaves."""
    shape, dtype, here, _ = node.type
    assert here is not None
    return stepped(graph, node, move_steps(here, target.for_shape(shape), shape, dtype), source)


def stepped(graph: Graph, node: Node, steps: Sequence[Step], source: str) -> Node:
    """A value after steps."""
    for step in steps:
        node = graph.add(step, (node,), (Type(step.result_shape, node.type.dtype, step.result),), source)
    return node


def partition(
    partitioner: Partitioner,
    inputs: Sequence[Any],
    outputs: Sequence[Sharding | None],
) -> Program:
    """The program on shards, with explicit steps; inputs and outputs as given."""
    for node, there in zip(partitioner.program.outputs, outputs, strict=True):
        if not isinstance(node, Node):
            raise ProgramError(f"A program gives arrays; got {node!r}.")
        if there is not None:
            there.for_shape(node.type.shape)
    return partitioner.run(inputs, outputs)
