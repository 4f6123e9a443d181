"""Mappers, from a host tensor to shards on a mesh, and composers, the inverse: each gives a tensor dim per mesh axis."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shardwright.sharding import P, Sharding
from shardwright.ttnn.devices import MeshDevice, MeshShape, the_mesh
from shardwright.ttnn.errors import fatal


@dataclass(frozen=True)
class PlacementShard:
    """Along this mesh axis a tensor dim is split."""

    dim: int


@dataclass(frozen=True)
class PlacementPartial:
    """Along this mesh axis every device holds a partial sum, to be reduced."""


@dataclass(frozen=True)
class PlacementReplicate:
    """Along this mesh axis all devices hold the same data."""


def placements(sharding: Sharding) -> list[Any]:
    """For each mesh axis the dim that it splits, a partial or a replicate placement."""
    where: dict[str, Any] = {axis: PlacementShard(dim) for dim, axes in enumerate(sharding.dims) for axis in axes}
    where |= dict.fromkeys(sharding.partial, PlacementPartial())
    return [where.get(axis, PlacementReplicate()) for axis in sharding.mesh.axis_names]


class Mapper:
    """The tensor dim that each axis of a mesh splits; None if it replicates."""

    def __init__(
        self,
        device: MeshDevice | None,
        dims: Sequence[int | None] | None,
        mesh_shape: Any = None,
        flat: int | None = None,
        offset: Any = None,
    ) -> None:
        self.device, self.dims, self.flat = device, dims, flat
        self.mesh_shape = None if mesh_shape is None else tuple(mesh_shape)
        self.offset = None if offset is None else tuple(offset)

    def mesh_device(self, default: MeshDevice | None = None) -> MeshDevice:
        """The target mesh, or a part of it for a smaller shape: its own, the default, or the only open mesh."""
        device = the_mesh(self.device or default, type(self).__name__)
        if (
            default is not None
            and self.device is not None
            and set(default.get_device_ids()) != set(device.get_device_ids())
        ):
            raise fatal(f"The mapper is for {device}, but device= is {default}", "Use one mesh device for both.")
        if self.offset is not None and self.mesh_shape is None:
            raise fatal("A mesh offset needs a mesh shape", "Give mesh_shape_override= too.")
        if self.mesh_shape is None or (self.mesh_shape == tuple(device.shape) and self.offset is None):
            return device
        return device.view(_checked_shape(self.mesh_shape, tuple(device.shape), self.offset), self.offset)

    def sharding(self, device: MeshDevice, shape: tuple[int, ...]) -> Sharding:
        """The sharding of a tensor of this shape."""
        rank, mesh = len(shape), device.mesh
        entries: list[tuple[str, ...]] = [()] * rank
        if self.flat is not None:
            entries[_dim(self.flat, rank, [self.flat])] = tuple(mesh.axis_names)
        elif self.dims is not None:
            given = list(self.dims)
            if len(given) != len(mesh.axis_names):
                raise fatal(
                    f"The number of dims {len(given)} does not match the number of mesh axes {len(mesh.axis_names)}",
                    "Give one entry per mesh axis, None to replicate along it.",
                )
            places = [None if d is None else _dim(d, rank, given) for d in given]
            named = [d for d in places if d is not None]
            if len(set(named)) < len(named):
                raise fatal(
                    "dims must be unique", f"Got {tuple(given)} for a tensor of {rank} dims; split a dim by one axis."
                )
            for axis, place in zip(mesh.axis_names, places, strict=True):
                if place is not None:
                    entries[place] = (axis,)
        return Sharding(mesh, P(*entries))


def _checked_shape(
    given: tuple[int, ...], own: tuple[int, ...], offset: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """A valid mesh shape: it fits in the mesh's shape, or has the same number of devices."""
    start = offset or (0,) * len(given)
    if len(given) == len(own) and all(a + n <= full for a, n, full in zip(start, given, own, strict=True)):
        return given
    if math.prod(given) == math.prod(own) and offset is None:
        return given
    raise fatal(
        f"The size of the supplied mesh shape {MeshShape(given)} does not match the device shape size {MeshShape(own)}",
        "Give the mesh's own shape, a smaller one of the same rank, or another shape with as many devices.",
    )


def _dim(dim: int, rank: int, given: Sequence[Any]) -> int:
    if not -rank <= dim < rank:
        raise fatal(
            f"Invalid dimension index; got dims: {list(given)}, tensor dimension: {rank}",
            f"Use dims from {-rank} to {rank - 1}.",
        )
    return dim % rank


class ReplicateTensorToMesh(Mapper):
    """The same tensor on every device."""

    def __init__(self, mesh_device: MeshDevice | None = None) -> None:
        super().__init__(mesh_device, None)


class ShardTensorToMesh(Mapper):
    """A dim split over all devices, row by row."""

    def __init__(self, mesh_device: MeshDevice | None = None, dim: int = 0) -> None:
        super().__init__(mesh_device, None, flat=dim)


class ShardTensor2dMesh(Mapper):
    """`dims[i]` is the tensor dim that mesh axis i splits; None replicates."""

    def __init__(
        self, mesh_device: MeshDevice | None = None, mesh_shape: Any = None, dims: Sequence[int | None] = ()
    ) -> None:
        super().__init__(mesh_device, tuple(dims), mesh_shape)


ShardTensor2DMesh = ShardTensor2dMesh


class MeshMapperConfig:
    """The general form: a placement for each mesh axis, or a dim for rows and one for columns."""

    def __init__(
        self,
        placements: Sequence[Any] | None = None,
        row_dim: int | None = None,
        col_dim: int | None = None,
        mesh_shape_override: Any = None,
        mesh_offset_override: Any = None,
    ) -> None:
        given = [PlacementReplicate() if d is None else PlacementShard(d) for d in (row_dim, col_dim)]
        self.placements = list(placements) if placements is not None else given
        self.mesh_shape = mesh_shape_override
        self.mesh_offset = mesh_offset_override


def create_mesh_mapper(mesh_device: MeshDevice | None, config: MeshMapperConfig) -> Mapper:
    """The mapper for a configuration."""
    dims = [p.dim if isinstance(p, PlacementShard) else None for p in config.placements]
    return Mapper(mesh_device, dims, config.mesh_shape, offset=config.mesh_offset)


# -- composers ------------------------------------------------------------------------------------------------------------


class Composer:
    """Joins the tensors of a mesh's devices: along mesh axis i by dim `dims[i]`; None keeps the first copy."""

    def __init__(
        self,
        device: MeshDevice | None,
        dims: Sequence[int | None] | None,
        mesh_shape: Any = None,
        flat: int | None = None,
    ) -> None:
        self.device, self.dims, self.flat = device, dims, flat
        self.mesh_shape = None if mesh_shape is None else tuple(mesh_shape)

    def places(self, shape: tuple[int, ...], rank: int) -> list[int | None]:
        """The checked join dim of each mesh axis; a single dim joins all devices."""
        if self.flat is not None:
            return [_dim(self.flat, rank, [self.flat])]
        given = list(self.dims or ())
        used = self.mesh_shape or shape
        if len(given) != len(used):
            raise fatal(
                f"The number of dims {len(given)} does not match the number of mesh axes {len(used)}",
                "Give one entry per mesh axis, None to keep one copy.",
            )
        places = [None if d is None else _dim(d, rank, given) for d in given]
        named = [d for d in places if d is not None]
        if len(set(named)) < len(named):
            raise fatal("dims must be unique", f"Got {tuple(given)}; join each mesh axis along a different dim.")
        if self.mesh_shape is not None:
            _checked_shape(self.mesh_shape, shape)
        return places

    def compose(self, shape: tuple[int, ...], tensors: list[torch.Tensor]) -> Any:
        """Joins the tensors of a grid of devices, given row by row."""
        places = self.places(shape, tensors[0].ndim)
        if self.flat is not None:
            shape = (len(tensors),)
        used = self.mesh_shape or shape
        inside = len(used) == len(shape) and all(a <= b for a, b in zip(used, shape, strict=True))
        return _joined(tensors, shape if inside else used, used, places)


def _joined(
    tensors: list[torch.Tensor], shape: tuple[int, ...], used: tuple[int, ...], places: Sequence[int | None]
) -> torch.Tensor:
    """One tensor with all devices' tensors: along each mesh axis they are concatenated along its dim."""
    grid = np.arange(len(tensors)).reshape(shape)
    counts = [1 if place is None else min(n, k) for n, k, place in zip(shape, used, places, strict=True)]
    cuts: dict[int, list[int]] = {}
    for axis, (count, place) in enumerate(zip(counts, places, strict=True)):
        if place is not None:
            along = [tensors[int(grid[tuple(i if a == axis else 0 for a in range(len(shape)))])] for i in range(count)]
            cuts[place] = [0, *np.cumsum([t.shape[place] for t in along]).tolist()]
    whole = [cuts[d][-1] if d in cuts else n for d, n in enumerate(tensors[0].shape)]
    made = torch.empty(whole, dtype=tensors[0].dtype)
    for at in np.ndindex(*counts):
        window = [slice(None)] * len(whole)
        for i, place in zip(at, places, strict=True):
            if place is not None:
                window[place] = slice(cuts[place][i], cuts[place][i + 1])
        part = tensors[int(grid[at])]
        if made[tuple(window)].shape != part.shape:
            raise fatal(
                f"Shard shape mismatch: expected {list(made[tuple(window)].shape)} but got {list(part.shape)}",
                "Join the dims along which the tensor was cut.",
            )
        made[tuple(window)] = part
    return made


class ConcatMeshToTensor(Composer):
    """Joins all devices' tensors along a dim, row by row; a replicated tensor gives one copy per device."""

    def __init__(self, mesh_device: MeshDevice | None = None, dim: int = 0) -> None:
        super().__init__(mesh_device, None, flat=dim)


class ConcatMesh2dToTensor(Composer):
    """Joins the tensors along mesh axis i by dim `dims[i]`, replicated or not; None keeps one copy."""

    def __init__(
        self, mesh_device: MeshDevice | None = None, mesh_shape: Any = None, dims: Sequence[int | None] = ()
    ) -> None:
        super().__init__(mesh_device, tuple(dims), mesh_shape)


ConcatMesh2DToTensor = ConcatMesh2dToTensor


class ListMeshToTensor(Composer):
    """A list with every device's tensor."""

    def __init__(self, mesh_device: MeshDevice | None = None) -> None:
        super().__init__(mesh_device, None)

    def places(self, shape: tuple[int, ...], rank: int) -> list[int | None]:
        return []

    def compose(self, shape: tuple[int, ...], tensors: list[torch.Tensor]) -> Any:
        return [tensor.clone() for tensor in tensors]


class MeshComposerConfig:
    """The general form: a dim for each mesh axis."""

    def __init__(self, dims: Sequence[int | None], mesh_shape_override: Any = None) -> None:
        self.dims, self.mesh_shape = list(dims), mesh_shape_override


def create_mesh_composer(mesh_device: MeshDevice | None, config: MeshComposerConfig) -> Composer:
    """The composer for a configuration."""
    return Composer(mesh_device, config.dims, config.mesh_shape)


# -- defaults for a block -------------------------------------------------------------------------------------------------

_defaults: ContextVar[tuple[Mapper | None, Composer | None]] = ContextVar("defaults", default=(None, None))


@contextlib.contextmanager
def distribute(default: Mapper | Composer) -> Iterator[None]:
    """Inside, `from_torch` uses this mapper, or `to_torch` this composer, by default."""
    mapper, composer = _defaults.get()
    token = _defaults.set((default, composer) if isinstance(default, Mapper) else (mapper, default))
    try:
        yield
    finally:
        _defaults.reset(token)


def default_mapper() -> Mapper | None:
    """The mapper of `distribute`."""
    return _defaults.get()[0]


def default_composer() -> Composer | None:
    """The composer of `distribute`."""
    return _defaults.get()[1]
