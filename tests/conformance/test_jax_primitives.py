"""Every primitive that `sw.jax.load` knows, against JAX, with sharded operands: 2 × 2 devices, and 3 that divide nothing."""

import itertools
from functools import cache

import jax
import numpy as np
import pytest

import shardwright as sw
from jax_cases import CASES

MESHES = {"2x2": sw.Mesh(a=2, b=2), "3": sw.Mesh(c=3, engine="literal")}


QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
TOGETHER = 60  # cases that JAX compiles at once, which is much faster than one by one


@cache
def group(number):
    """What JAX makes of the cases of a group."""
    names = list(CASES)[number * TOGETHER : (number + 1) * TOGETHER]
    functions = [CASES[name][2] or CASES[name][0] for name in names]
    arguments = [CASES[name][1] for name in names]

    def together(arguments):
        return [function(*args) for function, args in zip(functions, arguments, strict=True)]

    compiled = jax.jit(together).lower(arguments).compile(compiler_options=QUICKLY)
    return dict(zip(names, compiled(arguments), strict=True))


def wanted(name):
    made = group(list(CASES).index(name) // TOGETHER)[name]
    return [np.asarray(x) for x in jax.tree.leaves(made)]


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
    function, args, _ = CASES[name]
    on = MESHES[mesh]
    imported = sw.jax.load(function, *args)
    placed = [sw.shard(x, on, spec(x, on, turn)) for turn, x in enumerate(args)]
    made = imported.sjit(on)(*placed)
    assert_close(jax.tree.leaves(made), wanted(name), name)


def test_a_wrong_number_is_noticed():
    with pytest.raises(AssertionError):
        assert_close([np.float32(1)], [np.float32(1.01)], "one")
