"""`Call`: what the local computation of an operation knows about where it runs: layouts, the rule, attributes, dtypes."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shardwright.kernels.space import NUMPY
from shardwright.ops import Rule
from shardwright.sharding import Layout, View

Data = Any  # an array of the engine's namespace
Space = Any  # that namespace: NumPy's, torch's or jax.numpy's functions by NumPy's names
Held = Layout | View
DType = np.dtype[Any]


class Call:
    """One operation with its operands' and results' layouts: of all devices, over the same lanes, or of one device."""

    def __init__(
        self,
        name: str,
        rule: Rule,
        operands: Sequence[Held],
        results: Sequence[Held],
        attrs: Mapping[str, Any],
        dtypes: Sequence[DType],
        result_dtypes: Sequence[DType],
        xp: Space = NUMPY,
    ) -> None:
        self.name, self.rule, self.attrs, self.xp = name, rule, attrs, xp
        self.operands, self.results = tuple(operands), tuple(results)
        self.dtypes, self.result_dtypes = tuple(dtypes), tuple(result_dtypes)
        self.n = len((*self.operands, *self.results)[0].lanes) if self.operands or self.results else 0
        self.made: dict[Any, Any] = {}  # what kernels work out once

    def at(self, place: int) -> "Call":
        """The same call as the device at a place makes it: on its own shards, without lanes."""
        key = ("at", place)
        if key not in self.made:
            operands, results = ([_view(layout, place) for layout in some] for some in (self.operands, self.results))
            self.made[key] = Call(
                self.name, self.rule, operands, results, self.attrs, self.dtypes, self.result_dtypes, self.xp
            )
        found: Call = self.made[key]
        return found

    def on(self, xp: Space) -> "Call":
        """The same call in the functions of another namespace."""
        if xp is self.xp:
            return self
        key = ("on", id(xp))
        if key not in self.made:
            self.made[key] = Call(
                self.name, self.rule, self.operands, self.results, self.attrs, self.dtypes, self.result_dtypes, xp
            )
        found: Call = self.made[key]
        return found

    @property
    def result(self) -> Held:
        """The layout of the only result."""
        return self.results[0]

    def axes(self, dims: Sequence[int]) -> tuple[int, ...]:
        """Dims of the tensor as dims of the data."""
        return tuple(self.n + dim for dim in dims)

    def lanes(self, *data: Data) -> tuple[int, ...]:
        """The lanes that operands broadcast to."""
        return np.broadcast_shapes(*(tuple(x.shape[: self.n]) for x in data))

    def wide(self, data: Data, lanes: tuple[int, ...]) -> Data:
        """The data with its lanes broadcast."""
        return self.xp.broadcast_to(data, (*lanes, *data.shape[self.n :]))

    def converted(self, data: Data, dtype: Any) -> Data:
        """The data in a dtype; itself where it has that, which namespaces may copy."""
        return data if self.xp.dtype(data) == dtype else self.xp.astype(data, dtype)

    # -- alignment --------------------------------------------------------------------------------------------------

    @cached_property
    def _missing(self) -> list[tuple[int, ...]]:
        """For each operand the new dims, behind the lanes, that make its rank that of the result."""
        rank = len(self.result.shape) if self.results else 0
        return [(1,) * max(rank - len(layout.shape), 0) if self.n else () for layout in self.operands]

    def align(self, operand: int, data: Data) -> Data:
        """The data with dims of size 1 put between lanes and dims, so that it broadcasts against the result."""
        missing = self._missing[operand]
        if not missing:
            return data
        return self.xp.reshape(data, (*data.shape[: self.n], *missing, *data.shape[self.n :]))

    # -- what a device knows of itself ------------------------------------------------------------------------------

    def spread(self, per_device: Any, rank: int) -> Any:
        """A number per device, over the lanes, shaped to broadcast against data of a rank."""
        return per_device.reshape((*per_device.shape, *(1,) * rank))

    def starts(self, layout: Held, dim: int) -> Any:
        """Where each device's shard begins along a dim, over the lanes."""
        return layout.over_lanes(dim, layout.dims[dim].offsets[:-1])

    def sizes(self, layout: Held, dim: int) -> Any:
        """How many rows each device holds along a dim, over the lanes."""
        return layout.over_lanes(dim, layout.dims[dim].sizes)

    def mask(self, operand: int, dims: Sequence[int]) -> Any:
        """Which elements are real along some dims of an operand, and no padding; None where all are."""
        key = ("mask", operand, tuple(dims))
        if key not in self.made:
            self.made[key] = padding_mask(self.operands[operand], dims)
        return self.made[key]

    def filled(self, operand: int, data: Data, dims: Sequence[int], fill: Any) -> Data:
        """The data with `fill` instead of padding along some dims."""
        mask = self.mask(operand, dims)
        if mask is None:
            return data
        xp = self.xp
        return xp.where(xp.asarray(mask), data, xp.asarray(fill, dtype=data.dtype))

    def positions(self, layout: Held, dim: int) -> Any:
        """The row of the whole dim at each local place, over the lanes; padding repeats the last row."""
        rank = len(layout.shape)
        rows = np.arange(layout.local_shape[dim]).reshape([-1 if d == dim else 1 for d in range(rank)])
        places = self.spread(self.starts(layout, dim), rank) - layout.dims[dim].low + rows
        return self.xp.minimum(self.xp.asarray(places), max(layout.dims[dim].size - 1, 0))

    def empty_result(self, shape: Sequence[int], fill: Any = 0) -> Data:
        """Data of the first result's dtype that is all one value."""
        return self.xp.full(tuple(shape), fill, dtype=self.result_dtypes[0])


def _view(layout: Held, place: int) -> View:
    assert isinstance(layout, Layout), "a call of one device has no others"
    return layout.at(place)


def padding_mask(layout: Held, dims: Sequence[int]) -> Any:
    """Which elements are real along some dims, and no padding; None where all are. The one definition of padding."""
    result = None
    rank = len(layout.shape)
    for dim in dims:
        extent = layout.extents[dim]
        if extent is None:
            continue
        rows = np.arange(layout.local_shape[dim]).reshape([-1 if d == dim else 1 for d in range(rank)])
        real = rows < extent.reshape((*extent.shape, *(1,) * rank))
        result = real if result is None else result & real
    return result
