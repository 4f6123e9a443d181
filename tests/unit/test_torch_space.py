"""Torch's namespace is NumPy's: dtypes and memory converted, promotion, and what torch computes otherwise."""

import warnings
from itertools import product

import ml_dtypes
import numpy as np
import pytest
import torch

import shardwright as sw
from helpers import assert_same
from shardwright.engines.torch.convert import from_host, numpy_dtype, to_host, torch_dtype
from shardwright.engines.torch.host import HOST
from shardwright.engines.torch.space import TorchSpace
from shardwright.engines.whole import whole_operation
from shardwright.errors import EngineError
from shardwright.kernels import NUMPY
from shardwright.ops import OPS, Attrs
from shardwright.plan import OperationPlan
from shardwright.sharding import Sharding, layout_of

NUMPYS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
SMALL = "bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu".split()
DTYPES = [*map(np.dtype, NUMPYS), *(np.dtype(getattr(ml_dtypes, name)) for name in SMALL)]
SPACE = TorchSpace()
MESH = sw.Mesh(x=2)


def in_numpy(function, *operands):
    """A function of NumPy without warnings: its result, or the type of its error."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        try:
            return function(*operands)
        except (TypeError, ValueError, OverflowError) as error:
            return type(error)


def in_torch(function, *operands):
    try:
        made = function(*(from_host(x) if isinstance(x, np.ndarray) else x for x in operands))
    except (TypeError, ValueError, OverflowError) as error:
        return type(error)
    return to_host(made)


def assert_like_numpy(actual, expected, signs=True):
    """Equal in shape and dtype; in elements, with the signs of zeros, but for a few roundings; or the same error."""
    if isinstance(expected, type):
        assert actual is expected
        return
    assert not isinstance(actual, type), f"{actual} instead of a result"
    expected = np.asarray(expected)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind in "biu":
        assert_same(actual, expected)
        return
    for part in ("real", "imag") if expected.dtype.kind == "c" else ("real",):
        a, b = (getattr(x, part).astype(np.float64) for x in (actual, expected))
        eps = float(ml_dtypes.finfo(expected.dtype).eps)
        np.testing.assert_allclose(a, b, rtol=8 * eps, atol=eps / 8)
        zero = (b == 0) & (a == 0)
        if signs and expected.dtype.kind != "c":
            assert_same(np.signbit(a[zero]), np.signbit(b[zero]))


# -- dtypes and memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_goes_to_torch_and_back(dtype):
    assert numpy_dtype(torch_dtype(dtype)) == dtype
    host = np.arange(1, 7).reshape(2, 3).astype(dtype)
    tensor = from_host(host)
    assert tensor.shape == (2, 3)
    back = to_host(tensor)
    assert back.dtype == dtype
    assert back.tobytes() == host.tobytes()
    assert np.shares_memory(back, host)


def test_uint64_keeps_its_largest_values():
    host = np.array([2**64 - 1, 2**63], np.uint64)
    assert_same(to_host(from_host(host)), host)


def test_a_dtype_that_torch_lacks_is_named():
    with pytest.raises(EngineError, match=r"no dtype int4"):
        torch_dtype(ml_dtypes.int4)
    with pytest.raises(EngineError, match=r"no dtype longdouble|no dtype float128"):
        torch_dtype(np.longdouble)
    with pytest.raises(EngineError, match=r"no dtype for torch.complex32"):
        numpy_dtype(torch.complex32)


HOSTS = {
    "0-d": np.array(1.5),
    "empty": np.zeros((3, 0, 2)),
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "strided": np.arange(12.0)[::5],
    "backward": np.arange(12).reshape(3, 4)[::-1, ::-2],
    "small floats backward": np.arange(5).astype(ml_dtypes.bfloat16)[::-1],
    "big-endian": np.arange(4, dtype=">f4"),
    "fields": np.ones(3, np.dtype([("a", "i1"), ("b", "f4")]))["b"],
    "parts": np.array([1 + 2j, 3 - 4j]).imag,
    "repeated": np.broadcast_to(np.arange(3), (2, 3)),
}


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("writable", [True, False])
def test_any_memory_goes_to_torch_without_a_warning(name, writable):
    host = HOSTS[name].view()
    if not writable:
        host.flags.writeable = False
    assert_same(to_host(from_host(host)), host.astype(host.dtype.newbyteorder("=")))


def test_memory_is_shared_if_torch_may_write_to_it():
    host = np.arange(6.0).reshape(2, 3)
    assert np.shares_memory(to_host(from_host(host.T)), host)
    host.flags.writeable = False
    assert not np.shares_memory(to_host(from_host(host)), host)


def test_dims_of_stride_0_are_not_expanded():
    tensor = from_host(np.broadcast_to(np.float32(1), (10**6, 10**6)))
    assert tensor.stride() == (0, 0)
    assert to_host(tensor).strides == (0, 0)


def test_tensors_with_flags_of_torch_go_to_the_host():
    turned = torch.tensor([1 + 2j]).conj()
    assert_same(to_host(turned), np.array([1 - 2j], np.complex64))
    assert_same(to_host(turned.imag), np.array([-2], np.float32))
    assert_same(to_host(torch.ones(2, requires_grad=True)), np.ones(2, np.float32))
    assert to_host(torch.ones((), dtype=torch.bfloat16)).shape == ()


# -- promotion ----------------------------------------------------------------------------------------------------------

BINARY = "add multiply divide pow equal less maximum".split()
SCALARS = [True, 3, 300, -2, 2.5, 1e300, np.nan, 10**30, 2j]


def values(dtype):
    """A few elements that every dtype has; for powers, that do not overflow."""
    return np.array([1, 0, 2, 1]).astype(dtype)


@pytest.mark.parametrize("name", BINARY)
def test_dtypes_promote_as_in_numpy(name):
    some = [dtype for dtype in DTYPES if dtype.name not in SMALL[2:]]
    for a, b in product(some, some):
        operands = values(a), values(b)[::-1].copy()
        expected = in_numpy(getattr(np, name), *operands)
        actual = in_torch(getattr(SPACE, name), *operands)
        assert_like_numpy(actual, expected)


def whole(name, operands, space):
    """An operation on whole tensors, as an engine runs it."""
    kinds = [(layout_of(Sharding(MESH), x.shape), x.dtype) if isinstance(x, np.ndarray) else x for x in operands]
    return whole_operation(OperationPlan(OPS[name], kinds, Attrs()), space)


@pytest.mark.parametrize("name", BINARY)
def test_scalars_are_weak_as_in_numpy(name):
    some = [dtype for dtype in DTYPES if dtype.name not in SMALL]
    for dtype, scalar in product(some, SCALARS):
        for operands in ((values(dtype), scalar), (scalar, values(dtype))):
            expected = in_numpy(getattr(np, name), *operands)
            assert_like_numpy(in_torch(getattr(SPACE, name), *operands), expected)
            if isinstance(expected, np.ndarray):  # the function that stands for the kernel
                assert_like_numpy(in_torch(whole(name, operands, SPACE), *operands), expected)


@pytest.mark.parametrize("bounds", [(0.5, 1.5), (1, None), (None, 1), (2, 0), (np.nan, 1), (None, 10**30), (0.5, 300)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8])
def test_clips_are_numpys(bounds, dtype):
    x, (low, high) = np.array([0, 1, 2, -3]).astype(dtype), bounds
    if np.dtype(dtype).kind == "f":
        x[3] = np.nan
    operands = (x, *(bound for bound in bounds if bound is not None))
    attrs = Attrs(low=low is not None, high=high is not None)
    expected = in_numpy(np.clip, x, low, high)
    if not isinstance(expected, type):
        kinds = [(layout_of(Sharding(MESH), x.shape), x.dtype), *operands[1:]]
        clip = whole_operation(OperationPlan(OPS["clip"], kinds, attrs), SPACE)
        assert_like_numpy(in_torch(clip, *operands), expected)


@pytest.mark.parametrize("name", ["add", "multiply", "divide", "less", "maximum"])
def test_scalars_beside_small_floats_are_small(name):
    for scalar, dtype in product((2, 0.1), (np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e5m2))):
        operands = values(dtype), scalar
        with np.errstate(all="ignore"):
            expected = whole(name, operands, NUMPY)(*operands)
        assert_like_numpy(in_torch(whole(name, operands, SPACE), *operands), expected)


def test_integers_beyond_a_dtype_are_compared_and_refused_as_in_numpy():
    for dtype, scalar in product((np.int8, np.uint8, np.int64, np.float32), (300, -300, 10**30)):
        x = np.array([0, 1, 100], dtype)
        for name in ("less", "greater_equal", "equal", "add"):
            expected = in_numpy(getattr(np, name), x, scalar)
            assert_like_numpy(in_torch(getattr(SPACE, name), x, scalar), expected)
            assert_like_numpy(in_torch(whole(name, (x, scalar), SPACE), x, scalar), expected)


# -- what torch computes otherwise --------------------------------------------------------------------------------------

FLOATS = np.array([0.0, -0.0, 1, -1, 0.5, -2.5, 3.7, -3.7, 7, 1e4, np.inf, -np.inf, np.nan])


EITHER_ZERO = {"maximum", "minimum", "fmax", "fmin", "nextafter"}  # of 0.0 and -0.0; NumPy's own dtypes differ


def specials(dtype):
    """Zeros, negatives, the ends of a dtype, infinities and NaNs."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        return np.array([0, 1, 2, 3, 7, ends.max, ends.min, *((-1, -2, -7) if dtype.kind == "i" else ())], dtype)
    if dtype.kind == "c":
        return np.add.outer(FLOATS, 1j * FLOATS[:8]).ravel().astype(dtype)
    return FLOATS.astype(dtype)


@pytest.mark.parametrize(
    "dtype", [np.bool_, np.int8, np.int64, np.uint8, np.uint64, np.float16, np.float32, np.float64]
)
@pytest.mark.parametrize("name", sorted(name for name, op in OPS.items() if op.elementwise and name != "where"))
def test_special_values_are_numpys(name, dtype):
    function, x = getattr(np, name), specials(dtype)
    operands = [x] if getattr(function, "nin", 1) == 1 else [a.ravel() for a in np.meshgrid(x, x)]
    if name == "pow" and np.dtype(dtype).kind == "i":
        operands[1] = np.abs(operands[1] // 2)
    expected = in_numpy(function, *operands)
    if not isinstance(expected, type):
        signs = name not in EITHER_ZERO
        assert_like_numpy(in_torch(getattr(SPACE, name), *operands), expected, signs)


@pytest.mark.parametrize("name", ["add", "subtract", "log1p", "reciprocal", "sign", "maximum", "less", "abs"])
def test_special_complex_values_are_numpys(name):
    function, x = getattr(np, name), specials(np.complex128)
    operands = [x] if function.nin == 1 else [a.ravel() for a in np.meshgrid(x, x)]
    assert_like_numpy(in_torch(getattr(SPACE, name), *operands), in_numpy(function, *operands))


COMPLEX = """
    abs acos acosh add asin asinh atan atanh conj cos cosh divide exp imag log log10 log2 negative positive pow real sign sin
    sinh sqrt subtract tan
""".split()


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("name", COMPLEX)
def test_zeros_of_complex_numbers_have_numpys_signs(name, dtype):
    """In both parts, for many elements at once and for one, which torch computes in different ways."""
    parts = np.array([0.0, -0.0, 1, -1, 3.5, 1e-10, np.inf, -np.inf, np.nan])
    x = np.empty((9, 9), dtype)
    x.real, x.imag = parts[:, None], parts
    function, ours = getattr(np, name), getattr(SPACE, name)
    operands = [x.ravel()] if getattr(function, "nin", 1) == 1 else [a.ravel()[::7] for a in np.meshgrid(x, x)]
    expected = in_numpy(function, *operands)
    single = [in_torch(ours, *(a[i : i + 1].copy() for a in operands)) for i in range(len(expected))]
    for actual in (in_torch(ours, *operands), np.concat(single)):
        for part in ("real", "imag"):
            assert_like_numpy(getattr(actual, part), getattr(expected, part))


@pytest.mark.parametrize("name", ["remainder", "floor_divide"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_quotients_beyond_a_dtype_leave_a_remainder(name, dtype):
    large, small = ml_dtypes.finfo(dtype).max, ml_dtypes.finfo(dtype).smallest_normal
    x = np.array([large, -large, large, 7, 7, 0, np.inf, np.nan, 5], dtype)
    y = np.array([small, small, -small, small, 3, small, 3, 3, 0], dtype)
    for a, b in ((x, y), (np.tile(x, 20), np.tile(y, 20)), (x[:1].copy(), y[:1].copy())):
        with np.errstate(all="ignore"):
            expected = whole(name, (a, b), NUMPY)(a, b)
        assert_same(in_torch(whole(name, (a, b), SPACE), a, b).astype(float), expected.astype(float))


def test_integers_to_negative_powers_are_refused():
    with pytest.raises(ValueError, match=r"negative integer powers"):
        SPACE.pow(torch.tensor([2]), torch.tensor([-1]))
    with pytest.raises(ValueError, match=r"negative integer powers"):
        SPACE.pow(torch.tensor([2], dtype=torch.int8), -1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64, np.int8, np.uint64, np.bool_])
def test_sorts_are_stable_and_have_nans_last(dtype):
    x = np.tile(np.array([2, 0.0, np.nan, -0.0, 1, 0.0, np.inf, -0.0, np.nan]), 30)
    x = (np.where(np.isfinite(x), x, 3) if np.dtype(dtype).kind in "biu" else x).astype(dtype)
    ours = SPACE.sort(from_host(x)), SPACE.argsort(from_host(x))
    assert_like_numpy(to_host(ours[0]), np.sort(x, stable=True))
    assert_same(to_host(ours[1]), np.argsort(x, stable=True))


@pytest.mark.parametrize("side", ["left", "right"])
def test_searches_have_nans_last(side):
    values = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1.5, 5])
    for x in ([], [np.nan], [-np.inf, -0.0, 0.0, 1, 1.5, np.inf, np.inf, np.nan, np.nan], [1.0, 2.0]):
        found = SPACE.searchsorted(from_host(np.array(x, np.float32)), from_host(values), side=side)
        assert_same(to_host(found), np.searchsorted(np.array(x, np.float32), values, side=side))


@pytest.mark.parametrize("dtype", [np.bool_, np.int32, np.float32, np.uint16])
def test_the_first_of_equal_maxima_counts(dtype):
    x = np.array([[0, 3, 3, 1], [0, 0, 0, 0], [1, 1, 2, 2]]).astype(dtype)
    for axis, keepdims in product((0, 1), (False, True)):
        assert_same(to_host(SPACE.argmax(from_host(x), axis, keepdims)), np.argmax(x, axis=axis, keepdims=keepdims))
    gaps = np.array([1, np.nan, 3, np.nan])
    assert int(SPACE.argmax(from_host(gaps), 0)) == np.argmax(gaps)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.name not in SMALL[1:]], ids=str)
@pytest.mark.parametrize("name", "sum prod max min any all mean cumulative_sum cumulative_prod".split())
def test_reductions_have_numpys_dtypes(name, dtype):
    x = np.array([[1, 0, 2], [1, 1, 1]]).astype(dtype)
    axes = (0, -1) if name.startswith("cumulative") else (None, 0, (0, 1), (-1,), ())
    for axis in axes if name != "mean" or dtype.kind == "f" else axes[:-1]:
        expected = in_numpy(lambda x, axis=axis: getattr(np, name)(x, axis=axis), x)
        assert_like_numpy(in_torch(lambda x, axis=axis: getattr(SPACE, name)(x, axis=axis), x), expected)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("name", "sum prod cumulative_sum cumulative_prod mean".split())
def test_totals_of_complex_infinities_are_numpys(name, dtype):
    for parts in ([(np.inf, -0.0)], [(np.inf, 2.5), (1, 2)], [(0, -np.inf), (1, 0)], [(1, 2), (-2, 1), (0.5, 0)]):
        x = np.array(parts, np.float64).view(np.complex128)[:, 0].astype(dtype)
        expected = in_numpy(lambda x: getattr(np, name)(x, axis=0), x)
        assert_like_numpy(in_torch(lambda x: getattr(SPACE, name)(x, axis=0), x), expected)


def test_elements_move_in_every_dtype():
    for dtype in DTYPES:
        x = np.arange(1, 7).reshape(2, 3).astype(dtype)
        index, rows = np.array([[2, -1], [0, 1]]), np.array([1, -2, 1])
        for ours, numpys in (
            (SPACE.flip(from_host(x), axis=1), np.flip(x, axis=1)),
            (SPACE.take(from_host(x), from_host(rows), axis=1), np.take(x, rows, axis=1)),
            (SPACE.take(from_host(x), from_host(index)), np.take(x, index)),
            (SPACE.take_along_axis(from_host(x), from_host(index), axis=1), np.take_along_axis(x, index, axis=1)),
            (SPACE.concat([from_host(x), from_host(x)], axis=1), np.concat([x, x], axis=1)),
            (SPACE.where(from_host(rows > 0), from_host(x), from_host(x[:1])), np.where(rows > 0, x, x[:1])),
            (SPACE.full((2,), 1, dtype), np.full((2,), 1, dtype)),
            (SPACE.fft.fftshift(from_host(x), (0, 1)), np.fft.fftshift(x, (0, 1))),
        ):
            assert to_host(ours).tobytes() == numpys.tobytes(), dtype
    with pytest.raises(IndexError):
        SPACE.take(torch.ones(3), torch.tensor([3]), axis=0)
    with pytest.raises(IndexError):
        SPACE.take_along_axis(torch.ones(3), torch.tensor([-4]), axis=0)


def test_conversions_between_all_dtypes_are_numpys():
    for a, b in product(DTYPES, DTYPES):
        x = np.array([1, 0, 3, 1.5, 100]).astype(a)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            expected = in_numpy(x.astype, b)
        if not isinstance(expected, type):
            assert to_host(SPACE.astype(from_host(x), b)).tobytes() == expected.tobytes(), (a, b)
    far = np.array([1e5, -1e5, np.inf, np.nan, 449, 480], np.float32)
    for dtype in DTYPES[-6:-1]:
        with np.errstate(all="ignore"):
            expected = far.astype(dtype).astype(np.float32)
        assert_same(to_host(SPACE.astype(from_host(far), dtype)).astype(np.float32), expected)


def test_products_have_numpys_dtypes():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 3, shape) for shape in ((2, 3), (3, 4)))
    for x, y in product([d for d in DTYPES if d.name not in SMALL], repeat=2):
        operands = a.astype(x), b.astype(y)
        assert_like_numpy(in_torch(SPACE.matmul, *operands), np.matmul(*operands))


def test_every_reason_for_the_host_is_given():
    for name, (letters, reason) in HOST.items():
        assert set(letters) <= set("biufc"), name
        assert reason


def test_a_sum_of_two_tensors_is_one_call_of_torch():
    for operands in (
        (values("f4"), values("f4")),
        (values("f8"), 2.5),
        (2.5, values("f8")),
        (values("i4"), values("i4")),
    ):
        assert whole("add", operands, SPACE) is torch.add
    assert whole("less", (values("f4"), 0.5), SPACE) is torch.less
    assert whole("exp", (values("f4"),), SPACE) is torch.exp
    assert whole("add", (values(ml_dtypes.bfloat16),) * 2, SPACE) is torch.add
