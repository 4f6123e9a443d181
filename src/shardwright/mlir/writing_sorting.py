"""Sorting as text: MLIR's tensors have no sort, so it is a bitonic network of comparisons.

A size of 2^m takes m (m + 1) / 2 rounds, each of which compares all pairs of rows at one distance. The numbers of rows are
carried along where they are wanted; they break ties, so that the order is stable.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.mlir.text import Typed
from shardwright.mlir.writing_rows import EXTREMES
from shardwright.mlir.writing_windows import Windows
from shardwright.ops import RowMap

MOST_ROWS = 4096


class Sorting(Windows):
    """Writes sorts, beside the other operations of the table."""

    def _sort(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        made, _ = self._sorted(operands[0], attrs["axis"], numbered=False)
        return self._flipped(made, attrs["axis"]) if attrs["descending"] else made

    def _argsort(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        (x,) = operands
        axis = attrs["axis"]
        if not attrs["descending"]:
            made: Typed = self._sorted(x, axis, numbered=True)[1]
            return made
        order = self._flipped(self._sorted(self._flipped(x, axis), axis, numbered=True)[1], axis)
        return self.write(
            "subtract", {}, [self.text.constant(x.shape[axis] - 1, x.shape, dtype), order], (shape, dtype)
        )

    def _flipped(self, x: Typed, axis: int) -> Typed:
        n = x.shape[axis]
        return self.picked(x, [RowMap(n, n - 1, -1) if d == axis else None for d in range(len(x.shape))])

    def _sorted(self, x: Typed, axis: int, numbered: bool) -> tuple[Typed, Any]:
        """The rows of a dim in order, and their numbers if these are wanted."""
        n = x.shape[axis]
        if n > MOST_ROWS:
            raise self._refuse(
                "sort", f"has {n:,} rows; MLIR has no sort, and networks of comparisons go up to {MOST_ROWS:,}"
            )
        size = 1 << max(n - 1, 0).bit_length()
        high = [size - n if d == axis else 0 for d in range(len(x.shape))]
        last = np.nan if x.dtype.kind in "fV" else EXTREMES["min"](x.dtype)
        keys = self.padded(x, [0] * len(high), high, last)
        numbers = self.broadcast(self.along(axis, keys.shape), keys.shape) if numbered else None
        block = 2
        while block <= size:
            distance = block // 2
            while distance:
                keys, numbers = self._round(keys, numbers, axis, block, distance)
                distance //= 2
            block *= 2
        first = [RowMap(n) if d == axis else None for d in range(len(x.shape))]
        return self.picked(keys, first), None if numbers is None else self.picked(numbers, first)

    def _round(self, keys: Typed, numbers: Typed | None, axis: int, block: int, distance: int) -> tuple[Any, Any]:
        """Pairs of rows at a distance put in order: upwards in blocks with an even number, downwards in the others."""
        size = keys.shape[axis]
        cut = (*keys.shape[:axis], size // (2 * distance), 2, distance, *keys.shape[axis + 1 :])

        def halves(x: Typed) -> list[Typed]:
            wide = self.reshaped(x, cut)
            return [
                self.picked(wide, [RowMap(1, h) if d == axis + 1 else None for d in range(len(cut))]) for h in (0, 1)
            ]

        pairs = [halves(x) for x in (keys, numbers) if x is not None]
        shape = pairs[0][0].shape
        swap = self._comes_after(*pairs[0], *(pairs[1] if numbers is not None else ()))
        down = (np.arange(size // (2 * distance)) * 2 * distance & block) != 0
        if down.any():
            ones = [len(down) if d == axis else 1 for d in range(len(shape))]
            turned = self.text.constant(down.reshape(ones), ones, bool)
            swap = self.write("logical_xor", {}, [swap, self.broadcast(turned, shape)], (shape, np.dtype(bool)))
        made = []
        for one, two in pairs:
            kind = (shape, one.dtype)
            ordered = [self.write("where", {}, [swap, *some], kind) for some in ((two, one), (one, two))]
            made.append(self.reshaped(self.joined(ordered, axis + 1), keys.shape))
        return made[0], made[1] if numbers is not None else numbers

    def _comes_after(self, one: Typed, two: Typed, *numbers: Typed) -> Typed:
        """Whether a row comes after another: NaN after all numbers, and of equal rows the one that stood later."""
        truth = (one.shape, np.dtype(bool))

        def test(row: str, *operands: Typed) -> Typed:
            return self.write(row, {}, operands, truth)

        after, alike = test("less", two, one), test("equal", one, two)
        if one.dtype.kind in "fV":
            none, other = test("isnan", one), test("isnan", two)
            after = test("logical_or", after, test("logical_and", none, test("logical_not", other)))
            alike = test("logical_or", alike, test("logical_and", none, other))
        if not numbers:
            return after
        return test("logical_or", after, test("logical_and", alike, test("less", numbers[1], numbers[0])))
