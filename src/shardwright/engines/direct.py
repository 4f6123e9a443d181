"""NumPy's functions in place of kernels, on whole tensors: `DIRECT` is their table, and each is tested against its kernel."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.engines.blocks import Line, Value, blocked
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


def _gelu(call: Call) -> Function | None:
    """Block by block, in float32."""
    if call.dtypes[0] != np.float32:
        return None
    lines: list[Line] = []
    single = np.dtype(np.float32)

    def line(function: Any, *inputs: Any) -> Value:
        lines.append(Line(function, tuple(np.float32(x) if isinstance(x, float) else x for x in inputs), single))
        return Value(len(lines))

    x = Value(0)
    size = line(np.minimum, line(np.abs, x), FARTHEST)
    above, below = (_horner(line, some, size) for some in TAIL)
    power = line(np.exp, line(np.multiply, line(np.multiply, size, size), -0.5))
    tail = line(np.multiply, line(np.divide, above, below), power)
    line(np.subtract, line(np.maximum, x, 0.0), line(np.multiply, size, tail))
    run_blocks = blocked(1, lines, [len(lines)])
    return lambda x: run_blocks(x if x.flags.c_contiguous else np.ascontiguousarray(x))[0]


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
        made.transpose(order)[indices] = value
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
