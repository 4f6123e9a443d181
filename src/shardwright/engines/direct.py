"""NumPy's functions in place of kernels, on whole tensors: `DIRECT` is their table, and each is tested against its kernel."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.engines.blocks import BLOCK, Line, Value, blocked
from shardwright.kernels import PLAIN, Call, contraction
from shardwright.kernels.elementwise import FARTHEST, TAIL
from shardwright.ops import small_dtype

Data = NDArray[Any]
Function = Callable[..., Any]


def direct(call: Call) -> Function | None:
    """NumPy's function in place of a kernel without lanes; None where the kernel must run."""
    make = DIRECT.get(call.name) or (_elementwise if call.name in PLAIN else None)
    function = make(call) if make is not None and small_dtype(call.dtypes) is None else None
    return function if function is None or call.result.shape else _of_one_element(function)


def _of_one_element(function: Function) -> Function:
    """NumPy gives scalars for results without dims; data is always an array."""
    return lambda *data: np.asarray(function(*data))


def _elementwise(call: Call) -> Function | None:
    return getattr(np, call.name) if not call.attrs else None


def _reduction(ufunc: np.ufunc) -> Callable[[Call], Function | None]:
    def make(call: Call) -> Function | None:
        attrs = dict(call.attrs)
        axis: tuple[int, ...] | None = tuple(attrs.pop("axis"))
        keepdims = attrs.pop("keepdims", False)
        dtype = attrs.pop("dtype", None)
        empty = ufunc in (np.maximum, np.minimum) and 0 in (call.operands[0].shape[dim] for dim in axis or ())
        if attrs or empty:
            return None
        if len(axis or ()) == len(call.operands[0].shape) and not keepdims:
            axis = None  # the fastest way over all elements
        if dtype is None and ufunc in (np.logical_and, np.logical_or):
            dtype = np.dtype(bool)
        reduce: Any = ufunc.reduce
        return lambda x: reduce(x, axis, dtype, None, keepdims)

    return make


def _first_true(call: Call) -> Function | None:
    (axis,), keepdims, size = (
        call.attrs["axis"],
        bool(call.attrs["keepdims"]),
        call.operands[0].shape[call.attrs["axis"][0]],
    )
    if not size:
        return None

    def first_true(found: Data) -> Data:
        at = np.argmax(found, axis=axis, keepdims=True)
        made = np.where(np.take_along_axis(found, at, axis=axis), at, size)
        return made if keepdims else made.squeeze(axis)

    return first_true


def _sort(call: Call) -> Function:
    """NumPy's fastest sort, which gives what a stable one does but for the order of 0.0 and -0.0; where these are, that one."""
    axis, descending = call.attrs["axis"], call.attrs["descending"]

    def sort(x: Data) -> Data:
        stable = x.dtype.kind in "fc" and bool(((x == 0) & np.signbit(x.real)).any())
        made = np.sort(x, axis=axis, kind="stable" if stable else None)
        return np.flip(made, axis=axis) if descending else made

    return sort


# Twice the normal distribution beyond 2h, for h from 0 to `NEAR`, is close to 1 / (p(h)² + c)^8, which takes no exponential
# (Abramowitz and Stegun 7.1.28 is of this form). The coefficients of p, innermost first, and c were found by nonlinear least
# squares, with weights raised where the error is large until it is level: gelu's error is 4e-7 in float32, its relative
# error 5e-6.
CENTRE = tuple(map(np.float32, (0.0043330225, -0.0069402747, 0.026190413, 0.1166645, 0.14816436, 0.67313043)))
CONSTANT = np.float32(0.54689576)
NEAR = np.float32(1.5)


def _gelu(call: Call) -> Function | None:
    """Block by block, in float32; by the kernel's formula where |x| / 2 is beyond `NEAR`, or everywhere if that is often."""
    if call.dtypes[0] != np.float32:
        return None
    far = _gelu_far()

    def gelu(x: Data) -> Data:
        flat = np.ascontiguousarray(x).reshape(-1)
        sample = flat[:: flat.size // 1024 + 1]
        if np.count_nonzero(np.abs(sample) > 2 * NEAR) > len(sample) // 8:
            (made,) = far(flat)
        else:
            made, rows = _gelu_near(flat)
            (made[rows],) = far(flat[rows])
        return made.reshape(x.shape)

    return gelu


def _gelu_near(x: Data) -> tuple[Data, Data]:
    """gelu of the elements up to `NEAR`, and where the others are."""
    made = np.empty_like(x)
    size, power = np.empty((2, min(BLOCK, len(x))), np.float32)
    beyond = np.empty(len(size), bool)
    half, near, inner, *others, constant = (np.asarray(c) for c in (np.float32(0.5), NEAR, *CENTRE, CONSTANT))
    multiply, add = np.multiply, np.add
    rows = []
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(x), BLOCK):
            block, result = x[start : start + BLOCK], made[start : start + BLOCK]
            if len(block) < len(size):
                size, power, beyond = size[: len(block)], power[: len(block)], beyond[: len(block)]
            multiply(block, half, result)
            np.abs(result, size)
            np.greater(size, near, beyond)
            rows.append(beyond.nonzero()[0] + start)
            multiply(size, inner, power)
            for coefficient in others[:-1]:
                add(power, coefficient, power)
                multiply(power, size, power)
            add(power, others[-1], power)
            multiply(power, power, power)
            add(power, constant, power)
            for _ in range(3):
                multiply(power, power, power)
            add(result, size, result)  # max(x, 0): half of x and half of |x|
            np.divide(size, power, size)
            np.subtract(result, size, result)
    return made, np.concatenate(rows) if rows else np.empty(0, int)


def _gelu_far() -> Function:
    """The kernel's formula."""
    lines: list[Line] = []

    def line(function: Any, *inputs: Any) -> Value:
        scalars = (np.float32(x) if isinstance(x, float) else x for x in inputs)
        lines.append(Line(function, tuple(scalars), np.dtype(np.float32)))
        return Value(len(lines))

    x = Value(0)
    size = line(np.minimum, line(np.abs, x), FARTHEST)
    above, below = (_horner(line, some, size) for some in TAIL)
    power = line(np.exp, line(np.multiply, line(np.multiply, size, size), -0.5))
    tail = line(np.multiply, line(np.divide, above, below), power)
    line(np.subtract, line(np.maximum, x, 0.0), line(np.multiply, size, tail))
    return blocked(1, lines, [len(lines)])


def _horner(line: Function, coefficients: Sequence[float], z: Value) -> Value:
    total = line(np.add, line(np.multiply, z, coefficients[0]), coefficients[1])
    for coefficient in coefficients[2:]:
        total = line(np.add, line(np.multiply, total, z), coefficient)
    return total


def _concat(call: Call) -> Function:
    axis, dtype = call.attrs["axis"], call.result_dtypes[0]
    return lambda *data: np.concatenate(data, axis, dtype=dtype)


def _reshape(call: Call) -> Function:
    shape = call.result.shape
    return lambda x: x.reshape(shape)


def _permute_dims(call: Call) -> Function:
    axes = call.attrs["axes"]
    return lambda x: x.transpose(axes)


def _broadcast_to(call: Call) -> Function:
    shape = call.result.shape
    return lambda x: np.broadcast_to(x, shape)


def _astype(call: Call) -> Function | None:
    dtype = call.attrs["dtype"]
    return (lambda x: x.astype(dtype)) if len(call.operands) == 1 else None


def _assign(call: Call) -> Function:
    rows = tuple(
        slice(None) if m is None else slice(m.start, m.start + (m.size - 1) * m.stride + 1, m.stride)
        for m in call.attrs["maps"]
    )

    def assign(x: Data, value: Data) -> Data:
        made = np.array(x)
        made[rows] = value
        return made

    return assign


def _scatter(call: Call) -> Function:
    dims, rank = call.attrs["dims"], len(call.result.shape)
    order = (*dims, *(dim for dim in range(rank) if dim not in dims))

    def scatter(x: Data, value: Data, *indices: Data) -> Data:
        made = np.array(x)
        try:
            made.transpose(order)[indices] = value
        except IndexError:  # rows for places that the tensor has not are dropped
            pairs = zip(indices, dims, strict=True)
            inside = np.all([(index >= -x.shape[dim]) & (index < x.shape[dim]) for index, dim in pairs], axis=0)
            kept = value[inside] if len(value) == len(inside) else value
            made.transpose(order)[tuple(index[inside] for index in indices)] = kept
        return made

    return scatter


DIRECT: dict[str, Callable[[Call], Function | None]] = {
    "einsum": contraction,
    "sum": _reduction(np.add),
    "prod": _reduction(np.multiply),
    "max": _reduction(np.maximum),
    "min": _reduction(np.minimum),
    "all": _reduction(np.logical_and),
    "any": _reduction(np.logical_or),
    "first_true": _first_true,
    "sort": _sort,
    "gelu": _gelu,
    "concat": _concat,
    "reshape": _reshape,
    "permute_dims": _permute_dims,
    "broadcast_to": _broadcast_to,
    "astype": _astype,
    "assign": _assign,
    "scatter": _scatter,
}
