"""XLA's operations on sharded values: what lax's primitives and StableHLO's operations mean, in rows of the table.

One function an operation, with its attributes as plain numbers. The front ends for JAX and MLIR only translate their own
spelling to these. Nothing here imports jax.
"""

from shardwright.xla.bits import bitcast, counts, reduce_precision, threefry
from shardwright.xla.elementwise import ELEMENTWISE, MONOIDS, Monoid, clamp, convert, integer_power, select, total_order
from shardwright.xla.indexing import CLIP, FILL, PROMISE, Numbers, gather, scatter
from shardwright.xla.products import Layout, Window, convolution, dot_general, ragged_dot
from shardwright.xla.reducing import argument, cumulative, reduce, sort, top_k
from shardwright.xla.running import silent
from shardwright.xla.shaping import (
    concatenate,
    dynamic_slice,
    dynamic_update_slice,
    iota,
    pad,
    reverse,
    split,
    static_slice,
    tile,
)
from shardwright.xla.values import (
    MOST_FOLDED,
    Value,
    broadcast,
    broadcast_in_dim,
    contiguous,
    expand,
    first_of,
    folded,
    is_known,
    is_splat,
    lifted,
    permute,
    reshape,
    shared_constants,
    splat,
    where,
)
from shardwright.xla.windows import KEEPS, reduce_window, select_and_gather, select_and_scatter

__all__ = [
    "CLIP",
    "ELEMENTWISE",
    "FILL",
    "KEEPS",
    "MONOIDS",
    "MOST_FOLDED",
    "PROMISE",
    "Layout",
    "Monoid",
    "Numbers",
    "Value",
    "Window",
    "argument",
    "bitcast",
    "broadcast",
    "broadcast_in_dim",
    "clamp",
    "concatenate",
    "contiguous",
    "convert",
    "convolution",
    "counts",
    "cumulative",
    "dot_general",
    "dynamic_slice",
    "dynamic_update_slice",
    "expand",
    "first_of",
    "folded",
    "gather",
    "integer_power",
    "iota",
    "is_known",
    "is_splat",
    "lifted",
    "pad",
    "permute",
    "ragged_dot",
    "reduce",
    "reduce_precision",
    "reduce_window",
    "reshape",
    "reverse",
    "scatter",
    "select",
    "select_and_gather",
    "select_and_scatter",
    "shared_constants",
    "silent",
    "sort",
    "splat",
    "split",
    "static_slice",
    "threefry",
    "tile",
    "top_k",
    "total_order",
    "where",
]
