"""Choices that hold little: weights say how much a byte counts at each node of the program, and the least sum is solved for.

What a device holds at a node is the inputs and constants, the values that are read later, and what the node itself needs.
The most of that over all nodes is to be small: nodes where much is held get more weight, and the model is solved again.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.elimination import Scope
from shardwright.planner.least import Least, Needs
from shardwright.planner.model import Model, Variable
from shardwright.program.node import Apply, Constrain, Control, Node, Pick, Settle
from shardwright.sharding import Sharding

Sizes = list[tuple[Scope, NDArray[np.float64]]]  # factors in bytes
STEEP = 12.0  # how much more a node counts where more is held
GRID = 2.0**20  # weights are whole multiples of 1 / GRID of the largest, so that equal layers have equal weights


class Holding:
    """What options of a model hold, and from which to which node of the program."""

    def __init__(self, model: Model, needs: Needs) -> None:
        self.model, self.needs = model, needs
        nodes = model.program.nodes
        self.at = {node: at for at, node in enumerate(nodes)}
        self.last = dict(self.at)
        for node in nodes:
            for x in node.nodes:
                self.last[x] = max(self.last[x], self.at[node])
        for node in nodes:
            if isinstance(node.what, Pick):
                self.last[node.nodes[0]] = max(self.last[node.nodes[0]], self.last[node])
        for node in model.program.outputs:
            self.last[node] = len(nodes) - 1
        self._bytes: dict[Any, NDArray[np.float64]] = {}
        self.parts = [*self._own(), *self._moved()]

    def _own(self) -> Iterator[tuple[Scope, NDArray[np.float64], int, int]]:
        """What options hold themselves: factors in bytes, with the first and the last node at which they count."""
        for number, variable in enumerate(self.model.variables):
            node, options = variable.node, variable.options
            if variable.kind != "node" or number in self.model.held or isinstance(node.what, Constrain | Settle):
                continue
            at, key = self.at[node], (id(options), node.types)
            if isinstance(options[0], Sharding):
                if isinstance(node.what, Apply):
                    yield (
                        (number,),
                        self._once(key, lambda n=node, o=options: [_size(n, s) for s in o]),
                        at,
                        self.last[node],
                    )
                continue
            made = self._once(key, lambda n=node, o=options: [_results(n, option) for option in o])
            yield (number,), made, at, self.last[node]
            if isinstance(node.what, Control):
                more = [max(option.memory - _results(node, option), 0) for option in options]
            else:
                more = [max([i.own for i in some], default=0) for some in self.needs.instants[number]]
            yield (number,), self._once((key, "more"), lambda m=more, f=made: np.maximum(np.array(m) - f, 0)), at, at

    def _moved(self) -> Iterator[tuple[Scope, NDArray[np.float64], int, int]]:
        """What moved values hold."""
        for (before, after, node, _), (sources, targets) in zip(self.model.edges, self.model.wheres, strict=True):
            reader = self.model.variables[after]
            key = sources, targets, node.type[:2]
            table = self._once(key, lambda n=node, a=sources, b=targets: _copies(n, a, b))
            if reader.kind == "node":
                stays = isinstance(reader.node.what, Constrain | Settle)
                first, last = self.at[reader.node], self.last[reader.node] if stays else self.at[reader.node]
            else:
                first, last = self.at[node], self.last[node]
            yield (before, after), table, first, last

    def _once(self, key: Any, make: Any) -> NDArray[np.float64]:
        if key not in self._bytes:
            self._bytes[key] = np.asarray(make(), float)
        return self._bytes[key]

    def held(self, choice: Sequence[int]) -> NDArray[np.float64]:
        """What a device holds at each node, by these figures."""
        found = np.zeros(len(self.at) + 1)
        for scope, table, first, last in self.parts:
            count = table[tuple([choice[v] for v in scope])]
            found[first] += count
            found[last + 1] -= count
        return np.cumsum(found[:-1]) + sum(some[choice[v]] for v, some in self.model.held.items())

    def sizes(self, weights: NDArray[np.float64]) -> Sizes:
        """What options cost if a byte at a node costs its weight and a byte of an input the sum of all."""
        total = np.concatenate([[0.0], np.cumsum(weights)])
        step = weights.max() / GRID
        scaled: dict[Any, NDArray[np.float64]] = {}
        found = self.inputs()
        for scope, table, first, last in self.parts:
            weight = np.rint((total[last + 1] - total[first]) / step) * step / total[-1]
            key = id(table), weight
            if key not in scaled:
                scaled[key] = table * weight
            found.append((scope, scaled[key]))
        return found

    def inputs(self) -> Sizes:
        """Costs by which inputs and constants alone count."""
        return [((v,), np.asarray(some, float)) for v, some in self.model.held.items()]

    def values(self) -> Sizes:
        """Costs by which every value counts, and of a step all that it reads and makes."""
        found = self.inputs()
        for number, variable in enumerate(self.model.variables):
            if number not in self.model.held:
                found.append(
                    ((number,), self._once((id(variable.options), variable.node.type), lambda v=variable: _all(v)))
                )
        return found

    def steps(self) -> Sizes:
        """The same, where options that take more than the largest of all steps must count beyond all else."""
        steps = [v.options for v in self.model.variables if not isinstance(v.options[0], Sharding)]
        most = max((min(option.memory for option in options) for options in steps), default=np.inf)
        sizes = self.values()
        total = sum(some.max() for _, some in sizes)
        return [(scope, np.where(some <= most, some, some + total)) for scope, some in sizes]

    def weighed(self, rounds: Sequence[NDArray[np.float64]]) -> Sizes:
        """Costs after some rounds, each with what its choice held at each node."""
        excess = np.zeros(len(self.at))
        for held in rounds:
            excess += held / held.max() - 1
        return self.sizes(np.exp(STEEP * excess))

    def crowded(self, rounds: Sequence[NDArray[np.float64]]) -> Sizes:
        """Costs by which bytes count at nodes where one of some choices held most, or nearly."""
        return self.sizes(sum([np.exp(STEEP * (held / held.max() - 1)) for held in rounds]))

    def at_bound(self, least: Least) -> Sizes:
        """Costs by which inputs lie where the bound has them, and steps need no more than there; then all values are small."""
        found = self.sizes(np.ones(len(self.at)))
        much = sum(max(some) for some in self.model.held.values()) + sum(table.max() for _, table, _, _ in self.parts)
        for v, some in self.model.held.items():
            away = np.full(len(some), float(much))
            away[least.held[self.model.variables[v].node]] = 0.0
            found.append(((v,), away))
        for number in self.needs.instants:
            needed = np.array(self.needs.of_options(number, least.held))
            found.append(((number,), np.where(needed <= least.step, 0.0, float(much))))
        return found


def _all(variable: Variable) -> list[int]:
    """What a device holds of a value, or of the step that makes it, by option."""
    return [_size(variable.node, o) if isinstance(o, Sharding) else o.memory for o in variable.options]


def _results(node: Node, option: Any) -> int:
    every = zip(node.types, option.results, strict=True)
    return sum([there.local_size(kind.shape) * kind.dtype.itemsize for kind, there in every])


def _size(node: Node, there: Sharding) -> int:
    return there.local_size(node.type.shape) * node.type.dtype.itemsize


def _copies(node: Node, sources: Sequence[Sharding], targets: Sequence[Sharding]) -> Any:
    """The bytes of a value that is moved, by places before and after; none where it stays."""
    sizes = np.array([_size(node, there) for there in targets], float)
    numbers: dict[Any, int] = {}
    before, after = (np.array([numbers.setdefault(s.dims, len(numbers)) for s in some]) for some in (sources, targets))
    axes = {axis: 1 << at for at, axis in enumerate(sources[0].mesh.sizes)}
    left, kept = (np.array([sum([axes.get(a, 0) for a in s.partial]) for s in some]) for some in (sources, targets))
    same = (before[:, None] == after[None]) & ((left[:, None] & ~kept[None]) == 0)  # a sum that stays one is not moved
    return np.where(same, 0.0, sizes[None])
