"""Operations of the table that text has as several others: attention, scatters, products of groups, searches, selections."""

import numpy as np
import pytest

import shardwright as sw
from helpers import assert_close, assert_same, held_by
from shardwright import mlir, nn
from shardwright import numpy as snp
from shardwright.errors import MLIRError

P = sw.P
RNG = np.random.default_rng(3)
MESH = sw.Mesh(x=2, y=2)


def draw(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def check(fn, hosts, specs, views=("global", "local"), ulps=64):
    """The text of a function in both views, read again, gives what the function does, and prints as the same text."""
    step = sw.sjit(fn, mesh=MESH, in_shardings=specs)
    program = step.lower(*hosts).program
    wanted = step(*hosts)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for view in views:
        for dialect in ("shard", "mesh"):
            text = mlir.dumps(program, dialect, view)
            read = mlir.loads(text, view=view)["main"]
            assert mlir.dumps(read.program, dialect, view) == text
            given = hosts
            if view == "local":
                placed = [sw.shard(h, n.type.sharding) for h, n in zip(hosts, program.inputs, strict=True)]
                given = [sw.PerDevice(read.mesh, held_by(array)) for array in placed]
            made = read(*given)
            for one, other in zip(made if isinstance(made, tuple) else (made,), wanted, strict=True):
                pairs = [(one, other)] if view == "global" else zip(one.values(), held_by(other), strict=True)
                for a, b in pairs:
                    if b.dtype.kind == "f":
                        assert_close(np.asarray(a), np.asarray(b), ulps)
                    else:
                        assert_same(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("spec", [P(), P("x"), P(None, "x"), P(None, None, "y"), P("x", "y")])
def test_attention(spec, mask, causal):
    q, k, v = draw(2, 4, 6, 8), draw(2, 2, 10, 8), draw(2, 2, 10, 4)
    rest = [] if mask is None else [RNG.random((6, 10)) > 0.4] if mask == "bool" else [draw(4, 6, 10)]
    if mask == "bool":
        rest[0][2] = False  # a query that attends to nothing gives zeros
    keys = P(*tuple(spec)[:2])
    check(
        lambda q, k, v, *m: nn.scaled_dot_product_attention(q, k, v, *m, causal=causal),
        [q, k, v, *rest],
        (spec, keys, keys, *[P()] * len(rest)),
    )


@pytest.mark.parametrize("op", ["add", "mul", "max", "min"])
def test_scatters(op):
    x, updates = draw(5, 4), draw(7, 4)
    index = np.array([0, 4, 4, -1, 2, 0, 0])
    updates[1, 1], updates[2, 0] = np.inf, np.nan  # they reach no other row
    for specs in ((P(), P(), P()), (P(None, "x"), P(), P(None, "x"))):
        check(lambda x, i, u: nn.scatter_reduce(x, i, u, op), [x, index, updates], specs)
    check(lambda x, i, u: nn.scatter_reduce(x, i, u, op), [x, index, updates], (P("x"), P(), P()), views=("global",))
    flags = RNG.random((5, 4)) > 0.5
    check(lambda x, i, u: nn.scatter_reduce(x, i, u, op), [flags, index, updates > 0], (P(), P(), P()))
    whole = (9 * x).astype(np.int32)
    check(
        lambda x, i, u: nn.scatter_reduce(x, i, u, op),
        [whole, index, (9 * draw(7, 4)).astype(np.int32)],
        (P(), P(), P()),
    )


def test_scatters_by_several_indices_and_along_a_dim():
    x, rows, columns = draw(4, 5, 3), np.array([0, 3, 3, 1]), np.array([4, 2, 2, 0])
    check(lambda x, i, j, u: nn.scatter_reduce(x, (i, j), u, axis=(0, 1)), [x, rows, columns, draw(4, 3)], (P(),) * 4)
    index = RNG.integers(0, 5, (4, 7, 3))
    check(lambda x, i, u: nn.scatter_along_axis(x, i, u, axis=1), [x, index, draw(4, 7, 3)], (P("x"),) * 3)


@pytest.mark.parametrize("specs", [(P(), P()), (P("x"), P(None, None, "y"))])
def test_products_of_groups(specs):
    x, w, sizes = draw(9, 4), draw(3, 4, 6), np.array([2, 0, 5])
    w[1] = np.nan  # a group without rows
    views = ("global", "local") if specs[0] == P() else ("global",)
    check(lambda x, w, n: nn.grouped_matmul(x, w, n), [x, w, sizes], (*specs, P()), views)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_first_of_an_order(axis, largest):
    x = np.round(draw(6, 8), 1)
    x[2, 3] = np.nan
    spec = P("x") if axis else P(None, "x")
    check(lambda v: tuple(snp.top_k(v, 3, axis=axis, largest=largest)), [x], (spec,))


@pytest.mark.parametrize("side", ["left", "right"])
def test_searches(side):
    rows = np.array([-1.0, 0.0, 0.0, 2.5, np.inf, np.nan, np.nan])
    values = np.array([[0.0, np.nan, -3.0], [2.5, 9.0, np.inf]])
    step = lambda x, v: snp.searchsorted(x, v, side=side)  # noqa: E731
    check(step, [rows, values], (P(), P("x")))
    assert_same(np.asarray(sw.sjit(step, mesh=MESH)(rows, values)), np.searchsorted(rows, values, side=side))
    check(lambda x, v: snp.searchsorted(x, v, side=side), [np.arange(0, 9, 3), np.array([0, 1, 3, 8])], (P(), P("x")))


@pytest.mark.parametrize("invert", [True, False])
def test_membership(invert):
    x, values = RNG.integers(0, 9, (4, 6)), np.array([[1, 3], [8, 3]])
    check(lambda a, b: snp.isin(a, b, invert=invert), [x, values], (P("x", "y"), P()))
    check(lambda a, b: snp.isin(a, b, invert=invert), [np.array([0.5, np.nan]), np.array([np.nan, 0.5])], (P(), P()))


def test_what_is_not_written_says_why():
    with pytest.raises(
        MLIRError, match=r"scatter_reduce can't be written for one device where its rows or its updates"
    ):
        check(lambda x, i, u: nn.scatter_reduce(x, i, u), [draw(4, 2), np.arange(4), draw(4, 2)], (P("x"), P(), P()))
    big = sw.sjit(snp.isin, mesh=MESH).lower(np.zeros(10_000), np.zeros(10_000)).program
    with pytest.raises(MLIRError, match=r"isin can't be written: it compares 100,000,000 pairs; at most 16,777,216"):
        mlir.dumps(big)
    svd = sw.sjit(lambda x: tuple(snp.linalg.svd(x)), mesh=MESH).lower(np.eye(3)).program
    with pytest.raises(MLIRError, match=r"can't be written"):
        mlir.dumps(svd)
