"""`to_jax` and `from_jax`: meshes, specs, shardings and arrays of shardwright and of JAX, each as the other's.

The device with id i of a `sw.Mesh` is `jax.devices()[i]`. JAX has no words for sub-axes, pending reductions, halos and
explicit offsets, and holds even shards only: those are refused with the reason.
"""

from typing import Any, overload

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from shardwright.arrays import Array, shard
from shardwright.errors import ArrayError, MeshError, ShardingError
from shardwright.jax.rules import partition_spec
from shardwright.jax.streaming import gathered
from shardwright.mesh import Mesh
from shardwright.sharding import P, Sharding, layout_of


@overload
def to_jax(value: Mesh, axis_types: AxisType | None = None) -> jax.sharding.Mesh: ...
@overload
def to_jax(value: Sharding, axis_types: AxisType | None = None) -> NamedSharding: ...
@overload
def to_jax(value: P, axis_types: AxisType | None = None) -> PartitionSpec: ...
@overload
def to_jax(value: Array, axis_types: AxisType | None = None) -> jax.Array: ...
def to_jax(value: Any, axis_types: AxisType | None = None) -> Any:
    """JAX's mesh, NamedSharding, PartitionSpec or array for a Mesh, Sharding, `P` or Array.

    >>> to_jax(P("data", None))
    P('data', None)

    `axis_types` is AxisType.Auto (the default) or AxisType.Explicit, for all axes of the mesh. Links and engines have no
    counterpart and are dropped. An array on engine "jax" is handed over as it is. Shards of others are shared where JAX
    can, on the CPU if they are contiguous and aligned to 64 bytes, and else copied once: don't change memory that you share
    with the array.
    """
    kind = AxisType.Auto if axis_types is None else axis_types
    if isinstance(value, Mesh):
        return _jax_mesh(value, kind)
    if isinstance(value, P):
        return partition_spec(value)
    if isinstance(value, Sharding):
        return _named_sharding(value, kind)
    if isinstance(value, Array):
        return _jax_array(value, kind)
    raise ArrayError(f"to_jax takes an Array, a Sharding, a P or a Mesh; got {type(value).__name__}.")


@overload
def from_jax(value: jax.sharding.Mesh, *, engine: str = "jax") -> Mesh: ...
@overload
def from_jax(value: NamedSharding, *, engine: str = "jax") -> Sharding: ...
@overload
def from_jax(value: PartitionSpec, *, engine: str = "jax") -> P: ...
@overload
def from_jax(value: jax.Array, *, engine: str = "jax") -> Array: ...
def from_jax(value: Any, *, engine: str = "jax") -> Any:
    """The Mesh, Sharding, `P` or Array for JAX's mesh, NamedSharding, PartitionSpec or array.

    >>> from_jax(PartitionSpec("data", None))
    P('data', None)

    `engine` is that of the mesh. With "jax" an array shares its shards; with another, such as "numpy", they are copied.
    Memory kinds are dropped, and whether axes are Auto or Explicit.
    """
    if isinstance(value, jax.sharding.Mesh):
        return _own_mesh(value, engine)
    if isinstance(value, PartitionSpec):
        return _own_spec(value)
    if isinstance(value, NamedSharding):
        return _own_sharding(value, engine)
    if isinstance(value, jax.Array):
        return _own_array(value, engine)
    raise ArrayError(
        f"from_jax takes a jax.Array, a NamedSharding, a PartitionSpec or a jax.sharding.Mesh; got {type(value).__name__}."
    )


def _jax_mesh(mesh: Mesh, kind: AxisType) -> jax.sharding.Mesh:
    devices = jax.devices()
    if max(mesh.device_ids) >= len(devices):
        raise MeshError(
            f"{mesh} has device ids up to {max(mesh.device_ids)}, but JAX has {len(devices)} devices, 0 to {len(devices) - 1}. "
            f"Use a smaller mesh; virtual CPU devices are set by XLA_FLAGS=--xla_force_host_platform_device_count=n before "
            f"JAX starts."
        )
    grid = np.empty(mesh.size, object)
    grid[:] = [devices[number] for number in mesh.device_ids]
    return jax.sharding.Mesh(grid.reshape(mesh.shape), mesh.axis_names, axis_types=(kind,) * len(mesh.axis_names))


def _own_mesh(mesh: jax.sharding.Mesh, engine: str) -> Mesh:
    numbers = {device: number for number, device in enumerate(jax.devices())}
    unknown = [device for device in mesh.devices.flat if device not in numbers]
    if unknown:
        raise MeshError(
            f"The mesh has {len(unknown)} devices that are not in jax.devices(), such as {unknown[0]}; ids are places in "
            f"it. Make it from devices of the default backend."
        )
    names = tuple(map(str, mesh.axis_names))
    return Mesh(mesh.devices.shape, names, devices=[numbers[device] for device in mesh.devices.flat], engine=engine)


def _own_spec(spec: PartitionSpec) -> P:
    if spec.unreduced or getattr(spec, "reduced", None):  # the latter only in new versions of JAX
        raise ShardingError(
            f"{spec} is unreduced along an axis, which conversion does not cover. Reduce the value first."
        )
    if PartitionSpec.UNCONSTRAINED in tuple(spec):
        raise ShardingError(
            f"{spec} leaves a dim to the compiler (UNCONSTRAINED); a Sharding says how every dim is split."
        )
    return P(*spec)


def _named_sharding(sharding: Sharding, kind: AxisType) -> NamedSharding:
    for present, what, fix in (
        (sharding.partial, f"a pending {sharding.reduction} along {', '.join(sharding.partial)}", "Reduce it first"),
        (sharding.halo, "halos", "Drop them first"),
        (sharding.offsets, "explicit offsets", "Reshard to the default blocks first"),
    ):
        if present:
            raise ShardingError(
                f"{sharding} has {what}, which a NamedSharding can't say. {fix}: x.reshard({sharding.spec})."
            )
    return NamedSharding(_jax_mesh(sharding.mesh, kind), partition_spec(sharding.spec))


def _own_sharding(sharding: Any, engine: str) -> Sharding:
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, jax.sharding.Mesh):
        raise ShardingError(
            f"{sharding} names no mesh of devices. Put the array on one: jax.device_put(x, NamedSharding(mesh, P(…)))."
        )
    return Sharding(_own_mesh(sharding.mesh, engine), _own_spec(sharding.spec))


def _jax_array(x: Array, kind: AxisType) -> jax.Array:
    target = _named_sharding(x.sharding, kind)
    layout = layout_of(x.sharding, x.shape)
    if not layout.is_even:
        raise ArrayError(
            f"{x.summary()} has shards of different sizes, and JAX only holds even ones. Pad it first, or split a dim that "
            f"divides: x.reshard(P(…))."
        )
    if jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype:
        raise ArrayError(
            f"{x.summary()} would lose bits: JAX's 64-bit types are off. Convert it first, x.astype(…), or turn them on: "
            f"jax.config.update('jax_enable_x64', True)."
        )
    if x.mesh.engine == "jax":
        return x.data if x.data.sharding == target else jax.device_put(x.data, target)
    placed = [
        jax.device_put(part.data, device) for part, device in zip(x.shards, target.mesh.devices.flat, strict=True)
    ]
    return jax.make_array_from_single_device_arrays(x.shape, target, placed)


def _own_array(x: jax.Array, engine: str) -> Array:
    if isinstance(x, jax.core.Tracer):
        raise ArrayError("from_jax takes an array with elements; this one is being traced. Convert outside of jax.jit.")
    return shard(x if engine == "jax" else gathered(x), _own_sharding(x.sharding, engine), copy=False)
