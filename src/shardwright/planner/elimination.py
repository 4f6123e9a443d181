"""Elimination: variables are minimised out one after the other, the one that touches the fewest combinations first.

A step replaces the factors of a variable by one over its neighbours: the least over the variable's options of their sum. At the
end a number is left, the least cost of all, and going back over the steps gives the options that attain it. Steps on
equal tables are the same step, so the layers of a program are eliminated once.
"""

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.tables import Tables

MOST = 10.0**7  # combinations of one step
MOST_OF_MANY = 4e9  # the same on meshes of many axes, where a linear programme would be as large and take far longer
MOST_COMPARED = 40_000  # combinations of others for which options are compared
Scope = tuple[int, ...]


class Gone(NamedTuple):
    """A variable that was minimised out: its neighbours then, and the table that replaced its factors."""

    variable: int
    others: Scope
    table: int
    options: tuple[list[int], ...]  # that the variable and each neighbour had then


class Dead(NamedTuple):
    """An option of a variable that is never better than another one, whatever the others choose."""

    variable: int
    option: int  # of those that the variable had at first
    better: int


# A choice that was not looked at yet: its cost, a number that settles ties, the options of the first variables, and of the
# next one the costs of all options, their order, and which of them it has.
_Waiting = tuple[float, int, list[int], NDArray[np.float64], NDArray[np.int64], int]


class Elimination:
    """Variables with numbers of options, and factors over them, of which some were minimised out.

    `order` is that in which an elimination of factors over the same variables minimised all of them out, if there was one.
    """

    def __init__(
        self,
        tables: Tables,
        sizes: Sequence[int],
        factors: Sequence[tuple[Scope, int]],
        order: Sequence[int] | None = None,
    ) -> None:
        self.tables, self.sizes, self._order = tables, list(sizes), order
        count = len(self.sizes)
        self.of: list[dict[int, None]] = [{} for _ in range(count)]  # the factors of each variable
        self.near: list[set[int]] = [set() for _ in range(count)]
        self.live: dict[int, tuple[Scope, int]] = {}
        self.gone: list[Gone] = []
        self.steps: list[Gone | Dead] = []  # all that was done
        self.options = [list(range(n)) for n in self.sizes]  # that are left of each variable
        self.left = set(range(count))
        self.settled: list[int] = []  # tables of one number
        self._next = 0
        self._logs = [math.log(n) for n in self.sizes]
        for scope, table in factors:
            self._put(scope, table)

    def _put(self, scope: Scope, table: int) -> None:
        number = self._next
        self._next += 1
        self.live[number] = (scope, table)
        for v in scope:
            self.of[v][number] = None
            if self._order is None:
                self.near[v].update(scope)
                self.near[v].discard(v)

    def _weight(self, v: int) -> float:
        logs = self._logs
        return logs[v] + sum([logs[u] for u in self.near[v]])

    def run(self, most: float = MOST, degree: float = math.inf) -> bool:
        """Minimises out all variables that touch no more than so many combinations and so many others; whether any."""
        if self._order is not None:
            for v in self._order:
                self._minimise(v)
            return True
        before = len(self.left)
        limit = math.log(most) + 1e-9
        heap = [(self._weight(v), v) for v in self.left]
        heapq.heapify(heap)
        while heap:
            weight, v = heapq.heappop(heap)
            if v not in self.left:
                continue
            now = self._weight(v)
            if now > weight + 1e-9:
                heapq.heappush(heap, (now, v))
            elif now > limit:
                break
            elif len(self.near[v]) <= degree:
                for u in self._minimise(v):
                    heapq.heappush(heap, (self._weight(u), u))
        return len(self.left) < before

    def _minimise(self, v: int) -> Scope:
        """Replaces the factors of a variable by one over its neighbours."""
        live, own = self.live, self.of[v]
        found = sorted([(table, scope.index(v), scope) for scope, table in (live[f] for f in own)], key=_by_table)
        local = {v: 0}
        for _, _, scope in found:
            for u in scope:
                local.setdefault(u, len(local))
        parts = tuple([(table, tuple([local[u] for u in scope])) for table, _, scope in found])
        table = self.tables.least(parts, tuple([self.sizes[u] for u in local]))
        others = tuple(local)[1:]
        self.gone.append(Gone(v, others, table, tuple([self.options[u] for u in local])))
        self.steps.append(self.gone[-1])
        self.left.discard(v)
        for f in own:
            for u in live[f][0]:
                if u != v:
                    del self.of[u][f]
            del live[f]
        for u in others:
            self.near[u].discard(v)
        if others:
            self._put(others, table)
        else:
            self.settled.append(table)
        return others

    def least(self) -> float:
        """The cost of the best choice, in units; all variables must be gone."""
        return float(sum(self.tables.values[table] for table in self.settled)) + self.shifted()

    def shifted(self) -> float:
        """What messages leave out, in units: they are kept without their smallest entries."""
        return float(sum([self.tables.shifts[step.table] for step in self.gone]))

    def choice(self, known: "Mapping[int, int] | None" = None) -> list[int]:
        """The option of each variable that attains the least; of those left it must be known."""
        pick, made = self.tables.pick, [0] * len(self.sizes)
        for v, option in (known or {}).items():
            made[v] = option
        for v, others, table, (own, *near) in reversed(self.gone):
            at = [
                some.index(made[u]) if len(some) < some[-1] + 1 else made[u]
                for u, some in zip(others, near, strict=True)
            ]
            made[v] = own[pick(table, tuple(at))]
        return made

    def ranked(self, most: float = math.inf) -> Iterator[tuple[float, list[int]]]:
        """All choices, those of least cost first: by how many units each costs more than the least, up to so many, and the
        option of each variable. All variables must be gone, with all their options.

        Options are chosen for one variable after the other, the last that went first: the cheapest, while the next best waits.
        """
        steps, made, heap, numbers = self.gone[::-1], [0] * len(self.sizes), list[_Waiting](), itertools.count()

        def wait(first: list[int], costs: NDArray[np.float64], order: NDArray[np.int64], rank: int) -> None:
            if rank < len(order) and costs[order[rank]] <= most and math.isfinite(costs[order[rank]]):
                heapq.heappush(heap, (float(costs[order[rank]]), next(numbers), first, costs, order, rank))

        def choose(first: list[int], cost: float, rank: int) -> int:
            _, others, table, (options, *_) = steps[len(first)]
            costs = np.zeros(len(options)) + self.tables.sums(table, tuple([made[u] for u in others]))
            order = np.argsort(costs, kind="stable")
            wait(first, costs - (costs[order[0]] - cost), order, rank)
            return int(order[0])

        if steps and math.isfinite(self.least()):
            choose([], 0.0, 0)
        while heap:
            cost, _, first, costs, order, rank = heapq.heappop(heap)
            wait(first, costs, order, rank + 1)
            chosen = [*first, int(order[rank])]
            for step, option in zip(steps, chosen, strict=False):
                made[step.variable] = option
            while len(chosen) < len(steps):
                step = steps[len(chosen)]
                made[step.variable] = choose(chosen, cost, 1)
                chosen = [*chosen, made[step.variable]]
            yield cost, made.copy()

    # -- dead ends ----------------------------------------------------------------------------------------------------

    def without_dead_ends(self) -> bool:
        """Takes away options that another one is never worse than; whether there were any."""
        found = False
        for v in sorted(self.left):
            if self.sizes[v] > 1 and self.of[v]:
                dead, kept = self._dead_ends(v)
                if dead:
                    found = True
                    options = self.options[v]
                    self.steps += [Dead(v, options[k], options[better]) for k, better in dead]
                    self._keep(v, kept)
        return found

    def _dead_ends(self, v: int) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
        """The options of a variable that go, each with a better one, and those that stay; found once for equal tables."""
        factors = [self.live[f] for f in self.of[v]]
        key = tuple(sorted([(id(self.tables.values[table]), scope.index(v)) for scope, table in factors]))
        found = self.tables.derived.get(key)
        if found is None:
            gain, dead = self._gains(v), []
            alive = np.ones(self.sizes[v], bool)
            for k in range(self.sizes[v] - 1, -1, -1):  # of equals the first stays
                better = np.flatnonzero(alive & (gain[k] >= 0))
                better = better[better != k]
                if len(better):
                    alive[k] = False
                    dead.append((k, int(better[0])))
            found = self.tables.derived[key] = dead, np.flatnonzero(alive)
        return found

    def _gains(self, v: int) -> NDArray[np.float64]:
        """For each pair of options by how much the first costs more than the second at least, whatever others choose."""
        n = self.sizes[v]
        gain, never = np.zeros((n, n)), np.zeros((n, n), bool)
        for f in self.of[v]:
            scope, table = self.live[f]
            if self.tables.values[table].size > n * MOST_COMPARED:
                return np.full((n, n), -np.inf)
            more = self.tables.gains(table, scope.index(v))
            never |= np.isneginf(more)
            gain += np.where(never, 0.0, more)
        gain[never] = -np.inf  # somewhere the second is impossible and the first is not
        return gain

    def _keep(self, v: int, kept: NDArray[np.int64]) -> None:
        self.options[v] = [self.options[v][k] for k in kept]
        self.sizes[v], self._logs[v] = len(kept), math.log(len(kept))
        for f in self.of[v]:
            scope, table = self.live[f]
            self.live[f] = scope, self.tables.some(table, scope.index(v), kept)


def _by_table(entry: tuple[int, int, Scope]) -> tuple[int, int, int]:
    return entry[0], entry[1], len(entry[2])


def cost(tables: Tables, factors: Sequence[tuple[Scope, int]], choice: Sequence[int]) -> float:
    """What a choice costs, in seconds."""
    return math.fsum([tables.exact[table][tuple([choice[v] for v in scope])] for scope, table in factors])
