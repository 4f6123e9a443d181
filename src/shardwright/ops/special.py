"""Functions of one element that NumPy lacks, or has otherwise than the Array API standard."""

from typing import Any

import numpy as np

from shardwright.ops.call import Data


def floor_divide(x1: Any, x2: Any) -> Any:
    """NumPy's, but infinities as the Array API standard has them: inf // 2 is inf, 2 // -inf is -0."""
    result = np.floor_divide(x1, x2)
    if result.dtype.kind != "f":
        return result
    a, b = np.broadcast_arrays(x1, x2)
    odd = (np.isinf(a) & np.isfinite(b)) | (np.isfinite(a) & np.isinf(b))
    if not odd.any():
        return result
    with np.errstate(all="ignore"):
        return np.where(odd, np.divide(a, b, dtype=result.dtype), result)


def expm1(x: Any) -> Any:
    """NumPy's, but complex numbers with parts that are 0 or not finite as the Array API standard has them."""
    if x.dtype.kind != "c":
        return np.expm1(x)
    with np.errstate(all="ignore"):
        result = np.asarray(np.expm1(x))
        real, imag = x.real, x.imag
        flat = imag == 0
        result = np.where(flat, np.expm1(real) + 1j * 0, result).astype(x.dtype)
        result.imag[...] = np.where(flat, imag, result.imag)
        lost = np.isinf(real) & ~np.isfinite(imag)
        result[lost & (real < 0)] = -1
        result.real[lost & (real > 0)], result.imag[lost & (real > 0)] = np.inf, np.nan
    return result


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
    above, below = (np.polyval(some, z) for some in coefficients)
    return above / below


def erf(x: Any) -> Any:
    """The error function; integers in float64."""
    kind = x.dtype if x.dtype.kind not in "biu" else np.dtype(np.float64)
    size = np.minimum(np.abs(np.asarray(x, np.float64)), 6.0)  # beyond 6 it is 1 to the last bit
    near, middle, far = np.minimum(size, 0.46875), np.clip(size, 0.46875, 4), np.maximum(size, 4)
    small = near * _ratio(_NEAR, near * near)
    rest = np.exp(-middle * middle) * _ratio(_MIDDLE, middle)
    z = 1 / (far * far)
    tail = np.exp(-far * far) * (1 / np.sqrt(np.pi) - z * _ratio(_FAR, z)) / far
    value = np.where(size <= 0.46875, small, 1 - np.where(size <= 4, rest, tail))
    return np.copysign(value, x).astype(kind)


def tanh(x: Any) -> Any:
    """NumPy's, but a complex number with an infinite real part keeps the sign of its imaginary part."""
    result = np.tanh(x)
    if x.dtype.kind != "c":
        return result
    far = np.isinf(x.real) & np.isfinite(x.imag)
    result = np.asarray(result)
    result.imag[far] = np.copysign(0.0, x.imag[far])
    return result
