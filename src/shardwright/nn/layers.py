"""Neural-net operations on sharded arrays, composed of the table's operations; dims that are split stay split.

Images are `batch, spatial…, channels`; weights of a convolution `window…, channels in, channels out`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwright import random
from shardwright.arrays import Array, index_array
from shardwright.eager import apply, make, taped
from shardwright.errors import OperationError
from shardwright.numpy import (
    astype,
    cumulative_sum,
    exp,
    expand_dims,
    log,
    maximum,
    mean,
    reshape,
    sqrt,
    sum,
    where,
)
from shardwright.numpy import max as maxima
from shardwright.numpy.common import Axis, array, arrays, axes_of, integer, operands, reduced
from shardwright.numpy.moves import take
from shardwright.ops import Attrs, RowMap, finite_range
from shardwright.sharding import Sharding

# -- activations ----------------------------------------------------------------------------------------------------------


@taped
def relu(x: Array) -> Array:
    """max(x, 0) of every element."""
    return maximum(x, 0)


@taped
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    result: Array = apply("sigmoid", (array("sigmoid", x),))
    return result


@taped
def silu(x: Array) -> Array:
    """x · sigmoid(x)."""
    return x * sigmoid(x)


@taped
def erf(x: Array) -> Array:
    """The error function."""
    result: Array = apply("erf", (array("erf", x),))
    return result


@taped
def gelu(x: Array, approximate: str = "none") -> Array:
    """x times the normal distribution function of x; `approximate="tanh"` uses the usual approximation."""
    if approximate == "tanh":
        inner = (x + x * x * x * 0.044715) * float(np.sqrt(2 / np.pi))
        return x * 0.5 * (apply("tanh", (inner,)) + 1)
    if approximate != "none":
        raise OperationError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}.")
    result: Array = apply("gelu", (array("gelu", x),))
    return result


# -- along a dim: the maximum and the sum are reduced, nothing is gathered -----------------------------------------------


@taped
def logsumexp(x: Array, axis: Axis = -1, keepdims: bool = False) -> Array:
    """The logarithm of the sum of exponentials."""
    x = array("logsumexp", x)
    dims = axes_of("logsumexp", axis, x.ndim)
    top = reduced(maxima(x, axis=dims, keepdims=True))
    finite = where(apply("isfinite", (top,)), top, 0)
    total = log(reduced(sum(exp(x - finite), axis=dims, keepdims=True))) + finite
    return total if keepdims else reshape(total, [n for d, n in enumerate(x.shape) if d not in dims])


@taped
def softmax(x: Array, axis: int = -1) -> Array:
    """Exponentials divided by their sum."""
    x = array("softmax", x)
    top = reduced(maxima(x, axis=axis, keepdims=True))
    powers = exp(x - where(apply("isfinite", (top,)), top, 0))
    return powers / reduced(sum(powers, axis=axis, keepdims=True))


@taped
def log_softmax(x: Array, axis: int = -1) -> Array:
    """The logarithm of the softmax."""
    x = array("log_softmax", x)
    return x - logsumexp(x, axis=axis, keepdims=True)


# -- norms ----------------------------------------------------------------------------------------------------------------


def _with_squares(x: Array) -> Array:
    """x in float32 where its own dtype is too narrow for squares: 300² is infinite in float16."""
    return astype(x, np.float32) if x.dtype.kind in "fV" and finite_range(x.dtype)[1] < 1e6 else x


def _normalized(x: Array, dims: Axis, eps: float) -> Array:
    wide = _with_squares(x)
    centred = wide - reduced(mean(wide, axis=dims, keepdims=True))
    made = centred / sqrt(reduced(mean(centred * centred, axis=dims, keepdims=True)) + eps)
    return made if wide is x else astype(made, x.dtype)


def _affine(x: Array, weight: Any, bias: Any) -> Array:
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


@taped
def layer_norm(x: Array, weight: Any = None, bias: Any = None, axis: Axis = -1, eps: float = 1e-5) -> Array:
    """Mean 0 and variance 1 along dims, then scaled and shifted."""
    x = array("layer_norm", x)
    return _affine(_normalized(x, axis, eps), weight, bias)


@taped
def rms_norm(x: Array, weight: Any = None, axis: Axis = -1, eps: float = 1e-5) -> Array:
    """Divided by the root of the mean square along dims, then scaled."""
    x = array("rms_norm", x)
    wide = _with_squares(x)
    made = wide / sqrt(reduced(mean(wide * wide, axis=axis, keepdims=True)) + eps)
    return _affine(made if wide is x else astype(made, x.dtype), weight, None)


@taped
def batch_norm(
    x: Array, weight: Any = None, bias: Any = None, running_mean: Any = None, running_var: Any = None, eps: float = 1e-5
) -> Array:
    """Mean 0 and variance 1 per channel (the last dim) over all others, or by running statistics if given."""
    x = array("batch_norm", x)
    if (running_mean is None) != (running_var is None):
        raise OperationError("batch_norm: give both running_mean and running_var, or neither.")
    if running_mean is None:
        return _affine(_normalized(x, tuple(range(x.ndim - 1)), eps), weight, bias)
    return _affine((x - running_mean) / sqrt(operands("batch_norm", x, running_var)[1] + eps), weight, bias)


@taped
def group_norm(x: Array, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Array:
    """Mean 0 and variance 1 per sample over each group of channels (the last dim) and all spatial positions."""
    x = array("group_norm", x)
    if x.ndim < 2:
        raise OperationError(f"group_norm takes `batch, spatial…, channels`; got shape {x.shape}.")
    channels, groups = x.shape[-1], integer("group_norm", "groups", groups)
    if groups < 1 or channels % groups:
        raise OperationError(
            f"group_norm: {channels} channels are not divisible into {groups} groups. Choose a divisor of {channels}."
        )
    cut = reshape(x, (*x.shape[:-1], groups, channels // groups))
    dims = (*range(1, x.ndim - 1), x.ndim)
    return _affine(reshape(_normalized(cut, dims, eps), x.shape), weight, bias)


# -- products and tables ----------------------------------------------------------------------------------------------------


@taped
def linear(x: Array, weight: Any, bias: Any = None) -> Array:
    """x @ weight + bias; the weight is `in, out`."""
    x, weight = arrays("linear", x, weight)
    y = x @ weight
    return y if bias is None else y + bias


def grouped_matmul(x: Array, w: Any, group_sizes: Any) -> Array:
    """Each group of rows of x (tokens, k) times its own matrix of w (groups, k, n): the products of a mixture of experts.

    The first `group_sizes[0]` rows belong to the first group, and so on; rows behind the last group are zeros. Groups that
    are split leave a pending sum, as does a split k: each device multiplies the rows of its own groups.
    """
    a, matrices, counts = arrays("grouped_matmul", x, w, group_sizes)
    counts = index_array("grouped_matmul", counts, "group_sizes")
    if a.ndim != 2 or matrices.ndim != 3 or matrices.shape[1] != a.shape[1] or counts.shape != matrices.shape[:1]:
        raise OperationError(
            f"grouped_matmul takes x (tokens, k), w (groups, k, n) and group_sizes (groups,); got shapes {a.shape}, "
            f"{matrices.shape} and {counts.shape}."
        )
    tokens, dtype = a.shape[0], np.result_type(a.dtype, matrices.dtype)
    text = (
        f"grouped_matmul: group_sizes must be 0 or more and sum up to {tokens} at most, the number of rows; got {{}}."
    )
    bounds = Attrs(low=0, high=tokens, error=OperationError, text=text)
    ends = apply("in_range", (cumulative_sum(apply("in_range", (counts,), bounds), dtype=np.int64),), bounds)
    result: Array = apply("grouped_matmul", (astype(a, dtype), astype(matrices, dtype), ends))
    return result


@taped
def embedding(table: Array, indices: Any) -> Array:
    """Rows of a table by index; a table split along its rows leaves a pending sum over the devices."""
    rows = arrays("embedding", table, indices)
    if rows[0].dtype.kind in "iu" and rows[1].dtype.kind not in "iu":
        raise OperationError(
            f"embedding takes (table, indices); the table has {rows[0].dtype} and the indices have {rows[1].dtype}. "
            f"They seem to be swapped: write embedding(table, indices)."
        )
    return take(rows[0], index_array("embedding", rows[1]), axis=0)


def _classes(name: str, numbers: Array, classes: int) -> Array:
    """Numbers of classes, checked to be in range."""
    text = f"{name}: {{}} is not one of the {classes} classes from 0 to {classes - 1}."
    result: Array = apply("in_range", (numbers,), Attrs(low=0, high=classes - 1, error=OperationError, text=text))
    return result


def one_hot(indices: Array, classes: int, dtype: Any = np.float32) -> Array:
    """1 at each index along a new last dim, 0 elsewhere."""
    classes = integer("one_hot", "classes", classes)
    if classes < 0:
        raise OperationError(f"one_hot: classes={classes}; give 0 or more.")
    indices = _classes("one_hot", index_array("one_hot", array("one_hot", indices)), classes)
    numbers = make(Array, "places", Sharding(indices.mesh), (classes,))
    return astype(expand_dims(indices, -1) == astype(numbers, np.int64), dtype)


@taped
def cross_entropy(logits: Array, labels: Any, axis: int = -1) -> Array:
    """The mean over samples of minus the log-probability of each one's label."""
    logits, labels = arrays("cross_entropy", logits, labels)
    (at,) = axes_of("cross_entropy", axis, logits.ndim)
    numbers = index_array("cross_entropy", labels, "labels")
    if numbers.shape != logits.shape[:at] + logits.shape[at + 1 :]:
        raise OperationError(
            f"cross_entropy: logits of shape {logits.shape} need labels of their shape without dim {at}; got {numbers.shape}."
        )
    chosen = apply("pick", (logits, _classes("cross_entropy", numbers, logits.shape[at])), Attrs(axis=at))
    return mean(logsumexp(logits, axis=at) - chosen)


def dropout(x: Array, rate: float, key: "random.Key", training: bool = True) -> Array:
    """Sets elements to 0 with probability `rate` and scales up the rest; a key drops the same elements on every mesh."""
    x = array("dropout", x)
    if not 0 <= rate < 1:
        raise OperationError(f"dropout: rate={rate} is out of range. Give a rate from 0 to 1, without 1.")
    if not training or rate == 0:
        return x.again()
    kept = random.bernoulli(key, 1 - rate, x.shape, sharding=x.layout.sharding.replace(partial=(), halo={}))
    return where(kept, x / (1 - rate), 0)


# -- windows: a split spatial dim exchanges halos ---------------------------------------------------------------------------

Sizes = int | Sequence[int]
Padding = int | str | Sequence[int | tuple[int, int]]


def _each(what: str, value: Sizes, count: int) -> tuple[int, ...]:
    given = (value,) * count if isinstance(value, int) else tuple(value)
    if len(given) != count or any(n < 1 for n in given):
        raise OperationError(f"{what}={value!r}: give a positive integer, or {count} of them.")
    return given


def _maps(
    name: str, sizes: Sequence[int], window: tuple[int, ...], stride: Sizes, padding: Padding, dilation: Sizes
) -> tuple[RowMap, ...]:
    """For each spatial dim the rows that a row of the result reads."""
    count = len(sizes)
    strides, dilations = _each("stride", stride, count), _each("dilation", dilation, count)
    maps = []
    for i, size in enumerate(sizes):
        span = (window[i] - 1) * dilations[i] + 1
        low, high = _pads(name, padding, i, size, span, strides[i], count)
        rows = (size + low + high - span) // strides[i] + 1
        if rows < 0 or size + low + high < span:
            raise OperationError(
                f"{name}: a window of {window[i]} rows (dilation {dilations[i]}) does not fit dim {1 + i} of size {size} with "
                f"padding ({low}, {high})."
            )
        maps.append(RowMap(rows, -low, strides[i], window[i], dilations[i]))
    return tuple(maps)


def _pads(name: str, padding: Padding, i: int, size: int, span: int, stride: int, count: int) -> tuple[int, int]:
    if padding == "valid":
        return 0, 0
    if padding == "same":
        total = max((-(-size // stride) - 1) * stride + span - size, 0)
        return total // 2, total - total // 2
    if isinstance(padding, int):
        return padding, padding
    if isinstance(padding, str) or len(padding) != count:
        raise OperationError(f"{name}: padding={padding!r}; give 'valid', 'same', an integer, or one entry per dim.")
    entry = padding[i]
    return (entry, entry) if isinstance(entry, int) else (int(entry[0]), int(entry[1]))


def _conv(
    name: str,
    dims: int,
    x: Array,
    weight: Any,
    bias: Any,
    stride: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
) -> Array:
    x, weight = arrays(name, x, weight)
    if x.ndim != dims + 2 or weight.ndim != dims + 2:
        raise OperationError(
            f"{name} takes `batch, {dims} spatial, channels` and `{dims} window, in, out`; got {x.shape} and {weight.shape}."
        )
    channels, (c_in, c_out) = x.shape[-1], weight.shape[-2:]
    if groups < 1 or channels != c_in * groups or c_out % groups:
        raise OperationError(
            f"{name}: {channels} channels in {groups} groups need weights for {channels // max(groups, 1)} in; got {c_in} in "
            f"and {c_out} out."
        )
    maps = _maps(name, x.shape[1:-1], weight.shape[:dims], stride, padding, dilation)
    y: Array = apply("convolution", (x, weight), Attrs(maps=maps, groups=groups))
    return y if bias is None else y + bias


def _conv_of(dims: int) -> Callable[..., Array]:
    def conv(
        x: Array,
        weight: Any,
        bias: Any = None,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Array:
        return _conv(conv.__name__, dims, x, weight, bias, stride, padding, dilation, groups)

    conv.__name__ = conv.__qualname__ = f"conv{dims}d"
    conv.__doc__ = f"""A convolution over {dims} spatial dim{"s" * (dims > 1)}.

    `stride` and `dilation` are one integer or one per dim; `padding` is "valid", "same", an integer, or an integer or a
    (low, high) pair per dim. With `groups`, channels are cut into independent groups."""
    return conv


conv1d, conv2d, conv3d = map(_conv_of, (1, 2, 3))


def _pool(name: str, x: Array, window: Sizes, stride: Sizes | None, padding: Padding) -> Array:
    x = array(name, x)
    spatial = x.ndim - 2
    if spatial < 1:
        raise OperationError(f"{name} takes `batch, spatial…, channels`; got shape {x.shape}.")
    sizes = _each("window", window, spatial)
    maps = _maps(name, x.shape[1:-1], sizes, sizes if stride is None else stride, padding, 1)
    y: Array = apply(name, (x,), Attrs(maps=maps))
    return y


def max_pool(x: Array, window: Sizes, stride: Sizes | None = None, padding: Padding = 0) -> Array:
    """The maximum of each window of the spatial dims."""
    return _pool("max_pool", x, window, stride, padding)


def avg_pool(x: Array, window: Sizes, stride: Sizes | None = None, padding: Padding = 0) -> Array:
    """The average of each window of the spatial dims; padding counts as zeros."""
    return _pool("avg_pool", x, window, stride, padding)
