"""What a device holds while a program runs: every value from the step that makes it until the last step that reads it.

Each value counts as memory of its own, also where an engine may hold it as a view, except that a regrouped tensor is the memory
of its operand. Arguments and constants belong to the
caller and are held throughout, outputs until the end. A result that nothing reads is freed at once.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from shardwright.plan import Regroup
from shardwright.program.node import Cond, Constant, Input, Loop, Node, Pick, Program, Rounds, Type, programs_in

Value = tuple[Node, int]  # a node, and which of its results


class Memory(NamedTuple):
    """Bytes of the busiest device: the most at a time, and for each node before it runs and at most while it runs."""

    peak: int
    before: list[int]
    during: list[int]


class Lifetimes:
    """Which values are still to be read, as the nodes of a program run one after the other."""

    def __init__(self, program: Program) -> None:
        own = [*program.inputs, *program.constants]
        self.reads: dict[Node, tuple[Value, ...]] = {}
        self.makes: dict[Node, tuple[Value, ...]] = {}
        self.left: dict[Value, int] = {}
        self.bytes: dict[Value, int] = {}
        sizes: dict[Type, int] = {}  # programs have few types
        for node in program.nodes:
            idle = isinstance(node.what, Pick | Regroup | Input | Constant)
            reads = self.reads[node] = () if idle else tuple({_value(x) for x in node.nodes})
            makes = self.makes[node] = () if idle else tuple([(node, which) for which in range(len(node.types))])
            for value, kind in zip(makes, node.types, strict=False):
                size = sizes.get(kind)
                if size is None:
                    size = sizes[kind] = kind.local_bytes
                self.left[value], self.bytes[value] = 0, size
            for value in reads:
                self.left[value] = self.left.get(value, 0) + 1
        for node in {*own, *program.outputs}:  # never read for the last time
            self.left[_value(node)] = self.left.get(_value(node), 0) + 1
        for node in own:
            size = sizes.get(node.type)
            if size is None:
                size = sizes[node.type] = node.type.local_bytes
            self.bytes[node, 0] = size
        self.at_first = sum(self.bytes[node, 0] for node in {*own})

    def growth(self, node: Node) -> int:
        """By how much more is held after a node than before."""
        total = 0
        for value in self.makes[node]:
            if self.left[value]:
                total += self.bytes[value]
        for value in self.reads[node]:
            if self.left[value] == 1:
                total -= self.bytes[value]
        return total

    def run(self, node: Node) -> None:
        """The node has read its operands."""
        for value in self.reads[node]:
            self.left[value] -= 1


def peak_bytes(program: Program, order: Sequence[Node]) -> Memory:
    """What a device holds as the nodes run in an order; those of loops and choices include what their programs hold."""
    lives = Lifetimes(program)
    held = lives.at_first
    before, during = [], []
    for node in order:
        before.append(held)
        during.append(held + max(sum([lives.bytes[value] for value in lives.makes[node]]), _inside(node.what)))
        held += lives.growth(node)
        lives.run(node)
    return Memory(max(during, default=held), before, during)


def beside(what: Any, part: Program) -> int:
    """What a device holds beside the values of a program inside a loop or a choice, more than before the loop or choice.

    The program's inputs are values of its own: what it captures was held before, so it must not count twice. What a loop
    carries is held twice from the second round on: as it came in, and as the round before left it. A scan also holds the rows
    that it collected.
    """
    if isinstance(what, Cond):
        return -_bytes(part.inputs)
    if isinstance(what, Loop):
        return -_bytes(part.inputs[what.carried :])
    assert isinstance(what, Rounds), what
    again = what.carried if what.rounds < 2 else 0
    collected = max(what.rounds - 1, 0) * _bytes(part.outputs[what.carried :])
    return collected - _bytes(part.inputs[:again]) - _bytes(part.inputs[what.carried + what.tables :])


def _inside(what: Any) -> int:
    """The most that a loop or a choice holds at a time, more than before it; 0 for other nodes."""
    if not isinstance(what, Cond | Loop | Rounds) or (isinstance(what, Rounds) and not what.rounds):
        return 0
    most = max(peak_bytes(part, part.nodes).peak + beside(what, part) for part in programs_in(what).values())
    if isinstance(what, Rounds):  # at the end rows are collected and stacked beside the last state and row
        rows = _bytes(what.body.inputs[what.carried : what.carried + what.tables])
        state, collected = (
            _bytes(some) for some in (what.body.outputs[: what.carried], what.body.outputs[what.carried :])
        )
        most = max(most, state + rows + 2 * what.rounds * collected)
    return most


def _value(node: Node) -> Value:
    """What a node stands for as an operand; a pick is a result of the node before it, a regrouped tensor that tensor."""
    while isinstance(node.what, Regroup):
        (node,) = node.nodes
    return (node.nodes[0], node.what.which) if isinstance(node.what, Pick) else (node, 0)


def _bytes(nodes: Sequence[Node]) -> int:
    return sum(node.type.local_bytes for node in nodes)
