"""Operations that only training steps have: losses, and the derivatives that torch's autograd asks for."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import shardwright.nn as nn
import shardwright.numpy as xp
from shardwright.arrays import Array
from shardwright.errors import ModelError
from shardwright.torch.aten.elementwise import erf
from shardwright.torch.aten.shapes import pad, slice_rows
from shardwright.torch.aten.table import along, cast, elementwise, row
from shardwright.torch.aten.windows import convolve, transpose

MEAN, SUM = 1, 2  # torch's numbers for reductions of losses; 0 leaves losses as they are

# -- losses --------------------------------------------------------------------------------------------------------------


def _chosen(x: Array, target: Array, ignored: int) -> tuple[Array, Array]:
    """The class of each sample, 0 for those that are ignored, and which samples count."""
    counts = target != ignored
    return xp.where(counts, target, 0), counts


def _picked(x: Array, classes: Array) -> Array:
    dim = 1 if x.ndim > 1 else 0
    return xp.squeeze(xp.take_along_axis(x, xp.expand_dims(classes, dim), axis=dim), axis=dim)


@row("nll_loss_forward nll_loss2d_forward")
def nll_loss(x: Array, target: Array, weight: Any, reduction: int, ignored: int) -> tuple[Array, Array]:
    """Minus the log-probability of each sample's class, and the total weight."""
    classes, counts = _chosen(x, target, ignored)
    each = cast(counts, x.dtype) if weight is None else xp.where(counts, xp.take(weight, classes, axis=0), 0)
    losses, total = -_picked(x, classes) * each, xp.sum(each)
    if reduction == 0:
        return losses, total * 0
    return (xp.sum(losses) / total if reduction == MEAN else xp.sum(losses)), total


@row("nll_loss_backward nll_loss2d_backward")
def nll_loss_backward(
    grad: Any, x: Array, target: Array, weight: Any, reduction: int, ignored: int, total: Any
) -> Array:
    """The derivative of nll_loss: minus a weight at each sample's class."""
    classes, counts = _chosen(x, target, ignored)
    each = cast(counts, x.dtype) if weight is None else xp.where(counts, xp.take(weight, classes, axis=0), 0)
    each = each * grad / (total if reduction == MEAN else 1)
    dim = 1 if x.ndim > 1 else 0
    places = np.arange(x.shape[dim]).reshape([-1 if d == dim else 1 for d in range(x.ndim)])
    hit = xp.expand_dims(classes, dim) == places
    return xp.where(hit, -xp.expand_dims(each, dim), 0)


@row("mse_loss")
def mse_loss(x: Array, target: Array, reduction: int = MEAN) -> Array:
    """Squared differences."""
    return _reduced(xp.square(x - target), reduction)


@row("mse_loss_backward")
def mse_loss_backward(grad: Any, x: Array, target: Array, reduction: int) -> Array:
    """The derivative of mse_loss."""
    return (x - target) * grad * (2 / x.size if reduction == MEAN else 2)


def _reduced(x: Array, reduction: int) -> Array:
    return xp.mean(x) if reduction == MEAN else xp.sum(x) if reduction == SUM else x


@row("cross_entropy_loss")
def cross_entropy(
    x: Array, target: Array, weight: Any = None, reduction: int = MEAN, ignored: int = -100, smoothing: float = 0.0
) -> Array:
    """Minus the log-probability of each sample's class, from logits."""
    if smoothing or target.dtype.kind == "f":
        raise ModelError("cross_entropy with label smoothing or with probabilities as targets is not known.")
    return nll_loss(nn.log_softmax(x, axis=1 if x.ndim > 1 else 0), target, weight, reduction, ignored)[0]


# -- derivatives of elements ------------------------------------------------------------------------------------------


def _gelu_backward(grad: Array, x: Array, *, approximate: str = "none") -> Array:
    if approximate == "tanh":
        factor, cubic = math.sqrt(2 / math.pi), 0.044715
        t = xp.tanh((x + x * x * x * cubic) * factor)
        return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * factor * (1 + 3 * cubic * x * x))
    density = xp.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return grad * (0.5 * (1 + erf(x * math.sqrt(0.5))) + x * density)


def _silu_backward(grad: Array, x: Array) -> Array:
    s = nn.sigmoid(x)
    return grad * s * (1 + x * (1 - s))


elementwise(
    {
        "tanh_backward": lambda grad, y: grad * (1 - y * y),
        "sigmoid_backward": lambda grad, y: grad * y * (1 - y),
        "silu_backward": _silu_backward,
        "gelu_backward": _gelu_backward,
        "threshold_backward": lambda grad, x, threshold: xp.where(x > threshold, grad, 0),
    }
)


@row("_softmax_backward_data")
def softmax_backward(grad: Array, y: Array, dim: int, dtype: Any) -> Array:
    """The derivative of softmax, from its result."""
    return (grad - xp.sum(grad * y, axis=dim, keepdims=True).reduced()) * y


@row("_log_softmax_backward_data")
def log_softmax_backward(grad: Array, y: Array, dim: int, dtype: Any) -> Array:
    """The derivative of log_softmax, from its result."""
    return grad - xp.exp(y) * xp.sum(grad, axis=dim, keepdims=True).reduced()


# -- derivatives of moves ------------------------------------------------------------------------------------------------


@row("slice_backward")
def slice_backward(grad: Array, shape: Sequence[int], dim: int, start: int, end: int, step: int) -> Array:
    """Rows back in their places, zeros elsewhere."""
    dim %= len(shape)
    rows = range(*slice(start, end, step).indices(shape[dim]))
    lead = [0, 0] * (len(shape) - 1 - dim)
    if step > 1:
        grad = pad(xp.expand_dims(grad, axis=dim + 1), [0, 0] * (len(shape) - 1 - dim) + [0, step - 1])
        grad = xp.reshape(grad, (*shape[:dim], len(rows) * step, *shape[dim + 1 :]))
        grad = slice_rows(grad, dim, 0, max(len(rows) * step - step + 1, 0))
    return pad(grad, [*lead, rows.start, shape[dim] - rows.start - grad.shape[dim]])


@row("select_backward")
def select_backward(grad: Array, shape: Sequence[int], dim: int, index: int) -> Array:
    """A row back in its place, zeros elsewhere."""
    index %= shape[dim]
    return slice_backward(xp.expand_dims(grad, axis=dim % len(shape)), shape, dim, index, index + 1, 1)


@row("slice_scatter")
def slice_scatter(x: Array, source: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    """Rows of a dim replaced."""
    dim %= x.ndim
    rows = range(*slice(start, end, step).indices(x.shape[dim]))
    held = np.isin(np.arange(x.shape[dim]), rows).reshape([-1 if d == dim else 1 for d in range(x.ndim)])
    if held.all():
        return source
    return xp.where(held, slice_backward(source, x.shape, dim, rows.start, rows.stop, rows.step), x)


@row("select_scatter")
def select_scatter(x: Array, source: Array, dim: int, index: int) -> Array:
    """One row of a dim replaced."""
    index %= x.shape[dim]
    return slice_scatter(x, xp.expand_dims(source, axis=dim % x.ndim), dim, index, index + 1)


@row("unfold")
def unfold(x: Array, dim: int, size: int, step: int) -> Array:
    """Windows of a dim, as a new last dim."""
    starts = range(0, x.shape[dim] - size + 1, step)
    windows = [x[along(x.ndim, dim, slice(at, at + (len(starts) - 1) * step + 1, step))] for at in range(size)]
    return xp.stack(windows, axis=-1)


@row("embedding_dense_backward")
def embedding_backward(grad: Array, indices: Array, count: int, padding: int, scaled: bool) -> Array:
    """Gradients added to the rows of the table that they come from."""
    if scaled:
        raise ModelError("An embedding with scale_grad_by_freq=True can't be trained: its rows are scaled by the data.")
    width = grad.shape[indices.ndim :]
    if padding >= 0:
        used = xp.reshape(indices != padding, (*indices.shape, *(1,) * len(width)))
        grad = xp.where(used, grad, 0)
    zeros = xp.zeros((count, *width), dtype=grad.dtype)
    return nn.scatter_add(zeros, indices, grad)


# -- derivatives of norms and products -----------------------------------------------------------------------------------


@row("native_layer_norm_backward")
def layer_norm_backward(
    grad: Array, x: Array, shape: Sequence[int], mean: Array, inverse: Array, weight: Any, bias: Any, wanted: Any
) -> tuple[Any, Any, Any]:
    """The derivatives of layer_norm by its input, weight and bias."""
    axes, rows = tuple(range(x.ndim - len(shape), x.ndim)), tuple(range(x.ndim - len(shape)))
    normal = (x - mean) * inverse
    scaled = grad if weight is None else grad * weight
    centre = xp.mean(scaled, axis=axes, keepdims=True).reduced()
    along_normal = xp.mean(scaled * normal, axis=axes, keepdims=True).reduced()
    by_input = (scaled - centre - normal * along_normal) * inverse
    return by_input, xp.sum(grad * normal, axis=rows), xp.sum(grad, axis=rows)


@row("_scaled_dot_product_flash_attention_for_cpu_backward", elementwise=True)
def attention_backward(
    grad: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    total: Array,
    dropout: float,
    causal: bool,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """The derivatives of attention by queries, keys and values, from the logarithms of sums that it gave."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = xp.einsum("...qd,...kd->...qk", query, key) * factor
    if causal:
        scores = xp.where(np.arange(query.shape[-2])[:, None] >= np.arange(key.shape[-2]), scores, -math.inf)
    if attn_mask is not None:
        scores = xp.where(attn_mask, scores, -math.inf) if attn_mask.dtype.kind == "b" else scores + attn_mask
    weights = xp.exp(scores - xp.expand_dims(total, -1))
    own = xp.sum(grad * out, axis=-1, keepdims=True).reduced()
    by_scores = weights * (xp.einsum("...qd,...kd->...qk", grad, value) - own) * factor
    return (
        xp.einsum("...qk,...kd->...qd", by_scores, key),
        xp.einsum("...qk,...qd->...kd", by_scores, query),
        xp.einsum("...qk,...qd->...kd", weights, grad),
    )


@row("convolution_backward")
def convolution_backward(
    grad: Array,
    x: Array,
    weight: Array,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """The derivatives of a convolution by its input, weight and bias."""
    if transposed:
        raise ModelError("The derivative of a transposed convolution is not known.")
    dims = weight.ndim - 2
    spans = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    left = [
        n + 2 * p - span - (m - 1) * s
        for n, p, span, m, s in zip(x.shape[2:], padding, spans, grad.shape[2:], stride, strict=True)
    ]  # rows at the end that no window reads
    by_input = transpose(grad, weight, None, stride, padding, left, groups, dilation) if wanted[0] else None
    by_weight = None
    if wanted[1]:
        parts = [
            _weight_gradient(one, other, stride, padding, dilation, weight.shape[2:])
            for one, other in zip(_groups(x, groups), _groups(grad, groups), strict=True)
        ]
        by_weight = parts[0] if groups == 1 else xp.concat(parts, axis=0)
    by_bias = xp.sum(grad, axis=(0, *range(2, dims + 2))) if wanted[2] else None
    return by_input, by_weight, by_bias


def _groups(x: Array, groups: int) -> list[Array]:
    size = x.shape[1] // groups
    return [slice_rows(x, 1, at * size, (at + 1) * size) for at in range(groups)]


def _weight_gradient(x: Array, grad: Array, stride: Any, padding: Any, dilation: Any, window: Any) -> Array:
    """The input convolved with the gradient: samples are contracted as channels, and stride and dilation change places."""
    found = convolve(xp.moveaxis(x, 1, 0), xp.moveaxis(grad, 1, 0), None, dilation, padding, stride)
    for dim, size in enumerate(window, 2):
        found = slice_rows(found, dim, 0, size)
    return xp.moveaxis(found, 1, 0)
