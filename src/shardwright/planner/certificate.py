"""`Certificate`: what proves that no plan of a program takes less than a bound, and its check.

The check shares no code with the search. It goes through the program, prices every strategy and every move itself, and then
follows the steps that the certificate lists: each may only make what is left cost less, so the number that is left at the
end bounds the cost of every plan. A step that claims too much is an error; a certificate for other steps, tables, prices or
another bound than it proves is rejected.

The steps: a variable is minimised out, and a table over its neighbours and a number take the place of its factors (`Gone`); an
option is taken away since another is never worse (`Dead`); a factor passes costs on to its variables (`Shift`). What is
left counts with its least entry. Variables are minimised out many at a time: which step a factor goes to is the first that
names one of its variables, and steps on equal tables are checked once.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import PlanError
from shardwright.planner.repricing import Costs, Scope, Table
from shardwright.program.node import Node, Program
from shardwright.sharding import Sharding

Ints = NDArray[np.int64]
Parts = list[tuple[int, list[int]]]  # factors of a variable: tables by number, each with the places of its variables
ROUNDING = 1e-9  # of the bound
AT_ONCE = 100_000  # entries of a sum; larger ones are made one option at a time
MOST_UNIT, TINY = 1e-9, 1e-3  # a unit of more than this part of the bound, or of a millisecond, proves little


@dataclass(frozen=True)
class Certificate:
    """The proof of a bound: for a program, where what is fixed lies, and a budget of bytes for inputs and constants."""

    program: Program
    fixed: Mapping[Node, Sharding]
    outputs: Sequence[Sharding | None]
    hubs: Mapping[tuple[Node, int], Sequence[tuple[Node, int]]]  # places for some readers of a value
    exact: Container[Any]  # moves over unequal blocks that count with their price; others with what they take at least
    limit: float  # bytes that a device holds at most of a step's operands and results, beside the smallest inputs
    steps: Sequence[Any]
    tables: Mapping[int, Table]  # in units
    shifts: Mapping[int, float]  # by table: what every entry of it leaves out, in units
    unit: float  # seconds
    price: float  # seconds a byte of inputs and constants
    budget: float  # bytes
    bound: float  # seconds

    def check(self) -> bool:
        """True if the bound holds; PlanError says which step does not."""
        if not self.price >= 0:
            raise PlanError(f"The certificate has a price of memory of {self.price} s a byte, which is negative.")
        checker = _Checker(self)
        proved = checker.proved()
        rounding = 2 * len(checker.costs.scopes) * self.unit  # every cost counts in whole units
        if not proved >= self.bound * (1 - ROUNDING) - rounding or not 0 < self.unit < MOST_UNIT * max(
            self.bound, TINY
        ):
            raise PlanError(
                f"The certificate claims that no plan takes less than {self.bound} s, and proves {proved} s."
            )
        return True


class _Checker:
    """Follows the steps of a certificate on factors of its own."""

    def __init__(self, about: Certificate) -> None:
        self.about, self.costs = about, Costs(about)
        self.counts = np.array(self.costs.counts, np.int64)
        self.tables: list[Table] = list(self.costs.tables)
        self.scopes: list[Scope] = self.costs.scopes  # of the factors that are left, and their tables by number
        self.uses: list[int] = self.costs.uses
        self.given = 0.0  # units that rounding may have taken
        self._messages: dict[Any, int] = {}
        self._left: dict[int, NDArray[np.bool_]] = {}  # of variables that lost options: which are left

    def proved(self) -> float:
        """Seconds that no plan within the budget takes less than."""
        total = 0.0
        for kind, steps in groupby(self.about.steps, key=lambda step: type(step).__name__):
            if kind == "Gone":
                total += self._minimised(list(steps))
            elif kind == "Dead":
                self._without_all(list(steps))
            elif kind == "Shift":
                self._shift_all(list(steps))
            else:
                raise PlanError(f"The certificate has a step of an unknown kind: {next(steps)!r}.")
        own: dict[int, list[int]] = {}
        for scope, table in zip(self.scopes, self.uses, strict=True):  # what is left counts with its least entry
            if len(scope) == 1:  # that of one variable together
                own.setdefault(scope[0], []).append(table)
            else:
                total += float(self._open(scope, self.tables[table]).min())
        for v, some in own.items():
            total += float(self._open((v,), np.sum([self.tables[t] for t in some], axis=0)).min())
        price = self.about.price
        dual = (total - self.given) * self.about.unit - (price * self.about.budget if price else 0.0)
        return dual + self.costs.constant

    def _kept(self, table: Table) -> int:
        self.tables.append(table)
        return len(self.tables) - 1

    def _open(self, scope: Sequence[int], table: Table) -> Table:
        """A table with options that were taken away impossible."""
        for axis, v in enumerate(scope):
            if v in self._left:
                view = [1] * table.ndim
                view[axis] = -1
                table = np.where(self._left[v].reshape(view), table, np.inf)
        return table

    # -- variables that are minimised out -----------------------------------------------------------------------------

    def _minimised(self, steps: list[Any]) -> float:
        """Tables take the places of the factors of variables, one after the other: nowhere may one be more than the least of
        their sum. The units that are settled by it."""
        count, local = len(steps), _Local(steps, self.counts)
        messages = [self._message(step) for step in steps]
        scopes = [*self.scopes, *[tuple(step.others) for step in steps]]
        uses = np.array([*self.uses, *[number for number, _ in messages]], np.int64)
        step_of, codes, places, starts = local.assigned(scopes, uses, len(self.scopes))
        order = np.lexsort((codes, step_of))
        bounds = np.searchsorted(step_of[order], np.arange(count + 1)).tolist()
        content, sizes = codes[order].tobytes(), self.counts[local.flat].tobytes()
        masks = {v: left.tobytes() for v, left in self._left.items()}
        seen: dict[Any, float] = {}
        total = 0.0
        for at, (step, (table, shift)) in enumerate(zip(steps, messages, strict=True)):
            first, last, begin, end = bounds[at], bounds[at + 1], local.starts[at], local.starts[at + 1]
            left = tuple([masks.get(u) for u in (step.variable, *step.others)]) if masks else ()
            key = table, shift, content[8 * first : 8 * last], sizes[8 * begin : 8 * end], left
            slack = seen.get(key)
            if slack is None:
                parts = [(int(uses[f]), places[starts[f] : starts[f + 1]].tolist()) for f in order[first:last]]
                slack = seen[key] = self._slack([step.variable, *step.others], parts, table, shift)
                if not slack <= len(parts) + 1:
                    raise PlanError(
                        f"The certificate claims too much where it minimises out variable {step.variable}: by {slack} units."
                    )
            self.given += max(slack, 0.0)
            total += shift if step.others else shift + float(self.tables[table])
        kept = [f for f in np.flatnonzero(step_of == count).tolist() if scopes[f]]
        self.scopes, self.uses = [scopes[f] for f in kept], uses[kept].tolist()
        return total

    def _message(self, step: Any) -> tuple[int, float]:
        """The table that a step leaves, with all options of its variables, and what its entries leave out."""
        given, shift = self.about.tables.get(step.table), float(self.about.shifts.get(step.table, math.nan))
        if given is None:
            raise PlanError(f"The certificate has no table {step.table}, which a step leaves.")
        options = tuple([tuple(some) for some in step.options[1:]]) if self._left else ()
        key = id(given), options  # equal steps have one array
        found = self._messages.get(key)
        if found is None:
            table = np.asarray(given, float)
            if self._left:
                full = np.full([self.costs.counts[u] for u in step.others], np.inf)
                full[np.ix_(*options)] = table
                table = full
            found = self._messages[key] = self._kept(table)
        return found, shift

    def _slack(self, scope: list[int], parts: Parts, number: int, shift: float) -> float:
        """By how much a message exceeds the least of what it stands for, at most."""
        sizes = [self.costs.counts[u] for u in scope]
        message = self.tables[number]
        if message.shape != tuple(sizes[1:]):
            raise PlanError(
                f"The certificate has a table of {message.shape} entries where variables {scope[1:]} have {sizes[1:]} options."
            )
        views = []
        for table, at in parts:
            view = [1] * len(sizes)
            for place in at:
                view[place] = sizes[place]
            views.append(self.tables[table].transpose(np.argsort(at)).reshape(view))
        if math.prod(sizes) <= AT_ONCE:
            least = self._open(scope, sum(views, start=np.zeros(sizes))).min(axis=0)
        else:
            least = self._open(scope[1:], _least(views, self._left.get(scope[0]), sizes))
        with np.errstate(invalid="ignore"):
            over = np.where(np.isposinf(least), -np.inf, message + shift - least)
        return float(over.max(initial=-np.inf))

    # -- options that are taken away, costs that are passed on -----------------------------------------------------------

    def _of(self) -> list[list[int]]:
        """The factors of each variable."""
        found: list[list[int]] = [[] for _ in self.costs.counts]
        for at, scope in enumerate(self.scopes):
            for v in scope:
                found[v].append(at)
        return found

    def _without_all(self, steps: list[Any]) -> None:
        of = self._of()
        for step in steps:
            self._without(step, of[step.variable])

    def _without(self, step: Any, own: list[int]) -> None:
        """An option may go if another one is never worse."""
        v, k, better = step.variable, step.option, step.better
        left = self._left.setdefault(v, np.ones(self.costs.counts[v], bool))
        if k == better or min(k, better) < 0 or not left[better]:
            raise PlanError(f"The certificate takes option {k} of variable {v} away for one that is gone.")
        more = 0.0
        for f in own:
            scope, table = self.scopes[f], self.uses[f]
            rows = np.moveaxis(self._open(scope, self.tables[table]), scope.index(v), 0)
            with np.errstate(invalid="ignore"):
                gain = np.where(np.isposinf(rows[k]), np.inf, rows[k] - rows[better])
            more += float(gain.min(initial=np.inf))
        if not more >= -(len(own) + 1):
            raise PlanError(
                f"The certificate takes option {k} of variable {v} away, which can be better than {better}."
            )
        self.given += max(-more, 0.0)
        left[k] = False

    def _shift_all(self, steps: list[Any]) -> None:
        """Factors pass costs on to their variables."""
        found: dict[Scope, list[int]] = {}
        for at, scope in enumerate(self.scopes):
            found.setdefault(scope, []).append(at)
        gone = set()
        for step in steps:
            scope = tuple(step.scope)
            if not found.get(scope):
                raise PlanError(f"The certificate shifts costs of a factor that does not exist, over {scope}.")
            at = found[scope].pop(0)
            gone.add(at)
            self._shift(scope, self.tables[self.uses[at]].copy(), step.given)
        kept = [at for at in range(len(self.scopes)) if at not in gone]
        self.scopes, self.uses = [self.scopes[at] for at in kept], [self.uses[at] for at in kept]

    def _shift(self, scope: Scope, rest: Table, passed_on: Sequence[Any]) -> None:
        for axis, (v, given) in enumerate(zip(scope, passed_on, strict=True)):
            full = np.zeros(self.costs.counts[v])
            full[self._left[v] if v in self._left else slice(None)] = given
            if not np.isfinite(full).all():
                raise PlanError(f"The certificate shifts infinite costs to variable {v}.")
            view = [1] * rest.ndim
            view[axis] = -1
            rest -= full.reshape(view)
            self._put((v,), full)
        total = float(self._open(scope, rest).min())
        self._put((scope[0],), np.full(self.costs.counts[scope[0]], total))

    def _put(self, scope: Scope, table: Table) -> None:
        self.scopes.append(scope)
        self.uses.append(self._kept(table))


class _Local:
    """The variables of each of some steps that minimise variables out: its own, then its neighbours."""

    def __init__(self, steps: list[Any], counts: Ints) -> None:
        self.count, self.options = len(steps), counts
        scopes = [(step.variable, *step.others) for step in steps]
        self.flat, self.owner, starts = _flat(scopes)
        self.starts: list[int] = starts.tolist()
        if self.flat.min() < 0 or self.flat.max() >= len(counts):
            raise PlanError("The certificate names variables that the program does not have.")
        self.order = np.full(len(counts), self.count)  # of a variable: the step that minimises it out
        own = self.flat[starts[:-1]]
        self.order[own] = np.arange(self.count)
        keys = self.owner * len(counts) + self.flat
        self.sorted = np.argsort(keys, kind="stable")
        self.keys = keys[self.sorted]
        if (self.order[own] != np.arange(self.count)).any() or (np.diff(self.keys) == 0).any():
            raise PlanError("The certificate minimises out a variable twice, or names one twice in a step.")
        self.place = np.arange(len(self.flat)) - starts[self.owner]

    def assigned(self, scopes: list[Scope], uses: Ints, before: int) -> tuple[Ints, Ints, Ints, Ints]:
        """For each factor the step that it goes to (their number if none), a number that is equal for equal tables in equal
        places, and where in that step each of its variables is. The first of the factors were there before; the others are what
        the steps leave, in order, and go to a later one."""
        flat, owner, starts = _flat(scopes)
        step_of = np.full(len(scopes), self.count)
        when = self.order[flat]
        when[when <= owner - before] = self.count
        np.minimum.at(step_of, owner, when)
        keys = step_of[owner] * len(self.options) + flat
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known, goes = self.keys[at] == keys, step_of[owner] < self.count
        if (goes & ~known).any():
            step = int(step_of[owner][goes & ~known][0])
            raise PlanError(f"The certificate leaves out a neighbour of variable {self.flat[self.starts[step]]}.")
        places = np.where(goes, self.place[self.sorted[at]], 0)
        codes, base = uses.copy(), int(places.max(initial=0)) + 1
        column = np.arange(len(flat)) - starts[owner]
        for number in range(int(column.max(initial=-1)) + 1):
            if int(codes.max()) >= 2**62 // base:
                codes = np.unique(codes, return_inverse=True)[1]
            some = column == number
            codes[owner[some]] = codes[owner[some]] * base + places[some]
        return step_of, codes, places, starts


def _flat(scopes: Sequence[Scope]) -> tuple[Ints, Ints, Ints]:
    """The variables of all scopes in a row, the scope that each is of, and where each scope begins."""
    lengths = np.array([len(scope) for scope in scopes], np.int64)
    flat = np.fromiter(chain.from_iterable(scopes), np.int64, int(lengths.sum()))
    return flat, np.repeat(np.arange(len(scopes)), lengths), np.concatenate([[0], np.cumsum(lengths)])


def _least(views: list[Table], left: "NDArray[np.bool_] | None", sizes: list[int]) -> Table:
    """The least of a sum over its first variable, one option after the other so that what is added up stays in the cache."""
    views = sorted(views, key=lambda view: -view.size)
    large, *small = views
    for view in small:  # what is over variables of the largest table is added to it at once
        if all(n in (1, m) for n, m in zip(view.shape, large.shape, strict=True)):
            large = large + view
    rest = [v for v in small if not all(n in (1, m) for n, m in zip(v.shape, large.shape, strict=True))]
    least, total = np.full(sizes[1:], np.inf), np.empty(sizes[1:])
    for option in range(sizes[0]) if left is None else np.flatnonzero(left):
        np.add(large[option if large.shape[0] > 1 else 0], 0.0, out=total)
        for view in rest:
            total += view[option if view.shape[0] > 1 else 0]
        np.minimum(least, total, out=least)
    return least
