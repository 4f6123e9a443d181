"""Functions that work element by element: one row of the table each."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwright.arrays import Array
from shardwright.eager import apply, binary
from shardwright.errors import OperationError
from shardwright.numpy.common import array, number_dtype, operands
from shardwright.ops import Attrs


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


abs = _unary("abs")
acos = _unary("acos")
acosh = _unary("acosh")
asin = _unary("asin")
asinh = _unary("asinh")
atan = _unary("atan")
atanh = _unary("atanh")
bitwise_invert = _unary("bitwise_invert")
ceil = _unary("ceil")
conj = _unary("conj")
cos = _unary("cos")
cosh = _unary("cosh")
exp = _unary("exp")
expm1 = _unary("expm1")
floor = _unary("floor")
imag = _unary("imag")
isfinite = _unary("isfinite")
isinf = _unary("isinf")
isnan = _unary("isnan")
log = _unary("log")
log1p = _unary("log1p")
log2 = _unary("log2")
log10 = _unary("log10")
logical_not = _unary("logical_not")
negative = _unary("negative")
positive = _unary("positive")
real = _unary("real")
reciprocal = _unary("reciprocal")
round = _unary("round")
sign = _unary("sign")
signbit = _unary("signbit")
sin = _unary("sin")
sinh = _unary("sinh")
square = _unary("square")
sqrt = _unary("sqrt")
tan = _unary("tan")
tanh = _unary("tanh")
trunc = _unary("trunc")
exp2 = _unary("exp2")
cbrt = _unary("cbrt")
rint = _unary("rint")
degrees = _unary("degrees")
radians = _unary("radians")

add = _binary("add")
atan2 = _binary("atan2")
bitwise_and = _binary("bitwise_and")
bitwise_left_shift = _binary("bitwise_left_shift")
bitwise_or = _binary("bitwise_or")
bitwise_right_shift = _binary("bitwise_right_shift")
bitwise_xor = _binary("bitwise_xor")
copysign = _binary("copysign")
divide = _binary("divide")
equal = _binary("equal")
floor_divide = _binary("floor_divide")
greater = _binary("greater")
greater_equal = _binary("greater_equal")
hypot = _binary("hypot")
less = _binary("less")
less_equal = _binary("less_equal")
logaddexp = _binary("logaddexp")
logical_and = _binary("logical_and")
logical_or = _binary("logical_or")
logical_xor = _binary("logical_xor")
maximum = _binary("maximum")
minimum = _binary("minimum")
multiply = _binary("multiply")
nextafter = _binary("nextafter")
not_equal = _binary("not_equal")
pow = _binary("pow")
remainder = _binary("remainder")
subtract = _binary("subtract")
fmax = _binary("fmax")
fmin = _binary("fmin")
fmod = _binary("fmod")


def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """Elements limited to two bounds, either of which may be missing."""
    given = [bound for bound in (min, max) if bound is not None]
    attrs = Attrs(low=min is not None, high=max is not None)
    values = operands("clip", x, *given)
    if not isinstance(values[0], Array):
        raise OperationError(f"clip: the first operand must be an Array; got {type(x).__name__}.")
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
    kind = number_dtype("astype", dtype)
    if not copy and x.dtype == kind:
        return x
    result: Array = apply("astype", (array("astype", x),), Attrs(dtype=kind))
    return result


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Whether each element of x1 is an element of x2."""
    x, values = operands("isin", x1, x2)
    first = next(v for v in (x, values) if isinstance(v, Array))
    x = x if isinstance(x, Array) else first.beside(np.asarray(x))
    values = values if isinstance(values, Array) else first.beside(np.asarray(values))
    flat = values if values.ndim == 1 else apply("reshape", (values,), Attrs(shape=(values.size,)))
    result: Array = apply("isin", (x, flat), Attrs(invert=invert))
    return result


def check_device(device: object) -> None:
    """Raises OperationError unless `device` is None or the standard's single device, the mesh."""
    if device is not None and device != "mesh":
        raise OperationError(
            f"device={device!r}: arrays are placed on the devices of a mesh. Use sharding= to choose how."
        )
