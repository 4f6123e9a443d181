"""Attention on whole tensors in NumPy: all keys that a block of queries sees at once, some heads at a time, in the cache.

A function of `direct.DIRECT`, tested against the kernel of `kernels/attention.py`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.kernels import Call

Data = NDArray[Any]

ROWS = 64  # queries of a block; OpenBLAS is fastest on products this small, and few queries leave most masked keys out
LEAST = 16  # queries of a block at least
SCORES = 1 << 17  # scores of a block, if one head has no more
MOST_SCORES = 1 << 19  # of one head, if it has LEAST queries
MOST_KEYS = 1 << 16
MODEST = 16.0  # powers of scores up to this size are between 1e-7 and 1e7: they need not be relative to the largest


class Block(NamedTuple):
    """Queries from `start` to `stop`, and keys from `first` to `last`: the others are masked for all of these queries."""

    start: int
    stop: int
    first: int
    last: int


def attention(call: Call) -> Callable[..., Data] | None:
    """The function for these operands; None where the kernel must run."""
    (*lead, heads, queries, _), (shared, keys, _) = call.operands[0].shape, call.operands[1].shape[-3:]
    leads = {layout.shape[:-3] for layout in (*call.operands[:3], call.result)}
    if not 0 < keys <= MOST_KEYS or len(leads) > 1 or 0 in call.result.shape:
        return None
    if call.dtypes[0] not in (np.float32, np.float64):
        return None
    causal, scale, group = call.attrs["causal"], call.attrs["scale"], heads // shared
    rows = max(
        min(max(ROWS, keys // 8), MOST_SCORES // keys) // group, LEAST
    )  # products with many keys want more queries

    def attention(query: Data, key: Data, value: Data, *masks: Data) -> Data:
        # Heads follow one another in memory for each query: joining them afterwards is a view.
        result = np.empty((*lead, queries, heads, value.shape[-1]), query.dtype).swapaxes(-2, -3)
        mask = _by_heads(masks[0], (*lead, shared, group, queries, keys)) if masks else None
        blocks: list[Block] = []
        for index in np.ndindex(*lead):
            own = None if mask is None else mask[index]
            if not blocks or (mask is not None and any(mask.strides[: len(lead)])):
                blocks = _blocks(own, causal, queries, keys, rows)
            q, out = (x[index].reshape(shared, group, queries, -1) for x in (query, result))
            _attend(q * scale, key[index], value[index], out, own, blocks, causal)
        return result

    return attention


def _by_heads(mask: Data, shape: tuple[int, ...]) -> Data:
    """A mask as (…, key heads, group, queries, keys), where dims of heads stay 1 if all heads have the same mask."""
    dims = (1,) * (len(shape) - 1 - mask.ndim) + mask.shape
    heads = (1, 1) if dims[-3] == 1 else shape[-4:-2]
    return np.broadcast_to(mask.reshape(*dims[:-3], *heads, *dims[-2:]), (*shape[:-4], *heads, *shape[-2:]))


def _blocks(mask: Data | None, causal: bool, queries: int, keys: int, rows: int) -> list[Block]:
    blocks = []
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        first, last = 0, min(max(stop + keys - queries, 0), keys) if causal else keys
        if mask is not None and mask.dtype == bool:
            seen = np.flatnonzero(np.any(mask[..., start:stop, :last], axis=(0, 1, 2)))
            first, last = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, 0)
        blocks.append(Block(start, stop, first, last))
    return blocks


def _attend(q: Data, k: Data, v: Data, out: Data, mask: Data | None, blocks: list[Block], causal: bool) -> None:
    """Attention of queries (key heads, group, queries, width) to keys (key heads, keys, width), written into `out`."""
    shared, group, queries, width = q.shape
    keys, turned = k.shape[-2], np.ascontiguousarray(k.swapaxes(-1, -2))
    hiding = Hiding(None, None, None)
    for start, stop, first, last in blocks:
        if first == last:
            out[:, :, start:stop] = 0
            continue
        rows = group * (stop - start)
        some = max(SCORES // (rows * (last - first)), 1)
        for head in range(0, shared, some):
            part = slice(head, head + some)
            if not head or (mask is not None and len(mask) > 1):
                block = None if mask is None else mask[part, :, start:stop, first:last]
                diagonal = start + keys - queries - first if causal else None
                hiding = _hiding(block, diagonal, (stop - start, last - first), q.dtype)
            scores = np.matmul(q[part, :, start:stop].reshape(-1, rows, width), turned[part, :, first:last])
            _weigh(scores, group, hiding)
            if group == 1:
                np.matmul(scores, v[part, first:last], out=out[part, 0, start:stop])
            else:
                found = np.matmul(scores, v[part, first:last])
                out[part, :, start:stop] = found.reshape(len(found), group, stop - start, -1)


class Hiding(NamedTuple):
    """What a mask does to a block of scores: where they don't count, -inf there and 0 elsewhere, what else is added."""

    hidden: Data | None
    lowered: Data | None
    bias: Data | None


def _hiding(mask: Data | None, diagonal: int | None, shape: tuple[int, int], dtype: "np.dtype[Any]") -> Hiding:
    hidden = None
    if diagonal is not None and diagonal < shape[1] - 1:
        hidden = ~np.tri(*shape, diagonal, dtype=bool)[None, None]
    if mask is not None and mask.dtype != bool:
        return Hiding(hidden, None, mask)
    if mask is not None and not mask.all():
        hidden = ~mask if hidden is None else hidden | ~mask
    lowered = None if hidden is None else np.where(hidden, dtype.type(-np.inf), dtype.type(0))
    return Hiding(hidden, lowered, None)


def _weigh(scores: Data, group: int, hiding: Hiding) -> None:
    """Makes weights of a block of scores, in place: their sum is 1, or 0 if no key counts."""
    hidden, lowered, bias = hiding
    heads = scores.reshape(len(scores), group, -1, scores.shape[-1])
    if bias is not None:
        heads += bias
    modest = bias is None and scores.min() >= -MODEST and scores.max() <= MODEST
    if hidden is not None and modest:
        heads += lowered
    elif hidden is not None:  # scores may be infinite or NaN, and stay so if something is added
        np.copyto(heads, -np.inf, where=hidden)
    if not modest:
        top = _largest(scores)
        scores -= np.where(np.isfinite(top), top, 0)
    np.exp(scores, out=scores)
    total = np.matmul(scores, np.ones((scores.shape[-1], 1), scores.dtype))
    total[total == 0] = 1
    scores /= total


def _largest(x: Data) -> Data:
    """The largest of each row; of short rows by halves, since NumPy's own takes 0.2 µs a row."""
    size = x.shape[-1]
    if size > 96:
        return x.max(axis=-1, keepdims=True)
    while size > 1:
        half = (size + 1) // 2
        x, size = np.maximum(x[..., :half], x[..., size - half : size]), half
    return x
