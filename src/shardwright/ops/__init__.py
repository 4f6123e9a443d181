"""The operations: factor rules, THE TABLE with one row an operation, and the local computation of each on lanes."""

from shardwright.ops.call import Call
from shardwright.ops.contraction import contraction
from shardwright.ops.dtypes import as_weak, small_dtype
from shardwright.ops.rule import Dims, RowMap, Rule, rule
from shardwright.ops.table import OPS, Op

__all__ = ["OPS", "Call", "Dims", "Op", "RowMap", "Rule", "as_weak", "contraction", "rule", "small_dtype"]
