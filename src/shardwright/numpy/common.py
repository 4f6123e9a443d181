"""What the functions of the namespace share: operands, axes, types."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.arrays import Array, PerDevice
from shardwright.errors import ArrayError, AxisError, OperationError

Axis = int | Sequence[int] | None
SCALARS = (bool, int, float, complex)


def operands(name: str, *values: Any) -> list[Any]:
    """Arrays and scalars for an operation; host tensors beside an array are replicated on its mesh."""
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
                f"{name}: {type(given).__name__} is neither an Array, nor a host tensor, nor a number."
            )
    return result


def arrays(name: str, *values: Any) -> list[Array]:
    """Operands of which all must be arrays: numbers become arrays without dims."""
    given = operands(name, *values)
    first = next(x for x in given if isinstance(x, Array))
    return [x if isinstance(x, Array) else first.beside(np.asarray(x)) for x in given]


def array(name: str, x: Any) -> Array:
    """The only operand of an operation."""
    result: Array = operands(name, x)[0]
    return result


def axes_of(name: str, axis: Axis, ndim: int) -> tuple[int, ...]:
    """Dims by number, counted from the front; None is all of them."""
    if axis is None:
        return tuple(range(ndim))
    given = (axis,) if isinstance(axis, int | np.integer) else tuple(axis)
    result = tuple(axis_of(name, one, ndim) for one in given)
    if len(set(result)) < len(result):
        raise OperationError(f"{name}: axis={axis} names a dim twice.")
    return result


def axis_of(name: str, axis: Any, ndim: int) -> int:
    """One dim by number, counted from the front."""
    if not isinstance(axis, int | np.integer) or not -ndim <= axis < ndim:
        raise AxisError(f"{name}: axis={axis!r} is out of range for a tensor of {ndim} dims.")
    return int(axis) % ndim


def reduced(x: Array) -> Array:
    """The array with its reduction done: for a value that several operations will read."""
    return x.reduced()


def is_float(dtype: "np.dtype[Any]") -> bool:
    """Whether a dtype has fractions: floats, complex numbers, the small floats of ml_dtypes."""
    return dtype.kind not in "biu"


def wide_dtype(dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """The dtype in which averages of a dtype are computed, as NumPy does: integers in float64, small floats in float32."""
    if not is_float(dtype):
        return np.dtype(np.float64)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def sum_dtype(dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """The dtype that sums and products of a dtype have: small integers grow, as the standard says."""
    return np.dtype(np.add.reduce(np.empty(0, dtype)).dtype)
