"""What dtypes do: scales beyond a dtype's range beside partial sums, the small floats of ml_dtypes, variances of nothing."""

import warnings
from itertools import product

import ml_dtypes
import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from helpers import assert_close, assert_same
from shardwright import P, Sharding, nn
from shardwright.errors import OperationError

X2 = sw.Mesh(x=2)
MESHES = [sw.Mesh(x=4, y=2), sw.Mesh(x=4, y=2, engine="literal")]
RNG = np.random.default_rng(0)
SMALL = [np.dtype(getattr(ml_dtypes, name)) for name in dir(ml_dtypes) if name.startswith(("bfloat", "float"))]
SIGNED = [dtype for dtype in SMALL if dtype.name != "float8_e8m0fnu"]  # which has no 0 and no negative numbers
COMMON = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # those that run on both engines
WIDE = [dtype for dtype in SIGNED if float(ml_dtypes.finfo(dtype).max) > 100]


def meshes(dtype):
    return MESHES if dtype.name in COMMON else MESHES[:1]


def summands(*values):
    """A partial sum that is not reduced yet, and its value."""
    x = sw.from_shards(X2, Sharding(X2, P(), partial="x"), [np.atleast_1d(value) for value in values])
    return x, np.asarray(sw.from_shards(X2, Sharding(X2, P(), partial="x"), [np.atleast_1d(v) for v in values]))


def like(scale, dtype):
    """A scalar as NumPy would have it beside the dtype, if it had weak scalars for all of them."""
    return scale if dtype.type.__module__ == "numpy" else np.asarray(scale, dtype)


# -- partial sums and scales ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "complex64", "bfloat16", "float8_e4m3fn", "float8_e3m4"]
)
@pytest.mark.parametrize("values", [(2, -1.5), (8, -7), (1, -1)], ids=str)
def test_a_scale_beyond_the_dtype_meets_the_sum_and_not_its_summands(dtype, values, jit):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x, whole = summands(*(np.asarray(value, dtype) for value in values))
    for scale in (1e300, -1e50, 1e39, 70000.0, 90.0, 3.0, 10**40, 7, 0, np.inf, np.nan, 1e-300, 1e-50, 1e-6, 0.25):
        for run in (lambda x, s: x * s, lambda x, s: s * x, lambda x, s: x / s):
            with np.errstate(all="ignore"):
                scaled = sw.sjit(lambda x, s=scale, run=run: run(x, s))(x) if jit else run(x, scale)
                expected = run(whole, like(float(scale), dtype))
                assert_close(scaled, expected)
                assert np.array_equal(np.isnan(np.asarray(scaled)), np.isnan(expected)), (scale, scaled, expected)


@pytest.mark.parametrize("jit", [False, True])
def test_large_summands_of_small_range_are_summed_first(jit):
    x, whole = summands(np.float16(1000), np.float16(-999))
    assert whole == 1
    for run in (lambda x: x * 90.0, lambda x: 90 * x, lambda x: x / 0.01, lambda x: x * np.array([100], np.int8)):
        assert_close((sw.sjit(run) if jit else run)(x), run(whole))
    ones = np.ones((1, 100), np.float16)
    matrix, _ = summands(np.full((1, 1), 1000, np.float16), np.full((1, 1), -999, np.float16))
    assert_same(matrix @ (ones * 90), ones * 90)
    many, _ = summands(np.full((1, 100), 1000, np.float16), np.full((1, 100), -999, np.float16))
    assert_same(many @ ones.T, np.float16([[100]]))


def test_modest_scales_leave_a_sum_partial():
    for dtype, scale in (("float64", 1e50), ("float32", 1e10), ("bfloat16", 1e10), ("float16", 0.5), ("float16", 1.0)):
        x, _ = summands(*(np.asarray(n, getattr(ml_dtypes, dtype, dtype)) for n in (2, -1)))
        assert (x * scale).sharding.partial == ("x",), (dtype, scale)
        with np.errstate(over="ignore"):
            assert not (x * (scale * 1e60)).sharding.partial


@pytest.mark.parametrize(("dtype", "scale"), [(np.int8, 300), (np.int8, -129), (np.uint8, -1), (np.int64, 2**63)])
def test_an_integer_out_of_bounds_is_numpys_error(dtype, scale):
    x, whole = summands(*(np.asarray(n, dtype) for n in (2, 1)))
    for value in (whole, x):
        with pytest.raises(OverflowError, match=r"out of bounds for|too large to convert"):
            value * scale


def test_integers_wrap_alike():
    x, whole = summands(np.int8(100), np.int8(27))
    assert_same(x * 100, whole * np.int8(100))
    with pytest.raises(OverflowError, match=r"int too large to convert to float"):
        summands(np.float32(1), np.float32(2))[0] * 10**400


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, np.float32, np.float16])
def test_sums_are_done_before_a_dtype_cuts_them(dtype):
    x, whole = summands(np.float64(0.6), np.float64(0.6))
    assert_same(snp.sum(x, dtype=dtype), np.sum(whole, dtype=dtype))
    if np.dtype(dtype).kind == "f":
        large, _ = summands(np.float64(1e300), np.float64(-1e300))
        assert float(snp.sum(large, dtype=dtype)) == 0
    assert snp.sum(x, dtype=np.float64).sharding.partial == ("x",)


# -- small floats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SMALL, ids=lambda dtype: dtype.name)
def test_extremes_of_uneven_shards(dtype):
    for mesh, shape in product(meshes(dtype), ((3, 5), (9, 2))):
        for sign in (1, -1) if dtype in SIGNED else (1,):
            host = (sign * RNG.uniform(0.5, 2.5, shape)).astype(dtype)
            wide = host.astype(np.float32)
            for spec in (P("x"), P(None, "x"), P(("y", "x"))):
                x = sw.shard(host, mesh, spec)
                for axis in (None, 0):
                    for name in ("max", "min", "argmax", "argmin"):
                        expected = np.asarray(getattr(np, name)(wide, axis=axis))
                        kind = np.int64 if name.startswith("arg") else dtype
                        assert_same(getattr(snp, name)(x, axis=axis), expected.astype(kind))


IMAGES, WEIGHTS = RNG.uniform(-1, 1, (2, 7, 5, 3)), RNG.uniform(-0.5, 0.5, (3, 2, 3, 4))
SPECS = [P(), P("y"), P(None, "x"), P(None, "y", "x"), P(None, None, None, "x")]


@pytest.mark.parametrize("dtype", SIGNED, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "run",
    [
        lambda x: nn.max_pool(x, 2),
        lambda x: nn.max_pool(x, 3, 1, 1),
        lambda x: nn.max_pool(x - 2.0, 3, 2, 1),
        lambda x: nn.avg_pool(x, 2),
        lambda x: nn.avg_pool(x, 3, 2, 1),
    ],
)
def test_pooling_of_small_floats_is_rounded_once(run, dtype):
    host = IMAGES.astype(dtype)
    shifted = run(sw.replicate(host.astype(np.float32), X2))
    for mesh in meshes(dtype):
        for spec in SPECS:
            ours = run(sw.shard(host, mesh, spec))
            assert_close(ours, np.asarray(shifted).astype(dtype), roundings=1)


@pytest.mark.parametrize("dtype", SIGNED, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "run",
    [
        lambda x, w: nn.conv2d(x, w),
        lambda x, w: nn.conv2d(x, w, padding=1, stride=2),
        lambda x, w: nn.conv2d(x, w[:, :, :1, :3], groups=3),
        lambda x, w: nn.conv2d(x, w) * 2.0,
        lambda x, w: nn.conv2d(x, w) / 4,
    ],
)
def test_convolutions_of_small_floats(run, dtype):
    images, weights = IMAGES.astype(dtype), WEIGHTS.astype(dtype)
    wide = np.asarray(run(sw.replicate(images.astype(np.float32), X2), weights.astype(np.float32)))
    for mesh in meshes(dtype):
        for spec in SPECS:
            ours = run(sw.shard(images, mesh, spec), sw.replicate(weights, mesh))
            assert ours.dtype == np.asarray(ours).dtype == dtype
            assert_close(ours, wide.astype(dtype), roundings=8)  # summands of a split sum are rounded each


@pytest.mark.parametrize("dtype", WIDE, ids=lambda dtype: dtype.name)
def test_partial_products_of_small_floats(dtype):
    left, right = RNG.uniform(-1, 1, (4, 8)).astype(dtype), RNG.uniform(-1, 1, (8, 4)).astype(dtype)
    whole = left.astype(np.float32) @ right.astype(np.float32)
    for mesh in MESHES:
        c = sw.shard(left, mesh, P(None, "x")) @ sw.shard(right, mesh, P("x"))
        for run in (lambda c: c * 2.0, lambda c: c / 2, lambda c: 3 * c, lambda c: c + c, lambda c: c.T, lambda c: -c):
            ours = run(c)
            assert ours.dtype == np.asarray(ours).dtype == dtype
            assert_close(ours, run(whole).astype(dtype), roundings=6)


@pytest.mark.parametrize("dtype", SIGNED, ids=lambda dtype: dtype.name)
def test_scalars_beside_small_floats_are_weak(dtype):
    host = np.array([0.5, -1, 2, 1], dtype)
    for mesh in MESHES:
        x = sw.shard(host, mesh, P("x"))
        half = np.asarray(0.5, dtype)
        for run in (
            lambda x, s: x + s,
            lambda x, s: s * x,
            lambda x, s: x / s,
            lambda x, s: snp.maximum(x, s) if isinstance(x, sw.Array) else np.maximum(x, s),
        ):
            assert_same(run(x, 0.5), run(host, half).astype(dtype))
        for clipped in (snp.clip(x, -0.5, 0.5), snp.clip(x, max=0.5, min=-0.5), snp.clip(x, x[1] * 0 - 0.5, 0.5)):
            assert_same(clipped, np.clip(host.astype(np.float32), -0.5, 0.5).astype(dtype))
        assert_same(snp.clip(x, max=0.5), np.minimum(host.astype(np.float32), 0.5).astype(dtype))


@pytest.mark.parametrize("dtype", SIGNED, ids=lambda dtype: dtype.name)
def test_nans_of_small_floats_are_sorted_last(dtype):
    host = np.array([1, np.nan, -1, 2, np.nan, 0.5, -2, np.nan]).astype(dtype)
    wide = host.astype(np.float32)
    for mesh in MESHES:
        x = sw.shard(host, mesh, P("x"))
        assert_same(snp.sort(x), np.sort(wide).astype(dtype))
        assert_same(snp.argsort(x), np.argsort(wide, stable=True))


def test_infinities_of_small_floats_divide_as_the_standard_says():
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e3m4, np.float16):
        x = sw.shard(np.array([np.inf, -np.inf, 2, -2], dtype), X2, P("x"))
        with np.errstate(invalid="ignore"):
            assert_same(x // 2, np.array([np.inf, -np.inf, 1, -1], dtype))


# -- variances ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("correction", [6, 6.5, 7, 7.5, 8, 100])
@pytest.mark.parametrize("host", [np.arange(7.0), np.ones(7), np.arange(7), np.arange(7).astype(np.complex64)], ids=str)
def test_variances_without_degrees_of_freedom_are_numpys(name, correction, host):
    for mesh in MESHES:
        x = sw.shard(host, mesh, P("x"))
        for run in (
            lambda x: getattr(np, name)(x, correction=correction),
            lambda x: getattr(np, name)(x, ddof=correction),
            lambda x: getattr(np, name)(x, correction=correction, keepdims=True),
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert_close(run(x), run(host))
            if correction >= 7:
                with pytest.raises(RuntimeWarning, match=r"Degrees of freedom <= 0"):
                    run(host)
                with pytest.raises(
                    RuntimeWarning, match=r"var: 7 elements and correction=.* leave no degrees of freedom"
                ):
                    run(x)
            else:
                run(x)


def test_a_variance_warns_at_the_users_line():
    x = sw.shard(np.arange(3.0), X2, P("x"))
    for run in (lambda: snp.var(x, correction=3), lambda: snp.std(x, correction=3), lambda: np.std(x, ddof=3)):
        with np.errstate(all="ignore"), pytest.warns(RuntimeWarning, match="no degrees of freedom") as seen:
            run()
        assert {warning.filename for warning in seen} == {__file__}


def test_variances_of_nothing_and_of_single_elements():
    for host, axis in (
        (np.zeros(0), None),
        (np.ones((3, 0)), 1),
        (np.arange(6.0).reshape(2, 3), ()),
        (np.arange(4.0), None),
    ):
        x = sw.shard(host, X2, P("x"))
        for correction in (0, 1):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert_close(
                    snp.var(x, axis=axis, correction=correction), np.var(host, axis=axis, correction=correction)
                )


@pytest.mark.parametrize("engine", ["numpy", "literal", "torch"])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16])
def test_searchsorted_has_nans_last(engine, dtype):
    mesh = sw.Mesh(x=2, engine=engine)
    row, keys = (np.array(values, dtype) for values in ([-1, 1, 2, 4, np.nan], [1, 2, np.nan, 4, -1]))
    found = snp.searchsorted(sw.shard(row, mesh, P("x")), sw.shard(keys, mesh, P("x")))
    assert found.tolist() == [1, 2, 4, 3, 0]


@pytest.mark.parametrize("engine", ["numpy", "literal", "torch"])
def test_dtypes_that_are_asked_for_hold_numbers_in_native_order(engine):
    x = sw.shard(np.arange(4.0), sw.Mesh(x=2, engine=engine), P("x"))
    for dtype in (object, "S3", "M8[s]", "nonsense"):
        for function in (lambda d: x.astype(d), lambda d: np.sum(x, dtype=d), lambda d: np.cumulative_sum(x, dtype=d)):
            with pytest.raises(OperationError, match=r"dtype="):
                function(dtype)
    assert x.astype(">f4").dtype == np.float32
    assert np.cumulative_sum(x, dtype=">i4").dtype.isnative
    assert np.prod(x, axis=(), dtype=">f8").tolist() == [0, 1, 2, 3]
