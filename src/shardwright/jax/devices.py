"""The devices of a compiled function and their mesh, and arguments of ours as JAX takes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding

from shardwright.arrays import Array, ShapeDtype
from shardwright.errors import MeshError
from shardwright.jax.convert import from_jax, to_jax
from shardwright.jax.hlo import Module
from shardwright.mesh import Mesh


@dataclass(frozen=True)
class Devices:
    """The devices of a compiled function: how many, their mesh if it is known, and the place of each partition in it."""

    replicas: int
    partitions: int
    mesh: Mesh | None = None
    places: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many devices there are."""
        return self.replicas * self.partitions


def devices_of(module: Module, compiled: Any, given: Mesh | JaxMesh | None, arguments: Sequence[Any]) -> Devices:
    """The devices of a compiled module, and the place of each partition in the mesh.

    The mesh is the one given, or that of the arguments' shardings, or of those that the function was compiled for.
    """
    count = module.replicas * module.partitions
    bare = Devices(module.replicas, module.partitions)
    own = _meshes(jax.tree.leaves((compiled.input_shardings, compiled.output_shardings)), count)
    meshes = [*_meshes(arguments, count), *own]
    mesh = given if given is not None else (meshes[0] if meshes else None)
    if mesh is None or count == 1:
        return bare
    if mesh.size != count:
        raise MeshError(
            f"{mesh} has {mesh.size} devices, but the function was compiled for {count}: pass a mesh of those."
        )
    # Partition i runs on device i of the meshes that the function was compiled for.
    running = [*own, *meshes]
    numbers = {device: number for number, device in enumerate(jax.devices())}
    order = [
        numbers[d] for d in (running[0].devices.flat if running else compiled.runtime_executable().local_devices())
    ]
    ours = mesh if isinstance(mesh, Mesh) else from_jax(mesh, engine="numpy")
    if sorted(order) != sorted(ours.device_ids):
        raise MeshError(
            f"The function was compiled for the devices {sorted(order)}, but {ours} has {sorted(ours.device_ids)}: pass "
            f"mesh= with their ids."
        )
    return Devices(module.replicas, module.partitions, ours, tuple(map(ours.position, order)))


def _meshes(shardings: Sequence[Any], count: int) -> list[JaxMesh]:
    """The meshes of some shardings that have so many devices."""
    named = (s.mesh for s in shardings if isinstance(s, NamedSharding))
    return [mesh for mesh in named if isinstance(mesh, JaxMesh) and mesh.size == count]


def abstract(leaf: Any) -> Any:
    """An argument as JAX takes it: tensors of ours as their shapes, dtypes and shardings."""
    if not isinstance(leaf, ShapeDtype | Array):
        return leaf
    sharding = None if leaf.sharding is None else to_jax(leaf.sharding)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
