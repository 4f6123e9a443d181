"""NumPy's element-wise functions on torch tensors, with NumPy's dtypes.

A ufunc of NumPy says in which dtypes it computes operands of given kinds (`resolve_dtypes`), Python scalars being weak. The
operands are converted to these and torch's function of the same meaning runs, or NumPy's own on the host.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shardwright.engines.promotion import Kind, loop_dtypes
from shardwright.engines.torch.convert import from_host, numpy_dtype, torch_dtype
from shardwright.engines.torch.host import letter_of, needs_host, on_host
from shardwright.ops import finite_range

Function = Callable[..., Any]


def scalar(value: Any, dtype: torch.dtype, device: Any) -> Tensor:
    """A Python scalar as a tensor; OverflowError if it is an integer that the dtype can't hold."""
    least, most, checked = _range(dtype)
    if checked:
        with np.errstate(all="ignore"):
            return from_host(np.asarray(value, numpy_dtype(dtype)), device)
    if isinstance(value, int) and not least <= value <= most:
        raise OverflowError(f"Python integer {value} out of bounds for {dtype}")
    try:
        return torch.scalar_tensor(value, dtype=dtype, device=device)
    except (RuntimeError, OverflowError):  # slower, but it gives infinities
        return torch.tensor(value, dtype=dtype, device=device)


@cache
def _range(dtype: torch.dtype) -> tuple[float, float, bool]:
    """Which integers a dtype holds, and whether only NumPy converts to it as NumPy does."""
    numpys = numpy_dtype(dtype)
    if numpys.kind in "iu":
        return *finite_range(numpys), letter_of(numpys) == "w"
    return float("-inf"), float("inf"), letter_of(numpys) == "s"


def kind_of(operand: Any) -> Kind:
    """The kind of a tensor, an array or a scalar."""
    if isinstance(operand, Tensor):
        return numpy_dtype(operand.dtype)
    return operand.dtype if isinstance(operand, np.ndarray | np.generic) else type(operand)


def function_of(name: str, device: torch.device) -> Function:
    """NumPy's function of a name for tensors on a device; how it computes operands of some kinds is worked out once."""
    prepared: dict[tuple[Kind, ...], Function] = {}

    def function(*operands: Any) -> Any:
        kinds = tuple(map(kind_of, operands))
        run = prepared.get(kinds)
        if run is None:
            run = prepared[kinds] = converting(name, kinds, device)
        return run(*operands)

    function.__name__ = name
    return function


def native_of(name: str, dtypes: tuple[np.dtype[Any], ...]) -> Function | None:
    """Torch's function for tensors of the dtypes in which NumPy computes; None where NumPy's own must run."""
    if needs_host(name, dtypes):
        return None
    return OTHERWISE.get((name, letter_of(dtypes[0]))) or NATIVE.get(name)


def converting(name: str, kinds: tuple[Kind, ...], device: torch.device) -> Function:
    """The function for operands of these kinds: it converts them to the dtypes that NumPy computes in."""
    ufunc: np.ufunc = getattr(np, name)
    dtypes = loop_dtypes(ufunc, kinds)
    native = native_of(name, dtypes)

    def in_numpy(*operands: Any) -> Any:
        return on_host(device, ufunc, *operands)

    if native is None:
        return in_numpy
    wanted, result = [torch_dtype(dtype) for dtype in dtypes[: ufunc.nin]], torch_dtype(dtypes[-1])

    def converted(x: Any, dtype: torch.dtype) -> Tensor:
        if isinstance(x, Tensor):
            return x.to(dtype)
        return from_host(np.asarray(x), device).to(dtype) if hasattr(x, "dtype") else scalar(x, dtype, device)

    def in_torch(*operands: Any) -> Any:
        try:
            tensors = [converted(x, dtype) for x, dtype in zip(operands, wanted, strict=True)]
        except OverflowError:  # NumPy compares with such an integer, and refuses all else
            return in_numpy(*operands)
        made = native(*tensors)
        return made if made.dtype is result else made.to(result)

    return in_torch


# -- functions that torch has otherwise -----------------------------------------------------------------------------------


def _add(x: Any, y: Any) -> Tensor:
    return torch.complex(x.real + y.real, x.imag + y.imag)  # torch multiplies by 1 first: an infinity gives NaNs


def _subtract(x: Any, y: Any) -> Tensor:
    return torch.complex(x.real - y.real, x.imag - y.imag)


def _negative(x: Any) -> Tensor:
    return torch.complex(-x.real, -x.imag)  # torch loses the signs of zeros where it has several elements at once


def _trapping(y: Tensor) -> Tensor:
    """Where processors refuse to divide an integer by another: 0, and -1 if the result wraps."""
    return (y == 0) | (y == -1) if y.dtype.is_signed else y == 0


def _floor_divide(x: Tensor, y: Tensor) -> Tensor:
    odd = _trapping(y)
    made = torch.floor_divide(x, torch.where(odd, 1, y))
    return torch.where(odd, torch.where(y == 0, 0, -x), made)  # -x may wrap


def _integer_remainder(x: Tensor, y: Tensor) -> Tensor:
    odd = _trapping(y)
    return torch.where(odd, 0, torch.remainder(x, torch.where(odd, 1, y)))


def _remainder(x: Any, y: Any) -> Tensor:
    made = torch.remainder(x, y)
    if made.device.type == "cpu" and bool(torch.isnan(made).any()):  # also where only the quotient is beyond the dtype
        made = on_host(made.device, np.remainder, x, y)
    return torch.where(made == 0, torch.copysign(made, y), made)


def _pow(x: Tensor, y: Tensor) -> Tensor:
    if x.numel() and y.dtype.is_signed and bool((y < 0).any()):
        raise ValueError("Integers to negative integer powers are not allowed.")
    return torch.pow(x, y)


def _sign(x: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), x, torch.sign(x))


OTHERWISE: dict[tuple[str, str], Function] = {  # by the letter of the dtype too
    ("add", "c"): _add,
    ("subtract", "c"): _subtract,
    ("negative", "c"): _negative,
    **{("floor_divide", letter): _floor_divide for letter in "iu"},
    **{("remainder", letter): _integer_remainder for letter in "iu"},
    ("remainder", "f"): _remainder,
    **{("pow", letter): _pow for letter in "iu"},
    ("sign", "f"): _sign,
}

NATIVE: dict[str, Function] = {
    **{
        name: getattr(torch, name)
        for name in """
            abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift
            bitwise_xor ceil copysign cos cosh divide exp exp2 expm1 floor floor_divide fmax fmin greater greater_equal hypot
            isfinite isinf isnan less less_equal log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor
            matmul maximum minimum multiply negative nextafter not_equal positive pow reciprocal remainder sign signbit sin
            sinh sqrt square subtract tan tanh trunc
        """.split()
    },
    "bitwise_invert": torch.bitwise_not,
    "conj": torch.conj_physical,
    "degrees": torch.rad2deg,
    "equal": torch.eq,
    "radians": torch.deg2rad,
    "rint": torch.round,
}
