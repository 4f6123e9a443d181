"""Convolutions and pooling of linalg, by rows of the table."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.ir import Operation

from shardwright.errors import ShardwrightError
from shardwright.mlir.values import Value, View
from shardwright.ops import RowMap


def windowed(
    view: View,
    op: Operation,
    kinds: tuple[str, str, str, str],
    values: Sequence[Value],
    combined: Callable[[str, Value, Value], Value],
) -> Value:
    """A convolution, or the windows of a pooling combined; `kinds` are the dims of input, filter and result, by letter.

    `combined` combines a result with the value that the output begins with.
    """
    data, weights, out = values
    dims, window, result, combine = kinds
    spatial = [d for d in "dhw" if d in dims]
    maps = _maps(op, data, weights, dims, window, spatial)
    for letter, row_map in zip(spatial, maps, strict=True):
        if row_map.size != out.shape[result.index(letter)]:
            raise ShardwrightError(
                f"The windows give {row_map.size} rows along {letter!r}, but the output has "
                f"{out.shape[result.index(letter)]}. Correct the output's shape."
            )
    wide = view.cast(data, out.dtype)
    if op.name.startswith("linalg.pooling"):
        made = _pooled(view, wide, dims, spatial, maps, combine)
    else:
        made = _convolved(view, wide, view.cast(weights, out.dtype), kinds, maps)
    return combined(combine, made, out)


def _maps(op: Operation, data: Value, weights: Value, dims: str, window: str, spatial: Sequence[str]) -> list[RowMap]:
    known = {**op.attributes, **op.properties}

    def each(name: str) -> list[int]:
        given: Any = known.get(name)
        return [int(n) for n in given.get_values()] if given is not None else [1] * len(spatial)

    maps = []
    for letter, stride, dilation in zip(spatial, each("strides"), each("dilations"), strict=True):
        size, width = data.shape[dims.index(letter)], weights.shape[window.index(letter)]
        if stride < 1 or dilation < 1:
            raise ShardwrightError(f"Strides and dilations are positive; got {stride} and {dilation}.")
        rows = (size - (width - 1) * dilation - 1) // stride + 1
        maps.append(RowMap(max(rows, 0), 0, stride, width, dilation))
    return maps


def _ordered(view: View, value: Value, have: str, want: str) -> Value:
    """A value with its dims, which letters name, in another order; letters that it lacks are dims of size 1."""
    order = tuple(have.index(letter) for letter in want if letter in have)
    moved = value if list(order) == sorted(order) else view.row("permute_dims", value, axes=order)
    sizes = dict(zip((have[at] for at in order), moved.shape, strict=True))
    return view.reshaped(moved, [sizes.get(letter, 1) for letter in want])


def _convolved(
    view: View, data: Value, weights: Value, kinds: tuple[str, str, str, str], maps: Sequence[RowMap]
) -> Value:
    dims, window, result, _ = kinds
    spatial = "".join(d for d in "dhw" if d in dims)
    by_channel = "c" in window and "f" not in window
    x = _ordered(view, view.lifted(data), dims, f"n{spatial}c")
    w = _ordered(view, view.lifted(weights), window, f"{spatial}fc" if by_channel else f"{spatial}cf")
    groups = x.shape[-1] if by_channel else 1
    made = view.row("convolution", x, w, maps=tuple(maps), groups=groups)
    letters = f"n{spatial}{'c' if by_channel else 'f'}"
    if len(result) == len(letters):
        return _ordered(view, made, letters, result)
    return view.reshaped(made, [n for n, letter in zip(made.shape, letters, strict=True) if letter in result])


def _pooled(view: View, data: Value, dims: str, spatial: Sequence[str], maps: Sequence[RowMap], combine: str) -> Value:
    order = f"n{''.join(spatial)}c"
    x = _ordered(view, view.lifted(data), dims, order)
    if combine == "max":
        made = view.row("max_pool", x, maps=tuple(maps))
    elif combine == "min":
        turned = "bitwise_invert" if x.dtype.kind in "iu" else "negative"  # -x of the lowest integer is itself
        made = view.row(turned, view.row("max_pool", view.row(turned, x), maps=tuple(maps)))
    else:
        ones = np.ones((*(m.width for m in maps), 1, x.shape[-1]), x.dtype)
        made = view.row("convolution", x, view.lifted(ones), maps=tuple(maps), groups=x.shape[-1])
    return _ordered(view, made, order, dims)
