"""shardwright: one language for sharding tensors and computations over meshes of devices, many engines to run it on."""

from typing import TYPE_CHECKING, Any

from shardwright import collectives, errors, nn, numpy, random, rules
from shardwright.arrays import (
    Array,
    PerDevice,
    ShapeDtype,
    from_shards,
    gather,
    process_coords,
    process_index,
    replicate,
    shard,
    shard_map,
)
from shardwright.eager import auto_sharding, strict
from shardwright.engines import engine
from shardwright.errors import ImplicitGatherError, ImplicitGatherWarning, ShardwrightError
from shardwright.hardware import Link
from shardwright.mesh import Mesh
from shardwright.plan import plan_reshard
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
    "auto_sharding",
    "collectives",
    "cond",
    "engine",
    "errors",
    "explain",
    "from_shards",
    "gather",
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


def __getattr__(name: str) -> Any:
    if name == "launch":  # loaded when first asked for: it needs multiprocessing
        from shardwright.launching import launch

        globals()[name] = launch
        return launch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
