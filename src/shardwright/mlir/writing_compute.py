"""What one device computes of an operation of the table, as text.

Element-wise operations are the same on shards. Others mind what a shard is: reductions leave padding out, and what depends on
where an element lies in the whole tensor counts from where the shard begins.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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


class Call(NamedTuple):
    """An operation on shards."""

    name: str
    attrs: Mapping[str, Any]
    operands: list[Any]
    held: Sequence[Layout]  # of the operands that are tensors
    result: Layout
    dtype: Any

    @property
    def kind(self) -> tuple[tuple[int, ...], Any]:
        """The shape and dtype of a device's result."""
        return self.result.local_shape, self.dtype


class Computes:
    """Writes the computations of one device."""

    def __init__(self, rows: Composed, places: Places) -> None:
        self.rows, self.places, self.text = rows, places, rows.text

    def write(self, title: str, call: Call) -> Typed:
        """An operation on shards."""
        name = call.name
        if name in ALIKE or (name in OPS and OPS[name].elementwise):
            return self.rows.write(name, call.attrs, call.operands, call.kind)
        base, _, part = name.partition(" ")
        rule = getattr(self, f"_{part or name}", None) if not part or base in _RUNNING else None
        if name in ("sum", "prod", "max", "min", "all", "any"):
            return self._reduced(call)
        if rule is not None:
            made: Typed = rule(call._replace(name=base))
            return made
        if any(not layout.sharding.is_replicated for layout in (*call.held, call.result)):
            raise MLIRError(
                f"{title} can't be written for one device: what it does depends on which part of the tensor a device has. "
                f"Write view='global'."
            )
        return self.rows.write(name, call.attrs, call.operands, call.kind)

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

    def _reduced(self, call: Call) -> Typed:
        x, name, attrs = call.operands[0], call.name, call.attrs
        neutral = _STARTS[name] if name in _STARTS else EXTREMES[name](x.dtype)
        return self.rows.write(name, attrs, [self.places.filled(x, call.held[0], attrs["axis"], neutral)], call.kind)

    def _first_true(self, call: Call) -> Typed:
        ((dim,), layout) = call.attrs["axis"], call.held[0]
        x = self.places.filled(call.operands[0], layout, [dim], False)
        none = self.text.constant(layout.shape[dim], x.shape, np.int64)
        numbers = self.rows.broadcast(self.places.positions(layout, dim, x.shape), x.shape)
        where = self._chosen(x, numbers, none, np.int64)
        made = self.rows.write("min", {"axis": (dim,)}, [where], (call.result.local_shape, np.int64))
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

    def _running(self, call: Call) -> Typed:
        x = self.rows.cast(call.operands[0], call.dtype)
        x = self.places.filled(x, call.held[0], [call.attrs["axis"]], _RUNNING[call.name][2])
        return self.rows.write(call.name, call.attrs, [x], call.kind)

    _cumulative_sum = _cumulative_prod = _running

    def _total(self, call: Call) -> Typed:
        total, _, neutral = _RUNNING[call.name]
        x = self.places.filled(
            self.rows.cast(call.operands[0], call.dtype), call.held[0], [call.attrs["axis"]], neutral
        )
        return self.rows.write(total, {"axis": (call.attrs["axis"],)}, [x], call.kind)

    def _after(self, call: Call) -> Typed:
        """Running totals that begin with what the shards before come to."""
        x, totals = call.operands
        axis, (_, join, neutral) = call.attrs["axis"], _RUNNING[call.name]
        running = self.rows.write(call.name, call.attrs, [totals], (totals.shape, call.dtype))
        first = self.text.constant(neutral, [1 if d == axis else n for d, n in enumerate(totals.shape)], call.dtype)
        before = self.rows.joined([first, running], axis)
        number = self.rows.reshaped(self.places.number(call.held[0].sharding.dims[axis]), (1,))
        row = self.rows.taken(before, number, axis)
        return self.rows.write(join, {}, [x, row], call.kind)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _expand_rows(self, call: Call) -> Typed:
        """Rows that a device fetched once, as often as its part of the result has them."""
        (x,) = call.operands
        for dim, index in enumerate(call.attrs["index"]):
            if index is not None:
                own, rows = call.result.dims[dim], np.asarray(index, np.int64)
                tables = [rows[slice(*own.bounds(shard))] for shard in range(own.parts)]
                x = self.places.selected(x, dim, tables, call.result.sharding.dims[dim], own.local)
        return x

    def _rows(self, call: Call) -> Typed:
        return call.operands[0]  # the rows were fetched

    def _concat(self, call: Call) -> Typed:
        return self.rows.write("concat", call.attrs, call.operands, call.kind)

    def _take(self, call: Call) -> Typed:
        """Rows by number; where the dim is split each device gives those that it has, and zeros for the others."""
        x, index = call.operands
        axis, layout = call.attrs["axis"], call.held[0]
        numbers = self.rows.wrapped(index, layout.shape[axis])
        if layout.dims[axis].parts == 1:
            return self.rows.taken(x, numbers, axis)
        local, mine = self._held_rows(numbers, layout, axis)
        rows = self.rows.taken(x, self.rows.wrapped(local, x.shape[axis]), axis)
        shape = (*(1,) * axis, *index.shape, *(1,) * (len(x.shape) - axis - 1))
        have = self.rows.broadcast(self.rows.reshaped(mine, shape), rows.shape)
        return self._chosen(have, rows, self._nothing(rows), call.dtype)

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

    def _pick(self, call: Call) -> Typed:
        x, index = call.operands
        axis, layout = call.attrs["axis"], call.held[0]
        if layout.dims[axis].parts == 1:
            return self.rows.write("pick", call.attrs, call.operands, call.kind)
        local, mine = self._held_rows(index, layout, axis)
        found = self.rows.write("pick", call.attrs, [x, local], (local.shape, call.dtype))
        return self._chosen(mine, found, self._nothing(found), call.dtype)

    def _assign(self, call: Call) -> Typed:
        """Each device writes, into the rows that it holds, what it was brought for them."""
        x, value = call.operands
        mine, theirs = call.held
        if all(row_map is None or mine.dims[dim].parts == 1 for dim, row_map in enumerate(call.attrs["maps"])):
            return self.rows.write("assign", call.attrs, call.operands, call.kind)
        value, keep = self.rows.cast(value, call.dtype), None
        for dim, row_map in enumerate(call.attrs["maps"]):
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
        return wide if keep is None else self._chosen(self.rows.broadcast(keep, x.shape), wide, x, call.dtype)

    def _scatter(self, call: Call) -> Typed:
        x, value, *numbers = call.operands
        if numbers[0].shape != (1,) or all(call.held[0].dims[dim].parts == 1 for dim in call.attrs["dims"]):
            return self.rows.write("scatter", call.attrs, call.operands, call.kind)
        keep: Typed | None = None
        for dim, number in zip(call.attrs["dims"], numbers, strict=True):
            rows = self.places.positions(call.held[0], dim, x.shape)
            wanted = self.rows.reshaped(self.rows.wrapped(number, call.held[0].shape[dim]), ())
            here = self._less("equal", rows, self.places.wide(self.rows.cast(wanted, np.int64), rows.shape))
            keep = here if keep is None else self._both(keep, here)
        assert keep is not None
        rest = [n for d, n in enumerate(x.shape) if d not in call.attrs["dims"]]
        shape = [1 if d in call.attrs["dims"] else n for d, n in enumerate(x.shape)]
        one = self.rows.reshaped(self.rows.fitted(value, (1, *rest), call.dtype), shape)
        wide = self.rows.broadcast(one, x.shape)
        return self._chosen(self.rows.broadcast(keep, x.shape), wide, x, call.dtype)

    def _scatter_reduce(self, call: Call) -> Typed:
        """Where a device has all rows that updates may name, and all updates for them."""
        points = [at for at, factor in enumerate(call.attrs["index"].split()) if not factor.startswith("d")]
        split = [call.held[0].dims[dim].parts for dim in call.attrs["dims"]]
        split += [layout.dims[at].parts for layout in call.held[2:] for at in points]
        if call.result.sharding.partial or max(split, default=1) > 1:
            raise MLIRError(
                f"{call.name} can't be written for one device where its rows or its updates are split. Write view='global'."
            )
        return self.rows.write(call.name, call.attrs, call.operands, call.kind)

    def _attention(self, call: Call) -> Typed:
        """Attention of a device's queries and heads to all keys."""
        shape, dim = call.result.local_shape, len(call.result.shape) - 2
        column = self.rows.reshaped(self.places.positions(call.held[0], dim, shape), (shape[dim], 1))
        return self.rows.attended(call.attrs, call.operands, shape, call.dtype, column, call.result.shape[dim])

    # -- from places --------------------------------------------------------------------------------------------------

    def _triangle(self, call: Call) -> Typed:
        shape, rank = call.result.local_shape, len(call.result.shape)
        rows, cols = (
            self.rows.broadcast(self.places.positions(call.result, d, shape), shape) for d in (rank - 2, rank - 1)
        )
        away = self._integers("subtract", cols, rows)
        test = "less_equal" if call.attrs["lower"] else "greater_equal"
        keep = self._less(test, away, self.text.constant(int(call.attrs["k"]), shape, np.int64))
        return self._chosen(keep, call.operands[0], self.text.constant(0, shape, call.dtype), call.dtype)

    def _places(self, call: Call) -> Typed:
        shape = call.result.local_shape
        total: Typed = self.text.constant(0, shape, np.int64)
        for dim, size in enumerate(call.result.shape):
            own = self.rows.broadcast(self.places.positions(call.result, dim, shape), shape)
            scaled = self._integers("multiply", total, self.text.constant(size, shape, np.int64))
            total = own if dim == 0 else self._integers("add", scaled, own)
        return self.rows.cast(total, call.dtype)

    # -- windows ------------------------------------------------------------------------------------------------------

    def _windows(self, call: Call) -> Typed:
        """Windows over the rows that a device was brought, the first of which begins with the first row."""
        x, *weights = call.operands
        count = len(call.attrs["maps"])
        x = self.places.filled(x, call.held[0], [count + 1], 0) if weights else x
        ready = [x, *(self.places.filled(w, call.held[1], [count], 0) for w in weights)]
        return self.rows.windows(call.name, call.attrs, ready, call.kind)

    _convolution = _max_pool = _avg_pool = _windows
