"""Every primitive that `sw.jax.load` knows, against JAX, with sharded operands: 2 × 2 devices, and 3 that divide nothing."""

import itertools
from functools import cache

import jax
import numpy as np
import pytest

import shardwright as sw
from jax_cases import CASES

MESHES = {"2x2": sw.Mesh(a=2, b=2), "3": sw.Mesh(c=3, engine="literal")}


@cache
def wanted(name):
    function, args = CASES[name]
    return [np.asarray(x) for x in jax.tree.leaves(jax.jit(function)(*args))]


def spec(x, mesh, turn):
    """Axes on the dims of an operand, each operand's in another order."""
    dims = [d for d in np.roll(range(x.ndim), turn) if x.shape[d] > 1]
    entries = dict(zip(dims, mesh.axis_names, strict=False))
    return sw.P(*(entries.get(d) for d in range(x.ndim)))


def assert_close(got, want, name):
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        a = np.asarray(a)
        assert a.dtype == b.dtype, name
        assert a.shape == b.shape, name
        if b.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b, err_msg=name)
            continue
        tolerance = {2: 2e-2, 4: 2e-5, 8: 2e-5}[b.dtype.itemsize]
        if b.dtype.itemsize == 2:
            a, b = a.astype(np.float32), b.astype(np.float32)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(("name", "mesh"), list(itertools.product(CASES, MESHES)))
def test_primitives(name, mesh):
    function, args = CASES[name]
    on = MESHES[mesh]
    imported = sw.jax.load(function, *args)
    placed = [sw.shard(x, on, spec(x, on, turn)) for turn, x in enumerate(args)]
    made = sw.sjit(imported, mesh=on)(*placed)
    assert_close(jax.tree.leaves(made), wanted(name), name)


def test_a_wrong_number_is_noticed():
    with pytest.raises(AssertionError):
        assert_close([np.float32(1)], [np.float32(1.01)], "one")
