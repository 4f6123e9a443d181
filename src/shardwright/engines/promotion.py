"""The dtypes in which NumPy computes: engines with other array functions convert operands to these first."""

from typing import Any

import numpy as np

Kind = Any  # of an operand: a dtype of NumPy, or the type of a Python scalar


def loop_dtypes(ufunc: np.ufunc, kinds: tuple[Kind, ...]) -> tuple[np.dtype[Any], ...]:
    """The dtypes in which NumPy computes, operands first; Python scalars are weak.

    >>> [str(dtype) for dtype in loop_dtypes(np.add, (np.dtype("int32"), np.dtype("float32")))]
    ['float64', 'float64', 'float64']
    """
    dtypes = tuple(np.dtype(bool) if kind is bool else kind for kind in kinds)
    return ufunc.resolve_dtypes((*dtypes, *(None,) * ufunc.nout))


def total_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of NumPy's sums: small integers are summed in 64 bits."""
    return np.dtype({"b": np.int64, "i": np.int64, "u": np.uint64}.get(dtype.kind, dtype))
