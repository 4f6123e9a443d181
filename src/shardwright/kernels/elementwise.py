"""Element by element: functions of operands that broadcast, and those that a namespace lacks or has otherwise than the
Array API standard."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwright.kernels.call import Call, Data, Space
from shardwright.ops import as_weak, is_small, small_dtype

SCALARS = (bool, int, float, complex)


def aligned(call: Call, operands: tuple[Any, ...]) -> list[Any]:
    """Arrays that broadcast against the result; scalars as they are, or small floats of ml_dtypes beside such floats."""
    small = small_dtype(call.dtypes)
    if not call.n:  # without lanes they broadcast as they are; an engine may have traced the scalars
        return [as_weak(x, small) if isinstance(x, SCALARS) else x for x in operands]
    arrays = iter(range(len(call.operands)))
    return [as_weak(x, small) if isinstance(x, SCALARS) else call.align(next(arrays), x) for x in operands]


def by_name(name: str) -> Callable[..., Data]:
    """The namespace's own function of a name."""
    return lambda call, *operands: getattr(call.xp, name)(*aligned(call, operands))


def of(function: Callable[..., Data]) -> Callable[..., Data]:
    """A function of the namespace, the call's attributes and the operands."""
    return lambda call, *operands: function(call.xp, *aligned(call, operands), **call.attrs)


def astype(call: Call, x: Any) -> Data:
    dtype = call.attrs["dtype"]
    return call.xp.asarray(x, dtype=dtype) if isinstance(x, SCALARS) else call.xp.astype(x, dtype)


def clip(xp: Space, x: Data, *bounds: Any, low: bool, high: bool) -> Data:
    """Bounds follow x in the operands: the lower if `low`, the upper if `high`."""
    given = list(bounds)
    least = given.pop(0) if low else None
    return xp.clip(x, least, given.pop(0) if high else None)


def isin(call: Call, x: Data, values: Data) -> Data:
    return call.xp.isin(x, call.xp.reshape(values, (-1,)), invert=call.attrs["invert"])


# -- checks of data, on values that all devices agree on ----------------------------------------------------------------


def extremes(call: Call, data: Data) -> Data:
    """The largest of a device's integers and, by its complement, the smallest: two numbers, the larger of each wins."""
    xp, dims = call.xp, range(len(call.operands[0].shape))
    least = np.iinfo(call.dtypes[0]).min
    found = []
    for values in (data, xp.bitwise_invert(data)):
        kept = call.filled(0, values, dims, least)
        if 0 in kept.shape[call.n :]:
            found.append(xp.full(tuple(kept.shape[: call.n]), least, dtype=call.dtypes[0]))
        else:
            found.append(xp.max(kept, axis=call.axes(dims)))
    return xp.stack(found, axis=-1)


def in_range(call: Call, data: Data, found: Data) -> Data:
    """The integers themselves; an error if the extremes of all devices, which are the same everywhere, are out of range."""
    if 0 not in call.operands[0].shape:
        check_range(call, call.xp.reshape(found, (2,)).tolist())
    return data


def check_range(call: Call, found: Sequence[int]) -> None:
    """Refuse integers out of range, given their largest and the largest of their complements."""
    low, high = call.attrs["low"], call.attrs["high"]
    most, least = found[0], int(np.bitwise_invert(np.asarray(found[1], call.dtypes[0])))
    if least < low or most > high:
        raise call.attrs["error"](call.attrs["text"].format(least if least < low else most))


# -- functions that namespaces lack, or have otherwise ------------------------------------------------------------------


def _kind(xp: Space, x: Any) -> str:
    kind: str = np.asarray(x).dtype.kind if isinstance(x, SCALARS) else xp.dtype(x).kind
    return kind


def floor_divide(xp: Space, x1: Any, x2: Any) -> Data:
    """NumPy's, but infinities as the Array API standard has them: inf // 2 is inf, 2 // -inf is -0."""
    result = xp.floor_divide(x1, x2)
    if _kind(xp, result) in "biuc":
        return result
    a, b = (xp.asarray(x, dtype=result.dtype) for x in (x1, x2))
    odd = (xp.isinf(a) & xp.isfinite(b)) | (xp.isfinite(a) & xp.isinf(b))
    with np.errstate(all="ignore"):
        return xp.where(odd, xp.divide(a, b), result)


def expm1(xp: Space, x: Data) -> Data:
    """NumPy's, but complex numbers with parts that are 0 or not finite as the Array API standard has them."""
    if _kind(xp, x) != "c":
        return xp.expm1(x)
    with np.errstate(all="ignore"):
        made, real, imag = xp.expm1(x), xp.real(x), xp.imag(x)
        flat = imag == 0
        lost = xp.isinf(real) & ~xp.isfinite(imag)
        down, up = lost & (real < 0), lost & (real > 0)
        result_real = xp.where(flat, xp.expm1(real) + 0.0, xp.real(made))  # of -0 it is 0
        result_imag = xp.where(flat, imag, xp.imag(made))
        result_real = xp.where(down, -1.0, xp.where(up, xp.inf, result_real))
        result_imag = xp.where(down, 0.0, xp.where(up, xp.nan, result_imag))
    return xp.make_complex(xp.astype(result_real, real.dtype), xp.astype(result_imag, real.dtype))


def tanh(xp: Space, x: Data) -> Data:
    """NumPy's, but a complex number with an infinite real part keeps the sign of its imaginary part."""
    result = xp.tanh(x)
    if _kind(xp, x) != "c":
        return result
    far = xp.isinf(xp.real(x)) & xp.isfinite(xp.imag(x))
    zero = xp.copysign(xp.zeros_like(xp.imag(x)), xp.imag(x))
    return xp.make_complex(xp.real(result), xp.where(far, zero, xp.imag(result)))


# W. J. Cody's rational approximations (1969), innermost coefficient first: of erf near 0, of erfc up to 4, of erfc beyond.
_NEAR = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
_MIDDLE = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1, 2.98635138197400131e2,
     8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
     3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
)  # fmt: skip
_FAR = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
     1.60837851487422766e-2, 6.58749161529837803e-4),
    (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2,
     2.33520497626869185e-3),
)  # fmt: skip


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], z: Data) -> Data:
    above, below = (_horner(some, z) for some in coefficients)
    return above / below


def _horner(coefficients: tuple[float, ...], z: Data) -> Data:
    total = z * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        total = total * z + coefficient
    return total


def erfc(xp: Space, z: Data) -> Data:
    """1 less the error function, of float64 numbers that are not negative; accurate in the tail too."""
    size = xp.minimum(z, xp.asarray(28.0))  # beyond 27.3 it is 0
    near, middle, far = xp.clip(size, None, 0.46875), xp.clip(size, 0.46875, 4.0), xp.clip(size, 4.0, None)
    small = near * _ratio(_NEAR, near * near)
    rest = xp.exp(-middle * middle) * _ratio(_MIDDLE, middle)
    inverse = 1 / (far * far)
    tail = xp.exp(-far * far) * (1 / np.sqrt(np.pi) - inverse * _ratio(_FAR, inverse)) / far
    return xp.where(size <= 0.46875, 1 - small, xp.where(size <= 4, rest, tail))


def erf_of(xp: Space, x: Data) -> Data:
    """The error function, computed in float64."""
    wide = xp.astype(x, np.float64)
    size = xp.abs(wide)
    near = xp.clip(size, None, 0.46875)
    value = xp.where(size <= 0.46875, near * _ratio(_NEAR, near * near), 1 - erfc(xp, size))
    value = xp.where(xp.isfinite(wide), xp.copysign(value, wide), xp.clip(wide, -1.0, 1.0))  # a NaN stays one
    return _narrowed(xp, x, value)


def erfc_of(xp: Space, x: Data) -> Data:
    """1 less the error function, computed in float64."""
    wide = xp.astype(x, np.float64)
    tail = erfc(xp, xp.abs(wide))
    return _narrowed(xp, x, xp.where(wide < 0, 2 - tail, tail))


def _narrowed(xp: Space, x: Data, value: Data) -> Data:
    """A float64 value in the dtype of the operand; integers stay in float64."""
    dtype = xp.dtype(x)
    return value if dtype.kind in "biu" and not is_small(dtype) else xp.astype(value, dtype)


def bitcast(call: Call, x: Data) -> Data:
    """The same bits in another dtype of the same width."""
    return call.xp.bitcast(x, call.attrs["dtype"])


def make_complex(xp: Space, real: Data, imag: Data) -> Data:
    """Complex numbers from their parts."""
    return xp.make_complex(real, imag)


# Half of erfc(z / √2) · exp(z² / 2) from 0 to 14, innermost coefficient first: a least-squares fit of relative error 4e-7.
TAIL = (
    (0.01704631639375051, 0.11952641351140139, 0.36196276985939674, 0.4999998112849325),
    (0.042733781224084, 0.29940560537283434, 0.9534156405551435, 1.5217913008993762, 1.0),
)
FARTHEST = 15.0  # where the tail is 0 in float32; in float64 it is at 40


def sigmoid(xp: Space, x: Data) -> Data:
    """1 / (1 + exp(-x)); integers in float64, small floats in float32. Where the power overflows the result is 0."""
    dtype = xp.dtype(x)
    exact = dtype.kind in "biu" and not is_small(dtype)
    wide = xp.astype(x, np.float64) if exact else xp.astype(x, np.float32) if dtype.itemsize < 4 else x
    with np.errstate(over="ignore"):
        value = 1 / (xp.exp(-wide) + 1)
    return value if exact else xp.astype(value, dtype)


def gelu(xp: Space, x: Data) -> Data:
    """x times the normal distribution function of x: max(x, 0) less |x| times the tail beyond |x|; integers in float64.

    Small floats in float32; in that, relative errors are below 1e-6 in the middle and grow with the square of x in the tail.
    """
    dtype = xp.dtype(x)
    exact = dtype == np.float64 or (dtype.kind in "biu" and not is_small(dtype))
    wide = xp.astype(x, np.float64 if exact else np.float32)
    size = xp.clip(xp.abs(wide), 0.0, 40.0 if exact else FARTHEST)
    tail = erfc(xp, size * np.sqrt(0.5)) * 0.5 if exact else _ratio(TAIL, size) * xp.exp(size * size * -0.5)
    value = xp.clip(wide, 0.0, np.inf) - size * tail  # in NumPy faster than a maximum with a scalar
    return value if exact else xp.astype(value, dtype)
