"""shardwright: one language for sharding tensors and computations over meshes of devices, many engines to run it on."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardwright import collectives, errors, hardware, nn, numpy, random, rules
from shardwright.arrays import (
    Array,
    PerDevice,
    ShapeDtype,
    from_process_local,
    from_shards,
    gather,
    process_coords,
    process_index,
    replicate,
    shard,
    shard_map,
)
from shardwright.eager import auto_sharding, strict
from shardwright.engines import checked, engine
from shardwright.errors import ImplicitGatherError, ImplicitGatherWarning, ShardwrightError
from shardwright.hardware import Link
from shardwright.mesh import Mesh
from shardwright.plan import plan_reshard
from shardwright.planner import auto
from shardwright.program import (
    cond,
    explain,
    measure,
    scan,
    sjit,
    while_loop,
    with_sharding_annotation,
    with_sharding_constraint,
)
from shardwright.rules import match_sharding_rule
from shardwright.sharding import P, Sharding
from shardwright.viz import picture

if TYPE_CHECKING:
    from shardwright.launching import launch

__version__ = "0.1.0"

__all__ = [
    "Array",
    "ImplicitGatherError",
    "ImplicitGatherWarning",
    "Link",
    "Mesh",
    "P",
    "PerDevice",
    "ShapeDtype",
    "Sharding",
    "ShardwrightError",
    "auto",
    "auto_sharding",
    "checked",
    "collectives",
    "cond",
    "engine",
    "errors",
    "explain",
    "from_process_local",
    "from_shards",
    "gather",
    "hardware",
    "launch",
    "match_sharding_rule",
    "measure",
    "nn",
    "numpy",
    "picture",
    "plan_reshard",
    "process_coords",
    "process_index",
    "random",
    "replicate",
    "rules",
    "scan",
    "shard",
    "shard_map",
    "sjit",
    "strict",
    "while_loop",
    "with_sharding_annotation",
    "with_sharding_constraint",
]

_FRONT_ENDS = {  # loaded when first used, and the extra that each needs
    "jax": "jax",
    "mlir": "mlir",
    "torch": "torch",
    "ttnn": "torch",
}


def __getattr__(name: str) -> Any:
    """What is imported at its first use, because it imports much: the front ends, `sw.torch` and the like, and `launch`."""
    if name == "launch":
        from shardwright.launching import launch

        globals()[name] = launch
        return launch
    if name not in _FRONT_ENDS:
        raise AttributeError(f"module 'shardwright' has no attribute {name!r}")
    try:
        return import_module(f"shardwright.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "shardwright" or "pip install" in str(error):
            raise
        raise ModuleNotFoundError(
            f"shardwright.{name} needs {error.name}, which is not installed. Run: pip install "
            f"'shardwright[{_FRONT_ENDS[name]}]'.",
            name=error.name,
        ) from error
