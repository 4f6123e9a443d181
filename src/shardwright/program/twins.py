"""Values of a traced program that may be one value once it is partitioned: a constraint may leave a value where it is, and then
what is computed from both alike is computed, and moved, once."""

import heapq
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from shardwright.program.node import Apply, Constrain, Node, Pick, Program, Settle


class Shared(NamedTuple):
    """What may cost nothing, since something else may do it: operations, and moves of values."""

    operations: frozenset[Node] = frozenset()
    values: frozenset[Node] = frozenset()


class Twins(NamedTuple):
    """What may be one. `of` and `beside` are pairs of which a plan may choose whether they are: all there are if `exact`."""

    of: Mapping[Node, Node]  # for a constraint what it constrains; for an operation, or a result of one, another one
    beside: Mapping[Node, Sequence[Node | None]]  # for what is constrained so the other readers; None is an output
    order: Sequence[Node]  # all nodes, each after what it reads and what it may be one with
    exact: bool
    shared: Shared  # what a bound leaves out where that is not all


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


def twins(program: Program) -> Twins:
    """What may be one in a program. A value that only a constraint reads is that constraint's; where that is so of all, nothing
    may be: what is computed alike from one node is one node."""
    reads = program.reads
    constrained = [node.nodes[0] for node in program.nodes if isinstance(node.what, Constrain | Settle)]
    if not any(reads[x] > 1 or x in program.outputs for x in constrained):
        return Twins({}, {}, program.nodes, True, Shared())
    alike: dict[Node, list[Node]] = {}
    same = same_values(program, {})
    for node, first in same.items():
        alike.setdefault(first, []).append(node)
    readers: dict[Node, list[Node | None]] = {x: [None] for x in program.outputs}
    for node in program.nodes:
        if not isinstance(node.what, Constrain | Settle):
            for x in dict.fromkeys(node.nodes):
                readers.setdefault(x, []).append(node)
    of, beside, operations, values = dict[Node, Node](), dict[Node, list[Node | None]](), set[Node](), set[Node]()
    exact = True
    for some in alike.values():
        made = [node for node in some if not isinstance(node.what, Constrain | Settle)]
        read = [node for node in some if node in readers]
        if len(made) < 2 and len(read) < 2:
            continue
        pair = _pair(made, [node for node in some if node not in made], of, readers)
        exact = exact and pair is not None
        if pair is not None:
            of[pair[0]] = pair[1]
            if len(made) < 2:
                beside[pair[1]] = readers[pair[1]]
        operations.update(made[1:])
        values.update(set(some) - {max(read or some, key=lambda node: len(readers.get(node, ())))})
    for node in program.nodes:
        several = len({same[x] for x in node.nodes}) < len(set(node.nodes))
        pairs = [(x, y) for x in node.nodes for y in node.nodes if several and x is not y and same[x] is same[y]]
        exact = exact and all(of.get(x) is y or of.get(y) is x for x, y in pairs)
    return Twins(of, beside, _ordered(program, of), exact, Shared(frozenset(operations), frozenset(values)))


def _pair(
    made: Sequence[Node], constraints: Sequence[Node], of: Mapping[Node, Node], read: Container[Node]
) -> tuple[Node, Node] | None:
    """Two nodes, of which the first may be the second; None if there are more, or no plan could choose it."""
    if len(made) == 1:
        (first,), left = made, list(constraints)
        while (
            first not in read and [node.nodes[0] for node in left].count(first) == 1
        ):  # then that constraint is the value
            first = next(node for node in left if node.nodes[0] is first)
            left.remove(first)
        return (left[0], first) if len(left) == 1 and first in read else None
    if len(made) != 2 or constraints:
        return None
    for node, other in (made, made[::-1]):
        known = isinstance(node.what, Apply | Pick) and node.type.local is None
        if known and all(x is y or of.get(x) is y for x, y in zip(node.nodes, other.nodes, strict=True)):
            return node, other
    return None


def _ordered(program: Program, of: Mapping[Node, Node]) -> Sequence[Node]:
    """All nodes, each after what it reads and what it may be one with, else as they were."""
    number = {node: at for at, node in enumerate(program.nodes)}
    waits, users = dict[Node, int](), dict[Node, list[Node]]()
    for node in program.nodes:
        before = {*node.nodes, *([of[node]] if node in of else [])}
        waits[node] = len(before)
        for x in before:
            users.setdefault(x, []).append(node)
    ready = [at for node, at in number.items() if not waits[node]]
    found = []
    while ready:
        node = program.nodes[heapq.heappop(ready)]
        found.append(node)
        for user in users.get(node, ()):
            waits[user] -= 1
            if not waits[user]:
                heapq.heappush(ready, number[user])
    return found
