"""`Easing`: the best of plans between one that fits in memory and some that don't.

No price of bytes of inputs may lead to the best plan. So bytes get a price where too much was held; single choices are tried,
several together, inputs at each of their places if these are few, and the quickest choices of a small program in their order.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.deciding import decision_of
from shardwright.planner.elimination import Gone
from shardwright.planner.model import Model
from shardwright.planner.solving import Solution, Solver
from shardwright.program import peak_bytes
from shardwright.program.node import Node
from shardwright.program.planned import partition_by
from shardwright.sharding import Sharding

if TYPE_CHECKING:
    from shardwright.planner.searching import Found, Search

ROUNDING = 1e-9  # of a time
FINE = 1e-2  # of a bound: a plan that is as near needs no better one
EASED = 14  # plans with a price of bytes where too much was held
FAR = 2.0  # times a bound: such a plan is worth some linear programmes
FEW = 4  # plans with a price of bytes where each takes a linear programme
FACTOR = 4.0  # between the first two of these prices
LOOKED = 100  # times as many choices are looked at as are partitioned
WORK = 800  # of what is tried so: plans times variables, so that it takes less than a second
MOST_ENTRIES = 4_000_000  # of the tables of a model whose plans take less than seconds
Given = tuple[Model, int, int]  # a variable of a model and its option
Crowds = Sequence[NDArray[np.float64]]  # what some plans hold at each node


class Easing:
    """Looks for plans of one search, perhaps with more inputs fixed, after some that were tried and don't fit."""

    def __init__(self, search: "Search", more: Mapping[Node, Sharding], tried: "Sequence[Found]") -> None:
        self.search, self.more, self.tried = search, more, tried

    def eased(self, best: "Found") -> "Found":
        """The best plan that is found, or the one that fits."""
        for better in (self._crowded_out, self._by_inputs, self._ranked):
            if best.time > self.tried[0].bound * (1 + FINE):
                best = better(best)
        return best

    def _by_inputs(self, best: "Found") -> "Found":
        """The best of plans with each choice of places for the inputs, where these are few: what is held of them is then known,
        and no price of it leads elsewhere. Inputs that nothing reads lie where they hold least."""
        model, reads = self.search.model, self.search.program.reads
        read = [node for node in model.inputs if reads[node] or node in self.search.program.outputs]
        options = [model.variables[model.inputs[node]].options for node in read if node not in self.more]
        if not 1 < math.prod(map(len, options)) <= rounds_of(best):
            return best
        for choice in product(*options):
            places = dict(zip([node for node in read if node not in self.more], choice, strict=True))
            found = self.search.solved({**self.more, **places}, self.search.limit, mixed=False)
            if found is not None and found.time < best.time * (1 - ROUNDING) and self.search.fits(found):
                best = found
        return best

    def _crowded_out(self, best: "Found") -> "Found":
        """The best of plans where bytes have a price at the nodes where plans that don't fit hold most: a higher one until one
        fits, then a lower one."""
        enough, quickest, last, rounds = self.tried[0].bound * (1 + FINE), best, self.tried[-1], rounds_of(best)
        prices = min(rounds, EASED) or (FEW if best.time > self.tried[0].bound * FAR else 0)
        price = max(best.time - self.tried[0].time, 0.0) / max(self.tried[0].peak - best.peak, 1)
        crowds = [self._crowd(found) for found in self.tried if found.model is last.model]
        factor, fitted = FACTOR, True
        for _ in range(prices):
            if quickest.time <= enough:
                return quickest
            found = self.search.settled(self.more, partial(self._crowded, crowds, price, ()))
            if found is None:
                break
            if (fits := self.search.fits(found)) != fitted:
                factor, fitted = math.sqrt(factor), fits
            if not fits:
                crowds, last = [*crowds, self._crowd(found)], found
            elif found.time < quickest.time * (1 - ROUNDING):
                quickest = found
            price = price / factor if fits else price * factor
        smaller: list[tuple[float, Given]] = []  # choices by which the large plan holds less, with seconds a byte
        for given in self._single(last, quickest, rounds):
            for some in (0.0, price):
                if quickest.time <= enough:
                    return quickest
                found = self.search.settled(self.more, partial(self._crowded, crowds, some, (given,)))
                if found is None or found.time >= quickest.time * (1 - ROUNDING):
                    continue
                if self.search.fits(found):
                    quickest = found
                elif not some and found.peak < self.tried[0].peak:
                    smaller.append(((found.time - self.tried[0].time) / (self.tried[0].peak - found.peak), given))
        cheapest = [given for _, given in sorted(smaller, key=lambda entry: entry[0])]
        for some in (0.0, price):
            quickest = self._together(partial(self._crowded, crowds, some), quickest, cheapest)
        return quickest

    def _together(self, solve: Any, quickest: "Found", smaller: Sequence[Given]) -> "Found":
        """The quickest so far, or the first that fits with ever more of some choices, those that cost least a byte first.

        Alone each of them saves too little.
        """
        given: dict[int, Given] = {}
        for choice in smaller:
            if given.setdefault(choice[1], choice) is not choice or len(given) == 1:
                continue
            found = self.search.settled(self.more, partial(solve, tuple(given.values())))
            if found is None or found.time >= quickest.time * (1 - ROUNDING):
                break
            if self.search.fits(found):
                return found
        return quickest

    def _ranked(self, best: "Found") -> "Found":
        """The best plan of a small program: what may be quicker than a plan is looked at, that which takes least at first."""
        return min([best, *self.first(best.solution.cost)], key=lambda found: found.time)

    def first(self, seconds: float = math.inf) -> "Iterator[Found]":
        """The first plan of a small program that fits, of all in the order of what they take, if that is less than so much."""
        rounds = rounds_of(self.tried[0])
        found = self.search.settled(self.more, partial(self._quicker, seconds, rounds)) if rounds else None
        if found is not None:
            yield found

    def _quicker(self, seconds: float, rounds: int, solver: Solver) -> Solution | None:
        """The quickest choice that fits, if it takes less than so many seconds; so many are partitioned to know."""
        proved = solver.solve(self.search.limit, mixed=False)
        if proved is None:
            return None
        quickest, upper = None, seconds * (1 - ROUNDING)
        for least, choice in islice(solver.ranked(proved.proof.price, self.search.limit, upper), LOOKED * rounds):
            if least >= upper or not rounds:
                break
            cost = solver.seconds(choice)
            if cost < upper and solver.held(choice) <= self.search.limit:
                rounds -= 1
                lowered = partition_by(
                    self.search.program,
                    decision_of(solver.model, choice, self.search.hubs),
                    {**self.search.fixed, **self.more},
                )
                if peak_bytes(lowered, lowered.nodes).peak <= self.search.limit:
                    quickest, upper = choice, cost
        if quickest is None:
            return None
        held = solver.held(quickest)
        return replace(proved, choice=quickest, cost=upper, bound=min(proved.bound, upper), held=held, cheapest=False)

    def _single(self, large: "Found", best: "Found", most: int) -> Sequence[Given]:
        """Choices of a plan that fits which one that is too large doesn't make, and other places of inputs: no price leads to
        plans that are as the large one but for one choice."""
        model, theirs = large.model, large.solution.choice
        ours = best.solution.choice if best.model is model else theirs
        found = [(model, v, k) for v, k in enumerate(ours) if k != theirs[v]]
        found += [
            (model, v, k)
            for v in model.held
            for k in range(len(model.variables[v].options))
            if k not in (ours[v], theirs[v])
        ]
        return found[:: -(-len(found) // most)] if found and most else []

    def _crowded(self, crowds: Crowds, price: float, only: Sequence[Given], solver: Solver) -> Solution | None:
        """The choice of least cost at a price of bytes where some choices held most, perhaps with one option given."""
        model, given = solver.model, list[tuple[tuple[int, ...], int]]()
        for of, v, option in only:
            if of is not model:
                return None
            costs = [0.0 if k == option else math.inf for k in range(len(model.variables[v].options))]
            given.append(((v,), model.tables.seconds(costs)))
        return solver.smallest(self.search.holding(model).crowded(crowds), price, self.search.limit, given)

    def _crowd(self, found: "Found") -> NDArray[np.float64]:
        """What a device holds at each node under a plan."""
        return self.search.holding(found.model).held(found.solution.choice)


def rounds_of(found: "Found") -> int:
    """How many more plans may be tried to ease a limit: none in large programs, whose bound is near, nor where each takes
    seconds, by a linear programme or by tables of meshes of many axes."""
    model = found.model
    wide = any(not isinstance(step, Gone) for step in found.solution.proof.steps)
    entries = sum([np.size(model.tables.values[table]) for table in {table for _, table in model.factors}])
    return 0 if wide or entries > MOST_ENTRIES else WORK // len(model.variables)
