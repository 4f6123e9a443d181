"""The strategies that plans choose from, against a list that follows from what operations mean, not from the table of rules."""

import itertools
import math

import pytest

import shardwright as sw
import shardwright.numpy as snp
from shardwright import ShapeDtype, nn

MESHES = [sw.Mesh(x=2), sw.Mesh(x=3, y=2), sw.Mesh(x=2, one=1, y=4), sw.Mesh(x=2, y=2, z=3)]
SIZES = {"a": 4, "b": 5, "c": 6, "d": 2, "e": 8}

# A function, its operands and results by the letters of their dims, the letters that are summed (or of which the largest is
# taken), those that no axis may split, and which operands may be summands: all together ("+"), or one by its number.
CASES = {
    "add": (lambda x, y: x + y, "ab,ab->ab", "", "", ["+"]),
    "broadcast": (lambda x, y: snp.maximum(x, y), "ab,b->ab", "", "", []),
    "exp": (snp.exp, "abc->abc", "", "", []),
    "negative": (lambda x: -x, "abc->abc", "", "", ["+"]),
    "matmul": (lambda x, y: x @ y, "ab,bc->ac", "b", "", []),
    "batched": (lambda x, y: x @ y, "abc,acd->abd", "c", "", []),
    "outer": (lambda x, y: snp.einsum("a,b->ab", x, y), "a,b->ab", "", "", []),
    "sum": (lambda x: snp.sum(x, axis=1), "abc->ac", "b", "", ["+"]),
    "max": (lambda x: snp.max(x, axis=0), "ab->b", "a", "", []),
    "transpose": (lambda x: snp.permute_dims(x, (2, 0, 1)), "abc->cab", "", "", ["+"]),
    "inverse": (snp.linalg.inv, "aee->aee", "", "e", []),
    "cumulative": (lambda x: snp.cumulative_sum(x, axis=1), "ab->ab", "", "", []),
    "sort": (lambda x: snp.sort(x, axis=1), "ab->ab", "", "b", []),
    "embedding": (lambda x, i: nn.embedding(x, i), "bc,a->ac", "b", "", ["0"]),
}


def listed(case, mesh):
    """What a plan chooses from for the one operation of a function."""
    fn, dims, *_ = case
    operands = dims.partition("->")[0].split(",")
    kinds = ["int64" if fn is CASES["embedding"][0] and at else "float32" for at in range(len(operands))]
    args = [ShapeDtype([SIZES[d] for d in some], kind) for some, kind in zip(operands, kinds, strict=True)]
    model = sw.auto(fn, mesh, *args).found.model
    nodes = [v.options for v in model.variables if v.kind == "node" and hasattr(v.options[0], "strategy")]
    *_, options = (some for some in nodes if len(some[0].operands) == len(operands))  # indices are checked first
    return [tuple(_written(s) for s in (*option.operands, *option.results)) for option in options]


def _written(s):
    return tuple(map(tuple, s.dims)), frozenset(s.partial)


def expected(case, mesh):
    """Each axis splits the dims of one letter, or nothing, or is left to be summed."""
    _, dims, summed, whole, holders = case
    operands, _, result = dims.partition("->")
    arrays = [*operands.split(","), result]
    letters = sorted({d for some in arrays for d in some} - set(whole))
    axes = [axis for axis, n in mesh.sizes.items() if n > 1]
    found = set()
    for choice in itertools.product([*letters, None, *holders], repeat=len(axes)):
        of = {d: tuple(axis for axis, to in zip(axes, choice, strict=True) if to == d) for d in letters}
        if any(math.prod(mesh.sizes[axis] for axis in some) > SIZES[d] for d, some in of.items()):
            continue
        sums = [
            {axis for axis, to in zip(axes, choice, strict=True) if to in ("+", str(at))} for at in range(len(arrays))
        ]
        sums[-1] = {axis for some in sums for axis in some}.union(*(of.get(d, ()) for d in summed))
        partial = map(frozenset, sums)
        found.add(tuple((tuple(of.get(d, ()) for d in some), p) for some, p in zip(arrays, partial, strict=True)))
    return found


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_plans_choose_from_every_strategy_that_an_operation_has(name, mesh):
    options = listed(CASES[name], mesh)
    assert len(set(options)) == len(options)
    assert set(options) == expected(CASES[name], mesh)
