"""`Mesh` and torch's `DeviceMesh`: device ids are ranks. The process group is found, or made from torchrun's variables."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from shardwright.engines.torch.processes import has_group
from shardwright.errors import EngineError, MeshError
from shardwright.mesh import Mesh

_known: dict[tuple[Mesh, str], tuple[Any, DeviceMesh]] = {}  # with the process group that each was made in


def to_device_mesh(mesh: Mesh, device_type: str | None = None) -> DeviceMesh:
    """The DeviceMesh with the same axes, in which the device with id i is rank i.

    Every process of the group must call it, and gets the same object for the same mesh again. `device_type` is "cpu"
    or "cuda"; by default it follows the group's backend. Without a process group it raises EngineError. Ids that do not
    ascend along every axis are refused: DTensors would be read back in another order. Links and the engine have no
    counterpart and are dropped.
    """
    if not isinstance(mesh, Mesh):
        raise MeshError(f"to_device_mesh takes a Mesh; got {type(mesh).__name__}.")
    check_ascending(mesh)
    if not has_group():
        raise EngineError(
            f"A DeviceMesh for {mesh} needs a process group, and this process is in none. Start the script with "
            f"torchrun --nproc-per-node {mesh.size}, or call torch.distributed.init_process_group first."
        )
    world = dist.get_world_size()
    if max(mesh.device_ids) >= world:
        raise MeshError(
            f"{mesh} has device ids up to {max(mesh.device_ids)}, but the process group has {world} ranks, 0 to "
            f"{world - 1}. Start {max(mesh.device_ids) + 1} processes, or use a mesh of at most {world} devices."
        )
    kind = device_type or ("cuda" if "nccl" in dist.get_backend() else "cpu")
    group, known = _known.get((mesh, kind), (None, None))
    if known is None or group is not dist.group.WORLD:
        if group is not None:
            _known.clear()  # of a process group that was destroyed
        known = DeviceMesh(kind, torch.from_numpy(mesh.ids()), mesh_dim_names=mesh.axis_names)
        _known[mesh, kind] = dist.group.WORLD, known
    return known


def from_device_mesh(
    device_mesh: DeviceMesh, axis_names: Sequence[str] | None = None, *, engine: str = "torch"
) -> Mesh:
    """The Mesh with the same axes, whose device ids are the ranks.

    `axis_names` names the axes of a DeviceMesh that has no mesh_dim_names. A part of a DeviceMesh, such as
    `device_mesh["tp"]`, gives every process the part that it belongs to: meshes then differ between processes.
    """
    if not isinstance(device_mesh, DeviceMesh):
        raise MeshError(f"from_device_mesh takes a DeviceMesh; got {type(device_mesh).__name__}.")
    ranks = device_mesh.mesh
    names = device_mesh.mesh_dim_names if axis_names is None else axis_names
    if names is None:
        raise MeshError(
            f"The axes of a Mesh have names, and this DeviceMesh of shape {tuple(ranks.shape)} has none. Pass "
            f"axis_names=(…), {ranks.ndim} names, or make it with mesh_dim_names."
        )
    if len(names) != ranks.ndim:
        raise MeshError(f"axis_names has {len(names)} names, but the DeviceMesh has {ranks.ndim} dims: give one each.")
    return Mesh(tuple(ranks.shape), names, devices=ranks.flatten().tolist(), engine=engine)


def check_ascending(mesh: Mesh) -> None:
    """Refuse device ids that do not ascend along an axis: torch sorts the ranks of a group, whatever the mesh says.

    `full_tensor()` on ranks [3, 2, 1, 0] of a tensor in four parts gives the parts in reverse (torch 2.13).
    """
    for dim, axis in enumerate(mesh.axis_names):
        if (np.diff(mesh.ids(), axis=dim) < 0).any():
            raise MeshError(
                f"The device ids of {mesh} do not ascend along axis {axis!r}. torch.distributed sorts the ranks of every "
                f"group, so a DTensor on this mesh would be read back in another order. Give ids that ascend along every "
                f"axis; another order of axes can be written in P."
            )


def own_place(mesh: Mesh) -> int:
    """The place of this process's device in a mesh."""
    rank = dist.get_rank()
    if rank not in mesh.device_ids:
        raise MeshError(
            f"Rank {rank} has no device in {mesh}: its ranks are {', '.join(map(str, mesh.device_ids))}. Start as many "
            f"processes as the mesh has devices, {mesh.size}, or leave the other ranks out of this call."
        )
    return mesh.position(rank)
