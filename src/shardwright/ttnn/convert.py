"""A tensor in another layout, dtype or memory; host tensors too."""

from typing import Any

import numpy as np

from shardwright.arrays import PerDevice
from shardwright.ttnn.calls import operation
from shardwright.ttnn.dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, DataType, Layout, held_as
from shardwright.ttnn.errors import fatal
from shardwright.ttnn.memory import MemoryConfig
from shardwright.ttnn.tensors import Tensor, as_blocks


@operation("Give a layout: ttnn.TILE_LAYOUT or ttnn.ROW_MAJOR_LAYOUT.", host=True)
def to_layout(tensor: Tensor, layout: Layout, dtype: DataType | None = None, **options: Any) -> Tensor:
    """The tensor in another layout."""
    if tensor.dtype.is_block and layout is ROW_MAJOR_LAYOUT and dtype is None:
        raise fatal("Layout must be Layout::TILE for bfloat8_b or bfloat4_b!", "Convert with ttnn.typecast first.")
    memory = options.get("memory_config") or tensor.memory_config()
    changed = tensor.like(tensor.value, tensor.sharding, tensor._global, layout=layout, memory=memory)
    return changed if dtype is None else typecast(changed, dtype)


@operation("Give a memory configuration, such as ttnn.L1_MEMORY_CONFIG.")
def to_memory_config(
    tensor: Tensor, memory_config: MemoryConfig, dtype: DataType | None = None, **options: Any
) -> Tensor:
    """The tensor in another memory."""
    moved = tensor.like(tensor.value, tensor.sharding, tensor._global, memory=memory_config)
    return moved if dtype is None else typecast(moved, dtype)


@operation("Give a dtype, such as ttnn.bfloat16.", host=True)
def typecast(tensor: Tensor, dtype: DataType, **options: Any) -> Tensor:
    """The tensor with elements of another dtype."""
    lanes = tensor.value.lanes
    made = PerDevice.of(type(lanes)(lanes.mesh, lanes.axes, held_as(np.asarray(lanes.data), dtype), lanes.extents))
    changes = {
        "dtype": dtype,
        "layout": TILE_LAYOUT if dtype.is_block else tensor.layout,
        "memory": options.get("memory_config") or tensor.memory_config(),
    }
    return tensor.like(as_blocks(made, dtype), tensor.sharding, tensor._global, **changes)
