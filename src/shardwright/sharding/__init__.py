"""Which part of a tensor lies on which device: `P`, `Sharding`, its layout for a shape, and the notation."""

from shardwright.sharding.layout import DimLayout, Layout, layout_of
from shardwright.sharding.notation import describe, dtype_name, parse, parse_dtype
from shardwright.sharding.reductions import REDUCTIONS, Reduction, is_number
from shardwright.sharding.sharding import Sharding
from shardwright.sharding.spec import P, as_spec

__all__ = [
    "REDUCTIONS",
    "DimLayout",
    "Layout",
    "P",
    "Reduction",
    "Sharding",
    "as_spec",
    "describe",
    "dtype_name",
    "is_number",
    "layout_of",
    "parse",
    "parse_dtype",
]
