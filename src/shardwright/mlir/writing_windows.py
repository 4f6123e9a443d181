"""Convolutions and pooling as named operations of linalg."""

import math
from collections.abc import Sequence
from typing import Any

from shardwright.mlir.text import Typed
from shardwright.mlir.writing_rows import EXTREMES, Rows
from shardwright.ops import RowMap


class Windows(Rows):
    """Writes windows, beside the other operations of the table."""

    def _convolution(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        return self._around("convolution", attrs, operands, shape, dtype, 0)

    def _max_pool(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        return self._around("max_pool", attrs, operands, shape, dtype, EXTREMES["max"](operands[0].dtype))

    def _avg_pool(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        return self._around("avg_pool", attrs, operands, shape, dtype, 0)

    def _around(self, name: str, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any, fill: Any) -> Typed:
        """Windows of a whole tensor: the rows that they read, with `fill` beyond the border, and the windows on these."""
        x, *weights = operands
        low, high = [0] * len(x.shape), [0] * len(x.shape)
        maps: list[RowMap | None] = [None] * len(x.shape)
        for dim, each in enumerate(attrs["maps"], 1):
            last = each.start + (each.size - 1) * each.stride + each.span
            low[dim], high[dim] = max(0, -each.start), max(0, last - x.shape[dim])
            step = each.stride if each.width == 1 else 1
            count = each.size if each.width == 1 else last - each.start
            maps[dim] = RowMap(count, each.start + low[dim], step)
        ready = self.picked(self.padded(x, low, high, fill), maps)
        return self.windows(name, attrs, [ready, *weights], (shape, dtype))

    def windows(self, name: str, attrs: Any, operands: Sequence[Typed], result: tuple[Any, Any]) -> Typed:
        """Windows of rows of which the first begins with the first row; of windows of one row every row is read."""
        x, *weights = (self.cast(x, result[1]) for x in operands)
        shape, dtype = result
        maps, channels = attrs["maps"], x.shape[-1]
        if dtype.kind == "u" or not 1 <= len(maps) <= 2 or 0 in shape:
            raise self._refuse(
                name, f"has {len(maps)} dims of {dtype.name}; MLIR's operations have 1 or 2 of signed numbers"
            )
        letters = "hw"[-len(maps) :]
        widths = [m.width for m in maps]
        if name == "max_pool":
            op, filled = f"pooling_n{letters}c_max", EXTREMES["max"](dtype)
            weights = [self.text.empty(widths, dtype)]
        else:
            if name == "avg_pool":
                weights = [self.text.constant(1, (*widths, channels), dtype)]
            grouped = name == "avg_pool" or attrs["groups"] > 1
            if grouped and name != "avg_pool":
                if attrs["groups"] != channels or weights[0].shape[-1] != channels:
                    raise self._refuse("convolution", f"has {attrs['groups']} groups of several channels")
                weights = [self.reshaped(weights[0], (*widths, channels))]
            op = (
                f"depthwise_conv_{len(maps)}d_n{letters}c_{letters}c"
                if grouped
                else f"conv_{len(maps)}d_n{letters}c_{letters}cf"
            )
            filled = 0
        strides = [m.stride if m.width > 1 else 1 for m in maps]
        rows = [RowMap((n - 1) * s + m.span) for n, s, m in zip(shape[1:-1], strides, maps, strict=True)]
        data = self.picked(x, [None, *rows, None])
        out = self.text.filled(filled, shape, dtype)
        fields = f"dilations = dense<{[m.dilation for m in maps]}> : tensor<{len(maps)}xi64>, "
        fields += f"strides = dense<{strides}> : tensor<{len(maps)}xi64>"
        made = self.text.pure(
            f"linalg.{op} {{{fields}}} ins({data.name}, {weights[0].name} : {data.type}, {weights[0].type}) "
            f"outs({out.name} : {out.type}) -> {out.type}",
            shape,
            dtype,
        )
        if name != "avg_pool":
            return made
        return self.write("divide", {}, [made, self.text.constant(math.prod(widths), shape, dtype)], result)
