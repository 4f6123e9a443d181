"""Data types, constants, and information about the namespace."""

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from shardwright.arrays import Array

DTYPES = """
bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128
""".split()
e, inf, nan, newaxis, pi = float(np.e), float("inf"), float("nan"), None, float(np.pi)


def _dtype(x: Any) -> Any:
    return x.dtype if isinstance(x, Array) else x


def _is_small(dtype: "np.dtype[Any]") -> bool:
    """Whether a dtype is one of the small floats of ml_dtypes."""
    return dtype.type.__module__.split(".")[0] == "ml_dtypes"


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether a dtype (or the dtype of an array) can be cast to another dtype without loss of information."""
    return bool(np.can_cast(_dtype(from_), to))


class FloatInfo(NamedTuple):
    """The limits of a floating-point dtype, as Python scalars."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: "np.dtype[Any]"


def finfo(type: Any, /) -> FloatInfo:
    """The limits of a floating-point dtype."""
    dtype = np.dtype(_dtype(type))
    info: Any = import_module("ml_dtypes").finfo(dtype) if _is_small(dtype) else np.finfo(dtype)
    eps, high, low, normal = map(float, (info.eps, info.max, info.min, info.smallest_normal))
    return FloatInfo(int(info.bits), eps, high, low, normal, np.dtype(info.dtype))


def iinfo(type: Any, /) -> Any:
    """The limits of an integer dtype."""
    return np.iinfo(_dtype(type))


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind, is another dtype, or matches one of several."""
    if _is_small(np.dtype(dtype)):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        return any(k in ("real floating", "numeric") if isinstance(k, str) else np.dtype(k) == dtype for k in kinds)
    return bool(np.isdtype(np.dtype(dtype), kind))


def result_type(*arrays_and_dtypes: Any) -> "np.dtype[Any]":
    """The dtype that the operands promote to."""
    return np.dtype(np.result_type(*map(_dtype, arrays_and_dtypes)))


class Info:
    """The result of `__array_namespace_info__`."""

    def capabilities(self) -> dict[str, Any]:
        """The capabilities of the namespace."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 48}

    def default_device(self) -> str:
        """The default device in the terms of the standard: the mesh."""
        return "mesh"

    def default_dtypes(self, *, device: object = None) -> dict[str, Any]:
        """The default dtypes."""
        names = {"real floating": "float64", "complex floating": "complex128", "integral": "int64", "indexing": "int64"}
        return {kind: np.dtype(name) for kind, name in names.items()}

    def dtypes(self, *, device: object = None, kind: Any = None) -> dict[str, Any]:
        """The supported dtypes, all or of one kind."""
        known = {name: np.dtype(name) for name in DTYPES}
        return known if kind is None else {name: d for name, d in known.items() if np.isdtype(d, kind)}

    def devices(self) -> tuple[str, ...]:
        """The devices in the terms of the standard."""
        return ("mesh",)


def __array_namespace_info__() -> Info:  # noqa: N807  # the standard's name
    """Information about the namespace."""
    return Info()
