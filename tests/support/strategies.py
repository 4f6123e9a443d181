"""Hypothesis strategies that all property tests share: meshes, axes, shardings, shapes, dtypes, arrays."""

import math
from itertools import pairwise

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

import shardwright as sw

NUMBERS = [np.dtype(c) for c in "bhilqBHILQefdgFDG"]
SMALL_FLOATS = [np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)]
DTYPES = [np.dtype(bool), *NUMBERS, *SMALL_FLOATS]

ENGINE = ["numpy"]  # that meshes are drawn for; tests/property/conftest.py runs every property on each
MOST = {"jax": 8}  # devices that an engine has: tests/conftest.py asks JAX for 8
DEVICES = [None]  # how many devices every mesh has, where processes hold them


def is_held(dtype):
    """Whether the engine has a dtype: torch and JAX have no long doubles."""
    return ENGINE[0] not in ("torch", "jax") or dtype.char not in "gG"


dtypes = st.sampled_from(DTYPES).filter(is_held)
numbers = st.sampled_from(DTYPES[1:]).filter(is_held)


@st.composite
def meshes(draw, max_axes=5, max_devices=24):
    """A mesh of 1 to 5 axes of sizes 1 to 6, sometimes with device ids of its own."""
    names = draw(st.permutations(["a", "b", "c", "d", "e"]))[: draw(st.integers(1, max_axes))]
    sizes, room = {}, DEVICES[0] or min(max_devices, MOST.get(ENGINE[0], max_devices))
    for name in names:
        sizes[name] = draw(st.integers(1, min(6, room)) if DEVICES[0] is None else st.sampled_from(divisors(room)))
        room //= sizes[name]
    if DEVICES[0] is not None:
        sizes[names[-1]] *= room
    if draw(st.integers(0, 4)) == 0:
        ids = draw(st.permutations(range(math.prod(sizes.values()))))
        return sw.Mesh(sizes, devices=ids, engine=ENGINE[0])
    return sw.Mesh(sizes, engine=ENGINE[0])


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def pieces(draw, mesh):
    """The axes of a mesh, some cut in two."""
    result = []
    for name, size in mesh.sizes.items():
        divisors = [n for n in range(2, size) if size % n == 0]
        if divisors and draw(st.booleans()):
            outer = draw(st.sampled_from(divisors))
            result += [f"{name}:(1){outer}", f"{name}:({outer}){size // outer}"]
        else:
            result.append(name)
    return result


@st.composite
def axis_lists(draw, mesh, min_size=0):
    """Some axes of a mesh (whole or pieces), in any order."""
    axes = draw(st.permutations(pieces(draw, mesh)))
    return tuple(axes[: draw(st.integers(min(min_size, len(axes)), len(axes)))])


@st.composite
def specs(draw, mesh, ndim, spare=False):
    """Axes dealt out to dims; what is dealt to nobody is given back too if `spare`."""
    dims = [[] for _ in range(ndim)]
    left = []
    for axis in draw(st.permutations(pieces(draw, mesh))):
        place = draw(st.integers(-1, ndim - 1))
        (dims[place] if place >= 0 else left).append(axis)
    return (sw.P(*dims), tuple(left)) if spare else sw.P(*dims)


def shapes(min_dims=0, max_dims=4, max_size=7):
    return st.lists(st.integers(0, max_size), min_size=min_dims, max_size=max_dims).map(tuple)


def host_arrays(shape, dtype=np.int64, seed=0):
    """Numbers that tell elements apart, small enough that products and sums stay exact."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    values = rng.integers(0 if dtype.kind == "u" else -4, 5, shape)
    if dtype.kind == "c":
        values = values + 1j * rng.integers(-4, 5, shape)
    return np.asarray(values).astype(dtype)


@st.composite
def cuts(draw, size, parts):
    """Offsets of the user's choosing."""
    inner = sorted(draw(st.lists(st.integers(0, size), min_size=parts - 1, max_size=parts - 1)))
    return [0, *inner, size]


@st.composite
def shardings(draw, mesh, shape, partial=True, offsets=True, halo=True):
    """A sharding that fits a shape: uneven blocks, explicit offsets, halos and partial axes included."""
    spec, left = draw(specs(mesh, len(shape), spare=True))
    some_offsets, some_halo = {}, {}
    for dim, axes in enumerate(spec):
        if not axes:
            continue
        parts = mesh.axis_size(axes)
        if offsets and draw(st.integers(0, 3)) == 0:
            some_offsets[dim] = draw(cuts(shape[dim], parts))
        if halo and draw(st.integers(0, 3)) == 0:
            bounds = some_offsets.get(dim) or [min(i * -(-shape[dim] // parts), shape[dim]) for i in range(parts + 1)]
            smallest = min(b - a for a, b in pairwise(bounds))
            widest = 3 if parts == 1 else smallest
            some_halo[dim] = (draw(st.integers(0, widest)), draw(st.integers(0, widest)))
    axes = left[: draw(st.integers(0, len(left)))] if partial else ()
    return sw.Sharding(mesh, spec, partial=axes, offsets=some_offsets, halo=some_halo)
