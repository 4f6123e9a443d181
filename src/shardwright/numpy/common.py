"""Shared helpers of the namespace: operands, integers, axes, dtypes."""

import operator
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from shardwright.arrays import Array, PerDevice
from shardwright.errors import ArrayError, AxisError, OperationError, ShardingError, TraceError
from shardwright.sharding import as_dtype, is_number

Axis = int | Sequence[int] | None
SCALARS = (bool, int, float, complex)


def operands(name: str, *values: Any) -> list[Any]:
    """Converts operands to Arrays and scalars; host tensors are replicated on the mesh of the first Array."""
    first = next((x for x in values if isinstance(x, Array)), None)
    if first is None and any(isinstance(x, PerDevice) for x in values):
        raise ArrayError(
            f"{name} takes Arrays. On the tensors of each device use v.map(function), with NumPy's functions."
        )
    if first is None:
        raise ArrayError(
            f"{name} takes at least one Array; got {', '.join(type(x).__name__ for x in values)}. "
            f"Make one with sw.shard(host, mesh, P(…)), or with asarray inside `with mesh:`."
        )
    result = [first.beside(x) for x in values]
    for given, x in zip(values, result, strict=True):
        if x is NotImplemented:
            raise OperationError(
                f"{name}: {type(given).__name__} is not a valid operand. Give an Array, a host tensor or a scalar."
            )
    return result


def arrays(name: str, *values: Any) -> list[Array]:
    """Converts all operands to Arrays; scalars become arrays without dims."""
    given = operands(name, *values)
    first = next(x for x in given if isinstance(x, Array))
    return [x if isinstance(x, Array) else first.beside(np.asarray(x)) for x in given]


def array(name: str, x: Any) -> Array:
    """The only operand of an operation."""
    result: Array = operands(name, x)[0]
    return result


def number_dtype(name: str, dtype: Any) -> "np.dtype[Any]":
    """A checked dtype argument, in the byte order of this machine."""
    try:
        kind = _native(dtype)
    except (TypeError, ShardingError) as error:
        raise OperationError(f"{name}: dtype={dtype!r} is not a dtype: {error}") from None
    if not is_number(kind):
        raise OperationError(f"{name}: dtype={kind} has no numbers or booleans. Give a numeric or boolean dtype.")
    return kind


@cache
def _native(dtype: Any) -> "np.dtype[Any]":
    return as_dtype(dtype).newbyteorder("=")


def integer(name: str, what: str, value: Any) -> int:
    """A checked integer argument: floats and strings are refused."""
    return _indexed((value,), f"{name}: {what}={value!r}; give an integer.")[0]


def integers(name: str, what: str, value: Any) -> tuple[int, ...]:
    """Checked integer arguments, given as one integer or a sequence of them."""
    several = isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0
    return _indexed(
        value if several else (value,), f"{name}: {what}={value!r}; give an integer or a sequence of integers."
    )


def _indexed(values: Iterable[Any], text: str) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, values))
    except TraceError:
        raise
    except TypeError:
        raise OperationError(text) from None


def sizes_of(name: str, shape: Any) -> tuple[int, ...]:
    """A checked shape, given as one size or a sequence of them."""
    result = integers(name, "shape", shape)
    if any(n < 0 for n in result):
        raise OperationError(f"{name}: shape={shape!r} has a negative size. Give sizes of 0 or more.")
    return result


def axes_of(name: str, axis: Axis, ndim: int) -> tuple[int, ...]:
    """Checked dim indices, counted from the front; None is all dims."""
    if axis is None:
        return tuple(range(ndim))
    given = tuple(axis) if isinstance(axis, Iterable) else (axis,)
    result = tuple(axis_of(name, one, ndim) for one in given)
    if len(set(result)) < len(result):
        raise OperationError(f"{name}: axis={axis} names a dim twice.")
    return result


def axis_of(name: str, axis: Any, ndim: int) -> int:
    """A checked dim index, counted from the front."""
    if not isinstance(axis, int | np.integer) or not -ndim <= axis < ndim:
        raise AxisError(f"{name}: axis={axis!r} is out of range for a tensor of {ndim} dims.")
    return int(axis) % ndim


def reduced(x: Array) -> Array:
    """The array after its pending reduction: for a value that several operations read."""
    return x.reduced()


def is_float(dtype: "np.dtype[Any]") -> bool:
    """Whether a dtype is a float or complex dtype, or a small float of ml_dtypes."""
    return dtype.kind not in "biu"


def wide_dtype(dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """The dtype for computing averages, as in NumPy: float64 for integers, float32 for small floats."""
    if not is_float(dtype):
        return np.dtype(np.float64)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def sum_dtype(dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """The dtype of sums and products: small integers are widened, as the standard requires."""
    return np.dtype(np.add.reduce(np.empty(0, dtype)).dtype)
