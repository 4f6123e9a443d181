"""Tables of costs, each kept once: what is made of equal tables in an equal way is the same table.

Costs are whole numbers of a unit, in float64, so sums are exact and don't depend on their order: equal layers of a program
get equal tables, and ties are ties. A least sum is kept without its smallest entry (`shift` has that), so what layers pass on
soon repeats from layer to layer, and equal sums are made once. Tables that depend on the price of memory are made anew when it
changes; all others, and how each follows from others, stay.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]
Parts = tuple[tuple[int, tuple[int, ...]], ...]  # tables by number, each with the places of its variables
AT_ONCE = 100_000  # entries of a sum that is made before its least is looked for
CHEAPEST = 6  # options of a larger one that others are compared with before


class Tables:
    """Tables by number. Those of memory hold bytes; they count with the price of memory."""

    def __init__(self, unit: float) -> None:
        self.unit = unit  # seconds
        self.values: list[Any] = []
        self.exact: dict[int, Table] = {}  # seconds, of tables that were given in seconds
        self.shifts: dict[int, float] = {}  # of least sums: what was taken off every entry
        self._parts: dict[int, Parts] = {}  # of tables that are least sums: of what
        self._picks: dict[
            tuple[int, tuple[int, ...]], int
        ] = {}  # for a table and an entry: which option gave the least
        self._sums: dict[Any, tuple[Table, float]] = {}  # by what is added up: the least, what was taken off
        self._contents: dict[Any, Table] = {}  # least sums by their entries: equal ones are one array
        self._gains: dict[tuple[int, int], Table] = {}  # by table and place
        self.derived: dict[Any, Any] = {}  # what else was found of tables, known by their identity
        self._known: dict[Any, int] = {}
        self._keys: list[Any] = []  # of tables, in order
        self._recipes: list[tuple[int, Any]] = []  # of tables that depend on the price of memory, in order
        self._priced: set[int] = set()
        self.prices = [0.0, 0.0]  # units a byte, of the two kinds of inputs

    def seconds(self, values: Any) -> int:
        """The table of so many seconds."""
        table = np.asarray(values, np.float64)
        with np.errstate(invalid="ignore"):
            table = np.where(np.isinf(table), np.inf, np.rint(table / self.unit))
        key = (table.shape, table.tobytes())
        number = self._kept(key, lambda: table, ())
        self.exact.setdefault(number, np.asarray(values, np.float64))
        return number

    def bytes(self, values: Any, kind: int = 0) -> int:
        """The table of what so many bytes cost at one of the prices of memory."""
        table = np.asarray(values, np.float64)
        key = ("bytes", kind, table.shape, table.tobytes())
        return self._kept(key, lambda: np.rint(self.prices[kind] * table), (), priced=True)

    def some(self, table: int, axis: int, kept: NDArray[np.int64]) -> int:
        """A table with some options of one variable."""
        return self._kept(("some", table, axis, kept.tobytes()), lambda: self.values[table].take(kept, axis), (table,))

    def least(self, parts: Parts, sizes: tuple[int, ...]) -> int:
        """The least of the sum of tables over its first variable, less its smallest entry; `pick` says where it is."""
        key, numbers = ("least", parts, sizes), [number for number, _ in parts]
        found = self._known.get(key)
        if found is None:
            number = len(self.values)
            found = self._kept(key, lambda: self._shifted(number, parts, sizes), numbers)
            self._parts[found] = parts
        return found

    def _shifted(self, number: int, parts: Parts, sizes: tuple[int, ...]) -> Table:
        """The least sum of a number; sums of equal tables are made once."""
        key = tuple([(id(self.values[part]), at) for part, at in parts]), sizes
        found = self._sums.get(key)
        if found is None:
            table = self._least(parts, sizes)
            smallest = float(table.min(initial=math.inf))
            shift = smallest if math.isfinite(smallest) else 0.0
            table = table - shift
            found = self._sums[key] = self._contents.setdefault((table.shape, table.tobytes()), table), shift
        self.shifts[number] = found[1]
        return found[0]

    def gains(self, table: int, axis: int) -> Table:
        """For each pair of options of one of a table's variables by how much the first costs more than the second at least,
        whatever the others are; -inf where the second is impossible and the first is not."""
        key = table, axis
        found = self._gains.get(key)
        if found is None:
            values = self.values[table]
            rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
            found = self._gains[key] = np.empty((len(rows), len(rows)))
            finite = bool(np.isfinite(rows).all())
            for k, row in enumerate(rows):
                with np.errstate(invalid="ignore"):
                    more = row[None] - rows
                if not finite:
                    more[:, np.isinf(row)] = np.inf  # impossible anyway
                more.min(axis=1, out=found[k])
        return found

    def pick(self, table: int, at: tuple[int, ...]) -> int:
        """Which option of the variable that was minimised out gave an entry of a table; of several the first."""
        key = table, at
        found = self._picks.get(key)
        if found is None:
            found = self._picks[key] = int(np.argmin(self.sums(table, at)))
        return found

    def sums(self, table: int, at: tuple[int, ...]) -> Table:
        """For an entry of a table the sum of which it is the least: for each option of the variable that was minimised out."""
        total: Any = 0.0
        for number, places in self._parts[table]:
            total = total + self.values[number][tuple([slice(None) if i == 0 else at[i - 1] for i in places])]
        return np.asarray(total)

    def _least(self, parts: Parts, sizes: tuple[int, ...]) -> Table:
        views = []
        for number, at in parts:
            table: Table = self.values[number]
            if len(at) > 1 and any(a > b for a, b in pairwise(at)):
                table = table.transpose(sorted(range(len(at)), key=at.__getitem__))
            shape = [1] * len(sizes)
            for place in at:
                shape[place] = sizes[place]
            views.append(table.reshape(shape))
        if math.prod(sizes) <= AT_ONCE:
            found: Table = sum(views, start=np.zeros(sizes)).min(axis=0)
            return found
        return least_of(views, sizes)

    def _kept(self, key: Any, make: Any, parts: Sequence[int], priced: bool = False) -> int:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.values)
            self.values.append(None)
            self._keys.append(key)
            self.values[found] = make()
            if priced or not self._priced.isdisjoint(parts):
                self._priced.add(found)
                self._recipes.append((found, make))
        return found

    def set_prices(self, *seconds: float) -> None:
        """Sets the prices of memory, in seconds a byte, and makes the tables that depend on them anew."""
        prices = [price / self.unit for price in seconds]
        if prices == self.prices:
            return
        self.prices = prices
        self._forget_identities()
        self._gains = {key: found for key, found in self._gains.items() if key[0] not in self._priced}
        for number, make in self._recipes:
            self.values[number] = make()

    def forget(self, count: int) -> None:
        """Drops all tables but the first ones."""
        for key in self._keys[count:]:
            del self._known[key]
        for kept in (self.exact, self.shifts, self._parts):
            for number in [number for number in kept if number >= count]:
                del kept[number]
        self._gains = {key: found for key, found in self._gains.items() if key[0] < count}
        self._priced = {number for number in self._priced if number < count}
        self._recipes = [recipe for recipe in self._recipes if recipe[0] < count]
        del self.values[count:], self._keys[count:]
        self._forget_identities()

    def _forget_identities(self) -> None:
        """To be called when tables go: others may get their identities."""
        self._picks.clear()
        self._sums.clear()
        self._contents.clear()
        self.derived.clear()


def least_of(views: list[Table], sizes: tuple[int, ...]) -> Table:
    """The least of a sum over its first variable, which all tables are over: one option after the other, so that what is added
    up and compared stays in the processor's cache."""
    first, *more = merged = _merged(views)
    least, total = np.full(sizes[1:], np.inf), np.empty(sizes[1:])
    for option in some_options(merged, sizes[0]):
        np.add(first[option], more[0][option] if more else 0.0, out=total)
        for view in more[1:]:
            total += view[option]
        np.minimum(least, total, out=least)
    return least


def some_options(views: Sequence[Table], count: int) -> list[int]:
    """The options of the first variable without some that one of the cheapest is never worse than, whatever the others are."""
    rows = [view.reshape(count, -1) for view in views]
    left = np.arange(count)
    for option in np.argsort(sum([some.min(axis=1) for some in rows]))[:CHEAPEST].tolist():
        if option in left and all(np.isfinite(some[option]).all() for some in rows):
            more = sum([(some[left] - some[option]).min(axis=1) for some in rows])
            left = left[(more < 0) | (left == option)]
    kept: list[int] = left.tolist()
    return kept


def _merged(views: list[Table]) -> list[Table]:
    """Tables with the same sum of which none is over some of the variables of another."""
    found: list[Table] = []
    for view in sorted(views, key=lambda view: -view.size):
        over = next((i for i, f in enumerate(found) if np.broadcast_shapes(f.shape, view.shape) == f.shape), None)
        if over is None:
            found.append(view)
        else:
            found[over] = found[over] + view
    return found
