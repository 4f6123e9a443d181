"""Lines that treat rows alone, some rows at a time: what they give is what running them one by one gives."""

from functools import partial

import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as xp
from shardwright import P, nn
from shardwright.eager import taped
from shardwright.engines import compiled
from shardwright.engines.chains import chained
from shardwright.engines.folding import folded


def rotary(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + xp.concat([-x[..., half:], x[..., :half]], axis=-1) * sin


def norm(x, weight):
    return weight * (x / xp.sqrt(xp.mean(xp.square(x), axis=-1, keepdims=True) + 1e-6))


def residual(x, y, weight):
    total = x + y
    return total, norm(total, weight)


def gated(x, y, a, b):
    return nn.silu(x @ a) * (y @ b)


def squares(x, y):
    """NumPy's matmul is a ufunc, and all shapes are alike."""
    return xp.exp((x @ y) * 0.01) + y


def halves(x):
    """Views that are read elsewhere, beside work on them."""
    left, right = x[..., :32], x[..., 32:]
    return left, -(left * right) + right


def shifted(x):
    y = x * 2
    return (y[..., 1:] + y[..., :-1]) * y[..., :-1] - y[..., 1:]


def unlike(x, w):
    """Chains on shapes that have nothing to do with one another."""
    return xp.exp(x * 0.5) + 1, xp.square(w) * w


CASES = {
    "rotary": (rotary, (3, 16, 129, 64), (1, 1, 129, 64), (1, 1, 129, 64)),
    "rotary of one sequence": (rotary, (1, 16, 300, 64), (300, 64), (300, 64)),
    "norm": (norm, (5, 67, 512), (512,)),
    "norm of one row": (norm, (1, 1, 1 << 17), (1 << 17,)),
    "norm of rows": (norm, (1031, 128), (128,)),
    "residual": (residual, (4, 128, 256), (4, 128, 256), (256,)),
    "gated": (gated, (300, 16), (300, 16), (16, 512), (16, 512)),
    "squares": (squares, (256, 256), (256, 256)),
    "batches of squares": (squares, (3, 160, 160), (3, 160, 160)),
    "halves": (halves, (2048, 64)),
    "shifted": (shifted, (700, 257)),
    "unlike": (unlike, (512, 300), (512, 700)),
    "small": (norm, (2, 3), (3,)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_chains_give_what_lines_give(monkeypatch, name, dtype):
    function, *shapes = CASES[name]
    rng = np.random.default_rng(0)
    mesh = sw.Mesh(x=2, y=3)
    data = [sw.shard(rng.normal(size=shape).astype(dtype), mesh, P()) for shape in shapes]
    made = sw.sjit(function, mesh=mesh)(*data)
    monkeypatch.setattr(compiled, "chained", lambda lines, outputs: [line[:3] for line in lines])
    alone = sw.sjit(function, mesh=mesh)(*data)
    made, alone = ((x,) if not isinstance(x, tuple) else x for x in (made, alone))
    for x, y in zip(made, alone, strict=True):  # and the lines alone are compared with NumPy elsewhere
        assert x.dtype == y.dtype == dtype
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-5 if dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("engine", ["literal", "torch", "jax"])
@pytest.mark.parametrize("name", CASES)
def test_other_engines_run_large_programs_too(name, engine):
    function, *shapes = CASES[name]
    rng = np.random.default_rng(0)
    hosts = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    made, expected = (
        sw.sjit(function, mesh=mesh)(*(sw.shard(host, mesh, P("x")) for host in hosts))
        for mesh in (sw.Mesh(x=2, engine=engine), sw.Mesh(x=2))
    )
    made, expected = ((x,) if not isinstance(x, tuple) else x for x in (made, expected))
    for x, y in zip(made, expected, strict=True):
        assert type(x.data) is type(sw.shard(hosts[0], x.mesh, P("x")).data)
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(np.asarray(x + 1), np.asarray(y) + 1, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "function", [norm, lambda x, w: nn.softmax(x * w), lambda x, w: xp.max(x - w, axis=1, keepdims=True) - x]
)
def test_functions_that_are_played_back_run_in_blocks_too(function):
    """Eager functions of large arrays: the second call is played back."""
    rng = np.random.default_rng(0)
    mesh = sw.Mesh(x=2, y=3)
    x, w = (sw.shard(rng.normal(size=shape).astype(np.float32), mesh, P()) for shape in ((1031, 128), (128,)))
    played = taped(function)
    first, again = played(x, w), played(x, w)
    np.testing.assert_allclose(np.asarray(again), np.asarray(first), rtol=1e-5)


@pytest.mark.parametrize("shape", [(256, 256), (3, 160, 160)])
def test_products_of_squares_are_not_cut(shape):
    x = np.random.default_rng(0).random(shape).astype(np.float32)
    mesh = sw.Mesh(x=2)
    arrays = [sw.shard(x, mesh, P()) for _ in range(2)]
    np.testing.assert_allclose(np.asarray(sw.sjit(squares, mesh=mesh)(*arrays)), np.exp((x @ x) * 0.01) + x, rtol=1e-5)


@pytest.mark.parametrize("shape", [(0, 64), (1 << 18, 1), (1, 1 << 18)])
def test_shapes_at_the_edge(shape):
    x = np.linspace(-120, 90, max(shape[0] * shape[1], 1), dtype=np.float32)[: shape[0] * shape[1]].reshape(shape)
    mesh = sw.Mesh(x=2)
    made = sw.sjit(lambda x: nn.silu(x) * x, mesh=mesh)(sw.shard(x, mesh, P("x")))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(np.asarray(made), wide * wide / (1 + np.exp(-wide)), rtol=2e-6, atol=1e-30)


def test_sums_of_integers_and_sigmoids_of_integers_in_chains():
    x = np.arange(1 << 18, dtype=np.int32).reshape(512, 512) % 91
    mesh = sw.Mesh(x=2)

    def work(x):
        return xp.sum(x * x, axis=1, keepdims=True) - x, nn.sigmoid(x * 2) + x

    whole, points = sw.sjit(work, mesh=mesh)(sw.shard(x, mesh, P("x")))
    np.testing.assert_array_equal(np.asarray(whole), np.sum(x * x, axis=1, keepdims=True) - x)
    np.testing.assert_allclose(np.asarray(points), 1 / (1 + np.exp(-2.0 * x)) + x, rtol=1e-12)


def test_what_becomes_one_line(monkeypatch):
    counts = []

    def counted(lines, outputs):
        entries = chained(lines, outputs)
        counts.append((len(lines), len(entries)))
        return entries

    monkeypatch.setattr(compiled, "chained", counted)
    mesh = sw.Mesh(x=2)
    for name, most in (("norm", 1), ("residual", 1), ("rotary", 1), ("gated", 3), ("unlike", 2), ("halves", 3)):
        function, *shapes = CASES[name]
        counts.clear()
        sw.sjit(function, mesh=mesh)(*(sw.shard(np.ones(shape, np.float32), mesh, P()) for shape in shapes))
        lines, entries = max(counts)
        assert entries <= most < lines, (name, counts)


def specials(dtype):
    """Rows with equal extremes, NaNs, infinities before and after NaNs, and zeros of both signs."""
    x = np.random.default_rng(0).integers(-3, 4, (60, 9)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        x[0, 4] = x[1, :] = x[2, 7] = np.nan
        x[2, 1] = x[3, 5] = x[4, 2:4] = np.inf
        x[5, 3] = -np.inf
        x[6] = [0.0, -0.0] * 4 + [0.0]
        x[7] = [-0.0, 0.0] * 4 + [0.0]
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8, bool])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_of_extremes_are_one_function_of_numpy(name, dtype):
    x = specials(dtype)
    mesh = sw.Mesh(x=2, y=3)
    array = sw.shard(x, mesh, P("x", "y"))
    for axis in (0, 1):
        for keepdims in (False, True):
            ours, numpys = (partial(getattr(some, name), axis=axis, keepdims=keepdims) for some in (xp, np))
            step = sw.sjit(ours)
            for made in (ours(array), ours(array), step(array)):  # the first, one played back, and in a program
                np.testing.assert_array_equal(np.asarray(made), numpys(x))
                assert made.dtype == np.int64


def test_a_fold_leaves_what_is_read_elsewhere():
    x = np.random.default_rng(0).normal(size=(64, 2048))
    mesh = sw.Mesh(x=2)

    def work(x):
        best = xp.max(x, axis=1, keepdims=True)
        return xp.argmax(x, axis=1), best, x == best

    place, best, equal = sw.sjit(work)(sw.shard(x, mesh, P("x")))
    np.testing.assert_array_equal(np.asarray(place), x.argmax(axis=1))
    np.testing.assert_array_equal(np.asarray(best), x.max(axis=1, keepdims=True))
    np.testing.assert_array_equal(np.asarray(equal), x == x.max(axis=1, keepdims=True))


def test_folded_lines_are_gone(monkeypatch):
    counts = []

    def counted(lines, outputs):
        counts.append([line.name for line in folded(lines, outputs)])
        return folded(lines, outputs)

    monkeypatch.setattr(compiled, "folded", counted)
    mesh = sw.Mesh(x=2)
    sw.sjit(lambda x: xp.argmax(x, axis=1))(sw.shard(np.ones((4, 6)), mesh, P("x")))
    assert [len(names) for names in counts] == [1]
