"""Solving a model: the choice of least cost, also where what is held throughout must not exceed a number of bytes.

A limit of memory is a price for every byte held: at a price the best choice is found by elimination, its cost less the price of
the whole limit bounds the cost of every choice within the limit from below, and the price that gives the highest bound
is searched for. Where the best choices at two neighbouring prices lie on both sides of the limit, some inputs get the lower and
the others the higher price.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.plan import has_floors
from shardwright.planner.elimination import MOST_OF_MANY, Elimination, Gone, Scope, cost
from shardwright.planner.model import Model
from shardwright.planner.remaining import Result, Step, finished

ROUNDS = 40  # of looking for the price of memory
CLOSE = 1e-4  # a gap below which nothing more is tried
# How far apart the two prices are that some inputs and the rest get, and the gap above which that is tried. Where layers lie
# differently, values move between them, which prices that hardly differ never pay for.
Sizes = Sequence[tuple[Scope, Any]]  # factors in bytes
SPREADS = {1 + 1e-7: CLOSE, 4.0: CLOSE, 64.0: 1e-2}


@dataclass
class Proof:
    """What shows that no choice is better: what was done to the factors, the tables that steps left, the price of memory."""

    steps: list[Step]
    tables: dict[int, NDArray[np.float64]]  # by number, in units
    shifts: dict[
        int, float
    ]  # by number: what a step takes off every entry of its table and adds to the bound, in units
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
    cheapest: bool = True  # whether it was looked for by its cost: then no move counts that another makes too


class Solver:
    """Solves one model again and again: with other prices of memory, and with more factors."""

    def __init__(
        self, model: Model, more: Sequence[tuple[Scope, int]] = (), order: Sequence[int] | None = None
    ) -> None:
        self.model, self.tables = model, model.tables
        self.order = (
            order  # in which all variables were minimised out before, which further factors of them don't change
        )
        self.factors = [*model.factors, *more]
        self.sizes = [len(variable.options) for variable in model.variables]
        self._most = {"most": MOST_OF_MANY} if has_floors(model.program.mesh) else {}
        self.wide = False  # too wide to minimise all variables out, which is the same for all prices
        self._solutions: dict[tuple[float, bool], Solution | None] = {}  # by budget, and whether prices were mixed
        self.tried: list[tuple[float, int, list[int]]] = []  # choices: seconds, bytes held; the first at no price

    def held(self, choice: Sequence[int]) -> int:
        """Bytes that a device holds of inputs and constants."""
        return sum(some[choice[variable]] for variable, some in self.model.held.items())

    def _prepared(
        self, kinds: Sequence[int], sizes: Sizes, only: Sequence[tuple[Scope, int]] = ()
    ) -> "Callable[..., Result]":
        """What solves the model at prices of the bytes that options take; `kinds` says which price is whose. The steps of an
        elimination serve all prices."""
        priced = zip(kinds, sizes, strict=True)
        factors = [*self.factors, *only, *((scope, self.tables.bytes(some, kind)) for kind, (scope, some) in priced)]
        count = len(self.tables.values)
        run = Elimination(self.tables, self.sizes, factors, self.order)
        if not self.wide:
            run.run(**self._most)
            self.wide = bool(run.left)
        if not self.wide and self.order is None:
            self.order = [step.variable for step in run.gone]

        def solved(*prices: float) -> Result:
            if self.wide:  # dead ends depend on prices, and so does all that follows from them
                self.tables.forget(count)
            self.tables.set_prices(*prices)
            if self.wide:
                return finished(self.tables, list(self.sizes), factors, **self._most)
            return Result(run.choice(), run.least(), run.least(), [*run.steps])

        return solved

    def seconds(self, choice: Sequence[int]) -> float:
        """What a choice costs."""
        return cost(self.tables, self.factors, choice)

    def solve(self, budget: float = math.inf, mixed: bool = True) -> Solution | None:
        """The best choice that holds no more than so many bytes; None if every choice holds more. Without mixed prices the
        bound is the same, and the choice may hold less than it may."""
        if (budget, mixed) not in self._solutions:
            self._solutions[budget, mixed] = self._best_within(budget, mixed)
        return self._solutions[budget, mixed]

    def _best_within(self, budget: float, mixed: bool) -> Solution | None:
        solved = self._solved
        if not self.tried or self.tried[0][1] <= budget:
            first = self._try(solved, 0.0)
            if math.isinf(first.least):
                return None
            if self.held(first.choice) <= budget:
                return self._solution(first, first.choice, 0.0, budget)
        return self._within(solved, budget, mixed)

    @cached_property
    def _solved(self) -> "Callable[..., Result]":
        return self._prepared([0] * len(self.model.held), self._sizes)

    @cached_property
    def _sizes(self) -> Sizes:
        return [((v,), some) for v, some in self.model.held.items()]

    def _solution(self, proved: Result, choice: list[int], price: float, budget: float) -> Solution:
        """A choice with the proof of a bound, which is that of the last prices."""
        numbers = {step.table for step in proved.steps if isinstance(step, Gone)}
        tables = {number: self.tables.values[number] for number in numbers}
        shifts = {number: self.tables.shifts[number] for number in numbers}
        proof = Proof(proved.steps, tables, shifts, price, budget, self.tables.unit)
        dual = proved.bound * self.tables.unit - (price * budget if price else 0.0)
        seconds = self.seconds(choice)
        proved_best = not price and proved.bound == proved.least  # costs are rounded to units
        return Solution(choice, seconds, seconds if proved_best else min(dual, seconds), self.held(choice), proof)

    def smallest(
        self,
        sizes: Sizes,
        price: float | None = None,
        budget: float = math.inf,
        only: Sequence[tuple[Scope, int]] = (),
    ) -> Solution | None:
        """The choice whose options take least in sum, whatever it costs, or of least cost if a byte has a price, perhaps with
        more factors; its bound is that of all choices within a budget."""
        best = self.solve(budget, mixed=False)
        if best is None:
            return None
        most, count = sum(float(np.max(some)) for _, some in sizes), len(self.tables.values)
        found = self._prepared([0] * len(sizes), sizes, only)(1e6 / max(most, 1) if price is None else price, 0.0)
        self.tables.forget(count)
        if math.isinf(found.least):
            return None
        seconds, held = self.seconds(found.choice), self.held(found.choice)
        return replace(
            best, choice=found.choice, cost=seconds, bound=min(best.bound, seconds), held=held, cheapest=False
        )

    def ranked(self, price: float, budget: float, most: float) -> Iterator[tuple[float, list[int]]]:
        """Choices, each with seconds that it takes at least if it holds no more than a budget, the fewest first, until that is
        more than so many. None where the model is too wide to minimise all variables out."""
        if self.wide:
            return
        sizes = [(scope, self.tables.bytes(some)) for scope, some in self._sizes]
        run = Elimination(self.tables, self.sizes, [*self.factors, *sizes], self.order)
        run.run(**self._most)
        if run.left:
            return
        self.tables.set_prices(price, price)
        unit, paid = self.tables.unit, price * budget if price else 0.0
        least = run.least() * unit - paid
        for extra, choice in run.ranked((most - least) / unit + len(self.factors)):  # costs are rounded to units
            yield least + extra * unit, choice

    def _within(self, solved: "Callable[..., Result]", budget: float, mixed: bool) -> Solution | None:
        """Where the lines that two choices make over the price of memory cross lies the next price to try: a choice below both
        lines there takes the place of one of them, and if no choice is, no price gives a higher bound."""
        if sum(min(some) for some in self.model.held.values()) > budget:
            return None
        most = sum(max(some) for some in self.model.held.values())
        price = max(min(self.tried)[0], 1e-9) * 1e3 / max(most, 1)
        for high in (price, price * 1e6):
            if min(held for _, held, _ in self.tried) > budget:
                self._try(solved, high)
        if min(held for _, held, _ in self.tried) > budget:
            return None
        bound, at = -math.inf, 0.0
        for _ in range(ROUNDS):
            crossing, price = self._crossing(budget)
            found = self._try(solved, price)
            dual = found.bound * self.tables.unit - price * budget
            if dual > bound:
                bound, at = dual, price
            best, (seconds, held, _) = self._best(budget), self.tried[-1]
            lowest = seconds + price * (held - budget)
            if best[0] <= bound * (1 + CLOSE) or lowest >= crossing - 1e-12 * abs(crossing):
                break
        for spread, gap in SPREADS.items() if mixed else ():
            if best[0] > bound * (1 + gap):
                best = self._mixed(budget, at / spread, at * spread, best)
        return self._solution(solved(at, at), best[1], at, budget)

    def _try(self, solved: "Callable[..., Result]", price: float) -> Result:
        found = solved(price, price)
        if found.choice:
            self.tried.append((self.seconds(found.choice), self.held(found.choice), found.choice))
        return found

    def _best(self, budget: float) -> tuple[float, list[int]]:
        """The quickest of the choices tried that hold no more than so many bytes."""
        seconds, _, choice = min(entry for entry in self.tried if entry[1] <= budget)
        return seconds, choice

    def _crossing(self, budget: float) -> tuple[float, float]:
        """The highest bound for a budget if there were only the choices tried, and its price of a byte."""
        within, above = ([e for e in self.tried if (e[1] > budget) == more] for more in (False, True))
        prices = {max((a[0] - b[0]) / (b[1] - a[1]), 0.0) for a in within for b in above}
        return max((min([s + price * (held - budget) for s, held, _ in self.tried]), price) for price in prices)

    def _mixed(self, budget: float, low: float, high: float, best: tuple[float, list[int]]) -> tuple[float, list[int]]:
        """The best with a low price for the first inputs and a high one for the rest: memory in steps of an input.

        How many get the low price is guessed from the choices at both prices, and looked for from there in growing steps; not
        where all inputs change place at once.
        """
        held, count = list(self.model.held.items()), len(self.tables.values)
        for price in (low, high) if not self.wide else ():  # else what was tried must do: each takes a linear programme
            self._try(self._solved, price)
        ends = [min(self.tried, key=lambda entry: entry[0] + price * entry[1])[2] for price in (low, high)]
        less, more = (np.array([some[choice[v]] for v, some in held], float) for choice in ends[::-1])
        guess = min(
            max(int(np.searchsorted(np.cumsum(more - less), budget - less.sum(), side="right")), 1), len(held) - 1
        )
        first, last, step = 0, len(held), 1
        while last - first > 1:
            middle = guess if first < guess < last else (first + last) // 2
            self.tables.forget(count)
            choice = self._prepared([0 if at < middle else 1 for at in range(len(held))], self._sizes)(low, high).choice
            if self.held(choice) <= budget:
                best, first, guess = min(best, (self.seconds(choice), choice)), middle, middle + step
            else:
                last, guess = middle, middle - step
            if choice in ends:
                break
            step *= 2
        self.tables.forget(count)
        return best
