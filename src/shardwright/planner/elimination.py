"""Elimination: variables are minimised out one after the other, the one that touches the fewest combinations first.

A step replaces the factors of a variable by one over its neighbours: the least over the variable's options of their sum. At the
end a number is left, the least cost of all, and going back over the steps gives the options that attain it. Steps on
equal tables are the same step, so the layers of a program are eliminated once.
"""

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardwright.planner.tables import Tables

MOST = 10.0**7  # combinations of one step
Scope = tuple[int, ...]


class Gone(NamedTuple):
    """A variable that was minimised out: its neighbours then, and the table that replaced its factors."""

    variable: int
    others: Scope
    table: int
    parts: tuple[tuple[int, Scope], ...]  # the tables that were added up, each with the places of its variables


class Elimination:
    """Variables with numbers of options, and factors over them, of which some were minimised out."""

    def __init__(self, tables: Tables, sizes: Sequence[int], factors: Sequence[tuple[Scope, int]]) -> None:
        self.tables, self.sizes = tables, list(sizes)
        count = len(self.sizes)
        self.of: list[dict[int, None]] = [{} for _ in range(count)]  # the factors of each variable
        self.near: list[set[int]] = [set() for _ in range(count)]
        self.live: dict[int, tuple[Scope, int]] = {}
        self.gone: list[Gone] = []
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
            self.near[v].update(scope)
            self.near[v].discard(v)

    def _weight(self, v: int) -> float:
        logs = self._logs
        return logs[v] + sum([logs[u] for u in self.near[v]])

    def run(self, most: float = MOST) -> None:
        """Minimises out all variables that touch no more than so many combinations."""
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
            else:
                for u in self._minimise(v):
                    heapq.heappush(heap, (self._weight(u), u))

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
        self.gone.append(Gone(v, others, table, parts))
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
        return float(sum(self.tables.values[table] for table in self.settled))

    def choice(self, known: "dict[int, int] | None" = None) -> list[int]:
        """The option of each variable that attains the least; those left must be known."""
        picks, made = self.tables.picks, [0] * len(self.sizes)
        for v, option in (known or {}).items():
            made[v] = option
        for v, others, table, _ in reversed(self.gone):
            made[v] = int(picks[table][tuple([made[u] for u in others])])
        return made


def _by_table(entry: tuple[int, int, Scope]) -> tuple[int, int, int]:
    return entry[0], entry[1], len(entry[2])


def cost(tables: Tables, factors: Sequence[tuple[Scope, int]], choice: Sequence[int]) -> float:
    """What a choice costs, in units."""
    return float(np.sum([tables.values[table][tuple([choice[v] for v in scope])] for scope, table in factors]))
