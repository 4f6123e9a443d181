"""Solving a model: the choice of least cost, also where what is held throughout must not exceed a number of bytes.

A limit of memory is a price for every byte held: at a price the best choice is found by elimination, its cost less the price of
the whole limit bounds the cost of every choice within the limit from below, and the price that gives the highest bound
is searched for. Where the best choices at two neighbouring prices lie on both sides of the limit, some inputs get the lower and
the others the higher price.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.elimination import Elimination, Gone, Scope, cost
from shardwright.planner.model import Model
from shardwright.planner.remaining import Result, Step, finished

ROUNDS = 40  # of looking for the price of memory
CLOSE = 1e-4  # a gap below which nothing more is tried
FAR = 1e-2  # a gap above which prices that differ more are tried
SPREADS = (1, 4, 64)  # how far apart the two prices are: moves between layers of different placements must pay


@dataclass
class Proof:
    """What shows that no choice is better: what was done to the factors, the tables that steps left, the price of memory."""

    steps: list[Step]
    tables: dict[int, NDArray[np.float64]]  # by number, in units
    price: float  # seconds a byte
    budget: float  # bytes
    unit: float  # seconds


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

    def held(self, choice: Sequence[int]) -> int:
        """Bytes that a device holds of inputs and constants."""
        return sum(some[choice[variable]] for variable, some in self.model.held.items())

    def _factors(self, kinds: Sequence[int]) -> list[tuple[Scope, int]]:
        """All factors, with a price of memory for each input; `kinds` says which."""
        held = zip(kinds, self.model.held.items(), strict=True)
        return [*self.factors, *(((v,), self.tables.bytes(some, kind)) for kind, (v, some) in held)]

    def _prepared(self, kinds: Sequence[int]) -> "Callable[..., Result]":
        """What solves the model at prices of memory: the steps of an elimination serve all prices."""
        factors = self._factors(kinds)
        run = Elimination(self.tables, self.sizes, factors)
        run.run()

        def solved(*prices: float) -> Result:
            self.tables.set_prices(*prices)
            if run.left:
                return finished(self.tables, list(self.sizes), factors)
            return Result(run.choice(), run.least(), run.least(), [*run.steps])

        return solved

    def seconds(self, choice: Sequence[int]) -> float:
        """What a choice costs."""
        return cost(self.tables, self.factors, choice)

    def solve(self, budget: float = math.inf) -> Solution | None:
        """The best choice that holds no more than so many bytes; None if there is none."""
        solved = self._prepared([0] * len(self.model.held))
        first = solved(0.0, 0.0)
        if math.isinf(first.least):
            return None
        if self.held(first.choice) <= budget:
            return self._solution(first, first.choice, 0.0, budget)
        return self._within(solved, budget, first.bound * self.tables.unit)

    def _solution(self, proved: Result, choice: list[int], price: float, budget: float) -> Solution:
        """A choice with the proof of a bound, which is that of the last prices."""
        numbers = {step.table for step in proved.steps if isinstance(step, Gone)}
        tables = {number: self.tables.values[number] for number in numbers}
        proof = Proof(proved.steps, tables, price, budget, self.tables.unit)
        dual = proved.bound * self.tables.unit - (price * budget if price else 0.0)
        seconds = self.seconds(choice)
        return Solution(choice, seconds, min(dual, seconds), self.held(choice), proof)

    def least_held(self) -> list[int]:
        """The choice that holds least, whatever it costs."""
        most = sum(max(some) for some in self.model.held.values())
        return self._prepared([0] * len(self.model.held))(1e6 / max(most, 1), 0.0).choice

    def _within(self, solved: "Callable[..., Result]", budget: float, least: float) -> Solution | None:
        if sum(min(some) for some in self.model.held.values()) > budget:
            return None
        low, high = 0.0, max(least, 1e-9) / max(budget, 1.0)
        bound, at = least, 0.0
        best: tuple[float, list[int]] | None = None

        def tried(price: float) -> list[int]:
            nonlocal bound, at, best
            found = solved(price, 0.0)
            dual = found.bound * self.tables.unit - price * budget
            if dual > bound:
                bound, at = dual, price
            if self.held(found.choice) <= budget:
                taken = self.seconds(found.choice), found.choice
                best = taken if best is None else min(best, taken)
            return found.choice

        for _ in range(ROUNDS):  # a price that is high enough
            if self.held(tried(high)) <= budget:
                break
            low, high = high, high * 8
        if best is None:
            return None
        for _ in range(ROUNDS):
            if best[0] <= bound * (1 + CLOSE) or high <= low * (1 + 1e-6):
                break
            price = math.sqrt(low * high) if low else high / 64
            if self.held(tried(price)) <= budget:
                high = price
            else:
                low = price
        for spread in SPREADS:
            if best[0] > bound * (1 + (CLOSE if spread == 1 else FAR)):
                best = self._mixed(budget, low / spread, high * spread, best)
        return self._solution(solved(at, 0.0), best[1], at, budget)

    def _mixed(self, budget: float, low: float, high: float, best: tuple[float, list[int]]) -> tuple[float, list[int]]:
        """The best with a low price for the first inputs and a high one for the rest: memory in steps of an input."""
        first, last = 0, len(self.model.held)
        while last - first > 1:
            middle = (first + last) // 2
            choice = self._prepared([0 if at < middle else 1 for at in range(len(self.model.held))])(low, high).choice
            if self.held(choice) <= budget:
                best, first = min(best, (self.seconds(choice), choice)), middle
            else:
                last = middle
        return best
