"""The dtypes and layouts of ttnn: stored in NumPy arrays, given to users as torch tensors."""

from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from shardwright.ttnn.blockfloat import BITS, TILE, rounded, tile_bytes
from shardwright.ttnn.errors import fatal


class DataType(Enum):
    """The dtype of a tensor's elements."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    BFLOAT8_B = "bfloat8_b"
    BFLOAT4_B = "bfloat4_b"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    INT32 = "int32"

    @property
    def is_block(self) -> bool:
        """Whether neighbouring elements share an exponent."""
        return self.value in BITS


class Layout(Enum):
    """The memory order of a tensor on a device: row by row, or in tiles of 32 × 32."""

    ROW_MAJOR = "row_major"
    TILE = "tile"


bfloat16, float32, bfloat8_b, bfloat4_b = DataType.BFLOAT16, DataType.FLOAT32, DataType.BFLOAT8_B, DataType.BFLOAT4_B
uint8, uint16, uint32, int32 = DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.INT32
ROW_MAJOR_LAYOUT, TILE_LAYOUT = Layout.ROW_MAJOR, Layout.TILE

_BF16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
_HELD: dict[DataType, np.dtype[Any]] = {
    DataType.BFLOAT16: _BF16,
    DataType.FLOAT32: np.dtype(np.float32),
    DataType.BFLOAT8_B: np.dtype(np.float32),
    DataType.BFLOAT4_B: np.dtype(np.float32),
    DataType.UINT8: np.dtype(np.uint8),
    DataType.UINT16: np.dtype(np.uint16),
    DataType.UINT32: np.dtype(np.uint32),
    DataType.INT32: np.dtype(np.int32),
}
_TORCHS = {
    torch.bfloat16: DataType.BFLOAT16, torch.float32: DataType.FLOAT32, torch.float64: DataType.FLOAT32,
    torch.float16: DataType.BFLOAT16, torch.uint8: DataType.UINT8, torch.uint16: DataType.UINT16, torch.int16: DataType.UINT16,
    torch.uint32: DataType.UINT32, torch.int32: DataType.INT32, torch.int64: DataType.INT32, torch.bool: DataType.UINT8,
}  # fmt: skip


def dtype_of(tensor: torch.Tensor) -> DataType:
    """The default dtype of a host tensor on devices."""
    found = _TORCHS.get(tensor.dtype)
    if found is None:
        raise fatal(f"Unsupported data type {tensor.dtype}", "Convert the tensor first, for example with .float().")
    return found


def as_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """A host tensor as an array, without a copy."""
    plain = tensor.detach()
    return plain.view(torch.int16).numpy().view(_BF16) if plain.dtype == torch.bfloat16 else plain.numpy()


def as_torch(array: NDArray[Any]) -> torch.Tensor:
    """An array as a host tensor, without a copy."""
    if array.dtype == _BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def held_as(host: NDArray[Any], dtype: DataType) -> NDArray[Any]:
    """Converts elements to a dtype; block floats are rounded later, because their blocks depend on the shards."""
    wanted = _HELD[dtype]
    if dtype.is_block and host.dtype not in (np.dtype(np.float32), _BF16):
        host = host.astype(np.float32).astype(_BF16)  # all other dtypes are converted to bfloat16 first
    with np.errstate(over="ignore", invalid="ignore"):
        return host if host.dtype == wanted else host.astype(wanted)


def in_blocks(shard: NDArray[Any], dtype: DataType, pad_value: float = 0.0) -> NDArray[Any]:
    """A shard in a dtype; for block floats its elements are rounded."""
    return rounded(shard, BITS[dtype.value], pad_value) if dtype.is_block else shard


def bytes_of(shape: tuple[int, ...], dtype: DataType, layout: Layout) -> int:
    """The bytes of a shard on a device, with padded tiles."""
    sizes = list(shape)
    if layout is Layout.TILE:
        sizes = [1] * (2 - len(sizes)) + sizes
        sizes[-2:] = [-(-n // TILE) * TILE for n in sizes[-2:]]
    total = int(np.prod(sizes, dtype=np.int64)) if sizes else 1
    return total // TILE**2 * tile_bytes(BITS[dtype.value]) if dtype.is_block else total * _HELD[dtype].itemsize
