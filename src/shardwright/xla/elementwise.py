"""XLA's functions of single elements that are rows of the table, or a few of them."""

from collections.abc import Callable
from typing import Any

import numpy as np

import shardwright.xla.bits as bits
import shardwright.xla.special as special
from shardwright.kernels import highest, lowest
from shardwright.xla.values import DType, Value, cast, full_like, is_float, is_known, row, where

Function = Callable[..., Value]


def _row(name: str) -> Function:
    return lambda *operands: row(name, *operands)


def rsqrt(x: Value) -> Value:
    """1 / √x."""
    return row("divide", full_like(x, 1), row("sqrt", x))


def divide(x: Value, y: Value) -> Value:
    """Quotients; of integers truncated toward 0, and -1 where the divisor is 0."""
    if x.dtype.kind not in "iu":
        return row("divide", x, y)
    quotient = row("floor_divide", x, y)
    if x.dtype.kind == "i":
        inexact = row("not_equal", row("remainder", x, y), full_like(x, 0))
        signs = row("not_equal", row("less", x, full_like(x, 0)), row("less", y, full_like(y, 0)))
        quotient = row("add", quotient, cast(row("bitwise_and", inexact, signs), x.dtype))
    if is_known(y) and (y != 0).all():
        return quotient
    return where(
        row("equal", y, full_like(y, 0)), full_like(x, -1 if x.dtype.kind == "i" else _most(x.dtype)), quotient
    )


def _most(dtype: DType) -> int:
    return int(np.iinfo(dtype).max)


def remainder(x: Value, y: Value) -> Value:
    """Remainders with the sign of the dividend; of integers the dividend where the divisor is 0."""
    if x.dtype.kind not in "iu":
        size = row("remainder", row("abs", x), row("abs", y))
        size = where(row("isinf", y), row("abs", x), size)
        return row("copysign", where(row("isinf", x), full_like(x, np.nan), size), x)
    found = row("remainder", x, y)
    if x.dtype.kind == "i":
        apart = row("not_equal", row("less", found, full_like(x, 0)), row("less", x, full_like(x, 0)))
        wrong = row("bitwise_and", apart, row("not_equal", found, full_like(x, 0)))
        found = where(wrong, row("subtract", found, y), found)
    return found if is_known(y) and (y != 0).all() else where(row("equal", y, full_like(y, 0)), x, found)


def power(x: Value, y: Value) -> Value:
    """x to the power of y, which may be integers."""
    return row("pow", x, cast(y, x.dtype))


def integer_power(x: Value, exponent: int) -> Value:
    """x to a known integer power, by squaring."""
    if exponent == 0:
        return full_like(x, 1)
    result, square, left = None, x, abs(exponent)
    while left:
        if left & 1:
            result = square if result is None else row("multiply", result, square)
        left >>= 1
        if left:
            square = row("multiply", square, square)
    return result if exponent > 0 else row("divide", full_like(x, 1), result)


def round_away(x: Value) -> Value:
    """The nearest integers; halves away from 0."""
    whole = row("trunc", x)
    half = row("greater_equal", row("abs", row("subtract", x, whole)), full_like(x, 0.5))
    return where(half, row("add", whole, row("copysign", full_like(x, 1), x)), whole)


def clamp(low: Value, x: Value, high: Value) -> Value:
    """min(max(low, x), high)."""
    return row("minimum", row("maximum", x, low), high)


def select(which: Value, *cases: Value) -> Value:
    """Elements of the case that a boolean (False is case 0) or an integer names."""
    if which.dtype.kind == "b":
        return cases[0] if len(cases) == 1 else where(which, cases[1], cases[0])
    result = cases[-1]
    for number in reversed(range(len(cases) - 1)):
        result = where(row("less_equal", which, full_like(which, number)), cases[number], result)
    return result


def convert(x: Value, dtype: Any) -> Value:
    """Elements converted; floats beyond an integer dtype become its ends, and NaN 0, as XLA does."""
    wanted = np.dtype(dtype)
    if x.dtype == wanted:
        return x
    if wanted.kind == "b":
        return row("not_equal", x, full_like(x, 0))
    if x.dtype.kind == "c" and wanted.kind != "c":
        x = row("real", x)
    if not is_float(x.dtype) or wanted.kind not in "iu":
        return cast(x, wanted)
    wide = cast(x, np.float64) if x.dtype.itemsize < 8 else x
    least, most = np.iinfo(wanted).min, np.iinfo(wanted).max
    inside = where(row("isnan", wide), full_like(wide, 0), wide)
    if wanted.itemsize < 8:
        return cast(clamp(full_like(wide, least), inside, full_like(wide, most)), wanted)
    top = float(2 ** (64 - (wanted.kind == "i")))
    over, under = row("greater_equal", inside, full_like(wide, top)), row("less", inside, full_like(wide, least))
    small = where(row("bitwise_or", over, under), full_like(wide, 0), inside)
    made = cast(small, wanted)
    return where(over, full_like(made, most), where(under, full_like(made, least), made))


def complex_of(real: Value, imag: Value) -> Value:
    """Complex numbers from their parts."""
    return row("make_complex", real, imag)


def is_finite(x: Value) -> Value:
    """Whether elements are finite."""
    return row("isfinite", x)


def total_order(x: Value) -> Value:
    """Integers in the order of floats, in which -NaN < -inf < -0 < 0 < inf < NaN; other values as they are."""
    if not is_float(x.dtype):
        return x
    signed = np.dtype(f"i{x.dtype.itemsize}")
    number = bits.bitcast(x, signed)
    sign = row("bitwise_right_shift", number, full_like(number, signed.itemsize * 8 - 1))
    return row("bitwise_xor", number, row("bitwise_and", sign, full_like(number, np.iinfo(signed).max)))


def not_(x: Value) -> Value:
    """Every bit inverted."""
    return row("bitwise_invert", x)


def sign(x: Value) -> Value:
    """-1, 0 or 1; zeros keep their sign."""
    if not is_float(x.dtype):
        return row("sign", x)
    return where(row("equal", x, full_like(x, 0)), x, row("sign", x))


def _identity(x: Value) -> Value:
    return x


# By XLA's names, which lax shares for most.
ELEMENTWISE: dict[str, Function] = {
    **{
        theirs: _row(ours)
        for theirs, ours in {
            "add": "add", "subtract": "subtract", "multiply": "multiply", "maximum": "maximum", "minimum": "minimum",
            "negate": "negative", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "exponential": "exp",
            "exponential_minus_one": "expm1", "log": "log", "log_plus_one": "log1p", "sine": "sin", "cosine": "cos",
            "tan": "tan", "tanh": "tanh", "sqrt": "sqrt", "cbrt": "cbrt", "abs": "abs", "floor": "floor", "ceil": "ceil",
            "round_nearest_even": "rint", "real": "real", "imag": "imag", "atan2": "atan2", "nextafter": "nextafter",
            "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "asinh": "asinh",
            "acosh": "acosh", "atanh": "atanh", "square": "square", "conj": "conj", "exp2": "exp2", "logistic": "sigmoid",
            "erf": "erf", "erfc": "erfc", "equal": "equal", "not_equal": "not_equal", "less": "less",
            "less_equal": "less_equal", "greater": "greater", "greater_equal": "greater_equal",
        }.items()
    },
    "rsqrt": rsqrt,
    "divide": divide,
    "remainder": remainder,
    "power": power,
    "round_nearest_afz": round_away,
    "clamp": clamp,
    "not": not_,
    "sign": sign,
    "is_finite": is_finite,
    "complex": complex_of,
    "shift_left": bits.shift_left,
    "shift_right_logical": bits.shift_right_logical,
    "shift_right_arithmetic": bits.shift_right_arithmetic,
    "popcnt": bits.population_count,
    "count_leading_zeros": bits.leading_zeros,
    "erf_inv": special.erf_inv,
    "lgamma": special.lgamma,
    "digamma": special.digamma,
    "identity": _identity,
}  # fmt: skip


class Monoid:
    """An associative function of two values, and the element that changes nothing."""

    def __init__(self, name: str, combine: str, identity: Callable[[DType], Any], reduction: str = "") -> None:
        self.name, self.combine, self.identity, self.reduction = name, combine, identity, reduction

    def __call__(self, x: Value, y: Value) -> Value:
        return row(self.combine, x, y)

    def is_identity(self, value: Value) -> bool:
        """Whether a value is known to change nothing."""
        return is_known(value) and bool(
            np.all(np.asarray(value) == np.asarray(self.identity(value.dtype), value.dtype))
        )


MONOIDS: dict[str, Monoid] = {
    "add": Monoid("add", "add", lambda dtype: 0, "sum"),
    "multiply": Monoid("multiply", "multiply", lambda dtype: 1, "prod"),
    "maximum": Monoid("maximum", "maximum", lowest, "max"),
    "minimum": Monoid("minimum", "minimum", highest, "min"),
    "and": Monoid(
        "and", "bitwise_and", lambda dtype: True if dtype.kind == "b" else np.asarray(-1).astype(dtype), "all"
    ),
    "or": Monoid("or", "bitwise_or", lambda dtype: 0, "any"),
    "xor": Monoid("xor", "bitwise_xor", lambda dtype: 0),
}
