"""Facts about operations: factor rules, THE TABLE with one row per operation, dtypes of results, floating-point work.

What a device computes for a row is in `shardwright.kernels`.
"""

from shardwright.ops.attrs import NO_ATTRS, Attrs
from shardwright.ops.dtypes import as_weak, finite_range, is_small, small_dtype, work_dtype
from shardwright.ops.rule import Dims, RowMap, Rule, rule
from shardwright.ops.table import OPS, Op

__all__ = [
    "NO_ATTRS",
    "OPS",
    "Attrs",
    "Dims",
    "Op",
    "RowMap",
    "Rule",
    "as_weak",
    "finite_range",
    "is_small",
    "rule",
    "small_dtype",
    "work_dtype",
]
