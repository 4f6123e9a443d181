"""From programs to text: the global view with annotations, and the partitioned local view with collectives.

Text is made from a program's nodes alone.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.errors import MLIRError
from shardwright.mlir.communication import QueryKey
from shardwright.mlir.statements import in_order, renumbered
from shardwright.mlir.text import Known, Lazy, Text, Typed
from shardwright.mlir.writing_composed import Composed
from shardwright.mlir.writing_compute import Call, Computes
from shardwright.mlir.writing_local import Moves
from shardwright.ops import Attrs
from shardwright.plan import Each, FromLocal, Fused, LocalStep, Regroup, Step, ToLocal
from shardwright.program import (
    Apply,
    Compute,
    Cond,
    Constant,
    Constrain,
    Input,
    KnownKey,
    Loop,
    Node,
    Pick,
    Program,
    Rounds,
    RowKey,
    Settle,
    Type,
)
from shardwright.sharding import Layout, Sharding, layout_of


class Writer:
    """Writes the nodes of a program; subclasses know a view."""

    says_uniform = False  # whether the text says of conditions that all devices decide alike

    def __init__(self, text: Text) -> None:
        self.text, self.rows = text, Composed(text)
        self.moves = Moves(text, self.rows)
        self.values: dict[Node, Any] = {}  # a Typed, or a list of them for a node with several results

    def type_of(self, kind: Type) -> tuple[tuple[int, ...], Any]:
        """The shape and dtype that a value has in the text."""
        raise NotImplementedError

    def payload(self, node: Node, operands: list[Any], result: tuple[Any, Any]) -> Typed:
        """A node that is special to the view."""
        raise NotImplementedError

    def body(self, program: Program, arguments: Sequence[Typed]) -> list[Typed]:
        """The nodes of a program, on values for its inputs; the values of its outputs."""
        for node, value in zip(program.inputs, arguments, strict=True):
            self.values[node] = value
        for node in self.order(program):
            if node not in self.values and not isinstance(node.what, Input):
                self.values[node] = self._written(node, program)
        return [self.values[node] for node in program.outputs]

    def order(self, program: Program) -> Sequence[Node]:
        """The order in which nodes are written."""
        return program.nodes

    def _written(self, node: Node, program: Program) -> Any:
        what = node.what
        if isinstance(what, Constant):
            return self.constant(node, program.constants[node])
        if isinstance(what, Pick) and isinstance(
            node.nodes[0].what, Fused
        ):  # reductions that share messages, one by one
            (operand,) = _operands(node)
            return self.moves.step(node.nodes[0].what.steps[what.which], self.values[operand])
        known = {*_operands(node)}
        operands = [
            self.values[x] if isinstance(x, Node) else x for x in node.inputs if x in known or not isinstance(x, Node)
        ]
        if isinstance(what, Pick):
            return operands[0][what.which] if isinstance(operands[0], list) else operands[0]
        if isinstance(what, Settle):
            return operands[0]
        if isinstance(what, Cond):
            return self._choice(node, what, operands)
        if isinstance(what, Rounds):
            return self._rounds(node, what, operands)
        if isinstance(what, Loop):
            return self._loop(node, what, operands)
        if len(node.types) > 1:
            if not isinstance(what, Apply | Compute):
                raise MLIRError(f"{node.title} can't be written: it has {len(node.types)} results.")
            return self.rows.several(what.name, what.attrs, operands, [self.type_of(kind) for kind in node.types])
        return self.payload(node, operands, self.type_of(node.type))

    def constant(self, node: Node, value: Any) -> Typed:
        """An array from outside."""
        raise NotImplementedError

    # -- control flow -------------------------------------------------------------------------------------------------

    def _settled(self, operands: Sequence[Typed]) -> None:
        """Values that regions read are written before them; constants in each region of their own."""
        for x in operands:
            if isinstance(x, Lazy) and not isinstance(x, Known):
                _ = x.name

    def _results(self, like: Sequence[Typed]) -> tuple[str, list[Typed], str]:
        """Names for the results of a region: as the line binds them, one by one, and their types."""
        name, many = self.text.name(), len(like) > 1
        values = [Typed(f"{name}#{at}" if many else name, x.shape, x.dtype) for at, x in enumerate(like)]
        return f"{name}:{len(like)}" if many else name, values, ", ".join(x.type for x in values)

    def _inside(self, program: Program, arguments: Sequence[Typed]) -> list[Typed]:
        """The nodes of a program in a region; each has its values there only."""
        saved, self.values = self.values, {}
        ready = [self.text.constant(x.array, x.shape, x.dtype) if isinstance(x, Known) else x for x in arguments]
        made = self.body(program, ready)
        self.values = saved
        return made

    def _yield(self, values: Sequence[Typed], types: str, op: str = "scf.yield") -> None:
        names = ", ".join(x.name for x in values)
        self.text.line(f"{op} {names} : {types}" if values else op)

    def _region(self, program: Program, arguments: Sequence[Typed], types: str) -> None:
        self.text.enter()
        self._yield(self._inside(program, arguments), types)
        self.text.leave()

    def _choice(self, node: Node, what: Cond, operands: list[Typed]) -> Any:
        self._settled(operands)
        test, *rest = operands
        own = what.shared + what.captured
        flag = self.text.scalar(f"tensor.extract {test.name}[]", test.type)
        bound, values, types = self._results([Typed("", *self.type_of(kind)) for kind in node.types])
        self.text.line(f"{bound} = scf.if {flag} -> ({types}) {{")
        self._region(what.true, rest[:own], types)
        self.text.line("} else {")
        self._region(what.false, [*rest[: what.shared], *rest[own:]], types)
        self.text.line("} {uniform}" if self.says_uniform and what.uniform else "}")
        return values if len(values) > 1 else values[0]

    def _rounds(self, node: Node, what: Rounds, operands: list[Typed]) -> Any:
        """A loop; where rows are read or collected it carries their number, and the rows collected so far."""
        self._settled(operands)
        carried, tables = operands[: what.carried], operands[what.carried : what.carried + what.tables]
        captured = operands[what.carried + what.tables :]
        counted = bool(tables) or len(node.types) > what.carried
        states = list(carried)
        if counted:
            collected = [self.text.constant(0, *self.type_of(kind)) for kind in node.types[what.carried :]]
            states = [self.text.constant(0, (), np.int64), *carried, *collected]
        self._settled(states)
        first, last, step = (self.text.scalar(f"arith.constant {n}", "index") for n in (0, what.rounds, 1))
        bound, values, types = self._results(states)
        names = [self.text.name() for _ in range(len(states) + 1)]
        inner = [Typed(name, x.shape, x.dtype) for name, x in zip(names[1:], states, strict=True)]
        pairs = ", ".join(f"{a.name} = {x.name}" for a, x in zip(inner, states, strict=True))
        self.text.line(
            f"{bound} = scf.for {names[0]} = {first} to {last} step {step} iter_args({pairs}) -> ({types}) {{"
        )
        self.text.enter()
        made = self._counted(what, inner, tables, captured) if counted else self._inside(what.body, [*inner, *captured])
        self._yield(made, types)
        self.text.leave()
        self.text.line("}")
        values = values[1:] if counted else values
        return values if len(node.types) > 1 else values[0]

    def _counted(
        self, what: Rounds, inner: Sequence[Typed], tables: Sequence[Typed], captured: Sequence[Typed]
    ) -> list[Typed]:
        """One round of a loop that reads or collects rows."""
        counter, *states = inner
        number = self.rows.reshaped(counter, (1,))
        rows = []
        for table in tables:
            row = self.rows.write("take", {"axis": 0}, [table, number], ((1, *table.shape[1:]), table.dtype))
            rows.append(self.rows.reshaped(row, table.shape[1:]))
        made = self._inside(what.body, [*states[: what.carried], *rows, *captured])
        collected = []
        for row, so_far in zip(made[what.carried :], states[what.carried :], strict=True):
            wide = self.rows.reshaped(row, (1, *row.shape))
            result = so_far.shape, so_far.dtype
            collected.append(self.rows.write("scatter", {"dims": (0,)}, [so_far, wide, number], result))
        one = self.text.constant(1, (), np.int64)
        return [self.rows.write("add", {}, [counter, one], ((), np.int64)), *made[: what.carried], *collected]

    def _loop(self, node: Node, what: Loop, operands: list[Typed]) -> Any:
        self._settled(operands)
        own = what.carried + what.captured
        carried = operands[: what.carried]
        bound, values, types = self._results(carried)

        def fresh() -> list[Typed]:
            return [Typed(self.text.name(), x.shape, x.dtype) for x in carried]

        before = fresh()
        pairs = ", ".join(f"{a.name} = {x.name}" for a, x in zip(before, carried, strict=True))
        self.text.line(f"{bound} = scf.while ({pairs}) : ({types}) -> ({types}) {{")
        self.text.enter()
        (test,) = self._inside(what.condition, [*before, *operands[own:]])
        flag = self.text.scalar(f"tensor.extract {test.name}[]", test.type)
        self._yield(before, types, f"scf.condition({flag})")
        self.text.leave()
        self.text.line("} do {")
        after = fresh()
        self.text.line(f"^bb0({', '.join(f'{x.name}: {x.type}' for x in after)}):")
        self._region(what.body, [*after, *operands[what.carried : own]], types)
        self.text.line("} attributes {uniform}" if self.says_uniform and what.uniform else "}")
        return values if len(values) > 1 else values[0]


class GlobalWriter(Writer):
    """One tensor a value, and annotations."""

    def type_of(self, kind: Type) -> tuple[tuple[int, ...], Any]:
        if kind.local is not None:
            raise MLIRError(
                "A part of the program is in the local view (shard_map), so it has no global view as text. Write "
                "view='local'."
            )
        return kind.shape, kind.dtype

    def constant(self, node: Node, value: Any) -> Typed:
        made = self.text.constant(np.asarray(value), node.type.shape, node.type.dtype)
        return (
            made
            if node.type.sharding is None or node.type.sharding.is_replicated
            else self.annotated(made, node.type.sharding)
        )

    def annotated(self, value: Typed, sharding: Sharding) -> Typed:
        """A value with a sharding, unless it has it already; a second annotation is one for users."""
        if not value.shape and not sharding.partial:
            return value  # there is nothing to split
        known = self._shardings.get(value.name)
        fitted = sharding.for_shape(value.shape)
        if known is fitted:
            return value
        made = self.text.annotated(value, fitted, for_users=known is not None)
        self._shardings[made.name] = fitted
        return made

    def __init__(self, text: Text) -> None:
        super().__init__(text)
        self._shardings: dict[str, Sharding] = {}  # of values that are annotated

    def payload(self, node: Node, operands: list[Any], result: tuple[Any, Any]) -> Typed:
        what = node.what
        if isinstance(what, Constrain):
            return self.annotated(operands[0], what.sharding)
        if isinstance(what, Apply):
            return self.rows.write(what.name, what.attrs, operands, result)
        raise MLIRError(f"{node.title} can't be written in the global view. Write view='local'.")


class LocalWriter(Writer):
    """One device's tensor a value, and collectives."""

    says_uniform = True

    def __init__(self, text: Text) -> None:
        super().__init__(text)
        self.computes = Computes(self.rows, self.moves.places)

    def type_of(self, kind: Type) -> tuple[tuple[int, ...], Any]:
        """One device's shape: of shards of different sizes the largest, to which the others are padded."""
        if kind.local is None:
            return _layout(kind).local_shape, kind.dtype
        shapes = kind.local.shapes
        if len(set(shapes)) > 1:
            raise MLIRError(
                f"Devices hold tensors of different sizes, {sorted(set(shapes))[:4]}, but one text serves all devices. Pad the "
                f"tensors."
            )
        return shapes[0], kind.dtype

    def order(self, program: Program) -> Sequence[Node]:
        """Operands before what reads them, in the order of the outputs: the same for every schedule of a program."""
        order: dict[Node, None] = {}
        stack = [(node, False) for node in reversed((*program.effects, *program.outputs))]
        while stack:
            node, ready = stack.pop()
            if ready:
                order[node] = None
            elif node not in order:
                stack += [(node, True), *((x, False) for x in reversed(_operands(node)))]
        return list(order)

    def constant(self, node: Node, value: Any) -> Typed:
        whole, sharding = self.text.constant(np.asarray(value), node.type.shape, node.type.dtype), node.type.sharding
        assert sharding is not None
        return self.moves.placed(whole, sharding)

    def payload(self, node: Node, operands: list[Any], result: tuple[Any, Any]) -> Typed:
        what = node.what
        if isinstance(what, ToLocal | FromLocal):
            made: Typed = operands[0]
            return made
        if isinstance(what, LocalStep):
            return self.moves.local(what, operands[0], *result)
        if isinstance(what, Regroup):
            return self.rows.reshape(operands[0], result[0])
        if isinstance(what, Step):
            return self.moves.step(what, operands[0])
        if isinstance(what, Each):
            return self._each(node, what, operands, result)
        assert isinstance(what, Compute), what
        held = [_layout(x.type) for x in _operands(node)]
        if what.name == "einsum":
            return self.computes.einsum(what.attrs, operands, held, what.local.call.rule, result)
        call = Call(what.name, what.attrs, operands, held, _layout(node.type), result[1])
        return self.computes.write(node.title, call)

    def _each(self, node: Node, what: Each, operands: list[Any], result: tuple[Any, Any]) -> Typed:
        key = what.key
        if isinstance(key, KnownKey):
            return self.text.constant(
                np.frombuffer(key.data, np.dtype(key.dtype))[0] if _single(key) else key.value, *result
            )
        if isinstance(key, QueryKey):
            return self.moves.query(key, operands)
        if isinstance(key, RowKey):
            given = iter(operands)
            return self.rows.write(
                key.name, Attrs(**dict(key.attrs)), [next(given) if x is None else x for x in key.scalars], result
            )
        if what.name == "matmul" and all(len(x.shape) == 2 for x in operands) and len(operands) == 2:
            return self.rows.write("einsum", {"text": "m k, k n -> m n"}, operands, result)
        raise MLIRError(
            f"{what.name!r} is a Python function of each device's tensor ({node.source}), which has no text. Use NumPy's "
            f"element-wise functions and collectives, or write it with shardwright.numpy on arrays."
        )


def _operands(node: Node) -> tuple[Node, ...]:
    """What a node is written from: of one of several reductions that share messages only its own operand."""
    if isinstance(node.what, Pick) and isinstance(node.nodes[0].what, Fused):
        return (node.nodes[0].nodes[node.what.which],)
    if isinstance(node.what, Compute) and node.what.name == "in_range":
        return node.nodes[:1]  # the check of the data is not written
    return node.nodes


def _layout(kind: Type) -> Layout:
    assert kind.sharding is not None
    return layout_of(kind.sharding, kind.shape)


def _single(key: KnownKey) -> bool:
    return len(key.data) == np.dtype(key.dtype).itemsize


def is_local(program: Program) -> bool:
    """Whether a program's arguments or results are tensors per device."""
    ends = [*program.inputs, *program.outputs]
    return any(node.type.local is not None for node in (ends or program.nodes))


def written(program: Program, dialect: str, view: str | None, name: str) -> tuple[str, str]:
    """The line of the mesh and the text of the function."""
    if view not in (None, "global", "local"):
        raise MLIRError(f"There is no view {view!r}. Use 'global' or 'local'.")
    local = is_local(program) if view is None else view == "local"
    text = Text(program.mesh, dialect, _axes_of(program, local))
    if local:
        return text.header(), _local_function(program, text, name)
    if is_local(program):
        raise MLIRError(
            "The program's arguments or results are tensors per device, which the global view has not. Leave view out."
        )
    return text.header(), _global_function(program, text, name)


def _axes_of(program: Program, local: bool) -> list[str]:
    """The axes, and pieces of axes, that the text of a program names: in the global view no steps of its own."""
    found: dict[str, None] = {}
    ends = [] if local else [*program.inputs, *program.outputs]
    found.update((axis, None) for node in ends if node.type.sharding is not None for axis in node.type.sharding.axes)
    _collect(program if local else program.stages.get("traced", program), found)
    return list(found)


def _collect(program: Program, found: dict[str, None]) -> None:
    for node in program.nodes:
        what = node.what
        some = [kind.sharding.axes for kind in node.types if kind.sharding is not None]
        some += [what.sharding.axes] if isinstance(what, Constrain) else []
        some += (
            [what.pieces] if isinstance(what, Step) else [what.collective.axes] if isinstance(what, LocalStep) else []
        )
        found.update((axis, None) for axes in some for axis in axes)
        for inner in (getattr(what, name, None) for name in ("true", "false", "body", "condition")):
            if isinstance(inner, Program):
                _collect(inner, found)


def _function(text: Text, name: str, inputs: Sequence[Typed], outputs: Sequence[Typed], local: bool) -> str:
    arguments = ", ".join(f"{x.name}: {x.type}" for x in inputs)
    types = ", ".join(x.type for x in outputs)
    text.line(f"return {', '.join(x.name for x in outputs)} : {types}" if outputs else "return")
    results = "" if not outputs else f" -> {types}" if len(outputs) == 1 else f" -> ({types})"
    block = in_order(text.block, canonical=local)
    body = "\n".join(line for statement in block for line in statement.lines())
    return f"func.func @{name}({arguments}){results} {{\n{renumbered(body)}\n}}"


def _local_function(program: Program, text: Text, name: str) -> str:
    if any(kind.sharding is None and kind.local is None for node in program.nodes for kind in node.types):
        raise MLIRError("The program is only traced, so where its values lie is not settled. Lower it first.")
    writer = LocalWriter(text)
    inputs = [Typed(f"%arg{at}", *writer.type_of(node.type)) for at, node in enumerate(program.inputs)]
    return _function(text, name, inputs, writer.body(program, inputs), True)


def _global_function(program: Program, text: Text, name: str) -> str:
    traced = program.stages.get("traced", program)
    writer = GlobalWriter(text)
    inputs = [Typed(f"%arg{at}", *writer.type_of(node.type)) for at, node in enumerate(traced.inputs)]
    placed = [
        x if node.type.sharding is None else writer.annotated(x, node.type.sharding)
        for x, node in zip(inputs, program.inputs, strict=True)
    ]
    made = writer.body(traced, placed)
    outputs = [
        x if node.type.sharding is None else writer.annotated(x, node.type.sharding)
        for x, node in zip(made, program.outputs, strict=True)
    ]
    return _function(text, name, inputs, outputs, False)
