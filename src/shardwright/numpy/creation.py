"""New arrays: on the current mesh, with the given sharding or the policy's."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.arrays import Array, shard
from shardwright.eager import apply, lifted, sharding_for
from shardwright.errors import ArrayError, OperationError
from shardwright.mesh import current_mesh
from shardwright.numpy.common import array, integer, operands, sizes_of
from shardwright.numpy.common import arrays as as_arrays
from shardwright.numpy.elementwise import astype, check_device, where
from shardwright.numpy.statistics import any
from shardwright.ops import Attrs
from shardwright.sharding import P, Sharding

Where = Sharding | P | None
Shape = int | Sequence[int]


def _new(host: Any, sharding: Where, device: object, copy: bool = False) -> Array:
    check_device(device)
    result: Array = lifted(shard(host, sharding_for(np.shape(host), sharding), copy=copy))
    return result


def asarray(
    obj: Any, /, *, dtype: Any = None, device: object = None, copy: bool | None = None, sharding: Where = None
) -> Array:
    """An Array from anything NumPy accepts; an Array is returned as it is unless a dtype, copy or sharding is given."""
    check_device(device)
    if isinstance(obj, Array):
        x = (
            obj
            if dtype is None or np.dtype(dtype) == obj.dtype
            else apply("astype", (obj,), Attrs(dtype=np.dtype(dtype)))
        )
        if x is not obj and copy is False:
            raise ValueError(f"{obj.dtype} can't become {np.dtype(dtype)} without a copy, and copy=False forbids one.")
        if copy and x is obj:
            x = obj.copied()
        return x if sharding is None else x.reshard(sharding)
    nested = _nested(obj)
    host = np.asarray(nested, dtype=dtype)
    if copy is False and not isinstance(obj, np.ndarray):
        raise ValueError("A list or a scalar can't become an array without a copy, and copy=False forbids one.")
    return _new(host, sharding, device, copy=copy is not False)


def _nested(obj: Any) -> Any:
    """Converts lists of Arrays to lists of host tensors."""
    if isinstance(obj, list | tuple):
        return [_nested(entry) for entry in obj]
    return obj.numpy() if isinstance(obj, Array) else obj


def zeros(shape: Shape, *, dtype: Any = None, device: object = None, sharding: Where = None) -> Array:
    """Zeros; float64 by default."""
    return _new(np.zeros(sizes_of("zeros", shape), dtype or np.float64), sharding, device)


def ones(shape: Shape, *, dtype: Any = None, device: object = None, sharding: Where = None) -> Array:
    """Ones; float64 by default."""
    return _new(np.ones(sizes_of("ones", shape), dtype or np.float64), sharding, device)


def empty(shape: Shape, *, dtype: Any = None, device: object = None, sharding: Where = None) -> Array:
    """An array with unspecified elements (zeros in fact, so that engines never differ)."""
    return zeros(shape, dtype=dtype, device=device, sharding=sharding)


def full(shape: Shape, fill_value: Any, *, dtype: Any = None, device: object = None, sharding: Where = None) -> Array:
    """An array filled with one value."""
    return _new(np.full(sizes_of("full", shape), _host(fill_value), dtype), sharding, device)


def _host(value: Any) -> Any:
    return value.numpy() if isinstance(value, Array) else value


def _like(x: Array, host: Any, sharding: Where, device: object) -> Array:
    check_device(device)
    if sharding is not None:
        return shard(host, sharding if isinstance(sharding, Sharding) else Sharding(x.mesh, sharding), copy=False)
    return shard(host, x.layout.sharding.replace(partial=(), halo={}), copy=False)


def zeros_like(x: Array, /, *, dtype: Any = None, device: object = None, sharding: Where = None) -> Array:
    """Zeros of an array's shape, dtype and sharding."""
    return _like(x, np.zeros(x.shape, dtype or x.dtype), sharding, device)


def ones_like(x: Array, /, *, dtype: Any = None, device: object = None, sharding: Where = None) -> Array:
    """Ones of an array's shape, dtype and sharding."""
    return _like(x, np.ones(x.shape, dtype or x.dtype), sharding, device)


def empty_like(x: Array, /, *, dtype: Any = None, device: object = None, sharding: Where = None) -> Array:
    """An array with unspecified elements (zeros in fact), with an array's shape, dtype and sharding."""
    return zeros_like(x, dtype=dtype, device=device, sharding=sharding)


def full_like(
    x: Array, /, fill_value: Any, *, dtype: Any = None, device: object = None, sharding: Where = None
) -> Array:
    """An array filled with one value, with an array's shape, dtype and sharding."""
    return _like(x, np.full(x.shape, _host(fill_value), dtype or x.dtype), sharding, device)


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: object = None, sharding: Where = None
) -> Array:
    """Evenly spaced values with a given step."""
    first, last = (0, start) if stop is None else (start, stop)
    host: Any = np.arange(first, last, step, dtype=dtype)
    return _new(host, sharding, device)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: object = None, endpoint: bool = True,
    sharding: Where = None,
) -> Array:  # fmt: skip
    """A given number of evenly spaced values; between Arrays the values are along a new first dim."""
    check_device(device)
    count = integer("linspace", "num", num)
    if count < 0:
        raise OperationError(f"linspace: num={num} is negative. Give 0 or more.")
    if isinstance(start, Array) or isinstance(stop, Array):
        result = _spaced(start, stop, count, dtype, endpoint)
        return result if sharding is None else result.reshard(sharding)
    return _new(np.linspace(start, stop, count, dtype=dtype, endpoint=endpoint), sharding, device)


def _spaced(start: Any, stop: Any, num: int, dtype: Any, endpoint: bool) -> Array:
    """`linspace` between Arrays, in the order of NumPy's computation, so that values are the same to the last bit."""
    ends = operands("linspace", start, stop)
    kind = np.result_type(*(x.dtype if isinstance(x, Array) else x for x in ends), 1.0)
    first, last = (astype(x, kind) for x in as_arrays("linspace", *ends))
    rank = max(first.ndim, last.ndim)
    rows = first.beside(np.arange(num, dtype=kind).reshape(-1, *(1,) * rank))
    distance, steps = last - first, num - 1 if endpoint else num
    if steps > 0:
        step = distance / steps
        result = where(any(step == 0), rows / steps * distance, rows * step)  # a step may underflow
    else:
        result = rows * distance
    result = result + first
    if endpoint and num > 1:
        result = where(rows == num - 1, last, result)
    kind = kind if dtype is None else np.dtype(dtype)
    return astype(apply("floor", (result,)) if kind.kind in "iu" else result, kind)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: object = None,
    sharding: Where = None,
) -> Array:  # fmt: skip
    """Ones on a diagonal."""
    rows = integer("eye", "n_rows", n_rows)
    cols = rows if n_cols is None else integer("eye", "n_cols", n_cols)
    return _new(np.eye(rows, cols, k=integer("eye", "k", k), dtype=dtype or np.float64), sharding, device)


def from_dlpack(x: Any, /, *, device: object = None, copy: bool | None = None, sharding: Where = None) -> Array:
    """An Array on the current mesh from any object that supports DLPack."""
    if isinstance(x, Array):
        mesh = current_mesh()
        if mesh is None or mesh == x.mesh:
            return asarray(x, copy=copy)
    return _new(np.from_dlpack(x), sharding, device, copy=copy is not False)


def _triangle(name: str, x: Any, k: int, lower: bool) -> Array:
    a = array(name, x)
    if a.ndim < 2:
        raise ArrayError(f"{name} takes at least two dims; got shape {a.shape}.")
    result: Array = apply("triangle", (a,), Attrs(name=name, k=integer(name, "k", k), lower=lower))
    return result


def tril(x: Any, /, *, k: int = 0) -> Array:
    """The elements on and below a diagonal; zeros above."""
    return _triangle("tril", x, k, lower=True)


def triu(x: Any, /, *, k: int = 0) -> Array:
    """The elements on and above a diagonal; zeros below."""
    return _triangle("triu", x, k, lower=False)


def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple[Array, ...]:
    """Coordinates along the first array in the first result, and so on."""
    if indexing not in ("xy", "ij"):
        raise ArrayError(f"meshgrid: indexing is 'xy' or 'ij', not {indexing!r}.")
    given = as_arrays("meshgrid", *arrays)
    sizes = [x.size for x in given]
    order = list(range(len(given)))
    if indexing == "xy" and len(given) > 1:
        order[:2] = [1, 0]
    shape = tuple(sizes[i] for i in order)
    results = []
    for i, x in enumerate(given):
        column = tuple(sizes[j] if j == i else 1 for j in order)
        results.append(apply("broadcast_to", (apply("reshape", (x,), Attrs(shape=column)),), Attrs(shape=shape)))
    return tuple(results)
