"""Functions that work element by element: one line of the table each."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwright.array import Array
from shardwright.dispatch import Attrs, apply, binary
from shardwright.errors import OperationError
from shardwright.numpy.common import array, operands

UNARY = """
abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag isfinite isinf isnan log
log1p log2 log10 logical_not negative positive real reciprocal round sign signbit sin sinh square sqrt tan tanh
trunc exp2 cbrt rint degrees radians
""".split()
BINARY = """
add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide equal
floor_divide greater greater_equal hypot less less_equal logaddexp logical_and logical_or logical_xor maximum
minimum multiply nextafter not_equal pow remainder subtract fmax fmin
""".split()


def _unary(name: str) -> Callable[[Any], Array]:
    def function(x: Any, /) -> Array:
        result: Array = apply(name, (array(name, x),))
        return result

    return _named(function, name, "")


def _binary(name: str) -> Callable[[Any, Any], Array]:
    def function(x1: Any, x2: Any, /) -> Array:
        result: Array = binary(name, *operands(name, x1, x2))
        return result

    return _named(function, name, "; operands broadcast")


def _named(function: Callable[..., Array], name: str, more: str) -> Callable[..., Array]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}` of every element, as `numpy.{name}` computes it{more}."
    return function


FUNCTIONS = {name: _unary(name) for name in UNARY} | {name: _binary(name) for name in BINARY}


def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """Elements between two bounds, either of which may be missing."""
    given = [bound for bound in (min, max) if bound is not None]
    attrs = Attrs(low=min is not None, high=max is not None)
    values = operands("clip", x, *given)
    if not isinstance(values[0], Array):
        raise OperationError(f"clip: the first operand is an Array; got {type(x).__name__}.")
    result: Array = apply("clip", values, attrs)
    return result


def where(condition: Any, x1: Any, x2: Any, /) -> Array:
    """Elements of x1 where the condition holds, of x2 elsewhere."""
    values = operands("where", condition, x1, x2)
    result: Array = apply("where", values)
    return result


def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: object = None) -> Array:
    """The elements converted to another dtype."""
    check_device(device)
    if not copy and x.dtype == np.dtype(dtype):
        return x
    result: Array = apply("astype", (array("astype", x),), Attrs(dtype=np.dtype(dtype)))
    return result


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Whether each element of x1 is among those of x2."""
    x, values = operands("isin", x1, x2)
    first = next(v for v in (x, values) if isinstance(v, Array))
    x = x if isinstance(x, Array) else first.beside(np.asarray(x))
    values = values if isinstance(values, Array) else first.beside(np.asarray(values))
    flat = values if values.ndim == 1 else apply("reshape", (values,), Attrs(shape=(values.size,)))
    result: Array = apply("isin", (x, flat), Attrs(invert=invert))
    return result


def check_device(device: object) -> None:
    """Arrays lie on the devices of a mesh; the standard's single device has one name."""
    if device is not None and device != "mesh":
        raise OperationError(f"device={device!r}: arrays lie on the devices of a mesh. Use sharding= to say where.")
