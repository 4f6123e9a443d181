"""The global view (`Array`), the local view (`PerDevice`), the way between them, and indexing."""

from shardwright.arrays.array import Array, as_sharding, from_shards, gather, replicate, shard
from shardwright.arrays.hosts import ShapeDtype, host_array, is_abstract, is_tensor, kind_of_host
from shardwright.arrays.indexing import held_like, index_array, row_indices, take
from shardwright.arrays.local import joined_layout, shard_map
from shardwright.arrays.per_device import PerDevice, process_coords, process_index, read_only, same_mesh
from shardwright.arrays.process_local import from_process_local
from shardwright.arrays.shards import Shard, Shards

__all__ = [
    "Array",
    "PerDevice",
    "ShapeDtype",
    "Shard",
    "Shards",
    "as_sharding",
    "from_process_local",
    "from_shards",
    "gather",
    "held_like",
    "host_array",
    "index_array",
    "is_abstract",
    "is_tensor",
    "joined_layout",
    "kind_of_host",
    "process_coords",
    "process_index",
    "read_only",
    "replicate",
    "row_indices",
    "same_mesh",
    "shard",
    "shard_map",
    "take",
]
