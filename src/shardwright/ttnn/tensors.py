"""`Tensor`: one tensor per device of a mesh, with its global meaning; conversion from and to torch."""

import functools
import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from shardwright.arrays import Array, PerDevice, from_shards, shard
from shardwright.engines import engine_of
from shardwright.engines.lanes import stack
from shardwright.mesh import Mesh
from shardwright.sharding import Sharding, layout_of
from shardwright.ttnn.checklist import placed, was_read
from shardwright.ttnn.devices import MeshDevice, MeshShape
from shardwright.ttnn.dtypes import (
    ROW_MAJOR_LAYOUT,
    TILE_LAYOUT,
    DataType,
    Layout,
    as_numpy,
    as_torch,
    bytes_of,
    dtype_of,
    held_as,
    in_blocks,
)
from shardwright.ttnn.errors import bounded, check_options, fatal
from shardwright.ttnn.mapping import (
    Composer,
    Mapper,
    ReplicateTensorToMesh,
    default_composer,
    default_mapper,
    placements,
)
from shardwright.ttnn.memory import DRAM_MEMORY_CONFIG, MemoryConfig

HOST = Mesh(host=1)


class Tensor:
    """A tensor on the devices of a mesh, or on the host and already cut: each device has one, of `shape`.

    `global_shape` and `sharding` describe the global tensor while it is known. Devices compute independently, so their
    results need not be the shards of one tensor.
    """

    def __init__(
        self,
        value: PerDevice,
        dtype: DataType,
        layout: Layout,
        device: MeshDevice | None,
        sharding: Sharding | None,
        global_shape: tuple[int, ...] | None,
        memory: MemoryConfig = DRAM_MEMORY_CONFIG,
        owner: MeshDevice | None = None,
    ) -> None:
        self._value, self.dtype, self.layout, self._device = value, dtype, layout, device
        self.sharding, self._global = sharding, None if sharding is None else global_shape
        self.gone = False
        self._memory = memory
        known = device or owner
        self.owner = None if known is None else known.base  # the mesh that holds it; for a host tensor, its target
        if device is not None:
            device.check_open("put a tensor on")
            if value.mesh != HOST:  # a shard of `get_device_tensors` has no memory of its own
                device.base.tensors.add(self)

    @property
    def value(self) -> PerDevice:
        """What each device holds; raises an error after its mesh is closed."""
        if self.gone:
            raise fatal(f"{self} was deallocated", "Read it before ttnn.deallocate(…).")
        if self._device is not None and self._device.closed:
            raise fatal(
                f"{self} is on a mesh device that is closed", "Read it, or move it to the host, before closing."
            )
        return self._value

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes that devices hold; more than one if shards are uneven."""
        return self._value.lanes.shapes()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape on each device; for uneven shards that of the first device, which is the largest."""
        return tuple(self._value.lanes.local_shape)

    @property
    def global_shape(self) -> tuple[int, ...]:
        """The shape of the global tensor."""
        if self._global is None:
            raise fatal(f"{self} is no longer the shards of one tensor", "Gather or reduce it with a collective.")
        return self._global

    def device(self) -> MeshDevice | None:
        """The mesh device that holds it; None on the host."""
        return self._device

    @property
    def mesh(self) -> Mesh:
        """The devices that hold it."""
        return self._value.mesh

    def memory_config(self) -> MemoryConfig:
        """The memory that holds it on each device."""
        return self._memory

    @property
    def device_bytes(self) -> int:
        """Its bytes on the device with the largest shard."""
        return bytes_of(self.shape, self.dtype, self.layout)

    def bytes_by_device(self) -> dict[int, int]:
        """Its bytes on each device, by device id."""
        pairs = zip(self.mesh.device_ids, self._value.values(), strict=True)
        return {device: bytes_of(x.shape, self.dtype, self.layout) if x.size else 0 for device, x in pairs}

    def tensor_topology(self) -> "TensorTopology":
        """How it is distributed."""
        return TensorTopology(self)

    def like(
        self, value: PerDevice, sharding: Sharding | None, global_shape: tuple[int, ...] | None, **changes: Any
    ) -> "Tensor":
        """A new tensor on the same mesh."""
        dtype = changes.get("dtype", self.dtype)
        layout = changes.get("layout", self.layout)
        memory = changes.get("memory", self._memory)
        return Tensor(value, dtype, layout, self._device, sharding, global_shape, memory, self.owner)

    def note_work(self, queue: int | None = None) -> None:
        """Notes on its mesh device that this tensor was written or computed with."""
        if self.owner is not None:
            self.owner.synchronized = False
        self.note_command(queue)

    def note_command(self, queue: int | None = None) -> None:
        """Notes a command on a queue of the device that holds it; nothing for a host tensor."""
        if self._device is not None:
            self._device.enqueue(queue)

    def __repr__(self) -> str:
        where = "host" if self._device is None else repr(self._device)
        if self.sharding is not None and self.sharding.partial:
            where += f", summands over {', '.join(self.sharding.partial)}"
        return f"Tensor(shape={list(self.shape)}, dtype={self.dtype.value}, layout={self.layout.value}, {where})"


class TensorTopology:
    """How a tensor is distributed over a mesh: a placement for each mesh axis."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def placements(self) -> list[Any]:
        """For each mesh axis the dim that it splits, or a replicate placement."""
        sharding = self._tensor.sharding
        if sharding is None:
            raise fatal(
                f"{self._tensor} is no longer the shards of one tensor", "Gather or reduce it with a collective."
            )
        return placements(sharding)

    def distribution_shape(self) -> MeshShape:
        """The shape of the mesh."""
        return MeshShape(self._tensor.mesh.shape)

    def global_shape(self) -> tuple[int, ...]:
        """The shape of the global tensor."""
        return self._tensor.global_shape


# -- from torch and back ------------------------------------------------------------------------------------------------------


@bounded
def from_torch(
    tensor: torch.Tensor | None = None,
    dtype: DataType | None = None,
    *,
    layout: Layout | None = None,
    device: MeshDevice | None = None,
    memory_config: MemoryConfig | None = None,
    mesh_mapper: Mapper | None = None,
    pad_value: float | None = None,
    **ignored: Any,
) -> Any:
    """A host tensor on a mesh, cut by a mapper; without a mapper, replicated on every device.

    Without a tensor it returns a function that takes one. `device=None` with a mapper gives a host tensor, already cut.
    """
    check_options("from_torch", ignored, ("mesh_mapper", "pad_value"))
    if tensor is not None and not isinstance(tensor, torch.Tensor):
        raise fatal(f"from_torch takes a torch.Tensor; got {type(tensor).__name__}", "Use torch.from_numpy(x) first.")
    if mesh_mapper is not None and not isinstance(mesh_mapper, Mapper):
        raise fatal(
            f"mesh_mapper is a {type(mesh_mapper).__name__}, which is not a mapper", "Give a mapper, not a composer."
        )
    if tensor is None:
        return functools.partial(
            from_torch, dtype=dtype, layout=layout, device=device, memory_config=memory_config, mesh_mapper=mesh_mapper,
            pad_value=pad_value, **ignored,
        )  # fmt: skip
    kind = dtype or dtype_of(tensor)
    if kind.is_block and layout is ROW_MAJOR_LAYOUT:
        raise fatal(
            "Layout must be Layout::TILE for bfloat8_b or bfloat4_b!", "Leave layout out, or say ttnn.TILE_LAYOUT."
        )
    order = layout or (TILE_LAYOUT if kind.is_block else ROW_MAJOR_LAYOUT)
    host = as_numpy(tensor)
    mapper = mesh_mapper or default_mapper() or (ReplicateTensorToMesh(device) if device is not None else None)
    owner: MeshDevice | None = None
    if mapper is None:
        sharding = Sharding(HOST)
    else:
        owner = mapper.mesh_device(device)
        sharding = mapper.sharding(owner, host.shape)
    ready = held_as(host, kind)
    array = shard(ready, sharding, copy=np.shares_memory(ready, host))
    made = Tensor(
        as_blocks(PerDevice.of(array.lanes), kind, pad_value or 0.0), kind, order,
        owner if device is not None else None, array.sharding, host.shape, memory_config or DRAM_MEMORY_CONFIG, owner,
    )  # fmt: skip
    _note_placed(made, ignored.get("cq_id"))
    return made


def _note_placed(tensor: Tensor, queue: int | None) -> None:
    tensor.note_work(queue)
    if tensor.owner is not None and tensor.sharding is not None:
        placed(tensor.owner, tensor.sharding, tensor.global_shape)


def as_blocks(value: PerDevice, dtype: DataType, pad_value: float = 0.0) -> PerDevice:
    """Rounds tensors to a block-float dtype: neighbours within a shard, padding included, share exponents."""
    if not dtype.is_block:
        return value
    lanes = value.lanes
    if lanes.extents and lanes.extents[-1] is not None:
        return value.map(lambda x: in_blocks(x, dtype, pad_value))
    return PerDevice.of(type(lanes)(lanes.mesh, lanes.axes, in_blocks(lanes.data, dtype, pad_value), lanes.extents))


@bounded
def to_torch(
    tensor: Tensor, dtype: torch.dtype | None = None, *, mesh_composer: Composer | None = None, **ignored: Any
) -> Any:
    """A tensor on the host, joined by a composer.

    Without a composer a tensor on several devices is joined by its sharding, with a warning: the hardware refuses that.
    """
    check_options("to_torch", ignored, ("mesh_composer",))
    if not isinstance(tensor, Tensor):
        raise fatal(f"to_torch takes a ttnn tensor; got {type(tensor).__name__}", "It is on the host already.")
    if mesh_composer is not None and not isinstance(mesh_composer, Composer):
        raise fatal(
            f"mesh_composer is a {type(mesh_composer).__name__}, which is not a composer",
            "Give a composer, not a mapper.",
        )
    composer = mesh_composer or default_composer()
    if composer is not None and not undoes(composer, tensor):
        made = composer.compose(tensor.mesh.shape, device_tensors(tensor))
    else:
        made = as_torch(np.array(_whole(tensor)))
    _note_read(tensor, composer, ignored.get("cq_id"))
    if dtype is None:
        return made
    return [x.to(dtype) for x in made] if isinstance(made, list) else made.to(dtype)


def _note_read(tensor: Tensor, composer: Composer | None, queue: int | None = None) -> None:
    tensor.note_command(queue)
    if tensor.owner is not None:
        fits = composer is not None and undoes(composer, tensor)
        was_read(tensor.owner, tensor.sharding, tensor.mesh.size, composer, fits)


def undoes(composer: Composer, tensor: Tensor) -> bool:
    """Whether a composer inverts the cut of a tensor: the tensor is then read in one piece."""
    sharding, mesh = tensor.sharding, tensor.mesh
    places = composer.places(mesh.shape, len(tensor.shape))
    if sharding is None or sharding.partial or not sharding.dims or not places:
        return False
    if composer.flat is not None:
        places = places * len(mesh.shape)
    used = composer.mesh_shape or mesh.shape
    if len(used) != len(mesh.shape) or any(n not in (1, size) for n, size in zip(used, mesh.shape, strict=True)):
        return False
    wanted: list[tuple[str, ...]] = [()] * len(sharding.dims)
    for axis, dim, n in zip(mesh.axis_names, places, used, strict=True):
        if dim is not None and n > 1:  # the composer reads one copy along an axis of its shape with size 1
            wanted[dim] += (axis,)
    long = [tuple(a for a in axes if mesh.axis(a).size > 1) for axes in wanted]
    return long == [tuple(a for a in axes if mesh.axis(a).size > 1) for axes in sharding.dims]


def _whole(tensor: Tensor) -> NDArray[Any]:
    """The global tensor; raises an error if it is unknown or partial."""
    if tensor.sharding is None:
        raise fatal(
            f"{tensor} is no longer the shards of one tensor, so its global value is unknown",
            "Give a mesh_composer, such as ttnn.ConcatMeshToTensor(dim=0).",
        )
    if tensor.sharding.partial:
        raise fatal(
            f"{tensor} holds partial sums: no device has the values",
            "Reduce it first with ttnn.all_reduce(…) or ttnn.reduce_scatter(…), or read each partial sum with a composer.",
        )
    return as_array(tensor).numpy()


def as_array(tensor: Tensor) -> Array:
    """The tensor as a shardwright `Array`."""
    assert tensor.sharding is not None
    layout = layout_of(tensor.sharding, tensor.global_shape)
    lanes = tensor.value.lanes
    if lanes.data.shape == (*layout.lane_shape, *layout.local_shape):
        return Array.of(layout, engine_of(layout.mesh).from_lanes(lanes, layout))
    return from_shards(tensor.sharding, tensor.value.values())


def device_tensors(tensor: Tensor) -> list[torch.Tensor]:
    """Every device's tensor as a torch tensor, row by row; views that must not be written to."""
    return [_as_view(x) for x in tensor.value.values()]


def _as_view(x: NDArray[Any]) -> torch.Tensor:
    view = x.view()
    try:
        view.flags.writeable = True  # torch has no read-only tensors
    except ValueError:
        view = x.copy()
    return as_torch(view)


def get_device_tensors(tensor: Tensor) -> list[Tensor]:
    """Every device's tensor as a separate tensor, row by row."""
    made = []
    for x in tensor.value.values():
        sharding = Sharding(HOST).for_shape(x.shape)
        made.append(Tensor(PerDevice(HOST, [x]), tensor.dtype, tensor.layout, tensor.device(), sharding, x.shape))
    return made


@bounded
def from_host_shards(tensors: Sequence[Tensor], mesh_shape: Any) -> Tensor:
    """A tensor on a mesh from one tensor per device; its global meaning is unknown."""
    mesh = Mesh({f"m{i}": n for i, n in enumerate(tuple(mesh_shape))})
    if len(tensors) != mesh.size:
        raise fatal(f"{len(tensors)} shards for a mesh of {mesh.size} devices", "Give one per device, row by row.")
    if len({t.dtype for t in tensors}) > 1:
        raise fatal(
            f"Shards of different dtypes: {sorted({t.dtype.value for t in tensors})}",
            "Convert them to one dtype first.",
        )
    value = PerDevice.of(stack(mesh, [np.asarray(t.value.values()[0]) for t in tensors]))
    return Tensor(value, tensors[0].dtype, tensors[0].layout, None, None, None)


def combine_device_tensors(tensors: Sequence[Tensor], mesh_shape: Any = None) -> Tensor:
    """As `from_host_shards`, by default on one row of devices."""
    return from_host_shards(tensors, mesh_shape or (1, len(tensors)))


def aggregate_tensor(tensor: Tensor, composer: Composer) -> Tensor:
    """The tensor that a composer makes, on the host."""
    made = composer.compose(tensor.mesh.shape, device_tensors(tensor))
    if not isinstance(made, torch.Tensor):
        raise fatal(
            "aggregate_tensor returns one tensor", f"{type(composer).__name__} gives a list: use ConcatMeshToTensor."
        )
    _note_read(tensor, composer)
    host = held_as(as_numpy(made.clone()), tensor.dtype)
    value = as_blocks(PerDevice(HOST, [host]), tensor.dtype)
    return Tensor(value, tensor.dtype, tensor.layout, None, Sharding(HOST).for_shape(host.shape), host.shape)


def to_device(
    tensor: Tensor, device: MeshDevice, memory_config: MemoryConfig | None = None, cq_id: int | None = None
) -> Tensor:
    """The tensor on a mesh: shards that are already cut are sent as they are, other tensors are replicated."""
    memory = memory_config or tensor.memory_config()
    made = _moved_to(tensor, device, memory)
    _note_placed(made, cq_id)
    return made


def _moved_to(tensor: Tensor, device: MeshDevice, memory: MemoryConfig) -> Tensor:
    if tensor.mesh == device.mesh:
        return Tensor(tensor.value, tensor.dtype, tensor.layout, device, tensor.sharding, tensor._global, memory)
    if tensor.mesh.size == 1:
        sharding = Sharding(device.mesh).for_shape(tensor.shape)
        value = PerDevice.of(shard(tensor.value.values()[0], sharding).lanes)
        return Tensor(value, tensor.dtype, tensor.layout, device, sharding, tensor.shape, memory)
    raise fatal(
        f"{tensor} is cut for {MeshShape(tensor.mesh.shape)}, not for {device}",
        "Create it with a mapper for that mesh device.",
    )


def from_device(tensor: Tensor, blocking: bool = True, cq_id: int | None = None) -> Tensor:
    """The tensor on the host, cut as it was."""
    tensor.note_command(cq_id)
    return Tensor(
        tensor.value,
        tensor.dtype,
        tensor.layout,
        None,
        tensor.sharding,
        tensor._global,
        tensor.memory_config(),
        tensor.owner,
    )


def as_tensor(
    tensor: torch.Tensor,
    dtype: DataType | None = None,
    *,
    layout: Layout | None = None,
    device: MeshDevice | None = None,
    memory_config: MemoryConfig | None = None,
    cache_file_name: str | Path | None = None,
    mesh_mapper: Mapper | None = None,
) -> Tensor:
    """As `from_torch` with a cache file, which is rewritten if it is stale or damaged."""
    make: Callable[[torch.Tensor], Tensor] = from_torch(
        dtype=dtype, layout=layout, device=device, memory_config=memory_config, mesh_mapper=mesh_mapper
    )
    if cache_file_name is None:
        return make(tensor)
    kind = dtype or dtype_of(tensor)
    path = Path(f"{cache_file_name}_dtype_{kind.name}.npz")
    host = as_numpy(tensor.contiguous())
    stamp = {"shape": list(host.shape), "dtype": kind.value, "digest": hashlib.sha256(host.tobytes()).hexdigest()}
    kept = _read(path, stamp)
    if kept is None:
        kept = host
        _write(path, kept, stamp)
    return make(as_torch(np.array(kept, order="C")))


def _read(path: Path, stamp: dict[str, Any]) -> NDArray[Any] | None:
    """The content of a cache file; None if it is damaged or of another tensor."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            known, raw = json.loads(str(file["stamp"])), file["raw"]
            name = str(file["dtype"])
            kept: NDArray[Any] = raw.view(np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name))
            right = hashlib.sha256(raw.tobytes()).hexdigest() == str(file["check"])
            return kept.reshape(file["shape"]) if known == stamp and right else None
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return None


def _write(path: Path, kept: NDArray[Any], stamp: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = np.frombuffer(np.ascontiguousarray(kept).tobytes(), np.uint8)
    check = hashlib.sha256(raw.tobytes()).hexdigest()
    with path.open("wb") as file:
        np.savez(file, stamp=json.dumps(stamp), raw=raw, dtype=kept.dtype.name, shape=np.array(kept.shape), check=check)
