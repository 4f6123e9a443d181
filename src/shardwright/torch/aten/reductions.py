"""Operations over and along dims: sums, extremes, sorts, softmax, norms."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import shardwright.nn as nn
import shardwright.numpy as xp
from shardwright.arrays import Array
from shardwright.torch.aten.table import cast, dims_of, in_float32, row, rows

# -- over dims -------------------------------------------------------------------------------------------------------


@row("sum sum.dim_IntList")
def total(x: Array, dims: Any = None, keep: bool = False, dtype: Any = None) -> Array:
    """Sums, of small floats in float32; of booleans and integers in int64."""
    x = cast(x, dtype)
    exact = x.dtype.kind in "biu" and dtype is None
    return xp.sum(x, axis=dims_of(dims, x.ndim), keepdims=keep, dtype=np.int64 if exact else x.dtype)


@row("mean mean.dim")
def mean(x: Array, dims: Any = None, keep: bool = False, dtype: Any = None) -> Array:
    """Averages."""
    x = cast(x, dtype)
    return xp.mean(x, axis=dims_of(dims, x.ndim), keepdims=keep)


@row("prod prod.dim_int")
def prod(x: Array, dims: Any = None, keep: bool = False, dtype: Any = None) -> Array:
    """Products; of booleans and integers in int64."""
    x = cast(x, dtype)
    exact = x.dtype.kind in "biu" and dtype is None
    return xp.prod(x, axis=dims_of(dims, x.ndim), keepdims=keep, dtype=np.int64 if exact else x.dtype)


def _variance(x: Array, dims: Any, correction: float, keep: bool) -> Array:
    axes = dims_of(dims, x.ndim)
    free = math.prod(x.shape[d] for d in axes) - correction
    centred = x - xp.mean(x, axis=axes, keepdims=True).reduced()
    squares = xp.sum(centred * centred, axis=axes, keepdims=keep)
    return squares * (1 / free if free > 0 else math.inf)


def _spread(root: bool, with_mean: bool) -> Any:
    @in_float32
    def spread(x: Array, dims: Any, correction: float, keep: bool) -> Array:
        found = _variance(x, dims, correction, keep)
        return xp.sqrt(found) if root else found

    def by_correction(x: Array, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        found = spread(x, dims, 1 if correction is None else correction, keepdim)
        return (found, mean(x, dims, keepdim)) if with_mean else found

    def by_flag(x: Array, dims: Any = None, unbiased: bool = True, keep: bool = False) -> Any:
        if isinstance(dims, bool):  # var(x, unbiased)
            dims, unbiased = None, dims
        found = spread(x, dims, int(unbiased), keep)
        return (found, mean(x, dims, keep)) if with_mean else found

    return by_correction, by_flag


for _name, _root, _with_mean in (
    ("var", False, False),
    ("std", True, False),
    ("var_mean", False, True),
    ("std_mean", True, True),
):
    _by_correction, _by_flag = _spread(_root, _with_mean)
    row(f"{_name}.correction")(_by_correction)
    row(f"{_name} {_name}.dim")(_by_flag)


@row("amax")
def amax(x: Array, dims: Any = (), keep: bool = False) -> Array:
    """Maxima over dims."""
    return xp.max(x, axis=dims_of(dims, x.ndim), keepdims=keep)


@row("amin")
def amin(x: Array, dims: Any = (), keep: bool = False) -> Array:
    """Minima over dims."""
    return xp.min(x, axis=dims_of(dims, x.ndim), keepdims=keep)


@row("aminmax")
def aminmax(x: Array, *, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    """Minima and maxima."""
    dims = () if dim is None else (dim,)
    return amin(x, dims, keepdim), amax(x, dims, keepdim)


def _extreme(over: Any, index: Any) -> Any:
    def extreme(x: Array, dim: int, keep: bool = False) -> tuple[Array, Array]:
        return over(x, axis=dims_of(dim, x.ndim), keepdims=keep), _index(index)(x, dim, keep)

    return extreme


def _tested(reduce: Any) -> Any:
    def tested(x: Array, dims: Any = None, keep: bool = False) -> Array:
        truth = x if x.dtype.kind == "b" else x != 0
        return reduce(truth, axis=dims_of(dims, x.ndim), keepdims=keep)

    return tested


def _index(find: Any) -> Any:
    return lambda x, dim=None, keep=False: find(x, axis=dim if x.ndim else None, keepdims=keep)


rows(
    {
        "max.dim": _extreme(xp.max, xp.argmax),
        "min.dim": _extreme(xp.min, xp.argmin),
        "max": xp.max,
        "min": xp.min,
        "argmax": _index(xp.argmax),
        "argmin": _index(xp.argmin),
        "all all.dim all.dims": _tested(xp.all),
        "any any.dim any.dims": _tested(xp.any),
        "count_nonzero count_nonzero.dim_IntList": lambda x, dims=None: xp.count_nonzero(x, axis=dims_of(dims, x.ndim)),
    }
)


@row("linalg_vector_norm norm.ScalarOpt_dim norm.Scalar")
@in_float32
def vector_norm(x: Array, ord: Any = 2, dims: Any = None, keep: bool = False, **options: Any) -> Array:
    """The norm of vectors along dims."""
    axes, size = dims_of(dims, x.ndim), xp.abs(x)
    if ord in (math.inf, -math.inf):
        return (xp.max if ord > 0 else xp.min)(size, axis=axes, keepdims=keep)
    if ord == 0:
        return cast(xp.sum(x != 0, axis=axes, keepdims=keep), x.dtype)
    if ord == 2 or ord is None:
        return xp.sqrt(xp.sum(x * x, axis=axes, keepdims=keep))
    if ord == 1:
        return xp.sum(size, axis=axes, keepdims=keep)
    return xp.pow(xp.sum(xp.pow(size, ord), axis=axes, keepdims=keep), 1 / ord)


# -- along a dim -------------------------------------------------------------------------------------------------------


@row("cumsum")
def cumsum(x: Array, dim: int, dtype: Any = None) -> Array:
    """Cumulative sums; of booleans and integers in int64."""
    x = cast(x, dtype)
    exact = x.dtype.kind in "biu" and dtype is None
    if not x.ndim:
        return cast(x, np.int64) if exact else x
    return xp.cumulative_sum(x, axis=dim, dtype=np.int64 if exact else x.dtype)


@row("cumprod")
def cumprod(x: Array, dim: int, dtype: Any = None) -> Array:
    """Cumulative products; of booleans and integers in int64."""
    x = cast(x, dtype)
    exact = x.dtype.kind in "biu" and dtype is None
    if not x.ndim:
        return cast(x, np.int64) if exact else x
    return xp.cumulative_prod(x, axis=dim, dtype=np.int64 if exact else x.dtype)


@row("diff")
def diff(x: Array, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Array:
    """Differences between neighbours."""
    return xp.diff(x, axis=dim, n=n, prepend=prepend, append=append)


@row("sort")
def sort(x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    """Elements in order, and where they were; equal ones stay in their order."""
    if not x.ndim:
        return x, cast(x != x, np.int64)
    order = xp.argsort(x, axis=dim, descending=descending)
    return xp.take_along_axis(x, order, axis=dim), order


@row("sort.stable")
def sort_stable(x: Array, *, stable: Any = None, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    """As sort."""
    return sort(x, dim, descending)


@row("argsort")
def argsort(x: Array, dim: int = -1, descending: bool = False) -> Array:
    """Where elements were before they are sorted."""
    return sort(x, dim, descending)[1] if not x.ndim else xp.argsort(x, axis=dim, descending=descending)


@row("argsort.stable")
def argsort_stable(x: Array, *, stable: Any = None, dim: int = -1, descending: bool = False) -> Array:
    """As argsort."""
    return argsort(x, dim, descending)


@row("topk")
def topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    """The k largest elements along a dim, and their indices."""
    if not x.ndim:
        return x, cast(x != x, np.int64)
    found = xp.top_k(x, k, axis=dim, largest=largest)
    return found.values, found.indices


@row("histc")
def histc(x: Array, bins: int = 100, low: Any = 0, high: Any = 0) -> Array:
    """How many elements are in each of equal bins; the last one holds its upper edge."""
    flat = xp.reshape(x, (-1,))
    if low == high == 0:
        low, high = xp.min(flat), xp.max(flat)
        low, high = xp.where(low == high, low - 1, low), xp.where(low == high, high + 1, high)
    places = xp.floor((flat - low) * bins / (high - low))
    inside = (flat >= low) & (flat <= high)
    number = cast(xp.where(inside, xp.minimum(places, bins - 1), bins), np.int64)
    return cast(xp.bincount(number, length=bins + 1)[:bins], x.dtype)


@row("softmax.int _softmax _safe_softmax")
def softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    """Exponentials divided by their sum."""
    x = x if isinstance(dtype, bool) else cast(x, dtype)
    return in_float32(nn.softmax)(x, axis=dims_of(dim, x.ndim))


@row("log_softmax.int _log_softmax")
def log_softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    """The logarithm of the softmax."""
    x = x if isinstance(dtype, bool) else cast(x, dtype)
    return in_float32(nn.log_softmax)(x, axis=dims_of(dim, x.ndim))


@row("logsumexp")
def logsumexp(x: Array, dims: Any, keep: bool = False) -> Array:
    """The logarithm of the sum of exponentials."""
    return in_float32(nn.logsumexp)(x, axis=dims_of(dims, x.ndim), keepdims=keep)


# -- norms ---------------------------------------------------------------------------------------------------------------


@row("layer_norm")
def layer_norm(
    x: Array, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = True
) -> Array:
    """Mean 0 and variance 1 over the last dims."""
    axes = tuple(range(-len(shape), 0))
    return in_float32(nn.layer_norm)(x, weight, bias, axis=axes, eps=eps)


@row("native_layer_norm")
def native_layer_norm(x: Array, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> tuple[Array, Array, Array]:
    """As layer_norm, with the mean and the inverse of the deviation."""
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    average, inverse = _moments(x, axes, eps)
    result = (x - average) * inverse
    result = result if weight is None else result * weight
    return result if bias is None else result + bias, average, inverse


def _moments(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array]:
    average = xp.mean(x, axis=axes, keepdims=True).reduced()
    centred = x - average
    return average, 1 / xp.sqrt(xp.mean(centred * centred, axis=axes, keepdims=True).reduced() + eps)


@row("rms_norm")
def rms_norm(x: Array, shape: Sequence[int], weight: Any = None, eps: Any = None) -> Array:
    """Divided by the root of the mean square over the last dims."""
    small = float(np.finfo(np.float32).eps) if eps is None else eps
    return in_float32(nn.rms_norm)(x, weight, axis=tuple(range(-len(shape), 0)), eps=small)


def _per_channel(x: Array, values: Any) -> Any:
    """A value for each channel, the second dim, beside the whole array."""
    return None if values is None else xp.reshape(values, (-1, *(1,) * (x.ndim - 2)))


def _normed(x: Array, mean: Any, inverse: Any, weight: Any, bias: Any) -> Array:
    result = (x - mean) * inverse
    result = result if weight is None else result * _per_channel(x, weight)
    return result if bias is None else result + _per_channel(x, bias)


@row("group_norm")
def group_norm(
    x: Array, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = True
) -> Array:
    """Mean 0 and variance 1 per sample over each group of channels."""

    @in_float32
    def call(x: Array, weight: Any, bias: Any) -> Array:
        cut = xp.reshape(x, (x.shape[0], groups, -1, *x.shape[2:]))
        average, inverse = _moments(cut, tuple(range(2, cut.ndim)), eps)
        return _normed(xp.reshape((cut - average) * inverse, x.shape), 0, 1, weight, bias)

    return call(x, weight, bias)


@row("instance_norm")
def instance_norm(
    x: Array, weight: Any, bias: Any, mean: Any, var: Any, use_input: bool, momentum: float, eps: float, cudnn: bool
) -> Array:
    """Mean 0 and variance 1 per sample and channel, or by running statistics."""
    if not use_input:
        return _by_statistics(x, weight, bias, mean, var, eps)
    average, inverse = _moments(x, tuple(range(2, x.ndim)), eps)
    return _normed(x, average, inverse, weight, bias)


def _by_statistics(x: Array, weight: Any, bias: Any, mean: Any, var: Any, eps: float) -> Array:
    return _normed(x, _per_channel(x, mean), 1 / xp.sqrt(_per_channel(x, var) + eps), weight, bias)


@row("batch_norm")
def batch_norm(
    x: Array, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float, *rest: Any
) -> Array:
    """Mean 0 and variance 1 per channel, of this batch in training, else by running statistics."""
    if not training:
        return _by_statistics(x, weight, bias, mean, var, eps)
    average, inverse = _moments(x, (0, *range(2, x.ndim)), eps)
    return _normed(x, average, inverse, weight, bias)


@row("_native_batch_norm_legit_no_training")
def batch_norm_inference(
    x: Array, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Array, None, None]:
    """By running statistics; the other two results are empty."""
    return _by_statistics(x, weight, bias, mean, var, eps), None, None


@row("_native_batch_norm_legit.no_stats")
def batch_norm_training(
    x: Array, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Array, Array, Array]:
    """By the statistics of this batch, which are results too."""
    average, inverse = _moments(x, (0, *range(2, x.ndim)), eps)
    flat = (-1,)
    return _normed(x, average, inverse, weight, bias), xp.reshape(average, flat), xp.reshape(inverse, flat)
