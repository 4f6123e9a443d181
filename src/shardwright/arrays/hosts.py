"""Tensors from outside: NumPy's, torch's and whatever converts to an array; and tensors without elements, for planning."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import ArrayError
from shardwright.mesh import as_ints
from shardwright.sharding import Sharding, as_dtype, describe, dtype_name, is_number

DType = np.dtype[Any]


@dataclass(frozen=True, slots=True)
class ShapeDtype:
    """A tensor without elements, for `explain` and `lower`: a shape, a dtype (also by name), and its sharding if that is known.

    >>> ShapeDtype((1 << 20, 8192), "bfloat16")
    ShapeDtype((1048576, 8192), bf16)
    """

    shape: tuple[int, ...]
    dtype: DType
    sharding: Sharding | None = None

    def __init__(self, shape: int | Sequence[int], dtype: Any, sharding: Sharding | None = None) -> None:
        sizes = as_ints((shape,) if isinstance(shape, int) else shape, "The shape")
        if any(n < 0 for n in sizes):
            raise ArrayError(f"The shape {sizes} has a negative size.")
        if sharding is not None and not isinstance(sharding, Sharding):
            raise ArrayError(
                f"sharding= takes a Sharding, which knows its mesh; got {sharding!r}. Write Sharding(mesh, P(…))."
            )
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "dtype", as_dtype(dtype))
        object.__setattr__(self, "sharding", None if sharding is None else sharding.for_shape(sizes))

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def __repr__(self) -> str:
        if self.sharding is None:
            return f"ShapeDtype({self.shape}, {dtype_name(self.dtype)})"
        return f"ShapeDtype({describe(self.sharding, self.shape, self.dtype)} on {self.sharding.mesh})"


def is_torch(value: Any) -> bool:
    """Whether a value is a tensor of torch; does not import it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_abstract(value: Any) -> bool:
    """Whether a value has a shape and a dtype and no elements: a ShapeDtype, JAX's ShapeDtypeStruct, torch's meta tensors."""
    if isinstance(value, ShapeDtype):
        return True
    if is_torch(value):
        return bool(value.is_meta)
    return hasattr(value, "shape") and hasattr(value, "dtype") and not hasattr(value, "__array__")


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of any kind, with elements or without."""
    if isinstance(value, type):  # np.float32 itself, whose attributes are those of its instances
        return False
    return isinstance(value, np.ndarray | np.generic) or (hasattr(value, "shape") and hasattr(value, "dtype"))


def kind_of_host(value: Any) -> tuple[tuple[int, ...], DType, Sharding | None]:
    """The shape, the dtype and, if it has one, the sharding of a host tensor or a tensor without elements."""
    sharding = getattr(value, "sharding", None) if is_abstract(value) else None
    if sharding is not None and not isinstance(sharding, Sharding):
        raise ArrayError(
            f"{type(value).__name__} has the sharding {sharding!r}, which is not a Sharding of shardwright. Write "
            f"sw.ShapeDtype(shape, dtype, sw.Sharding(mesh, P(…))), or leave it out and give in_shardings."
        )
    _check_dense(value)
    dtype = as_dtype(value.dtype)
    _check_number(dtype)
    return tuple(value.shape), dtype, sharding


def _check_dense(value: Any) -> None:
    """Raises ArrayError for a tensor that is more or less than its elements, one for each place."""
    if isinstance(value, np.ma.MaskedArray):
        raise ArrayError("A masked array would lose its mask. Fill it first: array.filled(…).")
    if not is_torch(value):
        return
    if value.is_nested:
        raise ArrayError("A nested tensor can't be sharded. Make it dense first: t.to_padded_tensor(0.0).")
    if value.is_quantized:
        raise ArrayError(f"A tensor of {value.dtype} can't be sharded. Give its values: t.dequantize().")
    if value.layout is not sys.modules["torch"].strided:
        raise ArrayError(f"A tensor of layout {value.layout} can't be sharded. Make it dense first: t.to_dense().")


def _check_number(dtype: DType) -> None:
    if not is_number(dtype):
        raise ArrayError(
            f"Elements of dtype {dtype} can't be sharded; a numeric or boolean dtype is needed. "
            f"Convert the tensor first, for example with .astype(np.float32)."
        )


def host_array(value: object) -> NDArray[Any]:
    """Converts a value to a NumPy array that shares its memory if possible; ArrayError if its elements are not numbers."""
    _check_dense(value)
    if is_torch(value):
        return _from_torch(value)
    if is_abstract(value):
        raise ArrayError(
            f"{value!r} has no elements. Only sw.explain and a jitted function's lower and explain take such."
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ArrayError(f"The value can't be converted to a tensor: {error} Give rows of equal length.") from error
    except TypeError as error:  # JAX's random keys
        raise ArrayError(f"A {type(value).__name__} can't be converted to a tensor: {error}") from error
    _check_number(array.dtype)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def torch_tensor(value: Any) -> Any:
    """A torch tensor with elements in memory, apart from autograd; ArrayError if it has none or is not dense."""
    _check_dense(value)
    if value.is_meta:
        raise ArrayError(
            f"A meta tensor of shape {tuple(value.shape)} has no elements. Only sw.explain and a jitted function's lower and "
            f"explain take such."
        )
    return value.detach().resolve_conj().resolve_neg()


def _from_torch(value: Any) -> NDArray[Any]:
    """A torch tensor's memory."""
    from shardwright.engines.torch.convert import to_host  # imports torch, which is loaded already

    return to_host(torch_tensor(value))


def as_torch(host: NDArray[Any]) -> Any:
    """A host tensor as torch's; shares its memory where torch can."""
    if find_spec("torch") is None:
        raise ArrayError("x.torch() needs PyTorch: pip install 'shardwright[torch]'.")
    from shardwright.engines.torch.convert import from_host

    return from_host(host)


def own_copy(host: Any) -> Any:
    """A copy of a host tensor in the same order in memory; dims that are broadcast (of stride 0) stay so.

    >>> own_copy(np.broadcast_to(np.float32(1), (10**6, 10**6))).strides
    (0, 0)
    """
    if is_torch(host):
        once = host[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in host.stride())]
        return once.clone().expand(host.shape)
    if 0 not in host.strides:
        return host.copy(order="K")
    once = host[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in host.strides)]
    return np.broadcast_to(once.copy(order="K"), host.shape)
