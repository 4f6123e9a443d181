"""The dtypes of an operation's results, from the dtypes of its operands: a column of the table.

An array operand is given by its dtype, a Python scalar by its type: scalars are weak, as in NumPy.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

DType = np.dtype[Any]
Dtypes = Callable[[Sequence[Any], Mapping[str, Any]], tuple[DType, ...]]


def first(kinds: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[DType, ...]:
    """The dtype of the first operand: elements only move."""
    return (kinds[0],)


def with_places(kinds: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[DType, ...]:
    """The dtype of the first operand, and int64 for where its elements are."""
    return kinds[0], np.dtype(np.int64)


def promoted(kinds: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[DType, ...]:
    """The dtype that all operands promote to."""
    return (np.result_type(*(kind if isinstance(kind, np.dtype) else kind(1) for kind in kinds)),)


def given(kinds: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[DType, ...]:
    """The dtype that the call names, by default that of the operand."""
    return (attrs.get("dtype", kinds[0]),)


def always(dtype: Any) -> Dtypes:
    """One dtype for all operands."""
    return lambda kinds, attrs: (np.dtype(dtype),)


def floats(kinds: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[DType, ...]:
    """The dtype of the operand; float64 for integers and booleans."""
    return (kinds[0] if kinds[0].kind not in "biu" else np.dtype(np.float64),)


def complexes(count: int) -> Dtypes:
    """`count` complex results, even where NumPy returns real values if the data allows it."""
    return lambda kinds, attrs: (np.result_type(as_ran(np.linalg.eigvals, 2)(kinds, attrs)[0], np.complex64),) * count


def as_ran(function: Callable[..., Any], ndim: int = 1) -> Dtypes:
    """The dtypes that the function returns for operands of one element."""

    @lru_cache(maxsize=4096)
    def try_out(kinds: tuple[Any, ...]) -> tuple[DType, ...]:
        weak = small_dtype([kind for kind in kinds if isinstance(kind, np.dtype)])
        values = [
            np.ones((1,) * ndim, kind) if isinstance(kind, np.dtype) else as_weak(kind(1), weak) for kind in kinds
        ]
        with np.errstate(all="ignore"):
            made = function(*values)
        return tuple(x.dtype for x in made) if isinstance(made, tuple) else (np.asarray(made).dtype,)

    return lambda kinds, attrs: try_out(tuple(kinds))


def is_small(dtype: DType) -> bool:
    """Whether a dtype is one of the small floats of ml_dtypes."""
    return dtype.type.__module__.split(".")[0] == "ml_dtypes"


def work_dtype(dtype: DType) -> DType:
    """What sums of many terms are computed in: float32 for smaller floats."""
    small = is_small(dtype) or (dtype.kind == "f" and dtype.itemsize < 4)
    return np.dtype(np.float32) if small else dtype


@cache
def finite_range(dtype: DType) -> tuple[float, float]:
    """The lowest and the highest finite value of a dtype; for a complex dtype, of its parts."""
    if is_small(dtype) and dtype.itemsize <= 2:
        bits = np.dtype(f"u{dtype.itemsize}")
        with np.errstate(all="ignore"):
            every = np.arange(2 ** (8 * dtype.itemsize), dtype=bits).view(dtype).astype(np.float64)
        finite = every[np.isfinite(every)]
        return float(finite.min()), float(finite.max())
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    info = np.finfo(np.float16 if is_small(dtype) else dtype)  # small complex dtypes are pairs of 16 bits
    return float(info.min), float(info.max)


def small_dtype(dtypes: Sequence[DType]) -> DType | None:
    """The first small float of ml_dtypes, or None; NumPy has no weak scalars for these."""
    return next(filter(is_small, dtypes), None)


def as_weak(value: Any, small: DType | None) -> Any:
    """Converts a Python scalar to the small float of the other operands, unless it is complex."""
    return value if small is None or type(value) not in (int, float) else np.asarray(float(value), small)
