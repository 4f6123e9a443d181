"""JAX programs with sharding rules: `sw.jax`, a drop-in for scalax.

Functions are ordinary JAX, compiled by `jax.jit` and partitioned by XLA. Rules are those of `shardwright.rules`, applied to
JAX's pytrees. Meshes, shardings and arrays convert to JAX's and back. `explain` shows what compiled functions send between
devices, in the table that `sw.explain` gives.
"""

try:
    import jax as _jax  # noqa: F401  # absolute: the installed package
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ModuleNotFoundError(
        "shardwright.jax needs jax, which is not installed. Run: pip install 'shardwright[jax]'.", name="jax"
    ) from error

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwright.jax import utils
from shardwright.jax.compiling import SJITCompiledFunction
from shardwright.jax.constraints import with_sharding_annotation, with_sharding_constraint
from shardwright.jax.context import (
    MeshShardingContext,
    get_global_annotation_shardings,
    get_global_mesh,
    get_global_mesh_helper,
    optional_shardings,
)
from shardwright.jax.convert import from_jax, to_jax
from shardwright.jax.explaining import explain
from shardwright.jax.helper import MeshShardingHelper
from shardwright.jax.importing import ImportedFunction, load
from shardwright.jax.rules import FSDPShardingRule, PolicyShardingRule, ShardingRule, TreePathShardingRule

__all__ = [
    "FSDPShardingRule",
    "ImportedFunction",
    "Mesh",
    "MeshShardingContext",
    "MeshShardingHelper",
    "NamedSharding",
    "PartitionSpec",
    "PolicyShardingRule",
    "SJITCompiledFunction",
    "ShardingRule",
    "TreePathShardingRule",
    "explain",
    "from_jax",
    "get_global_annotation_shardings",
    "get_global_mesh",
    "get_global_mesh_helper",
    "load",
    "optional_shardings",
    "to_jax",
    "utils",
    "with_sharding_annotation",
    "with_sharding_constraint",
]
