"""`Node` and `Program`: a computation as a graph of steps, each made once, printed so that people can read it.

A node's payload says what it is: an input, a constant, an operation that is not partitioned yet, a local computation, a move
or reduce step, a loop or a choice that holds programs of its own. Payloads are data: any pass can open and rebuild them.
"""

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from shardwright.eager import Held
from shardwright.engines import engine_of
from shardwright.errors import ProgramError
from shardwright.mesh import Mesh
from shardwright.ops import NO_ATTRS, Attrs, Rule
from shardwright.plan import (
    Each,
    Fetch,
    FromLocal,
    Fused,
    Local,
    LocalShapes,
    LocalStep,
    Move,
    OperationPlan,
    Reduce,
    Regroup,
    SendRecv,
    Step,
    ToLocal,
)
from shardwright.sharding import Sharding, describe, dtype_name, layout_of

STAGES = ("written", "traced", "propagated", "partitioned", "final")


class Type(NamedTuple):
    """What is known of a value: its shape, its dtype, and once that is settled its sharding."""

    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"
    sharding: Sharding | None = None
    local: LocalShapes | None = None  # of a tensor per device; then `shape` has the largest sizes

    def __str__(self) -> str:
        if self.local is not None:
            shapes = list(dict.fromkeys(self.local.shapes))
            shown = " or ".join(f"{dtype_name(self.dtype)}[{','.join(map(str, shape))}]" for shape in shapes[:3])
            return f"{shown}{' or …' if len(shapes) > 3 else ''} per device"
        if self.sharding is None:
            return f"{dtype_name(self.dtype)}[{','.join(map(str, self.shape))}]"
        return describe(self.sharding, self.shape, self.dtype)

    @property
    def local_bytes(self) -> int:
        """Bytes of the largest shard, its halo included."""
        if self.local is not None:
            return math.prod(self.shape) * self.dtype.itemsize
        assert self.sharding is not None
        if not self.sharding.halo:
            return self.sharding.local_size(self.shape) * self.dtype.itemsize
        return math.prod(layout_of(self.sharding, self.shape).local_shape) * self.dtype.itemsize


# -- payloads -------------------------------------------------------------------------------------------------------------


class Input(NamedTuple):
    """An argument; its number tells inputs of one type apart."""

    number: Any
    name: str = "input"


class Constant(NamedTuple):
    """An array from outside, read anew at every call; its number tells constants of one type apart."""

    number: int
    name: str = "constant"


@dataclass(frozen=True, eq=False)
class Apply:
    """An operation of the table, not partitioned yet."""

    name: str
    attrs: Attrs
    rule: Rule

    @property
    def key(self) -> Any:
        """What is equal for equal operations."""
        return self.name, self.attrs.key


class Constrain(NamedTuple):
    """From here on the value has this sharding."""

    sharding: Sharding
    why: str
    name: str = "constraint"


class Settle(NamedTuple):
    """The value with its reduction done, if one is left to do."""

    name: str = "reduced"


class Pick(NamedTuple):
    """One result of a node with several."""

    which: int
    name: str = "pick"


@dataclass(frozen=True, eq=False)
class Compute:
    """A kernel on shards."""

    local: Local
    attrs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.local.name

    @cached_property
    def key(self) -> Any:
        """What is equal for equal computations."""
        return self.name, tuple(self.attrs.items())


@dataclass(frozen=True, eq=False)
class Cond:
    """A choice between two programs. Operands: the condition, what both read, what the first captures, what the second does.

    The condition is one boolean that all devices hold, or one of each device's own. If it is not `uniform`, devices may take
    different branches, and then no collective is between devices that do.
    """

    true: "Program"
    false: "Program"
    shared: int
    captured: int
    uniform: bool = True
    name: str = "cond"


@dataclass(frozen=True, eq=False)
class Loop:
    """A body that runs while a condition holds. Operands: what is carried, what the body captures, what the condition does.

    If it is not `uniform`, devices may leave it after different numbers of rounds; then no collective is between such devices.
    """

    condition: "Program"
    body: "Program"
    carried: int
    captured: int
    names: tuple[str, ...]
    uniform: bool = True
    name: str = "while_loop"


@dataclass(frozen=True, eq=False)
class Rounds:
    """A body that runs once a row of tables. Operands: what is carried, the tables, what the body captures."""

    body: "Program"
    rounds: int
    carried: int
    tables: int
    names: tuple[str, ...]
    name: str = "scan"


Payload = (
    Input | Constant | Apply | Constrain | Settle | Pick | Compute | Step | Fused | Cond | Loop | Rounds
    | ToLocal | FromLocal | Each | LocalStep
)  # fmt: skip


# Named here, since a union that is written out where it is used is made anew every time.
Given = Input | Constant
Control = Cond | Loop | Rounds
Communicates = Step | Fused | LocalStep
_Operation = Apply | Compute
_Moving = Move | Reduce
_Unshared = Given | Pick


def programs_in(what: Any) -> dict[str, "Program"]:
    """The programs of a loop or a choice, by name."""
    if isinstance(what, Cond):
        return {"true": what.true, "false": what.false}
    if isinstance(what, Loop):
        return {"condition": what.condition, "body": what.body}
    return {"body": what.body} if isinstance(what, Rounds) else {}


def short_source(source: str) -> str:
    """A source line without the folders of its file.

    >>> short_source("/home/me/train.py:12"), short_source("<stdin>:1")
    ('train.py:12', '<stdin>:1')
    """
    return source if source.startswith("<") else os.path.basename(source)


def noted(text: str, source: str) -> str:
    """A note for `explain`, with its source line as the table shows it."""
    return f"{text} ({short_source(source)})" if source else text


def is_move(what: Any) -> bool:
    """Whether a payload changes the sharding of a value and nothing else."""
    return isinstance(what, _Moving) and not isinstance(what, Fetch)


def last_move(node: "Node") -> "tuple[Node, ...]":
    """The nodes of the move that gave a value, the last one first; () if none did. Steps between a regrouping and its inverse
    are one move."""
    if is_move(node.what):
        return (node,)
    nodes: list[Node] = []
    while isinstance(node.what, Regroup) or (nodes and is_move(node.what)):
        nodes.append(node)
        if isinstance(node.what, Regroup) and node.what.shape == nodes[0].type.shape:
            return tuple(nodes)
        (node,) = node.nodes
    return ()


class Node:
    """One step: its payload, its operands (nodes, or Python scalars), the types of its results, the source line.

    `plan` is that of the operation that the node is a part of; only the last node of an operation has it.
    """

    __slots__ = ("inputs", "nodes", "number", "plan", "source", "types", "what")

    def __init__(
        self,
        number: int,
        what: Any,
        inputs: tuple[Any, ...],
        types: tuple[Type, ...],
        source: str,
        plan: OperationPlan | None = None,
    ) -> None:
        self.number, self.what, self.inputs = number, what, inputs
        self.types, self.source, self.plan = types, source, plan
        nodes = [x for x in inputs if isinstance(x, Node)]
        self.nodes: tuple[Node, ...] = (
            inputs if len(nodes) == len(inputs) else tuple(nodes)
        )  # the operands that are nodes

    @property
    def op(self) -> str:
        """The name of the operation, step or payload."""
        name: str = self.what.name
        return name

    @property
    def title(self) -> str:
        """The name that users know the operation by."""
        name: str = self.attrs.get("name", self.op)
        return name

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes of an operation, or what there is to say of a step."""
        what = self.what
        if isinstance(what, _Operation):
            return what.attrs
        if isinstance(what, Communicates):
            return {"over": what.axes}
        if isinstance(what, Pick):
            return {"index": what.which}
        return {"sharding": what.sharding, "why": what.why} if isinstance(what, Constrain) else NO_ATTRS

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
        self.asked: list[Node] = []  # every call, those for a node that is there already too
        self.shared = 0  # operations that were asked for again

    def add(
        self,
        what: Any,
        inputs: Sequence[Any],
        types: Sequence[Type],
        source: str = "",
        plan: OperationPlan | None = None,
    ) -> Node:
        """The node of a payload on operands."""
        kinds = tuple(types)
        key = (
            getattr(what, "key", what),
            kinds,
            *[id(x) if isinstance(x, Node) else (type(x), repr(x)) for x in inputs],
        )
        node = self._made.get(key)
        if node is None:
            node = Node(self._count, what, tuple(inputs), kinds, source, plan)
            self._count += 1
            self._made[key] = node
        elif not isinstance(what, _Unshared):
            self.shared += 1
        self.asked.append(node)
        return node

    def input(self, number: int, kind: Type) -> Node:
        """The node of an argument; each is asked for once, so there is nothing to look up."""
        node = Node(self._count, Input(number), (), (kind,), "")
        self._count += 1
        return node

    def pick(self, node: Node, index: int) -> Node:
        """One result of a node with several."""
        if len(node.types) == 1:
            return node
        return self.add(Pick(index), (node,), (node.types[index],), node.source)

    @property
    def made(self) -> Iterable[Node]:
        """Every node but the inputs."""
        return self._made.values()


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
        effects: Sequence[Node] = (),
    ) -> None:
        self.mesh = mesh
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.names = tuple(names) or tuple(f"input {i}" for i in range(len(self.inputs)))
        self.effects = tuple(effects)  # nodes that stay though no output needs them
        self.nodes = tuple(order) if order is not None else reachable([*self.outputs, *self.effects], self.inputs)
        used = set(self.nodes)
        self.constants = {node: value for node, value in (constants or {}).items() if node in used}
        self.stages: dict[str, Program] = {}
        self.propagated: Callable[[], Program] | None = None  # makes the stage that only people look at
        self.notes: list[str] = []  # what was decided on the way, for explain
        self.origins: dict[Node, dict[str, str]] = {}  # for each value where its axes come from
        self.parameters: frozenset[int] = frozenset()  # the inputs that are weights, by rule or by name
        self.implicit: frozenset[tuple[str, tuple[str, ...], str]] = frozenset()  # gathers unasked: step, axes, source
        self.written: Written | None = None  # what was asked for while it was traced
        self.shared = self.dead = 0  # of what was traced: operations asked for again, and those that no output needs

    def like(self, inputs: Sequence[Node], outputs: Sequence[Node], made: Mapping[Node, Node]) -> "Program":
        """The same program with its nodes replaced."""
        constants = {made[node]: value for node, value in self.constants.items()}
        effects = [made[node] for node in self.effects]
        result = Program(self.mesh, inputs, outputs, self.names, constants, effects=effects)
        result.take_facts(self)
        result.origins = {made[node]: axes for node, axes in self.origins.items() if node in made}
        return result

    def take_facts(self, other: "Program") -> None:
        """What is known of another program that has the same inputs."""
        self.notes, self.shared, self.dead = other.notes, other.shared, other.dead
        self.parameters, self.implicit = other.parameters, other.implicit

    @property
    def reads(self) -> Counter[Node]:
        """How often each node is read by others."""
        return Counter([operand for node in self.nodes for operand in node.nodes])

    @property
    def users(self) -> dict[Node, list[Node]]:
        """For each node those that read it, each as often as it does."""
        result: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for operand in node.nodes:
                result[operand].append(node)
        return result

    def show(self, stage: str = "final") -> str:
        """The program as text: one line a node, at one of the stages written, traced, propagated, partitioned, final.

        `written` has every operation as it was asked for, those that are repeated or that no output needs too, and counts
        them; from `traced` on they are gone.
        """
        if stage not in STAGES:
            raise ProgramError(f"There is no stage {stage!r}. Use one of {', '.join(STAGES)}.")
        if stage == "written":
            return "\n".join(_written(self.stages.get("traced", self)))
        program = self.stages.get(stage, self)
        if stage == "propagated" and self.propagated is not None:
            program = self.propagated()
        return "\n".join(program.lines(sources=True))

    def lines(self, sources: bool = False, full: bool = False) -> list[str]:
        """One line a node, numbered by place; `full` writes attributes out and has the values of constants."""
        place = {node: i for i, node in enumerate(self.nodes)}
        named = dict(zip(self.inputs, self.names, strict=True))
        lines = []
        for node in self.nodes:
            types = ", ".join(map(str, node.types))
            text = f"%{place[node]}: {types} = {_spelled(node, place, named, full)}"
            if full and node in self.constants:
                text += f" {_digest(self.constants[node])}"
            lines.append(f"{text:<96} {node.source}".rstrip() if sources else text)
            for name, inner in programs_in(node.what).items():
                lines += [f"    {name}:", *(f"    {line}" for line in inner.lines(sources, full))]
        lines.append(f"return {', '.join(f'%{place[node]}' for node in self.outputs)}")
        return lines

    @property
    def fingerprint(self) -> tuple[str, ...]:
        """The steps without source lines: what every process of a run must have alike, attributes in full."""
        return tuple(self.lines(full=True))

    def __str__(self) -> str:
        return self.show()


class Written(NamedTuple):
    """What a function asked for while it was traced, in its order."""

    nodes: tuple[Node, ...]  # a node as often as it was asked for


def is_effect(node: Node) -> bool:
    """Whether a node stays though no output needs it: transfers between devices are not pure."""
    return isinstance(node.what, SendRecv) or any(part.effects for part in programs_in(node.what).values())


def _written(program: Program) -> list[str]:
    """The operations of a traced function as they were asked for; what is repeated or not needed says so."""
    asked = [*program.inputs, *(program.written.nodes if program.written is not None else ())]
    named = dict(zip(program.inputs, program.names, strict=True))
    needed, place, lines = set(program.nodes), {}, []  # type: ignore[var-annotated]
    for node in asked:
        again = node in place and not isinstance(node.what, Input | Constant | Pick)
        if node in place and not again:
            continue
        place.setdefault(node, len(place))
        why = "asked for again" if again else "" if node in needed else "no output needs it"
        text = f"%{place[node]}: {', '.join(map(str, node.types))} = {_spelled(node, place, named, False)}"
        lines.append(f"{text:<96} {f'({why}) ' if why else ''}{node.source}".rstrip())
    lines.append(f"return {', '.join(f'%{place[node]}' for node in program.outputs)}")
    return [*lines, f"spared: {program.shared} asked for again, {program.dead} that no output needs"]


def _digest(value: Any) -> str:
    """What tells a constant's value from others."""
    if isinstance(value, Held) and engine_of(value.mesh).processes > 1:
        return "as made by earlier calls"  # which processes compare: reading it here would gather it
    return hashlib.sha256(np.ascontiguousarray(np.asarray(value)).tobytes()).hexdigest()[:16]


def _spelled(node: Node, place: Mapping[Node, int], named: Mapping[Node, str], full: bool) -> str:
    if node in named:
        return f"input {named[node]}" if not named[node].startswith("input") else named[node]
    operands = [f"%{place[x]}" if isinstance(x, Node) else repr(x) for x in node.inputs]
    shown = [f"{key}={_value(value, full)}" for key, value in node.attrs.items() if key != "name"]
    if full and isinstance(node.what, Fetch):
        shown.append(f"rows={node.what.maps!r}, cuts={node.what.cuts!r}, fill={node.what.fill!r}")
    if full and isinstance(node.what, LocalStep):
        shown.append(repr(node.what.collective))
    if full and isinstance(node.what, Each) and node.what.told:
        shown.append(node.what.told)
    if full and isinstance(node.what, Rounds):
        shown.append(f"rounds={node.what.rounds}")
    return f"{node.title}({', '.join([*operands, *shown])})"


def _value(value: Any, full: bool) -> str:
    text = value if isinstance(value, str) else repr(value.spec if isinstance(value, Sharding) and not full else value)
    return text if full or len(text) <= 40 else f"{text[:37]}…"


def reachable(outputs: Iterable[Node], inputs: Iterable[Node] = ()) -> tuple[Node, ...]:
    """The nodes that outputs need, and all inputs, in the order they were made: operands before users."""
    seen: set[Node] = set(inputs)  # which have no operands
    stack = [*outputs]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.nodes)
    return tuple(sorted(seen, key=attrgetter("number")))


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
