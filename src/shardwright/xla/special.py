"""Special functions of single elements, composed of rows: the inverse of the error function, and the gamma function's.

float64 results are exact to about 1e-13; others are computed as XLA does or in float64.
"""

from collections.abc import Sequence

import numpy as np

from shardwright.xla.values import Value, cast, full_like, row, where

# M. Giles, Approximating the erfinv function (2011): polynomials in w - 2.5 for w = -log(1 - x²) < 5, and in √w - 3.
_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip
# Lanczos's series for g = 7.
_LANCZOS = (
    676.520368121885098567009190444019, -1259.13921672240287047156078755283, 771.3234287776530788486528258894,
    -176.61502916214059906584551354, 12.507343278686904814458936853, -0.13857109526572011689554707,
    9.984369578019570859563e-6, 1.50563273514931155834e-7,
)  # fmt: skip
_BASE = 0.99999999999980993227684700473478
_G = 7.0


def _horner(coefficients: Sequence[float], x: Value) -> Value:
    total = full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = row("add", row("multiply", total, x), full_like(x, coefficient))
    return total


def erf_inv(x: Value) -> Value:
    """The number whose error function is x; in float64 refined by two steps of Newton's method."""
    if x.dtype.itemsize < 4:
        return cast(erf_inv(cast(x, np.float32)), x.dtype)
    w = row("negative", row("log1p", row("negative", row("multiply", x, x))))
    centre = _horner(_CENTRE, row("subtract", w, full_like(w, 2.5)))
    tail = _horner(_TAIL, row("subtract", row("sqrt", w), full_like(w, 3.0)))
    near = row("less", w, full_like(w, 5.0))
    size = row("abs", x)
    end = row("equal", size, full_like(x, 1))
    guess = where(end, row("copysign", full_like(x, np.inf), x), row("multiply", where(near, centre, tail), x))
    if x.dtype != np.float64:
        return guess
    found = row("abs", guess)
    for _ in range(2):
        # Of numbers near 1 the complement is exact where the function is not.
        off = row("subtract", row("subtract", full_like(x, 1), size), row("erfc", found))
        off = where(row("less", size, full_like(x, 0.5)), row("subtract", row("erf", found), size), off)
        slope = row(
            "multiply", row("exp", row("negative", row("multiply", found, found))), full_like(x, 2 / np.sqrt(np.pi))
        )
        step = row("divide", off, slope)
        halley = row("divide", step, row("add", full_like(x, 1), row("multiply", found, step)))
        found = where(end, found, row("subtract", found, halley))
    return row("copysign", found, x)


def lgamma(x: Value) -> Value:
    """The logarithm of the absolute value of the gamma function."""
    if x.dtype != np.float64:
        return cast(lgamma(cast(x, np.float64)), x.dtype)
    low = row("less", x, full_like(x, 0.5))
    z = row("subtract", where(low, row("subtract", full_like(x, 1), x), x), full_like(x, 1))
    total = full_like(x, _BASE)
    for i, coefficient in enumerate(_LANCZOS):
        total = row("add", total, row("divide", full_like(x, coefficient), row("add", z, full_like(x, i + 1.0))))
    t = row("add", z, full_like(x, _G + 0.5))
    log_t = row("add", full_like(x, np.log(_G + 0.5)), row("log1p", row("divide", z, full_like(x, _G + 0.5))))
    power = row("multiply", row("subtract", row("add", z, full_like(x, 0.5)), row("divide", t, log_t)), log_t)
    value = row("add", row("add", full_like(x, 0.5 * np.log(2 * np.pi)), power), row("log", total))
    # Below 1/2 by reflection: log|Γ(x)| = log π - log|sin πx| - log|Γ(1 - x)|.
    size = row("abs", x)
    part = row("subtract", size, row("floor", size))
    part = where(row("greater", part, full_like(x, 0.5)), row("subtract", full_like(x, 1), part), part)
    sine = row("log", row("sin", row("multiply", part, full_like(x, np.pi))))
    mirrored = row("subtract", row("subtract", full_like(x, np.log(np.pi)), sine), value)
    mirrored = where(row("isfinite", sine), mirrored, row("negative", sine))
    return where(row("isinf", x), full_like(x, np.inf), where(low, mirrored, value))


def digamma(x: Value) -> Value:
    """The derivative of lgamma."""
    if x.dtype != np.float64:
        return cast(digamma(cast(x, np.float64)), x.dtype)
    low = row("less", x, full_like(x, 0.5))
    z = row("subtract", where(low, row("subtract", full_like(x, 1), x), x), full_like(x, 1))
    above, below = full_like(x, 0), full_like(x, _BASE)
    for i, coefficient in enumerate(_LANCZOS):
        share = row("divide", full_like(x, coefficient), row("add", z, full_like(x, i + 1.0)))
        below = row("add", below, share)
        above = row("subtract", above, row("divide", share, row("add", z, full_like(x, i + 1.0))))
    t = row("add", z, full_like(x, _G + 0.5))
    log_t = row("add", full_like(x, np.log(_G + 0.5)), row("log1p", row("divide", z, full_like(x, _G + 0.5))))
    value = row("subtract", row("add", log_t, row("divide", above, below)), row("divide", full_like(x, _G), t))
    whole = row("floor", x)
    part = row("multiply", row("subtract", x, row("floor", row("add", x, full_like(x, 0.5)))), full_like(x, np.pi))
    cotangent = row("divide", row("multiply", row("cos", part), full_like(x, np.pi)), row("sin", part))
    pole = row("bitwise_and", row("less_equal", x, full_like(x, 0)), row("equal", x, whole))
    made = where(low, row("subtract", value, cotangent), value)
    return where(pole, full_like(x, np.nan), made)
