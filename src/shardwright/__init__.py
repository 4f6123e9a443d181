"""shardwright: one language for sharding tensors and computations over meshes of devices, many engines to run it on."""

from shardwright import collectives, errors, nn, numpy, random, rules
from shardwright.array import Array, from_shards, gather, replicate, shard
from shardwright.auto import auto_sharding
from shardwright.dispatch import strict
from shardwright.errors import ImplicitGatherError, ImplicitGatherWarning, ShardwrightError
from shardwright.jit import explain, sjit, with_sharding_annotation, with_sharding_constraint
from shardwright.mesh import Link, Mesh
from shardwright.per_device import PerDevice, process_coords, process_index
from shardwright.plan import plan_reshard
from shardwright.program import cond, scan, while_loop
from shardwright.rules import match_sharding_rule
from shardwright.shard_map import shard_map
from shardwright.sharding import P, Sharding
from shardwright.viz import picture

__version__ = "0.1.0"

__all__ = [
    "Array",
    "ImplicitGatherError",
    "ImplicitGatherWarning",
    "Link",
    "Mesh",
    "P",
    "PerDevice",
    "Sharding",
    "ShardwrightError",
    "auto_sharding",
    "collectives",
    "cond",
    "errors",
    "explain",
    "from_shards",
    "gather",
    "match_sharding_rule",
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
