"""What a device holds while a program runs: every value from the step that makes it until the last step that reads it.

Each value counts as memory of its own, also where an engine may hold it as a view, except that a regrouped tensor is the memory
of its operand. Arguments and constants belong to the
caller and are held throughout, outputs until the end. A result that nothing reads is freed at once. Kernels that work block by
block need a few blocks beside their results (`SCRATCH`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from shardwright.plan import Regroup
from shardwright.program.node import Compute, Cond, Control, Given, Loop, Node, Pick, Program, Rounds, Type, programs_in


class Memory(NamedTuple):
    """Bytes of the busiest device: the most at a time, and for each node before it runs and at most while it runs."""

    peak: int
    before: list[int]
    during: list[int]


class Held(NamedTuple):
    """A value that a device holds: its node, its type and bytes."""

    node: Node
    type: Type
    bytes: int


class Peak(NamedTuple):
    """What a device holds at most, by kind, and the node that runs then."""

    parameters: int
    inputs: int
    activations: int  # made by earlier steps and read later
    temporaries: int  # made by the step itself
    outputs: int
    node: Node | None
    values: tuple[Held, ...]  # that are held then, the largest first

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.inputs + self.activations + self.temporaries + self.outputs


class Lifetimes:
    """Which values are still to be read, as the nodes of a program run one after the other. Values are numbered."""

    def __init__(self, program: Program) -> None:
        first: dict[Node, int] = {}  # the number of a node's first result
        sizes: dict[Type, int] = {}  # programs have few types
        self.bytes: list[int] = []
        self.reads: dict[Node, Sequence[int]] = {}
        self.makes: dict[Node, Sequence[int]] = {}
        for node in program.nodes:
            self.reads[node] = self.makes[node] = ()
            if isinstance(node.what, Pick):
                first[node] = first[node.nodes[0]] + node.what.which
                continue
            if isinstance(node.what, Regroup):
                first[node] = first[node.nodes[0]]
                continue
            start = first[node] = len(self.bytes)
            for kind in node.types:
                size = sizes.get(kind)
                if size is None:
                    size = sizes[kind] = kind.local_bytes
                self.bytes.append(size)
            if not isinstance(node.what, Given):
                self.reads[node] = tuple({first[x] for x in node.nodes})
                self.makes[node] = range(start, len(self.bytes))
        own = {*program.inputs, *program.constants}
        self._counts = [0] * len(self.bytes)
        for reads in self.reads.values():
            for value in reads:
                self._counts[value] += 1
        for node in {*own, *program.outputs}:  # never read for the last time
            self._counts[first[node]] += 1
        self._at_first = sum([self.bytes[first[node]] for node in own])
        self._program, self._first = program, first
        self.restart()

    def restart(self) -> None:
        """Nothing has run yet."""
        self.left = self._counts.copy()

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

    def memory(self, order: Sequence[Node]) -> Memory:
        """What a device holds as all nodes run in an order."""
        self.restart()
        held, sizes = self._at_first, self.bytes
        before, during = [], []
        for node in order:
            before.append(held)
            made = 0
            for value in self.makes[node]:
                made += sizes[value]
            if isinstance(node.what, Compute):
                made += node.what.local.scratch
            during.append(held + (max(made, _inside(node.what)) if isinstance(node.what, Control) else made))
            held += self.growth(node)
            self.run(node)
        return Memory(max(during, default=held), before, during)

    def peak(self, memory: Memory) -> Peak:
        """What a device holds when it holds most, by kind, as the nodes of the program run in their order."""
        program, first = self._program, self._first
        at = max(range(len(memory.during)), key=memory.during.__getitem__, default=-1)
        self.restart()
        for node in program.nodes[: max(at, 0)]:
            self.run(node)
        own = {first[node] for node in (*program.inputs, *program.constants)}
        parameters = {first[node] for i, node in enumerate(program.inputs) if i in program.parameters}
        parameters |= {first[node] for node in program.constants}
        outputs = {first[node] for node in program.outputs} - own
        live = {first[node]: node for node in (*program.inputs, *program.constants)}
        for node in program.nodes[: max(at, 0)]:
            live |= {value: node for value in self.makes[node] if self.left[value]}
        held = [Held(node, node.types[value - first[node]], self.bytes[value]) for value, node in live.items()]
        kinds = {"parameters": parameters, "inputs": own - parameters, "outputs": outputs & set(live)}
        sums = {name: sum(self.bytes[value] for value in values) for name, values in kinds.items()}
        before = memory.before[at] if at >= 0 else sum(sums.values())
        return Peak(
            sums["parameters"],
            sums["inputs"],
            before - sum(sums.values()),
            (memory.during[at] - before) if at >= 0 else 0,
            sums["outputs"],
            program.nodes[at] if at >= 0 else None,
            tuple(sorted(held, key=lambda value: -value.bytes)),
        )


def peak_bytes(program: Program, order: Sequence[Node]) -> Memory:
    """What a device holds as the nodes run in an order; those of loops and choices include what their programs hold."""
    return Lifetimes(program).memory(order)


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
    """The most that a loop or a choice holds at a time, more than before it."""
    if isinstance(what, Rounds) and not what.rounds:
        return 0
    most = max(peak_bytes(part, part.nodes).peak + beside(what, part) for part in programs_in(what).values())
    if isinstance(what, Rounds):  # at the end rows are collected and stacked beside the last state and row
        rows = _bytes(what.body.inputs[what.carried : what.carried + what.tables])
        state, collected = (
            _bytes(some) for some in (what.body.outputs[: what.carried], what.body.outputs[what.carried :])
        )
        most = max(most, state + rows + 2 * what.rounds * collected)
    return most


def _bytes(nodes: Sequence[Node]) -> int:
    return sum(node.type.local_bytes for node in nodes)
