"""From a final program to code that engines run."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwright.engines import engine_of
from shardwright.plan import Choice, Code, Instruction, Scan, Slot, While
from shardwright.program.node import Compute, Cond, Given, Loop, Node, Pick, Program, Rounds
from shardwright.sharding import Layout, layout_of


def layout(node: Node, index: int = 0) -> Layout:
    """The layout of a node's result."""
    shape, _, sharding, _ = node.types[index]
    assert sharding is not None
    return layout_of(sharding, shape)


def code_of(program: Program, constants: Sequence[Node] | None = None) -> tuple[Code, list[Node]]:
    """The code of a program, whose inputs are the program's and then its constants; and the node of each instruction."""
    slots: dict[Node, tuple[Slot, ...]] = {}
    count = 0
    first = [*program.inputs, *(program.constants if constants is None else constants)]
    lines: list[Instruction] = []
    nodes: list[Node] = []

    def filled(node: Node) -> tuple[Slot, ...]:
        nonlocal count
        made = tuple([Slot(count + at) for at in range(len(node.types))])
        count += len(node.types)
        return made

    for node in first:
        slots[node] = filled(node)
    for node in program.nodes:
        if node in slots or isinstance(node.what, Given):
            continue
        if isinstance(node.what, Pick):
            slots[node] = (slots[node.nodes[0]][node.what.which],)
            continue
        slots[node] = filled(node)
        inputs = tuple(slots[x][0] if isinstance(x, Node) else x for x in node.inputs)
        lines.append(Instruction(_payload(node), inputs, slots[node], node.plan))
        nodes.append(node)
    given, made = (tuple(slots[node][0] for node in some) for some in (first, program.outputs))
    code = Code(given, tuple(lines), made, tuple(node.type.local or layout(node) for node in first))
    return code, nodes


def _payload(node: Node) -> Any:
    what = node.what
    if isinstance(what, Compute):
        return what.local
    if isinstance(what, Cond):
        return Choice(code_of(what.true)[0], code_of(what.false)[0], what.shared, what.captured, what.uniform)
    if isinstance(what, Loop):
        return While(code_of(what.condition)[0], code_of(what.body)[0], what.carried, what.captured, what.uniform)
    if isinstance(what, Rounds):
        tables = tuple(layout(x) for x in node.nodes[what.carried : what.carried + what.tables])
        stacked = tuple((layout(node, at), kind.dtype) for at, kind in enumerate(node.types) if at >= what.carried)
        return Scan(code_of(what.body)[0], what.rounds, what.carried, tables, stacked)
    return what


def compiled(program: Program) -> Callable[..., tuple[Any, ...]]:
    """A function from the data of a program's inputs to a tuple of its outputs' data; constants are read at every call."""
    run = engine_of(program.mesh).compile(code_of(program)[0], program.mesh)
    constants = list(program.constants.items())
    return lambda *data: run(*data, *(value.placed(layout(node)) for node, value in constants))
