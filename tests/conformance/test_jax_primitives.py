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


UNREAD = {  # by StableHLO's words a region that is not one of the reductions, or windows of two operands
    "cumlogsumexp",
    "cumlogsumexp reverse",
    "tangent of max pool",
}


def names_of(number):
    return list(CASES)[number * TOGETHER : (number + 1) * TOGETHER]


def together(names, reference=True):
    """Several cases as one function of their arguments."""
    functions = [(CASES[name][2] if reference else None) or CASES[name][0] for name in names]
    return lambda arguments: [function(*args) for function, args in zip(functions, arguments, strict=True)]


@cache
def group(number):
    """What JAX makes of the cases of a group."""
    names = names_of(number)
    arguments = [CASES[name][1] for name in names]
    compiled = jax.jit(together(names)).lower(arguments).compile(compiler_options=QUICKLY)
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


@pytest.mark.parametrize(("name", "mesh"), list(zip(CASES, itertools.cycle(MESHES), strict=False)))  # texts run on both
def test_primitives(name, mesh):
    function, args, _ = CASES[name]
    on = MESHES[mesh]
    imported = sw.jax.load(function, *args)
    placed = [sw.shard(x, on, spec(x, on, turn)) for turn, x in enumerate(args)]
    made = imported.sjit(on)(*placed)
    assert_close(jax.tree.leaves(made), wanted(name), name)


@pytest.mark.parametrize("form", ["pretty", "generic"])
@pytest.mark.parametrize("number", range(-(-len(CASES) // TOGETHER)))
def test_stablehlo(number, form):
    """The same cases as StableHLO text: the pretty form on 2 × 2 devices, the generic one on 3."""
    names = [name for name in names_of(number) if name not in UNREAD]
    arguments = [CASES[name][1] for name in names]
    lowered = jax.jit(together(names, reference=False)).lower(arguments)
    text = lowered.as_text()
    if form == "generic":
        text = lowered.compiler_ir().operation.get_asm(print_generic_op_form=True)
    on = MESHES["2x2" if form == "pretty" else "3"]
    leaves = jax.tree.leaves(arguments)
    placed = [sw.shard(x, on, spec(x, on, turn)) for turn, x in enumerate(leaves)]
    made = iter(sw.mlir.loads(text)["main"].sjit(on)(*placed))
    for name in names:
        want = wanted(name)
        assert_close([next(made) for _ in want], want, name)


def test_a_wrong_number_is_noticed():
    with pytest.raises(AssertionError):
        assert_close([np.float32(1)], [np.float32(1.01)], "one")
