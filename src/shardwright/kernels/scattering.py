"""Updates combined into places that index arrays name: each device takes its own updates to the rows that it holds."""

import math
from collections.abc import Sequence

import numpy as np

from shardwright.kernels.along import highest, lowest
from shardwright.kernels.call import Call, Data, DType
from shardwright.ops import is_small, work_dtype


def scatter_reduce(call: Call, x: Data, updates: Data, *indices: Data) -> Data:
    """x with updates combined into it. An update for a row of another device counts as one that changes nothing.

    Sums of small floats are in float32; booleans add as `or` and multiply as `and`.
    """
    xp, n, op, dtype = call.xp, call.n, call.attrs["op"], call.dtypes[0]
    work = np.dtype(np.uint8) if dtype.kind == "b" else work_dtype(dtype)
    if dtype.kind == "b":
        op = {"add": "max", "mul": "min"}.get(op, op)
    names, points, given = ([dim[0] if dim else None for dim in call.rule.inputs[at]] for at in (0, 2, 1))
    indexed = [names[dim] for dim in call.attrs["dims"]]
    batch = [name for name in names if name in points]
    window = [name for name in names if name not in points and name not in indexed]
    summed = [name for name in points if name not in names]
    lanes = call.lanes(x, updates, *indices)
    sizes = _sizes(call, (x, names), (indices[0], points))

    def arranged(data: Data, labels: Sequence[str | None], order: Sequence[str | None]) -> Data:
        """The data with its dims in some order behind the lanes; dims that it lacks are 1 long."""
        present = [labels.index(name) for name in order if name in labels]
        absent = [at for at, name in enumerate(labels) if name not in order]
        moved = xp.transpose(data, (*range(n), *(n + at for at in (*absent, *present))))
        shape = [sizes[name] if name in labels else 1 for name in order]
        return xp.reshape(moved, (*data.shape[:n], *shape))

    places, mine = _places(call, indices)
    count, width = (math.prod(sizes[name] for name in some) for some in (summed, window))
    room, groups = math.prod(sizes[name] for name in indexed), math.prod([*lanes, *(sizes[name] for name in batch)])
    target = arranged(call.converted(x, work), names, [*batch, *indexed, *window])
    if 0 in (room, groups, width, count):
        return xp.broadcast_to(x, (*lanes, *x.shape[n:]))
    target = xp.broadcast_to(target, (*lanes, *target.shape[n:]))
    shape = target.shape
    order = [*batch, *summed]
    wide = (*lanes, *(sizes[name] for name in order))
    base = np.arange(groups).reshape((*lanes, *(sizes[name] for name in batch), *(1,) * len(summed))) * room
    keys = xp.broadcast_to(arranged(places, points, order) + xp.asarray(base), wide)
    values = arranged(call.converted(updates, work), given, [*order, *window])
    if mine is not None:
        held = arranged(mine, points, order)
        held = xp.reshape(held, (*held.shape, *(1,) * len(window)))
        values = xp.where(held, values, xp.asarray(_unchanging(op, dtype), dtype=work))
    values = xp.broadcast_to(values, (*wide, *(sizes[name] for name in window)))
    made = xp.scatter_reduce(
        xp.reshape(target, (groups * room, width)),
        xp.reshape(keys, (-1,)),
        xp.reshape(values, (groups * count, width)),
        op,
    )
    arrangement = [*batch, *indexed, *window]
    back = (*range(n), *(n + arrangement.index(name) for name in names))
    return call.converted(xp.transpose(xp.reshape(made, shape), back), dtype)


def _unchanging(op: str, dtype: DType) -> object:
    """What changes nothing that it is combined with."""
    if op in ("max", "min"):
        return lowest(dtype) if op == "max" else highest(dtype)
    return 1 if op == "mul" else -0.0 if dtype.kind in "fc" or is_small(dtype) else 0


def _sizes(call: Call, *operands: tuple[Data, Sequence[str | None]]) -> dict[str | None, int]:
    """The local size of each factor."""
    return {
        name: size
        for data, names in operands
        for name, size in zip(names, data.shape[call.n :], strict=True)
        if name is not None
    }


def _places(call: Call, indices: Sequence[Data]) -> tuple[Data, Data | None]:
    """For each point of the index arrays its place among the indexed dims of the shard, and whether the shard has it; None
    where it has all. Points that it lacks, and padding, have place 0."""
    xp, layout = call.xp, call.operands[0]
    rank = indices[0].ndim - call.n
    real = call.mask(2, range(rank))
    mine = None if real is None else xp.asarray(real)
    place = None
    for dim, index in zip(call.attrs["dims"], indices, strict=True):
        index = call.converted(index, np.int64)
        local = xp.where(index < 0, index + layout.shape[dim], index)
        if layout.dims[dim].parts > 1:
            local = local - xp.asarray(call.spread(call.starts(layout, dim), rank))
        if layout.dims[dim].parts > 1 or mine is not None:
            here = (local >= 0) & (local < xp.asarray(call.spread(call.sizes(layout, dim), rank)))
            mine = here if mine is None else mine & here
        place = local if place is None else place * layout.local_shape[dim] + local
    return (place, None) if mine is None else (xp.where(mine, place, 0), mine)
