"""Elements replaced: each device writes, into the rows that it holds, what it was brought for them."""

import math

import numpy as np

from shardwright.kernels.call import Call, Data
from shardwright.kernels.moves import take_rows


def fill(call: Call, x: Data, mask: Data, value: Data) -> Data:
    """x with a value where a mask is true."""
    mask, value = call.align(1, mask), call.align(2, value)
    return call.xp.where(mask, value, x)


def assign(call: Call, x: Data, value: Data) -> Data:
    """x with the rows of a value in place of those that its row maps name."""
    xp, n, rank = call.xp, call.n, len(call.result.shape)
    mine, theirs = call.operands[0], call.operands[1]
    keep = None
    for dim, row_map in enumerate(call.attrs["maps"]):
        if row_map is None:
            continue
        rows = call.starts(mine, dim)[..., None] + np.arange(mine.local_shape[dim])  # lanes, then places of the shard
        number = (rows - row_map.start) // row_map.stride  # of the value's row that goes there, if one does
        inside = (number * row_map.stride + row_map.start == rows) & (number >= 0) & (number < row_map.size)
        shape = (*inside.shape[:-1], *(1,) * dim, inside.shape[-1], *(1,) * (rank - dim - 1))
        keep = inside.reshape(shape) if keep is None else keep & inside.reshape(shape)
        if (theirs.shape[dim] == row_map.size and row_map.size != 1) or theirs.dims[dim].parts > 1:
            local = number - call.starts(theirs, dim)[..., None]
            value = take_rows(call, value, xp.clip(xp.asarray(local), 0, max(value.shape[n + dim] - 1, 0)), dim)
    if keep is None:
        return xp.broadcast_to(value, (*call.lanes(x, value), *x.shape[n:]))
    return xp.where(xp.asarray(keep), value, x)


def scatter(call: Call, x: Data, value: Data, *indices: Data) -> Data:
    """x with rows of a value at the places that index arrays name; of rows for one place the last one stays.

    For every place of the shard it looks up, among the sorted places of all rows, the last row that goes there: nothing is
    written in place, so that any namespace can run it.
    """
    xp, n, dims, layout = call.xp, call.n, call.attrs["dims"], call.operands[0]
    rank, count = len(layout.shape), indices[0].shape[-1]
    sizes = [layout.local_shape[dim] for dim in dims]
    place, mine = xp.zeros((1,) * (n + 1), dtype=np.int64), None
    for dim, size, index in zip(dims, sizes, indices, strict=True):
        index = xp.astype(index, np.int64)
        local = xp.where(index < 0, index + layout.shape[dim], index) - xp.asarray(
            call.spread(call.starts(layout, dim), 1)
        )
        here = (local >= 0) & (local < xp.asarray(call.spread(call.sizes(layout, dim), 1)))
        mine = here if mine is None else mine & here
        place = place * size + local
    room = math.prod(sizes)
    lanes = np.broadcast_shapes(tuple(mine.shape[:n]), tuple(place.shape[:n]))  # type: ignore[union-attr]
    devices = math.prod(lanes)
    base = np.arange(devices).reshape((*lanes, 1)) * (room + 1)  # the places of each device, one after the other
    keys = xp.reshape(xp.broadcast_to(xp.where(mine, place, room) + xp.asarray(base), (*lanes, count)), (-1,))
    order = xp.argsort(keys, stable=True)
    ordered = xp.take(keys, order)
    wanted = xp.asarray((base + np.arange(room)).reshape(-1))
    last = xp.searchsorted(ordered, wanted, side="right") - 1
    last = xp.where(last < 0, 0, last)
    found = xp.reshape(xp.take(ordered, last) == wanted, (*lanes, *sizes))
    writer = xp.reshape(xp.take(order, last) % count, (*lanes, *sizes))
    return _written(call, x, value, found, writer, rank)


def _written(call: Call, x: Data, value: Data, found: Data, writer: Data, rank: int) -> Data:
    """x with, wherever one was found, the row of the value that its writer names."""
    xp, n, dims = call.xp, call.n, call.attrs["dims"]
    rest = [dim for dim in range(rank) if dim not in dims]
    lanes = np.broadcast_shapes(tuple(x.shape[:n]), tuple(value.shape[:n]), tuple(writer.shape[:n]))
    order = (*range(n), *(n + dim for dim in dims), *(n + dim for dim in rest))
    moved = xp.transpose(call.wide(x, lanes), order)
    room = math.prod(moved.shape[n : n + len(dims)])
    flat = xp.reshape(moved, (*lanes, room, *moved.shape[n + len(dims) :]))
    ones = (1,) * len(rest)
    chosen = value
    if value.shape[n] > 1:
        rows = xp.reshape(call.wide(writer, lanes), (*lanes, room, *ones))
        rows = xp.broadcast_to(rows, (*lanes, room, *value.shape[n + 1 :]))
        chosen = xp.take_along_axis(call.wide(value, lanes), rows, axis=n)
    hit = xp.reshape(call.wide(found, lanes), (*lanes, room, *ones))
    made = xp.reshape(xp.where(hit, chosen, flat), moved.shape)
    return xp.transpose(made, [order.index(i) for i in range(len(order))])
