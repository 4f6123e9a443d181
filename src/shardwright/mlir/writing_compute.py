"""What one device computes of an operation of the table, as text.

Element-wise operations are the same on shards. Others mind what a shard is: reductions leave padding out, and what depends on
where an element lies in the whole tensor counts from where the shard begins.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.errors import MLIRError
from shardwright.mlir.text import Typed
from shardwright.mlir.writing_composed import Composed
from shardwright.mlir.writing_places import Places
from shardwright.mlir.writing_rows import EXTREMES
from shardwright.ops import OPS, Rule
from shardwright.sharding import Layout

ALIKE = frozenset(  # rows that compute on shards what they compute on tensors; element-wise ones do too
    "astype clip sigmoid gelu erf permute_dims reshape broadcast_to fill in_range sort argsort take_along_axis isin "
    "searchsorted".split()
)
_STARTS = {"sum": 0, "prod": 1, "all": True, "any": False}
_RUNNING = {"cumulative_sum": ("sum", "add", 0), "cumulative_prod": ("prod", "multiply", 1)}


class Computes:
    """Writes the computations of one device."""

    def __init__(self, rows: Composed, places: Places) -> None:
        self.rows, self.places, self.text = rows, places, rows.text

    def write(
        self,
        title: str,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        """An operation on shards; `held` are the layouts of the operands that are tensors."""
        kind = (result.local_shape, dtype)
        if name in ALIKE or (name in OPS and OPS[name].elementwise):
            return self.rows.write(name, attrs, operands, kind)
        base, _, part = name.partition(" ")
        rule = getattr(self, f"_{part or name}", None) if not part or base in _RUNNING else None
        if name in ("sum", "prod", "max", "min", "all", "any"):
            return self._reduced(name, attrs, operands, held, kind)
        if rule is not None:
            made: Typed = rule(base, attrs, operands, held, result, dtype)
            return made
        if any(not layout.sharding.is_replicated for layout in (*held, result)):
            raise MLIRError(
                f"{title} can't be written for one device: what it does depends on which part of the tensor a device has. "
                f"Write view='global'."
            )
        return self.rows.write(name, attrs, operands, kind)

    def _integers(self, row: str, *operands: Typed) -> Typed:
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        return self.rows.write(row, {}, operands, (shape, np.int64))

    def _less(self, row: str, one: Typed, other: Typed) -> Typed:
        return self.rows.compared(row, [one, other], np.broadcast_shapes(one.shape, other.shape))

    def _both(self, one: Typed, other: Typed) -> Typed:
        shape = np.broadcast_shapes(one.shape, other.shape)
        return self.rows.write("logical_and", {}, [one, other], (shape, np.dtype(bool)))

    def _chosen(self, test: Typed, one: Typed, other: Any, dtype: Any) -> Typed:
        shape = np.broadcast_shapes(test.shape, one.shape, getattr(other, "shape", ()))
        return self.rows.write("where", {}, [test, one, other], (shape, dtype))

    # -- over dims ----------------------------------------------------------------------------------------------------

    def _reduced(
        self, name: str, attrs: Mapping[str, Any], operands: list[Any], held: Sequence[Layout], kind: tuple[Any, Any]
    ) -> Typed:
        x = operands[0]
        neutral = _STARTS[name] if name in _STARTS else EXTREMES[name](x.dtype)
        return self.rows.write(name, attrs, [self.places.filled(x, held[0], attrs["axis"], neutral)], kind)

    def _first_true(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        ((dim,), layout) = attrs["axis"], held[0]
        x = self.places.filled(operands[0], layout, [dim], False)
        none = self.text.constant(layout.shape[dim], x.shape, np.int64)
        numbers = self.rows.broadcast(self.places.positions(layout, dim, x.shape), x.shape)
        where = self._chosen(x, numbers, none, np.int64)
        made = self.rows.write("min", {"axis": (dim,)}, [where], (result.local_shape, np.int64))
        return self._integers("minimum", made, self.text.constant(layout.shape[dim], made.shape, np.int64))

    def einsum(
        self, attrs: Mapping[str, Any], operands: list[Any], held: Sequence[Layout], rule: Rule, kind: tuple[Any, Any]
    ) -> Typed:
        """A product; along dims that it sums over padding counts as zero."""
        ready = []
        for x, layout, dims in zip(operands, held, rule.inputs, strict=True):
            summed = [d for d, dim in enumerate(dims) if dim and dim[0] in rule.sums]
            ready.append(self.places.filled(x, layout, summed, 0))
        return self.rows.write("einsum", attrs, ready, kind)

    # -- running totals -----------------------------------------------------------------------------------------------

    def _running(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        x = self.rows.cast(operands[0], dtype)
        x = self.places.filled(x, held[0], [attrs["axis"]], _RUNNING[name][2])
        return self.rows.write(name, attrs, [x], (result.local_shape, dtype))

    _cumulative_sum = _cumulative_prod = _running

    def _total(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        total, _, neutral = _RUNNING[name]
        x = self.places.filled(self.rows.cast(operands[0], dtype), held[0], [attrs["axis"]], neutral)
        return self.rows.write(total, {"axis": (attrs["axis"],)}, [x], (result.local_shape, dtype))

    def _after(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        """Running totals that begin with what the shards before come to."""
        x, totals = operands
        axis, (_, join, neutral) = attrs["axis"], _RUNNING[name]
        running = self.rows.write(name, attrs, [totals], (totals.shape, dtype))
        first = self.text.constant(neutral, [1 if d == axis else n for d, n in enumerate(totals.shape)], dtype)
        before = self.rows.joined([first, running], axis)
        number = self.rows.reshaped(self.places.number(held[0].sharding.dims[axis]), (1,))
        row = self.rows.taken(before, number, axis)
        return self.rows.write(join, {}, [x, row], (result.local_shape, dtype))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _expand_rows(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        """Rows that a device fetched once, as often as its part of the result has them."""
        (x,) = operands
        for dim, index in enumerate(attrs["index"]):
            if index is not None:
                own, rows = result.dims[dim], np.asarray(index, np.int64)
                tables = [rows[slice(*own.bounds(shard))] for shard in range(own.parts)]
                x = self.places.selected(x, dim, tables, result.sharding.dims[dim], own.local)
        return x

    def _rows(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        return operands[0]  # the rows were fetched

    def _concat(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        return self.rows.write("concat", attrs, operands, (result.local_shape, dtype))

    def _take(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        """Rows by number; where the dim is split each device gives those that it has, and zeros for the others."""
        x, index = operands
        axis, layout = attrs["axis"], held[0]
        numbers = self.rows.wrapped(index, layout.shape[axis])
        if layout.dims[axis].parts == 1:
            return self.rows.taken(x, numbers, axis)
        local, mine = self._held_rows(numbers, layout, axis)
        rows = self.rows.taken(x, self.rows.wrapped(local, x.shape[axis]), axis)
        shape = (*(1,) * axis, *index.shape, *(1,) * (len(x.shape) - axis - 1))
        have = self.rows.broadcast(self.rows.reshaped(mine, shape), rows.shape)
        return self._chosen(have, rows, self._nothing(rows), dtype)

    def _held_rows(self, numbers: Typed, layout: Layout, axis: int) -> tuple[Typed, Typed]:
        """Rows counted from where a device's shard begins, 0 for those of others, and which are its own."""
        wide = self.rows.cast(numbers, np.int64)
        start = self.places.wide(self.places.start(layout, axis), wide.shape)
        size = self.places.entry(layout.dims[axis].sizes, layout.sharding.dims[axis])
        local = self._integers("subtract", wide, start)
        zero = self.text.constant(0, local.shape, np.int64)
        above = self._less("greater_equal", local, zero)
        mine = self._both(above, self._less("less", local, self.places.wide(size, local.shape)))
        return self._chosen(mine, local, zero, np.int64), mine

    def _nothing(self, like: Typed) -> Typed:
        """What adds nothing in a sum: -0.0 + x is x."""
        return self.text.constant(-0.0 if like.dtype.kind in "fcV" else 0, like.shape, like.dtype)

    def _pick(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        x, index = operands
        axis, layout = attrs["axis"], held[0]
        if layout.dims[axis].parts == 1:
            return self.rows.write("pick", attrs, operands, (result.local_shape, dtype))
        local, mine = self._held_rows(index, layout, axis)
        found = self.rows.write("pick", attrs, [x, local], (local.shape, dtype))
        return self._chosen(mine, found, self._nothing(found), dtype)

    def _assign(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        """Each device writes, into the rows that it holds, what it was brought for them."""
        x, value = operands
        mine, theirs = held
        if all(row_map is None or mine.dims[dim].parts == 1 for dim, row_map in enumerate(attrs["maps"])):
            return self.rows.write("assign", attrs, operands, (result.local_shape, dtype))
        value, keep = self.rows.cast(value, dtype), None
        for dim, row_map in enumerate(attrs["maps"]):
            if row_map is None:
                continue
            own, other, axes = mine.dims[dim], theirs.dims[dim], mine.sharding.dims[dim]
            first = own.offsets[:-1, None] + np.arange(own.local)
            number = (first - row_map.start) // row_map.stride  # of the value's row that goes there, if one does
            inside = (number * row_map.stride + row_map.start == first) & (number >= 0) & (number < row_map.size)
            shape = [own.local if d == dim else 1 for d in range(len(x.shape))]
            here = self.rows.reshaped(self.places.entry(inside, axes), shape)
            keep = here if keep is None else self._both(keep, here)
            if (theirs.shape[dim] == row_map.size and row_map.size != 1) or other.parts > 1:
                start = other.offsets[:-1, None] if other.parts > 1 else 0
                local = np.clip(number - start, 0, max(other.local - 1, 0))
                value = self.places.selected(value, dim, list(local), axes, own.local)
        wide = self.rows.broadcast(value, x.shape)
        return wide if keep is None else self._chosen(self.rows.broadcast(keep, x.shape), wide, x, dtype)

    def _scatter(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        x, value, *numbers = operands
        if numbers[0].shape != (1,) or all(held[0].dims[dim].parts == 1 for dim in attrs["dims"]):
            return self.rows.write("scatter", attrs, operands, (result.local_shape, dtype))
        keep: Typed | None = None
        for dim, number in zip(attrs["dims"], numbers, strict=True):
            rows = self.places.positions(held[0], dim, x.shape)
            wanted = self.rows.reshaped(self.rows.wrapped(number, held[0].shape[dim]), ())
            here = self._less("equal", rows, self.places.wide(self.rows.cast(wanted, np.int64), rows.shape))
            keep = here if keep is None else self._both(keep, here)
        assert keep is not None
        rest = [n for d, n in enumerate(x.shape) if d not in attrs["dims"]]
        shape = [1 if d in attrs["dims"] else n for d, n in enumerate(x.shape)]
        one = self.rows.reshaped(self.rows.fitted(value, (1, *rest), dtype), shape)
        wide = self.rows.broadcast(one, x.shape)
        return self._chosen(self.rows.broadcast(keep, x.shape), wide, x, dtype)

    def _scatter_reduce(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        """Where a device has all rows that updates may name, and all updates for them."""
        points = [at for at, factor in enumerate(attrs["index"].split()) if not factor.startswith("d")]
        split = [held[0].dims[dim].parts for dim in attrs["dims"]]
        split += [layout.dims[at].parts for layout in held[2:] for at in points]
        if result.sharding.partial or max(split, default=1) > 1:
            raise MLIRError(
                f"{name} can't be written for one device where its rows or its updates are split. Write view='global'."
            )
        return self.rows.write(name, attrs, operands, (result.local_shape, dtype))

    def _attention(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        """Attention of a device's queries and heads to all keys."""
        shape, dim = result.local_shape, len(result.shape) - 2
        column = self.rows.reshaped(self.places.positions(held[0], dim, shape), (shape[dim], 1))
        return self.rows.attended(attrs, operands, shape, dtype, column, result.shape[dim])

    # -- from places --------------------------------------------------------------------------------------------------

    def _triangle(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        shape, rank = result.local_shape, len(result.shape)
        rows, cols = (self.rows.broadcast(self.places.positions(result, d, shape), shape) for d in (rank - 2, rank - 1))
        away = self._integers("subtract", cols, rows)
        test = "less_equal" if attrs["lower"] else "greater_equal"
        keep = self._less(test, away, self.text.constant(int(attrs["k"]), shape, np.int64))
        return self._chosen(keep, operands[0], self.text.constant(0, shape, dtype), dtype)

    def _places(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        shape = result.local_shape
        total: Typed = self.text.constant(0, shape, np.int64)
        for dim, size in enumerate(result.shape):
            own = self.rows.broadcast(self.places.positions(result, dim, shape), shape)
            scaled = self._integers("multiply", total, self.text.constant(size, shape, np.int64))
            total = own if dim == 0 else self._integers("add", scaled, own)
        return self.rows.cast(total, dtype)

    # -- windows ------------------------------------------------------------------------------------------------------

    def _windows(
        self,
        name: str,
        attrs: Mapping[str, Any],
        operands: list[Any],
        held: Sequence[Layout],
        result: Layout,
        dtype: Any,
    ) -> Typed:
        """Windows over the rows that a device was brought, the first of which begins with the first row."""
        x, *weights = operands
        count = len(attrs["maps"])
        x = self.places.filled(x, held[0], [count + 1], 0) if weights else x
        ready = [x, *(self.places.filled(w, held[1], [count], 0) for w in weights)]
        return self.rows.windows(name, attrs, ready, (result.local_shape, dtype))

    _convolution = _max_pool = _avg_pool = _windows
