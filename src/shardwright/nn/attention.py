"""Attention as one operation, which never holds the scores of all queries and keys."""

from typing import Any

import numpy as np

from shardwright.arrays import Array
from shardwright.eager import apply, taped
from shardwright.errors import OperationError
from shardwright.numpy import astype
from shardwright.numpy.common import arrays, is_float
from shardwright.ops import Attrs


@taped
def scaled_dot_product_attention(
    query: Array, key: Array, value: Array, mask: Any = None, causal: bool = False, scale: float | None = None
) -> Array:
    """Attention over `…, heads, length, width`; keys and values may have fewer heads, shared by groups of query heads.

    `mask` is True where a query may attend, or a float that is added; it broadcasts to `…, heads, queries, keys`. With
    `causal` a query attends to keys up to its own position, counted from the end. A query that may attend to no key gives
    zeros. Batch, heads, queries and the values' width may be split freely; along split keys devices exchange two numbers for
    each query, and the result is a pending sum. Scores are computed block by block: they are never held at once.
    """
    query, key, value, *masks = arrays("attention", query, key, value, *(() if mask is None else (mask,)))
    shapes = query.shape, key.shape, value.shape
    if (
        any(len(shape) < 3 for shape in shapes)
        or key.shape[-3:-1] != value.shape[-3:-1]
        or query.shape[-1] != key.shape[-1]
    ):
        raise OperationError(
            f"attention takes queries `…, heads, length, width`, keys of the same width and values for all keys; got shapes "
            f"{', '.join(map(str, shapes))}. Add dims with expand_dims if there are no heads."
        )
    heads, kv_heads = query.shape[-3], key.shape[-3]
    if not kv_heads or heads % kv_heads:
        raise OperationError(
            f"attention: {heads} query heads are not a multiple of {kv_heads} key heads. Use a multiple."
        )
    full = (heads, query.shape[-2], key.shape[-2])
    if masks and any(n not in (1, size) for n, size in zip(masks[0].shape[::-1], full[::-1], strict=False)):
        raise OperationError(
            f"attention: a mask of shape {masks[0].shape} does not broadcast to `…, heads, queries, keys` = …, "
            f"{', '.join(map(str, full))}."
        )
    numbers = [x for x in (query, key, value, *masks) if x.dtype.kind != "b"]
    dtype = np.result_type(*(x.dtype for x in numbers))
    if dtype.kind == "c":
        raise OperationError(f"attention takes real numbers; got {dtype}.")
    dtype = dtype if is_float(dtype) else np.dtype(np.float64)
    given = [x if x.dtype in (dtype, np.dtype(bool)) else astype(x, dtype) for x in (query, key, value, *masks)]
    factor = query.shape[-1] ** -0.5 if scale is None else float(scale)
    result: Array = apply("attention", tuple(given), Attrs(causal=bool(causal), scale=factor))
    return result
