"""Along dims: reductions of the local rows, sorts and transforms of dims that are whole, running totals, matrices."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwright.kernels.call import Call, Data, Space
from shardwright.ops import finite_range, is_small


def lowest(dtype: "np.dtype[Any]") -> Any:
    """What never wins a maximum."""
    return _end(dtype, -np.inf, 0)


def highest(dtype: "np.dtype[Any]") -> Any:
    """What never wins a minimum."""
    return _end(dtype, np.inf, 1)


def _end(dtype: "np.dtype[Any]", infinity: float, end: int) -> Any:
    """One end of a dtype's values: an infinity, or the last finite value of integers and of floats without infinities."""
    if dtype.kind == "b":
        return bool(end)
    if dtype.kind in "iu" or (is_small(dtype) and not np.isinf(np.asarray(infinity).astype(dtype))):
        return finite_range(dtype)[end]
    return infinity


def reduction(name: str, identity: Callable[["np.dtype[Any]"], Any]) -> Callable[..., Data]:
    """Reduce the local rows; padding, and no rows at all, give the identity."""

    def kernel(call: Call, data: Data) -> Data:
        xp, attrs = call.xp, dict(call.attrs)
        dims = attrs.pop("axis")
        start = identity(call.dtypes[0])
        data = call.filled(0, data, dims, start)
        if name in ("max", "min") and 0 in (data.shape[call.n + dim] for dim in dims):
            keep = attrs.get("keepdims")
            gone = set(call.axes(dims))
            shape = [1 if i in gone else n for i, n in enumerate(data.shape) if keep or i not in gone]
            return call.empty_result(shape, start)
        return getattr(xp, name)(data, axis=call.axes(dims), **attrs)

    return kernel


def first_true(call: Call, data: Data) -> Data:
    """The number of the first true row along a dim; the dim's size where no row of the device is."""
    xp, (dim,) = call.xp, call.attrs["axis"]
    layout, axis, keep = call.operands[0], call.n + dim, bool(call.attrs.get("keepdims"))
    data = call.filled(0, data, [dim], False)
    size = layout.shape[dim]
    if not data.shape[axis]:
        return call.empty_result([1 if i == axis else n for i, n in enumerate(data.shape) if keep or i != axis], size)
    rank = data.ndim - call.n - (not keep)
    found = xp.astype(xp.argmax(data, axis=axis, keepdims=keep), np.int64)
    starts = xp.asarray(call.spread(call.starts(layout, dim), rank))
    return xp.where(xp.any(data, axis=axis, keepdims=keep), found + starts, xp.asarray(size, dtype=np.int64))


def along(function: Callable[..., Data]) -> Callable[..., Data]:
    """A function of the namespace, the data and an axis or several."""

    def kernel(call: Call, data: Data) -> Data:
        attrs = dict(call.attrs)
        axis = attrs.pop("axis")
        return function(call.xp, data, axis=call.n + axis if isinstance(axis, int) else call.axes(axis), **attrs)

    return kernel


def sort(xp: Space, x: Data, axis: int, descending: bool, stable: bool) -> Data:
    result = xp.sort(_sortable(xp, x), axis=axis, stable=stable)
    return xp.flip(result, axis=axis) if descending else result


def argsort(xp: Space, x: Data, axis: int, descending: bool, stable: bool) -> Data:
    x = _sortable(xp, x)
    if not descending:
        return xp.astype(xp.argsort(x, axis=axis, stable=stable), np.int64)
    order = xp.flip(xp.argsort(xp.flip(x, axis=axis), axis=axis, stable=stable), axis=axis)
    return xp.astype(x.shape[axis] - 1 - order, np.int64)


def _first_rows(call: Call, count: int, order: Data, *data: Data) -> tuple[Data, ...]:
    """The first rows of some data in an order along the call's axis."""
    axis = call.n + call.attrs["axis"]
    some = order[(*(slice(None),) * axis, slice(0, count))]
    return tuple(call.xp.take_along_axis(x, some, axis=axis) for x in data)


def _ranking(call: Call, x: Data) -> Data:
    """The order of rows from the first that is selected; of equal elements the first comes first, NaNs are the largest."""
    return argsort(call.xp, x, call.n + call.attrs["axis"], call.attrs["largest"], stable=True)


def top_k(call: Call, x: Data) -> tuple[Data, ...]:
    """The first k elements of a dim that is whole, and their places."""
    order = _ranking(call, x)
    places = order[(*(slice(None),) * (call.n + call.attrs["axis"]), slice(0, call.attrs["k"]))]
    return (*_first_rows(call, call.attrs["k"], order, x), places)


def candidates(call: Call, x: Data) -> tuple[Data, ...]:
    """A shard's first elements, as many as it may pass on, and their places in the whole dim."""
    xp, dim, layout = call.xp, call.attrs["axis"], call.operands[0]
    axis, count = call.n + dim, call.results[0].local_shape[dim]
    order = _ranking(call, x)
    real = call.mask(0, [dim])
    if real is not None:  # rows that are padding come last
        padding = xp.take_along_axis(xp.broadcast_to(xp.asarray(~real), x.shape), order, axis=axis)
        order = xp.take_along_axis(order, xp.argsort(xp.astype(padding, np.int8), axis=axis, stable=True), axis=axis)
    (values,) = _first_rows(call, count, order, x)
    places = order[(*(slice(None),) * axis, slice(0, count))]
    return values, places + xp.asarray(call.spread(call.starts(layout, dim), len(layout.shape)))


def merged(call: Call, values: Data, places: Data) -> tuple[Data, ...]:
    """The first k of the candidates of all shards, which come in the order of their places."""
    return _first_rows(call, call.attrs["k"], _ranking(call, values), values, places)


def _sortable(xp: Space, x: Data) -> Data:
    """NumPy does not sort the NaNs of small floats of ml_dtypes last."""
    return xp.astype(x, np.float32) if is_small(xp.dtype(x)) else x


def searchsorted(call: Call, x: Data, values: Data) -> Data:
    xp = call.xp
    row, values = _sortable(xp, xp.reshape(x, (-1,))), _sortable(xp, values)
    return xp.astype(xp.searchsorted(row, values, side=call.attrs["side"]), np.int64)


def fft(name: str) -> Callable[..., Data]:
    def kernel(call: Call, x: Data) -> Data:
        xp, dtype = call.xp, call.result_dtypes[0]
        axis, norm, length = (call.attrs[key] for key in ("axis", "norm", "length"))
        function = getattr(xp.fft, name)
        if isinstance(axis, int):
            made = function(x, n=length, axis=call.n + axis, norm=norm)
        else:
            made = function(x, s=length, axes=call.axes(axis), norm=norm)
        return made if xp.dtype(made) == dtype else xp.astype(made, dtype)  # torch's are never float16

    return kernel


def shifted(name: str) -> Callable[..., Data]:
    return lambda xp, x, axis: getattr(xp.fft, name)(x, axes=axis) if axis else x  # NumPy refuses 0 dims


# -- running totals -------------------------------------------------------------------------------------------------------

_START = {"cumulative_sum": 0, "cumulative_prod": 1}
_TOTAL = {"cumulative_sum": "sum", "cumulative_prod": "prod"}
_JOIN = {"cumulative_sum": "add", "cumulative_prod": "multiply"}


def cumulative(name: str) -> Callable[..., Data]:
    """Running totals of the rows that a device holds."""

    def kernel(call: Call, data: Data) -> Data:
        axis, dtype = call.attrs["axis"], call.attrs["dtype"]
        data = call.xp.astype(data, dtype)
        filled = call.filled(0, data, [axis], _START[name])
        return call.xp.astype(getattr(call.xp, name)(filled, axis=call.n + axis, dtype=dtype), dtype)

    return kernel


def total(name: str) -> Callable[..., Data]:
    """What all rows that a device holds come to: one row."""

    def kernel(call: Call, data: Data) -> Data:
        axis, dtype = call.attrs["axis"], call.attrs["dtype"]
        data = call.xp.astype(data, dtype)
        filled = call.filled(0, data, [axis], _START[name])
        return getattr(call.xp, _TOTAL[name])(filled, axis=call.n + axis, keepdims=True, dtype=dtype)

    return kernel


def after(name: str) -> Callable[..., Data]:
    """Running totals that begin with what the shards before come to; those totals come as a row a shard."""

    def kernel(call: Call, data: Data, totals: Data) -> Data:
        xp, axis, dtype = call.xp, call.attrs["axis"], call.attrs["dtype"]
        layout, at = call.operands[0], call.n + call.attrs["axis"]
        mine = layout.over_lanes(axis, np.arange(layout.dims[axis].parts))
        running = xp.astype(getattr(xp, name)(totals, axis=at, dtype=dtype), dtype)
        first = xp.full((*totals.shape[:at], 1, *totals.shape[at + 1 :]), _START[name], dtype=dtype)
        before = xp.concat([first, running], axis=at)  # row j: what the shards before j come to
        return xp.astype(getattr(xp, _JOIN[name])(data, one_row(call, before, mine, axis)), dtype)

    return kernel


def one_row(call: Call, data: Data, rows: Any, dim: int) -> Data:
    """For each device one row of a dim that all hold; its number, over the lanes, is the device's own."""
    xp, axis = call.xp, call.n + dim
    taken = xp.take(data, xp.asarray(rows.reshape(-1)), axis=axis)
    long = [lane for lane, n in enumerate(rows.shape) if n > 1]
    sizes = [rows.shape[lane] for lane in long]
    apart = xp.reshape(taken, (*taken.shape[:axis], *sizes, 1, *taken.shape[axis + 1 :]))
    order = [axis + long.index(lane) if lane in long else lane for lane in range(call.n)]
    order += [*long, *range(call.n, axis), *range(axis + len(long), apart.ndim)]
    lanes = [rows.shape[lane] if lane in long else data.shape[lane] for lane in range(call.n)]
    return xp.reshape(xp.transpose(apart, order), (*lanes, *data.shape[call.n : axis], 1, *data.shape[axis + 1 :]))


# -- matrices, whole on each device; lanes and batch dims lead ------------------------------------------------------------


def matrices(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the namespace and of matrices in the last two dims."""

    def kernel(call: Call, *operands: Data) -> Any:
        rank = max(x.ndim for x in operands)
        reshaped = (
            call.xp.reshape(x, (*x.shape[: call.n], *(1,) * (rank - x.ndim), *x.shape[call.n :])) for x in operands
        )
        return function(call.xp, *reshaped, **call.attrs)

    return kernel


def linalg(name: str) -> Callable[..., Any]:
    return matrices(lambda xp, *x, **attrs: getattr(xp.linalg, name)(*x, **attrs))


def tolerant(name: str) -> Callable[..., Data]:
    """A function of matrices that takes a tolerance, one number or one for each matrix."""

    def kernel(call: Call, x: Data, *rtol: Data) -> Data:
        missing = x.ndim - 2 - (rtol[0].ndim if rtol else 0)
        given = [call.xp.reshape(r, (*r.shape[: call.n], *(1,) * missing, *r.shape[call.n :])) for r in rtol]
        made = getattr(call.xp.linalg, name)(x, **({"rtol": given[0]} if given else {}), **call.attrs)
        return call.xp.astype(made, call.result_dtypes[0])  # NumPy's pinv of no integers gives integers

    return kernel


def norm(xp: Space, x: Data, ord: Any, keepdims: bool) -> Data:
    return xp.linalg.norm(x, ord=ord, axis=(-2, -1), keepdims=keepdims)


def as_complex(name: str) -> Callable[..., Any]:
    """Complex whatever the data: NumPy gives real numbers where they happen to do."""

    def kernel(call: Call, x: Data) -> Any:
        made = getattr(call.xp.linalg, name)(x)
        if isinstance(made, tuple):
            return tuple(call.xp.astype(m, d) for m, d in zip(made, call.result_dtypes, strict=True))
        return call.xp.astype(made, call.result_dtypes[0])

    return kernel
