"""Solving a model: the choice of least cost, also where what is held throughout must not exceed a number of bytes.

A limit of memory is a price for every byte held: at a price the best choice is found by elimination, its cost less the price of
the whole limit bounds the cost of every choice within the limit from below, and the price that gives the highest bound
is searched for. Where the best choices at two neighbouring prices lie on both sides of the limit, some inputs get the lower and
the others the higher price.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.planner.elimination import Elimination, Gone, Scope, cost
from shardwright.planner.model import Model
from shardwright.planner.remaining import finished

ROUNDS = 40  # of looking for the price of memory
CLOSE = 1e-4  # a gap below which nothing more is tried


@dataclass
class Proof:
    """What shows that no choice is better: the steps of the elimination, and the price of memory."""

    gone: list[Gone]
    tables: dict[int, object]  # the tables that steps left, by number
    price: float  # seconds a byte
    budget: float  # bytes
    bound: float  # seconds


@dataclass
class Solution:
    """A choice, what it costs in seconds, a bound of what any costs, and the bytes held throughout."""

    choice: list[int]
    cost: float
    bound: float
    held: int
    proof: Proof


class Solver:
    """Solves one model again and again: with other prices of memory, and with more factors."""

    def __init__(self, model: Model, more: Sequence[tuple[Scope, int]] = ()) -> None:
        self.model, self.tables = model, model.tables
        self.factors = [*model.factors, *more]
        self.sizes = [len(variable.options) for variable in model.variables]
        self._run: Elimination | None = None

    def held(self, choice: Sequence[int]) -> int:
        """Bytes that a device holds of inputs and constants."""
        return sum(some[choice[variable]] for variable, some in self.model.held.items())

    def _eliminated(self, kinds: Sequence[int]) -> Elimination:
        """The elimination with a price of memory for each input; `kinds` says which."""
        priced = [((v,), self.tables.bytes(some, kind)) for kind, (v, some) in zip(kinds, self.model.held.items(), strict=True)]
        run = Elimination(self.tables, self.sizes, [*self.factors, *priced])
        run.run()
        return run

    def _at(self, run: Elimination, *prices: float) -> tuple[list[int], float]:
        """The best choice at prices of memory, and its cost with them, in seconds."""
        self.tables.set_prices(*prices)
        choice, least = finished(run)
        return choice, least * self.tables.unit

    def seconds(self, choice: Sequence[int]) -> float:
        """What a choice costs."""
        return cost(self.tables, self.factors, choice) * self.tables.unit

    def solve(self, budget: float = math.inf) -> Solution | None:
        """The best choice that holds no more than so many bytes; None if there is none."""
        run = self._eliminated([0] * len(self.model.held))
        choice, least = self._at(run, 0.0, 0.0)
        if math.isinf(least):
            return None
        if self.held(choice) <= budget:
            return self._solution(run, choice, least, 0.0, budget)
        return self._within(run, budget, least)

    def _solution(self, run: Elimination, choice: list[int], bound: float, price: float, budget: float) -> Solution:
        self.tables.set_prices(price, price)
        needed = {gone.table for gone in run.gone} | {table for _, table in run.live.values()}
        tables = {number: self.tables.values[number] for number in needed}
        proof = Proof(run.gone, tables, price, budget, bound)
        return Solution(choice, self.seconds(choice), bound, self.held(choice), proof)

    def least_held(self) -> list[int]:
        """The choice that holds least, whatever it costs."""
        run = self._eliminated([0] * len(self.model.held))
        most = sum(max(some) for some in self.model.held.values())
        return self._at(run, 1e6 / max(most, 1), 0.0)[0]

    def _within(self, run: Elimination, budget: float, least: float) -> Solution | None:
        if sum(min(some) for some in self.model.held.values()) > budget:
            return None
        low, high = 0.0, max(least, 1e-9) / max(budget, 1.0)
        bound, at = least, 0.0
        best: tuple[float, list[int]] | None = None
        for _ in range(ROUNDS):  # a price that is high enough
            choice, value = self._at(run, high, 0.0)
            if value - high * budget > bound:
                bound, at = value - high * budget, high
            if self.held(choice) <= budget:
                best = self.seconds(choice), choice
                break
            low, high = high, high * 8
        if best is None:
            return None
        for _ in range(ROUNDS):
            if best[0] <= bound * (1 + CLOSE) or high <= low * (1 + 1e-6):
                break
            price = math.sqrt(low * high) if low else high / 64
            choice, value = self._at(run, price, 0.0)
            if value - price * budget > bound:
                bound, at = value - price * budget, price
            if self.held(choice) <= budget:
                best, high = min(best, (self.seconds(choice), choice)), price
            else:
                low = price
        if best[0] > bound * (1 + CLOSE):
            best = min(best, self._mixed(budget, low, high, best))
        run = self._eliminated([0] * len(self.model.held))
        return self._solution(run, best[1], bound, at, budget)

    def _mixed(self, budget: float, low: float, high: float, best: tuple[float, list[int]]) -> tuple[float, list[int]]:
        """The best with a low price for the first inputs and a high one for the rest: memory in steps of an input."""
        first, last = 0, len(self.model.held)
        while last - first > 1:
            middle = (first + last) // 2
            kinds = [0 if at < middle else 1 for at in range(len(self.model.held))]
            run = self._eliminated(kinds)
            choice, _ = self._at(run, low, high)
            if self.held(choice) <= budget:
                best, first = min(best, (self.seconds(choice), choice)), middle
            else:
                last = middle
        return best
