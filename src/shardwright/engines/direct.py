"""NumPy's functions in place of kernels, on whole tensors: `DIRECT` is their table, and each is tested against its kernel."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.engines.attention import attention
from shardwright.engines.blocks import BLOCK, Line, Value, aligned, blocked, shared
from shardwright.kernels import NUMPY, PLAIN, Call, contraction, run
from shardwright.kernels.along import argsort
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
        zeros = x == 0 if x.dtype.kind in "fc" else None
        stable = zeros is not None and bool(zeros.any()) and bool(np.signbit(x.real[zeros]).any())
        made = np.sort(x, axis=axis, kind="stable" if stable else None)
        return np.flip(made, axis=axis) if descending else made

    return sort


def _top_k(call: Call) -> Function | None:
    """By a partition instead of a sort: what is beyond the k-th element, and the first of those that equal it.

    Only the selected elements are sorted. NaNs, which compare as nothing, are the kernel's.
    """
    axis, k, largest = call.attrs["axis"], call.attrs["k"], call.attrs["largest"]
    size = call.operands[0].shape[axis]
    if not 0 < k <= size // 8 or call.dtypes[0].kind not in "iuf":
        return None

    def top_k(x: Data) -> tuple[Data, ...]:
        rows = np.ascontiguousarray(np.moveaxis(x, axis, -1)).reshape(-1, size)
        if x.dtype.kind == "f" and np.isnan(rows).any():
            return run(call, [x])
        last = np.partition(rows, size - k if largest else k - 1, axis=-1)[:, size - k if largest else k - 1, None]
        chosen = rows > last if largest else rows < last
        equal = rows == last
        chosen |= equal & (np.cumsum(equal, axis=-1) <= k - np.count_nonzero(chosen, axis=-1)[:, None])
        places = chosen.nonzero()[1].reshape(len(rows), k)
        values = np.take_along_axis(rows, places, axis=-1)
        order = argsort(NUMPY, values, -1, largest, stable=True)
        shape = (*np.moveaxis(x, axis, -1).shape[:-1], k)
        return tuple(
            np.moveaxis(np.take_along_axis(some, order, axis=-1).reshape(shape), -1, axis) for some in (values, places)
        )

    return top_k


# gelu(x) is h · (1 + tanh(h · p(h²))), h = x / 2. For |x| up to `NEAR` the polynomial p is one of degree 5, but for little:
# `ANGLE` has its coefficients, that of h¹⁰ first, with which the largest error of gelu is least. In float32 that is 3e-7. Below
# 0 the 1 and the tanh cancel: the relative error grows to 3e-5 at -`NEAR`. NumPy's tanh of float32 is fast on every processor.
ANGLE = (-0.000183926328, 0.00183632027, -0.006881003734, -0.001138445223, 0.290684461594, 1.5957685709)
NEAR = 3.0
GELU_BLOCK = 2 * BLOCK  # many short passes: half as many calls save more than a larger cache costs
WORD = 8  # booleans that are read as one number
MOST_FAR = 0.25  # of all elements: where more are beyond, the kernel's formula serves for all


def _gelu(call: Call) -> Function | None:
    """Block by block, in float32; by the kernel's formula where |x| is beyond `NEAR`, or everywhere if that is often."""
    if call.dtypes[0] != np.float32:
        return None
    far = _gelu_far()

    def gelu(x: Data) -> Data:
        flat = np.ascontiguousarray(x).reshape(-1)
        sample = flat[:: flat.size // 1024 + 1]
        if np.count_nonzero(np.abs(sample) > NEAR) > MOST_FAR * len(sample):
            (made,) = far(flat)
        else:
            made, rows = _gelu_near(flat)
            (made[rows],) = far(flat[rows])
        return made.reshape(x.shape)

    return gelu


def _gelu_near(x: Data) -> tuple[Data, Data]:
    """gelu of the elements up to `NEAR`, and where the others are."""
    made, far = aligned(x.shape, x.dtype), aligned((-(-len(x) // WORD) * WORD,), bool)
    far[len(x) :] = False
    shared(len(x), GELU_BLOCK, lambda start, stop: _gelu_part(x[start:stop], made[start:stop], far[start:stop]))
    words = np.not_equal(far.view(np.uint64), 0).nonzero()[0]  # few are far, and eight are looked at at once
    word, byte = np.divmod(np.flatnonzero(far.reshape(-1, WORD)[words]), WORD)
    return made, words[word] * WORD + byte


def _gelu_part(x: Data, made: Data, far: Data) -> None:
    width = min(GELU_BLOCK, len(x))
    half, square, angle = (aligned((width,), x.dtype) for _ in range(3))
    first, *others, last = (np.asarray(np.float32(c)) for c in ANGLE)
    one_half, most = np.asarray(np.float32(0.5)), np.asarray(np.float32(NEAR * NEAR / 4))
    multiply, add, greater, tanh = np.multiply, np.add, np.greater, np.tanh
    whole = len(x) // width * width if width else 0
    blocks = zip(*[some[:whole].reshape(-1, width) for some in (x, made, far)], strict=True) if width else ()
    with np.errstate(over="ignore", invalid="ignore"):
        for given, result, beyond in blocks:
            multiply(given, one_half, half)
            multiply(half, half, square)
            greater(square, most, beyond)
            multiply(square, first, angle)
            for coefficient in others:
                add(angle, coefficient, angle)
                multiply(angle, square, angle)
            add(angle, last, angle)
            multiply(angle, half, angle)
            tanh(angle, angle)
            multiply(angle, half, angle)
            add(angle, half, result)
    if whole < len(x):
        _gelu_part(x[whole:], made[whole:], far[whole:])


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
    "attention": attention,
    "sum": _reduction(np.add),
    "prod": _reduction(np.multiply),
    "max": _reduction(np.maximum),
    "min": _reduction(np.minimum),
    "all": _reduction(np.logical_and),
    "any": _reduction(np.logical_or),
    "first_true": _first_true,
    "sort": _sort,
    "top_k": _top_k,
    "gelu": _gelu,
    "concat": _concat,
    "reshape": _reshape,
    "permute_dims": _permute_dims,
    "broadcast_to": _broadcast_to,
    "astype": _astype,
    "assign": _assign,
    "scatter": _scatter,
}
