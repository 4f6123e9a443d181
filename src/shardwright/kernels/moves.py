"""Elements at other places of the same device: dims reordered and reshaped, rows taken, triangles kept, tensors joined."""

import math

import numpy as np

from shardwright.kernels.call import Call, Data


def permute_dims(call: Call, data: Data) -> Data:
    return call.xp.transpose(data, (*range(call.n), *call.axes(call.attrs["axes"])))


def reshape(call: Call, data: Data) -> Data:
    return call.xp.reshape(data, (*data.shape[: call.n], *call.result.local_shape))


def broadcast_to(call: Call, data: Data) -> Data:
    return call.xp.broadcast_to(call.align(0, data), (*data.shape[: call.n], *call.result.local_shape))


def concat(call: Call, *operands: Data) -> Data:
    lanes = call.lanes(*operands)
    parts = [call.xp.astype(call.wide(x, lanes), call.result_dtypes[0]) for x in operands]
    return call.xp.concat(parts, axis=call.n + call.attrs["axis"])


def triangle(call: Call, data: Data) -> Data:
    rank = len(call.result.shape)
    rows, cols = call.positions(call.result, rank - 2), call.positions(call.result, rank - 1)
    keep = cols - rows <= call.attrs["k"] if call.attrs["lower"] else cols - rows >= call.attrs["k"]
    return call.xp.where(keep, data, call.xp.asarray(0, dtype=data.dtype))


def expand_rows(call: Call, data: Data) -> Data:
    """Rows that a device fetched once, as often as its part of the result has them."""
    for dim, index in enumerate(call.attrs["index"]):
        if index is None:
            continue
        layout = call.result
        starts, room = call.starts(layout, dim), layout.local_shape[dim]
        rows = call.xp.asarray(starts[..., None] + np.arange(room))
        if len(index):
            rows = call.xp.take(call.xp.asarray(np.asarray(index)), call.xp.minimum(rows, len(index) - 1))
        data = take_rows(call, data, rows, dim)
    return data


def take_rows(call: Call, data: Data, rows: Data, dim: int) -> Data:
    """Rows of a dim by their local numbers, which may depend on the lanes."""
    xp, axis = call.xp, call.n + dim
    if not data.shape[axis]:
        return xp.zeros((*data.shape[:axis], rows.shape[-1], *data.shape[axis + 1 :]), dtype=data.dtype)
    if all(n == 1 for n in rows.shape[:-1]):
        return xp.take(data, rows.reshape(-1), axis=axis)
    lanes = np.broadcast_shapes(tuple(data.shape[: call.n]), tuple(rows.shape[:-1]))
    index = rows.reshape((*rows.shape[:-1], *(1,) * dim, -1, *(1,) * (data.ndim - axis - 1)))
    wide = xp.broadcast_to(index, (*lanes, *data.shape[call.n : axis], rows.shape[-1], *data.shape[axis + 1 :]))
    return xp.take_along_axis(call.wide(data, lanes), wide, axis=axis)


def take(call: Call, data: Data, indices: Data) -> Data:
    """Rows by number; where the dim is split, each device gives the rows it has and zeros for the others."""
    xp, axis, n = call.xp, call.attrs["axis"], call.n
    layout = call.operands[0]
    rank, held = len(layout.shape), layout.dims[axis]
    lanes = call.lanes(data, indices)
    extra = indices.ndim - n
    starts = xp.asarray(call.spread(call.starts(layout, axis), extra))
    sizes = xp.asarray(call.spread(call.sizes(layout, axis), extra))
    indices = xp.astype(indices, np.int64)
    numbers = xp.where(indices < 0, indices + held.size, indices)
    local = numbers - starts
    mine = (local >= 0) & (local < sizes)
    count = math.prod(indices.shape[n:])
    before, behind = tuple(data.shape[n : n + axis]), tuple(data.shape[n + axis + 1 :])
    if not data.shape[n + axis]:
        return xp.zeros((*lanes, *before, *indices.shape[n:], *behind), dtype=data.dtype)
    flat = xp.reshape(xp.where(mine, local, 0), (*mine.shape[:n], count))
    if all(k == 1 for k in flat.shape[:-1]):
        rows = xp.take(data, xp.reshape(flat, (-1,)), axis=n + axis)
    else:
        index = xp.reshape(flat, (*flat.shape[:-1], *(1,) * axis, count, *(1,) * (rank - axis - 1)))
        index = xp.broadcast_to(index, (*lanes, *before, count, *behind))
        rows = xp.take_along_axis(call.wide(data, lanes), index, axis=n + axis)
    if held.parts > 1:
        have = xp.reshape(mine, (*mine.shape[:n], *(1,) * axis, count, *(1,) * (rank - axis - 1)))
        zero = -0.0 if call.dtypes[0].kind in "fc" else 0  # -0.0 + x is x
        rows = xp.where(have, rows, xp.astype(xp.asarray(zero), data.dtype))
    return xp.reshape(rows, (*rows.shape[: n + axis], *indices.shape[n:], *rows.shape[n + axis + 1 :]))


def pick(call: Call, data: Data, indices: Data) -> Data:
    """One element along a dim for each place of the others; zero where another device has it."""
    xp, axis, n, layout = call.xp, call.attrs["axis"], call.n, call.operands[0]
    lanes, rank = call.lanes(data, indices), len(layout.shape) - 1
    starts, sizes = (xp.asarray(call.spread(some(layout, axis), rank)) for some in (call.starts, call.sizes))
    local = xp.astype(indices, np.int64) - starts
    mine = (local >= 0) & (local < sizes)
    zero = xp.astype(xp.asarray(-0.0 if call.dtypes[0].kind in "fc" else 0), data.dtype)  # -0.0 + x is x
    if not data.shape[n + axis]:
        return xp.broadcast_to(zero, (*lanes, *indices.shape[n:]))
    index = xp.where(mine, local, 0)
    index = xp.reshape(index, (*index.shape[: n + axis], 1, *index.shape[n + axis :]))
    lanes = np.broadcast_shapes(lanes, tuple(index.shape[:n]))
    found = xp.take_along_axis(call.wide(data, lanes), call.wide(index, lanes), axis=n + axis)
    found = xp.reshape(found, (*found.shape[: n + axis], *found.shape[n + axis + 1 :]))
    return found if layout.dims[axis].parts == 1 else xp.where(mine, found, zero)


def take_along_axis(call: Call, data: Data, indices: Data) -> Data:
    lanes = call.lanes(data, indices)
    wide = [call.wide(x, lanes) for x in (data, indices)]
    return call.xp.take_along_axis(wide[0], wide[1], axis=call.n + call.attrs["axis"])


# -- numbers from nothing but their place -------------------------------------------------------------------------------


def places(call: Call) -> Data:
    """The row-major number of every element of the result in the whole tensor."""
    return call.xp.astype(_numbers(call), np.uint64)


def _numbers(call: Call) -> Data:
    xp, layout = call.xp, call.result
    total = xp.zeros((1,) * (call.n + len(layout.shape)), dtype=np.int64)
    for dim, size in enumerate(layout.shape):
        total = total * size + call.positions(layout, dim)
    return xp.broadcast_to(total, (*layout.lane_shape, *layout.local_shape))


def random_bits(call: Call) -> Data:
    """64 random bits an element, from a key and the element's place alone: Philox 4×32 with 10 rounds.

    All words are 32 bits in an int64: a product of two wraps, but its 64 bits are the right ones.
    """
    low32, key = 0xFFFFFFFF, int(call.attrs["key"])
    numbers = _numbers(call)
    counter = call.xp.reshape(numbers, (*numbers.shape, 1))  # a scalar would warn where it wraps
    zero = counter * 0
    c = [counter & low32, (counter >> 32) & low32, zero, zero]
    k0, k1 = key & low32, key >> 32
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [((p1 >> 32) & low32) ^ c[1] ^ k0, p1 & low32, ((p0 >> 32) & low32) ^ c[3] ^ k1, p0 & low32]
        k0, k1 = (k0 + 0x9E3779B9) & low32, (k1 + 0xBB67AE85) & low32
    return call.xp.reshape(call.xp.astype(c[0] | (c[1] << 32), np.uint64), numbers.shape)
