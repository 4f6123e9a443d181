"""Dtypes and memory of torch and NumPy: the one place that converts between them."""

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardwright.errors import EngineError
from shardwright.sharding import as_dtype

_NAMES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 "
    "bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
).split()  # equal in NumPy or ml_dtypes and in torch; torch has int4 and others by name only, without operations
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@cache
def torch_dtype(dtype: Any) -> torch.dtype:
    """The dtype of torch with the same values; EngineError if there is none.

    >>> torch_dtype(np.dtype(np.float32)), torch_dtype("bfloat16")
    (torch.float32, torch.bfloat16)
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    name = as_dtype(dtype).name
    found = getattr(torch, name, None) if name in _NAMES else None
    if found is None:
        raise EngineError(f"Torch has no dtype {name}. Convert the tensor first, or use a mesh with engine='numpy'.")
    return found


@cache
def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """NumPy's dtype, or ml_dtypes', for one of torch; EngineError if there is none.

    >>> numpy_dtype(torch.int16)
    dtype('int16')
    """
    if isinstance(dtype, torch.dtype) and str(dtype).removeprefix("torch.") not in _NAMES:
        raise EngineError(f"NumPy has no dtype for {dtype}. Convert the tensor first: t.to(torch.float32).")
    return as_dtype(dtype)


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the same size, which torch has all moves of elements for."""
    return tensor.view(_BITS[tensor.dtype.itemsize])


def to_host(tensor: torch.Tensor) -> NDArray[Any]:
    """The elements as a NumPy array; on the CPU it shares the tensor's memory."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    dtype = numpy_dtype(plain.dtype)
    if dtype.type.__module__ == "numpy":
        return plain.numpy()
    return as_bits(plain).numpy().view(dtype)


def from_host(array: NDArray[Any], device: Any = "cpu") -> torch.Tensor:
    """A tensor of an array's elements.

    On the CPU it shares the array's memory if torch can use that and may write to it, else it has a copy. Dims of stride 0 are
    copied once and stay so.
    """
    dtype = torch_dtype(array.dtype)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    repeated = [n > 1 and stride == 0 for n, stride in zip(array.shape, array.strides, strict=True)]
    if any(repeated):
        once = array[tuple(slice(0, 1) if same else slice(None) for same in repeated)]
        return from_host(once, device).expand(array.shape)
    usable = array.flags.writeable and array.flags.aligned
    if not usable or any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy(order="K")
    if array.dtype.type.__module__ == "numpy":
        tensor = torch.from_numpy(array.view(np.dtype(array.dtype.str)))  # NumPy has two names for 64 bits
    else:
        tensor = torch.from_numpy(array.view(np.uint8 if array.itemsize == 1 else np.int16)).view(dtype)
    return tensor.to(device)
