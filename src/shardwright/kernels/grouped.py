"""Products of groups of rows with a matrix each: a device multiplies the rows that it holds of the groups that it holds."""

import numpy as np

from shardwright.kernels.call import Call, Data
from shardwright.ops import work_dtype


def grouped_matmul(call: Call, x: Data, w: Data, ends: Data) -> Data:
    """Rows of x times the matrix of their group; `ends` has, for all groups, the row behind the last one.

    Rows of other devices' groups, and rows behind the last group, are zeros. Small floats are multiplied in float32.
    """
    xp, n, (tokens, weights, _) = call.xp, call.n, call.operands
    lanes = call.lanes(x, w, ends)
    wide = work_dtype(call.dtypes[0])
    x, w = call.filled(0, x, [1], 0), call.filled(1, w, [1], 0)
    rows, groups, width = x.shape[n], w.shape[n], w.shape[-1]
    if 0 in (rows, groups, width, x.shape[-1]):
        return xp.zeros((*lanes, rows, width), dtype=call.dtypes[0])
    ends = call.converted(ends, np.int64)
    begins = xp.concat([ends[..., :1] * 0, ends[..., :-1]], axis=-1)
    # Over the lanes: which groups a device holds, and which of their rows.
    held = xp.asarray(call.spread(call.starts(weights, 0), 1)) + xp.asarray(np.arange(groups))
    real = xp.asarray(np.arange(groups)) < xp.asarray(call.spread(call.sizes(weights, 0), 1))
    number = xp.clip(held, 0, weights.shape[0] - 1)
    shift, count = (xp.asarray(call.spread(some(tokens, 0), 1)) for some in (call.starts, call.sizes))

    def bounds(edges: Data) -> Data:
        """The edges of the groups among the rows of a device; groups that are padding have none."""
        own = np.broadcast_shapes(tuple(edges.shape[:n]), tuple(number.shape[:n]))
        wide_edges = xp.broadcast_to(edges, (*own, edges.shape[-1]))
        local = xp.take_along_axis(wide_edges, xp.broadcast_to(number, (*own, groups)), axis=-1) - shift
        local = xp.minimum(xp.maximum(local, 0), count)
        return xp.broadcast_to(xp.where(real, local, 0 * local), (*lanes, groups))

    first, last = bounds(begins), bounds(ends)
    x, w = call.wide(call.converted(x, wide), lanes), call.wide(call.converted(w, wide), lanes)
    made = [xp.grouped_matmul(x[at], w[at], first[at], last[at]) for at in np.ndindex(*lanes)]
    result = xp.reshape(xp.stack(made), (*lanes, rows, width)) if lanes else made[0]
    return call.converted(result, call.dtypes[0])
