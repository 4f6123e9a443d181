"""What one device knows of itself, as text: the number of its shard, its own rows of a table, padding, positions.

One text serves all devices, so a shard that is smaller than the largest is padded at its end. What depends on the device comes
from a constant table, by the coordinates of the device.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.errors import MLIRError
from shardwright.mlir.text import MOST_ELEMENTS, Text, Typed
from shardwright.mlir.writing_rows import Rows
from shardwright.ops import RowMap
from shardwright.sharding import Layout

OUTSIDE = -1  # instead of a row: the fill value


class Places:
    """Writes values that differ between devices."""

    def __init__(self, text: Text, rows: Rows) -> None:
        self.text, self.rows = text, rows

    def coordinate(self, lane: int) -> Typed:
        """The coordinate of a device along an axis of the text's mesh."""
        kind = f"{self.text.dialect}.process_multi_index on {self.text.symbol} axes = [{lane}]"
        return self.scalar(self.text.scalar(kind, "index"))

    def scalar(self, index: str) -> Typed:
        """An index as a tensor without dims."""
        number = self.text.scalar(f"arith.index_cast {index}", "index to i64")
        return self.text.op(f"tensor.from_elements {number}", (), np.int64)

    def number(self, axes: Sequence[str]) -> Typed:
        """The place of a device along axes, the first the most significant."""
        lanes = self.text.axis_numbers(axes)
        sizes = [self.text.mesh.axis_size((self.text.lanes[lane],)) for lane in lanes]
        return self.mixed([self.coordinate(lane) for lane in lanes], sizes)

    def mixed(self, coords: Sequence[Typed], sizes: Sequence[int]) -> Typed:
        """Coordinates as one number, the first the most significant."""
        made: Typed | None = None
        for own, size in zip(coords, sizes, strict=True):
            if made is not None:
                scaled = self._integer("multiply", made, self.text.constant(size, (), np.int64))
                own = self._integer("add", scaled, own)
            made = own
        return self.text.constant(0, (), np.int64) if made is None else made

    def _integer(self, row: str, *operands: Typed) -> Typed:
        return self.rows.write(row, {}, operands, (operands[0].shape, np.int64))

    def entry(self, table: Any, axes: Sequence[str]) -> Typed:
        """A device's own entry of a table with one for each place along axes; a constant where all are equal."""
        table = np.asarray(table)
        if all(np.array_equal(part, table[0]) for part in table[1:]):
            return self.text.constant(table[0], table.shape[1:], table.dtype)
        if table.size > MOST_ELEMENTS:
            raise MLIRError(
                f"A table of {table.size:,} rows that devices read is too large to be written; at most {MOST_ELEMENTS:,} are. "
                f"Write view='global', or use sizes that the mesh divides."
            )
        return self.row(table, self.number(axes))

    def row(self, table: Any, number: Typed) -> Typed:
        """An entry of a table, by its number."""
        held = self.text.constant(table, table.shape, table.dtype)
        at = self.rows.reshaped(number, (1,))
        row = self.rows.write("take", {"axis": 0}, [held, at], ((1, *table.shape[1:]), table.dtype))
        return self.rows.reshaped(row, table.shape[1:])

    # -- padding ------------------------------------------------------------------------------------------------------

    def filled(self, x: Typed, layout: Layout, dims: Sequence[int], fill: Any) -> Typed:
        """A shard with `fill` instead of its padding along dims."""
        for dim in dims:
            if layout.extents[dim] is None:
                continue
            held = layout.dims[dim]
            extent = self.entry(held.sizes + held.low + held.high, layout.sharding.dims[dim])
            rows = self.rows.along(dim, x.shape)
            real = self.rows.compared("less", [rows, self.wide(extent, rows.shape)], rows.shape)
            kind = (x.shape, x.dtype)
            x = self.rows.write("where", {}, [real, x, self.text.constant(fill, *kind)], kind)
        return x

    def wide(self, scalar: Typed, shape: Sequence[int]) -> Typed:
        """A tensor without dims, repeated."""
        return self.rows.broadcast(scalar, shape)

    def start(self, layout: Layout, dim: int) -> Typed:
        """Where a device's shard begins along a dim."""
        return self.entry(layout.dims[dim].offsets[:-1], layout.sharding.dims[dim])

    def positions(self, layout: Layout, dim: int, shape: Sequence[int]) -> Typed:
        """The row of the whole dim at each local place, 1 long along other dims."""
        rows = self.rows.along(dim, shape)
        start = self.entry(layout.dims[dim].offsets[:-1] - layout.dims[dim].low, layout.sharding.dims[dim])
        return self._integer("add", rows, self.wide(start, rows.shape))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def selected(
        self, x: Typed, dim: int, tables: Sequence[Any], axes: Sequence[str], room: int, fill: Any = 0
    ) -> Typed:
        """The rows of a dim that a device wants, by one table for each place along axes; `room` rows, OUTSIDE is `fill`.

        Rows beyond a table are padding.
        """
        size = x.shape[dim]
        padded = np.zeros((len(tables), room), np.int64)
        for place, rows in enumerate(tables):
            padded[place, : len(rows)] = rows
        if (padded == OUTSIDE).any() or not size:
            shape = [1 if d == dim else n for d, n in enumerate(x.shape)]
            x = self.rows.joined([x, self.text.constant(fill, shape, x.dtype)], dim)
            padded = np.where(padded == OUTSIDE, size, padded)
        longest = int(np.argmax([len(rows) for rows in tables]))
        if all(np.array_equal(rows, tables[longest][: len(rows)]) for rows in tables):
            return self._fixed(x, dim, padded[longest])
        return self.rows.taken(x, self.entry(padded, axes), dim)

    def _fixed(self, x: Typed, dim: int, rows: Any) -> Typed:
        """The same rows on every device: slices, joined."""
        if not len(rows):
            shape = [0 if d == dim else n for d, n in enumerate(x.shape)]
            return self.text.constant(np.zeros(shape, x.dtype), shape, x.dtype)
        if np.array_equal(rows, np.arange(x.shape[dim])):
            return x
        steps = np.diff(rows)
        spaced = len(steps) > 0 and steps[0] != 0 and (steps == steps[0]).all()  # every other row, or all backwards
        parts = []
        for run in [rows] if spaced else np.split(rows, np.flatnonzero(steps != 1) + 1):
            each = RowMap(len(run), int(run[0]), int(steps[0]) if spaced else 1)
            maps = [each if d == dim else None for d in range(len(x.shape))]
            parts.append(self.rows.picked(x, maps))
        return self.rows.joined(parts, dim)
