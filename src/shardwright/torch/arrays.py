"""`Array` and torch's `DTensor`, without a copy: both are this process's shard and a description of the whole."""

import torch
from torch.distributed.tensor import DTensor

from shardwright.arrays import Array
from shardwright.errors import ArrayError
from shardwright.mesh import Mesh
from shardwright.sharding import layout_of
from shardwright.torch.meshes import check_ascending, from_device_mesh, own_place, to_device_mesh
from shardwright.torch.placements import from_placements, to_placements


def to_dtensor(x: Array) -> DTensor:
    """The DTensor that shares this process's shard of an array.

    Every process of the group must call it. The array's mesh must have engine="torch", one device a process. Shardings
    that a DTensor can't hold are refused, as `to_placements` says; so are averages of integers and sums of booleans,
    which torch reduces differently or not at all.
    """
    if not isinstance(x, Array):
        raise ArrayError(f"to_dtensor takes an Array; got {type(x).__name__}. Make one with sw.shard.")
    local = x.data
    if not isinstance(local, torch.Tensor):
        raise ArrayError(
            f"{x.summary()} is on the engine {x.mesh.engine!r}, which holds no torch tensors. Put it on a mesh with "
            f"engine='torch', one process a device, or give torch the whole tensor: torch.from_numpy(x.numpy())."
        )
    placements = to_placements(x.sharding, x.shape)
    whole_numbers = not local.is_floating_point() and not local.is_complex()
    if x.sharding.partial and whole_numbers and (local.dtype is torch.bool or x.sharding.reduction == "average"):
        raise ArrayError(
            f"{x.sharding} has a pending {x.sharding.reduction}, which torch computes differently for {local.dtype}. "
            f"Reduce it first: x.reshard({x.sharding.spec})."
        )
    device_mesh = to_device_mesh(x.mesh, local.device.type)
    _check_shard(x.shape, tuple(local.shape), layout_of(x.sharding, x.shape).at(own_place(x.mesh)).local_shape)
    stride = torch.empty(x.shape, device="meta").stride()
    return DTensor.from_local(local, device_mesh, placements, run_check=False, shape=torch.Size(x.shape), stride=stride)


def from_dtensor(tensor: DTensor, mesh: Mesh | None = None) -> Array:
    """The array that shares this process's shard of a DTensor.

    `mesh` names the axes anew or has links; it must have engine="torch" and the same devices. By default it is
    `from_device_mesh` of the DTensor's. Gradients don't flow through arrays. A DTensor made by from_local without
    shape= from uneven shards has another shape on each process, in torch too: give it shape= and stride=. Ranks that do not
    ascend along every dim of the device mesh are refused, as by `to_device_mesh`.
    """
    if not isinstance(tensor, DTensor):
        raise ArrayError(
            f"from_dtensor takes a DTensor; got {type(tensor).__name__}. Use sw.shard for a tensor that every process has."
        )
    ranks = tensor.device_mesh.mesh
    if mesh is None:
        mesh = from_device_mesh(tensor.device_mesh)
    elif mesh.ids().tolist() != ranks.tolist():
        raise ArrayError(
            f"{mesh} has the device ids {mesh.ids().tolist()}, but the DTensor is on ranks {ranks.tolist()}. Give a mesh "
            f"of the same shape with the same ids, or none."
        )
    if mesh.engine != "torch":
        raise ArrayError(
            f"{mesh} is for the engine {mesh.engine!r}, which can't hold a DTensor's shards. Give engine='torch'."
        )
    check_ascending(mesh)
    shape = tuple(tensor.shape)
    layout = layout_of(from_placements(mesh, tensor.placements, shape), shape)
    with torch.no_grad():
        local = tensor.to_local()
    _check_shard(shape, tuple(local.shape), layout.at(own_place(mesh)).local_shape)
    return Array.of(layout, local.detach())


def _check_shard(shape: tuple[int, ...], actual: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if actual != expected:
        raise ArrayError(
            f"This process's shard of a tensor of shape {shape} has shape {actual}; the blocks of this sharding give "
            f"{expected}. Build the DTensor from shards cut by torch.chunk, and pass shape= and stride= to from_local."
        )
