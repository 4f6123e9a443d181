"""The Python Array API standard, 2025.12, on sharded arrays, with `linalg` and `fft`.

Functions take `Array`s; host tensors and numbers beside one are replicated. New arrays lie on the mesh of `with mesh:`,
split as `sharding=` or the policy of `shardwright.auto` says.
"""

import sys as _sys
import typing as _t

import numpy as _np

from shardwright.array import Array as _Array
from shardwright.numpy import fft, linalg
from shardwright.numpy.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from shardwright.numpy.dtypes import (
    __array_namespace_info__,
    can_cast,
    e,
    finfo,
    iinfo,
    inf,
    isdtype,
    nan,
    newaxis,
    pi,
    result_type,
)
from shardwright.numpy.elementwise import FUNCTIONS as _FUNCTIONS
from shardwright.numpy.elementwise import astype, clip, isin, where
from shardwright.numpy.linalg import einsum, matmul, tensordot, vecdot
from shardwright.numpy.moves import (
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    matrix_transpose,
    moveaxis,
    permute_dims,
    repeat,
    reshape,
    roll,
    squeeze,
    stack,
    take,
    take_along_axis,
    tile,
    unstack,
)
from shardwright.numpy.statistics import (
    all,
    any,
    argmax,
    argmin,
    argsort,
    count_nonzero,
    cumulative_prod,
    cumulative_sum,
    diff,
    max,
    mean,
    min,
    nonzero,
    prod,
    searchsorted,
    sort,
    std,
    sum,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
    var,
)

__array_api_version__ = "2025.12"

globals().update(_FUNCTIONS)
bool, float32, float64 = _np.dtype("bool"), _np.dtype("float32"), _np.dtype("float64")
int8, int16, int32, int64 = map(_np.dtype, ("int8", "int16", "int32", "int64"))
uint8, uint16, uint32, uint64 = map(_np.dtype, ("uint8", "uint16", "uint32", "uint64"))
complex64, complex128 = _np.dtype("complex64"), _np.dtype("complex128")


_INTERNAL = ("common", "creation", "dtypes", "elementwise", "moves", "statistics", "annotations")
__all__ = [name for name in dict(globals()) if not name.startswith("_") and name not in _INTERNAL]
__all__ += ["__array_api_version__", "__array_namespace_info__"]


def _by_numpys() -> dict[_t.Any, _t.Callable[..., _t.Any]]:
    """NumPy's functions and ours of the same name; some by NumPy's older names too."""
    ours = {name: globals()[name] for name in __all__ if callable(globals()[name])}
    older = {
        "concatenate": concat,
        "transpose": _transposed,
        "amax": max,
        "amin": min,
        "array_equal": _array_equal,
        "allclose": _allclose,
    }
    pairs = {getattr(_np, name, None): function for name, function in (ours | older).items()}
    pairs |= {getattr(_np.linalg, name, None): getattr(linalg, name) for name in linalg.__all__}
    pairs |= {getattr(_np.fft, name, None): getattr(fft, name) for name in fft.__all__}
    return {
        function: ours for function, ours in pairs.items() if hasattr(function, "__wrapped__") or function is not None
    }


def _transposed(a: _Array, axes: _t.Any = None) -> _Array:
    return a.transpose(*(axes or ()))


def _array_equal(a1: _t.Any, a2: _t.Any, equal_nan: _t.Any = False) -> _t.Any:
    return _np.array_equal(_np.asarray(a1), _np.asarray(a2), equal_nan=equal_nan)


def _allclose(a: _t.Any, b: _t.Any, *args: _t.Any, **options: _t.Any) -> _t.Any:
    return _np.allclose(_np.asarray(a), _np.asarray(b), *args, **options)


_Array.namespace = _sys.modules[__name__]
_Array.functions = _by_numpys()
