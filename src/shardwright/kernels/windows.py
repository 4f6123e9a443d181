"""Windows over rows that a device has been brought: convolutions and pooling of `b spatial… c`."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from shardwright.kernels.call import Call, Data
from shardwright.kernels.contraction import Label, einsum
from shardwright.ops import RowMap, is_small


def _slices(call: Call, data: Data) -> Iterator[Data]:
    """For each place in a window, row-major, the element that each window has there.

    The first window begins with the first row that was fetched; windows lie `stride` rows apart.
    """
    maps: tuple[RowMap, ...] = call.attrs["maps"]
    rooms = [call.result.local_shape[1 + i] for i in range(len(maps))]
    for offsets in product(*(range(row_map.width) for row_map in maps)):
        where: list[Any] = [slice(None)] * data.ndim
        for i, (row_map, room, offset) in enumerate(zip(maps, rooms, offsets, strict=True)):
            first = offset * row_map.dilation
            stride = row_map.stride if row_map.width > 1 else 1  # of single rows only those that are read were fetched
            where[call.n + 1 + i] = slice(first, first + max(room - 1, 0) * stride + min(room, 1), stride)
        yield data[tuple(where)]


def convolution(call: Call, data: Data, weights: Data) -> Data:
    """Windows of `b spatial… c` times weights `window… c o`, group by group."""
    xp, n, spatial = call.xp, call.n, len(call.result.shape) - 2
    groups = call.attrs["groups"]
    data = call.filled(0, data, [1 + spatial], 0)
    weights = call.filled(1, weights, [spatial], 0)
    windows = xp.stack(list(_slices(call, data)), axis=-1)  # lanes b spatial… c window
    lanes = call.lanes(windows, weights)
    c_in, c_out = windows.shape[-2] // groups, weights.shape[-1] // groups
    cut = xp.reshape(windows, (*windows.shape[: n + 1 + spatial], groups, c_in, windows.shape[-1]))
    kernel = xp.reshape(weights, (*weights.shape[:n], windows.shape[-1], weights.shape[-2], groups, c_out))
    lane_in: list[Label] = [i if k > 1 else -1 - i for i, k in enumerate(windows.shape[:n])]
    lane_w: list[Label] = [i if k > 1 else -1 - n - i for i, k in enumerate(weights.shape[:n])]
    places: list[Label] = [f"s{i}" for i in range(spatial)]
    out: list[Label] = [*(i for i in range(n) if lanes[i] > 1), "b", *places, "g", "o"]
    result = einsum(xp, [cut, kernel], [[*lane_in, "b", *places, "g", "c", "w"], [*lane_w, "w", "c", "g", "o"]], out)
    return xp.reshape(result, (*lanes, *call.result.local_shape))


def pooling(name: str) -> Callable[..., Data]:
    """Reduce windows of `b spatial… c`; small floats of ml_dtypes are averaged in float32, as other averages are."""

    def kernel(call: Call, data: Data) -> Data:
        windows = call.xp.stack(list(_slices(call, data)), axis=-1)
        if name == "mean" and is_small(call.dtypes[0]):
            windows = call.xp.astype(windows, np.float32)
        return getattr(call.xp, name)(windows, axis=-1)

    return kernel


def fill_of(name: str, dtype: "np.dtype[Any]", lowest: Callable[["np.dtype[Any]"], Any]) -> Any:
    """What windows read beyond the tensor's border."""
    return lowest(dtype) if name == "max_pool" else 0
