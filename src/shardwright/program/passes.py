"""Passes: the same program with less communication. Each gives a new program and never moves more bytes.

Nodes are pure and made once, so common subexpressions are one node and what no output needs is gone, collectives
included. What is left to do: moves of moved values are planned anew, sums of reduced values are reduced once, reductions of one
group that don't depend on each other become one, collectives of the local view are simplified, and the order is the one that
needs least memory.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright.collectives import (
    AllGather,
    AllReduce,
    AllSlice,
    AllToAll,
    Broadcast,
    Gather,
    ReduceScatter,
    Scatter,
)
from shardwright.collectives import Reduce as CollectiveReduce
from shardwright.plan import Each, Fused, LocalStep, Reduce, move_steps, plan_operation
from shardwright.program.local_tracing import RowKey
from shardwright.program.memory import Lifetimes
from shardwright.program.node import Communicates, Compute, Given, Graph, Node, Pick, Program, Type, last_move
from shardwright.program.partition import stepped
from shardwright.sharding import Sharding, layout_of

SMALL = 256 * 1024  # bytes of a shard: reductions below share one message
REDUCING = {"add": "sum", "subtract": "sum", "maximum": "max", "minimum": "min"}


class Rewriter:
    """Rebuilds a program node by node; `rule` may give another node in place of one."""

    def __init__(self, program: Program) -> None:
        self.program, self.graph = program, Graph()
        self.reads = program.reads
        self.outputs = set(program.outputs)
        self.made: dict[Node, Node] = {}
        self.gone: set[Node] = set()  # nodes of the old program that nothing new reads any more
        self.needed: set[Node] = set()  # and those that something new does

    def once(self, node: Node) -> bool:
        """Whether a value of the old program is read once and is not an output."""
        return self.reads[node] == 1 and node not in self.outputs

    def copied(self, node: Node) -> Node:
        """The same node on the new operands."""
        inputs = [self.made[x] if isinstance(x, Node) else x for x in node.inputs]
        return self.graph.add(node.what, inputs, node.types, node.source, node.plan)

    def run(self, rule: "Callable[[Rewriter, Node], Node | None]") -> Program:
        """The program with every node for which the rule has another replaced."""
        old = self.program
        for node in old.nodes:
            self.made[node] = rule(self, node) or self.copied(node)
        inputs, outputs = ([self.made[node] for node in some] for some in (old.inputs, old.outputs))
        return old.like(inputs, outputs, self.made)


def received(node: Node) -> int:
    """Bytes that the busiest device receives in a node."""
    return node.what.received if isinstance(node.what, Communicates) else 0


# -- moves of moved values ------------------------------------------------------------------------------------------------


def shortened(rewriter: Rewriter, node: Node) -> Node | None:
    """A move of a value that was just moved: from where it was to where it goes, if that is not more.

    So a reduction that is then sliced is a reduce-scatter, and a gather of a slice, or the reverse, is nothing. It is sound
    because shardings are part of the types: what is sliced is known to be the same on every device of the group.
    """
    move = last_move(node)
    before = last_move(move[-1].nodes[0]) if move else ()
    if not before:
        return None
    (kept,) = before[-1].nodes
    steps = move_steps(_there(kept), _there(node), node.type.shape, node.type.dtype)
    if kept in rewriter.gone:
        return None
    spared = [node]
    for other in (*move[1:], *before):  # what nothing else reads
        if not rewriter.once(other) or other in rewriter.needed:
            break
        spared.append(other)
    if _cost(steps) >= _cost([x.what for x in spared]):
        return None
    rewriter.needed.add(kept)
    rewriter.gone.update(spared[1:])
    return stepped(rewriter.graph, rewriter.made[kept], steps, node.source)


def _cost(steps: Sequence[Any]) -> tuple[int, float, int]:
    return sum(step.received for step in steps), sum(step.time for step in steps), len(steps)


def _there(node: Node) -> Sharding:
    assert node.type.sharding is not None
    return node.type.sharding


# -- sums of reduced values -----------------------------------------------------------------------------------------------


def reduced_once(rewriter: Rewriter, node: Node) -> Node | None:
    """add(all_reduce(x), all_reduce(y)) is all_reduce(add(x, y)); so for maxima and minima."""
    reduction = REDUCING.get(node.op)
    if reduction is None or len(node.nodes) != 2 or len(node.inputs) != 2 or not isinstance(node.what, Compute):
        return None
    a, b = node.nodes
    if a is b or not (_is_all_reduce(a) and _is_all_reduce(b) and rewriter.once(a) and rewriter.once(b)):
        return None
    kinds = [x.nodes[0].type for x in (a, b)]
    alike = kinds[0] == kinds[1] and a.what.axes == b.what.axes and _there(a.nodes[0]).reduction == reduction
    if not alike or kinds[0].dtype.kind in "biu" or a.type != b.type:
        return None
    operands = [rewriter.made[x.nodes[0]] for x in (a, b)]
    given = [(layout_of(_there(x), x.type.shape), x.type.dtype) for x in operands]
    assert node.plan is not None
    plan = plan_operation(node.op, given, node.plan.attrs, (kinds[0].sharding,))
    if plan.local is None or any(s is not k.sharding for s, k in zip(plan.strategy.operands, kinds, strict=True)):
        return None
    kind = Type(node.type.shape, plan.dtypes[0], plan.results[0].sharding)
    if kind != kinds[0]:
        return None
    added = rewriter.graph.add(Compute(plan.local, plan.attrs), operands, (kind,), node.source, plan)
    return stepped(rewriter.graph, added, (a.what,), node.source)


def _is_all_reduce(node: Node) -> bool:
    return isinstance(node.what, Reduce) and node.what.name == "all_reduce"


# -- collectives of the local view ------------------------------------------------------------------------------------------


def simplified(rewriter: Rewriter, node: Node) -> Node | None:
    """Collectives on tensors per device that come to less: those of groups of one device do nothing, a reduction that is then
    sliced is a reduce_scatter, and a sum (maximum, minimum) of reductions is one reduction.

    A slice that is then gathered stays: that is the tensor before only if the devices of a group hold the same.
    """
    what = node.what
    if isinstance(what, LocalStep) and what.group == 1 and isinstance(what.collective, _ALONE):
        return rewriter.made[node.nodes[0]] if node.type == node.nodes[0].type else None
    if isinstance(what, LocalStep) and isinstance(what.collective, AllSlice):
        return _scattered(rewriter, node)
    if isinstance(what, Each) and isinstance(what.key, RowKey):
        return _reduced_together(rewriter, node)
    return None


_ALONE = (AllGather, AllReduce, AllSlice, AllToAll, Broadcast, Gather, CollectiveReduce, ReduceScatter, Scatter)


def _scattered(rewriter: Rewriter, node: Node) -> Node | None:
    """all_slice(all_reduce(x)) over the same axes."""
    (before,) = node.nodes
    reduced = before.what.collective if isinstance(before.what, LocalStep) else None
    sliced = node.what.collective
    if not isinstance(reduced, AllReduce) or reduced.axes != sliced.axes or not rewriter.once(before):
        return None
    scatter = ReduceScatter(reduced.axes, sliced.dim, reduced.op, reduced.dtype)
    step = LocalStep(scatter, before.what.shapes, before.what.dtype)
    return rewriter.graph.add(step, (rewriter.made[before.nodes[0]],), node.types, node.source)


def _reduced_together(rewriter: Rewriter, node: Node) -> Node | None:
    """add(all_reduce(x), all_reduce(y)), and so for maxima and minima."""
    reduction = REDUCING.get(node.op)
    if reduction is None or node.op == "subtract" or len(node.nodes) != 2 or node.nodes[0] is node.nodes[1]:
        return None
    a, b = node.nodes
    for x in (a, b):
        own = x.what.collective if isinstance(x.what, LocalStep) else None
        if not isinstance(own, AllReduce) or own.op != reduction or own.dtype is not None or not rewriter.once(x):
            return None
    if a.what.collective != b.what.collective or a.type != b.type or a.type != node.type or a.type.dtype == bool:
        return None
    operands = [rewriter.made[x.nodes[0]] for x in (a, b)]
    together = rewriter.graph.add(node.what, operands, node.types, node.source)
    return rewriter.graph.add(a.what, (together,), node.types, node.source)


# -- small reductions of one group ------------------------------------------------------------------------------------------


def fused(program: Program) -> Program:
    """Small all-reduces over the same axes that don't depend on each other become one."""
    depth = _depths(program)
    groups: dict[Any, list[Node]] = {}
    for node in program.nodes:
        if _is_all_reduce(node) and node.type.local_bytes <= SMALL and not _there(node).offsets:
            key = (node.what.pieces, _there(node.nodes[0]).reduction, node.type.dtype, depth[node])
            groups.setdefault(key, []).append(node)
    chosen = {node: tuple(group) for group in groups.values() if len(group) > 1 for node in group}
    if not chosen:
        return program
    rewriter = Rewriter(program)
    for node in _in_levels(program, depth):
        group = chosen.get(node)
        if group is None:
            rewriter.made[node] = rewriter.copied(node)
        elif node not in rewriter.made:
            operands = [rewriter.made[x.nodes[0]] for x in group]
            several = Fused(tuple(x.what for x in group))
            together = rewriter.graph.add(several, operands, [x.type for x in group], group[0].source)
            for at, x in enumerate(group):
                rewriter.made[x] = rewriter.graph.pick(together, at)
    inputs, outputs = ([rewriter.made[node] for node in some] for some in (program.inputs, program.outputs))
    return program.like(inputs, outputs, rewriter.made)


def _depths(program: Program) -> dict[Node, int]:
    """How many all-reduces lie before each node: those at one depth can't depend on each other."""
    depth: dict[Node, int] = {}
    for node in program.nodes:
        depth[node] = max((depth[x] + _is_all_reduce(x) for x in node.nodes), default=0)
    return depth


def _in_levels(program: Program, depth: Mapping[Node, int]) -> list[Node]:
    """The nodes with everything before the all-reduces of a depth ahead of them."""
    return sorted(program.nodes, key=lambda node: (depth[node], _is_all_reduce(node), node.number))


# -- the order ------------------------------------------------------------------------------------------------------------


def scheduled(program: Program) -> Program:
    """The order of least peak memory: as written, or by taking at each point what frees most, whichever is lower."""
    lives = Lifetimes(program)
    other = _Greedy(program, lives).nodes()
    if other == program.nodes or lives.memory(other).peak >= lives.memory(program.nodes).peak:
        return program
    result = Program(
        program.mesh, program.inputs, program.outputs, program.names, program.constants, other, program.effects
    )
    result.take_facts(program)
    result.origins = program.origins
    return result


class _Greedy:
    """Of the nodes that are ready, always the one after which least is held; equals in the order written."""

    def __init__(self, program: Program, lives: Lifetimes) -> None:
        self.program, self.lives = program, lives
        self.users = program.users
        self.waits = {node: len(set(node.nodes)) for node in program.nodes}
        self.readers: dict[int, list[Node]] = {}
        for node in program.nodes:
            for value in lives.reads[node]:
                self.readers.setdefault(value, []).append(node)
        self.ready: list[tuple[int, int, Node]] = []  # a heap; of a node's entries only the newest counts
        self.order: dict[Node, None] = {}  # the nodes that have run

    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in that order."""
        for node in self.program.nodes:  # arguments are held from the start
            if not self.waits[node] and isinstance(node.what, Given):
                self._run(node)
        for node in self.program.nodes:
            if not self.waits[node] and node not in self.order:
                self._push(node)
        while self.ready:
            growth, _, node = heapq.heappop(self.ready)
            if node not in self.order and growth == self.lives.growth(node):
                self._run(node)
        return tuple(self.order)

    def _push(self, node: Node) -> None:
        heapq.heappush(self.ready, (self.lives.growth(node), node.number, node))

    def _run(self, node: Node) -> None:
        lives, waits, order = self.lives, self.waits, self.order
        order[node] = None
        lives.run(node)
        for user in dict.fromkeys(self.users[node]):
            waits[user] -= 1
            if isinstance(user.what, Pick):
                self._run(user)  # a pick costs nothing, and what reads it is ready
            elif not waits[user]:
                self._push(user)
        for value in lives.reads[node]:
            if lives.left[value] == 1:  # whoever reads it last frees it: that one has become better
                for user in self.readers[value]:
                    if user not in order and not waits[user]:
                        self._push(user)


def _moves_again(node: Node) -> bool:
    """Whether `shortened` could apply: a move of a moved value."""
    move = last_move(node)
    return bool(move) and bool(last_move(move[-1].nodes[0]))


def _adds_reduced(node: Node) -> bool:
    """Whether `reduced_once` could apply: a sum of reduced values."""
    return node.op in REDUCING and len(node.nodes) == 2 and all(map(_is_all_reduce, node.nodes))


def _is_local(node: Node) -> bool:
    """Whether `simplified` could apply: a collective of the local view."""
    return isinstance(node.what, LocalStep)


def optimised(program: Program) -> Program:
    """All passes, the rewriting ones until nothing changes."""
    for _ in range(8):
        before = program
        rules = ((shortened, _moves_again), (reduced_once, _adds_reduced), (simplified, _is_local))
        for rule, applies in rules:
            if any(map(applies, program.nodes)):
                program = Rewriter(program).run(rule)
        if program is before or _measure(program) == _measure(before):
            break
    return scheduled(fused(program))


def _measure(program: Program) -> tuple[int, int]:
    return len(program.nodes), sum(map(received, program.nodes))
