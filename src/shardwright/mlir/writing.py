"""From programs to text: the global view with annotations, and the partitioned local view with collectives.

Text is made from a program's nodes alone.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.errors import MLIRError
from shardwright.mlir.communication import QueryKey
from shardwright.mlir.text import Lazy, Text, Typed
from shardwright.mlir.writing_local import Moves
from shardwright.mlir.writing_rows import Rows
from shardwright.ops import OPS, Attrs
from shardwright.plan import Each, FromLocal, Fused, LocalStep, Regroup, Step, ToLocal
from shardwright.program import (
    Apply,
    Compute,
    Cond,
    Constant,
    Constrain,
    Input,
    KnownKey,
    Node,
    Pick,
    Program,
    Rounds,
    RowKey,
    Settle,
    Type,
)
from shardwright.sharding import Sharding, layout_of

UFUNCS = {"power": "pow", "true_divide": "divide", "absolute": "abs", "invert": "bitwise_invert"}
SPLIT_FREELY = frozenset(
    "astype sum prod max min all any einsum permute_dims reshape broadcast_to sigmoid".split()
)  # rows that compute on shards what they compute on tensors; element-wise ones do too


class Writer:
    """Writes the nodes of a program; subclasses know a view."""

    def __init__(self, text: Text) -> None:
        self.text, self.rows = text, Rows(text)
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
        operands = [self.values[x] if isinstance(x, Node) else x for x in node.inputs]
        if isinstance(what, Pick):
            return operands[0][what.which] if isinstance(operands[0], list) else operands[0]
        if isinstance(what, Settle):
            return operands[0]
        if isinstance(what, Cond):
            return self._choice(node, what, operands)
        if isinstance(what, Rounds):
            return self._rounds(node, what, operands)
        if len(node.types) > 1:
            raise MLIRError(f"{node.title} can't be written: it has {len(node.types)} results. Use other operations.")
        return self.payload(node, operands, self.type_of(node.type))

    def constant(self, node: Node, value: Any) -> Typed:
        """An array from outside."""
        raise NotImplementedError

    # -- control flow -------------------------------------------------------------------------------------------------

    def _settled(self, operands: Sequence[Typed]) -> None:
        """Values that regions read are written before them."""
        for x in operands:
            if isinstance(x, Lazy):
                _ = x.name

    def _results(self, node: Node) -> tuple[str, list[Typed], str]:
        """Names for the results of a region: as the line binds them, one by one, and their types."""
        name, kinds = self.text.name(), [self.type_of(kind) for kind in node.types]
        many = len(kinds) > 1
        values = [Typed(f"{name}#{at}" if many else name, *kind) for at, kind in enumerate(kinds)]
        return f"{name}:{len(kinds)}" if many else name, values, ", ".join(x.type for x in values)

    def _region(self, program: Program, arguments: Sequence[Typed], types: str) -> None:
        self.text.enter()
        made = self.body(program, arguments)
        self.text.line(f"scf.yield {', '.join(x.name for x in made)} : {types}")
        self.text.leave()

    def _choice(self, node: Node, what: Cond, operands: list[Typed]) -> Any:
        self._settled(operands)
        test, *rest = operands
        own = what.shared + what.captured
        flag = self.text.scalar(f"tensor.extract {test.name}[]", test.type)
        bound, values, types = self._results(node)
        self.text.line(f"{bound} = scf.if {flag} -> ({types}) {{")
        self._region(what.true, rest[:own], types)
        self.text.line("} else {")
        self._region(what.false, [*rest[: what.shared], *rest[own:]], types)
        self.text.line("}")
        return values if len(values) > 1 else values[0]

    def _rounds(self, node: Node, what: Rounds, operands: list[Typed]) -> Any:
        if what.tables or len(node.types) != what.carried:
            raise MLIRError("scan over rows, or one that collects rows, can't be written: carry what it needs instead.")
        self._settled(operands)
        carried, captured = operands[: what.carried], operands[what.carried :]
        first, last, step = (self.text.scalar(f"arith.constant {n}", "index") for n in (0, what.rounds, 1))
        bound, values, types = self._results(node)
        names = [self.text.name() for _ in range(what.carried + 1)]
        inner = [Typed(name, x.shape, x.dtype) for name, x in zip(names[1:], carried, strict=True)]
        pairs = ", ".join(f"{a.name} = {x.name}" for a, x in zip(inner, carried, strict=True))
        self.text.line(
            f"{bound} = scf.for {names[0]} = {first} to {last} step {step} iter_args({pairs}) -> ({types}) {{"
        )
        self._region(what.body, [*inner, *captured], types)
        self.text.line("}")
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

    def type_of(self, kind: Type) -> tuple[tuple[int, ...], Any]:
        if kind.local is not None:
            shapes = kind.local.shapes
        else:
            assert kind.sharding is not None
            layout = layout_of(kind.sharding, kind.shape)
            even = all(extent is None for extent in layout.extents)
            shapes = (
                (layout.at(0).local_shape,)
                if even
                else tuple(layout.at(p).local_shape for p in range(layout.mesh.size))
            )
        if len(set(shapes)) > 1:
            raise MLIRError(
                f"{kind} has shards of different sizes, {sorted(set(shapes))[:4]}, but one text serves all devices. Pad the "
                f"tensor, or write view='global'."
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
        self.type_of(node.type)  # refuses uneven shards
        return self.moves.moved(whole, Sharding(sharding.mesh), sharding)

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
        self._check_split(node, what)
        return self.rows.write(what.name, what.attrs, operands, result)

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

    def _check_split(self, node: Node, what: Compute) -> None:
        """Refuse computations that depend on which part of the tensor a device has."""
        op = OPS.get(what.name)
        if (op is not None and op.elementwise) or what.name in SPLIT_FREELY:
            return
        split = [
            k.sharding for x in node.nodes for k in x.types if k.sharding is not None and not k.sharding.is_replicated
        ]
        if what.name in ("concat", "rows") and not any(self._moves_split(what, s) for s in split):
            return
        if split:
            raise MLIRError(
                f"{node.title} can't be written for one device: what it does depends on which part of the tensor a device "
                f"has. Write view='global'."
            )

    def _moves_split(self, what: Compute, sharding: Sharding) -> bool:
        """Whether a dim along which rows move is split."""
        dims = (
            [what.attrs["axis"]]
            if what.name == "concat"
            else [d for d, m in enumerate(what.attrs["maps"]) if m is not None]
        )
        return any(d < len(sharding.dims) and sharding.dims[d] for d in dims)


def _operands(node: Node) -> tuple[Node, ...]:
    """What a node is written from: of one of several reductions that share messages only its own operand."""
    if isinstance(node.what, Pick) and isinstance(node.nodes[0].what, Fused):
        return (node.nodes[0].nodes[node.what.which],)
    return node.nodes


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
    text = Text(program.mesh, dialect)
    local = is_local(program) if view is None else view == "local"
    if local:
        return text.header(), _local_function(program, text, name)
    if is_local(program):
        raise MLIRError(
            "The program's arguments or results are tensors per device, which the global view has not. Leave view out."
        )
    return text.header(), _global_function(program, text, name)


def _function(text: Text, name: str, inputs: Sequence[Typed], outputs: Sequence[Typed]) -> str:
    arguments = ", ".join(f"{x.name}: {x.type}" for x in inputs)
    types = ", ".join(x.type for x in outputs)
    text.line(f"return {', '.join(x.name for x in outputs)} : {types}" if outputs else "return")
    results = "" if not outputs else f" -> {types}" if len(outputs) == 1 else f" -> ({types})"
    return "\n".join([f"func.func @{name}({arguments}){results} {{", *text.lines, "}"])


def _local_function(program: Program, text: Text, name: str) -> str:
    if any(kind.sharding is None and kind.local is None for node in program.nodes for kind in node.types):
        raise MLIRError("The program is only traced, so where its values lie is not settled. Lower it first.")
    writer = LocalWriter(text)
    inputs = [Typed(f"%arg{at}", *writer.type_of(node.type)) for at, node in enumerate(program.inputs)]
    return _function(text, name, inputs, writer.body(program, inputs))


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
    return _function(text, name, inputs, outputs)
