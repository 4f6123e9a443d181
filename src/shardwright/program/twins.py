"""Values of a traced program that may be one value once it is partitioned: a constraint may leave a value where it is, and then
what is computed from both alike is computed, and moved, once."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from shardwright.program.node import Constrain, Node, Program, Settle


class Shared(NamedTuple):
    """What may cost nothing, since something else may do it: operations, and moves of values."""

    operations: frozenset[Node] = frozenset()
    values: frozenset[Node] = frozenset()


def same_values(program: Program, aliases: Mapping[Node, Node]) -> dict[Node, Node]:
    """For each node the first that may be the same value: `aliases` and constraints may leave a value where it is, and then
    what is computed from both alike is one."""
    found: dict[Node, Node] = {}
    known: dict[object, Node] = {}
    for node in program.nodes:
        if isinstance(node.what, Constrain | Settle):
            found[node] = found[node.nodes[0]]
        elif node in aliases:
            found[node] = found[aliases[node]]
        elif not node.nodes:
            found[node] = node
        else:
            inputs = [id(found[x]) if isinstance(x, Node) else (type(x), repr(x)) for x in node.inputs]
            found[node] = known.setdefault((getattr(node.what, "key", node.what), node.types, *inputs), node)
    return found


def shared(program: Program) -> Shared:
    """What is left out of a bound: of values that may be one all but one of the operations that make it, and the moves of all
    but the one with the most readers. A value that only a constraint reads is that constraint's. Where that is so of all there
    are none: what is computed alike from one node is one node."""
    reads = program.reads
    constrained = [node.nodes[0] for node in program.nodes if isinstance(node.what, Constrain | Settle)]
    if not any(reads[x] > 1 or x in program.outputs for x in constrained):
        return Shared()
    alike: dict[Node, list[Node]] = {}
    for node, first in same_values(program, {}).items():
        alike.setdefault(first, []).append(node)
    readers = Counter(program.outputs)
    for node in program.nodes:
        if not isinstance(node.what, Constrain | Settle):
            readers.update(node.nodes)
    operations, values = set[Node](), set[Node]()
    for some in alike.values():
        made = [node for node in some if not isinstance(node.what, Constrain | Settle)]
        read = [node for node in some if readers[node]]
        if len(made) > 1 or len(read) > 1:
            operations.update(made[1:])
            values.update(set(some) - {max(read or some, key=lambda node: readers[node])})
    return Shared(frozenset(operations), frozenset(values))
