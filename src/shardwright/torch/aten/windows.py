"""Convolutions, pooling and resizing. torch has channels second, shardwright last: arrays are turned before and after."""

import functools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

import shardwright.nn as nn
import shardwright.numpy as xp
from shardwright.arrays import Array
from shardwright.torch.aten.shapes import pad, slice_rows
from shardwright.torch.aten.table import numpy_dtype, row, torch_dtype

CONVOLUTIONS = {1: nn.conv1d, 2: nn.conv2d, 3: nn.conv3d}


def _last(x: Array) -> Array:
    return xp.permute_dims(x, (0, *range(2, x.ndim), 1))


def _second(x: Array) -> Array:
    return xp.permute_dims(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))


def _each(value: Any, count: int) -> tuple[int, ...]:
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * count if len(given) == 1 else given


def _batched(x: Array, dims: int) -> tuple[Array, bool]:
    """An array with a batch dim, and whether it was added."""
    return (xp.expand_dims(x, axis=0), True) if x.ndim == dims + 1 else (x, False)


@row("conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding")
def convolve(
    x: Array,
    weight: Array,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Array:
    """A convolution over the dims after the channels."""
    dims = weight.ndim - 2
    x, added = _batched(x, dims)
    kernel = xp.permute_dims(weight, (*range(2, dims + 2), 1, 0))
    sides: Any = padding if isinstance(padding, str) else _each(padding, dims)
    if sides == "same":  # torch puts the odd row at the end
        spans = [(n - 1) * d for n, d in zip(weight.shape[2:], _each(dilation, dims), strict=True)]
        sides = [(span // 2, span - span // 2) for span in spans]
    y = CONVOLUTIONS[dims](_last(x), kernel, bias, _each(stride, dims), sides, _each(dilation, dims), groups)
    y = _second(y)
    return xp.squeeze(y, axis=0) if added else y


@row("convolution")
def convolution(
    x: Array,
    weight: Array,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Array:
    """A convolution, or its transpose."""
    if transposed:
        return transpose(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return convolve(x, weight, bias, stride, padding, dilation, groups)


@row("conv_transpose1d conv_transpose2d.input conv_transpose3d.input")
def transpose(
    x: Array,
    weight: Array,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Array:
    """The transpose of a convolution: the input with zeros between its rows, convolved with the kernel turned round."""
    dims = weight.ndim - 2
    x, added = _batched(x, dims)
    strides, sides, more, steps = (_each(value, dims) for value in (stride, padding, output_padding, dilation))
    for d in range(dims):
        x = _dilated(x, d + 2, strides[d])
        reach = steps[d] * (weight.shape[d + 2] - 1) - sides[d]
        widths = [0, 0] * (dims - 1 - d) + [reach, reach + more[d]]
        x = pad(x, widths)
    turned = xp.flip(weight, axis=tuple(range(2, dims + 2)))
    if groups > 1:  # torch's weight is `in, out / groups`: cut into groups, then `out, in / groups`
        cut = xp.reshape(turned, (groups, -1, *turned.shape[1:]))
        turned = xp.reshape(xp.moveaxis(cut, 2, 1), (-1, turned.shape[0] // groups, *turned.shape[2:]))
    else:
        turned = xp.moveaxis(turned, 1, 0)
    y = convolve(x, turned, bias, 1, 0, steps, groups)
    return xp.squeeze(y, axis=0) if added else y


def _dilated(x: Array, dim: int, step: int) -> Array:
    """Rows with `step - 1` rows of zeros between them."""
    if step == 1:
        return x
    apart = pad(xp.expand_dims(x, axis=dim + 1), [0, 0] * (x.ndim - dim - 1) + [0, step - 1])
    joined = xp.reshape(apart, (*x.shape[:dim], x.shape[dim] * step, *x.shape[dim + 1 :]))
    return slice_rows(joined, dim, 0, (x.shape[dim] - 1) * step + 1)


# -- pooling -------------------------------------------------------------------------------------------------------------


def _pool_padding(x: Array, dims: int, window: Any, stride: Any, padding: Any, ceil: bool) -> list[tuple[int, int]]:
    """Rows before and after; with `ceil` as many more at the end as a last window that begins inside needs."""
    sides = []
    for size, span, step, side in zip(
        x.shape[-dims:], _each(window, dims), _each(stride, dims), _each(padding, dims), strict=True
    ):
        extra = 0
        if ceil:
            count = -(-(size + 2 * side - span) // step) + 1
            count -= (count - 1) * step >= size + side
            extra = max(0, (count - 1) * step + span - size - 2 * side)
        sides.append((side, side + extra))
    return sides


@row("max_pool1d max_pool2d max_pool3d")
def max_pool(
    x: Array, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False, dims: int = 0
) -> Array:
    """The maximum of each window."""
    dims = dims or len(_each(window, 1)) or 1
    dims = dims if dims > 1 else x.ndim - 2
    counts, steps, apart = (_each(value, dims) for value in (window, stride or window, dilation))
    x, added = _batched(x, dims)
    spans = [(count - 1) * distance + 1 for count, distance in zip(counts, apart, strict=True)]
    sides = _pool_padding(x, dims, spans, steps, padding, ceil)
    if set(apart) == {1}:
        y = _second(nn.max_pool(_last(x), counts, steps, sides))
    else:
        y = _pad_lowest(x, sides)
        for dim, (count, step, distance, span) in enumerate(zip(counts, steps, apart, spans, strict=True), start=2):
            last = (y.shape[dim] - span) // step * step
            rows = [slice_rows(y, dim, at * distance, at * distance + last + 1, step) for at in range(count)]
            y = functools.reduce(xp.maximum, rows)
    return xp.squeeze(y, axis=0) if added else y


def _pad_lowest(x: Array, sides: Sequence[tuple[int, int]]) -> Array:
    """Rows that no maximum takes, before and after each of the last dims."""
    lowest = -math.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
    return pad(x, [width for side in reversed(sides) for width in side], value=lowest)


@row("avg_pool1d avg_pool2d avg_pool3d")
def avg_pool(
    x: Array,
    window: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Array:
    """The average of each window, over `divisor` elements if that is given, else with or without the padding."""
    dims = len(_each(window, 1)) if len(_each(window, 1)) > 1 else x.ndim - 2
    stride = stride or window
    spans = _each(window, dims)
    x, added = _batched(x, dims)
    sides = _pool_padding(x, dims, window, stride, padding, ceil)
    sums = nn.avg_pool(_last(x), spans, _each(stride, dims), sides) * math.prod(spans)
    y = _second(sums) / _counted(x, dims, spans, stride, padding, ceil, count_padding, divisor, sums.shape[1:-1])
    return xp.squeeze(y, axis=0) if added else y


def _counted(
    x: Array, dims: int, spans: Any, stride: Any, padding: Any, ceil: bool, inside: bool, divisor: Any, shape: Any
) -> Any:
    """By how much sums of windows are divided: a number, or a host array where windows differ."""
    if divisor is not None:
        return divisor
    if not any(_each(padding, dims)) and not ceil:
        return math.prod(spans)
    total = torch.ones((), dtype=torch.float64)
    for d, (size, span, step, side) in enumerate(
        zip(x.shape[-dims:], spans, _each(stride, dims), _each(padding, dims), strict=True)
    ):
        starts = torch.arange(shape[d]) * step - side
        low, high = (-side, size + side) if inside else (0, size)
        count = (starts + span).clamp(max=high) - starts.clamp(min=low)
        total = total * count.reshape([-1 if e == d else 1 for e in range(dims)])
    return total.to(torch_dtype(x)).numpy()


@row("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d")
def adaptive_avg_pool(x: Array, sizes: Sequence[int]) -> Array:
    """Averages over as many parts of each dim as asked for."""
    dims = tuple(range(-len(sizes), 0))
    sizes = [x.shape[d] if n is None else n for n, d in zip(sizes, dims, strict=True)]
    if all(n == 1 for n in sizes):
        return xp.mean(x, axis=dims, keepdims=True)
    for d, n in zip(dims, sizes, strict=True):
        x = _mixed(x, d, _averages(x.shape[d], n))
    return x


@lru_cache(maxsize=256)
def _averages(size: int, count: int) -> torch.Tensor:
    """The matrix that averages `size` rows to `count`."""
    return torch.nn.functional.adaptive_avg_pool1d(torch.eye(size, dtype=torch.float64), count).T


def _mixed(x: Array, dim: int, matrix: torch.Tensor) -> Array:
    """Rows of a dim as sums of rows, by a host matrix `new, old`; as it is if that changes nothing."""
    if matrix.shape[0] == matrix.shape[1] and torch.equal(matrix, torch.eye(len(matrix), dtype=matrix.dtype)):
        return x
    host = xp.asarray(matrix.to(torch_dtype(x)).numpy(), dtype=numpy_dtype(x.dtype))
    return xp.moveaxis(xp.einsum("...k,nk->...n", xp.moveaxis(x, dim, -1), host), -1, dim)


# -- resizing ------------------------------------------------------------------------------------------------------------


def _resized(mode: str, dims: int) -> Any:
    """A function like upsample_nearest2d: rows picked, or mixed by the matrix that torch makes for each dim."""
    aligned = mode in ("linear", "bicubic")

    def by_sizes(x: Array, sizes: Any, *rest: Any) -> Array:
        corners = bool(rest[0]) if aligned else False
        return _interpolated(x, mode, list(sizes), list(rest[1:] if aligned else rest), corners)

    def by_factors(x: Array, sizes: Any, *rest: Any) -> Array:
        corners = bool(rest[0]) if aligned else False
        factors = rest[1] if aligned else rest[0]
        if sizes is None:
            sizes = [int(n * factor) for n, factor in zip(x.shape[-dims:], factors, strict=True)]
        return _interpolated(x, mode, list(sizes), list(factors or ()), corners)

    return by_sizes, by_factors


def _interpolated(x: Array, mode: str, sizes: list[int], factors: list[Any], corners: bool) -> Array:
    dims = len(sizes)
    for at, size in enumerate(sizes):
        factor = factors[at] if at < len(factors) else None
        matrix = _weights(mode, x.shape[x.ndim - dims + at], size, factor, corners)
        dim = x.ndim - dims + at
        if mode.startswith("nearest"):
            picked = matrix.argmax(dim=1)
            even = x.shape[dim] and size % x.shape[dim] == 0
            repeated = torch.arange(x.shape[dim]).repeat_interleave(size // x.shape[dim]) if even else None
            if repeated is not None and torch.equal(picked, repeated):
                x = xp.repeat(x, size // x.shape[dim], axis=dim)
            else:
                x = xp.take(x, picked.numpy(), axis=dim)
        else:
            x = _mixed(x, dim, matrix)
    return x


@lru_cache(maxsize=256)
def _weights(mode: str, size: int, new: int, factor: float | None, corners: bool) -> torch.Tensor:
    """The matrix `new, old` by which torch resizes one dim."""
    one = torch.eye(size, dtype=torch.float64).reshape(1, size, size)
    ops = torch.ops.aten
    if mode == "linear":
        made = ops.upsample_linear1d(one, [new], corners, factor)
    elif mode == "bicubic":
        made = ops.upsample_bicubic2d(one[..., None], [new, 1], corners, factor, None)[..., 0]
    elif mode == "nearest":
        made = ops.upsample_nearest1d(one, [new], factor)
    else:
        made = ops._upsample_nearest_exact1d(one, [new], factor)
    return made[0].T


for _mode, _names in {
    "nearest": ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    "nearest_exact": ("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    "linear": ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
    "bicubic": ("", "upsample_bicubic2d", ""),
}.items():
    for _dims, _name in enumerate(_names, 1):
        if _name:
            _by_sizes, _by_factors = _resized(_mode, _dims)
            row(_name)(_by_sizes)
            row(f"{_name}.vec")(_by_factors)


@row("pixel_shuffle")
def pixel_shuffle(x: Array, factor: int) -> Array:
    """Channels as finer pixels."""
    *lead, channels, height, width = x.shape
    cut = xp.reshape(x, (*lead, channels // factor**2, factor, factor, height, width))
    n = len(lead)
    turned = xp.permute_dims(cut, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return xp.reshape(turned, (*lead, channels // factor**2, height * factor, width * factor))


@row("pixel_unshuffle")
def pixel_unshuffle(x: Array, factor: int) -> Array:
    """Pixels as more channels."""
    *lead, channels, height, width = x.shape
    cut = xp.reshape(x, (*lead, channels, height // factor, factor, width // factor, factor))
    n = len(lead)
    turned = xp.permute_dims(cut, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return xp.reshape(turned, (*lead, channels * factor**2, height // factor, width // factor))
