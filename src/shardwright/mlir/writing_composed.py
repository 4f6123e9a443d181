"""Operations of the table that are written as several others: attention, scatters, products of groups, searches, selections."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.mlir.text import Typed
from shardwright.mlir.writing_rows import EXTREMES
from shardwright.mlir.writing_sorting import Sorting
from shardwright.ops import RowMap, work_dtype

MOST_COMPARED = 2**24  # elements of a comparison of all with all
_BOOL = np.dtype(bool)
_COMBINED: dict[
    str, tuple[str, str, Callable[[Any], Any]]
] = {  # how a scatter reduces updates, joins them with x, begins
    "add": ("sum", "add", lambda kind: kind.type(0)),
    "mul": ("prod", "multiply", lambda kind: kind.type(1)),
    "max": ("max", "maximum", EXTREMES["max"]),
    "min": ("min", "minimum", EXTREMES["min"]),
}


class Composed(Sorting):
    """Writes them, beside the other operations of the table."""

    def several(
        self, name: str, attrs: Mapping[str, Any], operands: Sequence[Any], results: Sequence[tuple[Any, Any]]
    ) -> list[Typed]:
        """An operation with several results."""
        if name != "top_k":
            raise self._refuse(name, f"has {len(results)} results")
        (x,), (shape, _) = operands, results[0]
        axis, order = attrs["axis"], {"axis": attrs["axis"], "descending": attrs["largest"]}
        ranked = self.write("argsort", order, [x], (x.shape, np.int64))
        first = [RowMap(shape[axis]) if dim == axis else None for dim in range(len(shape))]
        places = self.picked(ranked, first)
        return [self.write("take_along_axis", {"axis": axis}, [x, places], results[0]), places]

    def _test(self, row: str, *operands: Typed) -> Typed:
        """A comparison of tensors of one shape, or of what it gives."""
        if row.startswith("logical"):
            return self.write(row, {}, operands, (operands[0].shape, _BOOL))
        return self.compared(row, list(operands), operands[0].shape)

    def _against(self, name: str, x: Typed, values: Typed) -> tuple[Typed, Typed]:
        """Elements, and all values for each of them, along one more dim."""
        shape = (*x.shape, math.prod(values.shape))
        self._check_size(name, shape)
        wide = self.broadcast(self.reshaped(x, (*x.shape, 1)), shape)
        return wide, self.broadcast(self.reshaped(values, (*(1,) * len(x.shape), shape[-1])), shape)

    def _check_size(self, name: str, shape: Sequence[int]) -> None:
        if math.prod(shape) > MOST_COMPARED:
            raise self._refuse(name, f"compares {math.prod(shape):,} pairs; at most {MOST_COMPARED:,} are written")

    def _isin(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        kind = np.result_type(*(x.dtype for x in operands))
        same = self._test("equal", *self._against("isin", *(self.cast(x, kind) for x in operands)))
        made = self.write("any", {"axis": (len(shape),), "keepdims": False}, [same], (shape, _BOOL))
        return self.write("logical_not", {}, [made], (shape, _BOOL)) if attrs["invert"] else made

    def _searchsorted(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        """How many rows come before each value; NaNs come last."""
        kind = np.result_type(*(x.dtype for x in operands))
        values, rows = self._against("searchsorted", *(self.cast(x, kind) for x in operands[::-1]))
        left = attrs["side"] == "left"
        before = self._test("less" if left else "less_equal", rows, values)
        if kind.kind in "fV":
            nan, real = self._test("not_equal", values, values), self._test("equal", rows, rows)
            before = self._test("logical_or", before, self._test("logical_and", nan, real) if left else nan)
        counted = self.cast(before, np.int64)
        return self.write("sum", {"axis": (len(shape),), "keepdims": False}, [counted], (shape, np.int64))

    def _grouped_matmul(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        """All rows times the matrix of each group, of which a row keeps its own group's."""
        x, matrices, ends = operands
        rows, groups, wide = x.shape[0], matrices.shape[0], work_dtype(dtype)
        last = self.cast(ends, np.int64)
        before = self.picked(last, [RowMap(groups - 1)])
        begins = self.joined([self.text.constant(0, (1,), np.int64), before], 0)
        number = self.broadcast(self.along(1, (groups, rows)), (groups, rows))
        first, end = (self.broadcast(self.reshaped(n, (groups, 1)), (groups, rows)) for n in (begins, last))
        own = self._test("logical_and", self._test("greater_equal", number, first), self._test("less", number, end))
        full = (groups, *shape)
        made = self.write(
            "einsum", {"text": "t k, g k n -> g t n"}, [self.cast(x, wide), self.cast(matrices, wide)], (full, wide)
        )
        keep = self.broadcast(self.reshaped(own, (groups, rows, 1)), full)
        made = self.write("where", {}, [keep, made, self.text.constant(0, full, wide)], (full, wide))
        return self.cast(self.write("sum", {"axis": (0,), "keepdims": False}, [made], (shape, wide)), dtype)

    # -- scatters -----------------------------------------------------------------------------------------------------

    def _scatter_reduce(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        """For each row of x the updates that name it, reduced, and x."""
        x, updates, *indices = operands
        names, points = [f"d{dim}" for dim in range(len(shape))], attrs["index"].split()
        labels = [*(name for name in points if name not in names), *names]
        sizes = {**dict(zip(points, indices[0].shape, strict=True)), **dict(zip(names, shape, strict=True))}
        full = tuple(sizes[name] for name in labels)
        self._check_size("scatter_reduce", full)
        op = {"add": "max", "mul": "min"}.get(attrs["op"], attrs["op"]) if dtype.kind == "b" else attrs["op"]
        work = np.dtype(np.uint8) if dtype.kind == "b" else work_dtype(dtype)
        row, join, start = _COMBINED[op]
        keep: Typed | None = None
        for dim, index in zip(attrs["dims"], indices, strict=True):
            wanted = self._laid(self.cast(self.wrapped(index, shape[dim]), np.int64), points, labels, full)
            same = self._test("equal", wanted, self.broadcast(self.along(labels.index(names[dim]), full), full))
            keep = same if keep is None else self._test("logical_and", keep, same)
        given = self._laid(self.cast(updates, work), attrs["updates"].split(), labels, full)
        kept = self.write("where", {}, [keep, given, self.text.constant(start(work), full, work)], (full, work))
        count = len(full) - len(shape)
        if count:
            kept = self.write(row, {"axis": tuple(range(count)), "keepdims": False}, [kept], (shape, work))
        return self.cast(self.write(join, {}, [self.cast(x, work), kept], (shape, work)), dtype)

    def _laid(self, x: Typed, own: Sequence[str], labels: Sequence[str], full: Sequence[int]) -> Typed:
        """A tensor with its dims at their labels, repeated along the others."""
        present = [label for label in labels if label in own]
        order = tuple(own.index(label) for label in present)
        moved = self.write("permute_dims", {"axes": order}, [x], (tuple(x.shape[at] for at in order), x.dtype))
        sizes = [moved.shape[present.index(label)] if label in own else 1 for label in labels]
        return self.broadcast(self.reshaped(moved, sizes), full)

    # -- attention ----------------------------------------------------------------------------------------------------

    def _attention(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        queries, keys = shape[-2], operands[1].shape[-2]
        return self.attended(attrs, operands, shape, dtype, self.along(0, (queries, keys)), queries)

    def attended(
        self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any, positions: Typed, queries: int
    ) -> Typed:
        """Attention to all keys: scores, their softmax and the product with values. `positions` are those of the queries among
        all, as a column."""
        query, key, value, *masks = operands
        heads, shared, width, keys = query.shape[-3], key.shape[-3], query.shape[-1], key.shape[-2]
        if any(x.shape[:-3] != shape[:-3] for x in (query, key, value)):
            raise self._refuse("attention", "broadcasts its batch dims")
        work, batch = work_dtype(dtype), shape[:-3]
        grouped = (*batch, shared, heads // shared)
        local = (*grouped, query.shape[-2])
        scaled = self.write(
            "multiply", {}, [self.cast(query, work), self.text.constant(attrs["scale"], query.shape, work)],
            (query.shape, work),
        )  # fmt: skip
        q = self.reshaped(scaled, (*local, width))
        scores = self.write(
            "einsum",
            {"text": "... h g q d, ... h s d -> ... h g q s"},
            [q, self.cast(key, work)],
            ((*local, keys), work),
        )
        scores = self._masked(attrs, scores, masks, (*batch, heads, query.shape[-2], keys), positions, queries)
        total, weight = self._weighted(scores, self.cast(value, work), (*local, value.shape[-1]))
        some = self._test("equal", weight, self.text.constant(0, weight.shape, work))
        divisor = self.write(
            "where", {}, [some, self.text.constant(1, weight.shape, work), weight], (weight.shape, work)
        )
        wide = self.broadcast(self.reshaped(divisor, (*local, 1)), total.shape)
        made = self.write("divide", {}, [total, wide], (total.shape, work))
        return self.cast(self.reshaped(made, shape), dtype)

    def _masked(
        self, attrs: Any, scores: Typed, masks: Sequence[Typed], plain: Sequence[int], positions: Typed, queries: int
    ) -> Typed:
        """Scores with what a query may not attend to at -inf."""
        kind = (scores.shape, scores.dtype)
        nothing = self.text.constant(-np.inf, *kind)
        for mask in masks:
            ones = (*(1,) * (len(plain) - len(mask.shape)), *mask.shape)
            wide = self.reshaped(self.broadcast(self.reshaped(mask, ones), plain), scores.shape)
            if mask.dtype == _BOOL:
                scores = self.write("where", {}, [wide, scores, nothing], kind)
            else:
                scores = self.write("add", {}, [scores, self.cast(wide, scores.dtype)], kind)
        if not attrs["causal"]:
            return scores
        box = tuple(plain[-2:])
        last = self.write(
            "add",
            {},
            [positions, self.text.constant(plain[-1] - queries, positions.shape, np.int64)],
            (positions.shape, np.int64),
        )
        before = self._test("less_equal", self.broadcast(self.along(1, box), box), self.broadcast(last, box))
        ones = (*(1,) * (len(scores.shape) - 2), *box)
        return self.write(
            "where", {}, [self.broadcast(self.reshaped(before, ones), scores.shape), scores, nothing], kind
        )

    def _weighted(self, scores: Typed, value: Typed, shape: Sequence[int]) -> tuple[Typed, Typed]:
        """Sums of weighted values, and of the weights, which are relative to the largest score."""
        rows, kind = scores.shape[:-1], scores.dtype
        over = {"axis": (len(rows),), "keepdims": False}
        top = self.write("max", over, [scores], (rows, kind))
        finite = self.write("where", {}, [self._test_finite(top), top, self.text.constant(0, rows, kind)], (rows, kind))
        wide = self.broadcast(self.reshaped(finite, (*rows, 1)), scores.shape)
        lowered = self.write("subtract", {}, [scores, wide], (scores.shape, kind))
        weights = self.write("exp", {}, [lowered], (scores.shape, kind))
        total = self.write("einsum", {"text": "... h g q s, ... h s e -> ... h g q e"}, [weights, value], (shape, kind))
        return total, self.write("sum", over, [weights], (rows, kind))

    def _test_finite(self, x: Typed) -> Typed:
        return self.write("isfinite", {}, [x], (x.shape, _BOOL))
