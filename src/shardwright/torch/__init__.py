"""PyTorch modules and DTensors: `sw.torch`.

Modules are sharded by the same rules as trees of arrays. Meshes, shardings and arrays convert to and from torch's
DeviceMesh, placements and DTensor. Nothing here runs operations: DTensors are torch's, arrays are shardwright's.
"""

try:
    import torch as _torch  # noqa: F401  # absolute: the installed package
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "shardwright.torch needs torch, which is not installed. Run: pip install 'shardwright[torch]'.", name="torch"
    ) from error

from shardwright.torch.arrays import from_dtensor, to_dtensor
from shardwright.torch.aten import register
from shardwright.torch.importing import load
from shardwright.torch.meshes import from_device_mesh, to_device_mesh
from shardwright.torch.modules import gather_module, match_sharding_rule, shard_module
from shardwright.torch.placements import from_placements, to_placements
from shardwright.torch.steps import load_step

__all__ = [
    "from_device_mesh",
    "from_dtensor",
    "from_placements",
    "gather_module",
    "load",
    "load_step",
    "match_sharding_rule",
    "register",
    "shard_module",
    "to_device_mesh",
    "to_dtensor",
    "to_placements",
]
