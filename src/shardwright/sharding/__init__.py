"""Which device holds which part of a tensor: `P`, `Sharding`, its layout for a shape, and the notation."""

from shardwright.sharding.cuts import Cuts, Nested, joined, nested, sliced
from shardwright.sharding.layout import DimLayout, Layout, View, layout_of
from shardwright.sharding.notation import as_dtype, describe, dtype_name, parse
from shardwright.sharding.partial import check_partial, kept_partial, truncates
from shardwright.sharding.reductions import REDUCTIONS, Reduction, is_number
from shardwright.sharding.sharding import Sharding, block_size, usual_offsets
from shardwright.sharding.spec import P, as_spec

__all__ = [
    "REDUCTIONS",
    "Cuts",
    "DimLayout",
    "Layout",
    "Nested",
    "P",
    "Reduction",
    "Sharding",
    "View",
    "as_dtype",
    "as_spec",
    "block_size",
    "check_partial",
    "describe",
    "dtype_name",
    "is_number",
    "joined",
    "kept_partial",
    "layout_of",
    "nested",
    "parse",
    "sliced",
    "truncates",
    "usual_offsets",
]
