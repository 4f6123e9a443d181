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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import PlanError
from shardwright.garbage import no_collection
from shardwright.planner.repricing import Costs, Scope, Table
from shardwright.program.node import Node, Program
from shardwright.sharding import Sharding

Ints = NDArray[np.int64]
Parts = list[tuple[int, list[int]]]  # factors of a variable: tables by number, each with the places of its variables
ROUNDING = 1e-9  # of the bound
AT_ONCE = 100_000  # entries of a sum; larger ones are made one option at a time
CHEAPEST = 6  # options that others are compared with first
MOST_UNIT, TINY = 1e-9, 1e-3  # a unit of more than this part of the bound, or of a millisecond, proves little


@dataclass(frozen=True)
class Certificate:
    """The proof of a bound: for a program, where what is fixed lies, and a budget of bytes for inputs and constants."""

    program: Program
    fixed: Mapping[Node, Sharding]
    outputs: Sequence[Sharding | None]
    hubs: Mapping[tuple[Node, int], Sequence[tuple[Node, int]]]  # places for some readers of a value
    exact: Collection[Any]  # moves that count with their price where others count with what they take at least
    limit: float  # bytes that a device holds at most of a step's operands and results, beside the smallest inputs
    steps: Sequence[Any]
    tables: Mapping[int, Table]  # in units
    shifts: Mapping[int, float]  # by table: what every entry of it leaves out, in units
    unit: float  # seconds
    price: float  # seconds a byte of inputs and constants
    budget: float  # bytes
    bound: float  # seconds
    relaxed: bool = False  # whether all but one of what may be one in the program counts nothing

    @no_collection()
    def check(self) -> bool:
        """True if the bound holds; PlanError says which step does not."""
        try:
            self._check()
        except PlanError:
            raise
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
            raise PlanError(f"The certificate has fields, steps or tables that no search makes: {error}.") from error
        return True

    def _check(self) -> None:
        if not self.price >= 0:
            raise PlanError(f"The certificate has a price of memory of {self.price} s a byte, which is negative.")
        self._about_program()
        checker = _Checker(self)
        proved = checker.proved()
        rounding = 2 * len(checker.costs.scopes) * self.unit  # every cost counts in whole units
        if not proved >= self.bound * (1 - ROUNDING) - rounding or not 0 < self.unit < MOST_UNIT * max(
            self.bound, TINY
        ):
            raise PlanError(
                f"The certificate claims that no plan takes less than {self.bound} s, and proves {proved} s."
            )

    def _about_program(self) -> None:
        """Raises if there are places for other outputs than the program's, or on another mesh."""
        mesh, count = self.program.mesh, len(self.program.outputs)
        if len(self.outputs) != count:
            raise PlanError(f"The certificate has {len(self.outputs)} places of outputs, and the program has {count}.")
        for there in (*self.fixed.values(), *self.outputs):
            if there is not None and there.mesh != mesh:
                raise PlanError(f"The certificate has a place on {there.mesh}, and the program is on {mesh}.")


class _Checker:
    """Follows the steps of a certificate on factors of its own."""

    def __init__(self, about: Certificate) -> None:
        self.about, self.costs = about, Costs(about)
        self.counts = np.array(self.costs.counts, np.int64)
        self.tables: list[Table] = list(self.costs.tables)
        self.scopes: list[Scope] = self.costs.scopes  # of the factors that are left, and their tables by number
        self.uses: list[int] = self.costs.uses
        self.given = 0.0  # units that rounding may have taken
        self._messages: dict[int, tuple[int, float]] = {}  # by the number of a table of the certificate
        self._arrays: dict[int, int] = {}  # its tables, by identity
        self._fewer: dict[Any, int] = {}  # of tables, a place in them and options: the table with these alone
        self._options: dict[int, list[int]] = {}  # of variables that lost options: those that are left

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
                total += float(self.tables[table].min())
        for some in own.values():
            total += float(np.sum([self.tables[t] for t in some], axis=0).min())
        price = self.about.price
        dual = (total - self.given) * self.about.unit - (price * self.about.budget if price else 0.0)
        return dual + self.costs.constant

    def _kept(self, table: Table) -> int:
        self.tables.append(table)
        return len(self.tables) - 1

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
        seen: dict[Any, float] = {}
        total = 0.0
        for at, (step, (table, shift)) in enumerate(zip(steps, messages, strict=True)):
            first, last, begin, end = bounds[at], bounds[at + 1], local.starts[at], local.starts[at + 1]
            key = table, shift, content[8 * first : 8 * last], sizes[8 * begin : 8 * end]
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
        """The table that a step leaves, and what its entries leave out."""
        found = self._messages.get(step.table)
        if found is None:
            given, shift = self.about.tables.get(step.table), float(self.about.shifts.get(step.table, math.nan))
            if given is None:
                raise PlanError(f"The certificate has no table {step.table}, which a step leaves.")
            number = self._arrays.get(id(given))  # equal steps have one array
            if number is None:
                number = self._arrays[id(given)] = self._kept(np.asarray(given, float))
            found = self._messages[step.table] = number, shift
        return found

    def _slack(self, scope: list[int], parts: Parts, number: int, shift: float) -> float:
        """By how much a message exceeds the least of what it stands for, at most."""
        sizes = self.counts[scope].tolist()
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
        small = math.prod(sizes) <= AT_ONCE
        least = sum(views, start=np.zeros(sizes)).min(axis=0) if small else _least(views, sizes)
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
        """Options may go if others are never worse; what is found of equal tables is found once."""
        of, seen = self._of(), dict[Any, float]()
        for v, group in groupby(steps, key=lambda step: step.variable):
            if not 0 <= v < len(of):
                raise PlanError("The certificate names variables that the program does not have.")
            options = self._options.get(v) or list(range(self.counts[v]))
            gone = [(step.option, step.better) for step in group]
            if not _one_by_one(gone, options):
                raise PlanError(f"The certificate takes options of variable {v} away for ones that are gone.")
            pairs = [(options.index(k), options.index(better)) for k, better in gone]
            key = tuple(pairs), tuple(sorted([(self.uses[f], self.scopes[f].index(v)) for f in of[v]]))
            if key not in seen:
                seen[key] = self._lost(v, pairs, of[v])
            self.given += seen[key]
            self._keep(v, [at for at in range(len(options)) if at not in {at for at, _ in pairs}], options, of[v])

    def _lost(self, v: int, pairs: list[tuple[int, int]], own: list[int]) -> float:
        """Units that may be lost by rounding when options go, each for another, which must never be worse."""
        worse, better = (np.array(some, np.int64) for some in zip(*pairs, strict=True))
        more = np.zeros(len(pairs))  # that the first cost at least, whatever other variables choose
        for f in own:
            rows = np.moveaxis(self.tables[self.uses[f]], self.scopes[f].index(v), 0).reshape(self.counts[v], -1)
            with np.errstate(invalid="ignore"):
                gain = np.where(np.isposinf(rows[worse]), np.inf, rows[worse] - rows[better])
                more += gain.min(axis=1, initial=np.inf)
        if not (more >= -(len(own) + 1)).all():
            raise PlanError(f"The certificate takes an option of variable {v} away that can be better than others.")
        return float(np.maximum(-more, 0.0).sum())

    def _keep(self, v: int, kept: list[int], options: list[int], own: list[int]) -> None:
        self._options[v] = [options[at] for at in kept]
        self.counts[v] = len(kept)
        for f in own:
            axis = self.scopes[f].index(v)
            key = self.uses[f], axis, tuple(kept)
            if key not in self._fewer:
                self._fewer[key] = self._kept(self.tables[self.uses[f]].take(kept, axis))
            self.uses[f] = self._fewer[key]

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
            full = np.array(given, float)
            if full.shape != (self.counts[v],) or not np.isfinite(full).all():
                raise PlanError(
                    f"The certificate shifts costs to variable {v} that are not finite, or not one an option."
                )
            view = [1] * rest.ndim
            view[axis] = -1
            rest -= full.reshape(view)
            self._put((v,), full)
        self._put((scope[0],), np.full(self.counts[scope[0]], rest.min()))

    def _put(self, scope: Scope, table: Table) -> None:
        self.scopes.append(scope)
        self.uses.append(self._kept(table))


def _one_by_one(gone: list[tuple[int, int]], options: list[int]) -> bool:
    """Whether options go, one after the other, for others that are still there."""
    left = set(options)
    for k, better in gone:
        if k == better or k not in left or better not in left:
            return False
        left.discard(k)
    return True


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


def _least(views: list[Table], sizes: list[int]) -> Table:
    """The least of a sum over its first variable, one option after the other so that what is added up stays in the cache."""
    large, *small = sorted(views, key=lambda view: -view.size)
    rest = []
    for view in small:  # what is over variables of the largest table is added to it at once
        if all(n in (1, m) for n, m in zip(view.shape, large.shape, strict=True)):
            large = large + view
        else:
            rest.append(view)
    least, total = np.full(sizes[1:], np.inf), np.empty(sizes[1:])
    for option in _some_options([large, *rest], sizes[0]):
        first, *more = [view[option if view.shape[0] > 1 else 0] for view in (large, *rest)]
        np.add(first, more[0] if more else 0.0, out=total)
        for row in more[1:]:
            total += row
        np.minimum(least, total, out=least)
    return least


def _some_options(views: list[Table], count: int) -> list[int]:
    """The options of the first variable without some that cost more than one of the cheapest whatever the others are, by a
    unit at least, which is more than rounding takes."""
    rows = [view.reshape(count, -1) for view in views if view.shape[0] > 1]
    left = np.arange(count)
    if not rows:
        return left.tolist()
    for option in np.argsort(sum([some.min(axis=1) for some in rows]))[:CHEAPEST].tolist():
        if option in left and all(np.isfinite(some[option]).all() for some in rows):
            left = left[sum([(some[left] - some[option]).min(axis=1) for some in rows]) < 1]
    return left.tolist()
