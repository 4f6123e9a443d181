"""`Call`: what the local computation of an operation knows about where it runs: lanes, layouts, the rule, attributes."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.ops.rule import Rule
from shardwright.sharding import Layout

Data = NDArray[Any]


class Call:
    """One operation with its operands' and results' layouts, all over the same lanes."""

    def __init__(
        self, rule: Rule, operands: Sequence[Layout], results: Sequence[Layout], attrs: Mapping[str, Any], n_lanes: int
    ) -> None:
        self.rule = rule
        self.operands = tuple(operands)
        self.results = tuple(results)
        self.attrs = attrs
        self.n = n_lanes
        self.made: dict[str, Any] = {}  # what kernels work out once
        self._windows: dict[tuple[int, int], NDArray[np.int64]] = {}

    @property
    def result(self) -> Layout:
        """The layout of the only result."""
        return self.results[0]

    def axes(self, dims: Sequence[int]) -> tuple[int, ...]:
        """Dims of the tensor as dims of the data."""
        return tuple(self.n + dim for dim in dims)

    # -- alignment --------------------------------------------------------------------------------------------------

    @cached_property
    def _aligned(self) -> list[tuple[int, ...] | None]:
        """For each operand the new dims that make its rank that of the result; None where it has it already."""
        rank = len(self.result.shape) if self.results else 0
        ranks = [len(layout.shape) for layout in self.operands]
        return [tuple(range(self.n, self.n + rank - r)) if r < rank else None for r in ranks]

    def align(self, operand: int, data: Data) -> Data:
        """The data with dims of size 1 put between lanes and dims, so that it broadcasts against the result."""
        missing = self._aligned[operand]
        return data if missing is None else np.expand_dims(data, missing)

    def long(self, layout: Layout) -> list[int]:
        """The lanes along which devices hold different things."""
        return [i for i, n in enumerate(layout.lane_shape) if n > 1]

    # -- uneven shards ------------------------------------------------------------------------------------------------

    def mask(self, operand: int, dims: Sequence[int]) -> NDArray[np.bool_] | None:
        """Which elements are real along some dims of an operand; None where all are."""
        return self._masks(self.operands[operand], tuple(dims))

    def _masks(self, layout: Layout, dims: tuple[int, ...]) -> NDArray[np.bool_] | None:
        result: NDArray[np.bool_] | None = None
        rank = len(layout.shape)
        for dim in dims:
            held = layout.extents[dim]
            if held is None:
                continue
            rows = np.arange(layout.local_shape[dim]).reshape([-1 if d == dim else 1 for d in range(rank)])
            real = rows < held.reshape((*held.shape, *(1,) * rank))
            result = real if result is None else result & real
        return result

    def positions(self, layout: Layout, dim: int) -> NDArray[np.int64]:
        """The row of the whole dim at each local place, over the lanes; padding repeats the last row."""
        held, rank = layout.dims[dim], len(layout.shape)
        starts = layout.over_lanes(dim, held.offsets[:-1])
        rows = np.arange(held.local).reshape([-1 if d == dim else 1 for d in range(rank)])
        places = starts.reshape((*starts.shape, *(1,) * rank)) + rows
        return np.minimum(places, max(held.size - 1, 0))

    # -- rows from known places ---------------------------------------------------------------------------------------

    def fetch(self, operand: int, data: Data, dim: int, result_dim: int, fill: Any = 0) -> Data:
        """For each device the rows of a dim that its rows of the result read, wherever they lie; `fill` outside."""
        layout = self.operands[operand]
        held = layout.dims[dim]
        windows = self._window(operand, dim, result_dim)
        axis = self.n + dim
        outside = (windows < 0) | (windows >= held.size)
        if held.parts == 1 and not outside.any() and windows.size:
            rows = windows[0]
            step = int(rows[1] - rows[0]) if len(rows) > 1 else 1
            if step > 0 and bool((np.diff(rows) == step).all()):
                return data[(*(slice(None),) * axis, slice(int(rows[0]), int(rows[-1]) + 1, step))]
        if not held.size:
            shape = list(data.shape)
            shape[axis] = windows.shape[1]
            return np.full(shape, fill, data.dtype)
        places = held.places()[np.clip(windows, 0, held.size - 1)]
        lanes = held.lanes
        order = [i for i in range(axis) if i not in lanes] + [*lanes, *range(axis, data.ndim)]
        ordered = data.transpose(order)
        at = axis - len(lanes)
        joined = ordered.reshape((*ordered.shape[:at], held.parts * held.local, *ordered.shape[axis + 1 :]))
        taken = np.take(joined, places.ravel(), axis=at)
        if outside.any():
            where: tuple[Any, ...] = (*(slice(None),) * at, outside.ravel())
            taken[where] = fill
        shape = [*taken.shape[:at], *(layout.full_shape[i] for i in lanes), windows.shape[1], *taken.shape[at + 1 :]]
        return taken.reshape(shape).transpose([order.index(i) for i in range(data.ndim)])

    def _window(self, operand: int, dim: int, result_dim: int) -> NDArray[np.int64]:
        """Rows per shard, padded to the longest by repeating the last."""
        key = (operand, dim)
        if key not in self._windows:
            (factor,) = self.rule.inputs[operand][dim]
            row_map = self.rule.rows[factor]
            cuts = self.result.dims[result_dim].offsets.tolist()
            windows = [row_map.window(a, b) for a, b in pairwise(cuts)]
            room = max((len(window) for window in windows), default=0)
            table = np.zeros((len(windows), room), np.int64)
            for row, window in zip(table, windows, strict=True):
                row[: len(window)] = window
                row[len(window) :] = window[-1] if len(window) else 0
            self._windows[key] = table
        return self._windows[key]
