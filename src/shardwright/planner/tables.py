"""Tables of costs, each kept once: what is made of equal tables in an equal way is the same table.

Costs are whole numbers of a unit, in float64, so sums are exact and don't depend on their order: equal layers of a program
get equal tables, and ties are ties. Tables that depend on the price of memory are made anew when it changes; all
others, and how each follows from others, stay.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]


class Tables:
    """Tables by number. Those of memory hold bytes; they count with the price of memory."""

    def __init__(self, unit: float) -> None:
        self.unit = unit  # seconds
        self.values: list[Any] = []
        self.exact: dict[int, Table] = {}  # seconds, of tables that were given in seconds
        self.picks: dict[int, NDArray[np.int64]] = {}  # of what was minimised: which option gave the least
        self._known: dict[Any, int] = {}
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

    def least(self, parts: Sequence[tuple[int, tuple[int, ...]]], sizes: tuple[int, ...]) -> int:
        """The least of the sum of tables over its first variable; `picks` has where it is."""
        key = ("least", tuple(parts), sizes)

        def made() -> Table:
            whole = self._sum(parts, sizes)
            self.picks[self._known[key]] = whole.argmin(axis=0)
            found: Table = whole.min(axis=0)
            return found

        return self._kept(key, made, [number for number, _ in parts])

    def _sum(self, parts: Sequence[tuple[int, tuple[int, ...]]], sizes: tuple[int, ...]) -> Table:
        total = np.zeros(sizes)
        for number, at in parts:
            table: Table = self.values[number]
            if len(at) > 1 and any(a > b for a, b in pairwise(at)):
                table = table.transpose(sorted(range(len(at)), key=at.__getitem__))
            view = [1] * len(sizes)
            for place in at:
                view[place] = sizes[place]
            total += table.reshape(view)
        return total

    def _kept(self, key: Any, make: Any, parts: Sequence[int], priced: bool = False) -> int:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.values)
            self.values.append(None)
            self.values[found] = make()
            if priced or not self._priced.isdisjoint(parts):
                self._priced.add(found)
                self._recipes.append((found, make))
        return found

    def set_prices(self, *seconds: float) -> None:
        """Sets the prices of memory, in seconds a byte, and makes the tables that depend on them anew."""
        self.prices = [price / self.unit for price in seconds]
        for number, make in self._recipes:
            self.values[number] = make()
