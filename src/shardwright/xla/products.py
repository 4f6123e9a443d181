"""XLA's products: contractions with batch dims, and convolutions in every layout, dilated, grouped, with any padding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from shardwright.errors import OperationError
from shardwright.ops import RowMap
from shardwright.xla.elementwise import convert
from shardwright.xla.shaping import concatenate, pad, reverse, rows
from shardwright.xla.values import Value, permute, reshape, row, splat

Dims = Sequence[int]


def _accumulated(operands: Sequence[Value], dtype: Any) -> list[Value]:
    """Operands in the dtype of the product, where that is wider: their product is then exact in it."""
    wanted = np.dtype(dtype)
    return [
        convert(x, wanted) if x.dtype != wanted and np.result_type(x.dtype, wanted) == wanted else x for x in operands
    ]


def dot_general(x: Value, y: Value, contract: tuple[Dims, Dims], batch: tuple[Dims, Dims], dtype: Any = None) -> Value:
    """The product over pairs of dims; dims of the result are batch dims, the rest of x, the rest of y."""
    wanted = np.dtype(x.dtype if dtype is None else dtype)
    x, y = _accumulated((x, y), wanted)
    names = [[f"x{d}" for d in range(x.ndim)], [f"y{d}" for d in range(y.ndim)]]
    for a, b in (*zip(*contract, strict=True), *zip(*batch, strict=True)):
        names[1][b] = names[0][a]
    result = [names[0][d] for d in batch[0]]
    result += [n for d, n in enumerate(names[0]) if d not in (*contract[0], *batch[0])]
    result += [n for d, n in enumerate(names[1]) if d not in (*contract[1], *batch[1])]
    text = f"{' '.join(names[0])}, {' '.join(names[1])} -> {' '.join(result)}"
    return convert(row("einsum", x, y, text=text, name="dot_general"), wanted)


def ragged_dot(
    x: Value, y: Value, sizes: Value, contract: tuple[Dims, Dims], ragged: int, groups: Dims, dtype: Any = None
) -> Value:
    """Products of groups of x's rows, `sizes` of them each, along dim `ragged`: with y's matrix of each group (of the dim
    `groups`), or, where the rows are contracted, with the rows of y, a matrix for each group."""
    (a, b), rank = contract, (x.ndim, y.ndim)
    if len(a) != 1 or rank != ((2, 3) if groups else (2, 2)) or (ragged in a) == bool(groups):
        raise OperationError(
            f"a ragged product of shapes {tuple(x.shape)} and {tuple(y.shape)} over dims {tuple(a)} and {tuple(b)} with "
            f"batch dims is not supported. Use (rows, k) with (groups, k, n), or with (rows, n)."
        )
    wanted = np.dtype(x.dtype if dtype is None else dtype)
    x, y = _accumulated((x, y), wanted)
    counts = convert(sizes, np.int64)
    ends = row("cumulative_sum", counts, axis=0, dtype=np.dtype(np.int64))
    if groups:
        last = next(d for d in range(3) if d not in (groups[0], b[0]))
        made = row("grouped_matmul", permute(x, (ragged, a[0])), permute(y, (groups[0], b[0], last)), ends)
        return convert(made, wanted)
    places = np.arange(x.shape[ragged]).reshape(-1, 1)
    after = row("greater_equal", places, reshape(row("subtract", ends, counts), (1, *ends.shape)))
    mine = row("bitwise_and", after, row("less", places, reshape(ends, (1, *ends.shape))))
    rows_of = permute(x, (ragged, 1 - ragged)), permute(y, (b[0], 1 - b[0]))
    text = "m g, m k, m n -> g k n"
    return convert(row("einsum", convert(mine, wanted), *rows_of, text=text, name="ragged_dot"), wanted)


@dataclass(frozen=True)
class Window:
    """How windows of a convolution or a reduction lie, a number for each spatial dim."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]  # rows of zeros are put between the operand's
    dilation: tuple[int, ...]  # the distance of the rows of a window
    reversal: tuple[bool, ...] = field(default=())  # windows are read backward


@dataclass(frozen=True)
class Layout:
    """Which dim is which: of the operand (batch, channels, spatial…), the weights (out, in, spatial…), the result."""

    operand: tuple[int, ...]
    weights: tuple[int, ...]
    result: tuple[int, ...]


def convolution(
    x: Value, w: Value, layout: Layout, window: Window, groups: int = 1, batch_groups: int = 1, dtype: Any = None
) -> Value:
    """Windows of x times weights; by the table's row for `b spatial… c` and `window… c o`."""
    wanted = np.dtype(x.dtype if dtype is None else dtype)
    x, w = _accumulated((x, w), wanted)
    batch, channels, *spatial = layout.operand
    x = permute(x, (batch, *spatial, channels))
    out, inner, *offsets = layout.weights
    w = permute(w, (*offsets, inner, out))
    count = len(spatial)
    if batch_groups > 1:
        x, groups = _batches_as_channels(x, batch_groups), batch_groups
    if any(window.reversal):
        w = reverse(w, [d for d, flag in enumerate(window.reversal) if flag])
    x = _spread(x, window.base_dilation)
    maps = _maps(x.shape[1 : 1 + count], w.shape[:count], window)
    if 0 in x.shape or 0 in w.shape or any(each.size == 0 for each in maps):
        y: Value = splat(0, (x.shape[0], *(each.size for each in maps), w.shape[-1]), wanted)
    elif groups == 1 and math.prod(each.size for each in maps) < math.prod(w.shape[:count]):
        y = _few_windows(x, w, maps)
    else:
        y = row("convolution", x, w, maps=tuple(maps), groups=groups)
    order = [0] * (count + 2)
    for place, dim in zip((0, count + 1, *range(1, count + 1)), layout.result, strict=True):
        order[dim] = place
    return convert(permute(y, order), wanted)


def _batches_as_channels(x: Value, groups: int) -> Value:
    """Groups of the batch, which have weights of their own, as groups of channels."""
    n, *spatial, c = x.shape
    x = reshape(x, (groups, n // groups, *spatial, c))
    x = permute(x, (*range(1, x.ndim - 1), 0, x.ndim - 1))
    return reshape(x, (n // groups, *spatial, groups * c))


def _spread(x: Value, dilation: Sequence[int]) -> Value:
    """Rows of zeros between the rows of the spatial dims."""
    if all(d == 1 for d in dilation):
        return x
    none = (0,) * x.ndim
    return pad(x, splat(0, (), x.dtype), none, none, (0, *(d - 1 for d in dilation), 0))


def _maps(sizes: Sequence[int], widths: Sequence[int], window: Window) -> list[RowMap]:
    maps = []
    for size, width, stride, (low, high), dilation in zip(
        sizes, widths, window.strides, window.padding, window.dilation, strict=True
    ):
        span = (width - 1) * dilation + 1 if width else 0
        room = size + low + high - span
        maps.append(RowMap(room // stride + 1 if room >= 0 else 0, -low, stride, width, dilation))
    return maps


def _few_windows(x: Value, w: Value, maps: Sequence[RowMap]) -> Value:
    """A convolution with more rows in a window than windows, as gradients of weights are: a product for each window.

    The rows of a window are then contracted like channels, so they may be split.
    """
    spatial = [f"s{i}" for i in range(len(maps))]
    text = f"b {' '.join(spatial)} c, {' '.join(spatial)} c o -> b o"
    parts = []
    for place in product(*(range(each.size) for each in maps)):
        picked = [
            RowMap(each.width, each.start + number * each.stride, each.dilation)
            for number, each in zip(place, maps, strict=True)
        ]
        whole = [m == RowMap(n) for m, n in zip(picked, x.shape[1:-1], strict=True)]
        inside = rows(x, "slice", [None, *(None if all_ else m for all_, m in zip(whole, picked, strict=True)), None])
        parts.append(reshape(row("einsum", inside, w, text=text, name="convolution"), (x.shape[0], 1, w.shape[-1])))
    return reshape(concatenate(parts, 1), (x.shape[0], *(each.size for each in maps), w.shape[-1]))
