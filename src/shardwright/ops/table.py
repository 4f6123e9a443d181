"""THE TABLE: one row an operation. All that is known about sharding an operation is its row.

A row has a factor rule, fitted to the operands' shapes and the call's attributes, and the local computation. What a
strategy may do, what it costs, where results lie: all of that is derived from the rule, elsewhere and once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import shardwright.ops.dtypes as dt
import shardwright.ops.dynamic as dynamic
import shardwright.ops.families as f
import shardwright.ops.kernels as k
import shardwright.ops.special as special
from shardwright.ops.call import Call
from shardwright.ops.contraction import contract


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One row: an operation's name, how it may be sharded, what a device computes.

    `dtypes` gives the results' dtypes. `contracts` marks kernels that can sum over partial lanes in the same call;
    `dynamic` results have shapes that only the data tells.
    """

    name: str
    rule: f.RuleMaker
    kernel: Callable[..., Any]
    dtypes: dt.Dtypes = dt.first
    contracts: bool = False
    dynamic: bool = False
    plain: Callable[..., Any] | None = None  # element by element: the function itself


# -- the rows -----------------------------------------------------------------------------------------------------------

_LINEAR = {
    "add": "add", "subtract": "add", "negative": "add", "positive": "move", "conj": "add", "real": "add", "imag": "add",
    "multiply": "mul", "divide": "over",
}  # fmt: skip

_ELEMENTWISE = """
abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert bitwise_or
bitwise_right_shift bitwise_xor ceil conj copysign cos cosh divide equal exp expm1 floor floor_divide greater
greater_equal hypot imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and logical_not
logical_or logical_xor maximum minimum multiply negative nextafter not_equal positive pow real reciprocal remainder
round sign signbit sin sinh square sqrt subtract tan tanh trunc where fmax fmin exp2 cbrt rint degrees radians
""".split()


_STANDARD: dict[str, Callable[..., Any]] = {
    "floor_divide": special.floor_divide,
    "expm1": special.expm1,
    "tanh": special.tanh,
}


def _ufunc_row(name: str) -> Op:
    function: Callable[..., Any] = _STANDARD.get(name) or getattr(np, name)
    return Op(
        name, f.elementwise(name, _LINEAR.get(name, "")), k.elementwise(function), dt.as_ran(function), plain=function
    )


def _astype(x: Any, dtype: Any) -> Any:
    return x.astype(dtype) if isinstance(x, np.ndarray) else np.asarray(x, dtype)


def _clip(x: Any, *bounds: Any, low: bool, high: bool) -> Any:
    """Bounds follow x in the operands: the lower if `low`, the upper if `high`."""
    given = list(bounds)
    least = given.pop(0) if low else None
    return np.clip(x, least, given.pop(0) if high else None)


def _clip_tried(x: Any, *bounds: Any) -> Any:
    return np.clip(x, bounds[0], bounds[-1]) if bounds else x


def _isin(call: Call, x: Any, values: Any) -> Any:
    return np.isin(x, values.ravel(), invert=call.attrs["invert"])


def _searchsorted(call: Call, x: Any, values: Any) -> Any:
    return np.searchsorted(x.ravel(), values, side=call.attrs["side"])


def _sort(x: Any, axis: int, descending: bool, stable: bool) -> Any:
    result = np.sort(x, axis=axis, stable=stable)
    return np.flip(result, axis=axis) if descending else result


def _argsort(x: Any, axis: int, descending: bool, stable: bool) -> Any:
    if not descending:
        return np.argsort(x, axis=axis, stable=stable)
    order = np.flip(np.argsort(np.flip(x, axis=axis), axis=axis, stable=stable), axis=axis)
    return x.shape[axis] - 1 - order


def _fft(name: str) -> Callable[..., Any]:
    function = getattr(np.fft, name)

    def transform(x: Any, axis: Any, norm: str, length: Any) -> Any:
        if isinstance(axis, int):
            return function(x, n=length, axis=axis, norm=norm)
        return function(x, s=length, axes=axis, norm=norm)

    return transform


def _tried(name: str) -> Callable[..., Any]:
    return lambda x: getattr(np.fft, name)(np.tile(x, (2, 2) if name.endswith("n") else 2))


def _first_only(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *rest: function(x)


def _shifted(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis: function(x, axes=axis)


def _power_dtypes(kinds: Sequence[Any], attrs: Any) -> tuple[Any, ...]:
    return dt.as_ran(np.linalg.inv, 2)(kinds, attrs) if attrs["n"] < 0 else dt.first(kinds, attrs)


def _complex(x: Any) -> Any:
    return x.astype(np.result_type(x.dtype, np.complex64), copy=False)


def _eig(x: Any) -> tuple[Any, ...]:
    """Complex whatever the data: NumPy gives real numbers where they happen to do."""
    return tuple(map(_complex, np.linalg.eig(x)))


def _eigvals(x: Any) -> Any:
    return _complex(np.linalg.eigvals(x))


def _norm2(x: Any, ord: Any, keepdims: bool) -> Any:
    return np.linalg.norm(x, ord=ord, axis=(-2, -1), keepdims=keepdims)


def _matrices(name: str, text: str, whole: str, function: Callable[..., Any]) -> Op:
    """A function of matrices, which lie whole on each device; batch dims pass."""
    return Op(name, f.as_text(name, text, whole=whole), k.stacked_matrices(function), dt.as_ran(function, 2))


def _rows_of(*rows: Op) -> dict[str, Op]:
    return {row.name: row for row in rows}


OPS: dict[str, Op] = _rows_of(
    # element by element
    *map(_ufunc_row, _ELEMENTWISE),
    Op("erf", f.elementwise("erf"), k.elementwise(special.erf), dt.as_ran(special.erf)),
    Op("astype", f.elementwise("astype"), k.elementwise(_astype), dt.given),
    Op("in_range", f.elementwise("in_range"), k.in_range),
    Op("clip", f.elementwise("clip"), k.elementwise(_clip), dt.as_ran(_clip_tried)),
    Op("isin", f.as_text("isin", "..., s -> ...", whole="s"), _isin, dt.always(bool)),
    # over dims
    Op("sum", f.reduced("sum", "sum", linear="add"), k.reduction(np.sum), dt.given),
    Op("prod", f.reduced("prod", "product"), k.reduction(np.prod), dt.given),
    Op("max", f.reduced("max", "max"), k.reduction(np.max, k.lowest)),
    Op("min", f.reduced("min", "min"), k.reduction(np.min, k.highest)),
    Op("all", f.reduced("all", "bitwise_and"), k.reduction(np.all), dt.always(bool)),
    Op("any", f.reduced("any", "bitwise_or"), k.reduction(np.any), dt.always(bool)),
    # products
    Op("einsum", f.einsum, contract, dt.promoted, contracts=True),
    # moves
    Op("permute_dims", f.permute_dims, k.permute_dims),
    Op("reshape", f.reshape, k.reshape),
    Op("broadcast_to", f.broadcast_to, k.broadcast_to),
    Op("rows", f.moved_rows("rows"), k.fetch_rows),
    Op("concat", f.concat, k.concat, dt.promoted),
    Op("take", f.take, k.take),
    Op("take_along_axis", f.take_along_axis, k.take_along_axis),
    Op("triangle", f.as_text("triangle", "... m n -> ... m n", linear="add"), k.triangle),
    Op("diagonal", f.as_text("diagonal", "... m n -> ... d", whole="m n d", linear="move"),
       k.stacked_matrices(np.linalg.diagonal)),
    # along dims
    Op("cumulative_sum", f.prefix("cumulative_sum"), k.cumulative(np.add, 0), dt.given),
    Op("cumulative_prod", f.prefix("cumulative_prod"), k.cumulative(np.multiply, 1), dt.given),
    Op("sort", f.along_whole("sort"), k.along(_sort)),
    Op("argsort", f.along_whole("argsort"), k.along(_argsort), dt.always(np.int64)),
    Op("searchsorted", f.as_text("searchsorted", "s, ... -> ...", whole="s"), _searchsorted, dt.always(np.int64)),
    *(Op(name, f.along_whole(name, linear="add"), k.along(_fft(name)), dt.as_ran(_tried(name)))
      for name in ("fft", "ifft", "fftn", "ifftn", "rfft", "irfft", "rfftn", "irfftn", "hfft", "ihfft")),
    Op("fftshift", f.along_whole("fftshift", linear="move"), k.along(_shifted(np.fft.fftshift))),
    Op("ifftshift", f.along_whole("ifftshift", linear="move"), k.along(_shifted(np.fft.ifftshift))),
    # matrices, whole on each device; batch dims pass
    _matrices("cholesky", "... m n -> ... m n", "m n", np.linalg.cholesky),
    _matrices("det", "... m n -> ...", "m n", np.linalg.det),
    _matrices("inv", "... m n -> ... m n", "m n", np.linalg.inv),
    Op("pinv", f.tolerant("pinv", "... n m"), k.tolerant(np.linalg.pinv), dt.as_ran(_first_only(np.linalg.pinv), 2)),
    Op("matrix_norm", f.as_text("matrix_norm", "... m n -> ...", whole="m n"), k.stacked_matrices(_norm2),
       dt.as_ran(np.linalg.matrix_norm, 2)),
    Op("matrix_power", f.as_text("matrix_power", "... m n -> ... m n", whole="m n"),
       k.stacked_matrices(np.linalg.matrix_power), _power_dtypes),
    Op("matrix_rank", f.tolerant("matrix_rank", "..."), k.tolerant(np.linalg.matrix_rank), dt.always(np.int64)),
    _matrices("qr", "... m n -> ... m q, ... q n", "m n q", np.linalg.qr),
    _matrices("qr_complete", "... m n -> ... m m, ... m n", "m n", np.linalg.qr),
    _matrices("slogdet", "... m n -> ..., ...", "m n", np.linalg.slogdet),
    _matrices("solve", "... m m, ... m n -> ... m n", "m n", np.linalg.solve),
    _matrices("svd", "... m n -> ... m q, ... q, ... q n", "m n q", np.linalg.svd),
    _matrices("svd_full", "... m n -> ... m m, ... q, ... n n", "m n q", np.linalg.svd),
    _matrices("svdvals", "... m n -> ... q", "m n q", np.linalg.svdvals),
    _matrices("eigh", "... m n -> ... m, ... m n", "m n", np.linalg.eigh),
    _matrices("eigvalsh", "... m n -> ... m", "m n", np.linalg.eigvalsh),
    _matrices("eig", "... m n -> ... m, ... m n", "m n", _eig),
    _matrices("eigvals", "... m n -> ... m", "m n", _eigvals),
    # windows
    Op("convolution", f.windows("convolution"), k.convolution, dt.promoted),
    Op("max_pool", f.windows("max_pool"), k.pooling(np.max, k.lowest)),
    Op("avg_pool", f.windows("avg_pool"), k.pooling(np.mean, lambda dtype: 0), dt.as_ran(np.mean)),
    # from nothing but places
    Op("places", f.from_places("places"), k.places, dt.always(np.uint64)),
    Op("random_bits", f.from_places("random_bits"), k.random_bits, dt.always(np.uint64)),
    # shapes that only the data tells
    Op("nonzero", f.apart, dynamic.nonzero, dynamic=True),
    Op("unique", f.apart, dynamic.unique, dynamic=True),
    Op("masked", f.apart, dynamic.masked, dynamic=True),
    Op("index", f.unshaped, lambda call, x, *keys: _whole_result(x[_key(call, keys)]), dynamic=True),
    Op("update", f.unshaped, lambda call, x, value, *keys: _whole_result(_updated(call, x, value, keys)), dynamic=True),
    Op("repeat", f.unshaped, lambda call, x, n: _whole_result(np.repeat(x, n, axis=call.attrs["axis"])), dynamic=True),
)  # fmt: skip


def _whole_result(data: Any) -> dynamic.Made:
    return [(None, data)]


def _key(call: Call, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """An index whose arrays, marked by None in the pattern, come as operands."""
    given = iter(arrays)
    return tuple(next(given) if entry == "array" else _entry(entry) for entry in call.attrs["pattern"])


def _entry(entry: Any) -> Any:
    """Slices are not hashable in Python 3.11, so a pattern has them as tuples."""
    return slice(*entry[1:]) if isinstance(entry, tuple) else (Ellipsis if entry == "..." else entry)


def _updated(call: Call, x: Any, value: Any, arrays: Sequence[Any]) -> Any:
    result = x.copy()
    result[_key(call, arrays)] = value
    return result
