"""Attention in blocks of queries and keys: scores of one block at a time, with a running maximum and sum per query.

Where keys are split, each device attends to its own, and what it found is rescaled by the maximum and the sum of all devices.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from shardwright.kernels.call import Call, Data, Space
from shardwright.ops import work_dtype

SCORES = 1 << 20  # elements of a block of scores at most, as long as it has LEAST rows and columns
LEAST = 16


class Blocks(NamedTuple):
    """How a device cuts its queries and keys."""

    queries: int
    keys: int


def blocks_of(batch: int, queries: int, keys: int) -> Blocks:
    """Blocks of which `batch` at once have at most `SCORES` scores; about square, so that keys and values are read least
    often."""
    room = max(SCORES // max(batch, 1), LEAST * LEAST)
    side = max(math.isqrt(room), LEAST)
    rows = min(queries, side if keys > side else max(room // max(keys, 1), LEAST))
    return Blocks(rows, min(keys, max(room // max(rows, 1), LEAST)))


def scratch(call: Call) -> int:
    """Bytes that a device needs beside operands and results: scores of a block, masked, their powers and a mask; the sums of
    all blocks before they are one result."""
    *batch, queries, width = call.results[0].local_shape
    blocks = blocks_of(math.prod(batch), queries, call.operands[1].local_shape[-2])
    size = work_dtype(call.dtypes[0]).itemsize
    return math.prod(batch) * (blocks.queries * blocks.keys * (3 * size + 1) + 2 * queries * (width + 2) * size)


class _Operands(NamedTuple):
    """Queries (…, heads, group, queries, width), keys and values (…, heads, 1, keys, width), and a mask that broadcasts to
    scores."""

    query: Data
    key: Data
    value: Data
    mask: Data | None


def attention(call: Call, *operands: Data) -> Data:
    """Attention to all keys."""
    xp, dtype = call.xp, call.result_dtypes[0]
    total, _, weight = _attended(call, *operands)
    return call.converted(_divided(xp, total, weight), dtype)


def parts(call: Call, *operands: Data) -> tuple[Data, ...]:
    """Attention to the keys of one device: sums of weighted values, the largest score, the sum of weights."""
    return _attended(call, *operands)


def weights(call: Call, weight: Data, top: Data, highest: Data) -> Data:
    """A device's sum of weights relative to the largest score of all devices."""
    return weight * _rescaling(call.xp, top, highest)


def merged(call: Call, total: Data, top: Data, highest: Data, weight: Data) -> Data:
    """A device's part of the result: its sums relative to the largest score, divided by the weights of all devices."""
    xp = call.xp
    scaled = total * _column(xp, _rescaling(xp, top, highest))
    return call.converted(_divided(xp, scaled, weight), call.result_dtypes[0])


def _rescaling(xp: Space, top: Data, highest: Data) -> Data:
    return xp.exp(top - _finite(xp, highest))


def _finite(xp: Space, top: Data) -> Data:
    """The largest score, or 0 where it is not finite: where no key counts, scores are -inf, and their weights stay 0."""
    return xp.where(xp.isfinite(top), top, xp.asarray(0, dtype=top.dtype))


def _turned(xp: Space, x: Data) -> Data:
    """Matrices with their rows as columns."""
    return xp.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _column(xp: Space, x: Data) -> Data:
    return xp.reshape(x, (*x.shape, 1))


def _divided(xp: Space, total: Data, weight: Data) -> Data:
    """Weighted sums divided by their weights; 0 where no key counts."""
    one = xp.asarray(1, dtype=total.dtype)
    return total / _column(xp, xp.where(weight == 0, one, weight))


def _attended(call: Call, *operands: Data) -> tuple[Data, Data, Data]:
    """The sums of weighted values, the largest scores and the sums of weights, in the shape of the result and without its
    last dim."""
    xp = call.xp
    given = _arranged(call, operands)
    query, key, value, _ = given
    queries, keys, width = query.shape[-2], key.shape[-2], value.shape[-1]
    lead = np.broadcast_shapes(*(tuple(x.shape[:-2]) for x in given if x is not None))
    dtype = work_dtype(call.dtypes[0])
    shape = (*lead[:-2], lead[-2] * lead[-1], queries)
    if 0 in (*lead, queries, keys, width):
        lowest = xp.full(shape, -np.inf, dtype=dtype)
        return xp.zeros((*shape, width), dtype=dtype), lowest, xp.zeros(shape, dtype=dtype)
    blocks = blocks_of(math.prod(lead), queries, keys)
    rows, cols = _positions(call)

    def of_rows(start: Any, count: int) -> tuple[Data, Data, Data]:
        """What some queries find."""
        some = xp.rows(query, start, count, -2)
        some = call.converted(some, dtype) * call.attrs["scale"]

        def of_keys(begin: Any, size: int, carry: tuple[Data, Data, Data]) -> tuple[Data, Data, Data]:
            block = _turned(xp, call.converted(xp.rows(key, begin, size, -2), dtype))
            scores = _masked(call, given.mask, xp.matmul(some, block), (rows, start, count), (cols, begin, size))
            return _absorbed(xp, carry, scores, call.converted(xp.rows(value, begin, size, -2), dtype))

        carry = (
            xp.zeros((*lead, count, width), dtype=dtype),
            xp.full((*lead, count), -np.inf, dtype=dtype),
            xp.zeros((*lead, count), dtype=dtype),
        )
        turns, rest = divmod(keys, blocks.keys)
        carry = xp.fold(turns, lambda at, carry: of_keys(at * blocks.keys, blocks.keys, carry), carry)
        return of_keys(turns * blocks.keys, rest, carry) if rest else carry

    turns, rest = divmod(queries, blocks.queries)
    found = xp.over(turns, lambda at: of_rows(at * blocks.queries, blocks.queries), axis=len(lead))
    if rest:
        last = of_rows(turns * blocks.queries, rest)
        found = tuple(xp.concat([x, y], axis=len(lead)) for x, y in zip(found, last, strict=True))
    total, top, weight = found
    return xp.reshape(total, (*shape, width)), xp.reshape(top, shape), xp.reshape(weight, shape)


def _arranged(call: Call, operands: tuple[Data, ...]) -> _Operands:
    """The operands with dims for heads and for the queries that share a key head, and as many leading dims each.

    Values that are padding are zeros: their weights are, and 0 times what is there could be NaN.
    """
    xp, n = call.xp, call.n
    value = call.filled(2, operands[2], [len(call.operands[2].shape) - 2], 0)
    given = (*operands[:2], value, *operands[3:])
    dims = [(1,) * (3 - (x.ndim - n)) + tuple(x.shape[n:]) for x in given]  # a mask may have fewer than 3
    deep = max(map(len, dims))
    heads = dims[1][-3]
    shared = (heads, dims[0][-3] // max(heads, 1))
    arranged: list[Data | None] = []
    for at, (x, own) in enumerate(zip(given, dims, strict=True)):
        split = (own[-3], 1) if at in (1, 2) else (1, 1) if at == 3 and own[-3] == 1 else shared
        shape = (*x.shape[:n], *(1,) * (deep - len(own)), *own[:-3], *split, *own[-2:])
        arranged.append(xp.reshape(x, shape))
    return _Operands(*arranged, *(None,) * (4 - len(arranged)))


def _positions(call: Call) -> tuple[Data | None, Data | None]:
    """Where each device's queries and keys begin in the whole sequences, over the lanes, for causal attention."""
    if not call.attrs["causal"]:
        return None, None
    xp, rank = call.xp, max(len(layout.shape) for layout in call.operands) + 1  # heads are two dims
    query, key = call.operands[:2]
    behind = key.shape[-2] - query.shape[-2]  # the last query attends to the last key
    rows = xp.asarray(call.spread(call.starts(query, len(query.shape) - 2), rank)) + behind
    return rows, xp.asarray(call.spread(call.starts(key, len(key.shape) - 2), rank))


def _masked(call: Call, mask: Data | None, scores: Data, rows: tuple[Any, ...], cols: tuple[Any, ...]) -> Data:
    """Scores of a block, -inf where a query must not attend to a key, and where a key is padding."""
    xp = call.xp
    (row, start, count), (col, begin, size) = rows, cols
    local = xp.asarray(np.arange(size)) + begin
    lowest = xp.asarray(-np.inf, dtype=scores.dtype)
    if row is not None:
        position = xp.reshape(xp.asarray(np.arange(count)) + start, (count, 1))
        scores = xp.where(position + row >= local + col, scores, lowest)
    if mask is not None:
        for axis, (first, length) in ((-2, (start, count)), (-1, (begin, size))):
            mask = mask if mask.shape[axis] == 1 else xp.rows(mask, first, length, axis)
        boolean = call.dtypes[3].kind == "b"
        scores = xp.where(mask, scores, lowest) if boolean else scores + call.converted(mask, xp.dtype(scores))
    key = call.operands[1]
    if key.extents[len(key.shape) - 2] is not None:
        rank = scores.ndim - call.n
        real = xp.asarray(call.spread(call.sizes(key, len(key.shape) - 2), rank))
        scores = xp.where(local < real, scores, lowest)
    return scores


def _absorbed(xp: Space, carry: tuple[Data, Data, Data], scores: Data, values: Data) -> tuple[Data, Data, Data]:
    """What was found so far and a block of scores together: sums are relative to the largest score so far."""
    total, top, weight = carry
    highest = xp.maximum(top, xp.max(scores, axis=scores.ndim - 1))
    base = _finite(xp, highest)
    powers = xp.exp(scores - _column(xp, base))
    scale = xp.exp(top - base)
    weight = weight * scale + xp.sum(powers, axis=powers.ndim - 1, dtype=powers.dtype)
    return total * _column(xp, scale) + xp.matmul(powers, values), highest, weight
