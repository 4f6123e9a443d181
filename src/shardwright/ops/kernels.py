"""The local computation of every operation, on lanes: NumPy calls in which lanes are leading batch dims.

Padding of uneven shards repeats real values, so element-by-element work on it is harmless; whatever combines elements
along a dim fills the padding with its identity first.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.ops.call import Call, Data
from shardwright.ops.contraction import Label, einsum

# -- element by element -----------------------------------------------------------------------------------------------


def elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function to operands that broadcast; scalars come as they are."""

    def kernel(call: Call, *operands: Any, **options: Any) -> Any:
        arrays = iter(range(len(call.operands)))
        data = [call.align(next(arrays), x) if isinstance(x, np.ndarray) and x.ndim else x for x in operands]
        return function(*data, **call.attrs, **options)

    return kernel


def in_range(call: Call, data: Data) -> Data:
    """The numbers themselves, which must lie between two others: checked where and when there is data."""
    low, high = call.attrs["low"], call.attrs["high"]
    if data.size:
        least, most = data.min(), data.max()
        if least < low or most > high:
            raise call.attrs["error"](call.attrs["text"].format(int(least if least < low else most)))
    return data


# -- along dims that lie whole on every device --------------------------------------------------------------------------


def along(function: Callable[..., Any], key: str = "axis") -> Callable[..., Any]:
    """Apply a function that takes an axis or several."""

    def kernel(call: Call, data: Data) -> Any:
        attrs = dict(call.attrs)
        axis = attrs.pop(key)
        return function(data, **{key: call.n + axis if isinstance(axis, int) else call.axes(axis)}, **attrs)

    return kernel


def stacked_matrices(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function of matrices in the last two dims; lanes and batch dims lead."""

    def kernel(call: Call, *operands: Data) -> Any:
        rank = max(x.ndim for x in operands)
        aligned = (np.expand_dims(x, tuple(range(call.n, call.n + rank - x.ndim))) for x in operands)
        return function(*aligned, **call.attrs)

    return kernel


def tolerant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function of matrices that takes a tolerance, one number or one for each matrix."""

    def kernel(call: Call, x: Data, *rtol: Data) -> Any:
        missing = x.ndim - 2 - (rtol[0].ndim if rtol else 0)
        given = [np.expand_dims(r, tuple(range(call.n, call.n + missing))) for r in rtol]
        return function(x, **({"rtol": given[0]} if given else {}), **call.attrs)

    return kernel


# -- reductions -------------------------------------------------------------------------------------------------------


def lowest(dtype: "np.dtype[Any]") -> Any:
    """What never wins a maximum."""
    if dtype.kind == "b":
        return False
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def highest(dtype: "np.dtype[Any]") -> Any:
    """What never wins a minimum."""
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


def reduction(
    function: Callable[..., Any], identity: Callable[["np.dtype[Any]"], Any] | None = None
) -> Callable[..., Any]:
    """Reduce the local rows; padding is left out."""

    def kernel(call: Call, data: Data) -> Data:
        attrs = dict(call.attrs)
        dims = attrs.pop("axis")
        mask = call.mask(0, dims)
        options: dict[str, Any] = {}
        if mask is not None:
            options["where"] = mask
            if identity is not None:
                options["initial"] = identity(data.dtype)
        result = function(data, axis=call.axes(dims), **attrs, **options)
        return np.asarray(result)

    return kernel


# -- moving elements --------------------------------------------------------------------------------------------------


def permute_dims(call: Call, data: Data) -> Data:
    return data.transpose((*range(call.n), *call.axes(call.attrs["axes"])))


def reshape(call: Call, data: Data) -> Data:
    return data.reshape((*data.shape[: call.n], *call.result.local_shape))


def broadcast_to(call: Call, data: Data) -> Data:
    return np.broadcast_to(call.align(0, data), (*data.shape[: call.n], *call.result.local_shape))


def fetch_rows(call: Call, data: Data) -> Data:
    """Every dim with a row map gets its rows, wherever they lie."""
    for dim, factors in enumerate(call.rule.inputs[0]):
        if factors and factors[0] in call.rule.rows:
            data = call.fetch(0, data, dim, call.rule.outputs[0].index(factors))
    return data


def concat(call: Call, *operands: Data) -> Data:
    lanes = np.broadcast_shapes(*(x.shape[: call.n] for x in operands))
    parts = [np.broadcast_to(x, (*lanes, *x.shape[call.n :])) for x in operands]
    return np.concatenate(parts, axis=call.n + call.attrs["axis"])


def triangle(call: Call, data: Data) -> Data:
    rank = len(call.result.shape)
    rows, cols = call.positions(call.result, rank - 2), call.positions(call.result, rank - 1)
    keep = cols - rows <= call.attrs["k"] if call.attrs["lower"] else cols - rows >= call.attrs["k"]
    return np.where(keep, data, np.zeros((), data.dtype))


def take(call: Call, data: Data, indices: Data) -> Data:
    """Rows by number; where the dim is split, each device gives the rows it has and zeros for the others."""
    axis, rank = call.attrs["axis"], len(call.operands[0].shape)
    held = call.operands[0].dims[axis]
    lane_shape = np.broadcast_shapes(data.shape[: call.n], indices.shape[: call.n])
    starts = call.operands[0].over_lanes(axis, held.offsets[:-1])
    sizes = call.operands[0].over_lanes(axis, held.sizes)
    lead = (1,) * (indices.ndim - call.n)
    indices = indices.astype(np.int64, copy=False)
    numbers = np.where(indices < 0, indices + held.size, indices)
    local = numbers - starts.reshape((*starts.shape, *lead))
    mine = (local >= 0) & (local < sizes.reshape((*sizes.shape, *lead)))
    count = math.prod(indices.shape[call.n :])
    flat = np.where(mine, local, 0).reshape((*np.broadcast_shapes(mine.shape[: call.n], (1,) * call.n), count))
    if not held.local:
        shape = (
            *lane_shape,
            *data.shape[call.n : call.n + axis],
            *indices.shape[call.n :],
            *data.shape[call.n + axis + 1 :],
        )
        return np.zeros(shape, data.dtype)
    if all(n == 1 for n in flat.shape[:-1]):
        rows = np.take(data, flat.ravel(), axis=call.n + axis)
    else:
        index = flat.reshape((*flat.shape[:-1], *(1,) * axis, count, *(1,) * (rank - axis - 1)))
        wide = np.broadcast_to(data, (*lane_shape, *data.shape[call.n :]))
        rows = np.take_along_axis(
            wide, np.broadcast_to(index, (*lane_shape, *index.shape[call.n :])), axis=call.n + axis
        )
    if held.parts > 1:
        have = mine.reshape((*mine.shape[: call.n], *(1,) * axis, count, *(1,) * (rank - axis - 1)))
        rows = np.where(
            have, rows, np.asarray(-0.0 if rows.dtype.kind in "fc" else 0).astype(rows.dtype)
        )  # -0.0 + x is x
    return rows.reshape((*rows.shape[: call.n + axis], *indices.shape[call.n :], *rows.shape[call.n + axis + 1 :]))


def take_along_axis(call: Call, data: Data, indices: Data) -> Data:
    lanes = np.broadcast_shapes(data.shape[: call.n], indices.shape[: call.n])
    wide = [np.broadcast_to(x, (*lanes, *x.shape[call.n :])) for x in (data, indices)]
    return np.take_along_axis(wide[0], wide[1], axis=call.n + call.attrs["axis"])


# -- prefixes ---------------------------------------------------------------------------------------------------------


def cumulative(ufunc: np.ufunc, start: int) -> Callable[..., Any]:
    """Local prefixes, then what the shards before hold in all: devices exchange one row each."""

    def kernel(call: Call, data: Data) -> Data:
        axis, dtype = call.attrs["axis"], call.attrs["dtype"]
        dim = call.n + axis
        data = data.astype(dtype, copy=False)
        mask = call.mask(0, [axis])
        if mask is not None:
            data = np.where(mask, data, np.full((), start, dtype))
        local = ufunc.accumulate(data, axis=dim, dtype=dtype)
        held = call.operands[0].dims[axis]
        if held.parts == 1 or not held.local:
            return local
        last = local[(*(slice(None),) * dim, slice(-1, None))]
        rest = [i for i in range(last.ndim) if i not in held.lanes]
        order = (*held.lanes, *rest)
        flat = last.transpose(order)
        totals = flat.reshape((held.parts, *flat.shape[len(held.lanes) :]))
        before = np.full_like(totals, start)
        before[1:] = ufunc.accumulate(totals[:-1], axis=0, dtype=dtype)
        back = [order.index(i) for i in range(last.ndim)]
        return ufunc(local, before.reshape(flat.shape).transpose(back)).astype(dtype, copy=False)

    return kernel


# -- windows ----------------------------------------------------------------------------------------------------------


def _windows(call: Call, data: Data, dims: Sequence[int], fill: Any) -> Data:
    """Fetch the rows that each device's part of the result reads, then view them as windows in trailing dims."""
    for dim in dims:
        data = call.fetch(0, data, dim, dim, fill)
    for dim in dims:
        (factor,) = call.rule.inputs[0][dim]
        row_map, axis = call.rule.rows[factor], call.n + dim
        room = call.result.local_shape[dim]
        if not room or data.shape[axis] < row_map.span:
            shape = list(data.shape)
            shape[axis] = room
            data = np.full((*shape, row_map.width), fill, data.dtype)
            continue
        view = np.lib.stride_tricks.sliding_window_view(data, row_map.span, axis=axis)[..., :: row_map.dilation]
        stride = 1 if row_map.width == 1 else row_map.stride  # rows that no window reads were not fetched
        data = view[(*(slice(None),) * axis, slice(0, (room - 1) * stride + 1, stride))]
    return data


def convolution(call: Call, data: Data, weights: Data) -> Data:
    """Windows of `b spatial… c` times weights `window… c o`, group by group."""
    spatial = len(call.result.shape) - 2
    groups, n = call.attrs["groups"], call.n
    masks = call.mask(0, [1 + spatial]), call.mask(1, [spatial])
    data, weights = (
        x if m is None else np.where(m, x, np.zeros((), x.dtype)) for x, m in zip((data, weights), masks, strict=True)
    )
    windows = _windows(call, data, range(1, 1 + spatial), 0)  # lanes b spatial… c window…
    lanes = np.broadcast_shapes(windows.shape[:n], weights.shape[:n])
    c_in, c_out = windows.shape[n + 1 + spatial] // groups, weights.shape[-1] // groups
    cut = windows.reshape((*windows.shape[: n + 1 + spatial], groups, c_in, *windows.shape[n + 2 + spatial :]))
    kernel = weights.reshape((*weights.shape[:-1], groups, c_out))
    lane_in: list[Label] = [i if k > 1 else -1 - i for i, k in enumerate(windows.shape[:n])]
    lane_w: list[Label] = [i if k > 1 else -1 - n - i for i, k in enumerate(weights.shape[:n])]
    places: list[Label] = [f"s{i}" for i in range(spatial)]
    offsets: list[Label] = [f"w{i}" for i in range(spatial)]
    out: list[Label] = [*(i for i in range(n) if lanes[i] > 1), "b", *places, "g", "o"]
    result = einsum(
        [cut, kernel], [[*lane_in, "b", *places, "g", "c", *offsets], [*lane_w, *offsets, "c", "g", "o"]], out
    )
    return result.reshape((*lanes, *call.result.local_shape))


def pooling(function: Callable[..., Any], fill: Callable[["np.dtype[Any]"], Any]) -> Callable[..., Any]:
    """Reduce windows of `b spatial… c`."""

    def kernel(call: Call, data: Data) -> Data:
        spatial = len(call.result.shape) - 2
        windows = _windows(call, data, range(1, 1 + spatial), fill(data.dtype))
        return np.asarray(function(windows, axis=tuple(range(-spatial, 0))))

    return kernel


# -- numbers from nothing but their place -------------------------------------------------------------------------------


def places(call: Call) -> NDArray[np.uint64]:
    """The row-major number of every element of the result in the whole tensor."""
    layout = call.result
    total = np.zeros((1,) * (call.n + len(layout.shape)), np.uint64)
    for dim, size in enumerate(layout.shape):
        total = total * np.uint64(size) + call.positions(layout, dim).astype(np.uint64)
    return np.broadcast_to(total, (*layout.lane_shape, *layout.local_shape))


def random_bits(call: Call) -> NDArray[np.uint64]:
    """64 random bits an element, from a key and the element's place alone: Philox 4×32 with 10 rounds."""
    key = np.uint64(call.attrs["key"])
    low32, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter = places(call)
    c = [counter & low32, counter >> shift, np.zeros_like(counter), np.zeros_like(counter)]
    k0, k1 = key & low32, key >> shift
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> shift) ^ c[1] ^ k0, p1 & low32, (p0 >> shift) ^ c[3] ^ k1, p0 & low32]
        k0, k1 = np.uint64((int(k0) + 0x9E3779B9) & 0xFFFFFFFF), np.uint64((int(k1) + 0xBB67AE85) & 0xFFFFFFFF)
    return c[0] | (c[1] << shift)
