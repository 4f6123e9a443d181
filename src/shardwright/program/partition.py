"""Partitioning: every operation becomes local computations on shards, and everything that moves an explicit step."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from shardwright.errors import ProgramError
from shardwright.plan import (
    Each,
    Fetch,
    FromLocal,
    ImplicitGather,
    Local,
    LocalStep,
    OperationPlan,
    Slot,
    Step,
    ToLocal,
    gathered_dims,
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
from shardwright.program.sharing import common_place
from shardwright.sharding import Layout, Sharding, layout_of


class Part(NamedTuple):
    """One node of an operation's plan, its operands by slots."""

    what: Any
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    types: tuple[Type, ...]
    plan: OperationPlan | None


class Partitioner:
    """Makes the nodes of a partitioned program, in which every value has a sharding.

    If `led`, operations are planned for where propagation wants their results, else one by one, as eager calls are.
    """

    def __init__(self, program: Program, known: Propagation, led: bool = True) -> None:
        self.program, self.known, self.led = program, known, led
        self.graph = Graph()
        self.reads = program.reads
        self.made: dict[Node, Node] = {}
        self.notes: list[str] = []
        self.implicit: set[tuple[str, tuple[str, ...], str]] = set()
        self.gathers: list[
            tuple[list[ImplicitGather], str, bool]
        ] = []  # with the operation's source, and whether weights
        self.origins: dict[Node, dict[str, str]] = {}
        self._looked_at: set[Node] = set()  # values that several operations read
        self._for_several: dict[
            tuple[Node, Node], Node
        ] = {}  # by value and reader: the value where it was moved for them
        self.costs_more = False  # whether what propagation wants may cost more than operations planned one by one
        self._steered: set[Node] = set()
        self._differs: dict[OperationPlan, bool] = {}
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
            if self.led or node in self.known.closed:
                self.origins.setdefault(self.made[node], self.known.origins.get(node, {}))
        last = [self._output(node, there) for node, there in zip(self.program.outputs, outputs, strict=True)]
        first = [self.made[node] for node in self.program.inputs]
        result = self.program.like(first, last, self.made)
        result.notes, result.origins, result.implicit = self.notes, self.origins, frozenset(self.implicit)
        return result

    def _output(self, node: Node, there: Sharding | None) -> Node:
        made = self._read(node, None)
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
            return moved(self.graph, self._read(node.nodes[0], node), what.sharding, node.source)
        if isinstance(what, Settle):
            return self._settled(node, what)
        if isinstance(what, Pick):
            return self.graph.pick(self.made[node.nodes[0]], what.which)
        if isinstance(what, Control):
            return self.control(node)
        if isinstance(what, ToLocal):
            placed = moved(self.graph, self._read(node.nodes[0], node), what.layout.sharding, node.source)
            return self.graph.add(what, (placed,), node.types, node.source)
        assert isinstance(what, FromLocal | Each | LocalStep), what
        return self.graph.add(what, [self.made[x] for x in node.nodes], node.types, node.source)

    def _read(self, value: Node, reader: Node | None) -> Node:
        """A value as a node reads it, or as an output has it."""
        return self.made[value]

    def _settled(self, node: Node, what: Settle) -> Node:
        """A value with its reduction done."""
        made = self.made[node.nodes[0]]
        assert made.type.sharding is not None
        return moved(self.graph, made, made.type.sharding.replace(partial=()), node.source)

    def control(self, node: Node) -> Node:
        """A loop or a choice; `program.control` has how."""
        raise ProgramError(f"{node.op} needs the partitioner of control flow.")

    def _made_from_nothing(self, node: Node, what: Apply) -> Node:
        wanted = self._wanted(node)
        if wanted is not None:
            self._steered.add(node)
        sharding = (wanted or Sharding(self.program.mesh)).for_shape(node.type.shape)
        attrs = tuple((key, value) for key, value in what.attrs.items() if key != "shape")
        local = make_plan(what.name, sharding, node.type.shape, attrs)
        kind = Type(node.type.shape, node.type.dtype, local.results[0].sharding)
        made = self.graph.add(Compute(local, what.attrs), (), (kind,), node.source)
        return moved(self.graph, made, sharding, node.source)

    def _wanted(self, node: Node) -> Sharding | None:
        return self.known.wanted(node) if self.led or node in self.known.closed else None

    def _operation(self, node: Node, what: Apply) -> Node:
        operands = [self.made[x] if isinstance(x, Node) else x for x in node.inputs]
        wanted = (self._wanted(node),) if len(node.types) == 1 else ()
        plan = plan_operation(what.name, kinds_of(operands), what.attrs, wanted)
        if plan.strategy.time:
            self._move_for_several(node)
            if any((x, node) in self._for_several for x in node.nodes):
                operands = [self._for_several.get((x, node), y) for x, y in zip(node.inputs, operands, strict=True)]
                plan = plan_operation(what.name, kinds_of(operands), what.attrs, wanted)
        if self.led:
            self._look_for_steering(node, plan)
        if plan.gathered_operands:
            self._mind(node, plan)
        steps = iter(plan.moves)
        placed = [stepped(self.graph, x, next(steps), node.source) if isinstance(x, Node) else x for x in operands]
        made = self._emitted(plan, placed, node.source)
        sharding = made.types[0].sharding
        first = operands[0].type.sharding if plan.problem.rule.keeps and isinstance(operands[0], Node) else None
        if first is not None and first.halo and sharding is not None:  # what is written stays where it is, halos too
            return moved(self.graph, made, first.replace(partial=()), node.source)
        if len(made.types) == 1 and sharding is not None and sharding.partial and self._shared(node):
            target = self._wanted(node) or sharding.replace(partial=())
            return moved(self.graph, made, target, node.source)  # once for all who read it
        return made

    def _mind(self, node: Node, plan: OperationPlan) -> None:
        """Note what an operation gathers unasked; weights that are gathered where they are used are meant to be, and so are
        sums that were scattered, which all devices would have otherwise."""
        arrays = [x for x in node.inputs if isinstance(x, Node)]
        weights = {at for at, x in enumerate(arrays) if self._is_weight(x)}
        unasked = [
            (at, gather)
            for at, gather in plan.gathered_operands
            if at not in weights and (at is None or not self._is_scattered(arrays[at], gather.dims))
        ]
        meant = [gather for at, gather in plan.gathered_operands if at in weights]
        if meant:
            self.gathers.append((meant, node.source, True))
        self._note_gathers([gather for _, gather in unasked], node.source)
        steps = [step for at, _ in unasked for step in (plan.moves[at] if at is not None else _fetches(plan))]
        self.implicit |= {(step.name, step.axes, node.source) for step in steps if step.received}

    def _is_scattered(self, node: Node, dims: Iterable[int]) -> bool:
        """Whether a value was split along dims only to scatter a sum."""
        sharding = self.made[node].type.sharding
        axes = [axis for dim in dims for axis in sharding.dims[dim]] if sharding is not None else []
        return bool(axes) and self.known.are_scattered(node, axes)

    def _is_weight(self, node: Node) -> bool:
        """Whether a traced value is a parameter as it came in, perhaps constrained, cast or transposed."""
        while isinstance(node.what, Constrain | Settle) or (
            isinstance(node.what, Apply) and node.what.name in ("astype", "permute_dims") and len(node.nodes) == 1
        ):
            node = node.nodes[0]
        return isinstance(node.what, Input) and node.what.number in self.program.parameters

    def _look_for_steering(self, node: Node, plan: OperationPlan) -> None:
        """Notes values that lie where propagation wants them and operations alone would not put them, and whether moving
        such a value, or putting it there, costs anything."""
        differs = self._differs.get(plan)
        if differs is None:
            differs = self._differs[plan] = _differs(plan)
        if not differs and self._steered.isdisjoint(node.nodes):
            return
        free = {
            a for x, s in zip(node.nodes, plan.strategy.operands, strict=True) if x not in self._steered for a in s.axes
        }
        if differs or any(not free.issuperset(s.axes) for s in plan.strategy.results):
            self._steered.add(node)
        moves = zip(node.nodes, plan.moves, strict=True)
        if plan.strategy.priced.communication and (differs or any(steps for x, steps in moves if x in self._steered)):
            self.costs_more = True

    def _plan_if(self, node: Node, value: Node, there: Sharding) -> OperationPlan:
        """The plan of an operation if a value that it reads were in another sharding."""
        kinds = kinds_of([self.made[x] if isinstance(x, Node) else x for x in node.inputs])
        there_kind = layout_of(there, value.type.shape), value.type.dtype
        kinds = [there_kind if x is value else kind for x, kind in zip(node.inputs, kinds, strict=True)]
        wanted = (self._wanted(node),) if len(node.types) == 1 else ()
        return plan_operation(node.what.name, kinds, node.what.attrs, wanted)

    def _move_for_several(self, node: Node) -> None:
        """Moves what an operation reads, once for it and others, where that takes less than each on its own."""
        for value in dict.fromkeys(node.nodes):
            if self.reads[value] == 1 or value in self._looked_at:
                continue
            self._looked_at.add(value)
            ready = [
                reader
                for reader in dict.fromkeys(self.known.users[value])
                if isinstance(reader.what, Apply)
                and len(reader.nodes) > 1  # else there is no other operand to spare a move
                and reader not in self.made
                and all(x in self.made for x in reader.nodes)
            ]
            made = self.made[value]
            plans = {reader: partial(self._plan_if, reader, value) for reader in ready}
            common = common_place(value, made.type, plans) if len(ready) > 1 else None
            if common is not None:
                there = moved(self.graph, made, common.sharding, node.source)
                gathers = _gathers_of(node.title, made, common.sharding)
                self._note_gathers([g for g in gathers if not self._is_scattered(value, g.dims)], node.source)
                self._for_several.update({(value, reader): there for reader in common.readers})

    def _note_gathers(self, gathers: list[ImplicitGather], source: str) -> None:
        if gathers:
            self.gathers.append((gathers, source, False))
            self.notes += [
                noted(f"{g.operation} gathers dim {', '.join(map(str, g.dims))} of {g.operand}: {g.bytes:,} B", source)
                for g in gathers
            ]

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


def kinds_of(operands: Sequence[Any]) -> list[Any]:
    """The kinds of operands, as operations are planned for them."""
    return [_kind(x) if isinstance(x, Node) else x for x in operands]


def _kind(node: Node) -> tuple[Any, Any]:
    kind = node.type
    assert kind.sharding is not None
    return layout_of(kind.sharding, kind.shape), kind.dtype


def _differs(plan: OperationPlan) -> bool:
    """Whether an operation is planned otherwise than it would be if nothing said where its result is wanted."""
    if plan.wanted in ((), (None,)) or not (plan.strategy.priced.communication or any(plan.moves)):
        return False
    alone = plan_operation(plan.op.name, plan.kinds, plan.attrs, (None,))
    return alone.strategy.operands != plan.strategy.operands or alone.strategy.results != plan.strategy.results


def _gathers_of(operation: str, node: Node, there: Sharding) -> list[ImplicitGather]:
    """The implicit gather that moving a value for an operation is, if it is one."""
    shape, dtype, here, _ = node.type
    assert here is not None
    dims = gathered_dims(here, there)
    received = sum(step.received for step in move_steps(here, there, shape, dtype))
    return [ImplicitGather(operation, f"{node.type} on {there.mesh}", dims, received)] if dims else []


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
