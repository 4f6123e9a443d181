"""Which dtypes the results of an operation have, by the dtypes of its operands: a column of the table.

An operand is given by its dtype, or, where it is a Python number, by its type: numbers are weak, as in NumPy.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

DType = np.dtype[Any]
Dtypes = Callable[[Sequence[Any], Mapping[str, Any]], tuple[DType, ...]]


def first(kinds: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[DType, ...]:
    """That of the first operand: elements only move."""
    return (kinds[0],)


def promoted(kinds: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[DType, ...]:
    """The one that all operands promote to."""
    return (np.result_type(*(kind if isinstance(kind, np.dtype) else kind(1) for kind in kinds)),)


def given(kinds: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[DType, ...]:
    """The one that the call names, or that of the operand."""
    return (attrs.get("dtype", kinds[0]),)


def always(dtype: Any) -> Dtypes:
    """The same one whatever the operands are."""
    return lambda kinds, attrs: (np.dtype(dtype),)


def floats(kinds: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[DType, ...]:
    """That of the operand if it has fractions, else float64."""
    return (kinds[0] if kinds[0].kind not in "biu" else np.dtype(np.float64),)


def complexes(count: int) -> Dtypes:
    """Complex results, `count` of them: what NumPy gives as real where the data allow it is complex here."""
    return lambda kinds, attrs: (np.result_type(as_ran(np.linalg.eigvals, 2)(kinds, attrs)[0], np.complex64),) * count


def as_ran(function: Callable[..., Any], ndim: int = 1) -> Dtypes:
    """What the function itself gives, tried on operands of one element."""

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


def small_dtype(dtypes: Sequence[DType]) -> DType | None:
    """The first of the small floats of ml_dtypes, beside which NumPy knows no weak scalars."""
    return next(filter(is_small, dtypes), None)


def as_weak(value: Any, small: DType | None) -> Any:
    """A Python number beside small floats: one of them, unless it is complex."""
    return value if small is None or type(value) not in (int, float) else np.asarray(value, small)
