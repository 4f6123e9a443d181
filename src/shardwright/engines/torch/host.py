"""What torch lacks, or has otherwise than NumPy, and so runs in NumPy on the host: a table with the reasons, one function."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from shardwright.engines.torch.convert import from_host, to_host
from shardwright.ops import is_small

# Letters of dtypes: NumPy's kinds; "f" with bfloat16, "u" is uint8 alone, "w" the wider unsigned integers, "s" float8.
EVERYWHERE = "ws"  # torch moves these, but computes next to nothing in them

_ORDER = "torch does not order complex numbers"
HOST: dict[str, tuple[str, str]] = {  # function: the letters of dtypes, and why
    "abs": ("b", "torch has none for booleans"),
    "acos": ("c", "torch's is π/2 - asin: inexact near 1, and 0 has another sign"),
    "argmax": ("c", _ORDER),
    "cbrt": ("f", "torch has none; a power rounds otherwise, and has no negative roots"),
    "ceil": ("b", "torch has none for booleans"),
    "cumulative_prod": (
        "bc",
        "torch has none for booleans; it multiplies complex numbers by 1 first, infinities give NaNs",
    ),
    "cumulative_sum": ("b", "torch has none for booleans"),
    "floor": ("b", "torch has none for booleans"),
    "fmax": ("c", _ORDER),
    "fmin": ("c", _ORDER),
    "greater": ("c", _ORDER),
    "greater_equal": ("c", _ORDER),
    "isin": ("bc", "torch has none for booleans and complex numbers"),
    "less": ("c", _ORDER),
    "less_equal": ("c", _ORDER),
    "log1p": ("c", "torch's is inexact near 0 and NaN where a part is infinite"),
    "matmul": ("b", "torch has none for booleans"),
    "matrix_power": ("biu", "torch has none for integers"),
    "max": ("c", _ORDER),
    "maximum": ("c", _ORDER),
    "min": ("c", _ORDER),
    "minimum": ("c", _ORDER),
    "pow": ("c", "torch's is NaN at 0 ** 0 and where a part is infinite"),
    "prod": ("c", "torch multiplies by 1 first: an infinity gives NaNs"),
    "reciprocal": ("biuc", "torch's is a float for integers, and for complex 0 another infinity"),
    "rint": ("c", "torch has none for complex numbers"),
    "round": ("b", "torch has none for booleans"),
    "scatter_reduce": ("c", "torch neither orders complex numbers nor combines products of them"),
    "searchsorted": ("bc", "torch has none for booleans and complex numbers"),
    "sign": ("c", "torch's differs where a part is infinite"),
    "sort": ("c", _ORDER),
    "trunc": ("b", "torch has none for booleans"),
}


@cache
def letter_of(dtype: np.dtype[Any]) -> str:
    """The letter of a dtype in the table."""
    if is_small(dtype):
        return "f" if dtype.itemsize == 2 else "s"
    return "w" if dtype.kind == "u" and dtype.itemsize > 1 else dtype.kind


def needs_host(name: str, dtypes: Sequence[np.dtype[Any]]) -> bool:
    """Whether a function of operands of these dtypes runs in NumPy."""
    letters = EVERYWHERE + HOST.get(name, ("", ""))[0]
    return any(letter_of(dtype) in letters for dtype in dtypes)


def on_host(device: torch.device, function: Callable[..., Any], *operands: Any, **options: Any) -> Any:
    """A function of NumPy on tensors: they go to the host, and the results back to the device."""
    arrays = [to_host(x) if isinstance(x, torch.Tensor) else x for x in operands]
    with np.errstate(all="ignore"):  # torch does not warn either
        result = function(*arrays, **options)
    if isinstance(result, tuple):
        return tuple(from_host(np.asarray(x), device) for x in result)
    return from_host(np.asarray(result), device)
