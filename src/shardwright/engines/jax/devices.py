"""The devices of JAX as those of a mesh, and JAX's meshes over them."""

from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh as JaxMesh

from shardwright.errors import EngineError
from shardwright.mesh import Mesh


def devices_of(mesh: Mesh) -> list[Any]:
    """The JAX device of each place: device id i of a mesh is number i of `jax.devices()`."""
    return _devices(mesh.device, tuple(mesh.device_ids), str(mesh))


@lru_cache(maxsize=256)
def _devices(platform: str, ids: tuple[int, ...], shown: str) -> list[Any]:
    try:
        known = jax.devices() if platform == "default" else jax.devices(platform)
    except RuntimeError as error:
        raise EngineError(
            f"JAX has no platform {platform!r}: {error}. Leave out device= for JAX's default platform."
        ) from error
    if max(ids) >= len(known):
        raise EngineError(
            f"{shown} uses device {max(ids)}, and JAX has {len(known)} {known[0].platform} devices here. Use a smaller mesh, "
            f"engine='numpy', or, to try it on CPUs, set XLA_FLAGS=--xla_force_host_platform_device_count={max(ids) + 1} "
            f"before JAX starts."
        )
    return [known[i] for i in ids]


@lru_cache(maxsize=1024)
def jax_mesh(mesh: Mesh, lanes: tuple[str, ...]) -> JaxMesh:
    """JAX's mesh over the same devices, with an axis for each lane: an axis of the mesh, or a piece of one."""
    sizes = [mesh.axis(lane).size for lane in lanes]
    return JaxMesh(np.array(devices_of(mesh), dtype=object).reshape(sizes), lanes)


def own_places(mesh: Mesh) -> list[int]:
    """The places whose devices this process has."""
    index = jax.process_index()
    return [place for place, device in enumerate(devices_of(mesh)) if device.process_index == index]
