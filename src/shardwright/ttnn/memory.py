"""Device memory: memory configurations, and the memory use of each device."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from shardwright.ttnn.devices import DRAM_BYTES, L1_BYTES, CoreCoord, CoreGrid, MeshDevice
from shardwright.ttnn.errors import fatal


class ShardStrategy(Enum):
    """How a tensor is cut over the cores of a device."""

    HEIGHT = "height"
    WIDTH = "width"
    BLOCK = "block"


class ShardOrientation(Enum):
    """The order in which cores get the pieces."""

    ROW_MAJOR = "row_major"
    COL_MAJOR = "col_major"


class BufferType(Enum):
    """The kind of memory."""

    DRAM = "dram"
    L1 = "l1"


@dataclass(frozen=True)
class MemoryConfig:
    """A kind of memory and, for sharded buffers, the piece of each core."""

    buffer_type: BufferType
    strategy: ShardStrategy | None = None
    shard_shape: tuple[int, int] | None = None
    core_grid: CoreGrid | None = None
    orientation: ShardOrientation | None = None

    def is_sharded(self) -> bool:
        """Whether cores hold pieces."""
        return self.strategy is not None


DRAM_MEMORY_CONFIG = MemoryConfig(BufferType.DRAM)
L1_MEMORY_CONFIG = MemoryConfig(BufferType.L1)


def create_sharded_memory_config(
    shape: Sequence[int],
    core_grid: Any,
    strategy: ShardStrategy,
    orientation: ShardOrientation | None = None,
    use_height_and_width_as_shard_shape: bool = False,
) -> MemoryConfig:
    """A configuration that cuts a tensor of a shape over a grid of cores.

    >>> create_sharded_memory_config((1, 1, 64, 96), CoreGrid(y=2, x=3), ShardStrategy.BLOCK).shard_shape
    (32, 32)
    """
    if not isinstance(shape, Sequence) and not hasattr(shape, "__iter__"):
        raise fatal("Invalid input shape", "Give a sequence of sizes.")
    sizes = tuple(int(n) for n in shape)
    if len(sizes) < 2:
        raise fatal("Invalid input shape", f"{sizes} has fewer than two dims.")
    in_dram = isinstance(core_grid, CoreCoord)
    if not isinstance(core_grid, CoreGrid | CoreCoord):
        raise fatal("Invalid core_grid type", "Give a CoreGrid(y=…, x=…), or mesh_device.dram_grid_size().")
    grid = CoreGrid(y=core_grid.y, x=core_grid.x)
    if grid.x < 1 or grid.y < 1:
        raise fatal("Invalid core_grid", f"{grid} has no cores.")
    if not isinstance(strategy, ShardStrategy):
        raise fatal("Invalid sharding strategy", f"Use one of {', '.join(map(str, ShardStrategy))}.")
    order = ShardOrientation.ROW_MAJOR if orientation is None else orientation
    if not isinstance(order, ShardOrientation):
        raise fatal("Invalid shard orientation", f"Use one of {', '.join(map(str, ShardOrientation))}.")
    height, width = math.prod(sizes[:-1]), sizes[-1]
    memory = BufferType.DRAM if in_dram else BufferType.L1
    if use_height_and_width_as_shard_shape:
        return MemoryConfig(memory, strategy, (height, width), grid, order)
    rows, columns = grid.y, grid.x
    if order is ShardOrientation.COL_MAJOR:
        rows, columns = columns, rows
    over = {
        ShardStrategy.HEIGHT: (grid.num_cores, 1),
        ShardStrategy.WIDTH: (1, grid.num_cores),
        ShardStrategy.BLOCK: (rows, columns),
    }[strategy]
    if height % over[0] or width % over[1]:
        raise fatal(
            "Invalid sharding core_grid",
            f"A tensor of {height} rows and {width} columns is not divisible into {over[0]} × {over[1]} pieces.",
        )
    return MemoryConfig(memory, strategy, (height // over[0], width // over[1]), grid, order)


@dataclass(frozen=True)
class MemoryReport:
    """The memory use of each device: bytes by tensor, the balance between devices, and what does not fit."""

    rows: tuple[tuple[str, str, int], ...]  # tensor, memory, bytes on the device with the largest shard
    by_device: dict[str, dict[int, int]]  # memory -> device -> bytes
    room: dict[str, int]

    @property
    def total(self) -> dict[str, int]:
        """For each memory the bytes on the fullest device."""
        return {name: max(used.values(), default=0) for name, used in self.by_device.items()}

    @property
    def too_much(self) -> tuple[str, ...]:
        """The memories that are too small for their tensors."""
        return tuple(name for name, used in self.total.items() if used > self.room[name])

    @property
    def balance(self) -> float:
        """The fullest device relative to the average: 1 if all hold equally much."""
        devices = {d for used in self.by_device.values() for d in used}
        sums = [sum(used.get(d, 0) for used in self.by_device.values()) for d in sorted(devices)]
        return max(sums) * len(sums) / sum(sums) if sum(sums) else 1.0

    def __str__(self) -> str:
        lines = [f"{size:>14,} B  {memory:<4}  {name}" for name, memory, size in self.rows]
        for name, used in self.total.items():
            state = "does not fit" if name in self.too_much else f"{used / self.room[name]:.1%}"
            lines.append(f"{used:>14,} B  {name:<4}  of {self.room[name]:,} B on the fullest device: {state}")
        return "\n".join([*lines, f"the fullest device holds {self.balance:.2f} × the average"])


def memory_report(mesh_device: MeshDevice) -> MemoryReport:
    """The memory use of each device of a mesh, including the tensors of its submeshes and its parent meshes."""
    *_, top = mesh_device.base, *mesh_device.parents()
    ids = set(mesh_device.get_device_ids())
    held = {id(t): t for device in top.family() for t in device.tensors}
    tensors = [t for t in held.values() if ids & set(t.mesh.device_ids)]
    rows = sorted((str(t), t.memory_config().buffer_type.value, t.device_bytes) for t in tensors)
    used: dict[str, dict[int, int]] = {name: dict.fromkeys(mesh_device.get_device_ids(), 0) for name in ("dram", "l1")}
    for tensor in tensors:
        for device, size in tensor.bytes_by_device().items():
            if device in ids:
                used[tensor.memory_config().buffer_type.value][device] += size
    return MemoryReport(tuple(rows), used, {"dram": DRAM_BYTES, "l1": L1_BYTES})
