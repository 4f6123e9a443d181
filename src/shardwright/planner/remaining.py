"""What is left of a model that is too wide to eliminate: dead ends are removed, then a linear programme is solved, and where
that has fractions, one variable after the other is fixed (branching).

The linear programme has a variable for each option and for each combination of options of a factor; its dual values say by how
much each factor passes costs on to its variables, so that what is left of every table is at least 0: a proof of the bound.
"""

import heapq
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import PlanError
from shardwright.planner.elimination import MOST, Dead, Elimination, Gone, Scope
from shardwright.planner.tables import Tables

MOST_BRANCHES = 2000
WHOLE = 1e-6  # how far from 0 or 1 a value of the linear programme may be and count as such


class Shift(NamedTuple):
    """What a factor over some variables passes on to each of them: added there, taken away here."""

    scope: Scope
    given: tuple[NDArray[np.float64], ...]  # for each variable, by option


Step = Gone | Dead | Shift


class Result(NamedTuple):
    """The best choice, its cost, a bound of all costs, in units, and the steps that prove the bound."""

    choice: list[int]
    least: float
    bound: float
    steps: list[Step]


def finished(tables: Tables, sizes: list[int], factors: list[tuple[Scope, int]], most: float = MOST) -> Result:
    """The best choice for variables of some sizes under factors that are too wide to minimise out as they are."""
    run = Elimination(tables, sizes, factors)
    while True:  # leaves factors of two variables
        dead = run.without_dead_ends()
        gone = run.run(most, degree=2)
        if not dead and not gone:
            break
    if _narrow(run, most):
        run.run(most)
    if not run.left:
        return Result(run.choice(), run.least(), run.least(), [*run.steps])
    return _Branching(run).solved()


def _narrow(run: Elimination, most: float) -> bool:
    """Whether all that is left can be minimised out; looked at on the side."""
    near = {v: set(run.near[v]) & run.left for v in run.left}
    logs = {v: math.log(run.sizes[v]) for v in run.left}

    def weight(v: int) -> float:
        return logs[v] + sum([logs[u] for u in near[v]])

    heap = [(weight(v), v) for v in near]
    heapq.heapify(heap)
    while heap:
        known, v = heapq.heappop(heap)
        if v not in near or (now := weight(v)) > known + 1e-9:  # it has another entry
            continue
        if now > math.log(most) + 1e-9:
            return False
        around = near.pop(v)
        for u in around:
            near[u] |= around
            near[u] -= {u, v}
        for u in around:
            heapq.heappush(heap, (weight(u), u))
    return True


class _Branching:
    """The linear programme of what is left, and the search where its solution has fractions."""

    def __init__(self, run: Elimination) -> None:
        self.run, self.tables = run, run.tables
        self.left = sorted(run.left)
        self.live = [(scope, np.asarray(self.tables.values[table], float)) for scope, table in run.live.values()]
        self.scale = max((float(t[np.isfinite(t)].max(initial=0.0)) for _, t in self.live), default=0.0) or 1.0

    def solved(self) -> Result:
        """The best choice."""
        first = self._relaxed({})
        if first is None:
            return Result([], math.inf, math.inf, [])
        bound, values, shifts = first
        best = math.inf, {}  # type: tuple[float, dict[int, int]]
        stack: list[tuple[float, dict[int, int], dict[int, NDArray[np.float64]]]] = [(bound, {}, values)]
        branches = 0
        while stack:
            stack.sort(key=lambda entry: -entry[0])
            low, fixed, found = stack.pop()
            if low >= best[0] * (1 - 1e-12):
                continue
            rounded = {v: int(np.argmax(found[v])) for v in self.left}
            value = self._cost(rounded)
            if value < best[0]:
                best = value, rounded
            split = [v for v in self.left if found[v].max() < 1 - WHOLE]
            if not split:
                continue
            v = min(split, key=lambda v: (float(found[v].max()), v))
            for option in range(self.run.sizes[v]):
                branches += 1
                if branches > MOST_BRANCHES:
                    stack.clear()
                    break
                more = self._relaxed({**fixed, v: option})
                if more is not None and more[0] < best[0]:
                    stack.append((more[0], {**fixed, v: option}, more[1]))
        settled = sum(float(self.tables.values[t]) for t in self.run.settled) + self.run.shifted()
        choice = self.run.choice({v: self.run.options[v][at] for v, at in best[1].items()})
        return Result(choice, best[0] + settled, bound + settled, [*self.run.steps, *shifts])

    def _cost(self, choice: dict[int, int]) -> float:
        return float(sum(table[tuple(choice[v] for v in scope)] for scope, table in self.live))

    def _relaxed(self, fixed: dict[int, int]) -> "tuple[float, dict[int, NDArray[np.float64]], list[Shift]] | None":
        """The least of the linear programme, the weight of each option, and what factors pass on; None if impossible."""
        highs, coo = _scipy()
        at: dict[int, int] = {}
        count = 0
        for v in self.left:
            at[v] = count
            count += self.run.sizes[v]
        costs, upper = [np.zeros(count)], [np.ones(count)]
        for v, option in fixed.items():
            upper[0][at[v] : at[v] + self.run.sizes[v]] = 0.0
            upper[0][at[v] + option] = 1.0
        rows: list[NDArray[Any]] = []
        columns: list[NDArray[Any]] = []
        weights: list[NDArray[Any]] = []
        right: list[float] = []
        line = 0
        for v in self.left:
            n = self.run.sizes[v]
            rows.append(np.full(n, line))
            columns.append(at[v] + np.arange(n))
            weights.append(np.ones(n))
            right.append(1.0)
            line += 1
        owners: list[tuple[Scope, list[tuple[int, int]]]] = []  # of factors: for each variable its lines
        for scope, table in self.live:
            finite = np.isfinite(table)
            if len(scope) == 1:
                costs[0][at[scope[0]] : at[scope[0]] + table.size] += np.where(finite, table, 0.0) / self.scale
                upper[0][at[scope[0]] : at[scope[0]] + table.size] *= finite
                continue
            start = count
            count += table.size
            costs.append(np.where(finite, table, 0.0).ravel() / self.scale)
            upper.append(finite.ravel().astype(float))
            index = start + np.arange(table.size).reshape(table.shape)
            own = []
            for axis, v in enumerate(scope):
                n = table.shape[axis]
                entries = np.moveaxis(index, axis, 0).reshape(n, -1)
                width = entries.shape[1]
                rows += [np.repeat(line + np.arange(n), width), line + np.arange(n)]
                columns += [entries.ravel(), at[v] + np.arange(n)]
                weights += [np.ones(n * width), -np.ones(n)]
                right += [0.0] * n
                own.append((line, n))
                line += n
            owners.append((scope, own))
        matrix = coo(
            (np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns))), shape=(line, count)
        ).tocsc()
        limits = np.concatenate(upper)
        solved = highs(
            np.concatenate(costs),
            A_eq=matrix,
            b_eq=np.array(right),
            bounds=np.c_[np.zeros(count), limits],
            method="highs",
        )
        if solved.status == 2:  # infeasible
            return None
        if solved.status != 0:
            raise PlanError(f"SciPy's HiGHS did not solve the linear programme of this plan: {solved.message}")
        values = {v: solved.x[at[v] : at[v] + self.run.sizes[v]] for v in self.left}
        duals = solved.eqlin.marginals * self.scale
        shifts = [Shift(scope, tuple(np.floor(duals[start : start + n]) for start, n in own)) for scope, own in owners]
        return self._proved(shifts, fixed), values, shifts

    def _proved(self, shifts: list[Shift], fixed: dict[int, int]) -> float:
        """The bound that factors prove after what they pass on: the least of each, among options that are open."""
        own = {v: np.zeros(self.run.sizes[v]) for v in self.left}
        pairs = iter(shifts)
        total = 0.0
        for scope, table in self.live:
            if len(scope) == 1:
                own[scope[0]] += table
                continue
            rest = table.copy()
            for axis, (v, given) in enumerate(zip(scope, next(pairs).given, strict=True)):
                view = [1] * table.ndim
                view[axis] = len(given)
                rest -= given.reshape(view)
                own[v] += given
            part = tuple([slice(fixed[v], fixed[v] + 1) if v in fixed else slice(None) for v in scope])
            total += float(rest[part].min())
        return total + sum(float(some[fixed[v]] if v in fixed else some.min()) for v, some in own.items())


def _scipy() -> Any:
    """HiGHS and sparse matrices; needed only for programs too wide to eliminate."""
    try:
        from scipy.optimize import linprog
        from scipy.sparse import coo_matrix
    except ModuleNotFoundError as error:
        raise PlanError(
            "This program is too wide to be planned by elimination alone. Run: pip install 'shardwright[plan]', which "
            "brings SciPy's solver of linear programmes."
        ) from error
    return linprog, coo_matrix
