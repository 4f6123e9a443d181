"""The least memory in which a program can run: a bound that holds for every plan, and where inputs lie that attain it.

A device holds inputs and constants throughout and, in every step, that step's operands, results and temporaries; at the end it
holds all outputs. So no plan holds less than the least, over all places of inputs, of the bytes of inputs plus the largest
need of a single step. What a step needs depends on places of inputs only where it reads inputs: one that lies where the step
wants it is held already, another is copied. For a limit of what steps need, the places of inputs of least bytes are found by
elimination; limits are the needs that occur, and few of them have to be tried.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.plan import Instant, LocalStep, Regroup, ToLocal, instants_of, move_steps
from shardwright.planner.elimination import Elimination, Scope
from shardwright.planner.lasting import lasting
from shardwright.planner.model import Model, Shardings
from shardwright.planner.remaining import finished
from shardwright.planner.tables import Tables
from shardwright.program.node import Apply, Constant, Constrain, Control, Input, Node, Pick, Settle
from shardwright.program.twins import same_values
from shardwright.sharding import Sharding

Need = NDArray[np.float64]  # bytes by places of inputs
HELD = -1  # in place of an input: a value that may be the memory of one, whatever its place
MOST = 100_000  # entries of a table of needs


class Least(NamedTuple):
    """Bytes that no plan holds less than; the options of inputs and constants that give them; what steps then need."""

    bound: int
    held: dict[Node, int]
    step: float


class Needs:
    """What each step of a program needs beside inputs and constants, by the places of inputs that it reads."""

    def __init__(self, model: Model) -> None:
        self.model, self.mesh = model, model.program.mesh
        self.inputs: dict[Node, int] = {}  # of values: the input that they are if they are not moved, or HELD
        self.instants: dict[int, list[tuple[Instant, ...]]] = {}  # of operations: for each option those of its steps
        self.tables: list[tuple[Scope, Need]] = []
        self._same: dict[Any, NDArray[np.bool_]] = {}
        self._known: dict[Any, Any] = {}
        aliases = {}  # results that may be the operand itself
        for node in model.program.nodes:
            if isinstance(node.what, Apply) and node.nodes and node.type.local is None:
                instants = self.instants[model.of_node[node]] = self._instants(node)
                if not all(instants):
                    aliases[node] = node.nodes[0]
        self.same = same_values(model.program, aliases)
        for node in model.program.nodes:
            self._trace(node)
        self.beside = lasting(model.program, self.same, {self.same[node] for node in self.inputs})
        for node in model.program.nodes:
            self._add(node)
        self.tables.append(((), np.array(float(self._outputs()))))

    def _instants(self, node: Node) -> list[tuple[Instant, ...]]:
        options = self.model.variables[self.model.of_node[node]].options
        if id(options) not in self._known:
            kinds = [x.type[:2] if isinstance(x, Node) else x for x in node.inputs]
            self._known[id(options)] = instants_of(node.what.name, kinds, node.what.attrs, self.mesh, options)
        found: list[tuple[Instant, ...]] = self._known[id(options)]
        return found

    def _trace(self, node: Node) -> None:
        """Whether a value may be an input."""
        if isinstance(node.what, Input | Constant) and node.type.local is None:
            self.inputs[node] = self.model.of_node[node]
        elif node.nodes and node.nodes[0] in self.inputs and self.same[node] is self.same[node.nodes[0]]:
            moved = isinstance(node.what, Constrain | Settle)
            self.inputs[node] = self.inputs[node.nodes[0]] if moved else HELD

    def _add(self, node: Node) -> None:
        what, model = node.what, self.model
        if isinstance(what, Input | Constant | Constrain | Settle | Pick):
            return
        if node.type.local is not None or isinstance(what, LocalStep | ToLocal):
            own = sum(t.local_bytes for t in node.types if t.local is not None)
            read = sum(x.type.local_bytes for x in dict.fromkeys(node.nodes) if x.type.local is not None)
            self._constant(node, own + read)
        elif isinstance(what, Apply) and node.nodes:
            self._operation(node)
        elif isinstance(what, Control):
            self._control(node)
        elif isinstance(what, Apply):
            options = model.variables[model.of_node[node]].options
            self._constant(node, min(_bytes(node, there) for there in options))

    def _constant(self, node: Node, need: float) -> None:
        """A step that needs the same wherever inputs lie."""
        self.tables.append(((), np.array(float(need + self.beside[node]))))

    def _operation(self, node: Node) -> None:
        options = self.model.variables[self.model.of_node[node]].options
        scope = self._scope(node)
        sources = [self.inputs.get(x) for x in node.nodes]
        places = [self.model.variables[v].options for v in scope]
        which = tuple([None if s is None else scope.index(s) if s in scope else HELD for s in sources])
        same = tuple([[self.same[x] for x in node.nodes].index(self.same[x]) for x in node.nodes])
        key = id(options), which, same, tuple(map(tuple, places)), self.beside[node]
        if key not in self._known:
            shape = tuple([len(some) for some in places])
            need = np.full(shape, np.inf)
            for at in range(len(options)):
                np.minimum(need, self._need(node, at, scope, shape), out=need)
            self._known[key] = need
        self.tables.append((scope, self._known[key]))

    def _scope(self, node: Node) -> Scope:
        """The inputs that a step reads, without some where a table over all would be too large: these then count as held."""
        sizes: dict[int, int] = {}
        for x in node.nodes:
            if self.inputs.get(x, HELD) != HELD:
                sizes[self.inputs[x]] = math.prod(x.type.shape) * x.type.dtype.itemsize
        scope: list[int] = []
        for v in sorted(sizes, key=lambda v: -sizes[v]):
            if math.prod([len(self.model.variables[u].options) for u in (*scope, v)]) <= MOST:
                scope.append(v)
        return tuple(sorted(scope))

    def _need(self, node: Node, at: int, scope: Scope, shape: tuple[int, ...]) -> Need:
        """What an operation needs under one option, over places of inputs."""
        number = self.model.of_node[node]
        option = self.model.variables[number].options[at]
        most: Any = np.zeros(shape)
        instants = self.instants[number][at]
        for instant in instants:
            surely = instant is instants[-1] or len(set(node.nodes)) == 1  # depends on all that the operation does
            total: Any = float(instant.own + (self.beside[node] if surely else 0))
            read = {(self.same[node.nodes[k]], option.operands[k]): node.nodes[k] for k in instant.operands}
            for (_, there), x in read.items():
                source, count = self.inputs.get(x), _bytes(x, there)
                if source is None:
                    total = total + count
                elif source in scope:
                    view = [1] * len(scope)
                    view[scope.index(source)] = -1
                    total = total + np.where(self._in_place(source, x, there), 0.0, count).reshape(view)
            most = np.maximum(most, total)
        found: Need = most
        return found

    def _in_place(self, source: int, x: Node, there: Sharding) -> NDArray[np.bool_]:
        """For which places of an input a step that wants it somewhere reads the input itself."""
        options: Shardings = tuple(self.model.variables[source].options)
        shape, dtype = x.type[:2]
        key = options, there, shape
        if key not in self._same:
            same = [option.dims == there.dims for option in options]
            if len(options) == 1 and not same[0]:  # as a user wrote it: with pieces of axes, or axes of one device
                same[0] = all(
                    isinstance(step, Regroup)
                    for step in move_steps(options[0], there.replace(partial=()), shape, dtype)
                )
            self._same[key] = np.array(same)
        return self._same[key]

    def _control(self, node: Node) -> None:
        options = self.model.variables[self.model.of_node[node]].options
        least = math.inf
        for option in options:
            stay = {x for step in option.program.nodes if isinstance(step.what, Control) for x in step.nodes}
            other = sum(
                _bytes(x, there)  # held as an input, or moved once more by the loop, and then no longer
                for x, there, own in zip(node.nodes, option.operands, option.program.inputs, strict=True)
                if x in self.inputs or own not in stay
            )
            least = min(least, option.memory - other)
        self._constant(node, max(least, 0.0))

    def _outputs(self) -> int:
        """What all outputs take at least, without those that may be inputs."""
        program, found = self.model.program, dict[Node, int]()
        for node, number in zip(program.outputs, self.model.outputs, strict=True):
            if number is None:
                found[node] = node.type.local_bytes
            elif node not in self.inputs:
                least = min(_bytes(node, there) for there in self.model.variables[number].options)
                found[self.same[node]] = min(found.get(self.same[node], least), least)
        return sum(found.values())

    # -- the least ----------------------------------------------------------------------------------------------------

    def least(self, only: Mapping[Node, int]) -> Least:
        """The least that any plan holds, some inputs at given options."""
        return _Thresholds(self, only).least()

    def of_options(self, number: int, held: Mapping[Node, int]) -> list[float]:
        """What an operation needs under each option, with inputs at given places."""
        node = self.model.variables[number].node
        scope = self._scope(node)
        at = tuple([held[self.model.variables[v].node] for v in scope])
        shape = tuple([len(self.model.variables[v].options) for v in scope])
        return [float(self._need(node, k, scope, shape)[at]) for k in range(len(self.instants[number]))]


class _Thresholds:
    """Limits of what steps need, and for each the least bytes of inputs."""

    def __init__(self, needs: Needs, only: Mapping[Node, int]) -> None:
        self.needs, self.tables = needs, Tables(1.0)  # of bytes
        model = needs.model
        self.order = {v: at for at, v in enumerate(model.held)}
        self.sizes = [len(some) for some in model.held.values()]
        self.base: list[tuple[Scope, int]] = [
            ((at,), self.tables.seconds(some)) for at, some in enumerate(model.held.values())
        ]
        for node, option in only.items():
            at = self.order[model.inputs[node]]
            alone = [0.0 if k == option else math.inf for k in range(self.sizes[at])]
            self.base.append(((at,), self.tables.seconds(alone)))
        self.distinct: dict[int, Need] = {id(need): need for scope, need in needs.tables if scope}
        self.floor = max([float(need.min()) for _, need in needs.tables])
        self.solved: dict[float, tuple[float, list[int]]] = {}

    def held(self, limit: float) -> float:
        """The least bytes of inputs if no step may need more than so many."""
        if limit not in self.solved:
            numbers = {
                key: self.tables.seconds(np.where(need <= limit, 0.0, math.inf))
                for key, need in self.distinct.items()
                if need.max() > limit
            }
            factors = list(self.base)
            for scope, need in self.needs.tables:
                if scope and id(need) in numbers:
                    factors.append((tuple([self.order[v] for v in scope]), numbers[id(need)]))
            run = Elimination(self.tables, self.sizes, factors)
            run.run()
            if run.left:
                result = finished(self.tables, list(self.sizes), factors)
                self.solved[limit] = math.ceil(result.bound - 1e-6), result.choice
            else:
                self.solved[limit] = run.least(), run.choice()
        return self.solved[limit][0]

    def least(self) -> Least:
        """The least sum of bytes of inputs and of what the largest step needs."""
        every = [np.unique(need) for need in self.distinct.values()]
        values = np.unique(np.concatenate([[self.floor], *every]))
        limits: list[float] = values[(values >= self.floor) & np.isfinite(values)].tolist()
        best, at = math.inf, 0.0
        for limit in self._promising(limits):
            total = limit + self.held(limit)
            if total < best:
                best, at = total, limit
        choice = self.solved[at][1]
        variables = self.needs.model.variables
        return Least(int(best), {variables[v].node: choice[k] for v, k in self.order.items()}, at)

    def _promising(self, limits: Sequence[float]) -> Iterator[float]:
        """Limits of which one gives the least: of those between two tried ones none is better than the lower limit with the
        bytes of inputs at the higher one."""
        best = math.inf
        stack = [(0, len(limits) - 1)]
        for end in (0, len(limits) - 1):
            best = min(best, limits[end] + self.held(limits[end]))
            yield limits[end]
        while stack:
            low, high = stack.pop()
            if high - low < 2 or self.held(limits[low]) == self.held(limits[high]):
                continue
            if limits[low + 1] + self.held(limits[high]) >= best:
                continue
            middle = (low + high) // 2
            best = min(best, limits[middle] + self.held(limits[middle]))
            yield limits[middle]
            stack += [(middle, high), (low, middle)]


def _bytes(node: Node, there: Sharding) -> int:
    return there.local_size(node.type.shape) * node.type.dtype.itemsize
