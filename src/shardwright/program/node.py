"""`Node` and `Program`: a computation as a graph of pure steps, each made once, printed so that people can read it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardwright.errors import ProgramError
from shardwright.lowering import NO_ATTRS, Attrs
from shardwright.mesh import Mesh
from shardwright.sharding import Sharding, describe, dtype_name

STAGES = ("traced", "propagated", "partitioned", "final")


class Type(NamedTuple):
    """What is known of a value: its shape, its dtype, and once that is settled its sharding."""

    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"
    sharding: Sharding | None = None

    def __str__(self) -> str:
        if self.sharding is None:
            return f"{dtype_name(self.dtype)}[{','.join(map(str, self.shape))}]"
        return describe(self.sharding, self.shape, self.dtype)

    @property
    def local_bytes(self) -> int:
        """Bytes of the largest shard."""
        assert self.sharding is not None
        return self.sharding.local_size(self.shape) * self.dtype.itemsize


class Node:
    """One step: an operation, its operands (nodes, or numbers), its attributes, the types of its results.

    `how` is what running it needs: the plan of an operation, the step of a collective, the programs of a loop.
    """

    __slots__ = ("attrs", "how", "inputs", "nodes", "number", "op", "source", "types")

    def __init__(
        self,
        number: int,
        op: str,
        inputs: tuple[Any, ...],
        attrs: Attrs,
        types: tuple[Type, ...],
        source: str,
        how: Any,
    ) -> None:
        self.number, self.op, self.inputs, self.attrs = number, op, inputs, attrs
        self.types, self.source, self.how = types, source, how
        self.nodes: tuple[Node, ...] = tuple(x for x in inputs if isinstance(x, Node))  # the operands that are nodes

    @property
    def type(self) -> Type:
        """The type of the only result."""
        return self.types[0]

    def __repr__(self) -> str:
        return f"%{self.number} = {self.op}: {', '.join(map(str, self.types))}"


class Graph:
    """Makes nodes, each once: the same operation on the same operands is the same node."""

    def __init__(self) -> None:
        self._made: dict[Any, Node] = {}
        self._count = 0

    def add(
        self,
        op: str,
        inputs: Sequence[Any],
        types: Sequence[Type],
        attrs: Attrs = NO_ATTRS,
        source: str = "",
        how: Any = None,
        *,
        key: Any = None,
    ) -> Node:
        """The node of an operation; `key` tells nodes apart that look alike, such as inputs."""
        operands = tuple(id(x) if isinstance(x, Node) else (type(x), repr(x)) for x in inputs)
        full = (op, operands, attrs.key, tuple(t.sharding for t in types), key)
        node = self._made.get(full)
        if node is None:
            node = Node(self._count, op, tuple(inputs), attrs, tuple(types), source, how)
            self._count += 1
            self._made[full] = node
        return node

    def pick(self, node: Node, index: int) -> Node:
        """One result of a node with several."""
        if len(node.types) == 1:
            return node
        return self.add("pick", (node,), (node.types[index],), Attrs(index=index), node.source)


class Program:
    """A computation on a mesh: inputs, outputs, and the nodes between them in an order in which they can run."""

    def __init__(
        self,
        mesh: Mesh,
        inputs: Sequence[Node],
        outputs: Sequence[Node],
        names: Sequence[str] = (),
        constants: Mapping[Node, Any] | None = None,
        order: Sequence[Node] | None = None,
    ) -> None:
        self.mesh = mesh
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.names = tuple(names) or tuple(f"input {i}" for i in range(len(self.inputs)))
        self.nodes = tuple(order) if order is not None else reachable(self.outputs, self.inputs)
        used = set(self.nodes)
        self.constants = {node: value for node, value in (constants or {}).items() if node in used}
        self.stages: dict[str, Program] = {}
        self.notes: list[str] = []  # what was decided on the way, for explain
        self.origins: dict[Node, dict[str, str]] = {}  # for each value where its axes come from

    @property
    def users(self) -> dict[Node, list[Node]]:
        """For each node those that read it, each as often as it does."""
        result: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for operand in node.nodes:
                result[operand].append(node)
        return result

    def show(self, stage: str = "final") -> str:
        """The program as text: one line a node, at one of the stages traced, propagated, partitioned, final."""
        if stage not in STAGES:
            raise ProgramError(f"There is no stage {stage!r}. Use one of {', '.join(STAGES)}.")
        program = self.stages.get(stage, self)
        return "\n".join(program.lines(sources=True))

    def lines(self, sources: bool = False) -> list[str]:
        """One line a node, numbered by place."""
        place = {node: i for i, node in enumerate(self.nodes)}
        named = dict(zip(self.inputs, self.names, strict=True))
        lines = []
        for node in self.nodes:
            types = ", ".join(map(str, node.types))
            text = f"%{place[node]}: {types} = {_spelled(node, place, named)}"
            lines.append(f"{text:<96} {node.source}".rstrip() if sources else text)
            for name, inner in _inner(node):
                lines += [f"    {name}:", *(f"    {line}" for line in inner.lines(sources))]
        lines.append(f"return {', '.join(f'%{place[node]}' for node in self.outputs)}")
        return lines

    @property
    def fingerprint(self) -> tuple[str, ...]:
        """The steps without source lines: what every process of a run must have alike."""
        return tuple(self.lines())

    def __str__(self) -> str:
        return self.show()


def _spelled(node: Node, place: Mapping[Node, int], named: Mapping[Node, str]) -> str:
    if node in named:
        return f"input {named[node]}" if not named[node].startswith("input") else named[node]
    operands = [f"%{place[x]}" if isinstance(x, Node) else repr(x) for x in node.inputs]
    shown = [f"{key}={_short(value)}" for key, value in node.attrs.items() if key not in ("result", "name", "lower")]
    name = node.attrs.get("name", node.op)
    return f"{name}({', '.join([*operands, *shown])})"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value.spec if isinstance(value, Sharding) else value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def _inner(node: Node) -> list[tuple[str, "Program"]]:
    """The programs inside a loop or a choice."""
    return [(k, v) for k, v in node.how.items() if isinstance(v, Program)] if isinstance(node.how, dict) else []


def reachable(outputs: Iterable[Node], inputs: Iterable[Node] = ()) -> tuple[Node, ...]:
    """The nodes that outputs need, and all inputs, in the order they were made: operands before users."""
    seen: set[Node] = set(inputs)
    stack = [*outputs]
    while stack:
        node = stack.pop()
        if node not in seen or node in inputs:
            seen.add(node)
            stack += [x for x in node.nodes if x not in seen]
    return tuple(sorted(seen, key=lambda node: node.number))


def agree(fingerprints: Sequence[Sequence[str]]) -> None:
    """Refuse to run unless every process has the same program; names the first step that differs.

    >>> agree([("%0 = input", "return %0"), ("%0 = input", "return %0")])
    """
    for process, steps in enumerate(fingerprints[1:], 1):
        if tuple(steps) == tuple(fingerprints[0]):
            continue
        at = next(
            (i for i, (a, b) in enumerate(zip(fingerprints[0], steps, strict=False)) if a != b),
            min(len(fingerprints[0]), len(steps)),
        )
        mine, other = (some[at] if at < len(some) else "nothing more" for some in (fingerprints[0], steps))
        raise ProgramError(
            f"The processes hold different programs. Step {at} of process 0 is\n  {mine}\nand of process {process}\n  {other}\n"
            f"Run the same function with arguments of the same shapes and shardings in every process."
        )
