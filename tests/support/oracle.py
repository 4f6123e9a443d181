"""What every device must hold, worked out naively: a dict from device coordinates to NumPy arrays.

Nothing here uses the library: shards are cut row by row, groups are listed device by device, and sums are loops. The
library is checked against this, never against itself.
"""

from itertools import product

import numpy as np

BITS = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}
PAIRS = {"sum": np.add, "product": np.multiply, "max": np.maximum, "min": np.minimum, **BITS}


def piece(axis, sizes):
    """An axis as (name, pre, size), read from 'x' or 'x:(pre)size'."""
    if ":" not in axis:
        return axis, 1, sizes[axis]
    name, rest = axis.split(":")
    pre, size = rest[1:].split(")")
    return name, int(pre), int(size)


def coordinate(device, axis, sizes):
    """Where a device stands along an axis or a piece of one."""
    name, pre, size = piece(axis, sizes)
    at = device[list(sizes).index(name)]
    return at // (sizes[name] // (pre * size)) % size


def rank(device, axes, sizes):
    """The place of a device in its group: mixed radix, first axis most significant."""
    place = 0
    for axis in axes:
        place = place * piece(axis, sizes)[2] + coordinate(device, axis, sizes)
    return place


def devices(sizes):
    return list(product(*(range(n) for n in sizes.values())))


def group_of(device, axes, sizes):
    """The members of a device's group, in group order."""
    inner = {axis: piece(axis, sizes) for axis in axes}

    def outside(other):
        """What is left of a coordinate once the group's pieces are taken out of it."""
        left = []
        for name, full in sizes.items():
            at = other[list(sizes).index(name)]
            used = [p for p in inner.values() if p[0] == name]
            for _, pre, size in used:
                unit = full // (pre * size)
                at -= coordinate(other, f"{name}:({pre}){size}", sizes) * unit
            left.append(at)
        return left

    members = [other for other in devices(sizes) if outside(other) == outside(device)]
    return sorted(members, key=lambda other: rank(other, axes, sizes))


def offsets_of(size, parts):
    block = 0
    while block * parts < size:
        block += 1
    return [min(i * block, size) for i in range(parts)] + [size]


def shards(host, sizes, dims, offsets=None, halo=None):
    """What each device holds of a host array: the rows of its block, and its halos (zeros beyond the border)."""
    result = {}
    for device in devices(sizes):
        part = host
        for dim, axes in enumerate(dims):
            parts = 1
            for axis in axes:
                parts *= piece(axis, sizes)[2]
            cuts = (offsets or {}).get(dim) or offsets_of(host.shape[dim], parts)
            low, high = (halo or {}).get(dim, (0, 0))
            at = rank(device, axes, sizes)
            rows = []
            for row in range(cuts[at] - low, cuts[at + 1] + high):
                if 0 <= row < host.shape[dim]:
                    rows.append(part[(slice(None),) * dim + (slice(row, row + 1),)])
                else:
                    shape = list(part.shape)
                    shape[dim] = 1
                    rows.append(np.zeros(shape, host.dtype))
            empty = part[(slice(None),) * dim + (slice(0, 0),)]
            part = np.concatenate([empty, *rows], axis=dim)
        result[device] = part
    return result


def reduced(tensors, op, dtype=None):
    tensors = [t if dtype is None else t.astype(dtype) for t in tensors]
    if op == "average":
        wide = [t.astype(np.float32) if "float8" in t.dtype.name or t.dtype.name == "bfloat16" else t for t in tensors]
        return np.mean(np.stack(wide), axis=0).astype(tensors[0].dtype)
    total = tensors[0]
    for tensor in tensors[1:]:
        total = PAIRS[op](total, tensor)
    return total


def cut(tensor, dim, count, at):
    n = tensor.shape[dim] // count
    return tensor[(slice(None),) * dim + (slice(at * n, (at + 1) * n),)]


def all_gather(v, sizes, axes, dim):
    return {d: np.concatenate([v[m] for m in group_of(d, axes, sizes)], axis=dim) for d in v}


def all_reduce(v, sizes, axes, op="sum", dtype=None):
    return {d: reduced([v[m] for m in group_of(d, axes, sizes)], op, dtype) for d in v}


def all_slice(v, sizes, axes, dim):
    return {d: cut(v[d], dim, len(group_of(d, axes, sizes)), rank(d, axes, sizes)) for d in v}


def all_to_all(v, sizes, axes, split_dim, concat_dim):
    result = {}
    for d in v:
        group = group_of(d, axes, sizes)
        pieces = [cut(v[m], split_dim, len(group), rank(d, axes, sizes)) for m in group]
        result[d] = np.concatenate(pieces, axis=concat_dim)
    return result


def member(d, axes, sizes, coords):
    """The member of d's group at some in-group coordinates."""
    return next(m for m in group_of(d, axes, sizes) if [coordinate(m, a, sizes) for a in axes] == list(coords))


def broadcast(v, sizes, axes, root):
    return {d: v[member(d, axes, sizes, root)] for d in v}


def on_root(v, sizes, axes, root):
    return {d: x if member(d, axes, sizes, root) == d else np.zeros_like(x) for d, x in v.items()}


def gather(v, sizes, axes, dim, root):
    return on_root(all_gather(v, sizes, axes, dim), sizes, axes, root)


def reduce(v, sizes, axes, root, op="sum", dtype=None):
    return on_root(all_reduce(v, sizes, axes, op, dtype), sizes, axes, root)


def reduce_scatter(v, sizes, axes, dim, op="sum", dtype=None):
    return all_slice(all_reduce(v, sizes, axes, op, dtype), sizes, axes, dim)


def scatter(v, sizes, axes, dim, root):
    return all_slice(broadcast(v, sizes, axes, root), sizes, axes, dim)


def permute(v, sizes, axes, pairs):
    result = {d: np.zeros_like(x) for d, x in v.items()}
    for d in v:
        for source, target in pairs:
            if member(d, axes, sizes, target) == d:
                result[d] = v[member(d, axes, sizes, source)]
    return result


def shift(v, sizes, axes, shift_axis, offset, rotate):
    result = {}
    n = piece(shift_axis, sizes)[2]
    for d in v:
        source = coordinate(d, shift_axis, sizes) - offset
        coords = [coordinate(d, a, sizes) for a in axes]
        if rotate or 0 <= source < n:
            coords[list(axes).index(shift_axis)] = source % n
            result[d] = v[member(d, axes, sizes, coords)]
        else:
            result[d] = np.zeros_like(v[d])
    return result


def send_recv(v, sizes, axes, source, destination):
    return on_root(broadcast(v, sizes, axes, source), sizes, axes, destination)


def update_halo(v, sizes, split_axes, halo_sizes):
    """Cell by cell: a halo cell that lies in the tensor is read from the device that owns it."""
    split = [dim for dim, axes in enumerate(split_axes) if axes]
    halo = dict(zip(split, halo_sizes, strict=True))
    result = {}
    for d, x in v.items():
        x = x.copy()
        for cell in np.ndindex(*x.shape):
            owner, where, inside = d, list(cell), True
            for dim in split:
                low, high = halo[dim]
                group = group_of(owner, split_axes[dim], sizes)
                at = group.index(owner)
                core = x.shape[dim] - low - high
                if where[dim] < low:
                    inside &= at > 0
                    if inside:
                        owner = group[at - 1]
                        where[dim] = v[owner].shape[dim] - high - low + where[dim]
                elif where[dim] >= low + core:
                    inside &= at + 1 < len(group)
                    if inside:
                        owner = group[at + 1]
                        where[dim] = where[dim] - core
                if not inside:
                    break
            if inside:
                x[cell] = v[owner][tuple(where)]
        result[d] = x
    return result
