"""The values that XLA's operations work on, and rows of the table on them.

A value is a NumPy array where it is known (constants, sizes), and otherwise an `Array`: of a program that is being traced, or
with data. Dims of a known value that repeat have a stride of 0, so a constant of any size takes no memory.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from shardwright.arrays import Array, shard
from shardwright.eager import apply
from shardwright.engines import row_function
from shardwright.errors import ArrayError
from shardwright.mesh import current_mesh
from shardwright.ops import NO_ATTRS, OPS, Attrs, is_small
from shardwright.program import current_trace
from shardwright.sharding import P

Value = Any  # a NumPy array or an Array
DType = np.dtype[Any]
MOST_FOLDED = 65_536  # elements of a known result that is worked out while a program is traced

_constants: ContextVar[dict[Any, Array] | None] = ContextVar("constants", default=None)


def is_known(value: Value) -> bool:
    """Whether a value's elements are known now."""
    return isinstance(value, np.ndarray)


def is_splat(value: Value) -> bool:
    """Whether a known value is one element repeated."""
    return is_known(value) and value.size > 0 and (value.size == 1 or not any(value.strides))


def splat(element: Any, shape: Sequence[int], dtype: Any) -> Any:
    """One element repeated, which takes no memory."""
    return np.broadcast_to(np.asarray(element, dtype), tuple(shape))


def first_of(value: Value) -> Any:
    """The element of a splat, as a Python scalar."""
    return value[(0,) * value.ndim].item()


def known_int(value: Value) -> int | None:
    """The integer that a known value without dims is; None if it is not known."""
    return int(value) if is_known(value) else None


@contextlib.contextmanager
def shared_constants() -> Iterator[None]:
    """Inside, known values with the same elements are placed on the mesh once."""
    if _constants.get() is not None:
        yield
        return
    token = _constants.set({})
    try:
        yield
    finally:
        _constants.reset(token)


def lifted(value: Value) -> Array:
    """A value as an Array: known values are replicated; dims that repeat are broadcast on the devices."""
    if isinstance(value, Array):
        return value
    mesh = current_mesh()
    if mesh is None:
        raise ArrayError("There is no mesh to place a constant on. Write `with mesh:` around the call.")
    once = value[
        tuple(
            slice(0, 1) if stride == 0 and n else slice(None)
            for stride, n in zip(value.strides, value.shape, strict=True)
        )
    ]
    if once.size == 1:
        once = once.reshape(())
    known, held = _constants.get(), None
    key = (once.dtype.name, once.shape, once.tobytes(), mesh) if once.nbytes <= MOST_FOLDED else None
    if known is not None and key is not None:
        held = known.get(key)
    if held is None:
        held = shard(np.array(once), mesh, P())
        if known is not None and key is not None:
            known[key] = held
    trace = current_trace()
    if trace is not None:
        held = trace.lift(held)  # else operations on constants alone would be computed now
    return held if held.shape == value.shape else apply("broadcast_to", (held,), Attrs(shape=value.shape))


def row(name: str, /, *operands: Value, **attrs: Any) -> Value:
    """A row of the table; where all operands are known and small, it is worked out now."""
    full = Attrs(**attrs) if attrs else NO_ATTRS
    if all(map(is_known, operands)):
        made = folded(name, operands, full)
        if made is not None:
            return made
    return apply(name, _ready(name, operands), full)


def _ready(name: str, operands: Sequence[Value]) -> list[Any]:
    """Operands as rows take them: splats as scalars where that changes neither shape nor dtype."""
    if not OPS[name].elementwise:
        return [lifted(x) for x in operands]
    arrays = [x for x in operands if not is_known(x)]
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    result: list[Any] = []
    for x in operands:
        plain = is_splat(x) and any(y.shape == shape and y.dtype == x.dtype for y in arrays)
        plain = plain and (x.dtype.kind in "biuf" or is_small(x.dtype))
        result.append(first_of(x) if plain else lifted(x))
    return result


def folded(name: str, operands: Sequence[Any], attrs: Attrs) -> Any:
    """A row on known values; None if its operands are too large."""
    if OPS[name].elementwise or name == "astype":
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        if math.prod(shape) > 1 and all(map(is_splat, operands)):
            small = [x[(slice(0, 1),) * x.ndim].reshape(()) for x in operands]
            return np.broadcast_to(folded(name, small, attrs), shape)
        if math.prod(shape) > MOST_FOLDED:
            return None
    if any(x.size > MOST_FOLDED for x in operands) or math.prod(attrs.get("shape", ())) > MOST_FOLDED:
        return None
    with np.errstate(all="ignore"):
        made = row_function(name, [(x.shape, x.dtype) for x in operands], attrs)(*map(contiguous, operands))
    if isinstance(made, tuple):
        return tuple(map(np.asarray, made))
    return np.asarray(made).reshape(np.shape(made))


def contiguous(x: Any) -> Any:
    """A known value with all its elements in memory; NumPy's own function would add a dim to one without."""
    return np.array(x, order="C", copy=None)


# -- moves that keep known values small -------------------------------------------------------------------------------------


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """The same elements in another shape."""
    new = tuple(shape)
    if new == tuple(x.shape):
        return x
    if is_splat(x):
        return splat(x[(0,) * x.ndim], new, x.dtype)
    if is_known(x):
        return x.reshape(new)
    return row("reshape", x, shape=new)


def permute(x: Value, axes: Sequence[int]) -> Value:
    """Dims in another order."""
    order = tuple(axes)
    if order == tuple(range(len(order))):
        return x
    return x.transpose(order) if is_known(x) else row("permute_dims", x, axes=order)


def broadcast(x: Value, shape: Sequence[int]) -> Value:
    """Elements repeated along new leading dims and dims of size 1."""
    new = tuple(shape)
    if new == tuple(x.shape):
        return x
    return np.broadcast_to(x, new) if is_known(x) else row("broadcast_to", x, shape=new)


def broadcast_in_dim(x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
    """Elements repeated; dim i of the operand is dim dims[i] of the result."""
    between = [1] * len(shape)
    for dim, n in zip(dims, x.shape, strict=True):
        between[dim] = n
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    return broadcast(reshape(permute(x, order), between), shape)


def expand(x: Value, dim: int) -> Value:
    """A new dim of size 1."""
    return reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))


def cast(x: Value, dtype: Any) -> Value:
    """Elements converted as NumPy does."""
    wanted = np.dtype(dtype)
    return x if x.dtype == wanted else row("astype", x, dtype=wanted)


def full_like(x: Value, element: Any) -> Value:
    """A known value of the shape and dtype of another, one element repeated."""
    return splat(element, x.shape, x.dtype)


def where(condition: Value, x: Value, y: Value) -> Value:
    """Elements of x where a condition holds, of y elsewhere."""
    if is_splat(condition):
        chosen = x if first_of(condition) else y
        return broadcast(chosen, np.broadcast_shapes(condition.shape, x.shape, y.shape))
    return row("where", condition, x, y)


def is_float(dtype: DType) -> bool:
    """Whether a dtype is a real floating-point dtype."""
    return dtype.kind == "f" or is_small(dtype)
